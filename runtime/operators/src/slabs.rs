//! Operators that look at one stretch of elements at a time and rewrite it: softmax, normalizations.
//!
//! A slab is so many elements that follow each other and are rewritten together, in f32 or f64. Slabs of these types are rewritten
//! where they are, by many threads; halves are widened into scratch memory, a slab at a time.

use super::reduce::PARALLEL;
use super::{Call, Known};
use rten_simd::{SimdOp, SimdUnaryOp};
use rten_vecmath::{Exp, LogSoftmax, Normalize, NormalizeOptions, Softmax, Sum, SumSquareSub};
use smallvec::SmallVec;
use std::ops::{Add, Div, Mul, Sub};
use stepalloc_kernels::{
    blocks::{Wide, put},
    no,
};
use stepalloc_tensor::{DataType, OpError, View};
use stepalloc_threads as threads;

/// The numbers that slabs are computed in: f32, with vector instructions, and f64.
pub(super) trait Real:
    Wide + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    fn sqrt(self) -> Self;
    fn sum(row: &[Self]) -> Self;
    /// Sum of the squares of the distances from a number.
    fn sum_of_squares(row: &[Self], from: Self) -> Self;
    fn exp(row: &mut [Self]);
    fn softmax(row: &mut [Self]);
    fn log_softmax(row: &mut [Self]);
    /// (x - less) * by * by_each + plus + plus_each, where the latter are there.
    fn shift_and_scale(row: &mut [Self], how: &Affine<'_, Self>);
    /// Rewrites a slab by a kernel.
    fn rewrite(kernel: &dyn Slabs, slab: &mut [Self], number: usize, parameters: &[&[Self]]) -> [Self; 2];
}

/// How a row is shifted and scaled.
pub(super) struct Affine<'a, R> {
    pub less: R,
    pub by: R,
    pub plus: R,
    /// As long as the row.
    pub by_each: Option<&'a [R]>,
    /// As long as the row.
    pub plus_each: Option<&'a [R]>,
}

impl Real for f32 {
    fn sqrt(self) -> Self {
        self.sqrt()
    }

    fn sum(row: &[Self]) -> Self {
        Sum::new(row).dispatch()
    }

    fn sum_of_squares(row: &[Self], from: Self) -> Self {
        SumSquareSub::new(row, from).dispatch()
    }

    fn exp(row: &mut [Self]) {
        Exp {}.map_mut(row);
    }

    fn softmax(row: &mut [Self]) {
        Softmax::new_mut(row).dispatch();
    }

    fn log_softmax(row: &mut [Self]) {
        LogSoftmax::new_mut(row).dispatch();
    }

    fn shift_and_scale(row: &mut [Self], how: &Affine<'_, Self>) {
        let options = NormalizeOptions {
            pre_scale_bias: how.less,
            scale: how.by,
            element_scale: how.by_each,
            bias: how.plus,
            element_bias: how.plus_each,
        };
        Normalize::new_mut(row, options).dispatch();
    }

    fn rewrite(kernel: &dyn Slabs, slab: &mut [Self], number: usize, parameters: &[&[Self]]) -> [Self; 2] {
        kernel.of_f32(slab, number, parameters)
    }
}

impl Real for f64 {
    fn sqrt(self) -> Self {
        self.sqrt()
    }

    fn sum(row: &[Self]) -> Self {
        row.iter().sum()
    }

    fn sum_of_squares(row: &[Self], from: Self) -> Self {
        row.iter().map(|x| (x - from) * (x - from)).sum()
    }

    fn exp(row: &mut [Self]) {
        row.iter_mut().for_each(|x| *x = x.exp());
    }

    fn softmax(row: &mut [Self]) {
        let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        row.iter_mut().for_each(|x| *x = (*x - most).exp());
        let sum = Self::sum(row);
        row.iter_mut().for_each(|x| *x /= sum);
    }

