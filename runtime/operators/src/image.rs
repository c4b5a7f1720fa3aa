//! Regions of images pooled to one size, and images put together of their columns.

use super::{Call, Definition, Known, Made, Operator, Types, Unclear, ints, typed};
use rten_simd::{Isa, SimdOp};
use smallvec::{SmallVec, smallvec};
use stepalloc_kernels::{
    no,
    real::Space,
    strided::{Axis, copy},
};
use stepalloc_tensor::{DataType, Number, OpError, Shape, Type, bf16, by_float, f16};
use stepalloc_threads as threads;

pub(super) fn make(node: &Definition<'_>) -> Made {
    match node.op {
        "RoiAlign" => Some(roi_align(node).map(|operator| Box::new(operator) as Box<dyn Operator>)),
        "Col2Im" => Some(col2im(node).map(|operator| Box::new(operator) as Box<dyn Operator>)),
        _ => None,
    }
}

fn roi_align(node: &Definition<'_>) -> Result<RoiAlign, OpError> {
    let attributes = node.attributes;
    let size = |name: &str, default| {
        let told = attributes.int(name, default);
        usize::try_from(told).map_err(|_| OpError::attribute(format!("{name} is {told}")))
    };
    let usual = if node.opset < 16 { "output_half_pixel" } else { "half_pixel" };
    Ok(RoiAlign {
        is_max: match attributes.text("mode", "avg") {
            "avg" => false,
            "max" => true,
            mode => return Err(OpError::attribute(format!("there is no mode {mode:?}"))),
        },
        half_pixel: match attributes.text("coordinate_transformation_mode", usual) {
            "half_pixel" => true,
            "output_half_pixel" => false,
            mode => {
                return Err(OpError::attribute(format!("there is no coordinate transformation {mode:?}")));
            }
        },
        height: size("output_height", 1)?,
        width: size("output_width", 1)?,
        samples: size("sampling_ratio", 0)?,
        scale: attributes.float("spatial_scale", 1.0),
    })
}

/// Regions pooled to one size, where elements between others are interpolated.
struct RoiAlign {
    is_max: bool,
    /// Coordinates are those of edges, not of the middles of elements.
    half_pixel: bool,
    height: usize,
    width: usize,
    /// Samples along each side of each element of the output; 0 is as many as elements of the input lie
    /// there.
    samples: usize,
    scale: f32,
}

/// More samples along a side of an element are a region that is no region of any image: they would take for
/// ever.
const MOST_SAMPLES: usize = 1 << 14;

/// How a region is sampled along a dimension.
#[derive(Clone, Copy)]
struct Side {
    begin: f32,
    /// Of each element of the output.
    size: f32,
    samples: usize,
    /// Elements of the input.
    dim: usize,
}

impl Side {
    /// Elements around sample `n` of element `at` of the output, and the weight of the second; `None` beyond
    /// the image.
    fn around(self, at: usize, n: usize) -> Option<(usize, usize, f32)> {
        let x = self.begin + at as f32 * self.size + (n as f32 + 0.5) * self.size / self.samples as f32;
        if !(-1.0..=self.dim as f32).contains(&x) {
            return None;
        }
        let x = x.max(0.0);
        let (low, last) = (x as usize, self.dim - 1);
        if low >= last { Some((last, last, 0.0)) } else { Some((low, low + 1, x - low as f32)) }
    }
}

impl RoiAlign {
    fn side(&self, begin: f32, end: f32, bins: usize, dim: usize) -> Result<Side, OpError> {
        let offset = if self.half_pixel { 0.5 } else { 0.0 };
        let (begin, end) = (begin * self.scale - offset, end * self.scale - offset);
        // Old versions want a region to be an element wide at least.
        let length = if self.half_pixel { end - begin } else { (end - begin).max(1.0) };
        let size = length / bins as f32;
        let samples = if self.samples > 0 { self.samples } else { size.ceil() as usize };
        if samples > MOST_SAMPLES {
            return Err(OpError::value(format!(
                "a region from {begin} to {end} takes {samples} samples for each element"
            )));
        }
        Ok(Side { begin, size, samples, dim })
    }

