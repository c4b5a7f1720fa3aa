//! The arena: one reserved address range, and the truth about which of its bytes are occupied.
//!
//! The range is cut into *granules* of equal size; a bitmap holds one bit a granule. Serving a block means setting
//! its granules' bits, all of them or none, atomically against every other thread ([`Arena::claim`]); freeing clears
//! them. A plan only proposes where to claim: whatever it says, a claim succeeds only where nothing lives, so two
//! live blocks never overlap. The bitmap knows nothing of plans, so plans can be exchanged while blocks live.
//!
//! A second level spares large blocks most of that. Each 64 granules, a word of the bitmap, are a *group*; a block takes
//! the groups that it covers wholly by one bit each, and sets granules only in the two groups at its ends. The two ways
//! to take from a group exclude each other: a thread announces what it takes on its own level first and then looks at the
//! other (as in Dekker's algorithm), so that of two that race at least one sees the other and withdraws.
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
    /// One bit a granule of the reserved range: taken by a block that has not the whole group.
    granule_bits: AtomicPtr<AtomicU64>,
    /// Two bits a group of the reserved range, [`SPLIT`] and [`WHOLE`].
    group_bits: AtomicPtr<AtomicU64>,
    /// Granules of the block that starts at this granule; 0 where none starts.
    lengths: AtomicPtr<AtomicU32>,
    /// Bytes made readable and writable so far, in whole pages.
    committed: AtomicUsize,
}

