//! Graphs within `If` nodes whose condition is known take the node's place: what is in them is planned with the rest.

use crate::error::Error;
use crate::graph::{Attributes, Graph, Node, ValueId};
use crate::operator::{Definition, Registry};
use std::collections::HashMap;
use std::sync::Arc;
use stepalloc_tensor::OpError;

/// The graph with the branches of these nodes in their places: node by number, and its condition.
pub(crate) fn inline(
    graph: &Graph,
    decided: &HashMap<usize, bool>,
    registry: &Registry,
) -> Result<Graph, Error> {
    let mut made = Graph { nodes: Vec::with_capacity(graph.nodes.len()), ..graph.clone() };
    for (index, node) in graph.nodes.iter().enumerate() {
        match decided.get(&index) {
            Some(&condition) => put_branch(&mut made, node, condition, registry)?,
            None => made.nodes.push(node.clone()),
        }
    }
    Ok(made)
}

/// Whether a node has branches.
pub(crate) fn is_if(node: &Node) -> bool {
    node.op_type == "If" && node.domain.is_empty()
}

fn put_branch(graph: &mut Graph, node: &Node, condition: bool, registry: &Registry) -> Result<(), Error> {
    let branch = |name: &str| {
        let missing = || Error::node(node, OpError::attribute(format!("it has no {name}")));
        node.attributes.graph(name).ok_or_else(missing)
    };
    let (otherwise, then) = (branch("else_branch")?, branch("then_branch")?);
    // Captures are in the order of the attributes' names.
    let (mut captures, taken) = (&node.captures[..], if condition { then } else { Arc::clone(&otherwise) });
    let skipped = if condition { otherwise.captured.len() } else { 0 };
    captures = captures.get(skipped..).unwrap_or_default();
    let mut ids: HashMap<ValueId, ValueId> =
        taken.captured.iter().copied().zip(captures.iter().copied()).collect();
    for (inner, value) in taken.values.iter().enumerate() {
        ids.entry(inner).or_insert_with(|| {
            graph.values.push(value.clone());
            graph.values.len() - 1
        });
    }
    let outside = |list: &[Option<ValueId>]| list.iter().map(|id| id.map(|id| ids[&id])).collect::<Vec<_>>();
    for inner in &taken.nodes {
        graph.nodes.push(Node {
            inputs: outside(&inner.inputs),
            outputs: outside(&inner.outputs),
            captures: inner.captures.iter().map(|id| ids[id]).collect(),
            ..inner.clone()
        });
    }
    if taken.outputs.len() < node.outputs.len() {
        return Err(Error::node(node, OpError::arity("a branch has too few outputs")));
    }
    for (inner, outer) in taken.outputs.iter().zip(&node.outputs) {
        if outer.is_some() {
            graph.nodes.push(identity(node, ids[inner], *outer, registry)?);
        }
    }
    Ok(())
}

/// A node that gives an inner value the outer one's name.
fn identity(node: &Node, from: ValueId, to: Option<ValueId>, registry: &Registry) -> Result<Node, Error> {
    let attributes = Attributes::default();
    let definition = Definition {
        op: "Identity",
        domain: "",
        opset: node.opset,
        attributes: &attributes,
        registry,
        inputs: &[true],
        outputs: &[true],
    };
    let operator = registry.make(&definition).and_then(Result::ok);
    let operator = operator.ok_or_else(|| Error::model("there is no operator Identity"))?;
    Ok(Node {
        name: node.name.clone(),
        op_type: "Identity".into(),
        domain: String::new(),
        opset: node.opset,
        attributes,
        inputs: vec![Some(from)],
        captures: Vec::new(),
        outputs: vec![to],
        operator: operator.into(),
    })
}
