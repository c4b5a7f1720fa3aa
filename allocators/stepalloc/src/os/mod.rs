//! Every call to the operating system stands here: pages, counters, clocks, signals, `/proc`.
//!
//! But for whole files, nothing in this module allocates from the heap, so that it may be called from a signal handler,
//! from an exit handler and from inside `malloc`. Files are opened where the program's descriptors are not
//! ([`with_own_descriptors`]), and no call is one at which a thread is cancelled.

mod descriptors;
mod memory;

pub(crate) use descriptors::with_own_descriptors;
pub(crate) use memory::*;

use core::ffi::CStr;
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of the largest base page the architecture has; smaller ones divide it.
pub(crate) const PAGE: usize = if cfg!(target_arch = "x86_64") { 4 << 10 } else { 64 << 10 };

/// The alignment of the arena's base, so that every alignment up to it can be kept by an offset alone. It is the
/// size of a huge page on x86-64.
pub(crate) const BASE_ALIGN: usize = 2 << 20;

/// Sleeps while a word has a value, and no longer than so many nanoseconds.
pub(crate) fn futex_wait(word: &AtomicU32, value: u32, nanoseconds: i64) {
    const SECOND: i64 = 1_000_000_000;
    let limit = libc::timespec { tv_sec: nanoseconds / SECOND, tv_nsec: nanoseconds % SECOND };
    keeping_errno(|| {
        // SAFETY: the kernel reads the word and the time, which outlive the call.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), FUTEX_WAIT, value, &raw const limit) };
    });
}

/// Wakes one thread that sleeps on a word.
pub(crate) fn futex_wake_one(word: &AtomicU32) {
    keeping_errno(|| {
        // SAFETY: the kernel uses the word's address only.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), FUTEX_WAKE, 1) };
    });
}

const FUTEX_WAIT: i32 = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
const FUTEX_WAKE: i32 = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;

/// A page that reads as zeros in children that are forked from now on, but not in those that share this memory; `None`
/// where the kernel has no such pages.
pub(crate) fn map_wiped_on_fork() -> Option<*mut u8> {
    let page = map(PAGE)?;
    // SAFETY: a whole page, mapped just now, that nobody knows yet.
    unsafe {
        if !madvise(page, PAGE, libc::MADV_WIPEONFORK) {
            unmap(page, PAGE);
            return None;
        }
    }
    Some(page)
}

/// True where the process may not map as much address space as it likes (`ulimit -v`).
pub(crate) fn address_space_is_limited() -> bool {
    let mut limit = MaybeUninit::<libc::rlimit>::zeroed();
    // SAFETY: the kernel fills the structure whose address it is given; zeroed is a valid value before that.
    unsafe {
        libc::getrlimit(libc::RLIMIT_AS, limit.as_mut_ptr()) == 0
            && limit.assume_init().rlim_cur != libc::RLIM_INFINITY
    }
}

/// Minor page faults of the process so far, all threads together.
pub(crate) fn minor_faults() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: as in `address_space_is_limited`; a failure leaves zeros.
    unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init().ru_minflt as u64
    }
}

/// Bytes of the process's peak of resident memory. Of a program that was executed by a larger process, that one's count, until it has more
/// itself: see [`peak_is_its_own`].
pub(crate) fn peak_bytes() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: as in `minor_faults`.
    unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init().ru_maxrss as u64 * 1024
    }
}

/// The peak when this was called first.
static FIRST_PEAK: AtomicU64 = AtomicU64::new(0);

/// Takes the peak now for that of whoever executed this program.
fn begin_peak() {
    let _ = FIRST_PEAK.compare_exchange(0, peak_bytes(), Relaxed, Relaxed);
}

/// Whether a peak is this program's own.
pub(crate) fn peak_is_its_own(peak: u64) -> bool {
    peak > FIRST_PEAK.load(Relaxed)
}

/// Bytes of pages that this thread has touched first, or again after they went back.
pub(crate) fn bytes_faulted_by_thread() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: as in `minor_faults`.
    let faults = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init().ru_minflt as u64
    };
    faults * (4 << 10)
}

/// Nanoseconds of a clock that never goes back.
pub(crate) fn now_ns() -> u64 {
    time_of(libc::CLOCK_MONOTONIC)
}