/// Granules of a group.
const GROUP: u32 = 64;
/// Groups whose bits lie in one word.
const GROUPS_A_WORD: u32 = 32;
/// Their granules.
const GROUPS_GRANULES: u32 = GROUP * GROUPS_A_WORD;
/// Granules of the group may be taken. Set before any is; cleared by a thread that has the whole group.
const SPLIT: u64 = 1;
/// One block has the whole group.
const WHOLE: u64 = 2;
/// `SPLIT` of every group in a word.
const SPLITS: u64 = 0x5555_5555_5555_5555;
/// `WHOLE` of every group in a word.
const WHOLES: u64 = SPLITS << 1;

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
    pub(crate) const fn closed() -> Self {
        Self {
            base: AtomicUsize::new(0),
            reserved: AtomicUsize::new(0),
            granules: AtomicUsize::new(0),
            shift: AtomicU32::new(GRANULE_MAX_SHIFT),
            rounding: AtomicUsize::new(0),
            limit: AtomicU32::new(0),
            granule_bits: AtomicPtr::new(ptr::null_mut()),
            group_bits: AtomicPtr::new(ptr::null_mut()),
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
        // Both bitmaps and the table of lengths in one mapping.
        let groups = granules.div_ceil(GROUP as usize);
        let (granule_bytes, group_bytes) = (groups * 8, groups.div_ceil(GROUPS_A_WORD as usize) * 8);
        let map_bytes = granule_bytes + group_bytes + granules * 4;
        let Some(map) = os::map(map_bytes) else { return false };
        let Some(base) = os::reserve(reserved) else {
            // SAFETY: mapped just now, and known here only.
            unsafe { os::unmap(map, map_bytes) };
            return false;
        };
        self.shift.store(shift, Relaxed);
        self.rounding.store((1 << shift) - 1, Relaxed);
        self.granules.store(granules, Relaxed);
        self.granule_bits.store(map.cast(), Relaxed);
        self.group_bits.store(map.wrapping_add(granule_bytes).cast(), Relaxed);
        self.lengths.store(map.wrapping_add(granule_bytes + group_bytes).cast(), Relaxed);
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

    /// True for every address inside the range, block or not.
    #[inline]
    pub(crate) fn contains(&self, address: usize) -> bool {
        // In this order: whoever finds bytes reserved finds where.
        let reserved = self.reserved.load(Acquire);
        address.wrapping_sub(self.base.load(Relaxed)) < reserved
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

    /// The bits of a group's granules.
    #[inline(always)]
    fn granule_bits(&self, group: u32) -> &AtomicU64 {
        // SAFETY: callers pass groups of granules of the reserved range, which they learn of only after the bitmaps were
        // mapped for all of it; the mapping is never undone.
        unsafe { &*self.granule_bits.load(Relaxed).add(group as usize) }
    }

    /// The bits of the groups from `word * GROUPS_A_WORD` on.
    #[inline(always)]
    fn group_bits(&self, word: u32) -> &AtomicU64 {
        // SAFETY: as in `granule_bits`.
        unsafe { &*self.group_bits.load(Relaxed).add(word as usize) }
    }

    #[inline]
    fn length(&self, granule: u32) -> &AtomicU32 {
        // SAFETY: as in `granule_bits`.
        unsafe { &*self.lengths.load(Relaxed).add(granule as usize) }
    }

    /// [`Arena::claim`] of a run whose bits lie in one word, where the other bitmap has nothing to say about them and
    /// nobody else changes that word just now. `None` says nothing about other cases, in which nothing was taken.
    ///
    /// # Safety
    /// The run lies inside what [`Arena::resize`] once granted.
    #[inline(always)]
    pub(crate) unsafe fn claim_ready(&self, run: ReadyRun) -> Option<*mut u8> {
        let (start, bits) = (run.start(), run.bits);
        let taken = if run.is_of_groups() {
            self.take_groups(start / GROUPS_GRANULES, bits)
        } else {
            self.take_part(start / GROUP, bits)
        };
        if !taken {
            return None;
        }
        self.length(start).store(run.length(), Relaxed);
        Some(self.address(start))
    }

    /// [`Arena::claim_ready`] of a run whose bits lie in several words.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn claim_ready_several(&self, run: ReadyRun) -> Option<*mut u8> {
        let (start, end) = (run.start(), run.start() + run.length());
        let part = |group, granules| self.take_part(group, granules);
        let groups = |word, wholes| self.take_groups(word, wholes);
        let reached = each_word(start, end, part, groups);
        if reached < end {
            self.release_several(start, reached);
            return None;
        }
        self.length(start).store(run.length(), Relaxed);
        Some(self.address(start))
    }

    /// Takes granules of one group that is known to be split, in one attempt.
    #[inline(always)]
    fn take_part(&self, group: u32, granules: u64) -> bool {
        let word = self.granule_bits(group);
        let seen = word.load(Relaxed);
        if seen & granules != 0 || word.compare_exchange(seen, seen + granules, SeqCst, Relaxed).is_err() {
            return false;
        }
        if !self.is_split(group) {
            word.fetch_and(!granules, Release);
            return false;
        }
        true
    }

    /// Takes whole groups of one word none of which is split, in one attempt.
    #[inline(always)]
    fn take_groups(&self, word: u32, wholes: u64) -> bool {
        let groups = self.group_bits(word);
        let seen = groups.load(Relaxed);
        if seen & wholes != 0 || groups.compare_exchange(seen, seen + wholes, SeqCst, Relaxed).is_err() {
            return false;
        }
        if seen & (wholes >> 1) != 0 {
            groups.fetch_and(!wholes, Release);
            return false;
        }
        true
    }

    /// Takes the run if every granule of it is free and inside the limit, and makes it a block. No lock, no system
    /// call; a partial claim is undone before anybody could be handed a part of it.
    pub(crate) fn claim(&self, run: Run) -> Option<*mut u8> {
        let end = u64::from(run.start) + u64::from(run.length);
        if end > u64::from(self.limit.load(Acquire)) || run.length == 0 {
            return None;
        }
        let taken = match Place::of(run) {
            Place::Part { group, granules } => self.claim_part(group, granules),
            Place::Groups { word, wholes } => self.claim_groups(word, wholes),
            Place::Several => self.claim_several(run.start, run.start + run.length),
        };
        if !taken {
            return None;
        }
        self.length(run.start).store(run.length, Relaxed);
        Some(self.address(run.start))
    }

    /// Takes granules of one group if none is taken.
    fn claim_part(&self, group: u32, granules: u64) -> bool {
        set(self.granule_bits(group), granules).is_some()
            && (self.is_split(group) || self.split(group, granules))
    }

    /// True if granules of the group may be taken. Asked after taking some.
    #[inline(always)]
    fn is_split(&self, group: u32) -> bool {
        let state = self.group_bits(group / GROUPS_A_WORD).load(SeqCst) >> (2 * (group % GROUPS_A_WORD));
        state & (SPLIT | WHOLE) == SPLIT
    }

    /// Says that granules of the group are taken; gives those just taken back where a block has the whole group.
    #[cold]
    #[inline(never)]
    fn split(&self, group: u32, granules: u64) -> bool {
        let word = self.group_bits(group / GROUPS_A_WORD);
        let shift = 2 * (group % GROUPS_A_WORD);
        let split = word.fetch_update(SeqCst, SeqCst, |seen| {
            (seen & WHOLE << shift == 0).then_some(seen | SPLIT << shift)
        });
        if split.is_err() {
            self.granule_bits(group).fetch_and(!granules, Release);
        }
        split.is_ok()
    }

    /// Takes whole groups of one word if none of them, and nothing in them, is taken.
    fn claim_groups(&self, word: u32, wholes: u64) -> bool {
        set(self.group_bits(word), wholes)
            .is_some_and(|seen| seen & (wholes >> 1) == 0 || self.unite(word, wholes))
    }

    /// Looks into the groups just taken of which granules may be taken; gives them all back where some are. Where none
    /// are, it says so, and the next claim need not look.
    #[cold]
    #[inline(never)]
    fn unite(&self, word: u32, wholes: u64) -> bool {
        let groups = self.group_bits(word);
        let split = groups.load(SeqCst) & (wholes >> 1);
        let mut rest = split;
        while rest != 0 {
            let group = word * GROUPS_A_WORD + rest.trailing_zeros() / 2;
            if self.granule_bits(group).load(SeqCst) != 0 {
                groups.fetch_and(!wholes, Release);
                return false;
            }
            rest &= rest - 1;
        }
        // A granule taken from now on is given back by whoever took it: these groups are whole.
        groups.fetch_and(!split, SeqCst);
        true
    }

    /// Takes a run of more than one word, piece by piece.
    #[inline(never)]
    fn claim_several(&self, start: u32, end: u32) -> bool {
        let part = |group, granules| self.claim_part(group, granules);
        let groups = |word, wholes| self.claim_groups(word, wholes);
        let reached = each_word(start, end, part, groups);
        if reached < end {
            self.release_several(start, reached);
        }
        reached == end
    }

    /// Frees the block at `address`.
    #[inline(always)]
    pub(crate) fn release(&self, address: usize) -> Released {
        if !self.contains(address) {
            Released::Foreign
        } else if self.release_at(address - self.base()) {
            Released::Block
        } else {
            Released::Invalid
        }
    }

    /// Frees the block at an offset from the base; `false`, and nothing done, where no block starts there.
    #[inline(always)]
    pub(crate) fn release_at(&self, offset: usize) -> bool {
        let Some(start) = self.start(offset) else { return false };
        let entry = self.length(start);
        let length = entry.load(Relaxed);
        if length == 0 {
            return false;
        }
        entry.store(0, Relaxed);
        match Place::of(Run { start, length }) {
            // All bits of the masks are set.
            Place::Part { group, granules } => {
                self.granule_bits(group).fetch_xor(granules, Release);
            }
            Place::Groups { word, wholes } => {
                self.group_bits(word).fetch_xor(wholes, Release);
            }
            Place::Several => self.release_several(start, start + length),
        }
        true
    }

    /// Gives back a run, or the words of it that were taken.
    #[inline(never)]
    fn release_several(&self, start: u32, end: u32) {
        let part = |group, granules| {
            self.granule_bits(group).fetch_xor(granules, Release);
            true
        };
        let groups = |word, wholes| {
            self.group_bits(word).fetch_xor(wholes, Release);
            true
        };
        each_word(start, end, part, groups);
    }

    /// The granule that begins at an offset; `None` for offsets outside the range or inside a granule.
    #[inline(always)]
    fn start(&self, offset: usize) -> Option<u32> {
        // Bits below the granule come out on top, and make the number larger than any granule's.
        let granule = offset.rotate_right(self.shift());
        (granule < self.granules.load(Relaxed)).then_some(granule as u32)
    }

    /// Bytes of the block at `address`, all of them writable; 0 where no block starts there.
    pub(crate) fn usable_bytes(&self, address: usize) -> usize {
        let start = self.start(address.wrapping_sub(self.base()));
        start.map_or(0, |start| (self.length(start).load(Relaxed) as usize) << self.shift())
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
        let mut index = at / GROUP;
        let mut ahead = u64::MAX << (at % GROUP);
        while index * GROUP < limit {
            let found = (self.taken(index) ^ flip) & ahead;
            if found != 0 {
                return (index * GROUP + found.trailing_zeros()).min(limit);
            }
            ahead = u64::MAX;
            index += 1;
        }
        limit
    }

    /// A bit for each granule of the group: taken in whichever way.
    fn taken(&self, group: u32) -> u64 {
        let state = self.group_bits(group / GROUPS_A_WORD).load(Relaxed) >> (2 * (group % GROUPS_A_WORD));
        if state & WHOLE != 0 { u64::MAX } else { self.granule_bits(group).load(Relaxed) }
    }

    /// Bytes occupied now, counted; for statistics and tests.
    pub(crate) fn occupied_bytes(&self) -> usize {
        let groups = self.limit.load(Relaxed).div_ceil(GROUP);
        (0..groups).map(|group| self.taken(group).count_ones() as usize).sum::<usize>() << self.shift()
    }
}

/// A run with its bits worked out, in two words, neither of which says anything wrong where the other is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReadyRun {
    /// The start, a flag if the bits are those of groups, and in the high half the length.
    pub(crate) run: u64,
    /// 0 where they lie in several words, or there is no run.
    pub(crate) bits: u64,
}

