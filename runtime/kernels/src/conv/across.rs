//! Convolutions of f32 with constant weights, whose vectors lie across filters.
//!
//! Weights of [`PANEL`] filters lie side by side in panels, made once ([`Columns`]). A tile is a few vectors of filters by a few places,
//! each of which is an element of the input at a time, wherever that is: rows of a plane need not fill vectors, nothing is laid out
//! for strides, and an input is read where it is unless it is padded. Sums are turned when they are finished, from filters side by side to
//! places side by side. (Georganas et al.: Anatomy of High-Performance Deep Learning Convolutions on SIMD Architectures, 2018, has
//! such tiles for tensors that are blocked by channels.)

use crate::conv::direct::POINT;
use crate::conv::finish::{Finish, First};
use crate::conv::parts::Parts;
use crate::conv::window::Axis;
use crate::conv::{Done, Planes, Rows, Share, Sizes, by_groups};
use crate::gemm::packed::{Columns, FILLED, PANEL, ROWS, vectors};
use crate::gemm::prepacked::Layout;
use rten_simd::ops::{BitOps, NumOps};
use rten_simd::{Isa, SimdOp};
use std::ops::Range;

/// Places whose sums are kept until they are finished: a multiple of a tile's, in the first cache.
pub(super) const STRIP: usize = 16 * ROWS;
/// Elements of a band of padded rows: what the second cache holds.
const BAND: usize = 128 << 10;
/// A padded input has at most this many times the input's elements.
const MOST: usize = 4;
/// Fewer weights of a filter do not pay for the turning of its sums, by whether its window is a point.
const LEAST_DEPTH: [usize; 2] = [128, 96];
/// Cores share filters where there are at least this many, and rows otherwise.
const FILTERS: usize = 4 * PANEL;
/// With more places, elements of neighbouring channels are on pages far from each other, and laid side by side when they are read for a
/// window of one point ([`direct`](super::direct)).
const MOST_PLACES: usize = 400;

/// Where things are.
pub struct Across {
    /// Rows of the output, and places of each.
    rows: usize,
    width: usize,
    /// Rows of the output that are computed at a time.
    band: usize,
    pub(super) vertical: Axis,
    pub(super) horizontal: Axis,
    /// Elements of a row of the padded input, and rows of it that a band meets.
    pitch: usize,
    met: usize,
    is_padded: bool,
    /// Where most of what a window meets is padding, parts of the output are computed by themselves, each without it.
    parts: Option<Parts>,
}

impl Across {
    /// `None` where it is not worth it.
    pub fn new(sizes: &Sizes) -> Option<Self> {
        let (vertical, horizontal) = match sizes.window.axes[..] {
            [horizontal] => (POINT, horizontal),
            [vertical, horizontal] => (vertical, horizontal),
            _ => return None,
        };
        let (places, is_point) = (sizes.window.output(), sizes.window.kernel() == 1);
        let is_worth = sizes.depth() >= LEAST_DEPTH[usize::from(is_point)] && sizes.to >= FILLED;
        if !is_worth || places < ROWS || is_point && places > MOST_PLACES {
            return None;
        }
        let (rows, width) = (vertical.output, horizontal.output);
        let parts = Parts::new(&vertical, &horizontal);
        if parts.is_some() {
            let (pitch, met) = (horizontal.input, vertical.input);
            let fits = sizes.from.checked_mul(sizes.window.input())? <= u32::MAX as usize;
            let band = rows;
            let made = Self { rows, width, band, vertical, horizontal, pitch, met, is_padded: false, parts };
            return fits.then_some(made);
        }
        let meets = |axis: &Axis, places: usize| {
            (places - 1)
                .checked_mul(axis.stride)?
                .checked_add((axis.kernel - 1).checked_mul(axis.dilation)? + 1)
        };
        let pads =
            |axis: &Axis| axis.begin > 0 || meets(axis, axis.output).is_none_or(|met| met > axis.input);
        let is_padded = pads(&vertical) || pads(&horizontal);
        let pitch = if is_padded { meets(&horizontal, width)? } else { horizontal.input };
        let band = match is_padded {
            true => (BAND / sizes.from.checked_mul(pitch)? / vertical.stride).clamp(1, rows),
            false => rows,
        };
        let met = if is_padded { meets(&vertical, band)? } else { vertical.input };
        let laid = sizes.from.checked_mul(met)?.checked_mul(pitch)?;
        // Wide dilations would lay out more than there is; offsets are of 32 bits.
        let input = sizes.from.checked_mul(sizes.window.input())?;
        let fits = !is_padded || laid <= input.saturating_mul(MOST).max(BAND);
        (fits && laid <= u32::MAX as usize).then_some(Self {
            rows,
            width,
            band,
            vertical,
            horizontal,
            pitch,
            met,
            is_padded,
            parts,
        })
    }

