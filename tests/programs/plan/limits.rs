//! How far `stepalloc plan` goes: capacities, time limits, Ctrl-C, and what must not change the plan.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{checked_height, file, plan, rows, text};
use crate::process;

/// A circle of 3 events on which every two of three blocks meet, though no event sees all three: 20 bytes are alive at
/// the worst moment, and 30 are needed.
const TRIANGLE: &str = "id,lower,upper,size\na,0,2,10\nb,1,3,10\nc,2,4,10\n";
/// The period of [`hard`].
const PERIOD: &str = "60";
/// More than any of these tests waits.
const LONG: &str = "600";
/// A search looks up every few milliseconds; on a busy machine, that may take a while.
const SOON: Duration = Duration::from_secs(30);

/// Buffers by chance, but the same everywhere.
fn buffers(count: u64, mut seed: u64, events: u64, longest: u64) -> String {
    // Knuth's MMIX generator.
    let mut below = |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % bound
    };
    let mut text = "id,lower,upper,size\n".to_owned();
    for id in 0..count {
        let (lower, length, size) = (below(events), 1 + below(longest), 1 + below(1_000));
        text += &format!("{id},{lower},{},{size}\n", lower + length);
    }
    text
}

/// Buffers on a circle of [`PERIOD`] events whose load no plan is known to reach: planned without end.
fn hard() -> String {
    buffers(300, 1, 60, 40)
}

/// Buffers that the search plans to their load at once.
fn searched() -> String {
    buffers(300, 1, 60, 30)
}

/// The height of the plan in this file, checked.
fn height(solution: &Path, period: Option<u64>) -> u64 {
    let solved = rows(&std::fs::read_to_string(solution).expect("a solution"));
    checked_height(&solved.values().collect::<Vec<_>>(), period)
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("figures")).expect("JSON")
}

#[test]
fn a_plan_within_the_capacity_is_valid_and_no_higher() {
    let (directory, input) = file(searched());
    let output = directory.path().join("solution.csv");
    let bound = super::figures(&input)["lower_bound"].as_u64().expect("a number");
    for capacity in [bound, bound + bound / 100, 2 * bound] {
        plan(&input, &["--capacity", &capacity.to_string(), "--output", text(&output)]).with_status(0);
        assert!((bound..=capacity).contains(&height(&output, None)), "{capacity}");
    }
}

#[test]
fn a_capacity_below_the_load_is_status_3() {
    let (directory, input) = file("id,lower,upper,size\na,0,2,10\nb,1,3,10\n");
    let output = directory.path().join("solution.csv");
    for capacity in ["0", "19"] {
        let options = ["--output", text(&output), "--json", "-", "--capacity", capacity];
        let ended = plan(&input, &options).with_status(3);
        let said = format!("stepalloc: no plan fits into {capacity} bytes: every one needs 20 at least");
        assert_eq!(ended.ours(), [said]);
        let told: Value = serde_json::from_str(ended.out()).expect("JSON");
        assert_eq!((&told["lower_bound"], &told["proof"]), (&20.into(), &"load_bound".into()), "{told}");
        assert!(!output.exists(), "a plan that does not fit was written");
    }
    std::fs::write(&output, "older").expect("written");
    plan(&input, &["--output", text(&output), "--capacity", "19"]).with_status(3);
    assert_eq!(
        std::fs::read_to_string(&output).expect("read"),
        "older",
        "a plan that does not fit was written"
    );
    plan(&input, &["--output", text(&output), "--capacity", "20"]).with_status(0);
    assert_eq!(height(&output, None), 20);
}

#[test]
fn a_capacity_above_the_load_that_no_plan_meets_is_proven_by_search() {
    let (directory, input) = file(TRIANGLE);
    let output = directory.path().join("solution.csv");
    let options = ["--period", "3", "--output", text(&output), "--json", "-", "--capacity"];
    let ended = plan(&input, &[&options[..], &["29"]].concat()).with_status(3);
    assert_eq!(ended.ours(), ["stepalloc: no plan fits into 29 bytes: every one needs 30 at least"]);
    let told: Value = serde_json::from_str(ended.out()).expect("JSON");
    assert_eq!((&told["lower_bound"], &told["proof"]), (&30.into(), &"search".into()), "{told}");
    assert!(!output.exists(), "a plan that does not fit was written");
    plan(&input, &[&options[..], &["30"]].concat()).with_status(0);
    assert_eq!(height(&output, Some(3)), 30);
}

#[test]
fn a_capacity_that_is_not_decided_in_time_is_status_3_and_says_so() {
    let (directory, input) = file(hard());
    let (output, figures) = (directory.path().join("solution.csv"), directory.path().join("figures"));
    let options =
        ["--period", PERIOD, "--output", text(&output), "--json", text(&figures), "--time-limit", "0.1"];
    plan(&input, &options).with_status(0);
    let bound = json(&figures)["lower_bound"].to_string();
    std::fs::remove_file(&output).expect("a solution");
    let ended = plan(&input, &[&options[..], &["--capacity", &bound]].concat()).with_status(3);
    let [said] = ended.ours()[..] else { panic!("not one line: {}", ended.err()) };
    assert!(said.contains("one may exist") && said.contains("a longer --time-limit"), "{said}");
    let told = json(&figures);
    assert!(told["optimal"] == false && told["proof"].is_null(), "{told}");
    assert!(!output.exists(), "a plan that does not fit was written");
}

