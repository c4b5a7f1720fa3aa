//! The arena: one reserved address range, and the truth about which of its bytes are occupied.
//!
//! A plan only proposes where to claim: whatever it says, a claim succeeds only where nothing lives, atomically against
//! every other thread, so two live blocks never overlap. Blocks in their slots are counted in [`cells`], of
//! which a plan has its own; all others in [granules](crate::arena::granules), which are the same for every plan.
//!
//! Slots are claimed, and all blocks freed, without a lock. Gaps are sought, plans exchanged, and cells in which gaps
//! were taken made ready for slots again, under a lock that nobody waits for long: a claim that does not get it has
//! failed, and the backend serves.
//!
//! There is no header in or before a block. Its length and slot are found by its address alone, in a table with an entry for each window
//! of as many bytes as the least block has: at most one block starts in each.
//!
//! The granule is chosen once, from the first plan ([`Arena::open`]): large granules make gaps cheap, small ones waste
//! nothing on rounding.
//!
//! Blocks do not all start where a granule does. Programs walk through several blocks at once, or write the first line of each page; where
//! all blocks start at the same offset in a page, these lines share a 64th of the cache's sets. So each start is moved by some cache lines
//! ([`shift_lines`]), as glibc's headers and jemalloc's cache-oblivious blocks do, within what rounding to granules leaves free;
//! a large block that leaves nothing gets a granule more ([`granules_for`]).

pub(crate) mod cells;
pub(crate) mod granules;
pub(crate) mod region;

use crate::arena::cells::{Cells, NO_SLOT, Slot, Taken};
use crate::arena::granules::{Granules, Run};
use crate::arena::region::Region;
use crate::lock::Lock;
use crate::os;
use crate::word::{Atomics, Core, Word};
use core::mem::size_of;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};

/// The smallest granule: a cache line, the alignment tensor libraries ask for.
pub(crate) const GRANULE_MIN_SHIFT: u32 = 6;
/// The largest granule: a page. Beyond it rounding grows and gaps hardly get cheaper.
pub(crate) const GRANULE_MAX_SHIFT: u32 = 12;
/// How often a claim asks for the lock, with a yield in between: its holder may have to be given the processor first, but
/// may also be this very thread, interrupted by a signal.
const CLAIM_ATTEMPTS: u32 = 100;
/// How often a block without a slot asks for it: where another thread has it, the large heap serves sooner.
const GAP_ATTEMPTS: u32 = 2;
/// How often the exchange of plans asks for it.
const EXCHANGE_ATTEMPTS: u32 = 100_000;

/// Free bytes beside blocks that lie in gaps, or were an earlier plan's, which are worth giving away. Of small pieces little comes together, and
/// a plan whose slots lose some in every step is soon left.
const LEAST_PIECE: usize = 1 << 20;

/// Bytes of a cache line.
const LINE: usize = 1 << GRANULE_MIN_SHIFT;
/// From this size on, in bytes, a block is given a granule more where rounding leaves less than a quarter of one: a thirty-second of it at most,
/// and less than half a percent of what recorded programs have alive.
const SPACED_BYTES: usize = 128 << 10;

/// Granules of `1 << shift` bytes that a block takes, so that its start, or that of the next one, [is moved](shift_lines).
pub(crate) fn granules_for(bytes: usize, align: usize, shift: u32) -> usize {
    let granule = 1usize << shift;
    let granules = bytes.div_ceil(granule);
    let rest = (granules << shift) - bytes;
    granules + usize::from(align <= LINE && bytes >= SPACED_BYTES && rest < granule / 4)
}

/// Cache lines by which the start of a block of `bytes` is moved in its run: a number that follows from where the run begins, so that
/// neighbours differ. No granule is left out, as huge pages come only where all pages are there.
pub(crate) fn shift_lines(run: Run, bytes: usize, align: usize, shift: u32) -> u32 {
    let (granule, step) = (1 << shift, align.max(LINE));
    let free = ((run.length() as usize) << shift).saturating_sub(bytes);
    // Multiples of the step, from which on the last granule is reached, and as long as the first one is.
    let (first, last) = ((free + 1).saturating_sub(granule).div_ceil(step), free.min(granule - LINE) / step);
    // Fibonacci hashing (Knuth, TAOCP 3, 6.4).
    let place = (run.start().wrapping_mul(0x9E37_79B9) >> 16) as usize % (last.saturating_sub(first) + 1);
    (first.min(last) + place) as u32 * (step / LINE) as u32
}

/// One address range with its occupancy. All fields but `cells` are written once, by [`Arena::open`].
pub(crate) struct Arena<A: Atomics = Core> {
    /// Where it lies; opened last, so that whoever finds it open finds the other fields.
    region: Region,
    /// log2 of the granule's bytes.
    shift: A::Fixed,
    granules: Granules<A>,
    /// log2 of a window's bytes: no block is smaller.
    window_shift: A::Fixed,
    /// Windows of the reserved range.
    windows: A::Usize,
    /// The block that starts in each window.
    blocks: A::Ptr<Block<A>>,
    /// The cells of the plan in force; null before the first.
    cells: A::Ptr<Cells<A>>,
    lock: Lock<A>,
}

