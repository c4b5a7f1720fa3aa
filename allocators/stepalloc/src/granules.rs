//! Granules: the equal pieces an arena is counted in, with one bit each.
//!
//! A bit says that its granule is taken by a block that does not lie in its slot's cells: one in a gap, or one of an
//! older plan. Bits are set under the arena's lock and cleared by whoever frees the block.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};

/// A run of granules: the first one, and in the high half their number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run(u64);

impl Run {
    #[inline(always)]
    pub(crate) fn new(start: u32, length: u32) -> Self {
        Self(u64::from(length) << 32 | u64::from(start))
    }

    /// The run from `start` to `end`, empty where the end is not beyond.
    pub(crate) fn between(start: u32, end: u32) -> Self {
        Self::new(start, end.saturating_sub(start))
    }

    #[inline(always)]
    pub(crate) fn start(self) -> u32 {
        self.0 as u32
    }

    #[inline(always)]
    pub(crate) fn length(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline(always)]
    pub(crate) fn end(self) -> u32 {
        self.start() + self.length()
    }

    /// The run as a number, 0 for an empty one only.
    #[inline(always)]
    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// The bits of all granules of an arena.
pub(crate) struct Granules {
    bits: AtomicPtr<AtomicU64>,
}

/// Granules whose bits lie in one word.
const WORD: u32 = u64::BITS;

impl Granules {
    pub(crate) const fn none() -> Self {
        Self { bits: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Bytes that the bits of so many granules need.
    pub(crate) fn bytes_for(granules: usize) -> usize {
        granules.div_ceil(WORD as usize) * size_of::<u64>()
    }

    /// Says where the bits are.
    ///
    /// # Safety
    /// `bits` is the start of enough zeros for all granules that are ever asked for, in memory that stays, aligned to a
    /// word.
    pub(crate) unsafe fn set_bits(&self, bits: *mut u8) {
        self.bits.store(bits.cast(), Relaxed);
    }

    fn word(&self, index: u32) -> &AtomicU64 {
        // SAFETY: runs that callers pass lie in the arena, for all granules of which there are bits, see `set_bits`.
        unsafe { &*self.bits.load(Relaxed).add(index as usize) }
    }

    /// The words in which the bits of a run lie, with its bits in them.
    fn words(&self, run: Run) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let words = run.start() / WORD..run.end().div_ceil(WORD);
        // No words for an empty run, wherever it is.
        words.filter(move |_| run.length() != 0).map(move |index| {
            let from = run.start().max(index * WORD) % WORD;
            let to = (run.end() - index * WORD).min(WORD);
            (self.word(index), u64::MAX >> (WORD - (to - from)) << from)
        })
    }

    /// Sets the bits of a run.
    pub(crate) fn take(&self, run: Run) {
        self.words(run).for_each(|(word, bits)| _ = word.fetch_or(bits, Relaxed));
    }

    /// Clears the bits of a run.
    pub(crate) fn clear(&self, run: Run) {
        self.words(run).for_each(|(word, bits)| _ = word.fetch_and(!bits, Release));
    }

    /// True if no bit of a run is set.
    pub(crate) fn are_free(&self, run: Run) -> bool {
        self.words(run).all(|(word, bits)| word.load(Acquire) & bits == 0)
    }

    /// How many bits of a run are set.
    pub(crate) fn count(&self, run: Run) -> u64 {
        self.words(run).map(|(word, bits)| u64::from((word.load(Relaxed) & bits).count_ones())).sum()
    }

    /// Calls `found` with start and end of pieces that are free, in order; pieces that touch may come one by one.
    pub(crate) fn free_pieces(&self, run: Run, mut found: impl FnMut(u32, u32)) {
        let words = (run.start() / WORD..).zip(self.words(run));
        for (index, (word, bits)) in words {
            let mut free = !word.load(Acquire) & bits;
            while free != 0 {
                let from = free.trailing_zeros();
                let length = (free >> from).trailing_ones();
                found(index * WORD + from, index * WORD + from + length);
                free &= !(u64::MAX >> (WORD - length) << from);
            }
        }
    }
}
