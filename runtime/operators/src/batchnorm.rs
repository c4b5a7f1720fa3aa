//! Normalizations of channels: by figures that are given or told from the batch (BatchNormalization), by those of all elements along
//! some axes (MeanVarianceNormalization), and by the channels next to each one (LRN).

use super::reduce::{Groups, PARALLEL, each};
use super::slabs::{self, Affine, Kernel, Real};
use super::{Call, Definition, Known, Made, Operator, Reuse, Types, Unclear, axis, typed};
use smallvec::{SmallVec, smallvec};
use stepalloc_kernels::{
    blocks::{BLOCK, Source, Wide, put},
    no,
};
use stepalloc_tensor::{OpError, Type, View};
use stepalloc_threads as threads;

pub(super) fn make(node: &Definition<'_>) -> Made {
    let attributes = node.attributes;
    Some(Ok(match node.op {
        "BatchNormalization" => {
            if node.opset < 9 && attributes.int("spatial", 1) == 0 {
                return Some(Err(OpError::unsupported(
                    "figures of each activation (spatial = 0) are not known to it",
                )));
            }
            let others = node.outputs.iter().skip(1).any(|&wanted| wanted);
            let training = if node.opset < 14 { others } else { attributes.int("training_mode", 0) != 0 };
            if others && !training {
                return Some(Err(OpError::arity(
                    "it has figures of a batch as outputs, and training_mode is 0",
                )));
            }
            Box::new(BatchNormalization {
                epsilon: attributes.float("epsilon", 1e-5),
                momentum: attributes.float("momentum", 0.9).into(),
                training,
                outputs: node.outputs.len(),
            })
        }
        "MeanVarianceNormalization" => {
            Box::new(MeanVariance { axes: attributes.ints("axes").unwrap_or_else(|| vec![0, 2, 3]) })
        }
        "LRN" => match attributes.opt_int("size").map(usize::try_from) {
            Some(Ok(size @ 1..)) => Box::new(Lrn {
                size,
                alpha: attributes.float("alpha", 1e-4).into(),
                beta: attributes.float("beta", 0.75).into(),
                bias: attributes.float("bias", 1.0).into(),
            }),
            _ => return Some(Err(OpError::attribute("its size is not a number of channels"))),
        },
        _ => return None,
    }))
}

/// Channels, by their mean and variance.
struct BatchNormalization {
    epsilon: f32,
    /// What is left of old figures when those of a batch come in.
    momentum: f64,
    /// Figures are those of the batch.
    training: bool,
    outputs: usize,
}

/// Inputs that have a number for each channel: scale, bias, mean, variance.
const OF_CHANNELS: [usize; 4] = [1, 2, 3, 4];

/// Number of channels, and elements of one.
fn channels(shape: &[usize]) -> (usize, usize) {
    (shape.get(1).copied().unwrap_or(1), shape.iter().skip(2).product())
}

impl Operator for BatchNormalization {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        let (count, _) = channels(&input.shape);
        for at in OF_CHANNELS {
            let ty = inputs.ty(at)?;
            if ty.shape != [count] {
                return Err(OpError::shape(format!(
                    "input {at} is {ty}, not a number for each of {count} channels"
                ))
                .into());
            }
        }
        let mut types = smallvec![input.clone()];
        types.resize(self.outputs.max(1), inputs.ty(3)?.clone());
        Ok(types)
    }

    fn reuse(&self) -> Reuse {
        if self.training { Reuse::No } else { Reuse::InPlace(&[0]) }
    }

    fn scratch(&self, inputs: &Known<'_>, outputs: &[Type]) -> usize {
        let (Some(input), [output, ..]) = (inputs.opt(0), outputs) else { return 0 };
        let (count, size) = channels(&input.shape);
        let figures = if self.training { count * size_of::<[f64; 2]>() } else { 0 };
        figures + slabs::scratch(inputs, output.dtype, size, &OF_CHANNELS, false)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let shape = call.outputs.first().and_then(|output| Some(output.as_ref()?.shape));
        let (count, size) = channels(shape.ok_or_else(|| OpError::arity("output 0 is wanted by nobody"))?);
        let mut plane = Plane { channels: count, epsilon: self.epsilon.into(), figures: None };
        if self.training {
            let scratch = call.scratch();
            let (figures, rest) = scratch.split_at_mut(count * size_of::<[f64; 2]>());
            call.scratch = rest;
            if !figures.is_empty() {
                let figures: &mut [[f64; 2]] = bytemuck::cast_slice_mut(figures);
                let input = call.input(0)?;
                if !input.dtype.is_float() {
                    return Err(no(input.dtype));
                }
                figures_of_channels(Source::new(&input), figures, size);
                self.say(call, figures)?;
                plane.figures = Some(figures);
            }
        }
        slabs::run(call, size, &OF_CHANNELS, false, &plane)
    }
}

