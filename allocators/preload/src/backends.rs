//! The backends, reached by a table of functions that the first call fills.
//!
//! glibc's functions are found in its own image ([`glibc`]), whatever allocators are loaded beside us. jemalloc and mimalloc
//! are linked in with symbols of their own.

use crate::{glibc, internal, segments};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::*};
use statistic::backend::{Glibc, Jemalloc, Kind, Mimalloc, Retention};
use statistic::{Backend, os};

unsafe extern "C" {
    /// mimalloc's start, which its own constructor would call.
    fn _mi_auto_process_init();
    /// mimalloc's end, which its own destructor would call.
    fn _mi_auto_process_done();
    /// Where the kernel put the argument count, the arguments and the environment (exported by ld.so).
    static __libc_stack_end: *const usize;
    static environ: *const *const c_char;
}

/// A backend's functions, with the C library's meaning.
pub(crate) struct Functions {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    pub(crate) free: unsafe extern "C" fn(*mut c_void),
    pub(crate) calloc: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    pub(crate) realloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    pub(crate) memalign: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    pub(crate) usable_size: unsafe extern "C" fn(*mut c_void) -> usize,
    pub(crate) trim: fn(),
    pub(crate) retain: fn(Retention),
}

pub(crate) static GLIBC: Functions = Functions {
    name: "glibc",
    kind: Kind::Glibc,
    malloc: glibc::malloc,
    free: glibc::free,
    calloc: glibc::calloc,
    realloc: glibc::realloc,
    memalign: glibc::memalign,
    usable_size: glibc::usable_size,
    trim: || {
        glibc::trim(0);
    },
    retain: |retention| Glibc::retain_by(glibc::mallopt, retention),
};

static JEMALLOC: Functions = Functions {
    name: "jemalloc",
    kind: Kind::Jemalloc,
    malloc: jemalloc_malloc,
    free: tikv_jemalloc_sys::free,
    calloc: jemalloc_calloc,
    realloc: jemalloc_realloc,
    memalign: jemalloc_memalign,
    usable_size: jemalloc_usable_size,
    trim: Jemalloc::trim,
    retain: Jemalloc::retain,
};

static MIMALLOC: Functions = Functions {
    name: "mimalloc",
    kind: Kind::Mimalloc,
    malloc: mimalloc_malloc,
    free: libmimalloc_sys::mi_free,
    calloc: mimalloc_calloc,
    realloc: mimalloc_realloc,
    memalign: mimalloc_memalign,
    usable_size: mimalloc_usable_size,
    trim: Mimalloc::trim,
    retain: Mimalloc::retain,
};

/// The functions of a process that has not allocated yet: each fills the table and goes on.
static FIRST: Functions = Functions {
    name: "",
    kind: Kind::Glibc,
    malloc: first_malloc,
    free: first_free,
    calloc: first_calloc,
    realloc: first_realloc,
    memalign: first_memalign,
    usable_size: first_usable_size,
    trim: || {},
    retain: |_| {},
};

static TABLE: AtomicPtr<Functions> = AtomicPtr::new((&raw const FIRST).cast_mut());

/// Those of them that are called most, for `malloc`, `free`, `calloc` and `realloc` to jump through.
pub(crate) static MALLOC: AtomicPtr<c_void> = AtomicPtr::new(first_malloc as *mut c_void);
pub(crate) static FREE: AtomicPtr<c_void> = AtomicPtr::new(first_free as *mut c_void);
#[cfg(target_arch = "x86_64")]
pub(crate) static CALLOC: AtomicPtr<c_void> = AtomicPtr::new(first_calloc as *mut c_void);
#[cfg(target_arch = "x86_64")]
pub(crate) static REALLOC: AtomicPtr<c_void> = AtomicPtr::new(first_realloc as *mut c_void);

/// The table in force.
#[inline(always)]
pub(crate) fn functions() -> &'static Functions {
    // SAFETY: always the address of one of the statics above.
    unsafe { &*TABLE.load(Relaxed) }
}

/// The backend's functions, chosen now if they were not.
pub(crate) fn chosen() -> &'static Functions {
    let functions = functions();
    if ptr::eq(functions, &FIRST) { choose() } else { functions }
}

