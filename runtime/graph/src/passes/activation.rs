//! A sum with something of the same shape, and an activation, after a convolution become part of it.

use super::edit::Editor;
use super::product::bounds;
use crate::graph::{Attribute, Node, ValueId};
use stepalloc_tensor::DataType;

/// A convolution in f32, ai.onnx's or one that a sum went into, that makes a value for the node at `user` alone.
fn convolution(editor: &Editor, id: ValueId, user: usize) -> Option<(usize, Node)> {
    let at = editor.maker(id).filter(|_| editor.only_user(id) == Some(user))?;
    let node = editor.node(at)?;
    let plain = node.op_type == "Conv" && node.domain.is_empty();
    let summed = node.op_type == "FusedConv" && !node.attributes.0.contains_key("activation");
    let is_f32 = editor.facts.dtype(node.input(1)?) == Some(DataType::F32);
    ((plain || summed) && is_f32 && node.output() == Some(id)).then(|| (at, node.clone()))
}

fn fused(node: Node) -> Node {
    Node { domain: "com.microsoft".into(), op_type: "FusedConv".into(), opset: 1, ..node }
}

/// `Add` of what a convolution makes and of something that is of the same shape for certain.
pub(super) fn sum(editor: &mut Editor) -> usize {
    let mut changed = 0;
    for at in editor.places() {
        changed += usize::from(sum_at(editor, at).is_some());
    }
    changed
}

fn sum_at(editor: &mut Editor, at: usize) -> Option<()> {
    let node = editor.node(at).filter(|_| editor.is(at, "Add"))?;
    let output = node.output()?;
    let [Some(a), Some(b)] = node.inputs[..] else { return None };
    if !editor.facts.alike(a, b) || a == b {
        return None;
    }
    // The one that is computed last: a convolution that waited for the other one would keep its input alive.
    let (last, other) = if editor.maker(a) > editor.maker(b) { (a, b) } else { (b, a) };
    let (place, mut node) = convolution(editor, last, at).filter(|(_, node)| node.op_type == "Conv")?;
    node.inputs.resize(3, None);
    node.inputs.push(Some(other));
    node.outputs = vec![Some(output)];
    let node = fused(node).remade(&editor.registry)?;
    editor.remove(place);
    editor.put(at, node);
    Some(())
}

pub(super) fn run(editor: &mut Editor) -> usize {
    let mut changed = 0;
    for at in editor.places() {
        changed += usize::from(fuse(editor, at).is_some());
    }
    changed
}

fn fuse(editor: &mut Editor, at: usize) -> Option<()> {
    let node = editor.node(at).filter(|node| node.domain.is_empty())?;
    let (id, output) = (node.input(0)?, node.output()?);
    let float = |name: &str, usual: f32| node.attributes.float(name, usual);
    let parameters = match node.op_type.as_str() {
        "Relu" | "Sigmoid" | "Tanh" => Vec::new(),
        "LeakyRelu" => vec![float("alpha", 0.01)],
        "HardSigmoid" => vec![float("alpha", 0.2), float("beta", 0.5)],
        "Clip" => {
            let (least, most) = bounds(editor, node)?;
            vec![least, most]
        }
        _ => return None,
    };
    let activation = node.op_type.clone();
    let (place, node) = convolution(editor, id, at)?;
    let mut node = fused(node);
    node.attributes.0.insert("activation".into(), Attribute::String(activation.into_bytes()));
    if !parameters.is_empty() {
        node.attributes.0.insert("activation_params".into(), Attribute::Floats(parameters));
    }
    node.outputs = vec![Some(output)];
    let node = node.remade(&editor.registry)?;
    editor.remove(place);
    editor.put(at, node);
    Some(())
}
