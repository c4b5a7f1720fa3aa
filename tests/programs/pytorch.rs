//! Unmodified PyTorch trainings, planned, over each backend.
//!
//! They need Debian's python3-torch. Where it is missing the tests say that they are skipped, unless
//! `STEPALLOC_REQUIRE_PYTORCH=1` asks for it.

use crate::{BACKENDS, process};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use stepalloc_tests::by_setting;

/// Debian's; others on the path do not see its packages.
pub const PYTHON: &str = "/usr/bin/python3";
/// Steps of a marked run with the quick setting, and with the long one. Its plan serves from the eighth or so.
const STEPS: (u64, u64) = (24, 40);
/// Bytes of the arena for each byte of the largest load.
const MOST_ARENA: f64 = 1.02;
/// The share of the planned bytes that the backend may serve.
const MOST_FALLBACK: f64 = 0.001;

/// Whether a test that cannot run for want of what it needs has failed.
pub fn required() -> bool {
    std::env::var_os("STEPALLOC_REQUIRE_PYTORCH").is_some_and(|value| value == "1")
}

/// Whether PyTorch is there; says that the test is skipped where not.
pub fn installed() -> bool {
    let there = Command::new(PYTHON).args(["-c", "import torch"]).output();
    let there = there.is_ok_and(|output| output.status.success());
    if !there {
        assert!(
            !required(),
            "PyTorch is not installed (Debian: python3-torch), and STEPALLOC_REQUIRE_PYTORCH=1"
        );
        process::skip("PyTorch is not installed (Debian: python3-torch)");
    }
    there
}

/// The script to run, where it can be run.
fn script() -> Option<PathBuf> {
    if !installed() {
        return None;
    }
    let script = process::shared("workloads/torch_train.py");
    assert!(script.is_some() || !required(), "no shared data, and STEPALLOC_REQUIRE_PYTORCH=1");
    script
}

/// What the script prints at its end.
fn printed(command: &mut Command) -> Value {
    let ended = process::finish(command).with_status(0);
    let line = ended.out().lines().last().expect("a line");
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// Backends that a training runs over: each with the long setting, and with the quick one in the first training.
fn backends(workload: &str) -> &'static [&'static str] {
    let quick = if workload == "mlp" { BACKENDS.len() } else { 1 };
    &BACKENDS[..by_setting(quick as u64, BACKENDS.len() as u64) as usize]
}

fn train(workload: &str) {
    let Some(script) = script() else { return };
    let _alone = process::alone();
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("figures.json");
    let steps = by_setting(STEPS.0, STEPS.1).to_string();
    let arguments = [workload, "--mark", "--steps", &steps];
    let plain = printed(process::command(PYTHON).arg(&script).args(arguments));
    for &backend in backends(workload) {
        let mut command = process::stepalloc(["run", "--backend", backend, "--json"]);
        command.arg(&file).args(["--", PYTHON]).arg(&script).args(arguments);
        command.env("START_STATISTIC_STEP", "4").env("STABLE_STATISTIC_STEP", "3");
        let ours = printed(&mut command);
        assert_eq!(ours["loss"], plain["loss"], "{workload} over {backend}: another result");

        let json = std::fs::read_to_string(&file).expect("the figures were written");
        let process: Value = serde_json::from_str(json.lines().next().expect("a line")).expect("JSON");
        let figures = format!("{workload} over {backend}: {process}");
        let number = |path: &str| process.pointer(path).and_then(Value::as_f64).expect(path);
        println!(
            "{workload} over {backend}: planned at step {}, arena {:.4} x bound, faults {} to {}, fallback {} of {} bytes",
            process["planned_at_step"],
            number("/arena_bytes") / number("/lower_bound_bytes"),
            number("/last_steps/minor_faults_median"),
            number("/last_steps/minor_faults_max"),
            number("/last_steps/fallback_bytes"),
            number("/last_steps/planned_bytes"),
        );
        assert_eq!(process["phase"], "planned", "{figures}");
        assert_eq!(process["last_steps"]["minor_faults_median"], 0, "{figures}");
        let planned = number("/last_steps/planned_bytes");
        assert!(planned > 0.0, "{figures}");
        assert!(number("/last_steps/fallback_bytes") <= MOST_FALLBACK * planned, "{figures}");
        assert!(number("/arena_bytes") <= MOST_ARENA * number("/lower_bound_bytes"), "{figures}");
    }
}

#[test]
fn mlp_trains_alike_from_a_plan() {
    train("mlp");
}

#[test]
fn transformer_trains_alike_from_a_plan() {
    train("transformer");
}

#[test]
fn convnet_trains_alike_from_a_plan() {
    train("convnet");
}

/// Steps of a run whose plan is kept, and of the next one, with the quick setting and with the long one.
const STEPS_AGAIN: (u64, u64) = (20, 24);
/// Of these the first, in which the program is recognised, is not counted, nor the last, which no boundary ends.
const NOT_COUNTED: u64 = 2;
/// Bytes resident at most, in the whole run, for each that is resident at its end: what the heap had free before the plan goes back later.
const MOST_PEAK: f64 = 1.02;

/// Page faults in a step at most where tensors have none: in so few steps the backend's small blocks still come to pages that they
/// touch for the first time.
const FIRST_TOUCHED: f64 = 2.0;

