//! Counts allocations of the command itself while a piece of code runs: of its models' runs, which should need none.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

static COUNTS: AtomicBool = AtomicBool::new(false);
static COUNTED: AtomicU64 = AtomicU64::new(0);

/// An allocator that can count what is asked of it.
pub struct Counting<A>(pub A);

fn count() {
    if COUNTS.load(Relaxed) {
        COUNTED.fetch_add(1, Relaxed);
    }
}

// SAFETY: everything is passed on as it came.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { self.0.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { self.0.dealloc(block, layout) }
    }
}

/// What `body` returns, and how often it allocated or grew a block, on all threads.
pub fn during<R>(body: impl FnOnce() -> R) -> (R, u64) {
    COUNTED.store(0, Relaxed);
    COUNTS.store(true, Relaxed);
    let made = body();
    COUNTS.store(false, Relaxed);
    (made, COUNTED.load(Relaxed))
}
