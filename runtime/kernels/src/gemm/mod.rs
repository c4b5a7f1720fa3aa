//! Products of matrices, for the operators that come down to them.
//!
//! A [`Matrix`] is elements with a stride along either dimension. Products of f32 are rten-gemm's, or with a constant right factor our own
//! ([`packed`]); those of other numbers that are
//! computed in their own type are a plain blocked loop. Halves are made f32 panel by panel ([`Panels`]) and multiplied as such, and so
//! are integers of 8 bits where rten-gemm has nothing exact for them (`gemm_i8`): their sums are split so that f32 holds them exactly.

pub mod dot4;
pub mod gemv;
pub mod int8;
pub mod nbits;
pub mod packed;
pub mod panels;
pub mod prepacked;
pub mod quantized;
pub mod small_m;

use crate::gemm::gemv::vector_matrix;
use crate::gemm::small_m::few_rows;
use bytemuck::Pod;
pub use rten_gemm::BiasVector;
use rten_gemm::{GemmExecutor, GemmInputA, GemmInputB, GemmOptions};
use rten_simd::{Isa, SimdOp};
use rten_tensor::NdTensorView;
use std::ops::Range;
use stepalloc_tensor::{DataType, Number, OpError};
use stepalloc_threads as threads;

/// Less work than this, in elements or multiplications, is not worth another thread.
pub const PARALLEL: usize = 64 << 10;

thread_local! {
    /// Multiplies matrices of f32: it chooses its code for the machine, and cannot be sent to another thread.
    static EXECUTOR: GemmExecutor<f32, f32, f32> = GemmExecutor::default();
}

/// Elements seen as a matrix; strides are in elements.
#[derive(Clone, Copy)]
pub struct Matrix<'a, T> {
    /// From its first element on.
    pub data: &'a [T],
    /// The number of rows.
    pub rows: usize,
    /// The number of columns.
    pub cols: usize,
    /// From a row to the next one.
    pub row_stride: usize,
    /// From a column to the next one.
    pub col_stride: usize,
}

impl<'a, T: Copy> Matrix<'a, T> {
    /// Row by row.
    pub fn new(data: &'a [T], rows: usize, cols: usize) -> Self {
        Self { data, rows, cols, row_stride: cols, col_stride: 1 }
    }

    /// Rows as columns.
    pub fn transposed(self) -> Self {
        let Self { data, rows, cols, row_stride, col_stride } = self;
        Self { data, rows: cols, cols: rows, row_stride: col_stride, col_stride: row_stride }
    }

    /// The same as bytes; strides stay those of elements.
    pub fn bytes(self) -> Matrix<'a, u8>
    where
        T: Pod,
    {
        let Self { data, rows, cols, row_stride, col_stride } = self;
        Matrix { data: bytemuck::cast_slice(data), rows, cols, row_stride, col_stride }
    }

    /// Some of its rows and columns.
    pub fn part(self, rows: Range<usize>, cols: Range<usize>) -> Self {
        let begin = (rows.start * self.row_stride + cols.start * self.col_stride).min(self.data.len());
        Self { data: &self.data[begin..], rows: rows.len(), cols: cols.len(), ..self }
    }
}

impl<'a> Matrix<'a, u8> {
    /// The elements whose bytes these are.
    fn elements<T: Pod>(self) -> Matrix<'a, T> {
        let Self { data, rows, cols, row_stride, col_stride } = self;
        Matrix { data: bytemuck::cast_slice(data), rows, cols, row_stride, col_stride }
    }
}

/// The matrix as rten-gemm takes it.
pub fn view<T>(matrix: Matrix<'_, T>) -> Result<NdTensorView<'_, T, 2>, OpError> {
    let Matrix { data, rows, cols, row_stride, col_stride } = matrix;
    NdTensorView::from_slice_with_strides([rows, cols], data, [row_stride, col_stride]).map_err(|_| {
        OpError::shape(format!("a matrix of {rows} x {cols} is not within its {} elements", data.len()))
    })
}

/// `out = alpha * a b + beta * out + bias`; `out` is row by row and may hold anything if `beta` is 0.
pub fn gemm_f32(
    out: &mut [f32],
    a: Matrix<'_, f32>,
    b: Matrix<'_, f32>,
    (alpha, beta): (f32, f32),
    bias: Option<BiasVector<'_, f32>>,
) -> Result<(), OpError> {
    let (mut a, mut b, mut bias) = (a, b, bias);
    // A matrix times a vector: the other way round, so that no panel is packed around a single column.
    if b.cols == 1 && a.rows > 1 && b.row_stride == 1 && (a.col_stride == 1 || a.row_stride == 1) {
        (a, b) = (b.transposed(), a.transposed());
        bias = bias.map(|bias| match bias {
            BiasVector::Row(bias) => BiasVector::Column(bias),
            BiasVector::Column(bias) => BiasVector::Row(bias),
        });
    }
    let is_plain = (alpha == 1.0 || beta == 0.0) && a.col_stride == 1;
    if is_plain
        && (a.rows == 1 && vector_matrix(out, &a.data[..a.cols], b, beta) || few_rows(out, a, b, beta))
    {
        if alpha != 1.0 {
            out.iter_mut().for_each(|out| *out *= alpha);
        }
        for (row, out) in out.chunks_exact_mut(b.cols.max(1)).enumerate() {
            match bias {
                Some(BiasVector::Row(bias)) => out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias),
                Some(BiasVector::Column(bias)) => out.iter_mut().for_each(|out| *out += bias[row]),
                None => {}
            }
        }
        return Ok(());
    }
    gemm_tiles(out, a, b, (alpha, beta), bias)
}

