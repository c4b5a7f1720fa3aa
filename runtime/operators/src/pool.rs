//! Pools: one number of each window, or of each plane; and what puts maxima back where they were.

use super::sliding::sliding;
use super::{Call, Definition, Known, Made, Operator, Types, Unclear, typed};
use rten_simd::{Isa, SimdOp};
use smallvec::{SmallVec, smallvec};
use std::ops::Range;
use stepalloc_graph::Attributes;
use stepalloc_kernels::{
    blocks::{BLOCK, Source, Wide, put},
    conv::depthwise::{self, Depthwise, Largest, Sum},
    conv::window::{Axis, Sliding, Window},
    gemm::PARALLEL,
    no,
};
use stepalloc_tensor::{DataType, OpError, Type, View, ViewMut, by_width};
use stepalloc_threads as threads;

pub(super) fn make(node: &Definition<'_>) -> Made {
    let attributes = node.attributes;
    let norm = || Of::norm(attributes.int("p", 2));
    let pool = |of: Result<Of, OpError>| Pool::new(attributes, of?).map(|pool| Box::new(pool) as _);
    let global = |of: Result<Of, OpError>| Ok(Box::new(Global(of?)) as _);
    Some(match node.op {
        "MaxPool" => pool(Ok(Of::Max)),
        "AveragePool" => pool(Ok(Of::Average { padded: attributes.int("count_include_pad", 0) != 0 })),
        "LpPool" => pool(norm()),
        "GlobalMaxPool" => global(Ok(Of::Max)),
        "GlobalAveragePool" => global(Ok(Of::Average { padded: false })),
        "GlobalLpPool" => global(norm()),
        "MaxUnpool" => MaxUnpool::new(node).map(|unpool| Box::new(unpool) as _),
        _ => return None,
    })
}

/// What is made of the elements of a window.
#[derive(Clone, Copy)]
pub(super) enum Of {
    Max,
    /// Whether what is padded counts.
    Average {
        padded: bool,
    },
    /// The norm of this order.
    Norm(i32),
}

impl Of {
    fn norm(order: i64) -> Result<Self, OpError> {
        let order = i32::try_from(order).ok().filter(|&order| order > 0);
        order.map(Self::Norm).ok_or_else(|| OpError::attribute("p is not a positive number of 31 bits"))
    }
}

/// One number of each window.
pub(super) struct Pool {
    sliding: Sliding,
    of: Of,
    /// Indices count the first spatial dimension fastest.
    by_columns: bool,
}

impl Pool {
    pub(super) fn new(attributes: &Attributes, of: Of) -> Result<Self, OpError> {
        let sliding = sliding(attributes)?;
        if sliding.kernel.is_none() {
            return Err(OpError::attribute("it is told no kernel_shape"));
        }
        Ok(Self { sliding, of, by_columns: attributes.int("storage_order", 0) != 0 })
    }

    fn window(&self, shape: &[usize]) -> Result<Window, OpError> {
        self.window_of(
            shape.get(2..).ok_or_else(|| OpError::shape(format!("an input {shape:?} has no channels")))?,
        )
    }

    /// The windows of a plane.
    pub(super) fn window_of(&self, space: &[usize]) -> Result<Window, OpError> {
        self.sliding.window(space, self.sliding.kernel.as_deref().unwrap_or_default())
    }
}

