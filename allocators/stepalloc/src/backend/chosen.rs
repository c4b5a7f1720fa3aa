//! The backend that the environment chooses when the process first allocates.

use super::{Backend, Glibc, Jemalloc, Mimalloc, Retention};
use crate::settings;
use core::sync::atomic::{AtomicU8, Ordering::*};

/// The three backends in one: `STEPALLOC_BACKEND` (glibc, jemalloc or mimalloc; glibc by default) chooses at the
/// process's first allocation, for its whole life. A program that always uses the same one names that instead, and
/// saves a comparison a call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chosen;

/// A backend by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The C library's own.
    Glibc = 1,
    /// jemalloc.
    Jemalloc = 2,
    /// mimalloc.
    Mimalloc = 3,
}

/// The `Kind`, or 0 before the first call.
static KIND: AtomicU8 = AtomicU8::new(0);

impl Kind {
    /// The backend of that name.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        match name {
            b"glibc" => Some(Self::Glibc),
            b"jemalloc" => Some(Self::Jemalloc),
            b"mimalloc" => Some(Self::Mimalloc),
            _ => None,
        }
    }

    /// What `STEPALLOC_BACKEND` says now; an unknown name costs a line on standard error, and is glibc.
    pub fn from_environment() -> Self {
        settings::read(
            c"STEPALLOC_BACKEND",
            "glibc, jemalloc or mimalloc",
            Self::Glibc,
            "glibc",
            Self::from_name,
        )
    }
}

#[inline]
fn kind() -> Kind {
    match KIND.load(Relaxed) {
        1 => Kind::Glibc,
        2 => Kind::Jemalloc,
        3 => Kind::Mimalloc,
        _ => choose(),
    }
}

#[cold]
fn choose() -> Kind {
    let kind = Kind::from_environment();
    // Threads that race here read the same environment; the first answer stands, since blocks may be out already.
    match KIND.compare_exchange(0, kind as u8, Relaxed, Relaxed) {
        Ok(_) => kind,
        Err(_) => self::kind(),
    }
}

macro_rules! forward {
    ($function:ident($($argument:expr),*)) => {
        match kind() {
            Kind::Glibc => Glibc::$function($($argument),*),
            Kind::Jemalloc => Jemalloc::$function($($argument),*),
            Kind::Mimalloc => Mimalloc::$function($($argument),*),
        }
    };
}

// SAFETY: every call goes to the same one of three backends.
unsafe impl Backend for Chosen {
    fn name() -> &'static str {
        forward!(name())
    }

    fn trim() {
        forward!(trim());
    }

    fn begin() {
        forward!(begin());
    }

    fn retain(retention: Retention) {
        forward!(retain(retention));
    }

    #[inline]
    unsafe fn allocate(size: usize, align: usize) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        unsafe { forward!(allocate(size, align)) }
    }

    #[inline]
    unsafe fn allocate_zeroed(size: usize, align: usize) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        unsafe { forward!(allocate_zeroed(size, align)) }
    }

    #[inline]
    unsafe fn reallocate(block: *mut u8, old_size: usize, align: usize, new_size: usize) -> *mut u8 {
        // SAFETY: the caller's promises are passed on, to the backend that made the block.
        unsafe { forward!(reallocate(block, old_size, align, new_size)) }
    }

    #[inline]
    unsafe fn deallocate(block: *mut u8, size: usize, align: usize) {
        // SAFETY: as in `reallocate`.
        unsafe { forward!(deallocate(block, size, align)) }
    }
}
