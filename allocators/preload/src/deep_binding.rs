//! Libraries that are loaded with `RTLD_DEEPBIND`.
//!
//! Such a library looks its symbols up in itself and in what it needs before it looks in the program: so it has the C
//! library's `free` where the program has ours, and the two meet at the first block that one side hands to the other. PHP loads its
//! extensions in this way, and oneTBB (in OpenVINO) its binding to hwloc; a preloaded allocator ends both with "free(): invalid pointer".
//!
//! Before the first library of that kind is loaded, the C library's own table of symbols is changed: its malloc and family are ours from
//! then on, for whoever looks them up. All else that the library binds to remains what it asked for.

use crate::{backends, glibc, introspection, malloc};
use core::ffi::{CStr, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering::*};

/// `void *dlopen(const char *, int)`
///
/// A jump goes on to the C library's, which finds its caller by the return address.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen() {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "mov edi, esi",
        "call {prepare}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "jmp rax",
        ".cfi_endproc",
        prepare = sym prepare,
    )
}

/// `void *dlopen(const char *, int)`
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen() {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "stp x29, x30, [sp, #-32]!",
        ".cfi_def_cfa_offset 32",
        ".cfi_offset x29, -32",
        ".cfi_offset x30, -24",
        "stp x0, x1, [sp, #16]",
        "mov w0, w1",
        "bl {prepare}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "br x16",
        ".cfi_endproc",
        prepare = sym prepare,
    )
}

/// The dlopen behind ours, for which all is ready.
extern "C" fn prepare(flags: c_int) -> *mut c_void {
    static BEHIND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    if flags & libc::RTLD_DEEPBIND != 0 {
        redirect();
    }
    let mut behind = BEHIND.load(Relaxed);
    if behind.is_null() {
        // SAFETY: looks a name up.
        behind = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlopen".as_ptr()) };
        if behind.is_null() {
            return none as *mut c_void;
        }
        BEHIND.store(behind, Relaxed);
    }
    behind
}

/// Where there is no dlopen (before glibc 2.34, in a program that needs none) nothing is loaded.
extern "C" fn none() -> *mut c_void {
    ptr::null_mut()
}

#[cold]
fn redirect() {
    const NOT_DONE: u8 = 0;
    const BEGUN: u8 = 1;
    const DONE: u8 = 2;
    static STATE: AtomicU8 = AtomicU8::new(NOT_DONE);
    /// How often another thread's end is looked for: a child may have been forked in its midst.
    const ATTEMPTS: usize = 1000;
    if STATE.compare_exchange(NOT_DONE, BEGUN, Acquire, Acquire).is_err() {
        for _ in 0..ATTEMPTS {
            if STATE.load(Acquire) == DONE {
                return;
            }
            std::thread::yield_now();
        }
        return;
    }
    // The C library's own were found before.
    backends::chosen();
    let functions: [(&CStr, *const c_void); _] = [
        (c"malloc", malloc::malloc as *const c_void),
        (c"free", malloc::free as *const c_void),
        (c"calloc", malloc::calloc as *const c_void),
        (c"realloc", malloc::realloc as *const c_void),
        (c"reallocarray", malloc::reallocarray as *const c_void),
        (c"memalign", malloc::memalign as *const c_void),
        (c"posix_memalign", malloc::posix_memalign as *const c_void),
        (c"aligned_alloc", malloc::aligned_alloc as *const c_void),
        (c"valloc", malloc::valloc as *const c_void),
        (c"pvalloc", malloc::pvalloc as *const c_void),
        (c"malloc_usable_size", malloc::malloc_usable_size as *const c_void),
        (c"malloc_trim", introspection::malloc_trim as *const c_void),
        (c"mallopt", introspection::mallopt as *const c_void),
        (c"malloc_stats", introspection::malloc_stats as *const c_void),
        (c"malloc_info", introspection::malloc_info as *const c_void),
        (c"mallinfo", introspection::mallinfo as *const c_void),
        (c"mallinfo2", introspection::mallinfo2 as *const c_void),
    ];
    // SAFETY: ours do what the C library's do. Whoever calls our dlopen has found it before the C library's, so that this library was loaded
    // with the program, and stays. STATE keeps other threads out.
    unsafe { glibc::redirect(&functions) };
    STATE.store(DONE, Release);
}
