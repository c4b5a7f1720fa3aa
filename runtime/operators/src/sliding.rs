//! How the windows of convolutions and pools are laid out, by the attributes of a node.

use stepalloc_graph::Attributes;
use stepalloc_kernels::conv::window::{AutoPad, MOST, Sliding};
use stepalloc_tensor::OpError;

/// Windows as attributes say them.
pub(super) fn sliding(attributes: &Attributes) -> Result<Sliding, OpError> {
    let auto_pad = match attributes.text("auto_pad", "NOTSET") {
        "NOTSET" | "" => AutoPad::NotSet,
        "SAME_UPPER" => AutoPad::SameUpper,
        "SAME_LOWER" => AutoPad::SameLower,
        "VALID" => AutoPad::Valid,
        other => return Err(OpError::attribute(format!("auto_pad is {other:?}"))),
    };
    Ok(Sliding {
        kernel: sizes(attributes, "kernel_shape", 1)?,
        strides: sizes(attributes, "strides", 1)?,
        dilations: sizes(attributes, "dilations", 1)?,
        pads: sizes(attributes, "pads", 0)?,
        auto_pad,
        ceil: attributes.int("ceil_mode", 0) != 0,
    })
}

/// Numbers of an attribute that must be `least` at least.
pub(super) fn sizes(attributes: &Attributes, name: &str, least: i64) -> Result<Option<Vec<usize>>, OpError> {
    let Some(values) = attributes.ints(name) else { return Ok(None) };
    if values.iter().any(|&value| value < least || value > MOST) {
        return Err(OpError::attribute(format!("{name} are {values:?}: not between {least} and {MOST}")));
    }
    Ok(Some(values.into_iter().map(|value| value as usize).collect()))
}
