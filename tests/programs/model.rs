//! `stepalloc model` with ONNX's own tests, which ../shared/conformance/export_onnx_tests.py writes as directories.
//!
//! Needs a python3 on the path that has the package onnx (PyPI); `STEPALLOC_REQUIRE_ONNX=1` asks for one.

use crate::process::{self, Ended, finish, stepalloc};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use tempfile::TempDir;

/// Tests of single operators that must pass at least.
const PASSED: u64 = 1300;

/// ONNX's tests as directories: `node/NAME`, `light/NAME`.
pub struct Exported {
    directory: TempDir,
}

impl Exported {
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// The exported tests; `None`, with a line, where they cannot be made.
pub fn exported() -> Option<&'static Exported> {
    static EXPORTED: OnceLock<Option<Exported>> = OnceLock::new();
    let made = EXPORTED.get_or_init(|| {
        let script = process::shared("conformance/export_onnx_tests.py")?;
        let python = python("onnx")?;
        let directory = TempDir::new().expect("a directory for temporary files");
        finish(process::command(python).arg(script).arg(directory.path())).with_status(0);
        Some(Exported { directory })
    });
    if made.is_none() {
        without_onnx();
    }
    made.as_ref()
}

/// Skips a test that needs the package onnx, or fails it where that is asked for.
pub fn without_onnx() {
    let missing = "no python3 on the path has the package onnx (PyPI), or ../shared is not there";
    let required = std::env::var_os("STEPALLOC_REQUIRE_ONNX").is_some_and(|value| value == "1");
    assert!(!required, "{missing}, and STEPALLOC_REQUIRE_ONNX=1");
    process::skip(missing);
}

/// A python3 on the path that has these packages.
pub fn python(packages: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|place| place.join("python3")).find(|python| {
        let import = format!("import {packages}");
        python.is_file() && finish(process::command(python).args(["-c", &import])).status == 0
    })
}

/// `stepalloc model ARGUMENTS`.
pub fn model<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Ended {
    finish(&mut stepalloc(std::iter::once("model").chain(arguments)))
}

/// The three counts at the end of `model test`.
pub fn counts(ended: &Ended) -> [u64; 3] {
    let last = ended.out().lines().last().expect("a last line");
    let numbers: Vec<_> =
        last.split(|letter: char| !letter.is_ascii_digit()).filter_map(|text| text.parse().ok()).collect();
    numbers.try_into().unwrap_or_else(|_| panic!("not three counts: {last}"))
}

