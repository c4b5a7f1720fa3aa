//! Halves become f32, once for all runs: this machine's kernels are of f32, and would widen each operand in each run.
//!
//! Weights take twice as much memory as in the file, and nothing is rounded to halves in between. Inputs and outputs stay what they are.

use super::edit::{Editor, Tools};
use super::facts::Facts;
use crate::graph::{Attribute, Attributes, Declared, Graph, Node, Value, ValueId};
use crate::operator::Registry;
use std::sync::Arc;
use stepalloc_tensor::{DataType, Tensor};

/// What tells an element type as a number.
const TOLD: [&str; 5] = ["to", "dtype", "output_dtype", "output_datatype", "softmax_precision"];

fn is_half(dtype: DataType) -> bool {
    matches!(dtype, DataType::F16 | DataType::BF16)
}

/// Whether a number tells a type of halves.
fn tells_half(attribute: &Attribute) -> bool {
    let number = if let Attribute::Int(number) = attribute { i32::try_from(*number).ok() } else { None };
    number.and_then(DataType::from_onnx).is_some_and(is_half)
}

/// The graph with f32 in the place of halves; `None` where there are none, or it is not known of each value whether it is.
pub(super) fn widen(graph: &Graph, tools: &Tools) -> Option<Graph> {
    if !has_some(graph) {
        return None;
    }
    let facts = Facts::new(graph, &[], false, &tools.context);
    let is_there = |&id: &ValueId| graph.values[id].constant.is_some();
    if graph.nodes.iter().any(|node| node.graphs().next().is_some()) || graph.inputs.iter().any(is_there) {
        return None;
    }
    let mut is_wide = vec![false; graph.values.len()];
    let made = graph.nodes.iter().flat_map(|node| node.outputs.iter().flatten().copied());
    let held = (0..graph.values.len()).filter(|id| graph.values[*id].constant.is_some());
    for id in made.chain(held).chain(graph.inputs.iter().copied()) {
        is_wide[id] = is_half(facts.dtype(id)?);
    }
    if !is_wide.contains(&true) || graph.outputs.iter().any(|id| is_wide[*id] && is_there(id)) {
        return None;
    }
    // Custom operators need not know f32.
    let is_custom = |node: &Node| tools.registry.is_custom(&node.domain, &node.op_type);
    let takes_halves = |node: &Node| node.inputs.iter().chain(&node.outputs).flatten().any(|id| is_wide[*id]);
    if graph.nodes.iter().any(|node| is_custom(node) && takes_halves(node)) {
        return None;
    }
    let mut widened = Graph { nodes: Vec::new(), ..graph.clone() };
    let mut names = vec![None; graph.values.len()];
    // What is a half outside keeps its number there, and has another within.
    for &id in graph.inputs.iter().chain(&graph.outputs) {
        if is_wide[id] && names[id].is_none() {
            let name = format!("{}_widened", graph.values[id].name);
            names[id] = Some(widened.values.len());
            widened.values.push(Value { name, ..Value::default() });
        }
    }
    let within = |id: ValueId| names[id].unwrap_or(id);
    let cast = |from: ValueId, to: ValueId, dtype: DataType| {
        let attributes = Attributes([("to".to_owned(), Attribute::Int(dtype as i64))].into());
        let node = Node {
            name: format!("{}_cast", graph.values[from.min(to)].name),
            op_type: "Cast".into(),
            domain: String::new(),
            opset: CAST,
            attributes,
            inputs: vec![Some(from)],
            captures: Vec::new(),
            outputs: vec![Some(to)],
            operator: Arc::new(super::edit::Nothing),
        };
        node.remade(&tools.registry)
    };
    for &id in graph.inputs.iter().filter(|id| is_wide[**id]) {
        widened.nodes.push(cast(id, within(id), DataType::F32)?);
    }
    for node in &graph.nodes {
        let mut node = node.clone();
        let ids = node.inputs.iter_mut().chain(&mut node.outputs).flatten();
        ids.for_each(|id| *id = within(*id));
        widened.nodes.push(if is_custom(&node) { node } else { widen_node(node, &tools.registry)? });
    }
    for &id in graph.outputs.iter().filter(|id| is_wide[**id] && !graph.inputs.contains(id)) {
        widened.nodes.push(cast(within(id), id, facts.dtype(id)?)?);
    }
    for (value, _) in widened.values.iter_mut().zip(&is_wide).filter(|(_, is_wide)| **is_wide) {
        if let Some(constant) = &value.constant {
            value.constant = Some(Arc::new(constant.widened()?));
        }
    }
    let ends: Vec<_> = graph.inputs.iter().chain(&graph.outputs).copied().collect();
    for (id, value) in widened.values.iter_mut().enumerate().filter(|(id, _)| !ends.contains(id)) {
        if let Some(Declared { dtype, .. }) =
            value.declared.as_mut().filter(|_| is_wide.get(id) == Some(&true))
        {
            *dtype = DataType::F32;
        }
    }
    Some(widened)
}

/// Halves of a file that are made f32 by themselves, as OpenVINO compresses weights, are f32 from the start, wherever the others are not.
pub(super) fn casts(editor: &mut Editor) -> usize {
    let mut changed = 0;
    for at in editor.places() {
        let Some(wide) = editor.node(at).and_then(|node| cast_of_weights(editor, node)) else { continue };
        let Some(node) = editor.remove(at) else { continue };
        if let [Some(id)] = node.outputs[..] {
            editor.set_constant(id, Arc::new(wide));
            changed += 1;
        }
    }
    changed
}

fn cast_of_weights(editor: &Editor, node: &Node) -> Option<Tensor> {
    let to = node.attributes.opt_int("to")? == DataType::F32 as i64;
    let weights = editor.constant(node.input(0)?)?;
    (node.op_type == "Cast" && node.domain.is_empty() && to && weights.is_of_file())
        .then(|| weights.widened())
        .flatten()
}

/// Whether halves come in, are held, or are made of something else.
fn has_some(graph: &Graph) -> bool {
    let of_value = |value: &Value| {
        let held = value.constant.as_ref().map(|constant| constant.ty().dtype);
        held.or(value.declared.as_ref().map(|declared| declared.dtype)).is_some_and(is_half)
    };
    let of_node = |node: &Node| {
        node.attributes.0.iter().any(|(name, attribute)| match attribute {
            Attribute::Tensor(tensor) => is_half(tensor.ty().dtype),
            _ => TOLD.contains(&name.as_str()) && tells_half(attribute),
        })
    };
    graph.values.iter().any(of_value) || graph.nodes.iter().any(of_node)
}

/// The version of `Cast` that is put in.
const CAST: i64 = 13;

/// A node that makes f32 where it was told to make halves.
fn widen_node(mut node: Node, registry: &Registry) -> Option<Node> {
    // The bits of a half are no f32's.
    if node.op_type == "BitCast" {
        return None;
    }
    let mut is_changed = false;
    for (name, attribute) in &mut node.attributes.0 {
        if let Attribute::Tensor(tensor) = attribute
            && is_half(tensor.ty().dtype)
        {
            *attribute = Attribute::Tensor(Arc::new(tensor.widened()?));
            is_changed = true;
        } else if TOLD.contains(&name.as_str()) && tells_half(attribute) {
            // Others round to halves on the way, or make numbers at random of that type.
            if node.op_type != "Cast" {
                return None;
            }
            *attribute = Attribute::Int(DataType::F32 as i64);
            is_changed = true;
        }
    }
    if is_changed { node.remade(registry) } else { Some(node) }
}