/// What is known of a block.
#[repr(C, align(16))]
struct Block<A: Atomics> {
    /// The slot it was claimed by, or [`NO_SLOT`]. The address is a multiple of 64; below that are the [lines](shift_lines) by which its
    /// start is moved.
    slot: A::Ptr<Slot<A>>,
    /// Its run as a number; 0 where no block starts.
    run: A::U64,
}

/// Why a slot was not claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// Not all of it is free.
    Busy,
    /// It may be free, but the lock is held for too long.
    Locked,
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

impl Arena {
    pub(crate) const fn closed() -> Self {
        Self {
            region: Region::closed(),
            shift: AtomicU32::new(GRANULE_MAX_SHIFT),
            granules: Granules::none(),
            window_shift: AtomicU32::new(GRANULE_MAX_SHIFT),
            windows: AtomicUsize::new(0),
            blocks: AtomicPtr::new(ptr::null_mut()),
            cells: AtomicPtr::new(ptr::null_mut()),
            lock: Lock::new(),
        }
    }

    /// Reserves the range for a first plan of `bytes`, in which no block is smaller than `least`, and fixes the granule: the beginning of
    /// the addresses `within`, or one of its own. `false` where the system has no room, and nothing has changed. Called under the
    /// engine's lock, once.
    pub(crate) fn open(
        &self,
        shift: u32,
        bytes: usize,
        least: usize,
        within: Option<(usize, usize)>,
    ) -> bool {
        debug_assert!(!self.is_open());
        let most = within.map_or(usize::MAX, |(_, most)| most);
        let Some(reserved) = Region::room_for(bytes).map(|room| room.min(most)) else { return false };
        let count = reserved >> shift;
        if i32::try_from(count).is_err() {
            return false;
        }
        let window_shift = least.max(1).ilog2().clamp(shift, usize::BITS - 1);
        let windows = reserved.div_ceil(1 << window_shift);
        // The table and the bits in one mapping.
        let table_bytes = windows * size_of::<Block<Core>>();
        let map_bytes = table_bytes + Granules::bytes_for(count);
        let Some(map) = os::map(map_bytes) else { return false };
        let base = match within {
            Some((base, _)) => Some(base as *mut u8).filter(|&base| os::map_at(base, reserved, false)),
            None => os::reserve(reserved),
        };
        let Some(base) = base else {
            // SAFETY: mapped just now, and known here only.
            unsafe { os::unmap(map, map_bytes) };
            return false;
        };
        self.shift.store(shift, Relaxed);
        self.window_shift.store(window_shift, Relaxed);
        self.blocks.store(map.cast(), Relaxed);
        // SAFETY: the rest of a fresh mapping, which stays; runs of this arena lie below the granules counted.
        unsafe { self.granules.set_bits(map.wrapping_add(table_bytes)) };
        // Last: whoever finds windows, for an address that is not the arena's, finds the table.
        self.windows.store(windows, Release);
        self.region.open(base, reserved);
        true
    }

    /// Claims the smallest gap that holds `bytes` at `align`, wherever it lies.
    pub(crate) fn claim_gap(&self, bytes: usize, align: usize) -> Option<*mut u8> {
        let shift = self.shift();
        let length = u32::try_from(granules_for(bytes, align, shift)).ok()?;
        if (length as usize) << shift < self.least_bytes() {
            return None;
        }
        let step = u32::try_from(align >> shift).ok()?.max(1);
        let run = self.take_gap(length, step)?;
        Some(self.begin(run, &NO_SLOT, shift_lines(run, bytes, align, shift)))
    }
}

impl<A: Atomics> Arena<A> {
    /// True once a range is reserved.
    pub(crate) fn is_open(&self) -> bool {
        self.region.reserved() != 0
    }

    /// Makes `bytes` from the base usable (rounded up to a granule, cut to what is reserved); returns the bytes that
    /// are, or were before if the system has no memory for more.
    pub(crate) fn commit(&self, bytes: usize, huge_pages: bool) -> usize {
        let bytes = bytes.next_multiple_of(1 << self.shift()).min(self.region.reserved());
        if self.region.commit(bytes, huge_pages) { bytes } else { self.bytes() }
    }

    /// Touches the first `bytes`, as far as they are usable; a refusal changes nothing.
    pub(crate) fn populate(&self, bytes: usize) {
        self.region.populate(bytes);
    }

    /// Bytes made readable and writable so far.
    pub(crate) fn committed(&self) -> usize {
        self.region.committed()
    }