/// [`gemm_f32`] by tiles, for which both factors are laid out anew, however few rows there are.
pub fn gemm_tiles(
    out: &mut [f32],
    a: Matrix<'_, f32>,
    b: Matrix<'_, f32>,
    (alpha, beta): (f32, f32),
    bias: Option<BiasVector<'_, f32>>,
) -> Result<(), OpError> {
    tiles(out, a, GemmInputB::Unpacked(view(b)?), (alpha, beta), bias)
}

fn tiles(
    out: &mut [f32],
    a: Matrix<'_, f32>,
    b: GemmInputB<'_, f32>,
    (alpha, beta): (f32, f32),
    bias: Option<BiasVector<'_, f32>>,
) -> Result<(), OpError> {
    let options = GemmOptions { alpha, beta, bias, ..GemmOptions::default() };
    let a = GemmInputA::Unpacked(view(a)?);
    EXECUTOR
        .with(|executor| executor.gemm(out, a, b, options))
        .map_err(|error| OpError::shape(error.to_string()))
}

/// `out = a b`, or `out += a b`, in the elements' own type; `out` is row by row.
pub fn product<T: Number>(
    out: &mut [T],
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    accumulate: bool,
) -> Result<(), OpError> {
    product_of(T::DTYPE, bytemuck::cast_slice_mut(out), a.bytes(), b.bytes(), accumulate)
}

/// [`product`] of elements as bytes; the matrices' strides are in elements all the same.
pub fn product_of(
    dtype: DataType,
    out: &mut [u8],
    a: Matrix<'_, u8>,
    b: Matrix<'_, u8>,
    accumulate: bool,
) -> Result<(), OpError> {
    match dtype {
        DataType::F32 => {
            let beta = if accumulate { 1.0 } else { 0.0 };
            gemm_f32(bytemuck::cast_slice_mut(out), a.elements(), b.elements(), (1.0, beta), None)?;
        }
        DataType::F64 => plain::<f64>(bytemuck::cast_slice_mut(out), a.elements(), b.elements(), accumulate),
        // Integers wrap, whatever sign they have.
        DataType::I32 | DataType::U32 => {
            plain::<u32>(bytemuck::cast_slice_mut(out), a.elements(), b.elements(), accumulate);
        }
        DataType::I64 | DataType::U64 => {
            plain::<u64>(bytemuck::cast_slice_mut(out), a.elements(), b.elements(), accumulate);
        }
        other => return Err(OpError::element_type(format!("it multiplies no matrices of {other}"))),
    }
    Ok(())
}

fn plain<T: Number>(out: &mut [T], a: Matrix<'_, T>, b: Matrix<'_, T>, accumulate: bool) {
    if out.is_empty() {
        return;
    }
    let work = a.rows.saturating_mul(b.cols).saturating_mul(a.cols.max(1));
    let threads = if work < PARALLEL { 1 } else { threads::count() };
    let rows = a.rows.div_ceil(threads);
    threads::pieces(out, rows * b.cols, 1, &|index, out| {
        let begin = index * rows;
        let a = a.part(begin..(begin + rows).min(a.rows), 0..a.cols);
        Plain { out, a, b, accumulate }.dispatch();
    });
}

/// Rows and columns of the right factor that are gone through at a time: they stay in the first cache.
const PLAIN_BLOCK: (usize, usize) = (32, 128);

/// A product by loops, compiled for the machine's vectors.
struct Plain<'a, 'o, T> {
    out: &'o mut [T],
    a: Matrix<'a, T>,
    b: Matrix<'a, T>,
    accumulate: bool,
}

