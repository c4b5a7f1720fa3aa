//! Averages of bytes, of windows and of whole planes, with channels in front of the places or behind them.

use super::{Quantum, check};
use crate::pool::{Of, Pool, plane};
use crate::quantize::to_bytes;
use crate::{Call, Definition, Known, Operator, Types, Unclear, typed};
use smallvec::smallvec;
use stepalloc_kernels::conv::window::Window;
use stepalloc_tensor::{DataType, OpError, Shape, Type};

pub(super) struct Average {
    /// `None` where the whole plane is one window.
    pool: Option<Pool>,
    of: Of,
    /// A place's channels lie side by side.
    channels_last: bool,
}

impl Average {
    pub(super) fn new(node: &Definition<'_>) -> Result<Self, OpError> {
        let attributes = node.attributes;
        let of = Of::Average { padded: attributes.int("count_include_pad", 0) != 0 };
        let pool = (node.op == "QLinearAveragePool").then(|| Pool::new(attributes, of)).transpose()?;
        Ok(Self { pool, of, channels_last: attributes.int("channels_last", 0) != 0 })
    }

    fn planes<'s>(&self, shape: &'s [usize]) -> Result<Planes<'s>, OpError> {
        let (images, channels, space) = match (shape, self.channels_last) {
            (&[images, channels, ref space @ ..], false) | (&[images, ref space @ .., channels], true) => {
                (images, channels, space)
            }
            _ => return Err(OpError::shape(format!("an input {shape:?} has no channels"))),
        };
        let window = self.pool.as_ref().map(|pool| pool.window_of(space)).transpose()?;
        Ok(Planes { images, channels, space, window })
    }
}

/// The planes of an input.
struct Planes<'s> {
    images: usize,
    channels: usize,
    /// Dimensions of a plane.
    space: &'s [usize],
    /// The windows in it, unless all of it is one.
    window: Option<Window>,
}

