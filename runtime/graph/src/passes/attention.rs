//! `MatMul` (or `FusedMatMul`), `Softmax` and `MatMul` become one attention, with the scale, the mask and the transpositions around them.
//!
//! Scores then are in memory for some queries at a time only, and keys and values are read where they lie: behind a `Transpose`, or in
//! front of nodes that repeat them for groups of heads.

use super::edit::Editor;
use crate::graph::{Attribute, Node, ValueId};
use crate::operator::INTERNAL;
use stepalloc_tensor::DataType;

/// Heads and rows change places.
const SWAPPED: [i64; 4] = [0, 2, 1, 3];

pub(super) fn run(editor: &mut Editor) -> usize {
    let mut changed = 0;
    for at in editor.places() {
        changed += usize::from(fuse(editor, at).is_some());
    }
    changed
}

/// An operand: the value that it is read from, and whether its heads lie behind its rows there.
#[derive(Clone, Copy)]
struct Operand {
    id: ValueId,
    rows_first: bool,
}

/// What is done to scores before the softmax.
struct Scores {
    q: ValueId,
    /// Keys; their columns are rows if they are transposed.
    k: ValueId,
    k_transposed: bool,
    scale: f64,
    mask: Option<Mask>,
    /// Places of its nodes.
    places: Vec<usize>,
}

struct Mask {
    id: ValueId,
    /// True elements hide.
    hides: bool,
    hidden: f32,
}

fn fuse(editor: &mut Editor, at: usize) -> Option<()> {
    let [Some(probabilities), Some(v)] = editor.node(at).filter(|_| editor.is(at, "MatMul"))?.inputs[..]
    else {
        return None;
    };
    let y = editor.node(at)?.output()?;
    let softmax = made_for(editor, probabilities, "Softmax", at)?;
    let axis = editor.node(softmax)?.attributes.int("axis", -1);
    // Versions before take all dimensions from the axis on for one: the same for the last.
    if axis != 3 && (axis != -1 || editor.opset < 13) || editor.facts.dtype(y) != Some(DataType::F32) {
        return None;
    }
    let scores = editor.node(softmax)?.input(0)?;
    let mut found = masked(editor, scores, softmax)?;
    let (q, q_scale) = unscaled(editor, found.q, &mut found.places);
    let (k, k_scale) = match found.k_transposed {
        true => transposed_keys(editor, found.k, &mut found.places)?,
        false => keys(editor, found.k, &mut found.places),
    };
    let (q, v) = (operand(editor, q), unrepeated(editor, v));
    let scale = found.scale * q_scale * k_scale;
    fits(editor, [q, k, v], scores)?;

    let mut inputs = vec![Some(q.id), Some(k.id), Some(v.id)];
    let layout = |rows_first: bool| Attribute::String(if rows_first { "BSHD" } else { "BHSD" }.into());
    // The output's transposition, if that is all that needs it.
    let transposed = editor.only_user(y).filter(|&user| is_transpose(editor, user, SWAPPED));
    let mut attributes = vec![
        ("scale", Attribute::Float(scale as f32)),
        ("q_layout", layout(q.rows_first)),
        ("k_layout", layout(k.rows_first)),
        ("v_layout", layout(v.rows_first)),
        ("y_layout", layout(transposed.is_some())),
    ];
    if let Some(mask) = &found.mask {
        inputs.push(Some(mask.id));
        attributes.push(("mask_hides", Attribute::Int(mask.hides.into())));
        attributes.push(("hidden", Attribute::Float(mask.hidden)));
    }
    let last = transposed.unwrap_or(at);
    let output = editor.node(last)?.output()?;
    let name = editor.node(at)?.name.clone();
    let op = (INTERNAL, "ScaledDotProductAttention");
    let node: Node = editor.make(&name, op, &attributes, &inputs, &[Some(output)])?;
    found.places.extend([softmax, at]);
    found.places.into_iter().for_each(|place| drop(editor.remove(place)));
    editor.put(last, node);
    Some(())
}

/// The place of a value's maker, where that is such an operator and only `user` needs the value.
fn made_for(editor: &Editor, id: ValueId, op: &str, user: usize) -> Option<usize> {
    editor.made_by(id, op).filter(|_| editor.only_user(id) == Some(user))
}