    /// Puts huge pages where all of the memory is there anyway.
    pub(crate) fn unite_pages(&self) {
        self.region.unite_pages();
    }

    /// Calls `take` with the stretches in which no block lives, nor gets one meanwhile; returns the sum of what it returns. Nothing where
    /// another thread has the lock for too long.
    pub(crate) fn each_free(&self, mut take: impl FnMut(*mut u8, usize) -> usize) -> usize {
        let mut taken = 0;
        let _ = self.lock.with(Some(EXCHANGE_ATTEMPTS), |_| {
            let Some(cells) = self.cells() else { return };
            let shift = self.shift();
            let mut take = |run: Run| {
                let start = self.base() + ((run.start() as usize) << shift);
                taken += take(start as *mut u8, (run.length() as usize) << shift);
            };
            let least = (LEAST_PIECE >> shift).max(1) as u32;
            cells.while_free(&self.granules, least, &mut take);
            // What larger plans have left: no slots are there, and gaps are below.
            let committed = (self.committed() >> shift) as u32;
            if cells.limit() < committed {
                let above = Run::between(cells.limit(), committed);
                self.granules.free_pieces(above, least, |from, to| take(Run::between(from, to)));
            }
        });
        taken
    }

    /// Puts a plan's cells in force, in the place of those of the plan before. `false` where another thread has the lock
    /// for too long, and nothing has changed. Blocks live on, also beyond a lowered limit, until they are freed.
    pub(crate) fn exchange(&self, cells: &'static Cells<A>) -> bool {
        let exchanged = self.lock.with(Some(EXCHANGE_ATTEMPTS), |_| {
            let old = self.cells();
            if let Some(old) = old {
                old.close(&self.granules);
            }
            cells.open(&self.granules);
            self.cells.store(ptr::from_ref(cells).cast_mut(), Release);
            if let Some(old) = old {
                old.discard();
            }
        });
        exchanged.is_some()
    }