impl<T: Number> SimdOp for Plain<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, _: I) {
        let Self { out, a, b, accumulate } = self;
        if !accumulate {
            out.fill(T::default());
        }
        if b.col_stride != 1 && b.cols > 1 {
            for (row, out) in out.chunks_exact_mut(b.cols).enumerate() {
                for (col, out) in out.iter_mut().enumerate() {
                    let mut sum = T::Wide::default();
                    for k in 0..a.cols {
                        let x = a.data[row * a.row_stride + k * a.col_stride].wide();
                        let y = b.data[k * b.row_stride + col * b.col_stride].wide();
                        sum = sum.plus(x.times(y));
                    }
                    *out = T::narrow(out.wide().plus(sum));
                }
            }
            return;
        }
        for k_begin in (0..a.cols).step_by(PLAIN_BLOCK.0) {
            let depth = k_begin..(k_begin + PLAIN_BLOCK.0).min(a.cols);
            for col in (0..b.cols).step_by(PLAIN_BLOCK.1) {
                let width = PLAIN_BLOCK.1.min(b.cols - col);
                for (row, out) in out.chunks_exact_mut(b.cols).enumerate() {
                    let out = &mut out[col..col + width];
                    for k in depth.clone() {
                        let x = a.data[row * a.row_stride + k * a.col_stride];
                        let b = &b.data[k * b.row_stride + col..][..width];
                        out.iter_mut().zip(b).for_each(|(out, &y)| *out = out.plus(x.times(y)));
                    }
                }
            }
        }
    }
}

/// What sums of a product are kept in: f32, or i32 where integers of 8 bits are multiplied.
pub trait Sum: Pod + Send + Sync {
    /// As many products may be summed in f32.
    const DEPTH: usize;
    /// Adds what was summed in f32.
    fn add(self, part: f32) -> Self;
}

impl Sum for f32 {
    const DEPTH: usize = 1024;
    fn add(self, part: f32) -> Self {
        self + part
    }
}

impl Sum for i32 {
    // Differences of bytes are 255 at most: 256 products of two are less than 2^24, and f32 holds all integers up to there.
    const DEPTH: usize = 256;
    fn add(self, part: f32) -> Self {
        self.wrapping_add(part as Self)
    }
}

/// Sums products of f32 matrices in `S`; `part` has room for as many f32 as `sums` has elements.
fn sum_product<S: Sum>(
    sums: &mut [S],
    part: &mut [f32],
    a: Matrix<'_, f32>,
    b: Matrix<'_, f32>,
    accumulate: bool,
) -> Result<(), OpError> {
    if !accumulate {
        sums.fill(S::zeroed());
    }
    let part = &mut part[..sums.len()];
    for begin in (0..a.cols).step_by(S::DEPTH) {
        let depth = begin..(begin + S::DEPTH).min(a.cols);
        gemm_f32(part, a.part(0..a.rows, depth.clone()), b.part(depth, 0..b.cols), (1.0, 0.0), None)?;
        sums.iter_mut().zip(&*part).for_each(|(sum, &part)| *sum = sum.add(part));
    }
    Ok(())
}

/// Panels in which matrices of narrow elements are multiplied.
#[derive(Clone, Copy)]
pub struct Panels {
    rows: usize,
    cols: usize,
    depth: usize,
}

impl Panels {
    /// The most rows and columns of a panel: a megabyte or so of each operand, so that making it f32 is small beside the product.
    const SIDE: usize = 1024;

    /// For sums in `S`.
    pub fn new<S: Sum>(rows: usize, cols: usize, depth: usize) -> Self {
        Self { rows: rows.min(Self::SIDE), cols: cols.min(Self::SIDE), depth: depth.min(S::DEPTH) }
    }

    /// Bytes of scratch memory.
    pub fn scratch(&self) -> usize {
        4 * (self.rows * self.depth + self.depth * self.cols + 2 * self.rows * self.cols)
    }

