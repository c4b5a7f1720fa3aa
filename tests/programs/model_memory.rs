//! What models cost in memory beside one run: loading, more sessions, other shapes, loading again, limits.
//!
//! The model is made by python3 with the package onnx, as for `model`.

use crate::BACKENDS;
use crate::model::{model, python};
use crate::process::{self, Ended, finish, stepalloc};
use serde_json::Value;
use std::path::PathBuf;
use tempfile::TempDir;

/// x [n, 1] times w [1, 64] and on, where n is open: n times 256 bytes are alive. Weights of 4 MB that are multiplied with the largest
/// of each column lie at whatever address the file gives them.
const MAKE: &str = "
import sys, numpy, onnx
from onnx import TensorProto, helper, numpy_helper
numbers = numpy.random.default_rng(1)
weights = [numpy_helper.from_array(numbers.random((1, 64), dtype='f'), 'w')]
nodes = [helper.make_node('Mul', ['x', 'w'], ['t']), helper.make_node('Exp', ['t'], ['e']),
         helper.make_node('ReduceMax', ['e'], ['m0'], axes=[0])]
for layer in range(64):
    weights.append(numpy_helper.from_array(numbers.random((64, 256), dtype='f'), 'a' * (layer + 1)))
    nodes.append(helper.make_node('MatMul', ['m0', 'a' * (layer + 1)], [f'p{layer}']))
nodes.append(helper.make_node('Sum', [f'p{layer}' for layer in range(64)], ['y']))
x = helper.make_tensor_value_info('x', TensorProto.FLOAT, ['n', 1])
y = helper.make_tensor_value_info('y', TensorProto.FLOAT, [1, 256])
graph = helper.make_graph(nodes, 'g', [x], [y], weights)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 13)], ir_version=9)
onnx.checker.check_model(model, full_check=True)
onnx.save(model, sys.argv[1])
";

/// The model in a directory; `None`, with a line, where it cannot be made.
fn made() -> Option<(TempDir, PathBuf)> {
    let Some(python) = python("onnx") else {
        let missing = "no python3 on the path has the package onnx (PyPI)";
        let required = std::env::var_os("STEPALLOC_REQUIRE_ONNX").is_some_and(|value| value == "1");
        assert!(!required, "{missing}, and STEPALLOC_REQUIRE_ONNX=1");
        process::skip(missing);
        return None;
    };
    let directory = TempDir::new().expect("a directory for temporary files");
    let path = directory.path().join("model.onnx");
    finish(process::command(python).args(["-c", MAKE]).arg(&path)).with_status(0);
    Some((directory, path))
}

fn infer(path: &std::path::Path, arguments: &[&str]) -> Ended {
    let path = path.to_str().expect("a path in UTF-8");
    model(["infer", path, "--threads", "1", "--runs", "3", "--json", "-"].iter().chain(arguments).copied())
}

fn figures(ended: &Ended) -> Value {
    serde_json::from_str(ended.out()).unwrap_or_else(|error| panic!("{error}: {}", ended.out()))
}

fn number(figures: &Value, name: &str) -> u64 {
    figures[name].as_u64().unwrap_or_else(|| panic!("no {name} in {figures:#}"))
}

#[test]
fn weights_take_no_memory_until_the_first_run() {
    let Some((_directory, path)) = made() else { return };
    let figures = figures(&infer(&path, &["--shape", "x=64x1"]).with_status(0));
    let (all, there) = (number(&figures, "weight_bytes"), number(&figures, "loaded_weight_bytes"));
    assert!(all > 4 << 20 && there * 10 <= all, "{there} of {all}");
}

#[test]
fn eight_sessions_cost_hardly_more_than_one() {
    let Some((_directory, path)) = made() else { return };
    let figures = figures(&infer(&path, &["--shape", "x=16384x1", "--sessions", "8"]).with_status(0));
    let one = number(&figures, "vm_rss_bytes") - number(&figures, "vm_hwm_before_bytes");
    let more = number(&figures, "session_bytes");
    assert!(more * 5 <= one, "{one} for one, {more} for seven more");
}