fn is_transpose(editor: &Editor, at: usize, order: [i64; 4]) -> bool {
    editor.is(at, "Transpose")
        && editor.node(at).and_then(|node| node.attributes.ints("perm")).is_some_and(|told| told == order)
}

/// What a `Transpose` in this order takes.
fn transposed(editor: &Editor, id: ValueId, order: [i64; 4]) -> Option<ValueId> {
    let at = editor.made_by(id, "Transpose").filter(|&at| is_transpose(editor, at, order))?;
    editor.node(at)?.input(0)
}

/// The value, or the one that a transposition of heads and rows makes it from.
fn operand(editor: &Editor, id: ValueId) -> Operand {
    match transposed(editor, id, SWAPPED) {
        Some(id) => Operand { id, rows_first: true },
        None => Operand { id, rows_first: false },
    }
}

/// The scores with a mask, if they have one.
fn masked(editor: &Editor, id: ValueId, user: usize) -> Option<Scores> {
    if let Some(at) = made_for(editor, id, "Where", user) {
        let [Some(condition), Some(yes), Some(no)] = editor.node(at)?.inputs[..] else { return None };
        let (inner, hidden, hides) = match (editor.scalar(yes), editor.scalar(no)) {
            (Some(hidden), None) => (no, hidden, true),
            (None, Some(hidden)) => (yes, hidden, false),
            _ => return None,
        };
        let mut scores = products(editor, inner, at)?;
        editor.facts.alike(inner, id).then_some(())?;
        scores.places.push(at);
        return Some(Scores { mask: Some(Mask { id: condition, hides, hidden }), ..scores });
    }
    if let Some(at) = made_for(editor, id, "Add", user) {
        let [Some(a), Some(b)] = editor.node(at)?.inputs[..] else { return None };
        return [(a, b), (b, a)].into_iter().find_map(|(inner, bias)| {
            let mut scores = products(editor, inner, at)?;
            editor.facts.alike(inner, id).then_some(())?;
            editor.facts.rank(bias).filter(|&rank| rank <= 4)?;
            scores.places.push(at);
            Some(Scores { mask: Some(Mask { id: bias, hides: false, hidden: 0.0 }), ..scores })
        });
    }
    products(editor, id, user)
}

/// Products of queries and keys, times a number.
fn products(editor: &Editor, id: ValueId, user: usize) -> Option<Scores> {
    let mut places = Vec::new();
    let (id, scale, user) = scaled(editor, id, user, &mut places);
    let at = editor.maker(id).filter(|_| editor.only_user(id) == Some(user))?;
    let node = editor.node(at)?;
    let [Some(q), Some(k)] = node.inputs[..] else { return None };
    let (alpha, k_transposed) = match (&*node.domain, &*node.op_type) {
        ("", "MatMul") => (1.0, true),
        // What was fused already.
        ("com.microsoft", "FusedMatMul") => {
            let told = |name: &str| node.attributes.int(name, 0) != 0;
            let others = ["transA", "transBatchA", "transBatchB"].into_iter().any(told);
            (node.attributes.float("alpha", 1.0), (!others).then(|| !told("transB"))?)
        }
        _ => return None,
    };
    places.push(at);
    Some(Scores { q, k, k_transposed, scale: scale * f64::from(alpha), mask: None, places })
}

/// What is multiplied by numbers for `user` alone, by which number, and the node that needs it.
fn scaled(
    editor: &Editor,
    mut id: ValueId,
    mut user: usize,
    places: &mut Vec<usize>,
) -> (ValueId, f64, usize) {
    let mut scale = 1.0;
    while let Some((at, inner, number)) = step(editor, id, user) {
        places.push(at);
        (id, user) = (inner, at);
        scale *= number;
    }
    (id, scale, user)
}

/// A product or quotient by a number that only `user` needs: its place, what it is of, and the number.
fn step(editor: &Editor, id: ValueId, user: usize) -> Option<(usize, ValueId, f64)> {
    let rank = editor.facts.rank(id)?;
    let number = |id: ValueId| {
        let number = editor.scalar(id)?;
        (editor.constant(id)?.ty().rank() <= rank).then_some(f64::from(number))
    };
    if let Some(at) = made_for(editor, id, "Mul", user) {
        let [Some(a), Some(b)] = editor.node(at)?.inputs[..] else { return None };
        return match (number(a), number(b)) {
            (None, Some(number)) => Some((at, a, number)),
            (Some(number), None) => Some((at, b, number)),
            _ => None,
        };
    }
    let at = made_for(editor, id, "Div", user)?;
    let [Some(a), Some(b)] = editor.node(at)?.inputs[..] else { return None };
    number(b).filter(|number| *number != 0.0).map(|number| (at, a, 1.0 / number))
}

