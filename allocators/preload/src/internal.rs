//! The allocator of this library's own Rust code: glibc, and for larger blocks the large heap or pages; never a plan.

use crate::backends::GLIBC;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use core::time::Duration;
use statistic::{os, route, scarcity};
use std::alloc::{GlobalAlloc, Layout};

/// The allocator of this library's own Rust code, whatever the backend: glibc, as a thread of ours costs no arena there, as it does in jemalloc (30
/// page faults) and mimalloc; and for larger blocks the large heap, whose free pages are resident already, or mappings where it is closed. Of
/// either nothing is left when learning has ended, where glibc would keep its memory.
pub(crate) struct Internal;

/// Least size in bytes of a block that the large heap lends.
const LENT_BYTES: usize = 8 << 10;
/// The same of a block that is mapped.
const MAPPED_BYTES: usize = 256 << 10;
const PAGE: usize = 4 << 10;

impl Internal {
    fn may_be_lent(layout: Layout) -> bool {
        layout.size() >= LENT_BYTES && layout.align() <= PAGE
    }

    fn is_mapped(layout: Layout) -> bool {
        layout.size() >= MAPPED_BYTES && layout.align() <= PAGE
    }

    fn lend(layout: Layout, zeroed: bool) -> Option<*mut u8> {
        if Self::may_be_lent(layout) { route::lend(layout.size(), zeroed) } else { None }
    }

    /// All zeros.
    fn map(size: usize) -> *mut u8 {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh anonymous mapping replaces nothing that exists.
        or_null(unsafe { libc::mmap(ptr::null_mut(), size, access, kind, -1, 0) })
    }
}

/// The thread that ends the process, by its control block: see [`AtExit`].
static EXITING: AtomicUsize = AtomicUsize::new(0);

/// The calling thread ends the process. Where two do so at once, it is the first one.
pub(crate) fn begin_exit() {
    let _ = EXITING.compare_exchange(0, os::thread_pointer(), Relaxed, Relaxed);
}

/// The allocator of our own code in exit handlers: they may have been reached from a signal handler that has interrupted whoever holds glibc's locks, or
/// the large heap's. So blocks are cut from mappings, one after the other, and stay until the process is gone.
struct AtExit {
    /// Where mappings begin, and where they end; 0 where there is none yet. Blocks are cut from the last one.
    mappings: [(AtomicUsize, AtomicUsize); 64],
    count: AtomicUsize,
    /// Where the next block may begin.
    next: AtomicUsize,
}

static AT_EXIT: AtExit = AtExit {
    mappings: [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; 64],
    count: AtomicUsize::new(0),
    next: AtomicUsize::new(0),
};

impl AtExit {
    /// Bytes that are mapped together, more with each mapping; less where the system grants no more.
    const BYTES: usize = 1 << 20;

    fn is_in_force() -> bool {
        let thread = EXITING.load(Relaxed);
        thread != 0 && thread == os::thread_pointer()
    }

    /// Any thread may ask, for another one may have been handed a block.
    fn has(&self, block: *mut u8) -> bool {
        let mappings = &self.mappings[..self.count.load(Acquire)];
        let has = |(start, end): &(AtomicUsize, AtomicUsize)| {
            (start.load(Relaxed)..end.load(Relaxed)).contains(&block.addr())
        };
        mappings.iter().any(has)
    }

    /// All zeros. Called by one thread.
    fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > PAGE {
            return ptr::null_mut();
        }
        let count = self.count.load(Relaxed);
        let end = count.checked_sub(1).map_or(0, |last| self.mappings[last].1.load(Relaxed));
        let at = self.next.load(Relaxed).next_multiple_of(layout.align());
        if at + layout.size() <= end {
            self.next.store(at + layout.size(), Relaxed);
            return ptr::with_exposed_provenance_mut(at);
        }
        let Some((first, last)) = self.mappings.get(count) else { return ptr::null_mut() };
        let least = layout.size().next_multiple_of(PAGE);
        let mapped = [least.max(Self::BYTES << count.min(6)), least].into_iter().find_map(|bytes| {
            let start = Internal::map(bytes);
            (!start.is_null()).then_some((start, bytes))
        });
        let Some((start, bytes)) = mapped else { return ptr::null_mut() };
        let at = start.expose_provenance();
        first.store(at, Relaxed);
        last.store(at + bytes, Relaxed);
        self.next.store(at + layout.size(), Relaxed);
        self.count.store(count + 1, Release);
        start
    }
}

fn or_null(mapped: *mut c_void) -> *mut u8 {
    if mapped == libc::MAP_FAILED { ptr::null_mut() } else { mapped.cast() }
}

