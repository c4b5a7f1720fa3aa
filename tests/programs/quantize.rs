//! `stepalloc model quantize` on a model that `quantize.py` makes, judged by the package onnx: its checker, and its reference.

use crate::model::{model, python, without_onnx};
use crate::process::{command, finish};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A model in a directory of its own.
struct Net {
    python: PathBuf,
    directory: TempDir,
}

impl Net {
    /// `None`, with a line, where it cannot be made.
    fn made() -> Option<Self> {
        let Some(python) = python("onnx") else {
            without_onnx();
            return None;
        };
        let net = Self { python, directory: TempDir::new().expect("a directory for temporary files") };
        net.script(&["make", &net.path("net.onnx")]);
        Some(net)
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().expect("a path in UTF-8").to_owned()
    }

    /// What `quantize.py` prints.
    fn script(&self, arguments: &[&str]) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/quantize.py");
        let ended = finish(command(&self.python).arg(script).args(arguments)).with_status(0);
        ended.out().to_owned()
    }

    /// Quantizes it, and gives what is told as JSON.
    fn quantized(&self, options: &[&str]) -> Value {
        let (from, to) = (self.path("net.onnx"), self.path("int8.onnx"));
        let arguments =
            ["quantize", &from, "-o", &to, "--json", "-"].into_iter().chain(options.iter().copied());
        serde_json::from_str(model(arguments).with_status(0).out()).expect("JSON")
    }
}

#[test]
fn quantized_models_are_valid_and_near_to_what_they_were() {
    let Some(net) = Net::made() else { return };
    net.script(&["tokens", &net.path("tokens.npy")]);
    for options in [&[][..], &["--per-channel", "--weight-type", "uint8"], &["--reduce-range"]] {
        let told = net.quantized(options);
        assert_eq!(told["quantized"].as_array().expect("nodes").len(), 4, "{told:#}");
        let ratio = told["ratio"].as_f64().expect("a ratio");
        assert!(ratio >= 3.8, "{ratio}");
        assert_eq!(told["bytes_after"], fs::metadata(net.path("int8.onnx")).expect("a file").len());
        let (int8, given, saved) =
            (net.path("int8.onnx"), format!("tokens={}", net.path("tokens.npy")), net.path(""));
        model(["infer", &int8, "--input", &given, "--runs", "1", "--save-outputs", &saved]).with_status(0);
        let errors = net.script(&["check", &net.path("net.onnx"), &int8, &net.path("y.npy")]);
        let errors: Vec<f64> = errors.split_whitespace().filter_map(|error| error.parse().ok()).collect();
        let &[ours, all] = &errors[..] else { panic!("not two errors: {errors:?}") };
        assert!(ours < 1e-2, "{options:?}: {ours} from the reference of the same model");
        assert!(all < 5e-2, "{options:?}: {all} from the model in f32");
    }
}

#[test]
fn what_was_quantized_is_said() {
    let Some(net) = Net::made() else { return };
    let (from, to) = (net.path("net.onnx"), net.path("int8.onnx"));
    let ended = model(["quantize", &from, "-o", &to, "--exclude", "conv"]).with_status(0);
    assert!(ended.out().starts_with("quantized: Gather 1, MatMul 2\n"), "{}", ended.out());
    assert!(ended.out().contains("times smaller"), "{}", ended.out());
    let told = net.quantized(&["--only", "layer,conv"]);
    let nodes: Vec<_> =
        told["quantized"].as_array().expect("nodes").iter().map(|node| &node["node"]).collect();
    assert_eq!(nodes, ["layer_MatMul", "conv"]);
}

#[test]
fn errors_say_what_to_do_and_nothing_is_written() {
    let Some(net) = Net::made() else { return };
    let from = net.path("net.onnx");
    for (options, said) in [
        (vec!["--op-types", "Relu"], "those that can are Conv, Gather, Gemm, LSTM, MatMul, Transpose"),
        (vec!["--exclude", "nowhere"], "there is no node nowhere"),
        (vec!["--op-types", "LSTM"], "nothing to quantize"),
        (vec!["--weight-type", "int4"], "int8, uint8"),
    ] {
        let to = net.path("none.onnx");
        let arguments = ["quantize", &from, "-o", &to].into_iter().chain(options.iter().copied());
        let ended = model(arguments).with_status(2);
        assert!(ended.err().contains(said), "{options:?}: {}", ended.err());
        assert!(!Path::new(&to).exists(), "{options:?}");
    }
}
