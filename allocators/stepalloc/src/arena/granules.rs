//! Granules: the equal pieces an arena is counted in, with one bit each.
//!
//! A bit says that its granule is taken by a block that does not lie in its slot's cells: one in a gap, or one of an
//! older plan. Bits are set under the arena's lock and cleared by whoever frees the block.

use crate::word::{Atomics, Core, Number, Word};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::*};

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
pub(crate) struct Granules<A: Atomics = Core> {
    pub(super) bits: A::Ptr<A::U64>,
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
}

impl<A: Atomics> Granules<A> {
    /// Says where the bits are.
    ///
    /// # Safety
    /// `bits` is the start of enough zeros for all granules that are ever asked for, in memory that stays, aligned to a
    /// word.
    pub(crate) unsafe fn set_bits(&self, bits: *mut u8) {
        self.bits.store(bits.cast(), Relaxed);
    }

    fn word(&self, index: u32) -> &A::U64 {
        // SAFETY: runs that callers pass lie in the arena, for all granules of which there are bits, see `set_bits`.
        unsafe { &*self.bits.load(Relaxed).add(index as usize) }
    }

    /// The words in which the bits of a run lie, with its bits in them.
    fn words(&self, run: Run) -> impl Iterator<Item = (&A::U64, u64)> {
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

    /// The end of the free piece that begins with `from`, at most `end`; `from` where it is taken.
    fn free_until(&self, from: u32, end: u32) -> u32 {
        let mut index = from / WORD;
        let mut taken = self.word(index).load(Acquire) >> (from % WORD);
        let mut at = from;
        while taken == 0 {
            index += 1;
            at = index * WORD;
            if at >= end {
                return end;
            }
            taken = self.word(index).load(Acquire);
        }
        end.min(at + taken.trailing_zeros())
    }

    /// The beginning of the free piece that ends with `to`, at least `start`; `to` where the one before is taken.
    fn free_since(&self, start: u32, to: u32) -> u32 {
        let mut at = to;
        while at > start {
            let last = at - 1;
            let taken = self.word(last / WORD).load(Acquire) << (WORD - 1 - last % WORD);
            if taken != 0 {
                return start.max(at - taken.leading_zeros());
            }
            at = last - last % WORD;
        }
        start
    }

    /// Calls `found` with start and end of pieces of a run that are free, in order: all of at least `least` granules, and
    /// those that the run begins or ends with, of any length. Pieces that touch may come one by one.
    ///
    /// So many granules have one among them whose number is a multiple of the largest power of two below: only these are
    /// looked at.
    pub(crate) fn free_pieces(&self, run: Run, least: u32, mut found: impl FnMut(u32, u32)) {
        let (start, end) = (run.start(), run.end());
        if start == end {
            return;
        }
        let begin = self.free_until(start, end);
        if begin != start {
            found(start, begin);
        }
        if begin == end {
            return;
        }
        let last = self.free_since(begin, end);
        let step = 1 << least.max(1).ilog2();
        let (mut at, mut looked) = (begin, begin.next_multiple_of(step));
        while looked < last {
            if self.word(looked / WORD).load(Acquire) >> (looked % WORD) & 1 != 0 {
                looked += step;
                continue;
            }
            let from = self.free_since(at, looked);
            at = self.free_until(looked, last);
            if at - from >= least {
                found(from, at);
            }
            looked = (at + 1).next_multiple_of(step);
        }
        if last != end {
            found(last, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Granules of which these are taken. Their bits lie in `bits`, which outlives them.
    fn granules(taken: &[bool], bits: &mut Vec<u64>) -> Granules {
        bits.resize(taken.len().div_ceil(WORD as usize), 0);
        let granules = Granules::none();
        // SAFETY: zeros for all granules, which the caller keeps.
        unsafe { granules.set_bits(bits.as_mut_ptr().cast()) };
        (0..).zip(taken).filter(|(_, taken)| **taken).for_each(|(at, _)| granules.take(Run::new(at, 1)));
        granules
    }

    proptest! {
        #[test]
        fn pieces_are_those_that_are_long_enough_or_touch_an_end(
            lengths in prop::collection::vec((1u32..150, 1u32..80), 1..12),
            begins_taken in any::<bool>(),
            cut in (0u32..100, 0u32..100),
            least in 1u32..200,
        ) {
            let mut taken = Vec::new();
            for &(one, other) in &lengths {
                taken.extend(std::iter::repeat_n(begins_taken, one as usize));
                taken.extend(std::iter::repeat_n(!begins_taken, other as usize));
            }
            let all = taken.len() as u32;
            let run = Run::between(cut.0.min(all), all.saturating_sub(cut.1).max(cut.0.min(all)));
            let mut expected = Vec::new();
            let mut at = run.start();
            for piece in taken[run.start() as usize..run.end() as usize].chunk_by(|one, other| one == other) {
                let end = at + piece.len() as u32;
                let counts = end - at >= least || at == run.start() || end == run.end();
                if !piece[0] && counts {
                    expected.push((at, end));
                }
                at = end;
            }
            let (mut found, mut bits) = (Vec::new(), Vec::new());
            granules(&taken, &mut bits).free_pieces(run, least, |from, to| found.push((from, to)));
            prop_assert_eq!(found, expected);
        }
    }
}
