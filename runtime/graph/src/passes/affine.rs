//! What follows a convolution and works on each channel by itself, y = x * scale + shift, goes into its weights and bias.
//!
//! Weights that passes make lie in memory of their own, where those of the file are mapped.

use super::edit::Editor;
use crate::graph::{Node, ValueId};
use stepalloc_tensor::{DataType, Shape, Tensor};

/// Scale and shift of each channel.
pub(super) struct PerChannel {
    pub scale: Vec<f64>,
    pub shift: Vec<f64>,
}

/// A convolution whose weights are known, and its only user.
struct Convolution {
    at: usize,
    weights: Vec<f32>,
    shape: Shape,
    bias: Option<Vec<f32>>,
    /// Whether each channel of the input has its filters in a row.
    transposed: bool,
    channels: usize,
}

impl Convolution {
    /// The one that makes a value, if nobody but the node at `user` needs it.
    fn before(editor: &Editor, id: ValueId, user: usize) -> Option<Self> {
        let at = editor.made_by(id, "Conv").or_else(|| editor.made_by(id, "ConvTranspose"))?;
        if editor.only_user(id) != Some(user) {
            return None;
        }
        Self::at(editor, at)
    }

    fn at(editor: &Editor, at: usize) -> Option<Self> {
        let node = editor.node(at)?;
        let weights = editor.constant(node.input(1)?)?;
        let bias = match node.input(2) {
            Some(bias) => Some(floats(editor.constant(bias)?)?),
            None => None,
        };
        let shape = weights.ty().shape.clone();
        let transposed = node.op_type == "ConvTranspose";
        if transposed && node.attributes.int("group", 1) != 1 || shape.len() < 3 {
            return None;
        }
        let channels = shape[usize::from(transposed)];
        if weights.ty().elements() == 0 || bias.as_ref().is_some_and(|bias| bias.len() != channels) {
            return None;
        }
        Some(Self { at, weights: floats(weights)?, shape, bias, transposed, channels })
    }

    fn rank(&self) -> usize {
        self.shape.len()
    }

    fn scale(&mut self, by: &PerChannel) {
        let (channels, inner) = (self.channels, self.shape[2..].iter().product::<usize>());
        // Elements of one filter in a row.
        let row = if self.transposed { inner } else { inner * self.shape[1] };
        for (number, row) in self.weights.chunks_exact_mut(row).enumerate() {
            let scale = by.scale[number % channels];
            row.iter_mut().for_each(|x| *x = (f64::from(*x) * scale) as f32);
        }
        if self.bias.is_none() && by.shift.iter().all(|&shift| shift == 0.0) {
            return;
        }
        let bias = self.bias.take().unwrap_or_else(|| vec![0.0; channels]);
        let affine =
            |(channel, x): (usize, f32)| (f64::from(x) * by.scale[channel] + by.shift[channel]) as f32;
        self.bias = Some(bias.into_iter().enumerate().map(affine).collect());
    }

    /// Puts the convolution with new weights in the place of the one that followed it.
    fn put(
        self,
        editor: &mut Editor,
        place: usize,
        outputs: Vec<Option<ValueId>>,
        new_weights: bool,
    ) -> Option<()> {
        let mut node = editor.node(self.at)?.clone();
        let like = |editor: &Editor, id: Option<ValueId>| id.map(|id| editor.value(id).name.clone());
        if new_weights {
            let name = like(editor, node.input(1))?;
            let weights = Tensor::from_elements(self.shape, &self.weights)?;
            node.inputs[1] = Some(editor.add_constant(&fused(&name), weights));
        }
        if let Some(bias) = self.bias {
            let name = like(editor, node.input(2)).unwrap_or_else(|| format!("{}_bias", node.name));
            let bias = Tensor::from_elements([bias.len()], &bias)?;
            let bias = editor.add_constant(&fused(&name), bias);
            node.inputs.resize(2, None);
            node.inputs.push(Some(bias));
        }
        node.outputs = outputs;
        let node = node.remade(&editor.tools.registry)?;
        let old = editor.remove(self.at)?;
        editor.put(place, node);
        old.inputs.iter().skip(1).flatten().for_each(|&id| editor.forget(id));
        Some(())
    }
}

/// The name of a weight that another one went into.
fn fused(name: &str) -> String {
    if name.ends_with("_fused") { name.into() } else { format!("{name}_fused") }
}

