//! Nodes between `DequantizeLinear` and `QuantizeLinear` compute on bytes.
//!
//! Quantizers leave the model's operators in f32, each between nodes that make reals of its inputs and bytes of its output ("QDQ"). Here
//! convolutions and products of matrices become products of bytes, summed in integers; nodes that only move elements move bytes;
//! functions of one tensor become a table of 256 bytes, and sums and products of two are computed from bytes to bytes. So do `QLinearConv`,
//! `QLinearMatMul` and `QGemm`, which mean the same. Where the left factor is quantized in each run, see [`super::dynamic`]. Scales and zero points must be constants, one for each tensor, or for each filter or column of
//! weights. (Jacob et al.: Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference, 2018,
//! section 2.2, has the arithmetic.)

use super::dynamic;
use super::edit::Editor;
use super::product::bounds;
use crate::context::RunContext;
use crate::graph::{Attribute, Node, ValueId};
use crate::operator::{INTERNAL, Known};
use crate::run::run_one;
use std::sync::Arc;
use stepalloc_tensor::{DataType, Tensor, Type, View, mapped, quads};

/// Bytes with one scale and zero point: real numbers are (byte - zero) * scale.
#[derive(Clone, Copy, PartialEq)]
struct Scaled {
    scale: f32,
    /// Of the bytes' type.
    zero: i32,
    dtype: DataType,
}

impl Scaled {
    fn new(editor: &Editor, scale: ValueId, zero: Option<ValueId>, dtype: DataType) -> Option<Self> {
        let scale = editor.scalar(scale).filter(|scale| scale.is_finite() && *scale > 0.0)?;
        let zero = match zero {
            None => 0,
            Some(zero) => match bytes(editor, zero)?[..] {
                [zero] => zero,
                _ => return None,
            },
        };
        matches!(dtype, DataType::U8 | DataType::I8).then_some(Self { scale, zero, dtype })
    }

    /// The zero point of the unsigned bytes.
    fn unsigned_zero(self) -> i32 {
        if self.dtype == DataType::U8 { self.zero } else { self.zero + 128 }
    }

    /// The byte that a real number becomes.
    fn byte(self, real: f32) -> i32 {
        let (least, most) = self.range();
        let steps = (real / self.scale).round_ties_even();
        (f64::from(steps) + f64::from(self.zero)).clamp(least.into(), most.into()) as i32
    }

    fn range(self) -> (i32, i32) {
        if self.dtype == DataType::U8 { (0, 255) } else { (-128, 127) }
    }
}

/// The elements of a constant of bytes.
fn bytes(editor: &Editor, id: ValueId) -> Option<Vec<i32>> {
    let view = editor.constant(id)?.view();
    match view.dtype {
        DataType::U8 => Some(view.elements::<u8>().iter().map(|&x| x.into()).collect()),
        DataType::I8 => Some(view.elements::<i8>().iter().map(|&x| x.into()).collect()),
        _ => None,
    }
}

/// Whether a node is one of those that quantizers write: ai.onnx's, or of the same name in ONNX Runtime's domain.
fn is_plain(node: &Node, op: &str) -> bool {
    node.op_type == op
        && matches!(&*node.domain, "" | "com.microsoft")
        && node.attributes.int("block_size", 0) == 0
        && node.attributes.int("precision", 0) == 0
}

/// The bytes of which a value is made.
fn dequantized(editor: &Editor, id: ValueId) -> Option<(ValueId, Scaled)> {
    let node = editor.node(editor.maker(id)?).filter(|node| is_plain(node, "DequantizeLinear"))?;
    let x = node.input(0)?;
    (editor.facts.dtype(id)? == DataType::F32).then_some(())?;
    Some((x, Scaled::new(editor, node.input(1)?, node.input(2), editor.facts.dtype(x)?)?))
}

/// What a `QuantizeLinear` at a place takes, and what it makes.
fn quantized(editor: &Editor, at: usize) -> Option<(ValueId, ValueId, Scaled)> {
    let node = editor.node(at).filter(|node| is_plain(node, "QuantizeLinear"))?;
    let (x, y) = (node.input(0)?, node.output()?);
    (editor.facts.dtype(x)? == DataType::F32).then_some(())?;
    Some((x, y, Scaled::new(editor, node.input(1)?, node.input(2), editor.facts.dtype(y)?)?))
}