/// A value without the numbers it is multiplied by, if only one node needs it.
fn unscaled(editor: &Editor, id: ValueId, places: &mut Vec<usize>) -> (ValueId, f64) {
    match editor.only_user(id) {
        Some(user) => {
            let (id, scale, _) = scaled(editor, id, user, places);
            (id, scale)
        }
        None => (id, 1.0),
    }
}

/// Keys whose rows are columns, as keys, without numbers they are multiplied by. Transpositions stay for others who need them.
fn transposed_keys(editor: &Editor, id: ValueId, places: &mut Vec<usize>) -> Option<(Operand, f64)> {
    let (id, outer) = unscaled(editor, id, places);
    if let Some(id) = transposed(editor, id, [0, 2, 3, 1]) {
        return Some((Operand { id, rows_first: true }, outer));
    }
    let (keys, inner) = keys(editor, transposed(editor, id, [0, 1, 3, 2])?, places);
    Some((keys, outer * inner))
}

/// Keys without numbers they are multiplied by.
fn keys(editor: &Editor, id: ValueId, places: &mut Vec<usize>) -> (Operand, f64) {
    let (id, scale) = unscaled(editor, id, places);
    (unrepeated(editor, id), scale)
}

/// Keys or values that are repeated for groups of heads, before they are: [B, H, S, D] of [B, H, 1, S, D], copied to [B, H, n, S, D].
fn unrepeated(editor: &Editor, id: ValueId) -> Operand {
    let before = || {
        let reshape = editor.made_by(id, "Reshape")?;
        let copied = editor.node(reshape)?.input(0)?;
        let copy = editor.made_by(copied, "Tile").or_else(|| editor.made_by(copied, "Expand"))?;
        let single = editor.node(copy)?.input(0)?;
        let unsqueeze = editor.made_by(single, "Unsqueeze")?;
        let source = editor.node(unsqueeze)?.input(0)?;
        let shapes = |id: ValueId| editor.facts.shapes(id);
        let all = shapes(source)?.into_iter().zip(shapes(single)?).zip(shapes(copied)?).zip(shapes(id)?);
        let repeats = all.into_iter().all(|(((source, single), copied), whole)| {
            let &[batch, heads, rows, cols] = source else { return false };
            let times = copied.get(2).copied().unwrap_or(0);
            single == [batch, heads, 1, rows, cols]
                && copied == [batch, heads, times, rows, cols]
                && whole == [batch, heads * times, rows, cols]
        });
        repeats.then_some(source)
    };
    operand(editor, before().unwrap_or(id))
}

/// Whether operands are those of one attention, whose scores are of this type.
fn fits(editor: &Editor, operands: [Operand; 3], scores: ValueId) -> Option<()> {
    let shapes = |operand: Operand| editor.facts.shapes(operand.id);
    let [q, k, v] = operands;
    let all = shapes(q)?.into_iter().zip(shapes(k)?).zip(shapes(v)?).zip(editor.facts.shapes(scores)?);
    let fits = all.into_iter().all(|(((q_shape, k_shape), v_shape), scores)| {
        let dims = |shape: &[usize], operand: Operand| match (shape, operand.rows_first) {
            (&[batch, rows, heads, cols], true) | (&[batch, heads, rows, cols], false) => {
                Some([batch, heads, rows, cols])
            }
            _ => None,
        };
        let (Some([batch, heads, queries, head]), Some([k_batch, kv_heads, keys, k_head])) =
            (dims(q_shape, q), dims(k_shape, k))
        else {
            return false;
        };
        let Some([v_batch, v_heads, v_keys, _]) = dims(v_shape, v) else { return false };
        [k_batch, v_batch] == [batch; 2]
            && [v_heads, v_keys, k_head] == [kv_heads, keys, head]
            && heads.checked_rem(kv_heads) == Some(0)
            && scores == [batch, heads, queries, keys]
    });
    fits.then_some(())
}
