//! A lock that threads sleep on, that is waited for a bounded time, and that a fork finds free: handlers of fork hold it meanwhile.

use crate::os;
use core::hint::spin_loop;
use core::sync::atomic::{AtomicU32, Ordering::*};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody may sleep.
const AWAITED: u32 = 2;

/// Looks at a lock that is held before its thread goes to sleep: it is held for a fifth of a microsecond.
const SPINS: u32 = 100;
/// How long a thread waits, and sleeps at a time. After a second a lock is taken to be held by somebody who is interrupted (a signal handler
/// that allocates, say), and the backend serves.
const PATIENCE_NANOSECONDS: u64 = 1_000_000_000;
const SLEEP_NANOSECONDS: i64 = 10_000_000;

pub(super) struct Mutex(AtomicU32);

impl Mutex {
    pub(super) const fn new() -> Self {
        Self(AtomicU32::new(FREE))
    }

    #[inline]
    pub(super) fn try_lock(&self) -> bool {
        self.0.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok()
    }

    /// Locks what is held; `false` where it is held for too long.
    #[cold]
    pub(super) fn lock_contended(&self) -> bool {
        for _ in 0..SPINS {
            if self.0.load(Relaxed) == FREE && self.try_lock() {
                return true;
            }
            spin_loop();
        }
        // By the clock: where others come and go, a sleep may end at once.
        let begun = os::now_ns();
        while self.0.swap(AWAITED, Acquire) != FREE {
            if os::now_ns().saturating_sub(begun) > PATIENCE_NANOSECONDS {
                return false;
            }
            os::futex_wait(&self.0, AWAITED, SLEEP_NANOSECONDS);
        }
        true
    }

    #[inline]
    pub(super) fn unlock(&self) {
        if self.0.swap(FREE, Release) == AWAITED {
            os::futex_wake_one(&self.0);
        }
    }

    pub(super) fn is_held(&self) -> bool {
        self.0.load(Relaxed) != FREE
    }

    /// In a forked child, whose other threads are gone.
    pub(super) fn reset(&self) {
        self.0.store(FREE, Release);
    }
}