impl BatchNormalization {
    /// Writes running mean and variance to outputs 1 and 2, and those of the batch to 3 and 4.
    fn say(&self, call: &mut Call<'_, '_>, figures: &[[f64; 2]]) -> Result<(), OpError> {
        for which in 0..2 {
            let old = call.input(3 + which)?;
            for (at, kept) in [(1 + which, self.momentum), (3 + which, 0.0)] {
                let Some(output) = call.opt_output(at) else { continue };
                if !output.dtype.is_float() || !old.dtype.is_float() {
                    return Err(no(output.dtype));
                }
                for (at, figures) in figures.iter().enumerate() {
                    let kept_part = if kept == 0.0 { 0.0 } else { Source::new(&old).at(at) * kept };
                    put(output.dtype, output.bytes, at, kept_part + figures[which] * (1.0 - kept));
                }
            }
        }
        Ok(())
    }
}

/// Mean and variance of each channel of `size` elements, over the batch.
fn figures_of_channels(input: Source<'_>, figures: &mut [[f64; 2]], size: usize) {
    let (count, all) = (figures.len(), input.len() / figures.len());
    let batch = all / size.max(1);
    let least = if input.len() >= PARALLEL { 1 } else { usize::MAX };
    threads::pieces(figures, 1, least, &|channel, figures| {
        let sum = |less: Option<f64>| -> f64 {
            (0..batch).map(|plane| sum_of(input, (plane * count + channel) * size, size, less)).sum()
        };
        let mean = sum(None) / all as f64;
        let squares = sum(Some(mean));
        figures[0] = [mean, squares / all as f64];
    });
}

/// The sum of some elements, or of the squares of their distances from a number, in as many parts as fill vector registers.
fn sum_of(input: Source<'_>, first: usize, size: usize, less: Option<f64>) -> f64 {
    let (mut block, mut lanes, mut rest) = ([0.0; BLOCK], [0.0; 8], 0.0);
    for begin in (0..size).step_by(BLOCK) {
        let at = first + begin;
        let row = &mut block[..BLOCK.min(size - begin)];
        input.copy(at, row);
        if let Some(less) = less {
            row.iter_mut().for_each(|x| *x = (*x - less) * (*x - less));
        }
        let (chunks, last) = row.as_chunks::<8>();
        for chunk in chunks {
            for at in 0..8 {
                lanes[at] += chunk[at];
            }
        }
        rest += last.iter().sum::<f64>();
    }
    lanes.iter().sum::<f64>() + rest
}

/// The elements of a channel in one batch.
struct Plane<'a> {
    channels: usize,
    epsilon: f64,
    /// Mean and variance of the batch, if they are to be used.
    figures: Option<&'a [[f64; 2]]>,
}

impl Kernel for Plane<'_> {
    fn run<R: Real>(&self, slab: &mut [R], number: usize, parameters: &[&[R]]) -> [R; 2] {
        let channel = number % self.channels;
        let [scale, bias, mean, variance] = [0, 1, 2, 3].map(|at| parameters[at][channel]);
        let [mean, variance] = match self.figures {
            Some(figures) => figures[channel].map(R::from_f64),
            None => [mean, variance],
        };
        let by = scale / (variance + R::from_f64(self.epsilon)).sqrt();
        if let [x] = slab {
            *x = (*x - mean) * by + bias;
        } else {
            let how = Affine { less: mean, by, plus: bias, by_each: None, plus_each: None };
            R::shift_and_scale(slab, &how);
        }
        [mean, variance]
    }
}

/// All elements along some axes are made to have mean 0 and variance 1.
struct MeanVariance {
    axes: Vec<i64>,
}

impl MeanVariance {
    fn groups(&self, shape: &[usize]) -> Result<Groups, OpError> {
        let mut reduced: SmallVec<[bool; 8]> = smallvec::smallvec![false; shape.len()];
        for &at in &self.axes {
            reduced[axis(at, shape.len())?] = true;
        }
        Ok(Groups::new(shape, &reduced))
    }
}

impl Operator for MeanVariance {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        self.groups(&input.shape)?;
        Ok(smallvec![input.clone()])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (input, output) = (call.input(0)?, call.output(0)?);
        let groups = self.groups(input.shape)?;
        if input.is_empty() {
            return Ok(());
        }
        if !input.dtype.is_float() {
            return Err(no(input.dtype));
        }
        standardize(&input, output.bytes, &groups);
        Ok(())
    }
}

