//! Every target over its corpus, and over so many damaged copies of it as the suite's setting allows.
//!
//! Each target runs in a process of its own: one that crashes, hangs or takes all memory is seen to do so, and the allocator's
//! engine and the environment are its alone. Before a target sees an input, that is written to `target/tmp/NAME.now`; where it
//! goes wrong, it is kept beside that, and the failure says how to run it again.

#[path = "../../lib/setting.rs"]
mod setting;

use setting::{by_setting, count, seed};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use stepalloc_targets::mutation::{Random, damaged};
use stepalloc_targets::{TARGETS, Target};

/// Says to a process that it is a child, and of which target.
const CHILD: &str = "SUITE_TARGET";
/// An input to run a target on, alone.
const INPUT: &str = "SUITE_INPUT";
/// One input may take so long: on a machine that has much else to do, programs of operations have taken seven seconds.
const LONGEST: Duration = Duration::from_secs(60);
/// A damaged file that is right as often as not makes the long setting long enough.
const LONG_TIMES: u64 = 40;

/// Damaged files of each target with the quick setting: those that take a millisecond are fewer.
const ROUNDS: &[(&str, u64)] = &[
    ("buffers", 40_000),
    ("onnx", 60_000),
    ("openvino", 20_000),
    ("operations", 150),
    ("period", 6_000),
    ("plan_file", 10_000),
    ("recording", 16_000),
    ("settings", 25_000),
    ("sizes", 50_000),
    ("steps", 2_000),
    ("tensor", 60_000),
    ("trace", 40_000),
];

#[test]
fn every_target_has_its_rounds_and_its_corpus() {
    assert!(TARGETS.iter().map(|target| target.0).eq(ROUNDS.iter().map(|rounds| rounds.0)));
    for (name, _) in TARGETS {
        assert!(!corpus(name).is_empty(), "tests/corpus/{name} is empty");
    }
}

macro_rules! bounded {
    ($($name:ident),*) => {
        $(#[test]
        fn $name() {
            hold(stringify!($name));
        })*
    };
}

bounded!(
    buffers, onnx, openvino, operations, period, plan_file, recording, settings, sizes, steps, tensor, trace
);

/// Files to begin with, by their paths.
fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus").join(name);
    let mut paths: Vec<PathBuf> = fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.expect("a directory can be read").path())
        .collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(&path).expect("a file can be read"))).collect()
}

/// The place for inputs that go wrong.
fn kept(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Runs a target in a process of its own, which is this test again, and says what went wrong.
fn hold(name: &str) {
    if std::env::var(CHILD).is_ok_and(|child| child == name) {
        return run(name);
    }
    let now = kept(&format!("{name}.now"));
    let began = Instant::now();
    let child = Command::new(std::env::current_exe().expect("a test knows its own path"))
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, name)
        .env("SUITE_SEED", seed().to_string())
        .stdin(Stdio::null())
        .output()
        .expect("this test can be run again");
    let said = String::from_utf8_lossy(&child.stdout);
    let figure = |what: &str| -> Option<u64> {
        said.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix('=')?.parse().ok())
    };
    if let (true, Some(inputs)) = (child.status.success(), figure("inputs")) {
        println!(
            "{name}: {inputs} inputs in {:.1} s, the longest {} ms",
            began.elapsed().as_secs_f64(),
            figure("ms").unwrap_or(0)
        );
        count("fuzz", "seeds", inputs);
        return;
    }
    let input = fs::read(&now).unwrap_or_default();
    let sum = input
        .iter()
        .fold(0xCBF2_9CE4_8422_2325u64, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3));
    let path = kept(&format!("{name}-{sum:016x}"));
    fs::write(&path, &input).expect("a file can be written");
    let errors = String::from_utf8_lossy(&child.stderr);
    let errors: String = errors.chars().take(4000).collect();
    panic!(
        "{name}: {} on {}\n{errors}\nIt came of SUITE_SEED={}; run it again with\n  \
         {INPUT}={} cargo test --release -p stepalloc-targets --test bounded -- --exact {name}",
        child.status,
        path.display(),
        seed(),
        path.display(),
    );
}

/// Runs a target over its inputs; ends the process where one takes too long.
fn run(name: &str) {
    let (_, target) = TARGETS.iter().find(|target| target.0 == name).expect("tests are named as targets");
    let now = fs::File::create(kept(&format!("{name}.now"))).expect("a file can be written");
    let mut watched = Watched::new(*target, now);
    if let Some(path) = std::env::var_os(INPUT) {
        watched.run(&fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())));
    } else {
        let corpus: Vec<Vec<u8>> = corpus(name).into_iter().map(|(_, bytes)| bytes).collect();
        corpus.iter().for_each(|file| watched.run(file));
        let (_, rounds) = ROUNDS.iter().find(|rounds| rounds.0 == name).expect("each target has its rounds");
        let mut random = Random::new(seed());
        for _ in 0..by_setting(*rounds, *rounds * LONG_TIMES) {
            watched.run(&damaged(&corpus, &mut random));
        }
    }
    println!("\ninputs={}\nms={}", watched.inputs, watched.longest.as_millis());
}

/// Inputs run one after the other.
struct Watched {
    target: Target,
    /// Holds the input that is run.
    now: fs::File,
    inputs: u64,
    longest: Duration,
}

/// The number of the input that runs, for who looks whether it ends.
static RUNNING: AtomicU64 = AtomicU64::new(0);

impl Watched {
    fn new(target: Target, now: fs::File) -> Watched {
        std::thread::spawn(|| {
            let (mut seen, mut since) = (0, Instant::now());
            loop {
                std::thread::sleep(Duration::from_millis(200));
                let running = RUNNING.load(Relaxed);
                if running != seen {
                    (seen, since) = (running, Instant::now());
                } else if running > 0 && since.elapsed() > LONGEST {
                    eprintln!("an input takes longer than {LONGEST:?}");
                    std::process::abort();
                }
            }
        });
        Watched { target, now, inputs: 0, longest: Duration::ZERO }
    }

    fn run(&mut self, input: &[u8]) {
        self.now
            .write_all_at(input, 0)
            .and_then(|()| self.now.set_len(input.len() as u64))
            .expect("a file can be written");
        self.inputs += 1;
        RUNNING.store(self.inputs, Relaxed);
        let began = Instant::now();
        (self.target)(input);
        self.longest = self.longest.max(began.elapsed());
    }
}
