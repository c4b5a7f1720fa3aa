//! Operators on truth values and bits, comparisons, and choices by them.

use super::elementwise::{Operand, broadcast_types, meet, meet_as, meet_bytes};
use super::unary::{each, wide};
use super::{Call, Definition, Known, Made, Operator, Reuse, Types, Unclear, typed};
use bytemuck::Pod;
use smallvec::smallvec;
use stepalloc_kernels::{
    broadcast::Walk,
    minifloat::{decode, is_minifloat},
    no,
};
use stepalloc_tensor::{Bool, DataType, Element, OpError, by_integer, by_width};

pub(super) fn make(node: &Definition<'_>) -> Made {
    let attributes = node.attributes;
    Some(Ok(match node.op {
        "And" => Box::new(Bitwise::And { of: Some(DataType::Bool) }),
        "Or" => Box::new(Bitwise::Or { of: Some(DataType::Bool) }),
        "Xor" => Box::new(Bitwise::Xor { of: Some(DataType::Bool) }),
        "BitwiseAnd" => Box::new(Bitwise::And { of: None }),
        "BitwiseOr" => Box::new(Bitwise::Or { of: None }),
        "BitwiseXor" => Box::new(Bitwise::Xor { of: None }),
        "BitShift" => match attributes.text("direction", "") {
            "LEFT" => Box::new(Bitwise::Left),
            "RIGHT" => Box::new(Bitwise::Right),
            other => {
                return Some(Err(OpError::attribute(format!(
                    "its direction is {other:?}, neither LEFT nor RIGHT"
                ))));
            }
        },
        "Not" => Box::new(Not { bits: false }),
        "BitwiseNot" => Box::new(Not { bits: true }),
        "Equal" => Box::new(Compare::Equal),
        "Greater" => Box::new(Compare::Less { swapped: true }),
        "GreaterOrEqual" => Box::new(Compare::LessOrEqual { swapped: true }),
        "Less" => Box::new(Compare::Less { swapped: false }),
        "LessOrEqual" => Box::new(Compare::LessOrEqual { swapped: false }),
        "Where" => Box::new(Where),
        "IsNaN" => Box::new(Is::Nan),
        "IsInf" => Box::new(Is::Infinite {
            positive: attributes.int("detect_positive", 1) != 0,
            negative: attributes.int("detect_negative", 1) != 0,
        }),
        _ => return None,
    }))
}

/// Two operands of one type, bit by bit, or one shifted by the other; `of` is the one type that is allowed, or any integers.
enum Bitwise {
    And { of: Option<DataType> },
    Or { of: Option<DataType> },
    Xor { of: Option<DataType> },
    Left,
    Right,
}

impl Operator for Bitwise {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (a, b) = (inputs.ty(0)?, inputs.ty(1)?);
        let fits = match self {
            Self::And { of: Some(of) } | Self::Or { of: Some(of) } | Self::Xor { of: Some(of) } => {
                a.dtype == *of
            }
            _ => is_integer(a.dtype),
        };
        if a.dtype != b.dtype || !fits {
            return Err(OpError::element_type(format!("it is not made for {a} and {b}")).into());
        }
        Ok(smallvec![typed(a.dtype, broadcast_types(&[a, b])?)?])
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&[0, 1])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let dtype = call.dtype(0)?;
        let out = call.output(0)?;
        let (a, b) = (Operand::new(call, 0)?, Operand::new(call, 1)?);
        let all = (out, &a, &b);
        let bits = dtype.bytes() as u64 * 8;
        match self {
            // These see bytes.
            Self::And { .. } => {
                meet_bytes(all, (dtype, dtype, dtype), &|out, a, b| bytes(out, a, b, |a, b| a & b))
            }
            Self::Or { .. } => {
                meet_bytes(all, (dtype, dtype, dtype), &|out, a, b| bytes(out, a, b, |a, b| a | b))
            }
            Self::Xor { .. } => {
                meet_bytes(all, (dtype, dtype, dtype), &|out, a, b| bytes(out, a, b, |a, b| a ^ b))
            }
            // A negative amount is a huge one here, and all bits leave.
            Self::Left => meet(all, |a: u64, by: u64| if by < bits { a << by } else { 0 }),
            Self::Right if dtype == DataType::U64 => {
                meet(all, |a: u64, by: u64| if by < bits { a >> by } else { 0 });
            }
            Self::Right => meet(all, |a: i64, by: i64| a >> (by as u64).min(63)),
        }
        Ok(())
    }
}

