//! Pages that change hands: from one extent to another, from the heap to the arena and back, or to the system.

use super::extents::Extent;
use super::pages::Touched;
use super::table::{TABLE_STEP, Table, Victims};
use super::{Heap, MOVE_LEAST, UNCOUNTED};
use crate::os::{self, PAGE};
use core::sync::atomic::Ordering::*;

/// Moves after which mappings are counted: each may leave two behind, of which a process has 65,530.
const MOVES_COUNTED: u32 = 4096;
/// Mappings of the process above which free extents are mapped anew. Programs that move much have some hundreds, as what moves is moved again.
const MAPPINGS: usize = 8192;
/// Where there are more even then, as live blocks keep theirs, nothing is moved any more.
const MAPPINGS_MOST: usize = 16_384;

/// Pages that are mapped anew at a time: nobody finds room in them meanwhile.
const MAPPED_ANEW: u32 = 1024;

/// States of [`Heap::moves`]: whether the kernel moves pages is asked when first some are to move, which few programs come to.
pub(super) const UNKNOWN: u8 = 0;
const MOVES: u8 = 1;
const STAYS: u8 = 2;
/// What is free is mapped anew.
const PAUSES: u8 = 3;

impl Heap {
    /// Gives the pages of victims back, or moves them to where `into` has none, and frees the victims.
    #[cold]
    #[inline(never)]
    pub(super) fn give_way(&self, victims: &Victims, into: Option<Extent>) {
        let into = into.filter(|_| self.can_move());
        let begun = os::now_ns();
        let moved = self.empty(victims.all(), into);
        let now = os::now_ns();
        let took = now.saturating_sub(begun);
        self.with(|table| table.retention.regret(moved, victims.touched - moved, took, now));
        self.free_victims(victims, moved);
    }

    /// Moves or gives back what of the extents may be resident. Returns the pages moved.
    pub(super) fn empty(&self, extents: &[Extent], into: Option<Extent>) -> u64 {
        let mut moved = 0;
        let mut room = into;
        for &extent in extents {
            for mut stretch in self.touched.stretches(extent, true) {
                while stretch.pages >= MOVE_LEAST
                    && let Some(hole) = room.and_then(|room| self.hole(room))
                {
                    let pages = hole.pages.min(stretch.pages);
                    if !self.move_pages(self.address(stretch.start), self.address(hole.start), pages) {
                        room = None;
                        break;
                    }
                    self.touched.set(Extent::new(hole.start, pages));
                    let end = hole.start + pages;
                    room = room.map(|room| Extent::new(end, room.end() - end));
                    moved += u64::from(pages);
                    stretch = Extent::new(stretch.start + pages, stretch.pages - pages);
                }
                if stretch.pages > 0 {
                    // SAFETY: pages of a free extent that nobody can be given meanwhile.
                    unsafe { os::discard(self.address(stretch.start), stretch.pages as usize * PAGE) };
                }
            }
            self.touched.clear(extent);
        }
        moved
    }

    /// The first stretch of an extent that has no pages, and is worth moving some there.
    fn hole(&self, room: Extent) -> Option<Extent> {
        self.touched.stretches(room, false).find(|hole| hole.pages >= MOVE_LEAST)
    }

    /// Whether pages can be moved. Where that has left many mappings, what is free is mapped anew first, so that its mappings are one again; its
    /// memory goes back with that.
    pub(super) fn can_move(&self) -> bool {
        match self.moves.load(Relaxed) {
            MOVES => {}
            UNKNOWN if self.learn_whether_pages_move() => {}
            _ => return false,
        }
        if self.moved.load(Relaxed) >= MOVES_COUNTED {
            self.moved.store(0, Relaxed);
            let are_more = |than: usize| os::keeping_errno(os::mappings).is_none_or(|count| count > than);
            if are_more(MAPPINGS) {
                if self.moves.compare_exchange(MOVES, PAUSES, Relaxed, Relaxed).is_err() {
                    return false;
                }
                self.map_anew();
                let state = if are_more(MAPPINGS_MOST) { STAYS } else { MOVES };
                // A move that has failed meanwhile says more.
                let _ = self.moves.compare_exchange(PAUSES, state, Relaxed, Relaxed);
                return self.moves.load(Relaxed) == MOVES;
            }
        }
        true
    }

