//! Fourier transforms of any length, which are rustfft's.
//!
//! A *plan* is how a length is transformed, and the roots of one for it: some elements for each of the length, on the heap. Who
//! transforms keeps [`Plans`] from run to run; memory for data is scratch memory.

use crate::real::{Real, Space};
use rustfft::{Fft, FftDirection, FftNum, FftPlanner};
use smallvec::SmallVec;
use std::sync::{Arc, Mutex, PoisonError};
use stepalloc_tensor::{Number, OpError};

pub use num_complex::Complex;

/// Lengths whose plans are kept: a node that has more of them plans anew those that were not used for longest.
const KEPT: usize = 8;

/// Numbers that are transformed: f32 and f64.
pub trait Float: Real + FftNum {
    /// The plans for numbers of this type.
    #[doc(hidden)]
    fn of(plans: &Plans) -> &Kept<Self>;
}

impl Float for f32 {
    fn of(plans: &Plans) -> &Kept<Self> {
        &plans.single
    }
}

impl Float for f64 {
    fn of(plans: &Plans) -> &Kept<Self> {
        &plans.double
    }
}

/// Plans of different lengths, the one used last first.
#[doc(hidden)]
pub type Kept<T> = Mutex<SmallVec<[Arc<dyn Fft<T>>; KEPT]>>;

/// Plans of transforms in one direction, of the lengths that were used last.
pub struct Plans {
    direction: FftDirection,
    single: Kept<f32>,
    double: Kept<f64>,
}

impl Plans {
    /// For transforms, or for their inverses.
    pub fn new(inverse: bool) -> Self {
        let direction = if inverse { FftDirection::Inverse } else { FftDirection::Forward };
        Self { direction, single: Mutex::default(), double: Mutex::default() }
    }

    fn plan<T: Float>(&self, length: usize) -> Arc<dyn Fft<T>> {
        let mut kept = T::of(self).lock().unwrap_or_else(PoisonError::into_inner);
        match kept.iter().position(|plan| plan.len() == length) {
            Some(at) => kept[..=at].rotate_right(1),
            None => {
                kept.truncate(KEPT - 1);
                kept.insert(0, FftPlanner::new().plan_fft(length, self.direction));
            }
        }
        Arc::clone(&kept[0])
    }

    /// Bytes of scratch memory that transforms of a length take beside their data; the length is planned for that.
    pub fn bytes<T: Float>(&self, length: usize) -> usize {
        Space::bytes::<Complex<T>>(self.plan::<T>(length).get_inplace_scratch_len())
    }

    /// Transforms of a length, with as much scratch memory as [`bytes`](Self::bytes) says.
    pub fn transform<'a, T: Float>(
        &self,
        length: usize,
        space: &mut Space<'a>,
    ) -> Result<Transform<'a, T>, OpError> {
        let plan = self.plan::<T>(length);
        let scratch = space.take(plan.get_inplace_scratch_len())?;
        Ok(Transform { plan, scratch })
    }
}

/// Transforms of one length.
pub struct Transform<'a, T> {
    plan: Arc<dyn Fft<T>>,
    scratch: &'a mut [Complex<T>],
}

impl<T: Float> Transform<'_, T> {
    /// Transforms data of the length, or several that follow each other; the inverse is divided by the length.
    pub fn run(&mut self, data: &mut [Complex<T>]) {
        if data.is_empty() {
            return;
        }
        self.plan.process_with_scratch(data, self.scratch);
        if self.plan.fft_direction() == FftDirection::Inverse {
            let by = T::ONE / <T as Number>::from_i64(self.plan.len() as i64);
            data.iter_mut().for_each(|x| *x = *x * by);
        }
    }
}

/// Makes those elements of a spectrum real that are their own conjugates where numbers are real: the first, and the middle one of
/// an even length.
pub fn make_ends_real<T: Float>(spectrum: &mut [Complex<T>]) {
    let length = spectrum.len();
    let middle = if length.is_multiple_of(2) { length / 2 } else { 0 };
    for at in [0, middle] {
        if let Some(x) = spectrum.get_mut(at) {
            x.im = T::default();
        }
    }
}

/// Makes a spectrum symmetric by its first half, as that of real numbers is.
pub fn mirror<T: Float>(spectrum: &mut [Complex<T>]) {
    make_ends_real(spectrum);
    let (first, second) = spectrum.split_at_mut(spectrum.len().div_ceil(2));
    // The middle one of an even length begins the second half, and is its own mirror image.
    second.iter_mut().rev().zip(first.iter().skip(1)).for_each(|(to, from)| *to = from.conj());
}

/// Lines along a dimension that is not the last one are transformed together, this many at a time, since their elements lie side by side: two lines
/// of the cache for f32. Of 400 points that lie 3000 apart, 8 at a time took a fifth longer, and 32 no less.
pub const LINES: usize = 16;

/// Where lines lie in a tensor and in memory of their own.
pub struct Lines {
    /// From an element to the next one of the same line in the tensor; lines that are transformed together lie side by side.
    inner: usize,
    /// From a line to the next one in their own memory.
    pub pitch: usize,
}

impl Lines {
    /// Of transforms of a length, along a dimension whose elements are `inner` apart.
    pub fn new(inner: usize, length: usize) -> Self {
        // Lines a power of two apart would compete for the same places in the cache.
        let pitch = if inner == 1 { length } else { (length.div_ceil(8) | 1) * 8 };
        Self { inner, pitch }
    }

    /// Elements of the memory for those that are transformed together.
    pub fn elements(&self) -> usize {
        self.inner.min(LINES) * self.pitch
    }

