//! Operators that give elements other places: transposes, parts, and what is put together of them.

use super::{Call, Definition, Ints, Known, Made, Operator, Types, Unclear, axis, ints, typed};
use smallvec::{SmallVec, smallvec};
use stepalloc_kernels::{
    broadcast::broadcast,
    strided::{Axes, Axis, copy, lay_out, permuted, strides},
};
use stepalloc_tensor::{OpError, Shape, by_width};

pub(super) fn make(node: &Definition<'_>) -> Made {
    let attributes = node.attributes;
    Some(Ok(match node.op {
        "Transpose" => Box::new(Transpose { order: attributes.ints("perm") }),
        "Expand" => Box::new(Repeated::Expand),
        "Tile" => Box::new(Repeated::Tile),
        "Concat" => match attributes.opt_int("axis") {
            Some(axis) => Box::new(Concat { axis }),
            None => return Some(Err(OpError::attribute("it is told no axis"))),
        },
        "Split" => Box::new(Split {
            axis: attributes.int("axis", 0),
            sizes: attributes.ints("split"),
            parts: attributes.opt_int("num_outputs"),
            outputs: node.outputs.len(),
        }),
        "Slice" => Box::new(Slice {
            told: attributes.ints("starts").zip(attributes.ints("ends")),
            axes: attributes.ints("axes"),
        }),
        "DepthToSpace" | "SpaceToDepth" => {
            let blocks = attributes.int("blocksize", 0);
            let Some(block) = usize::try_from(blocks).ok().filter(|&block| block > 0) else {
                return Some(Err(OpError::attribute(format!("its blocksize is {blocks}"))));
            };
            let columns_first = match attributes.text("mode", "DCR") {
                "DCR" => false,
                "CRD" => true,
                mode => return Some(Err(OpError::attribute(format!("there is no mode {mode:?}")))),
            };
            Box::new(Blocks { block, columns_first, to_depth: node.op == "SpaceToDepth" })
        }
        _ => return None,
    }))
}

/// Copies input 0 to output 0.
fn copy_all(call: &mut Call<'_, '_>, axes: &[Axis], from: usize) -> Result<(), OpError> {
    let (input, output) = (call.input(0)?, call.output(0)?);
    by_width!(input.dtype, T => copy(axes, input.raw::<T>(), from, output.raw::<T>(), 0));
    Ok(())
}

/// Dimensions in another order.
struct Transpose {
    /// Backwards where it is left out.
    order: Option<Vec<i64>>,
}

impl Transpose {
    fn order(&self, rank: usize) -> Result<SmallVec<[usize; 8]>, OpError> {
        let Some(told) = &self.order else { return Ok((0..rank).rev().collect()) };
        let order =
            told.iter().map(|&at| axis(at, rank)).collect::<Result<SmallVec<[usize; 8]>, OpError>>()?;
        if order.len() != rank || (0..rank).any(|at| !order.contains(&at)) {
            return Err(OpError::attribute(format!("{told:?} is no order of {rank} dimensions")));
        }
        Ok(order)
    }
}

