//! Convolutions of real numbers, and of bytes with scales and zero points ([`quantized`]).
//!
//! Those of f32 in one or two dimensions are computed in place ([`direct`], [`across`] where constant weights can be packed, and
//! [`depthwise`] where channels have filters of their own), or place by place where there are few ([`dot`], and [`columns`] for many
//! images). The others are products of matrices: the input is
//! unrolled into scratch memory, row by row rather than element by element, for some rows of the output at a time, so that what is
//! unrolled is still in a cache when it is multiplied.

pub mod across;
mod columns;
pub mod depthwise;
mod direct;
mod dot;
pub mod finish;
mod parts;
pub mod quantized;
pub mod window;

use crate::gemm::{Matrix, PARALLEL, product};
use columns::Columns;
use depthwise::{Depthwise, Plane, Products};
use direct::Direct;
use dot::Dots;
use finish::Finish;
use rten_simd::SimdOp;
use std::marker::PhantomData;
use std::ops::Range;
use stepalloc_tensor::{DataType, Element, Number, OpError, Type};
use stepalloc_threads as threads;
use window::Window;

/// Sizes of a convolution.
pub struct Sizes {
    /// Images.
    pub batch: usize,
    /// Channels of the input in a group.
    pub from: usize,
    /// Channels of the output in a group.
    pub to: usize,
    /// Groups.
    pub group: usize,
    /// The windows over a plane of the input.
    pub window: Window,
}

impl Sizes {
    /// The output.
    pub fn out(&self, dtype: DataType) -> Result<Type, OpError> {
        let mut shape = vec![self.batch, self.group * self.to];
        shape.extend(self.window.shape());
        Type::new(dtype, shape.clone())
            .ok_or_else(|| OpError::shape(format!("a tensor of shape {shape:?} is too large")))
    }

    /// Weights of one filter.
    pub fn depth(&self) -> usize {
        self.from * self.window.kernel()
    }

    /// So many rows of the output are unrolled at a time.
    pub fn block(&self) -> usize {
        let row = self.window.width().saturating_mul(self.depth().max(self.to)).max(1);
        (UNROLLED / row).clamp(1, self.window.rows().max(1))
    }

    /// The blocks of rows of a plane of the output.
    pub fn blocks(&self) -> impl Iterator<Item = Range<usize>> {
        let (rows, block) = (self.window.rows(), self.block());
        (0..rows).step_by(block).map(move |begin| begin..(begin + block).min(rows))
    }

    /// Whether it is too little work for several cores.
    pub fn is_small(&self) -> bool {
        let filters = self.batch.saturating_mul(self.group).saturating_mul(self.to);
        filters.saturating_mul(self.window.output()).saturating_mul(self.depth()) < PARALLEL
    }

    /// Whether each channel of the input has filters of its own.
    pub fn is_depthwise(&self) -> bool {
        self.from == 1 && self.group > 1
    }
}

/// Elements that are unrolled at a time: a megabyte, which the second cache holds.
const UNROLLED: usize = 1 << 18;
/// Planes of fewer elements are no tiles.
const FEW_PLACES: usize = 16;

/// How a convolution of f32 is computed without unrolling it.
#[allow(clippy::large_enum_variant, reason = "one is on the stack while a convolution runs")]
pub enum Way {
    /// Filters of a group, over one image at a time.
    #[allow(private_interfaces, reason = "nobody else makes one")]
    Each(Each),
    /// Places of all images side by side.
    Columns,
    /// Channel by channel.
    #[allow(private_interfaces, reason = "nobody else makes one")]
    Depthwise(Depthwise),
}

/// How filters of a group are computed over one image.
#[allow(clippy::large_enum_variant, reason = "one is on the stack while a convolution runs")]
enum Each {
    Direct(direct::Frame),
    Dots,
}

impl Way {
    /// `None` where it is not.
    pub fn new(sizes: &Sizes) -> Option<Self> {
        if sizes.window.input() == 0 || sizes.depth() == 0 {
            None
        } else if let Some(depthwise) = Depthwise::new(sizes) {
            Some(Self::Depthwise(depthwise))
        } else if sizes.window.output() < FEW_PLACES {
            let is_many = sizes.batch * sizes.window.output() >= FEW_PLACES;
            Some(if is_many { Self::Columns } else { Self::Each(Each::Dots) })
        } else {
            direct::Frame::new(sizes).map(|frame| Self::Each(Each::Direct(frame)))
        }
    }

