//! Elements of an image at places of a grid, and grids that affine maps make.

use super::{Call, Definition, Known, Made, Operator, Types, Unclear, ints, typed};
use smallvec::{SmallVec, smallvec};
use stepalloc_kernels::no;
use stepalloc_tensor::{Number, OpError, Type, View, by_float, by_number};
use stepalloc_threads as threads;

pub(super) fn make(node: &Definition<'_>) -> Made {
    let attributes = node.attributes;
    let align_corners = attributes.int("align_corners", 0) != 0;
    match node.op {
        "AffineGrid" => Some(Ok(Box::new(AffineGrid { align_corners }))),
        "GridSample" => {
            let mode = match attributes.text("mode", "linear") {
                "nearest" => Mode::Nearest,
                "linear" | "bilinear" => Mode::Linear,
                "cubic" | "bicubic" => Mode::Cubic,
                mode => return Some(Err(OpError::attribute(format!("there is no mode {mode:?}")))),
            };
            let padding = match attributes.text("padding_mode", "zeros") {
                "zeros" => Padding::Zeros,
                "border" => Padding::Border,
                "reflection" => Padding::Reflection,
                mode => return Some(Err(OpError::attribute(format!("there is no padding mode {mode:?}")))),
            };
            Some(Ok(Box::new(GridSample { mode, padding, align_corners })))
        }
        _ => None,
    }
}

/// How elements around a place are weighted.
#[derive(Clone, Copy)]
enum Mode {
    Nearest,
    Linear,
    Cubic,
}

/// What lies beyond an image.
#[derive(Clone, Copy)]
enum Padding {
    Zeros,
    Border,
    Reflection,
}

/// Slope at distance 1 of the cubic convolution.
const SLOPE: f32 = -0.75;

/// Weights of the 4 elements around a place that is so far behind the second.
fn cubic(x: f32) -> [f32; 4] {
    let near = |x: f32| ((SLOPE + 2.0) * x - (SLOPE + 3.0)) * x * x + 1.0;
    let far = |x: f32| ((SLOPE * x - 5.0 * SLOPE) * x + 8.0 * SLOPE) * x - 4.0 * SLOPE;
    [far(x + 1.0), near(x), near(1.0 - x), far(2.0 - x)]
}

/// Mirrors a place at two others until it is between them.
fn reflect(x: f32, low: f32, high: f32) -> f32 {
    let range = high - low;
    if (low..=high).contains(&x) || range <= 0.0 {
        return x.max(low).min(high);
    }
    let way = if x < low { low - x } else { x - high };
    let times = (way / range).trunc();
    let rest = way - times * range;
    // Where it was mirrored an even number of times more, it comes in at the side at which it was.
    if (x < low) == (times % 2.0 == 0.0) { low + rest } else { high - rest }
}

/// Elements of images at places of a grid.
struct GridSample {
    mode: Mode,
    padding: Padding,
    /// -1 and 1 are the middles of the elements at the ends; else their outer edges.
    align_corners: bool,
}

/// Elements in one dimension that are weighted for a place: `None` are those beyond the image.
type Taps = SmallVec<[(Option<usize>, f32); 4]>;

impl GridSample {
    fn taps(&self) -> usize {
        match self.mode {
            Mode::Nearest => 1,
            Mode::Linear => 2,
            Mode::Cubic => 4,
        }
    }

    /// What is weighted of `dim` elements for a place between -1 and 1.
    fn along(&self, place: f32, dim: usize) -> Taps {
        let length = dim as f32;
        let (mut x, low, high) = if self.align_corners {
            ((place + 1.0) / 2.0 * (length - 1.0), 0.0, length - 1.0)
        } else {
            (((place + 1.0) * length - 1.0) / 2.0, -0.5, length - 0.5)
        };
        if let Mode::Nearest = self.mode {
            x = x.round_ties_even();
        }
        if x < low || x > high {
            match self.padding {
                Padding::Zeros => {}
                Padding::Border => x = x.clamp(0.0, length - 1.0),
                Padding::Reflection => x = reflect(x, low, high),
            }
        }
        let last = dim as i64 - 1;
        let inside = |at: i64| {
            let at = match self.padding {
                Padding::Zeros => return usize::try_from(at).ok().filter(|&at| at < dim),
                Padding::Border => at,
                Padding::Reflection => reflect(at as f32, low, high) as i64,
            };
            Some(at.clamp(0, last) as usize)
        };
        let floor = x.floor();
        let (first, rest) = (floor as i64, x - floor);
        let tap = |offset: i64, weight: f32| (inside(first.saturating_add(offset)), weight);
        match self.mode {
            Mode::Nearest => SmallVec::from_slice(&[tap(0, 1.0)]),
            Mode::Linear => SmallVec::from_slice(&[tap(0, 1.0 - rest), tap(1, rest)]),
            Mode::Cubic => cubic(rest).into_iter().zip(-1..).map(|(weight, at)| tap(at, weight)).collect(),
        }
    }

    /// Elements that are weighted for each place of an image of these sizes.
    fn all_taps(&self, dims: usize) -> usize {
        (0..dims).fold(1, |all, _| usize::saturating_mul(all, self.taps()))
    }

