//! Pools: the largest or the mean of a window.

use super::window::window;
use super::{Conversion, Made};
use crate::build::With;
use stepalloc_graph::ValueId;
use stepalloc_tensor::{DataType, OpError};

pub(super) fn convert(call: &mut Conversion<'_, '_, '_>) -> Made {
    Some(match call.layer.kind {
        "MaxPool" => max(call),
        "AvgPool" => mean(call),
        "AdaptiveAvgPool" => adaptive(call, "AveragePool"),
        "AdaptiveMaxPool" => adaptive(call, "MaxPool"),
        _ => return None,
    })
}

/// What both are told.
fn pool(call: &Conversion<'_, '_, '_>) -> Result<With, OpError> {
    let mut with = window(call)?;
    let kernel: Vec<i64> = call.numbers("kernel")?;
    let rounds_up = match call.text("rounding_type", "floor").to_ascii_lowercase().as_str() {
        "floor" => false,
        "ceil" | "ceil_torch" => true,
        other => {
            return Err(OpError::unsupported(format!(
                "its rounding_type is {other}, which is not known here"
            )));
        }
    };
    if rounds_up && call.text("rounding_type", "") != "ceil_torch" {
        fits(call, &kernel)?;
    }
    with = with.ints("kernel_shape", kernel).int("ceil_mode", rounds_up);
    Ok(with)
}

/// `ceil` has a last window even where it begins behind the image, which ONNX's operators leave out: known by the size of the output.
fn fits(call: &Conversion<'_, '_, '_>, kernel: &[i64]) -> Result<(), OpError> {
    let (dims, made) = (call.dims(0)?, &call.layer.outputs);
    let strides: Vec<i64> = call.numbers("strides")?;
    let begin: Vec<i64> = call.numbers("pads_begin")?;
    let made = made.first().map_or(&[][..], |port| &port.dims);
    for at in 0..kernel.len() {
        let (Some(&Some(size)), Some(&Some(windows))) = (dims.get(at + 2), made.get(at + 2)) else {
            continue;
        };
        let (stride, begin) = (strides.get(at).copied().unwrap_or(1), begin.get(at).copied().unwrap_or(0));
        let last = (windows as i64 - 1)
            .checked_mul(stride)
            .ok_or_else(|| OpError::attribute("its stride is too large"))?;
        if last >= (size as i64).saturating_add(begin) {
            return Err(OpError::unsupported(
                "its last window begins behind the image: rounding_type ceil is not known so",
            ));
        }
    }
    Ok(())
}

fn max(call: &mut Conversion<'_, '_, '_>) -> Result<Vec<Option<ValueId>>, OpError> {
    let (x, with) = (call.input(0)?, pool(call)?);
    let places = call.wanted.get(1).copied().unwrap_or(false);
    if places && call.number("axis", 0i64)? != 0 {
        return Err(OpError::unsupported("its places count from an axis that is not the first"));
    }
    let mut made = call.node("MaxPool", &[Some(x)], with, &[true, places][..if places { 2 } else { 1 }])?;
    let dtype = call.type_of("index_element_type")?.unwrap_or(DataType::I64);
    if let Some(Some(places)) = made.get_mut(1)
        && dtype != DataType::I64
    {
        *places = call.cast(*places, dtype)?;
    }
    made.resize(call.wanted.len().max(1), None);
    Ok(made)
}

fn mean(call: &mut Conversion<'_, '_, '_>) -> Result<Vec<Option<ValueId>>, OpError> {
    let (x, with) = (call.input(0)?, pool(call)?);
    let with = with.int("count_include_pad", !call.flag("exclude-pad", false)?);
    Ok(vec![Some(call.op_with("AveragePool", &[x], with)?)])
}

/// Windows that follow from the output's size: known where they are all of one size and do not overlap.
fn adaptive(call: &mut Conversion<'_, '_, '_>, op: &str) -> Result<Vec<Option<ValueId>>, OpError> {
    if call.wanted.get(1).copied().unwrap_or(false) {
        return Err(OpError::unsupported("its places are wanted, which is not known here"));
    }
    let (x, sizes) = (call.input(0)?, call.ints_of(1)?);
    let mut made = if sizes.iter().all(|&size| size == 1) {
        vec![Some(call.op(&format!("Global{op}"), &[x])?)]
    } else {
        let dims = call.fixed(0)?;
        let mut kernel = Vec::new();
        for (at, &size) in sizes.iter().enumerate() {
            let whole = dims.get(at + 2).copied().unwrap_or_default() as i64;
            if size < 1 || whole % size != 0 {
                return Err(OpError::unsupported(format!(
                    "its {size} windows of {whole} elements are of several sizes"
                )));
            }
            kernel.push(whole / size);
        }
        let with = With::default().ints("strides", kernel.clone()).ints("kernel_shape", kernel);
        vec![Some(call.op_with(op, &[x], with)?)]
    };
    made.resize(call.wanted.len().max(1), None);
    Ok(made)
}
