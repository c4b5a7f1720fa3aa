//! Products of matrices of integers of 8 bits less their zero points, summed in 32 bits.
//!
//! They are rten-gemm's, of u8 by i8, where its kernel's sums are exact. Where they pass through 16 bits, which saturate (x86-64 without
//! VNNI), differences from zero points are multiplied as f32, so few at a time that sums are exact (see [`Panels`]).

use crate::gemm::{Matrix, PARALLEL, Panels, load, view};
use rten_gemm::{GemmExecutor, GemmInputA, GemmInputB, GemmOptions, QuantParams};
use std::sync::OnceLock;
use stepalloc_tensor::OpError;

thread_local! {
    /// It chooses its code for the machine, and cannot be sent to another thread.
    static EXECUTOR: GemmExecutor<u8, i8, i32> = GemmExecutor::default();
}

/// Bytes of the widest vector.
const WIDEST: usize = 64;
/// Rows that are multiplied one after the other, where the right factor is large.
const FEW: usize = 16;

/// Whether rten-gemm's sums are exact on this machine.
fn exact() -> bool {
    static EXACT: OnceLock<bool> = OnceLock::new();
    *EXACT.get_or_init(|| EXECUTOR.with(|executor| !executor.may_saturate()))
}

/// A matrix, row by row, and the zero points of its rows, if it is the left factor, or columns.
#[derive(Clone, Copy)]
pub struct Quantized<'a, T> {
    /// The elements.
    pub matrix: Matrix<'a, T>,
    /// One for each row or column.
    pub zeros: &'a [T],
}

impl<T: Copy + Default + PartialEq> Quantized<'_, T> {
    /// As rten-gemm takes them: none where all are 0, and nothing where they differ, for beyond its first rows or columns it takes
    /// the first of them again.
    fn params(&self) -> Option<Option<QuantParams<'_, T>>> {
        let zero_point = self.zeros;
        let first = zero_point.first().copied().unwrap_or_default();
        let alike = zero_point.iter().all(|&zero| zero == first);
        alike.then(|| (first != T::default()).then_some(QuantParams { zero_point }))
    }
}

/// Bytes of scratch memory for a product of so many rows, columns, and so deep.
pub fn scratch(rows: usize, cols: usize, depth: usize) -> usize {
    if exact() { 4 * cols } else { Panels::new::<i32>(rows, cols, depth).scratch() }
}

/// `out = (a - a's zero points) (b - b's zero points)`, row by row; sums wrap.
pub fn gemm_i8(
    out: &mut [i32],
    a: Quantized<'_, u8>,
    b: Quantized<'_, i8>,
    scratch: &mut [u8],
) -> Result<(), OpError> {
    if exact() { in_integers(out, a, b, scratch) } else { in_f32(out, a, b, scratch) }
}

fn in_integers(
    out: &mut [i32],
    a: Quantized<'_, u8>,
    b: Quantized<'_, i8>,
    scratch: &mut [u8],
) -> Result<(), OpError> {
    let (a_quant, b_quant, alike) = match (a.params(), b.params()) {
        (Some(a_quant), Some(b_quant)) => (a_quant, b_quant, true),
        _ => (None, None, false),
    };
    // A row at a time, the right factor is read where it is, vectors of it at a time; for more rows it is laid out anew first.
    let (rows, cols) = (a.matrix.rows, b.matrix.cols);
    let by_row = rows <= FEW && cols >= WIDEST && cols * a.matrix.cols >= PARALLEL;
    let height = if by_row { 1 } else { rows };
    let right = GemmInputB::Unpacked(view(b.matrix)?);
    for (first, out) in (0..rows).step_by(height).zip(out.chunks_mut((height * cols).max(1))) {
        let zeros =
            a_quant.map(|params| QuantParams { zero_point: &params.zero_point[first..first + height] });
        let left = GemmInputA::Unpacked(view(a.matrix.part(first..first + height, 0..a.matrix.cols))?);
        let options = GemmOptions { a_quant: zeros, b_quant, ..GemmOptions::default() };
        let done = EXECUTOR.with(|executor| executor.gemm(out, left, right, options));
        done.map_err(|error| OpError::shape(error.to_string()))?;
    }
    if !alike {
        subtract_zeros(out, a, b, bytemuck::cast_slice_mut(&mut scratch[..4 * b.matrix.cols]));
    }
    Ok(())
}

/// Takes from the products of elements what their zero points add to them.
fn subtract_zeros(out: &mut [i32], a: Quantized<'_, u8>, b: Quantized<'_, i8>, col_sums: &mut [i32]) {
    let (cols, depth) = (b.matrix.cols, a.matrix.cols);
    col_sums.fill(0);
    for row in 0..depth {
        let row = &b.matrix.data[row * b.matrix.row_stride..][..cols];
        col_sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum = sum.wrapping_add(x.into()));
    }
    for (row, out) in out.chunks_exact_mut(cols).enumerate() {
        let zero = i32::from(a.zeros[row]);
        let elements = &a.matrix.data[row * a.matrix.row_stride..][..depth];
        // Of (a - zero) (b - b's zero), what is with b's zero.
        let row_sum = elements.iter().fold(0i32, |sum, &x| sum.wrapping_add(i32::from(x) - zero));
        for ((out, &col_sum), &b_zero) in out.iter_mut().zip(&*col_sums).zip(b.zeros) {
            let with_zeros = zero.wrapping_mul(col_sum).wrapping_add(row_sum.wrapping_mul(b_zero.into()));
            *out = out.wrapping_sub(with_zeros);
        }
    }
}

