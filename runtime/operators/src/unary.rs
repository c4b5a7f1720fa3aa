//! Operators that make each element from the one at the same place.
//!
//! Functions of real numbers work over blocks of f32 or f64; halves are made f32 and back, a few at a time.

use super::{Call, Definition, Known, Made, Operator, Reuse, Types, Unclear, cast};
use rten_simd::SimdUnaryOp;
use rten_vecmath as vecmath;
use smallvec::smallvec;
use stepalloc_kernels::{
    broadcast::{PARALLEL, PART},
    no, vector,
};
use stepalloc_tensor::{DataType, OpError};
use stepalloc_threads as threads;

pub(super) fn make(node: &Definition<'_>) -> Made {
    let attributes = node.attributes;
    let alpha = |default| attributes.float("alpha", default);
    let function = match node.op {
        "SwiGLU" => return Some(Ok(Box::new(SwiGlu { alpha: alpha(1.0) }))),
        "Acos" => Function::Acos,
        "Acosh" => Function::Acosh,
        "Asin" => Function::Asin,
        "Asinh" => Function::Asinh,
        "Atan" => Function::Atan,
        "Atanh" => Function::Atanh,
        "Ceil" => Function::Ceil,
        "Celu" => Function::Elu { slope: 1.0, scale: alpha(1.0), rate: 1.0 / alpha(1.0) },
        "Cos" => Function::Cos,
        "Cosh" => Function::Cosh,
        "Elu" => Function::Elu { slope: 1.0, scale: alpha(1.0), rate: 1.0 },
        "Erf" => Function::Erf,
        "Exp" => Function::Exp,
        "FastGelu" => Function::TanhGelu,
        "Floor" => Function::Floor,
        "Gelu" => match attributes.text("approximate", "none") {
            "none" => Function::Gelu,
            "tanh" => Function::TanhGelu,
            other => {
                return Some(Err(OpError::attribute(format!(
                    "its approximate is {other:?}, neither none nor tanh"
                ))));
            }
        },
        "HardSigmoid" => Function::HardSigmoid { alpha: alpha(0.2), beta: attributes.float("beta", 0.5) },
        "HardSwish" => Function::HardSwish,
        "LeakyRelu" => Function::LeakyRelu(alpha(0.01)),
        "Log" => Function::Log,
        "Mish" => Function::Mish,
        "QuickGelu" => Function::Swish(alpha(1.702)),
        "Reciprocal" => Function::Reciprocal,
        "Round" => Function::Round,
        "Selu" => {
            let gamma = attributes.float("gamma", 1.050_701);
            Function::Elu { slope: gamma, scale: gamma * alpha(1.673_263_2), rate: 1.0 }
        }
        "Sigmoid" => Function::Sigmoid,
        "Sin" => Function::Sin,
        "Sinh" => Function::Sinh,
        "Softplus" => Function::Softplus,
        "Softsign" => Function::Softsign,
        "Sqrt" => Function::Sqrt,
        "Swish" => Function::Swish(alpha(1.0)),
        "Tan" => Function::Tan,
        "Tanh" => Function::Tanh,
        "ThresholdedRelu" => Function::ThresholdedRelu(alpha(1.0)),
        _ => return None,
    };
    Some(Ok(Box::new(function)))
}

/// Functions of real numbers.
#[derive(Clone, Copy)]
pub(super) enum Function {
    Acos,
    Acosh,
    Asin,
    Asinh,
    Atan,
    Atanh,
    Ceil,
    Cos,
    Cosh,
    /// See [`vector::Elu`].
    Elu {
        slope: f32,
        scale: f32,
        rate: f32,
    },
    Erf,
    Exp,
    Floor,
    Gelu,
    TanhGelu,
    HardSigmoid {
        alpha: f32,
        beta: f32,
    },
    HardSwish,
    LeakyRelu(f32),
    Log,
    Mish,
    Reciprocal,
    Round,
    Sigmoid,
    Sin,
    Sinh,
    Softplus,
    Softsign,
    Sqrt,
    Swish(f32),
    Tan,
    Tanh,
    ThresholdedRelu(f32),
}

