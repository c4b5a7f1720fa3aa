//! Two to sixteen rows times a matrix, whose elements are read where they are. (Tiles, for more rows, are laid out anew first, which
//! takes longer than the product of a few. One row is faster where whole rows of the matrix are added: `vector_matrix`.)
//!
//! Every element is summed in the same order, wherever it lies: equal columns give equal sums. (Products by tiles sum the columns
//! that are left over in another way, which shows where sums are large and differences decide, as before a softmax.)

use crate::gemm::Matrix;
use crate::gemm::gemv::{prefetch, scale};
use crate::gemm::panels::WIDTH;
use rten_simd::ops::{BitOps, NumOps};
use rten_simd::{Isa, SimdOp};
use smallvec::SmallVec;
use std::ops::Range;
use stepalloc_threads as threads;

/// Rows on the left at most: for more, tiles are about as fast, and bring less of the right factor into the caches again.
const MOST: usize = 16;
/// Products from which on cores share the work.
const PARALLEL: usize = 1 << 16;
/// Columns that a core takes at a time are a multiple of this: two cache lines.
const COLUMNS: usize = 32;

/// `out = a b + beta out`, where `a` has few rows, and `b` is contiguous along its rows or its columns; `false` where that is not so,
/// and nothing was done.
pub fn few_rows(out: &mut [f32], a: Matrix<'_, f32>, b: Matrix<'_, f32>, beta: f32) -> bool {
    let contiguous = b.col_stride == 1 || b.row_stride == 1 || b.cols <= 1 || b.rows <= 1;
    if a.rows > MOST || a.col_stride != 1 || !contiguous {
        return false;
    }
    scale(out, beta);
    if out.is_empty() {
        return true;
    }
    add_few(out, a, b, if b.col_stride == 1 || b.cols == 1 { Order::Rows } else { Order::Columns });
    true
}

/// `out = a b` of any number of rows, with `cols` columns of `b` in [`panels`](crate::gemm::panels).
pub fn rows_by_panels(out: &mut [f32], a: Matrix<'_, f32>, b: &[f32], cols: usize) {
    out.fill(0.0);
    if out.is_empty() || a.cols == 0 {
        return;
    }
    let b = Matrix { data: b, rows: a.cols, cols, row_stride: WIDTH, col_stride: a.cols };
    for (part, out) in out.chunks_mut(MOST * cols).enumerate() {
        let begin = part * MOST;
        add_few(out, a.part(begin..a.rows.min(begin + MOST), 0..a.cols), b, Order::Panels);
    }
}

/// `out += a b` of at most [`MOST`] rows.
fn add_few(out: &mut [f32], a: Matrix<'_, f32>, b: Matrix<'_, f32>, order: Order) {
    let products = b.rows.saturating_mul(out.len());
    let threads = if products < PARALLEL { 1 } else { threads::count() };
    let x: SmallVec<[_; MOST]> = (0..a.rows).map(|row| &a.data[row * a.row_stride..][..a.cols]).collect();
    share(Few { out: out.chunks_exact_mut(b.cols).collect(), x: &x, b, order }, threads);
}

/// How a right factor is read: for all columns alike, so that their sums are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Rows,
    Columns,
    /// Panel by panel, each of which is read along its rows. The first column of one begins where its number times the stride
    /// of columns says.
    Panels,
}

/// A product, or that of some columns.
struct Few<'a, 'o> {
    /// Its rows, to which it is added.
    out: SmallVec<[&'o mut [f32]; MOST]>,
    /// Those of the left factor.
    x: &'a [&'a [f32]],
    b: Matrix<'a, f32>,
    order: Order,
}

/// Shares the columns until there are as many parts as threads.
fn share(few: Few<'_, '_>, threads: usize) {
    let columns = few.b.cols;
    let unit = if few.order == Order::Panels { WIDTH } else { COLUMNS };
    let some = (columns * (threads / 2) / threads).next_multiple_of(unit);
    if threads > 1 && some < columns {
        let Few { out, x, b, order } = few;
        let (left, right) = out.into_iter().map(|row| row.split_at_mut(some)).unzip();
        let [first, second] = [0..some, some..columns].map(|columns| b.part(0..b.rows, columns));
        let mut left = Some(Few { out: left, x, b: first, order });
        let mut right = Some(Few { out: right, x, b: second, order });
        threads::join(&mut || left.take().into_iter().for_each(|few| share(few, threads / 2)), &mut || {
            right.take().into_iter().for_each(|few| share(few, threads - threads / 2))
        });
    } else if few.order == Order::Columns {
        Columns(few).dispatch();
    } else {
        Rows(few).dispatch();
    }
}

