//! `stepalloc leaks`: what grows is found, and nothing else, with `leaks.c` over each backend; and the command's own contract.
//!
//! What passes here are the library's ways that might leave something behind: threads that come and go, plans that are made
//! and dropped, modules that are loaded and unloaded, processes that are forked with arenas.

use crate::process::{self, Ended};
use crate::{BACKENDS, compiled};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use stepalloc_tests::{by_setting, count};
use tempfile::tempdir;

const GROWS: i32 = 1;
const USAGE: i32 = 2;
const FAILED: i32 = 3;

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of the tests are UTF-8")
}

/// `stepalloc leaks OPTIONS -- PROGRAM`, with plans after some steps.
fn leaks(options: &[&str], program: &[&str]) -> Command {
    let mut command = process::stepalloc(["leaks"].iter().chain(options).chain(&["--"]).chain(program));
    command.env("START_STATISTIC_STEP", "2").env("STABLE_STATISTIC_STEP", "2");
    command
}

/// What `leaks.c` does so often, sampled after each round: how the command ended, and its figures.
#[track_caller]
fn judged(options: &[&str], rounds: u64, threads: u64, what: &str, status: i32) -> (Ended, Value) {
    let directory = tempdir().expect("a directory");
    let json = directory.path().join("json");
    let (rounds, threads) = (rounds.to_string(), threads.to_string());
    let (program, module) = (text(compiled::leaks()), text(compiled::leaks_module()));
    let options = [&["--line", "round ", "--json", text(&json)], options].concat();
    let mut command = leaks(&options, &[program, &rounds, &threads, what, module]);
    command.env("STEPALLOC_JSON", directory.path().join("statistics"));
    let ended = process::finish_within(&mut command, Duration::from_secs(by_setting(240, 3600)));
    let ended = ended.with_status(status);
    let figures = std::fs::read_to_string(&json).expect("the figures are written");
    let mut figures: Value = serde_json::from_str(&figures).expect("JSON");
    // The last line is that of the process that ended last, which is the one that was started.
    let statistics = std::fs::read_to_string(directory.path().join("statistics")).unwrap_or_default();
    figures["statistics"] =
        statistics.lines().last().map_or(Value::Null, |line| serde_json::from_str(line).expect("JSON"));
    println!("{what} {options:?}: {}", ended.err());
    (ended, figures)
}

/// A quantity's verdict.
fn of<'a>(figures: &'a Value, quantity: &str) -> &'a Value {
    let all = figures["quantities"].as_array().expect("verdicts");
    all.iter().find(|one| one["name"] == quantity).expect("it is judged")
}

fn passes(what: &str, threads: u64, rounds: u64) {
    for backend in BACKENDS {
        let (ended, figures) = judged(&["--backend", backend], rounds, threads, what, 0);
        assert!(ended.err().ends_with("stepalloc: nothing grows\n"), "{}", ended.err());
        assert_eq!(figures["rounds"], rounds, "over {backend}");
        count("leaks", "rounds that leave nothing behind", rounds);
        if what == "shapes" {
            let plans = figures["statistics"]["plans"].as_u64().expect("a number");
            // One for each round nearly always; where some are refused the next attempt comes later.
            assert!(plans >= rounds / 10, "{plans} plans over {backend}");
        }
    }
}

#[test]
fn eight_threads_that_come_and_go_leave_nothing() {
    // jemalloc alone takes some sixty rounds until its arenas have settled with threads that overlap at random.
    passes("clean", 8, by_setting(200, 2000));
}

#[test]
fn plans_that_are_made_and_dropped_leave_nothing() {
    // The warm-up has each of the 37 shapes in it: the largest of them sets the peak.
    passes("shapes", 1, by_setting(120, 1000));
}

#[test]
fn modules_that_are_loaded_and_unloaded_leave_nothing() {
    // With jemalloc for as long as its threads' caches settle.
    passes("load", 4, by_setting(200, 2000));
}

