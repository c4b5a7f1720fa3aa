//! Products of matrices and convolutions of quantized elements: integers of 8 bits less a zero point, summed in 32 bits.

use super::conv::Filters;
use super::matmul::Batches;
use super::{Call, Definition, Known, Made, Operator, Types, Unclear, typed};
use smallvec::smallvec;
use std::ops::Range;
use stepalloc_kernels::conv::Sizes;
use stepalloc_kernels::{
    gemm::int8::{self, Quantized, gemm_i8},
    gemm::{Matrix, PARALLEL},
    no,
    scales::Rounded,
};
use stepalloc_tensor::{DataType, Number, OpError, Type, View, by_type};
use stepalloc_threads as threads;

pub(super) fn make(node: &Definition<'_>) -> Made {
    let conv = |quantized| Filters::new(node).map(|filters| Box::new(Conv { filters, quantized }) as _);
    Some(match node.op {
        "MatMulInteger" => Ok(Box::new(MatMul { quantized: false })),
        "QLinearMatMul" => Ok(Box::new(MatMul { quantized: true })),
        "ConvInteger" => conv(false),
        "QLinearConv" => conv(true),
        _ => return None,
    })
}

/// Elements of 8 bits and their zero points, of which the product wants the other sign where `flip` is not 0.
///
/// Flipping the highest bit makes signed ones unsigned and the other way round: 128 more or less, and so are their zero points.
#[derive(Clone, Copy)]
pub(super) struct Bytes<'a> {
    elements: &'a [u8],
    /// As many as are told; one that is 0 where none is.
    zeros: &'a [u8],
    flip: u8,
}

/// The highest bit, where elements are not of the type that a product wants.
pub(super) fn flip(dtype: DataType, wanted: DataType) -> u8 {
    if dtype == wanted { 0 } else { 0x80 }
}

impl<'a> Bytes<'a> {
    pub(super) fn new(view: &View<'a>, zeros: Option<View<'a>>, wanted: DataType) -> Self {
        let flip = flip(view.dtype, wanted);
        Self { elements: view.bytes, zeros: zeros.map_or(&[0], |zeros| zeros.bytes), flip }
    }

    /// Some elements, of the sign that is wanted: where they are, or in `copy`.
    pub(super) fn part<'p>(&self, range: Range<usize>, copy: &'p mut [u8]) -> &'p [u8]
    where
        'a: 'p,
    {
        let elements = &self.elements[range];
        if self.flip == 0 {
            return elements;
        }
        let least = if copy.len() < PARALLEL { usize::MAX } else { 1 };
        threads::pieces(copy, PARALLEL, least, &|index, to| {
            to.iter_mut().zip(&elements[index * PARALLEL..]).for_each(|(to, &x)| *to = x ^ self.flip);
        });
        copy
    }

    /// The zero point of a row or column, or of the tensor; of the sign that is wanted.
    fn zero(&self, at: usize) -> u8 {
        let zero = if let [zero] = self.zeros { *zero } else { self.zeros[at % self.zeros.len()] };
        zero ^ self.flip
    }

    /// Those of the rows or columns from `first` on.
    pub(super) fn fill_zeros(&self, first: usize, to: &mut [u8]) {
        to.iter_mut().enumerate().for_each(|(at, to)| *to = self.zero(first + at));
    }
}

/// Whether there is nothing to compute.
fn is_nothing(outputs: &[Type]) -> bool {
    outputs.first().is_some_and(|output| output.elements() == 0)
}

/// Parts of scratch memory, one after the other; those of whole words come first.
pub(super) fn split<const N: usize>(scratch: &mut [u8], sizes: [usize; N]) -> [&mut [u8]; N] {
    let mut rest = scratch;
    sizes.map(|size| {
        let part;
        (part, rest) = std::mem::take(&mut rest).split_at_mut(size);
        part
    })
}

/// Scales, in f32.
fn scale(view: View<'_>, index: usize) -> Result<f32, OpError> {
    by_type!(view.dtype, [F32, F16, BF16], T => {
        let scales = view.elements::<T>();
        Ok(scales[index % scales.len()].wide())
    }, Err(no(view.dtype)))
}

