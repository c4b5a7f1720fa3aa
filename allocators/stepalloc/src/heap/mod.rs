//! The large heap: where blocks come from that no plan serves, from the first request on.
//!
//! Blocks of [`LEAST_BYTES`] and more are *extents*: whole pages of one range of addresses, which is chosen once and mapped as it is used,
//! so that limits of the address space count what the program needs. There is no header; a block is known by its address. It starts
//! somewhere in its first page, as far as the last one has room, so that blocks use all sets of the processor's caches. Free extents are
//! joined with their neighbours and placed by [`extents`]; which of their pages stay resident is decided by [`retention`]; what is known of
//! each page stands in [`pages`].
//!
//! The range's first half is the arena's, its second half the heap's, so that one comparison says whether an address is ours, and pages
//! can change from one to the other: when a plan comes into force, slots get the pages that the heap has free ([`Heap::fill`]), and when it
//! is left, the heap gets them back ([`Heap::adopt`]). The kernel moves them by `mremap`, without a fault and without a copy. Likewise where the heap would grow beyond its
//! peak, free pages move under the new block, and a block that grows where its neighbour is taken moves to the end of the range.
//!
//! One short lock, without a page fault under it and without a system call but for the range's rare growth. An allocation that does not get
//! it within a second is the backend's. A free that does not get it at once is left to whoever has it ([`Heap::defer`]), so that no free
//! waits, and so are extents whose pages moved or went back. Handlers of fork hold the lock meanwhile.

use crate::arena::granules::Run;
use crate::arena::{LINE, shift_lines};
use crate::os::{self, PAGE};
use core::cell::UnsafeCell;
use core::mem::size_of;
use core::ptr;
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::*, fence,
};
use crossbeam_utils::CachePadded;

mod extents;
mod mutex;
mod pages;
mod retention;

use extents::{Extent, Extents};
use mutex::Mutex;
use pages::{Blocks, Touched};
use retention::Retention;

/// The least block in bytes: eight small pages, so that rounding to pages takes an eighth at most.
pub(crate) const LEAST_BYTES: usize = 32 << 10;
/// The heap's addresses are twice as many as the machine has memory, and as many are the arena's. They cost a table of a 500th, in addresses
/// too, of which as much is touched as is used. At most so many that the range ends before mimalloc's areas begin (2 TiB).
const HALF_LEAST: u64 = 1 << 36;
const HALF_MOST: u64 = 1 << 39;
/// The heap is mapped by an eighth of what is, and by so many bytes at least and at most.
const MAP_LEAST: usize = 1 << 20;
const MAP_MOST: usize = 64 << 20;
/// Fewer pages are given back, and not moved: either costs a system call.
const MOVE_LEAST: u32 = 4;
/// A block of so many bytes moves its pages where it cannot grow in place; a smaller one is copied in less time.
const REMAP_LEAST: usize = 128 << 10;
/// A block that shrinks keeps a tail of fewer bytes.
const TAIL_LEAST: usize = LEAST_BYTES;
/// Free extents that are looked at when pages are to go back, from the top of the range down.
const SCANNED: usize = 256;
/// Moves after which mappings are made one again: each may leave two behind, of which a process has 65,530.
const MOVES: u32 = 8192;
/// Where there are more mappings even then, as live blocks keep theirs, nothing is moved any more.
const MAPPINGS: usize = 16_384;
/// The tables are made usable for so many pages at a time: a bit each fills a page of 64 KiB.
const TABLE_STEP: u32 = 1 << 19;
/// Times that a free asks for the lock before it is left to its holder.
const FREE_ATTEMPTS: u32 = 8;
/// With more bytes than these resident, somebody is to look whether they are used at all.
const WATCHED_BYTES: usize = 64 << 20;

/// In an entry of a block, of whose high half the start in the first page is overwritten then: its free is deferred.
const DEFERRED: u64 = 1 << 31;
/// The same of an extent that is no block, and not counted as one.
const UNCOUNTED: u64 = 1 << 30;
const PAGES_MASK: u64 = UNCOUNTED - 1;

pub(crate) static HEAP: Heap = Heap::closed();

