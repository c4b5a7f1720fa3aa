//! What is read and written by indices.

use super::{Conversion, Made, one};
use crate::build::With;
use stepalloc_graph::ValueId;
use stepalloc_tensor::{DataType, OpError};

pub(super) fn convert(call: &mut Conversion<'_, '_, '_>) -> Made {
    let made = match call.layer.kind {
        "Gather" => gather(call),
        "GatherElements" => gather_elements(call),
        "GatherND" => gather_nd(call),
        "ScatterElementsUpdate" => scatter_elements(call),
        "ScatterNDUpdate" => scatter_nd(call),
        "ScatterUpdate" => scatter(call),
        "OneHot" => one_hot(call),
        "NonZero" => non_zero(call),
        "TopK" => return Some(top_k(call)),
        "Unique" => return Some(unique(call)),
        _ => return None,
    };
    one(made)
}

/// A number that counts dimensions, from the end where it is negative.
fn count_of(count: i64, rank: usize) -> Result<usize, OpError> {
    let counted = if count < 0 { count + rank as i64 } else { count };
    let within = usize::try_from(counted).ok().filter(|&counted| counted <= rank);
    within.ok_or_else(|| OpError::attribute(format!("its batch_dims is {count}, of {rank} dimensions")))
}

fn gather(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let (x, indices, axis) = (call.input(0)?, call.indices(1)?, call.int_of(2)?);
    let given: i64 = call.number("batch_dims", 0)?;
    let batch = if given == 0 { 0 } else { count_of(given, call.rank(1)?)? };
    if batch == 0 {
        return call.op_with("Gather", &[x, indices], With::default().int("axis", axis));
    }
    // The axis behind the batches, then as many elements from there as there are indices.
    let (rank, taken) = (call.rank(0)?, call.rank(1)? - batch);
    let axis = stepalloc_tensor::axis(axis, rank)?;
    if axis < batch {
        return Err(OpError::attribute(format!("its axis {axis} is one of its {batch} batch_dims")));
    }
    let order: Vec<_> = (0..batch).chain([axis]).chain((batch..rank).filter(|&at| at != axis)).collect();
    let x = call.transpose(x, &order)?;
    let indices = call.cast(indices, DataType::I64)?;
    let indices = call.unsqueeze(indices, &[-1])?;
    let made = call.op_with("GatherND", &[x, indices], With::default().int("batch_dims", batch as i64))?;
    // Batches, indices, between, rest: what is between goes in front of the indices.
    let between = axis - batch;
    let order: Vec<_> = (0..batch)
        .chain(batch + taken..batch + taken + between)
        .chain(batch..batch + taken)
        .chain(batch + taken + between..rank - 1 + taken)
        .collect();
    call.transpose(made, &order)
}

fn gather_elements(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let (x, indices, axis): (_, _, i64) = (call.input(0)?, call.indices(1)?, call.number("axis", 0)?);
    call.op_with("GatherElements", &[x, indices], With::default().int("axis", axis))
}

fn gather_nd(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let (x, indices) = (call.input(0)?, call.input(1)?);
    let batch: i64 = call.number("batch_dims", 0)?;
    if batch > 1 && call.layer.version == "opset5" {
        return Err(OpError::unsupported(
            "it is of opset 5 with batch_dims above 1; that of opset 8 is known",
        ));
    }
    let indices = call.cast(indices, DataType::I64)?;
    call.op_with("GatherND", &[x, indices], With::default().int("batch_dims", batch))
}

/// What is done where several elements go to one place.
fn reduction(call: &Conversion<'_, '_, '_>) -> Result<With, OpError> {
    let reduction = match call.text("reduction", "none") {
        "none" => "none",
        "sum" => "add",
        "prod" => "mul",
        "min" => "min",
        "max" => "max",
        other => {
            return Err(OpError::unsupported(format!("its reduction is {other}, which is not known here")));
        }
    };
    if reduction != "none" && !call.flag("use_init_val", true)? {
        return Err(OpError::unsupported("its use_init_val is false, which is not known here"));
    }
    Ok(With::default().text("reduction", reduction))
}