/// Fills the table. Threads that race here find the same environment, hence the same backend.
#[cold]
fn choose() -> &'static Functions {
    // Also under another backend: our own Rust code has glibc's.
    glibc::find();
    let functions = match kind() {
        Kind::Glibc => &GLIBC,
        Kind::Jemalloc => &JEMALLOC,
        Kind::Mimalloc => &MIMALLOC,
    };
    if functions.kind == Kind::Mimalloc {
        Mimalloc::begin();
    }
    TABLE.store(ptr::from_ref(functions).cast_mut(), Release);
    let [malloc, free, calloc, realloc] = if functions.kind == Kind::Glibc {
        // Without the step in between.
        [&glibc::MALLOC, &glibc::FREE, &glibc::CALLOC, &glibc::REALLOC].map(|function| function.address())
    } else {
        let Functions { malloc, free, calloc, realloc, .. } = *functions;
        [malloc as *mut c_void, free as *mut c_void, calloc as *mut c_void, realloc as *mut c_void]
    };
    MALLOC.store(malloc, Release);
    FREE.store(free, Release);
    #[cfg(target_arch = "x86_64")]
    {
        CALLOC.store(calloc, Release);
        REALLOC.store(realloc, Release);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (calloc, realloc);
    functions
}

/// Starts the backend when the library is loaded, and no other: `start.ld` leaves their constructors out. jemalloc's would
/// begin a thread in every process, for which the C library takes locks from then on, and mimalloc's reads the environment
/// once for each of its options.
pub(crate) fn start() {
    // SAFETY: what their constructors do, in the place of these.
    unsafe {
        match chosen().kind {
            Kind::Glibc => {}
            Kind::Jemalloc => tikv_jemalloc_sys::free(tikv_jemalloc_sys::malloc(NATURAL_ALIGN)),
            Kind::Mimalloc => _mi_auto_process_init(),
        }
    }
}

