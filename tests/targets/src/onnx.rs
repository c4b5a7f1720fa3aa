//! ONNX models and tensors.

use crate::memory::within;
use stepalloc_runtime::{Level, Model, Optimization, Session, read_tensor};

/// What the reader allows itself (`stepalloc_onnx::weigh`).
const TIMES: usize = 10;
/// The same beside that. Models of a few kilobytes have no room for the 16 MiB that large ones may take.
const BASE: usize = 2 << 20;
/// What constants may become when they are computed beforehand.
const FOLDED: usize = 1 << 16;

/// ONNX models: a model that was read is written and read the same, optimized too, and planning it is a plan or an error.
pub fn onnx(data: &[u8]) {
    let content = data.to_vec();
    match within(data.len(), TIMES, BASE, || Model::from_bytes(content)) {
        Ok(model) => model_holds(model),
        Err(error) => drop(error.to_string()),
    }
}

/// Tensors as ONNX's tests have them: no more memory than the file's proportion, and as many bytes as their type says.
pub fn tensor(data: &[u8]) {
    let content = data.to_vec();
    match within(data.len(), TIMES, BASE, || read_tensor(content.into())) {
        Ok((_, tensor)) => assert_eq!(tensor.view().bytes.len(), tensor.ty().bytes()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// What holds of a model, however it was read.
pub fn model_holds(model: Model) {
    written_again(&model);
    let figures = |model: &Model| {
        let session = Session::new(model);
        let inputs = vec![None; session.graph().inputs.len()];
        // Inputs without a value are missing: it is an error, or there are none.
        session.figures(&inputs).map(|figures| format!("{figures:?}")).map_err(|error| error.to_string())
    };
    let _ = figures(&model);
    let (optimized, changes) = model.optimize(&Optimization::new(Level::All).fold_limit(FOLDED));
    assert!(changes.nodes_before > 0 || changes.nodes_after == 0, "{changes:?}");
    written_again(&optimized);
}

/// Nodes without a name are given one when they are read, so that what was written twice is what must not change.
fn written_again(model: &Model) {
    let Ok(written) = model.to_bytes() else { return };
    let again = read_again(&written);
    assert_eq!(again.graph.nodes.len(), model.graph.nodes.len());
    let twice = again.to_bytes().expect("what was written once can be written again");
    let thrice = read_again(&twice).to_bytes().expect("as above");
    assert!(thrice == twice, "written, read and written again it is another file");
}

fn read_again(written: &[u8]) -> Model {
    Model::from_bytes(written.to_vec())
        .unwrap_or_else(|error| panic!("what was written cannot be read: {error}"))
}