/// The heap of the process.
pub(crate) struct Heap {
    /// Address of its first page; 0 while closed.
    base: AtomicUsize,
    /// Its bytes, and those of the range before it; 0 while closed.
    bytes: AtomicUsize,
    /// Those of them that are mapped. Who maps something behind them, by naming the address, is nobody of ours.
    mapped: AtomicUsize,
    /// The least size it serves now: 0 before it was asked for the first time, all ones where it serves none.
    least: AtomicUsize,
    state: AtomicU8,
    blocks: Blocks,
    /// Of the heap's pages, and of the arena's while it is filled.
    touched: Touched,
    arena_touched: Touched,
    /// Pages of the arena for which that table is usable.
    arena_reached: AtomicU32,
    mutex: CachePadded<Mutex>,
    table: CachePadded<UnsafeCell<Table>>,
    /// The newest block whose free was deferred: the number of its page, plus 1.
    deferred: CachePadded<AtomicU32>,
    /// The [thread](os::thread_pointer) that forks, and whose handlers have the lock; 0 for none.
    forking: AtomicUsize,
    /// The lock is held for good, by a thread that a fork did not copy.
    broken: AtomicBool,
    /// The kernel moves pages, as far as is known.
    moves: AtomicBool,
    /// Moves since mappings were made one.
    moved: AtomicU32,
    /// Somebody looks after what is free.
    watched: AtomicBool,
    /// Times that [`Retention::presses`].
    pressures: AtomicU32,
    /// Pages that may be resident, as of the last block.
    resident: AtomicU64,
}

/// States of [`Heap::state`].
const UNOPENED: u8 = 0;
const OPENING: u8 = 1;
const DONE: u8 = 2;

/// What the lock guards.
struct Table {
    extents: AtomicPtr<Extents>,
    retention: Retention,
    /// Pages that were ever part of an extent, from the first.
    end: u32,
    /// Pages that are mapped.
    mapped: u32,
    /// Pages for which there are tables, at least as many.
    reached: u32,
    counters: Counters,
}

/// Figures since the process's start.
struct Counters {
    /// Blocks handed out and freed.
    blocks: u64,
    /// Pages moved.
    moved: u64,
    /// Pages given back.
    returned: u64,
}

/// What the heap holds, in bytes.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Held {
    /// Of live blocks.
    pub(crate) alive: usize,
    /// The same and those of free extents that are kept.
    pub(crate) resident: usize,
    /// Moved since the process's start.
    pub(crate) moved: usize,
    /// Given back since then.
    pub(crate) returned: usize,
}

// SAFETY: the table is reached through `Heap::with` only, by one thread at a time; all else is atomic.
unsafe impl Sync for Heap {}

/// Parts of free extents that nobody can be given while their pages move or go back.
struct Victims {
    extents: [Extent; Victims::MOST],
    count: usize,
    /// Those of their pages that may be resident.
    touched: u64,
}

impl Victims {
    const MOST: usize = 32;

    const fn none() -> Self {
        Self { extents: [Extent::new(0, 0); Self::MOST], count: 0, touched: 0 }
    }

    fn push(&mut self, extent: Extent, touched: u32) {
        self.extents[self.count] = extent;
        self.count += 1;
        self.touched += u64::from(touched);
    }

    fn is_full(&self) -> bool {
        self.count == Self::MOST
    }

    fn all(&self) -> &[Extent] {
        &self.extents[..self.count]
    }
}

impl Heap {
    const fn closed() -> Self {
        Self {
            base: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            mapped: AtomicUsize::new(0),
            least: AtomicUsize::new(0),
            state: AtomicU8::new(UNOPENED),
            blocks: Blocks::none(),
            touched: Touched::none(),
            arena_touched: Touched::none(),
            arena_reached: AtomicU32::new(0),
            mutex: CachePadded::new(Mutex::new()),
            table: CachePadded::new(UnsafeCell::new(Table {
                extents: AtomicPtr::new(ptr::null_mut()),
                retention: Retention::new(),
                end: 0,
                mapped: 0,
                reached: 0,
                counters: Counters { blocks: 0, moved: 0, returned: 0 },
            })),
            deferred: CachePadded::new(AtomicU32::new(0)),
            forking: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
            moves: AtomicBool::new(false),
            moved: AtomicU32::new(0),
            watched: AtomicBool::new(false),
            pressures: AtomicU32::new(0),
            resident: AtomicU64::new(0),
        }
    }

    /// Opens the heap, once, for [`Heap::begin_serving`]; `true` where this call has opened it. Where the system has no room, or the
    /// address space is limited (what is reserved would be taken from the program), it stays closed.
    pub(crate) fn open(&self) -> bool {
        if self.state.compare_exchange(UNOPENED, OPENING, Acquire, Relaxed).is_err() {
            return false;
        }
        let opened = !os::address_space_is_limited() && self.map().is_some();
        self.state.store(DONE, Release);
        opened
    }

    /// Serves blocks of `least` bytes and more from now on, unless it was disabled before. It is open, and its addresses are watched.
    pub(crate) fn begin_serving(&self, least: usize) {
        let _ = self.least.compare_exchange(0, least.max(LEAST_BYTES), Release, Relaxed);
    }

