//! Activations.

use super::{Conversion, Made, one};
use crate::build::With;
use stepalloc_graph::ValueId;
use stepalloc_tensor::{DataType, OpError};

pub(super) fn convert(call: &mut Conversion<'_, '_, '_>) -> Made {
    let made = match call.layer.kind {
        "ReLU" => plain(call, "Relu"),
        "HSwish" => plain(call, "HardSwish"),
        "SoftPlus" => plain(call, "Softplus"),
        "SoftSign" => plain(call, "Softsign"),
        "Mish" => plain(call, "Mish"),
        "HSigmoid" => told(call, "HardSigmoid", With::default().float("alpha", 1.0 / 6.0).float("beta", 0.5)),
        "HardSigmoid" => two(call, "HardSigmoid", ["alpha", "beta"]),
        "Selu" => two(call, "Selu", ["alpha", "gamma"]),
        "Elu" => call
            .number("alpha", 1.0)
            .and_then(|alpha| told(call, "Elu", With::default().float("alpha", alpha))),
        "PReLU" => prelu(call),
        "Gelu" => {
            let tanh = call.text("approximation_mode", "ERF").eq_ignore_ascii_case("tanh");
            told(call, "Gelu", With::default().text("approximate", if tanh { "tanh" } else { "none" }))
        }
        "Swish" => swish(call),
        "Clamp" => clamp(call),
        "SoftMax" | "Softmax" => along(call, "Softmax"),
        "LogSoftmax" => along(call, "LogSoftmax"),
        _ => return None,
    };
    one(made)
}

fn plain(call: &mut Conversion<'_, '_, '_>, op: &str) -> Result<ValueId, OpError> {
    told(call, op, With::default())
}

fn told(call: &mut Conversion<'_, '_, '_>, op: &str, with: With) -> Result<ValueId, OpError> {
    let x = call.input(0)?;
    call.op_with(op, &[x], with)
}

/// Two constant inputs as attributes.
fn two(call: &mut Conversion<'_, '_, '_>, op: &str, names: [&str; 2]) -> Result<ValueId, OpError> {
    let (first, second) = (call.float_of(1)?, call.float_of(2)?);
    told(call, op, With::default().float(names[0], first).float(names[1], second))
}

/// A list of slopes has one for each channel.
fn prelu(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let (x, mut slope) = (call.input(0)?, call.input(1)?);
    let dims = call.dims(0)?;
    if let (&[Some(slopes)], Some(&channels)) = (&call.dims(1)?[..], dims.get(1))
        && channels.is_none_or(|channels| channels == slopes)
    {
        let mut shape = vec![1; dims.len() - 1];
        shape[0] = slopes as i64;
        slope = call.reshape(slope, &shape)?;
    }
    call.op("PRelu", &[x, slope])
}

fn swish(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    if call.inputs.len() < 2 {
        return plain(call, "Swish");
    }
    if let Ok(beta) = call.float_of(1) {
        return told(call, "Swish", With::default().float("alpha", beta));
    }
    let (x, beta) = (call.input(0)?, call.input(1)?);
    let scaled = call.op("Mul", &[x, beta])?;
    let gate = call.op("Sigmoid", &[scaled])?;
    call.op("Mul", &[x, gate])
}

fn clamp(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let (mut least, mut most): (f64, f64) =
        (call.number("min", f64::NEG_INFINITY)?, call.number("max", f64::INFINITY)?);
    let (x, dtype) = (call.input(0)?, call.dtype(0)?);
    if !dtype.is_float() {
        (least, most) = (least.ceil(), most.floor());
    } else if dtype == DataType::F32 || dtype == DataType::F16 {
        // The largest numbers that are written stand for none.
        let bound = |value: f64| {
            if value.abs() >= f64::from(f32::MAX) { value.signum() * f64::INFINITY } else { value }
        };
        (least, most) = (bound(least), bound(most));
    }
    let (least, most) = (call.scalar(dtype, least)?, call.scalar(dtype, most)?);
    call.op("Clip", &[x, least, most])
}

fn along(call: &mut Conversion<'_, '_, '_>, op: &str) -> Result<ValueId, OpError> {
    let axis: i64 = call.number("axis", 1)?;
    told(call, op, With::default().int("axis", axis))
}
