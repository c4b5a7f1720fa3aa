//! Images of another size.

use super::{Conversion, Made, one};
use crate::build::With;
use stepalloc_graph::ValueId;
use stepalloc_tensor::{DataType, OpError};

pub(super) fn convert(call: &mut Conversion<'_, '_, '_>) -> Made {
    match call.layer.kind {
        "Interpolate" => one(interpolate(call)),
        _ => None,
    }
}

fn interpolate(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    // Up to opset 4 sizes and scales are two inputs.
    let (scales_at, axes_at) = match call.layer.version {
        "opset4" => (2, 3),
        "opset11" => (1, 2),
        other => {
            return Err(OpError::unsupported(format!("it is of {other}; those of opset 4 and 11 are known")));
        }
    };
    let x = call.input(0)?;
    for name in ["pads_begin", "pads_end"] {
        if call.numbers::<i64>(name)?.iter().any(|&pad| pad != 0) {
            return Err(OpError::unsupported("it pads, which is not known here"));
        }
    }
    let mode = match call.text("mode", "nearest") {
        "nearest" => "nearest",
        "linear" | "linear_onnx" => "linear",
        "cubic" => "cubic",
        other => return Err(OpError::unsupported(format!("its mode is {other}, which is not known here"))),
    };
    let place = match call.text("coordinate_transformation_mode", "half_pixel") {
        place @ ("half_pixel" | "pytorch_half_pixel" | "asymmetric" | "align_corners") => place,
        other => {
            return Err(OpError::unsupported(format!(
                "its coordinate_transformation_mode is {other}, which is not known here"
            )));
        }
    };
    let nearest = match call.text("nearest_mode", "round_prefer_floor") {
        nearest @ ("round_prefer_floor" | "round_prefer_ceil" | "floor" | "ceil") => nearest,
        _ if mode != "nearest" => "round_prefer_floor",
        other => {
            return Err(OpError::unsupported(format!(
                "its nearest_mode is {other}, which is not known here"
            )));
        }
    };
    let (coefficient, antialias) = (call.number("cube_coeff", -0.75)?, call.flag("antialias", false)?);
    let mut with = With::default()
        .text("mode", mode)
        .text("coordinate_transformation_mode", place)
        .text("nearest_mode", nearest)
        .float("cubic_coeff_a", coefficient)
        .int("antialias", antialias);
    if call.opt(axes_at).is_some() {
        with = with.ints("axes", call.ints_of(axes_at)?);
    }
    let by_sizes = match call.text("shape_calculation_mode", "sizes") {
        "sizes" => true,
        "scales" => false,
        other => {
            return Err(OpError::unsupported(format!(
                "its shape_calculation_mode is {other}, which is not known here"
            )));
        }
    };
    let (scales, sizes) = if by_sizes {
        let sizes = call.input(1)?;
        (None, Some(call.cast(sizes, DataType::I64)?))
    } else {
        let scales = call.input(scales_at)?;
        (Some(call.cast(scales, DataType::F32)?), None)
    };
    let operands = [Some(x), None, scales, sizes];
    let count = if by_sizes { 4 } else { 3 };
    call.node("Resize", &operands[..count], with, &[true])?[0]
        .ok_or_else(|| OpError::internal("it makes nothing"))
}
