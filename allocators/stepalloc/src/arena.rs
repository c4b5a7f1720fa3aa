//! The arena: one reserved address range, and the truth about which of its bytes are occupied.
//!
//! The range is cut into *granules* of equal size; a bitmap holds one bit a granule. Serving a block means setting
//! its granules' bits, all of them or none, atomically against every other thread ([`Arena::claim`]); freeing clears
//! them. A plan only proposes where to claim: whatever it says, a claim succeeds only where nothing lives, so two
//! live blocks never overlap. The bitmap knows nothing of plans, so plans can be exchanged while blocks live.
//!
//! There is no header in or before a block. Its length is found by its address alone, in a table of one word a
//! granule of which only the entries of block starts are ever touched.
//!
//! The granule is chosen once, from the first plan ([`Arena::open`]): large granules make claims cheap, small ones
//! waste nothing on rounding.

use crate::os;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

/// The smallest granule: a cache line, the alignment tensor libraries ask for.
pub(crate) const GRANULE_MIN_SHIFT: u32 = 6;
/// The largest granule: a page. Beyond it rounding grows and claims hardly get cheaper.
pub(crate) const GRANULE_MAX_SHIFT: u32 = 12;
/// Address space reserved for each byte of the first plan, so that a later, larger plan finds room in the same arena.
const RESERVE_FACTOR: usize = 8;

/// The process's arena.
pub(crate) static ARENA: Arena = Arena::closed();

/// One address range with its occupancy. All fields but `limit` are written once, by [`Arena::open`].
pub(crate) struct Arena {
    /// Address of the first byte; 0 while closed.
    base: AtomicUsize,
    /// Bytes reserved from `base`; 0 while closed, so that `contains` is false for every address.
    reserved: AtomicUsize,
    /// Granules of the reserved range.
    granules: AtomicUsize,
    /// log2 of the granule's bytes.
    shift: AtomicU32,
    /// The granule's bytes less 1.
    rounding: AtomicUsize,
    /// Granules that may be claimed now.
    limit: AtomicU32,
    /// One bit a granule of the reserved range: occupied.
    occupied: AtomicPtr<AtomicU64>,
    /// Granules of the block that starts at this granule; 0 where none starts.
    lengths: AtomicPtr<AtomicU32>,
    /// Bytes made readable and writable so far, in whole pages.
    committed: AtomicUsize,
}

/// What a free found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Released {
    /// A block of the arena, free now.
    Block,
    /// An address outside the arena.
    Foreign,
    /// An address in the arena where no block starts: freed twice, or never allocated.
    Invalid,
}

/// A run of granules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) start: u32,
    pub(crate) length: u32,
}

impl Arena {
    const fn closed() -> Self {
        Self {
            base: AtomicUsize::new(0),
            reserved: AtomicUsize::new(0),
            granules: AtomicUsize::new(0),
            shift: AtomicU32::new(GRANULE_MAX_SHIFT),
            rounding: AtomicUsize::new(0),
            limit: AtomicU32::new(0),
            occupied: AtomicPtr::new(ptr::null_mut()),
            lengths: AtomicPtr::new(ptr::null_mut()),
            committed: AtomicUsize::new(0),
        }
    }

    /// Reserves the range for a first plan of `bytes` and fixes the granule. `false` where the system has no room,
    /// and nothing has changed. Called under the engine's lock, once.
    pub(crate) fn open(&self, shift: u32, bytes: usize) -> bool {
        debug_assert!(!self.is_open());
        let factor = if os::address_space_is_limited() { 1 } else { RESERVE_FACTOR };
        let reserved = bytes.max(1).saturating_mul(factor).next_multiple_of(os::BASE_ALIGN);
        let granules = reserved >> shift;
        if i32::try_from(granules).is_err() {
            return false;
        }
        let (bitmap, table) = (granules.div_ceil(64) * 8, granules * 4);
        let Some(occupied) = os::map(bitmap) else { return false };
        let Some(lengths) = os::map(table) else {
            // SAFETY: mapped just now, and known here only.
            unsafe { os::unmap(occupied, bitmap) };
            return false;
        };
        let Some(base) = os::reserve(reserved) else {
            // SAFETY: as above.
            unsafe {
                os::unmap(occupied, bitmap);
                os::unmap(lengths, table);
            }
            return false;
        };
        self.shift.store(shift, Relaxed);
        self.rounding.store((1 << shift) - 1, Relaxed);
        self.granules.store(granules, Relaxed);
        self.occupied.store(occupied.cast(), Relaxed);
        self.lengths.store(lengths.cast(), Relaxed);
        self.base.store(base as usize, Relaxed);
        self.reserved.store(reserved, Release);
        true
    }

