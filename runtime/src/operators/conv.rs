//! Convolutions of real numbers.
//!
//! They are products of matrices. The right one is the input itself where the window is a point; else the input is unrolled into
//! scratch memory, row by row rather than element by element, for some rows of the output at a time, so that what is unrolled is still
//! in a cache when it is multiplied. Where each channel has windows of its own, rows are folded directly.

use super::activation::Activation;
use super::elementwise::no;
use super::gemm::{BiasVector, Matrix, PARALLEL, gemm_f32, product};
use super::window::{Sliding, Window};
use super::{Call, Definition, Known, Made, Operator, Unclear, threads, typed};
use crate::element::{DataType, Element, Number, by_float};
use crate::tensor::Type;
use std::ops::Range;

pub(super) fn make(node: &Definition<'_>) -> Made {
    match node.op {
        "Conv" => Some(Filters::new(node).map(|filters| Box::new(Conv(filters)) as _)),
        "FusedConv" => Some(FusedConv::new(node).map(|fused| Box::new(fused) as _)),
        _ => None,
    }
}

/// What all convolutions are told.
pub(super) struct Filters {
    pub sliding: Sliding,
    pub group: usize,
}

/// Sizes of a convolution.
pub(super) struct Sizes {
    pub batch: usize,
    /// Channels of the input, and of the output, in a group.
    pub from: usize,
    pub to: usize,
    pub group: usize,
    pub window: Window,
}

impl Filters {
    pub(super) fn new(node: &Definition<'_>) -> Result<Self, String> {
        let group = node.attributes.int("group", 1);
        let group = usize::try_from(group).ok().filter(|&group| group > 0);
        let group = group.ok_or_else(|| format!("group is {}", node.attributes.int("group", 1)))?;
        Ok(Self { sliding: Sliding::new(node.attributes)?, group })
    }

    /// For an input and weights of these shapes.
    pub(super) fn sizes(&self, x: &[usize], w: &[usize]) -> Result<Sizes, String> {
        let (&[batch, channels, ref space @ ..], &[filters, from, ref kernel @ ..]) = (x, w) else {
            return Err(format!("an input {x:?} or weights {w:?} have no channels"));
        };
        let group = self.group;
        if from.checked_mul(group) != Some(channels) || filters % group != 0 {
            return Err(format!("an input {x:?} and weights {w:?} do not fit in {group} groups"));
        }
        let window = self.sliding.window(space, kernel)?;
        Ok(Sizes { batch, from, to: filters / group, group, window })
    }
}

impl Sizes {
    /// The output.
    pub(super) fn out(&self, dtype: DataType) -> Result<Type, String> {
        let mut shape = vec![self.batch, self.group * self.to];
        shape.extend(self.window.shape());
        typed(dtype, shape)
    }

    /// Weights of one filter.
    pub(super) fn depth(&self) -> usize {
        self.from * self.window.kernel()
    }

    /// So many rows of the output are unrolled at a time.
    pub(super) fn block(&self) -> usize {
        let row = self.window.width().saturating_mul(self.depth().max(self.to)).max(1);
        (UNROLLED / row).clamp(1, self.window.rows().max(1))
    }

    /// The blocks of rows of a plane of the output.
    pub(super) fn blocks(&self) -> impl Iterator<Item = Range<usize>> {
        let (rows, block) = (self.window.rows(), self.block());
        (0..rows).step_by(block).map(move |begin| begin..(begin + block).min(rows))
    }

    /// Whether each channel of the input has filters of its own.
    pub(super) fn is_depthwise(&self) -> bool {
        self.from == 1 && self.group > 1
    }
}

/// Elements that are unrolled at a time: a megabyte, which the second cache holds.
const UNROLLED: usize = 1 << 18;

/// A convolution, and a function of what it makes.
struct FusedConv {
    conv: Conv,
    /// Bounds, or a function.
    clip: Option<(f32, f32)>,
    activation: Option<Activation>,
}

impl FusedConv {
    fn new(node: &Definition<'_>) -> Result<Self, String> {
        let conv = Conv(Filters::new(node)?);
        let told = node.attributes.floats("activation_params").unwrap_or_default();
        let name = node.attributes.text("activation", "");
        let (mut alpha, mut beta) = (told.iter().copied(), told.iter().skip(1).copied());
        Ok(match (name, &told[..]) {
            ("Clip", &[least, most]) => Self { conv, clip: Some((least, most)), activation: None },
            ("", _) => Self { conv, clip: None, activation: None },
            _ => Self { conv, clip: None, activation: Some(Activation::new(name, &mut alpha, &mut beta)?) },
        })
    }
}

