//! Bad settings cost one line each and nothing else; the statistics signal answers.

use crate::process::{self, Said, scenario};
use crate::shadow::Block;
use crate::test_name;
use stepalloc::{HugePages, Large, Settings};

/// A variable, values that are none for it, and the default as its line must name it.
const BAD: [(&str, &[&str], &str); 12] = [
    ("ENABLE_MEMORY_OPTIMIZATION", &["yes", "2", ""], "1"),
    ("START_STATISTIC_STEP", &["soon", "-1", "1.5", "18446744073709551616"], "100, or 0 of detected steps"),
    ("STABLE_STATISTIC_STEP", &["few", " 3"], "10, or two detected steps"),
    ("MAX_STATISTIC_STEP", &["", "1e3"], "100"),
    ("STEPALLOC_MIN_BYTES", &["32k", "1023"], "32768"),
    ("STEPALLOC_MAX_ARENA", &["-5", "1GiB"], "no limit"),
    ("STEPALLOC_HUGEPAGES", &["true", "-1"], "where all of the memory is there anyway"),
    ("STEPALLOC_POPULATE", &["2"], "0"),
    ("STEPALLOC_IDLE", &["1.5", "10s"], "10"),
    ("STEPALLOC_LARGE", &["", "glibc", "1"], "heap"),
    ("STEPALLOC_STATS_SIGNAL", &["USR3", "", "SIGKILL", "10"], "no signal"),
    ("STEPALLOC_BACKEND", &["tcmalloc", "", "GLIBC"], "glibc"),
];

/// What the allocator said on standard error.
fn lines(said: &Said) -> Vec<&str> {
    said.err.lines().filter(|line| line.starts_with("stepalloc: ")).collect()
}

/// The line that a bad value must cost.
fn names(line: &str, variable: &str, value: &str, default: &str) -> bool {
    line.starts_with(&format!("stepalloc: {variable}={value}: "))
        && line.ends_with(&format!("default, {default}"))
}

#[test]
fn each_bad_setting_costs_one_line_and_the_default_is_used() {
    let name = test_name!(each_bad_setting_costs_one_line_and_the_default_is_used);
    if process::is_child(name) {
        return use_everything();
    }
    // All that is wrong is told at once.
    let mut wrong = Vec::new();
    for (variable, values, default) in BAD {
        for value in values {
            let said = process::run(name, &[(variable, value)]);
            let lines = lines(&said);
            if lines.len() != 1 || !names(lines[0], variable, value, default) {
                wrong.push(format!("{variable}={value}: {lines:?}"));
            }
        }
    }
    let all: Vec<_> = BAD.iter().map(|&(variable, values, _)| (variable, values[0])).collect();
    let said = process::run(name, &all);
    let lines = lines(&said);
    let told = |&(variable, values, default): &(&str, &[&str], &str)| {
        lines.iter().any(|line| names(line, variable, values[0], default))
    };
    if lines.len() != BAD.len() || !BAD.iter().all(told) {
        wrong.push(format!("all at once: {lines:?}"));
    }
    assert!(
        wrong.is_empty(),
        "one line that names variable, value and default was expected:\n{}",
        wrong.join("\n")
    );
}

/// Whatever reads a setting, more than once; then what is in effect.
fn use_everything() {
    for _ in 0..3 {
        stepalloc::boundary();
        Block::new(50_000, 1, false).and_then(Block::free).expect("memory");
        assert_eq!(Settings::from_environment(), Settings::DEFAULT);
    }
    assert_eq!(stepalloc::statistics().backend, "glibc");
    assert_eq!(stepalloc::statistics().steps, 3);
}

#[test]
fn values_of_any_bytes_cost_one_line_and_no_more() {
    let name = test_name!(values_of_any_bytes_cost_one_line_and_no_more);
    if process::is_child(name) {
        return use_everything();
    }
    let long = "7".repeat(5_000);
    for value in [long.as_str(), "%s%n", "\u{e9}\u{4e2d}\u{1f600}", "{}"] {
        let said = process::run(name, &[("START_STATISTIC_STEP", value)]);
        let lines = lines(&said);
        assert!(lines.len() == 1 && lines[0].len() < 400, "{lines:?}");
        assert!(
            lines[0].contains("START_STATISTIC_STEP")
                && lines[0].ends_with("default, 100, or 0 of detected steps"),
            "{}",
            lines[0]
        );
    }
}

