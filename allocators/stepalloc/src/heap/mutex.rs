//! A lock that threads sleep on, that is waited for a bounded time, and that a fork finds free: handlers of fork hold it meanwhile.

use crate::word::{Atomics, Core, Word};
use core::sync::atomic::{AtomicU32, Ordering::*};

const FREE: u32 = 0;
/// Beside its holder's number: somebody may sleep.
const AWAITED: u32 = 1;
/// In each thread's number, so that none is [`FREE`].
const HELD: u32 = 1 << 31;
/// Low bits of thread pointers that tell no thread from another.
const WITHIN_THREAD: u32 = 5;

/// Looks at a lock that is held before its thread goes to sleep: it is held for a fifth of a microsecond.
const SPINS: u32 = 100;
/// How long a thread waits, and sleeps at a time. After a second a lock is taken to be held by somebody who was stopped, and the backend
/// serves.
const PATIENCE_NANOSECONDS: u64 = 1_000_000_000;
const SLEEP_NANOSECONDS: i64 = 10_000_000;

pub(super) struct Mutex<A: Atomics = Core> {
    /// The [number](this_thread) of its holder, which is there from the instruction on that locks until the one that unlocks: a signal's handler
    /// may come before each.
    word: A::U32,
}

/// The thread's number: of threads whose pointers are a multiple of 64 GiB apart it is the same, and one of them does not wait for the other.
#[inline(always)]
fn this_thread<A: Atomics>() -> u32 {
    ((A::thread() >> WITHIN_THREAD) as u32 | HELD) & !AWAITED
}

impl Mutex {
    pub(super) const fn new() -> Self {
        Self { word: AtomicU32::new(FREE) }
    }
}

impl<A: Atomics> Mutex<A> {
    /// For models, over a word that is 0.
    #[cfg(test)]
    pub(super) fn over(word: A::U32) -> Self {
        Self { word }
    }

    #[inline]
    pub(super) fn try_lock(&self) -> bool {
        self.word.compare_exchange(FREE, this_thread::<A>(), Acquire, Relaxed).is_ok()
    }

    /// Locks what is held; `false` where it is held for too long, or by this thread, which a signal's handler has interrupted.
    #[cold]
    pub(super) fn lock_contended(&self) -> bool {
        let this = this_thread::<A>();
        if self.word.load(Relaxed) & !AWAITED == this {
            return false;
        }
        for _ in 0..A::looks(SPINS) {
            if self.word.load(Relaxed) == FREE && self.try_lock() {
                return true;
            }
            A::spin();
        }
        let begun = A::now_ns();
        loop {
            // Others may still sleep, whom it wakes when it unlocks.
            let Err(held) = self.word.compare_exchange(FREE, this | AWAITED, Acquire, Relaxed) else {
                return true;
            };
            // By the clock: where others come and go, a sleep may end at once.
            if A::now_ns().saturating_sub(begun) > PATIENCE_NANOSECONDS {
                return false;
            }
            let awaited = held | AWAITED;
            if held == awaited || self.word.compare_exchange(held, awaited, Relaxed, Relaxed).is_ok() {
                A::wait(&self.word, awaited, SLEEP_NANOSECONDS);
            }
        }
    }

    #[inline]
    pub(super) fn unlock(&self) {
        if self.word.swap(FREE, Release) & AWAITED != 0 {
            A::wake_one(&self.word);
        }
    }

    pub(super) fn is_held(&self) -> bool {
        self.word.load(Relaxed) != FREE
    }

    /// In a forked child, whose other threads are gone.
    pub(super) fn reset(&self) {
        self.word.store(FREE, Release);
    }
}
