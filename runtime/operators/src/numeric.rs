//! Operators that make each element from the one at the same place, for numbers of any type.

use super::unary::{blocks, blocks_at, each, wide};
use super::{Call, Definition, Known, Made, Operator, Reuse, Types, Unclear, cast};
use smallvec::smallvec;
use stepalloc_kernels::no;
use stepalloc_tensor::{DataType, Number, OpError, by_number, by_type};

pub(super) fn make(node: &Definition<'_>) -> Made {
    let attributes = node.attributes;
    Some(Ok(match node.op {
        "Abs" => Box::new(Numeric::Abs),
        "Neg" => Box::new(Numeric::Neg),
        "Relu" => Box::new(Numeric::Relu),
        "Sign" => Box::new(Numeric::Sign),
        "Shrink" => Box::new(Numeric::Shrink {
            bias: attributes.float("bias", 0.0).into(),
            lambd: attributes.float("lambd", 0.5).into(),
        }),
        "Clip" => Box::new(Clip { min: attributes.opt_float("min"), max: attributes.opt_float("max") }),
        _ => return None,
    }))
}

/// Functions of numbers of any type.
enum Numeric {
    Abs,
    Neg,
    Relu,
    Sign,
    Shrink { bias: f64, lambd: f64 },
}

impl Operator for Numeric {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        Ok(smallvec![inputs.ty(0)?.clone()])
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&[0])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let dtype = call.dtype(0)?;
        let computed = wide(dtype).ok_or_else(|| no(dtype))?;
        if let Self::Shrink { bias, lambd } = *self {
            return blocks_at(call, dtype, DataType::F64, &|_, x| {
                let shrunk = |x| match x {
                    x if x < -lambd => x + bias,
                    x if x > lambd => x - bias,
                    _ => 0.0,
                };
                each(bytemuck::cast_slice_mut(x), shrunk);
            });
        }
        blocks(call, dtype, &|x| match computed {
            DataType::F32 => self.reals(bytemuck::cast_slice_mut::<_, f32>(x), f32::abs),
            DataType::F64 => self.reals(bytemuck::cast_slice_mut::<_, f64>(x), f64::abs),
            DataType::U64 => self.unsigned(bytemuck::cast_slice_mut(x)),
            _ => self.signed(bytemuck::cast_slice_mut(x)),
        })
    }
}

impl Numeric {
    fn reals<T: Number + std::ops::Neg<Output = T>>(&self, x: &mut [T], abs: fn(T) -> T) {
        let (one, zero) = (T::from_i64(1), T::default());
        match self {
            // The absolute value of NaN and of zero loses its sign too.
            Self::Abs => each(x, abs),
            Self::Neg => each(x, |x| -x),
            Self::Relu => each(x, |x| if x < zero { zero } else { x }),
            Self::Sign => each(x, |x| match x {
                x if x > zero => one,
                x if x < zero => -one,
                // NaN too.
                x => x,
            }),
            Self::Shrink { .. } => {}
        }
    }

    fn signed(&self, x: &mut [i64]) {
        match self {
            Self::Abs => each(x, i64::wrapping_abs),
            Self::Neg => each(x, i64::wrapping_neg),
            Self::Relu => each(x, |x| x.max(0)),
            Self::Sign => each(x, i64::signum),
            Self::Shrink { .. } => {}
        }
    }

    fn unsigned(&self, x: &mut [u64]) {
        match self {
            Self::Neg => each(x, u64::wrapping_neg),
            Self::Sign => each(x, |x| x.min(1)),
            Self::Abs | Self::Relu | Self::Shrink { .. } => {}
        }
    }
}

/// Within limits: attributes in old versions, inputs in new ones.
struct Clip {
    min: Option<f32>,
    max: Option<f32>,
}

impl Operator for Clip {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        for limit in [inputs.opt(1), inputs.opt(2)].into_iter().flatten() {
            if limit.dtype != input.dtype || limit.elements() != 1 {
                return Err(OpError::operand(
                    limit,
                    input.dtype,
                    format!("its limit is {limit}, not one element of {}", input.dtype),
                )
                .into());
            }
        }
        Ok(smallvec![input.clone()])
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&[0])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let dtype = call.dtype(0)?;
        let limits = [(1, self.min), (2, self.max)].map(|(input, attribute)| (call.opt(input), attribute));
        // Without limits infinity becomes the largest number.
        let limits: [[u64; 1]; 2] = by_number!(dtype, T => {
            let mut ends = [T::MIN, T::MAX];
            for (end, (limit, attribute)) in ends.iter_mut().zip(limits) {
                match (limit, attribute) {
                    (Some(limit), _) => *end = limit.elements::<T>()[0],
                    (None, Some(attribute)) => *end = T::from_f64(attribute.into()),
                    (None, None) => {}
                }
            }
            [widened(dtype, bytemuck::bytes_of(&ends[0])), widened(dtype, bytemuck::bytes_of(&ends[1]))]
        }, return Err(no(dtype)));
        by_type!(wide(dtype).unwrap_or(dtype), [F32, F64, I64, U64], T => {
            fn first<T: Number>(of: &[u64; 1]) -> T {
                bytemuck::cast_slice(of)[0]
            }
            let (min, max): (T, T) = (first(&limits[0]), first(&limits[1]));
            blocks(call, dtype, &|x| each(bytemuck::cast_slice_mut(x), |x: T| {
                let x = if x < min { min } else { x };
                // Last, so that it wins where the limits cross.
                if x > max { max } else { x }
            }))
        }, Err(no(dtype)))
    }
}

/// An element in the type that it is computed in.
fn widened(dtype: DataType, element: &[u8]) -> [u64; 1] {
    let mut made = [0];
    let to = wide(dtype).unwrap_or(dtype);
    cast::convert(dtype, to, element, &mut bytemuck::cast_slice_mut(&mut made)[..to.bytes()]);
    made
}

#[cfg(test)]
mod tests {
    use super::super::trial::{run, tensor};
    use stepalloc_graph::Attribute;

    #[test]
    fn limits_that_cross_give_the_upper_one_and_those_of_old_versions_are_attributes() {
        let x = tensor(&[3], &[-5i32, 1, 9]);
        let limit = |x| tensor(&[], &[x]);
        let made = run("Clip", 13, &[], &[Some(&x), Some(&limit(4)), Some(&limit(2))]).unwrap();
        assert_eq!(made[0].view().elements::<i32>(), [2, 2, 2]);
        let old = run("Clip", 7, &[("max", Attribute::Float(1.0))], &[Some(&x)]).unwrap();
        assert_eq!(old[0].view().elements::<i32>(), [-5, 1, 1]);
        assert!(run("Clip", 13, &[], &[Some(&x), Some(&tensor::<i32>(&[0], &[]))]).is_err());
    }
}
