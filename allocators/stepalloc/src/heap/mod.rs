//! The large heap: where blocks come from that no plan serves, from the first request on.
//!
//! Blocks of [`LEAST_BYTES`] and more are *extents*: whole pages of one range of addresses, which is chosen once and mapped as it is used,
//! so that limits of the address space count what the program needs. There is no header; a block is known by its address. Free extents are
//! joined with their neighbours and placed by [`extents`]; which of their pages stay resident is decided by [`retention`]; what is known of
//! each page stands in [`pages`].
//!
//! The range's first half is the arena's, its second half the heap's, so that one comparison says whether an address is ours, and pages
//! can change from one to the other: when a plan comes into force, slots get the pages that the heap has free ([`Heap::fill`]), and when it
//! is left, the heap gets them back ([`Heap::adopt`]). The kernel moves them ([`moves`]) by `mremap`, without a fault and without a copy. Likewise where the heap would grow beyond its
//! peak, free pages move under the new block, and a block that grows where its neighbour is taken moves to where it can grow on.
//!
//! One short lock, without a page fault under it and without a system call but for the range's rare growth. An allocation that does not get
//! it within a second is the backend's. A free that does not get it at once is left to whoever has it ([`Heap::defer`]), so that no free
//! waits, and so are extents whose pages moved or went back. Handlers of fork hold the lock meanwhile.

use crate::os::{self, PAGE};
use core::cell::UnsafeCell;
use core::mem::size_of;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use crossbeam_utils::CachePadded;

mod deferred;
mod extents;
#[cfg(test)]
mod models;
mod moves;
mod mutex;
mod pages;
mod retention;
mod table;

use deferred::Deferred;
use extents::{Extent, Extents};
use mutex::Mutex;
use pages::{Blocks, Touched};
use table::{Table, Victims};

/// The least block in bytes: eight small pages, so that rounding to pages takes an eighth at most.
pub(crate) const LEAST_BYTES: usize = 32 << 10;
/// The heap's addresses are twice as many as the machine has memory, and as many are the arena's. They cost a table of a 500th, in addresses
/// too, of which as much is touched as is used. At most so many that the range ends before mimalloc's areas begin (2 TiB).
const HALF_LEAST: u64 = 1 << 36;
const HALF_MOST: u64 = 1 << 39;
/// Fewer pages are given back, and not moved: either costs a system call.
const MOVE_LEAST: u32 = 4;
/// A block of so many bytes moves its pages where it cannot grow in place; a smaller one is copied in less time.
const REMAP_LEAST: usize = 128 << 10;
/// A block that shrinks keeps a tail of fewer bytes.
const TAIL_LEAST: usize = LEAST_BYTES;
/// Times that a free asks for the lock before it is left to its holder.
const FREE_ATTEMPTS: u32 = 8;
/// With more bytes than these free, and resident, somebody is to look whether they are used at all.
const WATCHED_BYTES: usize = 64 << 20;

/// Free resident bytes from which on a free looks whether the process has risen without the heap, and nanoseconds between two looks.
const LOOKED_BYTES: usize = 1 << 20;
const LOOK_NANOSECONDS: u64 = 5_000_000;

/// The backend is asked for what it keeps free once these bytes are resident, and again each time that as many more are, and an eighth more.
const TRIM_LEAST: usize = 32 << 20;

/// In an entry of a block: its free is deferred.
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
    line: CachePadded<LockLine>,
    table: CachePadded<UnsafeCell<Table>>,
    /// Blocks whose frees did not get the lock.
    deferred: CachePadded<Deferred>,
    /// The [thread](os::thread_pointer) that forks, and whose handlers have the lock; 0 for none.
    forking: AtomicUsize,
    /// The lock is held for good, by a thread that a fork did not copy.
    broken: AtomicBool,
    /// Whether the kernel moves pages; [unknown](moves::UNKNOWN) until it is asked.
    moves: AtomicU8,
    /// Moves since mappings were made one.
    moved: AtomicU32,
    /// Somebody looks after what is free.
    watched: AtomicBool,
    /// Times that [`Retention::presses`](retention::Retention::presses).
    pressures: AtomicU32,
    /// From how many on the backend is to give back what it keeps free.
    trims_from: AtomicU64,
}

/// The lock, and what its holder writes with most blocks: they come with the lock's cache line, and take none from those who only read where
/// the heap is.
struct LockLine {
    mutex: Mutex,
    /// Pages that may be resident, as of the last block.
    resident: AtomicU64,
    /// Those of them that are free, as of the last free.
    free: AtomicU64,
    /// When the process's peak was last looked at.
    looked: AtomicU64,
}