#[test]
fn threads_do_not_change_the_plan() {
    let (_directory, input) = file(searched());
    let options = ["--output", "-", "--threads"];
    let one = plan(&input, &[&options[..], &["1"]].concat()).with_status(0);
    assert!(one.err().contains("found by     search"), "the search had nothing to do: {}", one.err());
    for threads in ["2", "4"] {
        let more = plan(&input, &[&options[..], &[threads]].concat()).with_status(0);
        assert_eq!(one.out(), more.out(), "{threads} threads");
    }
}

#[test]
fn a_seed_gives_the_same_plan_again_and_another_seed_another_one() {
    // Not the first search finds this plan, so that chance has a say.
    let (directory, input) = file(buffers(30, 6, 12, 9));
    let output = directory.path().join("solution.csv");
    let planned = |seed: &str| {
        plan(&input, &["--period", "12", "--seed", seed, "--output", text(&output)]).with_status(0);
        let height = height(&output, Some(12));
        (std::fs::read_to_string(&output).expect("a solution"), height)
    };
    let plans = ["0", "1", "18446744073709551615"].map(|seed| {
        assert_eq!(planned(seed), planned(seed), "seed {seed}");
        planned(seed)
    });
    assert!(plans[0] != plans[1] || plans[0] != plans[2], "the seed changes nothing");
}

#[test]
fn a_time_limit_ends_the_search_with_a_valid_plan() {
    let (directory, input) = file(hard());
    let (output, figures) = (directory.path().join("solution.csv"), directory.path().join("figures"));
    for limit in ["0.000001", "1"] {
        let start = Instant::now();
        let options =
            ["--period", PERIOD, "--output", text(&output), "--json", text(&figures), "--time-limit", limit];
        plan(&input, &options).with_status(0);
        assert!(start.elapsed() < SOON, "a limit of {limit} s took {:?}", start.elapsed());
        assert_eq!(height(&output, Some(60)), json(&figures)["height"], "{limit}");
    }
}

/// Starts `stepalloc plan` on what it would not finish, and waits until it takes signals: until then they end it as they
/// end any program.
fn started(input: &Path, options: &[&str]) -> Child {
    let mut command: Command = process::stepalloc(["plan"]);
    command.arg(input).args(["--period", PERIOD, "--time-limit", LONG]).args(options);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("started");
    let start = Instant::now();
    while !catches_interrupts(&child) {
        if start.elapsed() > SOON {
            let _ = child.kill();
            let _ = child.wait();
            panic!("SIGINT is not caught");
        }
        thread::sleep(Duration::from_millis(3));
    }
    child
}

/// Whether the process has a handler for SIGINT.
fn catches_interrupts(child: &Child) -> bool {
    let status = format!("/proc/{}/status", child.id());
    let text = std::fs::read_to_string(status).expect("a process has a status");
    let mask = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("signals caught");
    let mask = u64::from_str_radix(mask.trim(), 16).expect("a mask");
    mask & (1 << (libc::SIGINT - 1)) != 0
}

fn send(child: &Child, signal: i32) {
    // SAFETY: kill takes any numbers, and the child was not waited for, so that its number is its own.
    assert_eq!(unsafe { libc::kill(child.id().cast_signed(), signal) }, 0);
}

#[test]
fn ctrl_c_ends_a_long_search_with_the_best_plan_written_whole() {
    let (directory, input) = file(hard());
    let (output, figures) = (directory.path().join("solution.csv"), directory.path().join("figures"));
    for threads in ["1", "2"] {
        let options = ["--output", text(&output), "--json", text(&figures), "--threads", threads];
        let child = started(&input, &options);
        // Whatever was found by then, at once or after a while.
        thread::sleep(Duration::from_millis(200));
        let start = Instant::now();
        send(&child, libc::SIGINT);
        let ended = process::await_end(child, "stepalloc plan").with_status(0);
        assert!(start.elapsed() < SOON, "it took {:?}", start.elapsed());
        assert_eq!(ended.ours(), ["stepalloc: interrupted: this is the best plan so far"]);
        let told = json(&figures);
        assert_eq!(rows(&std::fs::read_to_string(&output).expect("a solution")).len(), 300);
        assert_eq!(height(&output, Some(60)), told["height"], "{told}");
    }
}

#[test]
fn ctrl_c_before_the_capacity_is_met_is_status_3() {
    let (directory, input) = file(hard());
    let output = directory.path().join("solution.csv");
    // Below any plan of these that was ever found, above their load.
    let child = started(&input, &["--output", text(&output), "--capacity", "65000"]);
    send(&child, libc::SIGINT);
    let ended = process::await_end(child, "stepalloc plan").with_status(3);
    assert!(ended.ours().iter().any(|said| said.contains("no plan within 65000 bytes")), "{}", ended.err());
    assert!(!output.exists(), "a plan that does not fit was written");
}

#[test]
fn a_search_that_is_killed_leaves_no_file_behind() {
    let (directory, input) = file(hard());
    let (output, figures) = (directory.path().join("solution.csv"), directory.path().join("figures"));
    let child = started(&input, &["--output", text(&output), "--json", text(&figures)]);
    send(&child, libc::SIGKILL);
    process::await_end(child, "stepalloc plan").with_status(128 + libc::SIGKILL);
    assert!(!output.exists() && !figures.exists());
}
