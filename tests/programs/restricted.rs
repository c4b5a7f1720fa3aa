//! Programs under the library where the system refuses more than usual (`restricted.c`): they end as they do without it.

use crate::process::Ended;
use crate::{BACKENDS, compiled, process};
use std::path::Path;
use std::process::Command;
use stepalloc_tests::{by_setting, count};
use tempfile::tempdir;

/// System calls without which a program gets on, and the library too; not those without which no program begins.
const CALLS: [&str; 17] = [
    "madvise",
    "mincore",
    "clone",
    "clone3",
    "mremap",
    "close_range",
    "get_robust_list",
    "getrusage",
    "prctl",
    "prlimit64",
    "sysinfo",
    "getrandom",
    "rt_sigprocmask",
    "gettid",
    "statx",
    "sched_getaffinity",
    "readlink",
];

/// `restricted.c` with this restriction, under which the program runs with the library and these settings.
fn restricted(
    restriction: &str,
    backend: &str,
    settings: &[(&str, &str)],
    program: &Path,
    arguments: &[&str],
) -> Ended {
    let mut command = Command::new(compiled::restricted());
    // The library is for the program alone.
    command.args([restriction, "env"]);
    command
        .arg(format!("LD_PRELOAD={}", process::library().display()))
        .arg(format!("STEPALLOC_BACKEND={backend}"));
    command.args(["START_STATISTIC_STEP=1", "STABLE_STATISTIC_STEP=1"]);
    command.args(settings.iter().map(|(name, value)| format!("{name}={value}")));
    command.arg(program).args(arguments);
    count("process life", "restricted runs", 1);
    process::finish(&mut command)
}

/// Lines on standard error that are neither about files which the restriction forbids, nor jemalloc's own.
fn complaints(ended: &Ended) -> Vec<&str> {
    let known = |line: &&str| !line.contains("cannot be written") && !line.starts_with("<jemalloc>: ");
    ended.err().lines().filter(known).collect()
}

/// The restriction does not show in how `life.c`'s steps end, with files and without.
fn steps_go_on_under(restriction: &str) {
    for backend in BACKENDS {
        for written in [false, true] {
            let directory = tempdir().expect("a directory");
            let at = |name: &str| directory.path().join(name).display().to_string();
            let (plan, trace, steps, json) = (at("plan"), at("trace"), at("steps"), at("json"));
            let files = [
                ("STEPALLOC_PLAN", &*plan),
                ("STEPALLOC_TRACE", &trace),
                ("STEPALLOC_STEPS", &steps),
                ("STEPALLOC_JSON", &json),
                ("STEPALLOC_IDLE", "1"),
            ];
            let settings = if written { &files[..] } else { &[] };
            let ended = restricted(restriction, backend, settings, compiled::life(), &["steps", "60"]);
            if restriction.starts_with("group") && ended.status == 77 {
                return process::skip("no memory cgroup can be made");
            }
            assert_eq!(ended.status, 0, "{restriction} over {backend}: {}", ended.err());
            assert!(complaints(&ended).is_empty(), "{restriction} over {backend}: {}", ended.err());
        }
    }
}

#[test]
fn steps_go_on_where_calls_are_refused() {
    for call in CALLS {
        steps_go_on_under(&format!("call={call}"));
        steps_go_on_under(&format!("absent={call}"));
    }
}

#[test]
fn steps_go_on_where_no_file_is_written() {
    for restriction in ["call=rename", "call=write", "call=openat", "nofile=4"] {
        steps_go_on_under(restriction);
    }
}

#[test]
fn steps_go_on_where_files_may_not_grow() {
    for bytes in [0, 10, 1000, 5000] {
        steps_go_on_under(&format!("fsize={bytes}"));
    }
}

#[test]
fn steps_go_on_where_memory_is_limited() {
    for restriction in ["as=60000000", "as=100000000", "as=300000000", "data=50000000", "group=40000000"] {
        steps_go_on_under(restriction);
    }
}

#[test]
fn steps_go_on_without_random_addresses() {
    steps_go_on_under("fixed");
}

/// As nobody, who may begin no thread.
#[test]
fn steps_go_on_without_another_thread() {
    for backend in BACKENDS {
        // Where nobody can read it.
        let public = tempfile::Builder::new().permissions(public()).tempdir_in("/tmp").expect("a directory");
        let program = public.path().join("life");
        std::fs::copy(compiled::life(), &program).expect("a copy");
        let library = public.path().join("libstepalloc.so");
        std::fs::copy(process::library(), &library).expect("a copy");
        let mut command = Command::new(compiled::restricted());
        command.args(["nproc=0", "env"]).arg(format!("LD_PRELOAD={}", library.display()));
        command.arg(format!("STEPALLOC_BACKEND={backend}"));
        command.args(["START_STATISTIC_STEP=1", "STABLE_STATISTIC_STEP=1", "STEPALLOC_IDLE=1"]);
        let ended = process::finish(command.arg(program).args(["steps", "60"]));
        assert_eq!(ended.status, 0, "over {backend}: {}", ended.err());
        assert!(complaints(&ended).is_empty(), "over {backend}: {}", ended.err());
        count("process life", "restricted runs", 1);
    }
}

fn public() -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o755)
}

/// Programs whose memory comes to its limit are told so, and lose nothing. Not over jemalloc, which dies of itself where it cannot make an
/// arena for a thread.
#[test]
fn memory_that_is_limited_is_refused_and_no_more() {
    let directory = tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name).display().to_string();
    let (plan, trace) = (at("plan"), at("trace"));
    let settings = [("STEPALLOC_PLAN", &*plan), ("STEPALLOC_TRACE", &trace)];
    let mut refused = 0;
    for kind in ["as", "data"] {
        for turn in 0..by_setting(12, 400) {
            let megabytes = 14 + turn * 14 * 13 / by_setting(12, 400);
            for backend in ["glibc", "mimalloc"] {
                let settings = if turn % 2 == 0 { &[] } else { &settings[..] };
                let restriction = format!("{kind}={}", megabytes * 1_000_000);
                let arguments = ["3", "3", "4", "10", "3"];
                let ended = restricted(&restriction, backend, settings, compiled::operations(), &arguments);
                // The dynamic linker finds no room for the library below some size.
                if !ended.err().contains("cannot be preloaded")
                    && !ended.err().contains("failed to map segment")
                {
                    assert_eq!(ended.status, 0, "{restriction} over {backend}: {}", ended.err());
                    assert!(complaints(&ended).is_empty(), "{restriction} over {backend}: {}", ended.err());
                    refused += u64::from(!ended.out().contains("\"refused\": 0"));
                }
            }
        }
    }
    assert!(refused > 0, "nothing was refused");
}