impl Operator for Transpose {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        let shape: Shape = self.order(input.rank())?.iter().map(|&at| input.shape[at]).collect();
        Ok(smallvec![typed(input.dtype, shape)?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let shape = call.input(0)?.shape;
        copy_all(call, &permuted(shape, &self.order(shape.len())?), 0)
    }
}

/// The same elements again and again.
enum Repeated {
    Expand,
    Tile,
}

impl Operator for Repeated {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        let told = inputs.ints(1)?;
        let wanted = told.iter().map(|&dim| usize::try_from(dim)).collect::<Result<Shape, _>>();
        let wanted = wanted.map_err(|_| OpError::value(format!("one of {told:?} is negative")))?;
        let shape = match self {
            Self::Expand => broadcast([&input.shape[..], &wanted])
                .ok_or_else(|| OpError::shape(format!("{input} cannot be expanded to {wanted:?}")))?,
            Self::Tile if wanted.len() != input.rank() => {
                return Err(OpError::shape(format!("{input} cannot be repeated {wanted:?} times")).into());
            }
            Self::Tile => {
                let times = input.shape.iter().zip(&wanted).map(|(&dim, &times)| dim.checked_mul(times));
                times
                    .collect::<Option<_>>()
                    .ok_or_else(|| OpError::shape(format!("{input} {wanted:?} times is too large")))?
            }
        };
        Ok(smallvec![typed(input.dtype, shape)?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let shape = call.input(0)?.shape;
        let told = ints(&call.input(1)?).ok_or_else(|| OpError::element_type("input 1 is not integers"))?;
        let strides = strides(shape);
        let mut axes = Axes::new();
        match self {
            Self::Expand => {
                let whole = told.iter().map(|&dim| dim as usize).collect::<SmallVec<[usize; 8]>>();
                let whole = broadcast([shape, &whole]).ok_or_else(|| OpError::shape("shapes do not fit"))?;
                let new = whole.len() - shape.len();
                for (at, &length) in whole.iter().enumerate() {
                    let old = at.checked_sub(new).filter(|&old| shape[old] != 1);
                    axes.push(Axis { length, from: old.map_or(0, |old| strides[old] as isize), to: 0 });
                }
            }
            Self::Tile => {
                for ((&length, &stride), &times) in shape.iter().zip(&strides).zip(&told) {
                    axes.push(Axis { length: times as usize, from: 0, to: 0 });
                    axes.push(Axis { length, from: stride as isize, to: 0 });
                }
            }
        }
        lay_out(&mut axes);
        copy_all(call, &axes, 0)
    }
}

/// Elements along one dimension, and how many lie outside and inside of it.
fn around(shape: &[usize], at: usize) -> (usize, usize) {
    (shape[..at].iter().product(), shape[at + 1..].iter().product())
}

/// Tensors one after another along a dimension.
struct Concat {
    axis: i64,
}

impl Operator for Concat {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let first = inputs.ty(0)?;
        let at = axis(self.axis, first.rank())?;
        let mut shape = first.shape.clone();
        for index in 1..inputs.len() {
            let next = inputs.ty(index)?;
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
        let output = call.output(0)?;
        let at = axis(self.axis, output.shape.len())?;
        let (outer, inner) = around(output.shape, at);
        let whole = output.shape[at] * inner;
        by_width!(output.dtype, T => {
            let target = output.raw::<T>();
            let mut to = 0;
            for index in 0..call.len() {
                let input = call.input(index)?;
                let row = input.shape[at] * inner;
                let axes = [
                    Axis { length: outer, from: row as isize, to: whole },
                    Axis { length: row, from: 1, to: 1 },
                ];
                copy(&axes, input.raw::<T>(), 0, target, to);
                to += row;
            }
        });
        Ok(())
    }
}

/// Parts along a dimension, one after another.
struct Split {
    axis: i64,
    /// Their sizes: an attribute in old versions, an input in new ones. Where they are not told, all are of
    /// one size.
    sizes: Option<Vec<i64>>,
    /// Number of parts that are as equal as can be; the last is what is left.
    parts: Option<i64>,
    /// How many the node has.
    outputs: usize,
}

impl Operator for Split {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        let at = axis(self.axis, input.rank())?;
        let whole = input.shape[at];
        let told = match &self.sizes {
            Some(told) => Some(Ints::from_slice(told)),
            None => inputs.opt_ints(1)?,
        };
        let sizes: Shape = if let Some(told) = told {
            let sizes = told.iter().map(|&size| usize::try_from(size)).collect::<Result<Shape, _>>();
            let sizes = sizes.map_err(|_| OpError::value(format!("one of {told:?} is negative")))?;
            let sum = sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size));
            if sum != Some(whole) {
                return Err(
                    OpError::value(format!("parts of {told:?} are not the {whole} of axis {at}")).into()
                );
            }
            sizes
        } else {
            let parts = self.parts.map_or(Ok(self.outputs), usize::try_from);
            let parts = parts.ok().filter(|&parts| parts == self.outputs && parts > 0);
            let parts = parts
                .ok_or_else(|| OpError::arity(format!("{} outputs are not what it makes", self.outputs)))?;
            if self.parts.is_none() && !whole.is_multiple_of(parts) {
                return Err(
                    OpError::shape(format!("{whole} of axis {at} are not {parts} equal parts")).into()
                );
            }
            let size = whole.div_ceil(parts);
            (0..parts).map(|n| size.min(whole.saturating_sub(n * size))).collect()
        };
        if sizes.len() != self.outputs {
            return Err(OpError::arity(format!(
                "it makes {} parts for {} outputs",
                sizes.len(),
                self.outputs
            ))
            .into());
        }
        let part = |&size: &usize| {
            let mut shape = input.shape.clone();
            shape[at] = size;
            typed(input.dtype, shape).map_err(Unclear::from)
        };
        sizes.iter().map(part).collect()
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let input = call.input(0)?;
        let at = axis(self.axis, input.shape.len())?;
        let (outer, inner) = around(input.shape, at);
        let whole = input.shape[at];
        let told = match &self.sizes {
            Some(told) => Some(Ints::from_slice(told)),
            None => call.opt(1).and_then(|told| ints(&told)),
        };
        let equal = whole.div_ceil(self.outputs.max(1));
        by_width!(input.dtype, T => {
            let source = input.raw::<T>();
            let mut from = 0;
            for index in 0..self.outputs {
                let size = match &told {
                    Some(told) => told.get(index).map_or(0, |&size| size as usize),
                    None => equal.min(whole.saturating_sub(index * equal)),
                };
                if let Some(output) = call.opt_output(index) {
                    let axes = [
                        Axis { length: outer, from: (whole * inner) as isize, to: size * inner },
                        Axis { length: size * inner, from: 1, to: 1 },
                    ];
                    copy(&axes, source, from, output.raw::<T>(), 0);
                }
                from += size * inner;
            }
        });
        Ok(())
    }
}