    #[inline]
    fn cells(&self) -> Option<&'static Cells<A>> {
        // SAFETY: null or a mapping that is never undone.
        unsafe { self.cells.load(Acquire).as_ref() }
    }

    /// log2 of the granule's bytes, once a range is reserved: it stays.
    pub(crate) fn fixed_shift(&self) -> Option<u32> {
        self.is_open().then(|| self.shift())
    }

    /// log2 of the granule's bytes.
    #[inline]
    pub(crate) fn shift(&self) -> u32 {
        self.shift.load(Relaxed)
    }

    /// Bytes that can be claimed now.
    pub(crate) fn bytes(&self) -> usize {
        self.cells().map_or(0, |cells| (cells.limit() as usize) << self.shift())
    }

    /// No block is smaller, or two might start in one window.
    pub(crate) fn least_bytes(&self) -> usize {
        1 << self.window_shift.load(Relaxed)
    }

    /// Bytes reserved.
    pub(crate) fn reserved(&self) -> usize {
        self.region.reserved()
    }

    /// Address of the first byte.
    pub(crate) fn base(&self) -> usize {
        self.region.base()
    }

    /// True for every address inside the range, block or not.
    #[inline]
    pub(crate) fn contains(&self, address: usize) -> bool {
        self.region.contains(address)
    }

    /// The entry of the block that starts at an offset from the base, which is in the reserved range.
    #[inline(always)]
    fn block(&self, offset: usize) -> &Block<A> {
        // SAFETY: callers pass offsets in the reserved range, which they learn of only after the table was mapped for
        // all of it; the mapping is never undone.
        unsafe { &*self.blocks.load(Relaxed).add(offset >> self.window_shift.load(Relaxed)) }
    }

    /// Makes a run that was taken a block, whose start is moved by `lines`.
    #[inline(always)]
    fn begin(&self, run: Run, slot: &Slot<A>, lines: u32) -> *mut u8 {
        let offset = self.offset(run, lines as usize);
        let block = self.block(offset);
        debug_assert!((run.length() as usize) << self.shift() >= self.least_bytes());
        block
            .slot
            .store(ptr::from_ref(slot).cast_mut().map_addr(|address| address | lines as usize), Relaxed);
        block.run.store(run.to_bits(), Relaxed);
        (self.base() + offset) as *mut u8
    }

    /// Where a block starts, from the base.
    #[inline(always)]
    fn offset(&self, run: Run, lines: usize) -> usize {
        ((run.start() as usize) << self.shift()) + lines * LINE
    }

    /// The entry of the block that starts at an offset from the base, with its run and slot; `None` where none does.
    #[inline(always)]
    fn find(&self, offset: usize) -> Option<(&Block<A>, Run, *mut Slot<A>)> {
        let windows = self.windows.load(Acquire);
        if offset >> self.window_shift.load(Relaxed) >= windows {
            return None;
        }
        let block = self.block(offset);
        let run = block.run.load(Relaxed);
        let slot = block.slot.load(Relaxed);
        let starts = run != 0 && offset == self.offset(Run::from_bits(run), slot.addr() % LINE);
        starts.then(|| (block, Run::from_bits(run), slot.map_addr(|address| address & !(LINE - 1))))
    }

    /// Claims a slot in one attempt, if it has cells in at most two words. A half that was taken is to be undone by
    /// [`Arena::undo`].
    ///
    /// # Safety
    /// The slot is one of cells that were put in force in this arena, and stays where it is.
    #[inline(always)]
    pub(crate) unsafe fn claim_quickly(&self, slot: &Slot<A>) -> Taken<*mut u8, A> {
        match slot.take_quickly() {
            Taken::All(run) => Taken::All(self.begin(run, slot, slot.lines())),
            Taken::Half(half) => Taken::Half(half),
            Taken::Nothing => Taken::Nothing,
            Taken::Several => Taken::Several,
        }
    }

    /// Claims a slot if all of it is free and nothing of it is split.
    ///
    /// # Safety
    /// As for [`Arena::claim_quickly`].
    pub(crate) unsafe fn claim_several(&self, slot: &Slot<A>) -> Option<*mut u8> {
        let run = slot.take(&self.granules)?;
        Some(self.begin(run, slot, slot.lines()))
    }

    /// Gives back what [`Arena::claim_quickly`] took.
    ///
    /// # Safety
    /// The parts of a [`cells::Half`] that was taken in this arena.
    pub(crate) unsafe fn undo(&self, word: *const A::U64, lower: u64, run: Run) {
        // SAFETY: a word of states, in a mapping that is never undone.
        cells::give_back_surely::<A>(unsafe { &*word }, lower, run, &self.granules);
    }

    /// Claims a slot if all of it is free.
    ///
    /// # Safety
    /// As for [`Arena::claim_quickly`].
    pub(crate) unsafe fn claim(&self, slot: &Slot<A>) -> Result<*mut u8, Refused> {
        let unite = |_| self.cells().is_some_and(|cells| cells.unite(slot, &self.granules));
        let mut run = slot.take(&self.granules);
        if run.is_none()
            && slot.seems_split(&self.granules)
            && self.lock.with(Some(CLAIM_ATTEMPTS), unite).ok_or(Refused::Locked)?
        {
            run = slot.take(&self.granules);
        }
        Ok(self.begin(run.ok_or(Refused::Busy)?, slot, slot.lines()))
    }

    /// Takes the smallest gap that holds so many granules at a multiple of `step`.
    fn take_gap(&self, length: u32, step: u32) -> Option<Run> {
        self.lock.with(Some(GAP_ATTEMPTS), |_| {
            let cells = self.cells()?;
            // Slots may be claimed meanwhile, and the gap found with them. After more attempts than threads usually race
            // here the backend serves.
            for _ in 0..4 {
                let run = Run::new(self.best_gap(cells, length, step)?, length);
                if cells.split(run) {
                    self.granules.take(run);
                    return Some(run);
                }
            }
            None
        })?
    }

    /// The start of the smallest run of free granules that holds `length` at a multiple of `step`.
    fn best_gap(&self, cells: &Cells<A>, length: u32, step: u32) -> Option<u32> {
        let mut best: Option<Run> = None;
        cells.free_runs(&self.granules, length, |free| {
            // A power of two.
            let aligned = (free.start() + step - 1) & !(step - 1);
            let holds = u64::from(aligned) + u64::from(length) <= u64::from(free.end());
            if holds && best.is_none_or(|best| free.length() < best.length()) {
                best = Some(Run::new(aligned, free.length()));
            }
        });
        best.map(|run| run.start())
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
        let Some((block, run, slot)) = self.find(offset) else { return false };
        block.run.store(0, Relaxed);
        // SAFETY: where there is a run there is a slot, `NO_SLOT` or one that stays, see `claim_quickly`.
        unsafe { &*slot }.give_back(&self.granules, run);
        true
    }

    /// Bytes of the block at `address`, all of them writable; 0 where no block starts there.
    pub(crate) fn usable_bytes(&self, address: usize) -> usize {
        let offset = address.wrapping_sub(self.base());
        self.find(offset).map_or(0, |(_, run, _)| ((run.end() as usize) << self.shift()) - offset)
    }

    /// Where the run of the block at `address` begins, and its bytes: what it has alone, before its start too; nothing where no block
    /// starts there.
    pub(crate) fn span(&self, address: usize) -> Option<(*mut u8, usize)> {
        let (_, run, _) = self.find(address.wrapping_sub(self.base()))?;
        Some(((self.base() + self.offset(run, 0)) as *mut u8, (run.length() as usize) << self.shift()))
    }

    /// Bytes occupied below the limit now, counted; for statistics and tests.
    pub(crate) fn occupied_bytes(&self) -> usize {
        self.cells().map_or(0, |cells| (cells.occupied(&self.granules) as usize) << self.shift())
    }
}

