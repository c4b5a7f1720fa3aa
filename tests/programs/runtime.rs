//! The runtime for C and for Python: the library with programs in C, under valgrind where that is installed, and the wheel with
//! ONNX Runtime's snippets (`runtime_api.py`).
//!
//! Python needs maturin, and a python3 on the path that has the packages onnx and numpy (PyPI), unless `STEPALLOC_REQUIRE_WHEEL=1` asks for
//! them; `STEPALLOC_REQUIRE_VALGRIND=1` asks for valgrind.

use crate::model::{python, text};
use crate::process::{self, Ended, finish};
use crate::{compiled, wheel};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tempfile::TempDir;

/// x [?, 4] of floats, and y = x * x + x.
const SMALL: &str = r#"<net name="n" version="11"><layers>
    <layer id="0" name="x" type="Parameter" version="opset1"><data element_type="f32" shape="?,4"/>
        <output><port id="0" precision="FP32" names="x"><dim>-1</dim><dim>4</dim></port></output></layer>
    <layer id="1" name="m" type="Multiply" version="opset1"><input><port id="0"/><port id="1"/></input>
        <output><port id="2" precision="FP32" names="square"><dim>-1</dim><dim>4</dim></port></output></layer>
    <layer id="2" name="a" type="Add" version="opset1"><input><port id="0"/><port id="1"/></input>
        <output><port id="2" precision="FP32" names="y"><dim>-1</dim><dim>4</dim></port></output></layer>
    <layer id="3" name="r" type="Result" version="opset1"><input><port id="0"/></input></layer></layers>
    <edges><edge from-layer="0" from-port="0" to-layer="1" to-port="0"/>
        <edge from-layer="0" from-port="0" to-layer="1" to-port="1"/>
        <edge from-layer="1" from-port="2" to-layer="2" to-port="0"/>
        <edge from-layer="0" from-port="0" to-layer="2" to-port="1"/>
        <edge from-layer="2" from-port="2" to-layer="3" to-port="0"/></edges></net>"#;

/// x [300, 64] of floats, and the sum of each row of x times itself turned: enough for threads to share.
const LARGE: &str = r#"<net name="n" version="11"><layers>
    <layer id="0" name="x" type="Parameter" version="opset1"><data element_type="f32" shape="300,64"/>
        <output><port id="0" precision="FP32" names="x"><dim>300</dim><dim>64</dim></port></output></layer>
    <layer id="1" name="p" type="MatMul" version="opset1"><data transpose_a="false" transpose_b="true"/>
        <input><port id="0"/><port id="1"/></input>
        <output><port id="2" precision="FP32" names="products"><dim>300</dim><dim>300</dim></port></output></layer>
    <layer id="2" name="s" type="SoftMax" version="opset1"><data axis="1"/><input><port id="0"/></input>
        <output><port id="1" precision="FP32" names="y"><dim>300</dim><dim>300</dim></port></output></layer>
    <layer id="3" name="r" type="Result" version="opset1"><input><port id="0"/></input></layer></layers>
    <edges><edge from-layer="0" from-port="0" to-layer="1" to-port="0"/>
        <edge from-layer="0" from-port="0" to-layer="1" to-port="1"/>
        <edge from-layer="1" from-port="2" to-layer="2" to-port="0"/>
        <edge from-layer="2" from-port="1" to-layer="3" to-port="0"/></edges></net>"#;

/// A directory with both models.
fn models() -> (TempDir, PathBuf, PathBuf) {
    let directory = TempDir::new().expect("a directory for temporary files");
    let write = |name: &str, model: &str| {
        let path = directory.path().join(name);
        fs::write(&path, model).expect("written");
        path
    };
    let (small, large) = (write("small.xml", SMALL), write("large.xml", LARGE));
    (directory, small, large)
}

/// Runs a program, by itself or under valgrind, which must find nothing.
fn run(valgrind: bool, program: &Path, arguments: &[&str]) -> Ended {
    let mut command = process::command(if valgrind { Path::new("valgrind") } else { program });
    if valgrind {
        let known = folder("tests/programs/valgrind.supp");
        command.arg(format!("--suppressions={}", known.display()));
        command.args(["-q", "--error-exitcode=9", "--leak-check=full"]).arg(program);
    }
    finish(command.args(arguments))
}

/// Programs are run by themselves, and under valgrind where it is installed.
fn ways() -> &'static [bool] {
    if process::installed("valgrind") {
        return &[false, true];
    }
    let required = std::env::var_os("STEPALLOC_REQUIRE_VALGRIND").is_some_and(|value| value == "1");
    assert!(!required, "valgrind is not installed, and STEPALLOC_REQUIRE_VALGRIND=1");
    &[false]
}