    #[cold]
    fn learn_whether_pages_move(&self) -> bool {
        let moves = os::keeping_errno(os::moves_across_mappings);
        // A move that has failed meanwhile says more.
        let state = if moves { MOVES } else { STAYS };
        let _ = self.moves.compare_exchange(UNKNOWN, state, Relaxed, Relaxed);
        self.moves.load(Relaxed) == MOVES
    }

    #[cold]
    fn map_anew(&self) {
        let mut below = u32::MAX;
        loop {
            let mut victims = Victims::none();
            if self.with(|table| table.take_below(&self.touched, below, MAPPED_ANEW, &mut victims)).is_none()
                || victims.count == 0
            {
                return;
            }
            for &victim in victims.all() {
                // SAFETY: pages of a free extent that nobody can be given meanwhile.
                unsafe { os::map_anew(self.address(victim.start), victim.pages as usize * PAGE) };
                self.touched.clear(victim);
                below = victim.start;
            }
            self.free_victims(&victims, 0);
        }
    }

    /// Frees victims, of whose pages some moved, and the others went back.
    pub(super) fn free_victims(&self, victims: &Victims, moved: u64) {
        self.free_uncounted(victims.all(), |table| {
            table.counters.moved += moved;
            table.counters.returned += victims.touched - moved;
        });
    }

    /// Frees extents that are not counted as alive. Where the lock is held for too long (by a thread that forks, say, and waits for one of
    /// the program's locks, which this one has), that is left to its holder, and `count` is left out.
    pub(super) fn free_uncounted(&self, extents: &[Extent], count: impl FnOnce(&mut Table)) {
        let done = self.with(|table| {
            count(table);
            extents.iter().for_each(|&extent| table.insert(self, extent));
        });
        if done.is_none() {
            extents.iter().for_each(|&extent| self.defer(extent, UNCOUNTED));
        }
    }

    /// Moves pages whose content nobody needs; `false` where the kernel does not, which is not asked again then: what the destination had
    /// is gone nevertheless, and of the source any.
    fn move_pages(&self, from: *mut u8, to: *mut u8, pages: u32) -> bool {
        // SAFETY: whole pages of the range, mapped by us: the source is the caller's, and so is the destination, of neither of which
        // anybody needs the content.
        self.count_move(unsafe { os::move_pages(from, to, pages as usize * PAGE) })
    }

    pub(super) fn count_move(&self, moved: bool) -> bool {
        self.moved.fetch_add(1, Relaxed);
        if !moved {
            self.moves.store(STAYS, Relaxed);
        }
        moved
    }
}

/// To the arena, and back.
impl Heap {
    /// Gives the memory behind a stretch of the arena, in which no block lives, back to the system. Returns the bytes that went.
    pub(crate) fn discard_in_arena(&self, start: *mut u8, bytes: usize) -> usize {
        if let Some(pages) = self.arena_pages(start, bytes) {
            self.arena_touched.clear(pages);
        }
        // SAFETY: the arena says that nobody needs the content, nor gets the memory meanwhile.
        unsafe { os::discard(start, bytes) }
    }

    /// The whole pages of a stretch of the range's first half; `None` while closed, and beyond what was reached.
    fn arena_pages(&self, start: *mut u8, bytes: usize) -> Option<Extent> {
        let (base, _) = self.range()?;
        let first = (start as usize - base).div_ceil(PAGE) as u32;
        let end = ((start as usize - base + bytes) / PAGE) as u32;
        (end <= self.arena_reached.load(Acquire)).then(|| Extent::new(first, end.saturating_sub(first)))
    }

    /// The arena has `bytes` from now on, or has been more. Under the engine's lock.
    pub(crate) fn reach_in_arena(&self, bytes: usize) {
        let reached = self.arena_reached.load(Relaxed);
        let pages = (bytes.div_ceil(PAGE) as u32).next_multiple_of(TABLE_STEP);
        if self.is_open() && pages > reached && self.arena_touched.reach(reached, pages) {
            self.arena_reached.store(pages, Release);
        }
    }

