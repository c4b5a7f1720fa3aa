//! Products with weights of bytes, of what is quantized in each run.
//!
//! Dynamic quantization writes `DynamicQuantizeLinear`, `MatMulInteger`, `Cast`, `Mul` by the product of both scales and, for a bias,
//! `Add`. All but the first become one node, whose weights are laid out once, so that sums become reals where they are computed. So do
//! ONNX Runtime's `MatMulIntegerToFloat`, `DynamicQuantizeMatMul` and `QGemm`, which mean the same. What is done with the sums may be
//! something else; then the node gives the sums.

use super::bytes::{Weights, constants, gemm};
use super::edit::Editor;
use crate::graph::{Attribute, ValueId};
use crate::operator::INTERNAL;
use stepalloc_tensor::{DataType, Tensor};

/// What becomes one node.
struct Product {
    x: ValueId,
    x_zero: Option<ValueId>,
    x_scale: Option<ValueId>,
    weights: Weights,
    /// Columns of the weights lie as rows.
    transposed: bool,
    alpha: f32,
    /// Is added to sums.
    adds: Option<Vec<i32>>,
    /// Is added to reals.
    bias: Option<Vec<f32>>,
    y: (ValueId, DataType),
    /// Places of the nodes, the last one last.
    places: Vec<usize>,
}

/// One of these at a place, with constant weights, becomes a node of our own.
pub(super) fn product(editor: &mut Editor, at: usize) -> Option<()> {
    let node = editor.node(at)?;
    let input = |index: usize| node.input(index);
    let (x, y) = (input(0)?, (node.output()?, DataType::F32));
    let (alpha, places) = (node.attributes.float("alpha", 1.0), vec![at]);
    let matrix = |w: usize, zero: usize| Weights::unscaled(editor, input(w)?, input(zero), 1);
    // Scales and a bias of one output's columns.
    let columns = |weights: &Weights, index: usize| of_columns(editor, input(index)?, weights.len(1)?, 1);
    let product = match (&*node.domain, &*node.op_type) {
        ("", "MatMulInteger") => {
            let weights = matrix(1, 3)?;
            let y = (y.0, DataType::I32);
            let (x_zero, x_scale, transposed, adds, bias) = (input(2), None, false, None, None);
            let sums = Product { x, x_zero, x_scale, weights, transposed, alpha: 1.0, adds, bias, y, places };
            sums.made_real(editor)
        }
        ("com.microsoft", "MatMulIntegerToFloat") => {
            let mut weights = matrix(1, 5)?;
            weights.scales = columns(&weights, 3)?;
            let bias = if input(6).is_some() { Some(columns(&weights, 6)?) } else { None };
            let (x_zero, x_scale, transposed, adds) = (input(4), input(2), false, None);
            Product { x, x_zero, x_scale, weights, transposed, alpha: 1.0, adds, bias, y, places }
        }
        ("com.microsoft", "DynamicQuantizeMatMul") => {
            let mut weights = matrix(1, 3)?;
            weights.scales = columns(&weights, 2)?;
            let bias = if input(4).is_some() { Some(columns(&weights, 4)?) } else { None };
            let (x_zero, x_scale, transposed, adds) = (None, None, false, None);
            Product { x, x_zero, x_scale, weights, transposed, alpha: 1.0, adds, bias, y, places }
        }
        ("com.microsoft", "QGemm") if input(7).is_none() => {
            let (transposed, adds) = gemm(editor, node)?;
            let axis = usize::from(!transposed);
            let mut weights = Weights::unscaled(editor, input(3)?, input(5), axis as i64)?;
            weights.scales = of_columns(editor, input(4)?, weights.len(axis)?, 1)?;
            let (x_zero, x_scale, bias) = (input(2), input(1), None);
            Product { x, x_zero, x_scale, weights, transposed, alpha, adds, bias, y, places }
        }
        _ => return None,
    };
    product.put(editor)
}

/// Elements of a constant of f32: one for all columns, or one for each, with no more than `rank` dimensions.
fn of_columns(editor: &Editor, id: ValueId, cols: usize, rank: usize) -> Option<Vec<f32>> {
    let view = editor.constant(id)?.view();
    let fits = view.len() == 1 || view.len() == cols && view.shape.last() == Some(&cols);
    let right = view.dtype == DataType::F32 && fits && view.shape.len() <= rank;
    right.then(|| view.elements::<f32>().to_vec())
}