/// Ends what [`start`] has started, when the process ends.
extern "C" fn end() {
    if matches!(chosen().kind, Kind::Mimalloc) {
        // SAFETY: what mimalloc's destructor does, in its place.
        unsafe { _mi_auto_process_done() };
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// What `STEPALLOC_BACKEND` says. Before the C library has set `environ`, the environment is where the kernel put it.
fn kind() -> Kind {
    // SAFETY: ld.so sets the stack's end before anything runs; behind it lie the argument count, the arguments, a null,
    // and the environment with a null at its end.
    unsafe {
        if !environ.is_null() {
            return Kind::from_environment();
        }
        let start = __libc_stack_end;
        let mut variable = start.add(1 + *start + 1).cast::<*const c_char>();
        while !(*variable).is_null() {
            if let Some(value) = CStr::from_ptr(*variable).to_bytes().strip_prefix(b"STEPALLOC_BACKEND=") {
                // A bad name is reported when the C library is up.
                return Kind::from_name(value).unwrap_or(Kind::Glibc);
            }
            variable = variable.add(1);
        }
    }
    Kind::Glibc
}

unsafe extern "C" fn jemalloc_usable_size(block: *mut c_void) -> usize {
    // SAFETY: the caller's promise.
    unsafe { tikv_jemalloc_sys::malloc_usable_size(block) }
}

unsafe extern "C" fn mimalloc_usable_size(block: *mut c_void) -> usize {
    // SAFETY: the caller's promise.
    unsafe { libmimalloc_sys::mi_usable_size(block) }
}

// jemalloc and mimalloc have a class of 8 bytes, which is not aligned as C's callers may expect of any block. Smaller
// requests than the natural alignment are therefore made as large as it.

/// A `malloc` that asks `$backend` for no less: three instructions where enough is asked for, four where not.
macro_rules! at_least_natural {
    ($name:ident, $backend:path) => {
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        unsafe extern "C" fn $name(size: usize) -> *mut c_void {
            core::arch::naked_asm!(
                "cmp rdi, {natural}",
                "jb 2f",
                "jmp {backend}",
                "2:",
                "mov edi, {natural}",
                "jmp {backend}",
                natural = const NATURAL_ALIGN,
                backend = sym $backend,
            )
        }

        #[cfg(not(target_arch = "x86_64"))]
        unsafe extern "C" fn $name(size: usize) -> *mut c_void {
            // SAFETY: malloc has no conditions.
            unsafe { $backend(size.max(NATURAL_ALIGN)) }
        }
    };
}
at_least_natural!(jemalloc_malloc, tikv_jemalloc_sys::malloc);
at_least_natural!(mimalloc_malloc, libmimalloc_sys::mi_malloc);

unsafe extern "C" fn jemalloc_calloc(count: usize, size: usize) -> *mut c_void {
    // SAFETY: as above. A product that overflows was refused before.
    unsafe { tikv_jemalloc_sys::calloc(1, (count * size).max(NATURAL_ALIGN)) }
}

unsafe extern "C" fn jemalloc_realloc(block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: as above.
    unsafe { tikv_jemalloc_sys::realloc(block, size.max(NATURAL_ALIGN)) }
}

unsafe extern "C" fn jemalloc_memalign(align: usize, size: usize) -> *mut c_void {
    // SAFETY: as above.
    unsafe { tikv_jemalloc_sys::aligned_alloc(align, size.max(NATURAL_ALIGN)) }
}

unsafe extern "C" fn mimalloc_calloc(count: usize, size: usize) -> *mut c_void {
    // SAFETY: as above. A product that overflows was refused before.
    unsafe { libmimalloc_sys::mi_zalloc((count * size).max(NATURAL_ALIGN)) }
}

unsafe extern "C" fn mimalloc_realloc(block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: as above.
    unsafe { libmimalloc_sys::mi_realloc(block, size.max(NATURAL_ALIGN)) }
}

unsafe extern "C" fn mimalloc_memalign(align: usize, size: usize) -> *mut c_void {
    // SAFETY: as above; the caller checked the alignment.
    unsafe { or_enomem(Mimalloc::allocate(size, align).cast()).cast() }
}

// glibc's free keeps errno itself. jemalloc's and mimalloc's may return pages to the system, which can be
// refused (for a page that the program locked, say), and errno says so then. The linker leads this library's
// calls of these two functions to us (`--wrap`), and we keep errno as it was. jemalloc only looks at whether
// they failed. mimalloc takes errno for that, and does no more about it than to mention it if asked to (or,
// where its purges are set to use it, to try again without MADV_FREE, which Linux has since 4.5); for
// mimalloc the calls return success. (Our own calls of these two go by number: see `os::memory`.)

unsafe extern "C" {
    fn __real_munmap(start: *mut c_void, bytes: usize) -> c_int;
    fn __real_madvise(start: *mut c_void, bytes: usize, advice: c_int) -> c_int;
}

// By hand, because a function that Rust exports to the linker would be exported by the library too.
#[cfg(target_arch = "x86_64")]
macro_rules! wrap {
    ($name:literal, $function:path) => {
        core::arch::global_asm!(
            ".pushsection .text.first,\"ax\",@progbits",
            concat!(".globl ", $name),
            concat!($name, ": jmp {}"),
            ".popsection",
            sym $function
        );
    };
}
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "libstepalloc.so is for x86-64 and aarch64: its jumps of `__wrap_` functions are written by hand"
);
#[cfg(target_arch = "aarch64")]
macro_rules! wrap {
    ($name:literal, $function:path) => {
        core::arch::global_asm!(
            ".pushsection .text.first,\"ax\",@progbits",
            concat!(".globl ", $name),
            concat!($name, ": b {}"),
            ".popsection",
            sym $function
        );
    };
}
wrap!("__wrap_munmap", munmap);
wrap!("__wrap_madvise", madvise);

unsafe extern "C" fn munmap(start: *mut c_void, bytes: usize) -> c_int {
    // SAFETY: the caller's promise.
    keeping_errno(|| unsafe { __real_munmap(start, bytes) })
}

unsafe extern "C" fn madvise(start: *mut c_void, bytes: usize, advice: c_int) -> c_int {
    // SAFETY: the caller's promise.
    keeping_errno(|| unsafe { __real_madvise(start, bytes, advice) })
}

fn keeping_errno(call: impl FnOnce() -> c_int) -> c_int {
    let result = os::keeping_errno(call);
    if functions().kind == Kind::Mimalloc { 0 } else { result }
}

unsafe extern "C" fn first_malloc(size: usize) -> *mut c_void {
    // SAFETY: the caller's promise, here and in the functions below.
    unsafe { (choose().malloc)(size) }
}

unsafe extern "C" fn first_free(block: *mut c_void) {
    // SAFETY: as above.
    unsafe { (choose().free)(block) }
}

unsafe extern "C" fn first_calloc(count: usize, size: usize) -> *mut c_void {
    // SAFETY: as above.
    unsafe { (choose().calloc)(count, size) }
}

unsafe extern "C" fn first_realloc(block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: as above.
    unsafe { (choose().realloc)(block, size) }
}

unsafe extern "C" fn first_memalign(align: usize, size: usize) -> *mut c_void {
    // SAFETY: as above.
    unsafe { (choose().memalign)(align, size) }
}

unsafe extern "C" fn first_usable_size(block: *mut c_void) -> usize {
    // SAFETY: as above.
    unsafe { (choose().usable_size)(block) }
}

/// The table as a backend of the statistic allocator.
pub(crate) struct PreloadBackend;

/// As in C: alignments up to this come by themselves.
const NATURAL_ALIGN: usize = statistic::backend::NATURAL_ALIGN;

// SAFETY: malloc's contract, which each of the three keeps, is that of the trait.
unsafe impl Backend for PreloadBackend {
    /// As measured when a plan was installed (VmRSS before and after [`segments::give_back`]).
    const LEARNING_BYTES: usize = 700 << 10;
    const HAS_CONSTRUCTOR: bool = true;

    fn name() -> &'static str {
        functions().name
    }

    fn trim() {
        (functions().trim)();
        if functions().kind != Kind::Glibc {
            // What is our own.
            glibc::trim(0);
        }
        Self::end_learning();
    }

    fn retain(retention: Retention) {
        (functions().retain)(retention);
    }

    fn end_learning() {
        segments::give_back();
    }

    fn begin_exit() {
        internal::begin_exit();
    }

    unsafe fn allocate(size: usize, align: usize) -> *mut u8 {
        // SAFETY: the caller's promise, here and below.
        unsafe { functions().allocate(size, align) }
    }

    unsafe fn allocate_zeroed(size: usize, align: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe { functions().allocate_zeroed(size, align) }
    }

    unsafe fn reallocate(block: *mut u8, old_size: usize, align: usize, new_size: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe { functions().reallocate(block, old_size, align, new_size) }
    }

    unsafe fn deallocate(block: *mut u8, _size: usize, _align: usize) {
        // SAFETY: as above.
        unsafe { (functions().free)(block.cast()) }
    }
}