#[test]
fn inputs_of_other_sizes_add_no_more_than_is_alive_in_the_largest() {
    let Some((_directory, path)) = made() else { return };
    let shapes: Vec<_> =
        (1..=20u64).map(|turn| format!("x={}x1", turn * 7919 % 100_000 + 20_000 * (turn % 5))).collect();
    let also: Vec<_> = shapes.iter().flat_map(|shape| ["--also", shape]).collect();
    let figures = figures(&infer(&path, &[&["--shape", "x=64x1"], &also[..]].concat()).with_status(0));
    let (grown, alive) = (number(&figures, "also_bytes"), number(&figures, "also_alive_bytes"));
    assert!(alive > 30 << 20 && grown * 10 <= alive * 13, "{grown} for {alive}");
}

#[test]
fn loading_again_and_again_leaves_nothing_behind() {
    let Some((_directory, path)) = made() else { return };
    for backend in BACKENDS {
        let path = path.to_str().expect("a path in UTF-8");
        let arguments =
            ["model", "infer", path, "--shape", "x=64x1", "--threads", "1", "--reload", "120", "--json", "-"];
        // The command's own allocator does not take the turns for steps, and has nothing to say.
        let said = tempfile::tempdir().expect("a directory");
        let said = said.path().join("said.json");
        let mut command = stepalloc(arguments);
        let ended =
            finish(command.env("STEPALLOC_BACKEND", backend).env("STEPALLOC_JSON", &said)).with_status(0);
        assert!(!said.exists());
        let figures = figures(&ended);
        let turns: Vec<u64> =
            figures["reload_bytes"].as_array().expect("a list").iter().filter_map(Value::as_u64).collect();
        let mean = |turns: &[u64]| turns.iter().sum::<u64>() / turns.len() as u64;
        let (early, late) = (mean(&turns[30..40]), mean(&turns[110..]));
        assert!(late * 20 <= early * 21, "{backend}: from {early} to {late}");
    }
}

#[test]
fn a_limit_counts_weights_and_arena_and_says_what_it_allows() {
    let Some((_directory, path)) = made() else { return };
    infer(&path, &["--shape", "x=1000x1", "--max-mem", "8MiB"]).with_status(0);
    for (limit, shape) in [("1MiB", "x=64x1"), ("8MiB", "x=100000x1")] {
        let ended = infer(&path, &["--shape", shape, "--max-mem", limit]).with_status(2);
        assert!(ended.err().contains("max_mem allows"), "{}", ended.err());
    }
}

#[test]
fn the_largest_batch_within_a_limit_is_found_and_run() {
    let Some((_directory, path)) = made() else { return };
    let found = figures(&infer(&path, &["--max-mem", "16MiB", "--find-batch"]).with_status(0));
    let (batch, bytes) = (number(&found, "batch"), number(&found, "batch_bytes"));
    assert!(batch > 1024 && bytes <= 16 << 20, "{found:#}");
    let shape = |batch: u64| format!("x={batch}x1");
    infer(&path, &["--max-mem", "16MiB", "--shape", &shape(batch)]).with_status(0);
    let refused = infer(&path, &["--max-mem", "16MiB", "--shape", &shape(batch + 1)]).with_status(2);
    assert!(refused.err().contains("max_mem allows 16777216 bytes"), "{}", refused.err());
    let small = infer(&path, &["--max-mem", "64KiB", "--find-batch"]).with_status(2);
    assert!(small.err().contains("a batch of 1 takes"), "{}", small.err());
    infer(&path, &["--find-batch"]).with_status(2);
}