fn in_f32(
    out: &mut [i32],
    a: Quantized<'_, u8>,
    b: Quantized<'_, i8>,
    scratch: &mut [u8],
) -> Result<(), OpError> {
    let (rows, cols, depth) = (a.matrix.rows, b.matrix.cols, a.matrix.cols);
    Panels::new::<i32>(rows, cols, depth).multiply(
        scratch,
        [rows, cols, depth],
        &|to, rows, cols| {
            let zeros = &a.zeros[rows.start..];
            load(to, a.matrix.part(rows, cols), |row, _, x| f32::from(x) - f32::from(zeros[row]));
        },
        &|to, rows, cols| {
            let zeros = &b.zeros[cols.start..];
            load(to, b.matrix.part(rows, cols), |_, col, x| f32::from(x) - f32::from(zeros[col]));
        },
        &mut |row, col, sums: &[i32]| out[row * cols + col..][..sums.len()].copy_from_slice(sums),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Products both ways, where rten-gemm's are exact, else in f32 alone.
    fn products(a: Quantized<'_, u8>, b: Quantized<'_, i8>) -> Vec<Vec<i32>> {
        let (rows, cols, depth) = (a.matrix.rows, b.matrix.cols, a.matrix.cols);
        let mut scratch = vec![0u32; Panels::new::<i32>(rows, cols, depth).scratch() / 4];
        let mut in_f32_sums = vec![7; rows * cols];
        in_f32(&mut in_f32_sums, a, b, bytemuck::cast_slice_mut(&mut scratch)).unwrap();
        let mut all = vec![in_f32_sums];
        if exact() {
            let mut sums = vec![7; rows * cols];
            in_integers(&mut sums, a, b, bytemuck::cast_slice_mut(&mut vec![0u32; cols])).unwrap();
            all.push(sums);
        }
        all
    }

    #[test]
    fn sums_are_those_of_loops_in_64_bits() {
        let sizes = [
            [1, 1, 1],
            [1, 70, 9],
            [9, 1, 70],
            [3, 5, 0],
            [17, 40, 33],
            [70, 130, 300],
            [5, 300, 261],
            [20, 70, 1100],
        ];
        let of = |len: usize, step: usize| (0..len).map(move |at| (at * step % 251) as u8);
        // All 0, all alike, and each another.
        let zeros = |len: usize, kind: usize| match kind {
            0 => vec![0; len],
            1 => vec![200; len],
            _ => of(len, 91).map(|zero| zero ^ 3).collect::<Vec<u8>>(),
        };
        for ([rows, cols, depth], kinds) in
            sizes.into_iter().flat_map(|size| (0..9).map(move |kinds| (size, kinds)))
        {
            let (a, a_zeros): (Vec<_>, _) = (of(rows * depth, 37).collect(), zeros(rows, kinds % 3));
            let b: Vec<_> = of(depth * cols, 53).map(|x| x as i8).collect();
            let b_zeros: Vec<_> = zeros(cols, kinds / 3).into_iter().map(|zero| zero as i8).collect();
            let left = Quantized { matrix: Matrix::new(&a, rows, depth), zeros: &a_zeros };
            let right = Quantized { matrix: Matrix::new(&b, depth, cols), zeros: &b_zeros };
            let expected: Vec<_> = (0..rows * cols)
                .map(|at| {
                    let (row, col) = (at / cols, at % cols);
                    let term = |k| {
                        (i64::from(a[row * depth + k]) - i64::from(a_zeros[row]))
                            * (i64::from(b[k * cols + col]) - i64::from(b_zeros[col]))
                    };
                    (0..depth).map(term).sum::<i64>() as i32
                })
                .collect();
            for sums in products(left, right) {
                assert_eq!(sums, expected, "{rows} x {depth} by {depth} x {cols}, zero points {kinds}");
            }
        }
    }

    #[test]
    fn the_largest_elements_do_not_saturate() {
        let (a, b) = (vec![255u8; 3000], vec![-128i8; 3000]);
        let left = Quantized { matrix: Matrix::new(&a, 1, 3000), zeros: &[0] };
        let right = Quantized { matrix: Matrix::new(&b, 3000, 1), zeros: &[127] };
        for sums in products(left, right) {
            assert_eq!(sums, [255 * -255 * 3000]);
        }
        let (left, right) = (
            Quantized { matrix: Matrix::new(&a, 20, 150), zeros: &[0; 20] },
            Quantized { matrix: Matrix::new(&b, 150, 20), zeros: &[0; 20] },
        );
        for sums in products(left, right) {
            assert_eq!(sums, [255 * -128 * 150; 400]);
        }
    }
}
