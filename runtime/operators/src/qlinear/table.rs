//! Functions of one byte, looked up in a table of all 256: activations, and tensors put together that had other scales.

use super::{Quantum, check};
use crate::quantize::to_bytes;
use crate::quantized::look_up;
use crate::{Call, Definition, Known, Operator, Reuse, Types, Unclear, typed};
use smallvec::smallvec;
use stepalloc_tensor::{OpError, axis};

/// What each byte becomes by a function of what it stands for.
fn table(from: Quantum, to: Quantum, function: impl Fn(f32) -> f32) -> [u8; 256] {
    let mut bytes = [0; 256];
    to_bytes(&from.reals().map(function), to.pair(), to.dtype, &mut bytes);
    bytes
}

/// A function of each element.
pub(super) enum Function {
    Sigmoid,
    LeakyRelu(f32),
}

impl Operator for Function {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let x = inputs.ty(0)?;
        check(inputs, x.dtype, 1)?;
        check(inputs, x.dtype, 3)?;
        Ok(smallvec![x.clone()])
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&[0])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let dtype = call.dtype(0)?;
        let (from, to) = (Quantum::new(call, 1, dtype)?, Quantum::new(call, 3, dtype)?);
        let table = table(from, to, |x| match *self {
            Self::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Self::LeakyRelu(alpha) => {
                if x < 0.0 {
                    alpha * x
                } else {
                    x
                }
            }
        });
        let input = match call.in_place() {
            Some(_) => None,
            None => Some(call.input(0)?.bytes),
        };
        look_up(&table, input, call.output(0)?.bytes);
        Ok(())
    }
}

/// Tensors one after another along a dimension. Inputs 0 and 1 are scale and zero point of the output; three for each tensor follow.
pub(super) struct Concat {
    axis: i64,
}

/// The first tensor.
const FIRST: usize = 2;

impl Concat {
    pub(super) fn new(node: &Definition<'_>) -> Result<Self, OpError> {
        Ok(Self {
            axis: node.attributes.opt_int("axis").ok_or_else(|| OpError::attribute("it is told no axis"))?,
        })
    }
}

impl Operator for Concat {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let first = inputs.ty(FIRST)?;
        check(inputs, first.dtype, 0)?;
        let at = axis(self.axis, first.rank())?;
        let mut shape = first.shape.clone();
        shape[at] = 0;
        for index in (FIRST..inputs.len()).step_by(3) {
            let next = inputs.ty(index)?;
            check(inputs, first.dtype, index + 1)?;
            let fits = next.dtype == first.dtype
                && next.rank() == first.rank()
                && (0..first.rank()).all(|dim| dim == at || next.shape[dim] == first.shape[dim]);
            if !fits {
                return Err(OpError::shape(format!("{next} does not go on {first} along axis {at}")).into());
            }
            shape[at] =
                shape[at].checked_add(next.shape[at]).ok_or_else(|| OpError::shape("it is too large"))?;
        }
        Ok(smallvec![typed(first.dtype, shape)?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let out = call.output(0)?;
        let to = Quantum::new(call, 0, out.dtype)?;
        let at = axis(self.axis, out.shape.len())?;
        let inner: usize = out.shape[at + 1..].iter().product();
        let whole = out.shape[at] * inner;
        if out.bytes.is_empty() {
            return Ok(());
        }
        let mut begin = 0;
        for index in (FIRST..call.len()).step_by(3) {
            let (input, from) = (call.input(index)?, Quantum::new(call, index + 1, out.dtype)?);
            let row = input.shape[at] * inner;
            if row == 0 {
                continue;
            }
            let rows = out.bytes.chunks_exact_mut(whole).zip(input.bytes.chunks_exact(row));
            let rows = rows.map(|(out, row)| (&mut out[begin..][..row.len()], row));
            if from == to {
                rows.for_each(|(out, row)| out.copy_from_slice(row));
            } else {
                let table = table(from, to, |x| x);
                let each = |(out, &x): (&mut u8, &u8)| *out = table[usize::from(x)];
                rows.for_each(|(out, row)| out.iter_mut().zip(row).for_each(each));
            }
            begin += row;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::trial::{Trial, tensor};
    use stepalloc_tensor::Tensor;

    fn trial<'a>(op: &'a str, inputs: Vec<Option<Tensor>>) -> Trial<'a> {
        Trial { domain: "com.microsoft", opset: 1, ..Trial::new(op, &[], inputs) }
    }

    #[test]
    fn every_byte_becomes_what_the_function_says() {
        let bytes: Vec<u8> = (0..=255).collect();
        let all = tensor(&[256], &bytes);
        let one = |x: f32| Some(tensor(&[], &[x]));
        let zero = |x: u8| Some(tensor(&[], &[x]));
        let sigmoid = vec![Some(all.clone()), one(0.05), zero(128), one(1.0 / 256.0), zero(3)];
        let leaky = vec![Some(all), one(0.5), zero(128), one(0.25), zero(100)];
        for (op, inputs) in [("QLinearSigmoid", sigmoid), ("QLinearLeakyRelu", leaky)] {
            let told = [("alpha", stepalloc_graph::Attribute::Float(0.2))];
            let trial = Trial { attributes: told.to_vec(), ..trial(op, inputs) };
            let made = trial.run().expect("it runs").remove(0);
            for (byte, &got) in made.view().elements::<u8>().iter().enumerate() {
                let wanted = match op {
                    "QLinearSigmoid" => 256.0 / (1.0 + (-(byte as f64 - 128.0) * 0.05).exp()) + 3.0,
                    _ => {
                        let x = (byte as f64 - 128.0) * 0.5;
                        (if x < 0.0 { 0.2 * x } else { x }) * 4.0 + 100.0
                    }
                };
                assert!((f64::from(got) - wanted.clamp(0.0, 255.0)).abs() < 0.51, "{op} of {byte}: {got}");
            }
            assert_eq!(trial.run_over(Some(0)).expect("it runs")[0].view().bytes, made.view().bytes);
        }
    }

    #[test]
    fn tensors_are_put_together_in_the_scale_of_the_output() {
        let one = |x: f32| Some(tensor(&[], &[x]));
        let zero = |x: i8| Some(tensor(&[], &[x]));
        let (a, b) = (tensor(&[2, 1], &[4i8, -4]), tensor(&[2, 2], &[1i8, 2, 3, 100]));
        let inputs = vec![one(0.5), zero(1), Some(a), one(0.5), zero(1), Some(b), one(1.0), zero(0)];
        let trial = trial("QLinearConcat", inputs).int("axis", -1);
        let made = trial.run().expect("it runs").remove(0);
        assert_eq!(made.ty().shape, [2, 3]);
        assert_eq!(made.view().elements::<i8>(), [4, 3, 5, -4, 7, 127]);
        let mut inputs = trial.inputs.clone();
        inputs[5] = Some(tensor(&[3, 2], &[0i8; 6]));
        assert!(Trial { inputs, ..trial }.run().is_err());
    }
}