#[test]
fn good_settings_are_used_and_cost_no_line() {
    let settings = [
        ("ENABLE_MEMORY_OPTIMIZATION", "1"),
        ("START_STATISTIC_STEP", "7"),
        ("STABLE_STATISTIC_STEP", "0"),
        ("MAX_STATISTIC_STEP", "18446744073709551615"),
        ("STEPALLOC_MIN_BYTES", "4096"),
        ("STEPALLOC_MAX_ARENA", "1048576"),
        ("STEPALLOC_HUGEPAGES", "1"),
        ("STEPALLOC_POPULATE", "1"),
        ("STEPALLOC_IDLE", "60"),
        ("STEPALLOC_LARGE", "backend"),
        ("STEPALLOC_STATS_SIGNAL", "SIGUSR2"),
        ("STEPALLOC_BACKEND", "mimalloc"),
    ];
    let said = scenario(test_name!(good_settings_are_used_and_cost_no_line), &settings, || {
        for _ in 0..12 {
            stepalloc::boundary();
            Block::new(50_000, 1, false).and_then(Block::free).expect("memory");
        }
        let expected = Settings {
            enabled: true,
            start_step: Some(7),
            stable_steps: Some(0),
            max_steps: u64::MAX,
            min_bytes: 4096,
            max_arena: 1 << 20,
            huge_pages: HugePages::Always,
            populate: true,
            idle_seconds: 60,
            large: Large::Backend,
        };
        assert_eq!(Settings::from_environment(), expected);
        let statistics = stepalloc::statistics();
        assert_eq!((statistics.backend, statistics.planned_at_step), ("mimalloc", Some(9)));
    });
    if let Some(said) = said {
        assert_eq!(lines(&said), [""; 0]);
    }
}

#[test]
fn the_statistics_signal_prints_one_line_of_json_each_time() {
    /// Signals sent while two threads allocate and end steps.
    const SIGNALS: usize = 200;
    let name = test_name!(the_statistics_signal_prints_one_line_of_json_each_time);
    let settings =
        [("STEPALLOC_STATS_SIGNAL", "USR1"), ("START_STATISTIC_STEP", "3"), ("STABLE_STATISTIC_STEP", "2")];
    let said = scenario(name, &settings, || {
        let work = || {
            stepalloc::boundary();
            Block::new(50_000, 1, false).and_then(Block::free).expect("memory");
        };
        (0..20).for_each(|_| work());
        // SAFETY: the handler of the allocator is installed since the first boundary.
        unsafe { libc::raise(libc::SIGUSR1) };
        let ended = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                        work();
                    }
                });
            }
            for _ in 0..SIGNALS {
                // SAFETY: as above; whichever thread is running may be interrupted.
                unsafe { libc::kill(libc::getpid(), libc::SIGUSR1) };
                std::thread::sleep(std::time::Duration::from_micros(300));
            }
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        // SAFETY: as above.
        unsafe { libc::raise(libc::SIGUSR1) };
    });
    let Some(said) = said else { return };
    let mut lines = said.err.lines();
    let quiet = |line: Option<&str>| -> serde_json::Value {
        serde_json::from_str(line.expect("an answer")).expect("a line of JSON in a quiet moment")
    };
    let (first, last) = (quiet(lines.next()), quiet(lines.next_back()));
    assert_eq!(
        (&first["phase"], &first["steps"], &first["backend"]),
        (&"planned".into(), &20.into(), &"glibc".into())
    );
    assert_eq!(first["planned_at_step"], 7);
    assert!(first["last_steps"]["planned_allocations"].as_u64() > Some(0), "{first}");
    assert!(last["steps"].as_u64() > Some(20), "{last}");
    // Meanwhile one line each: statistics, or, where a boundary was interrupted, the advice to ask again. Signals of one
    // number that are pending together are one.
    let (mut answers, mut busy) = (0, 0);
    for line in lines {
        match serde_json::from_str::<serde_json::Value>(line) {
            // Two threads that race for one slot may have the plan left meanwhile.
            Ok(answer) if answer["steps"].as_u64() >= Some(20) && answer["phase"].is_string() => answers += 1,
            _ if line.contains("ask again") => busy += 1,
            _ => panic!("neither statistics nor an excuse: {line}"),
        }
    }
    println!("{answers} answers, {busy} at a boundary");
    assert!((1..=SIGNALS).contains(&(answers + busy)));
}