    fn map(&self) -> Option<()> {
        let half =
            os::memory_bytes().saturating_mul(2).clamp(HALF_LEAST, HALF_MOST).next_power_of_two() as usize;
        let range = os::find_low_range(2 * half)?;
        let pages = half / PAGE;
        let extents_bytes = size_of::<Extents>().next_multiple_of(PAGE);
        let (blocks_bytes, touched_bytes) = (Blocks::bytes_for(pages), Touched::bytes_for(pages));
        // Limits of memory that is locked, or data, count what is usable only.
        let tables = os::reserve_anywhere(extents_bytes + blocks_bytes + 2 * touched_bytes)?;
        if !os::commit(tables, extents_bytes) {
            return None;
        }
        // SAFETY: nobody has the table before the heap is open; the mapping is zeros, which are no extents, and stays.
        unsafe {
            *(*self.table.get()).extents.get_mut() = tables.cast();
            self.blocks.open(tables.wrapping_add(extents_bytes));
            self.touched.open(tables.wrapping_add(extents_bytes + blocks_bytes));
            self.arena_touched.open(tables.wrapping_add(extents_bytes + blocks_bytes + touched_bytes));
        }
        self.moves.store(os::moves_across_mappings(), Relaxed);
        os::at_fork(before_fork, after_fork_in_parent, after_fork_in_child);
        self.base.store(range as usize + half, Relaxed);
        self.bytes.store(half, Release);
        Some(())
    }

    /// From now on no block comes from here; those that live stay until they are freed.
    pub(crate) fn disable(&self) {
        self.least.store(usize::MAX, Release);
    }

    /// Whether a block of so many bytes comes from here, where there is room.
    #[inline]
    pub(crate) fn serves(&self, size: usize) -> bool {
        let least = self.least.load(Acquire);
        least != 0 && size >= least
    }

    /// Whether it has still to be opened.
    #[inline]
    pub(crate) fn is_unopened(&self) -> bool {
        self.least.load(Relaxed) == 0
    }

    /// Whether blocks may come from here, or have.
    pub(crate) fn is_open(&self) -> bool {
        self.bytes.load(Acquire) != 0
    }

    /// The whole range: its address, and its bytes. Nothing while closed.
    pub(crate) fn range(&self) -> Option<(usize, usize)> {
        let bytes = self.bytes.load(Acquire);
        (bytes != 0).then(|| (self.base.load(Relaxed) - bytes, 2 * bytes))
    }

    /// Whether an address is in the heap, block or not.
    #[inline]
    pub(crate) fn contains(&self, address: usize) -> bool {
        // In this order: whoever finds bytes mapped finds where.
        let mapped = self.mapped.load(Acquire);
        address.wrapping_sub(self.base.load(Relaxed)) < mapped
    }

    #[inline(always)]
    fn address(&self, page: u32) -> *mut u8 {
        (self.base.load(Relaxed) + page as usize * PAGE) as *mut u8
    }

    /// The extent of the live block at an offset in the range; `None` where none starts there.
    #[inline(always)]
    fn block_at(&self, offset: usize) -> Option<Extent> {
        // In this order: what is mapped has its tables.
        let mapped = self.mapped.load(Acquire);
        let offset = offset.wrapping_sub(self.bytes.load(Relaxed));
        if offset >= mapped {
            return None;
        }
        let page = (offset / PAGE) as u32;
        let entry = self.blocks.at(page).load(Relaxed);
        let is_block = entry & PAGES_MASK != 0 && entry & DEFERRED == 0;
        (is_block && entry >> u32::BITS == (offset % PAGE) as u64).then(|| Extent::new(page, entry as u32))
    }

    fn block(&self, address: usize) -> Option<Extent> {
        self.block_at(address.wrapping_sub(self.base.load(Relaxed)).wrapping_add(self.bytes.load(Acquire)))
    }

    /// Bytes of the block at an address, all of them writable; 0 where none starts there.
    pub(crate) fn usable_bytes(&self, address: usize) -> usize {
        self.block(address).map_or(0, |block| block.pages as usize * PAGE - address % PAGE)
    }

    /// Runs `body` with the lock held; `None` where it is held by another for too long.
    #[inline]
    fn with<R>(&self, body: impl FnOnce(&mut Table) -> R) -> Option<R> {
        self.lock().then(|| self.locked(body))
    }

    #[inline]
    fn lock(&self) -> bool {
        // Who has it for a fork, and allocates in a later handler, would wait for himself.
        let waits = || {
            let forks = self.forking.load(Relaxed) == os::thread_pointer();
            !forks && !self.broken.load(Relaxed) && self.mutex.lock_contended()
        };
        self.mutex.try_lock() || waits()
    }