    /// Multiplies matrices of so many rows, columns, and so deep. `load_a` and `load_b` lay out some rows and columns of a factor in f32,
    /// as [`load`] does; `store` is told the row, the first column, and the sums from there on.
    pub fn multiply<S: Sum>(
        &self,
        scratch: &mut [u8],
        [all_rows, all_cols, all_depth]: [usize; 3],
        load_a: Load<'_>,
        load_b: Load<'_>,
        store: &mut dyn FnMut(usize, usize, &[S]),
    ) -> Result<(), OpError> {
        let Self { rows, cols, depth } = *self;
        let scratch: &mut [f32] = bytemuck::cast_slice_mut(&mut scratch[..self.scratch()]);
        let (a_panel, scratch) = scratch.split_at_mut(rows * depth);
        let (b_panel, scratch) = scratch.split_at_mut(depth * cols);
        let (part, sums) = scratch.split_at_mut(rows * cols);
        let sums: &mut [S] = bytemuck::cast_slice_mut(sums);
        for row in (0..all_rows).step_by(rows.max(1)) {
            let height = rows.min(all_rows - row);
            for col in (0..all_cols).step_by(cols.max(1)) {
                let width = cols.min(all_cols - col);
                let sums = &mut sums[..height * width];
                sums.fill(S::zeroed());
                for k in (0..all_depth).step_by(depth.max(1)) {
                    let deep = depth.min(all_depth - k);
                    let a_panel = &mut a_panel[..height * deep];
                    load_a(a_panel, row..row + height, k..k + deep);
                    let b_panel = &mut b_panel[..deep * width];
                    load_b(b_panel, k..k + deep, col..col + width);
                    let (a, b) = (Matrix::new(a_panel, height, deep), Matrix::new(b_panel, deep, width));
                    sum_product(sums, part, a, b, true)?;
                }
                for (at, sums) in sums.chunks_exact(width).enumerate() {
                    store(row + at, col, sums);
                }
            }
        }
        Ok(())
    }
}

/// Lays out some rows and columns of a matrix.
pub type Load<'l> = &'l dyn Fn(&mut [f32], Range<usize>, Range<usize>);

/// Makes the elements of a matrix f32, row by row. `wide` is told the row and the column.
pub fn load<T: Pod + Sync>(
    to: &mut [f32],
    from: Matrix<'_, T>,
    wide: impl Fn(usize, usize, T) -> f32 + Sync,
) {
    let least = if to.len() < PARALLEL { usize::MAX } else { 1 };
    threads::pieces(to, from.cols, least, &|row, to| {
        let data = &from.data[row * from.row_stride..];
        if from.col_stride == 1 {
            for (col, (to, &x)) in to.iter_mut().zip(data).enumerate() {
                *to = wide(row, col, x);
            }
        } else {
            for (col, to) in to.iter_mut().enumerate() {
                *to = wide(row, col, data[col * from.col_stride]);
            }
        }
    });
}

/// Lays out halves.
pub fn load_halves<T: Number<Wide = f32>>(
    matrix: Matrix<'_, T>,
) -> impl Fn(&mut [f32], Range<usize>, Range<usize>) {
    move |to, rows, cols| load(to, matrix.part(rows, cols), |_, _, x| x.wide())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_products_do_not_depend_on_strides() {
        let a: Vec<i64> = (0..35 * 40).collect();
        let b: Vec<i64> = (0..40 * 130).map(|x| x % 7 - 3).collect();
        let mut turned = vec![0; b.len()];
        for row in 0..40 {
            for col in 0..130 {
                turned[col * 40 + row] = b[row * 130 + col];
            }
        }
        let (mut plain, mut other) = (vec![1; 35 * 130], vec![1; 35 * 130]);
        product(&mut plain, Matrix::new(&a, 35, 40), Matrix::new(&b, 40, 130), true).unwrap();
        product(&mut other, Matrix::new(&a, 35, 40), Matrix::new(&turned, 130, 40).transposed(), true)
            .unwrap();
        assert_eq!(plain, other);
        let expected = 1 + (0..40).map(|k| a[40 + k] * b[k * 130 + 2]).sum::<i64>();
        assert_eq!(plain[130 + 2], expected);
    }

    #[test]
    fn products_of_few_rows_are_scaled_as_those_of_many() {
        let numbers = |count: usize, step: usize| -> Vec<f32> {
            (0..count).map(|at| (at * step % 19) as f32 / 8.0 - 1.0).collect()
        };
        let (depth, cols) = (37, 21);
        let (data, bias) = (numbers(depth * cols, 7), numbers(cols, 5));
        let b = Matrix::new(&data, depth, cols);
        for rows in [1, 2, 5, 16, 40] {
            let (x, before) = (numbers(rows * depth, 3), numbers(rows * cols, 11));
            for (alpha, beta) in [(1.0, 0.0), (0.25, 0.0), (0.25, 1.0), (2.0, 0.5), (1.0, 1.0)] {
                let mut out = before.clone();
                let a = Matrix::new(&x, rows, depth);
                gemm_f32(&mut out, a, b, (alpha, beta), Some(BiasVector::Row(&bias))).unwrap();
                for (at, (&out, &before)) in out.iter().zip(&before).enumerate() {
                    let (row, col) = (at / cols, at % cols);
                    let sum: f32 = (0..depth).map(|k| x[row * depth + k] * data[k * cols + col]).sum();
                    let wanted = alpha * sum + beta * before + bias[col];
                    assert!((out - wanted).abs() < 1e-4, "{rows} rows, {alpha}, {beta}: {out} for {wanted}");
                }
            }
        }
    }
}
