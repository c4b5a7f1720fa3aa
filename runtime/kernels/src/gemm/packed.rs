//! Products with a constant right factor whose columns lie side by side in panels, made once.
//!
//! A tile is a few vectors of columns by a few rows of the left factor, each of which is an element at a time, wherever that is: convolutions
//! are such products as well ([`across`](crate::conv::across)), whose rows are places.

use crate::conv::finish::First;
use crate::gemm::prepacked::Layout;
use crate::gemm::{Matrix, PARALLEL};
use crate::strided::{Axis, copy};
use rten_gemm::BiasVector;
use rten_simd::ops::{BitOps, NumOps};
use rten_simd::{Isa, SimdOp};
use stepalloc_tensor::{DataType, OpError, Tensor, Type};
use stepalloc_threads as threads;

/// Columns of a panel: the four vectors that are summed at a time where they are widest.
pub const PANEL: usize = 64;
/// Panels are filled up to a multiple of this many columns: the widest vector.
pub const FILLED: usize = 16;
/// Rows of the left factor in a tile.
pub const ROWS: usize = 6;
/// Elements of a column that go by at a time: as many of a panel lie in the first cache.
const BLOCK: usize = 128;
/// Rows of the left factor whose sums are kept until they are finished: the second cache holds them.
const STRIP: usize = 256;
/// Elements of a line of the cache.
const LINE: usize = 16;
/// Elements that are laid out at a time.
const PIECE: usize = 1 << 18;

/// A right factor in panels, by groups of columns.
pub struct Columns {
    panels: Tensor,
    depth: usize,
    /// Of a group.
    count: usize,
    /// The same, filled up.
    filled: usize,
}

impl Columns {
    /// Lays a tensor of f32 out. Of what is copied from a file when it is used no copy stays.
    pub fn pack(tensor: &Tensor, layout: Layout) -> Result<Self, OpError> {
        let Layout { rows: depth, cols, transposed, groups, taps } = layout;
        let count = cols / groups;
        let filled = count.next_multiple_of(FILLED);
        let ty = Type::new(DataType::F32, [groups, filled, depth]);
        let ty = ty.ok_or_else(|| OpError::shape("the weights are too large"))?;
        let mut panels = Tensor::try_zeroed(ty)?;
        let laid = panels.view_mut().elements::<f32>();
        if transposed {
            // A panel at a time, or a group.
            let columns = if groups == 1 { PANEL } else { count };
            tensor.pieces(columns * depth * size_of::<f32>(), &mut |begin, piece| {
                let first = begin / (depth * size_of::<f32>());
                let (group, within) = (first / count, first % count);
                let laid = &mut laid[(group * filled + within) * depth..][..(filled - within) * depth];
                let piece: &[f32] = bytemuck::cast_slice(piece);
                for (columns, panel) in piece.chunks(PANEL * depth).zip(laid.chunks_mut(PANEL * depth)) {
                    let (width, channels) = (panel.len() / depth, depth / taps);
                    let axes = [
                        Axis { length: taps, from: 1, to: channels * width },
                        Axis { length: channels, from: taps as isize, to: width },
                        Axis { length: columns.len() / depth, from: depth as isize, to: 1 },
                    ];
                    copy(&axes, columns, 0, panel, 0);
                }
            });
        } else {
            // Some rows at a time, of all groups.
            let rows = (PIECE / cols).max(1);
            tensor.pieces(rows * cols * size_of::<f32>(), &mut |begin, piece| {
                let first = begin / (cols * size_of::<f32>());
                let piece: &[f32] = bytemuck::cast_slice(piece);
                for (group, laid) in laid.chunks_exact_mut(filled * depth).enumerate() {
                    for (number, panel) in laid.chunks_mut(PANEL * depth).enumerate() {
                        let width = panel.len() / depth;
                        let length = width.min(count - number * PANEL);
                        let axes = [
                            Axis { length: piece.len() / cols, from: cols as isize, to: width },
                            Axis { length, from: 1, to: 1 },
                        ];
                        copy(&axes, piece, group * count + number * PANEL, panel, first * width);
                    }
                }
            });
        }
        Ok(Self { panels, depth, count, filled })
    }
}

