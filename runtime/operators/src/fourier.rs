//! Fourier transforms: DFT, and STFT over the frames of a signal.
//!
//! They are computed in f64 for f64, and else in f32; a node keeps the plans of its lengths ([`Plans`]).

use super::{Call, Definition, Known, Made, Operator, Types, Unclear, axis, ints, typed};
use smallvec::smallvec;
use stepalloc_kernels::{
    fft::{Complex, Float, LINES, Lines, Plans, make_ends_real, mirror},
    real::{Space, Target, is_double, widened, widened_bytes},
};
use stepalloc_tensor::{OpError, Type, View};

/// A longer transform is taken for a mistake: its plan, of which no limit of memory knows, would take gigabytes.
const LONGEST: i64 = 1 << 24;

pub(super) fn make(node: &Definition<'_>) -> Made {
    let attributes = node.attributes;
    Some(Ok(match node.op {
        "DFT" => {
            let inverse = attributes.int("inverse", 0) != 0;
            Box::new(Dft {
                axis: attributes.int("axis", if node.opset < 20 { 1 } else { -2 }),
                inverse,
                onesided: attributes.int("onesided", 0) != 0,
                plans: Plans::new(inverse),
            })
        }
        "STFT" => Box::new(Stft { onesided: attributes.int("onesided", 1) != 0, plans: Plans::new(false) }),
        _ => return None,
    }))
}

/// The one integer that a tensor holds.
fn scalar(values: &[i64], what: &str) -> Result<i64, OpError> {
    match values {
        [value] => Ok(*value),
        _ => Err(OpError::shape(format!("its {what} has {} elements instead of one", values.len()))),
    }
}

/// The one integer of an input.
fn integer(view: &View<'_>, what: &str) -> Result<i64, OpError> {
    let values = ints(view).ok_or_else(|| OpError::element_type(format!("its {what} is no integer")))?;
    scalar(&values, what)
}

fn transform_length(length: i64) -> Result<usize, OpError> {
    if !(1..=LONGEST).contains(&length) {
        return Err(OpError::value(format!("a transform of length {length} is not between 1 and {LONGEST}")));
    }
    usize::try_from(length).map_err(|_| OpError::value(format!("a transform of length {length} is too long")))
}

/// Bytes of scratch memory for transforms of a length with so many elements of data at a time, where inputs of these numbers and the
/// output may be halves.
fn scratch(
    plans: &Plans,
    (length, data): (usize, usize),
    inputs: &Known<'_>,
    read: &[usize],
    output: &Type,
) -> usize {
    fn bytes<'t, T: Float>(own: usize, data: usize, types: impl Iterator<Item = &'t Type>) -> usize {
        let copied = types.map(|ty| widened_bytes::<T>(ty.dtype, ty.elements()));
        copied.fold(own.saturating_add(Space::bytes::<Complex<T>>(data)), usize::saturating_add)
    }
    if output.elements() == 0 {
        return 0;
    }
    let types = read.iter().filter_map(|&at| inputs.opt(at)).chain([output]);
    match is_double(output.dtype) {
        Ok(true) => bytes::<f64>(plans.bytes::<f64>(length), data, types),
        Ok(false) => bytes::<f32>(plans.bytes::<f32>(length), data, types),
        Err(_) => 0,
    }
}

/// Transforms along one dimension; the last holds real and imaginary parts.
struct Dft {
    /// Where it is no input.
    axis: i64,
    inverse: bool,
    /// The half of a spectrum that says what the other is: comes out, or goes in of an inverse transform.
    onesided: bool,
    plans: Plans,
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

    fn scratch(&self, inputs: &Known<'_>, outputs: &[Type]) -> usize {
        let (Ok((at, length)), [output, ..]) = (self.known(inputs), outputs) else { return 0 };
        let inner: usize = output.shape[at + 1..output.rank() - 1].iter().product();
        scratch(&self.plans, (length, Lines::new(inner, length).elements()), inputs, &[0], output)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        if is_double(call.dtype(0)?)? { self.compute::<f64>(call) } else { self.compute::<f32>(call) }
    }
}

