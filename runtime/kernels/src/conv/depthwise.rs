//! Windows of f32 that are folded channel by channel, in one or two dimensions: convolutions whose channels have filters of their own, and
//! pools.
//!
//! Vectors lie along rows; a few of them, one below the other, stay in registers while the window goes by. They are loaded from the input
//! where it is, through masks that leave out what lies beyond its edges; with a stride of 2 every place is computed, and every second
//! one taken. Where a window or stride is too wide for that, or loads through masks are slow, a plane is laid out with its padding in
//! scratch memory first, of a row each phase of the stride by itself, so that an element of the window is as far from one place as from
//! any other.

use crate::conv::Sizes;
use crate::conv::direct::{POINT, copy_row};
use crate::conv::finish::{Finish, First};
use crate::conv::window::{Axis, Window};
use rten_simd::ops::{BitOps, MaskOps, NumOps};
use rten_simd::{Isa, SimdOp};
use std::ops::Range;
use stepalloc_threads as threads;

/// Vectors that are computed together.
const VECTORS: usize = 4;
/// Elements of the widest vector.
const WIDEST: usize = 64;
/// Strides along rows at most.
const STRIDE: usize = 4;
/// Strides along rows at most where the input is not laid out.
const STEPS: usize = 2;
/// Elements that are laid out at a time, if not only one row is computed from them: what the first caches hold.
const BAND: usize = 64 << 10;

/// Where things are.
pub struct Depthwise {
    vertical: Axis,
    horizontal: Axis,
    /// Elements of a phase of a row.
    pitch: usize,
    /// Rows of the output that are computed at a time.
    band: usize,
}

impl Depthwise {
    /// `None` where it is for others.
    pub fn new(sizes: &Sizes) -> Option<Self> {
        if sizes.is_depthwise() { Self::of(&sizes.window) } else { None }
    }

    /// The same for these windows.
    pub fn of(window: &Window) -> Option<Self> {
        let (vertical, horizontal) = match window.axes[..] {
            [horizontal] => (POINT, horizontal),
            [vertical, horizontal] => (vertical, horizontal),
            _ => return None,
        };
        let nothing = window.output() == 0 || window.input() == 0 || window.kernel() == 0;
        let pitch = (horizontal.kernel.checked_sub(1)? * horizontal.dilation / horizontal.stride)
            .checked_add(horizontal.output)?;
        if nothing || horizontal.stride > STRIDE || horizontal.begin >= pitch {
            return None;
        }
        let mut made = Self { vertical, horizontal, pitch, band: vertical.output };
        let row = made.row();
        let more = (vertical.kernel - 1).checked_mul(vertical.dilation)?;
        made.band = ((BAND / row).saturating_sub(more) / vertical.stride).clamp(1, vertical.output);
        // Windows that are far larger than what they move over would lay out more than there is.
        let laid = made.rows(made.band).checked_mul(row)?;
        (laid <= BAND.max(2 * window.input()) && laid <= u32::MAX as usize).then_some(made)
    }

    /// Elements of a row that is laid out.
    fn row(&self) -> usize {
        self.horizontal.stride * self.pitch
    }

    /// Rows that so many rows of the output meet.
    fn rows(&self, band: usize) -> usize {
        (band - 1) * self.vertical.stride + (self.vertical.kernel - 1) * self.vertical.dilation + 1
    }

    /// Elements of scratch memory: what is laid out, what the last vector may read behind it, and how far each element of the window is.
    pub fn scratch(&self) -> usize {
        self.rows(self.band) * self.row() + WIDEST + self.vertical.kernel * self.horizontal.kernel
    }

    /// How far elements of the window are from a place.
    fn offsets(&self, offsets: &mut [u32]) {
        let (vertical, horizontal) = (&self.vertical, &self.horizontal);
        for (number, offset) in offsets.iter_mut().enumerate() {
            let (row, column) = (number / horizontal.kernel, number % horizontal.kernel);
            let met = column * horizontal.dilation;
            let phase = met % horizontal.stride * self.pitch + met / horizontal.stride;
            *offset = (row * vertical.dilation * self.row() + phase) as u32;
        }
    }
}

/// What is made of the elements that a window meets.
pub trait Fold: Copy {
    /// What is met where the input is padded.
    const PADDING: f32;
    /// What it begins with.
    fn start(&self) -> f32;
    /// The weight of an element of the window.
    fn weight(&self, at: usize) -> f32;
    /// What it is once an element was taken in.
    fn take<I: Isa>(isa: I, so_far: I::F32, x: I::F32, weight: I::F32) -> I::F32;
}