/// A part that begins somewhere and takes each so manyth element, forwards or backwards.
struct Slice {
    /// Begins and ends: attributes in old versions, inputs in new ones.
    told: Option<(Vec<i64>, Vec<i64>)>,
    axes: Option<Vec<i64>>,
}

/// What a slice takes of a dimension.
#[derive(Clone, Copy)]
struct Range {
    begin: usize,
    step: i64,
    length: usize,
}

impl Range {
    /// As numpy has it, of `dim` elements.
    fn new(dim: usize, start: i64, end: i64, step: i64) -> Result<Self, OpError> {
        // Wide, so that ends at the bounds of i64, which models use for "to the end", do not overflow.
        let dim = dim as i128;
        let from_end = |at: i64| i128::from(at) + if at < 0 { dim } else { 0 };
        let (lowest, highest) = match step {
            0 => return Err(OpError::value("its step is 0")),
            1.. => (0, dim),
            _ => (-1, dim - 1),
        };
        let (start, end) = (from_end(start).max(lowest).min(highest), from_end(end).max(lowest).min(highest));
        let wide = i128::from(step);
        let way = (end - start) * wide.signum();
        let length = if way <= 0 { 0 } else { (way + wide.abs() - 1) / wide.abs() };
        Ok(Self { begin: if length == 0 { 0 } else { start as usize }, step, length: length as usize })
    }
}

/// Begins, ends, axes and steps as they are told, to ranges of all dimensions.
fn ranges(
    shape: &[usize],
    starts: &[i64],
    ends: &[i64],
    axes: Option<&[i64]>,
    steps: Option<&[i64]>,
) -> Result<SmallVec<[Range; 8]>, OpError> {
    let count = axes.map_or(starts.len(), <[i64]>::len);
    if starts.len() != count || ends.len() != count || steps.is_some_and(|steps| steps.len() != count) {
        let steps = steps.map_or(count, <[i64]>::len);
        return Err(OpError::shape(format!(
            "{} starts, {} ends, {count} axes, {steps} steps",
            starts.len(),
            ends.len()
        )));
    }
    let mut ranges: SmallVec<[Range; 8]> =
        shape.iter().map(|&length| Range { begin: 0, step: 1, length }).collect();
    for n in 0..count {
        let at = axis(axes.map_or(n as i64, |axes| axes[n]), shape.len())?;
        ranges[at] = Range::new(shape[at], starts[n], ends[n], steps.map_or(1, |steps| steps[n]))?;
    }
    Ok(ranges)
}