    /// Runs `body`, frees what others have left to the lock's holder, and unlocks.
    #[inline]
    fn locked<R>(&self, body: impl FnOnce(&mut Table) -> R) -> R {
        // SAFETY: the lock is held.
        let result = body(unsafe { &mut *self.table.get() });
        loop {
            if self.deferred.load(Relaxed) != 0 {
                // SAFETY: as above.
                self.free_deferred(unsafe { &mut *self.table.get() });
            }
            self.mutex.unlock();
            // Whoever defers a free looks at the lock after that: one of the two sees the other.
            fence(SeqCst);
            if self.deferred.load(Relaxed) == 0 || !self.mutex.try_lock() {
                return result;
            }
        }
    }

    #[cold]
    fn free_deferred(&self, table: &mut Table) {
        let mut next = self.deferred.swap(0, Acquire);
        while let Some(page) = next.checked_sub(1) {
            let entry = self.blocks.at(page).swap(0, Relaxed);
            next = (entry >> u32::BITS) as u32;
            let extent = Extent::new(page, (entry & PAGES_MASK) as u32);
            if entry & UNCOUNTED == 0 { table.free(self, extent) } else { table.insert(self, extent) }
        }
    }

    /// Leaves the free of a block, or of an extent that is [`UNCOUNTED`], to whoever has the lock.
    #[cold]
    fn defer(&self, block: Extent, uncounted: u64) {
        let mut newest = self.deferred.load(Relaxed);
        loop {
            let entry = u64::from(block.pages) | DEFERRED | uncounted | u64::from(newest) << u32::BITS;
            self.blocks.at(block.start).store(entry, Relaxed);
            match self.deferred.compare_exchange_weak(newest, block.start + 1, Release, Relaxed) {
                Ok(_) => break,
                Err(other) => newest = other,
            }
        }
        fence(SeqCst);
        if self.mutex.try_lock() {
            self.locked(|_| ());
        }
    }

    /// A block of at least `size` bytes at `align`; `None` where the heap does not serve it. With `zeroed`, it reads as zeros.
    #[inline]
    ///
    /// `relieve` is called where the process would rise above its peak by that, and has the arena give free pages to the heap.
    pub(crate) fn allocate(
        &self,
        size: usize,
        align: usize,
        zeroed: bool,
        relieve: fn(usize),
    ) -> Option<*mut u8> {
        if !self.serves(size) {
            return None;
        }
        let pages = self.pages_of(size)?;
        let mut victims = Victims::none();
        let (extent, presses) = self.with(|table| {
            let extent = table.place(self, pages, align)?;
            Some((extent, table.account(self, extent, &mut victims)))
        })??;
        let start = Self::start_of(extent, size, align);
        Some(self.begin(extent, start, extent, &victims, zeroed, (presses, relieve)))
    }

    /// Where in its first page a block starts, in bytes.
    fn start_of(extent: Extent, size: usize, align: usize) -> usize {
        let run = Run::new(extent.start, extent.pages);
        shift_lines(run, size, align, PAGE.trailing_zeros()) as usize * LINE
    }

    /// Pages of a block; `None` where the heap is not as large.
    fn pages_of(&self, size: usize) -> Option<u32> {
        let most = self.bytes.load(Relaxed) / PAGE;
        Some(size.div_ceil(PAGE)).filter(|&pages| pages < most).map(|pages| pages as u32)
    }

    /// Makes an extent a block that starts at a byte of its first page, and of which `new` was not part before.
    #[inline]
    fn begin(
        &self,
        block: Extent,
        start: usize,
        new: Extent,
        victims: &Victims,
        zeroed: bool,
        (presses, relieve): (u64, fn(usize)),
    ) -> *mut u8 {
        if victims.count > 0 {
            self.give_way(victims, (!zeroed).then_some(new));
        }
        if presses > 0 {
            relieve(presses as usize * PAGE);
            // Pages that moved would have to be cleared: fresh ones are zeros.
            if !zeroed {
                self.fill_holes(&self.touched, new, self.base.load(Relaxed));
            }
        }
        if zeroed {
            for stretch in self.touched.stretches(new, true) {
                // SAFETY: pages of the block, which is the caller's alone.
                unsafe { os::zero(self.address(stretch.start), stretch.pages as usize * PAGE) };
            }
        }
        self.touched.set(new);
        self.blocks.at(block.start).store(u64::from(block.pages) | (start as u64) << u32::BITS, Release);
        self.address(block.start).wrapping_add(start)
    }