fn scatter_elements(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let operands = [call.input(0)?, call.indices(1)?, call.input(2)?];
    let with = reduction(call)?.int("axis", call.int_of(3)?);
    call.op_with("ScatterElements", &operands, with)
}

fn scatter_nd(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let [x, indices, updates] = [call.input(0)?, call.input(1)?, call.input(2)?];
    let indices = call.cast(indices, DataType::I64)?;
    let with = reduction(call)?;
    call.op_with("ScatterND", &[x, indices, updates], with)
}

/// Slices along an axis are replaced.
fn scatter(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let [mut x, indices, mut updates] = [call.input(0)?, call.input(1)?, call.input(2)?];
    let (axis, rank) = (stepalloc_tensor::axis(call.int_of(3)?, call.rank(0)?)?, call.rank(0)?);
    let order: Vec<_> = [axis].into_iter().chain((0..rank).filter(|&at| at != axis)).collect();
    if axis > 0 {
        // Updates have the indices' dimensions in the place of the axis.
        let all = call.rank(2)?;
        let taken = (all + 1)
            .checked_sub(rank)
            .ok_or_else(|| OpError::shape("its updates have too few dimensions"))?;
        let front: Vec<_> = (axis..axis + taken).chain(0..axis).chain(axis + taken..all).collect();
        (x, updates) = (call.transpose(x, &order)?, call.transpose(updates, &front)?);
    }
    let indices = call.cast(indices, DataType::I64)?;
    let indices = call.unsqueeze(indices, &[-1])?;
    let made = call.op("ScatterND", &[x, indices, updates])?;
    let back: Vec<_> = (1..=axis).chain([0]).chain(axis + 1..rank).collect();
    call.transpose(made, &back)
}

fn one_hot(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let [indices, depth, on, off] = [call.input(0)?, call.input(1)?, call.input(2)?, call.input(3)?];
    let axis: i64 = call.number("axis", -1)?;
    let (on, off) = (call.reshape(on, &[1])?, call.reshape(off, &[1])?);
    let values = call.op_with("Concat", &[off, on], With::default().int("axis", 0))?;
    call.op_with("OneHot", &[indices, depth, values], With::default().int("axis", axis))
}

fn non_zero(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let x = call.input(0)?;
    let made = call.op("NonZero", &[x])?;
    match call.type_of("output_type")?.unwrap_or(DataType::I64) {
        DataType::I64 => Ok(made),
        other => call.cast(made, other),
    }
}

fn top_k(call: &mut Conversion<'_, '_, '_>) -> Result<Vec<Option<ValueId>>, OpError> {
    let (x, count) = (call.input(0)?, call.input(1)?);
    let axis: i64 = call.number("axis", -1)?;
    if call.text("sort", "value") == "index" {
        return Err(OpError::unsupported("its elements are sorted by index, which is not known here"));
    }
    let largest = call.text("mode", "max") == "max";
    let count = call.reshape(count, &[1])?;
    let count = call.cast(count, DataType::I64)?;
    let with = With::default().int("axis", axis).int("largest", largest).int("sorted", 1);
    let mut made = call.node("TopK", &[Some(x), Some(count)], with, &[true, true])?;
    let dtype = call.type_of("index_element_type")?.unwrap_or(DataType::I32);
    if let Some(Some(places)) = made.get_mut(1)
        && dtype != DataType::I64
    {
        *places = call.cast(*places, dtype)?;
    }
    Ok(made)
}

fn unique(call: &mut Conversion<'_, '_, '_>) -> Result<Vec<Option<ValueId>>, OpError> {
    let x = call.input(0)?;
    let mut with = With::default().int("sorted", call.flag("sorted", true)?);
    if call.opt(1).is_some() {
        with = with.int("axis", call.int_of(1)?);
    }
    let mut made = call.node("Unique", &[Some(x)], with, &[true; 4])?;
    for (at, id) in made.iter_mut().enumerate().skip(1) {
        let name = if at == 3 { "count_element_type" } else { "index_element_type" };
        let dtype = call.type_of(name)?.unwrap_or(DataType::I64);
        if let Some(id) = id.as_mut().filter(|_| dtype != DataType::I64) {
            *id = call.cast(*id, dtype)?;
        }
    }
    Ok(made)
}
