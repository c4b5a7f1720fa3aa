//! Convolutions of f32 of several images whose planes have a few places each.
//!
//! Places of all images lie side by side: what meets a weight is a row of a panel, and vectors lie along the places.

use crate::conv::Sizes;
use crate::conv::direct::products;
use crate::conv::dot::lay_place;
use rten_simd::ops::{BitOps, NumOps};
use rten_simd::{Isa, SimdOp};

/// Filters of a tile.
const FILTERS: usize = 6;
/// Elements of a row of a panel at most.
const WIDEST: usize = 64;

/// Elements of scratch memory for a core: a panel, and what one place meets.
pub fn scratch(sizes: &Sizes) -> usize {
    sizes.depth() * (WIDEST + 1)
}

/// Computes some images.
pub struct Columns<'a> {
    pub sizes: &'a Sizes,
    pub x: &'a [f32],
    pub w: &'a [f32],
    pub bias: Option<&'a [f32]>,
    pub out: &'a mut [f32],
    pub scratch: &'a mut [f32],
}

impl SimdOp for Columns<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(mut self, isa: I) {
        let places = self.sizes.window.output();
        let all = self.out.len() / (self.sizes.group * self.sizes.to);
        debug_assert!(all.is_multiple_of(places));
        let vector = isa.f32().len();
        for group in 0..self.sizes.group {
            let mut first = 0;
            while first < all {
                let left = all - first;
                first += if left > 2 * vector && 4 * vector <= WIDEST {
                    self.panel::<I, 4>(isa, group, first)
                } else if left > vector {
                    self.panel::<I, 2>(isa, group, first)
                } else {
                    self.panel::<I, 1>(isa, group, first)
                };
            }
        }
    }
}

impl Columns<'_> {
    /// Computes as many places as a panel has room for, and returns how many.
    #[inline(always)]
    fn panel<I: Isa, const V: usize>(&mut self, isa: I, group: usize, first: usize) -> usize {
        let (sizes, ops) = (self.sizes, isa.f32());
        let (places, depth, to) = (sizes.window.output(), sizes.depth(), sizes.to);
        let all = self.out.len() / (sizes.group * to);
        let width = V * ops.len();
        let count = width.min(all - first);
        let (panel, row) = self.scratch.split_at_mut(depth * WIDEST);
        let panel = &mut panel[..depth * width];
        let image = sizes.from * sizes.window.input();
        for column in 0..width {
            if column < count {
                let (number, place) = ((first + column) / places, (first + column) % places);
                let x = &self.x[(number * sizes.group + group) * image..][..image];
                lay_place(sizes, x, place, &mut row[..depth]);
            } else {
                row[..depth].fill(0.0);
            }
            panel[column..].iter_mut().step_by(width).zip(&row[..depth]).for_each(|(to, &x)| *to = x);
        }
        let w = &self.w[group * to * depth..][..to * depth];
        for (number, w) in w.chunks(FILTERS * depth).enumerate() {
            let filter = group * to + number * FILTERS;
            let panel = &*panel;
            match w.len() / depth {
                FILTERS => {
                    put::<I, FILTERS, V>(isa, w, panel, self.bias, self.out, (sizes, filter, first, count))
                }
                5 => put::<I, 5, V>(isa, w, panel, self.bias, self.out, (sizes, filter, first, count)),
                4 => put::<I, 4, V>(isa, w, panel, self.bias, self.out, (sizes, filter, first, count)),
                3 => put::<I, 3, V>(isa, w, panel, self.bias, self.out, (sizes, filter, first, count)),
                2 => put::<I, 2, V>(isa, w, panel, self.bias, self.out, (sizes, filter, first, count)),
                _ => put::<I, 1, V>(isa, w, panel, self.bias, self.out, (sizes, filter, first, count)),
            }
        }
        count
    }
}

/// Computes some filters at the places of a panel, and puts them where they belong.
#[inline(always)]
fn put<I: Isa, const F: usize, const V: usize>(
    isa: I,
    w: &[f32],
    panel: &[f32],
    bias: Option<&[f32]>,
    out: &mut [f32],
    (sizes, filter, first, count): (&Sizes, usize, usize, usize),
) {
    let (ops, depth, places) = (isa.f32(), sizes.depth(), sizes.window.output());
    let rows: [&[f32]; F] = std::array::from_fn(|f| &w[f * depth..][..depth]);
    let mut buffer = [0.0; WIDEST];
    for (f, sums) in products::<I, F, V>(isa, rows, panel).into_iter().enumerate() {
        let bias = ops.splat(bias.map_or(0.0, |bias| bias[filter + f]));
        for (v, sum) in sums.into_iter().enumerate() {
            ops.store(ops.add(sum, bias), &mut buffer[v * ops.len()..]);
        }
        let mut done = 0;
        while done < count {
            let (image, place) = ((first + done) / places, (first + done) % places);
            let length = (places - place).min(count - done);
            let at = (image * sizes.group * sizes.to + filter + f) * places + place;
            out[at..at + length].copy_from_slice(&buffer[done..done + length]);
            done += length;
        }
    }
}