    /// How the weights are packed.
    pub fn layout(&self, sizes: &Sizes) -> Layout {
        let Sizes { to, group: groups, .. } = *sizes;
        let taps = if self.parts.is_some() { sizes.window.kernel() } else { 1 };
        Layout { rows: sizes.depth(), cols: to * groups, transposed: true, groups, taps }
    }

    /// Rows that cores share where filters are too few for all of them to have whole panels.
    fn shared_rows(&self, sizes: &Sizes) -> Rows {
        let is_by_filters = self.parts.is_some() || sizes.batch * sizes.group * sizes.to >= FILTERS;
        Rows { count: self.rows, step: 1, least: if is_by_filters { usize::MAX } else { 4 } }
    }

    /// Elements of a padded plane.
    fn plane(&self) -> usize {
        self.met * self.pitch
    }

    fn laid(&self, sizes: &Sizes) -> usize {
        if self.is_padded { (sizes.from * self.plane()).next_multiple_of(FILLED) } else { 0 }
    }

    /// Elements of scratch memory for a core: the padded input, sums, and how far each weight's element is from its place.
    pub fn scratch(&self, sizes: &Sizes) -> usize {
        STRIP * PANEL + self.laid(sizes) + sizes.depth().next_multiple_of(FILLED)
    }

    /// How far the elements that meet a filter's weights are from the place.
    fn offsets(&self, channels: usize, offsets: &mut [u32]) {
        let mut offsets = offsets.iter_mut();
        for channel in 0..channels {
            for row in 0..self.vertical.kernel {
                for column in 0..self.horizontal.kernel {
                    let down = channel * self.met + row * self.vertical.dilation;
                    if let Some(offset) = offsets.next() {
                        *offset = (down * self.pitch + column * self.horizontal.dilation) as u32;
                    }
                }
            }
        }
    }

    /// Pads what some rows of the output meet. Padding along rows is there already.
    #[inline(always)]
    fn pad<I: Isa>(&self, isa: I, x: &[f32], rows: &Range<usize>, laid: &mut [f32]) {
        let (ops, down, right) = (isa.f32(), &self.vertical, &self.horizontal);
        let wanted = right.input.min(self.pitch.saturating_sub(right.begin));
        let rest = First::new(isa, wanted % ops.len());
        let planes = x.chunks_exact(down.input * right.input).zip(laid.chunks_exact_mut(self.plane()));
        for (x, plane) in planes {
            for (number, to) in plane.chunks_exact_mut(self.pitch).enumerate() {
                let row = (rows.start * down.stride + number).checked_sub(down.begin);
                let Some(row) = row.filter(|&row| row < down.input) else {
                    to.fill(0.0);
                    continue;
                };
                if wanted == 0 {
                    continue;
                }
                let (from, to) = (&x[row * right.input..][..wanted], &mut to[right.begin..][..wanted]);
                let mut vectors = from.chunks_exact(ops.len());
                let mut places = to.chunks_exact_mut(ops.len());
                for (from, to) in vectors.by_ref().zip(&mut places) {
                    ops.store(ops.load(from), to);
                }
                rest.store(isa, rest.load(isa, vectors.remainder()), places.into_remainder());
            }
        }
    }
}

