//! What the allocator keeps of each thread. No destructors: a thread allocates until its last instruction.
//!
//! A thread-local of Rust is reached through `__tls_get_addr` in a library for x86-64. The first such call after a `dlopen`
//! may allocate, and from an allocator that is in front of the C library's it would come back here without end (glibc bug
//! 32412). By a TLS descriptor (Oliva and Araújo, "Speeding Up Thread-Local Storage Access in Dynamic Libraries in the x86
//! Platforms", 2006) it is a load for a library that is loaded at the start; the linker makes it one instruction in a program.
//! Elsewhere than on x86-64, compilers use descriptors by themselves.

use core::cell::Cell;

/// Of the calling thread. Zero at first.
#[repr(C)]
pub(crate) struct ThreadLocals {
    /// The thread works for the allocator itself.
    pub is_reentrant: Cell<bool>,
    /// The thread is one of the allocator's own that nobody waits for.
    pub may_wait: Cell<bool>,
    /// Something was traced of it since an interpreter has asked.
    pub was_traced: Cell<bool>,
    /// Scopes of this thread, and steps of others that it takes part in.
    pub depth: Cell<u32>,
}

impl ThreadLocals {
    /// Calls `body` with the calling thread's.
    pub fn with<R>(body: impl FnOnce(&ThreadLocals) -> R) -> R {
        // SAFETY: `of_this_thread` returns this thread's, zero at first, which is a value of each field; no other thread has
        // its address, and it is there for as long as the thread is.
        body(unsafe { &*of_this_thread() })
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[unsafe(naked)]
extern "C" fn of_this_thread() -> *const ThreadLocals {
    core::arch::naked_asm!(
        ".pushsection .tbss.stepalloc, \"awT\", @nobits",
        ".balign 4",
        ".type stepalloc_thread_locals, @object",
        ".size stepalloc_thread_locals, {bytes}",
        "stepalloc_thread_locals: .zero {bytes}",
        ".popsection",
        // The stack is aligned, as for any call.
        "push rcx",
        "lea rax, [rip + stepalloc_thread_locals@TLSDESC]",
        "call [rax + stepalloc_thread_locals@TLSCALL]",
        "add rax, fs:[0]",
        "pop rcx",
        "ret",
        bytes = const size_of::<ThreadLocals>(),
    )
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn of_this_thread() -> *const ThreadLocals {
    std::thread_local! {
        static LOCALS: ThreadLocals = const {
            ThreadLocals {
                is_reentrant: Cell::new(false),
                may_wait: Cell::new(false),
                was_traced: Cell::new(false),
                depth: Cell::new(0),
            }
        };
    }
    LOCALS.with(|locals| core::ptr::from_ref(locals))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_zero_at_first() {
        let first = ThreadLocals::with(core::ptr::from_ref).addr();
        ThreadLocals::with(|locals| locals.depth.set(7));
        let second = std::thread::spawn(|| {
            ThreadLocals::with(|locals| {
                assert!(!locals.is_reentrant.get() && !locals.was_traced.get());
                assert_eq!(locals.depth.replace(9), 0);
                core::ptr::from_ref(locals).addr()
            })
        });
        assert_ne!(second.join().expect("it passes"), first);
        assert_eq!(ThreadLocals::with(|locals| locals.depth.replace(0)), 7);
    }
}
