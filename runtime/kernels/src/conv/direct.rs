//! Convolutions of f32 in one or two dimensions, without unrolling them.
//!
//! A tile is a few filters by a few vectors of places; it stays in registers while all weights of these filters go by. Places are
//! counted along rows of the *frame*: the input with its padding, so that the element that meets a weight is as far from a place
//! as from any other. Where there is padding or a stride, a band of rows is laid out in scratch memory as a frame, each phase of the
//! stride by itself; else the input is one. (Zhang, Franchetti, Low: High Performance Zero-Memory Overhead Direct Convolutions, 2018,
//! shows why no more is needed.)

use crate::conv::finish::{Finish, First};
use crate::conv::window::Axis;
use crate::conv::{Part, Planes, Rows, Sizes};
use rten_simd::ops::{BitOps, NumOps};
use rten_simd::{Isa, SimdOp};
use std::ops::Range;

/// Filters of a tile.
const FILTERS: usize = 6;
/// Vectors of places of a tile, by the number of registers there are.
const MANY: usize = 4;
const FEW: usize = 2;
/// A frame has so many times the elements of its input at most, and of a band: each core has one.
const MOST: usize = 4;
const BANDS: usize = 8;
/// Phases of a stride at most.
const PHASES: usize = 32;
/// Elements of a row of a tile at most.
const WIDEST: usize = 128;
/// Elements of the widest vector.
const VECTOR: usize = 16;
/// Rows are computed one by one where that adds at most one place in this many.
const LITTLE: usize = 16;
/// Elements of a band of rows, laid out or computed: what the second cache holds.
const BAND: usize = 128 << 10;

/// Where things are in a frame.
pub struct Frame {
    /// Rows of the output, and places of each.
    rows: usize,
    width: usize,
    /// Elements of a row of the frame.
    pitch: usize,
    /// Rows of the output in a band.
    band: usize,
    vertical: Axis,
    horizontal: Axis,
    /// Phases of the strides that weights meet.
    row_phases: usize,
    column_phases: usize,
    /// Whether the input is the frame.
    is_input: bool,
    /// Whether tiles lie within rows: all places of the frame are places of the output, or vectors along a row have few places beyond it.
    is_along_rows: bool,
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// An axis without extent.
pub(super) const POINT: Axis =
    Axis { input: 1, output: 1, kernel: 1, stride: 1, dilation: 1, begin: 0, end: 0 };

impl Frame {
    /// `None` where there are more dimensions than two, or nothing to be done.
    pub fn new(sizes: &Sizes) -> Option<Self> {
        let (vertical, horizontal) = match sizes.window.axes[..] {
            [horizontal] => (POINT, horizontal),
            [vertical, horizontal] => (vertical, horizontal),
            _ => return None,
        };
        if sizes.window.output() == 0 || sizes.window.input() == 0 || sizes.depth() == 0 || sizes.to == 0 {
            return None;
        }
        // A stride beyond the window would lay out what nothing meets.
        let phases = |axis: &Axis| -> Option<usize> {
            // They repeat after so many.
            let count = axis.kernel.min(axis.stride / gcd(axis.stride, axis.dilation));
            (count <= PHASES).then_some(count)
        };
        let whole = |axis: &Axis| axis.stride == 1 && axis.begin == 0 && axis.end == 0;
        let is_input = whole(&vertical) && whole(&horizontal);
        let (rows, width, pitch) = if sizes.window.is_pointwise() {
            (sizes.window.output(), 1, 1)
        } else if is_input {
            (vertical.output, horizontal.output, horizontal.input)
        } else {
            let more = (horizontal.kernel - 1) * horizontal.dilation / horizontal.stride;
            (vertical.output, horizontal.output, horizontal.output.checked_add(more)?)
        };
        let is_along_rows =
            width == pitch || width.next_multiple_of(VECTOR) <= pitch + pitch / LITTLE && !is_input;
        // Rows that are laid out begin with a line of the cache.
        let pitch = if is_along_rows && pitch > width { pitch.next_multiple_of(VECTOR) } else { pitch };
        let mut frame = Self {
            rows,
            width,
            pitch,
            band: rows,
            row_phases: phases(&vertical)?,
            column_phases: phases(&horizontal)?,
            vertical,
            horizontal,
            is_input,
            is_along_rows,
        };
        let planes = if is_input { sizes.to } else { (sizes.from * frame.phases()).max(sizes.to) };
        let rows = BAND / pitch.saturating_mul(planes).max(1);
        frame.band = rows.max(if width == 1 { WIDEST } else { 4 }).min(frame.rows);
        // Wide dilations and strides would lay out more than there is.
        let input = sizes.from.checked_mul(sizes.window.input())?;
        let laid = sizes
            .from
            .checked_mul(frame.phases())?
            .checked_mul(frame.band.checked_add(frame.more_rows())?)?;
        let laid = if is_input { input } else { laid.checked_mul(pitch)? };
        // Offsets are of 32 bits.
        let fits = is_input || laid <= input.saturating_mul(MOST).clamp(BAND, BANDS * BAND);
        let fits = fits && laid <= u32::MAX as usize;
        fits.then_some(frame)
    }

