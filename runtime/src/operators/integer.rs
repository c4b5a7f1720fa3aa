//! Products of matrices and convolutions of quantized elements: integers of 8 bits less a zero point, summed in 32 bits.
//!
//! Differences from zero points are multiplied as f32, so few at a time that sums are exact (see [`Panels`]), and summed as integers.

use super::conv::{Filters, Sizes};
use super::elementwise::no;
use super::gemm::{Matrix, Panels, load, sum_product};
use super::matmul::Batches;
use super::{Call, Definition, Known, Made, Operator, Unclear, typed};
use crate::element::{DataType, Number, by_type};
use crate::tensor::{Type, View};
use std::ops::Range;

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

/// Elements of 8 bits and their zero points, as bytes.
///
/// Signed ones are turned into unsigned ones, by flipping their highest bits: 128 more, and so are their zero points.
#[derive(Clone, Copy)]
struct Bytes<'a> {
    elements: &'a [u8],
    /// As many as are told; one that is 0 where none is.
    zeros: &'a [u8],
    flip: u8,
}

impl<'a> Bytes<'a> {
    fn new(view: &View<'a>, zeros: Option<View<'a>>) -> Self {
        let flip = if view.dtype == DataType::I8 { 0x80 } else { 0 };
        Self { elements: view.bytes, zeros: zeros.map_or(&[0], |zeros| zeros.bytes), flip }
    }

    /// The zero point of a row or column, or of the tensor; as unsigned elements.
    fn zero(&self, at: usize) -> u8 {
        let zero = if let [zero] = self.zeros { *zero } else { self.zeros[at % self.zeros.len()] };
        zero ^ self.flip
    }
}

/// Scales, in f32.
fn scale(view: View<'_>, index: usize) -> Result<f32, String> {
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
        return Err(format!("a zero point {zero} is not of the type of {operand}").into());
    }
    if let Some(scale) = scale
        && !matches!(inputs.ty(scale)?.dtype, DataType::F32 | DataType::F16 | DataType::BF16)
    {
        return Err(no(inputs.ty(scale)?.dtype).into());
    }
    for of in [inputs.opt(zero), scale.and_then(|scale| inputs.opt(scale))].into_iter().flatten() {
        let many = of.elements();
        if many == 0 || many != 1 && !count.is_multiple_of(many) {
            return Err(format!("a zero point or scale {of} does not fit {operand}").into());
        }
    }
    Ok(())
}

/// Checks the scale and the zero point of an output, and gives its type.
fn output_type(inputs: &Known<'_>, scale: usize, zero: usize) -> Result<DataType, Unclear> {
    let (scale, zero) = (inputs.ty(scale)?, inputs.ty(zero)?);
    if scale.elements() != 1 || zero.elements() != 1 {
        return Err(
            format!("the output's scale {scale} and zero point {zero} are not one element each").into()
        );
    }
    match (scale.dtype, zero.dtype) {
        (DataType::F32 | DataType::F16 | DataType::BF16, DataType::U8 | DataType::I8) => Ok(zero.dtype),
        _ => Err(format!("an output of scale {scale} and zero point {zero} is not known to it").into()),
    }
}

/// How sums become quantized elements.
struct Quantized {
    /// Of the output.
    scale: f32,
    zero: f32,
    least: f32,
    most: f32,
}

impl Quantized {
    fn new(scales: View<'_>, zero: View<'_>) -> Result<Self, String> {
        let (zero, least, most) = match zero.dtype {
            DataType::U8 => (f32::from(zero.elements::<u8>()[0]), 0.0, 255.0),
            _ => (f32::from(zero.elements::<i8>()[0]), -128.0, 127.0),
        };
        Ok(Self { scale: scale(scales, 0)?, zero, least, most })
    }

