//! A lock that spins, and that a forked child finds free: it knows which process its holder belongs to. (A handler of
//! fork could free it too, but one that is registered while another thread forks does not run.)

use crate::os;
use core::sync::atomic::{AtomicU32, Ordering::*};

pub(crate) struct Lock {
    /// The process id; 0 while nobody holds the lock.
    holder: AtomicU32,
}

impl Lock {
    pub(crate) const fn new() -> Self {
        Self { holder: AtomicU32::new(0) }
    }

    /// Runs `body` with the lock held, and tells it whether the lock was left by a thread that the fork did not copy;
    /// `None` if that many attempts were in vain, or when `attempts` is `None`, never.
    pub(crate) fn with<R>(&self, attempts: Option<u32>, body: impl FnOnce(bool) -> R) -> Option<R> {
        let process = os::pid();
        let mut tried = 0;
        let mut torn = false;
        while let Err(holder) = self.holder.compare_exchange(0, process, Acquire, Relaxed) {
            if holder != process && self.holder.compare_exchange(holder, process, Acquire, Relaxed).is_ok() {
                torn = true;
                break;
            }
            tried += 1;
            if attempts.is_some_and(|most| tried >= most) {
                return None;
            }
            os::yield_now();
        }
        // Only one thread of this process changed `holder` to this process, and it is changed back below.
        let result = body(torn);
        self.holder.store(0, Release);
        Some(result)
    }
}
