//! Softmax of bytes: powers are looked up by how far an element is below the largest.

use super::{Quantum, check};
use crate::quantize::to_bytes;
use crate::{Call, Definition, Known, Operator, Reuse, Types, Unclear};
use smallvec::smallvec;
use stepalloc_kernels::broadcast::PARALLEL;
use stepalloc_tensor::{DataType, OpError, axis};
use stepalloc_threads as threads;

/// Elements that are real at a time, on the stack.
const FEW: usize = 256;

pub(super) struct Softmax {
    axis: i64,
    /// All dimensions from the axis on count as one, as ONNX had it before version 13.
    flat: bool,
}

impl Softmax {
    pub(super) fn new(node: &Definition<'_>) -> Result<Self, OpError> {
        let opset =
            node.attributes.opt_int("opset").ok_or_else(|| OpError::attribute("it is told no opset"))?;
        Ok(Self { axis: node.attributes.int("axis", -1), flat: opset < 13 })
    }

    /// Elements of a softmax, and how far they are apart.
    fn column(&self, shape: &[usize]) -> Result<(usize, usize), OpError> {
        let at = axis(self.axis, shape.len())?;
        let inner = shape[at + 1..].iter().product::<usize>();
        Ok(if self.flat { (shape[at] * inner, 1) } else { (shape[at], inner) })
    }
}

impl Operator for Softmax {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let x = inputs.ty(0)?;
        check(inputs, x.dtype, 1)?;
        check(inputs, x.dtype, 3)?;
        self.column(&x.shape)?;
        Ok(smallvec![x.clone()])
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&[0])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let dtype = call.dtype(0)?;
        let (from, to) = (Quantum::new(call, 1, dtype)?, Quantum::new(call, 3, dtype)?);
        let input = match call.in_place() {
            Some(_) => None,
            None => Some(call.input(0)?.bytes),
        };
        let out = call.output(0)?;
        let (length, inner) = self.column(out.shape)?;
        let mut powers = [0.0; 256];
        powers
            .iter_mut()
            .enumerate()
            .for_each(|(below, power)| *power = (-(below as f32) * from.scale).exp());
        // In the order of what they stand for.
        let flip = if dtype == DataType::I8 { 0x80 } else { 0 };
        let slab = length * inner;
        let least = if out.bytes.len() < PARALLEL { usize::MAX } else { PARALLEL.div_ceil(slab.max(1)) };
        threads::pieces(out.bytes, slab, least, &|number, out| {
            if let Some(input) = input {
                out.copy_from_slice(&input[number * slab..][..slab]);
            }
            for first in 0..inner {
                let column = || out.iter().skip(first).step_by(inner).map(|x| x ^ flip);
                let most = column().max().unwrap_or(0);
                let sum: f32 = column().map(|x| powers[usize::from(most - x)]).sum();
                for begin in (0..length).step_by(FEW) {
                    let count = FEW.min(length - begin);
                    let (mut reals, mut bytes) = ([0.0; FEW], [0; FEW]);
                    let places = || (begin..begin + count).map(|at| first + at * inner);
                    for (real, at) in reals.iter_mut().zip(places()) {
                        *real = powers[usize::from(most - (out[at] ^ flip))] / sum;
                    }
                    to_bytes(&reals[..count], to.pair(), dtype, &mut bytes[..count]);
                    places().zip(bytes).for_each(|(at, byte)| out[at] = byte);
                }
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::trial::{Trial, tensor};
    use stepalloc_graph::Attribute;

    /// Against powers in f64, along each axis, both versions.
    #[test]
    fn columns_are_in_proportion() {
        let shape = [3usize, 4, 5];
        let bytes: Vec<i8> = (0..60).map(|at| (at * 67 % 256) as u8 as i8).collect();
        for (axis, opset) in [(0usize, 13), (1, 13), (2, 13), (0, 12), (1, 12)] {
            let one = |x: f32| Some(tensor(&[], &[x]));
            let inputs = vec![
                Some(tensor(&shape, &bytes)),
                one(0.03),
                Some(tensor(&[], &[5i8])),
                one(1.0 / 256.0),
                Some(tensor(&[], &[-128i8])),
            ];
            let told = [("axis", Attribute::Int(axis as i64)), ("opset", Attribute::Int(opset))];
            let trial = Trial::new("QLinearSoftmax", &told, inputs);
            let trial = Trial { domain: "com.microsoft", opset: 1, ..trial };
            let made = trial.run().expect("it runs").remove(0);
            let inner: usize = if opset < 13 { 1 } else { shape[axis + 1..].iter().product() };
            let length = if opset < 13 { shape[axis..].iter().product() } else { shape[axis] };
            let power = |at: usize| (f64::from(bytes[at]) * f64::from(0.03f32)).exp();
            for (at, &got) in made.view().elements::<i8>().iter().enumerate() {
                let begin = at / (length * inner) * length * inner + at % inner;
                let sum: f64 = (0..length).map(|number| power(begin + number * inner)).sum();
                let wanted = (power(at) / sum * 256.0 - 128.0).min(127.0);
                assert!((f64::from(got) - wanted).abs() < 0.501, "{axis} {opset} {at}: {got}, not {wanted}");
            }
            assert_eq!(trial.run_over(Some(0)).expect("it runs")[0].view().bytes, made.view().bytes);
        }
    }
}
