//! The reentrancy guard: what a thread allocates while it works for the allocator itself goes to the backend
//! unrecorded.

use crate::switches::{STATE, WORKER};
use core::cell::Cell;
use core::sync::atomic::Ordering::*;

std::thread_local! {
    /// True while this thread works for the allocator itself. One byte, no destructor.
    static IS_REENTRANT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body` as work of the allocator itself.
pub(crate) fn guard<R>(body: impl FnOnce() -> R) -> R {
    /// Ends the guard, also after a panic.
    struct Guard(bool);
    impl Drop for Guard {
        fn drop(&mut self) {
            IS_REENTRANT.set(self.0);
            STATE.mode.fetch_sub(WORKER, Relaxed);
        }
    }
    STATE.mode.fetch_add(WORKER, Relaxed);
    let _guard = Guard(IS_REENTRANT.replace(true));
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
    IS_REENTRANT.get()
}
