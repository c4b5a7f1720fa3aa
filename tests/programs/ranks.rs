//! Programs of several processes that one launcher starts, as `torchrun` does.

use crate::{process, pytorch};
use serde_json::Value;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// Page faults of most steps: gloo's own threads have some.
const MOST_FAULTS: u64 = 4;

/// What each rank prints: its number and its loss.
fn losses(command: &mut Command) -> (Vec<String>, String) {
    let ended = process::finish(command).with_status(0);
    // torchrun writes whose line it is before each.
    let mut losses: Vec<String> =
        ended.out().lines().map(|line| line.rsplit(':').next().unwrap_or(line).to_owned()).collect();
    losses.sort();
    (losses, ended.err().to_owned())
}

#[test]
fn the_ranks_of_torchrun_plan_for_themselves_and_have_one_report() {
    if !pytorch::installed() {
        return;
    }
    let _alone = process::alone();
    let directory = tempfile::tempdir().expect("a directory");
    // Debian's torchrun with Python 3.11 fails unless the output of ranks is redirected, whatever is preloaded.
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/ranks.py");
    let words = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        "-r",
        "1",
        "-t",
        "1",
        "--log_dir",
    ];
    let mut arguments: Vec<OsString> = words.map(OsString::from).into();
    arguments.extend([directory.path().join("logs").into(), script.into()]);
    let plain = losses(process::command(pytorch::PYTHON).args(&arguments)).0;
    assert_eq!(plain.len(), 2, "{plain:?}");

    let (json, plan) = (directory.path().join("figures.json"), directory.path().join("rank-%r.plan"));
    for again in [false, true] {
        let mut command = process::stepalloc(["run", "--json"]);
        command.arg(&json).arg("--plan").arg(&plan).args(["--", pytorch::PYTHON]).args(&arguments);
        let (ours, _) = losses(&mut command);
        assert_eq!(ours, plain, "other losses");
        let text = std::fs::read_to_string(&json).expect("the figures were written");
        let all: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        for rank in 0..2 {
            let of_rank: Vec<&Value> = all.iter().filter(|process| process["rank"] == rank).collect();
            let [process] = of_rank[..] else { panic!("rank {rank}: not one object in {text}") };
            assert_eq!(
                (&process["phase"], &process["kept"]),
                (&"planned".into(), &again.into()),
                "{process}"
            );
            let faults = process["last_steps"]["minor_faults_median"].as_u64();
            assert!(faults.is_some_and(|faults| faults <= MOST_FAULTS), "{process}");
            assert_eq!(process["last_steps"]["fallback_bytes"], 0, "{process}");
        }
    }
    let (_, report) = losses(process::stepalloc(["run", "--", pytorch::PYTHON]).args(&arguments));
    for rank in ["rank 0: ", "rank 1: "] {
        assert_eq!(report.matches(rank).count(), 1, "{report}");
    }
}
