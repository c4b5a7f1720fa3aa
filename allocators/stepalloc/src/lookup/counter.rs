//! Numbers of allocations and their bytes, which threads add to.

use crate::word::{Atomics, Core, Number, Word};
use core::sync::atomic::{AtomicU64, Ordering::*};

/// A number of allocations and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) allocations: u64,
    pub(crate) bytes: u64,
}

/// A [`Count`] that threads add to.
pub(crate) struct Counter<A: Atomics = Core> {
    allocations: A::U64,
    bytes: A::U64,
}

impl Counter {
    pub(crate) const fn new() -> Self {
        Self { allocations: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }
}

impl<A: Atomics> Counter<A> {
    /// For models, over words that are 0.
    #[cfg(test)]
    pub(super) fn over(allocations: A::U64, bytes: A::U64) -> Self {
        Self { allocations, bytes }
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.allocations.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn get(&self) -> Count {
        Count { allocations: self.allocations.load(Relaxed), bytes: self.bytes.load(Relaxed) }
    }

    pub(crate) fn take(&self) -> Count {
        Count { allocations: self.allocations.swap(0, Relaxed), bytes: self.bytes.swap(0, Relaxed) }
    }
}