    /// True once a range is reserved.
    pub(crate) fn is_open(&self) -> bool {
        self.reserved.load(Acquire) != 0
    }

    /// Lets claims reach `bytes` from the base (rounded up to a granule, cut to what is reserved); returns the bytes
    /// that can be claimed now. Blocks beyond a lowered limit live on until they are freed.
    pub(crate) fn resize(&self, bytes: usize, huge_pages: bool) -> usize {
        let shift = self.shift();
        let bytes = bytes.next_multiple_of(1 << shift).min(self.reserved.load(Relaxed));
        let committed = self.committed.load(Relaxed);
        let wanted = bytes.next_multiple_of(os::PAGE);
        if wanted > committed {
            let start = (self.base.load(Relaxed) + committed) as *mut u8;
            if !os::commit(start, wanted - committed) {
                return (self.limit.load(Relaxed) as usize) << shift;
            }
            if huge_pages {
                os::advise_huge(start, wanted - committed);
            }
            self.committed.store(wanted, Relaxed);
        }
        self.limit.store((bytes >> shift) as u32, Release);
        bytes
    }

    /// log2 of the granule's bytes.
    #[inline]
    pub(crate) fn shift(&self) -> u32 {
        self.shift.load(Relaxed)
    }

    /// Bytes that can be claimed now.
    pub(crate) fn bytes(&self) -> usize {
        (self.limit.load(Relaxed) as usize) << self.shift()
    }

    /// Bytes reserved.
    pub(crate) fn reserved(&self) -> usize {
        self.reserved.load(Relaxed)
    }

    /// Address of the first byte.
    pub(crate) fn base(&self) -> usize {
        self.base.load(Relaxed)
    }