fn bytes(out: &mut [u8], a: &[u8], b: &[u8], f: impl Fn(u8, u8) -> u8) {
    for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
        *out = f(a, b);
    }
}

fn is_integer(dtype: DataType) -> bool {
    by_integer!(dtype, T => T::DTYPE == dtype, false)
}

/// The other truth value, or all other bits.
struct Not {
    bits: bool,
}

impl Operator for Not {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        if self.bits && !is_integer(input.dtype) || !self.bits && input.dtype != DataType::Bool {
            return Err(no(input.dtype).into());
        }
        Ok(smallvec![input.clone()])
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&[0])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let out = call.output(0)?;
        if call.in_place().is_none() {
            out.bytes.copy_from_slice(call.input(0)?.bytes);
        }
        if self.bits {
            each(out.bytes, |byte| !byte);
        } else {
            each(out.bytes, |byte| u8::from(byte == 0));
        }
        Ok(())
    }
}

/// Comparisons of two operands; `swapped` are those with the second before the first.
enum Compare {
    Equal,
    Less { swapped: bool },
    LessOrEqual { swapped: bool },
}

impl Operator for Compare {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (a, b) = (inputs.ty(0)?, inputs.ty(1)?);
        if a.dtype != b.dtype {
            return Err(OpError::element_type(format!("{a} and {b} have elements of two types")).into());
        }
        Ok(smallvec![typed(DataType::Bool, broadcast_types(&[a, b])?)?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (mut a, mut b) = (Operand::new(call, 0)?, Operand::new(call, 1)?);
        let out = call.output(0)?;
        let dtype = call.dtype(0)?;
        if let Self::Less { swapped: true } | Self::LessOrEqual { swapped: true } = self {
            std::mem::swap(&mut a, &mut b);
        }
        let computed = match wide(dtype) {
            Some(computed) => computed,
            None if dtype == DataType::Bool && matches!(self, Self::Equal) => DataType::I64,
            None => return Err(no(dtype)),
        };
        let (all, types) = ((out, &a, &b), (computed, computed, DataType::Bool));
        match (self, computed) {
            (Self::Equal, DataType::F32) => meet_as(all, types, |a: f32, b: f32| Bool::from(a == b)),
            (Self::Equal, DataType::F64) => meet_as(all, types, |a: f64, b: f64| Bool::from(a == b)),
            (Self::Equal, _) => meet_as(all, types, |a: i64, b: i64| Bool::from(a == b)),
            (Self::Less { .. }, DataType::F32) => meet_as(all, types, |a: f32, b: f32| Bool::from(a < b)),
            (Self::Less { .. }, DataType::F64) => meet_as(all, types, |a: f64, b: f64| Bool::from(a < b)),
            (Self::Less { .. }, DataType::U64) => meet_as(all, types, |a: u64, b: u64| Bool::from(a < b)),
            (Self::Less { .. }, _) => meet_as(all, types, |a: i64, b: i64| Bool::from(a < b)),
            (_, DataType::F32) => meet_as(all, types, |a: f32, b: f32| Bool::from(a <= b)),
            (_, DataType::F64) => meet_as(all, types, |a: f64, b: f64| Bool::from(a <= b)),
            (_, DataType::U64) => meet_as(all, types, |a: u64, b: u64| Bool::from(a <= b)),
            (_, _) => meet_as(all, types, |a: i64, b: i64| Bool::from(a <= b)),
        }
        Ok(())
    }
}

/// Elements of one operand where a condition holds, and of the other elsewhere.
struct Where;

impl Operator for Where {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (condition, a, b) = (inputs.ty(0)?, inputs.ty(1)?, inputs.ty(2)?);
        if condition.dtype != DataType::Bool || a.dtype != b.dtype {
            return Err(OpError::element_type(format!(
                "it cannot choose by {condition} between {a} and {b}"
            ))
            .into());
        }
        Ok(smallvec![typed(a.dtype, broadcast_types(&[condition, a, b])?)?])
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&[1, 2])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        by_width!(call.dtype(1)?, T => choose::<T>(call))
    }
}