#[test]
fn all_of_the_process_stays_within_max_rss() {
    let Some((_directory, path)) = made() else { return };
    let run = |limit: u64, extra: &[&str]| {
        let limit = limit.to_string();
        let ended = infer(&path, &[&["--shape", "x=60000x1", "--max-rss", &limit], extra].concat());
        (ended.status == 0).then(|| figures(&ended)).ok_or_else(|| ended.err().to_owned())
    };
    for extra in [&[][..], &["--no-prepacking"]] {
        let told = number(&run(1 << 40, extra).expect("there is no limit"), "rss_bytes");
        // What the process has before differs by some pages from one to the next.
        let limit = told + (1 << 20);
        let kept = run(limit, extra).expect("it is what was told");
        let (most, parts) = (number(&kept, "vm_hwm_bytes"), &kept["rss_parts"]);
        assert!(most <= limit, "{most} of {limit}: {kept:#}");
        // Less than an eighth of the figure is margin here.
        assert!(most * 8 >= limit * 7, "{most} of {limit}: {kept:#}");
        assert!(number(parts, "the arena") >= 60_000 * 256 && number(parts, "inputs") == 240_000, "{kept:#}");
        let refused = run(told - (4 << 20), extra).expect_err("too little");
        for part in
            ["--max-rss", "the arena 1", "inputs 234.4 KiB", "outputs 1.0 KiB", "the process as it is"]
        {
            assert!(refused.contains(part), "{part}: {refused}");
        }
    }
    for other in [["--sessions", "2"], ["--reload", "3"]] {
        infer(&path, &[&["--max-rss", "1GiB"], &other[..]].concat()).with_status(2);
    }
}

#[test]
fn the_largest_batch_within_max_rss_is_found_and_stays_within_it() {
    let Some((_directory, path)) = made() else { return };
    const LIMIT: u64 = 96 << 20;
    let found = figures(&infer(&path, &["--max-rss", "96MiB", "--find-batch"]).with_status(0));
    let (batch, bytes) = (number(&found, "batch"), number(&found, "batch_rss_bytes"));
    assert!(batch > 1024 && bytes <= LIMIT, "{found:#}");
    assert!(number(&found, "vm_hwm_bytes") <= LIMIT, "{found:#}");
    let both = infer(&path, &["--max-rss", "96MiB", "--max-mem", "16MiB", "--find-batch"]).with_status(0);
    assert!(number(&figures(&both), "batch_bytes") <= 16 << 20);
    let small = infer(&path, &["--max-rss", "4MiB", "--find-batch"]).with_status(2);
    assert!(small.err().contains("--max-rss 4.0 MiB"), "{}", small.err());
}

#[test]
fn an_error_of_memory_has_the_figure_of_find_batch() {
    let Some((_directory, path)) = made() else { return };
    let ended =
        model(["infer", path.to_str().expect("UTF-8"), "--max-mem", "16MiB", "--find-batch", "--runs", "1"]);
    let out = ended.with_status(0).out().to_owned();
    let line = out.lines().next().expect("a line");
    let words: Vec<_> = line.split_whitespace().collect();
    let at = words.iter().position(|&word| word == "would").expect("what the next one would take");
    let (next, shown) = (words[at - 1], format!("{} {}", words[at + 2], words[at + 3]));
    let refused = infer(&path, &["--max-mem", "16MiB", "--shape", &format!("x={next}x1")]).with_status(2);
    let text = refused.err();
    let number = text.split(' ').find_map(|word| word.parse::<u64>().ok()).expect("a number of bytes");
    assert_eq!(format!("{:.1} MiB", number as f64 / f64::from(1 << 20)), shown, "{text}");
    assert!(text.contains("node") && text.contains("float32"), "{text}");
}

#[test]
fn a_profile_has_every_node_that_runs() {
    let Some((_directory, path)) = made() else { return };
    let found = figures(&infer(&path, &["--shape", "x=64x1", "--profile"]).with_status(0));
    let nodes = found["profile"].as_array().expect("nodes");
    let of = |op: &str| nodes.iter().filter(|node| node["op"] == op).count();
    assert_eq!((of("MatMul"), of("Sum")), (64, 1), "{found:#}");
    assert!(nodes.iter().all(|node| node["ms"].as_f64().is_some_and(|ms| ms > 0.0)));
    assert!(nodes.iter().any(|node| node["in_place"] == true));
}
