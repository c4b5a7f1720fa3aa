//! Convolutions of f32 whose channels have filters of their own, in one or two dimensions.
//!
//! A plane is laid out with its padding in scratch memory, of a row each phase of the stride by itself, so that an element of the
//! window is as far from one place as from any other. Vectors lie along rows; a few of them stay in registers while the window goes by.

use crate::conv::Sizes;
use crate::conv::direct::{POINT, copy_row};
use crate::conv::window::Axis;
use rten_simd::ops::{BitOps, NumOps};
use rten_simd::{Isa, SimdOp};
use std::ops::Range;

/// Vectors that are computed together.
const VECTORS: usize = 4;
/// Elements of the widest vector.
const WIDEST: usize = 64;
/// Strides along rows at most.
const STRIDE: usize = 4;
/// Elements that are laid out at a time, if not only one row is computed from them: what the first caches hold.
const BAND: usize = 64 << 10;

/// Where things are.
pub struct Depthwise {
    vertical: Axis,
    horizontal: Axis,
    /// Elements of a phase of a row.
    pitch: usize,
    /// Rows of the output that are computed at a time.
    band: usize,
}

impl Depthwise {
    /// `None` where it is for others.
    pub fn new(sizes: &Sizes) -> Option<Self> {
        let (vertical, horizontal) = match sizes.window.axes[..] {
            [horizontal] => (POINT, horizontal),
            [vertical, horizontal] => (vertical, horizontal),
            _ => return None,
        };
        let nothing = sizes.window.output() == 0 || sizes.window.input() == 0 || sizes.depth() == 0;
        let pitch = (horizontal.kernel.checked_sub(1)? * horizontal.dilation / horizontal.stride)
            .checked_add(horizontal.output)?;
        if !sizes.is_depthwise() || nothing || horizontal.stride > STRIDE || horizontal.begin >= pitch {
            return None;
        }
        let mut made = Self { vertical, horizontal, pitch, band: vertical.output };
        let row = made.row();
        let more = (vertical.kernel - 1).checked_mul(vertical.dilation)?;
        made.band = ((BAND / row).saturating_sub(more) / vertical.stride).clamp(1, vertical.output);
        // Windows that are far larger than what they move over would lay out more than there is.
        let laid = made.rows(made.band).checked_mul(row)?;
        (laid <= BAND.max(2 * sizes.window.input()) && laid <= u32::MAX as usize).then_some(made)
    }

    /// Elements of a row that is laid out.
    fn row(&self) -> usize {
        self.horizontal.stride * self.pitch
    }

    /// Rows that so many rows of the output meet.
    fn rows(&self, band: usize) -> usize {
        (band - 1) * self.vertical.stride + (self.vertical.kernel - 1) * self.vertical.dilation + 1
    }

    /// Elements of scratch memory: what is laid out, what the last vector may read behind it, and how far each element of the window is.
    pub fn scratch(&self) -> usize {
        self.rows(self.band) * self.row() + WIDEST + self.vertical.kernel * self.horizontal.kernel
    }

    /// How far elements of the window are from a place.
    fn offsets(&self, offsets: &mut [u32]) {
        let (vertical, horizontal) = (&self.vertical, &self.horizontal);
        for (number, offset) in offsets.iter_mut().enumerate() {
            let (row, column) = (number / horizontal.kernel, number % horizontal.kernel);
            let met = column * horizontal.dilation;
            let phase = met % horizontal.stride * self.pitch + met / horizontal.stride;
            *offset = (row * vertical.dilation * self.row() + phase) as u32;
        }
    }
}

/// One channel.
pub struct Plane<'a> {
    /// Where things are.
    pub depthwise: &'a Depthwise,
    /// The channel's elements.
    pub x: &'a [f32],
    /// The filter's weights.
    pub w: &'a [f32],
    /// What is added.
    pub bias: f32,
    /// Its plane of the output.
    pub out: &'a mut [f32],
    /// See [`Depthwise::scratch`].
    pub scratch: &'a mut [f32],
    /// Whether nothing was computed in this scratch memory yet.
    pub is_first: bool,
}