/// An open arena of its own for a test, all of it usable, without slots.
#[cfg(test)]
pub(crate) fn tests_arena(shift: u32, bytes: usize) -> &'static Arena {
    let arena = Box::leak(Box::new(Arena::closed()));
    assert!(arena.open(shift, bytes, 1, None));
    assert_eq!(arena.commit(bytes, false), bytes);
    cells::tests_slots(arena, (bytes >> shift) as u32, &[]);
    arena
}

#[cfg(test)]
mod tests {
    use super::{tests_arena as open, *};
    use crate::arena::cells::tests_slots;

    /// Offsets in pages.
    fn offset(arena: &Arena, block: Option<*mut u8>) -> Option<usize> {
        block.map(|block| (block as usize - arena.base()) / 4096)
    }

    fn claim(arena: &Arena, slot: &Slot) -> Option<*mut u8> {
        // SAFETY: slots of a test stay.
        unsafe { arena.claim(slot) }.ok()
    }

    #[test]
    fn a_block_is_known_by_its_address_alone() {
        let arena = open(6, 64 * 1000);
        let slots = tests_slots(arena, 1000, &[Run::new(3, 5)]);
        let block = claim(arena, &slots[0]).expect("free") as usize;
        assert_eq!(block, arena.base() + 3 * 64);
        assert_eq!((arena.usable_bytes(block), arena.usable_bytes(block + 64)), (5 * 64, 0));
        assert_eq!(arena.occupied_bytes(), 5 * 64);
        assert_eq!(arena.release(block + 64), Released::Invalid, "no block starts there");
        assert_eq!(arena.release(block + 1), Released::Invalid);
        assert_eq!(arena.release(block), Released::Block);
        assert_eq!(arena.release(block), Released::Invalid, "a second free is noticed");
        assert_eq!(arena.release(arena.base() - 64), Released::Foreign);
        assert_eq!(arena.release(arena.base() + arena.reserved()), Released::Foreign);
        assert_eq!(arena.occupied_bytes(), 0);
    }

    #[test]
    fn what_is_free_beside_blocks_in_gaps_is_free_for_others() {
        let arena = open(12, 4096 * 3000);
        let slots = tests_slots(arena, 3000, &[Run::new(0, 1000), Run::new(1000, 2000)]);
        let whole = claim(arena, &slots[0]).expect("free");
        // Both lie in the second slot's cell.
        let gaps = [400, 200].map(|pages| arena.claim_gap(pages * 4096, 4096).expect("free") as usize);
        assert_eq!(gaps.map(|gap| (gap - arena.base()) / 4096), [1000, 1400]);
        let free = || {
            let mut free = Vec::new();
            arena.each_free(|start, bytes| {
                free.push(((start as usize - arena.base()) / 4096, bytes / 4096));
                bytes
            });
            free
        };
        assert_eq!(free(), [(1600, 1400)]);
        let small = arena.claim_gap(100 * 4096, 4096).expect("free") as usize;
        assert_eq!(free(), [(1700, 1300)]);
        assert_eq!(arena.release(gaps[1]), Released::Block);
        assert_eq!(free(), [(1700, 1300)], "too little to be worth it");
        assert_eq!(arena.release(small), Released::Block);
        let gaps = [gaps[0], arena.claim_gap(200 * 4096, 4096).expect("free") as usize];
        assert_eq!(arena.release(gaps[0]), Released::Block);
        assert_eq!(free(), [(1000, 400), (1600, 1400)]);
        assert_eq!(arena.release(gaps[1]), Released::Block);
        assert_eq!(free(), [(1000, 2000)], "all of the cell");
        assert_eq!(arena.release(whole as usize), Released::Block);
        assert_eq!(free(), [(0, 3000)]);
        // Blocks of a plan before, in a cell of the next, and beyond its limit.
        let old = [Run::new(0, 500), Run::new(2000, 1000)].map(|run| (run, tests_slots(arena, 3000, &[run])));
        let old = claim(arena, &old[1].1[0]).expect("free");
        assert_eq!((old as usize - arena.base()) / 4096, 2000);
        tests_slots(arena, 2500, &[Run::new(0, 2500)]);
        assert_eq!(free(), [(0, 2000)]);
        assert_eq!(arena.release(old as usize), Released::Block);
        assert_eq!(free(), [(0, 2500), (2500, 500)]);
    }

