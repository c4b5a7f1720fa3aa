//! The backends: the general allocators, and all their foreign symbols.
//!
//! A backend is a type without a value of its own; its functions have the C library's meaning with Rust's layouts:
//! alignment is a power of two, sizes are not 0 unless a C caller asked for 0, null is out of memory.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::*};

#[cfg(all(feature = "glibc", feature = "jemalloc", feature = "mimalloc"))]
mod chosen;
#[cfg(feature = "glibc")]
mod glibc;
#[cfg(feature = "jemalloc")]
mod jemalloc;
#[cfg(feature = "mimalloc")]
mod mimalloc;

#[cfg(all(feature = "glibc", feature = "jemalloc", feature = "mimalloc"))]
pub use chosen::{Chosen, Kind};
#[cfg(feature = "glibc")]
pub use glibc::{Glibc, GlibcTuning};
#[cfg(feature = "jemalloc")]
pub use jemalloc::{Jemalloc, JemallocTuning};
#[cfg(feature = "mimalloc")]
pub use mimalloc::{Mimalloc, MimallocOption};

/// What becomes of memory that a backend holds and nobody uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// What the backend does by itself, or was tuned to.
    Default,
    /// It goes back to the system at once.
    Immediate,
    /// It stays resident: a plan serves, and the backend has small blocks only, the same in each step. What a
    /// step frees the next one wants again.
    Retain,
}

/// The decay time of a backend that returns unused memory after a while. What the user has set is left alone.
#[cfg(any(feature = "jemalloc", feature = "mimalloc"))]
struct Decay {
    /// The backend's default, in milliseconds.
    default: isize,
    /// What was set last.
    set: core::sync::atomic::AtomicIsize,
}

#[cfg(any(feature = "jemalloc", feature = "mimalloc"))]
impl Decay {
    /// Milliseconds while a plan serves. The defaults (10 s, 10 ms) are shorter than some steps, and cost page faults in
    /// every one.
    const LONG: isize = 60_000;

    const fn new(default: isize) -> Self {
        Self { default, set: core::sync::atomic::AtomicIsize::new(default) }
    }

    /// The milliseconds to set for a retention, where there are `now` of them: none if they are right, or the user's.
    fn change(&self, retention: Retention, now: isize) -> Option<isize> {
        use core::sync::atomic::Ordering::Relaxed;
        let wanted = match retention {
            Retention::Default => self.default,
            Retention::Immediate => 0,
            Retention::Retain => Self::LONG,
        };
        let is_ours = now == self.set.load(Relaxed);
        (is_ours && now != wanted).then(|| {
            self.set.store(wanted, Relaxed);
            wanted
        })
    }
}

/// What the engine needs of the backend in use.
pub(crate) struct Attached {
    pub(crate) name: fn() -> &'static str,
    pub(crate) trim: fn(),
    pub(crate) retain: fn(Retention),
    pub(crate) end_learning: fn(),
    pub(crate) begin_exit: fn(),
    pub(crate) learning_bytes: usize,
    pub(crate) has_constructor: bool,
}

static ATTACHED: AtomicPtr<Attached> = AtomicPtr::new(ptr::null_mut());

/// Notes which backends the user tunes by environment, for [`Backend::retain`]: when a plan comes into force, another thread may be changing the
/// environment.
pub(crate) fn read_environment() {
    #[cfg(feature = "glibc")]
    glibc::read_environment();
    #[cfg(feature = "jemalloc")]
    jemalloc::read_environment();
    #[cfg(feature = "mimalloc")]
    mimalloc::read_environment();
}

/// Names the backend in use to the engine.
pub(crate) fn attach<B: Backend>() {
    let attached: &'static Attached = const {
        &Attached {
            name: B::name,
            trim: B::trim,
            retain: B::retain,
            end_learning: B::end_learning,
            begin_exit: B::begin_exit,
            learning_bytes: B::LEARNING_BYTES,
            has_constructor: B::HAS_CONSTRUCTOR,
        }
    };
    ATTACHED.store(ptr::from_ref(attached).cast_mut(), Release);
}