    /// Gives the pages of victims back, or moves them to where `into` has none, and frees the victims.
    #[cold]
    #[inline(never)]
    fn give_way(&self, victims: &Victims, into: Option<Extent>) {
        let into = into.filter(|_| self.can_move());
        let begun = os::now_ns();
        let moved = self.empty(victims.all(), into);
        let nanoseconds = os::now_ns().saturating_sub(begun);
        self.with(|table| table.retention.regret(victims.touched - moved, nanoseconds));
        self.free_victims(victims, moved);
    }

    /// Moves or gives back what of the extents may be resident. Returns the pages moved.
    fn empty(&self, extents: &[Extent], into: Option<Extent>) -> u64 {
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

    /// Whether pages can be moved. Once there were many moves, what is free is mapped anew first, so that its mappings are one again; its
    /// memory goes back with that.
    fn can_move(&self) -> bool {
        if !self.moves.load(Relaxed) {
            return false;
        }
        if self.moved.load(Relaxed) >= MOVES {
            self.moved.store(0, Relaxed);
            self.map_anew();
            if os::keeping_errno(os::mappings).is_none_or(|count| count > MAPPINGS) {
                self.moves.store(false, Relaxed);
                return false;
            }
        }
        true
    }

    #[cold]
    fn map_anew(&self) {
        let mut below = u32::MAX;
        loop {
            let mut victims = Victims::none();
            if self.with(|table| table.take_below(&self.touched, below, &mut victims)).is_none()
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
    fn free_victims(&self, victims: &Victims, moved: u64) {
        self.free_uncounted(victims.all(), |table| {
            table.counters.moved += moved;
            table.counters.returned += victims.touched - moved;
        });
    }

    /// Frees extents that are not counted as alive. Where the lock is held for too long (by a thread that forks, say, and waits for one of
    /// the program's locks, which this one has), that is left to its holder, and `count` is left out.
    fn free_uncounted(&self, extents: &[Extent], count: impl FnOnce(&mut Table)) {
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

    fn count_move(&self, moved: bool) -> bool {
        self.moved.fetch_add(1, Relaxed);
        if !moved {
            self.moves.store(false, Relaxed);
        }
        moved
    }

    /// Frees the block at an offset in the range; `false`, and nothing done, where none starts there.
    #[inline]
    pub(crate) fn release_at(&self, offset: usize) -> bool {
        let Some(block) = self.block_at(offset) else { return false };
        self.blocks.at(block.start).store(0, Relaxed);
        self.give(block);
        true
    }

    /// Frees the block at an address; as [`Heap::release_at`].
    #[inline]
    pub(crate) fn release(&self, address: usize) -> bool {
        self.release_at(address.wrapping_sub(self.base.load(Relaxed)).wrapping_add(self.bytes.load(Acquire)))
    }

    #[inline]
    fn give(&self, block: Extent) {
        if (0..FREE_ATTEMPTS).any(|_| self.mutex.try_lock()) {
            self.locked(|table| table.free(self, block));
        } else {
            self.defer(block, 0);
        }
    }

    /// Changes the size of the block at an address, without copying it; `None`, and nothing has changed, where that cannot be.
    pub(crate) fn reallocate(&self, address: usize, size: usize, relieve: fn(usize)) -> Option<*mut u8> {
        let block = self.block(address)?;
        let start = address % PAGE;
        let pages = self.pages_of(size.checked_add(start)?).filter(|_| self.serves(size))?;
        if pages <= block.pages {
            let tail = Extent::new(block.start + pages, block.pages - pages);
            if tail.pages as usize * PAGE >= TAIL_LEAST {
                self.blocks.at(block.start).store(u64::from(pages) | (start as u64) << u32::BITS, Relaxed);
                self.give(tail);
            }
            return Some(address as *mut u8);
        }
        let mut victims = Victims::none();
        let more = Extent::new(block.end(), pages - block.pages);
        let grown =
            self.with(|table| table.extend(self, more).then(|| table.account(self, more, &mut victims)))?;
        if let Some(presses) = grown {
            let relieve = (presses, relieve);
            return Some(self.begin(Extent::new(block.start, pages), start, more, &victims, false, relieve));
        }
        if block.pages as usize * PAGE < REMAP_LEAST || !self.can_move() {
            return None;
        }
        self.reallocate_at_end(block, start, pages, relieve)
    }

    /// Moves a block's pages to the end of the range, where it can grow on.
    fn reallocate_at_end(
        &self,
        block: Extent,
        start: usize,
        pages: u32,
        relieve: fn(usize),
    ) -> Option<*mut u8> {
        let mut victims = Victims::none();
        let (extent, presses) = self.with(|table| {
            let extent = table.place_at_end(self, pages, 1)?;
            // Its first pages take the place of others, which are counted already.
            let kept = Extent::new(extent.start, block.pages);
            table.retention.resident -= u64::from(self.touched.count(kept));
            let more = Extent::new(kept.end(), pages - block.pages);
            Some((extent, table.account(self, more, &mut victims)))
        })??;
        let more = Extent::new(extent.start + block.pages, pages - block.pages);
        let (from, to) = (self.address(block.start), self.address(extent.start));
        // SAFETY: whole pages, mapped by us, apart, and the caller's alone.
        self.count_move(unsafe { os::move_content(from, to, block.pages as usize * PAGE) });
        self.touched.set(Extent::new(extent.start, block.pages));
        let new = self.begin(extent, start, more, &victims, false, (presses, relieve));
        self.blocks.at(block.start).store(0, Relaxed);
        self.touched.clear(block);
        self.free_uncounted(&[block], |table| table.counters.moved += u64::from(block.pages));
        Some(new)
    }

    /// Gives free pages back, as many as `least` at least where there are. Returns their bytes.
    pub(crate) fn give_back(&self, least: u64) -> usize {
        let mut given = 0;
        // What others free meanwhile is theirs.
        let free = if self.is_open() { self.with(|table| table.retention.free()) } else { None };
        let least = least.min(free.unwrap_or(0));
        while given < least {
            let mut victims = Victims::none();
            if self.with(|table| table.choose(&self.touched, least - given, &mut victims)).is_none()
                || victims.count == 0
            {
                break;
            }
            self.empty(victims.all(), None);
            self.free_victims(&victims, 0);
            given += victims.touched;
        }
        given as usize * PAGE
    }

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

    /// The arena is so many bytes from now on, or has been more. Under the engine's lock.
    pub(crate) fn reach_in_arena(&self, bytes: usize) {
        let reached = self.arena_reached.load(Relaxed);
        let pages = (bytes.div_ceil(PAGE) as u32).next_multiple_of(TABLE_STEP);
        if self.is_open() && pages > reached && self.arena_touched.reach(reached, pages) {
            self.arena_reached.store(pages, Release);
        }
    }

    /// Takes over the memory behind a stretch of the arena, in which no block lives, but no more than so many bytes: the way back from
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
            let extent = table.place_at_end(self, pages, 1)?;
            table.retention.resident += u64::from(extent.pages - self.touched.count(extent));
            table.counters.moved += u64::from(extent.pages);
            self.resident.store(table.retention.resident, Relaxed);
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

    /// Moves free pages of the heap under a block of the arena, which is the caller's alone, has no content yet, and lies in the range's
    /// first half: under its whole pages that have none, unless they are to be zeros, which fresh ones are.
    #[cold]
    pub(crate) fn fill(&self, block: *mut u8, bytes: usize, zeroed: bool) {
        let (Some((base, _)), Some(whole)) = (self.range(), self.arena_pages(block, bytes)) else { return };
        if !zeroed {
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
    fn fill_holes(&self, touched: &Touched, all: Extent, base: usize) {
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

    /// Forgets what was alive at once before, and gives back what was kept for it.
    pub(crate) fn settle(&self) {
        if self.is_open()
            && let Some(excess @ 1..) = self.with(|table| table.retention.forget())
        {
            self.give_back(excess);
        }
    }

    /// Called about once a second: what was needed at once longer ago is forgotten, and what was kept for it goes back.
    pub(crate) fn second(&self) {
        if self.is_open()
            && let Some(excess @ 1..) = self.with(|table| table.retention.second())
        {
            self.give_back(excess);
        }
    }

    /// Times that the process would have risen above its peak beside the arena, and that gave way, or the heap at the end of a step.
    pub(crate) fn pressures(&self) -> u32 {
        self.pressures.load(Relaxed)
    }

    /// Says how many bytes the arena holds from now on: all of them at the end of a step that it has served, and what is occupied where the
    /// others went back.
    pub(crate) fn arena_holds(&self, bytes: usize) {
        if self.is_open()
            && let Some((excess @ 1.., is_much)) =
                self.with(|table| table.retention.arena_holds((bytes / PAGE) as u64))
        {
            // The next step's blocks will fault there again.
            self.pressures.fetch_add(u32::from(is_much), Relaxed);
            self.give_back(excess);
        }
    }

    /// The arena serves no longer, and has given what is free there; so many bytes are still occupied.
    pub(crate) fn arena_retires(&self, occupied: usize) {
        if self.is_open()
            && let Some(excess @ 1..) =
                self.with(|table| table.retention.arena_retires((occupied / PAGE) as u64))
        {
            self.give_back(excess);
        }
    }

    /// The arena has given what it can: what it holds beside what is alive makes a new peak.
    pub(crate) fn relieved(&self) {
        self.with(|table| table.retention.relieved());
        self.pressures.fetch_add(1, Relaxed);
    }

    /// Whether so much is resident that somebody should look after it, and nobody does. The next call says no.
    #[inline]
    pub(crate) fn wants_watch(&self) -> bool {
        self.resident.load(Relaxed) as usize * PAGE >= WATCHED_BYTES
            && !self.watched.load(Relaxed)
            && !self.watched.swap(true, Relaxed)
    }

    /// Whether whoever looks has to stay: what is alive may be freed without a word.
    pub(crate) fn is_watched_on(&self) -> bool {
        self.at_once(|table| table.retention.resident)
            .is_none_or(|pages| pages as usize * PAGE >= WATCHED_BYTES)
    }

    /// Nobody looks any more.
    pub(crate) fn end_watch(&self) {
        self.watched.store(false, Relaxed);
    }

    /// A number that changes with each block and each free; 0 where the lock is held.
    pub(crate) fn activity(&self) -> u64 {
        self.at_once(|table| table.counters.blocks).unwrap_or(0)
    }

    /// What it holds now; nothing where the lock is held, perhaps by whom a signal's handler has interrupted to ask this.
    pub(crate) fn held(&self) -> Held {
        let held = self.at_once(|table| {
            let bytes = |pages: u64| pages as usize * PAGE;
            Held {
                alive: bytes(table.retention.alive),
                resident: bytes(table.retention.resident),
                moved: bytes(table.counters.moved),
                returned: bytes(table.counters.returned),
            }
        });
        held.unwrap_or_default()
    }

    fn at_once<R>(&self, body: impl FnOnce(&mut Table) -> R) -> Option<R> {
        (0..FREE_ATTEMPTS).any(|_| self.mutex.try_lock()).then(|| self.locked(body))
    }
}

impl Table {
    fn extents(&mut self) -> &mut Extents {
        // SAFETY: mapped when the heap was opened, and reached through this table only.
        unsafe { &mut **self.extents.get_mut() }
    }

    /// An extent of so many pages at an alignment in bytes, which nobody else has any more.
    #[inline]
    fn place(&mut self, heap: &Heap, pages: u32, align: usize) -> Option<Extent> {
        let step = (align / PAGE).max(1) as u64;
        let base = (heap.base.load(Relaxed) / PAGE) as u64;
        let found = match step {
            1 => self.extents().take(pages),
            _ => self.extents().take_aligned(pages, step, base),
        };
        found.map(|start| Extent::new(start, pages)).or_else(|| self.place_at_end(heap, pages, step))
    }

    /// The same at the end of all extents.
    #[cold]
    fn place_at_end(&mut self, heap: &Heap, pages: u32, step: u64) -> Option<Extent> {
        let base = (heap.base.load(Relaxed) / PAGE) as u64;
        let end = self.end;
        let last = self.extents().take_last(end);
        let from = last.map_or(end, |last| last.start);
        let start = (base + u64::from(from)).next_multiple_of(step) - base;
        if !self.reach(heap, start + u64::from(pages)) {
            if let Some(last) = last {
                self.extents().insert(last);
            }
            return None;
        }
        let start = start as u32;
        if start > from {
            self.extents().insert(Extent::new(from, start - from));
        }
        if let Some(rest) = last.filter(|last| last.end() > start + pages) {
            self.extents().insert(Extent::new(start + pages, rest.end() - start - pages));
        }
        Some(Extent::new(start, pages))
    }

    /// Takes the pages behind a block, if they are free.
    fn extend(&mut self, heap: &Heap, more: Extent) -> bool {
        if self.extents().take_at(more.start, more.pages) {
            return true;
        }
        let end = self.end;
        if more.start == end {
            return self.reach(heap, u64::from(more.end()));
        }
        // The last extent, free and too short.
        let last = self.extents().take_last(end);
        if last.is_some_and(|last| last.start == more.start) && self.reach(heap, u64::from(more.end())) {
            return true;
        }
        if let Some(last) = last {
            self.extents().insert(last);
        }
        false
    }

    /// Makes pages up to `end` part of the heap, and usable; `false` where the range ends before, or the system refuses.
    fn reach(&mut self, heap: &Heap, end: u64) -> bool {
        if end > (heap.bytes.load(Relaxed) / PAGE) as u64 {
            return false;
        }
        let end = end as u32;
        if end > self.mapped {
            let most = heap.bytes.load(Relaxed) - self.mapped as usize * PAGE;
            let step = (self.mapped as usize * PAGE / 8).clamp(MAP_LEAST, MAP_MOST) & !(PAGE - 1);
            let least = (end - self.mapped) as usize * PAGE;
            let start = heap.address(self.mapped);
            let tried = [least.max(step).min(most), least];
            let pages = self.mapped + (tried[0] / PAGE) as u32;
            if pages > self.reached {
                let pages = pages.next_multiple_of(TABLE_STEP);
                if !heap.blocks.reach(self.reached, pages) || !heap.touched.reach(self.reached, pages) {
                    return false;
                }
                self.reached = pages;
            }
            let Some(bytes) = tried.into_iter().find(|&bytes| os::map_at(start, bytes, true)) else {
                return false;
            };
            self.mapped += (bytes / PAGE) as u32;
            heap.mapped.store(self.mapped as usize * PAGE, Release);
        }
        self.end = self.end.max(end);
        true
    }

    /// Counts a new block, or the new part of one, and chooses what must give way to it.
    #[inline]
    fn account(&mut self, heap: &Heap, new: Extent, victims: &mut Victims) -> u64 {
        let fresh = new.pages - heap.touched.count(new);
        self.counters.blocks += 1;
        let excess = self.retention.allocate(u64::from(new.pages), u64::from(fresh));
        if fresh > 0 {
            heap.resident.store(self.retention.resident, Relaxed);
        }
        if excess > 0 {
            self.choose(&heap.touched, excess, victims);
        }
        self.retention.presses()
    }

    /// Takes parts of free extents with so many resident pages in all, if there are: of the extents that have most, from their ends.
    #[cold]
    #[inline(never)]
    fn choose(&mut self, touched: &Touched, wanted: u64, victims: &mut Victims) {
        // Each is counted once, and a part of it again where its end is looked for.
        let mut runs = [(0, Extent::default()); SCANNED];
        for (run, extent) in runs.iter_mut().zip(self.extents().descending()) {
            *run = (touched.count(extent), extent);
        }
        while victims.touched < wanted && !victims.is_full() {
            let Some(run) = runs.iter_mut().max_by_key(|run| run.0).filter(|run| run.0 > 0) else { break };
            let (most, extent) = *run;
            let enough = (wanted - victims.touched).max(MOVE_LEAST.into()).min(most.into()) as u32;
            // The last page from which on so many are resident. Behind `end` they are too few.
            let (mut from, mut end, mut behind) = (extent.start, extent.end(), 0);
            while enough < most && end - from > 1 {
                let midst = from + (end - from) / 2;
                let count = behind + touched.count(Extent::new(midst, end - midst));
                if count >= enough {
                    from = midst;
                } else {
                    (end, behind) = (midst, count);
                }
            }
            let part = Extent::new(from, extent.end() - from);
            self.extents().take_part(part);
            let count = touched.count(part);
            *run = (most - count, Extent::new(extent.start, from - extent.start));
            self.retention.resident -= u64::from(count);
            victims.push(part, count);
        }
    }

    /// Takes the highest free extents that end below a page.
    #[cold]
    fn take_below(&mut self, touched: &Touched, below: u32, victims: &mut Victims) {
        while !victims.is_full() {
            let below = victims.all().last().map_or(below, |last| last.start);
            let Some(extent) = self.extents().descending().find(|extent| extent.end() < below) else {
                return;
            };
            self.extents().take_part(extent);
            let count = touched.count(extent);
            self.retention.resident -= u64::from(count);
            victims.push(extent, count);
        }
    }

    #[inline]
    fn free(&mut self, heap: &Heap, block: Extent) {
        self.retention.alive -= u64::from(block.pages);
        self.counters.blocks += 1;
        self.insert(heap, block);
    }

    #[inline]
    fn insert(&mut self, heap: &Heap, extent: Extent) {
        if !self.extents().insert(extent) {
            // No room in the table: its addresses are lost, its memory is not.
            self.retention.resident -= u64::from(heap.touched.count(extent));
            heap.touched.clear(extent);
            // SAFETY: pages of a free extent, which nobody is given any more.
            unsafe { os::discard(heap.address(extent.start), extent.pages as usize * PAGE) };
        }
    }
}

extern "C" fn before_fork() {
    if HEAP.lock() {
        HEAP.forking.store(os::thread_pointer(), Relaxed);
    }
}

/// Whether the lock is this thread's, from before its fork.
fn ends_fork() -> bool {
    HEAP.forking.compare_exchange(os::thread_pointer(), 0, Relaxed, Relaxed).is_ok()
}

extern "C" fn after_fork_in_parent() {
    if ends_fork() {
        HEAP.locked(|_| ());
    }
}

extern "C" fn after_fork_in_child() {
    HEAP.end_watch();
    if ends_fork() {
        HEAP.mutex.reset();
    } else if HEAP.mutex.is_held() {
        // Whoever had it was interrupted by this very fork, or the handlers were not there yet: the table may be half changed. Nobody is to
        // wait for it.
        HEAP.broken.store(true, Relaxed);
        HEAP.disable();
    }
}
