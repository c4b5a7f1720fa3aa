//! Reshapes in a row, and transpositions in a row: the last one alone does it.

use super::edit::Editor;
use crate::graph::{Attribute, ValueId};

pub(super) fn run(editor: &mut Editor) -> usize {
    let mut changed = 0;
    for at in editor.places() {
        changed += usize::from(reshape(editor, at).or_else(|| transpose(editor, at)).is_some());
    }
    changed
}

/// A reshape to sizes that are all told: what it takes may be of any shape.
fn reshape(editor: &mut Editor, at: usize) -> Option<()> {
    let node = editor.node(at).filter(|_| editor.is(at, "Reshape"))?;
    let before = node.input(0)?;
    let shape = editor.ints(node.input(1)?)?;
    // Zero means the size that the input has there.
    if shape.contains(&0) {
        return None;
    }
    let source =
        ["Reshape", "Flatten", "Squeeze", "Unsqueeze"].iter().find_map(|op| editor.made_by(before, op))?;
    let from = editor.node(source)?.input(0)?;
    let mut node = node.clone();
    node.inputs[0] = Some(from);
    editor.put(at, node);
    Some(())
}

fn transpose(editor: &mut Editor, at: usize) -> Option<()> {
    let node = editor.node(at).filter(|_| editor.is(at, "Transpose"))?;
    let order = node.attributes.ints("perm")?;
    let source = editor.made_by(node.input(0)?, "Transpose")?;
    let before = editor.node(source)?;
    let from: ValueId = before.input(0)?;
    let first = before.attributes.ints("perm")?;
    let both: Option<Vec<i64>> =
        order.iter().map(|&axis| first.get(usize::try_from(axis).ok()?).copied()).collect();
    let made = editor.make(
        &node.name,
        ("", "Transpose"),
        &[("perm", Attribute::Ints(both?))],
        &[Some(from)],
        &node.outputs,
    )?;
    editor.put(at, made);
    Some(())
}
