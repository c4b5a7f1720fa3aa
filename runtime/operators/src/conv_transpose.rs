//! Transposed convolutions: each element of the input adds a window, scaled, to the output.
//!
//! The windows of all elements are a product of matrices, made some channels of the output at a time in scratch memory, and added up
//! where they overlap. A [`Window`] serves the other way round: what it slides over is the output.

use super::conv::Filters;
use super::sliding::sizes;
use super::{Call, Definition, Known, Made, Operator, Types, Unclear, typed};
use smallvec::smallvec;
use stepalloc_kernels::{
    conv::window::{AutoPad, Axis, Window},
    gemm::{Matrix, PARALLEL, product},
    no,
};
use stepalloc_tensor::{Element, Number, OpError, Shape, Type, by_float};
use stepalloc_threads as threads;

pub(super) fn make(node: &Definition<'_>) -> Made {
    let make = || {
        Ok(Box::new(ConvTranspose {
            filters: Filters::new(node)?,
            output_shape: sizes(node.attributes, "output_shape", 0)?,
            output_padding: sizes(node.attributes, "output_padding", 0)?,
        }) as _)
    };
    (node.op == "ConvTranspose").then(make)
}

struct ConvTranspose {
    filters: Filters,
    /// Spatial dimensions of the output where they are told; older models tell all of them.
    output_shape: Option<Vec<usize>>,
    /// What is added to the output's end.
    output_padding: Option<Vec<usize>>,
}

/// Sizes of a transposed convolution.
struct Sizes {
    batch: usize,
    /// Channels of the input, and of the output, in a group.
    from: usize,
    to: usize,
    /// Slides over a plane of the output; its places are the elements of a plane of the input.
    window: Window,
}

/// Elements of windows that are made at a time.
const UNROLLED: usize = 1 << 20;

impl Sizes {
    /// Channels of the output that are made at a time.
    fn block(&self) -> usize {
        let windows = self.window.kernel().saturating_mul(self.window.output()).max(1);
        (UNROLLED / windows).clamp(1, self.to.max(1))
    }

    /// Elements of scratch memory: windows, and for halves the input and weights of a group and the planes in f32.
    fn scratch(&self, halves: bool) -> [usize; 4] {
        let (kernel, places) = (self.window.kernel(), self.window.output());
        let wide = if halves {
            [self.from * places, self.from * self.to * kernel, self.block() * self.window.input()]
        } else {
            [0; 3]
        };
        [self.block() * kernel * places, wide[0], wide[1], wide[2]]
    }
}

impl ConvTranspose {
    fn sizes(&self, x: &[usize], w: &[usize]) -> Result<Sizes, OpError> {
        let (&[batch, channels, ref space @ ..], &[inputs, to, ref kernel @ ..]) = (x, w) else {
            return Err(OpError::shape(format!("an input {x:?} or weights {w:?} have no channels")));
        };
        let (group, sliding) = (self.filters.group, &self.filters.sliding);
        if channels != inputs || channels % group != 0 {
            return Err(OpError::shape(format!(
                "an input {x:?} and weights {w:?} do not fit in {group} groups"
            )));
        }
        let mut axes = sliding.axes(space, kernel)?;
        let rank = axes.len();
        let outputs = self.output_shape.as_deref().map(|told| match told.len() {
            all if all == rank + 2 => Ok(&told[2..]),
            all if all == rank => Ok(told),
            _ => Err(OpError::attribute(format!("output_shape is {told:?}, of {rank} spatial dimensions"))),
        });
        let outputs = outputs.transpose()?;
        if let Some(padding) = self.output_padding.as_ref().filter(|padding| padding.len() != rank) {
            return Err(OpError::attribute(format!(
                "output_padding is {padding:?}, of {rank} spatial dimensions"
            )));
        }
        for (at, axis) in axes.iter_mut().enumerate() {
            let padding = self.output_padding.as_ref().map_or(0, |padding| padding[at]);
            let too_large = || {
                OpError::shape(format!(
                    "an output of {} elements by {} is too large",
                    axis.input, axis.stride
                ))
            };
            let reach = axis.input.saturating_sub(1).checked_mul(axis.stride).ok_or_else(too_large)?;
            let all = reach.checked_add(padding + axis.extent()).ok_or_else(too_large)?;
            let same = matches!(sliding.auto_pad, AutoPad::SameUpper | AutoPad::SameLower);
            let told = match outputs {
                Some(outputs) => Some(outputs[at]),
                None if same => Some(axis.input.checked_mul(axis.stride).ok_or_else(too_large)?),
                None => None,
            };
            let output = match told {
                Some(told) => {
                    let total = all.saturating_sub(told);
                    let half = total / 2;
                    let upper = sliding.auto_pad == AutoPad::SameUpper;
                    axis.begin = if upper { half } else { total - half };
                    told
                }
                None => {
                    if sliding.auto_pad == AutoPad::Valid {
                        (axis.begin, axis.end) = (0, 0);
                    }
                    all.checked_sub(axis.begin + axis.end).ok_or_else(|| {
                        let (begin, end) = (axis.begin, axis.end);
                        OpError::shape(format!("pads of {begin} and {end} leave none of {all} elements"))
                    })?
                }
            };
            *axis = Axis { input: output, output: axis.input, end: 0, ..*axis };
        }
        Ok(Sizes { batch, from: channels / group, to, window: Window::new(axes) })
    }
}