#[test]
fn processes_with_arenas_leave_nothing_in_their_parent() {
    passes("processes", 1, by_setting(90, 1000));
}

/// A leak of a hundredth of what a round's large blocks have together, as growth of what is resident.
fn is_found(options: &[&str], rounds: u64, threads: u64) {
    let (ended, figures) = judged(options, rounds, threads, "leak", GROWS);
    assert!(ended.err().contains("stepalloc: VmRSS grows by +"), "{}", ended.err());
    // Thirty blocks of 40,000 + 9,000 i bytes each, a hundredth of them.
    let planted = threads as f64 * (0..30).map(|i| 40_000.0 + 9_000.0 * f64::from(i)).sum::<f64>() / 100.0;
    // A part of it lies in memory that was kept free anyway.
    let verdict = of(&figures, "VmRSS");
    let per_round = verdict["per_round"].as_f64().expect("a number");
    assert!(verdict["grows"] == true && (0.4..2.0).contains(&(per_round / planted)), "{planted}: {verdict}");
    assert_eq!(of(&figures, "descriptors")["grows"], false);
    assert_eq!(of(&figures, "threads")["grows"], false);
    count("leaks", "planted leaks", 1);
}

#[test]
fn a_leak_of_one_percent_a_round_is_found_over_each_backend() {
    for backend in BACKENDS {
        is_found(&["--backend", backend], by_setting(100, 400), 1);
        // Beside it plans of threads come and go, which are a fifth of what is resident.
        is_found(&["--backend", backend], by_setting(200, 400), 8);
    }
}

#[test]
fn without_the_library_the_same_is_found_and_the_same_passes() {
    is_found(&["--plain"], by_setting(100, 400), 8);
    let (_, figures) = judged(&["--plain"], by_setting(60, 300), 8, "clean", 0);
    assert_eq!((&figures["plain"], &figures["statistics"]), (&Value::Bool(true), &Value::Null));
}

#[test]
fn descriptors_and_threads_that_stay_are_found() {
    let (_, figures) = judged(&[], 90, 1, "things", GROWS);
    for quantity in ["descriptors", "threads"] {
        let verdict = of(&figures, quantity);
        let per_round = verdict["per_round"].as_f64().expect("a number");
        assert!(verdict["grows"] == true && (0.9..1.1).contains(&per_round), "{verdict}");
    }
    // A thread's stack is two mappings, which are no reason to call out with the library.
    assert_eq!(of(&figures, "mappings")["grows"], false);
    let (_, plain) = judged(&["--plain"], 90, 1, "things", GROWS);
    assert_eq!(of(&plain, "mappings")["grows"], true);
}

#[test]
fn the_programs_output_passes_unharmed() {
    // Every byte, lines without ends, and more than a pipe holds.
    let script = r"
import os, sys, time
data = bytes(range(256)) * 2000 + b'\nround 0'
sys.stdout.buffer.write(data)
sys.stdout.buffer.flush()
os.write(2, b'to standard error\n')
for i in range(70):
    sys.stdout.buffer.write(b'\nround ' + bytes([i, 0, 255]))
    sys.stdout.buffer.flush()
    time.sleep(0.008)
";
    let ended = process::finish(&mut leaks(&["--quiet", "--line", "round "], &["python3", "-c", script]));
    let mut expected = (0..=255u8).cycle().take(512_000).collect::<Vec<u8>>();
    expected.extend_from_slice(b"\nround 0");
    (0..70).for_each(|i| expected.extend_from_slice(&[b"\nround ", [i, 0, 255].as_slice()].concat()));
    let ended = ended.with_status(0);
    assert!(ended.out == expected, "{} bytes of {}", ended.out.len(), expected.len());
    assert_eq!(ended.err, b"to standard error\n");
}