/// Memory for our own code where the system has none, so that the program goes on: see `stepalloc::scarcity`. Blocks are cut one after the other,
/// and all of it is there again when none of them lives. Nothing is resident of it before.
struct Reserve {
    bytes: UnsafeCell<[u8; Reserve::BYTES]>,
    /// Blocks that live, and above them, by `USED_SHIFT`, the bytes that are used.
    state: AtomicU64,
}

// SAFETY: bytes are reached through blocks, of which no two overlap.
unsafe impl Sync for Reserve {}

static RESERVE: Reserve = Reserve { bytes: UnsafeCell::new([0; Reserve::BYTES]), state: AtomicU64::new(0) };

impl Reserve {
    const BYTES: usize = 1 << 20;
    const USED_SHIFT: u32 = 32;

    fn has(&self, block: *mut u8) -> bool {
        block.addr().wrapping_sub(self.bytes.get().addr()) < Self::BYTES
    }

    fn alloc(&self, layout: Layout) -> *mut u8 {
        let start = self.bytes.get().cast::<u8>();
        let mut at = 0;
        let taken = self.state.fetch_update(Acquire, Relaxed, |state| {
            let used = (state >> Self::USED_SHIFT) as usize;
            at = (start.addr() + used).next_multiple_of(layout.align()) - start.addr();
            let end = at.checked_add(layout.size()).filter(|&end| end <= Self::BYTES)?;
            Some((end as u64) << Self::USED_SHIFT | ((state & u64::from(u32::MAX)) + 1))
        });
        if taken.is_ok() { start.wrapping_add(at) } else { ptr::null_mut() }
    }

    fn dealloc(&self) {
        let _ = self.state.fetch_update(Release, Relaxed, |state| {
            let blocks = (state & u64::from(u32::MAX)) - 1;
            Some(if blocks == 0 { 0 } else { state - 1 })
        });
    }
}

impl Internal {
    /// A block, or null where there is no memory; as the trait's functions.
    unsafe fn ask(layout: Layout, zeroed: bool) -> *mut u8 {
        if AtExit::is_in_force() {
            return AT_EXIT.alloc(layout);
        }
        if let Some(block) = Self::lend(layout, zeroed) {
            return block;
        }
        if Self::is_mapped(layout) {
            return Self::map(layout.size());
        }
        // SAFETY: malloc's contract is that of the trait.
        unsafe {
            if zeroed {
                GLIBC.allocate_zeroed(layout.size(), layout.align())
            } else {
                GLIBC.allocate(layout.size(), layout.align())
            }
        }
    }

    unsafe fn ask_until_there_is_some(layout: Layout, zeroed: bool) -> *mut u8 {
        // SAFETY: the caller's promise.
        let block = unsafe { Self::ask(layout, zeroed) };
        if block.is_null() { Self::refused(layout, zeroed) } else { block }
    }

    #[cold]
    fn refused(layout: Layout, zeroed: bool) -> *mut u8 {
        while scarcity::refused() {
            std::thread::sleep(Duration::from_millis(10));
            // SAFETY: the layout is a caller's of the trait.
            let block = unsafe { Self::ask(layout, zeroed) };
            if !block.is_null() {
                return block;
            }
        }
        let block = RESERVE.alloc(layout);
        if zeroed && !block.is_null() {
            // SAFETY: the block is ours alone, and as long.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }
}

// SAFETY: malloc's contract is that of the trait, and whole pages that are nobody else's keep it too; layouts' alignments are powers of two.
// Which of them made a block follows from its address and its layout; at the process's end, none takes one back.
unsafe impl GlobalAlloc for Internal {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: see above.
        unsafe { Self::ask_until_there_is_some(layout, false) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if AtExit::is_in_force() || AT_EXIT.has(block) {
            return;
        }
        if RESERVE.has(block) {
            return RESERVE.dealloc();
        }
        // SAFETY: the block is from `alloc` with this layout, and nobody uses it.
        unsafe {
            if Self::may_be_lent(layout) && route::take_back(block) {
                return;
            }
            if Self::is_mapped(layout) {
                libc::munmap(block.cast(), layout.size());
            } else {
                (GLIBC.free)(block.cast())
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: see above.
        unsafe { Self::ask_until_there_is_some(layout, true) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: see above; the new size is not 0, and the alignment the old one.
        unsafe {
            let new_layout = Layout::from_size_align_unchecked(new_size, layout.align());
            let is_small = |layout| !Self::may_be_lent(layout);
            let is_glibcs = is_small(layout) && is_small(new_layout) && !RESERVE.has(block);
            if is_glibcs && !AtExit::is_in_force() {
                let new = GLIBC.reallocate(block, layout.size(), layout.align(), new_size);
                if !new.is_null() {
                    return new;
                }
            }
            let new = self.alloc(new_layout);
            if !new.is_null() {
                ptr::copy_nonoverlapping(block, new, layout.size().min(new_size));
                self.dealloc(block, layout);
            }
            new
        }
    }
}
