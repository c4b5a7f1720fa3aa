//! Nodes whose inputs are all known are computed once, and become weights.
//!
//! What they make has at most as many bytes as the limit says. Weights that are kept small (quantized, or halves) and made larger when
//! they are used stay as they are, beyond what planning would compute in any case.

use super::edit::Editor;
use crate::graph::Node;
use crate::operator::Known;
use crate::run::run_one;
use std::sync::Arc;
use stepalloc_tensor::{Tensor, Type, View};

/// What makes more bytes of fewer is computed up to so many bytes: what planning computes for each plan.
const GROWING: usize = 64 << 10;

pub(super) fn run(editor: &mut Editor) -> usize {
    let mut folded = 0;
    for at in editor.places() {
        let Some(node) = editor.node(at) else { continue };
        let made = held(node).or_else(|| as_it_is(editor, node)).or_else(|| compute(editor, node));
        let Some(made) = made else { continue };
        let Some(node) = editor.remove(at) else { continue };
        for (tensor, id) in made.into_iter().zip(&node.outputs) {
            if let Some(id) = *id {
                editor.set_constant(id, tensor);
            }
        }
        folded += 1;
    }
    folded
}

/// The tensor of a node that has one.
fn held(node: &Node) -> Option<Vec<Arc<Tensor>>> {
    node.operator.constant().map(|tensor| vec![tensor])
}

/// A weight that is cast to the type that it has stays what it is, in its file.
fn as_it_is(editor: &Editor, node: &Node) -> Option<Vec<Arc<Tensor>>> {
    let to = (node.op_type == "Cast" && node.domain.is_empty()).then(|| node.attributes.opt_int("to"))??;
    let weight = editor.constant(node.input(0)?)?;
    (to == weight.ty().dtype as i64).then(|| vec![Arc::clone(weight)])
}

fn compute(editor: &Editor, node: &Node) -> Option<Vec<Arc<Tensor>>> {
    let operator = &node.operator;
    if !operator.is_pure() || node.graphs().next().is_some() || node.inputs.is_empty() {
        return None;
    }
    let constant = |id: &Option<usize>| id.map(|id| editor.constant(id));
    let constants: Vec<_> = node.inputs.iter().map(constant).collect();
    let all_known = constants.iter().flatten().all(Option::is_some);
    let exact = |id: &Option<usize>| id.is_none_or(|id| editor.facts.exact(id).is_some());
    let told_by_types = operator.looks_at_types_only() && node.inputs.iter().all(exact);
    if !all_known && !told_by_types {
        return None;
    }
    let types: Vec<_> = node.inputs.iter().map(|id| id.and_then(|id| editor.facts.exact(id))).collect();
    // Large ones tell no shapes, and would be read from the file.
    let known = constants.iter().map(|known| known.flatten());
    let small = known
        .clone()
        .map(|known| known.filter(|known| known.ty().bytes() <= GROWING).map(|known| known.view()));
    let (small, context) = (small.collect::<Vec<_>>(), &editor.tools.context);
    let made = operator.infer(&Known { types: &types, values: &small, context }).ok()?;
    let bytes = |made: &[Type]| made.iter().map(Type::bytes).fold(0usize, usize::saturating_add);
    let given: usize = constants.iter().flatten().flatten().map(|known| known.ty().bytes()).sum();
    let limit =
        if bytes(&made) > given { editor.fold_limit.min(GROWING.max(given)) } else { editor.fold_limit };
    if made.len() < node.outputs.len() || bytes(&made) > limit {
        return None;
    }
    let read: Vec<_> = known.clone().map(|known| known.and_then(|known| known.in_passing())).collect();
    let views: Vec<_> = known
        .zip(&read)
        .zip(&types)
        .map(|((known, read), ty)| match read.as_ref().or(known.map(|known| &**known)) {
            Some(known) => Some(known.view()),
            None => ty.map(|ty| View { dtype: ty.dtype, shape: &ty.shape, bytes: &[] }),
        })
        .collect();
    let made = run_one(&**operator, &views, made, node.outputs.len(), context).ok()?;
    Some(made.into_iter().map(Arc::new).collect())
}