/// The same, up to some milliseconds old, in a quarter of the time.
pub(crate) fn coarse_now_ns() -> u64 {
    time_of(libc::CLOCK_MONOTONIC_COARSE)
}

/// CPU time of all of the process's threads so far, in nanoseconds.
pub(crate) fn cpu_ns() -> u64 {
    time_of(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn time_of(clock: libc::clockid_t) -> u64 {
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: as in `address_space_is_limited`; a failure leaves zeros.
    let time = unsafe {
        libc::clock_gettime(clock, time.as_mut_ptr());
        time.assume_init()
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Gives the processor to another thread for a moment.
pub(crate) fn yield_now() {
    // SAFETY: no arguments, no memory.
    unsafe { libc::sched_yield() };
}

/// Notes what is only known early: best called when the library is loaded.
pub(crate) fn begin() {
    begin_peak();
    notice_end_of_first_thread();
    read_huge_pages();
}

/// 1 once the thread that the process began with has called `pthread_exit`, while others live on.
static FIRST_THREAD_IS_GONE: AtomicU32 = AtomicU32::new(0);

/// Has the first thread's end noticed at once, where this thread is the first. A process ends with the last of its threads: none of ours may be
/// that for long.
fn notice_end_of_first_thread() {
    extern "C" fn ended(_: *mut libc::c_void) {
        FIRST_THREAD_IS_GONE.store(1, Relaxed);
        futex_wake_one(&FIRST_THREAD_IS_GONE);
    }
    // SAFETY: the destructor is a function of this image, which stays loaded, and takes any argument; the key is used where it was made.
    unsafe {
        if libc::gettid() != libc::getpid() {
            return;
        }
        let mut key = 0;
        if libc::pthread_key_create(&mut key, Some(ended)) == 0 {
            // A thread whose value is null has no destructor run.
            libc::pthread_setspecific(key, ptr::without_provenance(1));
        }
    }
}

/// True where the thread that the process began with has ended, and others live on.
pub(crate) fn first_thread_is_gone() -> bool {
    let (mut list, mut length) = (ptr::null_mut::<libc::c_void>(), 0usize);
    // A thread that has ended has no such list; the C library gives each one. It may be another thread than this one's library has noticed.
    // SAFETY: the kernel writes an address and a length.
    let told =
        unsafe { libc::syscall(libc::SYS_get_robust_list, libc::getpid(), &raw mut list, &raw mut length) };
    FIRST_THREAD_IS_GONE.load(Relaxed) != 0 || (told == 0 && list.is_null())
}

/// Whether it has ended, as far as that was noticed: no call of the system.
pub(crate) fn first_thread_was_seen_to_end() -> bool {
    FIRST_THREAD_IS_GONE.load(Relaxed) != 0
}

/// Sleeps for so long, or until the first thread ends.
pub(crate) fn sleep_beside_first_thread(nanoseconds: u64) {
    futex_wait(&FIRST_THREAD_IS_GONE, 0, i64::try_from(nanoseconds).unwrap_or(i64::MAX));
}

/// In a forked child, whose first thread is another.
pub(crate) fn forget_first_thread() {
    FIRST_THREAD_IS_GONE.store(0, Relaxed);
}

/// The identity of this process.
pub(crate) fn pid() -> u32 {
    std::process::id()
}

/// Keeps `errno` as it was over a piece of code.
pub fn keeping_errno<R>(body: impl FnOnce() -> R) -> R {
    // SAFETY: the C library's errno of this thread is always readable and writable.
    unsafe {
        let place = libc::__errno_location();
        let before = *place;
        let result = body();
        *place = before;
        result
    }
}

unsafe extern "C" {
    /// The C library's, which the libc crate does not declare for Linux.
    fn pthread_setcancelstate(state: i32, before: *mut i32) -> i32;
}

/// Runs `body` without points at which this thread may be cancelled: `malloc` is none of those (POSIX, 2.9.5.2), and to open or to write a file
/// is one.
pub(crate) fn uncancelled<R>(body: impl FnOnce() -> R) -> R {
    /// `PTHREAD_CANCEL_DISABLE`.
    const DISABLE: i32 = 1;
    /// Puts the state back, also after a panic.
    struct Before(i32);
    impl Drop for Before {
        fn drop(&mut self) {
            // SAFETY: the state that was there before.
            unsafe { pthread_setcancelstate(self.0, ptr::null_mut()) };
        }
    }
    let mut before = 0;
    // SAFETY: a state that there is; the one before is written to a variable.
    unsafe { pthread_setcancelstate(DISABLE, &mut before) };
    let _before = Before(before);
    body()
}

/// Writes the whole text to a file descriptor; `false` where the system refuses, by a signal or without.
pub(crate) fn write_all(descriptor: i32, mut bytes: &[u8]) -> bool {
    uncancelled_and_unsignalled(|| {
        while !bytes.is_empty() {
            // SAFETY: the slice is readable for its length.
            let written = unsafe { libc::write(descriptor, bytes.as_ptr().cast(), bytes.len()) };
            match usize::try_from(written) {
                Ok(count) if count > 0 => bytes = &bytes[count..],
                _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                _ => return false,
            }
        }
        true
    })
}

fn uncancelled_and_unsignalled<R>(body: impl FnOnce() -> R) -> R {
    uncancelled(|| without_signals_of_writes(body))
}

/// Runs `body`, whose writes may find a pipe that nobody reads, or a file that may grow no more: the signals that this would send are for who
/// writes on the program's behalf.
pub(crate) fn without_signals_of_writes<R>(body: impl FnOnce() -> R) -> R {
    const SIGNALS: [i32; 2] = [libc::SIGPIPE, libc::SIGXFSZ];
    // SAFETY: the sets are initialised by the calls that fill them, the old mask is put back, and only a signal that came meanwhile is taken
    // away: what waited before waits on.
    unsafe {
        let (mut both, mut before) = (MaybeUninit::zeroed(), MaybeUninit::zeroed());
        let mut waiting = MaybeUninit::zeroed();
        libc::sigemptyset(both.as_mut_ptr());
        SIGNALS.iter().for_each(|&signal| _ = libc::sigaddset(both.as_mut_ptr(), signal));
        libc::pthread_sigmask(libc::SIG_BLOCK, both.as_ptr(), before.as_mut_ptr());
        libc::sigpending(waiting.as_mut_ptr());
        SIGNALS.iter().for_each(|&signal| {
            if libc::sigismember(waiting.as_ptr(), signal) == 1 {
                libc::sigdelset(both.as_mut_ptr(), signal);
            }
        });
        let result = body();
        let at_once: libc::timespec = core::mem::zeroed();
        while libc::sigtimedwait(both.as_ptr(), ptr::null_mut(), &raw const at_once) > 0 {}
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
        result
    }
}

/// A file that this module opens and closes itself.
struct Opened(i32);

impl Opened {
    fn new(path: &CStr, flags: i32) -> io::Result<Self> {
        // SAFETY: the path ends with a nul byte.
        let descriptor = unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, 0o644) };
        if descriptor < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(descriptor)) }
    }

    /// Reads into the buffer until it is full or the file ends; returns how much that was.
    fn read(&self, buffer: &mut [u8]) -> usize {
        let mut length = 0;
        while length < buffer.len() {
            let rest = &mut buffer[length..];
            // SAFETY: the rest is writable for its length.
            match usize::try_from(unsafe { libc::read(self.0, rest.as_mut_ptr().cast(), rest.len()) }) {
                Ok(count) if count > 0 => length += count,
                _ => break,
            }
        }
        length
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: opened by us, and closed once.
        unsafe { libc::close(self.0) };
    }
}

