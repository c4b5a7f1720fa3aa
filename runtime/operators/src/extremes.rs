//! Where the greatest and the least elements along a dimension are: ArgMax, ArgMin, TopK.

use super::reduce::{PARALLEL, is_nan};
use super::{Call, Definition, Known, Made, Operator, Types, Unclear, axis, typed};
use smallvec::smallvec;
use stepalloc_kernels::{
    blocks::{BLOCK, Source, Wide, by_wide},
    no,
};
use stepalloc_tensor::{DataType, Number, OpError, Type, View, by_number};
use stepalloc_threads as threads;

/// So many are kept sorted while the others pass by; more are selected and then sorted.
const FEW: usize = 64;

pub(super) fn make(node: &Definition<'_>) -> Made {
    let attributes = node.attributes;
    Some(Ok(match node.op {
        "ArgMax" | "ArgMin" => Box::new(Arg {
            greatest: node.op == "ArgMax",
            axis: attributes.int("axis", 0),
            keep: attributes.int("keepdims", 1) != 0,
            last: attributes.int("select_last_index", 0) != 0,
        }),
        "TopK" => Box::new(TopK {
            axis: attributes.int("axis", -1),
            k: attributes.opt_int("k").filter(|_| node.opset < 10),
            largest: attributes.int("largest", 1) != 0,
        }),
        _ => return None,
    }))
}

/// The place of one element along a dimension.
struct Arg {
    greatest: bool,
    axis: i64,
    keep: bool,
    /// Of equal ones the last.
    last: bool,
}

impl Operator for Arg {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        let at = axis(self.axis, input.rank())?;
        let mut shape = input.shape.clone();
        if self.keep {
            shape[at] = 1;
        } else {
            shape.remove(at);
        }
        Ok(smallvec![typed(DataType::I64, shape)?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (input, output) = (call.input(0)?, call.output(0)?.elements::<i64>());
        let shape = input.shape;
        let at = axis(self.axis, shape.len())?;
        let (length, inner) = (shape[at], shape[at + 1..].iter().product());
        if output.is_empty() {
            return Ok(());
        }
        if length == 0 {
            return Err(OpError::shape(format!("axis {at} of {shape:?} has no elements")));
        }
        by_wide!(input.dtype, W => self.find::<W>(Source::flipped(&input), output, length, inner),
            return Err(no(input.dtype)));
        Ok(())
    }
}

impl Arg {
    /// Whether `x` is better than the best one; the first NaN is better than numbers.
    #[inline(always)]
    fn better<W: Wide>(x: W, best: W, last: bool) -> bool {
        x > best || (last & (x == best)) || (is_nan(x) & !is_nan(best))
    }

