//! Gemm becomes MatMul and Add, which can be quantized each for itself.

use super::graph::{Rewriter, make};
use std::collections::HashMap;
use stepalloc_graph::Error;
use stepalloc_onnx::proto::{AttributeProto, GraphProto, NodeProto, TensorProto};
use stepalloc_onnx::tensors::{Folder, tensor};
use stepalloc_tensor::{DataType, Tensor, Type, View};

/// Matrices are transposed in squares of so many elements a side: a line of the cache is used as long as it is there.
const TILE: usize = 16;

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

/// The name of a transposed copy of an initializer; `None` where there can be none. Its elements come when they are needed.
fn transposed(rewriter: &mut Rewriter<'_>, name: &str) -> Option<String> {
    let level = rewriter.level_of(name)?;
    if let Some(made) = rewriter.levels[level].transposed.get(name) {
        return Some(made.clone());
    }
    let source = rewriter.initializer(name)?.clone();
    let is_whole = DataType::from_onnx(source.data_type?).is_some_and(|dtype| dtype.file_bits() >= 8);
    let &[rows, cols] = source.dims.as_slice() else { return None };
    if !is_whole {
        return None;
    }
    let made = rewriter.names.value(&format!("{name}_Transposed"));
    let copy = TensorProto {
        name: Some(made.clone()),
        data_type: source.data_type,
        dims: vec![cols, rows],
        ..TensorProto::default()
    };
    let level = &mut rewriter.levels[level];
    level.add(copy);
    level.transposed.insert(name.to_owned(), made.clone());
    rewriter.turned.insert(made.clone(), source);
    Some(made)
}

/// A matrix, transposed.
pub(super) fn turn(source: &TensorProto, folder: &mut Folder) -> Result<Tensor, Error> {
    let matrix = tensor(source, folder)?;
    let View { dtype, shape, bytes, .. } = matrix.view();
    let &[rows, cols] = shape else {
        return Err(Error::model(format!("{} has no two dimensions", matrix.ty())));
    };
    let ty = Type::new(dtype, [cols, rows]).ok_or_else(|| Error::model("it is too large"))?;
    let (mut turned, size) = (Tensor::zeroed(ty), dtype.bytes());
    let to = turned.view_mut().bytes;
    for (first_row, first_col) in tiles(rows).flat_map(|row| tiles(cols).map(move |col| (row, col))) {
        for row in first_row..rows.min(first_row + TILE) {
            for col in first_col..cols.min(first_col + TILE) {
                let (from, at) = ((row * cols + col) * size, (col * rows + row) * size);
                to[at..at + size].copy_from_slice(&bytes[from..from + size]);
            }
        }
    }
    Ok(turned)
}

fn tiles(end: usize) -> impl Iterator<Item = usize> + Clone {
    (0..end).step_by(TILE)
}

/// Gives the transposed copies that are still there their elements.
pub(super) fn fill(
    graph: &mut GraphProto,
    turned: &HashMap<String, TensorProto>,
    folder: &mut Folder,
) -> Result<(), Error> {
    for copy in &mut graph.initializer {
        let name = copy.name.as_deref().unwrap_or_default();
        let Some(source) = turned.get(name) else { continue };
        let made = turn(source, folder).map_err(|error| error.within(&format!("initializer {name}")))?;
        copy.raw_data = Some(made.view().bytes.to_vec().into());
    }
    let attributes = graph.node.iter_mut().flat_map(|node| &mut node.attribute);
    let mut inner =
        attributes.flat_map(|attribute| attribute.g.as_deref_mut().into_iter().chain(&mut attribute.graphs));
    inner.try_for_each(|graph| fill(graph, turned, folder))
}
