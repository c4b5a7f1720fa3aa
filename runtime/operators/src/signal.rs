//! What spectra are made with: windows and mel weights.

use super::{Call, Definition, Known, Made, Operator, Types, Unclear, typed};
use smallvec::smallvec;
use std::f64::consts::PI;
use stepalloc_kernels::{
    blocks::{Source, number, put},
    no,
};
use stepalloc_tensor::{DataType, OpError, View};

pub(super) fn make(node: &Definition<'_>) -> Made {
    let cosines: &[f64] = match node.op {
        "HannWindow" => &[0.5, -0.5],
        "HammingWindow" => &[25.0 / 46.0, -21.0 / 46.0],
        "BlackmanWindow" => &[0.42, -0.5, 0.08],
        "MelWeightMatrix" => &[],
        _ => return None,
    };
    let number = node.attributes.int("output_datatype", DataType::F32 as i64);
    let Some(dtype) = i32::try_from(number).ok().and_then(DataType::from_onnx) else {
        return Some(Err(OpError::attribute(format!(
            "its output_datatype is {number}, which is no type known here"
        ))));
    };
    Some(Ok(if cosines.is_empty() {
        Box::new(MelWeights { dtype })
    } else {
        Box::new(Window {
            cosines: cosines.to_vec(),
            periodic: node.attributes.int("periodic", 1) != 0,
            dtype,
        })
    }))
}

/// The one integer that an input holds, as a size.
fn size(inputs: &Known<'_>, at: usize) -> Result<usize, Unclear> {
    match inputs.ints(at)?[..] {
        [size] => usize::try_from(size)
            .map_err(|_| OpError::value(format!("input {at} is {size}, which is no size")).into()),
        _ => Err(OpError::shape(format!("input {at} is not one integer")).into()),
    }
}

/// A sum of cosines over one period.
struct Window {
    /// The factor of the cosine that has so many periods in the window.
    cosines: Vec<f64>,
    /// The period ends with the element after the last, not with the last.
    periodic: bool,
    dtype: DataType,
}

impl Operator for Window {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        Ok(smallvec![typed(self.dtype, [size(inputs, 0)?])?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let output = call.output(0)?;
        let length = output.shape[0];
        let period = if self.periodic { length } else { length.saturating_sub(1) };
        number(output.dtype)?;
        for at in 0..length {
            // A symmetric window of one element is the middle of all windows.
            let phase = if period == 0 { PI } else { 2.0 * PI * at as f64 / period as f64 };
            let cosines = self.cosines.iter().enumerate();
            let sum = cosines.map(|(times, factor)| factor * (times as f64 * phase).cos()).sum();
            put(output.dtype, output.bytes, at, sum);
        }
        Ok(())
    }
}

/// Weights of the bins of a spectrum in bands that overlap, of the same width to the ear.
struct MelWeights {
    dtype: DataType,
}

/// The one number that an input holds.
fn hertz(view: &View<'_>) -> Result<f64, OpError> {
    if !view.dtype.is_float() {
        return Err(no(view.dtype));
    }
    let source = Source::new(view);
    if source.len() == 0 { Err(OpError::shape("a frequency is missing")) } else { Ok(source.at(0)) }
}

impl Operator for MelWeights {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (bands, length) = (size(inputs, 0)?, size(inputs, 1)?);
        Ok(smallvec![typed(self.dtype, [length / 2 + 1, bands])?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let whole = |at| -> Result<f64, OpError> {
            let view = call.input(at)?;
            let first = super::ints(&view).and_then(|values| values.first().copied());
            first
                .map(|value| value as f64)
                .ok_or_else(|| OpError::shape(format!("input {at} is not one integer")))
        };
        let (length, rate) = (whole(1)?, whole(2)?);
        let (low, high) = (hertz(&call.input(3)?)?, hertz(&call.input(4)?)?);
        let output = call.output(0)?;
        let [bins, bands] = *output.shape else { return Err(OpError::shape("its output is no matrix")) };
        let mel = |hertz: f64| 2595.0 * (hertz / 700.0).ln_1p() / std::f64::consts::LN_10;
        let hertz = |mel: f64| 700.0 * (mel / 2595.0 * std::f64::consts::LN_10).exp_m1();
        let (low, high) = (mel(low), mel(high));
        let step = (high - low) / (bands as f64 + 2.0);
        // The bin at which an edge of a band lies.
        let edge = |at: usize| -> Result<usize, OpError> {
            let bin = ((length + 1.0) * hertz(low + step * at as f64) / rate).floor();
            if (0.0..bins as f64).contains(&bin) {
                Ok(bin as usize)
            } else {
                Err(OpError::value(format!("edge {at} of the bands lies at bin {bin} of {bins}")))
            }
        };
        output.bytes.fill(0);
        number(output.dtype)?;
        let mut write = |at, weight| put(output.dtype, output.bytes, at, weight);
        for band in 0..bands {
            let (left, centre, right) = (edge(band)?, edge(band + 1)?, edge(band + 2)?);
            if left == centre {
                write(centre * bands + band, 1.0);
            }
            for bin in left..=centre {
                if left < centre {
                    let weight = (bin - left) as f64 / (centre - left) as f64;
                    write(bin * bands + band, weight);
                }
            }
            for bin in centre..right {
                let weight = (right - bin) as f64 / (right - centre) as f64;
                write(bin * bands + band, weight);
            }
        }
        Ok(())
    }
}