/// Computes a convolution, in scratch memory for each core that takes part.
pub fn convolve(
    (across, sizes): (&Across, &Sizes),
    out: &mut [f32],
    x: &[f32],
    (filters, bias): (&Columns, Option<&[f32]>),
    scratch: &mut [f32],
    (finish, done): (Finish<'_>, Option<Done<'_>>),
) {
    let (places, image) = (sizes.window.output(), sizes.from * sizes.window.input());
    let for_one = across.scratch(sizes);
    by_groups(sizes, out, (scratch, for_one), across.shared_rows(sizes), &|share| {
        let Share { next, image_group, within, out, rows, scratch, is_first } = share;
        let group = image_group % sizes.group;
        let done = done.map(|done| move |index: usize, part: &mut [f32]| done(next * places + index, part));
        Tiles {
            across,
            sizes,
            x: &x[image_group * image..][..image],
            filters,
            group,
            first: within,
            bias: bias.map(|bias| &bias[group * sizes.to + within..]),
            out,
            rows,
            scratch,
            is_first,
            finish: finish.from(next * places),
            done: done.as_ref().map(|done| done as Done<'_>),
        }
        .dispatch();
    });
}

/// Some filters of a group, over one image.
pub(super) struct Tiles<'a> {
    pub(super) across: &'a Across,
    pub(super) sizes: &'a Sizes,
    /// The group's channels of the image.
    pub(super) x: &'a [f32],
    pub(super) filters: &'a Columns,
    pub(super) group: usize,
    /// The first filter of the group that is computed; there are as many as planes of the output.
    pub(super) first: usize,
    /// Of these filters.
    pub(super) bias: Option<&'a [f32]>,
    pub(super) out: Planes<'a>,
    /// The rows of these planes that are computed.
    rows: Range<usize>,
    scratch: &'a mut [f32],
    /// Whether nothing was computed in this scratch memory yet.
    is_first: bool,
    /// What becomes of the sums: of these planes of the output.
    pub(super) finish: Finish<'a>,
    pub(super) done: Option<Done<'a>>,
}

impl SimdOp for Tiles<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(mut self, isa: I) {
        let (across, sizes) = (self.across, self.sizes);
        let depth = self.filters.depth();
        let (sums, scratch) = std::mem::take(&mut self.scratch).split_at_mut(STRIP * PANEL);
        let (laid, offsets) = scratch.split_at_mut(across.laid(sizes));
        let offsets: &mut [u32] = bytemuck::cast_slice_mut(&mut offsets[..depth]);
        if let Some(parts) = &across.parts {
            return self.by_parts(isa, parts, offsets, sums);
        }
        if self.is_first {
            laid.fill(0.0);
            across.offsets(sizes.from, offsets);
        }
        for first in self.rows.clone().step_by(across.band) {
            let rows = first..(first + across.band).min(self.rows.end);
            let x = if across.is_padded {
                across.pad(isa, self.x, &rows, laid);
                &*laid
            } else {
                &self.x[rows.start * across.vertical.stride * across.pitch..]
            };
            self.band(isa, x, offsets, sums, rows);
        }
    }
}

impl Tiles<'_> {
    /// Some rows of the output.
    #[inline(always)]
    fn band<I: Isa>(&mut self, isa: I, x: &[f32], offsets: &[u32], sums: &mut [f32], rows: Range<usize>) {
        let lanes = isa.f32().len();
        let places = self.across.rows * self.across.width;
        let (from, to) = (rows.start * self.across.width, rows.end * self.across.width);
        let filters = self.first..self.first + self.out.len() / places;
        let mut next = filters.start / lanes * lanes;
        while next < filters.end {
            let count = vectors(isa, next, filters.end);
            for begin in (from..to).step_by(STRIP) {
                let strip = begin..(begin + STRIP).min(to);
                let mut bases = [0u32; STRIP];
                self.across.bases(strip.start - from, &mut bases[..strip.len()]);
                let bases = &bases[..strip.len()];
                self.filters.sums(isa, (x, bases), (0, offsets), (self.group, next, count), (sums, true));
                for filter in (next..(next + count * lanes).min(filters.end)).step_by(TURNED) {
                    self.put(isa, &sums[filter - next..], filter, &filters, &strip);
                }
            }
            next += count * lanes;
        }
        for filter in 0..filters.len() {
            let at = filter * places + from;
            if let Some(done) = self.done {
                // SAFETY: nobody else has these rows.
                done(at, unsafe { self.out.elements(at, to - from) });
            }
        }
    }

    /// Finishes the sums of [`TURNED`] filters at some places, which are a panel's width from each other.
    #[inline(always)]
    fn put<I: Isa>(
        &mut self,
        isa: I,
        sums: &[f32],
        filter: usize,
        wanted: &Range<usize>,
        strip: &Range<usize>,
    ) {
        let ops = isa.f32();
        let places = self.across.rows * self.across.width;
        let mut block = [0.0; TURNED * TURNED];
        let (whole, rest) = (First::new(isa, ops.len()), First::new(isa, strip.len() % ops.len()));
        for begin in strip.clone().step_by(TURNED) {
            turn(isa, &sums[(begin - strip.start) * PANEL..], &mut block);
            let count = TURNED.min(strip.end - begin);
            for filter in filter.max(wanted.start)..(filter + TURNED).min(wanted.end) {
                let plane = filter - wanted.start;
                let bias = ops.splat(self.bias.map_or(0.0, |bias| bias[plane]));
                let row = &block[filter % TURNED * TURNED..][..TURNED];
                for at in (0..count).step_by(ops.len()) {
                    let sum = ops.add(ops.load(&row[at..]), bias);
                    let first = if count - at < ops.len() { rest } else { whole };
                    let index = plane * places + begin + at;
                    let sum = self.finish.finished(isa, sum, index, first);
                    // SAFETY: nobody else has these places, and the planes have them.
                    first.store(isa, sum, unsafe { self.out.elements(index, first.count()) });
                }
            }
        }
    }
}

