//! A lock that spins, and that a forked child finds free: it knows which process its holder belongs to. (A handler of
//! fork could free it too, but one that is registered while another thread forks does not run.)
//!
//! A child that shares its parent's memory (vfork) has an id of its own as well, but must take no lock from a
//! parent that goes on with it; it gets none. The two are distinguished by a page that the kernel clears in
//! children with a memory of their own (MADV_WIPEONFORK).

use crate::os;
use crate::word::{Atomics, Core, Word};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

/// Looks at a lock that is held before the processor is given to another thread: about a microsecond, as a gap is looked for.
const SPINS: u32 = 32;

/// Where the [id](identify) of the process stands whose memory this is: 0 in a forked child that has not looked yet. Null before
/// [`distinguish_children`], and where the kernel cannot clear it.
static OWNER: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
/// Forks that led to this memory, of those whose child has looked at a lock.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// Bits of a process's number: `PID_MAX_LIMIT` of Linux is 2 to this power.
pub(crate) const NUMBER_BITS: u32 = 22;

/// From now on children are distinguished by whether their memory is their own.
pub(crate) fn distinguish_children() {
    if OWNER.load(Relaxed).is_null()
        && let Some(page) = os::map_wiped_on_fork()
    {
        let owner: *mut AtomicU32 = page.cast();
        // SAFETY: mapped just now, and known here only. Locks that are held now stay this process's: its id is as before.
        unsafe { owner.write(AtomicU32::new(os::pid())) };
        OWNER.store(owner, Release);
    }
}

/// The process's id: its number, and above it its generation, for the number alone may be that of an ancestor which has ended. `None` where the
/// memory is another process's.
fn id(process: u32) -> Option<u32> {
    // SAFETY: null, or a page that is never unmapped.
    match unsafe { OWNER.load(Acquire).as_ref() } {
        Some(owner) => identify(owner, &GENERATION, process),
        None => Some(process),
    }
}

/// The id of a process of this number. Where `owner` has none yet, it gets one, the same for all its threads.
pub(crate) fn identify<W: Word<u32>>(owner: &W, generation: &W, process: u32) -> Option<u32> {
    let new = (generation.load(Relaxed) + 1) << NUMBER_BITS ^ process;
    let id = match owner.compare_exchange(0, new, AcqRel, Acquire) {
        Ok(_) => {
            // For the next fork; only this thread writes it in this process.
            generation.store(generation.load(Relaxed) + 1, Relaxed);
            new
        }
        Err(id) => id,
    };
    (id & ((1 << NUMBER_BITS) - 1) == process).then_some(id)
}

/// Called in a forked child: its memory is its own.
pub(crate) fn own() {
    id(os::pid());
}

pub(crate) struct Lock<A: Atomics = Core> {
    /// The [id] of who holds it; 0 while nobody does.
    holder: A::U32,
}

impl Lock {
    pub(crate) const fn new() -> Self {
        Self { holder: AtomicU32::new(0) }
    }
}

impl<A: Atomics> Lock<A> {
    /// For models, over a word that is 0.
    #[cfg(test)]
    pub(crate) fn over(holder: A::U32) -> Self {
        Self { holder }
    }

    /// Runs `body` with the lock held. Its argument is whether the lock is poisoned: held by a thread that
    /// the fork did not copy. Returns `None` after that many failed attempts, and in a process that shares
    /// another one's memory.
    ///
    /// Inlined, so that its code lies with the caller's: each has a body of its own.
    #[inline(always)]
    pub(crate) fn with<R>(&self, attempts: Option<u32>, body: impl FnOnce(bool) -> R) -> Option<R> {
        let process = id(os::pid())?;
        let mut tried = 0;
        let mut poisoned = false;
        while let Err(holder) = self.holder.compare_exchange(0, process, Acquire, Relaxed) {
            if holder != process && self.holder.compare_exchange(holder, process, Acquire, Relaxed).is_ok() {
                poisoned = true;
                break;
            }
            tried += 1;
            if attempts.is_some_and(|most| tried >= most) {
                return None;
            }
            // Who holds it on another processor is done soon.
            let is_held = || {
                A::spin();
                self.holder.load(Relaxed) != 0
            };
            if (0..A::looks(SPINS)).all(|_| is_held()) {
                A::yield_now();
            }
        }
        /// Frees the lock, also by a panic.
        struct Held<'a, W: Word<u32>>(&'a W);
        impl<W: Word<u32>> Drop for Held<'_, W> {
            fn drop(&mut self) {
                self.0.store(0, Release);
            }
        }
        // Only one thread of this process changed `holder` to this process.
        let _held = Held(&self.holder);
        Some(body(poisoned))
    }
}
