//! C++'s `operator new` and `operator delete`, which are malloc and free as everywhere.
//!
//! libstdc++'s own call malloc and free, so they would do, but for programs that are linked with an allocator which has operators of its own: those
//! of Debian's libjemalloc.so.2 take a block from jemalloc, and give it to whatever `free` the program has, which is ours. malloc and free are called as the
//! program sees them: its own, where it has any.
//!
//! Where there is no memory, the operator behind ours goes on, which calls the program's new handler, and throws: a jump leaves it with the caller's
//! frame, as no exception may pass through Rust's.

use core::ffi::{CStr, c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;

/// The operators that allocate, by their number below.
const NAMES: [&CStr; 8] = [
    c"_Znwm",
    c"_Znam",
    c"_ZnwmRKSt9nothrow_t",
    c"_ZnamRKSt9nothrow_t",
    c"_ZnwmSt11align_val_t",
    c"_ZnamSt11align_val_t",
    c"_ZnwmSt11align_val_tRKSt9nothrow_t",
    c"_ZnamSt11align_val_tRKSt9nothrow_t",
];

/// Operators that allocate: of a size, and perhaps an alignment, and perhaps what says that nothing is to be thrown.
macro_rules! allocate {
    ($($number:literal $name:ident $exchange_x86:literal $exchange_arm:literal $function:literal)*) => {$(
        #[doc = concat!("`", stringify!($name), "`")]
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "C++'s name")]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                $exchange_x86,
                concat!("call ", $function, "@PLT"),
                "test rax, rax",
                "jz 2f",
                "add rsp, 24",
                ".cfi_adjust_cfa_offset -24",
                "ret",
                "2:",
                ".cfi_adjust_cfa_offset 24",
                concat!("mov edi, ", $number),
                "call {behind}",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "jmp rax",
                ".cfi_endproc",
                behind = sym behind,
            )
        }

        #[doc = concat!("`", stringify!($name), "`")]
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "C++'s name")]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "stp x0, x1, [sp, -32]!",
                ".cfi_adjust_cfa_offset 32",
                "stp x2, x30, [sp, 16]",
                ".cfi_rel_offset x30, 24",
                $exchange_arm,
                concat!("bl ", $function),
                "cbz x0, 2f",
                "ldr x30, [sp, 24]",
                "add sp, sp, 32",
                "ret",
                "2:",
                concat!("mov w0, ", $number),
                "bl {behind}",
                "mov x16, x0",
                "ldp x2, x30, [sp, 16]",
                "ldp x0, x1, [sp], 32",
                "br x16",
                ".cfi_endproc",
                behind = sym behind,
            )
        }
    )*};
}

allocate! {
    0 _Znwm "" "" "malloc"
    1 _Znam "" "" "malloc"
    2 _ZnwmRKSt9nothrow_t "" "" "malloc"
    3 _ZnamRKSt9nothrow_t "" "" "malloc"
    4 _ZnwmSt11align_val_t "xchg rdi, rsi" "mov x3, x0\nmov x0, x1\nmov x1, x3" "memalign"
    5 _ZnamSt11align_val_t "xchg rdi, rsi" "mov x3, x0\nmov x0, x1\nmov x1, x3" "memalign"
    6 _ZnwmSt11align_val_tRKSt9nothrow_t "xchg rdi, rsi" "mov x3, x0\nmov x0, x1\nmov x1, x3" "memalign"
    7 _ZnamSt11align_val_tRKSt9nothrow_t "xchg rdi, rsi" "mov x3, x0\nmov x0, x1\nmov x1, x3" "memalign"
}

/// Operators that free, whatever else they are told.
macro_rules! free {
    ($($name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "`")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "C++'s name")]
        pub unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!("jmp free@PLT");
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!("b free");
        }
    )*};
}

free! {
    _ZdlPv
    _ZdaPv
    _ZdlPvm
    _ZdaPvm
    _ZdlPvRKSt9nothrow_t
    _ZdaPvRKSt9nothrow_t
    _ZdlPvSt11align_val_t
    _ZdaPvSt11align_val_t
    _ZdlPvmSt11align_val_t
    _ZdaPvmSt11align_val_t
    _ZdlPvSt11align_val_tRKSt9nothrow_t
    _ZdaPvSt11align_val_tRKSt9nothrow_t
}

/// The operator that goes on where malloc has failed: the next one behind ours, or libstdc++'s where that is an allocator's, whose blocks our `free` does
/// not know. Ends the process where there is none.
#[cold]
extern "C" fn behind(number: c_int) -> *const c_void {
    let name = NAMES[number as usize];
    // SAFETY: the name ends with a nul byte.
    let next = |name: &CStr| unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    let operator = next(name);
    let found = if !operator.is_null() && image(operator) != image(next(c"malloc")) {
        operator
    } else {
        // SAFETY: names that end with a nul byte; the library stays loaded, as it is not loaded by this.
        unsafe {
            let library = libc::dlopen(c"libstdc++.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if library.is_null() { ptr::null_mut() } else { libc::dlsym(library, name.as_ptr()) }
        }
    };
    if found.is_null() {
        std::process::abort();
    }
    found
}

/// Where the library lies that a function is in.
fn image(function: *const c_void) -> *const c_void {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked for; zeros are valid where nothing is found.
    unsafe {
        libc::dladdr(function, info.as_mut_ptr());
        info.assume_init().dli_fbase
    }
}
