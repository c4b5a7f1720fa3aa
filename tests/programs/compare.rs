//! `stepalloc compare`: the table, the figures, and programs that do not end as they should.

use crate::compiled;
use crate::process::{self, Ended};
use crate::pytorch::PYTHON;
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// Figures may differ by so much from those of other observers.
const AGREEMENT: f64 = 0.02;

/// Without a report, which would be written where the tests are.
fn compare(options: &[&str], program: &[&str]) -> std::process::Command {
    let mut command = process::stepalloc(["compare", "--no-report"]);
    command.args(options).arg("--").args(program);
    command
}

fn figures(file: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(file).expect("the figures were written")).expect("JSON")
}

/// The table's line of an allocator.
fn line<'a>(ended: &'a Ended, name: &str) -> &'a str {
    let found = ended.err().lines().find(|line| line.split_whitespace().next() == Some(name));
    found.unwrap_or_else(|| panic!("{name} is not in the table:\n{}", ended.err()))
}

#[test]
fn the_first_run_is_the_programs_own_and_all_are_compared() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str| directory.path().join(name);
    let mut command = process::stepalloc(["compare", "--no-report", "--runs", "2", "--json"]);
    command.arg(file("json")).arg("--csv").arg(file("csv")).args(["--markdown", "-", "--", "sh", "-c"]);
    command.arg("echo hello; echo world >&2; exit 3");
    let ended = process::finish(&mut command).with_status(3);
    assert!(ended.out().starts_with("hello\n| allocator | time [s] |"), "{}", ended.out());
    assert_eq!(ended.out().matches("hello").count(), 1);
    assert_eq!(ended.err().matches("world").count(), 1, "{}", ended.err());
    assert!(ended.ours()[0].contains("ended with status 3"), "{}", ended.err());
    let names = [
        "glibc",
        "glibc-tuned",
        "jemalloc",
        "mimalloc",
        "stepalloc/glibc",
        "stepalloc/jemalloc",
        "stepalloc/mimalloc",
    ];
    let figures = figures(&file("json"));
    let rows = figures["results"].as_array().expect("an array");
    for name in names {
        line(&ended, name);
        let row = rows.iter().find(|row| row["allocator"] == name).expect(name);
        let runs = row["runs"].as_array().expect("runs");
        assert_eq!(runs.len(), 2, "{row}");
        assert!(runs.iter().all(|run| run["status"] == 3 && run["minor_faults"].as_u64() > Some(0)), "{row}");
        assert_eq!(row["failure"], Value::Null, "{row}");
    }
    let lines = std::fs::read_to_string(file("csv")).expect("it was written");
    assert_eq!(lines.lines().count(), 1 + 2 * rows.len(), "{lines}");
}

/// The script's own view of itself, beside ours.
#[test]
fn figures_are_those_of_the_system() {
    let _alone = process::alone();
    let directory = tempfile::tempdir().expect("a directory");
    let (json, seen) = (directory.path().join("json"), directory.path().join("seen"));
    let script = "
import json, resource, sys, time
start = time.monotonic()
held = bytearray(60_000_000)
for at in range(0, len(held), 4096): held[at] = 1
while time.process_time() < 0.8: pass
time.sleep(0.7)
usage = resource.getrusage(resource.RUSAGE_SELF)
status = dict(line.split(':', 1) for line in open('/proc/self/status'))
mine = {'cpu_seconds': usage.ru_utime + usage.ru_stime, 'minor_faults': usage.ru_minflt,
        'vm_hwm_bytes': int(status['VmHWM'].split()[0]) * 1024, 'vm_rss_bytes': int(status['VmRSS'].split()[0]) * 1024}
open(sys.argv[1], 'a').write(json.dumps(mine) + '\\n')
";
    let mut command = process::stepalloc([
        "compare",
        "--no-report",
        "--runs",
        "2",
        "--allocators",
        "glibc,jemalloc",
        "--json",
    ]);
    command.arg(&json).args(["--", PYTHON, "-c", script]).arg(&seen);
    if !process::installed(PYTHON) {
        return;
    }
    process::finish(&mut command).with_status(0);
    let figures = figures(&json);
    let seen = std::fs::read_to_string(&seen).expect("the script wrote it");
    let mut seen = seen.lines().skip(1).map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    // In the second round the second allocator has the first turn.
    for (row, round) in [(0, 0), (1, 0), (1, 1), (0, 1)] {
        let (run, own) = (&figures["results"][row]["runs"][round], seen.next().expect("a line for each run"));
        // The script looks before it ends.
        for (name, slack) in
            [("cpu_seconds", 0.1), ("minor_faults", 200.0), ("vm_hwm_bytes", 0.0), ("vm_rss_bytes", 0.0)]
        {
            let (ours, own) = (run[name].as_f64().expect(name), own[name].as_f64().expect(name));
            assert!((ours - own).abs() <= AGREEMENT * own + slack, "{name}: {ours} beside {own}");
        }
        assert!(run["seconds"].as_f64() >= Some(1.5), "{run}");
    }
    assert_eq!(seen.next(), None);
}