impl Operator for Pool {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        let window = self.window(&input.shape)?;
        let mut shape = input.shape[..2].to_vec();
        shape.extend(window.shape());
        let output = typed(input.dtype, shape.clone())?;
        Ok(match self.of {
            Of::Max => smallvec![output, typed(DataType::I64, shape)?],
            _ => smallvec![output],
        })
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let Some(input) = inputs.opt(0) else { return 0 };
        let Ok(window) = self.window(&input.shape) else { return 0 };
        match input.dtype {
            DataType::F64 => 0,
            DataType::F32 => self.depthwise(&window).map_or(0, |depthwise| {
                let planes = input.shape[..2].iter().product::<usize>();
                let is_small =
                    planes.saturating_mul(window.output()).saturating_mul(window.kernel()) < PARALLEL;
                let cores = if is_small { 1 } else { inputs.context.threads().min(planes).max(1) };
                (self.divisors(&window) + cores * depthwise.scratch()) * 4
            }),
            // Planes of others are folded in f32.
            _ => (window.input() + window.output()) * 4,
        }
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let input = call.input(0)?;
        let window = self.window(input.shape)?;
        let (output, indices) = (call.opt_output(0), call.opt_output(1));
        let scratch = call.scratch_of::<f32>();
        if window.output() == 0 || input.shape[..2].contains(&0) {
            return Ok(());
        }
        let dtype = input.dtype;
        let bytes = matches!(dtype, DataType::I8 | DataType::U8) && matches!(self.of, Of::Max);
        if !dtype.is_float() && !bytes {
            return Err(no(dtype));
        }
        if let Some(indices) = indices {
            self.maxima(&window, &input, output, indices.elements());
            return Ok(());
        }
        let Some(output) = output else { return Ok(()) };
        match dtype {
            DataType::F32 => match self.depthwise(&window).filter(|_| !scratch.is_empty()) {
                Some(depthwise) => {
                    self.fold(&window, &depthwise, input.elements(), output.elements(), scratch)
                }
                None => planes::<f32>(&window, input.elements(), output.elements(), &|from, to| {
                    plane(&window, self.of, from, to);
                }),
            },
            DataType::F64 => planes::<f64>(&window, input.elements(), output.elements(), &|from, to| {
                plane_of_f64(&window, self.of, from, to);
            }),
            _ => {
                let (from, rest) = scratch.split_at_mut(window.input());
                let to = &mut rest[..window.output()];
                let outputs = output.bytes.chunks_exact_mut(to.len() * dtype.bytes());
                for (number, output) in outputs.enumerate() {
                    let bytes = from.len() * dtype.bytes();
                    f32::load(dtype, &input.bytes[number * bytes..][..bytes], false, from);
                    plane(&window, self.of, from, to);
                    f32::store(to, false, dtype, output);
                }
            }
        }
        Ok(())
    }
}

impl Pool {
    /// How planes of f32 are folded a few vectors at a time; `None` where they are not.
    fn depthwise(&self, window: &Window) -> Option<Depthwise> {
        if matches!(self.of, Of::Norm(_)) { None } else { Depthwise::of(window) }
    }

    /// Elements of scratch memory for what each place's sum is divided by.
    fn divisors(&self, window: &Window) -> usize {
        if matches!(self.of, Of::Average { .. }) { window.output() } else { 0 }
    }

    fn fold(
        &self,
        window: &Window,
        depthwise: &Depthwise,
        input: &[f32],
        output: &mut [f32],
        scratch: &mut [f32],
    ) {
        let (divisors, scratch) = scratch.split_at_mut(self.divisors(window));
        let scratch = (scratch, depthwise.scratch());
        let Of::Average { padded } = self.of else {
            return depthwise::planes((depthwise, Largest), input, output, scratch, &|_| ());
        };
        count(window, padded, |places, divisor| divisors[places].fill(divisor as f32));
        let divide = |sums: &mut [f32]| Quotients { sums, divisors }.dispatch();
        depthwise::planes((depthwise, Sum), input, output, scratch, &divide);
    }
}

/// Divides sums by numbers, compiled for the machine's vectors.
struct Quotients<'a> {
    sums: &'a mut [f32],
    divisors: &'a [f32],
}

impl SimdOp for Quotients<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, _: I) {
        self.sums.iter_mut().zip(self.divisors).for_each(|(sum, divisor)| *sum /= divisor);
    }
}

#[inline(always)]
fn larger<W: Wide>(most: W, x: W) -> W {
    if x > most { x } else { most }
}

