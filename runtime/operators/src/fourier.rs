//! Fourier transforms: DFT, and STFT over the frames of a signal.
//!
//! Lengths that are powers of two are transformed by halving (Cooley and Tukey, 1965); others as a convolution with a chirp
//! (Bluestein, 1970), which is three transforms of a power of two. All is computed in f64, but for f32 where [`radix`] can.

use super::{Call, Definition, Known, Made, Operator, Types, Unclear, axis, ints, typed};
use smallvec::smallvec;
use std::f64::consts::PI;
use stepalloc_kernels::{
    blocks::{Source, put},
    fft::{self, Radix, factors},
    no,
};
use stepalloc_tensor::{DataType, OpError, Type, View, ViewMut};

/// A longer transform is taken for a mistake: its tables alone would fill the memory.
const LONGEST: i64 = 1 << 28;

pub(super) fn make(node: &Definition<'_>) -> Made {
    let attributes = node.attributes;
    Some(Ok(match node.op {
        "DFT" => Box::new(Dft {
            axis: attributes.int("axis", if node.opset < 20 { 1 } else { -2 }),
            inverse: attributes.int("inverse", 0) != 0,
            onesided: attributes.int("onesided", 0) != 0,
        }),
        "STFT" => Box::new(Stft { onesided: attributes.int("onesided", 1) != 0 }),
        _ => return None,
    }))
}

/// Real and imaginary part.
type Complex = [f64; 2];

fn times([a, b]: Complex, [c, d]: Complex) -> Complex {
    [a * c - b * d, a * d + b * c]
}

/// e to the power of i times this angle.
fn turned(angle: f64) -> Complex {
    let (sin, cos) = angle.sin_cos();
    [cos, sin]
}

/// Transforms of one length.
struct Transform<'a> {
    length: usize,
    /// What is transformed; longer than that for a chirp's convolution.
    data: &'a mut [Complex],
    /// The roots of one that halving needs.
    roots: &'a mut [Complex],
    /// Empty for powers of two.
    chirp: &'a mut [Complex],
    /// The chirp's transform.
    filter: &'a mut [Complex],
}

impl<'a> Transform<'a> {
    /// The power of two that is halved.
    fn padded(length: usize) -> usize {
        if length.is_power_of_two() { length } else { (2 * length - 1).next_power_of_two() }
    }

    /// Scratch memory for it, in bytes.
    fn bytes(length: usize) -> usize {
        let padded = Self::padded(length);
        let chirp = if padded == length { 0 } else { padded + length };
        (padded + padded / 2 + chirp) * size_of::<Complex>()
    }

    fn new(length: usize, scratch: &'a mut [Complex]) -> Self {
        let padded = Self::padded(length);
        let (data, rest) = scratch.split_at_mut(padded);
        let (roots, rest) = rest.split_at_mut(padded / 2);
        for (at, root) in roots.iter_mut().enumerate() {
            *root = turned(-2.0 * PI * at as f64 / padded as f64);
        }
        if padded == length {
            return Self { length, data, roots, chirp: &mut [], filter: &mut [] };
        }
        let (chirp, rest) = rest.split_at_mut(length);
        let filter = &mut rest[..padded];
        filter.fill([0.0; 2]);
        for (at, chirp) in chirp.iter_mut().enumerate() {
            // The square's remainder keeps the angle exact.
            let square = (at as u128 * at as u128 % (2 * length as u128)) as f64;
            let [cos, sin] = turned(PI * square / length as f64);
            *chirp = [cos, -sin];
            filter[at] = [cos, sin];
            filter[(padded - at) % padded] = [cos, sin];
        }
        halve(filter, roots);
        Self { length, data, roots, chirp, filter }
    }

    /// Transforms the first elements of the data, as many as it is long.
    fn forward(&mut self) {
        if self.chirp.is_empty() {
            return halve(self.data, self.roots);
        }
        let (data, rest) = self.data.split_at_mut(self.length);
        data.iter_mut().zip(&*self.chirp).for_each(|(x, &chirp)| *x = times(*x, chirp));
        rest.fill([0.0; 2]);
        halve(self.data, self.roots);
        // The inverse is the forward transform with the parts exchanged.
        for (x, &filter) in self.data.iter_mut().zip(&*self.filter) {
            let [re, im] = times(*x, filter);
            *x = [im, re];
        }
        halve(self.data, self.roots);
        let by = 1.0 / self.data.len() as f64;
        for ([re, im], &chirp) in self.data.iter_mut().zip(&*self.chirp) {
            [*re, *im] = times([*im * by, *re * by], chirp);
        }
    }