fn choose<T: Pod + Send + Sync>(call: &mut Call<'_, '_>) -> Result<(), OpError> {
    let condition = call.input(0)?;
    let holds = condition.elements::<Bool>();
    let out = call.output(0)?;
    let shape = out.shape;
    if let Some(over) = call.in_place() {
        // Where the operand that lies there is not chosen, the other is written.
        let other = call.input(3 - over)?;
        let kept = over == 1;
        let from = other.raw::<T>();
        Walk::new(shape, [condition.shape, other.shape]).write(
            out.raw::<T>(),
            |row, [(at, along), (begin, step)]| {
                for (n, out) in row.iter_mut().enumerate() {
                    if holds[at + n * along].get() != kept {
                        *out = from[begin + n * step];
                    }
                }
            },
        );
        return Ok(());
    }
    let (a, b) = (call.input(1)?, call.input(2)?);
    let walk = Walk::new(shape, [condition.shape, a.shape, b.shape]);
    let (a, b) = (a.raw::<T>(), b.raw::<T>());
    walk.write(out.raw::<T>(), |row, [(at, along), (a_begin, a_step), (b_begin, b_step)]| {
        let choose = |row: &mut [T], from: &[T], (begin, step): (usize, usize)| match step {
            0 => row.fill(from[begin]),
            _ => row.copy_from_slice(&from[begin..begin + row.len()]),
        };
        if along == 0 {
            return match holds[at].get() {
                true => choose(row, a, (a_begin, a_step)),
                false => choose(row, b, (b_begin, b_step)),
            };
        }
        // What repeats is read once; the rest is one loop without branches.
        let holds = &holds[at..at + row.len()];
        match (a_step, b_step) {
            (0, 0) => {
                let (a, b) = (a[a_begin], b[b_begin]);
                for (out, holds) in row.iter_mut().zip(holds) {
                    *out = if holds.get() { a } else { b };
                }
            }
            (0, _) => {
                let (a, b) = (a[a_begin], &b[b_begin..b_begin + row.len()]);
                for ((out, holds), &b) in row.iter_mut().zip(holds).zip(b) {
                    *out = if holds.get() { a } else { b };
                }
            }
            (_, 0) => {
                let (a, b) = (&a[a_begin..a_begin + row.len()], b[b_begin]);
                for ((out, holds), &a) in row.iter_mut().zip(holds).zip(a) {
                    *out = if holds.get() { a } else { b };
                }
            }
            _ => {
                let (a, b) = (&a[a_begin..a_begin + row.len()], &b[b_begin..b_begin + row.len()]);
                for (n, (out, holds)) in row.iter_mut().zip(holds).enumerate() {
                    *out = if holds.get() { a[n] } else { b[n] };
                }
            }
        }
    });
    Ok(())
}

/// Which numbers are no finite ones.
enum Is {
    Nan,
    Infinite { positive: bool, negative: bool },
}

