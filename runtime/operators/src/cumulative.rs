//! Sums and products of all elements up to each one along a dimension.

use super::{Call, Definition, Known, Made, Operator, Types, Unclear, axis, ints};
use smallvec::smallvec;
use stepalloc_kernels::{
    blocks::{BLOCK, Source, Wide, by_wide},
    no,
};
use stepalloc_tensor::{DataType, OpError, ViewMut};
use stepalloc_threads as threads;

pub(super) fn make(node: &Definition<'_>) -> Made {
    let product = match node.op {
        "CumSum" => false,
        "CumProd" => true,
        _ => return None,
    };
    let told = |name| node.attributes.int(name, 0) != 0;
    Some(Ok(Box::new(Cumulative { product, exclusive: told("exclusive"), reverse: told("reverse") })))
}

struct Cumulative {
    product: bool,
    /// Up to the element before.
    exclusive: bool,
    /// From the end.
    reverse: bool,
}

impl Operator for Cumulative {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        Ok(smallvec![inputs.ty(0)?.clone()])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (input, at, output) = (call.input(0)?, call.input(1)?, call.output(0)?);
        let at = ints(&at)
            .filter(|at| at.len() == 1)
            .ok_or_else(|| OpError::shape("its axis is not one integer"))?[0];
        let shape = input.shape;
        let at = axis(at, shape.len())?;
        let (length, inner) = (shape[at], shape[at + 1..].iter().product());
        let source = Source::new(&input);
        if matches!(input.dtype, DataType::I8 | DataType::I16 | DataType::U8 | DataType::U16) {
            return Err(no(input.dtype));
        }
        by_wide!(input.dtype, W => {
            self.accumulate::<W>(source, output, (length, inner));
        }, return Err(no(input.dtype)));
        Ok(())
    }
}

impl Cumulative {
    /// `inner` elements lie between two neighbours of the `length` that are accumulated.
    fn accumulate<W: Wide>(&self, input: Source<'_>, output: ViewMut<'_>, (length, inner): (usize, usize)) {
        let (dtype, bytes) = (output.dtype, output.dtype.bytes());
        let none = W::from_i64(self.product.into());
        let next = |states: &mut [W], from: &[W], to: &mut [W]| {
            let (exclusive, product) = (self.exclusive, self.product);
            for ((state, &from), to) in states.iter_mut().zip(from).zip(to) {
                let next = if product { state.times(from) } else { state.plus(from) };
                *to = if exclusive { *state } else { next };
                *state = next;
            }
        };
        let slab = |number: usize, output: &mut [u8]| {
            let first = number * length * inner;
            let (mut block, mut made) = ([W::default(); BLOCK], [W::default(); BLOCK]);
            if inner == 1 {
                let mut state = none;
                for begin in (0..length).step_by(BLOCK) {
                    let count = BLOCK.min(length - begin);
                    let begin = if self.reverse { length - begin - count } else { begin };
                    let from = input.read(first + begin..first + begin + count, &mut block);
                    for step in 0..count {
                        let at = if self.reverse { count - 1 - step } else { step };
                        next(std::slice::from_mut(&mut state), &from[at..=at], &mut made[at..=at]);
                    }
                    W::store(&made[..count], false, dtype, &mut output[begin * bytes..][..count * bytes]);
                }
                return;
            }
            for begin in (0..inner).step_by(BLOCK) {
                let columns = BLOCK.min(inner - begin);
                let states = &mut [none; BLOCK][..columns];
                for step in 0..length {
                    let at = begin + inner * if self.reverse { length - 1 - step } else { step };
                    let from = input.read(first + at..first + at + columns, &mut block);
                    next(states, from, &mut made[..columns]);
                    W::store(&made[..columns], false, dtype, &mut output[at * bytes..][..columns * bytes]);
                }
            }
        };
        let least = if input.len() >= super::reduce::PARALLEL { 1 } else { usize::MAX };
        threads::pieces(output.bytes, length * inner * bytes, least, &slab);
    }
}

#[cfg(test)]
mod tests {
    use crate::trial::{Trial, numbers, row};
    use stepalloc_graph::Attribute;

    #[test]
    fn all_before_and_all_after_leave_the_element_itself() {
        // Large enough for threads, and for more than one block of columns.
        let inputs = [numbers(&[3, 70, 400], 1), row(&[-2])];
        let sums = |reverse| {
            let attributes = [("exclusive", Attribute::Int(1)), ("reverse", Attribute::Int(reverse))];
            let trial = Trial::new("CumSum", &attributes, &inputs).opset(14);
            trial.run().unwrap().swap_remove(0)
        };
        let (before, after) = (sums(0), sums(1));
        let (before, after) = (before.view().elements::<f32>(), after.view().elements::<f32>());
        for (at, x) in inputs[0].view().elements::<f32>().iter().enumerate() {
            let first = at / 28_000 * 28_000 + at % 400;
            let all = before[first + 69 * 400] + inputs[0].view().elements::<f32>()[first + 69 * 400];
            assert!((before[at] + x + after[at] - all).abs() < 1e-2, "{at}");
        }
    }
}