#[test]
fn there_are_as_many_runs_as_the_time_allows() {
    let directory = tempfile::tempdir().expect("a directory");
    let json = directory.path().join("json");
    let runs = |minutes: &str| {
        let mut command = process::stepalloc([
            "compare",
            "--no-report",
            "--allocators",
            "glibc,jemalloc",
            "--minutes",
            minutes,
        ]);
        let ended = process::finish(command.arg("--json").arg(&json).args(["--", "true"])).with_status(0);
        let told = ["of 20 such comparisons", "would hardly have found"];
        assert!(told.iter().any(|told| ended.err().contains(told)), "{}", ended.err());
        figures(&json)["runs"].as_u64().expect("a number")
    };
    assert_eq!(runs("0"), 5);
    assert!(runs("0.05") >= 10);
}

#[test]
fn a_library_that_kills_the_program_is_a_row_that_says_so() {
    let mut command = compare(
        &["--runs", "2", "--allocators", "glibc", "--allocator", "deadly=,DEADLY=1"],
        &["sh", "-c", "echo why >&2; [ -z \"$DEADLY\" ] || kill -9 $$"],
    );
    let ended = process::finish(&mut command).with_status(0);
    assert!(line(&ended, "deadly").ends_with("was killed by signal 9: why"), "{}", ended.err());
    let alone = line(&ended, "glibc");
    assert!(alone.contains('±') && !alone.contains("best"), "{}", ended.err());
}

#[test]
fn a_library_that_does_not_get_in_is_told() {
    let Ok(steps) = compiled::static_steps() else {
        return process::skip("the C library has no static form");
    };
    let mut command =
        compare(&["--runs", "2", "--allocators", "glibc,jemalloc"], &[steps.to_str().expect("a path")]);
    let ended = process::finish(&mut command).with_status(0);
    assert!(line(&ended, "jemalloc").contains("was not loaded"), "{}", ended.err());
    let mut command = compare(&["--runs", "2", "--allocator", "none=/etc/passwd"], &["sleep", "0.3"]);
    let ended = process::finish(&mut command).with_status(0);
    assert!(line(&ended, "none").contains("was not loaded"), "{}", ended.err());
}

#[test]
fn what_is_read_is_read_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let (input, seen) = (directory.path().join("input"), directory.path().join("seen"));
    std::fs::write(&input, "head\nbody\n").expect("written");
    let script = format!(
        "{{ read first; exec {} compare --no-report --runs 2 --allocators glibc,jemalloc -- sh -c 'cat >> \"$0\"' {}; }} < {}",
        stepalloc_tests::built().join("stepalloc").display(),
        seen.display(),
        input.display()
    );
    process::finish(process::command("sh").args(["-c", &script])).with_status(0);
    assert_eq!(std::fs::read_to_string(&seen).expect("it was written"), "body\n".repeat(5));
    let mut piped = process::command("sh");
    piped.args(["-c", "echo all | \"$0\" compare --no-report --runs 2 --allocators glibc,jemalloc -- cat"]);
    let ended = process::finish(piped.arg(stepalloc_tests::built().join("stepalloc"))).with_status(0);
    assert_eq!(ended.out(), "all\n");
    assert!(ended.err().contains("standard input is no file"), "{}", ended.err());
}