/// How many vectors of columns are computed at a time from column `from` on: as many as there are registers for, within a panel.
#[inline(always)]
pub fn vectors<I: Isa>(isa: I, from: usize, end: usize) -> usize {
    let lanes = isa.f32().len();
    let most = if lanes >= 16 || cfg!(target_arch = "aarch64") { 4 } else { 2 };
    match (end - from).div_ceil(lanes).min(most).min((PANEL - from % PANEL) / lanes) {
        3 => 2,
        count => count,
    }
}

impl Columns {
    /// Elements of a column.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Sums of `vectors` vectors of columns from `column` on, of a group, for rows of the left factor that begin at `bases` in `x`, with elements as
    /// far from there as `offsets` say, which rise, and which meet the columns' elements from `first` on. Where it
    /// `begins`, sums are these, else they are added. Those of a row are as far from those of the next as a panel is wide.
    #[inline(always)]
    pub fn sums<I: Isa>(
        &self,
        isa: I,
        (x, bases): (&[f32], &[u32]),
        (first, offsets): (usize, &[u32]),
        (group, column, vectors): (usize, usize, usize),
        (sums, begins): (&mut [f32], bool),
    ) {
        for (number, offsets) in offsets.chunks(BLOCK).enumerate() {
            let (block, sums) = ((first + number * BLOCK, offsets), (&mut *sums, begins && number == 0));
            match vectors {
                4 => self.block::<I, 4>(isa, (x, bases), block, (group, column), sums),
                2 => self.block::<I, 2>(isa, (x, bases), block, (group, column), sums),
                _ => self.block::<I, 1>(isa, (x, bases), block, (group, column), sums),
            }
        }
    }

    /// The same of `V` vectors and at most [`BLOCK`] elements of the columns.
    #[inline(always)]
    fn block<I: Isa, const V: usize>(
        &self,
        isa: I,
        (x, bases): (&[f32], &[u32]),
        (first, offsets): (usize, &[u32]),
        (group, column): (usize, usize),
        (sums, begins): (&mut [f32], bool),
    ) {
        let Self { panels, depth, filled, .. } = self;
        let begin = column / PANEL * PANEL;
        let width = PANEL.min(filled - begin);
        let panel = &panels.view().elements::<f32>()[(group * filled + begin) * depth..][..width * depth];
        let mut w = Weights { panel: &panel[first * width + column % PANEL..], width, next: panel.as_ptr() };
        for (number, (bases, sums)) in bases.chunks(ROWS).zip(sums.chunks_mut(ROWS * PANEL)).enumerate() {
            // The first tiles ask for what the first tile of the next block reads: a line for each element of a column.
            let ahead = (first + offsets.len()) * width + number * BLOCK * LINE;
            if number * LINE < width {
                w.next = panel.as_ptr().wrapping_add(ahead);
            }
            let sums = (sums, begins);
            match bases.len() {
                1 => tile::<I, V, 1>(isa, w, (x, bases), offsets, sums),
                2 => tile::<I, V, 2>(isa, w, (x, bases), offsets, sums),
                3 | 4 => tile::<I, V, 4>(isa, w, (x, bases), offsets, sums),
                _ => tile::<I, V, ROWS>(isa, w, (x, bases), offsets, sums),
            }
        }
    }
}

/// `out = alpha a b + beta out`, with a bias, where `b` is a group of columns; `out` is row by row.
pub fn gemm_packed(
    out: &mut [f32],
    a: Matrix<'_, f32>,
    (b, group): (&Columns, usize),
    (alpha, beta): (f32, f32),
    bias: Option<BiasVector<'_, f32>>,
) -> Result<(), OpError> {
    let cols = b.count;
    let reach = a.rows.saturating_sub(1) * a.row_stride + a.cols.saturating_sub(1) * a.col_stride;
    if a.cols != b.depth || Some(out.len()) != a.rows.checked_mul(cols) {
        return Err(OpError::shape(format!("{} x {} times {} x {cols}", a.rows, a.cols, b.depth)));
    }
    if reach > u32::MAX as usize {
        return Err(OpError::unsupported("a factor of more than 16 GiB"));
    }
    if out.is_empty() {
        return Ok(());
    }
    let is_small = out.len().saturating_mul(a.cols) < PARALLEL;
    let cores = if is_small { 1 } else { threads::count() };
    let share = a.rows.div_ceil(cores).next_multiple_of(ROWS);
    threads::pieces(out, share * cols, 1, &|number, out| {
        let first = number * share;
        let (a, bias) = (Matrix { data: &a.data[first * a.row_stride..], rows: out.len() / cols, ..a }, bias);
        let bias = match bias {
            Some(BiasVector::Column(bias)) => Some(BiasVector::Column(&bias[first..])),
            bias => bias,
        };
        Product { out, a, b, group, alpha, beta, bias }.dispatch();
    });
    Ok(())
}

