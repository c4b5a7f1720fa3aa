//! libstepalloc.so: the C library's malloc for programs nobody recompiles.
//!
//! `LD_PRELOAD=libstepalloc.so program` sends the program's calls of malloc and its family here. What is too
//! small to plan goes on to the backend that `STEPALLOC_BACKEND` chose at the process's first allocation
//! (glibc, jemalloc, mimalloc) by one comparison and one indirect jump; the rest takes the way of
//! `stepalloc::route`. The program, or a script in it, marks its steps by calling `stepalloc_step()`.
//!
//! The contract kept here is glibc's manual, "Replacing malloc", with its details: errno over free, ENOMEM, unique
//! pointers for size 0, checked products, alignment 16 at least, nothing unwinds.
//!
//! [`backends`] reaches the backends, [`internal`] allocates for this library's own code, [`glibc`] finds the C library's own functions, [`malloc`] has malloc and its family, [`operators`] C++'s,
//! [`deep_binding`] has libraries find them that would look elsewhere,
//! [`introspection`] the calls that ask about the heap, [`steps`] the functions that are ours, [`segments`] the library's
//! own pages.

mod backends;
mod deep_binding;
mod glibc;
mod internal;
mod introspection;
mod malloc;
mod operators;
mod segments;
mod steps;

// The jumps that `build.rs` writes.
include!(concat!(env!("OUT_DIR"), "/late.rs"));

/// What this library's own Rust code allocates goes to glibc, never through the plan.
#[global_allocator]
static INTERNAL: internal::Internal = internal::Internal;
