//! What moves elements: joined, parted, turned, padded.

use super::{Conversion, Made, one};
use crate::build::With;
use stepalloc_graph::ValueId;
use stepalloc_tensor::{DataType, OpError};

pub(super) fn convert(call: &mut Conversion<'_, '_, '_>) -> Made {
    let made = match call.layer.kind {
        "Transpose" => transpose(call),
        "Concat" => concat(call),
        "Split" => return Some(split(call)),
        "VariadicSplit" => return Some(variadic_split(call)),
        "Reverse" => reverse(call),
        "Roll" => roll(call),
        "ReverseSequence" => reverse_sequence(call),
        "Pad" => pad(call),
        "DepthToSpace" => depth_to_space(call),
        "SpaceToDepth" => space_to_depth(call),
        "ShuffleChannels" => shuffle_channels(call),
        _ => return None,
    };
    one(made)
}

fn transpose(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let x = call.input(0)?;
    let order = call.ints_of(1)?;
    let with = if order.is_empty() { With::default() } else { With::default().ints("perm", order) };
    call.op_with("Transpose", &[x], with)
}

fn concat(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let parts: Vec<_> = call.inputs.iter().map(|operand| operand.id).collect();
    let axis: i64 = call.number("axis", 0)?;
    call.op_with("Concat", &parts, With::default().int("axis", axis))
}

fn split(call: &mut Conversion<'_, '_, '_>) -> Result<Vec<Option<ValueId>>, OpError> {
    let (x, axis) = (call.input(0)?, call.int_of(1)?);
    let parts = call.wanted.len();
    if call.number("num_splits", parts)? != parts {
        return Err(OpError::arity(format!(
            "it has {parts} outputs, and num_splits {:?}",
            call.text("num_splits", "")
        )));
    }
    let with = With::default().int("axis", axis).int("num_outputs", parts as i64);
    // All of them: their number says where each begins.
    call.node("Split", &[Some(x)], with, &vec![true; parts])
}

fn variadic_split(call: &mut Conversion<'_, '_, '_>) -> Result<Vec<Option<ValueId>>, OpError> {
    let (x, axis, mut lengths) = (call.input(0)?, call.int_of(1)?, call.input(2)?);
    let parts = call.wanted.len();
    // One length may be what is left.
    if let Some(mut known) = call.known_ints(2)
        && let Some(at) = known.iter().position(|&length| length == -1)
    {
        known[at] = 0;
        let rest = known
            .iter()
            .try_fold(0i64, |all, &length| all.checked_add(length))
            .ok_or_else(|| OpError::shape("its parts are too long"))?;
        let size = call.op("Shape", &[x])?;
        let which = call.ints(&[axis])?;
        let (size, rest) = (call.op("Gather", &[size, which])?, call.ints(&[rest])?);
        let mut pieces = vec![call.op("Sub", &[size, rest])?];
        if at > 0 {
            pieces.insert(0, call.ints(&known[..at])?);
        }
        if at + 1 < known.len() {
            pieces.push(call.ints(&known[at + 1..])?);
        }
        lengths = call.op_with("Concat", &pieces, With::default().int("axis", 0))?;
    } else if call.dtype(2)? != DataType::I64 {
        lengths = call.cast(lengths, DataType::I64)?;
    }
    call.node("Split", &[Some(x), Some(lengths)], With::default().int("axis", axis), &vec![true; parts])
}

fn reverse(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let x = call.input(0)?;
    let axes = match (call.text("mode", "index"), call.ints_of(1)?) {
        ("index", axes) => axes,
        (_, mask) => (0..mask.len()).filter(|&at| mask[at] != 0).map(|at| at as i64).collect(),
    };
    call.reversed(x, &axes)
}

fn reverse_sequence(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let (x, lengths) = (call.input(0)?, call.input(1)?);
    let lengths = call.cast(lengths, DataType::I64)?;
    let (batch, time): (i64, i64) = (call.number("batch_axis", 0)?, call.number("seq_axis", 1)?);
    call.op_with(
        "ReverseSequence",
        &[x, lengths],
        With::default().int("batch_axis", batch).int("time_axis", time),
    )
}