    /// Reads `taken` elements of each of `lines` from where they lie in the tensor.
    pub fn gather<A: Copy, B>(&self, from: &[A], lines: &mut [B], taken: usize, make: impl Fn(A) -> B) {
        if self.inner == 1 {
            return lines[..taken].iter_mut().zip(from).for_each(|(to, &from)| *to = make(from));
        }
        let count = lines.len() / self.pitch;
        for (k, row) in from.chunks(self.inner).take(taken).enumerate() {
            let lines = lines[k..].iter_mut().step_by(self.pitch);
            lines.zip(&row[..count]).for_each(|(to, &from)| *to = make(from));
        }
    }

    /// Writes `taken` elements of each of `lines` to where they lie in the tensor.
    pub fn scatter<A: Copy, B>(&self, lines: &[A], to: &mut [B], taken: usize, make: impl Fn(A) -> B) {
        if self.inner == 1 {
            return to.iter_mut().zip(&lines[..taken]).for_each(|(to, &from)| *to = make(from));
        }
        let count = lines.len() / self.pitch;
        for (k, row) in to.chunks_mut(self.inner).take(taken).enumerate() {
            let lines = lines[k..].iter().step_by(self.pitch);
            row[..count].iter_mut().zip(lines).for_each(|(to, &from)| *to = make(from));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::PI;
    use stepalloc_tensor::ALIGNMENT;

    /// What a transform of this length makes of a signal, in scratch memory that is no number before.
    fn transformed<T: Float>(plans: &Plans, signal: &[Complex<T>]) -> Vec<Complex<T>> {
        let bytes = plans.bytes::<T>(signal.len());
        let mut memory = vec![[u64::MAX; ALIGNMENT / 8]; bytes / ALIGNMENT];
        let mut space = Space(bytemuck::cast_slice_mut(&mut memory));
        let mut transform = plans.transform(signal.len(), &mut space).expect("enough memory");
        assert!(space.0.is_empty(), "more memory than it takes");
        let mut data = signal.to_vec();
        transform.run(&mut data);
        data
    }

    /// The largest distance; NaN if one is.
    fn distance<T: Float>(a: &[Complex<T>], b: &[Complex<f64>]) -> f64 {
        assert_eq!(a.len(), b.len());
        let wide = |x: Complex<T>| Complex::new(x.re.to_f64(), x.im.to_f64());
        a.iter()
            .zip(b)
            .map(|(&a, b)| (wide(a) - b).norm())
            .fold(0.0, |most, x| if x.is_nan() || x > most { x } else { most })
    }

    fn as_defined<T: Float>(tolerance: f64) {
        let (forward, inverse) = (Plans::new(false), Plans::new(true));
        for length in (0..=40).chain([49, 64, 97, 100, 225, 400, 401, 480, 512, 1009]) {
            let value = |n: usize| Complex::new((n as f64 * 0.7).sin(), (n * n % 11) as f64 / 11.0);
            let narrow =
                |x: Complex<f64>| Complex::new(<T as Number>::from_f64(x.re), <T as Number>::from_f64(x.im));
            let signal: Vec<_> = (0..length).map(value).collect();
            let wanted = (0..length).map(|k| {
                let root = |n| Complex::from_polar(1.0, -2.0 * PI * (k * n % length) as f64 / length as f64);
                signal.iter().enumerate().map(|(n, x)| x * root(n)).sum()
            });
            let wanted: Vec<_> = wanted.collect();
            let signal_narrow: Vec<_> = signal.iter().map(|&x| narrow(x)).collect();
            let spectrum = transformed::<T>(&forward, &signal_narrow);
            // Rounding follows what is largest.
            let norm = wanted.iter().map(Complex::norm_sqr).sum::<f64>().sqrt();
            let allowed = 2.0 * tolerance * norm;
            assert!(distance(&spectrum, &wanted) <= allowed, "{length}: {}", distance(&spectrum, &wanted));
            let back = transformed::<T>(&inverse, &spectrum);
            assert!(
                distance(&back, &signal) <= 16.0 * tolerance,
                "{length}, and back: {}",
                distance(&back, &signal)
            );
        }
    }

    #[test]
    fn all_lengths_are_what_the_definition_says_both_ways() {
        as_defined::<f32>(f64::from(f32::EPSILON));
        as_defined::<f64>(1e-14);
    }

    #[test]
    fn symmetric_data_are_conjugates_of_their_first_half() {
        for length in 0..8usize {
            let given: Vec<_> = (0..length).map(|n| Complex::new(n as f64, n as f64 + 0.5)).collect();
            let mut made = given.clone();
            mirror(&mut made);
            for (k, &x) in made.iter().enumerate() {
                let opposite = (length - k) % length;
                let real = Complex::new(given[k].re, 0.0);
                let wanted = match k.cmp(&opposite) {
                    std::cmp::Ordering::Less => given[k],
                    std::cmp::Ordering::Equal => real,
                    std::cmp::Ordering::Greater => given[opposite].conj(),
                };
                assert_eq!(x, wanted, "{k} of {length}");
            }
        }
    }

    #[test]
    fn plans_of_the_lengths_used_last_are_kept() {
        let plans = Plans::new(false);
        let first = plans.plan::<f32>(5);
        (6..5 + KEPT).for_each(|length| drop(plans.plan::<f32>(length)));
        assert!(Arc::ptr_eq(&first, &plans.plan(5)));
        drop(plans.plan::<f32>(100));
        assert!(Arc::ptr_eq(&first, &plans.plan(5)), "length 6 was not used for longer");
        (6..5 + KEPT).for_each(|length| drop(plans.plan::<f32>(length)));
        assert_eq!(plans.single.lock().expect("no panic").len(), KEPT);
        drop(plans.plan::<f32>(101));
        assert_eq!(Arc::strong_count(&first), 1, "its place was taken");
    }
}