/// Some rows of a product.
struct Product<'a> {
    out: &'a mut [f32],
    a: Matrix<'a, f32>,
    b: &'a Columns,
    group: usize,
    alpha: f32,
    beta: f32,
    bias: Option<BiasVector<'a, f32>>,
}

impl SimdOp for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        let Self { out, a, b, group, .. } = self;
        let (lanes, cols) = (isa.f32().len(), b.count);
        let mut sums = [0.0; STRIP * PANEL];
        let strip = a.rows.div_ceil(a.rows.div_ceil(STRIP)).next_multiple_of(ROWS).min(STRIP);
        for (number, out) in out.chunks_mut(strip * cols).enumerate() {
            let first = number * strip;
            let mut bases = [0; STRIP];
            let bases = &mut bases[..out.len() / cols];
            bases.iter_mut().zip(first..).for_each(|(base, row)| *base = (row * a.row_stride) as u32);
            let mut column = 0;
            while column < cols {
                let count = vectors(isa, column, cols);
                for begin in (0..b.depth).step_by(BLOCK) {
                    let mut offsets = [0; BLOCK];
                    let offsets = &mut offsets[..BLOCK.min(b.depth - begin)];
                    offsets.iter_mut().zip(begin..).for_each(|(to, k)| *to = (k * a.col_stride) as u32);
                    let (x, block) = ((a.data, &*bases), (begin, &*offsets));
                    let sums = (&mut sums[..], begin == 0);
                    match count {
                        4 => b.block::<I, 4>(isa, x, block, (group, column), sums),
                        2 => b.block::<I, 2>(isa, x, block, (group, column), sums),
                        _ => b.block::<I, 1>(isa, x, block, (group, column), sums),
                    }
                }
                let end = (column + count * lanes).min(cols);
                for at in (column..end).step_by(lanes) {
                    let part = First::new(isa, end - at);
                    for (row, out) in out.chunks_exact_mut(cols).enumerate() {
                        let sum = &sums[row * PANEL + at - column..];
                        let factors = (self.alpha, self.beta);
                        finish(isa, sum, (&mut out[at..], part), factors, self.bias, (first + row, at));
                    }
                }
                column = end;
            }
        }
    }
}

/// Puts a vector of sums where it belongs.
#[inline(always)]
fn finish<I: Isa>(
    isa: I,
    sums: &[f32],
    (out, part): (&mut [f32], First<I>),
    (alpha, beta): (f32, f32),
    bias: Option<BiasVector<'_, f32>>,
    (row, column): (usize, usize),
) {
    let ops = isa.f32();
    let mut sum = ops.load(sums);
    if alpha != 1.0 {
        sum = ops.mul(sum, ops.splat(alpha));
    }
    if beta != 0.0 {
        sum = ops.mul_add(part.load(isa, out), ops.splat(beta), sum);
    }
    match bias {
        Some(BiasVector::Row(bias)) => sum = ops.add(sum, part.load(isa, &bias[column..])),
        Some(BiasVector::Column(bias)) => sum = ops.add(sum, ops.splat(bias[row])),
        None => {}
    }
    part.store(isa, sum, out);
}

/// Rows of weights, which are `width` elements apart.
#[derive(Clone, Copy)]
struct Weights<'a> {
    panel: &'a [f32],
    width: usize,
    /// Where lines begin that are soon read.
    next: *const f32,
}

