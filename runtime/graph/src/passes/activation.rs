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
    let summed = is_fused(node) && !node.attributes.0.contains_key("activation");
    let is_f32 = editor.facts.dtype(node.input(1)?) == Some(DataType::F32);
    ((plain || summed) && is_f32 && node.output() == Some(id)).then(|| (at, node.clone()))
}

/// Whether a node is ONNX Runtime's convolution with an activation.
pub(super) fn is_fused(node: &Node) -> bool {
    node.op_type == "FusedConv" && node.domain == "com.microsoft"
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
    let node = fused(node).remade(&editor.tools.registry)?;
    editor.remove(place);
    editor.put(at, node);
    Some(())
}

pub(super) fn run(editor: &mut Editor) -> usize {
    each(editor, common)
}

/// HardSwish and x * sigmoid(a x), which com.microsoft's FusedConv does not have.
pub(super) fn swish(editor: &mut Editor) -> usize {
    each(editor, own)
}

/// An activation's name and parameters, as attributes of FusedConv.
type Told = (&'static str, Vec<f32>);

fn each(editor: &mut Editor, told: fn(&Editor, &Node) -> Option<Told>) -> usize {
    let mut changed = 0;
    for at in editor.places() {
        changed += usize::from(fuse(editor, at, told).is_some());
    }
    changed
}

fn own(_: &Editor, node: &Node) -> Option<Told> {
    let alpha = |usual: f32| node.attributes.float("alpha", usual);
    match (node.domain.as_str(), node.op_type.as_str()) {
        ("", "HardSwish") => Some(("HardSwish", Vec::new())),
        ("", "Swish") => Some(("Swish", vec![alpha(1.0)])),
        ("com.microsoft", "QuickGelu") => Some(("Swish", vec![alpha(1.702)])),
        _ => None,
    }
}

fn common(editor: &Editor, node: &Node) -> Option<Told> {
    if !node.domain.is_empty() {
        return None;
    }
    let float = |name: &str, usual: f32| node.attributes.float(name, usual);
    Some(match node.op_type.as_str() {
        "Relu" => ("Relu", Vec::new()),
        "Sigmoid" => ("Sigmoid", Vec::new()),
        "Tanh" => ("Tanh", Vec::new()),
        "LeakyRelu" => ("LeakyRelu", vec![float("alpha", 0.01)]),
        "HardSigmoid" => ("HardSigmoid", vec![float("alpha", 0.2), float("beta", 0.5)]),
        "Clip" => {
            let (least, most) = bounds(editor, node)?;
            ("Clip", vec![least, most])
        }
        _ => return None,
    })
}

fn fuse(editor: &mut Editor, at: usize, told: fn(&Editor, &Node) -> Option<Told>) -> Option<()> {
    let node = editor.node(at)?;
    let (id, output) = (node.input(0)?, node.output()?);
    let (activation, parameters) = told(editor, node)?;
    let (place, node) = convolution(editor, id, at)?;
    let mut node = fused(node);
    node.attributes.0.insert("activation".into(), Attribute::String(activation.into()));
    if !parameters.is_empty() {
        node.attributes.0.insert("activation_params".into(), Attribute::Floats(parameters));
    }
    node.outputs = vec![Some(output)];
    let node = node.remade(&editor.tools.registry)?;
    editor.remove(place);
    editor.put(at, node);
    Some(())
}