/// Elements in f32; nothing of other types.
pub(super) fn floats(tensor: &Tensor) -> Option<Vec<f32>> {
    let read = tensor.in_passing();
    let view = read.as_ref().unwrap_or(tensor).view();
    (view.dtype == DataType::F32).then(|| view.elements::<f32>().to_vec())
}

/// What a BatchNormalization that learns nothing does to each channel.
pub(super) fn of_batchnorm(editor: &Editor, node: &Node) -> Option<PerChannel> {
    let learns = node.attributes.int("training_mode", 0) != 0;
    if node.op_type != "BatchNormalization" || !node.domain.is_empty() || learns || node.output().is_none() {
        return None;
    }
    let [scale, bias, mean, variance] =
        [1, 2, 3, 4].map(|index| floats(editor.constant(node.input(index)?)?));
    let (scale, bias, mean, variance) = (scale?, bias?, mean?, variance?);
    let channels = scale.len();
    if [&bias, &mean, &variance].iter().any(|row| row.len() != channels) {
        return None;
    }
    let epsilon = f64::from(node.attributes.float("epsilon", 1e-5));
    let by: Vec<_> =
        scale.iter().zip(&variance).map(|(&s, &v)| f64::from(s) / (f64::from(v) + epsilon).sqrt()).collect();
    let shift = by.iter().zip(&bias).zip(&mean).map(|((by, &b), &m)| f64::from(b) - f64::from(m) * by);
    let shift = shift.collect();
    let made = PerChannel { scale: by, shift };
    made.scale.iter().chain(&made.shift).all(|x| x.is_finite()).then_some(made)
}

/// A constant operand as a number for each channel of a tensor of `rank` dimensions, the second of which are channels.
pub(super) fn per_channel(tensor: &Tensor, rank: usize, channels: usize) -> Option<Vec<f64>> {
    let elements = floats(tensor)?;
    let shape = &tensor.ty().shape;
    // Where the channels are among the operand's dimensions, which are those at the end.
    let before = rank.checked_sub(shape.len())?;
    let fits = |(at, &dim): (usize, &usize)| dim == 1 || at + before == 1 && dim == channels;
    if !shape.iter().enumerate().all(fits) || elements.is_empty() {
        return None;
    }
    Some((0..channels).map(|channel| f64::from(elements[channel % elements.len()])).collect())
}

pub(super) fn batchnorm(editor: &mut Editor) -> usize {
    each(editor, |editor, node| {
        let by = of_batchnorm(editor, node)?;
        Some((node.input(0)?, by))
    })
}

pub(super) fn mul(editor: &mut Editor) -> usize {
    each(editor, |editor, node| {
        let (id, constant, conv) = operand(editor, node, "Mul", "Div")?;
        let mut scale = per_channel(editor.constant(constant)?, conv.rank(), conv.channels)?;
        if node.op_type == "Div" {
            scale.iter_mut().for_each(|x| *x = 1.0 / *x);
        }
        let shift = vec![0.0; scale.len()];
        scale.iter().all(|x| x.is_finite()).then_some((id, PerChannel { scale, shift }))
    })
}

pub(super) fn add(editor: &mut Editor) -> usize {
    each(editor, |editor, node| {
        let (id, constant, conv) = operand(editor, node, "Add", "Sub")?;
        let mut shift = per_channel(editor.constant(constant)?, conv.rank(), conv.channels)?;
        if node.op_type == "Sub" {
            shift.iter_mut().for_each(|x| *x = -*x);
        }
        Some((id, PerChannel { scale: vec![1.0; shift.len()], shift }))
    })
}

/// A convolution's output and the constant beside it, of a node of either operator; the second has the constant on the right.
fn operand(
    editor: &Editor,
    node: &Node,
    either: &str,
    right: &str,
) -> Option<(ValueId, ValueId, Convolution)> {
    if !node.domain.is_empty() || node.op_type != either && node.op_type != right {
        return None;
    }
    let [Some(a), Some(b)] = node.inputs[..] else { return None };
    let (id, constant) = if editor.constant(b).is_some() {
        (a, b)
    } else if node.op_type == either {
        (b, a)
    } else {
        return None;
    };
    let at = editor.maker(id)?;
    let is_conv = editor.is(at, "Conv") || editor.is(at, "ConvTranspose");
    Some((id, constant, Convolution::at(editor, at).filter(|_| is_conv)?))
}