/// Nothing is marked: the first run finds its steps, the next begins with their plan, over whichever backend. `alike` steps
/// of the program are one of the plan.
fn train_again(workload: &str, alike: u64, most_faults: f64) {
    let Some(script) = script() else { return };
    let _alone = process::alone();
    let directory = tempfile::tempdir().expect("a directory");
    let (file, plan) = (directory.path().join("figures.json"), directory.path().join("plan"));
    let whole_run = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/whole_run.py");
    let steps_again = by_setting(STEPS_AGAIN.0, STEPS_AGAIN.1);
    let run = |backend| {
        let mut command = process::stepalloc(["run", "--backend", backend, "--plan"]);
        command.arg(&plan).arg("--json").arg(&file).args(["--", PYTHON]).arg(&whole_run).arg(&script);
        let printed = printed(command.args([workload, "--steps", &steps_again.to_string()]));
        let json = std::fs::read_to_string(&file).expect("the figures were written");
        (printed, serde_json::from_str::<Value>(json.lines().next().expect("a line")).expect("JSON"))
    };
    let (first, figures) = run(BACKENDS[0]);
    assert_eq!((&figures["phase"], &figures["kept"]), (&"planned".into(), &false.into()), "{figures}");
    for &backend in backends(workload) {
        let (second, figures) = run(backend);
        assert_eq!(second["loss"], first["loss"], "{workload} over {backend}: another result");
        assert_eq!((&figures["phase"], &figures["kept"]), (&"planned".into(), &true.into()), "{figures}");
        let (peak, at_the_end) = (second["vm_hwm_mib"].as_f64(), second["vm_rss_mib"].as_f64());
        println!(
            "{workload} again over {backend}: peak {peak:?} MiB, at the end {at_the_end:?} MiB, {} steps",
            figures["steps"]
        );
        let steps = figures["steps"].as_u64();
        assert!(steps.is_some_and(|steps| steps >= steps_again / alike - NOT_COUNTED), "{figures}");
        let last = |name: &str| figures["last_steps"][name].as_f64().expect("a number");
        assert!(
            second["minor_faults_median"].as_f64().is_some_and(|faults| faults <= most_faults),
            "{second}"
        );
        assert!(last("fallback_bytes") <= MOST_FALLBACK * last("planned_bytes"), "{figures}");
        assert!(peak.zip(at_the_end).is_some_and(|(peak, end)| peak <= MOST_PEAK * end), "{second}");
    }
}

#[test]
fn mlp_trains_alike_from_a_kept_plan() {
    train_again("mlp", 1, FIRST_TOUCHED);
}

#[test]
fn transformer_trains_alike_from_a_kept_plan() {
    train_again("transformer", 1, FIRST_TOUCHED);
}

#[test]
fn convnet_trains_alike_from_a_kept_plan() {
    train_again("convnet", 1, FIRST_TOUCHED);
}

/// Its four lengths are one step of the plan; PyTorch's own caches still grow.
#[test]
fn varlen_trains_alike_from_a_kept_plan() {
    train_again("varlen", 4, 8.0);
}

/// Its sizes follow the data.
#[test]
fn recommender_trains_alike_from_a_kept_plan() {
    train_again("recommender", 1, 8.0);
}

/// Steps by which a program that marks nothing is planned. Of the workload of four lengths these are two passes over them.
const SOON: usize = 8;
/// Page faults of a step that a plan serves, at most: planning works in pages that are there.
const FEW_FAULTS: u64 = 150;
/// The same of a step in which it serves a length for the first time: one that nothing serves has 29,000.
const FRESH_FAULTS: u64 = 600;

/// The first steps of an unmodified training in which `lengths` lengths take turns.
fn first_steps(workload: &str, lengths: usize) {
    let Some(script) = script() else { return };
    let _alone = process::alone();
    let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/first_steps.py");
    let mut command = process::stepalloc(["run", "--backend", "glibc", "--", PYTHON]);
    command.arg(&driver).arg(&script).args([workload, "--steps", &(SOON + 2 * lengths + 2).to_string()]);
    // Threads that spin are interrupted for each page that is moved meanwhile, and the heap spares itself that by more pages.
    command.env("OPENBLAS_THREAD_TIMEOUT", "4");
    let steps = printed(&mut command);
    let steps: Vec<(u64, u64)> = serde_json::from_value(steps).expect("pairs");
    println!("{workload}: {steps:?}");
    let planned = steps.iter().position(|&(_, phase)| phase == 2).expect("a plan");
    assert!(planned < SOON, "{workload}: {steps:?}");
    // Until the plan has served each length once, blocks that the heap still serves, of up to a MiB, may lie on fresh pages.
    let (first, later) = steps[planned..].split_at(1 + lengths);
    assert!(first.iter().all(|&(faults, _)| faults <= FRESH_FAULTS), "{workload}: {steps:?}");
    assert!(later.iter().all(|&(faults, _)| faults <= FEW_FAULTS), "{workload}: {steps:?}");
}

#[test]
fn a_training_is_planned_within_its_first_steps() {
    first_steps("transformer", 1);
}

#[test]
fn sizes_that_follow_the_data_are_planned_within_the_first_steps() {
    first_steps("recommender", 1);
}

#[test]
fn lengths_that_take_turns_are_planned_within_two_passes() {
    first_steps("varlen", 4);
}