/// Constant weights in bytes, with scales and zero points of the whole or of each index of an axis.
pub(super) struct Weights {
    tensor: Arc<Tensor>,
    pub(super) name: String,
    pub(super) scales: Vec<f32>,
    /// Of the signed bytes.
    pub(super) zeros: Vec<i32>,
    axis: usize,
}

/// Filters as convolutions of bytes take them.
pub(super) struct Rows {
    pub(super) tensor: Tensor,
    /// Of each filter's elements less its zero point.
    pub(super) sums: Vec<i32>,
}

/// A right factor as products of bytes take it.
pub(super) struct Panels {
    pub(super) tensor: Tensor,
    pub(super) depth: usize,
    pub(super) cols: usize,
    /// Of each column's elements less its zero point.
    pub(super) sums: Vec<i32>,
}

impl Weights {
    fn new(editor: &Editor, [id, scale]: [ValueId; 2], zero: Option<ValueId>, axis: i64) -> Option<Self> {
        let scale_view = editor.constant(scale)?.view();
        if scale_view.dtype != DataType::F32 || scale_view.shape.len() > 1 {
            return None;
        }
        let mut weights = Self::unscaled(editor, id, zero, axis)?;
        weights.scales = scale_view.elements::<f32>().to_vec();
        if zero.is_none() {
            weights.zeros = vec![weights.zeros[0]; weights.scales.len()];
        }
        (weights.zeros.len() == weights.scales.len() && weights.has(weights.scales.len())).then_some(weights)
    }

    /// With scale 1.
    pub(super) fn unscaled(editor: &Editor, id: ValueId, zero: Option<ValueId>, axis: i64) -> Option<Self> {
        let tensor = editor.constant(id)?;
        let ty = tensor.ty();
        if !matches!(ty.dtype, DataType::U8 | DataType::I8) || ty.elements() == 0 {
            return None;
        }
        let zeros = match zero {
            None => vec![0],
            Some(zero) => bytes(editor, zero)?,
        };
        let axis = if axis < 0 { axis + ty.rank() as i64 } else { axis };
        // Signed, whatever they are.
        let shift = if ty.dtype == DataType::U8 { 128 } else { 0 };
        let weights = Self {
            tensor: Arc::clone(tensor),
            name: editor.value(id).name.clone(),
            scales: vec![1.0],
            zeros: zeros.into_iter().map(|zero| zero - shift).collect(),
            axis: usize::try_from(axis).ok()?,
        };
        weights.has(weights.zeros.len()).then_some(weights)
    }

    pub(super) fn shape(&self) -> &[usize] {
        &self.tensor.ty().shape
    }

    /// The columns of a matrix.
    pub(super) fn cols(&self, transposed: bool) -> Option<usize> {
        let &[first, second] = self.shape() else { return None };
        Some(if transposed { first } else { second })
    }

    /// Of a convolution, in rows.
    pub(super) fn rows(&self) -> Option<Rows> {
        let shape = &self.tensor.ty().shape;
        let several = self.zeros.len().max(self.scales.len()) > 1;
        (shape.len() > 2 && !(several && self.axis != 0)).then_some(())?;
        let (filters, flip) = (shape[0], self.flip());
        let depth: usize = shape[1..].iter().product();
        let (rows, sums) = self.read(|elements| {
            let sum = |(filter, row): (usize, &[u8])| {
                let sum = row.iter().map(|&x| i32::from((x ^ flip) as i8)).sum::<i32>();
                sum.wrapping_sub(self.at(filter).1.wrapping_mul(depth as i32))
            };
            let sums = elements.chunks_exact(depth).enumerate().map(sum).collect();
            (quads::rows(elements, depth, flip), sums)
        });
        let rows: Vec<i8> = bytemuck::cast_vec(rows);
        Some(Rows { tensor: Tensor::from_elements([filters, 4 * quads::quads(depth)], &rows)?, sums })
    }