/// Computes a [`Function`] in place, the same way for f32 and f64; `$erf` is the error function.
macro_rules! compute {
    ($function:expr, $block:expr, $real:ident, $erf:expr) => {{
        let block: &mut [$real] = $block;
        let to = |parameter: f32| parameter as $real;
        match *$function {
            Function::Acos => each(block, $real::acos),
            Function::Acosh => each(block, $real::acosh),
            Function::Asin => each(block, $real::asin),
            Function::Asinh => each(block, $real::asinh),
            Function::Atan => each(block, $real::atan),
            Function::Atanh => each(block, $real::atanh),
            Function::Ceil => each(block, $real::ceil),
            Function::Cos => each(block, $real::cos),
            Function::Cosh => each(block, $real::cosh),
            Function::Elu { slope, scale, rate } => {
                let (slope, scale, rate) = (to(slope), to(scale), to(rate));
                each(block, |x| if x > 0.0 { slope * x } else { scale * (rate * x).exp_m1() });
            }
            Function::Erf => each(block, $erf),
            Function::Exp => each(block, $real::exp),
            Function::Floor => each(block, $real::floor),
            Function::Gelu => {
                each(block, |x| 0.5 * x * (1.0 + $erf(x * std::$real::consts::FRAC_1_SQRT_2)));
            }
            Function::TanhGelu => {
                let root = std::$real::consts::FRAC_2_PI.sqrt();
                each(block, |x| 0.5 * x * (1.0 + (root * (x + 0.044715 * x * x * x)).tanh()));
            }
            Function::HardSigmoid { alpha, beta } => {
                let (alpha, beta) = (to(alpha), to(beta));
                each(block, |x| (alpha * x + beta).clamp(0.0, 1.0));
            }
            Function::HardSwish => each(block, |x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0)),
            Function::LeakyRelu(alpha) => {
                let alpha = to(alpha);
                each(block, |x| if x < 0.0 { alpha * x } else { x });
            }
            Function::Log => each(block, $real::ln),
            Function::Mish => each(block, |x| {
                let n = x.exp() * (x.exp() + 2.0);
                if x >= 40.0 { x } else { x * n / (n + 2.0) }
            }),
            Function::Reciprocal => each(block, $real::recip),
            Function::Round => each(block, $real::round_ties_even),
            Function::Sigmoid => each(block, |x| 1.0 / (1.0 + (-x).exp())),
            Function::Sin => each(block, $real::sin),
            Function::Sinh => each(block, $real::sinh),
            Function::Softplus => each(block, |x| {
                // The larger of the two, but NaN for NaN.
                let positive = if x < 0.0 { 0.0 } else { x };
                positive + (-x.abs()).exp().ln_1p()
            }),
            Function::Softsign => each(block, |x| x / (1.0 + x.abs())),
            Function::Sqrt => each(block, $real::sqrt),
            Function::Swish(alpha) => {
                let alpha = to(alpha);
                each(block, |x| x / (1.0 + (-alpha * x).exp()));
            }
            Function::Tan => each(block, $real::tan),
            Function::Tanh => each(block, $real::tanh),
            Function::ThresholdedRelu(alpha) => {
                let alpha = to(alpha);
                each(block, |x| if x > alpha { x } else { 0.0 });
            }
        }
    }};
}

impl Function {
    pub(super) fn f32s(&self, block: &mut [f32]) {
        match *self {
            Self::Ceil => vector::Ceil {}.map_mut(block),
            Self::Cos => vecmath::Cos::new().map_mut(block),
            Self::Elu { slope, scale, rate } => vector::Elu { slope, scale, rate }.map_mut(block),
            Self::Erf => vector::Erf {}.map_mut(block),
            Self::Exp => vecmath::Exp {}.map_mut(block),
            Self::Floor => vector::Floor {}.map_mut(block),
            Self::Gelu => vector::Gelu {}.map_mut(block),
            Self::HardSwish => vector::HardSwish {}.map_mut(block),
            Self::TanhGelu => vecmath::ApproxGelu {}.map_mut(block),
            Self::Log => vector::Log {}.map_mut(block),
            Self::Mish => vector::Mish {}.map_mut(block),
            Self::Round => vector::Round {}.map_mut(block),
            Self::Sigmoid => vecmath::Sigmoid {}.map_mut(block),
            Self::Sin => vecmath::Sin::new().map_mut(block),
            Self::Softplus => vector::Softplus {}.map_mut(block),
            Self::Swish(alpha) => vecmath::Swish { alpha }.map_mut(block),
            Self::Tanh => vecmath::Tanh {}.map_mut(block),
            _ => compute!(self, block, f32, |x: f32| vector::erf(x.into()) as f32),
        }
    }