impl Operator for ConvTranspose {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (x, w) = (inputs.ty(0)?, inputs.ty(1)?);
        if x.dtype != w.dtype || inputs.opt(2).is_some_and(|bias| bias.dtype != x.dtype) {
            return Err(OpError::element_type("its inputs have elements of several types").into());
        }
        let sizes = self.sizes(&x.shape, &w.shape)?;
        let filters = sizes
            .to
            .checked_mul(self.filters.group)
            .ok_or_else(|| OpError::shape("it has too many filters"))?;
        if let Some(bias) = inputs.opt(2).filter(|bias| bias.shape != [filters]) {
            return Err(OpError::shape(format!("a bias {bias} does not fit {filters} filters")).into());
        }
        let mut shape = Shape::from([sizes.batch, filters]);
        shape.extend(sizes.window.axes.iter().map(|axis| axis.input));
        Ok(smallvec![typed(x.dtype, shape)?])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let (Some(x), Some(w)) = (inputs.opt(0), inputs.opt(1)) else { return 0 };
        let Ok(sizes) = self.sizes(&x.shape, &w.shape) else { return 0 };
        by_float!(x.dtype, T => {
            let wide = size_of::<<T as Number>::Wide>();
            sizes.scratch(wide != size_of::<T>()).into_iter().sum::<usize>() * wide
        }, 0)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (x, w, bias, out) = (call.input(0)?, call.input(1)?, call.opt(2), call.output(0)?);
        let sizes = self.sizes(x.shape, w.shape)?;
        if out.bytes.is_empty() {
            return Ok(());
        }
        let scratch = call.scratch();
        by_float!(x.dtype, T => {
            let bias = bias.map(|bias| bias.elements::<T>());
            self.convolve(&sizes, out.elements::<T>(), x.elements(), w.elements(), bias, scratch)
        }, Err(no(x.dtype)))
    }
}

impl ConvTranspose {
    fn convolve<T: Number>(
        &self,
        sizes: &Sizes,
        out: &mut [T],
        x: &[T],
        w: &[T],
        bias: Option<&[T]>,
        scratch: &mut [u8],
    ) -> Result<(), OpError> {
        let Sizes { from, to, ref window, .. } = *sizes;
        let (plane, places, kernel, group) =
            (window.input(), window.output(), window.kernel(), self.filters.group);
        let halves = T::DTYPE != T::Wide::DTYPE;
        let [windows, inputs, weights, _] = sizes.scratch(halves);
        let scratch: &mut [T::Wide] = bytemuck::cast_slice_mut(scratch);
        let (windows, scratch) = scratch.split_at_mut(windows);
        let (wide_x, scratch) = scratch.split_at_mut(inputs);
        let (wide_w, planes) = scratch.split_at_mut(weights);
        for (at, out) in out.chunks_exact_mut(to * plane).enumerate() {
            let first = at % group;
            let x = wide(&x[at * from * places..][..from * places], wide_x);
            let w = wide(&w[first * from * to * kernel..][..from * to * kernel], wide_w);
            let w = Matrix::new(w, from, to * kernel);
            let block = sizes.block();
            for begin in (0..to).step_by(block) {
                let channels = begin..(begin + block).min(to);
                let windows = &mut windows[..channels.len() * kernel * places];
                let w = w.part(0..from, channels.start * kernel..channels.end * kernel).transposed();
                product(windows, w, Matrix::new(x, from, places), false)?;
                let windows = &*windows;
                let out = &mut out[channels.start * plane..channels.end * plane];
                let sums: &mut [T::Wide] =
                    if halves { &mut planes[..out.len()] } else { bytemuck::cast_slice_mut(&mut *out) };
                let least = if windows.len() < PARALLEL { usize::MAX } else { 1 };
                threads::pieces(sums, plane, least, &|index, sums| {
                    let bias =
                        bias.map_or(T::Wide::default(), |bias| bias[first * to + begin + index].wide());
                    sums.fill(bias);
                    window.scatter(&windows[index * kernel * places..][..kernel * places], sums);
                });
                if halves {
                    out.iter_mut().zip(&*planes).for_each(|(to, &sum)| *to = T::narrow(sum));
                }
            }
        }
        Ok(())
    }
}

/// Elements in the type they are computed in: as they are, or in `room`.
fn wide<'a, T: Number>(from: &'a [T], room: &'a mut [T::Wide]) -> &'a [T::Wide] {
    if T::DTYPE == T::Wide::DTYPE {
        return bytemuck::cast_slice(from);
    }
    room.iter_mut().zip(from).for_each(|(to, &x)| *to = x.wide());
    &room[..from.len()]
}