/// The sum of products with weights.
#[derive(Clone, Copy)]
pub struct Products<'a> {
    /// One for each element of the window.
    pub w: &'a [f32],
    /// What is added.
    pub bias: f32,
}

impl Fold for Products<'_> {
    const PADDING: f32 = 0.0;

    #[inline(always)]
    fn start(&self) -> f32 {
        self.bias
    }

    #[inline(always)]
    fn weight(&self, at: usize) -> f32 {
        self.w[at]
    }

    #[inline(always)]
    fn take<I: Isa>(isa: I, so_far: I::F32, x: I::F32, weight: I::F32) -> I::F32 {
        isa.f32().mul_add(x, weight, so_far)
    }
}

/// The sum.
#[derive(Clone, Copy)]
pub struct Sum;

impl Fold for Sum {
    const PADDING: f32 = 0.0;

    #[inline(always)]
    fn start(&self) -> f32 {
        0.0
    }

    #[inline(always)]
    fn weight(&self, _: usize) -> f32 {
        1.0
    }

    #[inline(always)]
    fn take<I: Isa>(isa: I, so_far: I::F32, x: I::F32, _: I::F32) -> I::F32 {
        isa.f32().add(so_far, x)
    }
}

/// The largest one; NaN is none.
#[derive(Clone, Copy)]
pub struct Largest;

impl Fold for Largest {
    const PADDING: f32 = f32::NEG_INFINITY;

    #[inline(always)]
    fn start(&self) -> f32 {
        f32::NEG_INFINITY
    }

    #[inline(always)]
    fn weight(&self, _: usize) -> f32 {
        1.0
    }

    #[inline(always)]
    fn take<I: Isa>(isa: I, so_far: I::F32, x: I::F32, _: I::F32) -> I::F32 {
        let ops = isa.f32();
        ops.select(x, so_far, ops.gt(x, so_far))
    }
}

/// Every second element of a vector, from the first one on, in its first half.
#[inline(always)]
fn every_second<I: Isa>(isa: I, x: I::F32) -> I::F32 {
    let ops = isa.f32();
    if has_pairs(isa) {
        return apart(isa, x, ops.zero()).0;
    }
    let (mut all, mut taken) = ([0.0; WIDEST], [0.0; WIDEST]);
    ops.store(x, &mut all);
    for (to, pair) in taken.iter_mut().zip(all.chunks_exact(2)).take(ops.len() / 2) {
        *to = pair[0];
    }
    ops.load(&taken)
}

/// Whether two vectors are taken [`apart`] in registers.
#[inline(always)]
fn has_pairs<I: Isa>(isa: I) -> bool {
    cfg!(target_arch = "x86_64") && isa.f32().len() == LANES
}

/// Elements of a vector of AVX-512.
const LANES: usize = 16;

/// Of two vectors, the elements of even and of odd numbers, where the machine [has pairs](has_pairs).
#[inline(always)]
fn apart<I: Isa>(isa: I, one: I::F32, other: I::F32) -> (I::F32, I::F32) {
    let ops = isa.f32();
    let mut halves = [[0.0; LANES]; 2];
    ops.store(one, &mut halves[0]);
    ops.store(other, &mut halves[1]);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: only vectors of AVX-512 have as many elements on x86-64.
    unsafe {
        apart_avx512(&mut halves);
    }
    (ops.load(&halves[0]), ops.load(&halves[1]))
}

/// [`apart`] in registers: what is stored before and loaded afterwards never gets to memory.
///
/// # Safety
/// The machine must have AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn apart_avx512([one, other]: &mut [[f32; LANES]; 2]) {
    use std::arch::x86_64::*;
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    // SAFETY: both have as many elements.
    unsafe {
        let (a, b) = (_mm512_loadu_ps(one.as_ptr()), _mm512_loadu_ps(other.as_ptr()));
        _mm512_storeu_ps(one.as_mut_ptr(), _mm512_permutex2var_ps(a, even, b));
        _mm512_storeu_ps(other.as_mut_ptr(), _mm512_permutex2var_ps(a, odd, b));
    }
}

/// Where a column of the window meets a row of the input.
#[derive(Clone, Copy)]
struct Met<I: Isa> {
    /// From the row's begin.
    at: isize,
    /// Which elements of a vector from there on are within the row.
    mask: I::M32,
    /// And of the next vector.
    behind: I::M32,
}