fn standardize(view: &View<'_>, output: &mut [u8], groups: &Groups) {
    /// What the standard adds to the deviation.
    const EPSILON: f64 = 1e-9;
    let (input, width, count) = (Source::new(view), view.dtype.bytes(), groups.count() as f64);
    // The innermost dimension is walked along, whether its elements share their figures or not.
    let (inner, kept, reduced) = {
        let (kept, reduced) = (&groups.kept[..], &groups.reduced[..]);
        match (groups.rows, kept.split_last(), reduced.split_last()) {
            (true, _, Some((&(inner, _), rest))) => (inner, kept, rest),
            (false, Some((&(inner, _), rest)), _) => (inner, rest, reduced),
            _ => (1, kept, reduced),
        }
    };
    // Calls `f` with each block of a row that begins here, and where it is.
    let blocks = |base: usize, length: usize, f: &mut dyn FnMut(usize, &mut [f64])| {
        for begin in (0..length).step_by(BLOCK) {
            let row = &mut [0.0; BLOCK][..BLOCK.min(length - begin)];
            input.copy(base + begin, row);
            f(base + begin, row);
        }
    };
    each(kept, 0, &mut |base| {
        for begin in (0..inner).step_by(BLOCK) {
            let (begin, length) = if groups.rows { (0, inner) } else { (begin, BLOCK.min(inner - begin)) };
            let base = base + begin;
            let (mut means, mut squares) = ([0.0; BLOCK], [0.0; BLOCK]);
            let place = |at: usize| if groups.rows { 0 } else { at };
            let walk = |f: &mut dyn FnMut(usize, &mut [f64])| {
                each(reduced, base, &mut |at| blocks(at, length, f));
            };
            walk(&mut |_, row| {
                for (column, &x) in row.iter().enumerate() {
                    means[place(column)] += x;
                }
            });
            means.iter_mut().for_each(|mean| *mean /= count);
            walk(&mut |_, row| {
                for (column, &x) in row.iter().enumerate() {
                    let less = x - means[place(column)];
                    squares[place(column)] += less * less;
                }
            });
            squares.iter_mut().for_each(|square| *square = (*square / count).sqrt() + EPSILON);
            walk(&mut |at, row| {
                for (column, x) in row.iter_mut().enumerate() {
                    let column = place(column);
                    *x = (*x - means[column]) / squares[column];
                }
                f64::store(row, false, view.dtype, &mut output[at * width..][..row.len() * width]);
            });
            if groups.rows {
                break;
            }
        }
    });
}

/// Local response: divided by what the channels next to each one amount to.
struct Lrn {
    size: usize,
    alpha: f64,
    beta: f64,
    bias: f64,
}

impl Operator for Lrn {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        if input.rank() < 2 {
            return Err(OpError::shape(format!("{input} has no channels")).into());
        }
        Ok(smallvec![typed(input.dtype, input.shape.clone())?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (input, output) = (call.input(0)?, call.output(0)?);
        if !input.dtype.is_float() {
            return Err(no(input.dtype));
        }
        self.respond(&input, output.bytes);
        Ok(())
    }
}

impl Lrn {
    fn respond(&self, view: &View<'_>, output: &mut [u8]) {
        let (channels, size) = channels(view.shape);
        let (input, width) = (Source::new(view), view.dtype.bytes());
        let (before, after) = ((self.size - 1) / 2, self.size / 2);
        let by = self.alpha / self.size as f64;
        let three_quarters = self.beta == 0.75;
        let least = if input.len() >= PARALLEL { 1 } else { usize::MAX };
        threads::pieces(output, size * width, least, &|number, output| {
            let channel = number % channels;
            let first = number - channel;
            let from = first + channel.saturating_sub(before);
            let to = first + channel.saturating_add(after).min(channels - 1);
            for (block, output) in output.chunks_mut(BLOCK * width).enumerate() {
                let columns = output.len() / width;
                let row = &mut [0.0; BLOCK][..columns];
                let sums = &mut [0.0; BLOCK][..columns];
                for number in from..=to {
                    input.copy(number * size + block * BLOCK, row);
                    sums.iter_mut().zip(&*row).for_each(|(sum, x)| *sum += x * x);
                }
                input.copy(number * size + block * BLOCK, row);
                for (x, &sum) in row.iter_mut().zip(&*sums) {
                    let base: f64 = self.bias + by * sum;
                    *x /= if three_quarters {
                        let root = base.sqrt();
                        root * root.sqrt()
                    } else {
                        base.powf(self.beta)
                    };
                }
                f64::store(row, false, view.dtype, output);
            }
        });
    }
}