    #[test]
    fn starts_are_spread_over_the_page_within_what_rounding_leaves() {
        // Nothing is left of the first; of 32 pages and more there is another.
        assert_eq!(granules_for(31 * 4096, 64, 12), 31);
        assert_eq!([32 * 4096, 32 * 4096 - 1025].map(|bytes| granules_for(bytes, 64, 12)), [33, 33 - 1]);
        assert_eq!(granules_for(64 * 4096, 4096, 12), 64, "aligned to pages, it cannot be moved");
        assert_eq!(granules_for(64 * 4096, 64, 6), 64 * 64 + 1);
        let lines =
            |start: u32, bytes: usize, align: usize| shift_lines(Run::new(start, 33), bytes, align, 12);
        assert!((0..100).all(|start| lines(start, 33 * 4096, 64) == 0 && lines(start, 32 * 4096, 8192) == 0));
        assert!((0..100).all(|start| lines(start, 33 * 4096 - 1000, 64) <= 1000 / 64));
        assert!((0..100).all(|start| lines(start, 32 * 4096, 1024) % 16 == 0));
        let starts: std::collections::BTreeSet<_> =
            (0..512).map(|at| lines(at * 33, 32 * 4096, 64)).collect();
        assert!(starts.into_iter().eq(1..64), "from the second, or the last page would be left out");
        // Blocks are known by the starts they have.
        let arena = open(12, 4096 * 200);
        let blocks = [(); 4].map(|()| arena.claim_gap(32 * 4096, 64).expect("free") as usize);
        assert!(blocks.iter().any(|block| block % 4096 != 0));
        for block in blocks {
            assert_eq!(arena.usable_bytes(block), 33 * 4096 - block % 4096);
            assert_eq!(arena.span(block), Some(((block - block % 4096) as *mut u8, 33 * 4096)));
            assert_eq!(arena.release(block - block % 4096 + (block % 4096 + 64) % 4096), Released::Invalid);
            assert_eq!(arena.release(block), Released::Block);
        }
    }

    #[test]
    fn blocks_smaller_than_a_window_are_refused_and_others_known_in_theirs() {
        let arena = Box::leak(Box::new(Arena::closed()));
        assert!(arena.open(12, 4096 * 200, 50_000, None));
        assert_eq!((arena.commit(4096 * 200, false), arena.least_bytes()), (4096 * 200, 32 << 10));
        let slots = tests_slots(arena, 200, &[Run::new(3, 8), Run::new(11, 9), Run::new(20, 33)]);
        assert_eq!(arena.claim_gap(28 << 10, 64), None);
        let mut blocks: Vec<_> =
            slots.iter().map(|slot| claim(arena, slot).expect("free") as usize).collect();
        blocks.extend(std::iter::from_fn(|| arena.claim_gap(32 << 10, 64)).map(|gap| gap as usize));
        assert_eq!(blocks.len(), 3 + (200 - 53) / 8);
        for &block in &blocks {
            assert!(arena.usable_bytes(block) >= 32 << 10 && arena.usable_bytes(block + 4096) == 0);
        }
        for block in blocks {
            assert_eq!(arena.release(block + 4096), Released::Invalid);
            assert_eq!(arena.release(block), Released::Block);
            assert_eq!(arena.release(block), Released::Invalid);
        }
        assert_eq!(arena.occupied_bytes(), 0);
    }

    #[test]
    fn the_smallest_sufficient_gap_is_taken() {
        let arena = open(12, 4096 * 200);
        let runs = [(0, 10), (15, 5), (23, 100), (130, 70)].map(|(start, length)| Run::new(start, length));
        let blocks: Vec<_> =
            tests_slots(arena, 200, &runs).iter().map(|slot| claim(arena, slot).expect("free")).collect();
        let gap = |pages: usize, align: usize| offset(arena, arena.claim_gap(4096 * pages, 4096 * align));
        assert_eq!(gap(3, 1), Some(20));
        assert_eq!(gap(5, 1), Some(10));
        assert_eq!(gap(4, 4), Some(124));
        assert_eq!(gap(4, 1), None);
        assert_eq!(arena.release(blocks[2] as usize), Released::Block);
        assert_eq!(gap(100, 1), Some(23));
        assert_eq!(gap(1, 1), Some(123));
        assert_eq!(gap(0, 1), None);
        assert_eq!(gap(usize::MAX >> 13, 1), None);
        assert_eq!(arena.occupied_bytes(), 4096 * (200 - 2));
    }

