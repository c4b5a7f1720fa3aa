//! Regions of images pooled to one size, and images put together of their columns.

use super::{Call, Definition, Known, Made, Operator, Unclear, ints, typed};
use smallvec::SmallVec;
use stepalloc_kernels::no;
use stepalloc_tensor::{DataType, Number, Type, bf16, by_float, f16};
use stepalloc_threads as threads;

pub(super) fn make(node: &Definition<'_>) -> Made {
    match node.op {
        "RoiAlign" => Some(roi_align(node).map(|operator| Box::new(operator) as Box<dyn Operator>)),
        "Col2Im" => Some(col2im(node).map(|operator| Box::new(operator) as Box<dyn Operator>)),
        _ => None,
    }
}

fn roi_align(node: &Definition<'_>) -> Result<RoiAlign, String> {
    let attributes = node.attributes;
    let size = |name: &str, default| {
        let told = attributes.int(name, default);
        usize::try_from(told).map_err(|_| format!("{name} is {told}"))
    };
    let usual = if node.opset < 16 { "output_half_pixel" } else { "half_pixel" };
    Ok(RoiAlign {
        is_max: match attributes.text("mode", "avg") {
            "avg" => false,
            "max" => true,
            mode => return Err(format!("there is no mode {mode:?}")),
        },
        half_pixel: match attributes.text("coordinate_transformation_mode", usual) {
            "half_pixel" => true,
            "output_half_pixel" => false,
            mode => return Err(format!("there is no coordinate transformation {mode:?}")),
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
    fn side(&self, begin: f32, end: f32, bins: usize, dim: usize) -> Result<Side, String> {
        let offset = if self.half_pixel { 0.5 } else { 0.0 };
        let (begin, end) = (begin * self.scale - offset, end * self.scale - offset);
        // Old versions want a region to be an element wide at least.
        let length = if self.half_pixel { end - begin } else { (end - begin).max(1.0) };
        let size = length / bins as f32;
        let samples = if self.samples > 0 { self.samples } else { size.ceil() as usize };
        if samples > MOST_SAMPLES {
            return Err(format!("a region from {begin} to {end} takes {samples} samples for each element"));
        }
        Ok(Side { begin, size, samples, dim })
    }

    /// Pools a region of a channel.
    fn pool<T: Number>(&self, source: &[T], [rows, columns]: [Side; 2], target: &mut [T]) {
        let count = (rows.samples * columns.samples).max(1) as f32;
        let element = |at: usize| source[at].to_f64() as f32;
        for (n, place) in target.iter_mut().enumerate() {
            let (mut sum, mut most) = (0.0, None::<f32>);
            for row in 0..rows.samples {
                let row = rows.around(n / self.width, row);
                for column in 0..columns.samples {
                    let mut parts = [0.0; 4];
                    if let (Some((top, bottom, y)), Some((left, right, x))) =
                        (row, columns.around(n % self.width, column))
                    {
                        let (top, bottom) = (top * columns.dim, bottom * columns.dim);
                        parts = [
                            (1.0 - y) * (1.0 - x) * element(top + left),
                            (1.0 - y) * x * element(top + right),
                            y * (1.0 - x) * element(bottom + left),
                            y * x * element(bottom + right),
                        ];
                    }
                    if self.is_max {
                        let own = parts.into_iter().fold(f32::NEG_INFINITY, f32::max);
                        most = Some(most.map_or(own, |most| most.max(own)));
                    } else {
                        sum += parts.iter().sum::<f32>();
                    }
                }
            }
            let pooled = if self.is_max { most.unwrap_or(0.0) } else { sum / count };
            *place = T::from_f64(pooled.into());
        }
    }
}

impl Operator for RoiAlign {
    fn infer(&self, inputs: &Known<'_>) -> Result<Vec<Type>, Unclear> {
        let (input, regions, images) = (inputs.ty(0)?, inputs.ty(1)?, inputs.ty(2)?);
        let (&[_, channels, height, width], &[count, 4]) = (&input.shape[..], &regions.shape[..]) else {
            return Err(format!("{regions} are no regions of images {input}").into());
        };
        if images.shape != [count] || regions.dtype != input.dtype {
            return Err(format!("regions {regions} of images {images} do not fit {input}").into());
        }
        let output = typed(input.dtype, [count, channels, self.height, self.width])?;
        if height * width == 0 && output.elements() > 0 {
            return Err(format!("{input} has no elements to pool").into());
        }
        Ok(vec![output])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), String> {
        let (input, regions, images) = (call.input(0)?, call.input(1)?, call.input(2)?);
        let output = call.output(0)?;
        let (&[samples, channels, height, width_of_image], images) =
            (input.shape, ints(&images).ok_or("images of regions are no integers")?)
        else {
            return Err("its input is no batch of images".into());
        };
        if output.bytes.is_empty() {
            return Ok(());
        }
        let (size, bins) = (height * width_of_image, self.height * self.width);
        let (dtype, width) = (input.dtype, input.dtype.bytes());
        if !dtype.is_float() {
            return Err(no(dtype));
        }
        let targets = output.bytes.chunks_exact_mut(channels * bins * width);
        for (number, (target, &image)) in targets.zip(&images).enumerate() {
            let at = usize::try_from(image).ok().filter(|&at| at < samples);
            let at = at.ok_or_else(|| format!("image {image} is beyond {samples}"))?;
            let of = |n: usize| by_float!(dtype, T => regions.elements::<T>()[4 * number + n].to_f64() as f32, 0.0);
            let sides = [
                self.side(of(1), of(3), self.height, height)?,
                self.side(of(0), of(2), self.width, width_of_image)?,
            ];
            let source = &input.bytes[at * channels * size * width..][..channels * size * width];
            threads::pieces(target, bins * width, 4096usize.div_ceil(bins), &|channel, target| {
                let source = &source[channel * size * width..][..size * width];
                by_float!(dtype, T => {
                    self.pool::<T>(bytemuck::cast_slice(source), sides, bytemuck::cast_slice_mut(target));
                }, {});
            });
        }
        Ok(())
    }
}

/// Sizes that are not larger can be added, and two of them multiplied, in 64 bits.
const MOST: i64 = (1 << 31) - 1;

fn col2im(node: &Definition<'_>) -> Result<Col2Im, String> {
    let told = |name: &str, least: i64| {
        let told = node.attributes.ints(name);
        if told.as_ref().is_some_and(|told| told.iter().any(|&n| n < least || n > MOST)) {
            return Err(format!("{name} are {told:?}"));
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
    fn dims(&self, image: &[i64], block: &[i64]) -> Result<SmallVec<[Dim; 3]>, String> {
        let count = image.len();
        let fits = |told: &Option<Vec<i64>>, count| told.as_ref().is_none_or(|told| told.len() == count);
        let fit = block.len() == count
            && fits(&self.strides, count)
            && fits(&self.dilations, count)
            && fits(&self.pads, 2 * count)
            && image.iter().chain(block).all(|size| (0..=MOST).contains(size));
        if !fit || count == 0 {
            return Err(format!("an image of {image:?} has no blocks of {block:?}, or other attributes"));
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
    fn infer(&self, inputs: &Known<'_>) -> Result<Vec<Type>, Unclear> {
        let (input, sizes, block) = (inputs.ty(0)?, inputs.ints(1)?, inputs.ints(2)?);
        let dims = self.dims(&sizes, &block)?;
        let product = |size: fn(&Dim) -> i64| {
            dims.iter().try_fold(1usize, |all, dim| all.checked_mul(size(dim) as usize))
        };
        let blocks = product(|dim| dim.blocks);
        let size = product(|dim| dim.block).filter(|&size| size > 0);
        let (&[samples, columns, length], Some(size)) = (&input.shape[..], size) else {
            return Err(format!("{input} is no batch of columns of blocks {block:?}").into());
        };
        if Some(length) != blocks || !columns.is_multiple_of(size) {
            return Err(format!("{input} are not {blocks:?} blocks of {size} elements").into());
        }
        let mut shape = vec![samples, columns / size];
        shape.extend(sizes.iter().map(|&size| size as usize));
        Ok(vec![typed(input.dtype, shape)?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), String> {
        let (input, output) = (call.input(0)?, call.output(0)?);
        let of = |index| ints(&call.input(index)?).ok_or_else(|| format!("input {index} is no integers"));
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