    /// True for every address inside the range, block or not; one subtraction and one comparison.
    #[inline]
    pub(crate) fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(self.base.load(Relaxed)) < self.reserved.load(Relaxed)
    }

    /// Granules that a block of `bytes` needs.
    #[inline]
    pub(crate) fn granules_of(&self, bytes: usize) -> usize {
        (bytes + self.rounding.load(Relaxed)) >> self.shift()
    }

    /// The address of a granule.
    #[inline]
    fn address(&self, granule: u32) -> *mut u8 {
        (self.base.load(Relaxed) + ((granule as usize) << self.shift())) as *mut u8
    }

    #[inline]
    fn word(&self, index: u32) -> &AtomicU64 {
        // SAFETY: callers pass indexes of granules below `limit`, which is set only after `occupied` was mapped for
        // the whole reserved range; the mapping is never undone.
        unsafe { &*self.occupied.load(Relaxed).add(index as usize) }
    }

    #[inline]
    fn length(&self, granule: u32) -> &AtomicU32 {
        // SAFETY: as in `word`.
        unsafe { &*self.lengths.load(Relaxed).add(granule as usize) }
    }

    /// [`Arena::claim`] of a run that starts at `start` and holds `bytes`, where its granules lie in one word of the
    /// bitmap and nobody else changes that word just now; `None` says nothing about the others.
    #[inline(always)]
    pub(crate) fn claim_quickly(&self, start: u32, bytes: usize) -> Option<*mut u8> {
        let length = self.granules_of(bytes);
        let bit = start % 64;
        if bit as usize + length > 64 || start as usize + length > self.limit.load(Acquire) as usize {
            return None;
        }
        let word = self.word(start / 64);
        let mask = mask(bit, length as u32);
        let seen = word.load(Relaxed);
        if seen & mask != 0 || word.compare_exchange(seen, seen | mask, Acquire, Relaxed).is_err() {
            return None;
        }
        self.length(start).store(length as u32, Relaxed);
        Some(self.address(start))
    }

    /// Takes the run if every granule of it is free and inside the limit, and makes it a block. No lock, no system
    /// call; a partial claim is undone before anybody could be handed a part of it.
    pub(crate) fn claim(&self, run: Run) -> Option<*mut u8> {
        let end = run.start as u64 + run.length as u64;
        if end > self.limit.load(Acquire) as u64 || run.length == 0 {
            return None;
        }
        let (first, bit) = (run.start / 64, run.start % 64);
        if bit + run.length <= 64 {
            if !set(self.word(first), mask(bit, run.length)) {
                return None;
            }
        } else if !self.claim_words(first, bit, run.length) {
            return None;
        }
        self.length(run.start).store(run.length, Relaxed);
        Some(self.address(run.start))
    }

    #[inline(never)]
    fn claim_words(&self, first: u32, bit: u32, length: u32) -> bool {
        if !set(self.word(first), mask(bit, 64 - bit)) {
            return false;
        }
        let rest = length - (64 - bit);
        let mut index = first + 1;
        let whole_end = index + rest / 64;
        while index < whole_end {
            if self.word(index).compare_exchange(0, u64::MAX, Acquire, Relaxed).is_err() {
                self.clear_words(first, bit, index);
                return false;
            }
            index += 1;
        }
        if !rest.is_multiple_of(64) && !set(self.word(index), mask(0, rest % 64)) {
            self.clear_words(first, bit, index);
            return false;
        }
        true
    }

    /// Clears the tail of word `first` from `bit` on and all words after it before `end`.
    fn clear_words(&self, first: u32, bit: u32, end: u32) {
        self.word(first).fetch_and(!mask(bit, 64 - bit), Release);
        for index in first + 1..end {
            self.word(index).store(0, Release);
        }
    }

    /// Frees the block at `address`.
    #[inline(always)]
    pub(crate) fn release(&self, address: usize) -> Released {
        let Some(start) = self.start(address) else {
            return if self.contains(address) { Released::Invalid } else { Released::Foreign };
        };
        let length = self.length(start).load(Relaxed);
        if length == 0 {
            return Released::Invalid;
        }
        self.length(start).store(0, Relaxed);
        let (first, bit) = (start / 64, start % 64);
        if bit + length <= 64 {
            // All of them are set.
            self.word(first).fetch_xor(mask(bit, length), Release);
        } else {
            self.release_words(first, bit, length);
        }
        Released::Block
    }

    #[inline(never)]
    fn release_words(&self, first: u32, bit: u32, length: u32) {
        let rest = length - (64 - bit);
        let end = first + 1 + rest / 64;
        self.clear_words(first, bit, end);
        if !rest.is_multiple_of(64) {
            self.word(end).fetch_and(!mask(0, rest % 64), Release);
        }
    }

    /// The granule that begins at an address; `None` for addresses outside the range or inside a granule.
    #[inline(always)]
    fn start(&self, address: usize) -> Option<u32> {
        let offset = address.wrapping_sub(self.base.load(Relaxed));
        // Bits below the granule come out on top, and make the number larger than any granule's.
        let granule = offset.rotate_right(self.shift());
        (granule < self.granules.load(Relaxed)).then_some(granule as u32)
    }

    /// Bytes of the block at `address`, all of them writable; 0 where no block starts there.
    pub(crate) fn usable_bytes(&self, address: usize) -> usize {
        self.start(address).map_or(0, |start| (self.length(start).load(Relaxed) as usize) << self.shift())
    }

    /// Claims the smallest gap that holds `bytes` at `align`, wherever it lies. Gaps are sought word by word; another
    /// thread may take the one that was found, so a few attempts are made.
    pub(crate) fn claim_gap(&self, bytes: usize, align: usize) -> Option<*mut u8> {
        let length = u32::try_from(self.granules_of(bytes)).ok()?;
        let step = u32::try_from(align >> self.shift()).ok()?.max(1);
        // More attempts than threads usually race here; after them the backend serves.
        for _ in 0..4 {
            let start = self.best_gap(length, step)?;
            if let Some(block) = self.claim(Run { start, length }) {
                return Some(block);
            }
        }
        None
    }

    /// The start of the smallest run of free granules that holds `length` at a multiple of `step`.
    fn best_gap(&self, length: u32, step: u32) -> Option<u32> {
        let limit = self.limit.load(Acquire);
        let mut best: Option<Run> = None;
        let mut at = 0;
        while at < limit {
            let start = self.next(at, limit, false);
            let end = self.next(start, limit, true);
            let aligned = start.next_multiple_of(step);
            if u64::from(aligned) + u64::from(length) <= u64::from(end)
                && best.is_none_or(|best| end - start < best.length)
            {
                best = Some(Run { start: aligned, length: end - start });
                if end - start == length {
                    break;
                }
            }
            at = end.max(at + 1);
        }
        best.map(|run| run.start)
    }

    /// The first granule from `at` on whose bit is `occupied`, or the limit.
    fn next(&self, at: u32, limit: u32, occupied: bool) -> u32 {
        let flip = if occupied { 0 } else { u64::MAX };
        let mut index = at / 64;
        let mut ahead = u64::MAX << (at % 64);
        while index * 64 < limit {
            let found = (self.word(index).load(Relaxed) ^ flip) & ahead;
            if found != 0 {
                return (index * 64 + found.trailing_zeros()).min(limit);
            }
            ahead = u64::MAX;
            index += 1;
        }
        limit
    }

    /// Bytes occupied now, counted; for statistics and tests.
    pub(crate) fn occupied_bytes(&self) -> usize {
        let words = (self.reserved() >> self.shift()).div_ceil(64) as u32;
        let limit = self.limit.load(Relaxed).div_ceil(64).min(words);
        (0..limit).map(|index| self.word(index).load(Relaxed).count_ones() as usize).sum::<usize>()
            << self.shift()
    }
}

