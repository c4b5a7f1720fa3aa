//! Sums and products of two tensors of 8 bits.

use super::{Quantum, check};
use crate::quantize::{to_bytes, to_reals};
use crate::{Call, Known, Operator, Reuse, Types, Unclear, typed};
use smallvec::smallvec;
use stepalloc_kernels::broadcast::{Walk, broadcast};
use stepalloc_tensor::OpError;

/// Elements that are real at a time, on the stack.
const FEW: usize = 256;

pub(super) enum Binary {
    Add,
    Mul,
}

/// An operand's elements; the scale and the zero point are behind it. The output's follow.
const OPERANDS: [usize; 2] = [0, 3];
const OUTPUT: usize = 6;

impl Operator for Binary {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let [a, b] = [inputs.ty(OPERANDS[0])?, inputs.ty(OPERANDS[1])?];
        if a.dtype != b.dtype {
            return Err(OpError::element_type(format!("{a} and {b} have elements of two types")).into());
        }
        for scale in [OPERANDS[0] + 1, OPERANDS[1] + 1, OUTPUT] {
            check(inputs, a.dtype, scale)?;
        }
        let shape = broadcast([&a.shape[..], &b.shape]);
        let shape = shape.ok_or_else(|| OpError::shape(format!("{a} and {b} do not fit when repeated")))?;
        Ok(smallvec![typed(a.dtype, shape)?])
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&OPERANDS)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let out = call.output(0)?;
        let dtype = out.dtype;
        let quantum = |index: usize| Quantum::new(call, index + 1, dtype);
        let (a_quantum, b_quantum) = (quantum(OPERANDS[0])?, quantum(OPERANDS[1])?);
        let to = Quantum::new(call, OUTPUT, dtype)?;
        // What is written over has as many elements as the output.
        let operands = OPERANDS.map(|index| call.opt(index).filter(|_| call.in_place() != Some(index)));
        let shapes = operands.map(|view| view.map_or(out.shape, |view| view.shape));
        let walk = Walk::new(out.shape, shapes);
        walk.write(out.bytes, |row, places| {
            for (index, row) in row.chunks_mut(FEW).enumerate() {
                let mut reals = [[0.0; FEW]; 2];
                for (at, reals) in reals.iter_mut().enumerate() {
                    let (begin, step) = places[at];
                    let begin = begin + index * FEW * step;
                    let quantum = if at == 0 { a_quantum } else { b_quantum };
                    let reals = &mut reals[..row.len()];
                    match (operands[at], step) {
                        (None, _) => to_reals(dtype, row, quantum.pair(), reals),
                        (Some(view), 0) => {
                            let mut one = [0.0];
                            to_reals(dtype, &view.bytes[begin..=begin], quantum.pair(), &mut one);
                            reals.fill(one[0]);
                        }
                        (Some(view), _) => {
                            to_reals(dtype, &view.bytes[begin..][..row.len()], quantum.pair(), reals);
                        }
                    }
                }
                let [a, b] = &mut reals;
                match self {
                    Self::Add => a.iter_mut().zip(&*b).for_each(|(a, b)| *a += b),
                    Self::Mul => a.iter_mut().zip(&*b).for_each(|(a, b)| *a *= b),
                }
                to_bytes(&a[..row.len()], to.pair(), dtype, row);
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::trial::{Trial, tensor};
    use stepalloc_tensor::{Tensor, View};

    fn real(tensor: &Tensor, at: usize, scale: f32, zero: f32) -> f32 {
        let View { bytes, dtype, .. } = tensor.view();
        let byte = if dtype == stepalloc_tensor::DataType::I8 {
            f32::from(bytes[at] as i8)
        } else {
            bytes[at].into()
        };
        (byte - zero) * scale
    }

    fn inputs(a: &Tensor, b: &Tensor, zeros: [Tensor; 3]) -> Vec<Option<Tensor>> {
        let scale = |scale: f32| Some(tensor(&[], &[scale]));
        let [x, y, z] = zeros.map(Some);
        vec![Some(a.clone()), scale(0.5), x, Some(b.clone()), scale(0.25), y, scale(2.0), z]
    }

    #[test]
    fn sums_and_products_are_those_of_what_bytes_stand_for() {
        let a: Vec<u8> = (0..2 * 300).map(|at| (at * 37 % 256) as u8).collect();
        let b: Vec<u8> = (0..300).map(|at| (at * 91 % 256) as u8).collect();
        let (a, b) = (tensor(&[2, 300], &a), tensor(&[300], &b));
        let zeros = [100u8, 30, 7].map(|zero| tensor(&[1], &[zero]));
        for op in ["QLinearAdd", "QLinearMul"] {
            let trial = Trial::new(op, &[], inputs(&a, &b, zeros.clone()));
            let trial = Trial { domain: "com.microsoft", opset: 1, ..trial };
            let made = trial.run().expect("it runs").remove(0);
            let wanted: Vec<u8> = (0..600)
                .map(|at| {
                    let (x, y) = (real(&a, at, 0.5, 100.0), real(&b, at % 300, 0.25, 30.0));
                    let both = if op == "QLinearAdd" { x + y } else { x * y };
                    ((both / 2.0).round_ties_even() + 7.0).clamp(0.0, 255.0) as u8
                })
                .collect();
            assert_eq!(made.view().elements::<u8>(), wanted, "{op}");
            let over = trial.run_over(Some(0)).expect("it runs over an operand");
            assert_eq!(over[0].view().bytes, made.view().bytes);
        }
    }

    #[test]
    fn signed_bytes_and_zero_points_that_are_left_out() {
        let (a, b) = (tensor(&[3], &[-128i8, 0, 100]), tensor(&[1], &[-4i8]));
        let mut inputs = inputs(&a, &b, [0i8; 3].map(|zero| tensor(&[], &[zero])));
        for zero in [2, 5, 7] {
            inputs[zero] = None;
        }
        let trial = Trial { domain: "com.microsoft", opset: 1, ..Trial::new("QLinearAdd", &[], inputs) };
        // (-64, 0, 50) - 1 in units of 2.
        assert_eq!(trial.run().expect("it runs")[0].view().elements::<i8>(), [-32, 0, 24]);
        let mixed = Trial {
            inputs: {
                let mut inputs = trial.inputs.clone();
                inputs[3] = Some(tensor(&[1], &[1u8]));
                inputs
            },
            ..trial
        };
        assert!(mixed.run().is_err());
    }
}
