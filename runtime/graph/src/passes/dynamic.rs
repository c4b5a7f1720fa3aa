//! Products and convolutions with weights of bytes, of what is quantized in each run.
//!
//! Dynamic quantization writes `DynamicQuantizeLinear`, `MatMulInteger` or `ConvInteger`, `Cast`, `Mul` by the product of both scales and,
//! for a bias, `Add`. All but the first become one node, whose weights are laid out once, so that sums become reals where they are
//! computed. So do ONNX Runtime's `MatMulIntegerToFloat`, `DynamicQuantizeMatMul` and `QGemm`, which mean the same. What is done with the
//! sums of a matrix may be something else; then the node gives the sums.

use super::bytes::{Panels, Rows, Weights, constants, gemm, known};
use super::edit::Editor;
use crate::graph::{Attribute, ValueId};
use crate::operator::INTERNAL;
use stepalloc_tensor::{DataType, Tensor};

/// What the weights are.
#[derive(Clone, Copy)]
enum Kind {
    /// A matrix, whose columns may lie as rows.
    Matrix { transposed: bool },
    /// Filters of a convolution.
    Filters,
}

/// Where results that belong to one column or filter lie in an output.
#[derive(Clone, Copy)]
struct Layout {
    /// How many columns or filters there are.
    count: usize,
    /// Dimensions of the output, and how many of them come after that of columns or filters.
    rank: usize,
    after: usize,
}

/// Columns in the last dimension, or anything that has one.
const fn row(count: usize) -> Layout {
    Layout { count, rank: 1, after: 0 }
}

/// What becomes one node.
struct Product {
    kind: Kind,
    x: ValueId,
    x_zero: Option<ValueId>,
    x_scale: Option<ValueId>,
    weights: Weights,
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
    let one = |kind: Kind, [w, zero]: [usize; 2], y: DataType| {
        let axis = match kind {
            Kind::Matrix { transposed } => i64::from(!transposed),
            Kind::Filters => 0,
        };
        let weights = Weights::unscaled(editor, input(w)?, input(zero), axis)?;
        Some(Product {
            kind,
            x: input(0)?,
            x_zero: None,
            x_scale: None,
            weights,
            alpha: 1.0,
            adds: None,
            bias: None,
            y: (node.output()?, y),
            places: vec![at],
        })
    };
    let matrix = |w, y| one(Kind::Matrix { transposed: false }, w, y);
    let columns = |product: &Product, index: usize| of_each(editor, input(index)?, row(product.count()?));
    let bias = |product: &Product, index: usize| match input(index) {
        Some(_) => Some(Some(columns(product, index)?)),
        None => Some(None),
    };
    let product = match (&*node.domain, &*node.op_type) {
        ("", "MatMulInteger") => {
            let sums = Product { x_zero: input(2), ..matrix([1, 3], DataType::I32)? };
            sums.made_real(editor)
        }
        ("", "ConvInteger") => {
            let sums = Product { x_zero: input(2), ..one(Kind::Filters, [1, 3], DataType::I32)? };
            Some(sums.made_real(editor)).filter(|made| made.y.1 == DataType::F32)?
        }
        ("com.microsoft", "MatMulIntegerToFloat") => {
            let mut product = matrix([1, 5], DataType::F32)?;
            product.weights.scales = columns(&product, 3)?;
            product.bias = bias(&product, 6)?;
            Product { x_zero: input(4), x_scale: input(2), ..product }
        }
        ("com.microsoft", "DynamicQuantizeMatMul") => {
            let mut product = matrix([1, 3], DataType::F32)?;
            product.weights.scales = columns(&product, 2)?;
            product.bias = bias(&product, 4)?;
            product
        }
        ("com.microsoft", "QGemm") if input(7).is_none() => {
            let (transposed, adds) = gemm(editor, node)?;
            let mut product = one(Kind::Matrix { transposed }, [3, 5], DataType::F32)?;
            product.weights.scales = columns(&product, 4)?;
            let alpha = node.attributes.float("alpha", 1.0);
            Product { x_zero: input(2), x_scale: input(1), adds, alpha, ..product }
        }
        _ => return None,
    };
    product.put(editor)
}

/// Elements of a value of f32 that is known: one for all columns or filters, or one for each. It has no dimension that results do not have.
fn of_each(editor: &Editor, id: ValueId, Layout { count, rank, after }: Layout) -> Option<Vec<f32>> {
    // A bias of filters is given their dimension by a node.
    let tensor = known(editor, id, "Reshape")?;
    let view = tensor.view();
    let each = view.len() == count && view.shape.iter().rev().nth(after) == Some(&count);
    let right = view.dtype == DataType::F32 && (each || view.len() == 1) && view.shape.len() <= rank;
    right.then(|| view.elements::<f32>().to_vec())
}