    /// The same the other way.
    fn inverse(&mut self) {
        let exchange = |[re, im]: &mut Complex| std::mem::swap(re, im);
        self.data[..self.length].iter_mut().for_each(exchange);
        self.forward();
        let by = 1.0 / self.length as f64;
        self.data[..self.length].iter_mut().for_each(|[re, im]| (*re, *im) = (*im * by, *re * by));
    }
}

/// Transforms as many numbers as a power of two.
fn halve(data: &mut [Complex], roots: &[Complex]) {
    let length = data.len();
    if length < 2 {
        return;
    }
    let unused = length.leading_zeros() + 1;
    for at in 0..length {
        let mirrored = at.reverse_bits() >> unused;
        if at < mirrored {
            data.swap(at, mirrored);
        }
    }
    let mut half = 1;
    while half < length {
        let step = length / (2 * half);
        for block in data.chunks_exact_mut(2 * half) {
            let (low, high) = block.split_at_mut(half);
            for ((low, high), &root) in low.iter_mut().zip(high).zip(roots.iter().step_by(step)) {
                let turned = times(*high, root);
                *high = [low[0] - turned[0], low[1] - turned[1]];
                *low = [low[0] + turned[0], low[1] + turned[1]];
            }
        }
        half *= 2;
    }
}

/// The one integer that a tensor holds.
fn scalar(values: &[i64], what: &str) -> Result<i64, OpError> {
    match values {
        [value] => Ok(*value),
        _ => Err(OpError::shape(format!("its {what} has {} elements instead of one", values.len()))),
    }
}

fn transform_length(length: i64) -> Result<usize, OpError> {
    if !(1..=LONGEST).contains(&length) {
        return Err(OpError::value(format!("a transform of length {length} is not between 1 and {LONGEST}")));
    }
    usize::try_from(length).map_err(|_| OpError::value(format!("a transform of length {length} is too long")))
}

/// Transforms along one dimension; the last holds real and imaginary parts.
struct Dft {
    /// Where it is no input.
    axis: i64,
    inverse: bool,
    /// The half of a spectrum that says what the other is: comes out, or goes in of an inverse transform.
    onesided: bool,
}

impl Dft {
    /// The axis and the length of the transforms.
    fn measure(
        &self,
        shape: &[usize],
        length: Option<i64>,
        at: Option<i64>,
    ) -> Result<(usize, usize), OpError> {
        let rank = shape.len();
        let told = at.unwrap_or(self.axis);
        let at = axis(told, rank)?;
        if at + 1 == rank {
            return Err(OpError::value(format!(
                "axis {told} of {shape:?} is that of real and imaginary parts"
            )));
        }
        let parts = shape[rank - 1];
        if !matches!(parts, 1 | 2) || self.onesided && (parts == 2) != self.inverse {
            let onesided = if self.onesided { "onesided " } else { "" };
            return Err(OpError::shape(format!(
                "{parts} parts of a number do not fit a {onesided}transform"
            )));
        }
        let usual = if self.onesided && self.inverse { 2 * (shape[at] as i64 - 1) } else { shape[at] as i64 };
        Ok((at, transform_length(length.unwrap_or(usual))?))
    }

    fn known(&self, inputs: &Known<'_>) -> Result<(usize, usize), Unclear> {
        let told = |at, what| -> Result<Option<i64>, Unclear> {
            Ok(inputs.opt_ints(at)?.map(|values| scalar(&values, what)).transpose()?)
        };
        Ok(self.measure(&inputs.ty(0)?.shape, told(1, "dft_length")?, told(2, "axis")?)?)
    }
}

impl Operator for Dft {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        let (at, length) = self.known(inputs)?;
        let mut shape = input.shape.clone();
        shape[at] = if self.onesided && !self.inverse { length / 2 + 1 } else { length };
        shape[input.rank() - 1] = if self.onesided && self.inverse { 1 } else { 2 };
        Ok(smallvec![typed(input.dtype, shape)?])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        self.known(inputs).map_or(0, |(_, length)| Transform::bytes(length))
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (input, output) = (call.input(0)?, call.output(0)?);
        let told = |at, what| -> Result<Option<i64>, OpError> {
            let Some(view) = call.opt(at) else { return Ok(None) };
            scalar(
                &ints(&view).ok_or_else(|| OpError::element_type(format!("its {what} is no integer")))?,
                what,
            )
            .map(Some)
        };
        let (at, length) = self.measure(input.shape, told(1, "dft_length")?, told(2, "axis")?)?;
        if output.bytes.is_empty() {
            return Ok(());
        }
        if let (DataType::F32, Some(factors)) = (input.dtype, factors(length)) {
            let scratch = &mut call.scratch_of()[..fft::scratch(length)];
            self.transform_f32(Radix::new(length, factors, scratch), &input, output, at);
            return Ok(());
        }
        let transform = Transform::new(length, call.scratch_of());
        let out = output.shape;
        if !input.dtype.is_float() {
            return Err(no(input.dtype));
        }
        self.transform(transform, &input, out, output.bytes, at);
        Ok(())
    }
}