/// Checks an operand's type and its zero points and, where there must be some, scales: they divide `count` evenly, be they one of a
/// tensor, those of the rows or columns of each matrix, or those of all matrices.
fn check(
    inputs: &Known<'_>,
    operand: usize,
    zero: usize,
    scale: Option<usize>,
    count: usize,
) -> Result<(), Unclear> {
    let operand = inputs.ty(operand)?;
    if !matches!(operand.dtype, DataType::U8 | DataType::I8) {
        return Err(no(operand.dtype).into());
    }
    if let Some(zero) = inputs.opt(zero).filter(|zero| zero.dtype != operand.dtype) {
        return Err(
            OpError::element_type(format!("a zero point {zero} is not of the type of {operand}")).into()
        );
    }
    if let Some(scale) = scale
        && !matches!(inputs.ty(scale)?.dtype, DataType::F32 | DataType::F16 | DataType::BF16)
    {
        return Err(no(inputs.ty(scale)?.dtype).into());
    }
    for of in [inputs.opt(zero), scale.and_then(|scale| inputs.opt(scale))].into_iter().flatten() {
        let many = of.elements();
        if many == 0 || many != 1 && !count.is_multiple_of(many) {
            return Err(OpError::shape(format!("a zero point or scale {of} does not fit {operand}")).into());
        }
    }
    Ok(())
}

/// Checks the scale and the zero point of an output, and gives its type.
fn output_type(inputs: &Known<'_>, scale: usize, zero: usize) -> Result<DataType, Unclear> {
    let (scale, zero) = (inputs.ty(scale)?, inputs.ty(zero)?);
    if scale.elements() != 1 || zero.elements() != 1 {
        return Err(OpError::shape(format!(
            "the output's scale {scale} and zero point {zero} are not one element each"
        ))
        .into());
    }
    match (scale.dtype, zero.dtype) {
        (DataType::F32 | DataType::F16 | DataType::BF16, DataType::U8 | DataType::I8) => Ok(zero.dtype),
        _ => Err(OpError::unsupported(format!(
            "an output of scale {scale} and zero point {zero} is not known to it"
        ))
        .into()),
    }
}

/// How sums become quantized elements.
struct Requantized {
    /// Of the output.
    scale: f32,
    rounded: Rounded,
}

impl Requantized {
    fn new(scales: View<'_>, zero: View<'_>) -> Result<Self, OpError> {
        let number = match zero.dtype {
            DataType::U8 => zero.elements::<u8>()[0].into(),
            _ => zero.elements::<i8>()[0].into(),
        };
        let rounded = Rounded::new(zero.dtype, number).ok_or_else(|| no(zero.dtype))?;
        Ok(Self { scale: scale(scales, 0)?, rounded })
    }
}

/// Products of matrices.
struct MatMul {
    quantized: bool,
}

impl MatMul {
    /// Where the right operand and the zero points of both are.
    fn inputs(&self) -> [usize; 3] {
        if self.quantized { [3, 2, 5] } else { [1, 2, 3] }
    }
}

impl Operator for MatMul {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let [right, a_zero, b_zero] = self.inputs();
        let (a, b) = (inputs.ty(0)?, inputs.ty(right)?);
        let batches = Batches::new(&a.shape, &b.shape)?;
        let rows = a.elements().checked_div(batches.k).unwrap_or(0);
        let cols = b.elements().checked_div(batches.k).unwrap_or(0);
        let quantized = self.quantized;
        check(inputs, 0, a_zero, quantized.then_some(1), rows)?;
        check(inputs, right, b_zero, quantized.then_some(4), cols)?;
        let dtype = if quantized { output_type(inputs, 6, 7)? } else { DataType::I32 };
        Ok(smallvec![typed(dtype, &batches.out[..])?])
    }

    fn scratch(&self, inputs: &Known<'_>, outputs: &[Type]) -> usize {
        if is_nothing(outputs) {
            return 0;
        }
        let (Some(a), Some(b)) = (inputs.opt(0), inputs.opt(self.inputs()[0])) else { return 0 };
        let batches = Batches::new(&a.shape, &b.shape);
        batches.map_or(0, |batches| self.space(&batches, [a.dtype, b.dtype]).iter().sum())
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let [right, ..] = self.inputs();
        let (a, b) = (call.input(0)?.dtype, call.input(right)?.dtype);
        for dtype in [a, b] {
            if !matches!(dtype, DataType::U8 | DataType::I8) {
                return Err(no(dtype));
            }
        }
        self.multiply(call)
    }
}

/// Of a quantized output, so many rows of sums are kept at a time.
const ROWS: usize = 256;

impl MatMul {
    /// Rows that are multiplied at a time.
    fn rows(&self, m: usize) -> usize {
        if self.quantized { m.min(ROWS) } else { m }
    }