/// One channel.
pub struct Plane<'a, F> {
    /// Where things are.
    pub depthwise: &'a Depthwise,
    /// The channel's elements.
    pub x: &'a [f32],
    /// What is made of them.
    pub fold: F,
    /// What becomes of that, in its plane of the output.
    pub finish: Finish<'a>,
    /// Its plane of the output.
    pub out: &'a mut [f32],
    /// See [`Depthwise::scratch`].
    pub scratch: &'a mut [f32],
    /// Whether nothing was computed in this scratch memory yet.
    pub is_first: bool,
}

impl<F: Fold> SimdOp for Plane<'_, F> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        let Self { depthwise, x, fold, finish, out, scratch, is_first } = self;
        // Other machines' vectors are loaded through masks element by element.
        let has_masks = cfg!(target_arch = "x86_64") && isa.f32().len() > 4;
        if has_masks && depthwise.horizontal.stride <= STEPS {
            match depthwise.horizontal.kernel {
                2 => return depthwise.unlaid::<I, F, 2>(isa, x, (fold, finish), out),
                3 => return depthwise.unlaid::<I, F, 3>(isa, x, (fold, finish), out),
                5 => return depthwise.unlaid::<I, F, 5>(isa, x, (fold, finish), out),
                _ => {}
            }
        }
        let elements = depthwise.vertical.kernel * depthwise.horizontal.kernel;
        let (laid, offsets) = scratch.split_at_mut(scratch.len() - elements);
        let offsets: &mut [u32] = bytemuck::cast_slice_mut(offsets);
        if is_first {
            laid.fill(F::PADDING);
            depthwise.offsets(offsets);
        }
        let (height, width) = (depthwise.vertical.output, depthwise.horizontal.output);
        for first in (0..height).step_by(depthwise.band) {
            let rows = first..(first + depthwise.band).min(height);
            depthwise.lay(isa, x, rows.clone(), laid, F::PADDING);
            depthwise.compute(isa, laid, (fold, offsets, finish), out, rows.start * width..rows.end * width);
        }
    }
}

/// Folds the windows over all planes of an input, in scratch memory of `for_one` elements for each core that takes part; `after` is called
/// with each plane of the output.
pub fn planes<F: Fold + Sync>(
    (depthwise, fold): (&Depthwise, F),
    input: &[f32],
    output: &mut [f32],
    (scratch, for_one): (&mut [f32], usize),
    after: &(dyn Fn(&mut [f32]) + Sync),
) {
    let size = depthwise.vertical.input * depthwise.horizontal.input;
    let places = depthwise.vertical.output * depthwise.horizontal.output;
    let share = (output.len() / places).div_ceil((scratch.len() / for_one).max(1));
    let output = (output, share * places);
    threads::pieces_of_two(output, (scratch, for_one), 1, &|number, output, scratch| {
        for (at, out) in output.chunks_exact_mut(places).enumerate() {
            let x = &input[(number * share + at) * size..][..size];
            let (finish, scratch) = (Finish::default(), &mut *scratch);
            Plane { depthwise, x, fold, finish, out: &mut *out, scratch, is_first: at == 0 }.dispatch();
            after(out);
        }
    });
}

