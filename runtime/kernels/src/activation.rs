//! The functions that gates of recurrent layers are told to use.

use crate::real::Real;
use stepalloc_tensor::OpError;

/// A function of a gate.
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the names are those of ONNX's operators, the numbers their alpha and beta")]
pub enum Activation {
    Relu,
    Tanh,
    Sigmoid,
    Affine(f32, f32),
    LeakyRelu(f32),
    ThresholdedRelu(f32),
    ScaledTanh(f32, f32),
    HardSigmoid(f32, f32),
    Elu(f32),
    Softsign,
    Softplus,
}

impl Activation {
    /// Takes its numbers from those of the node as far as it has any.
    pub fn new(
        name: &str,
        alphas: &mut impl Iterator<Item = f32>,
        betas: &mut impl Iterator<Item = f32>,
    ) -> Result<Self, OpError> {
        let mut alpha = |usual: f32| alphas.next().unwrap_or(usual);
        let mut beta = |usual: f32| betas.next().unwrap_or(usual);
        Ok(match name.to_ascii_lowercase().as_str() {
            "relu" => Self::Relu,
            "tanh" => Self::Tanh,
            "sigmoid" => Self::Sigmoid,
            "affine" => Self::Affine(alpha(1.0), beta(0.0)),
            "leakyrelu" => Self::LeakyRelu(alpha(0.01)),
            "thresholdedrelu" => Self::ThresholdedRelu(alpha(1.0)),
            "scaledtanh" => Self::ScaledTanh(alpha(1.0), beta(1.0)),
            "hardsigmoid" => Self::HardSigmoid(alpha(0.2), beta(0.5)),
            "elu" => Self::Elu(alpha(1.0)),
            "softsign" => Self::Softsign,
            "softplus" => Self::Softplus,
            _ => {
                return Err(OpError::attribute(format!(
                    "it is told an activation {name}, which is not known"
                )));
            }
        })
    }

    /// Applies it to each element.
    pub fn apply<W: Real>(self, row: &mut [W]) {
        fn each<W: Copy>(row: &mut [W], f: impl Fn(W) -> W) {
            row.iter_mut().for_each(|x| *x = f(*x));
        }
        let (zero, one, w) = (W::default(), W::ONE, |x: f32| W::from_f64(x.into()));
        match self {
            Self::Tanh => W::tanh(row),
            Self::Sigmoid => W::sigmoid(row),
            Self::Relu => row.iter_mut().for_each(|x| *x = if *x < zero { zero } else { *x }),
            Self::Affine(a, b) => each(row, |x| w(a) * x + w(b)),
            Self::LeakyRelu(a) => each(row, |x| if x < zero { w(a) * x } else { x }),
            Self::ThresholdedRelu(a) => each(row, |x| if x < w(a) { zero } else { x }),
            Self::ScaledTanh(a, b) => {
                each(row, |x| w(b) * x);
                W::tanh(row);
                each(row, |x| w(a) * x);
            }
            Self::HardSigmoid(a, b) => each(row, |x| {
                let x = w(a) * x + w(b);
                if x < zero {
                    zero
                } else if x > one {
                    one
                } else {
                    x
                }
            }),
            Self::Elu(a) => each(row, |x| if x < zero { w(a) * (x.exp() - one) } else { x }),
            Self::Softsign => each(row, |x| x / (one + if x < zero { zero - x } else { x })),
            Self::Softplus => each(row, |x| x.softplus()),
        }
    }
}