impl Dft {
    fn compute<T: Float>(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (input, output) = (call.input(0)?, call.output(0)?);
        let told = |at, what| -> Result<Option<i64>, OpError> {
            call.opt(at).map(|view| integer(&view, what)).transpose()
        };
        let (at, length) = self.measure(input.shape, told(1, "dft_length")?, told(2, "axis")?)?;
        if output.bytes.is_empty() {
            return Ok(());
        }
        let (shape, out) = (input.shape, output.shape);
        let last = shape.len() - 1;
        let (from, to, parts) = (shape[at], out[at], shape[last]);
        let (outer, inner): (usize, usize) =
            (shape[..at].iter().product(), shape[at + 1..last].iter().product());
        let mut space = Space(call.scratch());
        let input = widened::<T>(&input, &mut space)?;
        let target = Target::<T>::new(output, &mut space)?;
        let mut transform = self.plans.transform::<T>(length, &mut space)?;
        let lines = Lines::new(inner, length);
        let memory = space.take::<Complex<T>>(lines.elements())?;
        let firsts = (0..outer).flat_map(|outer| (0..inner).step_by(LINES).map(move |at| (outer, at)));
        for (outer, inner_at) in firsts {
            let data = &mut memory[..LINES.min(inner - inner_at) * lines.pitch];
            let (first, taken) = (outer * from * inner + inner_at, from.min(length));
            if taken > 0 && parts == 1 {
                lines.gather(&input[first..], data, taken, |re| Complex::new(re, T::default()));
            } else if taken > 0 {
                lines.gather(&bytemuck::cast_slice(input)[first..], data, taken, |x: Complex<T>| x);
            }
            for line in data.chunks_exact_mut(lines.pitch) {
                let line = &mut line[..length];
                line[taken..].fill(Complex::default());
                if self.inverse && self.onesided {
                    mirror(line);
                }
                transform.run(line);
                // The spectrum of real numbers is symmetric, whatever was rounded.
                match parts == 1 {
                    true if self.onesided => make_ends_real(line),
                    true => mirror(line),
                    false => (),
                }
            }
            let first = outer * to * inner + inner_at;
            if out[last] == 1 {
                lines.scatter(data, &mut target.wide[first..], to, |x| x.re);
            } else {
                lines.scatter(data, &mut bytemuck::cast_slice_mut(target.wide)[first..], to, |x| x);
            }
        }
        target.finish()
    }
}

/// Transforms of overlapping frames of a signal.
struct Stft {
    onesided: bool,
    plans: Plans,
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

    fn scratch(&self, inputs: &Known<'_>, outputs: &[Type]) -> usize {
        let (Ok(frames), [output, ..]) = (self.known(inputs), outputs) else { return 0 };
        scratch(&self.plans, (frames.length, frames.length), inputs, &[0, 2], output)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        if is_double(call.dtype(0)?)? { self.compute::<f64>(call) } else { self.compute::<f32>(call) }
    }
}

