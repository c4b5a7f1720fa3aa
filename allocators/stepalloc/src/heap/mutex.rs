//! A lock that threads sleep on, that is waited for a bounded time, and that a fork finds free: handlers of fork hold it meanwhile.

use crate::word::{Atomics, Core, Word};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody may sleep.
const AWAITED: u32 = 2;

/// Looks at a lock that is held before its thread goes to sleep: it is held for a fifth of a microsecond.
const SPINS: u32 = 100;
/// How long a thread waits, and sleeps at a time. After a second a lock is taken to be held by somebody who was stopped, and the backend
/// serves.
const PATIENCE_NANOSECONDS: u64 = 1_000_000_000;
const SLEEP_NANOSECONDS: i64 = 10_000_000;

pub(super) struct Mutex<A: Atomics = Core> {
    word: A::U32,
    /// The thread pointer of the holder, from soon after it has locked until shortly before it unlocks.
    holder: A::Usize,
}

impl Mutex {
    pub(super) const fn new() -> Self {
        Self { word: AtomicU32::new(FREE), holder: AtomicUsize::new(0) }
    }
}

impl<A: Atomics> Mutex<A> {
    /// For models, over words that are 0.
    #[cfg(test)]
    pub(super) fn over(word: A::U32, holder: A::Usize) -> Self {
        Self { word, holder }
    }

    #[inline]
    pub(super) fn try_lock(&self) -> bool {
        let locks = self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok();
        if locks {
            self.holder.store(A::thread(), Relaxed);
        }
        locks
    }

    /// Locks what is held; `false` where it is held for too long, or by this thread, which a signal's handler has interrupted.
    #[cold]
    pub(super) fn lock_contended(&self) -> bool {
        if self.holder.load(Relaxed) == A::thread() {
            return false;
        }
        for _ in 0..A::looks(SPINS) {
            if self.word.load(Relaxed) == FREE && self.try_lock() {
                return true;
            }
            A::spin();
        }
        // By the clock: where others come and go, a sleep may end at once.
        let begun = A::now_ns();
        while self.word.swap(AWAITED, Acquire) != FREE {
            if A::now_ns().saturating_sub(begun) > PATIENCE_NANOSECONDS {
                return false;
            }
            A::wait(&self.word, AWAITED, SLEEP_NANOSECONDS);
        }
        self.holder.store(A::thread(), Relaxed);
        true
    }

    #[inline]
    pub(super) fn unlock(&self) {
        self.holder.store(0, Relaxed);
        if self.word.swap(FREE, Release) == AWAITED {
            A::wake_one(&self.word);
        }
    }

    pub(super) fn is_held(&self) -> bool {
        self.word.load(Relaxed) != FREE
    }

    /// In a forked child, whose other threads are gone.
    pub(super) fn reset(&self) {
        self.holder.store(0, Relaxed);
        self.word.store(FREE, Release);
    }
}
