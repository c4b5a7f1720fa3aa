//! Tells the linker to lead calls of these to `underneath`, which says why.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for function in ["munmap", "madvise"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap={function}");
    }
}