const OF_GROUPS: u64 = 1 << 31;

impl ReadyRun {
    /// No run: it starts beyond every arena.
    pub(crate) const NONE: Self = Self { run: OF_GROUPS - 1, bits: 0 };

    /// Works out the bits of a run that is not empty.
    pub(crate) fn of(run: Run) -> Self {
        let (flag, bits) = match Place::of(run) {
            Place::Part { granules, .. } => (0, granules),
            Place::Groups { wholes, .. } => (OF_GROUPS, wholes),
            Place::Several => (0, 0),
        };
        Self { run: u64::from(run.length) << 32 | flag | u64::from(run.start), bits }
    }

    /// The first granule.
    #[inline(always)]
    pub(crate) fn start(self) -> u32 {
        (self.run & (OF_GROUPS - 1)) as u32
    }

    /// Granules; 0 where there is no run.
    #[inline(always)]
    pub(crate) fn length(self) -> u32 {
        (self.run >> 32) as u32
    }

    #[inline(always)]
    fn is_of_groups(self) -> bool {
        self.run & OF_GROUPS != 0
    }
}

/// Which bits a run of granules takes.
enum Place {
    /// Granules of one group.
    Part { group: u32, granules: u64 },
    /// Whole groups of one word.
    Groups { word: u32, wholes: u64 },
    /// More than that.
    Several,
}