    /// Rows that cores share: places, where they are not in rows.
    pub(super) fn shared_rows(&self) -> Rows {
        let (count, is_flat) = (self.rows, self.pitch == 1);
        let (step, least) = if is_flat { (WIDEST, 4 * WIDEST) } else { (1, 8) };
        Rows { count, step, least }
    }

    fn phases(&self) -> usize {
        self.row_phases * self.column_phases
    }

    /// Rows of the frame below the last one that a band begins with.
    fn more_rows(&self) -> usize {
        (self.vertical.kernel - 1) * self.vertical.dilation / self.vertical.stride
    }

    /// Elements of a phase of a channel.
    fn plane(&self) -> usize {
        if self.is_input {
            self.vertical.input * self.horizontal.input
        } else {
            (self.band + self.more_rows()) * self.pitch
        }
    }

    /// Elements of the frame of so many channels, and behind them what the last tile may read beyond. What is laid side by side behind them
    /// is aligned as the frame is: vectors that lie across two lines of the cache cost twice.
    fn elements(&self, channels: usize) -> usize {
        if self.is_input {
            0
        } else {
            (channels * self.phases() * self.plane() + WIDEST).next_multiple_of(WIDEST)
        }
    }

    /// Elements of scratch memory for a thread: the frame, a tile's input, and how far each weight's element is from its place.
    pub fn scratch(&self, sizes: &Sizes) -> usize {
        self.elements(sizes.from) + sizes.depth() * WIDEST + sizes.depth().next_multiple_of(WIDEST)
    }

    /// How far the elements that meet a filter's weights are from the place.
    fn offsets(&self, channels: usize, offsets: &mut [u32]) {
        let find = |phases: usize, axis: &Axis, at: usize| {
            let met = at * axis.dilation;
            (at % phases, met / axis.stride)
        };
        let mut offsets = offsets.iter_mut();
        for channel in 0..channels {
            for row in 0..self.vertical.kernel {
                let (row_phase, down) = find(self.row_phases, &self.vertical, row);
                for column in 0..self.horizontal.kernel {
                    let (column_phase, right) = find(self.column_phases, &self.horizontal, column);
                    let phase = (channel * self.row_phases + row_phase) * self.column_phases;
                    let at = (phase + column_phase) * self.plane() + down * self.pitch + right;
                    if let Some(offset) = offsets.next() {
                        *offset = at as u32;
                    }
                }
            }
        }
    }