impl Dft {
    /// The same in f32, for lengths of small factors.
    fn transform_f32(&self, mut radix: Radix<'_>, view: &View<'_>, output: ViewMut<'_>, at: usize) {
        let (input, shape, out) = (view.elements::<f32>(), view.shape, output.shape);
        let (output, last) = (output.elements::<f32>(), out.len() - 1);
        let (parts, made) = (shape[last], out[last]);
        let inner: usize = shape[at + 1..last].iter().product();
        let (from, to, length) = (shape[at], out[at], radix.data.len());
        let outer: usize = shape[..at].iter().product();
        for (outer, inner_at) in (0..outer).flat_map(|outer| (0..inner).map(move |at| (outer, at))) {
            radix.data.fill([0.0; 2]);
            for (k, x) in radix.data.iter_mut().enumerate().take(from) {
                let place = ((outer * from + k) * inner + inner_at) * parts;
                *x = [input[place], if parts == 2 { input[place + 1] } else { 0.0 }];
            }
            if self.inverse && self.onesided {
                for k in 1..length.div_ceil(2) {
                    let [re, im] = radix.data[k];
                    radix.data[length - k] = [re, -im];
                }
            }
            radix.run(self.inverse);
            if parts == 1 {
                // A real signal's spectrum is symmetric, whatever was rounded.
                for k in 0..=length / 2 {
                    let [re, im] = radix.data[k];
                    let other = (length - k) % length;
                    radix.data[other] = if other == k { [re, 0.0] } else { [re, -im] };
                }
            }
            for (k, x) in radix.data.iter().enumerate().take(to) {
                let place = ((outer * to + k) * inner + inner_at) * made;
                output[place..place + made].copy_from_slice(&x[..made]);
            }
        }
    }

    fn transform(
        &self,
        mut transform: Transform<'_>,
        view: &View<'_>,
        out: &[usize],
        output: &mut [u8],
        at: usize,
    ) {
        let (input, shape, last) = (Source::new(view), view.shape, out.len() - 1);
        let (parts, made) = (shape[last], out[last]);
        let inner: usize = shape[at + 1..last].iter().product();
        let (from, to, length) = (shape[at], out[at], transform.length);
        let outer: usize = shape[..at].iter().product();
        for (outer, inner_at) in (0..outer).flat_map(|outer| (0..inner).map(move |at| (outer, at))) {
            let data = &mut transform.data[..length];
            data.fill([0.0; 2]);
            for (k, x) in data.iter_mut().enumerate().take(from) {
                let place = ((outer * from + k) * inner + inner_at) * parts;
                x[0] = input.at(place);
                x[1] = if parts == 2 { input.at(place + 1) } else { 0.0 };
            }
            if self.inverse && self.onesided {
                for k in 1..length.div_ceil(2) {
                    let [re, im] = data[k];
                    data[length - k] = [re, -im];
                }
            }
            if self.inverse {
                transform.inverse()
            } else {
                transform.forward()
            }
            for (k, x) in transform.data.iter().enumerate().take(to) {
                let place = ((outer * to + k) * inner + inner_at) * made;
                for (part, &x) in x.iter().enumerate().take(made) {
                    put(view.dtype, output, place + part, x);
                }
            }
        }
    }
}

/// Transforms of overlapping frames of a signal.
struct Stft {
    onesided: bool,
}

/// What an STFT goes by.
struct Frames {
    batch: usize,
    signal: usize,
    parts: usize,
    step: usize,
    length: usize,
    count: usize,
}

impl Stft {
    fn measure(
        &self,
        shape: &[usize],
        step: i64,
        window: Option<&[usize]>,
        length: Option<i64>,
    ) -> Result<Frames, OpError> {
        let (batch, signal, parts) = match *shape {
            [batch, signal] => (batch, signal, 1),
            [batch, signal, parts @ (1 | 2)] => (batch, signal, parts),
            _ => {
                return Err(OpError::shape(format!(
                    "{shape:?} is not of batch, signal, and parts of a number"
                )));
            }
        };
        if parts == 2 && self.onesided {
            return Err(OpError::attribute("a complex signal has no onesided spectrum"));
        }
        let window = match window {
            None => None,
            Some([length]) => Some(*length),
            Some(other) => return Err(OpError::shape(format!("a window of shape {other:?} is not a row"))),
        };
        let length = transform_length(match (length, window) {
            (Some(length), _) => length,
            (None, window) => window.unwrap_or(signal) as i64,
        })?;
        if window.is_some_and(|window| window != length) {
            return Err(OpError::shape(format!(
                "a window of {window:?} elements does not fit frames of {length}"
            )));
        }
        let step = usize::try_from(step).ok().filter(|&step| step > 0);
        let step = step.ok_or_else(|| OpError::value("its frame_step is not positive"))?;
        let count = signal.checked_sub(length).ok_or_else(|| {
            OpError::shape(format!("a signal of {signal} elements has no frame of {length}"))
        })? / step
            + 1;
        Ok(Frames { batch, signal, parts, step, length, count })
    }