/// `V` vectors of filters at `P` places, or at as many as there are: sums are begun, or added to.
#[inline(always)]
fn tile<I: Isa, const V: usize, const P: usize>(
    isa: I,
    Weights { panel, width, next }: Weights<'_>,
    (x, bases): (&[f32], &[u32]),
    offsets: &[u32],
    (sums, begins): (&mut [f32], bool),
) {
    let ops = isa.f32();
    let lanes = ops.len();
    let count = bases.len().min(P);
    // What is missing is computed as the last place is, and left.
    let base: [usize; P] = std::array::from_fn(|p| bases[p.min(count - 1)] as usize);
    // Offsets rise.
    let last = offsets[offsets.len() - 1] as usize;
    assert!(base.iter().all(|base| base + last < x.len()), "windows are within the input");
    assert!((offsets.len() - 1) * width + V * lanes <= panel.len(), "there are as many weights");
    let mut acc = [[ops.zero(); V]; P];
    for (k, &offset) in offsets.iter().enumerate() {
        ops.prefetch(next.wrapping_add(k * LINE));
        // SAFETY: as many weights were there, see above.
        let w: [I::F32; V] =
            std::array::from_fn(|v| unsafe { ops.load_ptr(panel.as_ptr().add(k * width + v * lanes)) });
        for p in 0..P {
            // SAFETY: the window of each place is within the input, see above.
            let x = ops.splat(unsafe { *x.get_unchecked(base[p] + offset as usize) });
            for v in 0..V {
                acc[p][v] = ops.mul_add(w[v], x, acc[p][v]);
            }
        }
    }
    // Sums of blocks are added to each other, which rounds less often than one sum of all elements.
    for (acc, sums) in acc.into_iter().zip(sums.chunks_exact_mut(PANEL)).take(count) {
        for (v, acc) in acc.into_iter().enumerate() {
            let sums = &mut sums[v * lanes..];
            let sum = if begins { acc } else { ops.add(ops.load(sums), acc) };
            ops.store(sum, sums);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::gemm_f32;

    #[test]
    fn products_are_those_of_the_factor_as_it_was() {
        // Numbers that are exact in every order of summing.
        let numbers =
            |count: usize, step: usize| (0..count).map(|n| (n * step % 23) as f32 - 11.0).collect::<Vec<_>>();
        for (rows, depth, cols) in
            [(1, 5, 32), (3, 300, 49), (7, 128, 130), (20, 129, 16), (301, 70, 66), (64, 1, 200)]
        {
            let (given, right) = (numbers(rows * depth, 7), numbers(depth * cols, 5));
            let (former, bias) = (numbers(rows * cols, 3), numbers(rows.max(cols), 9));
            for (turned, transposed) in [(false, false), (false, true), (true, true)] {
                let a = if turned {
                    Matrix::new(&given, depth, rows).transposed()
                } else {
                    Matrix::new(&given, rows, depth)
                };
                let plain = if transposed {
                    Matrix::new(&right, cols, depth).transposed()
                } else {
                    Matrix::new(&right, depth, cols)
                };
                let tensor = Tensor::from_elements([right.len()], &right).expect("as many as the shape says");
                let layout = Layout { rows: depth, cols, transposed, groups: 1, taps: 1 };
                let packed = Columns::pack(&tensor, layout).expect("there is memory");
                let terms =
                    [None, Some(BiasVector::Row(&bias[..cols])), Some(BiasVector::Column(&bias[..rows]))];
                for (bias, factors) in terms.into_iter().zip([(1.0, 0.0), (2.0, 0.5), (0.5, 1.0)]) {
                    let (mut wanted, mut made) = (former.clone(), former.clone());
                    gemm_f32(&mut wanted, a, plain, factors, bias).expect("it can be multiplied");
                    gemm_packed(&mut made, a, (&packed, 0), factors, bias).expect("it can be multiplied");
                    assert_eq!(
                        wanted, made,
                        "{rows} x {depth} x {cols}, {turned}, {transposed}, {factors:?}"
                    );
                }
                let few = Matrix::new(&given, rows, depth - 1);
                assert!(gemm_packed(&mut former.clone(), few, (&packed, 0), (1.0, 0.0), None).is_err());
            }
        }
    }
}