    /// Channels that are pooled at a time, from a copy in which they lie side by side. Few regions of large images are pooled where
    /// these lie, one channel after the other: the copy would take longer than all else.
    fn lanes(&self, images: &[usize], regions: usize) -> usize {
        let elements = images[0].saturating_mul(images[2..].iter().product());
        let read = regions.saturating_mul(self.height * self.width).saturating_mul(4);
        if read < elements { 1 } else { images[1].clamp(1, LANES) }
    }
}

/// Channels that are pooled at a time at most: what it takes to find a sample's place is little beside what is done there, and
/// their sums stay in the first cache.
const LANES: usize = 64;

/// A region of some channels, pooled by loops that are compiled for the machine's vectors.
struct Pool<'a, 'o, T> {
    layer: &'a RoiAlign,
    /// Blocks of `lanes` channels, which lie side by side at each place.
    source: &'a [T],
    lanes: usize,
    sides: [Side; 2],
    /// Channel by channel.
    target: &'o mut [T],
}

impl<T: Number> SimdOp for Pool<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, _: I) {
        let Self { layer, source, lanes, sides, target } = self;
        let pool = if layer.is_max { pool::<T, true> } else { pool::<T, false> };
        let sources = source.chunks_exact(lanes * sides[0].dim * sides[1].dim);
        for (source, target) in sources.zip(target.chunks_exact_mut(lanes * layer.height * layer.width)) {
            pool(layer, source, lanes, sides, target);
        }
    }
}

#[inline(always)]
fn pool<T: Number, const IS_MAX: bool>(
    layer: &RoiAlign,
    source: &[T],
    lanes: usize,
    [rows, columns]: [Side; 2],
    target: &mut [T],
) {
    let (samples, bins) = (rows.samples * columns.samples, layer.height * layer.width);
    let mut pooled = [0.0f32; LANES];
    let pooled = &mut pooled[..lanes];
    for bin in 0..bins {
        pooled.fill(if IS_MAX && samples > 0 { f32::NEG_INFINITY } else { 0.0 });
        for row in 0..rows.samples {
            let row = rows.around(bin / layer.width, row);
            for column in 0..columns.samples {
                let column = columns.around(bin % layer.width, column);
                let Some(((top, bottom, y), (left, right, x))) = row.zip(column) else {
                    // All four are 0 there.
                    if IS_MAX {
                        pooled.iter_mut().for_each(|most| *most = most.max(0.0));
                    }
                    continue;
                };
                let corner =
                    |row: usize, column: usize| &source[(row * columns.dim + column) * lanes..][..lanes];
                let corners = corner(top, left)
                    .iter()
                    .zip(corner(top, right))
                    .zip(corner(bottom, left))
                    .zip(corner(bottom, right));
                let weights = [(1.0 - y) * (1.0 - x), (1.0 - y) * x, y * (1.0 - x), y * x];
                for (pooled, (((&a, &b), &c), &d)) in pooled.iter_mut().zip(corners) {
                    let [a, b, c, d] = [a, b, c, d].map(|x| x.to_f64() as f32);
                    let parts = [weights[0] * a, weights[1] * b, weights[2] * c, weights[3] * d];
                    if IS_MAX {
                        *pooled = pooled.max(parts.into_iter().fold(f32::NEG_INFINITY, f32::max));
                    } else {
                        *pooled += parts[0] + parts[1] + parts[2] + parts[3];
                    }
                }
            }
        }
        let count = if IS_MAX { 1.0 } else { samples.max(1) as f32 };
        for (pooled, channel) in pooled.iter().zip(target.chunks_exact_mut(bins)) {
            channel[bin] = T::from_f64((pooled / count).into());
        }
    }
}