    /// Takes over the memory behind a stretch of the arena, in which no block lives, but at most `most` bytes: the way back from
    /// [`Heap::fill`]. Where it cannot, or the memory is wanted as zeros, it goes back to the system. Returns the bytes that went.
    pub(crate) fn adopt(&self, start: *mut u8, bytes: usize, most: usize, zeros: bool) -> usize {
        let (Some(pages), Some((base, _))) = (self.arena_pages(start, bytes), self.range()) else {
            return self.discard_in_arena(start, bytes);
        };
        let (mut went, most) = (0, most.div_ceil(PAGE).min(u32::MAX as usize) as u32);
        for stretch in self.arena_touched.stretches(pages, true) {
            let stretch = Extent::new(stretch.start, stretch.pages.min(most - went));
            let from = (base + stretch.start as usize * PAGE) as *mut u8;
            if zeros || !self.adopt_pages(from, stretch.pages) {
                // SAFETY: whole pages of the stretch, in which nobody has a block, nor gets one meanwhile.
                unsafe { os::discard(from, stretch.pages as usize * PAGE) };
            }
            self.arena_touched.clear(stretch);
            went += stretch.pages;
            if went == most {
                break;
            }
        }
        self.with(|table| table.retention.arena = table.retention.arena.saturating_sub(went.into()));
        went as usize * PAGE
    }

    /// Moves free pages of the arena to a new free extent of the heap; `false` where they are too few, or that cannot be.
    fn adopt_pages(&self, from: *mut u8, pages: u32) -> bool {
        if pages < MOVE_LEAST || !self.can_move() {
            return false;
        }
        let placed = self.with(|table| {
            let extent = table.place_untouched(self, pages)?;
            table.retention.resident += u64::from(pages);
            table.counters.moved += u64::from(extent.pages);
            self.line.resident.store(table.retention.resident, Relaxed);
            Some(extent)
        });
        let Some(extent) = placed.flatten() else { return false };
        let moved = self.move_pages(from, self.address(extent.start), extent.pages);
        // They are counted; where they did not move, there are less.
        self.touched.set(extent);
        self.free_uncounted(&[extent], |_| ());
        moved
    }

    /// Slots were claimed until now by [`Heap::fill`]; from now on all of the arena's bytes may be resident.
    pub(crate) fn arena_is_filled(&self, bytes: usize) {
        if let Some((base, _)) = self.range()
            && let Some(pages) = self.arena_pages(base as *mut u8, bytes)
        {
            self.arena_touched.set(pages);
        }
    }

    /// Moves free pages of the heap under the run of a block of the arena, which is the caller's alone, has no content yet, and lies in the range's
    /// first half: under its whole pages that have none. Where these are to be zeros, as fresh pages are, as many go back to the system instead.
    #[cold]
    pub(crate) fn fill(&self, block: *mut u8, bytes: usize, zeroed: bool) {
        let (Some((base, _)), Some(whole)) = (self.range(), self.arena_pages(block, bytes)) else { return };
        if zeroed {
            self.give_back((whole.pages - self.arena_touched.count(whole)).into());
        } else {
            self.fill_holes(&self.arena_touched, whole, base);
        }
        // Those that it shares with other blocks are there from now on, too.
        let offset = block as usize - base;
        let first = (offset / PAGE) as u32;
        let all = Extent::new(first, (offset + bytes).div_ceil(PAGE) as u32 - first);
        let fresh = all.pages - self.arena_touched.count(all);
        self.arena_touched.set(all);
        self.with(|table| table.retention.arena += u64::from(fresh));
    }

    /// Moves free pages under those pages of an extent that have none, which nobody else uses.
    pub(super) fn fill_holes(&self, touched: &Touched, all: Extent, base: usize) {
        for hole in touched.stretches(all, false) {
            let mut rest = hole;
            while rest.pages > 0 && self.can_move() {
                let mut victims = Victims::none();
                let chosen = self.with(|table| table.choose(&self.touched, rest.pages.into(), &mut victims));
                if chosen.is_none() || victims.count == 0 {
                    return;
                }
                rest = self.fill_from(&victims, rest, base);
            }
        }
    }

