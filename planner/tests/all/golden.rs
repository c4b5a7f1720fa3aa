//! The traces and instances in `shared/`, where they are at hand: every plan is valid and as low as promised.

use std::path::{Path, PathBuf};

use stepalloc_planner::{Planner, read_any, verify};

/// A file of `shared/`, or `None` with a line that says so.
fn shared(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared").join(name);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: {} is not here", path.display());
    None
}

/// Plans a file and checks the plan; returns height, lower bound and ratio.
fn plan(path: &Path, min_bytes: u64) -> (u64, u64, f64) {
    let input = read_any(path, min_bytes).expect("a shared file");
    let plan = Planner::new().plan(input.problem()).expect("a sound problem");
    assert_eq!(verify(input.problem(), &plan.offsets, plan.height), Ok(()), "{}", path.display());
    (plan.height, plan.lower_bound, plan.ratio())
}

#[test]
fn every_trace_is_planned_within_two_percent() {
    let Some(folder) = shared("traces") else { return };
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "gz") {
            for min_bytes in [4096, 32768] {
                let (.., ratio) = plan(&path, min_bytes);
                assert!(ratio <= 1.02, "{} from {min_bytes} bytes: {ratio}", path.display());
            }
        }
    }
}

#[test]
fn training_loops_are_planned_to_the_load() {
    for name in ["torch_mlp_train", "torch_transformer_train", "torch_convnet_train"] {
        let Some(path) = shared(&format!("traces/{name}.csv.gz")) else { return };
        for min_bytes in [4096, 32768] {
            let (height, bound, _) = plan(&path, min_bytes);
            assert_eq!(height, bound, "{name} from {min_bytes} bytes");
        }
    }
}

#[test]
fn the_loads_of_the_instances_are_as_published() {
    let known = [
        ("A.1048576.csv", 1_048_576),
        ("B.1048576.csv", 1_048_576),
        ("C.1048576.csv", 1_039_360),
        ("D.1048576.csv", 986_112),
        ("E.1048576.csv", 1_048_576),
        ("F.1048576.csv", 1_048_576),
        ("resnet50.csv", 1_515_472_556),
        ("S_1.csv.gz", 1_498_635_932),
    ];
    for (name, load) in known {
        let Some(path) = shared(&format!("instances/{name}")) else { return };
        let input = read_any(path, 0).expect("a shared file");
        assert_eq!(input.problem().load().max, load, "{name}");
        assert_eq!(input.problem().lower_bound().bytes, load, "{name}");
    }
}

#[test]
fn hard_instances_stay_within_a_fifth_of_the_load() {
    for name in ["A", "B", "C", "D", "E", "F"] {
        let Some(path) = shared(&format!("instances/{name}.1048576.csv")) else { return };
        let (.., ratio) = plan(&path, 0);
        assert!(ratio <= 1.2, "{name}: {ratio}");
    }
}

#[test]
fn large_graphs_are_planned_to_the_load() {
    for name in ["resnet50.csv", "S_1.csv.gz"] {
        let Some(path) = shared(&format!("instances/{name}")) else { return };
        let (height, bound, _) = plan(&path, 0);
        assert_eq!(height, bound, "{name}");
    }
}