impl Place {
    /// The place of a run that is not empty.
    #[inline(always)]
    fn of(run: Run) -> Self {
        let (start, length) = (run.start, run.length);
        if length < GROUP && start % GROUP + length <= GROUP {
            Self::Part { group: start / GROUP, granules: mask(start, length) }
        } else if (start | length).is_multiple_of(GROUP)
            && start % GROUPS_GRANULES + length <= GROUPS_GRANULES
        {
            Self::Groups { word: start / GROUPS_GRANULES, wholes: wholes(start, length) }
        } else {
            Self::Several
        }
    }
}

/// Calls `part` with each group of which the granules from `start` to `end` are a part, and their bits in it; and `groups`
/// with each word of whole groups, and theirs. Returns the granule that is reached when one says no, else the end.
#[inline(always)]
fn each_word(
    start: u32,
    end: u32,
    mut part: impl FnMut(u32, u64) -> bool,
    mut groups: impl FnMut(u32, u64) -> bool,
) -> u32 {
    let mut at = start;
    if !at.is_multiple_of(GROUP) || end - at < GROUP {
        let length = (GROUP - at % GROUP).min(end - at);
        if length == 0 || !part(at / GROUP, mask(at, length)) {
            return at;
        }
        at += length;
    }
    let whole_end = end - end % GROUP;
    while at < whole_end {
        let next = whole_end.min((at / GROUPS_GRANULES + 1) * GROUPS_GRANULES);
        if !groups(at / GROUPS_GRANULES, wholes(at, next - at)) {
            return at;
        }
        at = next;
    }
    if at < end && part(at / GROUP, mask(at, end - at)) {
        return end;
    }
    at
}

