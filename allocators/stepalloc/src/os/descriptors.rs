//! Files are opened in a table of descriptors of their own, so that the program's has none of ours for a moment: a program may
//! close a descriptor, and rely on the next one that it opens having the same number.
//!
//! A thread that shares all but that table does the work, while the one that wants it done waits. It is made by the system's own call, with the
//! thread-locals of the one that waits: to the C library, which takes locks as soon as there are two threads, it is the same one.

use super::{map, uncancelled, unmap, with_signals_blocked, without_signals_of_writes};
use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering::*};
use std::panic::{self, AssertUnwindSafe};
use std::thread;

/// Bytes of its stack: what opens, reads and writes files takes some 10 KiB.
const STACK: usize = 64 << 10;

/// A stack that nobody uses; null where there is none.
static FREE_STACK: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// What is to be done, and what came of it.
struct Call<F, R> {
    body: Option<F>,
    result: Option<thread::Result<R>>,
}

/// Runs `body`, which opens files and closes them again, where the program's descriptors are not. Where the system grants no thread, or no table,
/// they are there for as long as it takes.
///
/// In `body`, this thread's thread-locals are those of the one that runs it. It begins no thread, and ends none.
pub(crate) fn with_own_descriptors<F: FnOnce() -> R, R>(body: F) -> R {
    uncancelled(|| {
        let mut call = Call { body: Some(body), result: None };
        let stack = FREE_STACK.swap(ptr::null_mut(), Acquire);
        let stack = if stack.is_null() { map(STACK) } else { Some(stack) };
        if let Some(stack) = stack {
            with_signals_blocked(|| run_apart(&mut call, stack));
            let before = FREE_STACK.swap(stack, AcqRel);
            if !before.is_null() {
                // SAFETY: a whole mapping, which whoever put it there uses no more.
                unsafe { unmap(before, STACK) };
            }
        }
        let Call { body, result } = call;
        match (result, body) {
            (Some(Ok(result)), _) => result,
            (Some(Err(panic)), _) => panic::resume_unwind(panic),
            (None, Some(body)) => without_signals_of_writes(body),
            (None, None) => unreachable!("a body that was taken has a result"),
        }
    })
}

unsafe extern "C" {
    /// The C library's `clone`, by the name that the thread sanitizer does not take for a fork's.
    fn __clone(
        body: extern "C" fn(*mut c_void) -> c_int,
        stack: *mut c_void,
        flags: c_int,
        argument: *mut c_void,
        parents_number: *mut c_int,
        thread_locals: *mut c_void,
        childs_number: *mut c_int,
    ) -> c_int;
}

/// Runs the call in a thread on this stack, and waits for its end.
fn run_apart<F: FnOnce() -> R, R>(call: &mut Call<F, R>, stack: *mut u8) {
    // All that threads share, but not the descriptors: these are given up by the thread, as the system has no thread begin without them.
    const SHARED: c_int = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM;
    const NUMBERED: c_int = libc::CLONE_PARENT_SETTID | libc::CLONE_CHILD_CLEARTID;
    let running = AtomicI32::new(0);
    // SAFETY: the thread runs on a stack of its own, with signals blocked, while this one, whose thread-locals it has, waits: the kernel sets the
    // number when it begins, and clears it when it has ended. Stacks grow downwards.
    unsafe {
        let top = stack.add(STACK).cast::<c_void>();
        let number = running.as_ptr();
        let argument = (&raw mut *call).cast::<c_void>();
        let none = ptr::null_mut::<c_void>();
        if __clone(apart::<F, R>, top, SHARED | NUMBERED, argument, number, none, number) < 0 {
            return;
        }
        loop {
            let number = running.load(Acquire);
            if number == 0 {
                return;
            }
            // The kernel wakes whoever shares the word, not the process alone.
            libc::syscall(libc::SYS_futex, running.as_ptr(), libc::FUTEX_WAIT, number, none);
        }
    }
}

/// The thread.
extern "C" fn apart<F: FnOnce() -> R, R>(call: *mut c_void) -> c_int {
    // SAFETY: the thread that waits for this one has no use of the call meanwhile.
    let call = unsafe { &mut *call.cast::<Call<F, R>>() };
    if has_own_table()
        && let Some(body) = call.body.take()
    {
        call.result = Some(panic::catch_unwind(AssertUnwindSafe(body)));
    }
    0
}

/// Gives this thread a table of its own, without the program's descriptors; with copies of them before Linux 5.9. `false` where it has none.
fn has_own_table() -> bool {
    const ALL: u32 = u32::MAX;
    // SAFETY: nothing is closed but in a table of this thread's own.
    unsafe {
        libc::syscall(libc::SYS_close_range, 0, ALL, libc::CLOSE_RANGE_UNSHARE) == 0
            || libc::unshare(libc::CLONE_FILES) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    #[test]
    fn what_is_opened_there_is_not_opened_here() {
        let mine = File::open("/dev/null").expect("there is one");
        let numbers: Vec<i32> = (0..100)
            .map(|_| with_own_descriptors(|| File::open("/dev/zero").expect("there is one").as_raw_fd()))
            .collect();
        // Nothing is open in a table of its own, so that each has the least number.
        assert!(numbers.iter().all(|&number| number == 0), "{numbers:?}");
        assert!(mine.metadata().is_ok());
    }

    #[test]
    fn many_threads_at_once_have_a_table_each() {
        thread::scope(|scope| {
            for thread in 0..8u8 {
                scope.spawn(move || {
                    for turn in 0..50u8 {
                        let result = with_own_descriptors(|| vec![thread ^ turn; 100]);
                        assert_eq!(result, [thread ^ turn; 100]);
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_there_is_one_here() {
        let panic = panic::catch_unwind(|| with_own_descriptors(|| panic::resume_unwind(Box::new(7))));
        assert_eq!(panic.expect_err("it panics").downcast_ref::<i32>(), Some(&7));
    }
}
