//! Products of matrices: what follows one goes into it.

use super::affine::{floats, of_batchnorm};
use super::edit::Editor;
use crate::graph::{Attribute, Node};
use stepalloc_tensor::Tensor;

/// `BatchNormalization` after `Gemm`: columns are channels.
pub(super) fn batchnorm(editor: &mut Editor) -> usize {
    let mut changed = 0;
    for at in editor.places() {
        changed += usize::from(batchnorm_at(editor, at).is_some());
    }
    changed
}

fn batchnorm_at(editor: &mut Editor, at: usize) -> Option<()> {
    let norm = editor.node(at)?;
    let by = of_batchnorm(editor, norm)?;
    let (id, output) = (norm.input(0)?, norm.output()?);
    let place = editor.made_by(id, "Gemm").filter(|_| editor.only_user(id) == Some(at))?;
    let gemm = editor.node(place)?;
    let weights = editor.constant(gemm.input(1)?)?;
    let &[rows, columns] = &weights.ty().shape[..] else { return None };
    let transposed = gemm.attributes.int("transB", 0) != 0;
    let channels = if transposed { rows } else { columns };
    if by.scale.len() != channels || channels == 0 {
        return None;
    }
    let beta = f64::from(gemm.attributes.float("beta", 1.0));
    let bias = match gemm.input(2) {
        None => vec![0.0; channels],
        Some(bias) => {
            let bias = editor.constant(bias)?;
            let row = *bias.ty().shape.last().unwrap_or(&1);
            let elements = floats(bias)?;
            if elements.len() != row || row != channels && row != 1 {
                return None;
            }
            (0..channels).map(|channel| elements[channel % row]).collect()
        }
    };
    let mut elements = floats(weights)?;
    for (number, x) in elements.iter_mut().enumerate() {
        let channel = if transposed { number / columns } else { number % columns };
        *x = (f64::from(*x) * by.scale[channel]) as f32;
    }
    let with =
        |(channel, x): (usize, f32)| (f64::from(x) * beta * by.scale[channel] + by.shift[channel]) as f32;
    let bias: Vec<f32> = bias.into_iter().enumerate().map(with).collect();
    let mut node = gemm.clone();
    let name = editor.value(node.input(1)?).name.clone();
    let weights = Tensor::from_elements([rows, columns], &elements)?;
    let weights = editor.add_constant(&format!("{name}_fused"), weights);
    let bias = editor.add_constant(&format!("{name}_bias"), Tensor::from_elements([channels], &bias)?);
    node.inputs = vec![node.inputs[0], Some(weights), Some(bias)];
    node.attributes.0.insert("beta".into(), Attribute::Float(1.0));
    put(editor, place, at, Node { outputs: vec![Some(output)], ..node })
}

/// `MatMul` of matrices, and `Add` of a row.
pub(super) fn matmul_add(editor: &mut Editor) -> usize {
    let mut changed = 0;
    for at in editor.places() {
        changed += usize::from(matmul_add_at(editor, at).is_some());
    }
    changed
}

fn matmul_add_at(editor: &mut Editor, at: usize) -> Option<()> {
    let add = editor.node(at).filter(|_| editor.is(at, "Add"))?;
    let output = add.output()?;
    let [Some(a), Some(b)] = add.inputs[..] else { return None };
    let (id, bias) = if editor.constant(b).is_some() { (a, b) } else { (b, a) };
    let place = editor.made_by(id, "MatMul").filter(|_| editor.only_user(id) == Some(at))?;
    let product = editor.node(place)?;
    let (left, right) = (product.input(0)?, product.input(1)?);
    let weights = editor.constant(right)?.ty();
    let &[_, columns] = &weights.shape[..] else { return None };
    if !weights.dtype.is_float() || editor.facts.rank(left) != Some(2) {
        return None;
    }
    let fits = match editor.constant(bias)?.ty().shape[..] {
        [] => true,
        [row] | [1, row] => row == columns || row == 1,
        _ => false,
    };
    if !fits {
        return None;
    }
    let name = product.name.clone();
    let node =
        editor.make(&name, ("", "Gemm"), &[], &[Some(left), Some(right), Some(bias)], &[Some(output)])?;
    put(editor, place, at, node)
}

fn put(editor: &mut Editor, old: usize, place: usize, node: Node) -> Option<()> {
    let node = node.remade(&editor.tools.registry)?;
    editor.remove(old);
    editor.put(place, node);
    Some(())
}
