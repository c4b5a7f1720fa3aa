//! The malloc family of the C library.
//!
//! Each function begins with the way for what is not planned: a comparison or two and a jump to the backend. The way
//! for the rest stands in functions of its own, so that the first stays a few instructions long.

#[cfg(target_arch = "x86_64")]
use crate::backends::{CALLOC, FREE, MALLOC, REALLOC};
use crate::backends::{PreloadBackend, functions};
use core::ffi::{c_int, c_void};
use core::ptr;
use statistic::route;

/// Bytes of a page, for valloc and pvalloc.
const PAGE: usize = 4096;
const NATURAL_ALIGN: usize = statistic::backend::NATURAL_ALIGN;

fn fail(error: c_int) -> *mut c_void {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = error };
    ptr::null_mut()
}

/// `void *malloc(size_t)`
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    // The portable form below in three instructions; compilers do not compare with an atomic in memory, nor jump
    // through one.
    core::arch::naked_asm!(
        "cmp rdi, qword ptr [rip + {threshold}]",
        "jae {allocate}",
        "jmp qword ptr [rip + {backend}]",
        threshold = sym route::THRESHOLD,
        allocate = sym allocate_natural,
        backend = sym MALLOC,
    )
}

/// `void *malloc(size_t)`
#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    // SAFETY: malloc has no conditions.
    unsafe { if size < route::threshold() { (functions().malloc)(size) } else { allocate_natural(size) } }
}

unsafe extern "C" fn allocate_natural(size: usize) -> *mut c_void {
    // SAFETY: a power of two. The backend refuses sizes no object can have.
    unsafe { route::allocate::<PreloadBackend>(size, NATURAL_ALIGN).cast() }
}

/// `void free(void *)`
///
/// # Safety
/// As in C: null, or a live block.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    // As for malloc: three instructions where the address is above the arena, seven where it is below.
    core::arch::naked_asm!(
        "cmp rdi, qword ptr [rip + {end}]",
        "jb 2f",
        "jmp qword ptr [rip + {backend}]",
        "2:",
        "mov rsi, qword ptr [rip + {negated}]",
        "add rsi, rdi",
        "cmp rsi, qword ptr [rip + {bytes}]",
        "jb {watched}",
        "jmp qword ptr [rip + {backend}]",
        end = sym route::WATCHED_END,
        negated = sym route::WATCHED_NEGATED,
        bytes = sym route::WATCHED_BYTES,
        watched = sym free_watched,
        backend = sym FREE,
    )
}

/// `void free(void *)`
///
/// # Safety
/// As in C: null, or a live block.
#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    // SAFETY: by the caller's promise the block is live; outside the watched range it is the backend's.
    unsafe {
        match route::watched_offset(block as usize) {
            Some(offset) => free_watched(block, offset),
            None => (functions().free)(block),
        }
    }
}

/// # Safety
/// As for `free`; `offset` is the block's in the watched range.
unsafe extern "C" fn free_watched(block: *mut c_void, offset: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if !route::release_at(offset) {
            free_otherwise(block);
        }
    }
}

/// # Safety
/// As for `free`.
#[cold]
#[inline(never)]
unsafe fn free_otherwise(block: *mut c_void) {
    if block.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let size = usable_size(block);
        route::deallocate::<PreloadBackend>(block.cast(), size, NATURAL_ALIGN);
    }
}

/// # Safety
/// The block is live.
unsafe fn usable_size(block: *mut c_void) -> usize {
    if route::owns(block as usize) {
        route::usable_bytes(block as usize)
    } else {
        // SAFETY: not the arena's, so the backend's.
        unsafe { (functions().usable_size)(block) }
    }
}

/// `void *calloc(size_t, size_t)`
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    // As for malloc: six instructions. A product that overflows is left to the portable form.
    core::arch::naked_asm!(
        "mov rax, rdi",
        "mul rsi",
        "jo {allocate}",
        "cmp rax, qword ptr [rip + {threshold}]",
        "jae {allocate}",
        "jmp qword ptr [rip + {backend}]",
        threshold = sym route::THRESHOLD,
        allocate = sym allocate_zeroed,
        backend = sym CALLOC,
    )
}

/// `void *calloc(size_t, size_t)`
#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    // SAFETY: calloc has no conditions.
    unsafe { allocate_zeroed(count, size) }
}

unsafe extern "C" fn allocate_zeroed(count: usize, size: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else { return fail(libc::ENOMEM) };
    // SAFETY: calloc has no conditions.
    unsafe {
        if bytes < route::threshold() {
            return (functions().calloc)(count, size);
        }
        route::allocate_zeroed::<PreloadBackend>(bytes, NATURAL_ALIGN).cast()
    }
}

