//! Operators on bytes with scales and zero points, which a pass makes of nodes between `DequantizeLinear` and `QuantizeLinear`.
//!
//! Scales and zero points of tensors are constants, so that what follows from them is computed when a model is loaded.

mod binary;
mod conv;
mod product;
mod table;

pub(super) use table::look_up;

use super::{Call, Definition, Known, Made, Operator, Types, Unclear, integer, typed};
use stepalloc_graph::Attributes;
use stepalloc_kernels::{no, scales::Rounded};
use stepalloc_tensor::{DataType, OpError, Type};

pub(super) fn make(node: &Definition<'_>) -> Made {
    Some(match node.op {
        "QuantizedConv" => conv::Conv::new(node).map(|made| Box::new(made) as _),
        "QuantizedMatMul" => product::MatMul::new(node).map(|made| Box::new(made) as _),
        "QuantizedAdd" => binary::Binary::new(node, |a, b| a + b).map(|made| Box::new(made) as _),
        "QuantizedSub" => binary::Binary::new(node, |a, b| a - b).map(|made| Box::new(made) as _),
        "QuantizedMul" => binary::Binary::new(node, |a, b| a * b).map(|made| Box::new(made) as _),
        "QuantizedDiv" => binary::Binary::new(node, |a, b| a / b).map(|made| Box::new(made) as _),
        "ByteTable" => table::Table::new(node).map(|made| Box::new(made) as _),
        _ => return None,
    })
}

/// The type of an output, as `y_type` says it.
fn made_type(attributes: &Attributes) -> Result<DataType, OpError> {
    let number = attributes.int("y_type", DataType::U8 as i64);
    i32::try_from(number)
        .ok()
        .and_then(DataType::from_onnx)
        .ok_or_else(|| OpError::attribute(format!("its y_type is {number}, no element type that is known")))
}

/// How results become bytes of a type.
fn rounded(attributes: &Attributes, dtype: DataType) -> Result<Rounded, OpError> {
    let all = Rounded::new(dtype, 0).ok_or_else(|| no(dtype))?;
    let told = |name: &str, usual: i32| {
        attributes.int(name, usual.into()).clamp(all.least.into(), all.most.into()) as i32
    };
    let (least, most) = (told("least", all.least), told("most", all.most));
    if least > most {
        return Err(OpError::attribute(format!("its least byte {least} is above its largest {most}")));
    }
    Ok(Rounded { zero: told("y_zero", 0), least, most })
}

/// Checks that an input, if it is there, is one element of a type.
fn is_one(inputs: &Known<'_>, index: usize, dtype: DataType) -> Result<(), OpError> {
    match inputs.opt(index) {
        Some(one) if one.dtype != dtype || one.elements() != 1 => Err(OpError::operand(
            one,
            dtype,
            format!("its input {index} is {one}, not one element of {dtype}"),
        )),
        _ => Ok(()),
    }
}

/// Checks that an input has bytes, and gives what makes them the other kind where they are not of the kind that is wanted.
fn flip(dtype: DataType, wanted: DataType) -> Result<u8, OpError> {
    match dtype {
        DataType::U8 | DataType::I8 => Ok(integer::flip(dtype, wanted)),
        _ => Err(no(dtype)),
    }
}
