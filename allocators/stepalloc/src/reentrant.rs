//! The reentrancy guard: what a thread allocates while it works for the allocator itself goes to the backend
//! unrecorded.

use crate::switches::{STATE, WORKER};
use crate::thread_locals::ThreadLocals;
use core::sync::atomic::Ordering::*;

/// Runs `body` as work of the allocator itself.
pub(crate) fn guard<R>(body: impl FnOnce() -> R) -> R {
    /// Ends the guard, also after a panic.
    struct Guard(bool);
    impl Drop for Guard {
        fn drop(&mut self) {
            ThreadLocals::with(|locals| locals.is_reentrant.set(self.0));
            STATE.mode.fetch_sub(WORKER, Relaxed);
        }
    }
    STATE.mode.fetch_add(WORKER, Relaxed);
    let _guard = Guard(ThreadLocals::with(|locals| locals.is_reentrant.replace(true)));
    body()
}

/// Whether this thread may be under the guard, by the mode alone.
#[inline(always)]
pub(crate) fn may_be(mode: u32) -> bool {
    mode >= WORKER
}

/// Whether this thread is under the guard. (Out of line: where a thread-local lies costs a call in a
/// library.)
#[cold]
#[inline(never)]
pub(crate) fn is_reentrant() -> bool {
    ThreadLocals::with(|locals| locals.is_reentrant.get())
}
