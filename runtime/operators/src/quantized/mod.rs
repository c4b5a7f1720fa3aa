//! Operators on bytes with scales and zero points, which a pass makes of nodes between `DequantizeLinear` and `QuantizeLinear`.
//!
//! Scales and zero points of tensors are constants, so that what follows from them is computed when a model is loaded.

mod binary;
mod conv;
mod product;
mod table;

use super::{Call, Definition, Known, Made, Operator, Unclear, typed};
use stepalloc_graph::Attributes;
use stepalloc_kernels::gemm::dot4::Rounded;
use stepalloc_kernels::no;
use stepalloc_tensor::{DataType, Type};

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
fn made_type(attributes: &Attributes) -> Result<DataType, String> {
    let number = attributes.int("y_type", DataType::U8 as i64);
    i32::try_from(number)
        .ok()
        .and_then(DataType::from_onnx)
        .ok_or_else(|| format!("its y_type is {number}, no element type that is known"))
}

/// How results become bytes of a type.
fn rounded(attributes: &Attributes, dtype: DataType) -> Result<Rounded, String> {
    let (least, most) = match dtype {
        DataType::U8 => (0, 255),
        DataType::I8 => (-128, 127),
        _ => return Err(no(dtype)),
    };
    let bound =
        |name: &str, usual: i32| attributes.int(name, usual.into()).clamp(least.into(), most.into()) as i32;
    let (told_least, told_most) = (bound("least", least), bound("most", most));
    if told_least > told_most {
        return Err(format!("its least byte {told_least} is above its largest {told_most}"));
    }
    Ok(Rounded { zero: bound("y_zero", 0), least: told_least, most: told_most })
}

/// Checks that an input has bytes, and gives what makes them the other kind where they are not of the kind that is wanted.
fn flip(dtype: DataType, wanted: DataType) -> Result<u8, String> {
    match dtype {
        DataType::U8 | DataType::I8 => Ok(if dtype == wanted { 0 } else { 0x80 }),
        _ => Err(no(dtype)),
    }
}