#[inline(always)]
fn power<W: Wide>(x: W, order: i32) -> W {
    match order {
        1 if x < W::default() => W::default().minus(x),
        1 => x,
        2 => x.times(x),
        _ => W::from_f64(x.to_f64().abs().powi(order)),
    }
}

fn root<W: Wide>(sum: W, order: i32) -> W {
    match order {
        1 => sum,
        2 => W::from_f64(sum.to_f64().sqrt()),
        _ => W::from_f64(sum.to_f64().powf(f64::from(order).recip())),
    }
}

/// Tells for all places of a plane, some that lie side by side at a time, how many elements their windows are of. Where a window meets
/// nothing it is one.
fn count(window: &Window, padded: bool, mut tell: impl FnMut(Range<usize>, usize)) {
    let (last, outer) = window.axes.split_last().expect("there are spatial dimensions");
    let (inside, width) = (last.inside(), window.width());
    for row in 0..window.rows() {
        let mut rest = row;
        let rows: usize = outer
            .iter()
            .rev()
            .map(|axis| {
                let count = axis.count(rest % axis.output, padded);
                rest /= axis.output;
                count
            })
            .product();
        let begin = row * width;
        for place in (0..inside.start).chain(inside.end..width) {
            tell(begin + place..begin + place + 1, (rows * last.count(place, padded)).max(1));
        }
        tell(begin + inside.start..begin + inside.end, (rows * last.kernel).max(1));
    }
}

/// Divides the sums of a plane by the elements that they are of.
fn average<W: Wide>(window: &Window, plane: &mut [W], padded: bool) {
    count(window, padded, |places, divisor| {
        let divisor = W::from_f64(divisor as f64);
        plane[places].iter_mut().for_each(|sum| *sum = sum.over(divisor));
    });
}

/// Folds the windows of a plane.
pub(super) fn plane(window: &Window, of: Of, from: &[f32], to: &mut [f32]) {
    match of {
        Of::Max => window.fold(from, to, f32::NEG_INFINITY, |_| larger),
        Of::Average { padded } => {
            window.fold(from, to, 0.0, |_| |sum: f32, x| sum + x);
            average(window, to, padded);
        }
        Of::Norm(order) => {
            window.fold(from, to, 0.0, |_| |sum: f32, x| sum + power(x, order));
            to.iter_mut().for_each(|sum| *sum = root(*sum, order));
        }
    }
}

/// [`plane`] in f64.
fn plane_of_f64(window: &Window, of: Of, from: &[f64], to: &mut [f64]) {
    match of {
        Of::Max => window.fold_plainly(from, to, f64::NEG_INFINITY, |_| larger),
        Of::Average { padded } => {
            window.fold_plainly(from, to, 0.0, |_| |sum: f64, x| sum + x);
            average(window, to, padded);
        }
        Of::Norm(order) => {
            window.fold_plainly(from, to, 0.0, |_| |sum: f64, x| sum + power(x, order));
            to.iter_mut().for_each(|sum| *sum = root(*sum, order));
        }
    }
}

/// Folds all planes.
fn planes<W: Wide>(window: &Window, input: &[W], output: &mut [W], fold: &(dyn Fn(&[W], &mut [W]) + Sync)) {
    let (plane, places) = (window.input(), window.output());
    let least = if output.len().saturating_mul(window.kernel()) < PARALLEL { usize::MAX } else { 1 };
    threads::pieces(output, places, least, &|index, output| fold(&input[index * plane..][..plane], output));
}

