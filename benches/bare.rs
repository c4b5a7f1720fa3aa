//! A backend without the statistic allocator, for comparison.

use std::alloc::{GlobalAlloc, Layout};
use std::marker::PhantomData;
use stepalloc::Backend;

/// The backend alone, called as a Rust program would.
pub(crate) struct Bare<B>(PhantomData<fn() -> B>);

impl<B> Bare<B> {
    pub(crate) const fn new() -> Self {
        Self(PhantomData)
    }
}

// SAFETY: the backend keeps GlobalAlloc's contract by that of `Backend`.
unsafe impl<B: Backend> GlobalAlloc for Bare<B> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: a layout's alignment is a power of two.
        unsafe { B::allocate(layout.size(), layout.align()) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { B::deallocate(block, layout.size(), layout.align()) }
    }
}
