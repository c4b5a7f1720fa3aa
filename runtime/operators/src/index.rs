//! Operators that take elements at places that indices name, or conditions.

use super::{Call, Definition, Known, Made, Operator, Types, Unclear, axis, typed};
use smallvec::{SmallVec, smallvec};
use std::ops::Range;
use stepalloc_kernels::strided::{Axis, copy, strides};
use stepalloc_tensor::{Bool, DataType, OpError, Shape, Type, View, by_width};
use stepalloc_threads as threads;

pub(super) fn make(node: &Definition<'_>) -> Made {
    let attributes = node.attributes;
    Some(Ok(match node.op {
        "Gather" => Box::new(Gather { axis: attributes.int("axis", 0) }),
        "GatherElements" => Box::new(GatherElements { axis: attributes.int("axis", 0) }),
        "GatherND" => Box::new(GatherND { batch_dims: attributes.int("batch_dims", 0) }),
        "ReverseSequence" => match (attributes.int("batch_axis", 1), attributes.int("time_axis", 0)) {
            (0, 1) => Box::new(ReverseSequence { batch_first: true }),
            (1, 0) => Box::new(ReverseSequence { batch_first: false }),
            axes => return Some(Err(OpError::attribute(format!("its axes are {axes:?}, not 0 and 1")))),
        },
        "NonZero" => Box::new(NonZero),
        "Compress" => Box::new(Compress { axis: attributes.opt_int("axis") }),
        _ => return None,
    }))
}