impl Pool {
    /// The largest element of each window, and where in the whole input it is.
    fn maxima(&self, window: &Window, view: &View<'_>, mut output: Option<ViewMut<'_>>, indices: &mut [i64]) {
        let (input, plane, places) = (Source::new(view), window.input(), window.output());
        let (last, outer) = window.axes.split_last().expect("there are spatial dimensions");
        for (index, indices) in indices.chunks_exact_mut(places).enumerate() {
            for (row, indices) in indices.chunks_exact_mut(window.width()).enumerate() {
                let begin = index * places + row * window.width();
                for (place, to) in indices.iter_mut().enumerate() {
                    let mut best: Option<(f64, usize)> = None;
                    for input_row in (0..window.kernel_rows()).filter_map(|at| window.meeting(row, at)) {
                        for column in 0..last.kernel {
                            let column = place * last.stride + column * last.dilation;
                            let column = column.checked_sub(last.begin).filter(|&at| at < last.input);
                            let Some(column) = column else { continue };
                            let at = input_row * last.input + column;
                            let x = input.at(index * plane + at);
                            if best.is_none_or(|(most, _)| x > most) {
                                best = Some((x, at));
                            }
                        }
                    }
                    let (most, at) = best.unwrap_or((f64::NEG_INFINITY, 0));
                    // Where a window meets nothing there may be nothing to count.
                    let at = if self.by_columns && best.is_some() { turned(at, last, outer) } else { at };
                    *to = (index * plane + at) as i64;
                    if let Some(output) = &mut output {
                        put(view.dtype, output.bytes, begin + place, most);
                    }
                }
            }
        }
    }
}

/// The number of an element of a plane when the first dimension counts fastest.
fn turned(at: usize, last: &Axis, outer: &[Axis]) -> usize {
    let (mut rest, mut size, mut turned) = (at, window_size(outer) * last.input, 0);
    for axis in outer.iter().chain([last]).rev() {
        size /= axis.input;
        turned += rest % axis.input * size;
        rest /= axis.input;
    }
    turned
}

fn window_size(axes: &[Axis]) -> usize {
    axes.iter().map(|axis| axis.input).product()
}

/// One number of each plane.
struct Global(Of);

impl Operator for Global {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        let mut shape = input.shape.clone();
        if shape.len() < 2 {
            return Err(OpError::shape(format!("an input {input} has no channels")).into());
        }
        shape[2..].fill(1);
        Ok(smallvec![typed(input.dtype, shape)?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (input, output) = (call.input(0)?, call.output(0)?);
        let dtype = input.dtype;
        let plane: usize = input.shape[2..].iter().product();
        if !dtype.is_float() {
            return Err(no(dtype));
        }
        reduce(self.0, plane, &input, output.bytes);
        Ok(())
    }
}

/// Reduces each plane to an element: f32 as it is, others in f64.
fn reduce(of: Of, plane: usize, view: &View<'_>, output: &mut [u8]) {
    let (dtype, input, width) = (view.dtype, Source::new(view), view.dtype.bytes());
    let least = if input.len() < PARALLEL { usize::MAX } else { 1 };
    threads::pieces(output, width, least, &|index, to| {
        let places = index * plane..(index + 1) * plane;
        if dtype == DataType::F32 {
            let input = &view.elements()[places];
            let state = Lanes { of, input }.dispatch();
            return f32::store(&[finish(of, state, plane)], false, dtype, to);
        }
        let (mut block, mut state) = ([0.0; BLOCK], start(of));
        for begin in places.clone().step_by(BLOCK) {
            let row = input.read(begin..places.end.min(begin + BLOCK), &mut block);
            state = join(of, state, take(of, row));
        }
        f64::store(&[finish(of, state, plane)], false, dtype, to);
    });
}

fn start<W: Wide>(of: Of) -> W {
    if matches!(of, Of::Max) { W::from_f64(f64::NEG_INFINITY) } else { W::default() }
}

/// What is made of two parts.
fn join<W: Wide>(of: Of, a: W, b: W) -> W {
    if matches!(of, Of::Max) { larger(a, b) } else { a.plus(b) }
}

fn finish<W: Wide>(of: Of, state: W, count: usize) -> W {
    match of {
        Of::Max => state,
        Of::Average { .. } => state.over(W::from_f64(count.max(1) as f64)),
        Of::Norm(order) => root(state, order),
    }
}

/// So many elements of a plane are taken in side by side.
const LANES: usize = 32;

/// What is made of some elements.
#[inline(always)]
fn take<W: Wide>(of: Of, input: &[W]) -> W {
    let mut lanes = [start(of); LANES];
    let mut rest = lanes[0];
    match of {
        Of::Max => each(input, &mut lanes, &mut rest, larger),
        Of::Average { .. } => each(input, &mut lanes, &mut rest, |sum, x| sum.plus(x)),
        Of::Norm(order) => each(input, &mut lanes, &mut rest, |sum, x| sum.plus(power(x, order))),
    }
    for lane in lanes {
        rest = join(of, rest, lane);
    }
    rest
}

#[inline(always)]
fn each<W: Wide>(input: &[W], lanes: &mut [W; LANES], rest: &mut W, take: impl Fn(W, W) -> W) {
    let (blocks, last) = input.as_chunks::<LANES>();
    for block in blocks {
        for at in 0..LANES {
            lanes[at] = take(lanes[at], block[at]);
        }
    }
    for &x in last {
        *rest = take(*rest, x);
    }
}

/// [`take`], compiled for the machine's vectors.
struct Lanes<'a> {
    of: Of,
    input: &'a [f32],
}