/// `length` ones (1 to 64) from `bit` on.
#[inline]
fn mask(bit: u32, length: u32) -> u64 {
    (u64::MAX >> (64 - length)) << bit
}

/// Sets all bits of the mask if none is set.
#[inline]
fn set(word: &AtomicU64, mask: u64) -> bool {
    let mut seen = word.load(Relaxed);
    loop {
        if seen & mask != 0 {
            return false;
        }
        match word.compare_exchange_weak(seen, seen | mask, Acquire, Relaxed) {
            Ok(_) => return true,
            Err(now) => seen = now,
        }
    }
}

/// An open arena of its own for a test.
#[cfg(test)]
pub(crate) fn tests_arena(shift: u32, bytes: usize) -> &'static Arena {
    let arena = Box::leak(Box::new(Arena::closed()));
    assert!(arena.open(shift, bytes));
    assert_eq!(arena.resize(bytes, false), bytes);
    arena
}

#[cfg(test)]
mod tests {
    use super::{tests_arena as open, *};

    #[test]
    fn claims_exclude_each_other_at_every_length_and_place() {
        let arena = open(6, 64 * 1000);
        for length in [1, 5, 63, 64, 65, 128, 129, 500] {
            for start in [0, 1, 63, 64, 70, 127, 300] {
                let block = arena.claim(Run { start, length }).expect("free");
                assert_eq!(block as usize, arena.base() + start as usize * 64);
                for (other, len) in [(start, 1), (start + length - 1, 1), (start + length / 2, 1), (0, 1000)]
                {
                    assert_eq!(arena.claim(Run { start: other, length: len }), None);
                }
                assert_eq!(arena.occupied_bytes(), length as usize * 64);
                assert_eq!(arena.usable_bytes(block as usize), length as usize * 64);
                assert_eq!(arena.release(block as usize + 64), Released::Invalid, "no block starts there");
                assert_eq!(arena.release(block as usize), Released::Block);
                assert_eq!(arena.release(block as usize), Released::Invalid, "a second free is noticed");
                assert_eq!(arena.release(arena.base() - 64), Released::Foreign);
                assert_eq!(arena.occupied_bytes(), 0);
            }
        }
    }

    #[test]
    fn claims_beyond_the_limit_and_empty_claims_are_refused() {
        let arena = open(12, 4096 * 10);
        assert!(arena.claim(Run { start: 0, length: 10 }).is_some());
        for run in [(10, 1), (9, 2), (0, 0), (u32::MAX, 1), (1, u32::MAX), (u32::MAX, u32::MAX)] {
            assert_eq!(arena.claim(Run { start: run.0, length: run.1 }), None);
        }
    }

    #[test]
    fn the_smallest_sufficient_gap_is_taken() {
        let arena = open(12, 4096 * 200);
        let claims: Vec<_> = [(0, 10), (15, 5), (23, 100), (130, 70)]
            .map(|(start, length)| arena.claim(Run { start, length }).expect("free"))
            .into();
        let offset = |block: Option<*mut u8>| block.map(|b| (b as usize - arena.base()) / 4096);
        assert_eq!(offset(arena.claim_gap(4096 * 3, 1)), Some(20));
        assert_eq!(offset(arena.claim_gap(4096 * 5, 1)), Some(10));
        assert_eq!(offset(arena.claim_gap(4096 * 4, 4096 * 4)), Some(124));
        assert_eq!(offset(arena.claim_gap(4096 * 4, 1)), None);
        assert_eq!(arena.release(claims[2] as usize), Released::Block);
        assert_eq!(offset(arena.claim_gap(4096 * 100, 1)), Some(23));
    }

    #[test]
    fn threads_never_share_a_granule() {
        let arena = open(6, 64 * 700);
        let owner: Vec<AtomicU32> = (0..700).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 1..=4u32 {
                let (arena, owner) = (&arena, &owner);
                scope.spawn(move || {
                    let mut random = thread;
                    for _ in 0..100_000 {
                        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        let run = Run { start: (random >> 8) % 700, length: 1 + (random >> 20) % 150 };
                        let Some(block) = arena.claim(run) else { continue };
                        let cells = &owner[run.start as usize..][..run.length as usize];
                        assert!(cells.iter().all(|cell| cell.swap(thread, Relaxed) == 0));
                        cells.iter().for_each(|cell| cell.store(0, Relaxed));
                        assert_eq!(arena.release(block as usize), Released::Block);
                    }
                });
            }
        });
        assert_eq!(arena.occupied_bytes(), 0);
    }
}
