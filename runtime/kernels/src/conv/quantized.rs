//! Convolutions of bytes with scales and zero points, whose sums become bytes again at once, or reals.
//!
//! What the windows meet is laid out as columns of bytes, some rows of the output at a time, and multiplied with the filters
//! ([`dot4`]); where a window is one element the planes are the columns. Where each channel has filters of its own, they are
//! convolutions of reals: sums of a few products of bytes are exact in f32.

use crate::conv::Sizes;
use crate::conv::depthwise::{Depthwise, Plane, Products};
use crate::conv::finish::Finish;
use crate::gemm::dot4::{self, Product, Quad, Store, WIDTH, pack};
use crate::gemm::quantized::Keep;
use crate::scales::Rounded;
use bytemuck::Pod;
use rten_simd::{Isa, SimdOp};
use stepalloc_threads as threads;

/// A convolution of bytes.
#[derive(Clone, Copy)]
pub struct Quantized<'a> {
    /// Of images, filters and windows.
    pub sizes: &'a Sizes,
    /// The input.
    pub x: &'a [u8],
    /// What makes its elements unsigned: the highest bit, or nothing.
    pub flip: u8,
    /// Its zero point, signed or unsigned as it is: what padding consists of.
    pub zero: u8,
    /// Of each filter the signed elements, with zeros up to a whole quad.
    pub w: &'a [Quad],
    /// Zero points of the filters, unless all are 0.
    pub w_zeros: Option<&'a [i32]>,
    /// Sums of each filter's elements less its zero point, for what the input's zero point makes of them; `None` where [`Self::adds`] has
    /// that already.
    pub w_sums: Option<&'a [i32]>,
    /// Is added to a filter's sums: the bias, and what `w_sums` says.
    pub adds: Option<&'a [i32]>,
    /// What a filter's sums are multiplied with besides `scale`.
    pub scales: &'a [f32],
    /// What all sums are multiplied with.
    pub scale: f32,
    /// Is added to what becomes reals.
    pub bias: Option<&'a [f32]>,
}

/// Bytes of scratch memory for a core.
pub fn scratch(sizes: &Sizes) -> usize {
    match in_reals(sizes) {
        // The input and the output of a channel, and its weights.
        Some(depthwise) => {
            let window = &sizes.window;
            4 * (window.input() + window.output() + window.kernel() + depthwise.scratch())
        }
        None => parts(sizes).iter().sum(),
    }
}

/// How channels with filters of their own are computed in reals: their sums are exact in f32, as there are few.
fn in_reals(sizes: &Sizes) -> Option<Depthwise> {
    const FEW: usize = 256;
    Depthwise::new(sizes).filter(|_| sizes.depth() <= FEW)
}

/// The panel, a row of ones, and the columns that are laid out.
fn parts(sizes: &Sizes) -> [usize; 3] {
    let quads = dot4::quads(sizes.depth());
    let columns = sizes.block() * sizes.window.width();
    [4 * quads * WIDTH, 4 * quads, if sizes.window.is_pointwise() { 0 } else { columns * sizes.depth() }]
}

/// Puts results where they belong.
struct Put<'o, 'q, T, F> {
    out: &'o mut [T],
    /// Elements of a plane of the output, and where in it the panel's first column is.
    places: usize,
    begin: usize,
    /// Sums of the columns, where zero points of filters want them.
    col_sums: &'o [i32],
    quantized: &'q Quantized<'q>,
    /// The first of them.
    filter: usize,
    make: &'q F,
}