/// The directory of one of ONNX's tests.
fn test(name: &str) -> Option<PathBuf> {
    Some(exported()?.path("node").join(name))
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

#[test]
fn tests_of_single_operators_pass_and_none_is_wrong() {
    let Some(exported) = exported() else { return };
    let node = exported.path("node");
    let of = |how: &[&str]| {
        let ended = model(["test", "--quiet", text(&node)].iter().chain(how).copied());
        let [passed, wrong, unsupported] = counts(&ended);
        let told: Vec<_> = ended.out().lines().filter(|line| line.starts_with("wrong")).collect();
        assert_eq!(wrong, 0, "{told:#?}");
        assert!(passed >= PASSED, "{passed} passed");
        assert_eq!(ended.status, 0);
        [passed, unsupported]
    };
    let plain = of(&["--level", "disable"]);
    assert_eq!(plain, of(&["--level", "all", "--rewrite"]));
}

#[test]
fn whole_networks_give_what_onnx_says() {
    let Some(exported) = exported() else { return };
    let light = exported.path("light");
    let ended = model(["test", text(&light)]).with_status(0);
    assert_eq!(counts(&ended), [9, 0, 0], "{}", ended.out());
}

#[test]
fn a_wrong_result_is_seen_and_is_the_exit_status() {
    let Some(test) = test("test_add") else { return };
    let copy = TempDir::new().expect("a directory for temporary files");
    let data = copy.path().join("test_data_set_0");
    fs::create_dir(&data).expect("a directory");
    fs::copy(test.join("model.onnx"), copy.path().join("model.onnx")).expect("a copy");
    for name in ["input_0.pb", "input_1.pb"] {
        fs::copy(test.join("test_data_set_0").join(name), data.join(name)).expect("a copy");
    }
    // The first operand is not the sum.
    fs::copy(test.join("test_data_set_0/input_0.pb"), data.join("output_0.pb")).expect("a copy");
    let ended = model(["test", text(copy.path())]).with_status(1);
    assert_eq!(counts(&ended), [0, 1, 0], "{}", ended.out());
}

#[test]
fn output_that_nobody_reads_ends_the_command_without_a_panic() {
    let Some(exported) = exported() else { return };
    let squeezenet = exported.path("light/light_squeezenet/model.onnx");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = stepalloc(["model", "infer", text(&squeezenet), "--runs", "1"]);
    let ended = command.stdout(writer).stderr(Stdio::piped()).output().expect("it starts");
    assert_eq!((ended.status.code(), String::from_utf8_lossy(&ended.stderr).as_ref()), (Some(141), ""));
}

#[test]
fn runs_with_bound_tensors_allocate_nothing_and_fault_no_page() {
    let Some(exported) = exported() else { return };
    let squeezenet = exported.path("light/light_squeezenet/model.onnx");
    let infer = || -> Value {
        let ended = model(["infer", text(&squeezenet), "--runs", "5", "--json", "-"]).with_status(0);
        serde_json::from_str(ended.out()).expect("JSON")
    };
    let figures = infer();
    let number = |name: &str| figures[name].as_u64().unwrap_or_else(|| panic!("no {name} in {figures:#}"));
    assert!(number("arena_bytes") > 0 && number("planned_tensors") > 0, "{figures:#}");
    assert!(number("arena_bytes") * 100 <= number("lower_bound_bytes") * 102, "{figures:#}");
    assert_eq!((number("unplanned_nodes"), number("allocations_per_run")), (0, 0), "{figures:#}");
    // Beside other processes there is a single fault in one process of ten. What a run needs would fault in each.
    let faults =
        [figures.clone(), infer(), infer(), infer()].map(|figures| figures["minor_faults_per_run"].as_u64());
    assert!(faults.contains(&Some(0)), "{faults:?} {figures:#}");
}

#[test]
fn plans_change_no_result() {
    let Some(test) = test("test_lstm_with_peepholes") else { return };
    let (with, without) = (TempDir::new().expect("a directory"), TempDir::new().expect("a directory"));
    let path = test.join("model.onnx");
    for (directory, plan) in [(&with, None), (&without, Some("--no-plan"))] {
        let saved = text(directory.path());
        model(["infer", text(&path), "--save-outputs", saved].into_iter().chain(plan)).with_status(0);
    }
    let files = |directory: &TempDir| -> Vec<Vec<u8>> {
        let entries = fs::read_dir(directory.path()).expect("a directory");
        let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
        paths.sort();
        paths.iter().map(|path| fs::read(path).expect("a file")).collect()
    };
    assert!(!files(&with).is_empty());
    assert_eq!(files(&with), files(&without));
}

#[test]
fn errors_say_what_is_wrong_and_where() {
    let Some(test) = test("test_add") else { return };
    let path = test.join("model.onnx");
    let whole = fs::read(&path).expect("a file");
    let cut = TempDir::new().expect("a directory");
    let damaged = cut.path().join("cut.onnx");
    fs::write(&damaged, &whole[..whole.len() / 2]).expect("a file");
    let archive = cut.path().join("net.pt");
    fs::write(&archive, b"PK\x03\x04      net/data.pkl").expect("a file");
    for (arguments, said) in [
        (vec!["infer", "/nowhere.onnx"], "/nowhere.onnx"),
        (vec!["infer", text(&archive)], "torch.onnx.export"),
        (vec!["infer", text(&path), "--find-batch"], "--max-mem"),
        (vec!["infer", text(&path), "--max-rss", "1MiB"], "--max-rss 1.0 MiB"),
        (vec!["infer", text(&damaged)], "no ONNX model"),
        (vec!["infer", text(&path), "--shape", "q=3"], "there is no input q; inputs are x, y"),
        (vec!["infer", text(&path), "--shape", "x=3x4"], "input x is float32[3, 4]"),
        (vec!["infer", text(&path), "--input", "x=/nowhere.npy"], "/nowhere.npy"),
        (vec!["infer", text(&path), "--shape", "x=a"], "1x3x224x224"),
        (vec!["test", "/nowhere"], "/nowhere"),
    ] {
        let ended = model(arguments.iter().copied()).with_status(2);
        assert!(ended.err().contains(said), "{arguments:?}: {}", ended.err());
    }
}

#[test]
fn a_limit_of_memory_is_kept_before_anything_runs() {
    let Some(exported) = exported() else { return };
    let squeezenet = exported.path("light/light_squeezenet/model.onnx");
    let ended = model(["infer", text(&squeezenet), "--max-mem", "1MiB"]).with_status(2);
    assert!(ended.err().contains("max_mem allows 1048576 bytes"), "{}", ended.err());
}
