//! Nodes that compute the same from the same, and small weights that are equal, become one.
//!
//! But for nodes that depend on no input and were not folded: large weights that a graph computes, each right before it is needed. One
//! for all would be alive throughout.

use super::edit::{Editor, taken};
use crate::graph::{Attribute, Node, ValueId};
use std::collections::{HashMap, HashSet};
use stepalloc_tensor::Tensor;

/// Weights up to so many bytes are compared: axes, shapes and numbers, which models have by the hundred.
const SMALL: usize = 1 << 10;

pub(super) fn run(editor: &mut Editor) -> usize {
    let mut weights: HashMap<Vec<u8>, ValueId> = HashMap::new();
    let mut seen: HashMap<Vec<u8>, usize> = HashMap::new();
    let mut computed: HashSet<ValueId> = HashSet::new();
    let mut removed = 0;
    for at in editor.places() {
        let Some(node) = editor.node(at) else { continue };
        if taken(node).all(|id| computed.contains(&id) || editor.constant(id).is_some()) {
            computed.extend(node.outputs.iter().flatten());
        }
        let mut inputs = node.inputs.clone();
        for id in inputs.iter_mut().flatten() {
            if let Some(tensor) = editor.constant(*id).filter(|tensor| tensor.ty().bytes() <= SMALL) {
                *id = *weights.entry(told(tensor)).or_insert(*id);
            }
        }
        if inputs != node.inputs {
            let node = Node { inputs, ..node.clone() };
            editor.put(at, node);
        }
        let Some(node) = editor.node(at) else { continue };
        if node.outputs.iter().flatten().any(|id| computed.contains(id)) {
            continue;
        }
        let Some(key) = key(node) else { continue };
        let Some(&first) = seen.get(&key) else {
            seen.insert(key, at);
            continue;
        };
        let Some(others) = editor.node(first).map(|node| node.outputs.clone()) else { continue };
        let pairs: Vec<_> = node.outputs.iter().copied().zip(others).collect();
        let fits = |(own, other): &(Option<ValueId>, Option<ValueId>)| match own {
            Some(own) => other.is_some() && !editor.is_output(*own),
            None => true,
        };
        if !pairs.iter().all(fits) {
            continue;
        }
        for (own, other) in pairs {
            if let (Some(own), Some(other)) = (own, other) {
                editor.replace(at, own, other);
            }
        }
        // Without any outputs, it would still be there.
        editor.remove(at);
        removed += 1;
    }
    removed
}

/// A tensor as bytes that tell it apart.
fn told(tensor: &Tensor) -> Vec<u8> {
    let view = tensor.view();
    let mut key = format!("{}{:?}", view.dtype, view.shape).into_bytes();
    key.extend_from_slice(view.bytes);
    key
}

/// What a node computes, as bytes; nothing of those that may differ from run to run, and of those with graphs.
fn key(node: &Node) -> Option<Vec<u8>> {
    if !node.operator.is_pure() || node.graphs().next().is_some() {
        return None;
    }
    let wanted: Vec<_> = node.outputs.iter().map(Option::is_some).collect();
    let text = format!("{} {} {} {:?} {wanted:?} ", node.op_type, node.domain, node.opset, node.inputs);
    let mut key = text.into_bytes();
    let mut attributes: Vec<_> = node.attributes.0.iter().collect();
    attributes.sort_by_key(|(name, _)| *name);
    for (name, attribute) in attributes {
        key.extend_from_slice(name.as_bytes());
        match attribute {
            Attribute::Tensor(tensor) if tensor.ty().bytes() <= SMALL => key.extend(told(tensor)),
            Attribute::Tensor(_) => return None,
            Attribute::Float(value) => key.extend(value.to_bits().to_le_bytes()),
            Attribute::Floats(values) => {
                key.push(b'[');
                values.iter().for_each(|value| key.extend(value.to_bits().to_le_bytes()));
            }
            other => key.extend(format!("{other:?}").into_bytes()),
        }
        key.push(b';');
    }
    Some(key)
}
