//! Products with a right factor of 2, 4 or 8 bits an element, in blocks down its columns with a scale and a zero point each, as language models keep
//! their weights (ONNX Runtime's `MatMulNBits`).
//!
//! Some columns at a time become f32 in scratch memory, which stays in a core's cache while they are multiplied.

use crate::gemm::{Matrix, gemm_f32};
use crate::scales::load;
use rten_simd::{Isa, SimdOp};
use std::ops::Range;
use stepalloc_tensor::{OpError, View};
use stepalloc_threads as threads;

/// Columns that become f32 at a time: half a megabyte of 4,096 rows.
const COLUMNS: usize = 32;
/// The same where there are more rows on the left than [`FEW_ROWS`], which are laid out anew for each of these products.
const MANY_COLUMNS: usize = 128;
/// Rows on the left up to which they are read where they are.
const FEW_ROWS: usize = 16;
/// Scales that are read at a time.
const SCALES: usize = 32;

/// A right factor of few bits, column by column.
pub struct NBits<'a> {
    /// Bits of an element: 2, 4 or 8. Those of a byte are elements from its lowest bits on.
    pub bits: usize,
    /// Elements of a block. The last one of a column is filled up.
    pub block: usize,
    /// Rows.
    pub depth: usize,
    /// Columns.
    pub cols: usize,
    /// The elements.
    pub bytes: &'a [u8],
    /// A scale for each block of each column.
    pub scales: View<'a>,
    /// What is subtracted from the elements of each block.
    pub zeros: Zeros<'a>,
}

/// Zero points of blocks.
pub enum Zeros<'a> {
    /// The middle of the range.
    Middle,
    /// As many bits each as an element; each column begins with a byte of its own.
    Packed(&'a [u8]),
    /// Real numbers.
    Real(View<'a>),
}

/// Columns that one product takes.
fn columns(rows: usize, cols: usize) -> usize {
    if rows > FEW_ROWS { MANY_COLUMNS } else { COLUMNS }.min(cols)
}

/// f32 of scratch memory that one thread needs for a product of so many rows, columns, and so deep.
fn share(rows: usize, cols: usize, depth: usize) -> usize {
    columns(rows, cols).saturating_mul(depth.saturating_add(rows))
}

/// Bytes of scratch memory for a product of `rows`, columns and depth that `threads` share.
pub fn scratch(rows: usize, cols: usize, depth: usize, threads: usize) -> usize {
    let products = cols.div_ceil(columns(rows, cols).max(1));
    share(rows, cols, depth).saturating_mul(4 * threads.min(products))
}

/// Multiplies `a` by it; `store` is told the row, the first column, and the sums from there on.
pub fn multiply(
    a: Matrix<'_, f32>,
    b: &NBits<'_>,
    scratch: &mut [f32],
    store: &mut dyn FnMut(usize, usize, &[f32]),
) -> Result<(), OpError> {
    let (rows, width) = (a.rows, columns(a.rows, b.cols));
    if rows == 0 || width == 0 {
        return Ok(());
    }
    let share = share(rows, b.cols, b.depth);
    let many = scratch.len() / share;
    for first in (0..b.cols).step_by(width * many.max(1)) {
        let parts = (b.cols - first).div_ceil(width).min(many);
        threads::try_pieces(&mut scratch[..parts * share], share, &|part, scratch| {
            let begin = first + part * width;
            let columns = begin..b.cols.min(begin + width);
            let (panel, sums) = scratch.split_at_mut(width * b.depth);
            let (panel, sums) = (&mut panel[..columns.len() * b.depth], &mut sums[..rows * columns.len()]);
            let right = Matrix::new(&*panel, columns.len(), b.depth);
            if b.depth == 0 {
                sums.fill(0.0);
                return Ok(());
            }
            let (rows, depth) = (right.rows, right.cols);
            Panel { b, columns, panel }.dispatch();
            gemm_f32(sums, a, Matrix::new(panel, rows, depth).transposed(), (1.0, 0.0), None)
        })?;
        for part in 0..parts {
            let begin = first + part * width;
            let columns = width.min(b.cols - begin);
            let sums = &scratch[part * share + width * b.depth..][..rows * columns];
            sums.chunks_exact(columns).enumerate().for_each(|(row, sums)| store(row, begin, sums));
        }
    }
    Ok(())
}

/// Columns made f32, one after the other, compiled for the machine's vectors.
struct Panel<'b, 'a, 'p> {
    b: &'b NBits<'a>,
    columns: Range<usize>,
    panel: &'p mut [f32],
}

impl SimdOp for Panel<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, _: I) {
        let Self { b, columns, panel } = self;
        let blocks = b.depth.div_ceil(b.block);
        let block_bytes = b.block * b.bits / 8;
        for (column, panel) in columns.zip(panel.chunks_exact_mut(b.depth)) {
            let bytes = &b.bytes[column * blocks * block_bytes..];
            for (index, panel) in panel.chunks_mut(SCALES * b.block).enumerate() {
                let first = index * SCALES;
                let count = panel.len().div_ceil(b.block);
                let (mut scales, mut zeros) = ([0.0; SCALES], [0.0; SCALES]);
                load(&b.scales, column * blocks + first, &mut scales[..count]);
                b.zeros(column, blocks, first, &mut zeros[..count]);
                for (at, to) in panel.chunks_mut(b.block).enumerate() {
                    let bytes = &bytes[(first + at) * block_bytes..][..block_bytes];
                    unpack(b.bits, bytes, |x| (x - zeros[at]) * scales[at], to);
                }
            }
        }
    }
}

