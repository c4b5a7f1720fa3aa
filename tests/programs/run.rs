//! `stepalloc run`, with `steps.c` for a program that marks its steps, and the settings of the library it preloads.

use crate::process::{self, Ended};
use crate::{BACKENDS, compiled};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// `stepalloc run OPTIONS -- PROGRAM`, with settings under which twelve steps are enough for a plan.
fn run(options: &[&str], program: &[&str]) -> Command {
    let mut command = process::stepalloc(["run"].iter().chain(options).chain(&["--"]).chain(program));
    command.env("START_STATISTIC_STEP", "2").env("STABLE_STATISTIC_STEP", "1");
    command
}

fn steps() -> &'static str {
    compiled::steps().to_str().expect("the target directory's path is UTF-8")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of temporary files are UTF-8")
}

/// The objects of a JSON output, one a line.
fn objects(json: &str) -> Vec<Value> {
    json.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

/// The objects that `--json F` gave for a program.
fn json_of(command: impl FnOnce(&str) -> Command) -> Vec<Value> {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("figures.json");
    process::finish(&mut command(text(&file))).with_status(0);
    objects(&std::fs::read_to_string(&file).expect("the figures were written"))
}

#[test]
fn the_exit_status_is_the_programs() {
    for status in ["0", "3", "255"] {
        let ended = process::finish(&mut run(&[], &[steps(), "20", "exit", status]));
        ended.with_status(status.parse().expect("a number"));
    }
}

#[test]
fn a_signal_that_ends_the_program_ends_the_command_alike() {
    let mut command = run(&["--quiet"], &[steps(), "20", "kill", &libc::SIGUSR2.to_string()]);
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().expect("started");
    assert_eq!(status.signal(), Some(libc::SIGUSR2));
}

#[test]
fn the_programs_output_passes_unchanged() {
    let ended = process::finish(&mut run(&["--quiet"], &[steps(), "20"])).with_status(0);
    assert_eq!((ended.out(), ended.err()), ("to standard output\n", "to standard error\n"));
}

#[test]
fn the_programs_input_passes_unchanged() {
    let mut command = run(&[], &["cat"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("started");
    child.stdin.take().expect("a pipe").write_all(b"through\0and through").expect("written");
    let ended = process::await_end(child, "cat").with_status(0);
    assert_eq!(ended.out, b"through\0and through");
}

#[test]
fn what_we_say_is_one_line_on_standard_error() {
    let ended = process::finish(&mut run(&[], &[steps(), "20"])).with_status(0);
    let [line] = ended.ours()[..] else { panic!("not one line: {}", ended.err()) };
    assert!(line.contains("planned from step"), "{line}");
    assert_eq!(ended.out(), "to standard output\n");
}

#[test]
fn the_json_has_every_key_of_the_contract() {
    let all = json_of(|file| run(&["--json", file], &[steps(), "20"]));
    let [process] = &all[..] else { panic!("not one object: {all:?}") };
    let keys = "pid program backend phase steps planned_at_step arena_bytes lower_bound_bytes planned_blocks \
                last_steps vm_rss_bytes vm_hwm_bytes";
    let last = "count minor_faults_median minor_faults_max planned_allocations fallback_allocations planned_bytes \
                fallback_bytes step_ms_median";
    for key in keys.split_whitespace() {
        assert!(process.get(key).is_some(), "{key} is missing in {process}");
    }
    for key in last.split_whitespace() {
        assert!(process["last_steps"][key].is_number(), "last_steps.{key} is missing in {process}");
    }
}

#[test]
fn the_json_tells_what_the_program_did() {
    let all = json_of(|file| run(&["--json", file], &[steps(), "40"]));
    let process = &all[0];
    assert_eq!(process["phase"], "planned", "{process}");
    assert_eq!(process["steps"], 40, "{process}");
    assert!(process["program"].as_str().is_some_and(|program| program.ends_with("steps")), "{process}");
    // Five sizes, two blocks of each alive at once: the last two are the load.
    assert_eq!(process["planned_blocks"], 10, "{process}");
    assert_eq!(process["lower_bound_bytes"], 1_600_000, "{process}");
    let last = &process["last_steps"];
    let count = last["count"].as_u64().expect("a number");
    assert!(count >= 10, "{process}");
    assert_eq!(last["planned_allocations"].as_u64(), Some(10 * count), "{process}");
    assert_eq!(last["fallback_bytes"], 0, "{process}");
}

/// What `mpirun -n 2` or torchrun does, as far as it matters here: the same program twice, each told its rank.
const RANKS: &str = "for rank in 0 1; do RANK=$rank \"$0\" 40 & done; wait";

#[test]
fn ranks_are_told_one_by_one_and_have_plans_of_their_own() {
    let directory = tempfile::tempdir().expect("a directory");
    let plan = directory.path().join("rank-%r.plan");
    let command = || run(&["--plan", text(&plan)], &["sh", "-c", RANKS, steps()]);
    let ended = process::finish(&mut command()).with_status(0);
    let [first, second] = ended.ours()[..] else { panic!("not two lines: {}", ended.err()) };
    assert!(first.contains("rank 0: steps: planned from step"), "{first}");
    assert!(second.contains("rank 1: steps: planned from step"), "{second}");
    for rank in 0..2 {
        assert!(directory.path().join(format!("rank-{rank}.plan")).is_file(), "rank {rank}");
    }
    let ended = process::finish(&mut command()).with_status(0);
    assert_eq!(ended.err().matches("served from the plan of an earlier run").count(), 2, "{}", ended.err());
    // Alike as they are, one file would do.
    let shared = directory.path().join("rank-0.plan");
    let all = json_of(|file| run(&["--plan", text(&shared), "--json", file], &["sh", "-c", RANKS, steps()]));
    let mut ranks: Vec<_> = all.iter().map(|process| (process["rank"].as_u64(), &process["kept"])).collect();
    ranks.sort_by_key(|&(rank, _)| rank);
    assert_eq!(ranks, [(Some(0), &true.into()), (Some(1), &true.into())]);
}

#[test]
fn a_file_of_plans_that_cannot_be_written_costs_a_line_and_nothing_else() {
    let directory = tempfile::tempdir().expect("a directory");
    for (path, said) in [("nowhere/a.plan", "cannot be written"), (".", "cannot be read")] {
        let plan = directory.path().join(path);
        let ended = process::finish(&mut run(&["--plan", text(&plan)], &[steps(), "40"])).with_status(0);
        assert_eq!(ended.err().matches(said).count(), 1, "{}", ended.err());
        assert!(ended.err().contains("planned from step"), "{}", ended.err());
    }
}

#[test]
fn json_on_standard_output_follows_the_programs_own() {
    let ended = process::finish(&mut run(&["--json", "-"], &[steps(), "20"])).with_status(0);
    let (own, json) = ended.out().split_once('\n').expect("two lines");
    assert_eq!(own, "to standard output");
    assert_eq!(objects(json).len(), 1);
}

#[test]
fn json_replaces_what_the_file_held() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("figures.json");
    std::fs::write(&file, "old ".repeat(10_000)).expect("written");
    process::finish(&mut run(&["--json", text(&file)], &["true"])).with_status(0);
    assert_eq!(objects(&std::fs::read_to_string(&file).expect("read")).len(), 1);
}

#[test]
fn a_program_without_steps_has_one_object_that_waits() {
    let all = json_of(|file| run(&["--json", file], &["true"]));
    let [process] = &all[..] else { panic!("not one object: {all:?}") };
    assert_eq!((&process["phase"], &process["steps"]), (&"waiting".into(), &0.into()));
}

#[test]
fn each_process_of_a_shell_that_made_steps_has_an_object() {
    let script = format!("{0} 20; {0} 25; true", steps());
    let all = json_of(|file| run(&["--json", file], &["sh", "-c", &script]));
    let made: Vec<_> = all.iter().map(|process| process["steps"].as_u64()).collect();
    assert_eq!(made, [Some(20), Some(25)]);
}

#[test]
fn the_option_names_the_backend() {
    for backend in BACKENDS {
        let all = json_of(|file| {
            let mut command = run(&["--backend", backend, "--json", file], &[steps(), "20"]);
            // The option stands above the setting.
            command.env("STEPALLOC_BACKEND", "glibc");
            command
        });
        assert_eq!((&all[0]["backend"], &all[0]["phase"]), (&backend.into(), &"planned".into()));
    }
}

#[test]
fn the_setting_names_the_backend() {
    for backend in BACKENDS {
        let all = json_of(|file| {
            let mut command = run(&["--json", file], &[steps(), "20"]);
            command.env("STEPALLOC_BACKEND", backend);
            command
        });
        assert_eq!((&all[0]["backend"], &all[0]["phase"]), (&backend.into(), &"planned".into()));
    }
}

#[test]
fn switched_off_nothing_is_planned() {
    let all = json_of(|file| {
        let mut command = run(&["--json", file], &[steps(), "20"]);
        command.env("ENABLE_MEMORY_OPTIMIZATION", "0");
        command
    });
    assert_eq!((&all[0]["phase"], &all[0]["arena_bytes"]), (&"waiting".into(), &0.into()));
}

#[test]
fn without_room_for_an_arena_the_backend_serves() {
    for most in ["0", "4096", "500000"] {
        let all = json_of(|file| {
            let mut command = run(&["--json", file], &[steps(), "20"]);
            command.env("STEPALLOC_MAX_ARENA", most);
            command
        });
        let most: u64 = most.parse().expect("a number");
        assert!(all[0]["arena_bytes"].as_u64().is_some_and(|bytes| bytes <= most), "{}", all[0]);
    }
}

/// The command refused: our line names the trouble, and the program was not started.
#[track_caller]
fn refused(ended: Ended, status: i32, word: &str) {
    let ended = ended.with_status(status);
    assert!(ended.err().contains(word), "{word}: {}", ended.err());
    assert_eq!(ended.out(), "");
}

#[test]
fn a_program_that_is_not_there_is_127() {
    for program in ["no-such-program-anywhere", "/no/such/program"] {
        refused(process::finish(&mut run(&[], &[program])), 127, &format!("{program}: not found"));
    }
}

#[test]
fn a_program_that_cannot_be_executed_is_126() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("no-program");
    std::fs::write(&file, "echo started\n").expect("written");
    refused(process::finish(&mut run(&[], &[text(&file)])), 126, "cannot be executed");
    refused(process::finish(&mut run(&[], &[text(directory.path())])), 126, "cannot be executed");
}

#[test]
fn json_that_cannot_be_written_is_told_before_the_program_starts() {
    refused(
        process::finish(&mut run(&["--json", "/no/such/directory/f"], &["echo", "started"])),
        2,
        "/no/such/directory/f",
    );
    let directory = tempfile::tempdir().expect("a directory");
    let place = text(directory.path());
    refused(process::finish(&mut run(&["--json", place], &["echo", "started"])), 2, place);
}

#[test]
fn options_that_do_not_exist_are_refused() {
    refused(process::finish(&mut run(&["--nonsense", "F"], &["echo", "started"])), 2, "--nonsense");
    refused(process::finish(&mut run(&["--call-sites"], &["echo", "started"])), 2, "--trace");
}

#[test]
fn a_backend_that_does_not_exist_is_refused() {
    refused(process::finish(&mut run(&["--backend", "tcmalloc"], &["echo", "started"])), 2, "tcmalloc");
}

#[test]
fn without_a_program_nothing_is_run() {
    refused(process::finish(&mut process::stepalloc(["run"])), 2, "PROGRAM");
}

#[test]
fn a_library_that_is_not_there_is_named() {
    let mut command = run(&[], &["echo", "started"]);
    command.env("STEPALLOC_LIBRARY", "/no/such/library.so");
    refused(process::finish(&mut command), 2, "/no/such/library.so");
}

#[test]
fn a_static_program_runs_and_a_line_says_it_was_not_reached() {
    let program = match compiled::static_steps() {
        Ok(program) => program,
        Err(error) => return process::skip(&format!("the C library has no static form: {error}")),
    };
    let ended = process::finish(&mut run(&[], &[text(&program), "20", "exit", "4"])).with_status(4);
    assert_eq!(ended.out(), "to standard output\n");
    let [line] = ended.ours()[..] else { panic!("not one line: {}", ended.err()) };
    assert!(line.contains("not loaded"), "{line}");
}

#[test]
fn sigterm_reaches_the_program() {
    let mut command = run(&["--quiet"], &[steps(), "20", "wait"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    read_until(&mut out, |line| line == "waiting\n");
    // SAFETY: a child that was not waited for, so the number is still its own.
    assert_eq!(unsafe { libc::kill(child.id().cast_signed(), libc::SIGTERM) }, 0);
    read_until(&mut out, |line| line == "terminated\n");
    process::await_end(child, "steps").with_status(5);
}

/// Reads lines until one is as wanted.
fn read_until(from: &mut impl BufRead, wanted: impl Fn(&str) -> bool) -> String {
    loop {
        let mut line = String::new();
        assert_ne!(from.read_line(&mut line).expect("read"), 0, "it ended early");
        if wanted(&line) {
            return line;
        }
    }
}

#[test]
fn signals_sent_to_the_command_alone_reach_the_program() {
    let mut command = run(&["--quiet"], &[steps(), "20", "wait"]);
    command.env("STEPALLOC_STATS_SIGNAL", "USR1");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut err = BufReader::new(child.stderr.take().expect("a pipe"));
    // SAFETY: a child that was not waited for, so the number is still its own.
    let send = |signal| assert_eq!(unsafe { libc::kill(child.id().cast_signed(), signal) }, 0);
    read_until(&mut out, |line| line == "waiting\n");
    send(libc::SIGUSR1);
    let answer = read_until(&mut err, |line| line.starts_with('{'));
    assert_eq!(objects(&answer)[0]["steps"], 20);
    send(libc::SIGINT);
    process::await_end(child, "steps").with_status(128 + libc::SIGINT);
}

#[test]
fn what_was_preloaded_before_is_preloaded_still() {
    let marker = compiled::marker();
    let mut command = run(&["--json", "-"], &[steps(), "20"]);
    command.env("LD_PRELOAD", &marker);
    let ended = process::finish(&mut command).with_status(0);
    // Once in the command, once in the program.
    let loaded = ended.err().lines().filter(|line| *line == "the marker is loaded").count();
    assert_eq!(loaded, 2, "{}", ended.err());
    assert_eq!(objects(ended.out().lines().last().expect("a line"))[0]["phase"], "planned");
}

#[test]
fn a_path_with_a_space_is_preloaded_too() {
    let directory = tempfile::tempdir().expect("a directory");
    let library = directory.path().join("a place with spaces.so");
    std::fs::copy(process::library(), &library).expect("copied");
    let all = json_of(|file| {
        let mut command = run(&["--json", file], &[steps(), "20"]);
        command.env("STEPALLOC_LIBRARY", &library);
        command
    });
    assert_eq!(all[0]["phase"], "planned");
}

#[test]
fn statistics_are_printed_on_the_signal_asked_for() {
    let mut command = process::preloaded(steps(), "glibc");
    command.args(["20", "ask", &libc::SIGUSR1.to_string()]);
    command.env("STEPALLOC_STATS_SIGNAL", "SIGUSR1");
    let ended = process::finish(&mut command).with_status(0);
    let line = ended.err().lines().last().expect("a line");
    assert_eq!(objects(line)[0]["steps"], 20);
}

#[test]
fn a_programs_signals_are_its_own_where_none_is_asked_for() {
    let mut command = process::preloaded(steps(), "glibc");
    command.args(["20", "ask", &libc::SIGUSR1.to_string()]);
    process::finish(&mut command).with_status(128 + libc::SIGUSR1);
}

/// Bad values: the variable, the value, the default that stands in.
const BAD_SETTINGS: [(&str, &str, &str); 13] = [
    ("STEPALLOC_BACKEND", "tcmalloc", "glibc"),
    ("ENABLE_MEMORY_OPTIMIZATION", "yes", "1"),
    ("START_STATISTIC_STEP", "-1", "100, or 0 of detected steps"),
    ("START_STATISTIC_STEP", "18446744073709551616", "100, or 0 of detected steps"),
    ("STABLE_STATISTIC_STEP", "ten", "10, or two detected steps"),
    ("STABLE_STATISTIC_STEP", "", "10, or two detected steps"),
    ("MAX_STATISTIC_STEP", "1e3", "100"),
    ("STEPALLOC_MIN_BYTES", "12", "32768"),
    ("STEPALLOC_MIN_BYTES", "32KiB", "32768"),
    ("STEPALLOC_MAX_ARENA", "0x10", "no limit"),
    ("STEPALLOC_HUGEPAGES", "2", "where all of the memory is there anyway"),
    ("STEPALLOC_STATS_SIGNAL", "KILL", "no signal"),
    ("STEPALLOC_STATS_SIGNAL", "10", "no signal"),
];

/// Each bad setting costs one line that names variable, value and default; the program goes on.
#[track_caller]
fn told_once(command: impl Fn() -> Command) {
    for (name, value, default) in BAD_SETTINGS {
        let ended = process::finish(command().env(name, value)).with_status(0);
        let lines = ended.ours();
        let [line] = lines[..] else { panic!("{name}={value}: not one line: {lines:?}") };
        assert!(line.contains(&format!("{name}={value}")), "{line}");
        assert!(line.ends_with(&format!("using the default, {default}")), "{name}: {line}");
        assert_eq!(ended.out(), "to standard output\n", "{name}={value}");
    }
}

#[test]
fn a_bad_setting_costs_one_line_in_a_program_that_makes_steps() {
    told_once(|| {
        let mut command = process::command(steps());
        command.arg("20").env("LD_PRELOAD", process::library());
        command
    });
}

#[test]
fn a_bad_setting_costs_one_line_in_a_program_that_makes_none() {
    told_once(|| {
        let mut command = process::command(steps());
        command.arg("0").env("LD_PRELOAD", process::library());
        command
    });
}

#[test]
fn a_bad_setting_costs_one_line_under_the_command() {
    told_once(|| process::stepalloc(["run", "--quiet", "--", steps(), "20"]));
}

#[test]
fn the_command_alone_shows_its_help() {
    let ended = process::finish(&mut process::stepalloc::<&str>([])).with_status(2);
    for word in ["run", "plan", "demo"] {
        assert!(ended.err().contains(&format!("\n  {word} ")), "{word}: {}", ended.err());
    }
}

/// What is alive when a plan comes into force is freed while its arena fills, and must not stay beside it.
#[test]
fn a_plan_comes_into_force_without_a_peak() {
    let directory = tempfile::tempdir().expect("a directory");
    for backend in BACKENDS {
        let json = directory.path().join(backend);
        let mut command = process::preloaded(compiled::transition(), backend);
        command.arg("40").env("STEPALLOC_JSON", &json);
        command.env("START_STATISTIC_STEP", "4").env("STABLE_STATISTIC_STEP", "3");
        let ended = process::finish(&mut command).with_status(0);
        let said: Value =
            serde_json::from_str(&std::fs::read_to_string(&json).expect("figures")).expect("JSON");
        assert_eq!(said["phase"], "planned", "{said}");
        let figures: Vec<u64> = ended.out().split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [most, last] = figures[..] else { panic!("{}", ended.out()) };
        assert!(4 * most <= 5 * last, "{backend}: {most} KiB at most, {last} at the end");
    }
}