impl Stft {
    fn compute<T: Float>(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (input, window, output) = (call.input(0)?, call.opt(2), call.output(0)?);
        let step = integer(&call.input(1)?, "frame_step")?;
        let length = call.opt(3).map(|view| integer(&view, "frame_length")).transpose()?;
        let frames = self.measure(input.shape, step, window.map(|window| window.shape), length)?;
        if window.is_some_and(|window| window.dtype != input.dtype) {
            return Err(OpError::element_type("window and signal have elements of two types"));
        }
        if output.bytes.is_empty() {
            return Ok(());
        }
        let mut space = Space(call.scratch());
        let input = widened::<T>(&input, &mut space)?;
        let window = window.map(|window| widened::<T>(&window, &mut space)).transpose()?;
        let target = Target::<T>::new(output, &mut space)?;
        let mut transform = self.plans.transform::<T>(frames.length, &mut space)?;
        let data = space.take::<Complex<T>>(frames.length)?;
        let bins = self.bins(frames.length);
        let output: &mut [Complex<T>] = bytemuck::cast_slice_mut(target.wide);
        for (number, to) in output.chunks_exact_mut(bins).enumerate() {
            let (batch, frame) = (number / frames.count, number % frames.count);
            let first = batch * frames.signal + frame * frames.step;
            if frames.parts == 1 {
                let real = input[first..].iter().zip(&mut *data);
                real.for_each(|(&re, x)| *x = Complex::new(re, T::default()));
            } else {
                data.copy_from_slice(&bytemuck::cast_slice(input)[first..][..frames.length]);
            }
            if let Some(window) = window {
                data.iter_mut().zip(window).for_each(|(x, &weight)| *x = *x * weight);
            }
            transform.run(data);
            match frames.parts == 1 {
                true if self.onesided => make_ends_real(data),
                true => mirror(data),
                false => (),
            }
            to.copy_from_slice(&data[..bins]);
        }
        target.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::Trial;
    use std::f64::consts::PI;
    use stepalloc_tensor::{Number, Tensor, bf16, f16};

    fn value(at: usize) -> f64 {
        (at as f64 * 0.7).sin() + (at * at % 11) as f64 / 11.0
    }

    fn tensor<T: Number>(shape: &[usize], values: &[f64]) -> Tensor {
        let elements: Vec<_> = values.iter().map(|&x| T::from_f64(x)).collect();
        Tensor::from_elements(shape, &elements).expect("as many as the shape says")
    }

    fn integer(value: usize) -> Tensor {
        Tensor::from_elements([], &[value as i64]).expect("one")
    }

    /// A transform of a line as it is defined.
    fn defined(line: &[Complex<f64>], inverse: bool) -> Vec<Complex<f64>> {
        let (length, sign) = (line.len(), if inverse { 1.0 } else { -1.0 });
        let root =
            |at: usize| Complex::from_polar(1.0, sign * 2.0 * PI * (at % length) as f64 / length as f64);
        let by = if inverse { 1.0 / length as f64 } else { 1.0 };
        (0..length)
            .map(|k| line.iter().enumerate().map(|(n, x)| x * root(n * k)).sum::<Complex<f64>>() * by)
            .collect()
    }

    fn close<T: Number>(made: &Tensor, shape: &[usize], wanted: &[f64], tolerance: f64, what: &str) {
        assert_eq!((&made.ty().shape[..], made.ty().dtype), (shape, T::DTYPE), "{what}");
        for (at, (made, wanted)) in made.view().elements::<T>().iter().zip(wanted).enumerate() {
            let made = made.to_f64();
            let distance = (made - wanted).abs();
            assert!(distance <= tolerance * (1.0 + wanted.abs()), "{what}: {made} {wanted} at {at}");
        }
    }

    /// Transforms along dimension 1 of [2, from, inner, parts].
    fn dft<T: Number>(tolerance: f64) {
        let lengths = [(1, 1), (2, 2), (7, 7), (8, 8), (12, 9), (9, 12), (0, 4), (101, 101)];
        let kinds = [
            (1, false, false),
            (2, false, false),
            (1, true, false),
            (2, true, false),
            (1, false, true),
            (2, true, true),
        ];
        for ((from, length), inner, (parts, inverse, onesided)) in lengths
            .into_iter()
            .flat_map(|lengths| [1, 3, 2 * LINES + 1].map(|inner| (lengths, inner)))
            .flat_map(|(lengths, inner)| kinds.map(|kind| (lengths, inner, kind)))
        {
            let what = format!(
                "{:?}: {from} to {length}, {inner} apart, {parts} parts, inverse {inverse}, onesided {onesided}",
                T::DTYPE
            );
            let to = if onesided && !inverse { length / 2 + 1 } else { length };
            let made_parts = if onesided && inverse { 1 } else { 2 };
            let input = tensor::<T>(
                &[2, from, inner, parts],
                &(0..2 * from * inner * parts).map(value).collect::<Vec<_>>(),
            );
            let read: Vec<_> = input.view().elements::<T>().iter().map(|x| x.to_f64()).collect();
            let mut wanted = vec![0.0; 2 * to * inner * made_parts];
            for (outer, at) in (0..2).flat_map(|outer| (0..inner).map(move |at| (outer, at))) {
                let part = |k: usize, part: usize| read[((outer * from + k) * inner + at) * parts + part];
                let mut line: Vec<_> = (0..length)
                    .map(|k| {
                        if k < from {
                            Complex::new(part(k, 0), if parts == 2 { part(k, 1) } else { 0.0 })
                        } else {
                            Complex::default()
                        }
                    })
                    .collect();
                if inverse && onesided {
                    let half = line.clone();
                    (length / 2 + 1..length).for_each(|k| line[k] = half[length - k].conj());
                }
                for (k, x) in defined(&line, inverse).iter().enumerate().take(to) {
                    let place = ((outer * to + k) * inner + at) * made_parts;
                    wanted[place..place + made_parts].copy_from_slice(&[x.re, x.im][..made_parts]);
                }
            }
            let trial = Trial::new("DFT", &[], [input, integer(length), integer(1)]);
            let trial = trial.int("inverse", inverse.into()).int("onesided", onesided.into());
            let made = &trial.run().expect(&what)[0];
            close::<T>(made, &[2, to, inner, made_parts], &wanted, tolerance, &what);
        }
    }

    #[test]
    fn transforms_along_any_dimension_are_what_the_definition_says() {
        dft::<f32>(1e-5);
        dft::<f64>(1e-12);
        dft::<f16>(1e-3);
        dft::<bf16>(8e-3);
    }

    /// Frames of a signal [2, 50, parts].
    fn stft<T: Number>(tolerance: f64) {
        for (length, parts, onesided) in [12, 13].into_iter().flat_map(|length| {
            [(1, true), (1, false), (2, false)].map(|(parts, onesided)| (length, parts, onesided))
        }) {
            let what = format!("{:?}: frames of {length}, {parts} parts, onesided {onesided}", T::DTYPE);
            let signal = tensor::<T>(&[2, 50, parts], &(0..100 * parts).map(value).collect::<Vec<_>>());
            let window = tensor::<T>(&[length], &(0..length).map(|at| value(at + 3)).collect::<Vec<_>>());
            let read = |tensor: &Tensor| -> Vec<f64> {
                tensor.view().elements::<T>().iter().map(|x| x.to_f64()).collect()
            };
            let (x, weights) = (read(&signal), read(&window));
            let (count, bins) = ((50 - length) / 5 + 1, if onesided { length / 2 + 1 } else { length });
            let mut wanted = Vec::new();
            for (batch, frame) in (0..2).flat_map(|batch| (0..count).map(move |frame| (batch, frame))) {
                let part = |k: usize, part: usize| {
                    if part < parts {
                        x[(batch * 50 + frame * 5 + k) * parts + part] * weights[k]
                    } else {
                        0.0
                    }
                };
                let line: Vec<_> = (0..length).map(|k| Complex::new(part(k, 0), part(k, 1))).collect();
                wanted.extend(defined(&line, false)[..bins].iter().flat_map(|x| [x.re, x.im]));
            }
            let trial = Trial::new("STFT", &[], [signal, integer(5), window]);
            let made = &trial.int("onesided", onesided.into()).run().expect(&what)[0];
            close::<T>(made, &[2, count, bins, 2], &wanted, tolerance, &what);
        }
    }

    #[test]
    fn frames_are_weighted_and_transformed() {
        stft::<f32>(1e-5);
        stft::<f64>(1e-12);
        stft::<f16>(1e-3);
    }

    #[test]
    fn spectra_of_real_numbers_are_symmetric_to_the_last_bit() {
        for length in [30, 37, 64] {
            let signal = tensor::<f32>(&[1, length, 1], &(0..length).map(value).collect::<Vec<_>>());
            let made = Trial::new("DFT", &[], [&signal]).run().expect("it runs");
            let stft =
                Trial::new("STFT", &[], [signal, integer(1)]).int("onesided", 0).run().expect("it runs");
            for made in [&made[0], &stft[0]] {
                let made: &[[f32; 2]] = bytemuck::cast_slice(made.view().elements::<f32>());
                for (k, &[re, im]) in made.iter().enumerate() {
                    assert_eq!(made[(length - k) % length], [re, -im], "{k} of {length}");
                }
            }
        }
    }
}