/// The backend, once the allocator was used.
pub(crate) fn attached() -> Option<&'static Attached> {
    // SAFETY: null or the address of a static, see `attach`.
    unsafe { ATTACHED.load(Acquire).as_ref() }
}

/// The alignment that every backend gives without being asked: that of C's `max_align_t`.
pub const NATURAL_ALIGN: usize = 16;

/// A general allocator.
///
/// # Safety
/// What the functions hand out is exclusively the caller's until it is given back, aligned and as long as asked for;
/// none of them unwinds, and they may be called from any thread.
pub unsafe trait Backend: 'static {
    /// Bytes of code and constants that learning touches, and [`end_learning`](Backend::end_learning) gives back: none where it does nothing.
    const LEARNING_BYTES: usize = 0;

    /// Whether the allocator is a library whose constructor calls [`initialise`](crate::initialise). Handlers of exit and of forks are then installed
    /// there only: an earlier request may come from `atexit` itself, which holds the C library's lock while it allocates.
    const HAS_CONSTRUCTOR: bool = false;

    /// Its name in settings and statistics.
    fn name() -> &'static str;

    /// Gives what is cached, and not in use, back to the system.
    fn trim();

    /// Called before the process's first allocation.
    fn begin() {}

    /// Says what is to become of memory that is not in use.
    fn retain(_retention: Retention) {}

    /// Nothing is learned for some time. Where the allocator is a library of its own, it gives back pages of its code and
    /// constants, which come again from the page cache when they are touched. Learning runs much more code than serving does.
    fn end_learning() {}

    /// The process ends, perhaps by a signal handler that has interrupted an allocation: what this crate's own code allocates from now on should
    /// wait for no lock that may never be free.
    fn begin_exit() {}

    /// A block of `size` bytes, or null.
    ///
    /// # Safety
    /// `align` is a power of two.
    unsafe fn allocate(size: usize, align: usize) -> *mut u8;

    /// As `allocate`, all zeros.
    ///
    /// # Safety
    /// As for `allocate`.
    unsafe fn allocate_zeroed(size: usize, align: usize) -> *mut u8;

    /// Changes a block's size, moving it where needed; on null the old block is as it was.
    ///
    /// # Safety
    /// `block` is live, from this backend, and was allocated with `align` and `old_size`.
    unsafe fn reallocate(block: *mut u8, old_size: usize, align: usize, new_size: usize) -> *mut u8;

    /// Takes a block back.
    ///
    /// # Safety
    /// `block` is live, from this backend, and was allocated with `align` and `size`.
    unsafe fn deallocate(block: *mut u8, size: usize, align: usize);
}

/// `reallocate` for alignments that C's realloc does not keep: a new block, a copy, the old one given back.
///
/// # Safety
/// As for [`Backend::reallocate`].
#[cfg(feature = "glibc")]
unsafe fn reallocate_by_copy<B: Backend>(
    block: *mut u8,
    old_size: usize,
    align: usize,
    new_size: usize,
) -> *mut u8 {
    // SAFETY: the caller's promises are those of the functions called; the blocks are distinct and both hold the
    // bytes copied.
    unsafe {
        let new = B::allocate(new_size, align);
        if !new.is_null() {
            ptr::copy_nonoverlapping(block, new, old_size.min(new_size));
            B::deallocate(block, old_size, align);
        }
        new
    }
}

#[cfg(all(test, any(feature = "jemalloc", feature = "mimalloc")))]
mod tests {
    use super::*;

    #[test]
    fn decay_follows_retention_until_somebody_else_sets_it() {
        let decay = Decay::new(10);
        assert_eq!(decay.change(Retention::Default, 10), None);
        assert_eq!(decay.change(Retention::Immediate, 10), Some(0));
        assert_eq!(decay.change(Retention::Default, 0), Some(10));
        assert_eq!(decay.change(Retention::Retain, 10), Some(Decay::LONG));
        assert_eq!(decay.change(Retention::Immediate, 500), None, "the user's");
        assert_eq!(Decay::new(10).change(Retention::Retain, 0), None, "the user's");
    }
}
