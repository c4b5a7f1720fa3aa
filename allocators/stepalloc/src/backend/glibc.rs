//! The C library's own allocator.

use super::{Backend, NATURAL_ALIGN, Retention, reallocate_by_copy};
use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

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
                Self::is_told(parameter);
                // SAFETY: mallopt takes any numbers and says whether they were good.
                unsafe { libc::mallopt(parameter, value) == 1 }
            })
        })
    }

    /// The program sets a parameter of `mallopt` itself, which is left to it from now on.
    pub fn is_told(parameter: c_int) {
        TOLD.fetch_or(bit(parameter), Relaxed);
    }

    /// [`Backend::retain`] by the C library's own `mallopt`.
    ///
    /// glibc's thresholds follow the largest mapped block that was freed, up to 32 MiB, until a parameter is set for the first
    /// time; from then on they stay. After [`Retention::Nothing`] they are set to where such a block would have brought them.
    pub fn retain_by(
        mallopt: impl Fn(c_int, c_int) -> c_int,
        retention: Retention,
        largest: fn(usize) -> usize,
    ) {
        let told = TOLD.load(Relaxed);
        let (mmap, trim) = match retention {
            Retention::Nothing if told != 0 || is_tuned() => return,
            Retention::Nothing => (LEAST_MMAP_THRESHOLD, LEAST_MMAP_THRESHOLD),
            // They are glibc's still.
            _ if !SET.load(Relaxed) => return,
            _ => {
                let threshold = largest(MOST_MMAP_THRESHOLD).max(LEAST_MMAP_THRESHOLD);
                (threshold, 2 * threshold)
            }
        };
        SET.store(true, Relaxed);
        for (parameter, value) in [(libc::M_MMAP_THRESHOLD, mmap), (libc::M_TRIM_THRESHOLD, trim)] {
            if told & bit(parameter) == 0 {
                mallopt(parameter, value as c_int);
            }
        }
    }
}

/// Where glibc's threshold for mapped blocks begins, and where it ends. (`DEFAULT_MMAP_THRESHOLD_MIN` and `_MAX`.)
const LEAST_MMAP_THRESHOLD: usize = 128 << 10;
const MOST_MMAP_THRESHOLD: usize = 32 << 20;
/// The parameters that end glibc's own adaptation, each of which has a bit in [`TOLD`].
const ADAPTED: [c_int; 4] =
    [libc::M_TRIM_THRESHOLD, libc::M_MMAP_THRESHOLD, libc::M_TOP_PAD, libc::M_MMAP_MAX];

/// Those of them that the program has set.
static TOLD: AtomicU32 = AtomicU32::new(0);
/// The thresholds were set for a retention.
static SET: AtomicBool = AtomicBool::new(false);

fn bit(parameter: c_int) -> u32 {
    ADAPTED.iter().position(|&adapted| adapted == parameter).map_or(0, |place| 1 << place)
}

/// Whether the user's environment tunes glibc.
fn is_tuned() -> bool {
    [c"MALLOC_MMAP_THRESHOLD_", c"MALLOC_TRIM_THRESHOLD_", c"MALLOC_TOP_PAD_", c"MALLOC_MMAP_MAX_"]
        .into_iter()
        .any(|name| crate::os::environment(name).is_some())
        || crate::os::environment_has(c"GLIBC_TUNABLES", b"glibc.malloc.")
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

    fn retain(retention: Retention, largest: fn(usize) -> usize) {
        // SAFETY: mallopt takes any numbers.
        Self::retain_by(|parameter, value| unsafe { libc::mallopt(parameter, value) }, retention, largest);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_go_down_and_come_back_to_the_largest_block() {
        if is_tuned() {
            return eprintln!("skipped: the environment tunes glibc");
        }
        let set = |retention, largest: fn(usize) -> usize| {
            let calls = std::cell::RefCell::new(Vec::new());
            let mallopt = |parameter, value| {
                calls.borrow_mut().push((parameter, value));
                1
            };
            Glibc::retain_by(mallopt, retention, largest);
            calls.into_inner()
        };
        let both = |mmap, trim| vec![(libc::M_MMAP_THRESHOLD, mmap), (libc::M_TRIM_THRESHOLD, trim)];
        assert_eq!(set(Retention::Long, |_| 5 << 20), [], "they follow the program");
        assert_eq!(set(Retention::Nothing, |_| 5 << 20), both(128 << 10, 128 << 10));
        assert_eq!(set(Retention::Long, |_| 5 << 20), both(5 << 20, 10 << 20));
        assert_eq!(set(Retention::Usual, |most| most), both(32 << 20, 64 << 20));
        Glibc::is_told(libc::M_ARENA_MAX);
        assert_eq!(set(Retention::Nothing, |_| 1000), both(128 << 10, 128 << 10));
        Glibc::is_told(libc::M_TRIM_THRESHOLD);
        assert_eq!(
            set(Retention::Usual, |_| 0),
            [(libc::M_MMAP_THRESHOLD, 128 << 10)],
            "the other is the program's"
        );
        assert_eq!(set(Retention::Nothing, |_| 0), [], "the program has its own");
    }
}
