//! Resize and Upsample: what sizes come out, and where in the input an element of the output lies.

use super::{Call, Definition, Known, Made, Operator, Types, Unclear, axis, ints, typed};
use smallvec::{SmallVec, smallvec};
use stepalloc_kernels::{
    interpolate::{Filter, Line, interpolate, is_wide, room},
    repeat::{Level, repeat},
};
use stepalloc_tensor::{Number, OpError, Type, View, by_float};

pub(super) fn make(node: &Definition<'_>) -> Made {
    match node.op {
        "Resize" | "Upsample" => Some(resize(node).map(|operator| Box::new(operator) as Box<dyn Operator>)),
        _ => None,
    }
}

fn resize(node: &Definition<'_>) -> Result<Resize, OpError> {
    let attributes = node.attributes;
    // Versions that say nothing of how coordinates are transformed mean the simplest way.
    let is_old = node.op == "Upsample" || node.opset < 11;
    let mode = attributes.text("mode", "nearest");
    let filter = match mode {
        "nearest" => None,
        "linear" | "bilinear" => Some(Filter::Linear),
        "cubic" => Some(Filter::Cubic(attributes.float("cubic_coeff_a", -0.75))),
        _ => return Err(OpError::attribute(format!("there is no mode {mode:?}"))),
    };
    let transform =
        attributes.text("coordinate_transformation_mode", if is_old { "asymmetric" } else { "half_pixel" });
    let transform = match transform {
        "half_pixel" => Transform::HalfPixel,
        "half_pixel_symmetric" => Transform::HalfPixelSymmetric,
        "pytorch_half_pixel" => Transform::HalfPixelOfMany,
        "align_corners" => Transform::AlignCorners,
        "asymmetric" => Transform::Asymmetric,
        // Of opset 11 only.
        "tf_half_pixel_for_nn" => Transform::Middle,
        "tf_crop_and_resize" => Transform::Crop,
        _ => return Err(OpError::attribute(format!("there is no coordinate transformation {transform:?}"))),
    };
    let nearest = attributes.text("nearest_mode", if is_old { "simple" } else { "round_prefer_floor" });
    let nearest = match nearest {
        "round_prefer_floor" => Nearest::DownFromHalf,
        "round_prefer_ceil" => Nearest::UpFromHalf,
        "floor" => Nearest::Floor,
        "ceil" => Nearest::Ceil,
        "simple" => Nearest::Simple,
        _ => return Err(OpError::attribute(format!("there is no nearest mode {nearest:?}"))),
    };
    let policy = match attributes.text("keep_aspect_ratio_policy", "stretch") {
        "stretch" => None,
        "not_larger" => Some(f64::min as fn(f64, f64) -> f64),
        "not_smaller" => Some(f64::max as fn(f64, f64) -> f64),
        policy => return Err(OpError::attribute(format!("there is no policy {policy:?}"))),
    };
    Ok(Resize {
        filter,
        transform,
        nearest,
        policy,
        antialias: attributes.int("antialias", 0) != 0,
        exclude_outside: attributes.int("exclude_outside", 0) != 0,
        extrapolation: attributes.float("extrapolation_value", 0.0),
        axes: attributes.ints("axes"),
        scales: attributes.floats("scales"),
        inputs: if is_old { [None, Some(1), None] } else { [Some(1), Some(2), Some(3)] },
    })
}

/// Where in the input an element of the output lies: ONNX's `coordinate_transformation_mode`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transform {
    HalfPixel,
    HalfPixelSymmetric,
    /// `pytorch_half_pixel`: at the beginning where there is only one.
    HalfPixelOfMany,
    AlignCorners,
    Asymmetric,
    Middle,
    Crop,
}

/// Which element is near: ONNX's `nearest_mode`.
#[derive(Clone, Copy)]
enum Nearest {
    DownFromHalf,
    UpFromHalf,
    Floor,
    Ceil,
    /// What old versions mean: the one before where elements become more, the one after where they become
    /// less.
    Simple,
}

/// An input in another size.
struct Resize {
    /// How elements are weighted; none are where the nearest one is taken.
    filter: Option<Filter>,
    transform: Transform,
    nearest: Nearest,
    /// Which of the scales of all axes is that of each, where aspects are kept.
    policy: Option<fn(f64, f64) -> f64>,
    antialias: bool,
    exclude_outside: bool,
    extrapolation: f32,
    axes: Option<Vec<i64>>,
    /// In versions where they are an attribute.
    scales: Option<Vec<f32>>,
    /// Which inputs are the region, the scales and the sizes.
    inputs: [Option<usize>; 3],
}