impl Operator for Is {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        if !input.dtype.is_float() && !is_minifloat(input.dtype) {
            return Err(no(input.dtype).into());
        }
        Ok(smallvec![typed(DataType::Bool, input.shape.clone())?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let input = call.input(0)?;
        let dtype = input.dtype;
        let out = call.output(0)?.elements::<Bool>();
        let is = |x: f32| match *self {
            Self::Nan => x.is_nan(),
            Self::Infinite { positive, negative } => {
                x == f32::INFINITY && positive || x == f32::NEG_INFINITY && negative
            }
        };
        macro_rules! put {
            ($from:expr, $wide:expr) => {
                out.iter_mut().zip($from).for_each(|(out, &x)| *out = is($wide(x)).into())
            };
        }
        match dtype {
            DataType::F32 => put!(input.elements::<f32>(), |x| x),
            // What is beyond f32 need not be infinite.
            DataType::F64 => {
                put!(input.elements::<f64>(), |x: f64| if x.is_finite() { 0.0 } else { x as f32 })
            }
            DataType::F16 => put!(input.elements::<half::f16>(), half::f16::to_f32),
            DataType::BF16 => put!(input.elements::<half::bf16>(), half::bf16::to_f32),
            _ => put!(input.bytes, |x| decode(dtype, x)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{in_place, run};
    use stepalloc_graph::Attribute;
    use stepalloc_tensor::{Bool, Tensor};

    #[test]
    fn shifts_by_any_amount_are_defined() {
        let a = Tensor::from_elements([4], &[-8i32, -8, 8, 1]).unwrap();
        let by = Tensor::from_elements([4], &[1i32, 40, -1, 31]).unwrap();
        let shifted = |direction: &str| {
            let direction = Attribute::String(direction.into());
            let made = run("BitShift", 28, &[("direction", direction)], &[Some(&a), Some(&by)]).unwrap();
            made[0].view().elements::<i32>().to_vec()
        };
        assert_eq!(shifted("RIGHT"), [-4, -1, 0, 0]);
        assert_eq!(shifted("LEFT"), [-16, 0, 0, i32::MIN]);
        let wide = Tensor::from_elements([1], &[u64::MAX]).unwrap();
        let direction = [("direction", Attribute::String("RIGHT".into()))];
        let made = run("BitShift", 11, &direction, &[Some(&wide), Some(&wide)]).unwrap();
        assert_eq!(made[0].view().elements::<u64>(), [0]);
        assert!(run("BitShift", 11, &[], &[Some(&wide), Some(&wide)]).is_err());
    }

    #[test]
    fn choices_are_the_same_in_place_and_in_every_way_of_broadcasting() {
        let condition = Tensor::from_elements([2, 3], &[1, 0, 1, 0, 0, 1].map(Bool)).unwrap();
        let a = Tensor::from_elements([2, 3], &[1i64, 2, 3, 4, 5, 6]).unwrap();
        let b = Tensor::from_elements([2, 3], &[-1i64, -2, -3, -4, -5, -6]).unwrap();
        let inputs = [Some(&condition), Some(&a), Some(&b)];
        let beside = run("Where", 16, &[], &inputs).unwrap();
        assert_eq!(beside[0].view().elements::<i64>(), [1, -2, 3, -4, -5, 6]);
        for over in [1, 2] {
            let made = in_place("Where", 16, &[], &inputs, over).unwrap();
            assert_eq!(made.view().bytes, beside[0].view().bytes);
        }
        let rows = Tensor::from_elements([2, 1], &[0, 1].map(Bool)).unwrap();
        let one = Tensor::from_elements([], &[9i64]).unwrap();
        let chosen = |condition: &Tensor, a: &Tensor, b: &Tensor| {
            let made = run("Where", 16, &[], &[Some(condition), Some(a), Some(b)]).unwrap();
            made[0].view().elements::<i64>().to_vec()
        };
        assert_eq!(chosen(&rows, &a, &one), [9, 9, 9, 4, 5, 6]);
        assert_eq!(chosen(&condition, &one, &b), [9, -2, 9, -4, -5, 9]);
        assert_eq!(chosen(&condition, &one, &one), [9; 6]);
    }
}
