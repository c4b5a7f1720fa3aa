//! Products of matrices of bytes with scales and zero points, whose sums become bytes again at once, or reals, or stay.

use super::dot4::{self, Product, Quad, Store, WIDTH, pack};
use crate::scales::Rounded;
use bytemuck::Pod;
use stepalloc_threads as threads;

/// The right factor.
#[derive(Clone, Copy)]
pub enum Right<'a> {
    /// Signed, in panels; one for all left ones.
    Packed(&'a [Quad]),
    /// As it is, one for each left one; what makes elements signed: the highest bit, or nothing.
    Plain(&'a [u8], u8),
}

/// Where results go, row by row.
pub enum Out<'o> {
    /// To bytes.
    Bytes(&'o mut [u8], Rounded),
    /// To reals.
    Reals(&'o mut [f32]),
    /// As they are.
    Sums(&'o mut [i32]),
}

/// Products of matrices of one size, one after the other.
#[derive(Clone, Copy)]
pub struct Products<'a> {
    /// Rows, columns and elements of each.
    pub size: [usize; 3],
    /// The left factors, one after the other.
    pub left: &'a [u8],
    /// What makes their elements unsigned: the highest bit, or nothing.
    pub flip: u8,
    /// Their zero point, once they are unsigned.
    pub left_zero: u8,
    /// The right factors.
    pub right: Right<'a>,
    /// Their zero point, once they are signed: one for all columns, or one for each.
    pub right_zeros: &'a [i32],
    /// Of packed factors the sums of each column's elements less its zero point, for what the left zero point makes of them; `None` where
    /// [`Self::adds`] has that already.
    pub col_sums: Option<&'a [i32]>,
    /// Is added to the sums of each column: the bias, and what `col_sums` says.
    pub adds: Option<&'a [i32]>,
    /// What sums are multiplied with besides `scale`: one for all columns, or one for each.
    pub scales: &'a [f32],
    /// What all sums are multiplied with.
    pub scale: f32,
    /// Is added to what becomes reals: one for all columns, or one for each.
    pub bias: Option<&'a [f32]>,
}

/// Bytes of scratch memory for a core, whose parts begin at multiples of four: rows, their sums, a panel, and ones.
pub fn scratch(size: [usize; 3], flips: bool, is_packed: bool) -> usize {
    parts(size, flips, is_packed).iter().sum()
}

fn parts([rows, _, depth]: [usize; 3], flips: bool, is_packed: bool) -> [usize; 4] {
    let row = 4 * dot4::quads(depth);
    let laid = if flips || !depth.is_multiple_of(4) { rows * row } else { 0 };
    let (panel, ones) = if is_packed { (0, 0) } else { (row * WIDTH, row) };
    [4 * rows, laid, panel, ones]
}

impl Products<'_> {
    /// Computes them, in [`scratch`] memory for each core that takes part.
    pub fn run(&self, out: Out<'_>, scratch_memory: &mut [u8]) {
        match out {
            Out::Bytes(out, rounded) => self.each(out, scratch_memory, &|to, sum, scale, _| {
                *to = rounded.sum(sum, scale);
            }),
            Out::Reals(out) => self.each(out, scratch_memory, &|to, sum, scale, bias| {
                *to = sum as f32 * scale + bias;
            }),
            Out::Sums(out) => self.each(out, scratch_memory, &|to, sum, _, _| *to = sum),
        }
    }

    /// Cores take some rows each, or some panels of the columns where there is one row.
    fn each<T: Pod>(
        &self,
        out: &mut [T],
        scratch_memory: &mut [u8],
        make: &(impl Fn(&mut T, i32, f32, f32) + Sync),
    ) {
        let [_, cols, depth] = self.size;
        let for_one = scratch(self.size, self.flip != 0, matches!(self.right, Right::Packed(_))).max(1);
        let small = self.left.len().saturating_mul(cols) < crate::gemm::PARALLEL;
        let cores = if small { 1 } else { (scratch_memory.len() / for_one).max(1) };
        let rows = self.left.len() / depth.max(1);
        if rows == 1 {
            let share = cols.div_ceil(cores).next_multiple_of(WIDTH);
            let piece = |number: usize, out: &mut [T], scratch: &mut [u8]| {
                self.some(self.left, 0, number * share, out, scratch, make);
            };
            return threads::pieces_of_two((out, share), (scratch_memory, for_one), 1, &piece);
        }
        let share = rows.div_ceil(cores);
        let piece = |number: usize, out: &mut [T], scratch: &mut [u8]| {
            self.rows(number * share, out, scratch, make);
        };
        threads::pieces_of_two((out, share * cols), (scratch_memory, for_one), 1, &piece);
    }

    /// Some rows of all, from `first` on.
    fn rows<T>(
        &self,
        first: usize,
        out: &mut [T],
        scratch: &mut [u8],
        make: &impl Fn(&mut T, i32, f32, f32),
    ) {
        let [rows, cols, depth] = self.size;
        let (mut out, mut next) = (out, first);
        while !out.is_empty() {
            let count = (rows - next % rows).min(out.len() / cols);
            let (here, rest) = std::mem::take(&mut out).split_at_mut(count * cols);
            let left = &self.left[next * depth..][..count * depth];
            self.some(left, next / rows, 0, here, scratch, make);
            (out, next) = (rest, next + count);
        }
    }

    /// Some rows of one product, from a column on, where a panel begins.
    fn some<T>(
        &self,
        left: &[u8],
        index: usize,
        first: usize,
        out: &mut [T],
        scratch: &mut [u8],
        make: &impl Fn(&mut T, i32, f32, f32),
    ) {
        let [_, cols, depth] = self.size;
        let width = out.len() * depth / left.len();
        let quads = dot4::quads(depth);
        let is_packed = matches!(self.right, Right::Packed(_));
        let [sums, laid, panel, _] = parts(self.size, self.flip != 0, is_packed);
        let (row_sums, rest) = scratch.split_at_mut(sums);
        let (laid, rest) = rest.split_at_mut(laid);
        let (panel, ones) = rest.split_at_mut(panel);
        let row_sums: &mut [i32] = &mut bytemuck::cast_slice_mut(row_sums)[..left.len() / depth];
        let with_zeros = self.right_zeros.iter().any(|&zero| zero != 0);
        if with_zeros {
            for (sum, row) in row_sums.iter_mut().zip(left.chunks_exact(depth)) {
                *sum = row.iter().map(|&x| i32::from(x ^ self.flip)).sum();
            }
        }
        let left = if laid.is_empty() {
            left
        } else {
            let laid = &mut laid[..row_sums.len() * 4 * quads];
            for (to, row) in laid.chunks_exact_mut(4 * quads).zip(left.chunks_exact(depth)) {
                to[depth..].fill(0);
                to.iter_mut().zip(row).for_each(|(to, &x)| *to = x ^ self.flip);
            }
            laid
        };
        let (left, _) = left.as_chunks::<4>();
        let (panel, _) = panel.as_chunks_mut::<4>();
        let (mut adds, mut zeros, mut col_sums) = ([0; WIDTH], [0; WIDTH], [0; WIDTH]);
        // To add -0 leaves all numbers as they are, to add 0 does not.
        let (mut scales, mut biases) = ([0.0; WIDTH], [-0.0; WIDTH]);
        for begin in (first..first + width).step_by(WIDTH) {
            let (number, count) = (begin / WIDTH, (first + width - begin).min(WIDTH));
            of_columns(self.right_zeros, begin, &mut zeros[..count]);
            of_columns(self.scales, begin, &mut scales[..count]);
            scales[..count].iter_mut().for_each(|scale| *scale *= self.scale);
            if let Some(bias) = self.bias {
                of_columns(bias, begin, &mut biases[..count]);
            }
            match self.adds {
                Some(told) => adds[..count].copy_from_slice(&told[begin..][..count]),
                None => adds.fill(0),
            }
            let panel = match self.right {
                Right::Packed(panels) => {
                    if let Some(told) = self.col_sums {
                        col_sums[..count].copy_from_slice(&told[begin..][..count]);
                    }
                    &panels[number * quads * WIDTH..][..quads * WIDTH]
                }
                Right::Plain(right, flip) => {
                    let right = &right[index * depth * cols..][..depth * cols];
                    pack(|row| &right[row * cols + begin..][..count], depth, flip, panel);
                    ones.fill(0);
                    ones[..depth].fill(1);
                    let (ones, _) = ones.as_chunks::<4>();
                    let store = Keep(&mut col_sums);
                    Product { rows: ones, quads, panel, cols: count, cols_signed: true, store }.run();
                    for (sum, zero) in col_sums.iter_mut().zip(zeros) {
                        *sum = sum.wrapping_sub(zero.wrapping_mul(depth as i32));
                    }
                    &*panel
                }
            };
            // What the left zero point makes of the columns.
            for (add, sum) in adds.iter_mut().zip(col_sums) {
                *add = add.wrapping_sub(sum.wrapping_mul(self.left_zero.into()));
            }
            let store = Put {
                out: &mut *out,
                width,
                begin: begin - first,
                row_sums: with_zeros.then_some(&*row_sums),
                zeros: &zeros,
                adds: &adds,
                scales: &scales,
                biases: &biases,
                make,
            };
            Product { rows: left, quads, panel, cols: count, cols_signed: true, store }.run();
        }
    }
}

/// Of some columns those that are one for all, or one for each.
fn of_columns<T: Copy>(all: &[T], first: usize, to: &mut [T]) {
    match *all {
        [one] => to.fill(one),
        _ => to.copy_from_slice(&all[first..][..to.len()]),
    }
}

/// Puts results where they belong.
struct Put<'o, 'a, T, F> {
    out: &'o mut [T],
    /// Its columns, and which of them is the panel's first.
    width: usize,
    begin: usize,
    row_sums: Option<&'a [i32]>,
    zeros: &'a [i32; WIDTH],
    adds: &'a [i32; WIDTH],
    scales: &'a [f32; WIDTH],
    biases: &'a [f32; WIDTH],
    make: &'a F,
}

impl<T, F: Fn(&mut T, i32, f32, f32)> Store for Put<'_, '_, T, F> {
    #[inline(always)]
    fn store(&mut self, row: usize, first: usize, sums: &[i32]) {
        let count = sums.len();
        let out = &mut self.out[row * self.width + self.begin + first..][..count];
        let (adds, zeros) = (&self.adds[first..][..count], &self.zeros[first..][..count]);
        let (scales, biases) = (&self.scales[first..][..count], &self.biases[first..][..count]);
        // Of columns without zero points it is nothing.
        let row_sum = self.row_sums.map_or(0, |sums| sums[row]);
        let of_cols = adds.iter().zip(zeros).zip(scales.iter().zip(biases));
        for ((to, &sum), ((add, zero), (&scale, &bias))) in out.iter_mut().zip(sums).zip(of_cols) {
            let sum = sum.wrapping_add(*add).wrapping_sub(zero.wrapping_mul(row_sum));
            (self.make)(to, sum, scale, bias);
        }
    }
}

/// Keeps the sums of one row.
pub(crate) struct Keep<'o>(pub &'o mut [i32; WIDTH]);

impl Store for Keep<'_> {
    #[inline(always)]
    fn store(&mut self, _: usize, first: usize, sums: &[i32]) {
        self.0[first..][..sums.len()].copy_from_slice(sums);
    }
}
