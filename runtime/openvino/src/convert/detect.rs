//! What finds and cuts out parts of images.

use super::{Conversion, Made, one};
use crate::build::With;
use stepalloc_graph::ValueId;
use stepalloc_tensor::{DataType, OpError};

pub(super) fn convert(call: &mut Conversion<'_, '_, '_>) -> Made {
    Some(match call.layer.kind {
        "GridSample" => return one(grid_sample(call)),
        "ROIAlign" => return one(roi_align(call)),
        "NonMaxSuppression" => select_boxes(call),
        _ => return None,
    })
}

fn grid_sample(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let (x, grid) = (call.input(0)?, call.input(1)?);
    let mode = match call.text("mode", "bilinear") {
        "bilinear" => "linear",
        "bicubic" => "cubic",
        other => other,
    };
    let with = With::default()
        .text("mode", mode)
        .text("padding_mode", call.text("padding_mode", "zeros"))
        .int("align_corners", call.flag("align_corners", false)?);
    call.op_with("GridSample", &[x, grid], with)
}

fn roi_align(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let [x, regions, batches] = [call.input(0)?, call.input(1)?, call.input(2)?];
    let batches = call.cast(batches, DataType::I64)?;
    let place = match call.text("aligned_mode", "asymmetric") {
        "asymmetric" => "output_half_pixel",
        "half_pixel" => "half_pixel",
        other => {
            return Err(OpError::unsupported(format!(
                "its aligned_mode is {other}, which is not known here"
            )));
        }
    };
    let (height, width, samples): (i64, i64, i64) =
        (call.number("pooled_h", 1)?, call.number("pooled_w", 1)?, call.number("sampling_ratio", 0)?);
    let with = With::default()
        .int("output_height", height)
        .int("output_width", width)
        .int("sampling_ratio", samples)
        .float("spatial_scale", call.number("spatial_scale", 1.0)?)
        .text("mode", call.text("mode", "avg"))
        .text("coordinate_transformation_mode", place);
    call.op_with("RoiAlign", &[x, regions, batches], with)
}

/// Boxes that overlap no better one: their places, their scores, their number.
fn select_boxes(call: &mut Conversion<'_, '_, '_>) -> Result<Vec<Option<ValueId>>, OpError> {
    let scores = call.input(1)?;
    if call.opt(5).is_some() && call.float_of(5)? != 0.0 {
        return Err(OpError::unsupported("its soft_nms_sigma is not 0, which is not known here"));
    }
    let many = call.dims(1)?.iter().take(2).any(|&size| size != Some(1));
    if call.flag("sort_result_descending", true)? && many {
        return Err(OpError::unsupported(
            "its result is sorted across batches and classes, which is not known here",
        ));
    }
    let mut operands = Vec::new();
    for at in 0..call.inputs.len().min(5) {
        let id = call.input(at)?;
        operands.push(match at {
            0 | 1 => id,
            2 => call.cast(id, DataType::I64)?,
            _ => call.cast(id, DataType::F32)?,
        });
    }
    let centre = call.text("box_encoding", "corner") == "center";
    let chosen =
        call.op_with("NonMaxSuppression", &operands, With::default().int("center_point_box", centre))?;
    let dtype = call.type_of("output_type")?.unwrap_or(DataType::I64);
    let places = if dtype == DataType::I64 { chosen } else { call.cast(chosen, dtype)? };
    let mut made = vec![Some(places)];
    let is_wanted = |call: &Conversion<'_, '_, '_>, at: usize| call.wanted.get(at).copied().unwrap_or(false);
    if is_wanted(call, 1) {
        // Batch, class, and score of each.
        let score_type = call.dtype(1)?;
        let score = call.op("GatherND", &[scores, chosen])?;
        let score = call.unsqueeze(score, &[-1])?;
        let (begin, end, axis) = (call.ints(&[0])?, call.ints(&[2])?, call.ints(&[1])?);
        let whose = call.op("Slice", &[chosen, begin, end, axis])?;
        let whose = call.cast(whose, score_type)?;
        made.push(Some(call.op_with("Concat", &[whose, score], With::default().int("axis", 1))?));
    } else {
        made.push(None);
    }
    if is_wanted(call, 2) {
        let shape = call.op("Shape", &[chosen])?;
        let first = call.ints(&[0])?;
        let count = call.op("Gather", &[shape, first])?;
        made.push(Some(call.cast(count, dtype)?));
    }
    Ok(made)
}
