//! The elements of constants: parts of the file .bin. Those of less than a byte are copied, and take a byte each.

use super::xml::{Layer, dtype};
use bytes::Bytes;
use stepalloc_tensor::raw::from_raw;
use stepalloc_tensor::{DataType, OpError, Tensor, Type};

/// The tensor of a layer `Const`.
pub(super) fn constant(layer: &Layer<'_>, weights: &Bytes) -> Result<Tensor, OpError> {
    let text = |name: &str| layer.data(name).ok_or_else(|| OpError::attribute(format!("it has no {name}")));
    let number = |name: &str| {
        let text = text(name)?;
        text.trim().parse::<usize>().map_err(|_| OpError::attribute(format!("its {name} is {text:?}")))
    };
    let ty = Type::new(element_type(layer)?, shape(text("shape")?)?)
        .ok_or_else(|| OpError::shape(format!("a tensor of shape {:?} is too large", layer.data("shape"))))?;
    let (offset, size) = (number("offset")?, number("size")?);
    let end = offset.checked_add(size).filter(|&end| end <= weights.len()).ok_or_else(|| {
        let all = weights.len();
        OpError::attribute(format!("its {size} bytes at {offset} are not in the weights, which have {all}"))
    })?;
    // No elements take a byte in some files.
    let end = if ty.elements() == 0 { offset } else { end };
    from_raw(ty, weights.slice(offset..end))
}

/// The type of elements a layer names.
pub(super) fn element_type(layer: &Layer<'_>) -> Result<DataType, OpError> {
    let text = layer.data("element_type").ok_or_else(|| OpError::attribute("it has no element_type"))?;
    dtype(text).ok_or_else(|| {
        OpError::unsupported(format!(
            "elements of type {text} are not known here: save the model with weights of i8, u8, f16 or f32"
        ))
    })
}

/// A fixed shape: `1,3`, or nothing for a scalar.
fn shape(text: &str) -> Result<Vec<usize>, OpError> {
    let sizes = text.split(',').map(str::trim).filter(|size| !size.is_empty());
    sizes.map(|size| size.parse().map_err(|_| OpError::attribute(format!("its shape is {text:?}")))).collect()
}