    /// Elements of scratch memory for a core.
    pub fn scratch(&self, sizes: &Sizes) -> usize {
        match self {
            Self::Each(Each::Direct(frame)) => frame.scratch(sizes),
            Self::Each(Each::Dots) => dot::scratch(sizes),
            Self::Columns => columns::scratch(sizes),
            Self::Depthwise(depthwise) => depthwise.scratch(),
        }
    }
}

/// Some filters of a group, over one image.
struct Part<'a> {
    pub sizes: &'a Sizes,
    /// The group's channels of the image.
    pub x: &'a [f32],
    /// As many rows of weights as there are filters, and as many planes of the output.
    pub w: &'a [f32],
    pub bias: Option<&'a [f32]>,
    pub out: Planes<'a>,
    /// The rows of these planes that are computed.
    pub rows: Range<usize>,
    pub scratch: &'a mut [f32],
    /// Whether nothing was computed in this scratch memory yet.
    pub is_first: bool,
    /// What becomes of the sums: of these planes of the output.
    pub finish: Finish<'a>,
    /// Is called with each part of the output that is done: the index of its first element in `out`, and the elements.
    pub done: Option<Done<'a>>,
}

/// Is called with each part of an output that is done: the index of its first element, and the elements.
pub type Done<'d> = &'d (dyn Fn(usize, &mut [f32]) + Sync);

/// Computes a convolution, in scratch memory for each core that takes part.
pub fn convolve(
    (way, sizes): (&Way, &Sizes),
    out: &mut [f32],
    x: &[f32],
    (w, bias): (&[f32], Option<&[f32]>),
    scratch: &mut [f32],
    (finish, done): (Finish<'_>, Option<Done<'_>>),
) {
    let (places, depth, to) = (sizes.window.output(), sizes.depth(), sizes.to);
    let image = sizes.from * sizes.window.input();
    let for_one = way.scratch(sizes);
    // Filters of all groups of all images, shared out evenly.
    let cores = if sizes.is_small() { 1 } else { (scratch.len() / for_one).max(1) };
    let each = match way {
        Way::Each(each) => each,
        Way::Depthwise(depthwise) => {
            let share = (out.len() / places).div_ceil(cores);
            return threads::pieces_of_two(
                (out, share * places),
                (scratch, for_one),
                1,
                &|number, out, scratch| {
                    for (at, out) in out.chunks_exact_mut(places).enumerate() {
                        let plane = number * share + at;
                        let filter = plane % (sizes.group * to);
                        Plane {
                            depthwise,
                            x: &x[plane / to * image..][..image],
                            fold: Products {
                                w: &w[filter * depth..][..depth],
                                bias: bias.map_or(0.0, |bias| bias[filter]),
                            },
                            finish: finish.from(plane * places),
                            out: &mut *out,
                            scratch: &mut *scratch,
                            is_first: at == 0,
                        }
                        .dispatch();
                        if let Some(done) = done {
                            done(plane * places, out);
                        }
                    }
                },
            );
        }
        Way::Columns => {
            // Whole images.
            let (from, to) = (image * sizes.group, to * sizes.group * places);
            let share = sizes.batch.div_ceil(cores);
            return threads::pieces_of_two(
                (out, share * to),
                (scratch, for_one),
                1,
                &|number, out, scratch| {
                    let x = &x[number * share * from..][..out.len() / to * from];
                    Columns { sizes, x, w, bias, out: &mut *out, scratch }.dispatch();
                    finish.from(number * share * to).apply(out);
                    if let Some(done) = done {
                        done(number * share * to, out);
                    }
                },
            );
        }
    };
    let rows = match each {
        Each::Direct(frame) => frame.shared_rows(),
        Each::Dots => Rows { count: sizes.window.rows(), step: 1, least: usize::MAX },
    };
    by_groups(sizes, out, (scratch, for_one), rows, &|share| {
        let Share { next, image_group, within, out, rows, scratch, is_first } = share;
        let count = out.len() / places;
        let filter = image_group % sizes.group * to + within;
        let done = done.map(|done| move |index: usize, part: &mut [f32]| done(next * places + index, part));
        let part = Part {
            sizes,
            x: &x[image_group * image..][..image],
            w: &w[filter * depth..][..count * depth],
            bias: bias.map(|bias| &bias[filter..][..count]),
            out,
            rows,
            scratch,
            is_first,
            finish: finish.from(next * places),
            done: done.as_ref().map(|done| done as Done<'_>),
        };
        match each {
            Each::Direct(frame) => Direct { frame, part }.dispatch(),
            Each::Dots => Dots(part).dispatch(),
        }
    });
}

/// Some filters of a group over one image, which a core computes.
struct Share<'a> {
    /// The number of its first plane in the output.
    next: usize,
    /// The number of the group among those of all images.
    image_group: usize,
    /// The first filter in the group.
    within: usize,
    /// Planes of the output, as many as there are filters.
    out: Planes<'a>,
    /// The rows of these planes that it computes.
    rows: Range<usize>,
    /// Of the core, of which nobody took any before if `is_first`.
    scratch: &'a mut [f32],
    is_first: bool,
}

