//! Memory that the system refuses the allocator's own work.
//!
//! A program may come to the limit of its memory and go on with what it has; so must we. Learning ends then, for a plan is made of memory. Who
//! allocates for this crate's own code (the preloaded library's global allocator) says that memory was refused, and has it wait where nobody
//! waits for the thread, or lends it memory that was set aside, with which it comes to an end.

use crate::thread_locals::ThreadLocals;
use core::sync::atomic::{AtomicBool, Ordering::*};

static IS_REFUSED: AtomicBool = AtomicBool::new(false);

/// Notes that memory was refused. Whether this thread may wait until there is some.
pub fn refused() -> bool {
    IS_REFUSED.store(true, Relaxed);
    ThreadLocals::with(|locals| locals.may_wait.get())
}

/// Runs `body`, in a thread of ours that nobody waits for and that holds no lock.
pub(crate) fn may_wait<R>(body: impl FnOnce() -> R) -> R {
    ThreadLocals::with(|locals| locals.may_wait.set(true));
    let result = body();
    ThreadLocals::with(|locals| locals.may_wait.set(false));
    result
}

/// Whether memory was refused since the last call.
pub(crate) fn was_refused() -> bool {
    IS_REFUSED.load(Relaxed) && IS_REFUSED.swap(false, Relaxed)
}