    fn known(&self, inputs: &Known<'_>) -> Result<Frames, Unclear> {
        let step = scalar(&inputs.ints(1)?, "frame_step")?;
        let length = inputs.opt_ints(3)?.map(|values| scalar(&values, "frame_length")).transpose()?;
        let window = inputs.opt(2).map(|ty| &ty.shape[..]);
        Ok(self.measure(&inputs.ty(0)?.shape, step, window, length)?)
    }

    fn bins(&self, length: usize) -> usize {
        if self.onesided { length / 2 + 1 } else { length }
    }
}

impl Operator for Stft {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let frames = self.known(inputs)?;
        let shape = [frames.batch, frames.count, self.bins(frames.length), 2];
        Ok(smallvec![typed(inputs.ty(0)?.dtype, shape)?])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        self.known(inputs).map_or(0, |frames| Transform::bytes(frames.length))
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (input, window, output) = (call.input(0)?, call.opt(2), call.output(0)?);
        let told = |view: &View<'_>, what| -> Result<i64, OpError> {
            scalar(
                &ints(view).ok_or_else(|| OpError::element_type(format!("its {what} is no integer")))?,
                what,
            )
        };
        let step = told(&call.input(1)?, "frame_step")?;
        let length = call.opt(3).map(|view| told(&view, "frame_length")).transpose()?;
        let frames = self.measure(input.shape, step, window.map(|window| window.shape), length)?;
        let mut transform = Transform::new(frames.length, call.scratch_of());
        if window.is_some_and(|window| window.dtype != input.dtype) {
            return Err(OpError::element_type("window and signal have elements of two types"));
        }
        let bins = self.bins(frames.length);
        let dtype = input.dtype;
        if !dtype.is_float() {
            return Err(no(dtype));
        }
        let (input, window) = (Source::new(&input), window.as_ref().map(Source::new));
        for (number, to) in output.bytes.chunks_exact_mut(bins * 2 * dtype.bytes()).enumerate() {
            let (batch, frame) = (number / frames.count, number % frames.count);
            let first = batch * frames.signal + frame * frames.step;
            for (k, x) in transform.data[..frames.length].iter_mut().enumerate() {
                let weight = window.map_or(1.0, |window| window.at(k));
                let place = (first + k) * frames.parts;
                x[0] = input.at(place) * weight;
                x[1] = if frames.parts == 2 { input.at(place + 1) * weight } else { 0.0 };
            }
            transform.forward();
            for (at, x) in transform.data.iter().enumerate().take(bins) {
                put(dtype, to, 2 * at, x[0]);
                put(dtype, to, 2 * at + 1, x[1]);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lengths_are_what_the_definition_says() {
        for length in [1, 2, 3, 5, 8, 12, 17, 64, 100] {
            let signal: Vec<Complex> =
                (0..length).map(|n| [(n as f64 * 0.7).sin(), (n * n % 11) as f64]).collect();
            let mut scratch = vec![[0.0; 2]; Transform::bytes(length) / size_of::<Complex>()];
            let mut transform = Transform::new(length, &mut scratch);
            transform.data[..length].copy_from_slice(&signal);
            transform.forward();
            for (k, got) in transform.data[..length].iter().enumerate() {
                let wanted = signal.iter().enumerate().fold([0.0; 2], |sum: Complex, (n, &x)| {
                    let x = times(x, turned(-2.0 * PI * (k * n % length) as f64 / length as f64));
                    [sum[0] + x[0], sum[1] + x[1]]
                });
                assert!(
                    (got[0] - wanted[0]).abs() < 1e-9 && (got[1] - wanted[1]).abs() < 1e-9,
                    "{length} {k}"
                );
            }
            transform.inverse();
            for (got, wanted) in transform.data.iter().zip(&signal) {
                assert!((got[0] - wanted[0]).abs() < 1e-10 && (got[1] - wanted[1]).abs() < 1e-10, "{length}");
            }
        }
    }
}