impl SimdOp for Plane<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        let Self { depthwise, x, w, bias, out, scratch, is_first } = self;
        let (laid, offsets) = scratch.split_at_mut(scratch.len() - w.len());
        let offsets: &mut [u32] = bytemuck::cast_slice_mut(offsets);
        if is_first {
            laid.fill(0.0);
            depthwise.offsets(offsets);
        }
        let (height, width) = (depthwise.vertical.output, depthwise.horizontal.output);
        for first in (0..height).step_by(depthwise.band) {
            let rows = first..(first + depthwise.band).min(height);
            depthwise.lay(isa, x, rows.clone(), laid);
            let out = &mut out[rows.start * width..rows.end * width];
            depthwise.compute(isa, laid, (w, &*offsets, bias), out);
        }
    }
}

impl Depthwise {
    /// Lays out what some rows of the output meet. Elements that are padding along rows are zeros already.
    #[inline(always)]
    fn lay<I: Isa>(&self, isa: I, x: &[f32], rows: Range<usize>, laid: &mut [f32]) {
        let (ops, down, right) = (isa.f32(), &self.vertical, &self.horizontal);
        let row = self.row();
        for number in 0..self.rows(rows.len()) {
            let at =
                (rows.start * down.stride + number).checked_sub(down.begin).filter(|&at| at < down.input);
            let Some(at) = at else {
                laid[number * row..][..row].fill(0.0);
                continue;
            };
            let from = &x[at * right.input..][..right.input];
            if right.stride > 1 {
                let phases = laid[number * row..][..row].chunks_exact_mut(self.pitch);
                phases.enumerate().for_each(|(phase, to)| copy_row(right, phase, from, to));
                continue;
            }
            // Whole vectors: behind the row are zeros, or what is laid out next.
            let from = &from[..right.input.min(self.pitch - right.begin)];
            let to = &mut laid[number * row + right.begin..];
            let mut vectors = from.chunks_exact(ops.len());
            let mut done = 0;
            for from in &mut vectors {
                ops.store(ops.load(from), &mut to[done..]);
                done += ops.len();
            }
            if !vectors.remainder().is_empty() {
                ops.store(ops.load_pad(vectors.remainder()).0, &mut to[done..]);
            }
        }
    }

    /// Some rows of the output.
    #[inline(always)]
    fn compute<I: Isa>(
        &self,
        isa: I,
        laid: &[f32],
        (w, offsets, bias): (&[f32], &[u32], f32),
        out: &mut [f32],
    ) {
        let ops = isa.f32();
        let (width, lanes, down) = (self.horizontal.output, ops.len(), self.vertical.stride * self.row());
        let (mut row, mut column) = (0, 0);
        while row * width < out.len() {
            // Where vectors begin, in what is laid out and in the output, and how many elements of the latter they are.
            let mut places = [(0, 0, 0); VECTORS];
            for place in &mut places {
                if row * width >= out.len() {
                    break;
                }
                *place = (row * down + column, row * width + column, lanes.min(width - column));
                column += lanes;
                if column >= width {
                    (row, column) = (row + 1, 0);
                }
            }
            let mut sums = [ops.splat(bias); VECTORS];
            for (&w, &offset) in w.iter().zip(offsets) {
                let w = ops.splat(w);
                for (sum, (from, _, _)) in sums.iter_mut().zip(places) {
                    *sum = ops.mul_add(ops.load(&laid[from + offset as usize..]), w, *sum);
                }
            }
            for (sum, (_, to, count)) in sums.into_iter().zip(places) {
                let to = &mut out[to..][..count];
                if count == lanes {
                    ops.store(sum, to);
                } else {
                    // SAFETY: there is room for as many elements as the mask has.
                    unsafe { ops.store_ptr_mask(sum, to.as_mut_ptr(), ops.first_n_mask(count)) };
                }
            }
        }
    }
}
