//! Products of matrices, and convolutions.

use super::{Conversion, Made, one};
use crate::build::With;
use stepalloc_graph::ValueId;
use stepalloc_tensor::{DataType, OpError};

pub(super) fn convert(call: &mut Conversion<'_, '_, '_>) -> Made {
    let made = match call.layer.kind {
        "MatMul" => product(call),
        "Einsum" => einsum(call),
        "Convolution" => convolution(call, false),
        "GroupConvolution" => convolution(call, true),
        "ConvolutionBackpropData" => transposed(call, false),
        "GroupConvolutionBackpropData" => transposed(call, true),
        "DeformableConvolution" => deformable(call),
        _ => return None,
    };
    one(made)
}

/// Where matrices are given turned, they are read so: weights stay where they are.
fn product(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let operands = [call.input(0)?, call.input(1)?];
    let mut turned = [call.flag("transpose_a", false)?, call.flag("transpose_b", false)?];
    for (at, turned) in turned.iter_mut().enumerate() {
        *turned &= call.dims(at)?.len() != 1;
    }
    if turned == [false; 2] {
        return call.op("MatMul", &operands);
    }
    let with = With::default().int("transA", turned[0]).int("transB", turned[1]);
    if call.dims(0)?.len() == 2 && call.dims(1)?.len() == 2 {
        return call.op_with("Gemm", &operands, with);
    }
    call.op_with("com.microsoft.FusedMatMul", &operands, with)
}

fn einsum(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let operands: Vec<_> = call.inputs.iter().map(|operand| operand.id).collect();
    call.op_with("Einsum", &operands, With::default().text("equation", call.text("equation", "")))
}

/// What all windows are told: steps, and what lies around.
pub(super) fn window(call: &Conversion<'_, '_, '_>) -> Result<With, OpError> {
    let mut with = With::default();
    for name in ["strides", "dilations"] {
        let values: Vec<i64> = call.numbers(name)?;
        if !values.is_empty() {
            with = with.ints(name, values);
        }
    }
    Ok(match call.text("auto_pad", "explicit").to_ascii_lowercase().as_str() {
        "explicit" | "notset" => {
            let mut pads: Vec<i64> = call.numbers("pads_begin")?;
            pads.extend(call.numbers::<i64>("pads_end")?);
            if pads.is_empty() { with } else { with.ints("pads", pads) }
        }
        "same_upper" => with.text("auto_pad", "SAME_UPPER"),
        "same_lower" => with.text("auto_pad", "SAME_LOWER"),
        "valid" => with.text("auto_pad", "VALID"),
        other => {
            return Err(OpError::unsupported(format!("its auto_pad is {other}, which is not known here")));
        }
    })
}

/// Weights, and the number of groups: where there are groups, their number is the first dimension.
fn weights(call: &mut Conversion<'_, '_, '_>, at: usize, grouped: bool) -> Result<(ValueId, i64), OpError> {
    let weights = call.input(at)?;
    if !grouped {
        return Ok((weights, 1));
    }
    let shape: Vec<_> = call.fixed(at)?.into_iter().map(|size| size as i64).collect();
    let [groups, first, rest @ ..] = &shape[..] else {
        return Err(OpError::shape("its weights have no dimension for the groups"));
    };
    // What follows is counted within each group.
    let all = groups.checked_mul(*first).ok_or_else(|| OpError::shape("its weights are too large"))?;
    let mut flat = vec![all];
    flat.extend(rest);
    Ok((call.reshape(weights, &flat)?, *groups))
}

fn convolution(call: &mut Conversion<'_, '_, '_>, grouped: bool) -> Result<ValueId, OpError> {
    let with = window(call)?;
    let (x, (weights, groups)) = (call.input(0)?, weights(call, 1, grouped)?);
    let (with, dtype) = (with.int("group", groups), call.dtype(0)?);
    if dtype.is_float() {
        return call.op_with("Conv", &[x, weights], with);
    }
    // Integers are computed exactly in numbers that hold them.
    let (x, weights) = (call.cast(x, DataType::F64)?, call.cast(weights, DataType::F64)?);
    let made = call.op_with("Conv", &[x, weights], with)?;
    call.cast(made, dtype)
}

fn transposed(call: &mut Conversion<'_, '_, '_>, grouped: bool) -> Result<ValueId, OpError> {
    let is_upper = call.text("auto_pad", "explicit").eq_ignore_ascii_case("same_upper");
    let is_same = is_upper || call.text("auto_pad", "explicit").eq_ignore_ascii_case("same_lower");
    let mut with = window(call)?;
    let padding: Vec<i64> = call.numbers("output_padding")?;
    if !padding.is_empty() {
        with = with.ints("output_padding", padding);
    }
    if call.opt(2).is_some() {
        // What is cut off follows from the shape; where one end loses more, it is the other one than in ONNX.
        let cut = if is_upper { "SAME_LOWER" } else { "SAME_UPPER" };
        with = with.without("pads").ints("output_shape", call.ints_of(2)?).text("auto_pad", cut);
    } else if is_same {
        with = with.text("auto_pad", "VALID");
    }
    let (x, (weights, groups)) = (call.input(0)?, weights(call, 1, grouped)?);
    call.op_with("ConvTranspose", &[x, weights], with.int("group", groups))
}

fn deformable(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    if !call.flag("bilinear_interpolation_pad", false)? {
        return Err(OpError::unsupported("its bilinear_interpolation_pad is false, which is not known here"));
    }
    let with = window(call)?;
    let (groups, offsets): (i64, i64) = (call.number("group", 1)?, call.number("deformable_group", 1)?);
    let [x, offset, weights] = [call.input(0)?, call.input(1)?, call.input(2)?];
    let with = with.int("group", groups).int("offset_group", offsets);
    let operands = [Some(x), Some(weights), Some(offset), None, call.opt(3)];
    let count = if operands[4].is_some() { 5 } else { 3 };
    call.node("DeformConv", &operands[..count], with, &[true])?[0]
        .ok_or_else(|| OpError::internal("it makes nothing"))
}
