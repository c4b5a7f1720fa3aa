//! Convolutions of f32 whose planes have a few places: a tile of places would be mostly empty.
//!
//! What a window meets is laid out as a row, in the order of the weights, and each element of the output is the product of two
//! rows. Vectors lie along the rows.

use crate::conv::{Part, Sizes};
use rten_simd::ops::{BitOps, NumOps};
use rten_simd::{Isa, SimdOp};

/// Filters and places of a tile.
const FILTERS: usize = 4;
const PLACES: usize = 4;

/// Elements of scratch memory for a core: a row for each place.
pub fn scratch(sizes: &Sizes) -> usize {
    sizes.window.output() * sizes.depth()
}

/// Computes some filters.
pub struct Dots<'a>(pub Part<'a>);

impl SimdOp for Dots<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        let Part { sizes, x, w, bias, out, scratch, finish, done, .. } = self.0;
        // SAFETY: nobody else has these planes: rows of them are not shared.
        let out = unsafe { out.elements(0, out.len()) };
        let (places, depth) = (sizes.window.output(), sizes.depth());
        let rows: &[f32] = if sizes.window.is_pointwise() && places == 1 {
            x
        } else {
            lay(sizes, x, scratch);
            scratch
        };
        let rows = &rows[..places * depth];
        for (number, (w, out)) in w.chunks(FILTERS * depth).zip(out.chunks_mut(FILTERS * places)).enumerate()
        {
            match w.len() / depth {
                FILTERS => some::<I, FILTERS>(isa, w, rows, depth, out),
                3 => some::<I, 3>(isa, w, rows, depth, out),
                2 => some::<I, 2>(isa, w, rows, depth, out),
                _ => some::<I, 1>(isa, w, rows, depth, out),
            }
            if let Some(bias) = bias {
                let bias = &bias[number * FILTERS..];
                for (out, bias) in out.chunks_exact_mut(places).zip(bias) {
                    out.iter_mut().for_each(|out| *out += bias);
                }
            }
        }
        finish.apply_in(isa, out);
        if let Some(done) = done {
            done(0, out);
        }
    }
}

/// Some filters at all places.
#[inline(always)]
fn some<I: Isa, const F: usize>(isa: I, w: &[f32], rows: &[f32], depth: usize, out: &mut [f32]) {
    let places = out.len() / F;
    let w: [&[f32]; F] = std::array::from_fn(|filter| &w[filter * depth..][..depth]);
    let row = |place: usize| &rows[place * depth..][..depth];
    let many = places - places % PLACES;
    for first in (0..many).step_by(PLACES) {
        let sums = tile::<I, F, PLACES>(isa, w, std::array::from_fn(|place| row(first + place)));
        for (out, sums) in out.chunks_exact_mut(places).zip(sums) {
            out[first..first + PLACES].copy_from_slice(&sums);
        }
    }
    for place in many..places {
        let sums = tile::<I, F, 1>(isa, w, [row(place)]);
        out.chunks_exact_mut(places).zip(sums).for_each(|(out, [sum])| out[place] = sum);
    }
}

/// The products of some rows with some others, all of one length.
#[inline(always)]
fn tile<I: Isa, const A: usize, const B: usize>(isa: I, a: [&[f32]; A], b: [&[f32]; B]) -> [[f32; B]; A] {
    let ops = isa.f32();
    let (length, step) = (a[0].len(), ops.len());
    let mut sums = [[ops.zero(); B]; A];
    let whole = length - length % step;
    for at in (0..whole).step_by(step) {
        let b: [I::F32; B] = std::array::from_fn(|place| ops.load(&b[place][at..at + step]));
        for (sums, a) in sums.iter_mut().zip(a) {
            let a = ops.load(&a[at..at + step]);
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum = ops.mul_add(a, b, *sum);
            }
        }
    }
    if whole < length {
        let b: [I::F32; B] = std::array::from_fn(|place| ops.load_pad(&b[place][whole..]).0);
        for (sums, a) in sums.iter_mut().zip(a) {
            let a = ops.load_pad(&a[whole..]).0;
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum = ops.mul_add(a, b, *sum);
            }
        }
    }
    sums.map(|sums| sums.map(|sum| ops.sum(sum)))
}

/// For each place a row of what meets the weights.
#[inline(always)]
fn lay(sizes: &Sizes, x: &[f32], rows: &mut [f32]) {
    let rows = rows.chunks_exact_mut(sizes.depth()).take(sizes.window.output());
    rows.enumerate().for_each(|(place, row)| lay_place(sizes, x, place, row));
}

/// What meets the weights at a place, in their order.
#[inline(always)]
pub fn lay_place(sizes: &Sizes, x: &[f32], place: usize, to: &mut [f32]) {
    let window = &sizes.window;
    let Some(&last) = window.axes.last() else { return };
    let plane = window.input();
    let (row, column) = (place / last.output, place % last.output * last.stride);
    // Elements of the window's row that meet the input.
    let met = |bound: usize| bound.saturating_sub(column).div_ceil(last.dilation).min(last.kernel);
    let (begin, end) = (met(last.begin), met(last.begin + last.input));
    for (number, to) in to.chunks_exact_mut(last.kernel).enumerate() {
        let (channel, kernel_row) = (number / window.kernel_rows(), number % window.kernel_rows());
        let Some(input_row) = window.meeting(row, kernel_row).filter(|_| begin < end) else {
            to.fill(0.0);
            continue;
        };
        let from = &x[channel * plane + input_row * last.input..][..last.input];
        let from = &from[column + begin * last.dilation - last.begin..];
        to[..begin].fill(0.0);
        to[end..].fill(0.0);
        let to = &mut to[begin..end];
        match last.dilation {
            1 => to.iter_mut().zip(from).for_each(|(to, &x)| *to = x),
            by => to.iter_mut().zip(from.iter().step_by(by)).for_each(|(to, &x)| *to = x),
        }
    }
}
