//! Convolutions of real numbers, those that are fused with what follows them too.

use super::matmul::layout;
use super::sliding::sliding;
use super::unary::Function;
use super::{Call, Definition, Known, Made, Operator, Types, Unclear};
use smallvec::smallvec;
use stepalloc_graph::{PackSpec, Prepacked};
use stepalloc_kernels::activation::Activation;
use stepalloc_kernels::conv::across::{self, Across};
use stepalloc_kernels::conv::window::Sliding;
use stepalloc_kernels::conv::{Done, Sizes, Way, convolve, finish, plainly, scratch, unrolled};
use stepalloc_kernels::gemm::prepacked::{Layout, Packed};
use stepalloc_kernels::no;
use stepalloc_tensor::{DataType, OpError, Type, by_float};

pub(super) fn make(node: &Definition<'_>) -> Made {
    match node.op {
        "Conv" | "FusedConv" => Some(Conv::new(node).map(|conv| Box::new(conv) as _)),
        _ => None,
    }
}

/// What all convolutions are told.
pub(super) struct Filters {
    pub sliding: Sliding,
    pub group: usize,
}

impl Filters {
    pub(super) fn new(node: &Definition<'_>) -> Result<Self, OpError> {
        let group = node.attributes.int("group", 1);
        let group = usize::try_from(group).ok().filter(|&group| group > 0);
        let group = group
            .ok_or_else(|| OpError::attribute(format!("group is {}", node.attributes.int("group", 1))))?;
        Ok(Self { sliding: sliding(node.attributes)?, group })
    }

    /// For an input and weights of these shapes.
    pub(super) fn sizes(&self, x: &[usize], w: &[usize]) -> Result<Sizes, OpError> {
        let (&[batch, channels, ref space @ ..], &[filters, from, ref kernel @ ..]) = (x, w) else {
            return Err(OpError::shape(format!("an input {x:?} or weights {w:?} have no channels")));
        };
        let group = self.group;
        if from.checked_mul(group) != Some(channels) || filters % group != 0 {
            return Err(OpError::shape(format!(
                "an input {x:?} and weights {w:?} do not fit in {group} groups"
            )));
        }
        let window = self.sliding.window(space, kernel)?;
        Ok(Sizes { batch, from, to: filters / group, group, window })
    }
}

/// What is done with each element of f32 of a convolution that is fused with what follows it.
enum Finish {
    Bounds(f32, f32),
    Activation(Activation),
    Function(Function),
}

impl Finish {
    /// As com.microsoft.FusedConv says it.
    fn new(node: &Definition<'_>) -> Result<Option<Self>, OpError> {
        let told = node.attributes.floats("activation_params").unwrap_or_default();
        match (node.attributes.text("activation", ""), &told[..]) {
            ("", _) => Ok(None),
            ("Clip", &[least, most]) => Ok(Some(Self::Bounds(least, most))),
            ("Relu", _) => Ok(Some(Self::Bounds(0.0, f32::INFINITY))),
            // These are our own: see the pass conv-swish.
            ("HardSwish", _) => Ok(Some(Self::Function(Function::HardSwish))),
            ("Swish", &[alpha]) => Ok(Some(Self::Function(Function::Swish(alpha)))),
            (name, _) => {
                let (mut alpha, mut beta) = (told.iter().copied(), told.iter().skip(1).copied());
                Activation::new(name, &mut alpha, &mut beta).map(|function| Some(Self::Activation(function)))
            }
        }
    }
}

impl Finish {
    /// Of elements that are there; bounds are applied to sums.
    fn apply(&self, part: &mut [f32]) {
        match self {
            Self::Bounds(..) => {}
            Self::Activation(activation) => activation.apply(part),
            Self::Function(function) => function.f32s(part),
        }
    }
}

/// A convolution.
struct Conv {
    filters: Filters,
    /// Whether it is com.microsoft.FusedConv: a tensor is added to what it makes if there is one, and `finish` applied.
    is_fused: bool,
    finish: Option<Finish>,
}

impl Conv {
    fn new(node: &Definition<'_>) -> Result<Self, OpError> {
        let is_fused = node.op == "FusedConv";
        let finish = if is_fused { Finish::new(node)? } else { None };
        Ok(Self { filters: Filters::new(node)?, is_fused, finish })
    }

    /// How it is computed with packed weights, where that is worth it.
    fn across(&self, inputs: &Known<'_>) -> Option<(Sizes, Across)> {
        let (x, w) = (inputs.opt(0)?, inputs.opt(1)?);
        let sizes = self.filters.sizes(&x.shape, &w.shape).ok().filter(|_| x.dtype == DataType::F32)?;
        let across = Across::new(&sizes)?;
        Some((sizes, across))
    }
}