    fn log_softmax(row: &mut [Self]) {
        let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum = row.iter().map(|x| (x - most).exp()).sum::<f64>().ln();
        row.iter_mut().for_each(|x| *x = *x - most - sum);
    }

    fn shift_and_scale(row: &mut [Self], how: &Affine<'_, Self>) {
        for (at, x) in row.iter_mut().enumerate() {
            let by = how.by_each.map_or(1.0, |each| each[at]);
            let plus = how.plus_each.map_or(0.0, |each| each[at]);
            *x = (*x - how.less) * (how.by * by) + (how.plus + plus);
        }
    }

    fn rewrite(kernel: &dyn Slabs, slab: &mut [Self], number: usize, parameters: &[&[Self]]) -> [Self; 2] {
        kernel.of_f64(slab, number, parameters)
    }
}

/// What is done to a slab.
pub(super) trait Kernel: Sync {
    /// Rewrites the slab of this number. What is returned goes to outputs 1 and 2 where [`run`] is told so.
    fn run<R: Real>(&self, slab: &mut [R], number: usize, parameters: &[&[R]]) -> [R; 2];
}

/// A [`Kernel`], for both types: what goes through slabs is compiled once for all kernels.
pub(super) trait Slabs: Sync {
    fn of_f32(&self, slab: &mut [f32], number: usize, parameters: &[&[f32]]) -> [f32; 2];
    fn of_f64(&self, slab: &mut [f64], number: usize, parameters: &[&[f64]]) -> [f64; 2];
}

impl<K: Kernel> Slabs for K {
    fn of_f32(&self, slab: &mut [f32], number: usize, parameters: &[&[f32]]) -> [f32; 2] {
        self.run(slab, number, parameters)
    }

    fn of_f64(&self, slab: &mut [f64], number: usize, parameters: &[&[f64]]) -> [f64; 2] {
        self.run(slab, number, parameters)
    }
}

/// The type that slabs of a tensor are computed in, and its width.
fn real(dtype: DataType) -> (DataType, usize) {
    if dtype == DataType::F64 { (DataType::F64, 8) } else { (DataType::F32, 4) }
}

/// Bytes of scratch memory that [`run`] takes for slabs of `size` elements. `parameters` are numbers of inputs, and `output` is the
/// type of output 0's elements.
pub(super) fn scratch(
    inputs: &Known<'_>,
    output: DataType,
    size: usize,
    parameters: &[usize],
    figures: bool,
) -> usize {
    let Some(input) = inputs.opt(0) else { return 0 };
    let (dtype, width) = real(input.dtype);
    let widened = parameters.iter().filter_map(|&at| inputs.opt(at)).filter(|ty| ty.dtype != dtype);
    let slab = if input.dtype == dtype && output == dtype { 0 } else { size };
    let said = if figures { 2 * input.elements().checked_div(size).unwrap_or(0) } else { 0 };
    (widened.map(|ty| ty.elements()).sum::<usize>() + slab + said) * width
}

/// Rewrites the elements of input 0 into output 0, slab by slab of `size` elements. With `figures`, what is said of each slab goes
/// into outputs 1 and 2 as far as they are wanted.
pub(super) fn run(
    call: &mut Call<'_, '_>,
    size: usize,
    parameters: &[usize],
    figures: bool,
    kernel: &dyn Slabs,
) -> Result<(), OpError> {
    let dtype = call.dtype(0)?;
    if !dtype.is_float() {
        return Err(no(dtype));
    }
    match real(dtype).0 {
        DataType::F64 => run_as::<f64>(call, size, parameters, figures, kernel),
        _ => run_as::<f32>(call, size, parameters, figures, kernel),
    }
}