#[test]
fn a_clock_serves_where_the_program_says_nothing_and_ends_it_in_time() {
    let ended = process::finish(&mut leaks(
        &["--every", "0.01", "--rounds", "40", "--json", "-", "--plain"],
        &["sleep", "60"],
    ));
    let ended = ended.with_status(0);
    let figures: Value = serde_json::from_str(ended.out()).expect("JSON");
    assert_eq!((&figures["rounds"], &figures["ended_by_us"]), (&40.into(), &true.into()));
    assert_eq!(figures["signal"], libc::SIGTERM);
    assert_eq!(figures["samples"].as_array().expect("samples").len(), 40);
}

#[test]
fn the_programs_failure_is_told_and_is_no_verdict() {
    let ended = process::finish(&mut leaks(&["--line", "x"], &["sh", "-c", "echo x; exit 7"]));
    let ended = ended.with_status(FAILED);
    assert_eq!(ended.out(), "x\n");
    assert!(ended.err().contains("the program ended with status 7"), "{}", ended.err());
    let ended = process::finish(&mut leaks(&["--line", "x"], &["sh", "-c", "kill -USR2 $$"]));
    let ended = ended.with_status(128 + libc::SIGUSR2);
    assert!(ended.err().contains("signal 12 ended the program"), "{}", ended.err());
    process::finish(&mut leaks(&["--line", "x"], &["/nowhere/at/all"])).with_status(127);
    process::finish(&mut leaks(&["--line", "x"], &["/etc/passwd"])).with_status(126);
}

#[test]
fn what_is_missing_is_told_with_what_to_do() {
    let said = |options: &[&str], program: &[&str]| -> String {
        let ended = process::finish(&mut leaks(options, program)).with_status(USAGE);
        ended.err().to_owned()
    };
    let error = said(&["--line", "round"], &["echo", "hello"]);
    assert!(error.contains("began with \"round\"; check the word, have the program flush"), "{error}");
    let error = said(&["--line", "hello"], &["echo", "hello"]);
    assert!(error.contains("at least 20 are needed; give the program more rounds"), "{error}");
    let error = said(&["--every", "60"], &["true"]);
    assert!(error.contains("give a smaller --every"), "{error}");
    assert!(said(&[], &["true"]).contains("--line <WORD>|--every <SECONDS>"));
    assert!(said(&["--every", "0"], &["true"]).contains("expected 0.001 to 86400"));
    assert!(
        said(&["--line", "x", "--plain", "--backend", "glibc"], &["true"]).contains("cannot be used with")
    );
}

#[test]
fn an_interrupt_ends_the_program_and_what_was_seen_is_told() {
    let program = "i=0; while :; do i=$((i + 1)); echo round $i; sleep 0.01; done";
    let mut command = leaks(&["--line", "round"], &["sh", "-c", program]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let seen = lines.by_ref().map(|line| line.expect("text")).find(|line| line == "round 50");
    assert!(seen.is_some());
    // SAFETY: a plain system call; the child is not waited for yet.
    unsafe { libc::kill(child.id().cast_signed(), libc::SIGINT) };
    let rest = std::thread::spawn(move || lines.count());
    let ended = process::await_end(child, "stepalloc leaks");
    rest.join().expect("reading does not panic");
    let ended = ended.with_status(128 + libc::SIGINT);
    assert!(ended.err().contains("VmRSS") && ended.err().contains("signal 2 ended"), "{}", ended.err());
}

#[test]
fn a_reader_that_goes_away_ends_the_program_as_without_us() {
    let script = format!(
        "'{}' leaks --plain --line y -- yes 2>&1 >/dev/full | grep -c 'standard output cannot be written'; \
         '{0}' leaks --plain --line y -- yes 2>/dev/null | head -n 1",
        stepalloc_tests::built().join("stepalloc").display()
    );
    let ended = process::finish(process::command("sh").args(["-c", &script])).with_status(0);
    assert_eq!(ended.out(), "1\ny\n");
}
