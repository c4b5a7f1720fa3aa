//! Shapes, and what is laid out anew without being moved.

use super::{Conversion, Made, one};
use crate::build::With;
use stepalloc_graph::ValueId;
use stepalloc_tensor::{DataType, OpError};

pub(super) fn convert(call: &mut Conversion<'_, '_, '_>) -> Made {
    let made = match call.layer.kind {
        "ShapeOf" => shape_of(call),
        "Reshape" => reshape(call),
        "Squeeze" => squeeze(call),
        "Unsqueeze" => {
            let operands = call.input(0).and_then(|x| Ok([x, call.indices(1)?]));
            operands.and_then(|operands| call.op("Unsqueeze", &operands))
        }
        "Range" => range(call),
        "Broadcast" => broadcast(call),
        "Tile" => tile(call),
        "Eye" => eye(call),
        _ => return None,
    };
    one(made)
}

fn shape_of(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let x = call.input(0)?;
    let shape = call.op("Shape", &[x])?;
    match call.type_of("output_type")?.unwrap_or(DataType::I64) {
        DataType::I64 => Ok(shape),
        other => call.cast(shape, other),
    }
}

fn reshape(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let (x, sizes) = (call.input(0)?, call.indices(1)?);
    let zeros_stay = call.flag("special_zero", false)?;
    call.op_with("Reshape", &[x, sizes], With::default().int("allowzero", !zeros_stay))
}

fn squeeze(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let x = call.input(0)?;
    if call.opt(1).is_none() {
        return call.op("Squeeze", &[x]);
    }
    let axes = call.indices(1)?;
    call.op("Squeeze", &[x, axes])
}

fn range(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let own = call.dtype(0)?;
    let dtype = call.type_of("output_type")?.unwrap_or(own);
    let mut bounds = [0; 3];
    for (at, bound) in bounds.iter_mut().enumerate() {
        let x = call.input(at)?;
        // One number, whatever shape it is in.
        let x = call.reshape(x, &[])?;
        *bound = if call.dtype(at)? == dtype { x } else { call.cast(x, dtype)? };
    }
    call.op("Range", &bounds)
}

fn broadcast(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let (mut x, shape) = (call.input(0)?, call.indices(1)?);
    match call.text("mode", "numpy").to_ascii_lowercase().as_str() {
        "numpy" | "bidirectional" => {}
        "explicit" => {
            let axes = call.ints_of(2)?;
            let others: Vec<_> = (0..call.length(1)? as i64).filter(|axis| !axes.contains(axis)).collect();
            x = call.unsqueeze(x, &others)?;
        }
        other => return Err(OpError::unsupported(format!("its mode is {other}, which is not known here"))),
    }
    call.op("Expand", &[x, shape])
}

/// The shorter of shape and repeats is filled up with ones in front.
fn tile(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let (mut x, mut repeats) = (call.input(0)?, call.input(1)?);
    repeats = call.cast(repeats, DataType::I64)?;
    if let (Ok(rank), Ok(given)) = (call.rank(0), call.length(1)) {
        if given < rank {
            let ones = call.ints(&vec![1; rank - given])?;
            repeats = call.op_with("Concat", &[ones, repeats], With::default().int("axis", 0))?;
        } else if given > rank {
            let axes: Vec<_> = (0..(given - rank) as i64).collect();
            x = call.unsqueeze(x, &axes)?;
        }
    }
    call.op("Tile", &[x, repeats])
}

fn eye(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    if call.opt(3).is_some_and(|_| call.ints_of(3).is_ok_and(|batch| !batch.is_empty())) {
        return Err(OpError::unsupported("it makes batches of matrices, which is not known here"));
    }
    let (rows, columns, diagonal) = (call.input(0)?, call.input(1)?, call.int_of(2)?);
    let (rows, columns) = (call.reshape(rows, &[1])?, call.reshape(columns, &[1])?);
    let (rows, columns) = (call.cast(rows, DataType::I64)?, call.cast(columns, DataType::I64)?);
    let shape = call.op_with("Concat", &[rows, columns], With::default().int("axis", 0))?;
    let zeros = call.op("ConstantOfShape", &[shape])?;
    let dtype = call.type_of("output_type")?.unwrap_or(DataType::F32);
    call.op_with("EyeLike", &[zeros], With::default().int("dtype", dtype as i32).int("k", diagonal))
}
