//! Introspection and tuning of the heap: figures are those of backend and arena together where the backend
//! has any.

use crate::backends::{PreloadBackend, chosen};
use crate::glibc;
use core::ffi::c_int;
use statistic::Backend;
use statistic::backend::{Glibc, Kind};
use statistic::os::{Text, log_stderr};

fn is_glibc() -> bool {
    chosen().kind == Kind::Glibc
}

/// `int malloc_trim(size_t)`: 1 if memory may have gone back to the system.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(pad: usize) -> c_int {
    let given = statistic::route::give_back_extents() > 0;
    if is_glibc() {
        return c_int::from(given) | glibc::trim(pad);
    }
    PreloadBackend::trim();
    1
}

/// `int mallopt(int, int)`: glibc's, where it is the backend; else 0, "not understood".
#[unsafe(no_mangle)]
pub extern "C" fn mallopt(parameter: c_int, value: c_int) -> c_int {
    if !is_glibc() {
        return 0;
    }
    Glibc::mark_tuned();
    glibc::mallopt(parameter, value)
}

/// `struct mallinfo2 mallinfo2(void)`: what glibc says, where it is the backend, and the arena and the large heap as
/// a mapped region each, whose occupied bytes are in use.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo2() -> libc::mallinfo2 {
    // SAFETY: a structure of numbers, of which zeros are valid.
    let nothing = || unsafe { core::mem::zeroed() };
    let mut info = if is_glibc() { glibc::mallinfo2().unwrap_or_else(nothing) } else { nothing() };
    let snapshot = statistic::statistics();
    if snapshot.arena_bytes > 0 {
        info.hblks += 1;
        info.hblkhd += snapshot.arena_bytes as usize;
        info.uordblks += snapshot.arena_occupied_bytes as usize;
        info.fordblks +=
            (snapshot.arena_bytes - snapshot.arena_occupied_bytes.min(snapshot.arena_bytes)) as usize;
    }
    if snapshot.heap_resident_bytes > 0 {
        info.hblks += 1;
        info.hblkhd += snapshot.heap_resident_bytes as usize;
        info.uordblks += snapshot.heap_bytes as usize;
        info.fordblks += (snapshot.heap_resident_bytes - snapshot.heap_bytes) as usize;
    }
    info
}

/// `struct mallinfo mallinfo(void)`: the same in the old numbers, which stop at what an int holds.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo() -> libc::mallinfo {
    let info = mallinfo2();
    let int = |value: usize| c_int::try_from(value).unwrap_or(c_int::MAX);
    // SAFETY: a structure of numbers, of which zeros are valid.
    let mut old: libc::mallinfo = unsafe { core::mem::zeroed() };
    old.arena = int(info.arena);
    old.ordblks = int(info.ordblks);
    old.smblks = int(info.smblks);
    old.hblks = int(info.hblks);
    old.hblkhd = int(info.hblkhd);
    old.fsmblks = int(info.fsmblks);
    old.uordblks = int(info.uordblks);
    old.fordblks = int(info.fordblks);
    old.keepcost = int(info.keepcost);
    old
}

/// `void malloc_stats(void)`: the backend's own report, then our statistics, on standard error.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_stats() {
    // SAFETY: the reports take no arguments, or null ones for "standard error, all of it".
    unsafe {
        match chosen().kind {
            Kind::Glibc => glibc::stats(),
            Kind::Jemalloc => {
                tikv_jemalloc_sys::malloc_stats_print(None, core::ptr::null_mut(), core::ptr::null());
            }
            Kind::Mimalloc => libmimalloc_sys::mi_stats_print(core::ptr::null_mut()),
        }
    }
    let mut text = Text::<8192>::new();
    let _ = statistic::statistics().write_json(&mut text);
    log_stderr(format_args!("{}", core::str::from_utf8(text.as_bytes()).unwrap_or("")));
}

/// `int malloc_info(int, FILE *)`: glibc's XML where it is the backend; else an empty document of the same
/// form.
///
/// # Safety
/// `stream` is an open stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_info(options: c_int, stream: *mut libc::FILE) -> c_int {
    // SAFETY: the stream is open, by the caller's promise.
    unsafe {
        if is_glibc() {
            return glibc::info(options, stream);
        }
        if options != 0 {
            return libc::EINVAL;
        }
        libc::fputs(c"<malloc version=\"1\">\n</malloc>\n".as_ptr(), stream);
    }
    0
}