/// Filters and places whose sums are turned at a time: as many as the widest vector has.
pub(super) const TURNED: usize = 16;

/// Turns sums, of filters side by side, into rows of places.
#[inline(always)]
pub(super) fn turn<I: Isa>(isa: I, sums: &[f32], block: &mut [f32; TURNED * TURNED]) {
    let sums = &sums[..(TURNED - 1) * PANEL + TURNED];
    if cfg!(target_arch = "x86_64") && isa.f32().len() == TURNED {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: only vectors of AVX-512 have 16 elements on x86-64; the slice has as many rows.
        unsafe {
            turn_avx512(sums, block);
        }
        return;
    }
    for (filter, to) in block.chunks_exact_mut(TURNED).enumerate() {
        to.iter_mut().zip(sums[filter..].iter().step_by(PANEL)).for_each(|(to, &sum)| *to = sum);
    }
}

/// [`turn`] in registers: pairs of elements, then of pairs, and twice of what is then four wide.
///
/// # Safety
/// The machine must have AVX-512F, and there must be a panel's row of each place.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn turn_avx512(sums: &[f32], block: &mut [f32; TURNED * TURNED]) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's slice has as many rows.
    let rows: [__m512; 16] =
        std::array::from_fn(|row| unsafe { _mm512_loadu_ps(sums.as_ptr().add(row * PANEL)) });
    let double = |a| _mm512_castps_pd(a);
    let single = |a| _mm512_castpd_ps(a);
    let fours: [__m512; 16] = std::array::from_fn(|at| {
        let (row, pair) = (at / 4 * 4, at % 4);
        let unpack = |a, b| if pair < 2 { _mm512_unpacklo_ps(a, b) } else { _mm512_unpackhi_ps(a, b) };
        let (low, high) = (unpack(rows[row], rows[row + 1]), unpack(rows[row + 2], rows[row + 3]));
        single(match pair % 2 {
            0 => _mm512_unpacklo_pd(double(low), double(high)),
            _ => _mm512_unpackhi_pd(double(low), double(high)),
        })
    });
    for column in 0..4 {
        let [a, b, c, d] = std::array::from_fn(|row| fours[row * 4 + column]);
        let (even, odd) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
        let (later_even, later_odd) =
            (_mm512_shuffle_f32x4::<0x88>(c, d), _mm512_shuffle_f32x4::<0xdd>(c, d));
        let turned = [
            _mm512_shuffle_f32x4::<0x88>(even, later_even),
            _mm512_shuffle_f32x4::<0x88>(odd, later_odd),
            _mm512_shuffle_f32x4::<0xdd>(even, later_even),
            _mm512_shuffle_f32x4::<0xdd>(odd, later_odd),
        ];
        for (number, turned) in turned.into_iter().enumerate() {
            // SAFETY: the block has as many rows.
            unsafe { _mm512_storeu_ps(block.as_mut_ptr().add((number * 4 + column) * TURNED), turned) };
        }
    }
}

impl Across {
    /// Where the windows of some places of a band begin.
    #[inline(always)]
    fn bases(&self, first: usize, bases: &mut [u32]) {
        let (mut row, mut column) = (first / self.width, first % self.width);
        for base in bases {
            *base = (row * self.vertical.stride * self.pitch + column * self.horizontal.stride) as u32;
            column += 1;
            if column == self.width {
                (row, column) = (row + 1, 0);
            }
        }
    }
}