/// Calls `$do::<I, M>` for `M` rows after the other: four, then two, then one.
macro_rules! by_fours {
    ($do:ident, $isa:ident, $out:expr, $x:expr, $($other:expr),*) => {{
        let mut first = 0;
        while first < $x.len() {
            let (out, x) = (&mut $out[first..], &$x[first..]);
            first += match x.len() {
                4.. => $do::<I, 4>($isa, out, x, $($other),*),
                2.. => $do::<I, 2>($isa, out, x, $($other),*),
                _ => $do::<I, 1>($isa, out, x, $($other),*),
            };
        }
    }};
}

/// `out += x b`, with `b` read along its rows, or those of its panels.
struct Rows<'a, 'o>(Few<'a, 'o>);

/// Elements of the widest vector register at most.
const WIDEST: usize = 64;
/// Vectors of a row that are summed at a time, over so many rows: those of all rows on the left then find them in the second cache.
const VECTORS: usize = 4;
const DEPTH: usize = 256;
/// Rows that are asked for before they are needed.
const AHEAD: usize = 8;

impl SimdOp for Rows<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        let Self(Few { mut out, x, b, order }) = self;
        if order == Order::Rows {
            return rows(isa, &mut out, x, b);
        }
        for first in (0..b.cols).step_by(WIDTH) {
            let width = WIDTH.min(b.cols - first);
            let panel = Matrix::new(&b.data[first * b.rows..][..width * b.rows], b.rows, width);
            let part = out.iter_mut().map(|row| &mut row[first..first + width]);
            rows(isa, &mut part.collect::<SmallVec<[_; MOST]>>(), x, panel);
        }
    }
}

#[inline(always)]
fn rows<I: Isa>(isa: I, out: &mut [&mut [f32]], x: &[&[f32]], b: Matrix<'_, f32>) {
    for begin in (0..b.rows).step_by(DEPTH) {
        let depth = begin..(begin + DEPTH).min(b.rows);
        for at in (0..b.cols).step_by(VECTORS * isa.f32().len()) {
            by_fours!(tile, isa, out, x, b, depth.clone(), at);
        }
    }
}

// Vectors are loaded in loops, not in closures: these would be compiled for no machine's vectors.

/// Adds the products of `M` rows and some columns.
#[inline(always)]
fn tile<I: Isa, const M: usize>(
    isa: I,
    out: &mut [&mut [f32]],
    x: &[&[f32]],
    b: Matrix<'_, f32>,
    depth: Range<usize>,
    at: usize,
) -> usize {
    let ops = isa.f32();
    let width = ops.len();
    if at + VECTORS * width <= b.cols {
        let mut sums = [[ops.zero(); VECTORS]; M];
        // As long as the loop is, so that no element's place is checked in it.
        let (begin, length) = (depth.start, depth.len());
        let mut own: [&[f32]; M] = [&[]; M];
        for (own, x) in own.iter_mut().zip(x) {
            *own = &x[begin..][..length];
        }
        for k in 0..length {
            let row = &b.data[(begin + k) * b.row_stride + at..][..VECTORS * width];
            let mut loaded = [ops.zero(); VECTORS];
            for (vector, loaded) in loaded.iter_mut().enumerate() {
                *loaded = ops.load(&row[vector * width..]);
                prefetch(row.as_ptr().wrapping_add(vector * width + AHEAD * b.row_stride));
            }
            for (sums, x) in sums.iter_mut().zip(own) {
                let x = ops.splat(x[k]);
                for (sum, loaded) in sums.iter_mut().zip(loaded) {
                    *sum = ops.mul_add(x, loaded, *sum);
                }
            }
        }
        for (out, sums) in out.iter_mut().zip(sums) {
            for (vector, sum) in sums.into_iter().enumerate() {
                let out = &mut out[at + vector * width..];
                ops.store(ops.add(ops.load(out), sum), out);
            }
        }
        return M;
    }
    for at in (at..b.cols).step_by(width) {
        let end = (at + width).min(b.cols);
        let mut sums = [ops.zero(); M];
        for k in depth.clone() {
            let row = &b.data[k * b.row_stride..];
            let loaded = ops.load_pad(&row[at..end]).0;
            for (sum, x) in sums.iter_mut().zip(x) {
                *sum = ops.mul_add(ops.splat(x[k]), loaded, *sum);
            }
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            let mut last = [0.0; WIDEST];
            ops.store(sum, &mut last);
            out[at..end].iter_mut().zip(last).for_each(|(out, sum)| *out += sum);
        }
    }
    M
}

/// `out += x b`, with `b` read along its columns.
struct Columns<'a, 'o>(Few<'a, 'o>);

impl SimdOp for Columns<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        let Self(Few { mut out, x, b, .. }) = self;
        for at in 0..b.cols {
            by_fours!(dots, isa, out, x, b, at);
        }
    }
}