/// Whether a value is one element, with no more than `rank` dimensions.
fn is_one(editor: &Editor, id: ValueId, rank: usize) -> bool {
    let one = |id| editor.facts.exact(id).is_some_and(|ty| ty.elements() == 1 && ty.rank() <= rank);
    editor.facts.rank(id) == Some(0) || one(id)
}

/// A value as a product of a number, which may not be known before, and constants of columns or filters.
fn scales(editor: &Editor, id: ValueId, layout: Layout) -> Option<(Option<ValueId>, Vec<f32>)> {
    let constants = |id| of_each(editor, id, layout);
    if let Some(scales) = constants(id) {
        return Some((None, scales));
    }
    let both = editor.made_by(id, "Mul").and_then(|at| match editor.node(at)?.inputs[..] {
        [Some(a), Some(b)] => Some([(a, b), (b, a)]),
        _ => None,
    });
    let both = both.into_iter().flatten().filter(|&(number, _)| is_one(editor, number, layout.rank));
    let mut found = both.filter_map(|(number, scales)| Some((Some(number), constants(scales)?)));
    found.next().or_else(|| is_one(editor, id, layout.rank).then(|| (Some(id), vec![1.0])))
}

impl Product {
    /// Columns or filters.
    fn count(&self) -> Option<usize> {
        match self.kind {
            Kind::Matrix { transposed } => self.weights.cols(transposed),
            Kind::Filters => self.weights.shape().first().copied(),
        }
    }

    /// With what makes reals of its sums, if that is all that is done with them.
    fn made_real(mut self, editor: &Editor) -> Self {
        let found = (|| {
            let rank = editor.facts.rank(self.x)?;
            let after = if let Kind::Filters = self.kind { rank.checked_sub(2)? } else { 0 };
            let layout = Layout { count: self.count()?, rank, after };
            let next = |id: ValueId, op: &str| editor.only_user(id).filter(|&at| editor.is(at, op));
            let cast = next(self.y.0, "Cast")?;
            let node = editor.node(cast)?;
            (node.attributes.int("to", 0) == DataType::F32 as i64).then_some(())?;
            let reals = node.output()?;
            let mul = next(reals, "Mul")?;
            let node = editor.node(mul)?;
            let scales = scales(editor, node.beside(reals)?, layout)?;
            let y = node.output()?;
            let bias = next(y, "Add").and_then(|add| {
                let node = editor.node(add)?;
                Some((add, of_each(editor, node.beside(y)?, layout)?, node.output()?))
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
        let (&first, &last) = (self.places.first()?, self.places.last()?);
        let mut node = editor.node(first)?.clone();
        let mut attributes = vec![("y_type", Attribute::Int(self.y.1 as i64))];
        let Self { weights, mut bias, .. } = self;
        let (op, tensor, sums, scales, zeros) = match self.kind {
            Kind::Matrix { transposed } => {
                let Panels { tensor, depth, cols, sums } = weights.panels(transposed)?;
                attributes.push(("packed", Attribute::Ints(vec![depth as i64, cols as i64])));
                attributes.push(("alpha", Attribute::Float(self.alpha)));
                ("QuantizedMatMul", tensor, sums, weights.scales, weights.zeros)
            }
            Kind::Filters => {
                let Rows { tensor, sums } = weights.rows()?;
                attributes.extend(weights.window(&node));
                // One for each filter.
                let filters = 0..sums.len();
                bias = bias.map(|bias| if bias.len() == 1 { vec![bias[0]; filters.len()] } else { bias });
                let (scales, zeros) = filters.map(|filter| weights.at(filter)).unzip();
                ("QuantizedConv", tensor, sums, scales, zeros)
            }
        };
        let name = &weights.name;
        let mut inputs = constants(editor, name, Some(self.x), tensor, scales, self.adds, zeros)?;
        inputs.resize(5, None);
        let sums = Tensor::from_elements([sums.len()], &sums)?;
        inputs.extend([self.x_zero, self.x_scale, Some(editor.add_constant(&format!("{name}_sums"), sums))]);
        if let Some(bias) = bias {
            let bias = Tensor::from_elements([bias.len()], &bias)?;
            inputs.push(Some(editor.add_constant(&format!("{name}_bias"), bias)));
        }
        node = editor.make(&node.name, (INTERNAL, op), &attributes, &inputs, &[Some(self.y.0)])?;
        self.places.iter().for_each(|&place| drop(editor.remove(place)));
        editor.put(last, node);
        Some(())
    }
}