/// Appends the bytes to a file, made where it does not exist, in one write.
///
/// # Errors
/// What the system says.
pub fn append(path: &CStr, bytes: &[u8]) -> io::Result<()> {
    with_own_descriptors(|| {
        let file = Opened::new(path, libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND)?;
        if write_all(file.0, bytes) { Ok(()) } else { Err(io::Error::last_os_error()) }
    })
}

/// Copies a file's content, which may have no length beforehand, over another's.
pub(crate) fn copy(from: &CStr, to: &CStr) {
    with_own_descriptors(|| {
        let from = Opened::new(from, libc::O_RDONLY);
        let to = Opened::new(to, libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC);
        let (Ok(from), Ok(to)) = (from, to) else { return };
        let mut buffer = [0u8; 4096];
        loop {
            match from.read(&mut buffer) {
                0 => return,
                count => _ = write_all(to.0, &buffer[..count]),
            }
        }
    });
}

/// Reads the beginning of a file into the buffer and returns what was read.
pub(crate) fn read_file<'a>(path: &CStr, buffer: &'a mut [u8]) -> &'a [u8] {
    let length =
        with_own_descriptors(|| Opened::new(path, libc::O_RDONLY).map_or(0, |file| file.read(buffer)));
    &buffer[..length]
}