impl Operator for FusedConv {
    fn infer(&self, inputs: &Known<'_>) -> Result<Vec<Type>, Unclear> {
        let made = self.conv.infer(inputs)?;
        match inputs.opt(3) {
            Some(other) if made != [other.clone()] => {
                Err(format!("{other} cannot be added to {}", made[0]).into())
            }
            _ => Ok(made),
        }
    }

    fn scratch(&self, inputs: &Known<'_>, outputs: &[Type]) -> usize {
        self.conv.scratch(inputs, outputs)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), String> {
        let mut out = call.output(0)?;
        let outputs = &mut [Some(out.lend())];
        let mut inner = Call { inputs: call.inputs, outputs, scratch: call.scratch(), in_place: None };
        self.conv.run(&mut inner)?;
        if out.dtype != DataType::F32 {
            return Err(no(out.dtype));
        }
        let row = out.elements::<f32>();
        if let Some(other) = call.opt(3) {
            row.iter_mut().zip(other.elements::<f32>()).for_each(|(x, other)| *x += other);
        }
        if let Some((least, most)) = self.clip {
            let clip = |x: f32| {
                if x < least {
                    least
                } else if x > most {
                    most
                } else {
                    x
                }
            };
            row.iter_mut().for_each(|x| *x = clip(*x));
        }
        self.activation.iter().for_each(|activation| activation.apply(row));
        Ok(())
    }
}

/// A convolution.
struct Conv(Filters);

impl Operator for Conv {
    fn infer(&self, inputs: &Known<'_>) -> Result<Vec<Type>, Unclear> {
        let (x, w) = (inputs.ty(0)?, inputs.ty(1)?);
        if x.dtype != w.dtype || inputs.opt(2).is_some_and(|bias| bias.dtype != x.dtype) {
            return Err("its inputs have elements of several types".into());
        }
        if let Some(bias) = inputs.opt(2).filter(|bias| bias.shape != w.shape[..1.min(w.rank())]) {
            return Err(format!("a bias {bias} does not fit weights {w}").into());
        }
        Ok(vec![self.0.sizes(&x.shape, &w.shape)?.out(x.dtype)?])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let (Some(x), Some(w)) = (inputs.opt(0), inputs.opt(1)) else { return 0 };
        let Ok(sizes) = self.0.sizes(&x.shape, &w.shape) else { return 0 };
        if x.dtype == DataType::F32 && (sizes.window.is_pointwise() || sizes.is_depthwise()) {
            return 0;
        }
        by_float!(x.dtype, T => scratch::<T>(&sizes), 0)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), String> {
        let (x, w, bias, out) = (call.input(0)?, call.input(1)?, call.opt(2), call.output(0)?);
        let sizes = self.0.sizes(x.shape, w.shape)?;
        let dtype = x.dtype;
        if out.bytes.is_empty() {
            return Ok(());
        }
        if dtype != DataType::F32 || x.is_empty() || w.is_empty() {
            let scratch = call.scratch();
            return by_float!(dtype, T => {
                let bias = bias.map(|bias| bias.elements::<T>());
                unrolled(&sizes, out.elements(), (x.is_empty(), &plainly(&sizes, x.elements::<T>())), w.elements(), bias, scratch)
            }, Err(no(dtype)));
        }
        let (out, x, w) = (out.elements::<f32>(), x.elements::<f32>(), w.elements::<f32>());
        let bias = bias.map(|bias| bias.elements::<f32>());
        if sizes.is_depthwise() {
            depthwise(&sizes, out, x, w, bias);
            Ok(())
        } else if sizes.window.is_pointwise() {
            pointwise(&sizes, out, x, w, bias)
        } else {
            unrolled(&sizes, out, (false, &plainly(&sizes, x)), w, bias, call.scratch())
        }
    }
}

/// Each channel by itself.
fn depthwise(sizes: &Sizes, out: &mut [f32], x: &[f32], w: &[f32], bias: Option<&[f32]>) {
    let window = &sizes.window;
    let (plane, kernel) = (window.input(), window.kernel());
    let filters = sizes.to * sizes.group;
    let least = if out.len().saturating_mul(kernel) < PARALLEL { usize::MAX } else { 1 };
    threads::pieces(out, window.output(), least, &|index, out| {
        let filter = index % filters;
        let channel = index / filters * sizes.group + filter / sizes.to;
        let w = &w[filter * kernel..][..kernel];
        let start = bias.map_or(0.0, |bias| bias[filter]);
        window.fold(&x[channel * plane..][..plane], out, start, |at| {
            let w = w[at];
            move |sum: f32, x: f32| sum + w * x
        });
    });
}