    #[test]
    fn gaps_and_slots_exclude_each_other() {
        let arena = open(12, 4096 * 300);
        // All pages one by one, as cells; then what lies over 1, 2, 3 and 10 words of them.
        let mut runs: Vec<_> = (0..300).map(|page| Run::new(page, 1)).collect();
        let large = [(290, 7), (20, 30), (100, 70), (0, 300)].map(|(start, length)| Run::new(start, length));
        runs.extend(large);
        let slots = tests_slots(arena, 300, &runs);
        for (slot, run) in slots[300..].iter().zip(large) {
            let last = &slots[run.end() as usize - 1];
            for _ in 0..3 {
                let block = claim(arena, slot).expect("free") as usize;
                assert_eq!(block, arena.base() + run.start() as usize * 4096);
                assert_eq!(arena.occupied_bytes(), run.length() as usize * 4096);
                assert_eq!((claim(arena, last), claim(arena, slot)), (None, None));
                let rest: Vec<_> = std::iter::from_fn(|| arena.claim_gap(4096, 1)).collect();
                assert_eq!(rest.len(), 300 - run.length() as usize);
                assert_eq!(arena.release(block), Released::Block);
                assert!(rest.iter().all(|&gap| arena.release(gap as usize) == Released::Block));
                assert_eq!(arena.occupied_bytes(), 0);
                // A gap that is the last free place, in the midst of the slot.
                let all: Vec<_> = (0..300).map(|page| claim(arena, &slots[page]).expect("free")).collect();
                let midst = run.start() as usize + run.length() as usize / 2;
                assert_eq!(arena.release(all[midst] as usize), Released::Block);
                assert_eq!(offset(arena, arena.claim_gap(4096, 1)), Some(midst));
                assert_eq!(claim(arena, &slots[midst]), None);
                assert!(all.iter().enumerate().all(|(page, &block)| {
                    page == midst || arena.release(block as usize) == Released::Block
                }));
                assert_eq!(claim(arena, slot), None, "a page of it is taken");
                assert_eq!(arena.occupied_bytes(), 4096, "nothing of a refused claim stays");
                assert_eq!(arena.release(all[midst] as usize), Released::Block);
            }
        }
    }

    #[test]
    fn blocks_outlive_the_plan_they_were_claimed_by() {
        let arena = open(12, 4096 * 200);
        // Over one, two and six words of cells that are one page each.
        let mut runs: Vec<_> = (0..200).map(|page| Run::new(page, 1)).collect();
        runs.extend([Run::new(0, 3), Run::new(3, 37), Run::new(40, 160)]);
        let old = tests_slots(arena, 200, &runs);
        let [one, two, six] = [&old[200], &old[201], &old[202]].map(|slot| claim(arena, slot).expect("free"));
        let runs = [Run::new(0, 40), Run::new(40, 160), Run::new(2, 1), Run::new(39, 2)];
        let new = tests_slots(arena, 200, &runs);
        assert_eq!(arena.occupied_bytes(), 4096 * 200);
        assert!(new.iter().chain(old).all(|slot| claim(arena, slot).is_none()));
        assert_eq!(arena.claim_gap(4096, 1), None);
        assert_eq!(arena.release(two as usize), Released::Block);
        assert_eq!(arena.occupied_bytes(), 4096 * 163);
        assert!(old.iter().all(|slot| claim(arena, slot).is_none()), "the old plan is out of force");
        assert_eq!(claim(arena, &new[0]), None);
        assert_eq!(arena.release(one as usize), Released::Block);
        let block = claim(arena, &new[0]).expect("free now");
        assert_eq!(arena.release(six as usize), Released::Block);
        assert_eq!(offset(arena, claim(arena, &new[1])), Some(40));
        assert_eq!(arena.occupied_bytes(), 4096 * 200);
        assert_eq!(arena.release(block as usize), Released::Block);
        assert_eq!(offset(arena, claim(arena, &new[2])), Some(2));
    }

    #[test]
    fn blocks_beyond_a_lowered_limit_live_on() {
        let arena = open(12, 4096 * 100);
        let old = tests_slots(arena, 100, &[Run::new(90, 10)]);
        let block = claim(arena, &old[0]).expect("free");
        tests_slots(arena, 95, &[]);
        assert_eq!((arena.bytes(), arena.occupied_bytes()), (4096 * 95, 4096 * 5));
        assert_eq!(offset(arena, arena.claim_gap(4096 * 90 - 2048, 1)), Some(0));
        assert_eq!(arena.claim_gap(4096, 1), None);
        tests_slots(arena, 100, &[]);
        assert_eq!(arena.occupied_bytes(), 4096 * 100);
        assert_eq!(arena.release(block as usize), Released::Block);
        assert_eq!(offset(arena, arena.claim_gap(4096 * 10, 1)), Some(90));
    }

    /// 64 pages, each of them a slot, and one more slot over each edge between two: the one over page 31 and 32 has its
    /// cells in two words.
    fn two_words(arena: &Arena) -> (&'static [Slot], &'static Slot) {
        let mut runs: Vec<_> = (0..64).map(|page| Run::new(page, 1)).collect();
        runs.extend((0..63).map(|page| Run::new(page, 2)));
        let slots = tests_slots(arena, 64, &runs);
        (slots, &slots[64 + 31])
    }

    #[test]
    fn a_block_half_of_which_was_closed_is_freed_whole() {
        for closed in [0, 1] {
            let arena = open(12, 4096 * 64);
            let (_, slot) = two_words(arena);
            let block = claim(arena, slot).expect("free");
            arena.cells().expect("cells").close_word(closed, &arena.granules);
            assert_eq!(arena.occupied_bytes(), 2 * 4096);
            assert_eq!(arena.release(block as usize), Released::Block);
            assert_eq!(arena.occupied_bytes(), 0);
        }
    }