impl NBits<'_> {
    /// Zero points of some blocks of a column, from block `first` on.
    #[inline(always)]
    fn zeros(&self, column: usize, blocks: usize, first: usize, to: &mut [f32]) {
        match &self.zeros {
            Zeros::Middle => to.fill((1u32 << (self.bits - 1)) as f32),
            Zeros::Real(view) => load(view, column * blocks + first, to),
            Zeros::Packed(bytes) => {
                let row = &bytes[column * (blocks * self.bits).div_ceil(8)..];
                for (at, to) in to.iter_mut().enumerate() {
                    let bit = (first + at) * self.bits;
                    *to = f32::from(row[bit / 8] >> (bit % 8) & (u8::MAX >> (8 - self.bits)));
                }
            }
        }
    }
}

/// The elements of a block, by a function of each.
#[inline(always)]
fn unpack(bits: usize, bytes: &[u8], real: impl Fn(f32) -> f32, to: &mut [f32]) {
    match bits {
        8 => to.iter_mut().zip(bytes).for_each(|(to, &byte)| *to = real(byte.into())),
        4 => {
            let (pairs, last) = to.as_chunks_mut::<2>();
            for (pair, &byte) in pairs.iter_mut().zip(bytes) {
                *pair = [real((byte & 15).into()), real((byte >> 4).into())];
            }
            if let ([last], Some(&byte)) = (last, bytes.get(pairs.len())) {
                *last = real((byte & 15).into());
            }
        }
        _ => {
            for (to, &byte) in to.chunks_mut(4).zip(bytes) {
                for (at, to) in to.iter_mut().enumerate() {
                    *to = real((byte >> (2 * at) & 3).into());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stepalloc_tensor::DataType;

    /// Elements, scales and zero points by the formula, against products with them.
    #[test]
    fn products_are_those_with_the_reals_that_the_bits_stand_for() {
        for (bits, block, depth, cols) in [(4, 16, 50, 70), (8, 32, 64, 300), (2, 16, 33, 3), (4, 32, 31, 40)]
        {
            let blocks = usize::div_ceil(depth, block);
            let levels = 1usize << bits;
            let element = |col: usize, k: usize| (col * 31 + k * 7 + k / 5) % levels;
            let zero = |col: usize, block: usize| (col * 5 + block * 3) % levels;
            let scale = |col: usize, block: usize| 0.25 + ((col + 2 * block) % 7) as f32 / 16.0;
            let mut bytes = vec![0u8; cols * blocks * block * bits / 8];
            let zero_bytes = (blocks * bits).div_ceil(8);
            let mut zeros = vec![0u8; cols * zero_bytes];
            let mut scales = Vec::new();
            for col in 0..cols {
                for k in 0..depth {
                    let bit = (col * blocks * block + k) * bits;
                    bytes[bit / 8] |= (element(col, k) << (bit % 8)) as u8;
                }
                for block in 0..blocks {
                    zeros[col * zero_bytes + block * bits / 8] |=
                        (zero(col, block) << (block * bits % 8)) as u8;
                    scales.push(scale(col, block));
                }
            }
            let reals: Vec<f32> =
                (0..cols * blocks).map(|at| zero(at / blocks, at % blocks) as f32).collect();
            let shape = [cols * blocks];
            let view = |elements| View {
                dtype: DataType::F32,
                shape: &shape,
                bytes: bytemuck::cast_slice(elements),
            };
            for (which, rows) in [(0, 1), (1, 1), (2, 5), (1, 40), (0, 40)] {
                let told = [Zeros::Middle, Zeros::Packed(&zeros), Zeros::Real(view(&reals))];
                let zeros = told.into_iter().nth(which).expect("one of three");
                let b = NBits { bits, block, depth, cols, bytes: &bytes, scales: view(&scales), zeros };
                let a: Vec<f32> = (0..rows * depth).map(|at| (at * 13 % 17) as f32 / 8.0 - 1.0).collect();
                let mut out = vec![f32::NAN; rows * cols];
                let mut space = vec![f32::NAN; scratch(rows, cols, depth, 2) / 4];
                multiply(Matrix::new(&a, rows, depth), &b, &mut space, &mut |row, col, sums| {
                    out[row * cols + col..][..sums.len()].copy_from_slice(sums);
                })
                .expect("it can be multiplied");
                for (at, &out) in out.iter().enumerate() {
                    let (row, col) = (at / cols, at % cols);
                    let weight = |k: usize| {
                        let zero = if which == 0 { levels / 2 } else { zero(col, k / block) };
                        (element(col, k) as f32 - zero as f32) * scale(col, k / block)
                    };
                    let wanted: f32 = (0..depth).map(|k| a[row * depth + k] * weight(k)).sum();
                    assert!(
                        (out - wanted).abs() < 1e-3 * (1.0 + wanted.abs()),
                        "{bits} bits, {rows} rows, {col}"
                    );
                }
            }
        }
    }
}
