//! Frees that did not get the heap's lock: a list through the entries of their blocks, which whoever has the lock frees before it is
//! given up for good.

use super::extents::Extent;
use super::mutex::Mutex;
use super::pages::Blocks;
use super::{DEFERRED, PAGES_MASK, UNCOUNTED};
use crate::word::{Atomics, Core, Word};
use core::sync::atomic::{AtomicU32, Ordering::*};

pub(super) struct Deferred<A: Atomics = Core> {
    /// The newest block whose free was deferred: the number of its page, plus 1.
    newest: A::U32,
}

impl Deferred {
    pub(super) const fn none() -> Self {
        Self { newest: AtomicU32::new(0) }
    }
}

impl<A: Atomics> Deferred<A> {
    /// For models, over a word that is 0.
    #[cfg(test)]
    pub(super) fn over(newest: A::U32) -> Self {
        Self { newest }
    }

    #[inline]
    fn is_some(&self) -> bool {
        self.newest.load(Relaxed) != 0
    }

    /// Gives up the lock, which the caller has; before that, and as often as there are any then, `free` frees what is deferred.
    #[inline]
    pub(super) fn unlock(&self, mutex: &Mutex<A>, mut free: impl FnMut()) {
        loop {
            if self.is_some() {
                free();
            }
            mutex.unlock();
            // Whoever defers a free looks at the lock after that: one of the two sees the other.
            A::fence_after_exchange();
            if !self.is_some() || !mutex.try_lock() {
                return;
            }
        }
    }

    /// Takes all, and hands each to `free`, with whether it is counted as a block. The caller has the lock.
    #[inline]
    pub(super) fn take(&self, blocks: &Blocks<A>, mut free: impl FnMut(Extent, bool)) {
        let mut next = self.newest.swap(0, Acquire);
        while let Some(page) = next.checked_sub(1) {
            let entry = blocks.at(page).swap(0, Relaxed);
            next = (entry >> u32::BITS) as u32;
            free(Extent::new(page, (entry & PAGES_MASK) as u32), entry & UNCOUNTED == 0);
        }
    }

    /// Leaves the free of a block, or of an extent that is [`UNCOUNTED`], to whoever has the lock: `true` where that is the caller from
    /// now on, who gives it up by [`Deferred::unlock`].
    #[inline]
    pub(super) fn push(&self, mutex: &Mutex<A>, blocks: &Blocks<A>, block: Extent, uncounted: u64) -> bool {
        let mut newest = self.newest.load(Relaxed);
        loop {
            let entry = u64::from(block.pages) | DEFERRED | uncounted | u64::from(newest) << u32::BITS;
            blocks.at(block.start).store(entry, Relaxed);
            match self.newest.compare_exchange_weak(newest, block.start + 1, Release, Relaxed) {
                Ok(_) => break,
                Err(other) => newest = other,
            }
        }
        A::fence_after_exchange();
        mutex.try_lock()
    }
}