impl Operator for RoiAlign {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (input, regions, images) = (inputs.ty(0)?, inputs.ty(1)?, inputs.ty(2)?);
        let (&[_, channels, height, width], &[count, 4]) = (&input.shape[..], &regions.shape[..]) else {
            return Err(OpError::shape(format!("{regions} are no regions of images {input}")).into());
        };
        if images.shape != [count] || regions.dtype != input.dtype {
            return Err(
                OpError::shape(format!("regions {regions} of images {images} do not fit {input}")).into()
            );
        }
        let output = typed(input.dtype, [count, channels, self.height, self.width])?;
        if height * width == 0 && output.elements() > 0 {
            return Err(OpError::shape(format!("{input} has no elements to pool")).into());
        }
        Ok(smallvec![output])
    }

    fn scratch(&self, inputs: &Known<'_>, outputs: &[Type]) -> usize {
        let (Ok(input), [output]) = (inputs.ty(0), outputs) else { return 0 };
        match self.lanes(&input.shape, output.shape[0]) {
            1 => 0,
            lanes => Space::bytes::<u8>(
                input.shape[0] * input.shape[2] * input.shape[3] * lanes * input.dtype.bytes(),
            ),
        }
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (input, regions, images) = (call.input(0)?, call.input(1)?, call.input(2)?);
        let output = call.output(0)?;
        let &[samples, channels, height, width] = input.shape else {
            return Err(OpError::shape("its input is no batch of images"));
        };
        if !matches!(images.dtype, DataType::I32 | DataType::I64) {
            return Err(OpError::element_type("images of regions are no integers"));
        }
        if output.bytes.is_empty() {
            return Ok(());
        }
        let (size, bins) = (height * width, self.height * self.width);
        let dtype = input.dtype;
        let region = |number: usize| {
            let image = match images.dtype {
                DataType::I64 => images.elements::<i64>()[number],
                _ => images.elements::<i32>()[number].into(),
            };
            let at = usize::try_from(image).ok().filter(|&at| at < samples);
            let at = at.ok_or_else(|| OpError::value(format!("image {image} is beyond {samples}")))?;
            let of = |n: usize| by_float!(dtype, T => regions.elements::<T>()[4 * number + n].to_f64() as f32, 0.0);
            let rows = self.side(of(1), of(3), self.height, height)?;
            Ok::<_, OpError>((at, [rows, self.side(of(0), of(2), self.width, width)?]))
        };
        let lanes = self.lanes(input.shape, images.len());
        by_float!(dtype, T => {
            let (source, target) = (input.elements::<T>(), output.elements::<T>());
            if lanes == 1 {
                return threads::try_pieces(target, channels * bins, &|number, target| {
                    let (image, sides) = region(number)?;
                    let source = &source[image * channels * size..][..channels * size];
                    Pool { layer: self, source, lanes, sides, target }.dispatch();
                    Ok(())
                });
            }
            let block = Space(call.scratch()).take::<T>(samples * size * lanes)?;
            for first in (0..channels).step_by(lanes) {
                let lanes = lanes.min(channels - first);
                let axes = [
                    Axis { length: samples, from: (channels * size) as isize, to: size * lanes },
                    Axis { length: size, from: 1, to: lanes },
                    Axis { length: lanes, from: size as isize, to: 1 },
                ];
                copy(&axes, source, first * size, block, 0);
                let block = &*block;
                threads::try_pieces(target, channels * bins, &|number, target| {
                    let (image, sides) = region(number)?;
                    let source = &block[image * size * lanes..][..size * lanes];
                    let target = &mut target[first * bins..][..lanes * bins];
                    Pool { layer: self, source, lanes, sides, target }.dispatch();
                    Ok::<_, OpError>(())
                })?;
            }
            Ok(())
        }, Err(no(dtype)))
    }
}

/// Sizes that are not larger can be added, and two of them multiplied, in 64 bits.
const MOST: i64 = (1 << 31) - 1;

fn col2im(node: &Definition<'_>) -> Result<Col2Im, OpError> {
    let told = |name: &str, least: i64| {
        let told = node.attributes.ints(name);
        if told.as_ref().is_some_and(|told| told.iter().any(|&n| n < least || n > MOST)) {
            return Err(OpError::attribute(format!("{name} are {told:?}")));
        }
        Ok(told)
    };
    Ok(Col2Im { strides: told("strides", 1)?, dilations: told("dilations", 1)?, pads: told("pads", 0)? })
}

/// Columns, each of which is a block of an image, added up to the image.
struct Col2Im {
    strides: Option<Vec<i64>>,
    dilations: Option<Vec<i64>>,
    pads: Option<Vec<i64>>,
}

/// A dimension of an image and its blocks.
struct Dim {
    image: i64,
    block: i64,
    stride: i64,
    dilation: i64,
    /// Before the first element.
    pad: i64,
    /// How many blocks lie along it.
    blocks: i64,
}