#[test]
fn what_is_wrong_is_told_and_nothing_is_run() {
    let refused = |options: &[&str], program: &str, status: i32, word: &str| {
        let ended = process::finish(&mut compare(options, &[program])).with_status(status);
        assert!(ended.out().is_empty() && ended.err().contains(word), "{word}: {}", ended.err());
    };
    refused(&["--allocators", "tmalloc"], "echo", 2, "stepalloc/jemalloc");
    refused(&["--allocators", "glibc"], "echo", 2, "needs two");
    refused(&["--allocator", "mine=/no/such.so"], "echo", 2, "/no/such.so");
    refused(&["--runs", "1"], "echo", 2, "--runs");
    refused(&["--call-sites"], "echo", 2, "--no-report");
    refused(&["--minutes", "soon"], "echo", 2, "--minutes");
    refused(&["--minutes", "1", "--runs", "5"], "echo", 2, "--runs");
    refused(&["--json", "/no/such/directory/f"], "echo", 2, "/no/such/directory/f");
    refused(&[], "no-such-program", 127, "not found");
    refused(&[], "/etc/passwd", 126, "permissions");
}

#[test]
fn much_output_and_processes_in_the_background_hold_nothing_up() {
    let program = "head -c 200000000 /dev/zero; head -c 20000000 /dev/zero >&2; sleep 30 & exit 0";
    let mut command =
        compare(&["--runs", "2", "--allocators", "glibc,stepalloc/glibc"], &["sh", "-c", program]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let start = std::time::Instant::now();
    let status = command.status().expect("it can be started");
    assert!(status.success());
    assert!(start.elapsed() < Duration::from_secs(25), "{:?}", start.elapsed());
}

#[test]
fn what_was_measured_before_an_interrupt_is_kept() {
    let directory = tempfile::tempdir().expect("a directory");
    let (json, runs) = (directory.path().join("json"), directory.path().join("runs"));
    let mut command = process::stepalloc([
        "compare",
        "--no-report",
        "--runs",
        "1000",
        "--allocators",
        "glibc,jemalloc",
        "--json",
    ]);
    command.arg(&json).args(["--", "sh", "-c", "echo >> \"$0\"; exec sleep 0.05"]).arg(&runs);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("it can be started");
    let pid = i32::try_from(child.id()).expect("a process");
    let count = || std::fs::read_to_string(&runs).map_or(0, |lines| lines.lines().count());
    let start = std::time::Instant::now();
    while count() < 8 && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(10));
    }
    // SAFETY: a signal to a child that is not waited for yet.
    unsafe { libc::kill(pid, libc::SIGINT) };
    let ended = process::await_end(child, "compare").with_status(130);
    line(&ended, "jemalloc");
    let figures = figures(&json);
    let kept = figures["results"][0]["runs"].as_array().expect("runs").len();
    assert!((2..1000).contains(&kept), "{figures}");
}

#[test]
fn a_report_has_the_table_and_a_plan() {
    let directory = tempfile::tempdir().expect("a directory");
    let page = directory.path().join("page.html");
    let mut command = process::stepalloc(["compare", "--runs", "2", "--allocators", "glibc,stepalloc/glibc"]);
    command.arg("--report").arg(&page).args(["--call-sites", "--"]).arg(compiled::steps()).arg("300");
    command.env("START_STATISTIC_STEP", "2").env("STABLE_STATISTIC_STEP", "1");
    let ended = process::finish(&mut command).with_status(0);
    assert_eq!(ended.out(), "to standard output\n");
    let data = crate::report::data(&page);
    let rows = data["comparison"]["rows"].as_array().expect("rows");
    let names: Vec<&str> = rows.iter().filter_map(|row| row["allocator"].as_str()).collect();
    assert_eq!(names, ["glibc", "stepalloc/glibc"]);
    assert!(rows.iter().all(|row| row["cells"][1]["median"].as_f64() > Some(0.0)), "{rows:?}");
    assert_eq!(data["plans"][0]["blocks"]["count"], 10);
    assert!(data["sites"].to_string().contains("main"), "{}", data["sites"]);
}