/// How a dimension is resized.
#[derive(Clone, Copy)]
struct Dim {
    input: usize,
    output: usize,
    scale: f32,
    /// Begin and end of what is taken, as parts of the whole, where a region is.
    region: (f32, f32),
}

type Dims = SmallVec<[Dim; 6]>;

/// Numbers, whatever real type they have.
fn floats(view: &View<'_>) -> Result<SmallVec<[f32; 8]>, OpError> {
    by_float!(view.dtype, T => Ok(view.elements::<T>().iter().map(|x| x.to_f64() as f32).collect()),
        Err(OpError::element_type(format!("real numbers are expected, not {}", view.dtype))))
}

impl Resize {
    fn dims(
        &self,
        shape: &[usize],
        region: Option<&[f32]>,
        scales: Option<&[f32]>,
        sizes: Option<&[i64]>,
    ) -> Result<Dims, OpError> {
        let of = |&input: &usize| Dim { input, output: input, scale: 1.0, region: (0.0, 1.0) };
        let mut dims: Dims = shape.iter().map(of).collect();
        let axes = match &self.axes {
            Some(axes) => axes.iter().map(|&at| axis(at, shape.len())).collect::<Result<_, _>>()?,
            None => (0..shape.len()).collect::<SmallVec<[usize; 6]>>(),
        };
        let told = scales
            .map(<[f32]>::len)
            .or(sizes.map(<[i64]>::len))
            .ok_or_else(|| OpError::arity("it is told no sizes"))?;
        if told != axes.len() || region.is_some_and(|region| region.len() != 2 * axes.len()) {
            return Err(OpError::shape(format!("{told} sizes for {} axes", axes.len())));
        }
        for (n, &at) in axes.iter().enumerate() {
            let dim = &mut dims[at];
            if let Some(region) = region {
                dim.region = (region[n], region[n + axes.len()]);
            }
            if let Some(scales) = scales {
                dim.scale = scales[n];
                if !(dim.scale > 0.0 && dim.scale.is_finite()) {
                    return Err(OpError::value(format!("{} is no scale", dim.scale)));
                }
                // In f32, so that 10 elements scaled by 0.7, which f32 rounds down, are 7.
                dim.output = (dim.input as f32 * dim.scale).floor() as usize;
            } else if let Some(sizes) = sizes {
                dim.output = usize::try_from(sizes[n])
                    .map_err(|_| OpError::value(format!("{} is no size", sizes[n])))?;
                dim.scale = dim.output as f32 / dim.input.max(1) as f32;
            }
        }
        if let (Some(policy), None) = (self.policy, scales) {
            let scales = axes.iter().map(|&at| dims[at].output as f64 / dims[at].input.max(1) as f64);
            if let Some(scale) = scales.reduce(policy) {
                for &at in &axes {
                    dims[at].output = (scale * dims[at].input as f64 + 0.5) as usize;
                    dims[at].scale = scale as f32;
                }
            }
        }
        if let Some(dim) = dims.iter().find(|dim| dim.input == 0 && dim.output > 0) {
            return Err(OpError::shape(format!("{shape:?} has no elements to make {} of", dim.output)));
        }
        Ok(dims)
    }

    fn known(&self, inputs: &Known<'_>) -> Result<Dims, Unclear> {
        let [_, scales, sizes] = self.inputs;
        let there = |index: &usize| inputs.opt(*index).is_some_and(|ty| ty.elements() > 0);
        let scales = scales.filter(there).map(|index| inputs.value(index)).transpose()?;
        let scales =
            scales.as_ref().map(floats).transpose()?.or(self.scales.as_deref().map(SmallVec::from_slice));
        let sizes = sizes.filter(there).filter(|_| scales.is_none());
        let sizes = sizes.map(|index| inputs.ints(index)).transpose()?;
        Ok(self.dims(&inputs.ty(0)?.shape, None, scales.as_deref(), sizes.as_deref())?)
    }

    fn given(&self, call: &Call<'_, '_>) -> Result<Dims, OpError> {
        let given = |index: Option<usize>| index.and_then(|at| call.opt(at)).filter(|view| !view.is_empty());
        let [region, scales, sizes] = self.inputs.map(given);
        let region = region.filter(|_| self.transform == Transform::Crop);
        let region = region.as_ref().map(floats).transpose()?;
        let scales =
            scales.as_ref().map(floats).transpose()?.or(self.scales.as_deref().map(SmallVec::from_slice));
        let sizes = sizes.filter(|_| scales.is_none());
        let sizes = sizes
            .map(|sizes| ints(&sizes).ok_or_else(|| OpError::element_type("its sizes are no integers")))
            .transpose()?;
        self.dims(call.input(0)?.shape, region.as_deref(), scales.as_deref(), sizes.as_deref())
    }