    /// Writes numbers and weights of the elements for a place; its coordinates begin with that of the
    /// innermost dimension.
    fn table(&self, place: &[f32], image: &[usize], index: &mut [u32], weights: &mut [f32]) {
        (index[0], weights[0]) = (0, 1.0);
        let mut count = 1;
        // From the outermost dimension inwards, each element so far becomes as many as the dimension has
        // taps: from the last on, so that none is overwritten before it is read.
        for (&dim, &place) in image.iter().zip(place.iter().rev()) {
            let taps = self.along(place, dim);
            for at in (0..count).rev() {
                let (from, own) = (index[at], weights[at]);
                for (n, &(tap, weight)) in taps.iter().enumerate() {
                    let to = at * taps.len() + n;
                    index[to] = from * dim as u32 + tap.unwrap_or(0) as u32;
                    weights[to] = if tap.is_some() { own * weight } else { 0.0 };
                }
            }
            count *= taps.len();
        }
    }
}

/// Samples, channels and the sizes of an image.
fn images(shape: &[usize]) -> Result<(usize, usize, &[usize]), OpError> {
    match shape {
        [samples, channels, image @ ..] if !image.is_empty() => Ok((*samples, *channels, image)),
        _ => Err(OpError::shape(format!("{shape:?} is no batch of images"))),
    }
}

impl Operator for GridSample {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (input, grid) = (inputs.ty(0)?, inputs.ty(1)?);
        let (samples, channels, image) = images(&input.shape)?;
        let fits = grid.rank() == image.len() + 2
            && grid.shape[0] == samples
            && grid.shape[image.len() + 1] == image.len();
        if !fits {
            return Err(OpError::shape(format!("{grid} is no grid for {input}")).into());
        }
        if image.len() > 8 {
            return Err(OpError::unsupported(format!("{input} has more than 8 spatial dimensions")).into());
        }
        if image.contains(&0) && grid.elements() > 0 {
            return Err(OpError::shape(format!("{input} has no elements to take")).into());
        }
        if image.iter().product::<usize>() > u32::MAX as usize {
            return Err(OpError::unsupported(format!("{input} has images of more than 2^32 elements")).into());
        }
        let shape = [&[samples, channels], &grid.shape[1..=image.len()]].concat();
        Ok(smallvec![typed(input.dtype, shape)?])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let Some(grid) = inputs.opt(1).filter(|grid| grid.rank() > 2) else { return 0 };
        let places = grid.shape[1..grid.rank() - 1].iter().product::<usize>();
        // A number and a weight of 4 bytes each.
        places.saturating_mul(self.all_taps(grid.rank() - 2)).saturating_mul(8)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (input, grid, output) = (call.input(0)?, call.input(1)?, call.output(0)?);
        if output.bytes.is_empty() {
            return Ok(());
        }
        let (samples, channels, image) = images(input.shape)?;
        let size: usize = image.iter().product();
        let taps = self.all_taps(image.len());
        let places = output.shape[2..].iter().product::<usize>();
        let (index, weights) = call.scratch().split_at_mut(4 * places * taps);
        let index: &mut [u32] = bytemuck::cast_slice_mut(index);
        let weights: &mut [f32] = bytemuck::cast_slice_mut(&mut weights[..4 * places * taps]);
        let width = input.dtype.bytes();
        let weigh: Weigh = by_number!(input.dtype, T => weigh::<T>, return Err(no(input.dtype)));
        if !grid.dtype.is_float() {
            return Err(no(grid.dtype));
        }
        for sample in 0..samples {
            let rows = (&mut *index, ROWS * taps);
            threads::pieces_of_two(rows, (&mut *weights, ROWS * taps), 1, &|piece, index, weights| {
                let rows = index.chunks_exact_mut(taps).zip(weights.chunks_exact_mut(taps));
                for (n, (index, weights)) in (piece * ROWS..).zip(rows) {
                    let begin = (sample * places + n) * image.len();
                    let place: SmallVec<[f32; 4]> =
                        (begin..begin + image.len()).map(|at| coordinate(&grid, at)).collect();
                    self.table(&place, image, index, weights);
                }
            });
            let source = &input.bytes[sample * channels * size * width..][..channels * size * width];
            let target = &mut output.bytes[sample * channels * places * width..][..channels * places * width];
            let size = size * width;
            let least = if places > 1 << 14 { 1 } else { usize::MAX };
            for (target, source) in target.chunks_exact_mut(places * width).zip(source.chunks_exact(size)) {
                threads::pieces(target, ROWS * width, least, &|piece, target| {
                    let rows = target.len() / width * taps;
                    let begin = piece * ROWS * taps;
                    weigh((&index[begin..][..rows], &weights[begin..][..rows]), taps, source, target);
                });
            }
        }
        Ok(())
    }
}

/// So many places are looked at by one thread at a time.
const ROWS: usize = 1 << 12;

fn coordinate(grid: &View<'_>, at: usize) -> f32 {
    by_float!(grid.dtype, T => grid.elements::<T>()[at].to_f64() as f32, 0.0)
}