#[test]
fn marked_steps_are_timed_under_every_allocator() {
    let directory = tempfile::tempdir().expect("a directory");
    let json = directory.path().join("json");
    let mut command = compare(&["--runs", "2", "--json", json.to_str().expect("a path")], &[]);
    let ended = process::finish(command.arg(compiled::steps()).arg("3000")).with_status(0);
    assert!(ended.err().lines().any(|line| line.starts_with("allocator ") && line.contains("step [ms]")));
    for row in figures(&json)["results"].as_array().expect("rows") {
        for run in row["runs"].as_array().expect("runs") {
            assert_eq!(run["steps"], 2999, "{run}");
            let (step, whole) = (run["step_seconds"].as_f64().expect("a time"), run["seconds"].as_f64());
            let of_all = step * 3000.0 / whole.expect("a time");
            assert!((0.2..1.5).contains(&of_all), "{of_all}: {run}");
            if row["allocator"].as_str().is_some_and(|name| name.starts_with("stepalloc/")) {
                // Boundaries, one more than there are steps between them.
                assert_eq!(run["statistics"]["steps"], 3000, "the marks are handed on: {run}");
            }
        }
        assert!(row["figures"]["step_milliseconds"]["median"].as_f64() > Some(0.0), "{row}");
    }
}

/// Each process's marks are its own, those of a killed one are there, and where there are none a run is timed.
#[test]
fn the_steps_are_those_of_the_process_that_marked_most() {
    let directory = tempfile::tempdir().expect("a directory");
    let json = directory.path().join("json");
    let run = |script: &str| {
        let options =
            ["--runs", "2", "--allocators", "glibc,jemalloc", "--json", json.to_str().expect("a path")];
        let mut command = compare(&options, &["sh", "-c", script]);
        let ended = process::finish(command.arg(compiled::steps()));
        (ended, figures(&json)["results"][0]["runs"][0].clone())
    };
    let (_, run_of_three) = run("\"$0\" 40; \"$0\" 90 & \"$0\" 60 kill 9; wait");
    assert_eq!(run_of_three["steps"], 89);
    let (_, killed) = run("exec \"$0\" 70 kill 9");
    assert_eq!((&killed["steps"], &killed["signal"]), (&Value::from(69), &Value::from(9)));
    let (unmarked, without) = run("true");
    assert_eq!(without["steps"], Value::Null);
    assert!(unmarked.err().contains("time [s]"), "{}", unmarked.err());
}

/// One command, without a word about where.
#[test]
fn the_report_is_written_where_the_user_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let run = |options: &[&str]| {
        let mut command = process::stepalloc(["compare", "--runs", "2", "--allocators", "glibc,jemalloc"]);
        process::finish(command.args(options).args(["--", "true"]).current_dir(directory.path()))
            .with_status(0)
    };
    let page = directory.path().join("stepalloc-compare.html");
    run(&["--no-report"]);
    assert!(!page.exists());
    let ended = run(&[]);
    assert!(ended.err().contains("the report: stepalloc-compare.html"), "{}", ended.err());
    assert_eq!(crate::report::data(&page)["comparison"]["rows"].as_array().map(Vec::len), Some(2));
    // Where it cannot be, nothing else is lost.
    std::fs::remove_file(&page).expect("it is there");
    std::fs::create_dir(&page).expect("a folder");
    let ended = run(&[]);
    assert!(ended.err().contains("there will be no report") && ended.err().contains("allocator"));
}