    /// Lays out the frame for some rows of the output.
    #[inline(always)]
    fn lay(&self, x: &[f32], rows: Range<usize>, frame: &mut [f32]) {
        let (down, right) = (&self.vertical, &self.horizontal);
        let input = down.input * right.input;
        let mut planes = frame.chunks_exact_mut(self.plane());
        for x in x.chunks_exact(input) {
            for row_phase in (0..self.row_phases).map(|at| phase(down, at)) {
                for phase in (0..self.column_phases).map(|at| phase(right, at)) {
                    let Some(plane) = planes.next() else { return };
                    let count = rows.len() + self.more_rows();
                    for (number, to) in plane.chunks_exact_mut(self.pitch).take(count).enumerate() {
                        let row = ((rows.start + number) * down.stride + row_phase).checked_sub(down.begin);
                        match row.filter(|&row| row < down.input) {
                            Some(row) => {
                                copy_row(right, phase, &x[row * right.input..][..right.input], to, 0.0)
                            }
                            None => to.fill(0.0),
                        }
                    }
                }
            }
        }
    }
}

/// Where the elements of a phase lie within a stride.
fn phase(axis: &Axis, number: usize) -> usize {
    number * axis.dilation % axis.stride
}

/// A row of the input, every `stride`-th element from `phase` on, with padding.
#[inline(always)]
pub(super) fn copy_row(axis: &Axis, phase: usize, from: &[f32], to: &mut [f32], padding: f32) {
    let stride = axis.stride;
    // The first element that is within the input, and the first beyond it.
    let begin = axis.begin.saturating_sub(phase).div_ceil(stride).min(to.len());
    let end = (axis.begin + axis.input).saturating_sub(phase).div_ceil(stride).clamp(begin, to.len());
    to[..begin].fill(padding);
    to[end..].fill(padding);
    let to = &mut to[begin..end];
    if to.is_empty() {
        return;
    }
    let from = &from[begin * stride + phase - axis.begin..];
    match stride {
        1 => to.copy_from_slice(&from[..to.len()]),
        2 => {
            let (pairs, rest) = from.as_chunks::<2>();
            let (to, last) = to.split_at_mut(pairs.len().min(to.len()));
            to.iter_mut().zip(pairs).for_each(|(to, pair)| *to = pair[0]);
            last.iter_mut().zip(rest).for_each(|(to, &x)| *to = x);
        }
        _ => to.iter_mut().zip(from.iter().step_by(stride)).for_each(|(to, &x)| *to = x),
    }
}

/// Computes some filters.
pub struct Direct<'a> {
    pub frame: &'a Frame,
    pub part: Part<'a>,
}

impl SimdOp for Direct<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        let Self { frame, part } = self;
        let Part { sizes, x, w, bias, out, rows: wanted, scratch, is_first, finish, done } = part;
        let (places, depth) = (frame.rows * frame.width, sizes.depth());
        let filters = out.len() / places;
        let (laid, scratch) = scratch.split_at_mut(frame.elements(sizes.from));
        let (panel, offsets) = scratch.split_at_mut(depth * WIDEST);
        let offsets: &mut [u32] = bytemuck::cast_slice_mut(&mut offsets[..depth]);
        if is_first {
            frame.offsets(sizes.from, offsets);
        }
        for first in wanted.clone().step_by(frame.band) {
            let rows = first..(first + frame.band).min(wanted.end);
            let (x, start) = if frame.is_input {
                (x, rows.start * frame.pitch)
            } else {
                frame.lay(x, rows.clone(), laid);
                (&*laid, 0)
            };
            let mut band =
                Band { frame, x, start, w, depth, bias, offsets, out, rows: rows.clone(), panel, finish };
            // With many registers wide tiles, and long ones for a single filter.
            match (filters, isa.f32().len() >= 16 || cfg!(target_arch = "aarch64")) {
                (1, true) => band.compute::<I, 8>(isa),
                (1, false) => band.compute::<I, 4>(isa),
                (_, true) => band.compute::<I, MANY>(isa),
                (_, false) => band.compute::<I, FEW>(isa),
            }
            for filter in 0..filters {
                let at = filter * places + rows.start * frame.width;
                // SAFETY: nobody else has these rows.
                let out = unsafe { out.elements(at, rows.len() * frame.width) };
                if !frame.is_along_rows {
                    finish.from(at).apply_in(isa, out);
                }
                if let Some(done) = done {
                    done(at, out);
                }
            }
        }
    }
}

/// Some rows of the output.
struct Band<'a> {
    frame: &'a Frame,
    x: &'a [f32],
    /// Where in `x` the first place is.
    start: usize,
    w: &'a [f32],
    depth: usize,
    bias: Option<&'a [f32]>,
    offsets: &'a [u32],
    out: Planes<'a>,
    rows: Range<usize>,
    panel: &'a mut [f32],
    finish: Finish<'a>,
}