    /// Whether a dimension is other in the output. What region is taken may not be known yet.
    fn changes(&self, dim: &Dim) -> bool {
        dim.input != dim.output || dim.scale != 1.0 || self.transform == Transform::Crop
    }

    /// Where in the input an element of the output lies, in f32, which hides that scales like 1/3 are
    /// rounded.
    fn place(&self, dim: &Dim, at: usize) -> f32 {
        let (x, input) = (at as f32, dim.input as f32);
        // How long the output would be if that had not to be an integer.
        let output = dim.scale * input;
        match self.transform {
            Transform::HalfPixelOfMany if output == 1.0 => -0.5,
            Transform::HalfPixel | Transform::HalfPixelOfMany => (x + 0.5) / dim.scale - 0.5,
            Transform::HalfPixelSymmetric => {
                let offset = input / 2.0 * (1.0 - dim.output as f32 / output);
                offset + (x + 0.5) / dim.scale - 0.5
            }
            Transform::Middle => (x + 0.5) / dim.scale,
            Transform::Asymmetric => x / dim.scale,
            Transform::AlignCorners if output == 1.0 => 0.0,
            Transform::AlignCorners => x * (input - 1.0) / (output - 1.0),
            Transform::Crop => {
                let (begin, end) = dim.region;
                let within = if output == 1.0 { 0.5 } else { x / (output - 1.0) };
                (begin + (end - begin) * within) * (input - 1.0)
            }
        }
    }

    /// Whether a place is beyond the input, so that nothing of it is taken.
    fn is_beyond(&self, dim: &Dim, place: f32) -> bool {
        self.transform == Transform::Crop && !(0.0..=(dim.input - 1) as f32).contains(&place)
    }

    /// The element next to a place; `None` if it is beyond.
    fn nearest(&self, dim: &Dim, at: usize) -> Option<usize> {
        let place = self.place(dim, at);
        if self.is_beyond(dim, place) {
            return None;
        }
        let near = match self.nearest {
            Nearest::DownFromHalf => (place - 0.5).ceil(),
            Nearest::UpFromHalf => (place + 0.5).floor(),
            Nearest::Simple if dim.scale < 1.0 => place.ceil(),
            Nearest::Floor | Nearest::Simple => place.floor(),
            Nearest::Ceil => place.ceil(),
        };
        // A cast of what is below 0, or no number, gives 0.
        Some((near as usize).min(dim.input - 1))
    }

    /// Dimensions from the first to the last one that changes, in front of them how many elements there are,
    /// and behind.
    fn middle<'d>(&self, dims: &'d Dims) -> (usize, &'d [Dim], usize) {
        let first = dims.iter().position(|dim| self.changes(dim)).unwrap_or(dims.len());
        let end = dims.iter().rposition(|dim| self.changes(dim)).map_or(first, |last| last + 1);
        let product = |dims: &[Dim]| dims.iter().map(|dim| dim.input).product();
        (product(&dims[..first]), &dims[first..end], product(&dims[end..]))
    }

    /// The dimensions to be interpolated, the outermost first.
    fn lines(&self, filter: Filter, dims: &[Dim], behind: usize) -> SmallVec<[Line; 4]> {
        let product = |sizes: &mut dyn Iterator<Item = usize>| sizes.fold(1, usize::saturating_mul);
        let mut lines = SmallVec::new();
        for (at, dim) in dims.iter().enumerate().filter(|(_, dim)| self.changes(dim)) {
            lines.push(Line {
                outer: product(&mut dims[..at].iter().map(|dim| dim.input)),
                input: dim.input,
                output: dim.output,
                inner: product(&mut dims[at + 1..].iter().map(|dim| dim.output)).saturating_mul(behind),
                filter,
                scale: if self.antialias { dim.scale.min(1.0) } else { 1.0 },
                exclude_outside: self.exclude_outside,
            });
        }
        lines
    }
}

