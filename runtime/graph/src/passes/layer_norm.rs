//! Layer normalization that is written out, and one after a sum.

use super::affine::floats;
use super::edit::Editor;
use crate::graph::{Attribute, Node, ValueId};
use stepalloc_tensor::Tensor;

/// What was found.
struct Found {
    x: ValueId,
    scale: ValueId,
    bias: ValueId,
    epsilon: f32,
    size: usize,
    places: Vec<usize>,
}

/// The nodes of a normalization that ends with the sum at this place.
fn find(editor: &Editor, at: usize) -> Option<Found> {
    let only = |id: ValueId, op: &str, user: usize| {
        editor.made_by(id, op).filter(|_| editor.only_user(id) == Some(user))
    };
    // Of two operands, the one that is a constant, and the other.
    let parameter = |at: usize| {
        let [Some(a), Some(b)] = editor.node(at)?.inputs[..] else { return None };
        if editor.constant(b).is_some() { Some((a, b)) } else { editor.constant(a).map(|_| (b, a)) }
    };
    editor.node(at).filter(|_| editor.is(at, "Add"))?.output()?;
    let (scaled, bias) = parameter(at)?;
    let scaling = only(scaled, "Mul", at)?;
    let (normal, scale) = parameter(scaling)?;
    let division = only(normal, "Div", scaling)?;
    let [Some(distance), Some(deviation)] = editor.node(division)?.inputs[..] else { return None };
    let root = only(deviation, "Sqrt", division)?;
    let sum = only(editor.node(root)?.input(0)?, "Add", root)?;
    let (variance, epsilon) = parameter(sum)?;
    let epsilon_at = epsilon;
    let epsilon = editor.scalar(epsilon).filter(|epsilon| *epsilon >= 0.0)?;
    let mean_of_squares = only(variance, "ReduceMean", sum)?;
    let squares = editor.node(mean_of_squares)?.input(0)?;
    let square = only(squares, "Pow", mean_of_squares).or_else(|| only(squares, "Mul", mean_of_squares))?;
    let [Some(base), Some(other)] = editor.node(square)?.inputs[..] else { return None };
    let by_power = !editor.is(square, "Mul");
    let is_square = if by_power { editor.scalar(other) == Some(2.0) } else { base == other };
    let difference =
        editor.made_by(distance, "Sub").filter(|_| editor.is_within(distance, &[division, square]))?;
    let [Some(x), Some(mean)] = editor.node(difference)?.inputs[..] else { return None };
    let mean_at = only(mean, "ReduceMean", difference)?;
    if !is_square || base != distance || editor.node(mean_at)?.input(0) != Some(x) {
        return None;
    }
    let rank = editor.facts.rank(x)?;
    if ![mean_at, mean_of_squares].iter().all(|&at| is_of_last(editor, at, rank)) {
        return None;
    }
    // Of more dimensions, one number would give the result more.
    let numbers = [Some(epsilon_at), by_power.then_some(other)];
    if numbers
        .into_iter()
        .flatten()
        .any(|id| editor.constant(id).is_none_or(|number| number.ty().rank() > rank))
    {
        return None;
    }
    // One number would fit any size.
    let size = (*editor.facts.sizes(x)?.last()?)?;
    let fits = |id: ValueId| {
        let ty = editor.constant(id)?.ty();
        let row = ty.shape.last() == Some(&size) && ty.elements() == size && ty.rank() <= rank;
        (row && size > 1).then_some(())
    };
    fits(scale).and(fits(bias))?;
    floats(editor.constant(scale)?)?;
    floats(editor.constant(bias)?)?;
    let places = vec![scaling, division, root, sum, mean_of_squares, square, difference, mean_at];
    Some(Found { x, scale, bias, epsilon, size, places })
}

/// Whether a mean is one of the elements along the last dimension, which stays.
fn is_of_last(editor: &Editor, at: usize, rank: usize) -> bool {
    let Some(node) = editor.node(at) else { return false };
    let axes = match node.input(1) {
        Some(axes) => editor.ints(axes),
        None => node.attributes.ints("axes"),
    };
    let last = |axes: Vec<i64>| axes == [-1] || axes == [rank as i64 - 1];
    axes.is_some_and(last) && node.attributes.int("keepdims", 1) != 0
}