/// The input is the right factor as it is.
fn pointwise(
    sizes: &Sizes,
    out: &mut [f32],
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
) -> Result<(), String> {
    let (places, from, to) = (sizes.window.output(), sizes.from, sizes.to);
    threads::try_pieces(out, to * places, &|at, out| {
        let group = at % sizes.group;
        let w = Matrix::new(&w[group * to * from..][..to * from], to, from);
        let x = Matrix::new(&x[at * from * places..][..from * places], from, places);
        let bias = bias.map(|bias| BiasVector::Column(&bias[group * to..][..to]));
        gemm_f32(out, w, x, (1.0, 0.0), bias)
    })
}

/// Bytes that [`unrolled`] needs.
pub(super) fn scratch<T: Number>(sizes: &Sizes) -> usize {
    let columns = sizes.block() * sizes.window.width();
    let weights = if T::DTYPE == T::Wide::DTYPE { 0 } else { sizes.to * sizes.depth() };
    (columns * (sizes.depth() + sizes.to) + weights) * size_of::<T::Wide>()
}

/// Lays out a group of channels for some rows of the output.
pub(super) type Lay<'l, W> = &'l dyn Fn(usize, Range<usize>, &mut [W]);

/// Unrolls the input into scratch memory, and multiplies. `lay` lays out a group of channels, by its number among those of the whole
/// batch, for some rows of the output, as [`Window::columns`] does; the input may have no elements.
pub(super) fn unrolled<T: Number>(
    sizes: &Sizes,
    out: &mut [T],
    (empty, lay): (bool, Lay<'_, T::Wide>),
    w: &[T],
    bias: Option<&[T]>,
    scratch: &mut [u8],
) -> Result<(), String> {
    let (window, depth, to) = (&sizes.window, sizes.depth(), sizes.to);
    let places = window.output();
    let bias = |filter: usize| bias.map_or(T::Wide::default(), |bias| bias[filter].wide());
    if empty || w.is_empty() {
        for (index, out) in out.chunks_exact_mut(places).enumerate() {
            out.fill(T::narrow(bias(index % (to * sizes.group))));
        }
        return Ok(());
    }
    let columns = sizes.block() * window.width();
    let scratch: &mut [T::Wide] = bytemuck::cast_slice_mut(scratch);
    let (unrolled, scratch) = scratch.split_at_mut(columns * depth);
    let (sums, weights) = scratch.split_at_mut(columns * to);
    for (at, out) in out.chunks_exact_mut(to * places).enumerate() {
        let group = at % sizes.group;
        let w = &w[group * to * depth..][..to * depth];
        let w: &[T::Wide] = if T::DTYPE == T::Wide::DTYPE {
            bytemuck::cast_slice(w)
        } else {
            weights.iter_mut().zip(w).for_each(|(to, &w)| *to = w.wide());
            &weights[..w.len()]
        };
        for rows in sizes.blocks() {
            let begin = rows.start * window.width();
            let columns = rows.len() * window.width();
            let unrolled = &mut unrolled[..columns * depth];
            lay(at, rows, unrolled);
            let (w, unrolled) = (Matrix::new(w, to, depth), Matrix::new(unrolled, depth, columns));
            if columns == places && T::DTYPE == DataType::F32 {
                let out: &mut [T::Wide] = bytemuck::cast_slice_mut(out);
                product(out, w, unrolled, false)?;
                for (filter, out) in out.chunks_exact_mut(places).enumerate() {
                    let bias = bias(group * to + filter);
                    out.iter_mut().for_each(|out| *out = out.plus(bias));
                }
                continue;
            }
            let sums = &mut sums[..columns * to];
            product(sums, w, unrolled, false)?;
            for (filter, sums) in sums.chunks_exact(columns).enumerate() {
                let bias = bias(group * to + filter);
                let out = &mut out[filter * places + begin..][..columns];
                out.iter_mut().zip(sums).for_each(|(out, &sum)| *out = T::narrow(sum.plus(bias)));
            }
        }
    }
    Ok(())
}

/// Lays out a group of channels of an input as it is.
fn plainly<T: Number>(sizes: &Sizes, x: &[T]) -> impl Fn(usize, Range<usize>, &mut [T::Wide]) {
    move |at, rows, to| {
        let group = sizes.from * sizes.window.input();
        sizes.window.columns(&x[at * group..][..group], rows, to, T::Wide::default(), |x| x.wide());
    }
}