    /// The element, whatever sign its type has: as a byte.
    fn byte(&self, sum: i32, scale: f32) -> u8 {
        let value = (sum as f32 * scale).round_ties_even() + self.zero;
        value.clamp(self.least, self.most) as i32 as u8
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
    fn infer(&self, inputs: &Known<'_>) -> Result<Vec<Type>, Unclear> {
        let [right, a_zero, b_zero] = self.inputs();
        let (a, b) = (inputs.ty(0)?, inputs.ty(right)?);
        let batches = Batches::new(&a.shape, &b.shape)?;
        let rows = a.elements().checked_div(batches.k).unwrap_or(0);
        let cols = b.elements().checked_div(batches.k).unwrap_or(0);
        let quantized = self.quantized;
        check(inputs, 0, a_zero, quantized.then_some(1), rows)?;
        check(inputs, right, b_zero, quantized.then_some(4), cols)?;
        let dtype = if quantized { output_type(inputs, 6, 7)? } else { DataType::I32 };
        Ok(vec![typed(dtype, batches.out.into_vec())?])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let (Some(a), Some(b)) = (inputs.opt(0), inputs.opt(self.inputs()[0])) else { return 0 };
        let batches = Batches::new(&a.shape, &b.shape);
        batches.map_or(0, |batches| Panels::new::<i32>(batches.m, batches.n, batches.k).scratch())
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), String> {
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

impl MatMul {
    fn multiply(&self, call: &mut Call<'_, '_>) -> Result<(), String> {
        let [right, a_zero, b_zero] = self.inputs();
        let (a, b, out) = (call.input(0)?, call.input(right)?, call.output(0)?);
        let batches = Batches::new(a.shape, b.shape)?;
        let Batches { m, n, k, .. } = batches;
        if out.bytes.is_empty() {
            return Ok(());
        }
        let (a, b) = (Bytes::new(&a, call.opt(a_zero)), Bytes::new(&b, call.opt(b_zero)));
        let quantized = match self.quantized {
            true => Some((Quantized::new(call.input(6)?, call.input(7)?)?, call.input(1)?, call.input(4)?)),
            false => None,
        };
        let scratch = call.scratch();
        let panels = Panels::new::<i32>(m, n, k);
        let size = out.dtype.bytes();
        for (index, out) in out.bytes.chunks_exact_mut(m * n * size).enumerate() {
            let [a_at, b_at] = batches.operands(index);
            let a_matrix = Matrix::new(&a.elements[a_at * m * k..][..m * k], m, k);
            let b_matrix = Matrix::new(&b.elements[b_at * k * n..][..k * n], k, n);
            let load_a = |to: &mut [f32], rows: Range<usize>, cols: Range<usize>| {
                let first = a_at * m + rows.start;
                load(to, a_matrix.part(rows, cols), |row, _, x| {
                    f32::from(x ^ a.flip) - f32::from(a.zero(first + row))
                });
            };
            let load_b = |to: &mut [f32], rows: Range<usize>, cols: Range<usize>| {
                let first = b_at * n + cols.start;
                load(to, b_matrix.part(rows, cols), |_, col, x| {
                    f32::from(x ^ b.flip) - f32::from(b.zero(first + col))
                });
            };
            let mut done = Ok(());
            panels.multiply(scratch, [m, n, k], &load_a, &load_b, &mut |row, col, sums: &[i32]| {
                let out = &mut out[(row * n + col) * size..];
                let Some((quantized, a_scale, b_scale)) = &quantized else {
                    bytemuck::cast_slice_mut(out)[..sums.len()].copy_from_slice(sums);
                    return;
                };
                for (at, (to, &sum)) in out.iter_mut().zip(sums).enumerate() {
                    match (scale(*a_scale, a_at * m + row), scale(*b_scale, b_at * n + col + at)) {
                        (Ok(a), Ok(b)) => *to = quantized.byte(sum, a * b / quantized.scale),
                        (Err(what), _) | (_, Err(what)) => done = Err(what),
                    }
                }
            })?;
            done?;
        }
        Ok(())
    }
}

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
}

impl Operator for Conv {
    fn infer(&self, inputs: &Known<'_>) -> Result<Vec<Type>, Unclear> {
        let [weights, x_zero, w_zero] = self.inputs();
        let (x, w) = (inputs.ty(0)?, inputs.ty(weights)?);
        let sizes = self.filters.sizes(&x.shape, &w.shape)?;
        let filters = w.shape[0];
        let quantized = self.quantized;
        check(inputs, 0, x_zero, quantized.then_some(1), 1)?;
        check(inputs, weights, w_zero, quantized.then_some(4), filters)?;
        if !quantized {
            return Ok(vec![sizes.out(DataType::I32)?]);
        }
        if let Some(bias) =
            inputs.opt(8).filter(|bias| bias.dtype != DataType::I32 || bias.shape != [filters])
        {
            return Err(format!("a bias {bias} does not fit weights {w}").into());
        }
        Ok(vec![sizes.out(output_type(inputs, 6, 7)?)?])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let (Some(x), Some(w)) = (inputs.opt(0), inputs.opt(self.inputs()[0])) else { return 0 };
        self.filters.sizes(&x.shape, &w.shape).map_or(0, |sizes| {
            if sizes.is_depthwise() {
                return 4 * sizes.window.output();
            }
            let columns = sizes.block() * sizes.window.width();
            4 * (columns * (sizes.depth() + 2 * sizes.to) + sizes.to * sizes.depth())
        })
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), String> {
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
    fn convolve(&self, call: &mut Call<'_, '_>) -> Result<(), String> {
        let [weights, x_zero, w_zero] = self.inputs();
        let (x, w, out) = (call.input(0)?, call.input(weights)?, call.output(0)?);
        let sizes = self.filters.sizes(x.shape, w.shape)?;
        let (x, w) = (Bytes::new(&x, call.opt(x_zero)), Bytes::new(&w, call.opt(w_zero)));
        let places = sizes.window.output();
        let size = out.dtype.bytes();
        let out = out.bytes;
        if out.is_empty() {
            return Ok(());
        }
        let scratch = call.scratch();
        if !self.quantized {
            return sums(&sizes, x, w, scratch, &mut |plane, _, begin, sums| {
                let out: &mut [i32] = bytemuck::cast_slice_mut(&mut out[(plane * places + begin) * size..]);
                out[..sums.len()].copy_from_slice(sums);
                Ok(())
            });
        }
        let quantized = Quantized::new(call.input(6)?, call.input(7)?)?;
        let (x_scale, w_scales) = (scale(call.input(1)?, 0)?, call.input(4)?);
        let bias = call.opt(8).map(|bias| bias.elements::<i32>());
        sums(&sizes, x, w, scratch, &mut |plane, filter, begin, sums| {
            let scale = x_scale * scale(w_scales, filter)? / quantized.scale;
            let bias = bias.map_or(0, |bias| bias[filter]);
            let out = out[plane * places + begin..].iter_mut();
            out.zip(sums).for_each(|(to, &sum)| *to = quantized.byte(sum.wrapping_add(bias), scale));
            Ok(())
        })
    }
}

/// Takes sums; see [`sums`].
type Store<'s> = &'s mut dyn FnMut(usize, usize, usize, &[i32]) -> Result<(), String>;

/// Computes sums, and hands them to `store` with the plane of the output, the filter, and the first place in the plane.
fn sums(
    sizes: &Sizes,
    x: Bytes<'_>,
    w: Bytes<'_>,
    scratch: &mut [u8],
    store: Store<'_>,
) -> Result<(), String> {
    let (x_zero, x_flip) = (x.zero(0), x.flip);
    let (window, depth, to) = (&sizes.window, sizes.depth(), sizes.to);
    let (plane, places, filters) = (window.input(), window.output(), to * sizes.group);
    if sizes.is_depthwise() {
        let sums: &mut [i32] = &mut bytemuck::cast_slice_mut(scratch)[..places];
        let x_zero = i32::from(x_zero);
        for index in 0..sizes.batch * filters {
            let filter = index % filters;
            let channel = index / filters * sizes.group + filter / to;
            let (taps, zero) = (&w.elements[filter * depth..][..depth], i32::from(w.zero(filter)));
            window.fold(&x.elements[channel * plane..][..plane], sums, 0, |at| {
                let w = i32::from(taps[at] ^ w.flip) - zero;
                move |sum: i32, x: u8| sum.wrapping_add(w * (i32::from(x ^ x_flip) - x_zero))
            });
            store(index, filter, 0, sums)?;
        }
        return Ok(());
    }
    let columns = sizes.block() * window.width();
    let scratch: &mut [f32] = bytemuck::cast_slice_mut(scratch);
    let (unrolled, scratch) = scratch.split_at_mut(columns * depth);
    let (weights, scratch) = scratch.split_at_mut(to * depth);
    let (part, sums) = scratch.split_at_mut(columns * to);
    let sums: &mut [i32] = bytemuck::cast_slice_mut(sums);
    let x_zero = f32::from(x_zero);
    for at in 0..sizes.batch * sizes.group {
        let group = at % sizes.group;
        for filter in 0..to {
            let zero = f32::from(w.zero(group * to + filter));
            let taps = &w.elements[(group * to + filter) * depth..][..depth];
            let weights = weights[filter * depth..].iter_mut();
            weights.zip(taps).for_each(|(to, &tap)| *to = f32::from(tap ^ w.flip) - zero);
        }
        for rows in sizes.blocks() {
            let begin = rows.start * window.width();
            let columns = rows.len() * window.width();
            let x = &x.elements[at * sizes.from * plane..][..sizes.from * plane];
            let unrolled = &mut unrolled[..columns * depth];
            window.columns(x, rows, unrolled, 0.0, |x| f32::from(x ^ x_flip) - x_zero);
            let sums = &mut sums[..columns * to];
            let (a, b) = (Matrix::new(weights, to, depth), Matrix::new(unrolled, depth, columns));
            sum_product(sums, part, a, b, false)?;
            for (filter, sums) in sums.chunks_exact(columns).enumerate() {
                store(at * to + filter, group * to + filter, begin, sums)?;
            }
        }
    }
    Ok(())
}