impl Operator for Slice {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        let ranges = match &self.told {
            Some((starts, ends)) => ranges(&input.shape, starts, ends, self.axes.as_deref(), None)?,
            None => {
                let (starts, ends) = (inputs.ints(1)?, inputs.ints(2)?);
                let (axes, steps) = (inputs.opt_ints(3)?, inputs.opt_ints(4)?);
                ranges(&input.shape, &starts, &ends, axes.as_deref(), steps.as_deref())?
            }
        };
        Ok(smallvec![typed(input.dtype, ranges.iter().map(|range| range.length).collect::<Shape>())?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let shape = call.input(0)?.shape;
        let told = |index| {
            call.opt(index)
                .map(|told| {
                    ints(&told)
                        .ok_or_else(|| OpError::element_type(format!("input {index} is {}", told.dtype)))
                })
                .transpose()
        };
        let ranges = match &self.told {
            Some((starts, ends)) => ranges(shape, starts, ends, self.axes.as_deref(), None)?,
            None => {
                let (starts, ends) = (told(1)?.unwrap_or_default(), told(2)?.unwrap_or_default());
                ranges(shape, &starts, &ends, told(3)?.as_deref(), told(4)?.as_deref())?
            }
        };
        let (mut axes, mut from) = (Axes::new(), 0);
        for (range, stride) in ranges.iter().zip(strides(shape)) {
            // The step of a single element may be beyond all bounds.
            let step = if range.length > 1 { range.step as isize * stride as isize } else { 0 };
            axes.push(Axis { length: range.length, from: step, to: 0 });
            from += range.begin * stride;
        }
        lay_out(&mut axes);
        copy_all(call, &axes, from)
    }
}

/// Squares of elements of an image to channels, or back.
struct Blocks {
    block: usize,
    /// The channels that a square becomes lie next to one another.
    columns_first: bool,
    to_depth: bool,
}

impl Operator for Blocks {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        let &[batch, depth, height, width] = &input.shape[..] else {
            return Err(OpError::shape(format!("{input} is no batch of images")).into());
        };
        let block = self.block;
        let large = || OpError::shape(format!("{input} in blocks of {block} is too large"));
        let square = block.checked_mul(block).ok_or_else(large)?;
        let fits = if self.to_depth {
            height.is_multiple_of(block) && width.is_multiple_of(block)
        } else {
            depth.is_multiple_of(square)
        };
        if !fits {
            return Err(OpError::shape(format!("{input} cannot be divided into blocks of {block}")).into());
        }
        let grown = |dim: usize, by: usize| dim.checked_mul(by).ok_or_else(large);
        let shape = if self.to_depth {
            [batch, grown(depth, square)?, height / block, width / block]
        } else {
            [batch, depth / square, grown(height, block)?, grown(width, block)?]
        };
        Ok(smallvec![typed(input.dtype, shape)?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let &[batch, depth, height, width] = call.input(0)?.shape else {
            return Err(OpError::shape("its input is no batch of images"));
        };
        let block = self.block;
        let axes = if self.to_depth {
            let shape = [batch, depth, height / block, block, width / block, block];
            permuted(&shape, if self.columns_first { &[0, 1, 3, 5, 2, 4] } else { &[0, 3, 5, 1, 2, 4] })
        } else {
            let depth = depth / (block * block);
            if self.columns_first {
                permuted(&[batch, depth, block, block, height, width], &[0, 1, 4, 2, 5, 3])
            } else {
                permuted(&[batch, block, block, depth, height, width], &[0, 3, 4, 1, 5, 2])
            }
        };
        copy_all(call, &axes, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(dim: usize, start: i64, end: i64, step: i64) -> (usize, usize) {
        let range = Range::new(dim, start, end, step).expect("a range");
        (range.begin, range.length)
    }

    #[test]
    fn slices_take_what_numpy_takes() {
        assert_eq!(range(10, 0, i64::MAX, 1), (0, 10));
        assert_eq!(range(10, -3, i64::MAX, 2), (7, 2));
        assert_eq!(range(10, -1, i64::MIN, -1), (9, 10));
        assert_eq!(range(10, 20, 0, -3), (9, 3));
        assert_eq!(range(10, 3, 3, 1), (0, 0));
        assert_eq!(range(0, 0, i64::MAX, 1), (0, 0));
        assert_eq!(range(0, -1, i64::MIN, -1), (0, 0));
        assert_eq!(range(5, 4, i64::MIN, i64::MIN), (4, 1));
        assert!(Range::new(5, 0, 5, 0).is_err());
    }
}