impl Col2Im {
    fn dims(&self, image: &[i64], block: &[i64]) -> Result<SmallVec<[Dim; 3]>, OpError> {
        let count = image.len();
        let fits = |told: &Option<Vec<i64>>, count| told.as_ref().is_none_or(|told| told.len() == count);
        let fit = block.len() == count
            && fits(&self.strides, count)
            && fits(&self.dilations, count)
            && fits(&self.pads, 2 * count)
            && image.iter().chain(block).all(|size| (0..=MOST).contains(size));
        if !fit || count == 0 {
            return Err(OpError::shape(format!(
                "an image of {image:?} has no blocks of {block:?}, or other attributes"
            )));
        }
        let of = |told: &Option<Vec<i64>>, at: usize, default| told.as_ref().map_or(default, |told| told[at]);
        let dim = |at: usize| {
            let (stride, dilation) = (of(&self.strides, at, 1), of(&self.dilations, at, 1));
            let pads = [at, at + count].map(|at| of(&self.pads, at, 0));
            let room = image[at] + pads[0] + pads[1] - dilation * (block[at] - 1) - 1;
            let blocks = if room < 0 { 0 } else { room / stride + 1 };
            Dim { image: image[at], block: block[at], stride, dilation, pad: pads[0], blocks }
        };
        Ok((0..count).map(dim).collect())
    }
}

/// Adds a column of each block to an image, dimension by dimension: `element` is which one of a block it is. `put` is told where a row
/// of the image begins, by how much it moves on, where one of the column begins, and how many elements they have.
fn add(
    dims: &[Dim],
    element: &[i64],
    (image, size): (usize, usize),
    (column, length): (usize, usize),
    put: &mut dyn FnMut(usize, usize, usize, usize),
) {
    let (Some((dim, rest)), Some((&at, others))) = (dims.split_first(), element.split_first()) else {
        return;
    };
    let (size, length) = (size / dim.image as usize, length / dim.blocks as usize);
    // The blocks whose element lies within the image.
    let begin = at * dim.dilation - dim.pad;
    let first = if begin < 0 { (-begin + dim.stride - 1) / dim.stride } else { 0 };
    let end = if begin >= dim.image { 0 } else { (dim.image - 1 - begin) / dim.stride + 1 };
    let (first, end) = (first, end.min(dim.blocks));
    if first >= end {
        return;
    }
    if rest.is_empty() {
        let to = (begin + first * dim.stride) as usize;
        return put(image + to, dim.stride as usize, column + first as usize, (end - first) as usize);
    }
    for n in first..end {
        let to = (begin + n * dim.stride) as usize;
        add(rest, others, (image + to * size, size), (column + n as usize * length, length), put);
    }
}

/// Adds a row to elements `step` apart.
fn add_row<T: Number>(image: &mut [u8], column: &[u8], [to, step, from, count]: [usize; 4]) {
    let (image, column): (&mut [T], &[T]) = (bytemuck::cast_slice_mut(image), bytemuck::cast_slice(column));
    for (n, &x) in column[from..from + count].iter().enumerate() {
        let place = &mut image[to + n * step];
        *place = place.plus(x);
    }
}