    /// Moves the pages of victims to those of a hole, as far as these go, gives the others back, and frees the victims. Returns what is
    /// left of the hole.
    fn fill_from(&self, victims: &Victims, mut to: Extent, base: usize) -> Extent {
        let mut moved = 0;
        for &victim in victims.all() {
            for stretch in self.touched.stretches(victim, true) {
                let mut pages = stretch.pages.min(to.pages);
                let place = (base + to.start as usize * PAGE) as *mut u8;
                if pages == 0 || !self.move_pages(self.address(stretch.start), place, pages) {
                    pages = 0;
                }
                to = Extent::new(to.start + pages, to.pages - pages);
                moved += u64::from(pages);
                let rest = stretch.pages - pages;
                // SAFETY: pages of a free extent that nobody can be given meanwhile.
                unsafe { os::discard(self.address(stretch.start + pages), rest as usize * PAGE) };
            }
            self.touched.clear(victim);
        }
        self.free_victims(victims, moved);
        to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens the heap of the `nth` test, and returns its first address: apart from arenas of other tests, which lie where the heap of a program
    /// does, and where a sanitizer lets it.
    fn open(heap: &Heap, nth: usize) -> *mut u8 {
        let half = TABLE_STEP as usize * PAGE;
        let is_free = |&base: &*mut u8| {
            let mapped = os::map_at(base, 2 * half, false);
            if mapped {
                // SAFETY: mapped just now.
                unsafe { os::unmap(base, 2 * half) };
            }
            mapped
        };
        let bases = [3usize << 39, 33 << 40].map(|first| (first + (nth << 36)) as *mut u8);
        let base = bases.into_iter().find(is_free).expect("free addresses");
        heap.map_in(base as usize, half).expect("room for tables");
        heap.begin_serving(32 << 10);
        base
    }

    #[test]
    fn what_the_arena_gives_replaces_no_other_free_pages() {
        const PART: usize = 4 << 20;
        static HEAP: Heap = Heap::closed();
        let arena = open(&HEAP, 0);
        assert!(os::map_at(arena, 4 * PART, true));
        HEAP.reach_in_arena(4 * PART);
        HEAP.arena_is_filled(4 * PART);
        // SAFETY: mapped just now.
        unsafe { arena.write_bytes(1, 4 * PART) };
        if !HEAP.can_move() {
            return println!("skipped: the system moves no pages across mappings");
        }
        // In parts, as its free stretches are found.
        for part in 0..3 {
            assert_eq!(HEAP.adopt(arena.wrapping_add(part * PART), PART, usize::MAX, false), PART);
            assert_eq!(HEAP.held().resident, (part + 1) * PART);
        }
        let allocate = |bytes: usize| HEAP.allocate(bytes, 16, false, |_| ()).expect("room");
        let block = allocate(3 * PART);
        let pages = || {
            let mut resident = [0; 3 * PART / PAGE];
            // SAFETY: the block's pages, and a byte for each.
            assert_eq!(unsafe { libc::mincore(block.cast(), 3 * PART, resident.as_mut_ptr()) }, 0);
            resident.iter().filter(|&&page| page & 1 != 0).count()
        };
        assert_eq!(pages() * PAGE, 3 * PART, "all are there without a fault");
        // What a block has left goes into the arena and comes back to where nothing is.
        assert!(HEAP.release(block as usize));
        HEAP.fill(arena, 2 * PART, false);
        assert_eq!(HEAP.held().resident, PART);
        assert_eq!(HEAP.adopt(arena, PART, usize::MAX, false), PART);
        assert_eq!(HEAP.held().resident, 2 * PART);
    }

    #[test]
    fn a_block_that_grows_where_pages_are_is_copied_and_elsewhere_moved() {
        const MIB: usize = 1 << 20;
        static HEAP: Heap = Heap::closed();
        open(&HEAP, 1);
        if !HEAP.can_move() {
            return println!("skipped: the system moves no pages across mappings");
        }
        let allocate = |bytes: usize| {
            let block = HEAP.allocate(bytes, 16, false, |_| ()).expect("room");
            // SAFETY: the whole block.
            unsafe { block.write_bytes(bytes.ilog2() as u8, bytes) };
            block
        };
        let grown = |block: *mut u8, bytes: usize| {
            let grown = HEAP.reallocate(block as usize, 2 * bytes, |_| ()).expect("room");
            // SAFETY: the first half of the block, which was written.
            let kept = unsafe { core::slice::from_raw_parts(grown, bytes) };
            assert!(grown != block && kept.iter().all(|&byte| byte == bytes.ilog2() as u8));
            grown
        };
        let (first, second) = (allocate(MIB), allocate(2 * MIB));
        let before = HEAP.held();
        // Behind the second one nothing was yet.
        grown(first, MIB);
        assert_eq!(HEAP.held().moved - before.moved, MIB);
        let large = allocate(8 * MIB);
        assert!(HEAP.release(large as usize));
        let before = HEAP.held();
        let new = grown(second, 2 * MIB);
        let after = HEAP.held();
        assert_eq!((after.moved, after.resident), (before.moved, before.resident));
        let mut resident = [0; 4 * MIB / PAGE];
        // SAFETY: the block's pages, and a byte for each.
        assert_eq!(unsafe { libc::mincore(new.cast(), 4 * MIB, resident.as_mut_ptr()) }, 0);
        assert!(resident.iter().all(|page| page & 1 != 0), "none was lost");
    }

    #[test]
    fn a_block_is_placed_where_pages_are_rather_than_have_them_moved() {
        const MIB: usize = 1 << 20;
        static HEAP: Heap = Heap::closed();
        open(&HEAP, 2);
        let allocate = |bytes: usize| HEAP.allocate(bytes, 16, false, |_| ()).expect("room") as usize;
        // What keeps it apart from the next one lives on.
        let [hole, _] = [4 * MIB, PAGE << 4].map(allocate);
        assert!(HEAP.release(hole));
        assert_eq!(HEAP.give_back(u64::MAX), 4 * MIB);
        let free = allocate(5 * MIB);
        assert!(HEAP.release(free));
        let before = HEAP.held();
        assert_eq!(allocate(4 * MIB), free, "the hole fits, but has no pages");
        let after = HEAP.held();
        assert_eq!((after.moved, after.returned), (before.moved, before.returned));
        assert_eq!(after.resident, before.resident);
        // Where there is nothing better it is taken.
        assert_eq!(allocate(4 * MIB), hole);
    }

    /// The end of all extents, in bytes.
    fn end(heap: &Heap) -> usize {
        heap.with(|table| table.end).expect("the lock") as usize * PAGE
    }

    #[test]
    fn blocks_that_grow_in_turn_do_not_leap_over_each_other_for_ever() {
        const BYTES: usize = 256 << 10;
        static HEAP: Heap = Heap::closed();
        open(&HEAP, 3);
        let allocate = |bytes: usize| HEAP.allocate(bytes, 16, false, |_| ()).expect("room") as usize;
        let mut last = allocate(BYTES);
        for _ in 0..1000 {
            let [block, behind] = [BYTES; 2].map(allocate);
            let grown = HEAP.reallocate(block, 2 * BYTES, |_| ());
            assert!(HEAP.release(core::mem::replace(&mut last, grown.map_or(block, |grown| grown as usize))));
            assert!(HEAP.release(behind));
        }
        assert!(end(&HEAP) <= 32 * BYTES, "{} blocks", end(&HEAP) / BYTES);
    }

    #[test]
    fn what_gives_way_leaves_the_free_addresses_around_it_to_others() {
        const MIB: usize = 1 << 20;
        const PAGES: u32 = (64 * MIB / PAGE) as u32;
        static HEAP: Heap = Heap::closed();
        open(&HEAP, 4);
        let large = HEAP.allocate(64 * MIB, 16, false, |_| ()).expect("room");
        assert!(HEAP.release(large as usize));
        assert_eq!(HEAP.give_back(u64::MAX), 64 * MIB);
        // A few pages far apart are there.
        let resident = [0, PAGES / 2, PAGES - 100].map(|start| Extent::new(start, 8));
        let all = Extent::new(0, PAGES);
        HEAP.with(|table| {
            table.extents().take_part(all, |_| 0);
            resident.iter().for_each(|&extent| HEAP.touched.set(extent));
            table.retention.resident += 24;
            table.insert(&HEAP, all);
        });
        let mut victims = Victims::none();
        HEAP.with(|table| table.choose(&HEAP.touched, 20, &mut victims));
        assert!(victims.touched >= 20, "{}", victims.touched);
        let taken: u32 = victims.all().iter().map(|victim| victim.pages).sum();
        assert!(taken <= 3 * 1024, "{:?}", victims.all());
        // Mapping anew takes all of it, but not at once.
        let mut victims = Victims::none();
        HEAP.with(|table| table.take_below(&HEAP.touched, u32::MAX, MAPPED_ANEW, &mut victims));
        assert!(victims.count == 1 && victims.all()[0].pages <= MAPPED_ANEW);
    }
}