impl Band<'_> {
    /// All places, `V` vectors of them at a time; what is left at the end, as few as it has.
    #[inline(always)]
    fn compute<I: Isa, const V: usize>(&mut self, isa: I) {
        let width = isa.f32().len();
        let (row, pitch) = (self.frame.width, self.frame.pitch);
        // The last row has no padding behind it.
        let all = (self.rows.len() - 1) * pitch + row;
        let by_rows = self.frame.is_along_rows && pitch > row;
        let (step, length) = if by_rows { (pitch, row) } else { (all, all) };
        for begin in (0..all).step_by(step) {
            let end = begin + length;
            for at in (begin..end).step_by(V * width) {
                let count = (V * width).min(end - at);
                match count.div_ceil(width) {
                    1 => self.strip::<I, 1>(isa, at, count),
                    2 => self.strip::<I, 2>(isa, at, count),
                    3 if V == 4 => self.strip::<I, 3>(isa, at, count),
                    3 | 4 if V > 4 => self.strip::<I, 4>(isa, at, count),
                    _ => self.strip::<I, V>(isa, at, count),
                }
            }
        }
    }

    /// All filters at some places.
    #[inline(always)]
    fn strip<I: Isa, const V: usize>(&mut self, isa: I, at: usize, count: usize) {
        let filters = self.w.len() / self.depth;
        // Many filters meet these elements, which are far from each other: they are laid side by side.
        let packed = count < V * isa.f32().len() && self.frame.is_input || filters > 2 * FILTERS;
        if packed {
            self.pack::<I, V>(isa, at, count);
        }
        for first in (0..filters).step_by(FILTERS) {
            let range = first..(first + FILTERS).min(filters);
            match range.len() {
                1 => self.tile::<I, 1, V>(isa, at, count, first, packed),
                2 => self.tile::<I, 2, V>(isa, at, count, first, packed),
                3 => self.tile::<I, 3, V>(isa, at, count, first, packed),
                4 => self.tile::<I, 4, V>(isa, at, count, first, packed),
                5 => self.tile::<I, 5, V>(isa, at, count, first, packed),
                _ => self.tile::<I, FILTERS, V>(isa, at, count, first, packed),
            }
        }
    }

    #[inline(always)]
    fn pack<I: Isa, const V: usize>(&mut self, isa: I, at: usize, count: usize) {
        let ops = isa.f32();
        let tile = V * ops.len();
        for (to, &offset) in self.panel.chunks_exact_mut(tile).zip(self.offsets) {
            let from = &self.x[self.start + at + offset as usize..];
            if count == tile {
                let xs: [I::F32; V] = ops.load_many(from);
                for (v, x) in xs.into_iter().enumerate() {
                    ops.store(x, &mut to[v * ops.len()..]);
                }
            } else {
                to[..count].copy_from_slice(&from[..count]);
                to[count..].fill(0.0);
            }
        }
    }

    /// Some filters at some places.
    #[inline(always)]
    fn tile<I: Isa, const F: usize, const V: usize>(
        &mut self,
        isa: I,
        at: usize,
        count: usize,
        first: usize,
        packed: bool,
    ) {
        let ops = isa.f32();
        let depth = self.depth;
        let w: [&[f32]; F] = std::array::from_fn(|f| &self.w[(first + f) * depth..][..depth]);
        let sums = if packed {
            products::<I, F, V>(isa, w, &self.panel[..depth * V * ops.len()])
        } else {
            products_apart::<I, F, V>(isa, w, &self.x[self.start + at..], &self.offsets[..depth])
        };
        if self.frame.is_along_rows {
            return self.put(isa, sums, at, count, first);
        }
        let (pitch, width) = (self.frame.pitch, self.frame.width);
        let places = self.frame.rows * width;
        let mut buffer = [0.0; WIDEST];
        for (f, sums) in sums.into_iter().enumerate() {
            let bias = ops.splat(self.bias.map_or(0.0, |bias| bias[first + f]));
            for (v, sum) in sums.into_iter().enumerate() {
                ops.store(ops.add(sum, bias), &mut buffer[v * ops.len()..]);
            }
            let begin = (first + f) * places + self.rows.start * width;
            // SAFETY: nobody else has these rows.
            let out = unsafe { self.out.elements(begin, self.rows.len() * width) };
            // Along rows, without what lies in the padding.
            let mut done = 0;
            while done < count {
                let (row, column) = ((at + done) / pitch, (at + done) % pitch);
                let length = (pitch - column).min(count - done);
                let wanted = width.saturating_sub(column).min(length);
                out[row * width + column.min(width)..][..wanted]
                    .copy_from_slice(&buffer[done..done + wanted]);
                done += length;
            }
        }
    }
}

