//! `operations.c` through the preloaded library: programs of operations whose every byte is compared, with each setting
//! that changes the way of an allocation, and with memory refused at each call of the system.

use crate::{compiled, process};
use serde_json::Value;
use std::process::Command;
use stepalloc_tests::{by_setting, count, seed};
use tempfile::tempdir;

/// Sums of `operations.c`'s modes: marked or detected steps, threads that take turns or do not, forks, memory that is locked.
const MODES: [u32; 9] = [0, 1, 2, 3, 4, 5, 7, 8, 11];
const MARKED_IN_TURN: u32 = 3;
/// Settings that change the way of an allocation; `DIRECTORY` stands for a directory of the run's own.
const SETTINGS: [&[(&str, &str)]; 9] = [
    &[],
    &[("STEPALLOC_PLAN", "DIRECTORY/plan")],
    &[
        ("STEPALLOC_TRACE", "DIRECTORY/trace"),
        ("STEPALLOC_STEPS", "DIRECTORY/steps"),
        ("STEPALLOC_JSON", "DIRECTORY/json"),
    ],
    &[("STEPALLOC_MIN_BYTES", "1024")],
    &[("STEPALLOC_LARGE", "backend")],
    &[("STEPALLOC_MAX_ARENA", "2000000")],
    &[("STEPALLOC_IDLE", "1")],
    &[("STEPALLOC_HUGEPAGES", "always"), ("STEPALLOC_POPULATE", "1")],
    &[("ENABLE_MEMORY_OPTIMIZATION", "0")],
];

/// One run: what `operations.c` is asked for.
#[derive(Clone, Copy, Debug)]
struct Run {
    seed: u64,
    threads: u64,
    segments: u64,
    steps: u64,
    mode: u32,
}

impl Run {
    fn command(self, backend: &str) -> Command {
        let mut command = process::preloaded(compiled::operations(), backend);
        command.args(
            [self.seed, self.threads, self.segments, self.steps, self.mode.into()].map(|n| n.to_string()),
        );
        command.env("START_STATISTIC_STEP", "2").env("STABLE_STATISTIC_STEP", "2");
        command
    }
}

/// What the program said, which kept every byte.
#[track_caller]
fn kept(command: &mut Command) -> Value {
    let ended = process::finish(command);
    assert!(ended.status == 0, "{command:?}\nended with {}: {}", ended.status, ended.err());
    serde_json::from_str(ended.out()).expect("a line of figures")
}

fn every_byte_is_kept(backend: &str) {
    let (mut operations, mut planned) = (0, 0);
    for (number, settings) in SETTINGS.iter().enumerate() {
        // The quick setting meets each mode with some settings, and each setting with some modes.
        let modes = MODES
            .iter()
            .enumerate()
            .filter(|(at, _)| ((at + number) as u64).is_multiple_of(by_setting(3, 1)));
        for (_, &mode) in modes {
            let directory = tempdir().expect("a directory");
            let threads = 1 + (seed() + number as u64 + u64::from(mode)) % 8;
            let (segments, steps) = (by_setting(4, 16), by_setting(10, 60));
            let run = Run { seed: seed(), threads, segments, steps, mode };
            // What one process has kept, the next one begins with.
            let processes = if settings.iter().any(|(name, _)| *name == "STEPALLOC_PLAN") { 2 } else { 1 };
            for _ in 0..processes {
                let mut command = run.command(backend);
                for (name, value) in *settings {
                    let path = directory.path().display().to_string();
                    command.env(name, value.replace("DIRECTORY", &path));
                }
                let said = kept(&mut command);
                operations += said["operations"].as_u64().expect("a number");
                if mode == MARKED_IN_TURN {
                    planned += said["planned_steps"].as_u64().expect("a number");
                }
            }
        }
    }
    count("operations", "operations", operations);
    assert!(planned > 0, "no step was planned");
}

#[test]
fn every_byte_is_kept_over_glibc() {
    every_byte_is_kept("glibc");
}

#[test]
fn every_byte_is_kept_over_jemalloc() {
    every_byte_is_kept("jemalloc");
}

#[test]
fn every_byte_is_kept_over_mimalloc() {
    every_byte_is_kept("mimalloc");
}

/// What a system may refuse that has no memory, or no more mappings or threads.
const CALLS: [&str; 6] = ["mmap", "munmap", "madvise", "mprotect", "mremap", "thread"];
/// From some call on all are refused.
const ALL: u64 = u64::MAX;

/// Whether the system promises no more memory than it has: nothing is moved then.
fn promises_are_limited() -> bool {
    std::fs::read("/proc/sys/vm/overcommit_memory").expect("the kernel tells").starts_with(b"2")
}

fn refused_memory_is_no_more_than_that(backend: &str) {
    let run = Run { seed: seed(), threads: 3, segments: 4, steps: 8, mode: MARKED_IN_TURN };
    let directory = tempdir().expect("a directory");
    let calls = directory.path().join("calls");
    let refusing = |call: &str, first: u64, count: u64| {
        let mut command = run.command(backend);
        command
            .env("LD_PRELOAD", format!("{}:{}", compiled::refuse().display(), process::library().display()));
        command
            .env("REFUSE_CALL", call)
            .env("REFUSE_FIRST", first.to_string())
            .env("REFUSE_COUNT", count.to_string());
        command.env("REFUSE_FILE", &calls);
        kept(&mut command)
    };
    let mut injected = 0;
    for call in CALLS {
        // jemalloc itself dies of some mappings that it does not get, as its library does without us: its first one, a new thread's arena.
        if (backend, call) == ("jemalloc", "mmap") {
            continue;
        }
        refusing(call, 0, 0);
        let number: u64 = std::fs::read_to_string(&calls).expect("a file").trim().parse().expect("a number");
        if number == 0 && call == "mremap" && promises_are_limited() {
            continue;
        }
        assert!(number > 0, "{call} is never called over {backend}");
        let attempts = by_setting(8, u64::MAX).min(number);
        for attempt in 0..attempts {
            let first = attempt * number / attempts;
            refusing(call, first, 1);
            refusing(call, first, ALL);
            injected += 2;
        }
    }
    count("operations", "refused calls", injected);
}

#[test]
fn refused_memory_is_no_more_than_that_over_glibc() {
    refused_memory_is_no_more_than_that("glibc");
}

#[test]
fn refused_memory_is_no_more_than_that_over_jemalloc() {
    refused_memory_is_no_more_than_that("jemalloc");
}

#[test]
fn refused_memory_is_no_more_than_that_over_mimalloc() {
    refused_memory_is_no_more_than_that("mimalloc");
}
