//! The C library's own allocator.

use super::{Backend, NATURAL_ALIGN, Retention, reallocate_by_copy};
use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The backend `glibc`. Its tuning by environment (`GLIBC_TUNABLES`, `MALLOC_*_`) works as ever.
#[derive(Clone, Copy, Debug, Default)]
pub struct Glibc;

/// glibc's tuning by `mallopt`; `None` leaves a value as it is. Bytes, except for `arena_max`. Setting any of the
/// first three switches glibc's own adaptation of both thresholds off.
#[derive(Clone, Copy, Debug, Default)]
pub struct GlibcTuning {
    /// Free bytes at the top of the heap beyond which they return to the system (default 128 KiB, adapted).
    pub trim_threshold: Option<i32>,
    /// Blocks from this size on are mapped one by one (default 128 KiB, adapted up to 32 MiB).
    pub mmap_threshold: Option<i32>,
    /// Bytes asked for beyond what is needed whenever the heap grows.
    pub top_pad: Option<i32>,
    /// The number of arenas at most.
    pub arena_max: Option<i32>,
}

impl Glibc {
    /// Applies the tuning; `false` if glibc refused a value. Best called first in `main`.
    pub fn tune(tuning: GlibcTuning) -> bool {
        let parameters = [
            (libc::M_TRIM_THRESHOLD, tuning.trim_threshold),
            (libc::M_MMAP_THRESHOLD, tuning.mmap_threshold),
            (libc::M_TOP_PAD, tuning.top_pad),
            (libc::M_ARENA_MAX, tuning.arena_max),
        ];
        parameters.into_iter().all(|(parameter, value)| {
            value.is_none_or(|value| {
                Self::mark_tuned();
                // SAFETY: mallopt takes any numbers and says whether they were good.
                unsafe { libc::mallopt(parameter, value) == 1 }
            })
        })
    }

    /// Leaves the parameters of `mallopt` to the program, which sets one itself.
    pub fn mark_tuned() {
        IS_TUNED.store(true, Relaxed);
    }

    /// [`Backend::retain`] by the C library's own `mallopt`, where nobody else has tuned it.
    ///
    /// By itself glibc keeps twice the largest mapped block that was freed at the top of its heap. It gets no large blocks any more where a
    /// plan or the large heap serves them, so it would give the top back, and fault it in again, in each step.
    pub fn retain_by(mallopt: impl Fn(c_int, c_int) -> c_int, retention: Retention) {
        if IS_TUNED.load(Relaxed) {
            return;
        }
        match retention {
            Retention::Default => {}
            Retention::Immediate => {
                mallopt(libc::M_MMAP_THRESHOLD, LEAST_THRESHOLD);
                mallopt(libc::M_TRIM_THRESHOLD, LEAST_THRESHOLD);
            }
            Retention::Retain => _ = mallopt(libc::M_TRIM_THRESHOLD, MOST_TRIM_THRESHOLD),
        }
    }
}

/// Where glibc's thresholds begin. (`DEFAULT_MMAP_THRESHOLD_MIN`.)
const LEAST_THRESHOLD: c_int = 128 << 10;
/// Where its threshold for trimming ends, if it follows the program. (Twice `DEFAULT_MMAP_THRESHOLD_MAX`.)
const MOST_TRIM_THRESHOLD: c_int = 64 << 20;

/// The program has set a parameter of `mallopt`, or the user's environment has.
static IS_TUNED: AtomicBool = AtomicBool::new(false);

pub(super) fn read_environment() {
    let is_tuned =
        [c"MALLOC_MMAP_THRESHOLD_", c"MALLOC_TRIM_THRESHOLD_", c"MALLOC_TOP_PAD_", c"MALLOC_MMAP_MAX_"]
            .into_iter()
            .any(|name| crate::os::environment(name).is_some())
            || crate::os::environment_has(c"GLIBC_TUNABLES", b"glibc.malloc.");
    if is_tuned {
        Glibc::mark_tuned();
    }
}

// SAFETY: malloc's contract is that of the trait.
unsafe impl Backend for Glibc {
    fn name() -> &'static str {
        "glibc"
    }

    fn trim() {
        // SAFETY: no conditions.
        unsafe { libc::malloc_trim(0) };
    }

    fn retain(retention: Retention) {
        // SAFETY: mallopt takes any numbers.
        Self::retain_by(|parameter, value| unsafe { libc::mallopt(parameter, value) }, retention);
    }

    #[inline]
    unsafe fn allocate(size: usize, align: usize) -> *mut u8 {
        // SAFETY: malloc has no conditions.
        unsafe { if align <= NATURAL_ALIGN { libc::malloc(size).cast() } else { aligned(size, align) } }
    }

    #[inline]
    unsafe fn allocate_zeroed(size: usize, align: usize) -> *mut u8 {
        // SAFETY: an aligned block that is not null holds `size` bytes.
        unsafe {
            if align <= NATURAL_ALIGN {
                return libc::calloc(size, 1).cast();
            }
            let block = aligned(size, align);
            if !block.is_null() {
                ptr::write_bytes(block, 0, size);
            }
            block
        }
    }

    #[inline]
    unsafe fn reallocate(block: *mut u8, old_size: usize, align: usize, new_size: usize) -> *mut u8 {
        // SAFETY: the block is live and malloc's, by the caller's promise.
        unsafe {
            if align <= NATURAL_ALIGN {
                libc::realloc(block.cast(), new_size).cast()
            } else {
                reallocate_by_copy::<Self>(block, old_size, align, new_size)
            }
        }
    }

    #[inline]
    unsafe fn deallocate(block: *mut u8, _size: usize, _align: usize) {
        // SAFETY: the block is live and malloc's, by the caller's promise.
        unsafe { libc::free(block.cast()) }
    }
}

// Out of line, so that the way for natural alignments needs no room on the stack.
#[cold]
#[inline(never)]
unsafe fn aligned(size: usize, align: usize) -> *mut u8 {
    let mut block = ptr::null_mut();
    // SAFETY: the alignment is a power of two above that of a pointer; the result is written on success only.
    match unsafe { libc::posix_memalign(&mut block, align, size) } {
        0 => block.cast(),
        _ => ptr::null_mut(),
    }
}
