//! Nodes that give what they take.

use super::edit::Editor;
use crate::graph::{Node, ValueId};
use stepalloc_tensor::DataType;
use stepalloc_tensor::{Bool, Tensor};

pub(super) fn run(editor: &mut Editor) -> usize {
    let mut removed = 0;
    for at in editor.places() {
        let Some(node) = editor.node(at).filter(|node| node.domain.is_empty()) else { continue };
        let (Some(output), Some(input)) = (node.output(), same_as(editor, node)) else { continue };
        removed += usize::from(editor.replace(at, output, input));
    }
    removed
}

/// The input that a node gives as it is.
fn same_as(editor: &Editor, node: &Node) -> Option<ValueId> {
    let input = node.input(0)?;
    let told = |index: usize| editor.ints(node.input(index)?);
    let gives = match node.op_type.as_str() {
        "Identity" => true,
        "Dropout" => match node.input(2) {
            None => true,
            Some(training) => {
                let training = editor.constant(training)?.view();
                training.dtype == DataType::Bool && training.elements::<Bool>().iter().all(|flag| !flag.get())
            }
        },
        "Cast" => {
            editor.facts.dtype(input).is_some_and(|ty| Some(ty as i64) == node.attributes.opt_int("to"))
        }
        "Transpose" => {
            let order = node.attributes.ints("perm")?;
            order.iter().enumerate().all(|(at, &from)| at as i64 == from)
        }
        "Slice" => {
            takes_all(editor, node)
                || keeps_type(editor, node) && steps(editor, node)?.iter().all(|&step| step > 0)
        }
        "Pad" => {
            let pads = if node.opset < 11 { node.attributes.ints("pads") } else { told(1) };
            pads?.iter().all(|&pad| pad == 0)
        }
        "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" | "Expand" => keeps_type(editor, node),
        "Concat" | "Sum" | "Max" | "Min" | "Mean" => node.inputs.len() == 1,
        "Add" | "Mul" => {
            let neutral = if node.op_type == "Add" { 0.0 } else { 1.0 };
            let second = node.input(1)?;
            if is_all(editor, input, neutral, second) {
                return Some(second);
            }
            is_all(editor, second, neutral, input)
        }
        "Sub" => is_all(editor, node.input(1)?, 0.0, input),
        "Div" | "Pow" => is_all(editor, node.input(1)?, 1.0, input),
        _ => false,
    };
    gives.then_some(input)
}

/// Whether input and output are of one type, which is certain.
fn keeps_type(editor: &Editor, node: &Node) -> bool {
    let ty = |id: Option<ValueId>| editor.facts.exact(id?);
    matches!((ty(node.input(0)), ty(node.output())), (Some(from), Some(to)) if from == to)
}

/// Steps of a `Slice`, none if they are left out.
fn steps(editor: &Editor, node: &Node) -> Option<Vec<i64>> {
    match node.input(4) {
        Some(steps) => editor.ints(steps),
        None => Some(Vec::new()),
    }
}

/// Whether a `Slice` begins at the beginning and ends beyond any end.
fn takes_all(editor: &Editor, node: &Node) -> bool {
    let told = |index: usize, name: &str| match node.input(index) {
        Some(id) if node.opset >= 10 => editor.ints(id),
        _ => node.attributes.ints(name),
    };
    let (Some(starts), Some(ends), Some(steps)) = (told(1, "starts"), told(2, "ends"), steps(editor, node))
    else {
        return false;
    };
    // Writers give the largest number of 32 bits, or of 64.
    starts.iter().all(|&start| start == 0)
        && ends.iter().all(|&end| end >= i64::from(i32::MAX))
        && steps.iter().all(|&step| step == 1)
}

/// Whether a constant is this number throughout, and as an operand leaves the other one's type as it is.
fn is_all(editor: &Editor, constant: ValueId, number: f64, other: ValueId) -> bool {
    let Some(tensor) = editor.constant(constant) else { return false };
    let is = |tensor: &Tensor| match tensor.view().dtype {
        DataType::F32 => tensor.view().elements::<f32>().iter().all(|&x| f64::from(x) == number),
        DataType::F64 => tensor.view().elements::<f64>().iter().all(|&x| x == number),
        DataType::I64 => tensor.view().elements::<i64>().iter().all(|&x| x == number as i64),
        DataType::I32 => tensor.view().elements::<i32>().iter().all(|&x| x == number as i32),
        _ => false,
    };
    let ty = tensor.ty();
    // Of one element, in no more dimensions than the other one has.
    ty.elements() == 1
        && editor.facts.dtype(other) == Some(ty.dtype)
        && (ty.rank() == 0 || editor.facts.rank(other).is_some_and(|rank| rank >= ty.rank()))
        && is(tensor)
}