/// Rows of planes that cores share.
struct Rows {
    /// Of a plane.
    count: usize,
    /// A core begins at a multiple of this.
    step: usize,
    /// The fewest rows for a core; where there are fewer, cores share filters, with all rows.
    least: usize,
}

/// Filters of all groups of all images, shared out evenly among as many cores as there is scratch memory for; or rows of all of them, where
/// cores can have some.
fn by_groups(
    sizes: &Sizes,
    out: &mut [f32],
    (scratch, for_one): (&mut [f32], usize),
    Rows { count, step, least }: Rows,
    compute: &(dyn Fn(Share<'_>) + Sync),
) {
    let (places, to) = (sizes.window.output(), sizes.to);
    let cores = if sizes.is_small() { 1 } else { (scratch.len() / for_one).max(1) };
    if cores > 1 && count / cores >= least {
        let (all, share) = (Planes::new(out), count.div_ceil(cores).next_multiple_of(step));
        threads::pieces(&mut scratch[..cores * for_one], for_one, 1, &|number, scratch| {
            let rows = number * share..((number + 1) * share).min(count);
            for image_group in 0..if rows.is_empty() { 0 } else { sizes.batch * sizes.group } {
                let (next, scratch, rows) = (image_group * to, &mut *scratch, rows.clone());
                // SAFETY: others compute other rows.
                let out = unsafe { all.part(next * places, to * places) };
                compute(Share {
                    next,
                    image_group,
                    within: 0,
                    out,
                    rows,
                    scratch,
                    is_first: image_group == 0,
                });
            }
        });
        return;
    }
    let share = (out.len() / places).div_ceil(cores);
    threads::pieces_of_two((out, share * places), (scratch, for_one), 1, &|number, out, scratch| {
        let first = number * share;
        let (mut out, mut next) = (out, first);
        while !out.is_empty() {
            let (image_group, within) = (next / to, next % to);
            let filters = (to - within).min(out.len() / places);
            let (here, rest) = std::mem::take(&mut out).split_at_mut(filters * places);
            let (planes, rows, scratch) = (Planes::new(here), 0..count, &mut *scratch);
            compute(Share { next, image_group, within, out: planes, rows, scratch, is_first: next == first });
            (out, next) = (rest, next + filters);
        }
    });
}

/// Planes of an output, of which several cores write parts.
#[derive(Clone, Copy)]
struct Planes<'a> {
    begin: *mut f32,
    length: usize,
    of: PhantomData<&'a mut [f32]>,
}

// SAFETY: it is a mutable slice; that parts do not overlap is up to who takes them.
unsafe impl Send for Planes<'_> {}
// SAFETY: as above.
unsafe impl Sync for Planes<'_> {}

impl<'a> Planes<'a> {
    fn new(out: &'a mut [f32]) -> Self {
        Self { begin: out.as_mut_ptr(), length: out.len(), of: PhantomData }
    }

    fn len(&self) -> usize {
        self.length
    }

    /// Some of them.
    ///
    /// # Safety
    /// Of what is written by way of it, nobody else writes any.
    unsafe fn part(&self, begin: usize, length: usize) -> Self {
        assert!(begin <= self.length && length <= self.length - begin, "a part is within the planes");
        // SAFETY: it is within the slice.
        Self { begin: unsafe { self.begin.add(begin) }, length, of: PhantomData }
    }

    /// The elements from there on.
    ///
    /// # Safety
    /// Nobody else has any of them as long as they are there.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "see what is asked for")]
    unsafe fn elements(&self, begin: usize, length: usize) -> &mut [f32] {
        assert!(begin <= self.length && length <= self.length - begin, "elements are within the planes");
        // SAFETY: they are within the slice, and nobody else has them.
        unsafe { std::slice::from_raw_parts_mut(self.begin.add(begin), length) }
    }
}

/// Bytes that [`unrolled`] needs.
pub fn scratch<T: Number>(sizes: &Sizes) -> usize {
    let columns = sizes.block() * sizes.window.width();
    let weights = if T::DTYPE == T::Wide::DTYPE { 0 } else { sizes.to * sizes.depth() };
    (columns * (sizes.depth() + sizes.to) + weights) * size_of::<T::Wide>()
}

/// Lays out a group of channels for some rows of the output.
pub type Lay<'l, W> = &'l dyn Fn(usize, Range<usize>, &mut [W]);

/// Unrolls the input into scratch memory, and multiplies. `lay` lays out a group of channels, by its number among those of the whole
/// batch, for some rows of the output, as [`Window::columns`] does; the input may have no elements.
pub fn unrolled<T: Number>(
    sizes: &Sizes,
    out: &mut [T],
    (empty, lay): (bool, Lay<'_, T::Wide>),
    w: &[T],
    bias: Option<&[T]>,
    scratch: &mut [u8],
) -> Result<(), OpError> {
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
pub fn plainly<T: Number>(sizes: &Sizes, x: &[T]) -> impl Fn(usize, Range<usize>, &mut [T::Wide]) {
    move |at, rows, to| {
        let group = sizes.from * sizes.window.input();
        sizes.window.columns(&x[at * group..][..group], rows, to, T::Wide::default(), |x| x.wide());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::packed::Columns;
    use across::Across;
    use stepalloc_tensor::Tensor;
    use window::tests::axis;

    /// Numbers that are exact in every order of summing.
    fn numbers(count: usize, step: usize) -> Vec<f32> {
        (0..count).map(|number| (number * step % 23) as f32 - 11.0).collect()
    }

    #[test]
    fn directly_and_unrolled_they_are_the_same() {
        let square = |axis_of| vec![axis(axis_of); 2];
        for (batch, from, to, group, axes) in [
            (1, 3, 8, 1, square([9, 3, 1, 1, 1, 1])),
            (2, 4, 13, 1, square([19, 3, 2, 1, 1, 0])),
            (1, 1, 1, 7, vec![axis([19, 5, 2, 1, 2, 2]), axis([70, 5, 1, 1, 2, 2])]),
            (2, 1, 1, 5, square([14, 3, 1, 1, 1, 1])),
            (1, 1, 2, 3, square([30, 3, 2, 1, 0, 1])),
            (1, 1, 1, 3, square([31, 3, 1, 2, 2, 2])),
            (1, 1, 1, 2, vec![axis([900, 7, 3, 1, 3, 0]), axis([150, 4, 3, 2, 5, 3])]),
            (3, 5, 30, 2, square([31, 1, 1, 1, 0, 0])),
            (1, 5, 7, 1, square([30, 3, 1, 2, 0, 0])),
            (1, 2, 3, 1, vec![axis([7, 2, 3, 2, 1, 0]), axis([300, 4, 3, 2, 5, 3])]),
            (1, 3, 5, 1, square([9, 1, 2, 1, 0, 0])),
            (2, 6, 25, 3, vec![axis([500, 4, 1, 1, 3, 0])]),
            (1, 2, 2, 1, square([1, 3, 1, 1, 1, 1])),
            (1, 30, 29, 1, square([40, 3, 1, 1, 1, 1])),
            (1, 150, 27, 1, square([7, 1, 1, 1, 0, 0])),
            (1, 33, 31, 1, square([14, 3, 1, 1, 0, 0])),
            (1, 70, 5, 1, square([13, 2, 1, 1, 0, 0])),
            (2, 40, 24, 2, square([9, 3, 2, 1, 1, 1])),
            (1, 20, 70, 1, square([13, 3, 1, 2, 2, 2])),
            (1, 60, 130, 1, square([4, 2, 1, 1, 1, 0])),
            (1, 130, 49, 1, square([20, 1, 3, 1, 0, 0])),
            (2, 50, 17, 1, vec![axis([70, 5, 3, 1, 4, 1])]),
            (1, 70, 33, 1, square([14, 3, 1, 12, 12, 12])),
            (2, 40, 20, 2, square([9, 3, 2, 7, 7, 7])),
            (1, 40, 70, 1, vec![axis([9, 3, 1, 6, 6, 5]), axis([20, 4, 1, 6, 9, 9])]),
            (1, 90, 17, 1, vec![axis([50, 3, 1, 40, 40, 40])]),
        ] {
            let window = Window::new(axes.into_iter().collect());
            let sizes = Sizes { batch, from, to, group, window };
            let x = numbers(batch * group * from * sizes.window.input(), 7);
            let (w, bias) = (numbers(group * to * sizes.depth(), 5), numbers(group * to, 3));
            let count = batch * group * to * sizes.window.output();
            let mut unrolled_bytes = vec![0u64; scratch::<f32>(&sizes).div_ceil(8)];
            let mut expected = vec![0.0; count];
            let there = bytemuck::cast_slice_mut(&mut unrolled_bytes);
            let lay = plainly(&sizes, &x);
            unrolled(
                &sizes,
                &mut expected,
                (false, &lay),
                &w,
                Some(&bias),
                &mut there[..scratch::<f32>(&sizes)],
            )
            .expect("it fits");
            let frame = direct::Frame::new(&sizes).expect("it is for two dimensions");
            let depthwise = Depthwise::new(&sizes).map(|depthwise| (Way::Depthwise(depthwise), 3));
            assert_eq!(depthwise.is_some(), sizes.is_depthwise());
            let (dots, direct) = (Way::Each(Each::Dots), Way::Each(Each::Direct(frame)));
            for (way, cores) in [(dots, 2), (Way::Columns, 2), (direct, 3)]
                .iter()
                .chain(&depthwise)
                .flat_map(|(way, cores)| [(way, 1), (way, *cores)])
            {
                let mut made = vec![f32::NAN; count];
                let mut scratch = vec![f32::NAN; cores * way.scratch(&sizes)];
                let done = std::sync::Mutex::new(vec![0; count]);
                let count_done = |at: usize, part: &mut [f32]| {
                    done.lock().expect("no one failed")[at..at + part.len()]
                        .iter_mut()
                        .for_each(|done| *done += 1);
                };
                let weights = (&w[..], Some(&bias[..]));
                let finish = (Finish::default(), Some(&count_done as Done<'_>));
                convolve((way, &sizes), &mut made, &x, weights, &mut scratch, finish);
                assert_eq!(made, expected, "{:?}, {cores} cores", sizes.window);
                assert!(done.into_inner().expect("no one failed").iter().all(|&done| done == 1));
                let added = numbers(count, 11);
                let finish = Finish { added: Some(&added), least: -90.0, most: 100.0 };
                convolve((way, &sizes), &mut made, &x, weights, &mut scratch, (finish, None));
                let finished = expected.iter().zip(&added).map(|(x, added)| (x + added).clamp(-90.0, 100.0));
                assert!(made.iter().copied().eq(finished), "{:?}, {cores} cores", sizes.window);
            }
            let Some(across) = Across::new(&sizes) else { continue };
            let filters = Tensor::from_elements([w.len()], &w).expect("as many as the shape says");
            let filters = Columns::pack(&filters, across.layout(&sizes)).expect("there is memory");
            for cores in [1, 3] {
                let mut made = vec![f32::NAN; count];
                let mut scratch = vec![f32::NAN; cores * across.scratch(&sizes)];
                let done = std::sync::Mutex::new(vec![0; count]);
                let count_done = |at: usize, part: &mut [f32]| {
                    done.lock().expect("no one failed")[at..at + part.len()]
                        .iter_mut()
                        .for_each(|done| *done += 1);
                };
                let added = numbers(count, 11);
                let finish = Finish { added: Some(&added), least: -90.0, most: 100.0 };
                let finish = (finish, Some(&count_done as Done<'_>));
                across::convolve(
                    (&across, &sizes),
                    &mut made,
                    &x,
                    (&filters, Some(&bias)),
                    &mut scratch,
                    finish,
                );
                let finished = expected.iter().zip(&added).map(|(x, added)| (x + added).clamp(-90.0, 100.0));
                assert!(made.iter().copied().eq(finished), "{:?}, {cores} cores, across", sizes.window);
                assert!(done.into_inner().expect("no one failed").iter().all(|&done| done == 1));
            }
        }
    }
}
