//! What is done with the sums of a convolution before they are stored.

use rten_simd::ops::{BitOps, NumOps};
use rten_simd::{Isa, SimdOp};

/// What becomes of each sum: something is added, and it is brought within bounds.
#[derive(Clone, Copy)]
pub struct Finish<'a> {
    /// As many elements as the output has.
    pub added: Option<&'a [f32]>,
    /// What is less becomes this; NaN stays.
    pub least: f32,
    /// What is more becomes this, even if it is below `least`.
    pub most: f32,
}

impl Default for Finish<'_> {
    /// Sums stay what they are.
    fn default() -> Self {
        Self { added: None, least: f32::NEG_INFINITY, most: f32::INFINITY }
    }
}

impl<'a> Finish<'a> {
    /// The same for a part of the output that begins there.
    pub(super) fn from(&self, first: usize) -> Self {
        Self { added: self.added.map(|added| &added[first..]), ..*self }
    }

    /// Finishes all sums of an output, which are stored already.
    pub fn apply(&self, out: &mut [f32]) {
        Stored { finish: *self, out }.dispatch();
    }

    #[inline(always)]
    pub(super) fn apply_in<I: Isa>(&self, isa: I, out: &mut [f32]) {
        if self.added.is_none() && self.least == f32::NEG_INFINITY && self.most == f32::INFINITY {
            return;
        }
        let (ops, out_length) = (isa.f32(), out.len());
        let (lanes, bounds) = (ops.len(), (ops.splat(self.least), ops.splat(self.most)));
        let mut parts = out.chunks_exact_mut(lanes);
        match self.added {
            None => {
                for out in &mut parts {
                    ops.store(bounded(isa, ops.load(out), bounds), out);
                }
            }
            Some(added) => {
                for (out, added) in parts.by_ref().zip(added.chunks_exact(lanes)) {
                    ops.store(bounded(isa, ops.add(ops.load(out), ops.load(added)), bounds), out);
                }
            }
        }
        let rest = parts.into_remainder();
        let added = self.added.map(|added| &added[out_length - rest.len()..]);
        let mut sums = ops.load_pad(rest).0;
        if let Some(added) = added {
            sums = ops.add(sums, ops.load_pad(&added[..rest.len()]).0);
        }
        let mask = ops.first_n_mask(rest.len());
        // SAFETY: there is room for as many elements as the mask has.
        unsafe { ops.store_ptr_mask(bounded(isa, sums, bounds), rest.as_mut_ptr(), mask) };
    }

    /// Stores a vector's first sums from an index on.
    #[inline(always)]
    pub(super) fn store<I: Isa>(&self, isa: I, sums: I::F32, out: &mut [f32], at: usize, first: First<I>) {
        first.store(isa, self.finished(isa, sums, at, first), &mut out[at..]);
    }

    /// A vector's first sums, which are an output's from an index on.
    #[inline(always)]
    pub(super) fn finished<I: Isa>(&self, isa: I, sums: I::F32, at: usize, first: First<I>) -> I::F32 {
        let ops = isa.f32();
        let mut sums = sums;
        if let Some(added) = self.added {
            sums = ops.add(sums, first.load(isa, &added[at..]));
        }
        let bounds = (ops.splat(self.least), ops.splat(self.most));
        bounded(isa, sums, bounds)
    }
}

/// The first elements of vectors. Its mask takes long to make, and is made once.
#[derive(Clone, Copy)]
pub(crate) struct First<I: Isa> {
    count: usize,
    mask: I::M32,
}

impl<I: Isa> First<I> {
    /// So many, at most a vector.
    #[inline(always)]
    pub fn new(isa: I, count: usize) -> Self {
        let ops = isa.f32();
        let count = count.min(ops.len());
        Self { count, mask: ops.first_n_mask(count) }
    }

    /// How many.
    #[inline(always)]
    pub fn count(self) -> usize {
        self.count
    }

    /// Of a slice that has as many; the others are 0.
    #[inline(always)]
    pub fn load(self, isa: I, from: &[f32]) -> I::F32 {
        let ops = isa.f32();
        if self.count == ops.len() {
            return ops.load(from);
        }
        let from = &from[..self.count];
        // SAFETY: there are as many elements as the mask has.
        unsafe { ops.load_ptr_mask(from.as_ptr(), self.mask) }
    }

    /// To a slice that has room for as many.
    #[inline(always)]
    pub fn store(self, isa: I, x: I::F32, to: &mut [f32]) {
        let ops = isa.f32();
        if self.count == ops.len() {
            return ops.store(x, to);
        }
        let to = &mut to[..self.count];
        // SAFETY: there is room for as many elements as the mask has.
        unsafe { ops.store_ptr_mask(x, to.as_mut_ptr(), self.mask) };
    }
}

/// Sums within bounds. In this order NaN stays, and of crossed bounds the upper one holds.
#[inline(always)]
fn bounded<I: Isa>(isa: I, sums: I::F32, (least, most): (I::F32, I::F32)) -> I::F32 {
    isa.f32().min(most, isa.f32().max(least, sums))
}

/// [`Finish::apply_in`], compiled for the machine's vectors.
struct Stored<'a> {
    finish: Finish<'a>,
    out: &'a mut [f32],
}

impl SimdOp for Stored<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        self.finish.apply_in(isa, self.out);
    }
}