/// States of [`Heap::state`].
const UNOPENED: u8 = 0;
const OPENING: u8 = 1;
const DONE: u8 = 2;

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
            line: CachePadded::new(LockLine {
                mutex: Mutex::new(),
                resident: AtomicU64::new(0),
                free: AtomicU64::new(0),
                looked: AtomicU64::new(0),
            }),
            table: CachePadded::new(UnsafeCell::new(Table::new())),
            deferred: CachePadded::new(Deferred::none()),
            forking: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
            moves: AtomicU8::new(moves::UNKNOWN),
            moved: AtomicU32::new(0),
            watched: AtomicBool::new(false),
            pressures: AtomicU32::new(0),
            trims_from: AtomicU64::new((TRIM_LEAST / PAGE) as u64),
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

    /// Has the lock free in the children of later forks.
    pub(crate) fn handle_forks(&self) {
        static HANDLED: AtomicBool = AtomicBool::new(false);
        if self.is_open() && !HANDLED.swap(true, Relaxed) {
            os::at_fork(before_fork, after_fork_in_parent, after_fork_in_child);
        }
    }

    /// Serves blocks of `least` bytes and more from now on, unless it was disabled before. It is open, and its addresses are watched.
    pub(crate) fn begin_serving(&self, least: usize) {
        let _ = self.least.compare_exchange(0, least.max(LEAST_BYTES), Release, Relaxed);
    }

    fn map(&self) -> Option<()> {
        let half =
            os::memory_bytes().saturating_mul(2).clamp(HALF_LEAST, HALF_MOST).next_power_of_two() as usize;
        self.map_in(os::find_low_range(2 * half)? as usize, half)
    }

    /// Takes a range of twice `half` bytes in which nothing is mapped.
    fn map_in(&self, range: usize, half: usize) -> Option<()> {
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
        self.base.store(range + half, Relaxed);
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
        if offset >= mapped || !offset.is_multiple_of(PAGE) {
            return None;
        }
        let page = (offset / PAGE) as u32;
        let entry = self.blocks.at(page).load(Relaxed);
        let is_block = entry & PAGES_MASK != 0 && entry & DEFERRED == 0;
        is_block.then(|| Extent::new(page, entry as u32))
    }

    fn block(&self, address: usize) -> Option<Extent> {
        self.block_at(address.wrapping_sub(self.base.load(Relaxed)).wrapping_add(self.bytes.load(Acquire)))
    }

    /// Bytes of the block at an address, all of them writable; 0 where none starts there.
    pub(crate) fn usable_bytes(&self, address: usize) -> usize {
        self.block(address).map_or(0, |block| block.pages as usize * PAGE)
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
            !forks && !self.broken.load(Relaxed) && self.line.mutex.lock_contended()
        };
        self.line.mutex.try_lock() || waits()
    }

    /// Runs `body`, frees what others have left to the lock's holder, and unlocks.
    #[inline]
    fn locked<R>(&self, body: impl FnOnce(&mut Table) -> R) -> R {
        // SAFETY: the lock is held.
        let result = body(unsafe { &mut *self.table.get() });
        // SAFETY: as above: it is held whenever this is called.
        self.deferred.unlock(&self.line.mutex, || self.free_deferred(unsafe { &mut *self.table.get() }));
        result
    }

    #[cold]
    fn free_deferred(&self, table: &mut Table) {
        self.deferred.take(&self.blocks, |extent, is_counted| {
            if is_counted { table.free(self, extent) } else { table.insert(self, extent) }
        });
    }

    /// Leaves the free of a block, or of an extent that is [`UNCOUNTED`], to whoever has the lock.
    #[cold]
    fn defer(&self, block: Extent, uncounted: u64) {
        if self.deferred.push(&self.line.mutex, &self.blocks, block, uncounted) {
            self.locked(|_| ());
        }
    }

    /// A block of at least `size` bytes at `align`; `None` where the heap does not serve it. With `zeroed`, it reads as zeros.
    ///
    /// `relieve` is called where the process would rise above its peak by that, and has the arena give free pages to the heap.
    #[inline]
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
        self.allocate_any(size, align, zeroed, relieve, |_, _| ())
    }

    #[inline(always)]
    fn allocate_any(
        &self,
        size: usize,
        align: usize,
        zeroed: bool,
        relieve: fn(usize),
        placed: impl FnOnce(&mut Table, u32),
    ) -> Option<*mut u8> {
        let pages = self.pages_of(size)?;
        let mut victims = Victims::none();
        let (extent, presses) = self.with(|table| {
            let extent = table.place(self, pages, align)?;
            placed(table, pages);
            Some((extent, table.account(self, extent, &mut victims)))
        })??;
        Some(self.begin(extent, extent, &victims, zeroed, (presses, relieve)))
    }

    /// A block for work of the allocator's own, of any size: free pages here are resident already. `None` where the heap serves nothing.
    pub(crate) fn lend(&self, size: usize, zeroed: bool) -> Option<*mut u8> {
        let serves = !matches!(self.least.load(Acquire), 0 | usize::MAX);
        let lent = |table: &mut Table, pages: u32| table.retention.lend(pages.into());
        if serves { self.allocate_any(size, 1, zeroed, |_| (), lent) } else { None }
    }

    /// Frees a [lent](Heap::lend) block; `false`, and nothing done, where none is at the address.
    pub(crate) fn take_back(&self, address: usize) -> bool {
        let Some(block) = self.block(address) else { return false };
        // In this order, so that it never counts as the program's.
        let freed = self.release(address);
        self.with(|table| table.retention.take_back(block.pages.into()));
        freed
    }

    /// Pages of a block; `None` where the heap is not as large.
    fn pages_of(&self, size: usize) -> Option<u32> {
        let most = self.bytes.load(Relaxed) / PAGE;
        Some(size.div_ceil(PAGE)).filter(|&pages| pages < most).map(|pages| pages as u32)
    }

    /// Makes an extent a block, of which `new` was not part before.
    #[inline]
    fn begin(
        &self,
        block: Extent,
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
        self.blocks.at(block.start).store(u64::from(block.pages), Release);
        self.address(block.start)
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
        if (0..FREE_ATTEMPTS).any(|_| self.line.mutex.try_lock()) {
            self.locked(|table| table.free(self, block));
        } else {
            self.defer(block, 0);
        }
    }

    /// Changes the size of the block at an address, without copying it; `None`, and nothing has changed, where that cannot be.
    pub(crate) fn reallocate(&self, address: usize, size: usize, relieve: fn(usize)) -> Option<*mut u8> {
        let block = self.block(address)?;
        let pages = self.pages_of(size).filter(|_| self.serves(size))?;
        if pages <= block.pages {
            let tail = Extent::new(block.start + pages, block.pages - pages);
            if tail.pages as usize * PAGE >= TAIL_LEAST {
                self.blocks.at(block.start).store(u64::from(pages), Relaxed);
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
            return Some(self.begin(Extent::new(block.start, pages), more, &victims, false, relieve));
        }
        if block.pages as usize * PAGE < REMAP_LEAST || !self.can_move() {
            return None;
        }
        self.reallocate_elsewhere(block, pages, relieve)
    }

    /// Moves a block's pages to where it can grow on. Where most of its pages are there already, its content is copied:
    /// those would be lost, and fault again.
    fn reallocate_elsewhere(&self, block: Extent, pages: u32, relieve: fn(usize)) -> Option<*mut u8> {
        let mut victims = Victims::none();
        let (extent, copies, presses) = self.with(|table| {
            let extent = table.place_with_room(self, pages)?;
            let kept = Extent::new(extent.start, block.pages);
            let there = self.touched.count(kept);
            let copies = there > block.pages / 2;
            if copies {
                table.retention.resident += u64::from(block.pages - there);
            } else {
                // Its pages take the place of others, which are counted already.
                table.retention.resident -= u64::from(there);
            }
            let more = Extent::new(kept.end(), pages - block.pages);
            Some((extent, copies, table.account(self, more, &mut victims)))
        })??;
        let more = Extent::new(extent.start + block.pages, pages - block.pages);
        let (from, to) = (self.address(block.start), self.address(extent.start));
        let bytes = block.pages as usize * PAGE;
        if copies {
            // SAFETY: whole pages, mapped by us, apart, and the caller's alone.
            unsafe { to.copy_from_nonoverlapping(from, bytes) };
        } else {
            // SAFETY: as above.
            self.count_move(unsafe { os::move_content(from, to, bytes) });
        }
        self.touched.set(Extent::new(extent.start, block.pages));
        let new = self.begin(extent, more, &victims, false, (presses, relieve));
        self.blocks.at(block.start).store(0, Relaxed);
        if !copies {
            self.touched.clear(block);
        }
        let moved = if copies { 0 } else { block.pages };
        self.free_uncounted(&[block], |table| table.counters.moved += u64::from(moved));
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

    /// The plan has filled the arena, which holds `bytes`: forgets what was alive at once before, and gives back what was kept for it.
    pub(crate) fn plan_has_filled(&self, bytes: usize) {
        if self.is_open()
            && let Some(excess @ 1..) =
                self.with(|table| table.retention.plan_has_filled((bytes / PAGE) as u64))
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

    /// The arena serves no longer, and has given what is free there; `occupied` bytes are not.
    pub(crate) fn arena_retires(&self, occupied: usize) {
        if self.is_open()
            && let Some(excess @ 1..) =
                self.with(|table| table.retention.arena_retires((occupied / PAGE) as u64))
        {
            self.give_back(excess);
        }
    }

    /// A plan is to be served from `bytes` of the arena, though the process may rise above its peak by that.
    pub(crate) fn expect(&self, bytes: usize) {
        self.with(|table| table.retention.expect((bytes / PAGE) as u64));
    }

    /// Says how many bytes learning takes of the process's memory outside the heap from now on, until it says none. Free pages go back for them.
    pub(crate) fn learns_with(&self, bytes: usize) {
        if self.is_open()
            && let Some(excess @ 1..) = self.with(|table| table.retention.learns_with((bytes / PAGE) as u64))
        {
            self.give_back(excess);
        }
    }

    /// Says whether a plan is about to come. Until then pages are moved, and no more of them kept.
    pub(crate) fn await_plan(&self, awaits: bool) {
        self.with(|table| table.retention.awaits_plan = awaits);
    }

    /// The arena has given what it can: what it holds beside what is alive makes a new peak.
    pub(crate) fn relieved(&self) {
        self.with(|table| table.retention.relieved());
        self.pressures.fetch_add(1, Relaxed);
    }

    /// Called after a free: gives free pages back where the process has risen above its peak without the heap, whose free pages add to that.
    #[inline]
    pub(crate) fn look_at_process(&self) {
        if self.line.free.load(Relaxed) as usize * PAGE >= LOOKED_BYTES {
            let (now, looked) = (os::coarse_now_ns(), self.line.looked.load(Relaxed));
            let is_time = now.wrapping_sub(looked) >= LOOK_NANOSECONDS;
            if is_time && self.line.looked.compare_exchange(looked, now, Relaxed, Relaxed).is_ok() {
                self.give_back_what_process_rose();
            }
        }
    }

    #[cold]
    fn give_back_what_process_rose(&self) {
        os::keeping_errno(|| {
            let peak = os::peak_bytes() / PAGE as u64;
            if let Some(excess @ 1..) = self.with(|table| table.retention.process_has(peak)) {
                self.give_back(excess);
            }
        });
    }

    /// Whether so much is free that somebody should look after it, and nobody does. The next call says no.
    ///
    /// What is alive needs nobody: a program that frees nothing stays as many threads as it has of its own.
    #[inline]
    pub(crate) fn wants_watch(&self) -> bool {
        self.line.free.load(Relaxed) as usize * PAGE >= WATCHED_BYTES
            && !self.watched.load(Relaxed)
            && !self.watched.swap(true, Relaxed)
    }

    /// Whether the heap has grown so far that free memory of the backend would show in the process's peak. The next call says no.
    #[inline]
    pub(crate) fn wants_trim(&self) -> bool {
        let (resident, from) = (self.line.resident.load(Relaxed), self.trims_from.load(Relaxed));
        resident >= from && {
            let next = resident + (resident / 8).max((TRIM_LEAST / PAGE) as u64);
            self.trims_from.compare_exchange(from, next, Relaxed, Relaxed).is_ok()
        }
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

    /// Whether its lock is free now, or soon.
    pub(crate) fn is_at_hand(&self) -> bool {
        self.at_once(|_| ()).is_some()
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
        (0..FREE_ATTEMPTS).any(|_| self.line.mutex.try_lock()).then(|| self.locked(body))
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
        HEAP.line.mutex.reset();
    } else if HEAP.line.mutex.is_held() {
        // Whoever had it was interrupted by this very fork, or the handlers were not there yet: the table may be half changed. Nobody is to
        // wait for it.
        HEAP.broken.store(true, Relaxed);
        HEAP.disable();
    }
}
