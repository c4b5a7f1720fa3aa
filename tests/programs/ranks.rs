//! Programs of several processes that one launcher starts, as `torchrun` and `mpirun` do.

use crate::{process, pytorch};
use serde_json::Value;
use std::ffi::OsString;
use std::net::TcpListener;
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

/// Runs two ranks without us, with us, and again from the plans of the first time.
fn two_ranks(program: &str, arguments: &[OsString], environment: &[(&str, &str)], directory: &Path) {
    let environment = environment.iter().copied();
    let plain = losses(process::command(program).args(arguments).envs(environment.clone())).0;
    assert_eq!(plain.len(), 2, "{plain:?}");

    let (json, plan) = (directory.join("figures.json"), directory.join("rank-%r.plan"));
    for again in [false, true] {
        let mut command = process::stepalloc(["run", "--json"]);
        command.arg(&json).arg("--plan").arg(&plan).args(["--", program]).args(arguments);
        let (ours, _) = losses(command.envs(environment.clone()));
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
    let mut command = process::stepalloc(["run", "--", program]);
    let (_, report) = losses(command.args(arguments).envs(environment));
    for rank in ["rank 0: ", "rank 1: "] {
        assert_eq!(report.matches(rank).count(), 1, "{report}");
    }
}

fn script() -> OsString {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/ranks.py").into()
}

#[test]
fn the_ranks_of_torchrun_plan_for_themselves_and_have_one_report() {
    if !pytorch::installed() {
        return;
    }
    let _alone = process::alone();
    let directory = tempfile::tempdir().expect("a directory");
    let launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"];
    // Debian's torchrun with Python 3.11 fails unless the output of ranks is redirected, whatever is preloaded.
    let redirected = ["-r", "1", "-t", "1", "--log_dir"];
    let mut arguments: Vec<OsString> = launcher.into_iter().chain(redirected).map(OsString::from).collect();
    arguments.extend([directory.path().join("logs").into(), script()]);
    two_ranks(pytorch::PYTHON, &arguments, &[], directory.path());
}

#[test]
fn the_ranks_of_mpirun_plan_for_themselves_and_have_one_report() {
    let installed = process::installed("mpirun");
    assert!(
        installed || !pytorch::required(),
        "no mpirun (Debian: openmpi-bin), and STEPALLOC_REQUIRE_PYTORCH=1"
    );
    if !installed || !pytorch::installed() {
        return;
    }
    let _alone = process::alone();
    let directory = tempfile::tempdir().expect("a directory");
    let meeting = TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).expect("a free port");
    let environment = [
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", &meeting.port().to_string()),
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ];
    let words = ["-n", "2", "--oversubscribe", "--bind-to", "none", pytorch::PYTHON];
    let mut arguments: Vec<OsString> = words.map(OsString::from).into();
    arguments.push(script());
    two_ranks("mpirun", &arguments, &environment, directory.path());
}