    fn f64s(&self, block: &mut [f64]) {
        compute!(self, block, f64, vector::erf);
    }
}

impl Operator for Function {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        if !input.dtype.is_float() {
            return Err(no(input.dtype).into());
        }
        Ok(smallvec![input.clone()])
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&[0])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let dtype = call.dtype(0)?;
        match wide(dtype) {
            Some(DataType::F32) => blocks(call, dtype, &|block| self.f32s(bytemuck::cast_slice_mut(block))),
            Some(DataType::F64) => blocks(call, dtype, &|block| self.f64s(bytemuck::cast_slice_mut(block))),
            _ => Err(no(dtype)),
        }
    }
}

/// What numbers of a type are computed in: halves in f32, and integers in 64 bits.
pub(super) fn wide(dtype: DataType) -> Option<DataType> {
    use DataType as D;
    Some(match dtype {
        D::F32 | D::F16 | D::BF16 => D::F32,
        D::I8 | D::I16 | D::I32 | D::I64 | D::U8 | D::U16 | D::U32 => D::I64,
        D::F64 | D::U64 => dtype,
        _ => return None,
    })
}

/// Elements that are computed at a time where they are of another type than they lie there.
pub(super) const FEW: usize = 128;

/// Computes each element of a block in place.
pub(super) fn each<T: Copy>(block: &mut [T], f: impl Fn(T) -> T) {
    for x in block {
        *x = f(*x);
    }
}

/// Copies input 0 to output 0, if it does not lie there, and computes it there block by block, in the type that `wide` is for
/// theirs; on all cores if it is large.
pub(super) fn blocks(
    call: &mut Call<'_, '_>,
    dtype: DataType,
    f: &(dyn Fn(&mut [u8]) + Sync),
) -> Result<(), OpError> {
    blocks_at(call, dtype, wide(dtype).unwrap_or(dtype), &|_, block| f(block))
}

/// The same in another type, and `f` is told the bytes of the output before each block.
pub(super) fn blocks_at(
    call: &mut Call<'_, '_>,
    dtype: DataType,
    computed: DataType,
    f: &(dyn Fn(usize, &mut [u8]) + Sync),
) -> Result<(), OpError> {
    let input = match call.in_place() {
        Some(_) => None,
        None => Some(call.input(0)?.bytes),
    };
    let out = call.output(0)?.bytes;
    let width = dtype.bytes();
    let block = |part: usize, out: &mut [u8]| {
        let begin = part * PART * width;
        if let Some(input) = input {
            out.copy_from_slice(&input[begin..begin + out.len()]);
        }
        if computed == dtype {
            return f(begin, out);
        }
        let mut few = [0u64; FEW];
        let few: &mut [u8] = bytemuck::cast_slice_mut(&mut few);
        for (index, out) in out.chunks_mut(FEW * width).enumerate() {
            let few = &mut few[..out.len() / width * computed.bytes()];
            cast::convert(dtype, computed, out, few);
            f(begin + index * FEW * width, few);
            cast::convert(computed, dtype, few, out);
        }
    };
    if out.len() < PARALLEL * width {
        out.chunks_mut(PART * width).enumerate().for_each(|(part, out)| block(part, out));
    } else {
        threads::pieces(out, PART * width, 1, &block);
    }
    Ok(())
}

/// A Swish of one operand times the other.
struct SwiGlu {
    alpha: f32,
}