impl Operator for Average {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let x = inputs.ty(0)?;
        check(inputs, x.dtype, 1)?;
        check(inputs, x.dtype, 3)?;
        let Planes { images, channels, space, window } = self.planes(&x.shape)?;
        let places: Shape = match window {
            Some(window) => window.shape().collect(),
            None => space.iter().map(|_| 1).collect(),
        };
        let mut shape = Shape::from([images]);
        shape.extend((!self.channels_last).then_some(channels));
        shape.extend(places);
        shape.extend(self.channels_last.then_some(channels));
        Ok(smallvec![typed(x.dtype, shape)?])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let window = inputs.opt(0).and_then(|x| self.planes(&x.shape).ok()).and_then(|planes| planes.window);
        window.map_or(0, |window| 4 * (window.input() + window.output()))
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (x, out) = (call.input(0)?, call.output(0)?);
        let dtype = x.dtype;
        let (from, to) = (Quantum::new(call, 1, dtype)?, Quantum::new(call, 3, dtype)?);
        let Planes { images, channels, space, window } = self.planes(x.shape)?;
        let size: usize = space.iter().product();
        let places = out.bytes.len().checked_div(images * channels).unwrap_or(0);
        if places == 0 {
            return Ok(());
        }
        let (input, sums) = call.scratch_of::<f32>().split_at_mut(window.as_ref().map_or(0, Window::input));
        let sums = &mut sums[..window.as_ref().map_or(0, Window::output)];
        // Where the channels of a plane begin, and how far its places are apart.
        let layout = |plane: usize, places: usize| match self.channels_last {
            true => (plane / channels * channels * places + plane % channels, channels),
            false => (plane * places, 1),
        };
        let reals = from.reals();
        for number in 0..images * channels {
            let (begin, step) = layout(number, size);
            let bytes = x.bytes.get(begin..).unwrap_or_default().iter().step_by(step).take(size);
            let (begin, step) = layout(number, places);
            match &window {
                Some(window) => {
                    input.iter_mut().zip(bytes).for_each(|(to, &byte)| *to = reals[usize::from(byte)]);
                    match self.of {
                        // What lies behind the padding counts as well here, where ceil_mode has windows reach there.
                        Of::Average { padded: true } => {
                            let count = window.kernel() as f32;
                            window.fold(input, sums, 0.0, |_| |sum: f32, x| sum + x);
                            sums.iter_mut().for_each(|sum| *sum /= count);
                        }
                        of => plane(window, of, input, sums),
                    }
                    for (at, &sum) in sums.iter().enumerate() {
                        let at = begin + at * step;
                        to_bytes(&[sum], to.pair(), dtype, &mut out.bytes[at..=at]);
                    }
                }
                None => {
                    let number = |byte: u8| {
                        if dtype == DataType::I8 { i64::from(byte as i8) } else { i64::from(byte) }
                    };
                    let sum: i64 = bytes.map(|&byte| number(byte)).sum();
                    let mean = (sum as f64 / size.max(1) as f64 - f64::from(from.zero)) as f32 * from.scale;
                    to_bytes(&[mean], to.pair(), dtype, &mut out.bytes[begin..=begin]);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::trial::{Trial, floats, run, tensor};
    use stepalloc_graph::Attribute;
    use stepalloc_tensor::{Tensor, View};

    fn inputs(x: Tensor) -> Vec<Option<Tensor>> {
        let one = |x: f32| Some(tensor(&[], &[x]));
        vec![Some(x), one(0.5), Some(tensor(&[], &[9u8])), one(0.25), Some(tensor(&[], &[20u8]))]
    }

    /// Against the pools of reals, in both layouts.
    #[test]
    fn averages_are_those_of_what_the_bytes_stand_for() {
        let (channels, height, width) = (3, 6, 5);
        let bytes: Vec<u8> = (0..2 * channels * height * width).map(|at| (at * 37 % 101) as u8).collect();
        let reals: Vec<f32> = bytes.iter().map(|&byte| (f32::from(byte) - 9.0) * 0.5).collect();
        let shape = [2, channels, height, width];
        let plane = height * width;
        let turned = |bytes: &[u8], plane: usize| -> Vec<u8> {
            let at = |at: usize| at / (plane * channels) * plane * channels;
            (0..bytes.len()).map(|to| bytes[at(to) + to % channels * plane + to / channels % plane]).collect()
        };
        let windows = [
            ("kernel_shape", Attribute::Ints(vec![3, 2])),
            ("pads", Attribute::Ints(vec![1, 0, 1, 1])),
            ("strides", Attribute::Ints(vec![2, 1])),
        ];
        for (op, padded) in [("AveragePool", 0), ("AveragePool", 1), ("GlobalAveragePool", 0)] {
            let mut told = if op == "AveragePool" { windows.to_vec() } else { Vec::new() };
            if op == "AveragePool" {
                told.push(("count_include_pad", Attribute::Int(padded)));
            }
            let wanted = run(op, 19, &told, &[Some(&tensor(&shape, &reals))]).expect("it runs").remove(0);
            let name = format!("QLinear{op}");
            let trial = |x: Tensor| Trial {
                domain: "com.microsoft",
                opset: 1,
                ..Trial::new(&name, &told, inputs(x))
            };
            let made = trial(tensor(&shape, &bytes)).run().expect("it runs").remove(0);
            assert_eq!(made.ty().shape, wanted.ty().shape);
            let View { bytes: got, .. } = made.view();
            for (&got, &wanted) in got.iter().zip(floats(&wanted)) {
                let wanted = (wanted / 0.25 + 20.0).clamp(0.0, 255.0);
                assert!((f32::from(got) - wanted).abs() <= 0.501, "{name}: {got}, not {wanted}");
            }
            let last = tensor(&[2, height, width, channels], &turned(&bytes, plane));
            let last = trial(last).int("channels_last", 1).run().expect("it runs").remove(0);
            let places: usize = wanted.ty().shape[2..].iter().product();
            assert_eq!(last.view().bytes, turned(got, places), "{name}");
        }
    }

    #[test]
    fn what_has_no_planes_is_an_error() {
        let x = tensor(&[4], &[0u8; 4]);
        let trial = Trial::new("QLinearGlobalAveragePool", &[], inputs(x));
        assert!(Trial { domain: "com.microsoft", opset: 1, ..trial }.run().is_err());
        let x = tensor(&[1, 1, 4], &[0u8; 4]);
        let trial = Trial::new("QLinearAveragePool", &[], inputs(x));
        assert!(Trial { domain: "com.microsoft", opset: 1, ..trial }.run().is_err(), "no kernel_shape");
    }
}
