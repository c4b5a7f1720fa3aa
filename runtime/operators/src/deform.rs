//! DeformConv: a convolution whose windows' elements are displaced, each in each place, by what an input says.

use super::conv::Filters;
use super::{Call, Definition, Known, Made, Operator, Types, Unclear};
use smallvec::{SmallVec, smallvec};
use stepalloc_kernels::conv::{Sizes, scratch, unrolled, window::Axis};
use stepalloc_kernels::no;
use stepalloc_tensor::{Number, OpError, Type, by_float};
use stepalloc_threads as threads;

pub(super) fn make(node: &Definition<'_>) -> Made {
    (node.op == "DeformConv").then(|| {
        let told = node.attributes.int("offset_group", 1);
        let groups = usize::try_from(told).ok().filter(|&groups| groups > 0);
        let groups = groups.ok_or_else(|| OpError::attribute(format!("offset_group is {told}")))?;
        Ok(Box::new(DeformConv { filters: Filters::new(node)?, groups }) as _)
    })
}

/// Inputs: the input, weights, displacements, a bias, and factors.
struct DeformConv {
    filters: Filters,
    /// So many groups of channels are displaced alike.
    groups: usize,
}

impl Operator for DeformConv {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (x, w, offset) = (inputs.ty(0)?, inputs.ty(1)?, inputs.ty(2)?);
        if (1..5).filter_map(|at| inputs.opt(at)).any(|input| input.dtype != x.dtype) {
            return Err(OpError::element_type("its inputs have elements of several types").into());
        }
        // Each element is found between two to the power of so many neighbours.
        if x.rank() > 10 {
            return Err(OpError::unsupported(format!("an input {x} has too many dimensions")).into());
        }
        let sizes = self.filters.sizes(&x.shape, &w.shape)?;
        let out = sizes.out(x.dtype)?;
        if !x.shape[1].is_multiple_of(self.groups) {
            return Err(OpError::shape(format!("{} groups do not fit {x}", self.groups)).into());
        }
        let fits = |ty: &Type, each: usize| {
            let channels =
                sizes.window.kernel().checked_mul(self.groups).and_then(|all| all.checked_mul(each));
            ty.rank() == out.rank()
                && ty.shape[0] == sizes.batch
                && Some(ty.shape[1]) == channels
                && ty.shape[2..] == out.shape[2..]
        };
        if !fits(offset, sizes.window.axes.len()) || inputs.opt(4).is_some_and(|mask| !fits(mask, 1)) {
            return Err(OpError::shape(format!("its offsets or its mask do not fit an output {out}")).into());
        }
        if let Some(bias) = inputs.opt(3).filter(|bias| bias.shape != w.shape[..1]) {
            return Err(OpError::shape(format!("a bias {bias} does not fit weights {w}")).into());
        }
        Ok(smallvec![out])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let (Some(x), Some(w)) = (inputs.opt(0), inputs.opt(1)) else { return 0 };
        let Ok(sizes) = self.filters.sizes(&x.shape, &w.shape) else { return 0 };
        by_float!(x.dtype, T => scratch::<T>(&sizes), 0)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let dtype = call.dtype(0)?;
        by_float!(dtype, T => self.convolve::<T>(call), Err(no(dtype)))
    }
}

impl DeformConv {
    fn convolve<T: Number>(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (x, w, offsets, out) = (call.input(0)?, call.input(1)?, call.input(2)?, call.output(0)?);
        let bias = call.opt(3).map(|bias| bias.elements::<T>());
        let mask = call.opt(4).map(|mask| mask.elements::<T>());
        let sizes = self.filters.sizes(x.shape, w.shape)?;
        if out.bytes.is_empty() {
            return Ok(());
        }
        let Sizes { from, group, ref window, .. } = sizes;
        let (plane, places, kernel, rank) =
            (window.input(), window.output(), window.kernel(), window.axes.len());
        let channels = from * group;
        let (x, offsets) = (x.elements::<T>(), offsets.elements::<T>());
        let lay = |at: usize, rows: std::ops::Range<usize>, to: &mut [T::Wide]| {
            let (image, first) = (at / group, at % group * from);
            let begin = rows.start * window.width();
            let columns = rows.len() * window.width();
            threads::pieces(to, kernel * columns, 1, &|channel, to| {
                let channel = first + channel;
                let alike = image * self.groups + channel / (channels / self.groups);
                let x = &x[(image * channels + channel) * plane..][..plane];
                for (at, to) in to.chunks_exact_mut(columns).enumerate() {
                    let offsets = &offsets[(alike * kernel + at) * rank * places..][..rank * places];
                    let mask = mask.map(|mask| &mask[(alike * kernel + at) * places..][..places]);
                    for (place, to) in (begin..).zip(to) {
                        let offset = |axis: usize| offsets[axis * places + place].to_f64();
                        let mut value = 0.0;
                        sample(&window.axes, place, at, &offset, &mut |index, weight| {
                            value += weight * x[index].to_f64();
                        });
                        *to = T::Wide::from_f64(value * mask.map_or(1.0, |mask| mask[place].to_f64()));
                    }
                }
            });
        };
        unrolled(&sizes, out.elements::<T>(), (x.is_empty(), &lay), w.elements::<T>(), bias, call.scratch())
    }
}

/// Where the element of a plane under a displaced element of the window is: calls `take` with its neighbours and their weights. What is
/// outside is left out.
fn sample(
    axes: &[Axis],
    mut place: usize,
    mut at: usize,
    offset: &dyn Fn(usize) -> f64,
    take: &mut dyn FnMut(usize, f64),
) {
    // For each axis the neighbour below, and how far it is from there.
    let mut below: SmallVec<[(f64, f64); 4]> = SmallVec::new();
    for (number, axis) in axes.iter().enumerate().rev() {
        let there = (place % axis.output * axis.stride + at % axis.kernel * axis.dilation) as f64;
        place /= axis.output;
        at /= axis.kernel;
        let there = there - axis.begin as f64 + offset(number);
        below.push((there.floor(), there - there.floor()));
    }
    for corner in 0..1usize << axes.len() {
        let (mut weight, mut index, mut size) = (1.0, 0, 1);
        let inside = axes.iter().rev().zip(&below).enumerate().all(|(number, (axis, &(below, beyond)))| {
            let upper = corner >> number & 1 == 1;
            let there = if upper { below + 1.0 } else { below };
            weight *= if upper { beyond } else { 1.0 - beyond };
            let inside = there >= 0.0 && there < axis.input as f64;
            index += if inside { there as usize * size } else { 0 };
            size *= axis.input;
            inside && weight != 0.0
        });
        if inside {
            take(index, weight);
        }
    }
}