fn pad(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let (x, begin, end) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let mode = match call.text("pad_mode", "constant") {
        mode @ ("constant" | "edge" | "reflect") => mode,
        other => {
            return Err(OpError::unsupported(format!("its pad_mode is {other}, which is not known here")));
        }
    };
    let (begin, end) = (call.cast(begin, DataType::I64)?, call.cast(end, DataType::I64)?);
    let pads = call.op_with("Concat", &[begin, end], With::default().int("axis", 0))?;
    let mut operands = vec![x, pads];
    operands.extend(call.opt(3).filter(|_| mode == "constant"));
    call.op_with("Pad", &operands, With::default().text("mode", mode))
}

fn depth_to_space(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let x = call.input(0)?;
    let mode = if call.text("mode", "blocks_first") == "depth_first" { "CRD" } else { "DCR" };
    let size: i64 = call.number("block_size", 1)?;
    call.op_with("DepthToSpace", &[x], With::default().int("blocksize", size).text("mode", mode))
}

fn space_to_depth(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let x = call.input(0)?;
    let size: i64 = call.number("block_size", 1)?;
    if call.text("mode", "blocks_first") == "blocks_first" {
        return call.op_with("SpaceToDepth", &[x], With::default().int("blocksize", size));
    }
    Err(OpError::unsupported("its mode is depth_first, which is not known here"))
}

/// Channels in groups, the first of each group first.
fn shuffle_channels(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let x = call.input(0)?;
    let (axis, group): (i64, usize) = (call.number("axis", 1)?, call.number("group", 1)?);
    let dims = call.dims(0)?;
    let axis = stepalloc_tensor::axis(axis, call.rank(0)?)?;
    let channels = dims[axis].ok_or_else(|| OpError::unsupported("its channels have no fixed number"))?;
    if group == 0 || !channels.is_multiple_of(group) {
        return Err(OpError::shape(format!("{channels} channels cannot be put into {group} groups")));
    }
    // Zeros keep the sizes in front.
    let mut sizes = vec![0; axis];
    sizes.extend([group as i64, (channels / group) as i64, -1]);
    let grouped = call.reshape(x, &sizes)?;
    let mut order: Vec<_> = (0..axis + 3).collect();
    order.swap(axis, axis + 1);
    let turned = call.transpose(grouped, &order)?;
    let shape = call.op("Shape", &[x])?;
    call.op("Reshape", &[turned, shape])
}

/// Elements move along axes, and from the end to the beginning.
fn roll(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let (mut x, shifts, axes) = (call.input(0)?, call.ints_of(1)?, call.ints_of(2)?);
    let (dims, rank) = (call.dims(0)?, call.rank(0)?);
    if shifts.len() != axes.len() && shifts.len() != 1 {
        return Err(OpError::arity(format!("it has {} shifts for {} axes", shifts.len(), axes.len())));
    }
    for (at, &given) in axes.iter().enumerate() {
        let axis = stepalloc_tensor::axis(given, rank)?;
        let size = dims[axis]
            .ok_or_else(|| OpError::unsupported(format!("its axis {axis} has no fixed size")))?
            as i64;
        let shift = shifts[at.min(shifts.len() - 1)].rem_euclid(size.max(1));
        if shift == 0 {
            continue;
        }
        let (begin, middle, end) = (call.ints(&[0])?, call.ints(&[size - shift])?, call.ints(&[i64::MAX])?);
        let axes = call.ints(&[axis as i64])?;
        let (front, back) =
            (call.op("Slice", &[x, begin, middle, axes])?, call.op("Slice", &[x, middle, end, axes])?);
        x = call.op_with("Concat", &[back, front], With::default().int("axis", axis as i64))?;
    }
    Ok(x)
}