impl Operator for SwiGlu {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (a, b) = (inputs.ty(0)?, inputs.ty(1)?);
        if a != b || !a.dtype.is_float() {
            return Err(OpError::shape(format!(
                "{a} and {b} are not two tensors of real numbers in one shape"
            ))
            .into());
        }
        Ok(smallvec![a.clone()])
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&[0])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let with = call.input(1)?;
        let swish = Function::Swish(self.alpha);
        let dtype = call.dtype(0)?;
        match wide(dtype) {
            Some(DataType::F32) => blocks_at(call, dtype, DataType::F32, &|begin, block| {
                let block: &mut [f32] = bytemuck::cast_slice_mut(block);
                swish.f32s(block);
                if dtype == DataType::F32 {
                    times(block, bytemuck::cast_slice(&with.bytes[begin..]));
                } else {
                    // What a Swish gives is a half too.
                    let (count, mut few) = (block.len(), [0.0f32; FEW]);
                    let mut rounded = [0u16; FEW];
                    let rounded: &mut [u8] = bytemuck::cast_slice_mut(&mut rounded[..count]);
                    cast::convert(DataType::F32, dtype, bytemuck::cast_slice(block), rounded);
                    cast::convert(dtype, DataType::F32, rounded, bytemuck::cast_slice_mut(block));
                    let with = &with.bytes[begin..begin + count * dtype.bytes()];
                    cast::convert(dtype, DataType::F32, with, bytemuck::cast_slice_mut(&mut few[..count]));
                    times(block, &few);
                }
            }),
            Some(DataType::F64) => blocks_at(call, dtype, dtype, &|begin, block| {
                let block: &mut [f64] = bytemuck::cast_slice_mut(block);
                swish.f64s(block);
                times(block, bytemuck::cast_slice(&with.bytes[begin..]));
            }),
            _ => Err(no(dtype)),
        }
    }
}

/// Multiplies elements by others.
fn times<T: Copy + std::ops::Mul<Output = T>>(block: &mut [T], with: &[T]) {
    for (x, &with) in block.iter_mut().zip(with) {
        *x = *x * with;
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{in_place, run, tensor};
    use super::*;
    use stepalloc_tensor::f16;

    #[test]
    fn over_the_input_is_as_beside_it() {
        let many: Vec<f32> = (0..PARALLEL + 77).map(|n| n as f32 / 1e4 - 3.0).collect();
        let half: Vec<f16> = many[..200].iter().map(|&x| f16::from_f32(x)).collect();
        for op in ["Tanh", "Elu", "Sign", "Softplus", "Clip", "Acos"] {
            for input in [tensor(&[many.len()], &many), tensor(&[2, 100], &half), tensor::<f32>(&[0, 3], &[])]
            {
                let beside = run(op, 20, &[], &[Some(&input)]).unwrap();
                let over = in_place(op, 20, &[], &[Some(&input)], 0).unwrap();
                assert_eq!(over.view().bytes, beside[0].view().bytes, "{op}");
            }
        }
    }

    #[test]
    fn f64_and_f32_agree() {
        let functions =
            ["Ceil", "Floor", "Round", "Celu", "Selu", "Erf", "Gelu", "Mish", "Log", "Sin", "Cos", "Swish"];
        let xs: Vec<f64> = (1..400).map(|n| f64::from(n) / 20.0 - 9.975).collect();
        let narrow: Vec<f32> = xs.iter().map(|&x| x as f32).collect();
        for op in functions {
            let wide = run(op, 28, &[], &[Some(&tensor(&[xs.len()], &xs))]).unwrap();
            let made = run(op, 28, &[], &[Some(&tensor(&[xs.len()], &narrow))]).unwrap();
            for (&wide, &made) in
                wide[0].view().elements::<f64>().iter().zip(made[0].view().elements::<f32>())
            {
                let close = (wide - f64::from(made)).abs() <= 2e-6 * wide.abs().max(1.0);
                assert!(close || wide.is_nan() && made.is_nan(), "{op}: {wide} {made}");
            }
        }
    }
}
