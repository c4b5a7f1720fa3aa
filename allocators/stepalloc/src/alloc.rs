//! The allocator a Rust program names.

use crate::backend::Backend;
use crate::route;
use core::alloc::{GlobalAlloc, Layout};
use core::marker::PhantomData;

/// A global allocator that learns the program's step and serves it from a plan, over the backend `B`.
///
/// All values of this type, of whichever backend, share the one arena and the one plan of the process.
pub struct StatisticAllocator<B: Backend> {
    _backend: PhantomData<fn() -> B>,
}

impl<B: Backend> StatisticAllocator<B> {
    /// The allocator over a backend.
    pub const fn new(backend: B) -> Self {
        // Backends are types without a value: there is nothing to drop.
        core::mem::forget(backend);
        Self { _backend: PhantomData }
    }
}

// SAFETY: the backend keeps GlobalAlloc's contract by that of `Backend`; the arena hands out disjoint live blocks, long
// enough and aligned, and takes back those it made. Nothing unwinds: the engine catches panics of its own, and what else is called here is the
// backend's, or ends the process (a panic in an `extern "C"` function aborts).
unsafe impl<B: Backend> GlobalAlloc for StatisticAllocator<B> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: a layout's alignment is a power of two.
        unsafe {
            if layout.size() < route::threshold() {
                return B::allocate(layout.size(), layout.align());
            }
            allocate::<B>(layout.size(), layout.align())
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        unsafe {
            if layout.size() < route::threshold() {
                return B::allocate_zeroed(layout.size(), layout.align());
            }
            allocate_zeroed::<B>(layout.size(), layout.align())
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: by the caller's promise the block is live and of this layout. Blocks of the arena and the large heap have a size
        // that is not below the threshold, which never rises once either has its range (`route::set`): realloc moves those that shrink
        // below it.
        unsafe {
            if layout.size() < route::threshold() {
                return B::deallocate(block, layout.size(), layout.align());
            }
            deallocate::<B>(block, layout.size(), layout.align());
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as in `dealloc`; the caller promises a new size that is not 0.
        unsafe {
            if layout.size().max(new_size) < route::threshold() {
                return B::reallocate(block, layout.size(), layout.align(), new_size);
            }
            reallocate::<B>(block, layout.size(), layout.align(), new_size)
        }
    }
}

/// The way of large blocks, out of line: programs allocate in many places.
#[inline(never)]
unsafe extern "C" fn allocate<B: Backend>(size: usize, align: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { route::allocate::<B>(size, align) }
}

/// As [`allocate`].
unsafe extern "C" fn allocate_zeroed<B: Backend>(size: usize, align: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { route::allocate_zeroed::<B>(size, align) }
}

/// As [`allocate`].
#[inline(never)]
unsafe extern "C" fn deallocate<B: Backend>(block: *mut u8, size: usize, align: usize) {
    // SAFETY: the caller's promise.
    unsafe { route::deallocate::<B>(block, size, align) }
}

/// As [`allocate`].
unsafe extern "C" fn reallocate<B: Backend>(
    block: *mut u8,
    size: usize,
    align: usize,
    new_size: usize,
) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { route::reallocate::<B>(block, size, align, new_size) }
}
