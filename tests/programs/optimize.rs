//! `stepalloc model optimize`: ONNX's light networks with fewer nodes, written, checked by ONNX's own checker and run again.

use crate::model::{counts, exported, model, python, text};
use crate::process::{self, finish};
use serde_json::Value;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A directory in ONNX's test layout with another model in it.
fn beside(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            beside(&path, &target);
        } else if !path.ends_with("model.onnx") {
            fs::copy(&path, &target).expect("a copy");
        }
    }
}

#[test]
fn networks_that_are_optimized_and_saved_give_what_onnx_says() {
    let Some(exported) = exported() else { return };
    let saved = TempDir::new().expect("a directory");
    let check = "import onnx, sys\nfor path in sys.argv[1:]: onnx.checker.check_model(path, full_check=True)";
    let mut written = Vec::new();
    for name in ["light_resnet50", "light_inception_v2", "light_squeezenet", "light_shufflenet"] {
        let from = exported.path("light").join(name);
        let to = saved.path().join(name);
        beside(&from, &to);
        let (before, after) = (from.join("model.onnx"), to.join("model.onnx"));
        let arguments = ["optimize", text(&before), "--output", text(&after), "--json", "-"];
        let ended = model(arguments).with_status(0);
        let told: Value = serde_json::from_str(ended.out()).expect("JSON");
        let nodes = |name: &str| told[name].as_u64().expect("a count");
        assert!(nodes("nodes_after") < nodes("nodes_before"), "{told:#}");
        assert!(told["passes"]["conv-activation"].as_u64().is_some_and(|count| count > 0), "{told:#}");
        let arena = |path: &Path| {
            let ended = model(["inspect", text(path), "--json", "-"]).with_status(0);
            let told: Value = serde_json::from_str(ended.out()).expect("JSON");
            told["plan"]["arena_bytes"].as_u64().expect("bytes")
        };
        assert!(arena(&after) <= arena(&before), "{name}: {} of {}", arena(&after), arena(&before));
        written.push(after);
    }
    // What is written is run as it is.
    let ended = model(["test", "--level", "disable", text(saved.path())]).with_status(0);
    assert_eq!(counts(&ended), [4, 0, 0], "{}", ended.out());
    let python = python("onnx").expect("it exported the networks");
    finish(process::command(python).args(["-c", check]).args(&written)).with_status(0);
}

#[test]
fn a_model_can_be_replaced_and_passes_left_out() {
    let Some(exported) = exported() else { return };
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("model.onnx");
    fs::copy(exported.path("light/light_resnet50/model.onnx"), &path).expect("a copy");
    let path = text(&path);
    let some = model(["optimize", path, "-o", path, "--level", "basic", "--disable", "conv-batchnorm"])
        .with_status(0);
    assert!(!some.out().contains("conv-batchnorm") && some.out().contains("before"), "{}", some.out());
    let rest = model(["optimize", path, "-o", path, "--level", "basic"]).with_status(0);
    assert!(rest.out().contains("conv-batchnorm"), "{}", rest.out());
    let none = model(["optimize", path, "-o", path, "--level", "basic"]).with_status(0);
    assert_eq!(none.out().lines().count(), 1, "{}", none.out());
    assert_eq!(fs::read_dir(directory.path()).expect("a directory").count(), 1);
}

#[test]
fn what_infer_saves_is_what_it_ran() {
    let Some(exported) = exported() else { return };
    let directory = TempDir::new().expect("a directory");
    let before = exported.path("light/light_squeezenet/model.onnx");
    let saved = directory.path().join("saved.onnx");
    let (first, second) = (directory.path().join("first"), directory.path().join("second"));
    let run = ["infer", text(&before), "--runs", "1", "--save", text(&saved), "--save-outputs", text(&first)];
    model(run).with_status(0);
    let again = ["infer", text(&saved), "--runs", "1", "--level", "disable", "--save-outputs", text(&second)];
    model(again).with_status(0);
    let outputs = |directory: &Path| -> Vec<Vec<u8>> {
        let entries = fs::read_dir(directory).expect("a directory");
        entries.map(|entry| fs::read(entry.expect("an entry").path()).expect("a file")).collect()
    };
    assert!(!outputs(&first).is_empty());
    assert_eq!(outputs(&first), outputs(&second));
}

#[test]
fn errors_say_what_there_is() {
    let Some(exported) = exported() else { return };
    let path = exported.path("node/test_add/model.onnx");
    for (arguments, said) in [
        (vec!["-o", "/nowhere/out.onnx"], "/nowhere/out.onnx"),
        (
            vec!["-o", "/dev/null", "--disable", "conv"],
            "there is no pass conv; passes are halves, bytes, constant-folding",
        ),
        (vec!["-o", "/dev/null", "--level", "most"], "disable, basic, extended, all"),
        (vec!["-o", "/dev/null", "--fold-limit", "much"], "whole number of bytes"),
        (vec![], "--output"),
    ] {
        let all = ["optimize", text(&path)].into_iter().chain(arguments.iter().copied());
        let ended = model(all).with_status(2);
        assert!(ended.err().contains(said), "{arguments:?}: {}", ended.err());
    }
}