    /// Bytes of scratch memory: sums, what the product needs, operands of the other sign, and the zero points of rows and columns.
    fn space(&self, batches: &Batches, [a, b]: [DataType; 2]) -> [usize; 6] {
        let Batches { m, n, k, .. } = *batches;
        let rows = self.rows(m);
        let sums = if self.quantized { 4 * rows * n } else { 0 };
        let copied = |dtype, wanted, size| if flip(dtype, wanted) == 0 { 0 } else { size };
        let copies = [copied(a, DataType::U8, m * k), copied(b, DataType::I8, k * n)];
        [sums, int8::scratch(rows, n, k), copies[0], copies[1], m, n]
    }

    fn multiply(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let [right, a_zero, b_zero] = self.inputs();
        let (a, b, out) = (call.input(0)?, call.input(right)?, call.output(0)?);
        let batches = Batches::new(a.shape, b.shape)?;
        let Batches { m, n, k, .. } = batches;
        if out.bytes.is_empty() {
            return Ok(());
        }
        let quantized = match self.quantized {
            true => Some((Requantized::new(call.input(6)?, call.input(7)?)?, call.input(1)?, call.input(4)?)),
            false => None,
        };
        let [sums, product, a_copy, b_copy, a_zeros, b_zeros] =
            split(call.scratch(), self.space(&batches, [a.dtype, b.dtype]));
        let a = Bytes::new(&a, call.opt(a_zero), DataType::U8);
        let b = Bytes::new(&b, call.opt(b_zero), DataType::I8);
        let (sums, rows, size): (&mut [i32], _, _) =
            (bytemuck::cast_slice_mut(sums), self.rows(m), out.dtype.bytes());
        for (index, out) in out.bytes.chunks_exact_mut(m * n * size).enumerate() {
            let [a_at, b_at] = batches.operands(index);
            a.fill_zeros(a_at * m, a_zeros);
            b.fill_zeros(b_at * n, b_zeros);
            let a = a.part(a_at * m * k..(a_at + 1) * m * k, a_copy);
            let b = bytemuck::cast_slice(b.part(b_at * k * n..(b_at + 1) * k * n, b_copy));
            let b = Quantized { matrix: Matrix::new(b, k, n), zeros: bytemuck::cast_slice(b_zeros) };
            let a = Matrix::new(a, m, k);
            for (index, out) in out.chunks_mut(rows * n * size).enumerate() {
                let first = index * rows;
                let height = out.len() / (n * size);
                let a = Quantized {
                    matrix: a.part(first..first + height, 0..k),
                    zeros: &a_zeros[first..first + height],
                };
                let Some((quantized, a_scale, b_scale)) = &quantized else {
                    gemm_i8(bytemuck::cast_slice_mut(out), a, b, product)?;
                    continue;
                };
                let sums = &mut sums[..height * n];
                gemm_i8(sums, a, b, product)?;
                let one_scale = b_scale.shape.iter().product::<usize>() == 1;
                for (row, (out, sums)) in out.chunks_exact_mut(n).zip(sums.chunks_exact(n)).enumerate() {
                    let a = scale(*a_scale, a_at * m + first + row)?;
                    let all = scale(*b_scale, b_at * n)?;
                    for (col, (to, &sum)) in out.iter_mut().zip(sums).enumerate() {
                        let b = if one_scale { all } else { scale(*b_scale, b_at * n + col)? };
                        *to = quantized.rounded.sum(sum, a * b / quantized.scale);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Bytes of an unrolled row and its sums at most, where there are rows of one element as well.
const LONG: usize = 2 << 20;

/// Convolutions.
struct Conv {
    filters: Filters,
    quantized: bool,
}

impl Conv {
    /// Where the weights and the zero points of input and weights are.
    fn inputs(&self) -> [usize; 3] {
        if self.quantized { [3, 2, 5] } else { [1, 2, 3] }
    }

    /// Of the computation, to which sequences may come as planes of one column: they become rows, if one is not too long to be unrolled.
    fn sizes(&self, x: &[usize], w: &[usize]) -> Result<Sizes, OpError> {
        let sizes = self.filters.sizes(x, w)?;
        let bytes = sizes.depth().saturating_add(sizes.to.saturating_mul(4));
        if sizes.window.output().saturating_mul(bytes) > LONG {
            return Ok(sizes);
        }
        Ok(Sizes { window: sizes.window.with_long_rows(), ..sizes })
    }
}

impl Operator for Conv {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let [weights, x_zero, w_zero] = self.inputs();
        let (x, w) = (inputs.ty(0)?, inputs.ty(weights)?);
        let sizes = self.filters.sizes(&x.shape, &w.shape)?;
        let filters = w.shape[0];
        let quantized = self.quantized;
        check(inputs, 0, x_zero, quantized.then_some(1), 1)?;
        check(inputs, weights, w_zero, quantized.then_some(4), filters)?;
        if !quantized {
            return Ok(smallvec![sizes.out(DataType::I32)?]);
        }
        if let Some(bias) =
            inputs.opt(8).filter(|bias| bias.dtype != DataType::I32 || bias.shape != [filters])
        {
            return Err(OpError::shape(format!("a bias {bias} does not fit weights {w}")).into());
        }
        Ok(smallvec![sizes.out(output_type(inputs, 6, 7)?)?])
    }

    fn scratch(&self, inputs: &Known<'_>, outputs: &[Type]) -> usize {
        if is_nothing(outputs) {
            return 0;
        }
        let (Some(x), Some(w)) = (inputs.opt(0), inputs.opt(self.inputs()[0])) else { return 0 };
        self.sizes(&x.shape, &w.shape).map_or(0, |sizes| {
            if sizes.is_depthwise() {
                return 4 * sizes.window.output();
            }
            space(&sizes, w.dtype).iter().sum()
        })
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let [weights, ..] = self.inputs();
        let (x, w) = (call.input(0)?.dtype, call.input(weights)?.dtype);
        for dtype in [x, w] {
            if !matches!(dtype, DataType::U8 | DataType::I8) {
                return Err(no(dtype));
            }
        }
        self.convolve(call)
    }
}

impl Conv {
    fn convolve(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let [weights, x_zero, w_zero] = self.inputs();
        let (x, w, out) = (call.input(0)?, call.input(weights)?, call.output(0)?);
        let sizes = self.sizes(x.shape, w.shape)?;
        let dtype = w.dtype;
        let x = Bytes::new(&x, call.opt(x_zero), DataType::I8);
        let w = Bytes::new(&w, call.opt(w_zero), DataType::U8);
        let places = sizes.window.output();
        let size = out.dtype.bytes();
        let out = out.bytes;
        if out.is_empty() {
            return Ok(());
        }
        let scratch = call.scratch();
        if !self.quantized {
            return sums(&sizes, x, (w, dtype), scratch, &mut |plane, _, begin, sums| {
                let out: &mut [i32] = bytemuck::cast_slice_mut(&mut out[(plane * places + begin) * size..]);
                out[..sums.len()].copy_from_slice(sums);
                Ok(())
            });
        }
        let quantized = Requantized::new(call.input(6)?, call.input(7)?)?;
        let (x_scale, w_scales) = (scale(call.input(1)?, 0)?, call.input(4)?);
        let bias = call.opt(8).map(|bias| bias.elements::<i32>());
        sums(&sizes, x, (w, dtype), scratch, &mut |plane, filter, begin, sums| {
            let scale = x_scale * scale(w_scales, filter)? / quantized.scale;
            let bias = bias.map_or(0, |bias| bias[filter]);
            let out = out[plane * places + begin..].iter_mut();
            out.zip(sums).for_each(|(to, &sum)| *to = quantized.rounded.sum(sum.wrapping_add(bias), scale));
            Ok(())
        })
    }
}

/// Bytes of scratch memory of a convolution that is a product: sums, what the product needs, the unrolled input, weights of the other
/// sign, and the zero points of filters and places.
fn space(sizes: &Sizes, weights: DataType) -> [usize; 6] {
    let (columns, to, depth) = (sizes.block() * sizes.window.width(), sizes.to, sizes.depth());
    let copied = if flip(weights, DataType::U8) == 0 { 0 } else { to * depth };
    [4 * columns * to, int8::scratch(to, columns, depth), columns * depth, copied, to, columns]
}

/// Takes sums; see [`sums`].
type Store<'s> = &'s mut dyn FnMut(usize, usize, usize, &[i32]) -> Result<(), OpError>;

/// Computes sums, and hands them to `store` with the plane of the output, the filter, and the first place in the plane.
fn sums(
    sizes: &Sizes,
    x: Bytes<'_>,
    (w, weights): (Bytes<'_>, DataType),
    scratch: &mut [u8],
    store: Store<'_>,
) -> Result<(), OpError> {
    let (x_zero, x_flip) = (x.zero(0), x.flip);
    let (window, depth, to) = (&sizes.window, sizes.depth(), sizes.to);
    let (plane, places, filters) = (window.input(), window.output(), to * sizes.group);
    if sizes.is_depthwise() {
        let sums: &mut [i32] = &mut bytemuck::cast_slice_mut(scratch)[..places];
        let x_zero = i32::from(x_zero as i8);
        for index in 0..sizes.batch * filters {
            let filter = index % filters;
            let channel = index / filters * sizes.group + filter / to;
            let (taps, zero) = (&w.elements[filter * depth..][..depth], i32::from(w.zero(filter)));
            window.fold(&x.elements[channel * plane..][..plane], sums, 0, |at| {
                let w = i32::from(taps[at] ^ w.flip) - zero;
                move |sum: i32, x: u8| sum.wrapping_add(w * (i32::from((x ^ x_flip) as i8) - x_zero))
            });
            store(index, filter, 0, sums)?;
        }
        return Ok(());
    }
    let [sums, product, unrolled, copy, w_zeros, x_zeros] = split(scratch, space(sizes, weights));
    let sums: &mut [i32] = bytemuck::cast_slice_mut(sums);
    x_zeros.fill(x_zero);
    for at in 0..sizes.batch * sizes.group {
        let group = at % sizes.group;
        w.fill_zeros(group * to, w_zeros);
        let weights = w.part(group * to * depth..(group + 1) * to * depth, copy);
        let a = Quantized { matrix: Matrix::new(weights, to, depth), zeros: w_zeros };
        for rows in sizes.blocks() {
            let begin = rows.start * window.width();
            let columns = rows.len() * window.width();
            let x = &x.elements[at * sizes.from * plane..][..sizes.from * plane];
            let unrolled = &mut unrolled[..columns * depth];
            window.columns(x, rows, unrolled, x_zero, |x| x ^ x_flip);
            let sums = &mut sums[..columns * to];
            let b = Matrix::new(bytemuck::cast_slice(unrolled), depth, columns);
            let b = Quantized { matrix: b, zeros: bytemuck::cast_slice(&x_zeros[..columns]) };
            gemm_i8(sums, a, b, product)?;
            for (filter, sums) in sums.chunks_exact(columns).enumerate() {
                store(at * to + filter, group * to + filter, begin, sums)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::trial::{Trial, tensor};
    use stepalloc_graph::Attribute;
    use stepalloc_tensor::Tensor;

    fn signed(shape: &[usize], step: usize) -> Tensor {
        let elements: Vec<_> = (0..shape.iter().product()).map(|at| (at * step % 251) as u8 as i8).collect();
        tensor(shape, &elements)
    }

    /// Two groups of one or more channels, of padded sequences and planes, with zero points of each filter.
    #[test]
    fn convolutions_are_those_of_loops() {
        for (channels, length, width) in [(1, 9, 7), (3, 9, 7), (3, 300, 1), (2, 300_000, 1)] {
            let (x, w) = (signed(&[1, 2 * channels, length, width], 37), signed(&[4, channels, 3, 1], 53));
            let (x_zero, w_zeros) = (7i8, [3i8, -5, 0, 100]);
            let zeros = [tensor(&[], &[x_zero]), tensor(&[4], &w_zeros)];
            let trial = Trial::new("ConvInteger", &[], [&x, &w, &zeros[0], &zeros[1]]).opset(10);
            let made = trial.int("group", 2).with("pads", Attribute::Ints(vec![1, 0, 1, 0])).run().unwrap();
            let (x, w) = (x.view().elements::<i8>(), w.view().elements::<i8>());
            let sum = |filter: usize, row: usize, col: usize| {
                let term = |channel: usize, tap: usize| {
                    let at = (row + tap).checked_sub(1).filter(|&at| at < length);
                    let plane = (filter / 2 * channels + channel) * length;
                    let x = at.map_or(0, |at| i32::from(x[(plane + at) * width + col]) - i32::from(x_zero));
                    x * (i32::from(w[(filter * channels + channel) * 3 + tap]) - i32::from(w_zeros[filter]))
                };
                let of_channel = |channel| (0..3).map(|tap| term(channel, tap)).sum::<i32>();
                (0..channels).map(of_channel).sum::<i32>()
            };
            for (at, &told) in made[0].view().elements::<i32>().iter().enumerate() {
                let (filter, place) = (at / (length * width), at % (length * width));
                let wanted = sum(filter, place / width, place % width);
                assert_eq!(told, wanted, "{channels} x {length} x {width}, {at}");
            }
        }
    }

    #[test]
    fn products_of_nothing_are_nothing() {
        let (a, b) = (signed(&[0, 70, 8], 1), signed(&[0, 8, 9], 1));
        let made = Trial::new("MatMulInteger", &[], [&a, &b]).opset(10).run().unwrap();
        assert_eq!(made[0].ty().shape, [0, 70, 9]);
    }
}
