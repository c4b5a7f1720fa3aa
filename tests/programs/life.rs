//! `life.c` over each backend, and `stepalloc run` with processes that outlive it: what a process goes through beside its
//! allocations.

use crate::process::{self, Ended};
use crate::{BACKENDS, compiled};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use stepalloc_tests::{by_setting, count, seed};
use tempfile::tempdir;

fn life(backend: &str, arguments: &[&str]) -> Command {
    let mut command = process::preloaded(compiled::life(), backend);
    command.args(arguments);
    planned_soon(&mut command);
    command
}

fn planned_soon(command: &mut Command) {
    command.env("START_STATISTIC_STEP", "1").env("STABLE_STATISTIC_STEP", "1");
}

/// Has everything written that can be, into a directory.
fn with_files<'a>(command: &'a mut Command, directory: &Path) -> &'a mut Command {
    command.env("STEPALLOC_PLAN", directory.join("plan")).env("STEPALLOC_TRACE", directory.join("trace"));
    command.env("STEPALLOC_JSON", directory.join("json")).env("STEPALLOC_STEPS", directory.join("steps"))
}

#[track_caller]
fn keeps_promise(command: &mut Command) -> Ended {
    process::finish(command).with_status(0)
}

#[test]
fn no_allocator_behind_ours_is_called() {
    for backend in BACKENDS {
        for enabled in ["0", "1"] {
            let mut command = life(backend, &["family"]);
            let libraries = format!("{}:{}", process::library().display(), compiled::behind().display());
            command.env("LD_PRELOAD", libraries).env("ENABLE_MEMORY_OPTIMIZATION", enabled);
            keeps_promise(&mut command);
        }
    }
}

#[test]
fn the_first_request_may_come_from_within_atexit() {
    for backend in BACKENDS {
        // The C library's tables are of 1,040 bytes and more: with the second setting they open the large heap.
        for bytes in ["1", "1024", "32768"] {
            let mut command = life(backend, &["steps", "60"]);
            // Constructors of what is preloaded later run first.
            let libraries = format!("{}:{}", process::library().display(), compiled::early().display());
            keeps_promise(command.env("LD_PRELOAD", libraries).env("STEPALLOC_MIN_BYTES", bytes));
        }
    }
}

#[test]
fn a_program_of_one_thread_has_its_descriptors_for_itself() {
    let directory = tempdir().expect("a directory");
    for marked in [true, false] {
        let mut command = life("glibc", &["descriptors_alone", "4"]);
        // Its thread looks for idleness, and for huge pages, all the time.
        with_files(&mut command, directory.path()).env("STEPALLOC_IDLE", "1");
        if !marked {
            command.env("LIFE_UNMARKED", "1");
        }
        keeps_promise(&mut command);
    }
}

#[test]
fn a_thread_that_makes_steps_takes_no_descriptor_of_another() {
    for backend in BACKENDS {
        let directory = tempdir().expect("a directory");
        let mut command = life(backend, &["descriptors_beside", "2"]);
        keeps_promise(with_files(&mut command, directory.path()).env("STEPALLOC_IDLE", "1"));
        for file in ["plan", "json", "steps"] {
            assert!(directory.path().join(file).exists(), "{file} over {backend}");
        }
    }
}

#[test]
fn exit_from_a_handler_ends_the_process() {
    for backend in BACKENDS {
        for turn in 0..6 {
            let directory = tempdir().expect("a directory");
            let mut command = life(backend, &["exit_in_handler", &(turn * 7 + 1).to_string()]);
            with_files(&mut command, directory.path());
            let begun = Instant::now();
            keeps_promise(&mut command);
            assert!(begun.elapsed() < Duration::from_secs(20), "over {backend}");
        }
    }
}