/// The same at the process's start, where nobody else opens files, among the program's descriptors.
fn read_file_at_start<'a>(path: &CStr, buffer: &'a mut [u8]) -> &'a [u8] {
    let length = uncancelled(|| Opened::new(path, libc::O_RDONLY).map_or(0, |file| file.read(buffer)));
    &buffer[..length]
}

/// Which file it was, and as of when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
}

impl Stamp {
    fn of(data: &fs::Metadata) -> Self {
        Self {
            device: data.dev(),
            inode: data.ino(),
            bytes: data.len(),
            changed: (data.mtime(), data.mtime_nsec()),
        }
    }
}

/// That of a file, if there is one.
pub(crate) fn stamp(path: &Path) -> Option<Stamp> {
    Some(Stamp::of(&fs::metadata(path).ok()?))
}

/// The bytes of a regular file; `None` where there is none of this name. An error where it is longer than `most`. This
/// allocates, as [`replace`] does.
pub(crate) fn read_whole(path: &Path, most: u64) -> io::Result<Option<(Vec<u8>, Stamp)>> {
    with_own_descriptors(|| {
        // A pipe that nobody writes to would be waited for.
        let mut file = match File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let data = file.metadata()?;
        if !data.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let mut bytes = Vec::new();
        if (&mut file).take(most + 1).read_to_end(&mut bytes)? as u64 > most {
            return Err(io::Error::other("too long"));
        }
        Ok(Some((bytes, Stamp::of(&data))))
    })
}

/// Names that are tried for a file beside another one. Those of processes of the same number that were killed are taken.
const NAMES: u32 = 64;

/// Puts a file of these bytes in the place of the one of this name, at once: readers see the old or the new one. Where the name is a symbolic
/// link, it stays one, and the file it leads to is replaced.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<Stamp> {
    with_own_descriptors(|| {
        let path = target(path)?;
        let (mut file, beside) = create_beside(&path)?;
        let replaced = file.write_all(bytes).and_then(|()| file.metadata()).and_then(|data| {
            fs::rename(&beside, &path)?;
            Ok(Stamp::of(&data))
        });
        replaced.inspect_err(|_| _ = fs::remove_file(&beside))
    })
}

/// Where a name leads to, through symbolic links, of which the last may lead to nothing yet.
fn target(path: &Path) -> io::Result<PathBuf> {
    /// As many as Linux follows.
    const LINKS: u32 = 40;
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        match fs::read_link(&path) {
            // A path from the root replaces all of it.
            Ok(to) => path = path.parent().unwrap_or(Path::new("")).join(to),
            // Not a link, or nothing.
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// A new file in the same directory, which nobody else has made, and its name.
fn create_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let mut taken = io::Error::from_raw_os_error(libc::EEXIST);
    for number in 0..NAMES {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}-{number}.new", pid()));
        match File::options().write(true).create_new(true).open(&name) {
            Ok(file) => return Ok((file, name.into())),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => taken = error,
            Err(error) => return Err(error),
        }
    }
    Err(taken)
}

/// Resident bytes of this process now and at most (`VmRSS`, `VmHWM` of `/proc/self/status`); zeros where `/proc`
/// cannot be read.
pub(crate) fn resident_bytes() -> (u64, u64) {
    let mut buffer = [0; 4096];
    let status = read_file(c"/proc/self/status", &mut buffer);
    let field = |name: &[u8]| {
        let line = status.split(|&byte| byte == b'\n').find(|line| line.starts_with(name))?;
        let digits = line.iter().filter(|byte| byte.is_ascii_digit());
        Some(digits.fold(0u64, |value, digit| value * 10 + u64::from(digit - b'0')) * 1024)
    };
    (field(b"VmRSS:").unwrap_or(0), field(b"VmHWM:").unwrap_or(0))
}