/// Integers that name places, from the end where they are negative.
#[derive(Clone, Copy)]
pub(super) enum Indices<'a> {
    I32(&'a [i32]),
    I64(&'a [i64]),
}

impl<'a> Indices<'a> {
    pub(super) fn new(view: &View<'a>) -> Result<Self, OpError> {
        match view.dtype {
            DataType::I32 => Ok(Self::I32(view.elements())),
            DataType::I64 => Ok(Self::I64(view.elements())),
            other => Err(OpError::element_type(format!("indices are {other}"))),
        }
    }

    /// The place among `dim` that the index at `at` names.
    #[inline]
    pub(super) fn get(self, at: usize, dim: usize) -> Result<usize, OpError> {
        let index = match self {
            Self::I32(all) => i64::from(all[at]),
            Self::I64(all) => all[at],
        };
        let counted = if index < 0 { index.wrapping_add(dim as i64) } else { index };
        if counted >= 0 && counted < dim as i64 {
            return Ok(counted as usize);
        }
        Err(OpError::value(format!("index {index} is beyond {dim} elements")))
    }

    /// Whether these, which are some, are all the same.
    pub(super) fn are_one(self, range: Range<usize>) -> bool {
        fn are_one<T: Copy + PartialEq>(indices: &[T]) -> bool {
            // Many at a time, without a way out, are compared as vectors.
            let alike = |some: &[T]| some.iter().fold(true, |alike, index| alike & (*index == indices[0]));
            indices.chunks(64).all(alike)
        }
        match self {
            Self::I32(all) => are_one(&all[range]),
            Self::I64(all) => are_one(&all[range]),
        }
    }

    /// Where in a tensor of this shape the element lies that `shape.len()` indices from `at` on name.
    pub(super) fn place(self, at: usize, shape: &[usize], strides: &[usize]) -> Result<usize, OpError> {
        let mut place = 0;
        for (n, (&dim, &stride)) in shape.iter().zip(strides).enumerate() {
            place += self.get(at + n, dim)? * stride;
        }
        Ok(place)
    }
}

/// Slices along a dimension, one for each index.
struct Gather {
    axis: i64,
}

/// Slices of fewer elements are not worth a thread's look at each.
const LONG_ROW: usize = 16;
/// Tensors of fewer elements are copied by one thread.
const ALONE: usize = 1 << 16;

impl Operator for Gather {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (data, indices) = (inputs.ty(0)?, inputs.ty(1)?);
        let at = axis(self.axis, data.rank())?;
        let parts = [&data.shape[..at], &indices.shape, &data.shape[at + 1..]];
        let shape: Shape = parts.into_iter().flatten().copied().collect();
        Ok(smallvec![typed(data.dtype, shape)?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (data, view, output) = (call.input(0)?, call.input(1)?, call.output(0)?);
        if output.bytes.is_empty() {
            return Ok(());
        }
        let at = axis(self.axis, data.shape.len())?;
        let (dim, inner) = (data.shape[at], data.shape[at + 1..].iter().product::<usize>());
        let (indices, count) = (Indices::new(&view)?, view.len());
        by_width!(data.dtype, T => {
            let (source, target) = (data.raw::<T>(), output.raw::<T>());
            if inner > 1 {
                // Rows are shared out many at a time.
                let is_large = inner >= LONG_ROW && target.len() > ALONE;
                let rows = if is_large { (ALONE / 2).div_ceil(inner) } else { target.len() / inner };
                threads::try_pieces(target, rows * inner, &|piece, target| {
                    for (n, row) in (piece * rows..).zip(target.chunks_exact_mut(inner)) {
                        let from = (n / count * dim + indices.get(n % count, dim)?) * inner;
                        row.copy_from_slice(&source[from..from + inner]);
                    }
                    Ok(())
                })
            } else {
                for (block, target) in target.chunks_exact_mut(count).enumerate() {
                    let source = &source[block * dim..(block + 1) * dim];
                    for (n, place) in target.iter_mut().enumerate() {
                        *place = source[indices.get(n, dim)?];
                    }
                }
                Ok(())
            }
        })
    }
}

/// For each row (along the last dimension) of a tensor of shape `shape`: its number, and where a row of a
/// tensor with these strides begins that has the same coordinates but for dimension `but`, which is 0 there.
/// `shape` has dimensions.
pub(super) fn each_row(
    shape: &[usize],
    strides: &[usize],
    but: usize,
    row: &mut dyn FnMut(usize, usize) -> Result<(), OpError>,
) -> Result<(), OpError> {
    if shape.contains(&0) {
        return Ok(());
    }
    let outer = &shape[..shape.len() - 1];
    let mut counter: SmallVec<[usize; 8]> = SmallVec::from_elem(0, outer.len());
    let (mut number, mut begin) = (0, 0);
    loop {
        row(number, begin)?;
        number += 1;
        let mut dim = outer.len();
        loop {
            if dim == 0 {
                return Ok(());
            }
            dim -= 1;
            let stride = if dim == but { 0 } else { strides[dim] };
            counter[dim] += 1;
            begin += stride;
            if counter[dim] < outer[dim] {
                break;
            }
            begin -= stride * outer[dim];
            counter[dim] = 0;
        }
    }
}

/// That a tensor of indices has places in one of data for all its dimensions but `at`.
pub(super) fn fits(indices: &Type, data: &Type, at: usize) -> Result<(), OpError> {
    let inside = |(dim, (index, data)): (usize, (&usize, &usize))| {
        dim == at || index <= data || indices.elements() == 0
    };
    if indices.rank() == data.rank() && indices.shape.iter().zip(&data.shape).enumerate().all(inside) {
        return Ok(());
    }
    Err(OpError::shape(format!("indices {indices} do not fit {data} along axis {at}")))
}

/// Single elements along a dimension.
struct GatherElements {
    axis: i64,
}

impl Operator for GatherElements {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (data, indices) = (inputs.ty(0)?, inputs.ty(1)?);
        fits(indices, data, axis(self.axis, data.rank())?)?;
        Ok(smallvec![typed(data.dtype, &indices.shape[..])?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (data, view, output) = (call.input(0)?, call.input(1)?, call.output(0)?);
        let at = axis(self.axis, data.shape.len())?;
        let (dim, strides, indices) = (data.shape[at], strides(data.shape), Indices::new(&view)?);
        let (step, length) = (strides[at], view.shape[view.shape.len() - 1]);
        // Along the last dimension, indices are all that moves; else columns move too.
        let column = usize::from(at + 1 < data.shape.len());
        by_width!(data.dtype, T => {
            let (source, target) = (data.raw::<T>(), output.raw::<T>());
            each_row(view.shape, &strides, at, &mut |row, begin| {
                let to = row * length;
                for (n, place) in target[to..to + length].iter_mut().enumerate() {
                    *place = source[begin + n * column + indices.get(to + n, dim)? * step];
                }
                Ok(())
            })
        })
    }
}

/// Slices, each of which is named by a row of indices.
struct GatherND {
    batch_dims: i64,
}

impl GatherND {
    /// Number of dimensions that are gone through together, and of those that a row of indices names.
    fn split(&self, data: &[usize], indices: &[usize]) -> Result<(usize, usize), OpError> {
        let wrong = || {
            OpError::shape(format!(
                "indices {indices:?} with {} batch dims do not fit {data:?}",
                self.batch_dims
            ))
        };
        let batch = usize::try_from(self.batch_dims).map_err(|_| wrong())?;
        let (&named, outer) = indices.split_last().ok_or_else(wrong)?;
        let fits = batch <= outer.len()
            && batch <= data.len()
            && named <= data.len() - batch
            && data[..batch] == outer[..batch];
        if fits { Ok((batch, named)) } else { Err(wrong()) }
    }
}

impl Operator for GatherND {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (data, indices) = (inputs.ty(0)?, inputs.ty(1)?);
        let (batch, named) = self.split(&data.shape, &indices.shape)?;
        let parts = [&indices.shape[..indices.rank() - 1], &data.shape[batch + named..]];
        let shape: Shape = parts.into_iter().flatten().copied().collect();
        Ok(smallvec![typed(data.dtype, shape)?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (data, view, output) = (call.input(0)?, call.input(1)?, call.output(0)?);
        if output.bytes.is_empty() {
            return Ok(());
        }
        let (batch, named) = self.split(data.shape, view.shape)?;
        let (strides, indices) = (strides(data.shape), Indices::new(&view)?);
        let (shape, strides) = (&data.shape[batch..batch + named], &strides[batch..batch + named]);
        let inner: usize = data.shape[batch + named..].iter().product();
        let rows: usize = view.shape[batch..view.shape.len() - 1].iter().product();
        let whole: usize = data.shape[batch..].iter().product();
        by_width!(data.dtype, T => {
            let (source, target) = (data.raw::<T>(), output.raw::<T>());
            for (n, row) in target.chunks_exact_mut(inner).enumerate() {
                let from = n / rows * whole + indices.place(n * named, shape, strides)?;
                row.copy_from_slice(&source[from..from + inner]);
            }
        });
        Ok(())
    }
}

/// Beginnings of sequences backwards.
struct ReverseSequence {
    /// Dimension 0 is the batch, and 1 is time; else the other way round.
    batch_first: bool,
}

impl Operator for ReverseSequence {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (input, lengths) = (inputs.ty(0)?, inputs.ty(1)?);
        let batch = usize::from(!self.batch_first);
        if input.rank() < 2 || lengths.shape != [input.shape[batch]] {
            return Err(
                OpError::shape(format!("{input} is no batch of sequences with lengths {lengths}")).into()
            );
        }
        Ok(smallvec![input.clone()])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (input, lengths, output) = (call.input(0)?, call.input(1)?, call.output(0)?);
        let lengths =
            super::ints(&lengths).ok_or_else(|| OpError::element_type("its lengths are no integers"))?;
        let inner: usize = input.shape[2..].iter().product();
        let time = input.shape[usize::from(self.batch_first)];
        let (next, after) = if self.batch_first { (time, 1) } else { (1, lengths.len()) };
        by_width!(input.dtype, T => {
            let (source, target) = (input.raw::<T>(), output.raw::<T>());
            for (n, &length) in lengths.iter().enumerate() {
                let wrong = || OpError::value(format!("a sequence of {time} cannot be {length} long"));
                let reversed = usize::try_from(length).ok().filter(|&length| length <= time);
                let reversed = reversed.ok_or_else(wrong)?;
                let (begin, after) = (n * next * inner, after * inner);
                let axes = |length: usize, from: isize| {
                    [Axis { length, from, to: after }, Axis { length: inner, from: 1, to: 1 }]
                };
                let last = begin + reversed.saturating_sub(1) * after;
                copy(&axes(reversed, -(after as isize)), source, last, target, begin);
                let rest = begin + reversed * after;
                copy(&axes(time - reversed, after as isize), source, rest, target, rest);
            }
        });
        Ok(())
    }
}

/// Calls `found` with the number of each element that is not 0, until it has enough.
fn each_nonzero(view: &View<'_>, mut found: impl FnMut(usize)) {
    by_width!(view.dtype, T => {
        // The zero of real numbers has a sign, which does not count.
        let counts = if view.dtype.is_float() { T::MAX >> 1 } else { T::MAX };
        view.raw::<T>().iter().enumerate().filter(|&(_, &x)| x & counts != 0).for_each(|(n, _)| found(n));
    });
}

/// Coordinates of the elements that are not 0.
struct NonZero;

impl Operator for NonZero {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let mut count = 0;
        each_nonzero(&inputs.value(0)?, |_| count += 1);
        Ok(smallvec![typed(DataType::I64, [inputs.ty(0)?.rank(), count])?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (input, output) = (call.input(0)?, call.output(0)?);
        let count = output.shape[1];
        let target = output.elements::<i64>();
        let mut counter: SmallVec<[usize; 8]> = SmallVec::from_elem(0, input.shape.len());
        let (mut at, mut column) = (0, 0);
        each_nonzero(&input, |n| {
            // The coordinates move on from those of the last one.
            let mut carry = n - at;
            at = n;
            for (place, &dim) in counter.iter_mut().zip(input.shape).rev() {
                if carry == 0 {
                    break;
                }
                let sum = *place + carry;
                (*place, carry) = if sum < dim { (sum, 0) } else { (sum % dim, sum / dim) };
            }
            for (dim, &place) in counter.iter().enumerate() {
                target[dim * count + column] = place as i64;
            }
            column += 1;
        });
        Ok(())
    }
}

/// Slices along a dimension, or elements, where a condition holds.
struct Compress {
    axis: Option<i64>,
}

impl Compress {
    /// Elements before, along and after the dimension.
    fn split(&self, shape: &[usize]) -> Result<(usize, [usize; 3]), OpError> {
        let Some(at) = self.axis else { return Ok((0, [1, shape.iter().product(), 1])) };
        let at = axis(at, shape.len())?;
        Ok((at, [shape[..at].iter().product(), shape[at], shape[at + 1..].iter().product()]))
    }
}

/// Where the condition holds, of `dim` elements: it may say nothing of the last ones.
fn kept(condition: &[Bool], dim: usize) -> impl Iterator<Item = usize> {
    condition.iter().take(dim).enumerate().filter(|(_, keep)| keep.get()).map(|(at, _)| at)
}

impl Operator for Compress {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (input, condition) = (inputs.ty(0)?, inputs.ty(1)?);
        if condition.dtype != DataType::Bool || condition.rank() != 1 {
            return Err(OpError::shape(format!("{condition} is no row of conditions")).into());
        }
        let (at, [_, dim, _]) = self.split(&input.shape)?;
        let count = kept(inputs.value(1)?.elements(), dim).count();
        let mut shape = if self.axis.is_some() { input.shape.clone() } else { [0].into() };
        shape[at] = count;
        Ok(smallvec![typed(input.dtype, shape)?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (input, condition, output) = (call.input(0)?, call.input(1)?, call.output(0)?);
        if output.bytes.is_empty() {
            return Ok(());
        }
        let (_, [outer, dim, inner]) = self.split(input.shape)?;
        let condition = condition.elements::<Bool>();
        by_width!(input.dtype, T => {
            let source = input.raw::<T>();
            let mut rows = output.raw::<T>().chunks_exact_mut(inner);
            for block in 0..outer {
                for (at, row) in kept(condition, dim).zip(&mut rows) {
                    row.copy_from_slice(&source[(block * dim + at) * inner..][..inner]);
                }
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::trial::{Trial, counting, tensor};
    use stepalloc_graph::Attribute;

    #[test]
    fn indices_count_from_either_end() {
        let data = counting(&[2, 3]);
        let indices = tensor(&[], &[-1i32]);
        let outputs = Trial::new("Gather", &[("axis", Attribute::Int(-1))], [&data, &indices]).run();
        assert_eq!(outputs.expect("it runs")[0].view().elements::<f32>(), [2.0, 5.0]);
        for beyond in [3i64, -4, i64::MIN, i64::MAX] {
            let indices = tensor(&[1], &[beyond]);
            let trial = Trial::new("Gather", &[("axis", Attribute::Int(1))], [&data, &indices]);
            assert!(trial.run().is_err_and(|why| why.to_string().contains(&beyond.to_string())));
        }
    }

    #[test]
    fn a_scalar_has_no_coordinates() {
        let outputs = Trial::new("NonZero", &[], [&tensor(&[], &[5i64])]).run().expect("it runs");
        assert_eq!(outputs[0].ty().shape, [0, 1]);
        let outputs = Trial::new("NonZero", &[], [&counting(&[2, 2, 2])]).run().expect("it runs");
        let coordinates = outputs[0].view().elements::<i64>();
        assert_eq!(coordinates[..7], [0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(coordinates[14..], [1, 0, 1, 0, 1, 0, 1]);
    }
}