impl Band<'_> {
    /// Finishes and stores the sums of some filters at places of a row.
    #[inline(always)]
    fn put<I: Isa, const F: usize, const V: usize>(
        &mut self,
        isa: I,
        mut sums: [[I::F32; V]; F],
        at: usize,
        count: usize,
        first: usize,
    ) {
        let ops = isa.f32();
        let Frame { rows, width, pitch, .. } = *self.frame;
        let places = rows * width;
        let begin = first * places + (self.rows.start + at / pitch) * width + at % pitch;
        for (f, sums) in sums.iter_mut().enumerate() {
            let bias = ops.splat(self.bias.map_or(0.0, |bias| bias[first + f]));
            sums.iter_mut().for_each(|sum| *sum = ops.add(*sum, bias));
        }
        let index = |f: usize, v: usize| begin + f * places + v * ops.len();
        // Of the last vector there may be less.
        let (whole, rest) = (First::new(isa, ops.len()), First::new(isa, count - (V - 1) * ops.len()));
        let part = |v: usize| if v + 1 < V { whole } else { rest };
        for (f, sums) in sums.into_iter().enumerate() {
            for (v, sum) in sums.into_iter().enumerate() {
                let sum = self.finish.finished(isa, sum, index(f, v), part(v));
                // SAFETY: nobody else has these places.
                part(v).store(isa, sum, unsafe { self.out.elements(index(f, v), part(v).count()) });
            }
        }
    }
}

/// The products of rows of weights with vectors that begin at these offsets.
#[inline(always)]
fn products_apart<I: Isa, const F: usize, const V: usize>(
    isa: I,
    w: [&[f32]; F],
    x: &[f32],
    offsets: &[u32],
) -> [[I::F32; V]; F] {
    let ops = isa.f32();
    let mut sums = [[ops.zero(); V]; F];
    let w = w.map(|w| &w[..offsets.len()]);
    for (k, &offset) in offsets.iter().enumerate() {
        let xs: [I::F32; V] = ops.load_many(&x[offset as usize..]);
        for f in 0..F {
            // SAFETY: there are as many weights as offsets.
            let w = ops.splat(unsafe { *w[f].get_unchecked(k) });
            for v in 0..V {
                sums[f][v] = ops.mul_add(xs[v], w, sums[f][v]);
            }
        }
    }
    sums
}

/// The products of rows of weights with the columns of a panel, which has as many vectors in a row.
#[inline(always)]
pub fn products<I: Isa, const F: usize, const V: usize>(
    isa: I,
    w: [&[f32]; F],
    panel: &[f32],
) -> [[I::F32; V]; F] {
    let ops = isa.f32();
    let mut sums = [[ops.zero(); V]; F];
    let depth = panel.len() / (V * ops.len());
    let w = w.map(|w| &w[..depth]);
    for (k, xs) in panel.chunks_exact(V * ops.len()).enumerate() {
        let xs: [I::F32; V] = ops.load_many(xs);
        for f in 0..F {
            // SAFETY: there are as many weights as the panel has rows.
            let w = ops.splat(unsafe { *w[f].get_unchecked(k) });
            for v in 0..V {
                sums[f][v] = ops.mul_add(xs[v], w, sums[f][v]);
            }
        }
    }
    sums
}