/// The path of the running program, written into the buffer.
pub(crate) fn program(buffer: &mut [u8]) -> &[u8] {
    // SAFETY: the kernel writes at most the buffer's length.
    let length =
        unsafe { libc::readlink(c"/proc/self/exe".as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
    &buffer[..usize::try_from(length).unwrap_or(0)]
}

unsafe extern "C" {
    /// glibc's, which the libc crate does not declare.
    fn secure_getenv(name: *const core::ffi::c_char) -> *mut core::ffi::c_char;
}

/// The value of an environment variable, as the C library holds it now; `None` in a program that has more rights than who
/// started it. Rust's own reader allocates.
///
/// The bytes live as long as nobody changes that variable; settings are read once, early, and copied.
pub fn environment(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: the name ends with a nul byte; the result is null or a string of the environment block.
    unsafe {
        let value = secure_getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_bytes())
    }
}

/// Whether a variable's value has `text` in it.
pub fn environment_has(name: &CStr, text: &[u8]) -> bool {
    environment(name).is_some_and(|value| value.windows(text.len()).any(|window| window == text))
}

/// The rank that the launcher of several processes has given this one: torchrun, Open MPI, MPICH or Slurm.
pub(crate) fn rank() -> Option<u64> {
    let variables = [c"RANK", c"OMPI_COMM_WORLD_RANK", c"PMI_RANK", c"SLURM_PROCID"];
    let value = variables.into_iter().find_map(environment)?;
    core::str::from_utf8(value).ok()?.parse().ok()
}

/// Runs `handler` in the child of every later fork.
pub(crate) fn at_fork_in_child(handler: extern "C" fn()) {
    at_fork_with(None, None, handler);
}

/// Runs handlers before every later fork, and after it in the parent and in the child.
pub(crate) fn at_fork(before: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) {
    at_fork_with(Some(before), Some(parent), child);
}

fn at_fork_with(before: Option<extern "C" fn()>, parent: Option<extern "C" fn()>, child: extern "C" fn()) {
    // SAFETY: a safe function is an unsafe one.
    let handler =
        |handler| unsafe { core::mem::transmute::<extern "C" fn(), unsafe extern "C" fn()>(handler) };
    // SAFETY: the handlers are functions of this image that neither allocate nor unwind.
    unsafe { libc::pthread_atfork(before.map(handler), parent.map(handler), Some(handler(child))) };
}

/// Runs `handler` when the process exits.
pub(crate) fn at_exit(handler: extern "C" fn()) {
    // SAFETY: the handler is a function of this image.
    unsafe { libc::atexit(handler) };
}

/// Installs `handler` for a signal, restarting interrupted calls; `false` when the system refuses.
pub(crate) fn on_signal(signal: i32, handler: extern "C" fn(i32)) -> bool {
    // SAFETY: a zeroed sigaction is valid; the handler is async-signal-safe: it writes a fixed buffer.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(signal, &action, ptr::null_mut()) == 0
    }
}

/// Runs `body` with every signal blocked in this thread; threads started by `body` inherit that.
pub(crate) fn with_signals_blocked<R>(body: impl FnOnce() -> R) -> R {
    // SAFETY: both sets are initialised by the calls that fill them, and the old mask is put back.
    unsafe {
        let (mut all, mut before) = (MaybeUninit::zeroed(), MaybeUninit::zeroed());
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let result = body();
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
        result
    }
}

/// Bytes of the stack of a thread that looks after memory, and of one that plans.
pub(crate) const STACK_BYTES: usize = 256 << 10;
pub(crate) const PLANNING_STACK_BYTES: usize = 2 << 20;

/// Starts a thread that runs `body` with every signal blocked and is waited for by nobody; `false` where the system refuses. Its stack has so
/// many bytes, where the thread-locals of the program's libraries leave that much, else the usual ones.
///
/// The thread itself allocates nothing before `body` does, as a thread of the standard library would: its first block costs a
/// backend a heap for it, which may be of memory that was not given back yet.
pub(crate) fn start_thread(
    body: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void,
    argument: usize,
    stack_bytes: usize,
) -> bool {
    with_signals_blocked(|| {
        // SAFETY: the attributes are initialised before they are used, and destroyed once; `body` takes any argument.
        unsafe {
            let mut attributes = MaybeUninit::uninit();
            if libc::pthread_attr_init(attributes.as_mut_ptr()) != 0 {
                return false;
            }
            libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
            let mut usual = 0;
            libc::pthread_attr_getstacksize(attributes.as_ptr(), &mut usual);
            let argument = ptr::with_exposed_provenance_mut(argument);
            let started = [stack_bytes, usual].into_iter().any(|bytes| {
                libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), bytes);
                let mut thread = MaybeUninit::uninit();
                libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), body, argument) == 0
            });
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            started
        }
    })
}