/// Whether there is something that an operator of version 17 could do.
pub(super) fn has_some(editor: &Editor) -> bool {
    editor.places().any(|at| find(editor, at).is_some())
}

pub(super) fn run(editor: &mut Editor) -> usize {
    if editor.opset < 17 {
        return 0;
    }
    let mut changed = 0;
    for at in editor.places() {
        changed += usize::from(fuse(editor, at).is_some());
    }
    changed
}

fn fuse(editor: &mut Editor, at: usize) -> Option<()> {
    let found = find(editor, at)?;
    let scale = row(editor, found.scale, found.size)?;
    let bias = row(editor, found.bias, found.size)?;
    let attributes = [("axis", Attribute::Int(-1)), ("epsilon", Attribute::Float(found.epsilon))];
    let node = editor.node(at)?;
    let inputs = [Some(found.x), Some(scale), Some(bias)];
    let node = editor.make(&node.name, ("", "LayerNormalization"), &attributes, &inputs, &[node.output()])?;
    found.places.iter().for_each(|&place| drop(editor.remove(place)));
    editor.put(at, node);
    Some(())
}

/// A parameter without dimensions of one.
fn row(editor: &mut Editor, id: ValueId, size: usize) -> Option<ValueId> {
    let tensor = editor.constant(id)?;
    if tensor.ty().rank() == 1 {
        return Some(id);
    }
    let row = Tensor::from_elements([size], &floats(tensor)?)?;
    let name = format!("{}_row", editor.value(id).name);
    Some(editor.add_constant(&name, row))
}

/// `Add` and `LayerNormalization` of what it makes; the sum may be needed elsewhere as well.
pub(super) fn skip(editor: &mut Editor) -> usize {
    let mut changed = 0;
    for at in editor.places() {
        changed += usize::from(skip_at(editor, at).is_some());
    }
    changed
}

fn skip_at(editor: &mut Editor, at: usize) -> Option<()> {
    let node = editor.node(at).filter(|_| editor.is(at, "LayerNormalization"))?;
    let (output, sum) = (node.output()?, node.input(0)?);
    let place = editor.made_by(sum, "Add")?;
    let [Some(a), Some(b)] = editor.node(place)?.inputs[..] else { return None };
    let rank = editor.facts.rank(sum).filter(|rank| matches!(rank, 2 | 3))?;
    let axis = node.attributes.int("axis", -1);
    let parameters: Vec<_> = node.inputs.iter().skip(1).copied().collect();
    let f32 = |id: &Option<ValueId>| id.and_then(|id| floats(editor.constant(id)?));
    let size = parameters.iter().map(|id| f32(id).map(|row| row.len())).collect::<Option<Vec<_>>>()?;
    let is_row = |id: &ValueId| editor.constant(*id).is_some_and(|row| row.ty().rank() == 1);
    if axis != -1 && axis != rank as i64 - 1
        || size.is_empty()
        || !parameters.iter().flatten().all(is_row)
        // One number for all would be none of its rows.
        || size.iter().any(|&length| length < 2 || length != size[0])
        || editor.constant(a).is_some()
        || editor.constant(b).is_some()
        || !editor.facts.alike(a, b)
    {
        return None;
    }
    // What needs the sum must come after this node: nodes keep their places.
    let others = editor.users(sum).iter().any(|&user| user != at);
    if editor.users(sum).iter().any(|&user| user < at) {
        return None;
    }
    let kept = (others || editor.is_output(sum)).then_some(sum);
    let epsilon = [("epsilon", Attribute::Float(node.attributes.float("epsilon", 1e-5)))];
    let inputs: Vec<_> = [Some(a), Some(b)].into_iter().chain(parameters).collect();
    let outputs = match kept {
        Some(sum) => vec![Some(output), None, None, Some(sum)],
        None => vec![Some(output)],
    };
    let node: Node =
        editor.make(&node.name, ("com.microsoft", "SkipLayerNormalization"), &epsilon, &inputs, &outputs)?;
    editor.remove(place);
    editor.put(at, node);
    Some(())
}