/// `void *realloc(void *, size_t)`
///
/// # Safety
/// As in C: null, or a live block.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    // As for free: seven instructions where the address is above the arena, eleven where it is below.
    core::arch::naked_asm!(
        "cmp rsi, qword ptr [rip + {threshold}]",
        "jae {reallocate}",
        "test rsi, rsi",
        "jz {reallocate}",
        "cmp rdi, qword ptr [rip + {end}]",
        "jb 2f",
        "jmp qword ptr [rip + {backend}]",
        "2:",
        "mov rax, qword ptr [rip + {negated}]",
        "add rax, rdi",
        "cmp rax, qword ptr [rip + {bytes}]",
        "jb {reallocate}",
        "jmp qword ptr [rip + {backend}]",
        threshold = sym route::THRESHOLD,
        end = sym route::WATCHED_END,
        negated = sym route::WATCHED_NEGATED,
        bytes = sym route::WATCHED_BYTES,
        reallocate = sym reallocate,
        backend = sym REALLOC,
    )
}

/// `void *realloc(void *, size_t)`
///
/// # Safety
/// As in C: null, or a live block.
#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: as in `free`.
    unsafe {
        if size != 0 && size < route::threshold() && !route::watches(block as usize) {
            return (functions().realloc)(block, size);
        }
        reallocate(block, size)
    }
}

/// # Safety
/// As for `realloc`.
#[inline(never)]
unsafe extern "C" fn reallocate(block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe {
        if block.is_null() {
            return malloc(size);
        }
        if size == 0 {
            free(block);
            return ptr::null_mut();
        }
        if size > isize::MAX as usize {
            return fail(libc::ENOMEM);
        }
        route::reallocate::<PreloadBackend>(block.cast(), usable_size(block), NATURAL_ALIGN, size).cast()
    }
}

/// `void *reallocarray(void *, size_t, size_t)`
///
/// # Safety
/// As for `realloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller's promise.
        Some(bytes) => unsafe { realloc(block, bytes) },
        None => fail(libc::ENOMEM),
    }
}

/// `void *memalign(size_t, size_t)`: an alignment that is no power of two is taken for the next one, as glibc does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    let Some(align) = align.checked_next_power_of_two().filter(|&align| align < isize::MAX as usize / 2)
    else {
        return fail(libc::EINVAL);
    };
    let align = align.max(NATURAL_ALIGN);
    // SAFETY: a power of two.
    unsafe {
        if size < route::threshold() {
            if align == NATURAL_ALIGN {
                return (functions().malloc)(size);
            }
            return (functions().memalign)(align, size);
        }
        route::allocate::<PreloadBackend>(size, align).cast()
    }
}

/// `int posix_memalign(void **, size_t, size_t)`: returns the error, and leaves errno and, on failure, the pointer as
/// they were.
///
/// # Safety
/// `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    // SAFETY: a power of two; this thread's errno; the caller's promise for `out`.
    unsafe {
        let place = libc::__errno_location();
        let before = *place;
        let block = memalign(align, size);
        *place = before;
        if block.is_null() {
            return libc::ENOMEM;
        }
        *out = block;
    }
    0
}

/// `void *aligned_alloc(size_t, size_t)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    // SAFETY: memalign has no conditions.
    unsafe { memalign(align, size) }
}

/// `void *valloc(size_t)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    // SAFETY: memalign has no conditions.
    unsafe { memalign(PAGE, size) }
}

/// `void *pvalloc(size_t)`: whole pages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.checked_next_multiple_of(PAGE) {
        // SAFETY: memalign has no conditions.
        Some(size) => unsafe { memalign(PAGE, size) },
        None => fail(libc::ENOMEM),
    }
}

/// `size_t malloc_usable_size(void *)`
///
/// # Safety
/// As for `free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    if block.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { usable_size(block) }
}

/// `void cfree(void *)`, of old programs.
///
/// # Safety
/// As for `free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(block: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { free(block) }
}

/// `void free_sized(void *, size_t)` of C23.
///
/// # Safety
/// As for `free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(block: *mut c_void, _size: usize) {
    // SAFETY: the caller's promise.
    unsafe { free(block) }
}

/// `void free_aligned_sized(void *, size_t, size_t)` of C23.
///
/// # Safety
/// As for `free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(block: *mut c_void, _align: usize, _size: usize) {
    // SAFETY: the caller's promise.
    unsafe { free(block) }
}
