//! mimalloc, built from source without its override of malloc.

use super::{Backend, NATURAL_ALIGN, PLANNED_DECAY_MS};
use libmimalloc_sys as ffi;

/// The backend `mimalloc`. Its tuning by environment (`MIMALLOC_*`) works as ever.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mimalloc;

/// An option of mimalloc, for [`Mimalloc::tune`]. The numbers are those of `mi_option_t`, the first block of which is
/// stable over its versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum MimallocOption {
    /// Print error messages.
    ShowErrors = 0,
    /// Print statistics at exit.
    ShowStats = 1,
    /// Print what it does.
    Verbose = 2,
    /// Commit arenas as soon as they are reserved: 0 no, 1 yes, 2 where the system overcommits. 0 here unless the
    /// environment says otherwise; mimalloc's own default is 2.
    ArenaEagerCommit = 4,
    /// Milliseconds until unused memory is purged; 0 is at once, -1 is never.
    PurgeDelay = 15,
}

impl Mimalloc {
    /// Sets one option. Best called first in `main`.
    pub fn tune(option: MimallocOption, value: isize) {
        // SAFETY: the option is one of the library's; any value is allowed.
        unsafe { ffi::mi_option_set(option as ffi::mi_option_t, value as core::ffi::c_long) };
    }

    /// The present value of an option.
    pub fn tuned(option: MimallocOption) -> isize {
        // SAFETY: the option is one of the library's.
        unsafe { ffi::mi_option_get(option as ffi::mi_option_t) as isize }
    }
}

/// mimalloc's defaults.
const DEFAULT_ARENA_EAGER_COMMIT: isize = 2;
const DEFAULT_PURGE_DELAY_MS: isize = 10;

/// True where a block has the alignment by its size class alone. Sizes up to 8 do not have the natural one.
#[inline]
fn natural(size: usize, align: usize) -> bool {
    align <= NATURAL_ALIGN && align <= size
}

// SAFETY: mimalloc's contract is that of the trait.
unsafe impl Backend for Mimalloc {
    fn name() -> &'static str {
        "mimalloc"
    }

    fn trim() {
        // A thread that has never allocated has no heap, and would collect nothing.
        // SAFETY: no conditions; a block just made, or null.
        unsafe {
            ffi::mi_free(ffi::mi_malloc(1));
            ffi::mi_collect(true);
        }
    }

    fn begin() {
        // Committed at once, a gibibyte of address space would be offered to huge pages, and small blocks spread over them.
        if Self::tuned(MimallocOption::ArenaEagerCommit) == DEFAULT_ARENA_EAGER_COMMIT
            && crate::os::environment(c"MIMALLOC_ARENA_EAGER_COMMIT").is_none()
        {
            Self::tune(MimallocOption::ArenaEagerCommit, 0);
        }
    }

    fn planned() {
        if Self::tuned(MimallocOption::PurgeDelay) == DEFAULT_PURGE_DELAY_MS
            && crate::os::environment(c"MIMALLOC_PURGE_DELAY").is_none()
        {
            Self::tune(MimallocOption::PurgeDelay, PLANNED_DECAY_MS);
        }
    }

    #[inline]
    unsafe fn allocate(size: usize, align: usize) -> *mut u8 {
        // SAFETY: the alignment is a power of two.
        unsafe {
            if natural(size, align) {
                ffi::mi_malloc(size).cast()
            } else {
                ffi::mi_malloc_aligned(size, align).cast()
            }
        }
    }

    #[inline]
    unsafe fn allocate_zeroed(size: usize, align: usize) -> *mut u8 {
        // SAFETY: as in `allocate`.
        unsafe {
            if natural(size, align) {
                ffi::mi_zalloc(size).cast()
            } else {
                ffi::mi_zalloc_aligned(size, align).cast()
            }
        }
    }

    #[inline]
    unsafe fn reallocate(block: *mut u8, _old_size: usize, align: usize, new_size: usize) -> *mut u8 {
        // SAFETY: the block is live and mimalloc's, by the caller's promise.
        unsafe {
            if natural(new_size, align) {
                ffi::mi_realloc(block.cast(), new_size).cast()
            } else {
                ffi::mi_realloc_aligned(block.cast(), new_size, align).cast()
            }
        }
    }

    #[inline]
    unsafe fn deallocate(block: *mut u8, _size: usize, _align: usize) {
        // SAFETY: the block is live and mimalloc's, by the caller's promise.
        unsafe { ffi::mi_free(block.cast()) }
    }
}