/// An address that is this thread's alone: that of its control block. A thread-local's would cost a call in a library.
#[inline(always)]
pub fn thread_pointer() -> usize {
    let place: usize;
    // SAFETY: x86-64's ABI for thread-local storage has the block's own address there.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) place, options(nostack, readonly, preserves_flags));
    }
    // SAFETY: a register that every thread may read.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) place, options(nostack, nomem, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        // SAFETY: no conditions.
        place = unsafe { libc::__errno_location() }.addr();
    }
    place
}

/// Names this thread, as the system shows it.
pub(crate) fn name_thread(name: &CStr) {
    // SAFETY: the name ends with a nul byte.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// A text of fixed capacity that formatting can write into without allocating; what does not fit is cut off.
pub struct Text<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Text<N> {
    /// An empty text.
    pub const fn new() -> Self {
        Self { bytes: [0; N], length: 0 }
    }

    /// What was written so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> fmt::Write for Text<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let count = text.len().min(N - self.length);
        self.bytes[self.length..self.length + count].copy_from_slice(&text.as_bytes()[..count]);
        self.length += count;
        if count == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

/// Writes one line to standard error without allocating.
pub fn log_stderr(line: fmt::Arguments<'_>) {
    let mut text = Text::<1024>::new();
    let _ = fmt::write(&mut text, format_args!("stepalloc: {line}\n"));
    write_all(2, text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_are_locked_in_memory_read_as_zeros_once_given_back() {
        let start = map(4 * PAGE).expect("memory");
        // SAFETY: mapped just now, and known here only.
        unsafe {
            start.write_bytes(7, 4 * PAGE);
            libc::mlock(start.add(PAGE).cast(), PAGE);
            discard(start, 4 * PAGE);
            assert!((0..4 * PAGE).all(|at| start.add(at).read() == 0));
            unmap(start, 4 * PAGE);
        }
    }

    /// Four pages of their numbers, the third of a mapping of its own that the kernel does not move, where it
    /// can be asked to.
    fn hard_to_move() -> *mut u8 {
        let start = map(4 * PAGE).expect("memory");
        // SAFETY: mapped just now, and known here only; a sealed page can still be read and written.
        unsafe {
            (0..4).for_each(|page| start.add(page * PAGE).write_bytes(1 + page as u8, PAGE));
            const MSEAL: libc::c_long = 462;
            libc::syscall(MSEAL, start.add(2 * PAGE), PAGE, 0);
        }
        start
    }

    /// Four pages at an address that the kernel does not choose for anybody else while they are unmapped on the way, as those of the range.
    fn destination(address: usize) -> *mut u8 {
        let start = address as *mut u8;
        assert!(map_at(start, 4 * PAGE, true), "nobody else names the address");
        start
    }

    #[test]
    fn content_arrives_where_the_kernel_fails_on_its_way() {
        let (from, to) = (hard_to_move(), destination(0x3000_0000_0000));
        // SAFETY: mapped just now, and known here only.
        unsafe {
            to.write_bytes(9, 4 * PAGE);
            move_content(from, to, 4 * PAGE);
            assert!((0..4 * PAGE).all(|at| to.add(at).read() == 1 + (at / PAGE) as u8));
            to.write_bytes(9, 4 * PAGE);
        }
    }

    #[test]
    fn a_destination_is_mapped_where_the_kernel_fails_on_its_way() {
        let (from, to) = (hard_to_move(), destination(0x3100_0000_0000));
        // SAFETY: mapped just now, and known here only.
        unsafe {
            to.write_bytes(9, 4 * PAGE);
            if !move_pages(from, to, 4 * PAGE) {
                assert!((0..4 * PAGE).all(|at| to.add(at).read() == 0));
            }
            to.write_bytes(9, 4 * PAGE);
        }
        assert!(mappings().is_some_and(|count| count > 4));
    }
}