/// Adds the products of `M` rows and a column.
#[inline(always)]
fn dots<I: Isa, const M: usize>(
    isa: I,
    out: &mut [&mut [f32]],
    x: &[&[f32]],
    b: Matrix<'_, f32>,
    number: usize,
) -> usize {
    let (ops, depth) = (isa.f32(), b.rows);
    let width = ops.len();
    let whole = depth / (2 * width) * (2 * width);
    let column = &b.data[number * b.col_stride..][..depth];
    // Of even vectors, and of odd ones.
    let mut sums = [[ops.zero(); 2]; M];
    for at in (0..whole).step_by(2 * width) {
        let (even, odd) = (ops.load(&column[at..]), ops.load(&column[at + width..]));
        for (sums, x) in sums.iter_mut().zip(x) {
            sums[0] = ops.mul_add(ops.load(&x[at..]), even, sums[0]);
            sums[1] = ops.mul_add(ops.load(&x[at + width..]), odd, sums[1]);
        }
    }
    for at in (whole..depth).step_by(width) {
        let end = (at + width).min(depth);
        let column = ops.load_pad(&column[at..end]).0;
        for (sums, x) in sums.iter_mut().zip(x) {
            sums[0] = ops.mul_add(ops.load_pad(&x[at..end]).0, column, sums[0]);
        }
    }
    for (out, [even, odd]) in out.iter_mut().zip(sums) {
        out[number] += ops.sum(ops.add(even, odd));
    }
    M
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::panels::lay_out;

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|n| ((n * 37) % 101) as f32 / 25.0 - 2.0).collect()
    }

    #[test]
    fn products_are_those_of_a_loop_in_both_layouts_and_equal_columns_are_equal() {
        // On two cores, the last column of 33 is alone.
        let sizes = [(1, 1), (3, 5), (17, 40), (129, 1000), (300, 7), (64, 4099), (2048, 33)];
        for (depth, cols) in sizes {
            for rows in [1, 2, 3, 7, 16] {
                let (x, data) = (numbers(rows * depth), numbers(depth * cols));
                let a = Matrix::new(&x, rows, depth);
                let by_rows = Matrix::new(&data, depth, cols);
                let place = |col: usize| (0..depth).map(move |row| row * cols + col);
                let transposed: Vec<f32> = (0..cols).flat_map(|col| place(col).map(|at| data[at])).collect();
                let by_columns = Matrix::new(&transposed, cols, depth).transposed();
                let mut panels = vec![0.0; depth * cols];
                lay_out(&transposed, depth, &mut panels);
                let mut by_panels = vec![f32::NAN; rows * cols];
                rows_by_panels(&mut by_panels, a, &panels, cols);
                let mut by_loop = vec![0.0; rows * cols];
                assert!(few_rows(&mut by_loop, a, by_rows, 0.0));
                assert_eq!(by_panels, by_loop, "{rows} x {depth} x {cols} by panels");
                let before = numbers(rows * cols);
                for (beta, b) in
                    [0.0, 1.0, 0.5].into_iter().flat_map(|beta| [(beta, by_rows), (beta, by_columns)])
                {
                    let mut out = before.clone();
                    assert!(few_rows(&mut out, a, b, beta));
                    for (at, (&out, &before)) in out.iter().zip(&before).enumerate() {
                        let (x, col) = (&x[at / cols * depth..][..depth], at % cols);
                        let products = place(col).zip(x).map(|(at, &x)| f64::from(data[at]) * f64::from(x));
                        let wanted = products.sum::<f64>() + f64::from(beta) * f64::from(before);
                        let near = (f64::from(out) - wanted).abs() < 1e-3 * (1.0 + wanted.abs());
                        assert!(near, "{rows} x {depth} x {cols}: {out} for {wanted}");
                    }
                }
                let equal = vec![0.1; depth * cols];
                for b in [Matrix::new(&equal, depth, cols), Matrix::new(&equal, cols, depth).transposed()] {
                    let mut out = vec![0.0; rows * cols];
                    assert!(few_rows(&mut out, a, b, 0.0));
                    for row in out.chunks(cols) {
                        assert!(row.iter().all(|sum| sum.to_bits() == row[0].to_bits()));
                    }
                }
            }
        }
        // More rows are multiplied some at a time.
        let (x, mut sums) = (numbers(35 * 3), vec![f32::NAN; 35 * 2]);
        rows_by_panels(&mut sums, Matrix::new(&x, 35, 3), &[1.0, 2.0, 10.0, 20.0, 100.0, 200.0], 2);
        for (x, sums) in x.chunks(3).zip(sums.chunks(2)) {
            let wanted = x[0] + 10.0 * x[1] + 100.0 * x[2];
            assert!((sums[0] - wanted).abs() < 1e-3 && (sums[1] - 2.0 * wanted).abs() < 1e-3);
        }
        let many = Matrix::new(&[0.0; 17], 17, 1);
        assert!(!few_rows(&mut [0.0; 17], many, Matrix::new(&[0.0], 1, 1), 0.0));
    }
}