    /// Attributes of a convolution with them that say how its windows move.
    pub(super) fn window(&self, node: &Node) -> Vec<(&'static str, Attribute)> {
        let kernel = self.tensor.ty().shape.iter().skip(2).map(|&size| size as i64).collect();
        let told = ["strides", "pads", "dilations", "group", "auto_pad"].into_iter();
        let told = told.filter_map(|name| Some((name, node.attributes.0.get(name)?.clone())));
        std::iter::once(("kernel_shape", Attribute::Ints(kernel))).chain(told).collect()
    }

    /// Whether so many scales or zero points are one for the whole or for each index of the axis.
    fn has(&self, count: usize) -> bool {
        count == 1 || self.tensor.ty().shape.get(self.axis) == Some(&count)
    }

    /// Those of a matrix, whose columns may lie as rows.
    pub(super) fn panels(&self, transposed: bool) -> Option<Panels> {
        let &[first, second] = &self.tensor.ty().shape[..] else { return None };
        let (depth, cols) = if transposed { (second, first) } else { (first, second) };
        if self.zeros.len().max(self.scales.len()) > 1 && self.axis != usize::from(!transposed) {
            return None;
        }
        let flip = self.flip();
        let panels = self.read(|elements| {
            quads::panels(cols, depth, |row, col| {
                elements[if transposed { col * depth + row } else { row * cols + col }] ^ flip
            })
        });
        let zeros = (0..cols).map(|col| self.at(col).1);
        let mut sums: Vec<_> = zeros.map(|zero| zero.wrapping_mul(-(depth as i32))).collect();
        let length = 4 * quads::quads(depth) * quads::WIDTH;
        for (panel, sums) in panels.chunks_exact(length).zip(sums.chunks_mut(quads::WIDTH)) {
            for (at, quad) in panel.as_chunks::<4>().0.iter().enumerate() {
                // Of the last panel some columns are not there.
                if let Some(sum) = sums.get_mut(at % quads::WIDTH) {
                    *sum = quad.iter().fold(*sum, |sum, &x| sum.wrapping_add(i32::from(x as i8)));
                }
            }
        }
        let panels: Vec<i8> = bytemuck::cast_vec(panels);
        Some(Panels { tensor: Tensor::from_elements([panels.len()], &panels)?, depth, cols, sums })
    }

    /// Those that a value is made of.
    fn dequantized(editor: &Editor, id: ValueId) -> Option<Self> {
        let node = editor.node(editor.maker(id)?).filter(|node| is_plain(node, "DequantizeLinear"))?;
        (editor.facts.dtype(id)? == DataType::F32).then_some(())?;
        let axis = node.attributes.int("axis", 1);
        Self::new(editor, [node.input(0)?, node.input(1)?], node.input(2), axis)
    }

    /// Scale and zero point of an index of the axis.
    pub(super) fn at(&self, index: usize) -> (f32, i32) {
        let of = |len: usize| if len == 1 { 0 } else { index };
        (self.scales[of(self.scales.len())], self.zeros[of(self.zeros.len())])
    }

    fn flip(&self) -> u8 {
        if self.tensor.ty().dtype == DataType::I8 { 0 } else { 0x80 }
    }

    /// Calls with the elements, as they are.
    fn read<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        let read = self.tensor.in_passing();
        let made = f(read.as_ref().unwrap_or(&self.tensor).view().bytes);
        if self.tensor.is_lent() {
            // What is laid out takes the place of the file's pages.
            mapped::settle_part(self.tensor.view().bytes);
        }
        made
    }
}

/// The elements of a value of f32 that is constant, or made of constants by `DequantizeLinear`.
fn reals(editor: &Editor, id: ValueId) -> Option<Vec<f32>> {
    let known = known(editor, id, "DequantizeLinear")?;
    let view = known.view();
    (view.dtype == DataType::F32).then(|| view.elements::<f32>().to_vec())
}

