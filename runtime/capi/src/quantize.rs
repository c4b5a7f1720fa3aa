//! Weights of 8 bits, from file to file.

use crate::status::{StepallocStatus, given_mut, hand_out_text, status, text, texts, wrong};
use runtime::{QuantizeDynamic, WeightType};
use serde_json::{Value, json};
use std::ffi::c_char;
use std::ptr::null;

/// Options of dynamic quantization. All zero they are ONNX Runtime's defaults.
#[repr(C)]
pub struct StepallocQuantize {
    /// Weights are unsigned (QUInt8), not signed (QInt8).
    pub unsigned_weights: bool,
    /// A scale for each column of a product's weights.
    pub per_channel: bool,
    /// Weights of 7 bits, for processors without VNNI.
    pub reduce_range: bool,
    /// Nodes in the graphs of If, Loop and Scan, too.
    pub subgraphs: bool,
    /// Whether 0 is in the middle of the range of weights: 1 yes, -1 no, 0 as the type has it (yes where they are signed).
    pub weight_symmetric: i32,
    /// Only these operators, as MatMul; all that can be where there are none.
    pub op_types: *const *const c_char,
    /// How many.
    pub op_type_count: usize,
    /// Only these nodes, by name; all where there are none.
    pub nodes: *const *const c_char,
    /// How many.
    pub node_count: usize,
    /// Not these nodes.
    pub exclude: *const *const c_char,
    /// How many.
    pub exclude_count: usize,
}

/// Writes a model whose constant weights have 8 bits, as ONNX Runtime's `quantize_dynamic` does; a file that is there is replaced when all is
/// written. `options` may be null. `json`, which may be null, gets what was done: quantized (of each node op and name), left (those that
/// could not be: op, name, why), bytes_before, bytes_after.
///
/// # Safety
/// Paths are null or end with nul bytes; `options` is null, or its lists have as many texts as is said, which end with nul bytes;
/// `json` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stepalloc_quantize_dynamic(
    model: *const c_char,
    output: *const c_char,
    options: *const StepallocQuantize,
    json: *mut *mut c_char,
) -> *mut StepallocStatus {
    status(|| {
        let defaults = StepallocQuantize {
            unsigned_weights: false,
            per_channel: false,
            reduce_range: false,
            subgraphs: false,
            weight_symmetric: 0,
            op_types: null(),
            op_type_count: 0,
            nodes: null(),
            node_count: 0,
            exclude: null(),
            exclude_count: 0,
        };
        // SAFETY: the caller's promise.
        let (model, output, told) = unsafe {
            (text(model, "model")?, text(output, "output")?, options.as_ref().unwrap_or(&defaults))
        };
        // SAFETY: the same.
        let (op_types, only, exclude) = unsafe {
            (
                texts(told.op_types, told.op_type_count, "op_types")?,
                texts(told.nodes, told.node_count, "nodes")?,
                texts(told.exclude, told.exclude_count, "exclude")?,
            )
        };
        let ty = if told.unsigned_weights { WeightType::QUInt8 } else { WeightType::QInt8 };
        let mut options = QuantizeDynamic::new()
            .weight_type(ty)
            .per_channel(told.per_channel)
            .reduce_range(told.reduce_range)
            .subgraphs(told.subgraphs)
            .op_types(op_types)
            .only(only)
            .exclude(exclude);
        match told.weight_symmetric {
            0 => {}
            symmetric @ (1 | -1) => options = options.weight_symmetric(symmetric == 1),
            other => return Err(wrong(format!("weight_symmetric is {other}: give 1, 0 or -1"))),
        }
        let done = options.run(model, output)?;
        // SAFETY: the caller's promise; null is no place to write to.
        if let Ok(out) = unsafe { given_mut(json, "json") } {
            let quantized = done.nodes.iter().map(|(op, name)| json!({"op": op, "name": name}));
            let left = done.left.iter();
            let left = left.map(|left| json!({"op": left.op, "name": left.node, "why": left.why}));
            let text = json!({
                "quantized": quantized.collect::<Value>(),
                "left": left.collect::<Value>(),
                "bytes_before": done.bytes_before,
                "bytes_after": done.bytes_after,
            });
            hand_out_text(out, &text.to_string());
        }
        Ok(())
    })
}
