//! Operators that make each element from those of any number of operands at the same place, broadcast.

use super::elementwise::{Arithmetic, Operand, broadcast_types};
use super::unary::{blocks, wide};
use super::{Call, Definition, Known, Made, Operator, Reuse, Types, Unclear, cast, typed};
use smallvec::{SmallVec, smallvec};
use stepalloc_kernels::no;
use stepalloc_tensor::{DataType, OpError, View};

pub(super) fn make(node: &Definition<'_>) -> Made {
    Some(Ok(Box::new(match node.op {
        "Max" => Variadic::Max,
        "Min" => Variadic::Min,
        "Sum" => Variadic::Sum,
        "Mean" => Variadic::Mean,
        _ => return None,
    })))
}

enum Variadic {
    Max,
    Min,
    Sum,
    Mean,
}

impl Operator for Variadic {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let types =
            (0..inputs.len()).map(|index| inputs.ty(index)).collect::<Result<SmallVec<[_; 8]>, _>>()?;
        let first = inputs.ty(0)?;
        if let Some(other) = types.iter().find(|ty| ty.dtype != first.dtype) {
            return Err(
                OpError::element_type(format!("{first} and {other} have elements of two types")).into()
            );
        }
        Ok(smallvec![typed(first.dtype, broadcast_types(&types)?)?])
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&[0, 1])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let dtype = call.dtype(0)?;
        if wide(dtype).is_none() || matches!(self, Self::Sum | Self::Mean) && !dtype.is_float() {
            return Err(no(dtype));
        }
        let count = call.len();
        if count == 1 {
            return blocks(call, dtype, &|_| ());
        }
        let step = match self {
            Self::Max => Arithmetic::Max,
            Self::Min => Arithmetic::Min,
            Self::Sum | Self::Mean => Arithmetic::Add,
        };
        // Output 0 may lie over input 0 or 1.
        let mut out = call.output(0)?;
        step.compute(out.lend(), dtype, &Operand::new(call, 0)?, &Operand::new(call, 1)?)?;
        for index in 2..count {
            step.compute(out.lend(), dtype, &Operand::there(dtype), &Operand::new(call, index)?)?;
        }
        if matches!(self, Self::Mean) {
            let mut by = [0u64];
            let by = &mut bytemuck::cast_slice_mut(&mut by)[..dtype.bytes()];
            cast::convert(DataType::F64, dtype, bytemuck::bytes_of(&(count as f64)), by);
            let by = Operand::one(View { dtype, shape: &[], bytes: by });
            Arithmetic::Div.compute(out, dtype, &Operand::there(dtype), &by)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{in_place, run};
    use stepalloc_tensor::Tensor;

    #[test]
    fn operands_of_any_number_are_broadcast_and_nan_wins() {
        let a = Tensor::from_elements([2, 1], &[1.0f32, f32::NAN]).unwrap();
        let b = Tensor::from_elements([2], &[3.0f32, 0.5]).unwrap();
        let c = Tensor::from_elements([1, 2], &[2.0f32, 2.0]).unwrap();
        let made = run("Max", 13, &[], &[Some(&a), Some(&b), Some(&c)]).unwrap();
        let made = made[0].view().elements::<f32>();
        assert_eq!(made[..2], [3.0, 2.0]);
        assert!(made[2].is_nan() && made[3].is_nan());
        let mean = run("Mean", 13, &[], &[Some(&b), Some(&c), Some(&b)]).unwrap();
        assert_eq!(mean[0].view().elements::<f32>(), [8.0 / 3.0, 1.0]);
    }

    #[test]
    fn over_either_operand_is_as_beside_it() {
        let a = Tensor::from_elements([2, 2], &[5.0f32, 3.0, 2.0, 8.0]).unwrap();
        let b = Tensor::from_elements([2, 2], &[2.0f32, 7.0, -3.0, 0.5]).unwrap();
        for op in ["Sum", "Min", "Sub", "Div", "Mod", "PRelu"] {
            let beside = run(op, 28, &[], &[Some(&a), Some(&b)]).unwrap();
            for over in [0, 1] {
                let made = in_place(op, 28, &[], &[Some(&a), Some(&b)], over).unwrap();
                assert_eq!(made.view().bytes, beside[0].view().bytes, "{op} over {over}");
            }
        }
    }

    #[test]
    fn operands_that_do_not_fit_are_refused() {
        let a = Tensor::from_elements([2], &[1i32, 2]).unwrap();
        let b = Tensor::from_elements([3], &[1i32, 2, 3]).unwrap();
        assert!(run("Max", 13, &[], &[Some(&a), Some(&b)]).is_err());
        assert!(run("Add", 13, &[], &[Some(&a), Some(&b)]).is_err());
        assert!(run("Sum", 13, &[], &[]).is_err());
    }
}