fn run_as<R: Real>(
    call: &mut Call<'_, '_>,
    size: usize,
    parameters: &[usize],
    figures: bool,
    kernel: &dyn Slabs,
) -> Result<(), OpError> {
    let dtype = call.dtype(0)?;
    let input = if call.in_place() == Some(0) { None } else { Some(call.input(0)?) };
    let output = call.output(0)?;
    let count = output.shape.iter().product::<usize>().checked_div(size).unwrap_or(0);
    if count == 0 {
        // Figures of no elements are no numbers.
        for output in [1, 2].into_iter().filter_map(|at| call.opt_output(at)).filter(|_| figures) {
            let elements = output.shape.iter().product();
            (0..elements).for_each(|index| put(output.dtype, output.bytes, index, f64::NAN));
        }
        return Ok(());
    }
    let scratch = call.scratch_of::<R>();
    let (said, mut scratch) = scratch.split_at_mut(if figures { 2 * count } else { 0 });
    let mut given: SmallVec<[&[R]; 4]> = SmallVec::new();
    for &at in parameters {
        let view = call.input(at)?;
        given.push(if view.dtype == R::DTYPE {
            view.elements()
        } else {
            let (wide, rest) = std::mem::take(&mut scratch).split_at_mut(view.len());
            scratch = rest;
            widen(&view, wide)?;
            wide
        });
    }
    let given = &given[..];
    if dtype == R::DTYPE && output.dtype == R::DTYPE {
        let parallel =
            input.map_or(output.bytes.len(), |input| input.bytes.len()) >= PARALLEL * size_of::<R>();
        let input = input.map(|input| input.elements::<R>());
        let output = output.elements::<R>();
        let one = |number: usize, slab: &mut [R]| {
            if let Some(input) = input {
                slab.copy_from_slice(&input[number * size..][..size]);
            }
            R::rewrite(kernel, slab, number, given)
        };
        let least = if parallel { (PARALLEL / 4 / size).max(1) } else { usize::MAX };
        if figures {
            threads::pieces_of_two((output, size), (said, 2), least, &|number, slab, said| {
                said.copy_from_slice(&one(number, slab));
            });
        } else {
            threads::pieces(output, size, least, &|number, slab| {
                one(number, slab);
            });
        }
    } else {
        let slab = &mut scratch[..size];
        let (from, to) = (size * dtype.bytes(), size * output.dtype.bytes());
        for number in 0..count {
            let source = input.map_or(&*output.bytes, |input| input.bytes);
            let bytes = &source[number * from..][..from];
            widen(&View { dtype, shape: &[size], bytes }, slab)?;
            let about = R::rewrite(kernel, slab, number, given);
            narrow(slab, output.dtype, &mut output.bytes[number * to..][..to])?;
            if figures {
                said[2 * number..][..2].copy_from_slice(&about);
            }
        }
    }
    for at in 0..2 {
        if let Some(output) = call.opt_output(at + 1).filter(|_| figures) {
            if !output.dtype.is_float() {
                return Err(no(output.dtype));
            }
            for (number, said) in said.iter().skip(at).step_by(2).enumerate() {
                put(output.dtype, output.bytes, number, said.to_f64());
            }
        }
    }
    Ok(())
}

/// The elements of any real type, widened or narrowed to one that is computed in.
pub(super) fn widen<R: Real>(from: &View<'_>, to: &mut [R]) -> Result<(), OpError> {
    if !from.dtype.is_float() {
        return Err(no(from.dtype));
    }
    if from.dtype == DataType::F64 && R::DTYPE == DataType::F32 {
        let from = from.elements::<f64>();
        to.iter_mut().zip(from).for_each(|(to, &from)| *to = R::from_f64(from));
    } else {
        R::load(from.dtype, from.bytes, false, to);
    }
    Ok(())
}

/// Elements as bytes of another type.
fn narrow<R: Real>(from: &[R], dtype: DataType, to: &mut [u8]) -> Result<(), OpError> {
    if !dtype.is_float() {
        return Err(no(dtype));
    }
    if dtype == DataType::F64 && R::DTYPE == DataType::F32 {
        let to: &mut [f64] = bytemuck::cast_slice_mut(to);
        to.iter_mut().zip(from).for_each(|(to, &from)| *to = from.to_f64());
    } else {
        R::store(from, false, dtype, to);
    }
    Ok(())
}
