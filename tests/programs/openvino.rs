//! `stepalloc model` with models that OpenVINO writes: from ONNX's tests by its converter (`openvino.py`), and operation by operation
//! (`operations.py`).
//!
//! Needs a python3 on the path that has the packages onnx and openvino (PyPI); `STEPALLOC_REQUIRE_OPENVINO=1` asks for one.

use crate::model::{counts, exported, model, python, text};
use crate::process::{self, finish};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tempfile::TempDir;

/// Tests of operators, a few of each family.
const TESTS: &[&str] = &[
    "test_add_bcast",
    "test_argmax_default_axis_random",
    "test_averagepool_2d_pads_count_include_pad",
    "test_batchnorm_epsilon",
    "test_conv_with_strides_and_asymmetric_padding",
    "test_convtranspose_group_2",
    "test_einsum_batch_matmul",
    "test_gather_elements_1",
    "test_gemm_transposeB",
    "test_gru_seq_length",
    "test_layer_normalization_4d_axis1",
    "test_loop11",
    "test_lstm_with_initial_bias",
    "test_maxpool_with_argmax_2d_precomputed_pads",
    "test_nonzero_example",
    "test_reduce_mean_keepdims_random",
    "test_resize_upsample_scales_linear",
    "test_scatternd_add",
    "test_slice_negative_axes",
    "test_split_variable_parts_2d_opset18",
    "test_top_k",
];

/// A file of this folder.
fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name)
}

/// A python3 that has what the scripts need; `None`, with a line, where there is none.
fn packages() -> Option<PathBuf> {
    let found = python("onnx, openvino");
    if found.is_none() {
        let missing = "no python3 on the path has the packages onnx and openvino (PyPI)";
        let required = std::env::var_os("STEPALLOC_REQUIRE_OPENVINO").is_some_and(|value| value == "1");
        assert!(!required, "{missing}, and STEPALLOC_REQUIRE_OPENVINO=1");
        process::skip(missing);
    }
    found
}

/// The converted tests; `None`, with a line, where they cannot be made.
fn converted() -> Option<&'static Path> {
    static CONVERTED: OnceLock<Option<TempDir>> = OnceLock::new();
    let made = CONVERTED.get_or_init(|| {
        let (python, exported) = (packages()?, exported()?);
        let directory = TempDir::new().expect("a directory for temporary files");
        let mut command = process::command(python);
        command.arg(script("openvino.py")).arg(exported.path("node")).arg(directory.path()).args(TESTS);
        finish(&mut command).with_status(0);
        Some(directory)
    });
    made.as_ref().map(TempDir::path)
}

#[test]
fn converted_models_give_what_the_originals_give() {
    let Some(tests) = converted() else { return };
    let ended = model(["test", text(tests)]).with_status(0);
    assert_eq!(counts(&ended), [TESTS.len() as u64 + 1, 0, 0], "{}", ended.out());
}

#[test]
fn operations_give_what_openvino_gives() {
    let Some(python) = packages() else { return };
    let directory = TempDir::new().expect("a directory for temporary files");
    finish(process::command(python).arg(script("operations.py")).arg(directory.path())).with_status(0);
    let ended = model(["test", text(directory.path())]).with_status(0);
    let [passed, wrong, unsupported] = counts(&ended);
    assert!(passed >= 80 && (wrong, unsupported) == (0, 0), "{}", ended.out());
}

#[test]
fn inputs_go_by_their_names_and_runs_allocate_nothing() {
    let Some(tests) = converted() else { return };
    let network = tests.join("network/model.xml");
    let given = ["infer", text(&network), "--shape", "image=2x3x16x16", "--runs", "5", "--json", "-"];
    let ended = model(given).with_status(0);
    let figures: Value = serde_json::from_str(ended.out()).expect("JSON");
    let number = |name: &str| figures[name].as_u64().unwrap_or_else(|| panic!("no {name} in {figures:#}"));
    assert!(number("arena_bytes") > 0, "{figures:#}");
    assert!(number("arena_bytes") * 100 <= number("lower_bound_bytes") * 102, "{figures:#}");
    assert_eq!((number("unplanned_nodes"), number("allocations_per_run")), (0, 0), "{figures:#}");
    let inspected = model(["inspect", text(&network)]).with_status(0);
    assert!(inspected.out().contains("scores float32[?, 10]"), "{}", inspected.out());
}

#[test]
fn missing_and_damaged_files_are_errors_that_name_them() {
    let Some(tests) = converted() else { return };
    let copy = TempDir::new().expect("a directory for temporary files");
    let (from, to) = (tests.join("network/model.xml"), copy.path().join("net.xml"));
    fs::copy(&from, &to).expect("a copy");
    let ended = model(["infer", text(&to)]).with_status(2);
    assert!(ended.err().contains("net.bin"), "{}", ended.err());
    let weights = fs::read(from.with_extension("bin")).expect("a file");
    fs::write(to.with_extension("bin"), &weights[..weights.len() / 2]).expect("a file");
    let ended = model(["infer", text(&to)]).with_status(2);
    assert!(ended.err().contains("are not in the weights"), "{}", ended.err());
    let whole = fs::read(&from).expect("a file");
    fs::write(&to, &whole[..whole.len() / 2]).expect("a file");
    let ended = model(["infer", text(&to)]).with_status(2);
    assert!(ended.err().contains("no OpenVINO IR"), "{}", ended.err());
}
