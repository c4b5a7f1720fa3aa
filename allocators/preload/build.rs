//! Options for the linker, so that processes with no use for most of the library pay little for its being
//! loaded.

use std::path::Path;
use std::{env, fs};

/// Functions of the C library that are looked up when they are first called. Rust's calls have them looked up when the
/// library is loaded, some 650 instructions each, in every process. (Not those that older ones do without: whether they are
/// there is asked by their address.)
const LATE: &str = "
    __cxa_atexit __errno_location __register_atfork __xpg_strerror_r abort bcmp clock_gettime clock_nanosleep
    clone close dl_iterate_phdr dladdr dlopen dlsym fputs fstat64 fwrite getcwd getenv getpid getrlimit getrusage lseek64 memchr
    memcpy memmove memset mmap mmap64 mprotect open open64 pause poll prctl pthread_attr_destroy
    pthread_attr_getstacksize pthread_attr_init pthread_attr_setdetachstate pthread_attr_setstacksize
    pthread_create pthread_detach pthread_join pthread_key_create pthread_key_delete pthread_self
    pthread_setcancelstate pthread_setname_np pthread_setspecific pthread_sigmask read readlink realpath rename sbrk sched_yield
    secure_getenv sigaction sigfillset stat64 strlen syscall sysconf unlink unshare write writev
";

/// Options for jemalloc and mimalloc.
const C_FLAGS: &str = "CFLAGS_x86_64_unknown_linux_gnu";

fn main() {
    let folder = env::var("OUT_DIR").expect("cargo says where");
    let folder = Path::new(&folder);
    let link = |argument: &str| println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");

    // Calls of these go to the module `backends`, which says why.
    link("--wrap=munmap");
    link("--wrap=madvise");

    // Of thread-locals that are reached otherwise the first access may allocate, which is malloc's undoing.
    println!("cargo:rerun-if-env-changed={C_FLAGS}");
    let c_flags = env::var(C_FLAGS).unwrap_or_default();
    if env::var("TARGET").is_ok_and(|target| target == "x86_64-unknown-linux-gnu") {
        assert!(
            c_flags.contains("-mtls-dialect=gnu2"),
            "jemalloc and mimalloc must reach their thread-locals by descriptors: build within the repository, whose \
             .cargo/config.toml asks for it, or add -mtls-dialect=gnu2 to {C_FLAGS}"
        );
    }

    // Backends do not start by themselves.
    println!("cargo:rerun-if-changed=start.ld");
    link(&format!("-T,{}", Path::new(env!("CARGO_MANIFEST_DIR")).join("start.ld").display()));

    println!("cargo:rustc-check-cfg=cfg(relocations_apart)");
    if is_linked_by_llvm() {
        println!("cargo:rerun-if-changed=apart.ld");
        link(&format!("-T,{}", Path::new(env!("CARGO_MANIFEST_DIR")).join("apart.ld").display()));
        println!("cargo:rustc-cfg=relocations_apart");
    }

    // Calls of these go to a jump of our own, which goes on by the procedure linkage table.
    link("-z,lazy");
    let jump = if env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|name| name == "x86_64") { "jmp" } else { "b" };
    let mut late = String::new();
    for function in LATE.split_whitespace() {
        link(&format!("--wrap={function}"));
        let text = format!(".globl __wrap_{function}\\n__wrap_{function}: {jump} __real_{function}@PLT");
        // In the section that `start.ld` puts with what every process runs.
        let section = ".pushsection .text.first,\\\"ax\\\",@progbits";
        late += &format!("core::arch::global_asm!(\"{section}\\n{text}\\n.popsection\");\n");
    }
    fs::write(folder.join("late.rs"), late).expect("cargo's folder is writable");

    // What unwinds is linked in, for it is another library to load otherwise. Nothing but the backtrace of a panic needs it.
    fs::write(folder.join("libgcc_s.so"), "INPUT(-lgcc_eh)\n").expect("cargo's folder is writable");
    println!("cargo:rustc-link-search=native={}", folder.display());
}

/// Whether the linker is Rust's own, as it is for this target where nobody names another.
fn is_linked_by_llvm() -> bool {
    let is_default = env::var("TARGET").is_ok_and(|target| target == "x86_64-unknown-linux-gnu");
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    is_default && env::var_os("RUSTC_LINKER").is_none() && !flags.contains("link")
}
