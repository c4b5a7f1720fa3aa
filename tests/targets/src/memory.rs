//! What reading takes: bytes asked for by the thread that reads, at their peak; and how often a run asks for some.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static BLOCKS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counted by thread. A block that grows counts twice while it is copied.
pub struct Counting;

fn count(bytes: isize) {
    if bytes >= 0 {
        let _ = BLOCKS.try_with(|blocks| blocks.set(blocks.get() + 1));
    }
    // A thread that ends has no counters any more.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: everything is passed on to the system's allocator. Growing is left to the trait: a new block, a copy, a free.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

/// What comes of it, and how often it asked for memory on this thread.
#[allow(dead_code, reason = "not every test binary counts them")]
pub fn blocks<T>(what: impl FnOnce() -> T) -> (T, u64) {
    let before = BLOCKS.get();
    let done = what();
    (done, BLOCKS.get() - before)
}

/// Does it, and asserts that it took at most `times` as many bytes as the input has, and `base` more.
pub fn within<T>(bytes: usize, times: usize, base: usize, what: impl FnOnce() -> T) -> T {
    let before = LIVE.get();
    PEAK.set(before);
    let done = what();
    let took = (PEAK.get() - before) as usize;
    assert!(took <= times * bytes + base, "{bytes} bytes took {took}; {times} times and {base} are allowed");
    done
}