impl Operator for Resize {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let shape: Vec<_> = self.known(inputs)?.iter().map(|dim| dim.output).collect();
        Ok(smallvec![typed(inputs.ty(0)?.dtype, shape)?])
    }

    fn scratch(&self, inputs: &Known<'_>, outputs: &[Type]) -> usize {
        let (Ok(dims), Ok(input)) = (self.known(inputs), inputs.ty(0)) else { return 0 };
        if outputs.first().is_none_or(|output| output.elements() == 0) {
            return 0;
        }
        let (planes, middle, behind) = self.middle(&dims);
        match self.filter {
            None => middle.iter().map(|dim| dim.output).sum::<usize>() * size_of::<u32>(),
            Some(filter) => room(&self.lines(filter, middle, behind), planes, input.dtype),
        }
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (input, output) = (call.input(0)?, call.output(0)?);
        let dims = self.given(call)?;
        let (planes, middle, behind) = self.middle(&dims);
        if output.bytes.is_empty() {
            return Ok(());
        }
        if middle.is_empty() {
            output.bytes.copy_from_slice(input.bytes);
            return Ok(());
        }
        let scratch = call.scratch();
        let Some(filter) = self.filter else {
            let mut rest: &mut [u32] = bytemuck::cast_slice_mut(scratch);
            let mut levels = SmallVec::<[Level<'_>; 4]>::new();
            for dim in middle {
                let (map, more) = rest.split_at_mut(dim.output);
                rest = more;
                for (at, place) in map.iter_mut().enumerate() {
                    let near = if self.changes(dim) { self.nearest(dim, at) } else { Some(at) };
                    *place = near.map_or(u32::MAX, |near| near as u32);
                }
                levels.push(Level::new(dim.input, map));
            }
            return repeat(&levels, planes, &input, output, self.extrapolation);
        };
        let lines = self.lines(filter, middle, behind);
        let changing: SmallVec<[&Dim; 4]> = middle.iter().filter(|dim| self.changes(dim)).collect();
        let place = |line: usize, at: usize| {
            let place = self.place(changing[line], at);
            (!self.is_beyond(changing[line], place)).then_some(place)
        };
        if is_wide(input.dtype) {
            interpolate::<f64>(&lines, planes, &input, output, scratch, &place, self.extrapolation)
        } else {
            interpolate::<f32>(&lines, planes, &input, output, scratch, &place, self.extrapolation)
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::trial::{Trial, counting, tensor};
    use stepalloc_graph::Attribute;

    fn resized(mode: &str, transform: &str, shape: &[usize], scales: &[f32]) -> Vec<f32> {
        let attributes = [("mode", mode), ("coordinate_transformation_mode", transform)];
        let attributes = attributes.map(|(name, text)| (name, Attribute::String(text.into())));
        let region = tensor(&[0], &[0.0f32; 0]);
        let inputs = [&counting(shape), &region, &tensor(&[scales.len()], scales)];
        let outputs = Trial::new("Resize", &attributes, inputs).run().expect("it runs");
        outputs[0].view().elements().to_vec()
    }

    /// Rows that are doubled have code of their own, which those scaled by 2 along an outer dimension do not
    /// reach.
    #[test]
    fn doubled_rows_are_doubled_columns() {
        for transform in ["half_pixel", "asymmetric", "align_corners"] {
            for length in [1, 2, 3, 8] {
                for mode in ["linear", "nearest"] {
                    let rows = resized(mode, transform, &[length], &[2.0]);
                    let columns = resized(mode, transform, &[length, 1], &[2.0, 1.0]);
                    assert_eq!(rows, columns, "{mode} {transform} of {length}");
                }
            }
        }
        assert_eq!(resized("linear", "half_pixel", &[3], &[2.0]), [0.0, 0.25, 0.75, 1.25, 1.75, 2.0]);
    }

    /// Groups of planes, and rows split among threads, are what planes by themselves are.
    #[test]
    fn many_planes_are_resized_as_one_is() {
        for (mode, scales) in [("linear", [1.7, 0.6]), ("nearest", [2.0, 2.0]), ("cubic", [0.5, 3.0])] {
            let one = resized(mode, "half_pixel", &[50, 40], &scales);
            let many = resized(mode, "half_pixel", &[60, 50, 40], &[1.0, scales[0], scales[1]]);
            for (n, plane) in many.chunks_exact(one.len()).enumerate() {
                let far = |(x, y): (&f32, &f32)| (x - y - (n * 2000) as f32).abs() > 0.3;
                assert!(!plane.iter().zip(&one).any(far), "{mode}: plane {n} is another");
            }
        }
    }

    #[test]
    fn sizes_that_are_none_are_errors() {
        let (region, input) = (tensor(&[0], &[0.0f32; 0]), counting(&[2, 3]));
        for scale in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e30] {
            let scales = tensor(&[2], &[1.0, scale]);
            assert!(Trial::new("Resize", &[], [&input, &region, &scales]).run().is_err(), "{scale}");
        }
        let nothing = counting(&[0, 3]);
        for (input, sizes) in [(&input, [-1i64, 2]), (&nothing, [2, 3]), (&input, [i64::MAX, i64::MAX])] {
            let sizes = tensor(&[2], &sizes);
            assert!(Trial::new("Resize", &[], [input, &region, &region, &sizes]).run().is_err());
        }
    }
}
