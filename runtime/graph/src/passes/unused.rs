//! Nodes whose outputs nobody needs.

use super::edit::Editor;

pub(super) fn run(editor: &mut Editor) -> usize {
    let mut removed = 0;
    for at in editor.places().rev() {
        let Some(node) = editor.node(at) else { continue };
        if node.outputs.iter().flatten().all(|&id| editor.is_unused(id)) {
            editor.remove(at);
            removed += 1;
        }
    }
    removed
}
