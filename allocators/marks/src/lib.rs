//! libstepalloc_marks.so: times the steps that a program marks, whichever allocator serves it.
//!
//! `stepalloc compare` puts it in front of every allocator. It exports one function, [`stepalloc_step`], notes the time of each
//! call, and hands it on to the allocator behind it, if that knows steps. It has no part in the program's memory.
//!
//! Each process that marks has a file of its own, whose name is the value of `STEPALLOC_MARKS`, a full stop, and the process's
//! number: native 64-bit words, [`Marks`]. It is mapped, so that what a killed process marked is there.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

/// Times that have a place; where there are more marks, every second of these goes, and of all that follow.
const PLACES: usize = 1022;

/// What a file holds.
#[repr(C)]
struct Marks {
    /// How often the process has marked a boundary.
    count: u64,
    /// A time is kept of every so many marks, the first among them.
    stride: u64,
    /// Nanoseconds of the monotonic clock.
    times: [u64; PLACES],
}

impl Marks {
    fn add(&mut self, nanoseconds: u64) {
        if self.count == self.stride * PLACES as u64 {
            for place in 1..PLACES / 2 {
                self.times[place] = self.times[2 * place];
            }
            self.stride *= 2;
        }
        if self.count.is_multiple_of(self.stride)
            && let Some(place) = self.times.get_mut((self.count / self.stride) as usize)
        {
            *place = nanoseconds;
        }
        self.count += 1;
    }
}

/// What this process knows. All of it is held by `is_held`.
struct Process {
    is_held: AtomicBool,
    inner: UnsafeCell<Inner>,
}

struct Inner {
    /// The process that opened the file; a forked child opens its own.
    pid: c_int,
    /// The mapped file; null where there is none.
    marks: *mut Marks,
    /// `stepalloc_step` of the next library.
    next: Option<extern "C" fn()>,
}

// SAFETY: `inner` is only touched by whoever has set `is_held`.
unsafe impl Sync for Process {}

static PROCESS: Process = Process {
    is_held: AtomicBool::new(false),
    inner: UnsafeCell::new(Inner { pid: 0, marks: null_mut(), next: None }),
};

/// `void stepalloc_step(void)`: a boundary. Of two that threads mark at the same moment one is timed, and both are handed on.
#[unsafe(no_mangle)]
pub extern "C" fn stepalloc_step() {
    // SAFETY: neither call has a condition.
    let pid = unsafe { libc::getpid() };
    let next;
    if !PROCESS.is_held.swap(true, Ordering::Acquire) {
        // SAFETY: `is_held` was free, so nobody else is here.
        let inner = unsafe { &mut *PROCESS.inner.get() };
        if inner.pid != pid {
            *inner = Inner { pid, marks: open(pid), next: behind() };
        }
        next = inner.next;
        // SAFETY: null, or mapped for good and touched by nobody else, for the file's name has this process's number.
        if let Some(marks) = unsafe { inner.marks.as_mut() } {
            marks.add(now());
        }
        PROCESS.is_held.store(false, Ordering::Release);
    } else {
        next = behind();
    }
    if let Some(next) = next {
        next();
    }
}

/// The function of this name in the libraries behind this one.
fn behind() -> Option<extern "C" fn()> {
    // SAFETY: the name ends with a nul byte.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"stepalloc_step".as_ptr()) };
    // SAFETY: null is `None`; a function of this name takes and returns nothing.
    unsafe { mem::transmute::<*mut c_void, Option<extern "C" fn()>>(found) }
}

fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock is there on every system, and `time` is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A new file for this process; null where nobody wants one, or it cannot be.
#[cold]
fn open(pid: c_int) -> *mut Marks {
    // SAFETY: names and formats end with nul bytes; the path's length bounds what is written to it; the file is made as large
    // as what is mapped of it, and only the mapping outlives the call. `errno` is put back.
    unsafe {
        let errno = *libc::__errno_location();
        let name = libc::getenv(c"STEPALLOC_MARKS".as_ptr());
        if name.is_null() {
            return null_mut();
        }
        let mut path = [0; libc::PATH_MAX as usize];
        libc::snprintf(path.as_mut_ptr(), path.len(), c"%s.%d".as_ptr(), name, pid);
        let how = libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC;
        let file = libc::open(path.as_ptr(), how, 0o600);
        let mut marks = null_mut::<Marks>();
        if file >= 0 {
            let bytes = size_of::<Marks>();
            if libc::ftruncate(file, bytes as libc::off_t) == 0 {
                let access = libc::PROT_READ | libc::PROT_WRITE;
                let mapped = libc::mmap(null_mut(), bytes, access, libc::MAP_SHARED, file, 0);
                if mapped != libc::MAP_FAILED {
                    marks = mapped.cast();
                    (*marks).stride = 1;
                }
            }
            libc::close(file);
        }
        *libc::__errno_location() = errno;
        marks
    }
}
