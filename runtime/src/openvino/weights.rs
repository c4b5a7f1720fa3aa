//! The elements of constants: parts of the file .bin.

use super::xml::{Layer, dtype};
use crate::element::DataType;
use crate::tensor::{Tensor, Type};
use prost::bytes::Bytes;

/// The tensor of a layer `Const`.
pub(super) fn constant(layer: &Layer<'_>, weights: &Bytes) -> Result<Tensor, String> {
    let text = |name: &str| layer.data(name).ok_or_else(|| format!("it has no {name}"));
    let number = |name: &str| {
        let text = text(name)?;
        text.trim().parse::<usize>().map_err(|_| format!("its {name} is {text:?}"))
    };
    let ty = Type::new(element_type(layer)?, shape(text("shape")?)?)
        .ok_or_else(|| format!("a tensor of shape {:?} is too large", layer.data("shape")))?;
    let (offset, size) = (number("offset")?, number("size")?);
    let end = offset.checked_add(size).filter(|&end| end <= weights.len()).ok_or_else(|| {
        format!("its {size} bytes at {offset} are not in the weights, which have {}", weights.len())
    })?;
    if size != ty.bytes() {
        return Err(format!("{ty} has {size} bytes instead of {}", ty.bytes()));
    }
    if cfg!(target_endian = "big") {
        return Err("weights are read on little-endian machines only".into());
    }
    Tensor::from_bytes(ty, weights.slice(offset..end)).ok_or_else(|| "it has too few bytes".into())
}

/// The type of elements a layer names.
pub(super) fn element_type(layer: &Layer<'_>) -> Result<DataType, String> {
    let text = layer.data("element_type").ok_or("it has no element_type")?;
    dtype(text).ok_or_else(|| {
        format!(
            "elements of type {text} are not known here: save the model with weights of i8, u8, f16 or f32"
        )
    })
}

/// A fixed shape: `1,3`, or nothing for a scalar.
fn shape(text: &str) -> Result<Vec<usize>, String> {
    let sizes = text.split(',').map(str::trim).filter(|size| !size.is_empty());
    sizes.map(|size| size.parse().map_err(|_| format!("its shape is {text:?}"))).collect()
}
