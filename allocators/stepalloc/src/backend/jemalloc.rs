//! jemalloc, built from source with prefixed symbols, so that it replaces nothing by itself.

use super::{Backend, Decay, NATURAL_ALIGN, Retention};
use core::ffi::{CStr, c_int};
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tikv_jemalloc_sys as ffi;

/// The backend `jemalloc`. Its tuning by environment is `_RJEM_MALLOC_CONF`; for values that only count at its start
/// (`metadata_thp`, `narenas`) a Rust program can use [`jemalloc_conf!`](crate::jemalloc_conf).
#[derive(Clone, Copy, Debug, Default)]
pub struct Jemalloc;

/// jemalloc's tuning while it runs; `None` leaves a value as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct JemallocTuning {
    /// A thread of jemalloc's own returns unused pages.
    pub background_thread: Option<bool>,
    /// Milliseconds until unused dirty pages return to the system; -1 is never.
    pub dirty_decay_ms: Option<isize>,
    /// Milliseconds until muzzy pages (already offered to the system) return; -1 is never.
    pub muzzy_decay_ms: Option<isize>,
}

/// That of dirty pages; muzzy ones go back at once by default.
static DIRTY: Decay = Decay::new(10_000);
/// The pseudo-index that means every arena (jemalloc manual, `MALLCTL_ARENAS_ALL`).
const ALL_ARENAS: &CStr = c"arena.4096.purge";

impl Jemalloc {
    /// Applies the tuning to arenas that are there and to later ones; `false` if jemalloc refused a value.
    pub fn tune(tuning: JemallocTuning) -> bool {
        let mut good = true;
        if let Some(on) = tuning.background_thread {
            good &= write(c"background_thread", on);
        }
        for (value, later, each) in [
            (tuning.dirty_decay_ms, c"arenas.dirty_decay_ms", "dirty_decay_ms"),
            (tuning.muzzy_decay_ms, c"arenas.muzzy_decay_ms", "muzzy_decay_ms"),
        ] {
            let Some(value) = value else { continue };
            good &= write(later, value);
            let arenas = read::<u32>(c"arenas.narenas").unwrap_or(0);
            for arena in 0..arenas {
                let mut name = crate::os::Text::<64>::new();
                let _ = core::fmt::write(&mut name, format_args!("arena.{arena}.{each}\0"));
                if let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) {
                    // An arena that was never used refuses, and takes the later value when it is.
                    write(name, value);
                }
            }
        }
        good
    }
}

fn write<T: Copy>(name: &CStr, mut value: T) -> bool {
    // SAFETY: the callers pass a value of the type the name has; jemalloc checks its size.
    unsafe {
        ffi::mallctl(name.as_ptr(), ptr::null_mut(), ptr::null_mut(), (&raw mut value).cast(), size_of::<T>())
            == 0
    }
}

/// The user's environment says when jemalloc returns unused memory.
static IS_TUNED: AtomicBool = AtomicBool::new(false);

pub(super) fn read_environment() {
    IS_TUNED.store(crate::os::environment_has(c"_RJEM_MALLOC_CONF", b"dirty_decay_ms"), Relaxed);
}

fn read<T: Copy + Default>(name: &CStr) -> Option<T> {
    let (mut value, mut length) = (T::default(), size_of::<T>());
    // SAFETY: as in `write`.
    let error =
        unsafe { ffi::mallctl(name.as_ptr(), (&raw mut value).cast(), &mut length, ptr::null_mut(), 0) };
    (error == 0).then_some(value)
}

/// jemalloc's flags for a request: none where its size class has the alignment by itself. Sizes up to 8 do not have
/// the natural one.
#[inline]
fn flags(size: usize, align: usize) -> c_int {
    if align <= NATURAL_ALIGN && align <= size { 0 } else { align.trailing_zeros() as c_int }
}

// SAFETY: jemalloc's contract is that of the trait; sizes of 0 are made 1, which its non-standard calls need.
unsafe impl Backend for Jemalloc {
    fn name() -> &'static str {
        "jemalloc"
    }

    fn trim() {
        // SAFETY: the name is a command without values.
        unsafe {
            ffi::mallctl(
                c"thread.tcache.flush".as_ptr(),
                ptr::null_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
                0,
            );
            ffi::mallctl(ALL_ARENAS.as_ptr(), ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), 0);
        }
    }

    fn retain(retention: Retention) {
        if IS_TUNED.load(Relaxed) {
            return;
        }
        let now = read::<isize>(c"arenas.dirty_decay_ms");
        if let Some(decay) = now.and_then(|now| DIRTY.change(retention, now)) {
            Self::tune(JemallocTuning { dirty_decay_ms: Some(decay), ..Default::default() });
        }
    }

    #[inline]
    unsafe fn allocate(size: usize, align: usize) -> *mut u8 {
        // SAFETY: malloc has no conditions; mallocx wants a size above 0.
        unsafe {
            match flags(size, align) {
                0 => ffi::malloc(size).cast(),
                flags => ffi::mallocx(size.max(1), flags).cast(),
            }
        }
    }

    #[inline]
    unsafe fn allocate_zeroed(size: usize, align: usize) -> *mut u8 {
        // SAFETY: as in `allocate`.
        unsafe {
            match flags(size, align) {
                0 => ffi::calloc(1, size).cast(),
                flags => ffi::mallocx(size.max(1), flags | ffi::MALLOCX_ZERO).cast(),
            }
        }
    }

    #[inline]
    unsafe fn reallocate(block: *mut u8, _old_size: usize, align: usize, new_size: usize) -> *mut u8 {
        // SAFETY: the block is live and jemalloc's, by the caller's promise.
        unsafe {
            match flags(new_size, align) {
                0 => ffi::realloc(block.cast(), new_size).cast(),
                flags => ffi::rallocx(block.cast(), new_size.max(1), flags).cast(),
            }
        }
    }

    #[inline]
    unsafe fn deallocate(block: *mut u8, size: usize, align: usize) {
        // SAFETY: the block is live and jemalloc's, of this size and alignment, by the caller's promise.
        unsafe { ffi::sdallocx(block.cast(), size.max(1), flags(size, align)) }
    }
}