#[test]
fn the_example_in_c_runs_and_leaves_nothing_behind() {
    let (_directory, small, large) = models();
    let infer = compiled::infer();
    for &valgrind in ways() {
        let ended = run(valgrind, &infer, &[text(&small)]).with_status(0);
        let lines: Vec<_> = ended.out().lines().collect();
        assert_eq!(lines.len(), 4, "{}", ended.out());
        assert_eq!(lines[0], "y [2, 4]: 0 0.3125 0.75 1.3125 2 2.8125 3.75 4.8125");
        assert_eq!(lines[2], "y [2, 4]: 6 0.3125 0.75 1.3125 2 2.8125 3.75 4.8125");
        assert!(lines[3].contains("\"limit\":268435456"), "{}", lines[3]);
        assert_eq!(ended.err(), "");
        let ended = run(valgrind, &infer, &[text(&large)]).with_status(0);
        assert!(ended.out().starts_with("y [300, 300]: 0 0 "), "{}", ended.out());
        assert_eq!(ended.err(), "");
        let ended = run(valgrind, &infer, &["/no/such/net.onnx"]).with_status(1);
        assert!(ended.err().starts_with("infer: /no/such/net.onnx: No such file"), "{}", ended.err());
    }
}

#[test]
fn the_library_keeps_what_its_header_promises() {
    let (_directory, small, _) = models();
    let program = compiled::runtime();
    for &valgrind in ways() {
        let ended = run(valgrind, &program, &[text(&small), "/no/such/net.onnx"]).with_status(0);
        assert_eq!((ended.out(), ended.err()), ("all holds\n", ""));
    }
}

/// The repository's folder of that name.
fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

#[test]
fn the_library_exports_what_its_header_declares() {
    let header = folder("runtime/capi/include/stepalloc_runtime.h");
    let header = fs::read_to_string(header).expect("a header");
    let code = header.lines().filter(|line| !line.starts_with("//"));
    let words = code.flat_map(|line| line.split(|letter: char| !letter.is_alphanumeric() && letter != '_'));
    let declared: BTreeSet<_> =
        words.filter(|word| word.starts_with("stepalloc_") && !word.ends_with("_h")).collect();
    let mut nm = process::command("nm");
    let library = stepalloc_tests::built().join("libstepalloc_runtime.so");
    let ended = finish(nm.args(["-D", "--defined-only", "--format=posix"]).arg(library)).with_status(0);
    let exported: BTreeSet<_> = ended.out().lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(declared.len() > 40, "{declared:?}");
    assert_eq!(exported, declared);
}

#[test]
fn the_header_is_as_cbindgen_makes_it() {
    if !process::installed("cbindgen") {
        return;
    }
    let capi = folder("runtime/capi");
    let mut cbindgen = process::command("cbindgen");
    let ended = finish(cbindgen.arg("--config").arg(capi.join("header.toml")).arg(&capi)).with_status(0);
    let header = fs::read_to_string(capi.join("include/stepalloc_runtime.h")).expect("a header");
    assert!(ended.out() == header, "make it anew, as runtime/capi/header.toml says");
}

/// A python3, and the folder that the package is installed in; `None`, with a line, where there cannot be one.
fn package() -> Option<&'static (PathBuf, PathBuf)> {
    static PACKAGE: OnceLock<Option<(PathBuf, PathBuf)>> = OnceLock::new();
    let made = PACKAGE.get_or_init(|| {
        let (maturin, python) = (wheel::maturin()?, python("onnx, numpy, pip")?);
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("runtime-wheel");
        let wheel = wheel::build(&maturin, "runtime/python", &place);
        let installed = place.join("installed");
        let mut pip = process::command(&python);
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-index",
            "--no-deps",
            "--disable-pip-version-check",
        ]);
        wheel::succeed(pip.arg("--target").arg(&installed).arg(wheel));
        Some((python, installed))
    });
    if made.is_none() {
        wheel::without_wheel("maturin, or a python3 with onnx, numpy and pip (PyPI), is not on the path");
    }
    made.as_ref()
}

/// Runs a case of `runtime_api.py`.
#[track_caller]
fn case(name: &str) {
    let Some((python, installed)) = package() else { return };
    let models = TempDir::new().expect("a directory for temporary files");
    let mut command = process::command(python);
    command.arg(folder("tests/programs/runtime_api.py")).arg(name).arg(models.path());
    let ended = finish(command.arg(folder("docs/models.md")).env("PYTHONPATH", installed)).with_status(0);
    assert!(ended.out().ends_with(&format!("{name}: all holds\n")), "{}", ended.out());
}

#[test]
fn python_runs_sessions_as_onnx_runtime_documents_them() {
    case("sessions");
}

#[test]
fn python_options_decide_on_memory_or_are_refused() {
    case("options");
}

#[test]
fn python_bindings_stay_where_they_are() {
    case("bindings");
}

#[test]
fn python_quantizes_models() {
    case("quantized");
}

#[test]
fn python_tells_the_memory_of_runs_before_they_run() {
    case("reports");
}

#[test]
fn python_errors_name_what_is_wrong() {
    case("errors");
}

#[test]
fn python_has_elements_of_every_type() {
    case("types");
}

#[test]
fn python_runs_from_several_threads() {
    case("threads");
}

#[test]
fn the_documentations_python_runs() {
    case("documentation");
}