#[test]
fn a_process_ends_with_the_last_of_its_own_threads() {
    // Where the thread that looks for idleness slept on, it would be half a second in the mean.
    const LATE: Duration = Duration::from_millis(250);
    let late = (0..3).filter(|_| {
        let mut command = life("glibc", &["first_thread_ends"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("a program");
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
        out.read_line(&mut line).expect("a line");
        let last = Instant::now();
        assert!(child.wait().expect("its end").success() && line.contains("the last thread ends"), "{line}");
        last.elapsed() > LATE
    });
    // A machine may be busy once.
    assert!(late.count() <= 1);
}

#[test]
fn a_thread_is_not_cancelled_within_malloc() {
    for backend in BACKENDS {
        let directory = tempdir().expect("a directory");
        keeps_promise(with_files(&mut life(backend, &["cancelled"]), directory.path()));
    }
}

#[test]
fn the_library_can_be_loaded_late() {
    for backend in BACKENDS {
        let mut command = process::command(compiled::life());
        command.arg("dlopen_late").arg(process::library()).env("STEPALLOC_BACKEND", backend);
        planned_soon(&mut command);
        keeps_promise(&mut command);
    }
}

#[test]
fn libraries_with_thread_locals_come_and_go() {
    let directory = tempdir().expect("a directory");
    for module in 0..40 {
        std::fs::copy(compiled::module(), directory.path().join(format!("{module}.so"))).expect("a copy");
    }
    for backend in BACKENDS {
        for traced in [false, true] {
            let mut command = life(backend, &["modules"]);
            command.arg(directory.path()).env("LIFE_ROUNDS", by_setting(4, 75).to_string());
            count("process life", "libraries that came and went", by_setting(4, 75) * 40);
            if traced {
                command.env("STEPALLOC_TRACE", directory.path().join("trace"));
            }
            keeps_promise(&mut command);
        }
    }
}

/// Not over jemalloc, nor over glibc with a second thread: they wait for locks of their own at a fork, without us too.
#[test]
fn forks_in_handlers_leave_parent_and_child_whole() {
    for (backend, idle) in [("glibc", "0"), ("mimalloc", "0"), ("mimalloc", "1")] {
        let directory = tempdir().expect("a directory");
        let mut command = life(backend, &["fork_in_handler", "100"]);
        command.env("STEPALLOC_PLAN", directory.path().join("plan")).env("STEPALLOC_IDLE", idle);
        let begun = Instant::now();
        keeps_promise(&mut command);
        // Who waited for a lock that the handler's own thread has would wait a second each time.
        assert!(begun.elapsed() < Duration::from_secs(20), "over {backend}: {:?}", begun.elapsed());
    }
}

#[test]
fn children_that_make_no_step_write_no_figures() {
    for backend in BACKENDS {
        let directory = tempdir().expect("a directory");
        let json = directory.path().join("json");
        keeps_promise(life(backend, &["children_exit", "3"]).env("STEPALLOC_JSON", &json));
        let told = std::fs::read_to_string(&json).expect("figures");
        assert_eq!(told.lines().count(), 1, "over {backend}: {told}");
    }
}

#[test]
fn the_environment_may_change_meanwhile() {
    for backend in BACKENDS {
        let directory = tempdir().expect("a directory");
        keeps_promise(with_files(&mut life(backend, &["environment_changes"]), directory.path()));
    }
}

#[test]
fn a_start_that_never_comes_is_never() {
    let directory = tempdir().expect("a directory");
    for (turn, start) in ["18446744073709551615", "1000000000000000000"].into_iter().enumerate() {
        for unmarked in [None, Some("1")] {
            let json = directory.path().join(format!("json-{turn}-{}", unmarked.is_some()));
            let mut command = life("glibc", &["steps", "100"]);
            command.env("START_STATISTIC_STEP", start).env("STEPALLOC_JSON", &json);
            unmarked.map(|value| command.env("LIFE_UNMARKED", value));
            keeps_promise(&mut command);
            let told = std::fs::read_to_string(&json).expect("figures");
            assert!(told.contains("\"plans\": 0") || told.contains("\"plans\":0"), "{start}: {told}");
        }
    }
}

#[test]
fn a_process_that_outlives_the_command_says_nothing() {
    let program = compiled::life().display().to_string();
    let directory = tempdir().expect("a directory");
    let mut command = process::stepalloc(["run", "--quiet", "--trace"]);
    command.arg(directory.path().join("trace.csv")).args([
        "--",
        "sh",
        "-c",
        "(sleep 1; exec \"$0\" steps 60) & exit 0",
        &program,
    ]);
    planned_soon(&mut command);
    let ended = process::finish(&mut command);
    assert!(!ended.err().contains("cannot be written: No such file"), "{}", ended.err());
    assert!(!ended.err().contains("STEPALLOC_JSON"), "{}", ended.err());
}

#[test]
fn figures_that_cannot_be_written_are_told_otherwise() {
    let mut command = life("glibc", &["steps", "60"]);
    let ended = keeps_promise(command.env("STEPALLOC_JSON", "/nonexistent/figures"));
    assert!(
        ended.err().contains("STEPALLOC_JSON=/nonexistent/figures: cannot be written"),
        "{}",
        ended.err()
    );
}

#[test]
fn a_plan_is_saved_where_a_link_leads_and_nobodys_file_is_lost() {
    let directory = tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    std::fs::create_dir(at("elsewhere")).expect("a directory");
    std::os::unix::fs::symlink("elsewhere/target", at("link")).expect("a link");
    let mut command = process::command("sh");
    // The process's number is the shell's.
    command.args(["-c", "echo mine > link.$$; echo mine > elsewhere/target.$$; exec \"$0\" steps 60"]);
    command.arg(compiled::life()).current_dir(directory.path());
    command.env("LD_PRELOAD", process::library()).env("STEPALLOC_PLAN", "link");
    planned_soon(&mut command);
    assert_eq!(keeps_promise(&mut command).err(), "");
    assert!(std::fs::symlink_metadata(at("link")).expect("it is there").is_symlink());
    assert!(std::fs::read(at("elsewhere/target")).expect("a plan").starts_with(b"stepplan"));
    let files = |folder: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(folder).expect("a directory");
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
    };
    let kept = |folder: &Path, name: &str| {
        let mine = files(folder).into_iter().find(|file| file.starts_with(name)).expect("the file");
        std::fs::read_to_string(folder.join(mine)).expect("it is there")
    };
    assert_eq!(kept(directory.path(), "link."), "mine\n");
    assert_eq!(kept(&at("elsewhere"), "target."), "mine\n");
    assert_eq!(files(&at("elsewhere")).len(), 2, "nothing else is left there");
}

/// Each case over each backend, with plans, and with everything written that can be.
fn lives(case: &str, number: u64, unit: &str) {
    for backend in BACKENDS {
        for written in [false, true] {
            let directory = tempdir().expect("a directory");
            let mut command = life(backend, &[case, &number.to_string()]);
            if written {
                with_files(&mut command, directory.path()).env("STEPALLOC_IDLE", "1");
            }
            process::finish_within(&mut command, Duration::from_secs(240 + number)).with_status(0);
            count("process life", unit, number.max(1));
        }
    }
}

#[test]
fn children_that_are_forked_beside_threads_allocate() {
    // In six runs together.
    lives("forks", by_setting(40, 1700), "forks");
}

#[test]
fn processes_are_spawned_beside_threads() {
    lives("spawns", by_setting(30, 3000), "spawned processes");
}

#[test]
fn threads_come_and_go() {
    lives("threads", by_setting(4000, 100_000), "threads");
}

#[test]
fn what_runs_at_exit_allocates() {
    lives("destructors", 0, "exits");
}

#[test]
fn handlers_allocate() {
    lives("handlers", by_setting(200, 20_000), "handlers");
}

#[test]
fn a_program_may_close_every_descriptor() {
    for backend in BACKENDS {
        let directory = tempdir().expect("a directory");
        let mut command = life(backend, &["descriptors_closed"]);
        command.arg(directory.path().join("mine"));
        keeps_promise(with_files(&mut command, directory.path()).env("STEPALLOC_IDLE", "1"));
        assert_eq!(std::fs::read(directory.path().join("mine")).expect("it is there"), b"mine");
    }
}

#[test]
fn a_process_that_is_killed_leaves_no_plan_that_is_refused() {
    let directory = tempdir().expect("a directory");
    let plan = directory.path().join("plan");
    let (mut kept, attempts) = (0, by_setting(20, 2000));
    for attempt in 0..attempts {
        let mut command = life("glibc", &["steps", "100000"]);
        // Its plan is written within these milliseconds, and its trace all the time.
        with_files(&mut command, directory.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("a program");
        std::thread::sleep(Duration::from_micros(3000 + (seed() + attempt) * 7919 % 60_000));
        child.kill().expect("it runs");
        assert_eq!(child.wait().expect("its end").signal(), Some(libc::SIGKILL));
        let ended = keeps_promise(life("glibc", &["steps", "3"]).env("STEPALLOC_PLAN", &plan));
        assert_eq!(ended.err(), "", "after attempt {attempt}");
        if plan.exists() {
            kept += 1;
            std::fs::remove_file(&plan).expect("it is there");
        }
    }
    count("process life", "kills", attempts);
    assert!(kept > 0, "no process had written its plan");
}