impl SimdOp for Lanes<'_> {
    type Output = f32;

    #[inline(always)]
    fn eval<I: Isa>(self, _: I) -> f32 {
        take(self.of, self.input)
    }
}

/// Puts elements where a pool found them, and zero elsewhere.
struct MaxUnpool {
    sliding: Sliding,
}

impl MaxUnpool {
    fn new(node: &Definition<'_>) -> Result<Self, OpError> {
        let sliding = sliding(node.attributes)?;
        match sliding.kernel {
            Some(_) => Ok(Self { sliding }),
            None => Err(OpError::attribute("it is told no kernel_shape")),
        }
    }

    /// The shape that indices count in: of what was pooled, as far as the pool tells.
    fn pooled(&self, shape: &[usize]) -> Result<SmallVec<[usize; 6]>, OpError> {
        let kernel = self.sliding.kernel.as_deref().unwrap_or_default();
        let space =
            shape.get(2..).ok_or_else(|| OpError::shape(format!("an input {shape:?} has no channels")))?;
        let mut pooled: SmallVec<[usize; 6]> = shape[..2].iter().copied().collect();
        for axis in self.sliding.axes(space, kernel)? {
            let all = axis.input.saturating_sub(1).saturating_mul(axis.stride).saturating_add(axis.kernel);
            let inner = all.checked_sub(axis.begin + axis.end);
            pooled.push(inner.ok_or_else(|| {
                OpError::shape(format!("pads of {} and {} leave none of {all}", axis.begin, axis.end))
            })?);
        }
        Ok(pooled)
    }
}