impl Operator for Col2Im {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (input, sizes, block) = (inputs.ty(0)?, inputs.ints(1)?, inputs.ints(2)?);
        let dims = self.dims(&sizes, &block)?;
        let product = |size: fn(&Dim) -> i64| {
            dims.iter().try_fold(1usize, |all, dim| all.checked_mul(size(dim) as usize))
        };
        let blocks = product(|dim| dim.blocks);
        let size = product(|dim| dim.block).filter(|&size| size > 0);
        let (&[samples, columns, length], Some(size)) = (&input.shape[..], size) else {
            return Err(OpError::shape(format!("{input} is no batch of columns of blocks {block:?}")).into());
        };
        if Some(length) != blocks || !columns.is_multiple_of(size) {
            return Err(
                OpError::shape(format!("{input} are not {blocks:?} blocks of {size} elements")).into()
            );
        }
        let mut shape = Shape::from([samples, columns / size]);
        shape.extend(sizes.iter().map(|&size| size as usize));
        Ok(smallvec![typed(input.dtype, shape)?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (input, output) = (call.input(0)?, call.output(0)?);
        let of = |index| {
            ints(&call.input(index)?)
                .ok_or_else(|| OpError::element_type(format!("input {index} is no integers")))
        };
        let dims = self.dims(&of(1)?, &of(2)?)?;
        output.bytes.fill(0);
        if output.bytes.is_empty() || input.is_empty() {
            return Ok(());
        }
        let (size, length) = (output.shape[2..].iter().product::<usize>(), input.shape[2]);
        let block = dims.iter().map(|dim| dim.block as usize).product::<usize>();
        let (dtype, width) = (input.dtype, input.dtype.bytes());
        // Integers wrap, whatever sign they have.
        let add_row = match dtype {
            DataType::F32 => add_row::<f32>,
            DataType::F64 => add_row::<f64>,
            DataType::F16 => add_row::<f16>,
            DataType::BF16 => add_row::<bf16>,
            DataType::I8 | DataType::U8 => add_row::<u8>,
            DataType::I16 | DataType::U16 => add_row::<u16>,
            DataType::I32 | DataType::U32 => add_row::<u32>,
            DataType::I64 | DataType::U64 => add_row::<u64>,
            _ => return Err(no(dtype)),
        };
        threads::pieces(output.bytes, size * width, 4096usize.div_ceil(size), &|number, image| {
            let columns = &input.bytes[number * block * length * width..][..block * length * width];
            let mut element: SmallVec<[i64; 3]> = SmallVec::from_elem(0, dims.len());
            for column in columns.chunks_exact(length * width) {
                add(&dims, &element, (0, size), (0, length), &mut |to, step, from, count| {
                    add_row(image, column, [to, step, from, count]);
                });
                for (at, dim) in element.iter_mut().zip(&dims).rev() {
                    *at += 1;
                    if *at < dim.block {
                        break;
                    }
                    *at = 0;
                }
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::trial::{Trial, numbers, tensor};
    use stepalloc_tensor::Tensor;

    /// Of 70 channels of 9 x 11 elements, and of each channel alone, which no other can be mistaken for.
    #[test]
    fn channels_are_pooled_side_by_side_as_each_is_alone() {
        const CHANNELS: usize = 70;
        const SIZE: usize = 9 * 11;
        let images = numbers(&[2, CHANNELS, 9, 11], 1);
        let corners = [
            [0.0f32, 0.0, 10.0, 8.0],
            [1.5, 2.25, 6.0, 7.5],
            [-4.0, -3.0, 3.0, 2.0],
            [8.0, 6.0, 30.0, 20.0],
            [3.0, 3.0, 3.0, 3.0],
        ];
        let of = [0i64, 1, 1, 0, 1];
        // One region beside ten: the first is pooled where it lies.
        for repeated in [1, 2] {
            let count = if repeated == 1 { 1 } else { 10 };
            let corners: Vec<f32> = corners.iter().cycle().take(count).flatten().copied().collect();
            let of: Vec<i64> = of.iter().copied().cycle().take(count).collect();
            for mode in ["avg", "max"] {
                for samples in [0, 2] {
                    let pooled = |images: &Tensor, count: usize| {
                        let inputs = [
                            images.clone(),
                            tensor(&[count, 4], &corners[..count * 4]),
                            tensor(&[count], &of[..count]),
                        ];
                        let trial = Trial::new("RoiAlign", &[], inputs).text("mode", mode);
                        let trial = trial.int("output_height", 3).int("output_width", 2);
                        trial.int("sampling_ratio", samples).run().expect("it runs").remove(0)
                    };
                    let all = pooled(&images, count);
                    let all = all.view();
                    let all = all.elements::<f32>();
                    assert!(all.iter().any(|&x| x != 0.0));
                    for channel in 0..CHANNELS {
                        let view = images.view();
                        let plane = view.elements::<f32>().chunks(SIZE).skip(channel).step_by(CHANNELS);
                        let alone: Vec<f32> = plane.flatten().copied().collect();
                        let alone = pooled(&tensor(&[2, 1, 9, 11], &alone), count);
                        let alone = alone.view();
                        for (number, wanted) in alone.elements::<f32>().chunks(6).enumerate() {
                            let pooled = &all[(number * CHANNELS + channel) * 6..][..6];
                            assert_eq!(pooled, wanted, "{mode} of channel {channel} of region {number}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn regions_of_images_that_are_not_there_are_an_error() {
        let (images, corners) = (numbers(&[1, 2, 3, 3], 1), tensor(&[1, 4], &[0.0f32, 0.0, 2.0, 2.0]));
        for image in [1, -1] {
            let trial =
                Trial::new("RoiAlign", &[], [images.clone(), corners.clone(), tensor(&[1], &[image])]);
            assert!(trial.run().is_err_and(|why| why.to_string().contains("is beyond 1")));
        }
    }
}