    #[test]
    fn a_half_is_given_back_before_and_after_its_cells_were_closed() {
        for closed in [false, true] {
            let arena = open(12, 4096 * 64);
            let (slots, slot) = two_words(arena);
            let busy = claim(arena, &slots[32]).expect("free");
            let Taken::Half(half) = slot.take_quickly() else { panic!("page 32 is busy, page 31 is not") };
            if closed {
                two_words(arena);
            }
            assert_eq!(arena.occupied_bytes(), 2 * 4096);
            // SAFETY: taken just now.
            unsafe { arena.undo(half.word, half.lower, half.run) };
            assert_eq!(arena.occupied_bytes(), 4096, "the busy page is still taken");
            assert_eq!(arena.release(busy as usize), Released::Block);
            assert_eq!(arena.occupied_bytes(), 0);
        }
    }

    #[test]
    fn a_slot_that_ends_where_a_word_does_is_free_again_after_a_gap_there() {
        let arena = open(12, 4096 * 60);
        // Nothing crosses page 20, so a word ends there, with twelve empty cells.
        let mut runs: Vec<_> = (0..60).map(|page| Run::new(page, 1)).collect();
        runs.extend((1..60).filter(|&edge| edge != 20).map(|edge| Run::new(edge - 1, 2)));
        let slots = tests_slots(arena, 60, &runs);
        let gap = arena.claim_gap(4096 * 60 - 2048, 1).expect("all is free");
        assert!(slots.iter().all(|slot| claim(arena, slot).is_none()));
        assert_eq!(arena.release(gap as usize), Released::Block);
        for slot in slots {
            let block = claim(arena, slot).expect("free again");
            assert_eq!(arena.release(block as usize), Released::Block);
        }
    }

    #[test]
    fn slots_of_an_old_plan_are_refused_whatever_the_new_one_is() {
        let arena = open(12, 4096 * 100);
        let old = tests_slots(arena, 100, &[Run::new(90, 10)]);
        for limit in [100, 50, 0] {
            tests_slots(arena, limit, &[]);
            // SAFETY: slots of a test stay.
            assert_eq!(unsafe { arena.claim(&old[0]) }, Err(Refused::Busy));
            let unite = arena.cells().expect("cells").unite(&old[0], &arena.granules);
            assert!(!unite);
        }
        assert_eq!(arena.occupied_bytes(), 0);
    }

    #[test]
    fn cells_that_a_fork_left_half_closed_serve_gaps_only() {
        let arena = open(12, 4096 * 4);
        let runs: Vec<_> = (0..4).map(|page| Run::new(page, 1)).collect();
        let slots = tests_slots(arena, 4, &runs);
        let blocks: Vec<_> = slots.iter().map(|slot| claim(arena, slot).expect("free") as usize).collect();
        arena.cells().expect("cells").close(&arena.granules);
        assert_eq!(arena.release(blocks[3]), Released::Block);
        assert_eq!(claim(arena, &slots[3]), None);
        assert_eq!(arena.claim_gap(4096, 1), Some(blocks[3] as *mut u8));
        assert!(blocks.iter().all(|&block| arena.release(block) == Released::Block));
        assert_eq!(arena.occupied_bytes(), 0);
        let slots = tests_slots(arena, 4, &runs);
        assert!(slots.iter().all(|slot| claim(arena, slot).is_some()), "the next plan serves");
    }

    #[test]
    fn nobody_waits_long_for_a_lock_that_this_thread_holds() {
        let arena = open(12, 4096 * 4);
        let slots = tests_slots(arena, 4, &[Run::new(0, 4)]);
        let gap = arena.claim_gap(4096, 1).expect("free");
        assert_eq!(arena.release(gap as usize), Released::Block);
        let held = arena.lock.with(None, |_| {
            // As a handler of a signal would that came just now.
            // SAFETY: slots of a test stay.
            (unsafe { arena.claim(&slots[0]) }, arena.claim_gap(4096, 1))
        });
        assert_eq!(held, Some((Err(Refused::Locked), None)));
        assert!(claim(arena, &slots[0]).is_some());
    }

    #[test]
    fn threads_do_not_lose_each_others_frees_in_one_word() {
        let arena = open(12, 4096 * 8);
        let runs: Vec<_> = (0..8).map(|page| Run::new(page, 1)).collect();
        let slots = tests_slots(arena, 8, &runs);
        std::thread::scope(|scope| {
            for slot in &slots[..4] {
                scope.spawn(move || {
                    for _ in 0..500_000 {
                        let block = claim(arena, slot).expect("nobody else claims it");
                        assert_eq!(arena.release(block as usize), Released::Block);
                    }
                });
            }
        });
        assert_eq!(arena.occupied_bytes(), 0);
    }
}