impl Operator for MaxUnpool {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (input, indices) = (inputs.ty(0)?, inputs.ty(1)?);
        if input.shape != indices.shape || indices.dtype != DataType::I64 {
            return Err(OpError::operand(
                indices,
                DataType::I64,
                format!("{indices} are not the indices of {input}"),
            )
            .into());
        }
        let pooled = self.pooled(&input.shape)?;
        let shape = match inputs.opt_ints(2)? {
            None => pooled.to_vec(),
            Some(shape) => shape
                .iter()
                .map(|&dim| {
                    usize::try_from(dim).map_err(|_| OpError::value(format!("output_shape is {shape:?}")))
                })
                .collect::<Result<_, _>>()?,
        };
        if shape.len() != pooled.len() || shape.iter().zip(&pooled).any(|(to, from)| to < from) {
            return Err(OpError::value(format!(
                "output_shape {shape:?} does not hold {:?}",
                pooled.as_slice()
            ))
            .into());
        }
        Ok(smallvec![typed(input.dtype, shape)?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (input, indices, output) = (call.input(0)?, call.input(1)?, call.output(0)?);
        let pooled = self.pooled(input.shape)?;
        let shape = output.shape;
        let all: usize = pooled.iter().product();
        let same = pooled[..] == *shape;
        output.bytes.fill(0);
        by_width!(input.dtype, T => {
            let output = output.raw::<T>();
            for (&x, &index) in input.raw::<T>().iter().zip(indices.elements::<i64>()) {
                let at = usize::try_from(index).ok().filter(|&at| at < all);
                let mut at = at.ok_or_else(|| OpError::value(format!("there is no element {index} among {all}")))?;
                if !same {
                    // What was pooled lies in a corner of a larger output.
                    let (mut rest, mut size) = (at, 1);
                    at = 0;
                    for (&from, &to) in pooled.iter().zip(shape).rev() {
                        at += rest % from * size;
                        rest /= from;
                        size *= to;
                    }
                }
                output[at] = x;
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::Trial;
    use stepalloc_graph::{Attribute, Attributes};
    use stepalloc_tensor::Tensor;

    fn pool(attributes: &[(&str, Vec<i64>)]) -> Result<Pool, OpError> {
        let ints =
            attributes.iter().map(|(name, values)| ((*name).to_owned(), Attribute::Ints(values.clone())));
        let sliding = sliding(&Attributes(ints.collect()))?;
        Ok(Pool { sliding, of: Of::Max, by_columns: false })
    }

    #[test]
    fn windows_that_fit_nowhere_are_refused() {
        let kernel = |size| ("kernel_shape", vec![size]);
        assert!(pool(&[kernel(5)]).unwrap().window(&[1, 1, 4]).is_err());
        assert!(pool(&[kernel(2)]).unwrap().window(&[1, 1]).is_err());
        assert!(pool(&[kernel(2)]).unwrap().window(&[1, 1, 4, 4]).is_err());
        assert!(pool(&[kernel(2), ("strides", vec![0])]).is_err());
        assert!(pool(&[kernel(2), ("pads", vec![-1, 0])]).is_err());
        assert!(pool(&[kernel(i64::MAX)]).is_err());
        let most = i64::from(i32::MAX);
        let far = pool(&[kernel(most), ("dilations", vec![most]), ("pads", vec![most, most])]).unwrap();
        assert!(far.window(&[1, 1, 4]).is_err());
    }

    #[test]
    fn planes_of_nothing_give_what_is_reduced_from_nothing() {
        let mut out = [7.0f32; 2];
        let nothing = View { dtype: DataType::F32, shape: &[2, 0], bytes: &[] };
        let sums = Of::Average { padded: false };
        reduce(sums, 0, &nothing, bytemuck::cast_slice_mut(&mut out));
        assert_eq!(out, [0.0; 2]);
        let window =
            pool(&[("kernel_shape", vec![2]), ("pads", vec![1, 1])]).unwrap().window(&[1, 2, 0]).unwrap();
        let mut out = [7.0f32; 2];
        planes(&window, &[], &mut out, &|from, to| plane(&window, Of::Max, from, to));
        assert_eq!(out, [f32::NEG_INFINITY; 2]);
        let ints = |values: &[i64]| Attribute::Ints(values.to_vec());
        let empty = Tensor::from_elements([1, 1, 0, 3], &[0.0f32; 0]).unwrap();
        let pool = Trial::new("MaxPool", &[], [empty]).with("kernel_shape", ints(&[2, 2]));
        let pool = pool.with("pads", ints(&[1, 1, 1, 1])).int("storage_order", 1).outputs(2);
        let made = pool.run().unwrap();
        assert_eq!(made[0].view().elements::<f32>(), [f32::NEG_INFINITY; 4]);
        assert_eq!(made[1].view().elements::<i64>(), [0; 4]);
    }
}
