//! What the command asks of the operating system beyond the standard library: signals, waiting with counters, counters
//! of its own. The only module with unsafe code.
//!
//! Signals while a child runs: those in [`Forward`]'s list are sent on to it, by a handler that does nothing but
//! `kill`; those of the terminal reach the child by themselves and must only not end us. Handlers, unlike ignored
//! signals, are not inherited through `exec`, so that the child starts with the dispositions we were given. A signal
//! that we were told to ignore (nohup) stays ignored.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};

/// The child that signals are sent on to; 0: none.
static CHILD: AtomicI32 = AtomicI32::new(0);
/// The last signal that was to be sent on; 0: none came.
static CAUGHT: AtomicI32 = AtomicI32::new(0);

/// Prints one of our own lines on standard error. A closed standard error is nobody's concern.
pub fn say(line: &str) {
    let _ = writeln!(io::stderr().lock(), "stepalloc: {line}");
}

/// The time now, as people read it.
pub fn utc_now() -> String {
    let mut text = [0u8; 32];
    // SAFETY: plain data, for which zero is valid; the format ends with a nul byte, and the text is as long as said.
    let length = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut parts: libc::tm = std::mem::zeroed();
        libc::gmtime_r(&now, &mut parts);
        libc::strftime(text.as_mut_ptr().cast(), text.len(), c"%Y-%m-%d %H:%M UTC".as_ptr(), &parts)
    };
    String::from_utf8_lossy(&text[..length]).into_owned()
}

/// Sends a caught signal on; before there is a child, [`Forward::to`] does.
extern "C" fn pass_on(signal: c_int) {
    CAUGHT.store(signal, SeqCst);
    let child = CHILD.load(SeqCst);
    if child > 0 {
        // SAFETY: kill is async-signal-safe; the child is not reaped while CHILD names it. It can change errno, which
        // only the interrupted call could miss, and that one reports EINTR by its own return.
        unsafe { libc::kill(child, signal) };
    }
}

/// Sends on what another process sent to us alone. What the terminal (the kernel) sent, the child has got, too.
extern "C" fn pass_on_if_sent(signal: c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    CAUGHT.store(signal, SeqCst);
    // SAFETY: the kernel passes a valid siginfo_t to a handler that was installed with SA_SIGINFO.
    if unsafe { (*info).si_code } <= 0 {
        pass_on(signal);
    }
}

/// Has the child end: it is asked to (SIGTERM), or has no choice (SIGKILL).
pub fn end_child(at_once: bool) {
    let child = CHILD.load(SeqCst);
    if child > 0 {
        // SAFETY: a plain system call; the child is not reaped while CHILD names it.
        unsafe { libc::kill(child, if at_once { libc::SIGKILL } else { libc::SIGTERM }) };
    }
}

/// A handler, with or without SA_SIGINFO.
enum Handler {
    Plain(extern "C" fn(c_int)),
    WithInfo(extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void)),
}

fn handle(signal: c_int, handler: Handler) {
    // SAFETY: both structures are plain data for which zero is valid, and the handlers are async-signal-safe.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(signal, std::ptr::null(), &mut old) == 0 && old.sa_sigaction == libc::SIG_IGN {
            return;
        }
        let mut new: libc::sigaction = std::mem::zeroed();
        (new.sa_sigaction, new.sa_flags) = match handler {
            Handler::Plain(handler) => (handler as *const () as libc::sighandler_t, libc::SA_RESTART),
            Handler::WithInfo(handler) => {
                (handler as *const () as libc::sighandler_t, libc::SA_RESTART | libc::SA_SIGINFO)
            }
        };
        libc::sigemptyset(&mut new.sa_mask);
        libc::sigaction(signal, &new, std::ptr::null_mut());
    }
}

/// Whether Ctrl-C was pressed since [`notice_interrupt`].
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Notes it; the next one ends the process as ever.
extern "C" fn note(signal: c_int) {
    INTERRUPTED.store(true, SeqCst);
    // SAFETY: signal is async-signal-safe, and SIG_DFL a disposition of every signal.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// From now on the first Ctrl-C is only noted. Where it was ignored, it still is.
pub fn notice_interrupt() {
    INTERRUPTED.store(false, SeqCst);
    handle(libc::SIGINT, Handler::Plain(note));
}

/// Whether Ctrl-C was pressed.
pub fn interrupted() -> bool {
    INTERRUPTED.load(SeqCst)
}

/// How signals are treated while a child runs.
pub struct Forward(());

impl Forward {
    /// For a program that has our terminal: what others send to us alone is sent on, that of the terminal reaches it by
    /// itself.
    pub fn for_program() -> Forward {
        for signal in [libc::SIGINT, libc::SIGQUIT] {
            handle(signal, Handler::WithInfo(pass_on_if_sent));
        }
        for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2, libc::SIGALRM] {
            handle(signal, Handler::Plain(pass_on));
        }
        Forward(())
    }

    /// For a child of our own that shall never outlive us: all are sent on.
    pub fn for_child() -> Forward {
        for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP] {
            handle(signal, Handler::Plain(pass_on));
        }
        Forward(())
    }

    /// From now on signals go to this child; one that came before goes to it at once.
    pub fn to(&self, pid: u32) {
        CHILD.store(pid.cast_signed(), SeqCst);
        let caught = self.caught();
        if let Some(signal) = caught {
            pass_on(signal);
        }
    }

    /// The signal that was to be sent on, if one came.
    pub fn caught(&self) -> Option<c_int> {
        Some(CAUGHT.load(SeqCst)).filter(|&signal| signal != 0)
    }
}