/// Puts into convolutions what follows them, as far as `what` tells it.
fn each(editor: &mut Editor, what: impl Fn(&Editor, &Node) -> Option<(ValueId, PerChannel)>) -> usize {
    let mut changed = 0;
    for at in editor.places() {
        let Some(node) = editor.node(at) else { continue };
        let Some((id, by)) = what(editor, node) else { continue };
        let Some(mut conv) = Convolution::before(editor, id, at) else { continue };
        if by.scale.len() != conv.channels {
            continue;
        }
        let Some(output) = node.output() else { continue };
        let scales = by.scale.iter().any(|&scale| scale != 1.0);
        conv.scale(&by);
        changed += usize::from(conv.put(editor, at, vec![Some(output)], scales).is_some());
    }
    changed
}

/// The least factor that a shift is divided by: smaller ones would make rounding errors large.
const LEAST: f32 = 1e-3;

/// One number times the input of a convolution, and another one added: both go into the weights where nothing is padded, else the factor
/// alone, as x * s + t = (x + t / s) * s.
pub(super) fn input(editor: &mut Editor) -> usize {
    let mut changed = 0;
    for at in editor.places() {
        changed += usize::from(input_of(editor, at).is_some());
    }
    changed
}

fn input_of(editor: &mut Editor, at: usize) -> Option<()> {
    let node = editor.node(at).filter(|_| editor.is(at, "Conv"))?;
    let (output, id) = (node.output()?, node.input(0)?);
    let pads = node.attributes.ints("pads").is_some_and(|pads| pads.iter().any(|&pad| pad != 0));
    let padded = pads || !matches!(node.attributes.text("auto_pad", "NOTSET"), "NOTSET" | "VALID");
    let sum = editor.made_by(id, "Add").filter(|_| editor.only_user(id) == Some(at));
    let one_number = |at: usize| {
        let [Some(a), Some(b)] = editor.node(at)?.inputs[..] else { return None };
        let (x, number) = if editor.scalar(b).is_some() { (a, b) } else { (b, a) };
        let rank = editor.constant(number)?.ty().rank();
        // More dimensions would be the result's.
        let fits = rank == 0 || editor.facts.rank(x).is_some_and(|of| rank <= of);
        Some((x, editor.scalar(number)?)).filter(|_| rank <= 3 && fits)
    };
    let sum = sum.and_then(|sum| Some((sum, one_number(sum)?)));
    let (scaled, shift) = sum.map_or((id, 0.0), |(_, told)| told);
    let sum = sum.map(|(sum, _)| sum);
    let product =
        editor.made_by(scaled, "Mul").filter(|_| editor.only_user(scaled) == Some(sum.unwrap_or(at)));
    let product = product.and_then(|product| Some((product, one_number(product)?)));
    let (x, scale) = product.map_or((scaled, 1.0), |(_, told)| told);
    let product = product.map(|(product, _)| product);
    if padded && shift != 0.0 && (product.is_none() || scale.abs() < LEAST)
        || sum.is_none() && product.is_none()
    {
        return None;
    }
    let mut conv = Convolution::at(editor, at)?;
    let row = conv.weights.len() / conv.channels;
    if !padded && shift != 0.0 {
        let sums: Vec<f64> =
            conv.weights.chunks_exact(row).map(|row| row.iter().map(|&x| f64::from(x)).sum()).collect();
        let bias = conv.bias.take().unwrap_or_else(|| vec![0.0; conv.channels]);
        let with = |(&bias, sum): (&f32, f64)| (f64::from(bias) + sum * f64::from(shift)) as f32;
        conv.bias = Some(bias.iter().zip(sums).map(with).collect());
    }
    conv.weights.iter_mut().for_each(|x| *x *= scale);
    let mut from = x;
    if padded && shift != 0.0 {
        let sum = sum?;
        let name = editor.node(sum)?.name.clone();
        let shift =
            editor.add_constant(&format!("{name}_shift"), Tensor::from_elements([1], &[shift / scale])?);
        let node = editor.make(&name, ("", "Add"), &[], &[Some(x), Some(shift)], &[Some(id)])?;
        editor.put(sum, node);
        from = id;
    } else if let Some(sum) = sum {
        editor.remove(sum);
    }
    if let Some(product) = product {
        editor.remove(product);
    }
    let mut node = editor.node(at)?.clone();
    node.inputs[0] = Some(from);
    editor.put(at, node);
    conv.put(editor, at, vec![Some(output)], true)
}
