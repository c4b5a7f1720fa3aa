//! A model's version of ai.onnx is raised, where that gains an operator and every node means the same in both.
//!
//! Of versions 11 and up; those before have other rules for more operators. What was told by an attribute and is by an input now gets one.

use super::edit::{Editor, Tools};
use super::facts::Facts;
use super::{layer_norm, product};
use crate::graph::{Attribute, Graph, Node, Value, ValueId};
use std::cell::LazyCell;
use std::collections::HashSet;
use std::sync::Arc;
use stepalloc_tensor::Tensor;

/// The version that models are raised to: the first with `LayerNormalization`.
pub(super) const RAISED: i64 = 17;
/// The first version that models are raised from.
const FIRST: i64 = 11;
/// The first version whose `Softmax` takes one dimension, and that tells axes by inputs.
const AXES_AS_INPUTS: i64 = 13;

/// Operators that mean the same from version 11 to 17.
const SAME: &[&str] = &[
    "Abs",
    "Add",
    "And",
    "ArgMax",
    "ArgMin",
    "AveragePool",
    "BatchNormalization",
    "Cast",
    "Ceil",
    "Clip",
    "Concat",
    "Constant",
    "ConstantOfShape",
    "Conv",
    "ConvTranspose",
    "Cos",
    "DepthToSpace",
    "Div",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "Expand",
    "Flatten",
    "Floor",
    "Gather",
    "GatherElements",
    "Gemm",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "Greater",
    "HardSigmoid",
    "Identity",
    "If",
    "InstanceNormalization",
    "LeakyRelu",
    "Less",
    "Log",
    "Loop",
    "LSTM",
    "GRU",
    "MatMul",
    "Max",
    "MaxPool",
    "Mean",
    "Min",
    "Mul",
    "Neg",
    "NonZero",
    "Not",
    "Or",
    "PRelu",
    "Pad",
    "Pow",
    "Range",
    "Reciprocal",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "Relu",
    "Reshape",
    "Resize",
    "Shape",
    "Sigmoid",
    "Sin",
    "Size",
    "Slice",
    "Softplus",
    "Sqrt",
    "Sub",
    "Sum",
    "Tanh",
    "Tile",
    "Transpose",
    "Where",
];

/// The graph in the raised version; `None` where nothing is gained or something would be lost.
pub(super) fn raise(graph: &Graph, from: i64, tools: &Tools) -> Option<Graph> {
    ((FIRST..RAISED).contains(&from) && gains(graph, from, tools, false))
        .then(|| raised(graph, tools, false))?
}

/// Whether there is something in it that a newer operator does.
fn gains(graph: &Graph, from: i64, tools: &Tools, is_inner: bool) -> bool {
    let facts = Facts::new(graph, &[], is_inner, &tools.context);
    let editor = Editor::new(graph.clone(), facts, tools.clone(), from, 0, is_inner);
    from < 14 && product::has_hard_swish(&editor)
        || layer_norm::has_some(&editor)
        || graph.nodes.iter().flat_map(Node::graphs).any(|(_, inner)| gains(inner, from, tools, true))
}

fn raised(graph: &Graph, tools: &Tools, is_inner: bool) -> Option<Graph> {
    let mut made = Graph { nodes: Vec::new(), ..graph.clone() };
    let mut names: HashSet<_> = graph.values.iter().map(|value| value.name.clone()).collect();
    // What nodes make is the same before and afterwards.
    let facts = LazyCell::new(|| Facts::new(graph, &[], is_inner, &tools.context));
    for node in &graph.nodes {
        let mut node = node.clone();
        if node.domain.is_empty() {
            // Bodies of functions have versions of their own.
            if node.opset >= RAISED || node.opset < FIRST {
                return None;
            }
            convert(&mut node, &mut made, &mut names, &|id| facts.rank(id))?;
            node.opset = RAISED;
            let graphs: Vec<_> =
                node.graphs().map(|(name, inner)| (name.to_owned(), raised(inner, tools, true))).collect();
            for (name, inner) in graphs {
                node.attributes.0.insert(name, Attribute::Graph(Arc::new(inner?)));
            }
            node = node.remade(&tools.registry)?;
        }
        made.nodes.push(node);
    }
    Some(made)
}

/// Says what a node says in the words of the raised version; `names` are those of all values.
fn convert(
    node: &mut Node,
    graph: &mut Graph,
    names: &mut HashSet<String>,
    rank: &dyn Fn(ValueId) -> Option<usize>,
) -> Option<()> {
    let old = node.opset < AXES_AS_INPUTS;
    match node.op_type.as_str() {
        // Learning, it has more outputs.
        "BatchNormalization" if node.output().is_none() => return None,
        op if SAME.contains(&op) => {}
        "Squeeze" | "Unsqueeze" | "ReduceSum" if old => as_input(node, "axes", graph, names),
        "Split" if old => as_input(node, "split", graph, names),
        "Squeeze" | "Unsqueeze" | "ReduceSum" | "Split" => {}
        "Softmax" | "LogSoftmax" if old => {
            // From the axis on all dimensions were one: the same where there is one only.
            let axis = node.attributes.int("axis", 1);
            let rank = node.input(0).and_then(rank);
            if axis != -1 && rank.is_none_or(|rank| axis != rank as i64 - 1) {
                return None;
            }
            node.attributes.0.insert("axis".into(), Attribute::Int(-1));
        }
        "Softmax" | "LogSoftmax" => {}
        _ => return None,
    }
    Some(())
}

/// Integers of an attribute become the second input.
fn as_input(node: &mut Node, attribute: &str, graph: &mut Graph, names: &mut HashSet<String>) {
    let Some(ints) = node.attributes.ints(attribute) else { return };
    let Some(tensor) = Tensor::from_elements([ints.len()], &ints) else { return };
    node.attributes.0.remove(attribute);
    let mut name = format!("{}_{attribute}", node.name);
    while !names.insert(name.clone()) {
        name.push('_');
    }
    node.inputs.truncate(1);
    node.inputs.push(Some(graph.values.len()));
    graph.values.push(Value { name, declared: None, constant: Some(Arc::new(tensor)) });
}