/// A value that is constant, or made of constants by an operator of this name.
pub(super) fn known(editor: &Editor, id: ValueId, op: &str) -> Option<Arc<Tensor>> {
    if let Some(constant) = editor.constant(id) {
        return Some(Arc::clone(constant));
    }
    let node = editor.node(editor.maker(id)?).filter(|node| is_plain(node, op))?;
    let inputs =
        node.inputs.iter().map(|id| id.and_then(|id| editor.constant(id)).map(|tensor| tensor.view()));
    let inputs: Vec<_> = inputs.collect();
    (inputs.iter().flatten().count() == node.inputs.iter().flatten().count()).then_some(())?;
    compute(node, &inputs, &editor.tools.context).map(Arc::new)
}

/// What a node makes.
fn compute(node: &Node, inputs: &[Option<View<'_>>], context: &RunContext) -> Option<Tensor> {
    let types: Vec<_> = inputs
        .iter()
        .map(|view| view.map(|view| Type { dtype: view.dtype, shape: view.shape.into() }))
        .collect();
    let types: Vec<_> = types.iter().map(Option::as_ref).collect();
    let made = node.operator.infer(&Known { types: &types, values: inputs, context }).ok()?;
    run_one(&*node.operator, inputs, made, 1, context).ok()?.into_iter().next()
}

pub(super) fn run(editor: &mut Editor) -> usize {
    let mut changed = 0;
    for at in editor.places() {
        let done = linear(editor, at).or_else(|| dynamic::product(editor, at)).or_else(|| {
            let found = quantized(editor, at)?;
            let maker = editor.maker(found.0).filter(|_| editor.only_user(found.0) == Some(at));
            table(editor, at, found).or_else(|| {
                let maker = maker?;
                convolution(editor, at, maker, found)
                    .or_else(|| product(editor, maker, Some((at, found))))
                    .or_else(|| moved(editor, at, maker, found))
                    .or_else(|| binary(editor, at, maker, found))
            })
        });
        let done = done.or_else(|| {
            // A product whose reals others need, or nobody makes bytes of.
            let node = editor.node(at).filter(|node| matches!(&*node.op_type, "MatMul" | "Gemm"))?;
            let user = editor.only_user(node.output()?);
            if user.is_some_and(|user| editor.is(user, "QuantizeLinear")) {
                return None;
            }
            product(editor, at, None)
        });
        changed += usize::from(done.is_some());
    }
    changed
}

/// Attributes of a node that makes bytes.
fn made_of(to: Scaled) -> Vec<(&'static str, Attribute)> {
    vec![("y_type", Attribute::Int(to.dtype as i64)), ("y_zero", Attribute::Int(to.zero.into()))]
}

/// Nodes that only move elements, by their first input, and give no new ones.
const MOVES: &[&str] = &[
    "DepthToSpace",
    "Expand",
    "Flatten",
    "Gather",
    "Identity",
    "MaxPool",
    "Reshape",
    "Slice",
    "SpaceToDepth",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
];

/// A node that moves elements moves bytes, where they become the same bytes again.
fn moved(editor: &mut Editor, at: usize, place: usize, (_, y, to): (ValueId, ValueId, Scaled)) -> Option<()> {
    let node = editor.node(place).filter(|node| node.domain.is_empty() && node.output().is_some())?;
    let data = if node.op_type == "Concat" {
        node.inputs.len()
    } else {
        MOVES.contains(&&*node.op_type).then_some(1)?
    };
    let mut node = node.clone();
    for input in node.inputs.iter_mut().take(data) {
        let (from, scaled) = dequantized(editor, (*input)?)?;
        (scaled == to).then_some(())?;
        *input = Some(from);
    }
    node.outputs = vec![Some(y)];
    let node = node.remade(&editor.tools.registry)?;
    editor.remove(place);
    editor.put(at, node);
    Some(())
}

/// Nodes that make each element of one.
const FUNCTIONS: &[&str] = &[
    "Abs",
    "Add",
    "Ceil",
    "Celu",
    "Clip",
    "Cos",
    "Div",
    "Elu",
    "Erf",
    "Exp",
    "FastGelu",
    "Floor",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Log",
    "Mish",
    "Mul",
    "Neg",
    "Pow",
    "QuickGelu",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Sigmoid",
    "Sign",
    "Sin",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Sub",
    "Swish",
    "Tanh",
    "ThresholdedRelu",
];

/// Functions of one tensor of bytes, one after the other, become a table: what they make of each byte.
fn table(editor: &mut Editor, at: usize, (x, y, to): (ValueId, ValueId, Scaled)) -> Option<()> {
    // From the last to the first, each with the input that is not constant.
    let mut chain = vec![(at, 0)];
    let (mut id, mut user) = (x, at);
    let (from, scaled) = loop {
        if let Some(found) = dequantized(editor, id) {
            break found;
        }
        let place = editor.maker(id).filter(|_| editor.only_user(id) == Some(user))?;
        let node = editor.node(place)?;
        let known = matches!(&*node.domain, "" | "com.microsoft") && FUNCTIONS.contains(&&*node.op_type);
        (known && node.output() == Some(id)).then_some(())?;
        let rank = editor.facts.rank(id)?;
        let one = |id: ValueId| {
            editor.constant(id).is_some_and(|one| one.ty().elements() == 1 && one.ty().rank() <= rank)
        };
        let mut others = node.inputs.iter().enumerate().filter(|(_, id)| id.is_some_and(|id| !one(id)));
        let (Some((index, &Some(inner))), None) = (others.next(), others.next()) else { return None };
        (editor.facts.rank(inner)? == rank).then_some(())?;
        chain.push((place, index));
        (id, user) = (inner, place);
    };
    if chain.len() == 1 && scaled == to {
        return editor.replace(at, y, from).then_some(());
    }
    let all: Vec<u8> = (0..=255).collect();
    let first: Vec<_> = all
        .iter()
        .map(|&byte| {
            let byte = if scaled.dtype == DataType::U8 { i32::from(byte) } else { i32::from(byte as i8) };
            (byte - scaled.zero) as f32 * scaled.scale
        })
        .collect();
    let mut made = Tensor::from_elements([256], &first)?;
    for &(place, index) in chain.iter().rev() {
        let node = editor.node(place)?;
        let constant =
            |id: &Option<ValueId>| id.and_then(|id| editor.constant(id)).map(|constant| constant.view());
        let mut inputs: Vec<_> = node.inputs.iter().map(constant).collect();
        inputs[index] = Some(made.view());
        made = compute(node, &inputs, &editor.tools.context)?;
        (made.ty().elements() == 256).then_some(())?;
    }
    let made = made.reshaped([256])?;
    let name = format!("{}_table", editor.value(y).name);
    let name_of_node = editor.node(at)?.name.clone();
    let made = editor.add_constant(&name, made);
    let attributes = [("y_type", Attribute::Int(to.dtype as i64))];
    let op = (INTERNAL, "ByteTable");
    let node = editor.make(&name_of_node, op, &attributes, &[Some(from), Some(made)], &[Some(y)])?;
    for &(place, _) in &chain[1..] {
        editor.remove(place);
    }
    editor.put(at, node);
    Some(())
}

/// Sums, differences, products and quotients of two tensors, of which one may be a constant of f32.
fn binary(
    editor: &mut Editor,
    at: usize,
    place: usize,
    (_, y, to): (ValueId, ValueId, Scaled),
) -> Option<()> {
    let node = editor.node(place).filter(|node| node.domain.is_empty())?;
    let op = match &*node.op_type {
        "Add" => "QuantizedAdd",
        "Sub" => "QuantizedSub",
        "Mul" => "QuantizedMul",
        "Div" => "QuantizedDiv",
        _ => return None,
    };
    let [Some(a), Some(b)] = node.inputs[..] else { return None };
    let mut attributes = made_of(to);
    attributes.push(("y_scale", Attribute::Float(to.scale)));
    let mut inputs = Vec::new();
    let mut of_bytes = 0;
    for (id, scale, zero) in [(a, "a_scale", "a_zero"), (b, "b_scale", "b_zero")] {
        if let Some((from, scaled)) = dequantized(editor, id) {
            attributes.push((scale, Attribute::Float(scaled.scale)));
            attributes.push((zero, Attribute::Int(scaled.zero.into())));
            inputs.push(Some(from));
            of_bytes += 1;
        } else {
            (editor.constant(id)?.ty().dtype == DataType::F32).then_some(())?;
            inputs.push(Some(id));
        }
    }
    let node =
        editor.make(&node.name, (INTERNAL, op), &attributes, &inputs, &[Some(y)]).filter(|_| of_bytes > 0)?;
    editor.remove(place);
    editor.put(at, node);
    Some(())
}

/// `QLinearConv`, `QLinearMatMul`, and `QGemm` that makes bytes.
fn linear(editor: &mut Editor, at: usize) -> Option<()> {
    let node = editor.node(at)?;
    let (is_conv, is_gemm) = match (&*node.domain, &*node.op_type) {
        ("", "QLinearConv") => (true, false),
        ("", "QLinearMatMul") => (false, false),
        ("com.microsoft", "QGemm") => (false, true),
        _ => return None,
    };
    let node = node.clone();
    let (x, w, y) = (node.input(0)?, node.input(3)?, node.output()?);
    let mut from = Scaled::new(editor, node.input(1)?, node.input(2), editor.facts.dtype(x)?)?;
    let [to_scale, to_zero] = if is_gemm { [7, 8] } else { [6, 7] };
    let to = Scaled::new(editor, node.input(to_scale)?, node.input(to_zero), editor.facts.dtype(y)?)?;
    let weights = |axis| Weights::new(editor, [w, node.input(4)?], node.input(5), axis);
    if is_gemm {
        let (transposed, bias) = gemm(editor, &node)?;
        let weights = weights(i64::from(!transposed))?;
        from.scale *= node.attributes.float("alpha", 1.0);
        let factor = Factor::Constant(weights, transposed);
        let node = product_node(editor, &node, (x, from), factor, bias, (y, Some(to)))?;
        editor.put(at, node);
        return Some(());
    }
    let node = if is_conv {
        let weights = weights(0)?;
        let bias = match node.input(8) {
            None => None,
            Some(bias) => {
                let view = editor.constant(bias)?.view();
                (view.dtype == DataType::I32).then_some(())?;
                Some(view.elements::<i32>().to_vec())
            }
        };
        conv_node(editor, &node, (x, from), weights, bias, (y, to, to.range()))?
    } else if editor.constant(w).is_some() {
        product_node(editor, &node, (x, from), Factor::Constant(weights(1)?, false), None, (y, Some(to)))?
    } else {
        let right = Scaled::new(editor, node.input(4)?, node.input(5), editor.facts.dtype(w)?)?;
        product_node(editor, &node, (x, from), Factor::Value(w, right), None, (y, Some(to)))?
    };
    editor.put(at, node);
    Some(())
}

/// Whether the right factor of a `QGemm` is transposed, and its constant bias of columns.
pub(super) fn gemm(editor: &Editor, node: &Node) -> Option<(bool, Option<Vec<i32>>)> {
    (node.attributes.int("transA", 0) == 0).then_some(())?;
    let transposed = node.attributes.int("transB", 0) != 0;
    let cols = *editor.constant(node.input(3)?)?.ty().shape.get(usize::from(!transposed))?;
    let Some(bias) = node.input(6) else { return Some((transposed, None)) };
    let view = editor.constant(bias)?.view();
    let each = view.len() == cols && view.shape.last() == Some(&cols);
    (view.dtype == DataType::I32 && (each || view.len() == 1)).then_some(())?;
    let bias = view.elements::<i32>();
    Some((transposed, Some(if each { bias.to_vec() } else { vec![bias[0]; cols] })))
}

/// A convolution, and a bound of its results after it.
fn convolution(
    editor: &mut Editor,
    at: usize,
    mut place: usize,
    (_, y, to): (ValueId, ValueId, Scaled),
) -> Option<()> {
    let (mut least, mut most) = to.range();
    let mut bound = |low: f32, high: f32| {
        least = least.max(to.byte(low));
        most = most.min(to.byte(high)).max(least);
    };
    let mut places = vec![place];
    let mut node = editor.node(place)?;
    if node.domain.is_empty() && matches!(&*node.op_type, "Relu" | "Clip") {
        let (low, high) = if node.op_type == "Relu" { (0.0, f32::INFINITY) } else { bounds(editor, node)? };
        bound(low, high);
        let id = node.input(0)?;
        place = editor.maker(id).filter(|_| editor.only_user(id) == Some(places[0]))?;
        places.push(place);
        node = editor.node(place)?;
    }
    (node.op_type == "Conv" && node.domain.is_empty()).then_some(())?;
    let node = node.clone();
    let (x, from) = dequantized(editor, node.input(0)?)?;
    let weights = Weights::dequantized(editor, node.input(1)?)?;
    let bias = match node.input(2) {
        None => None,
        Some(bias) => Some(in_steps(&reals(editor, bias)?, from, &weights)?),
    };
    let node = conv_node(editor, &node, (x, from), weights, bias, (y, to, (least, most)))?;
    for place in places {
        editor.remove(place);
    }
    editor.put(at, node);
    Some(())
}

/// A bias in steps of the sums that it is added to.
fn in_steps(bias: &[f32], from: Scaled, weights: &Weights) -> Option<Vec<i32>> {
    let steps = |(index, &bias): (usize, &f32)| {
        let step = f64::from(from.scale) * f64::from(weights.at(index).0);
        let steps = (f64::from(bias) / step).round_ties_even();
        (steps.abs() <= f64::from(i32::MAX)).then_some(steps as i32)
    };
    bias.iter().enumerate().map(steps).collect()
}

fn conv_node(
    editor: &mut Editor,
    node: &Node,
    (x, from): (ValueId, Scaled),
    weights: Weights,
    bias: Option<Vec<i32>>,
    (y, to, (least, most)): (ValueId, Scaled, (i32, i32)),
) -> Option<Node> {
    let Rows { tensor, sums } = weights.rows()?;
    bias.as_ref().is_none_or(|bias| bias.len() == sums.len()).then_some(())?;
    let zero = from.unsigned_zero();
    let add = |(filter, sum): (usize, &i32)| {
        bias.as_ref().map_or(0, |bias| bias[filter]).wrapping_sub(zero.wrapping_mul(*sum))
    };
    let adds = sums.iter().enumerate().map(add).collect();
    let each = (0..sums.len()).map(|filter| weights.at(filter));
    let (scales, zeros) = each.map(|(scale, zero)| (from.scale * scale / to.scale, zero)).unzip();
    let inputs = constants(editor, &weights.name, Some(x), tensor, scales, Some(adds), zeros)?;
    let mut attributes = made_of(to);
    attributes.push(("x_zero", Attribute::Int(from.zero.into())));
    attributes.push(("least", Attribute::Int(least.into())));
    attributes.push(("most", Attribute::Int(most.into())));
    attributes.extend(weights.window(node));
    editor.make(&node.name, (INTERNAL, "QuantizedConv"), &attributes, &inputs, &[Some(y)])
}

/// Inputs of a node: what is computed from, the weights, and what belongs to each filter or column; zero points unless all are 0.
pub(super) fn constants(
    editor: &mut Editor,
    name: &str,
    x: Option<ValueId>,
    weights: Tensor,
    scales: Vec<f32>,
    adds: Option<Vec<i32>>,
    zeros: Vec<i32>,
) -> Option<Vec<Option<ValueId>>> {
    let mut inputs = vec![x, Some(editor.add_constant(&format!("{name}_rows"), weights))];
    let scales = Tensor::from_elements([scales.len()], &scales)?;
    inputs.push(Some(editor.add_constant(&format!("{name}_scales"), scales)));
    let ints = |editor: &mut Editor, of: &str, ints: Vec<i32>| {
        let ints = Tensor::from_elements([ints.len()], &ints)?;
        Some(editor.add_constant(&format!("{name}_{of}"), ints))
    };
    inputs.push(match adds {
        Some(adds) => Some(ints(editor, "adds", adds)?),
        None => None,
    });
    if zeros.iter().any(|&zero| zero != 0) {
        inputs.push(Some(ints(editor, "zeros", zeros)?));
    }
    Some(inputs)
}

/// A right factor.
enum Factor {
    /// Of constants, and whether its columns are rows.
    Constant(Weights, bool),
    /// Of bytes.
    Value(ValueId, Scaled),
}

/// `MatMul` or `Gemm`, for a `QuantizeLinear` at a place, or for all who need it.
fn product(
    editor: &mut Editor,
    place: usize,
    user: Option<(usize, (ValueId, ValueId, Scaled))>,
) -> Option<()> {
    let node = editor.node(place).filter(|node| node.domain.is_empty())?.clone();
    let is_gemm = node.op_type == "Gemm";
    (is_gemm || node.op_type == "MatMul").then_some(())?;
    let attributes = &node.attributes;
    let told = |name: &str, usual: f32| attributes.float(name, usual);
    if told("alpha", 1.0) != 1.0 || attributes.int("transA", 0) != 0 {
        return None;
    }
    let transposed = attributes.int("transB", 0) != 0;
    let (x, from) = dequantized(editor, node.input(0)?)?;
    let b = node.input(1)?;
    let right = match Weights::dequantized(editor, b) {
        Some(weights) => Factor::Constant(weights, transposed),
        None if !is_gemm => {
            let (id, scaled) = dequantized(editor, b)?;
            Factor::Value(id, scaled)
        }
        None => return None,
    };
    let bias = match (node.input(2), &right) {
        (None, _) => None,
        (Some(bias), Factor::Constant(weights, _)) if told("beta", 1.0) == 1.0 => {
            let shape = editor.facts.exact(bias)?.shape.clone();
            let row = shape.iter().rev().skip(1).all(|&size| size == 1);
            let cols = weights.tensor.ty().shape[usize::from(!transposed)];
            let mut bias = reals(editor, bias).filter(|_| row)?;
            if bias.len() == 1 {
                bias = vec![bias[0]; cols];
            }
            Some(in_steps(&bias, from, weights)?)
        }
        _ => return None,
    };
    let (y, to) = match user {
        Some((_, (_, y, to))) => (y, Some(to)),
        None => (node.output()?, None),
    };
    let node = product_node(editor, &node, (x, from), right, bias, (y, to))?;
    if let Some((at, _)) = user {
        editor.remove(place);
        editor.put(at, node);
    } else {
        editor.put(place, node);
    }
    Some(())
}

fn product_node(
    editor: &mut Editor,
    node: &Node,
    (x, from): (ValueId, Scaled),
    right: Factor,
    bias: Option<Vec<i32>>,
    (y, to): (ValueId, Option<Scaled>),
) -> Option<Node> {
    let unit = to.map_or(1.0, |to| to.scale);
    let mut attributes = match to {
        Some(to) => made_of(to),
        None => vec![("y_type", Attribute::Int(DataType::F32 as i64))],
    };
    attributes.push(("a_zero", Attribute::Int(from.zero.into())));
    let inputs = match right {
        Factor::Value(b, scaled) => {
            // One matrix on the right for each on the left.
            let shapes = editor.facts.shapes(x)?.into_iter().zip(editor.facts.shapes(b)?);
            let fits = |(a, b): (&[usize], &[usize])| {
                a.len() == b.len() && a.len() >= 2 && a[..a.len() - 2] == b[..b.len() - 2]
            };
            shapes.into_iter().all(fits).then_some(())?;
            attributes.push(("b_zero", Attribute::Int(scaled.zero.into())));
            let scale = Tensor::from_elements([1], &[from.scale * scaled.scale / unit])?;
            let name = format!("{}_scale", editor.value(y).name);
            vec![Some(x), Some(b), Some(editor.add_constant(&name, scale))]
        }
        Factor::Constant(weights, transposed) => {
            let Panels { tensor, depth, cols, sums } = weights.panels(transposed)?;
            bias.as_ref().is_none_or(|bias| bias.len() == cols).then_some(())?;
            let zero = from.unsigned_zero();
            let adds = sums.iter().enumerate().map(|(col, sum)| {
                bias.as_ref().map_or(0, |bias| bias[col]).wrapping_sub(zero.wrapping_mul(*sum))
            });
            let adds = adds.collect();
            let scales = weights.scales.iter().map(|scale| from.scale * scale / unit).collect();
            attributes.push(("packed", Attribute::Ints(vec![depth as i64, cols as i64])));
            constants(editor, &weights.name, Some(x), tensor, scales, Some(adds), weights.zeros.clone())?
        }
    };
    editor.make(&node.name, (INTERNAL, "QuantizedMatMul"), &attributes, &inputs, &[Some(y)])
}
