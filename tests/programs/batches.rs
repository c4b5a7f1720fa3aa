//! A PyTorch training that changes its batch size again and again and marks nothing.

use crate::{process, pytorch};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::thread;
use stepalloc_tests::by_setting;

/// Steps of each batch size.
const STEPS: u64 = 50;
/// Steps of a size before which its plan must serve.
const SOON: u64 = 30;
/// Bytes resident after the last size at most, for each after the second, which is as large.
const MOST_RESIDENT: f64 = 1.02;

/// Page faults of most steps of a size that came again: its plan is found again late at times, and gaps serve it until then.
const MOST_FAULTS: f64 = 8.0;

/// What `batches.py` says of each size.
fn lines(command: &mut Command, sizes: &[u64]) -> Vec<Value> {
    let sizes: Vec<String> = sizes.iter().map(u64::to_string).collect();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/batches.py");
    let ended = process::finish(command.arg(script).arg(STEPS.to_string()).arg(sizes.join(",")));
    let ended = ended.with_status(0);
    let lines = ended.out().lines().map(|line| serde_json::from_str(line).expect("JSON"));
    lines.collect()
}

fn number(line: &Value, path: &str) -> u64 {
    line.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path} of {line}"))
}

/// What `batches.py` says with the library and without; the losses are the same.
fn with_and_without(sizes: &[u64]) -> Option<(Vec<Value>, Vec<Value>)> {
    if !pytorch::installed() {
        return None;
    }
    let _alone = process::alone();
    // One thread each.
    let (ours, plain) = thread::scope(|scope| {
        let plain = scope.spawn(|| lines(&mut process::command(pytorch::PYTHON), sizes));
        let ours = lines(&mut process::preloaded(pytorch::PYTHON, "glibc"), sizes);
        (ours, plain.join().expect("the training without the library"))
    });
    assert_eq!((ours.len(), plain.len()), (sizes.len(), sizes.len()));
    for (ours, plain) in ours.iter().zip(&plain) {
        assert_eq!(ours["loss"], plain["loss"], "another result: {ours}");
    }
    Some((ours, plain))
}

/// Batch sizes with the quick setting, and with the long one.
const SIZES: (u64, u64) = (16, 40);

/// Resident bytes depend on the batch size as well: so the second and the last are the largest, and within 1 % of each other.
#[test]
fn batch_sizes_that_change_are_planned_again_each_time() {
    let mut sizes: Vec<u64> = (0..by_setting(SIZES.0, SIZES.1)).map(|i| 256 + 33 * (i * 17 % 40)).collect();
    let last = sizes.len() - 1;
    (sizes[1], sizes[last]) = (1600, 1610);
    let Some((ours, plain)) = with_and_without(&sizes) else { return };
    let mut steps = 0;
    for line in &ours {
        assert!(line["planned_after"].as_u64().is_some_and(|after| after <= SOON), "{line}");
        // From then on the steps are found, and their memory is there.
        assert!(number(line, "/ours/steps") >= steps + STEPS - SOON, "{line}");
        assert_eq!(line["faults_median"], 0.0, "{line}");
        assert_eq!(number(line, "/ours/last_steps/fallback_bytes"), 0, "{line}");
        steps = number(line, "/ours/steps");
    }
    let grown =
        |lines: &[Value]| number(&lines[last], "/resident") as f64 / number(&lines[1], "/resident") as f64;
    let after = ours.iter().map(|line| number(line, "/planned_after"));
    println!(
        "planned after {:?} to {:?} steps; resident after the last size {:.4} x after the second (without the library {:.4} x)",
        after.clone().min(),
        after.max(),
        grown(&ours),
        grown(&plain),
    );
    assert!(grown(&ours) <= MOST_RESIDENT, "{:.4}", grown(&ours));
}

/// Sizes that come again find the arena's memory, by their plans or in gaps.
#[test]
fn batch_sizes_that_come_again_are_served_without_faults() {
    let sizes = [1000, 1600, 500, 1300].repeat(3);
    let Some((ours, _)) = with_and_without(&sizes) else { return };
    for line in &ours {
        assert!(line["faults_median"].as_f64().is_some_and(|faults| faults <= MOST_FAULTS), "{line}");
    }
    let again = ours.iter().skip(4).filter(|line| !line["planned_after"].is_null()).count();
    println!("{again} of the 8 sizes that came again were planned again");
    let grown = number(&ours[9], "/resident") as f64 / number(&ours[1], "/resident") as f64;
    assert!(grown <= MOST_RESIDENT, "{grown:.4}");
}
