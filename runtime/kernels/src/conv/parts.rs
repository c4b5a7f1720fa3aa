//! Convolutions whose windows are dilated so far that most of what they meet is padding: parts of the output whose places meet the same
//! elements of the window are computed by themselves, with these elements alone.
//!
//! Over a plane of 14 x 14, a window of 3 x 3 at a distance of 12 meets the input with all of its columns in none of 14 places, and with two
//! of three in four: nine parts have 18 % of the products.

use crate::conv::across::{STRIP, TURNED, Tiles, turn};
use crate::conv::finish::First;
use crate::conv::window::Axis;
use crate::gemm::packed::{FILLED, PANEL, vectors};
use rten_simd::Isa;
use rten_simd::ops::{BitOps, NumOps};
use smallvec::SmallVec;
use std::ops::Range;

/// Parts of the output along one dimension.
type Along = SmallVec<[Part; 8]>;
/// Parts are worth it where at most one product in this many is left.
const LITTLE: usize = 2;

/// Places that meet the same elements of a window.
#[derive(Clone)]
struct Part {
    places: Range<usize>,
    taps: Range<usize>,
}

/// Parts of an output.
pub(super) struct Parts {
    vertical: Along,
    horizontal: Along,
}

impl Parts {
    /// `None` where they are not worth it.
    pub(super) fn new(vertical: &Axis, horizontal: &Axis) -> Option<Self> {
        let met = |axis: &Axis| (0..axis.output).map(|place| axis.count(place, false)).sum::<usize>();
        let all = |axis: &Axis| axis.output * axis.kernel;
        let left = met(vertical).checked_mul(met(horizontal))?.checked_mul(LITTLE)?;
        if vertical.dilation.max(horizontal.dilation) == 1
            || left > all(vertical).checked_mul(all(horizontal))?
        {
            return None;
        }
        let (vertical, horizontal) = (along(vertical), along(horizontal));
        // As many as are kept without memory of their own.
        (!vertical.spilled() && !horizontal.spilled()).then_some(Self { vertical, horizontal })
    }
}

fn along(axis: &Axis) -> Along {
    let mut parts = Along::new();
    for place in 0..axis.output {
        // The first element that is not before the input.
        let begin = axis.begin.saturating_sub(place * axis.stride).div_ceil(axis.dilation).min(axis.kernel);
        let taps = begin..begin + axis.count(place, false);
        match parts.last_mut().filter(|part| part.taps == taps) {
            Some(part) => part.places.end += 1,
            None => parts.push(Part { places: place..place + 1, taps }),
        }
    }
    parts
}

/// Where a place finds the first of a part's elements.
fn element(axis: &Axis, part: &Part, place: usize) -> usize {
    place * axis.stride + part.taps.start * axis.dilation - axis.begin
}

impl Tiles<'_> {
    /// All parts of the output, with offsets of as many elements as there are channels.
    #[inline(always)]
    pub(super) fn by_parts<I: Isa>(&mut self, isa: I, parts: &Parts, offsets: &mut [u32], sums: &mut [f32]) {
        let (down, right) = (self.across.vertical, self.across.horizontal);
        let plane = down.input * right.input;
        let offsets = &mut offsets[..self.sizes.from];
        for rows in &parts.vertical {
            for columns in &parts.horizontal {
                let count = rows.places.len() * columns.places.len();
                for begin in (0..count).step_by(STRIP) {
                    let strip = begin..(begin + STRIP).min(count);
                    let width = columns.places.len();
                    let mut bases = [0; STRIP];
                    for (base, at) in bases.iter_mut().zip(strip.clone()) {
                        let row = element(&down, rows, rows.places.start + at / width);
                        *base = (row * right.input
                            + element(&right, columns, columns.places.start + at % width))
                            as u32;
                    }
                    self.strip(isa, (rows, columns), (&bases[..strip.len()], strip), (offsets, plane), sums);
                }
            }
        }
        let places = down.output * right.output;
        if let Some(done) = self.done {
            for begin in (0..self.out.len()).step_by(places) {
                // SAFETY: nobody else has these planes: rows of them are not shared.
                done(begin, unsafe { self.out.elements(begin, places) });
            }
        }
    }

    /// Some places of a part, of all filters.
    #[inline(always)]
    fn strip<I: Isa>(
        &mut self,
        isa: I,
        (rows, columns): (&Part, &Part),
        (bases, strip): (&[u32], Range<usize>),
        (offsets, plane): (&mut [u32], usize),
        sums: &mut [f32],
    ) {
        let (down, right, lanes) = (self.across.vertical, self.across.horizontal, isa.f32().len());
        let places = down.output * right.output;
        let filters = self.first..self.first + self.out.len() / places;
        let mut next = filters.start / lanes * lanes;
        while next < filters.end {
            let count = vectors(isa, next, filters.end);
            let mut begins = true;
            for row in rows.taps.clone() {
                for column in columns.taps.clone() {
                    let from_first = (row - rows.taps.start) * down.dilation * right.input
                        + (column - columns.taps.start) * right.dilation;
                    for (channel, offset) in offsets.iter_mut().enumerate() {
                        *offset = (channel * plane + from_first) as u32;
                    }
                    let weights = ((row * right.kernel + column) * self.sizes.from, &*offsets);
                    self.filters.sums(
                        isa,
                        (self.x, bases),
                        weights,
                        (self.group, next, count),
                        (sums, begins),
                    );
                    begins = false;
                }
            }
            if begins {
                sums.fill(0.0);
            }
            for filter in (next..(next + count * lanes).min(filters.end)).step_by(TURNED) {
                for begin in strip.clone().step_by(TURNED) {
                    let places = begin..(begin + TURNED).min(strip.end);
                    let sums = &sums[(begin - strip.start) * PANEL + filter - next..];
                    self.put_part(
                        isa,
                        sums,
                        filter..(filter + FILLED).min(filters.end),
                        (rows, columns),
                        places,
                    );
                }
            }
            next += count * lanes;
        }
    }

    /// Finishes the sums of some filters at some places of a part.
    #[inline(always)]
    fn put_part<I: Isa>(
        &mut self,
        isa: I,
        sums: &[f32],
        filters: Range<usize>,
        (rows, columns): (&Part, &Part),
        strip: Range<usize>,
    ) {
        let ops = isa.f32();
        let (width, pitch) = (columns.places.len(), self.across.horizontal.output);
        let plane = self.across.vertical.output * pitch;
        let mut block = [0.0; TURNED * TURNED];
        turn(isa, sums, &mut block);
        let mut at = strip.start;
        while at < strip.end {
            let (row, column) = (rows.places.start + at / width, at % width);
            // As many as are next to each other in a vector.
            let length = (width - column).min(strip.end - at).min(ops.len());
            let first = First::new(isa, length);
            for filter in filters.start.max(self.first)..filters.end {
                let number = filter - self.first;
                let bias = ops.splat(self.bias.map_or(0.0, |bias| bias[number]));
                let sum = first.load(isa, &block[filter % TURNED * TURNED + at - strip.start..]);
                let to = number * plane + row * pitch + columns.places.start + column;
                let sum = self.finish.finished(isa, ops.add(sum, bias), to, first);
                // SAFETY: as above.
                first.store(isa, sum, unsafe { self.out.elements(to, length) });
            }
            at += length;
        }
    }
}