/// Whether a value is one element, with no more than `rank` dimensions.
fn is_one(editor: &Editor, id: ValueId, rank: usize) -> bool {
    let one = |id| editor.facts.exact(id).is_some_and(|ty| ty.elements() == 1 && ty.rank() <= rank);
    editor.facts.rank(id) == Some(0) || one(id)
}

/// A value as a product of a number, which may not be known before, and constants of columns.
fn scales(editor: &Editor, id: ValueId, cols: usize, rank: usize) -> Option<(Option<ValueId>, Vec<f32>)> {
    let constants = |id| of_columns(editor, id, cols, rank);
    if let Some(scales) = constants(id) {
        return Some((None, scales));
    }
    let both = editor.made_by(id, "Mul").and_then(|at| match editor.node(at)?.inputs[..] {
        [Some(a), Some(b)] => Some([(a, b), (b, a)]),
        _ => None,
    });
    let both = both.into_iter().flatten().filter(|&(number, _)| is_one(editor, number, rank));
    let mut found = both.filter_map(|(number, scales)| Some((Some(number), constants(scales)?)));
    found.next().or_else(|| is_one(editor, id, rank).then(|| (Some(id), vec![1.0])))
}

impl Product {
    /// With what makes reals of its sums, if that is all that is done with them.
    fn made_real(mut self, editor: &Editor) -> Self {
        let found = (|| {
            let (rank, cols) = (editor.facts.rank(self.x)?, self.weights.len(1)?);
            let next = |id: ValueId, op: &str| editor.only_user(id).filter(|&at| editor.is(at, op));
            let cast = next(self.y.0, "Cast")?;
            let node = editor.node(cast)?;
            (node.attributes.int("to", 0) == DataType::F32 as i64).then_some(())?;
            let reals = node.output()?;
            let mul = next(reals, "Mul")?;
            let node = editor.node(mul)?;
            let scales = scales(editor, node.beside(reals)?, cols, rank)?;
            let y = node.output()?;
            let bias = next(y, "Add").and_then(|add| {
                let node = editor.node(add)?;
                let bias = of_columns(editor, node.beside(y)?, cols, rank)?;
                Some((add, bias, node.output()?))
            });
            Some((cast, mul, scales, y, bias))
        })();
        if let Some((cast, mul, (x_scale, scales), y, bias)) = found {
            self.places.extend([cast, mul]);
            (self.x_scale, self.weights.scales, self.y) = (x_scale, scales, (y, DataType::F32));
            if let Some((add, bias, y)) = bias {
                self.places.push(add);
                (self.bias, self.y.0) = (Some(bias), y);
            }
        }
        self
    }

    fn put(self, editor: &mut Editor) -> Option<()> {
        let one = |id: Option<ValueId>| id.is_none_or(|id| is_one(editor, id, usize::MAX));
        (one(self.x_zero) && one(self.x_scale)).then_some(())?;
        let panels = self.weights.panels(self.transposed)?;
        let attributes = [
            ("y_type", Attribute::Int(self.y.1 as i64)),
            ("packed", Attribute::Ints(vec![panels.depth as i64, panels.cols as i64])),
            ("alpha", Attribute::Float(self.alpha)),
        ];
        let Weights { name, scales, zeros, .. } = self.weights;
        let mut inputs = constants(editor, &name, Some(self.x), panels.tensor, scales, self.adds, zeros)?;
        inputs.resize(5, None);
        let sums = Tensor::from_elements([panels.cols], &panels.sums)?;
        let sums = editor.add_constant(&format!("{name}_sums"), sums);
        inputs.extend([self.x_zero, self.x_scale, Some(sums)]);
        if let Some(bias) = self.bias {
            let bias = Tensor::from_elements([bias.len()], &bias)?;
            inputs.push(Some(editor.add_constant(&format!("{name}_bias"), bias)));
        }
        let (&first, &last) = (self.places.first()?, self.places.last()?);
        let of = &editor.node(first)?.name;
        let op = (INTERNAL, "QuantizedMatMul");
        let node = editor.make(of, op, &attributes, &inputs, &[Some(self.y.0)])?;
        self.places.iter().for_each(|&place| drop(editor.remove(place)));
        editor.put(last, node);
        Some(())
    }
}