/// Makes places of a channel as the table says; see [`weigh`].
type Weigh = fn(table: (&[u32], &[f32]), taps: usize, source: &[u8], target: &mut [u8]);

/// Sums elements of a channel: the table has so many of them for each place, and their weights.
fn weigh<T: Number>((index, weights): (&[u32], &[f32]), taps: usize, source: &[u8], target: &mut [u8]) {
    let (source, target): (&[T], &mut [T]) = (bytemuck::cast_slice(source), bytemuck::cast_slice_mut(target));
    if taps == 1 {
        for (n, place) in target.iter_mut().enumerate() {
            *place = if weights[n] == 0.0 { T::default() } else { source[index[n] as usize] };
        }
        return;
    }
    for (n, place) in target.iter_mut().enumerate() {
        let mut sum = 0.0;
        for tap in n * taps..(n + 1) * taps {
            // What lies beyond has no weight, whatever stands for it.
            let own = source[index[tap] as usize].to_f64() * f64::from(weights[tap]);
            sum += if weights[tap] == 0.0 { 0.0 } else { own };
        }
        *place = T::from_f64(if T::DTYPE.is_float() { sum } else { sum.round_ties_even() });
    }
}

/// The grid that an affine map makes of one at equal distances.
struct AffineGrid {
    align_corners: bool,
}

impl AffineGrid {
    /// Sizes of the image and where the maps say what they are of.
    fn image(theta: &[usize], size: &[i64]) -> Result<Vec<usize>, OpError> {
        let wrong = || OpError::shape(format!("maps of shape {theta:?} make no grid for {size:?}"));
        let sizes = size.iter().map(|&dim| usize::try_from(dim).ok()).collect::<Option<Vec<_>>>();
        let sizes = sizes.filter(|sizes| matches!(sizes.len(), 4 | 5)).ok_or_else(wrong)?;
        let dims = sizes.len() - 2;
        if theta != [sizes[0], dims, dims + 1] {
            return Err(wrong());
        }
        Ok(sizes[2..].to_vec())
    }

    fn coordinate(&self, at: usize, dim: usize) -> f64 {
        let (at, dim) = (at as f64, dim as f64);
        if !self.align_corners {
            (2.0 * at + 1.0) / dim - 1.0
        } else if dim == 1.0 {
            -1.0
        } else {
            2.0 * at / (dim - 1.0) - 1.0
        }
    }
}

impl Operator for AffineGrid {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let theta = inputs.ty(0)?;
        let image = Self::image(&theta.shape, &inputs.ints(1)?)?;
        Ok(smallvec![typed(theta.dtype, [&[theta.shape[0]], &image[..], &[image.len()]].concat())?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (theta, size, output) = (call.input(0)?, call.input(1)?, call.output(0)?);
        let image = Self::image(
            theta.shape,
            &ints(&size).ok_or_else(|| OpError::element_type("its size is no integers"))?,
        )?;
        if output.bytes.is_empty() {
            return Ok(());
        }
        let dims = image.len();
        let places: usize = image.iter().product();
        by_float!(theta.dtype, T => {
            let maps = theta.elements::<T>().chunks_exact(dims * (dims + 1));
            for (map, target) in maps.zip(output.elements::<T>().chunks_exact_mut(places * dims)) {
                for (n, place) in target.chunks_exact_mut(dims).enumerate() {
                    // Coordinates, that of the innermost dimension first, and 1 for what is added.
                    let mut from = [1.0; 4];
                    let mut rest = n;
                    for (from, &dim) in from.iter_mut().zip(image.iter().rev()) {
                        *from = self.coordinate(rest % dim, dim);
                        rest /= dim;
                    }
                    for (to, row) in place.iter_mut().zip(map.chunks_exact(dims + 1)) {
                        *to = T::from_f64(row.iter().zip(from).map(|(weight, x)| weight.to_f64() * x).sum());
                    }
                }
            }
        }, return Err(no(theta.dtype)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_far_beyond_are_mirrored_back() {
        assert_eq!(reflect(-3.5, -1.0, 1.0), 0.5);
        assert_eq!(reflect(2.5, 0.0, 2.0), 1.5);
        assert_eq!(reflect(4.5, 0.0, 2.0), 0.5);
        assert_eq!(reflect(7.0, 0.0, 0.0), 0.0);
        assert!((0.0..=2.0).contains(&reflect(f32::MAX, 0.0, 2.0)));
    }

    /// Whatever a place is, no element beyond the image is taken.
    #[test]
    fn taps_are_within_the_image() {
        for mode in [Mode::Nearest, Mode::Linear, Mode::Cubic] {
            for padding in [Padding::Zeros, Padding::Border, Padding::Reflection] {
                for align_corners in [false, true] {
                    let sample = GridSample { mode, padding, align_corners };
                    for place in [-1.0, 0.3, 1.0, 1e30, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                        for dim in [1, 2, 5] {
                            let taps = sample.along(place, dim);
                            assert!(
                                taps.iter().all(|(at, _)| at.is_none_or(|at| at < dim)),
                                "{place} of {dim}"
                            );
                        }
                    }
                }
            }
        }
    }
}