    /// Writes where along each column of `length` elements, `inner` apart, the one is that is better than all others.
    fn find<W: Wide>(&self, input: Source<'_>, output: &mut [i64], length: usize, inner: usize) {
        let (turn, last) = (!self.greatest, self.last);
        let most = if turn { BLOCK } else { input.most::<W>() };
        // Of the least ones the opposites are the greatest.
        let read = |at: usize, count: usize, block: &mut [W; BLOCK], take: &mut dyn FnMut(&[W])| {
            if !turn {
                return take(input.read(at..at + count, block));
            }
            let mut turned = [W::default(); BLOCK];
            for (to, x) in turned.iter_mut().zip(input.read(at..at + count, block)) {
                *to = x.turned();
            }
            take(&turned[..count]);
        };
        let column = |outer: usize, output: &mut [i64]| {
            let mut block = [W::default(); BLOCK];
            let first = outer * length;
            let (mut best, mut place, mut at) = (None, 0, 0);
            while at < length {
                let count = most.min(length - at);
                read(first + at, count, &mut block, &mut |row| {
                    let mut most = best.unwrap_or(row[0]);
                    for (n, &x) in row.iter().enumerate() {
                        if Self::better(x, most, last) {
                            (most, place) = (x, at + n);
                        }
                    }
                    best = Some(most);
                });
                at += count;
            }
            output[0] = place as i64;
        };
        let columns = |outer: usize, output: &mut [i64]| {
            let mut block = [W::default(); BLOCK];
            let mut best = [W::default(); BLOCK];
            for (number, output) in output.chunks_mut(BLOCK).enumerate() {
                let begin = outer * length * inner + number * BLOCK;
                let best = &mut best[..output.len()];
                read(begin, output.len(), &mut block, &mut |row| best.copy_from_slice(row));
                output.fill(0);
                for at in 1..length {
                    read(begin + at * inner, output.len(), &mut block, &mut |row| {
                        for ((best, place), &x) in best.iter_mut().zip(&mut *output).zip(row) {
                            if Self::better(x, *best, last) {
                                (*best, *place) = (x, at as i64);
                            }
                        }
                    });
                }
            }
        };
        let least = if input.len() >= PARALLEL { 1 } else { usize::MAX };
        if inner == 1 {
            let size = (PARALLEL / 4 / length).max(1);
            threads::pieces(output, size, least, &|number, output| {
                for (at, to) in output.chunks_mut(1).enumerate() {
                    column(number * size + at, to);
                }
            });
        } else {
            threads::pieces(output, inner, least, &columns);
        }
    }
}

/// The first elements along a dimension in descending or ascending order, and where they were.
struct TopK {
    axis: i64,
    /// In old versions; an input in new ones.
    k: Option<i64>,
    largest: bool,
}

/// An element as a number whose order is the wanted one, and its place along the dimension.
type Ranked = [u64; 2];

impl Operator for TopK {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        let at = axis(self.axis, input.rank())?;
        let k = match self.k {
            Some(k) => k,
            None => match inputs.ints(1)?[..] {
                [k] => k,
                _ => return Err(OpError::shape("its k is not one integer").into()),
            },
        };
        let mut shape = input.shape.clone();
        shape[at] = usize::try_from(k)
            .ok()
            .filter(|&k| k <= shape[at])
            .ok_or_else(|| OpError::value(format!("there are no {k} elements along axis {at} of {input}")))?;
        Ok(smallvec![typed(input.dtype, shape.clone())?, typed(DataType::I64, shape)?])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let Some(input) = inputs.opt(0) else { return 0 };
        let length = axis(self.axis, input.rank()).map_or(0, |at| input.shape[at]);
        length * size_of::<Ranked>()
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let input = call.input(0)?;
        let shape = input.shape;
        let at = axis(self.axis, shape.len())?;
        let (length, inner) = (shape[at], shape[at + 1..].iter().product::<usize>());
        let ranked = call.scratch_of::<Ranked>();
        let (values, places) = (call.opt_output(0), call.opt_output(1));
        let shape = values.as_ref().or(places.as_ref()).map(|output| output.shape);
        let Some(k) = shape.map(|shape| shape[at]).filter(|&k| k > 0) else { return Ok(()) };
        let mut places = places.map(|output| output.elements::<i64>());
        let (dtype, bytes) = (input.dtype, input.bytes);
        let width = dtype.bytes();
        let mut values = values.map(|output| &mut *output.bytes);
        for outer in 0..input.len() / (length * inner).max(1) {
            for column in 0..inner {
                rank_all(
                    &input,
                    outer * length * inner + column,
                    inner,
                    self.largest,
                    &mut ranked[..length],
                )?;
                let first = outer * k * inner + column;
                for (n, &[_, place]) in select(&mut ranked[..length], k).iter().enumerate() {
                    let at = (outer * length + place as usize) * inner + column;
                    if let Some(values) = &mut values {
                        values[(first + n * inner) * width..][..width]
                            .copy_from_slice(&bytes[at * width..][..width]);
                    }
                    if let Some(places) = &mut places {
                        places[first + n * inner] = place as i64;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Ranks elements, `step` apart from the first, with their places.
fn rank_all(
    input: &View<'_>,
    first: usize,
    step: usize,
    largest: bool,
    ranked: &mut [Ranked],
) -> Result<(), OpError> {
    by_number!(input.dtype, T => {
        let input = input.elements::<T>();
        let mut at = first;
        for (place, ranked) in ranked.iter_mut().enumerate() {
            let rank = rank(input[at]);
            *ranked = [if largest { !rank } else { rank }, place as u64];
            at += step;
        }
    }, return Err(no(input.dtype)));
    Ok(())
}

/// A number in the order of `x` among all values of its type; NaNs are the greatest.
fn rank<T: Number>(x: T) -> u64 {
    const SIGN: u64 = 1 << 63;
    if T::DTYPE.is_float() {
        if is_nan(x) {
            return u64::MAX;
        }
        // Adding zero makes -0 the same as 0.
        let bits = (x.to_f64() + 0.0).to_bits();
        if bits & SIGN == 0 { bits | SIGN } else { !bits }
    } else if T::DTYPE == DataType::U64 {
        x.to_i64() as u64
    } else {
        x.to_i64() as u64 ^ SIGN
    }
}

/// The least `k` in order.
fn select(all: &mut [Ranked], k: usize) -> &[Ranked] {
    if k > FEW {
        if k < all.len() {
            all.select_nth_unstable(k - 1);
        }
        all[..k].sort_unstable();
        return &all[..k];
    }
    let (best, rest) = all.split_at_mut(k);
    best.sort_unstable();
    for &next in &*rest {
        if next < best[k - 1] {
            let at = best.partition_point(|&kept| kept < next);
            best.copy_within(at..k - 1, at + 1);
            best[at] = next;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::Trial;
    use stepalloc_tensor::{Element, Tensor, f16};

    #[test]
    fn ranks_follow_the_order_of_numbers() {
        let numbers = [f32::NEG_INFINITY, -2.0, -1e-40, 0.0, 1e-40, 2.0, f32::INFINITY, f32::NAN];
        assert!(numbers.windows(2).all(|pair| rank(pair[0]) < rank(pair[1])));
        assert_eq!(rank(0f32), rank(-0f32));
        assert!(rank(i64::MIN) < rank(-1i64) && rank(-1i64) < rank(0i64) && rank(0i64) < rank(i64::MAX));
        assert!(rank(0u64) < rank(u64::MAX));
    }

    #[test]
    fn many_are_selected_as_few_are() {
        let ranked: Vec<Ranked> = (0..500).map(|n| [n * 7919 % 101, n]).collect();
        let mut sorted = ranked.clone();
        sorted.sort_unstable();
        for k in [1, FEW, FEW + 1, 500] {
            assert_eq!(select(&mut ranked.clone(), k), &sorted[..k]);
        }
    }

    fn made<T: Element>(op: &str, elements: &[T]) -> Tensor {
        let inputs = [
            Tensor::from_elements([elements.len()], elements).unwrap(),
            Tensor::from_elements([1], &[0i64]).unwrap(),
        ];
        let inputs = if op.starts_with("Arg") { &inputs[..1] } else { &inputs[..] };
        Trial::new(op, &[], inputs).opset(18).run().unwrap().swap_remove(0)
    }

    #[test]
    fn integers_are_exact_to_their_last_bit() {
        let large = [u64::MAX - 2, 1, u64::MAX, 1 << 63];
        let of = |op: &str| made(op, &large).view().elements::<u64>()[0];
        assert_eq!((of("ReduceMax"), of("ReduceMin")), (u64::MAX, 1));
        assert_eq!(of("ReduceSum"), large.iter().fold(0, |sum: u64, &x| sum.wrapping_add(x)));
        assert_eq!(made("ReduceMean", &[u64::MAX - 1]).view().elements::<u64>(), [u64::MAX - 1]);
        assert_eq!(made("ReduceL1", &[u64::MAX]).view().elements::<u64>(), [u64::MAX]);
        assert_eq!(made("ReduceL1", &[i64::MAX - 3, -2]).view().elements::<i64>(), [i64::MAX - 1]);
        assert_eq!(made("ReduceProd", &[70_000i32, 70_000]).view().elements::<i32>(), [605_032_704]);
        assert_eq!(made("ReduceMax", &[-3i32; 300]).view().elements::<i32>(), [-3]);
        assert_eq!(made::<i32>("ReduceMax", &[]).view().elements::<i32>(), [i32::MIN]);
        assert_eq!(made::<u32>("ReduceMin", &[]).view().elements::<u32>(), [u32::MAX]);
        assert_eq!(made::<u64>("ReduceMin", &[]).view().elements::<u64>(), [u64::MAX]);
        assert_eq!(made("ArgMax", &large).view().elements::<i64>(), [2]);
        assert_eq!(made("ArgMin", &large).view().elements::<i64>(), [1]);
        assert_eq!(made("CumSum", &[u32::MAX, 2]).view().elements::<u32>(), [u32::MAX, 1]);
        assert_eq!(made("ArgMin", &[1.0, f64::NAN, -1.0]).view().elements::<i64>(), [1]);
    }

    #[test]
    fn long_rows_of_halves_are_read_in_blocks() {
        let halves: Vec<f16> =
            (0..1000).map(|at| f16::from_f32((at % 7) as f32 - f32::from(at == 600) * 9.0)).collect();
        let of = |op: &str| made(op, &halves).view().elements::<f16>()[0].to_f32();
        assert_eq!((of("ReduceMin"), of("ReduceMax")), (-4.0, 6.0));
        assert_eq!(made("ArgMin", &halves).view().elements::<i64>(), [600]);
        let sums = made("CumSum", &halves);
        assert_eq!(sums.view().elements::<f16>()[299].to_f32(), 897.0);
    }
}
