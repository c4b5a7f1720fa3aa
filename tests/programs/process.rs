//! Programs under test: started with a clean environment, read to their end, and ended where they hang.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than any program here takes on a busy machine; one that takes longer has stopped.
const PATIENCE: Duration = Duration::from_secs(240);
/// Between two looks at a running program.
const GLANCE: Duration = Duration::from_millis(3);

/// How a program ended and what it wrote.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its exit status; 128 and the signal's number where one ended it, as shells say it.
    pub status: i32,
    /// Standard output.
    pub out: Vec<u8>,
    /// Standard error.
    pub err: Vec<u8>,
}

impl Ended {
    /// Standard output as text.
    pub fn out(&self) -> &str {
        std::str::from_utf8(&self.out).expect("standard output is text")
    }

    /// Standard error as text.
    pub fn err(&self) -> &str {
        std::str::from_utf8(&self.err).expect("standard error is text")
    }

    /// The lines of standard error that are stepalloc's own.
    pub fn ours(&self) -> Vec<&str> {
        self.err().lines().filter(|line| line.starts_with("stepalloc: ")).collect()
    }

    /// Fails unless the program ended with this status.
    #[track_caller]
    pub fn with_status(self, status: i32) -> Ended {
        assert_eq!(
            self.status,
            status,
            "\n--- standard output\n{}\n--- standard error\n{}",
            String::from_utf8_lossy(&self.out),
            String::from_utf8_lossy(&self.err)
        );
        self
    }
}

/// A command without settings of allocators and with the terminal's signals as a program finds them by default, whatever
/// the environment of the tests has: shells without job control let what they start in the background ignore SIGINT.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        let ours = ["STEPALLOC_", "MIMALLOC_", "MALLOC_", "_RJEM_", "GLIBC_TUNABLES", "LD_PRELOAD"];
        if ours.iter().any(|ours| name_text.starts_with(ours))
            || name_text.ends_with("_STATISTIC_STEP")
            || name_text == "ENABLE_MEMORY_OPTIMIZATION"
        {
            command.env_remove(name);
        }
    }
    let signals_by_default = || {
        for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
            // SAFETY: these signals exist, and SIG_DFL is a disposition of every signal.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: after a fork of a process with threads: signal is async-signal-safe, and nothing is allocated.
    unsafe { command.pre_exec(signals_by_default) };
    command
}

/// The command `stepalloc`.
pub fn stepalloc<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = command(stepalloc_tests::built().join("stepalloc"));
    command.args(arguments);
    command
}

/// The library to preload.
pub fn library() -> PathBuf {
    stepalloc_tests::built().join("libstepalloc.so")
}

/// A program with the library in front, by hand.
pub fn preloaded(program: impl AsRef<OsStr>, backend: &str) -> Command {
    let mut command = command(program);
    command.env("LD_PRELOAD", library()).env("STEPALLOC_BACKEND", backend);
    command
}

/// Runs a program to its end.
#[track_caller]
pub fn finish(command: &mut Command) -> Ended {
    finish_within(command, PATIENCE)
}

/// The same for one that may take longer than others.
#[track_caller]
pub fn finish_within(command: &mut Command, patience: Duration) -> Ended {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    await_end_within(child, &format!("{command:?}"), patience)
}

/// Reads a started program's streams to their ends.
///
/// # Panics
/// If it does not end in time.
#[track_caller]
pub fn await_end(child: Child, name: &str) -> Ended {
    await_end_within(child, name, PATIENCE)
}

#[track_caller]
fn await_end_within(mut child: Child, name: &str, patience: Duration) -> Ended {
    fn reader(stream: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            stream.map(|mut stream| stream.read_to_end(&mut bytes));
            bytes
        })
    }
    let (out, err) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            break status;
        }
        if start.elapsed() > patience {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{name} did not end within {patience:?}");
        }
        thread::sleep(GLANCE);
    };
    let read = |reader: thread::JoinHandle<Vec<u8>>| reader.join().expect("reading does not panic");
    Ended { status: shell_status(status), out: read(out), err: read(err) }
}

/// An exit status as shells say it.
fn shell_status(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).expect("a status or a signal")
}

/// Whether a program can be started; says that a test is skipped where not.
pub fn installed(program: &str) -> bool {
    let found = Path::new(program).components().count() > 1 && Path::new(program).exists()
        || std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|place| place.join(program).exists()));
    if !found {
        skip(&format!("{program} is not installed"));
    }
    found
}

/// Says, past the test harness's capture, that a test is skipped.
pub fn skip(why: &str) {
    use std::io::Write;
    let name = thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr(), "skipped: {why} ({name})");
}

/// The data beside the workspace: instances, traces, workloads. `None`, with a line, where it is absent.
pub fn shared(path: &str) -> Option<PathBuf> {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared").join(path);
    if !shared.exists() {
        skip("no shared data");
        return None;
    }
    Some(shared)
}

/// Held by tests that need both cores or much memory, so that they do not disturb each other.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
