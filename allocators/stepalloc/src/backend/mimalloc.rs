//! mimalloc, built from source without its override of malloc.

use super::{Backend, Decay, NATURAL_ALIGN, Retention};
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
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

/// mimalloc's default.
const DEFAULT_ARENA_EAGER_COMMIT: isize = 2;
/// That of unused memory.
static PURGE: Decay = Decay::new(10);

/// True where a block has the alignment by its size class alone. Sizes up to 8 do not have the natural one.
#[inline]
fn natural(size: usize, align: usize) -> bool {
    align <= NATURAL_ALIGN && align <= size
}

/// mimalloc hands out blocks larger than this from the beginning of a slice, whose size is the most they can be aligned by
/// that. (`MI_MEDIUM_OBJ_SIZE_MAX` and `MI_SEGMENT_SLICE_SIZE` of version 2.)
const SLICE: usize = 64 << 10;

/// A block of at least `size` bytes at `align`, from `plain` where its address is right: asked for an alignment, mimalloc adds
/// it to the size, and a block of 1 MiB and 64 bytes has 1.5 MiB to itself.
///
/// # Safety
/// Each returns a block for `mi_free`, or null, and the second one at `align`.
#[inline(always)]
unsafe fn aligned(
    size: usize,
    align: usize,
    plain: unsafe extern "C" fn(usize) -> *mut c_void,
    aligned: unsafe extern "C" fn(usize, usize) -> *mut c_void,
) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe {
        if natural(size, align) {
            return plain(size).cast();
        }
        if size > SLICE && align <= SLICE {
            let block = plain(size);
            if block.addr() & (align - 1) == 0 {
                return block.cast();
            }
            ffi::mi_free(block);
        }
        aligned(size, align).cast()
    }
}

/// The user's environment says when mimalloc returns unused memory.
static IS_TUNED: AtomicBool = AtomicBool::new(false);

pub(super) fn read_environment() {
    IS_TUNED.store(crate::os::environment(c"MIMALLOC_PURGE_DELAY").is_some(), Relaxed);
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

    fn retain(retention: Retention) {
        if IS_TUNED.load(Relaxed) {
            return;
        }
        if let Some(delay) = PURGE.change(retention, Self::tuned(MimallocOption::PurgeDelay)) {
            Self::tune(MimallocOption::PurgeDelay, delay);
        }
    }

    #[inline]
    unsafe fn allocate(size: usize, align: usize) -> *mut u8 {
        // SAFETY: the alignment is a power of two.
        unsafe { aligned(size, align, ffi::mi_malloc, ffi::mi_malloc_aligned) }
    }

    #[inline]
    unsafe fn allocate_zeroed(size: usize, align: usize) -> *mut u8 {
        // SAFETY: as in `allocate`.
        unsafe { aligned(size, align, ffi::mi_zalloc, ffi::mi_zalloc_aligned) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alignment_makes_large_blocks_no_larger() {
        for size in [1, 100, 5000, SLICE + 1, 1 << 20, (1 << 20) + 1, 20 << 20] {
            for align in [1, 16, 64, 4096, SLICE, 2 << 20] {
                // SAFETY: the alignment is a power of two; blocks are freed once, and read where they are theirs.
                unsafe {
                    let block = Mimalloc::allocate(size, align);
                    let zeroed = Mimalloc::allocate_zeroed(size, align);
                    assert!(block.addr().is_multiple_of(align) && zeroed.addr().is_multiple_of(align));
                    let usable = ffi::mi_usable_size(block.cast());
                    assert!(usable >= size);
                    if (SLICE + 1..=1 << 20).contains(&size) && align <= SLICE {
                        assert!(usable < size + SLICE, "{usable} bytes for {size} at {align}");
                    }
                    assert!(core::slice::from_raw_parts(zeroed, size).iter().all(|&byte| byte == 0));
                    Mimalloc::deallocate(block, size, align);
                    Mimalloc::deallocate(zeroed, size, align);
                }
            }
        }
    }
}
