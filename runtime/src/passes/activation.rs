//! An activation after a convolution becomes part of it.

use super::edit::Editor;
use super::product::bounds;
use crate::element::DataType;
use crate::graph::Attribute;

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
    let place = editor.made_by(id, "Conv").filter(|_| editor.only_user(id) == Some(at))?;
    let conv = editor.node(place)?;
    if editor.facts.dtype(conv.input(1)?) != Some(DataType::F32) {
        return None;
    }
    let mut node = conv.clone();
    node.domain = "com.microsoft".into();
    node.op_type = "FusedConv".into();
    node.opset = 1;
    node.attributes.0.insert("activation".into(), Attribute::String(activation.into_bytes()));
    if !parameters.is_empty() {
        node.attributes.0.insert("activation_params".into(), Attribute::Floats(parameters));
    }
    node.outputs = vec![Some(output)];
    let node = node.remade()?;
    editor.remove(place);
    editor.put(at, node);
    Some(())
}