/// The functions with Rust's layouts.
impl Functions {
    /// # Safety
    /// As for [`Backend::allocate`].
    pub(crate) unsafe fn allocate(&self, size: usize, align: usize) -> *mut u8 {
        // SAFETY: `align` is a power of two.
        or_enomem(unsafe {
            if align <= NATURAL_ALIGN { (self.malloc)(size) } else { (self.memalign)(align, size) }
        })
    }

    /// # Safety
    /// As for [`Backend::allocate_zeroed`].
    pub(crate) unsafe fn allocate_zeroed(&self, size: usize, align: usize) -> *mut u8 {
        // SAFETY: an aligned block that is not null holds `size` bytes.
        unsafe {
            if align <= NATURAL_ALIGN {
                return or_enomem((self.calloc)(size, 1));
            }
            let block = self.allocate(size, align);
            if !block.is_null() {
                ptr::write_bytes(block, 0, size);
            }
            block
        }
    }

    /// # Safety
    /// As for [`Backend::reallocate`].
    pub(crate) unsafe fn reallocate(
        &self,
        block: *mut u8,
        old_size: usize,
        align: usize,
        new_size: usize,
    ) -> *mut u8 {
        // SAFETY: the caller's promise. C's realloc keeps no alignment beyond the natural one.
        unsafe {
            if align <= NATURAL_ALIGN {
                return or_enomem((self.realloc)(block.cast(), new_size));
            }
            let new = self.allocate(new_size, align);
            if !new.is_null() {
                ptr::copy_nonoverlapping(block, new, old_size.min(new_size));
                (self.free)(block.cast());
            }
            new
        }
    }
}

/// A backend's answer, with errno as C wants it on failure: mimalloc has an error of its own for sizes too large.
fn or_enomem(block: *mut c_void) -> *mut u8 {
    if block.is_null() {
        // SAFETY: this thread's errno.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
    }
    block.cast()
}