/// How a child ended.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    /// Its exit status or signal.
    pub how: How,
    /// Its largest resident set, in bytes, and no less than this process had when it was started.
    pub peak_bytes: u64,
    /// What it and those it waited for have used.
    pub usage: Usage,
}

/// An exit status or a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// It ended by itself.
    Exit(u8),
    /// It was killed.
    Signal(c_int),
}

impl Ended {
    /// Ends this process as the child ended: with its status, or by its signal, so that our parent sees the same.
    pub fn end_alike(self) -> ExitCode {
        match self.how {
            How::Exit(code) => ExitCode::from(code),
            How::Signal(signal) => {
                // SAFETY: plain system calls on plain data; no core is dumped for us, the child's own is enough.
                unsafe {
                    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                    libc::setrlimit(libc::RLIMIT_CORE, &none);
                    libc::signal(signal, libc::SIG_DFL);
                    let mut set: libc::sigset_t = std::mem::zeroed();
                    libc::sigemptyset(&mut set);
                    libc::sigaddset(&mut set, signal);
                    libc::sigprocmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
                    libc::raise(signal);
                }
                ExitCode::from(128u8.wrapping_add(signal as u8))
            }
        }
    }
}

/// Waits for a child that nobody else waits for.
pub fn wait(pid: u32) -> io::Result<Ended> {
    // The child stays a zombie until no handler can send it signals any more: its number could be another's.
    retried(|| {
        let flags = libc::WEXITED | libc::WNOWAIT;
        // SAFETY: zero is a valid siginfo_t, and waitid writes to it only.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PID, pid, &mut info, flags)
        }
    })?;
    CHILD.store(0, SeqCst);
    let mut status = 0;
    // SAFETY: rusage is plain data for which zero is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both out-pointers are to live, exclusive variables.
    retried(|| unsafe { libc::wait4(pid.cast_signed(), &mut status, 0, &mut usage) })?;
    let how = if libc::WIFSIGNALED(status) {
        How::Signal(libc::WTERMSIG(status))
    } else {
        How::Exit(libc::WEXITSTATUS(status) as u8)
    };
    // Linux gives kibibytes.
    let peak_bytes = usage.ru_maxrss.cast_unsigned().saturating_mul(1024);
    Ok(Ended { how, peak_bytes, usage: Usage::of(&usage) })
}

fn retried(mut call: impl FnMut() -> c_int) -> io::Result<()> {
    while call() < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(())
}

/// CPU time of this thread.
pub fn thread_seconds() -> f64 {
    // SAFETY: zero is a valid timespec, which clock_gettime writes to only; Linux has this clock.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time);
        time
    };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// The memory of a process, as the system shows it while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resident {
    /// VmRSS.
    pub bytes: u64,
    /// VmHWM.
    pub most_bytes: u64,
}

impl Resident {
    /// `None` where the process has ended.
    pub fn of(pid: u32) -> Option<Resident> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let bytes = |name: &str| -> Option<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
            Some(kibibytes << 10)
        };
        Some(Resident { bytes: bytes("VmRSS:")?, most_bytes: bytes("VmHWM:")? })
    }
}

/// The processes that a process has started, those they have started, and so on, as far as they are there now.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut next = Some(pid);
    let mut looked_at = 0;
    while let Some(pid) = next {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for thread in threads {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            found.extend(children.split_ascii_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
        next = found.get(looked_at).copied();
        looked_at += 1;
    }
    found
}

/// Has VmHWM begin anew at what VmRSS is now. Where the system does not let us, it stays.
pub fn forget_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Bytes of this process's memory that are pages of files in a folder. Their names are told by the system, so without symbolic links.
pub fn mapped_of(folder: &std::path::Path) -> Option<u64> {
    let smaps = fs::read_to_string("/proc/self/smaps").ok()?;
    let (mut within, mut kibibytes) = (false, 0);
    for line in smaps.lines() {
        if let Some(resident) = line.strip_prefix("Rss:") {
            let size = resident.trim().strip_suffix(" kB")?.parse::<u64>().ok()?;
            kibibytes += if within { size } else { 0 };
        } else if line.split(' ').next().is_some_and(|range| range.contains('-')) {
            within = line.find('/').is_some_and(|at| std::path::Path::new(&line[at..]).starts_with(folder));
        }
    }
    Some(kibibytes << 10)
}

/// What a process has used.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// CPU time of all threads, user and system.
    pub cpu_seconds: f64,
    /// The system's part of it.
    pub system_seconds: f64,
    /// Page faults that needed no reading.
    pub minor_faults: u64,
}

impl Usage {
    /// Asks the system what this process has used so far.
    pub fn now() -> Usage {
        // SAFETY: rusage is plain data for which zero is valid, and getrusage writes to it only.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &mut usage);
            usage
        };
        Usage::of(&usage)
    }

    fn of(usage: &libc::rusage) -> Usage {
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
        Usage {
            cpu_seconds: seconds(usage.ru_utime) + seconds(usage.ru_stime),
            system_seconds: seconds(usage.ru_stime),
            minor_faults: usage.ru_minflt.cast_unsigned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resident_memory_is_that_of_the_process() {
        let own = Resident::of(std::process::id()).expect("this process");
        assert!(own.bytes > 1 << 20 && own.bytes <= own.most_bytes, "{own:?}");
        assert_eq!(Resident::of(u32::MAX), None);
    }

    #[test]
    fn the_programs_own_pages_are_those_of_its_folder() {
        let program = std::env::current_exe().expect("it has a file").canonicalize().expect("it is there");
        let folder = program.parent().expect("a folder");
        assert!(mapped_of(folder).is_some_and(|bytes| bytes > 0));
        assert_eq!(mapped_of(&folder.join("nowhere")), Some(0));
    }
}