impl Depthwise {
    /// All of a plane, from the input where it is, where a window has `K` columns.
    #[inline(always)]
    fn unlaid<I: Isa, F: Fold, const K: usize>(
        &self,
        isa: I,
        x: &[f32],
        (fold, finish): (F, Finish<'_>),
        out: &mut [f32],
    ) {
        let (ops, down, right) = (isa.f32(), &self.vertical, &self.horizontal);
        let span = ops.len() / right.stride;
        let numbers: [f32; WIDEST] = std::array::from_fn(|number| number as f32);
        let numbers = ops.load(&numbers);
        let is_square = down.kernel == K && down.dilation == 1;
        // Two columns of the window that are next to each other are the two phases of the same vectors.
        let has_pairs =
            has_pairs(isa) && is_square && [down.stride, right.stride, right.dilation] == [2, 2, 1];
        let mut weights = [[ops.zero(); K]; K];
        for (number, weight) in weights.as_flattened_mut().iter_mut().enumerate() {
            *weight = ops.splat(if is_square { fold.weight(number) } else { 0.0 });
        }
        let mut column = 0;
        while column < right.output {
            let is_wide = has_pairs && right.output - column > span;
            let none = ops.first_n_mask(0);
            let mut taps = [Met { at: 0, mask: none, behind: none }; K];
            for (number, tap) in taps.iter_mut().enumerate() {
                let at = (column * right.stride + number * right.dilation) as isize - right.begin as isize;
                let within = |at: isize| {
                    let bounds = [-at, right.input as isize - at];
                    let [begin, end] = bounds.map(|at| ops.splat(at.clamp(-1, WIDEST as isize) as f32));
                    isa.m32().and(ops.ge(numbers, begin), ops.lt(numbers, end))
                };
                *tap = Met { at, mask: within(at), behind: none };
                if is_wide {
                    tap.behind = within(at + ops.len() as isize);
                }
            }
            let taps = (x, &taps);
            let span = if is_wide { ops.len() } else { span };
            let first = First::new(isa, span.min(right.output - column));
            for top in (0..down.output).step_by(VECTORS) {
                let rows = VECTORS.min(down.output - top);
                let mut sums = [ops.splat(fold.start()); VECTORS];
                match (is_square, down.stride) {
                    (true, 1) => self.sweep::<I, F, K, 1, false>(isa, taps, &weights, top, &mut sums),
                    (true, 2) if is_wide => {
                        self.sweep::<I, F, K, 2, true>(isa, taps, &weights, top, &mut sums)
                    }
                    (true, 2) => self.sweep::<I, F, K, 2, false>(isa, taps, &weights, top, &mut sums),
                    _ => self.by_rows::<I, F, K>(isa, taps, fold, top, &mut sums),
                }
                for (row, sum) in sums.into_iter().enumerate().take(rows) {
                    let sum = if right.stride == 1 || is_wide { sum } else { every_second(isa, sum) };
                    finish.store(isa, sum, out, (top + row) * right.output + column, first);
                }
            }
            column += span;
        }
    }

    /// Elements of a row of the input that each column of the window meets; `PAIRS` at every second place, of two vectors.
    #[inline(always)]
    fn met<I: Isa, F: Fold, const K: usize, const PAIRS: bool>(
        &self,
        isa: I,
        (x, taps): (&[f32], &[Met<I>; K]),
        row: usize,
    ) -> [I::F32; K] {
        let ops = isa.f32();
        let x = &x[row * self.horizontal.input..][..self.horizontal.input];
        let mut met = [ops.zero(); K];
        let mut number = 0;
        while number < K {
            let Met { at, mask, behind } = taps[number];
            let begin = x.as_ptr().wrapping_offset(at);
            // SAFETY: the mask is set only for elements that are within the row.
            let mut x = unsafe { ops.load_ptr_mask(begin, mask) };
            if F::PADDING != 0.0 {
                x = ops.select(x, ops.splat(F::PADDING), mask);
            }
            if PAIRS {
                // SAFETY: as above.
                let mut next = unsafe { ops.load_ptr_mask(begin.wrapping_add(ops.len()), behind) };
                if F::PADDING != 0.0 {
                    next = ops.select(next, ops.splat(F::PADDING), behind);
                }
                let (even, odd) = apart(isa, x, next);
                met[number] = even;
                if number + 1 < K {
                    met[number + 1] = odd;
                }
                number += 2;
            } else {
                met[number] = x;
                number += 1;
            }
        }
        met
    }

    /// Folds windows of some rows of the output, each row of the window by itself.
    #[inline(always)]
    fn by_rows<I: Isa, F: Fold, const K: usize>(
        &self,
        isa: I,
        from: (&[f32], &[Met<I>; K]),
        fold: F,
        top: usize,
        sums: &mut [I::F32; VECTORS],
    ) {
        let (ops, down) = (isa.f32(), &self.vertical);
        for number in 0..down.kernel {
            let mut weights = [ops.zero(); K];
            for (tap, weight) in weights.iter_mut().enumerate() {
                *weight = ops.splat(fold.weight(number * K + tap));
            }
            for (row, sum) in sums.iter_mut().enumerate() {
                let at = (top + row) * down.stride + number * down.dilation;
                let Some(at) = at.checked_sub(down.begin).filter(|&at| at < down.input) else {
                    continue;
                };
                for (x, weight) in self.met::<I, F, K, false>(isa, from, at).into_iter().zip(weights) {
                    *sum = F::take(isa, *sum, x, weight);
                }
            }
        }
    }

    /// The same of windows of `K` rows, `S` from each other: a row of the input is loaded once for all rows of the output that meet it.
    #[inline(always)]
    fn sweep<I: Isa, F: Fold, const K: usize, const S: usize, const PAIRS: bool>(
        &self,
        isa: I,
        from: (&[f32], &[Met<I>; K]),
        weights: &[[I::F32; K]; K],
        top: usize,
        sums: &mut [I::F32; VECTORS],
    ) {
        // The compiler knows each number, and so which sums it is for.
        macro_rules! rows {
            ($($number:literal)*) => { $(self.row_of::<I, F, K, S, PAIRS, $number>(isa, from, weights, top, sums);)* };
        }
        rows!(0 1 2 3 4 5 6 7 8 9 10);
    }

    /// Row `N` of those that some rows of the output meet.
    #[inline(always)]
    fn row_of<I: Isa, F: Fold, const K: usize, const S: usize, const PAIRS: bool, const N: usize>(
        &self,
        isa: I,
        from: (&[f32], &[Met<I>; K]),
        weights: &[[I::F32; K]; K],
        top: usize,
        sums: &mut [I::F32; VECTORS],
    ) {
        const { assert!((VECTORS - 1) * S + K <= 11, "there is a number for each row") };
        let at = (top * S + N).checked_sub(self.vertical.begin);
        let Some(at) = at.filter(|&at| N < (VECTORS - 1) * S + K && at < self.vertical.input) else { return };
        let met = self.met::<I, F, K, PAIRS>(isa, from, at);
        for (row, sum) in sums.iter_mut().enumerate() {
            if N >= row * S && N < row * S + K {
                for (&x, &weight) in met.iter().zip(&weights[N - row * S]) {
                    *sum = F::take(isa, *sum, x, weight);
                }
            }
        }
    }

    /// Lays out what some rows of the output meet. Elements that are padding along rows are there already.
    #[inline(always)]
    fn lay<I: Isa>(&self, isa: I, x: &[f32], rows: Range<usize>, laid: &mut [f32], padding: f32) {
        let (ops, down, right) = (isa.f32(), &self.vertical, &self.horizontal);
        let row = self.row();
        let wanted = right.input.min(self.pitch.saturating_sub(right.begin));
        let rest = First::new(isa, wanted % ops.len());
        for number in 0..self.rows(rows.len()) {
            let at =
                (rows.start * down.stride + number).checked_sub(down.begin).filter(|&at| at < down.input);
            let Some(at) = at else {
                laid[number * row..][..row].fill(padding);
                continue;
            };
            let from = &x[at * right.input..][..right.input];
            if right.stride > 1 {
                let phases = laid[number * row..][..row].chunks_exact_mut(self.pitch);
                phases.enumerate().for_each(|(phase, to)| copy_row(right, phase, from, to, padding));
                continue;
            }
            let to = &mut laid[number * row + right.begin..][..wanted];
            let (mut vectors, mut places) =
                (from[..wanted].chunks_exact(ops.len()), to.chunks_exact_mut(ops.len()));
            for (from, to) in vectors.by_ref().zip(&mut places) {
                ops.store(ops.load(from), to);
            }
            rest.store(isa, rest.load(isa, vectors.remainder()), places.into_remainder());
        }
    }

    /// Some rows of the output, which are a range of its elements.
    #[inline(always)]
    fn compute<I: Isa, F: Fold>(
        &self,
        isa: I,
        laid: &[f32],
        (fold, offsets, finish): (F, &[u32], Finish<'_>),
        out: &mut [f32],
        range: Range<usize>,
    ) {
        let ops = isa.f32();
        let (width, lanes, down) = (self.horizontal.output, ops.len(), self.vertical.stride * self.row());
        let (whole, rest) = (First::new(isa, lanes), First::new(isa, width % lanes));
        let reach = offsets.iter().max().map_or(0, |&most| most as usize + lanes);
        let (mut row, mut column) = (0, 0);
        while row * width < range.len() {
            // Where vectors begin, in what is laid out and in the output, and how many elements of the latter they are.
            let mut places = [(0, range.start, 0); VECTORS];
            for place in &mut places {
                if row * width >= range.len() {
                    break;
                }
                *place = (row * down + column, range.start + row * width + column, lanes.min(width - column));
                column += lanes;
                if column >= width {
                    (row, column) = (row + 1, 0);
                }
            }
            assert!(places.iter().all(|place| place.0 + reach <= laid.len()), "all windows are laid out");
            let mut sums = [ops.splat(fold.start()); VECTORS];
            for (at, &offset) in offsets.iter().enumerate() {
                let weight = ops.splat(fold.weight(at));
                for (sum, (from, _, _)) in sums.iter_mut().zip(places) {
                    // SAFETY: as many elements are there, see above.
                    let x = unsafe { ops.load_ptr(laid.as_ptr().add(from + offset as usize)) };
                    *sum = F::take(isa, *sum, x, weight);
                }
            }
            for (sum, (_, to, count)) in sums.into_iter().zip(places) {
                if count > 0 {
                    finish.store(isa, sum, out, to, if count < lanes { rest } else { whole });
                }
            }
        }
    }
}
