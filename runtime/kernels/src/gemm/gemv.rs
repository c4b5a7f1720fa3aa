//! A vector times a matrix: weights are read once, so that memory decides how long it takes.
//!
//! Every element is summed in the same order, wherever it lies: equal columns give equal sums. (Products by tiles sum the columns
//! that are left over in another way, which shows where sums are large and differences decide, as before a softmax.)

use crate::gemm::Matrix;
use rten_simd::ops::{BitOps, NumOps};
use rten_simd::{Isa, SimdOp};
use stepalloc_threads as threads;

/// Products from which on cores share the work.
const PARALLEL: usize = 1 << 16;
/// Columns that a core takes at a time are a multiple of this: two cache lines.
const COLUMNS: usize = 32;

/// `out = x b + beta out`, where `b` is contiguous along its rows or its columns; `false` where it is neither, and nothing was
/// done.
pub fn vector_matrix(out: &mut [f32], x: &[f32], b: Matrix<'_, f32>, beta: f32) -> bool {
    if b.col_stride != 1 && b.row_stride != 1 && b.cols > 1 && b.rows > 1 {
        return false;
    }
    let products = b.rows.saturating_mul(b.cols);
    let threads = if products < PARALLEL { 1 } else { threads::count() };
    let columns = b.cols.div_ceil(threads).next_multiple_of(COLUMNS);
    // For all columns alike, so that their sums are.
    let along_rows = b.col_stride == 1 || b.cols == 1;
    threads::pieces(out, columns, 1, &|piece, out| {
        let first = piece * columns;
        let b = b.part(0..b.rows, first..first + out.len());
        scale(out, beta);
        if along_rows { Rows { out, x, b }.dispatch() } else { Columns { out, x, b }.dispatch() }
    });
    true
}

/// What a product is added to.
pub fn scale(out: &mut [f32], beta: f32) {
    match beta {
        0.0 => out.fill(0.0),
        1.0 => {}
        _ => out.iter_mut().for_each(|out| *out *= beta),
    }
}

/// Asks for the cache line at an address, whatever is there: rows are short streams, which the machine does not foresee.
#[inline(always)]
pub(super) fn prefetch(at: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which no address makes fail; every x86-64 has the instruction.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// `out += x b`, row after row of `b`.
struct Rows<'a, 'o> {
    out: &'o mut [f32],
    x: &'a [f32],
    b: Matrix<'a, f32>,
}

/// Elements of the widest vector register at most.
const WIDEST: usize = 64;
/// Rows of the matrix that are added at a time: so often fewer is the sum read and written.
const ROWS: usize = 4;

impl SimdOp for Rows<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        let (ops, Self { out, x, b }) = (isa.f32(), self);
        let (width, whole) = (ops.len(), out.len() / ops.len() * ops.len());
        for first in (0..x.len()).step_by(ROWS) {
            // Rows beyond the last are none: zero times another row could be NaN.
            let x = &x[first..(first + ROWS).min(x.len())];
            let mut rows = [&b.data[..0]; ROWS];
            for (number, row) in rows[..x.len()].iter_mut().enumerate() {
                *row = &b.data[(first + number) * b.row_stride..][..out.len()];
            }
            for at in (0..whole).step_by(width) {
                let mut sum = ops.load(&out[at..]);
                for (&x, row) in x.iter().zip(&rows) {
                    sum = ops.mul_add(ops.splat(x), ops.load(&row[at..]), sum);
                    prefetch(row.as_ptr().wrapping_add(at + ROWS * b.row_stride));
                }
                ops.store(sum, &mut out[at..]);
            }
            if whole < out.len() {
                let (mut sum, _) = ops.load_pad(&out[whole..]);
                for (&x, row) in x.iter().zip(&rows) {
                    sum = ops.mul_add(ops.splat(x), ops.load_pad(&row[whole..]).0, sum);
                }
                let mut last = [0.0; WIDEST];
                ops.store(sum, &mut last);
                let left = out.len() - whole;
                out[whole..].copy_from_slice(&last[..left]);
            }
        }
    }
}

/// `out += x b`, column after column of `b`.
struct Columns<'a, 'o> {
    out: &'o mut [f32],
    x: &'a [f32],
    b: Matrix<'a, f32>,
}

impl SimdOp for Columns<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        let (ops, Self { out, x, b }) = (isa.f32(), self);
        let width = ops.len();
        let whole = x.len() / (2 * width) * (2 * width);
        for (number, out) in out.iter_mut().enumerate() {
            let column = &b.data[number * b.col_stride..][..x.len()];
            let (mut even, mut odd) = (ops.zero(), ops.zero());
            for (x, column) in x[..whole].chunks_exact(2 * width).zip(column[..whole].chunks_exact(2 * width))
            {
                even = ops.mul_add(ops.load(x), ops.load(column), even);
                odd = ops.mul_add(ops.load(&x[width..]), ops.load(&column[width..]), odd);
            }
            for (x, column) in x[whole..].chunks(width).zip(column[whole..].chunks(width)) {
                even = ops.mul_add(ops.load_pad(x).0, ops.load_pad(column).0, even);
            }
            *out += ops.sum(ops.add(even, odd));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|n| ((n * 37) % 101) as f32 / 25.0 - 2.0).collect()
    }

    #[test]
    fn products_are_those_of_a_loop_in_both_layouts_and_equal_columns_are_equal() {
        // On two cores, the last column of 33 is alone.
        for (rows, cols) in [(1, 1), (3, 5), (17, 40), (129, 1000), (300, 7), (64, 4099), (2048, 33)] {
            let (x, data) = (numbers(rows), numbers(rows * cols));
            for beta in [0.0, 1.0, 0.5] {
                let before = numbers(cols);
                let by_rows = Matrix::new(&data, rows, cols);
                let transposed: Vec<f32> = (0..cols)
                    .flat_map(|col| (0..rows).map(move |row| (row, col)))
                    .map(|(row, col)| data[row * cols + col])
                    .collect();
                let by_columns = Matrix::new(&transposed, cols, rows).transposed();
                for b in [by_rows, by_columns] {
                    let mut out = before.clone();
                    assert!(vector_matrix(&mut out, &x, b, beta));
                    for (col, (&out, &before)) in out.iter().zip(&before).enumerate() {
                        let sum: f64 =
                            (0..rows).map(|row| f64::from(x[row]) * f64::from(data[row * cols + col])).sum();
                        let wanted = sum + f64::from(beta) * f64::from(before);
                        assert!(
                            (f64::from(out) - wanted).abs() < 1e-3 * (1.0 + wanted.abs()),
                            "{rows}x{cols}: {out} for {wanted}"
                        );
                    }
                }
            }
            let equal = vec![0.1; rows * cols];
            for b in [Matrix::new(&equal, rows, cols), Matrix::new(&equal, cols, rows).transposed()] {
                let mut out = vec![0.0; cols];
                assert!(vector_matrix(&mut out, &x, b, 0.0));
                assert!(out.iter().all(|sum| sum.to_bits() == out[0].to_bits()));
            }
        }
    }
}
