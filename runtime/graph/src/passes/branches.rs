//! An `If` whose condition is known is replaced by what is in its branch.

use super::edit::Editor;
use crate::inline::{inline, is_if};
use std::collections::HashMap;
use stepalloc_tensor::DataType;

pub(super) fn run(editor: &mut Editor) -> usize {
    let mut decided = HashMap::new();
    // Numbers as they are when nodes that were taken out are gone.
    for (number, at) in editor.places().filter(|&at| editor.node(at).is_some()).enumerate() {
        let Some(node) = editor.node(at).filter(|node| is_if(node)) else { continue };
        let condition = node.input(0).and_then(|id| editor.constant(id)).map(|tensor| tensor.view());
        if let Some(view) = condition.filter(|view| view.dtype == DataType::Bool && view.len() == 1) {
            decided.insert(number, view.bytes[0] != 0);
        }
    }
    if decided.is_empty() || !editor.rebuild(|graph, registry| inline(graph, &decided, registry).ok()) {
        return 0;
    }
    decided.len()
}
