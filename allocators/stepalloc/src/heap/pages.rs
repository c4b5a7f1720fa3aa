//! What is known of each page: the block that starts there, and whether it may be resident.
//!
//! The tables have addresses for the whole range, and are usable as far as it was reached: 8 bytes and a bit a page, of which the former
//! are written at the first page of a block only.

use super::extents::Extent;
use crate::os;
use crate::word::{Atomics, Core, Word};
use core::mem::size_of;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};

const WORD: u32 = u64::BITS;

/// The blocks by their first page; no table until [`Blocks::open`].
pub(super) struct Blocks<A: Atomics = Core>(A::Ptr<A::U64>);

impl Blocks {
    pub(super) const fn none() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Bytes of the table of so many pages.
    pub(super) fn bytes_for(pages: usize) -> usize {
        pages * size_of::<u64>()
    }

    /// Says where the table is.
    ///
    /// # Safety
    /// `memory` is [`Blocks::bytes_for`] zeros, aligned to a word, which stay; only pages for which it is usable are asked for.
    pub(super) unsafe fn open(&self, memory: *mut u8) {
        self.0.store(memory.cast(), Release);
    }

    /// Makes the entries of pages usable; `false` where the system refuses.
    pub(super) fn reach(&self, from: u32, to: u32) -> bool {
        let [from, to] = [from, to].map(|page| Self::bytes_for(page as usize));
        os::commit(self.0.load(Relaxed).cast::<u8>().wrapping_add(from), to - from)
    }
}

impl<A: Atomics> Blocks<A> {
    /// For models, over the address of a table.
    #[cfg(test)]
    pub(super) fn over(table: A::Ptr<A::U64>) -> Self {
        Self(table)
    }

    /// The entry of a page of the heap, once it is open: the pages of the block that starts there, and while its free is
    /// [deferred](super::Heap::defer), the next such block.
    #[inline(always)]
    pub(super) fn at(&self, page: u32) -> &A::U64 {
        // SAFETY: callers pass pages that were reached, for all of which there is an entry, see `open`.
        unsafe { &*self.0.load(Relaxed).add(page as usize) }
    }
}

/// A bit a page: it was handed out since its memory was last given back, so it may be resident and its content anything. No table
/// until [`Touched::open`].
pub(super) struct Touched(AtomicPtr<AtomicU64>);

/// Bits of one word.
struct Part<'a> {
    word: &'a AtomicU64,
    bits: u64,
}

impl Touched {
    pub(super) const fn none() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Bytes of the table of so many pages, a multiple of 64.
    pub(super) fn bytes_for(pages: usize) -> usize {
        pages / 8
    }

    /// Says where the table is.
    ///
    /// # Safety
    /// `memory` is [`Touched::bytes_for`] zeros, aligned to a word, which stay; only pages for which it is usable are asked for.
    pub(super) unsafe fn open(&self, memory: *mut u8) {
        self.0.store(memory.cast(), Release);
    }

    /// Makes the entries of pages usable; `false` where the system refuses.
    pub(super) fn reach(&self, from: u32, to: u32) -> bool {
        let [from, to] = [from, to].map(|page| Self::bytes_for(page as usize));
        os::commit(self.0.load(Relaxed).cast::<u8>().wrapping_add(from), to - from)
    }

    #[inline]
    fn parts(&self, extent: Extent) -> impl Iterator<Item = Part<'_>> {
        let words = extent.start / WORD..extent.end().div_ceil(WORD);
        words.filter(move |_| extent.pages > 0).map(move |index| {
            let from = extent.start.max(index * WORD) % WORD;
            let to = (extent.end() - index * WORD).min(WORD);
            // SAFETY: callers pass pages that were reached, for all of which there is a bit, see `open`.
            let word = unsafe { &*self.0.load(Relaxed).add(index as usize) };
            Part { word, bits: u64::MAX >> (WORD - (to - from)) << from }
        })
    }

    /// Pages of an extent that may be resident.
    #[inline]
    pub(super) fn count(&self, extent: Extent) -> u32 {
        self.parts(extent).map(|part| (part.word.load(Relaxed) & part.bits).count_ones()).sum()
    }

    /// Says that pages may be resident. The caller has them alone; words that other extents share are changed atomically.
    #[inline]
    pub(super) fn set(&self, extent: Extent) {
        for Part { word, bits } in self.parts(extent) {
            if word.load(Relaxed) & bits != bits {
                word.fetch_or(bits, Relaxed);
            }
        }
    }

    /// Says that pages are not resident, and read as zeros. As for [`Touched::set`].
    #[inline]
    pub(super) fn clear(&self, extent: Extent) {
        self.parts(extent).for_each(|Part { word, bits }| _ = word.fetch_and(!bits, Relaxed));
    }

    /// The first stretch of an extent from `from` on whose pages all may be resident, or all are not.
    pub(super) fn stretch(&self, extent: Extent, from: u32, touched: bool) -> Option<Extent> {
        let start = self.next(from, extent.end(), touched)?;
        let end = self.next(start, extent.end(), !touched).unwrap_or(extent.end());
        Some(Extent::new(start, end - start))
    }

    /// All such stretches, in order.
    pub(super) fn stretches(&self, extent: Extent, touched: bool) -> impl Iterator<Item = Extent> {
        let mut from = extent.start;
        core::iter::from_fn(move || {
            let stretch = self.stretch(extent, from, touched)?;
            from = stretch.end();
            Some(stretch)
        })
    }

    /// The first page in a range whose bit is as asked.
    fn next(&self, from: u32, end: u32, touched: bool) -> Option<u32> {
        let parts = self.parts(Extent::new(from, end.checked_sub(from)?));
        parts.zip(from / WORD..).find_map(|(Part { word, bits }, index)| {
            let value = word.load(Relaxed);
            let found = bits & if touched { value } else { !value };
            (found != 0).then(|| index * WORD + found.trailing_zeros())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_those_of_the_bits_set() {
        let pages = Touched::none();
        let mut memory = vec![0u64; Touched::bytes_for(512) / 8];
        // SAFETY: zeros for as many pages, which outlive their use.
        unsafe { pages.open(memory.as_mut_ptr().cast()) };
        let all = Extent::new(3, 500);
        let set = [Extent::new(5, 60), Extent::new(100, 200), Extent::new(400, 1)];
        set.iter().for_each(|&extent| pages.set(extent));
        assert_eq!(pages.count(all), 261);
        assert_eq!(pages.stretches(all, true).collect::<Vec<_>>(), set);
        let clear: Vec<_> = pages.stretches(all, false).collect();
        assert_eq!(clear, [(3, 2), (65, 35), (300, 100), (401, 102)].map(|(s, n)| Extent::new(s, n)));
        pages.clear(Extent::new(110, 100));
        assert_eq!(
            pages.stretches(Extent::new(90, 200), true).collect::<Vec<_>>(),
            [Extent::new(100, 10), Extent::new(210, 80)]
        );
        assert_eq!(pages.stretch(Extent::new(10, 0), 10, true), None);
    }
}