impl<T, F: Fn(f32, f32, f32) -> T> Store for Put<'_, '_, T, F> {
    #[inline(always)]
    fn store(&mut self, row: usize, first: usize, sums: &[i32]) {
        let (quantized, make, filter) = (self.quantized, self.make, self.filter + row);
        let (add, scale, bias) = quantized.of_filter(filter);
        let out = &mut self.out[row * self.places + self.begin + first..][..sums.len()];
        let Some(zeros) = quantized.w_zeros else {
            out.iter_mut()
                .zip(sums)
                .for_each(|(to, &sum)| *to = make(sum.wrapping_add(add) as f32, scale, bias));
            return;
        };
        let col_sums = &self.col_sums[first..];
        for ((to, &sum), &col_sum) in out.iter_mut().zip(sums).zip(col_sums) {
            let sum = sum.wrapping_add(add).wrapping_sub(zeros[filter].wrapping_mul(col_sum));
            *to = make(sum as f32, scale, bias);
        }
    }
}

impl Quantized<'_> {
    /// Computes bytes, in [`scratch`] memory for each core that takes part.
    pub fn bytes(&self, out: &mut [u8], rounded: Rounded, scratch_memory: &mut [u8]) {
        self.convolve(out, scratch_memory, &|sum, scale, _| rounded.real(sum * scale));
    }

    /// Computes reals, likewise.
    pub fn reals(&self, out: &mut [f32], scratch_memory: &mut [u8]) {
        self.convolve(out, scratch_memory, &|sum, scale, bias| sum * scale + bias);
    }

    /// What is added to a filter's sums, what they are multiplied with, and what is added to reals.
    #[inline(always)]
    fn of_filter(&self, filter: usize) -> (i32, f32, f32) {
        let zero = i32::from(self.zero ^ self.flip);
        let of_zero = self.w_sums.map_or(0, |sums| sums[filter].wrapping_mul(zero));
        let add = self.adds.map_or(0, |adds| adds[filter]).wrapping_sub(of_zero);
        // To add -0 leaves all numbers as they are.
        (add, self.scales[filter] * self.scale, self.bias.map_or(-0.0, |bias| bias[filter]))
    }

    fn convolve<T: Pod>(
        &self,
        out: &mut [T],
        scratch_memory: &mut [u8],
        make: &(impl Fn(f32, f32, f32) -> T + Sync),
    ) {
        let (sizes, places) = (self.sizes, self.sizes.window.output());
        let for_one = scratch(sizes);
        let cores = if sizes.is_small() { 1 } else { (scratch_memory.len() / for_one.max(1)).max(1) };
        let share = (out.len() / places).div_ceil(cores);
        threads::pieces_of_two(
            (out, share * places),
            (scratch_memory, for_one),
            1,
            &|number, out, scratch| {
                if let Some(depthwise) = in_reals(sizes) {
                    let scratch = bytemuck::cast_slice_mut(scratch);
                    return self.planes(&depthwise, number * share, out, scratch, make);
                }
                let (mut out, mut next) = (out, number * share);
                while !out.is_empty() {
                    let within = next % sizes.to;
                    let count = (sizes.to - within).min(out.len() / places);
                    let (here, rest) = std::mem::take(&mut out).split_at_mut(count * places);
                    self.filters(next, here, scratch, make);
                    (out, next) = (rest, next + count);
                }
            },
        );
    }

    /// Some filters of a group over an image, from plane `first` of the output on.
    fn filters<T>(
        &self,
        first: usize,
        out: &mut [T],
        scratch: &mut [u8],
        make: &impl Fn(f32, f32, f32) -> T,
    ) {
        let Self { sizes, x, .. } = *self;
        let (window, to, places) = (&sizes.window, sizes.to, sizes.window.output());
        let filter = first % (sizes.group * to);
        let image = sizes.from * window.input();
        let x = &x[first / to * image..][..image];
        let (depth, count) = (sizes.depth(), out.len() / places);
        let quads = dot4::quads(depth);
        let [panel, ones, _] = parts(sizes);
        let (panel, rest) = scratch.split_at_mut(panel);
        let (ones, laid) = rest.split_at_mut(ones);
        let (panel, _) = panel.as_chunks_mut::<4>();
        ones.fill(0);
        ones[..depth].fill(1);
        let (ones, _) = ones.as_chunks::<4>();
        let pointwise = window.is_pointwise();
        let mut col_sums = [0; WIDTH];
        for rows in sizes.blocks() {
            let begin = rows.start * window.width();
            let width = rows.len() * window.width();
            // Where the columns' rows lie.
            let (columns, pitch, at) = if pointwise {
                (x, places, begin)
            } else {
                let laid = &mut laid[..width * depth];
                window.columns(x, rows, laid, self.zero, |x| x);
                (&*laid, width, 0)
            };
            for col in (0..width).step_by(WIDTH) {
                let cols = (width - col).min(WIDTH);
                pack(|row| &columns[row * pitch + at + col..][..cols], depth, self.flip, panel);
                if self.w_zeros.is_some() {
                    let store = Keep(&mut col_sums);
                    Product { rows: ones, quads, panel, cols, cols_signed: false, store }.run();
                }
                let store = Put {
                    out: &mut *out,
                    places,
                    begin: begin + col,
                    col_sums: &col_sums,
                    quantized: self,
                    filter,
                    make,
                };
                let w = &self.w[filter * quads..][..count * quads];
                Product { rows: w, quads, panel, cols, cols_signed: false, store }.run();
            }
        }
    }

    /// Some planes of the output, each of one channel, from number `first` on.
    fn planes<T>(
        &self,
        depthwise: &Depthwise,
        first: usize,
        out: &mut [T],
        scratch: &mut [f32],
        make: &impl Fn(f32, f32, f32) -> T,
    ) {
        let Self { sizes, flip, .. } = *self;
        let (input, places) = (sizes.window.input(), sizes.window.output());
        let (x, scratch) = scratch.split_at_mut(input);
        let (sums, scratch) = scratch.split_at_mut(places);
        let (w, scratch) = scratch.split_at_mut(sizes.depth());
        for (at, out) in out.chunks_exact_mut(places).enumerate() {
            let plane = first + at;
            let filter = plane % (sizes.group * sizes.to);
            let (zero, x_zero, add) = self.zeros_of(filter);
            let from = &self.x[plane / sizes.to * input..][..input];
            Each { from, to: &mut *x, make: |x| (i32::from(x ^ flip) - x_zero) as f32 }.dispatch();
            w.iter_mut().zip(self.taps(filter)).for_each(|(to, &w)| *to = (i32::from(w as i8) - zero) as f32);
            let (fold, finish) = (Products { w, bias: add as f32 }, Finish::default());
            Plane { depthwise, x, fold, finish, out: &mut *sums, scratch: &mut *scratch, is_first: at == 0 }
                .dispatch();
            let (_, scale, bias) = self.of_filter(filter);
            Each { from: sums, to: out, make: |sum| make(sum, scale, bias) }.dispatch();
        }
    }

    fn taps(&self, filter: usize) -> &[u8] {
        let quads = dot4::quads(self.sizes.depth());
        &self.w[filter * quads..][..quads].as_flattened()[..self.sizes.depth()]
    }

    /// Zero points of a filter and of the unsigned input, and what is added to sums of elements less these.
    fn zeros_of(&self, filter: usize) -> (i32, i32, i32) {
        let (zero, x_zero) =
            (self.w_zeros.map_or(0, |zeros| zeros[filter]), i32::from(self.zero ^ self.flip));
        let sum: i32 = self.taps(filter).iter().map(|&w| i32::from(w as i8) - zero).sum();
        (zero, x_zero, self.of_filter(filter).0.wrapping_add(x_zero.wrapping_mul(sum)))
    }
}

/// Makes each element of another, compiled for the machine's vectors.
struct Each<'a, A, B, F> {
    from: &'a [A],
    to: &'a mut [B],
    make: F,
}

impl<A: Copy, B, F: Fn(A) -> B> SimdOp for Each<'_, A, B, F> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, _: I) {
        self.to.iter_mut().zip(self.from).for_each(|(to, &from)| *to = (self.make)(from));
    }
}
