//! Gemm becomes MatMul and Add, which can be quantized each for itself.

use super::graph::{Rewriter, make};
use crate::onnx::proto::{AttributeProto, NodeProto, TensorProto};
use crate::onnx::tensors::tensor;
use crate::tensor::View;

/// Replaces every Gemm that is a product and a sum, but those that are excluded by name; MatMuls come with the name of their Gemm.
pub(super) fn replace(
    rewriter: &mut Rewriter<'_>,
    nodes: Vec<NodeProto>,
) -> Vec<(NodeProto, Option<String>)> {
    let mut made = Vec::with_capacity(nodes.len());
    for node in nodes {
        let plain = node.domain.as_deref().is_none_or(|domain| matches!(domain, "" | "ai.onnx"));
        let is_gemm = plain && node.op_type.as_deref() == Some("Gemm");
        match is_gemm.then(|| split(rewriter, &node)).flatten() {
            Some(parts) => made.extend(parts),
            None => made.push((node, None)),
        }
    }
    made
}

fn split(rewriter: &mut Rewriter<'_>, node: &NodeProto) -> Option<Vec<(NodeProto, Option<String>)>> {
    let attribute = |name: &str| node.attribute.iter().find(|found| found.name.as_deref() == Some(name));
    let factor = |name| attribute(name).and_then(|found: &AttributeProto| found.f).unwrap_or(1.0);
    let is_set = |name| attribute(name).and_then(|found: &AttributeProto| found.i).unwrap_or(0) != 0;
    let (Some(a), Some(b), Some(y)) = (node.input.first(), node.input.get(1), node.output.first()) else {
        return None;
    };
    if factor("alpha") != 1.0 || factor("beta") != 1.0 || is_set("transA") || rewriter.options.excludes(node)
    {
        return None;
    }
    let name = node.name.clone().unwrap_or_default();
    let part = |what: &str| if name.is_empty() { String::new() } else { format!("{name}_{what}") };
    let mut parts = Vec::new();
    let mut right = b.clone();
    if is_set("transB") {
        right = match rewriter.initializer(b).is_some() {
            true => transposed(rewriter, b)?,
            false => {
                let right = rewriter.names.value(&format!("{b}_Transposed"));
                parts.push((make("Transpose", &[b], &[&right], &part("Transpose")), None));
                right
            }
        };
    }
    let gemm = Some(super::graph::called(node).to_owned());
    match node.input.get(2).filter(|c| !c.is_empty()) {
        None => parts.push((make("MatMul", &[a, &right], &[y], &part("MatMul")), gemm)),
        Some(c) => {
            let product = rewriter.names.value(&format!("{y}_MatMul"));
            parts.push((make("MatMul", &[a, &right], &[&product], &part("MatMul")), gemm));
            parts.push((make("Add", &[&product, c], &[y], &part("Add")), None));
        }
    }
    Some(parts)
}

/// The name of a transposed copy of an initializer; `None` where there can be none.
fn transposed(rewriter: &mut Rewriter<'_>, name: &str) -> Option<String> {
    let level = rewriter.level_of(name)?;
    if let Some(made) = rewriter.levels[level].transposed.get(name) {
        return Some(made.clone());
    }
    let proto = rewriter.initializer(name)?.clone();
    let matrix = tensor(&proto, &mut rewriter.folder).ok()?;
    let View { dtype, shape, bytes, .. } = matrix.view();
    let (&[rows, cols], size) = (shape, dtype.bytes()) else { return None };
    if dtype.file_bits() < 8 {
        return None;
    }
    let mut turned = Vec::with_capacity(bytes.len());
    for col in 0..cols {
        for row in 0..rows {
            turned.extend_from_slice(&bytes[(row * cols + col) * size..][..size]);
        }
    }
    let made = rewriter.names.value(&format!("{name}_Transposed"));
    let copy = TensorProto {
        name: Some(made.clone()),
        data_type: Some(dtype as i32),
        dims: vec![cols as i64, rows as i64],
        raw_data: Some(turned.into()),
        ..TensorProto::default()
    };
    let level = &mut rewriter.levels[level];
    level.add(copy);
    level.transposed.insert(name.to_owned(), made.clone());
    Some(made)
}
