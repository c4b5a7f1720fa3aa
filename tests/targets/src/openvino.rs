//! OpenVINO's models: a text of layers, and weights beside it.

use crate::memory::within;
use crate::onnx::model_holds;
use crate::scratch::Scratch;
use stepalloc_runtime::Model;

/// A tree of the text, and a graph of that.
const TIMES: usize = 64;
/// Beside that.
const BASE: usize = 2 << 20;

/// Models in OpenVINO's format: as ONNX models. The input is the text; weights follow after a byte 0.
pub fn openvino(data: &[u8]) {
    let mut parts = data.splitn(2, |&byte| byte == 0);
    let (text, weights) = (parts.next().unwrap_or_default(), parts.next());
    let file = Scratch::new("xml", text);
    let beside = weights.map(|weights| file.beside("bin", weights));
    match within(data.len(), TIMES, BASE, || Model::open(file.path())) {
        Ok(model) => model_holds(model),
        Err(error) => drop(error.to_string()),
    }
    drop(beside);
}