/// The bits of `length` granules (1 to 63) of one group, from `start` on.
#[inline(always)]
fn mask(start: u32, length: u32) -> u64 {
    // Shifts are modulo 64.
    u64::MAX.wrapping_shr(length.wrapping_neg()).wrapping_shl(start)
}

/// [`WHOLE`] of the groups (1 to 32) of one word that the `length` granules from `start` on are.
#[inline(always)]
fn wholes(start: u32, length: u32) -> u64 {
    const GRANULES_A_BIT: u32 = GROUP / 2;
    WHOLES.wrapping_shr((length / GRANULES_A_BIT).wrapping_neg()).wrapping_shl(start / GRANULES_A_BIT)
}

/// Sets all these bits if none of them is set, and returns what the word was.
fn set(word: &AtomicU64, bits: u64) -> Option<u64> {
    word.fetch_update(SeqCst, Relaxed, |seen| (seen & bits == 0).then_some(seen | bits)).ok()
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
    fn whole_groups_and_single_granules_exclude_each_other() {
        let arena = open(6, 64 * 64 * 100);
        let claim = |start, length| arena.claim(Run { start, length });
        for groups in [1, 2, 31, 32, 33, 70] {
            for first in [0, 1, 29] {
                let (start, length) = (first * 64, groups * 64);
                // Before, after and while a granule in the midst is taken, whether the groups were split or not.
                for _ in 0..3 {
                    let large = claim(start, length).expect("free");
                    assert_eq!(claim(start + length - 1, 1), None);
                    assert_eq!(arena.release(large as usize), Released::Block);
                    let granule = claim(start + length / 2, 1).expect("free");
                    assert_eq!(claim(start, length), None);
                    assert_eq!(arena.occupied_bytes(), 64, "nothing of a refused claim stays");
                    assert_eq!(arena.release(granule as usize), Released::Block);
                }
                // Ends inside groups, and what lies beside them there.
                let large = claim(start + 7, length).expect("free");
                let (before, after) =
                    (claim(start, 7).expect("free"), claim(start + length + 7, 57).expect("free"));
                assert_eq!(claim(start + length + 6, 1), None);
                for block in [before, large, after] {
                    assert_eq!(arena.release(block as usize), Released::Block);
                }
                assert_eq!(arena.occupied_bytes(), 0);
            }
        }
    }

    #[test]
    fn threads_never_share_a_granule() {
        const GRANULES: u32 = 64 * 40;
        let arena = open(6, 64 * GRANULES as usize);
        let owner: Vec<AtomicU32> = (0..GRANULES).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 1..=4u32 {
                let (arena, owner) = (&arena, &owner);
                scope.spawn(move || {
                    let mut random = thread;
                    let mut claimed = [0; 3];
                    for turn in 0..100_000 {
                        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        // In turn a few granules, whole groups, and runs that end anywhere.
                        let (kind, at, length) = (turn % 3, random >> 8, 1 + (random >> 20) % 150);
                        let run = match kind {
                            0 => Run { start: at % GRANULES, length: 1 + length % 5 },
                            1 => Run { start: at % GRANULES / 64 * 64, length: 64 * (2 + length % 8) },
                            _ => Run { start: at % GRANULES, length: 4 * length },
                        };
                        let ready = ReadyRun::of(run);
                        let block = if turn % 2 == 0 || run.start + run.length > GRANULES {
                            arena.claim(run)
                        } else if ready.bits == 0 {
                            // SAFETY: the run lies inside the arena.
                            unsafe { arena.claim_ready_several(ready) }
                        } else {
                            // SAFETY: as above.
                            unsafe { arena.claim_ready(ready) }
                        };
                        let Some(block) = block else { continue };
                        claimed[kind] += 1;
                        let cells = &owner[run.start as usize..][..run.length as usize];
                        assert!(cells.iter().all(|cell| cell.swap(thread, Relaxed) == 0));
                        cells.iter().for_each(|cell| cell.store(0, Relaxed));
                        assert_eq!(arena.release(block as usize), Released::Block);
                    }
                    assert!(claimed.iter().all(|&count| count > 1000), "{claimed:?}");
                });
            }
        });
        assert_eq!(arena.occupied_bytes(), 0);
    }
}