/// The number of cores, of `threads`, that share the work: none has less than a filter.
fn cores(sizes: &Sizes, threads: usize) -> usize {
    let filters = sizes.batch * sizes.group * sizes.to;
    if sizes.is_small() { 1 } else { threads.min(filters).max(1) }
}

/// The packed weights.
fn panels(prepacked: &Prepacked) -> Result<&Packed, OpError> {
    prepacked.packed(|tensor, spec| Packed::of(tensor, layout(spec)))
}

impl Operator for Conv {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (x, w) = (inputs.ty(0)?, inputs.ty(1)?);
        if x.dtype != w.dtype || inputs.opt(2).is_some_and(|bias| bias.dtype != x.dtype) {
            return Err(OpError::element_type("its inputs have elements of several types").into());
        }
        if let Some(bias) = inputs.opt(2).filter(|bias| bias.shape != w.shape[..1.min(w.rank())]) {
            return Err(OpError::shape(format!("a bias {bias} does not fit weights {w}")).into());
        }
        let made = self.filters.sizes(&x.shape, &w.shape)?.out(x.dtype)?;
        if self.is_fused {
            if x.dtype != DataType::F32 {
                return Err(no(x.dtype).into());
            }
            if let Some(added) = inputs.opt(3).filter(|added| **added != made) {
                return Err(OpError::shape(format!("{added} is added to {made}")).into());
            }
        }
        Ok(smallvec![made])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let (Some(x), Some(w)) = (inputs.opt(0), inputs.opt(1)) else { return 0 };
        let Ok(sizes) = self.filters.sizes(&x.shape, &w.shape) else { return 0 };
        if let Some(way) = Way::new(&sizes).filter(|_| x.dtype == DataType::F32) {
            return cores(&sizes, inputs.context.threads()) * way.scratch(&sizes) * size_of::<f32>();
        }
        by_float!(x.dtype, T => scratch::<T>(&sizes), 0)
    }

    fn packed_scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let Some((sizes, across)) = self.across(inputs) else { return 0 };
        cores(&sizes, inputs.context.threads()) * across.scratch(&sizes) * size_of::<f32>()
    }

    fn packs(&self, inputs: &Known<'_>) -> Option<PackSpec> {
        let (sizes, across) = self.across(inputs)?;
        let Layout { rows, cols, transposed, groups, taps } = across.layout(&sizes);
        Some(PackSpec { input: 1, rows, cols, transposed, groups, taps })
    }

    fn prepack(&self, prepacked: &Prepacked) -> Result<(), OpError> {
        panels(prepacked).map(drop)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (x, w, bias, out) = (call.input(0)?, call.input(1)?, call.opt(2), call.output(0)?);
        let sizes = self.filters.sizes(x.shape, w.shape)?;
        let dtype = x.dtype;
        if out.bytes.is_empty() {
            return Ok(());
        }
        if dtype != DataType::F32 {
            let scratch = call.scratch();
            return by_float!(dtype, T => {
                let bias = bias.map(|bias| bias.elements::<T>());
                unrolled(&sizes, out.elements(), (x.is_empty(), &plainly(&sizes, x.elements::<T>())), w.elements(), bias, scratch)
            }, Err(no(dtype)));
        }
        let (out, x) = (out.elements::<f32>(), x.elements::<f32>());
        let bias = bias.map(|bias| bias.elements::<f32>());
        let added = call.opt(3).filter(|_| self.is_fused).map(|added| added.elements::<f32>());
        let mut finish = finish::Finish { added, ..Default::default() };
        let mut function = None;
        match self.finish {
            Some(Finish::Bounds(least, most)) => (finish.least, finish.most) = (least, most),
            _ => function = self.finish.as_ref(),
        }
        let apply = function.map(|function| move |_: usize, part: &mut [f32]| function.apply(part));
        let done = apply.as_ref().map(|apply| apply as Done<'_>);
        if let Some(prepacked) = call.prepacked {
            let panels = panels(prepacked)?;
            let across = Across::new(&sizes)
                .ok_or_else(|| OpError::internal("its weights are packed for other sizes"))?;
            let weights = (&**panels, bias);
            across::convolve((&across, &sizes), out, x, weights, call.scratch_of(), (finish, done));
        } else if let Some(way) = Way::new(&sizes) {
            convolve((&way, &sizes), out, x, (w.elements(), bias), call.scratch_of(), (finish, done));
        } else {
            unrolled(&sizes, out, (x.is_empty(), &plainly(&sizes, x)), w.elements(), bias, call.scratch())?;
            finish.apply(out);
            function.iter().for_each(|function| function.apply(out));
        }
        Ok(())
    }
}
