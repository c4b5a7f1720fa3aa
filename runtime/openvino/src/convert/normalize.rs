//! Normalizations.

use super::{Conversion, Made, one};
use crate::build::With;
use stepalloc_graph::ValueId;
use stepalloc_tensor::OpError;

pub(super) fn convert(call: &mut Conversion<'_, '_, '_>) -> Made {
    let made = match call.layer.kind {
        "MVN" => mvn(call),
        "BatchNormInference" => batch(call),
        "NormalizeL2" => l2(call),
        "LRN" => lrn(call),
        "GroupNormalization" => group(call),
        _ => return None,
    };
    one(made)
}

/// Mean 0 and variance 1 along axes.
fn mvn(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    if call.layer.version == "opset1" {
        return Err(OpError::unsupported("it is of opset 1; that of opset 6 is known"));
    }
    let (x, axes, dtype) = (call.input(0)?, call.input(1)?, call.dtype(0)?);
    let epsilon: f64 = call.number("eps", 0.0)?;
    let inside = call.text("eps_mode", "inside_sqrt").eq_ignore_ascii_case("inside_sqrt");
    let scales = call.flag("normalize_variance", true)?;
    if let (Some(known), Ok(rank)) = (call.known_ints(1), call.rank(0))
        && scales
        && inside
    {
        // Along the last ones: one operator does it, over its input.
        let mut known: Vec<_> =
            known.iter().map(|&axis| if axis < 0 { axis + rank as i64 } else { axis }).collect();
        known.sort_unstable();
        let first = rank.saturating_sub(known.len()) as i64;
        if !known.is_empty() && known.iter().copied().eq(first..rank as i64) {
            let one = call.scalar(dtype, 1.0)?;
            let one = call.reshape(one, &[1])?;
            let with = With::default().int("axis", first).float("epsilon", epsilon);
            return call.op_with("LayerNormalization", &[x, one], with);
        }
    }
    let keep = || With::default().int("keepdims", 1).int("noop_with_empty_axes", 1);
    let mean = call.op_with("ReduceMean", &[x, axes], keep())?;
    let centred = call.op("Sub", &[x, mean])?;
    if !scales {
        return Ok(centred);
    }
    let square = call.op("Mul", &[centred, centred])?;
    let mut spread = call.op_with("ReduceMean", &[square, axes], keep())?;
    let epsilon = call.scalar(dtype, epsilon)?;
    if inside {
        spread = call.op("Add", &[spread, epsilon])?;
    }
    spread = call.op("Sqrt", &[spread])?;
    if !inside {
        spread = call.op("Add", &[spread, epsilon])?;
    }
    call.op("Div", &[centred, spread])
}

fn batch(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    // The first version has the data behind scale and shift.
    let order = if call.layer.version == "opset1" { [2, 0, 1, 3, 4] } else { [0, 1, 2, 3, 4] };
    let operands = order.into_iter().map(|at| call.input(at)).collect::<Result<Vec<_>, _>>()?;
    let epsilon: f64 = call.number("epsilon", 1e-5)?;
    call.op_with("BatchNormalization", &operands, With::default().float("epsilon", epsilon))
}

fn l2(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let (x, axes, dtype) = (call.input(0)?, call.input(1)?, call.dtype(0)?);
    let epsilon: f64 = call.number("eps", 0.0)?;
    let epsilon = call.scalar(dtype, epsilon)?;
    let op = match call.text("eps_mode", "add") {
        "add" => "Add",
        "max" => "Max",
        other => {
            return Err(OpError::unsupported(format!("its eps_mode is {other}, which is not known here")));
        }
    };
    let square = call.op("Mul", &[x, x])?;
    let with = With::default().int("keepdims", 1).int("noop_with_empty_axes", 1);
    let sum = call.op_with("ReduceSum", &[square, axes], with)?;
    let sum = call.op(op, &[sum, epsilon])?;
    let length = call.op("Sqrt", &[sum])?;
    call.op("Div", &[x, length])
}

fn lrn(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let x = call.input(0)?;
    if call.ints_of(1)? != [1] {
        return Err(OpError::unsupported(
            "it is along other axes than the channels, which is not known here",
        ));
    }
    let (alpha, beta, bias, size): (f64, f64, f64, i64) = (
        call.number("alpha", 1e-4)?,
        call.number("beta", 0.75)?,
        call.number("bias", 1.0)?,
        call.number("size", 5)?,
    );
    let with =
        With::default().float("alpha", alpha).float("beta", beta).float("bias", bias).int("size", size);
    call.op_with("LRN", &[x], with)
}

fn group(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let operands = [call.input(0)?, call.input(1)?, call.input(2)?];
    let (groups, epsilon): (i64, f64) = (call.number("num_groups", 1)?, call.number("epsilon", 1e-5)?);
    call.op_with(
        "GroupNormalization",
        &operands,
        With::default().int("num_groups", groups).float("epsilon", epsilon),
    )
}
