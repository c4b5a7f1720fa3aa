//! Parts of tensors by bounds and steps.

use super::{Conversion, Made, one};
use stepalloc_graph::ValueId;
use stepalloc_tensor::{Bool, DataType, OpError, Tensor};

pub(super) fn convert(call: &mut Conversion<'_, '_, '_>) -> Made {
    match call.layer.kind {
        "Slice" => one(slice(call)),
        "StridedSlice" => one(strided(call)),
        _ => None,
    }
}

fn slice(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let [x, begin, end, step] = [call.input(0)?, call.input(1)?, call.input(2)?, call.input(3)?];
    let axes = match call.opt(4) {
        Some(axes) => axes,
        None => {
            let count = call.length(1)?;
            let axes: Vec<_> = (0..count as i64).collect();
            call.ints(&axes)?
        }
    };
    let mut operands = [begin, end, axes, step];
    for operand in &mut operands {
        *operand = call.cast(*operand, DataType::I64)?;
    }
    let [begin, end, axes, step] = operands;
    call.op("Slice", &[x, begin, end, axes, step])
}

/// What the entries of a strided slice stand for.
#[derive(Default)]
struct Entries {
    /// Entries that are bounds, and the axis of each; those behind an ellipsis count from the end.
    bounds: Vec<(usize, i64)>,
    /// Axes that are dropped, one element being taken.
    shrunk: Vec<i64>,
    /// Axes of the output that are new.
    new: Vec<i64>,
}

/// Which entries are bounds, which new axes, from masks.
fn entries(count: usize, is: &dyn Fn(&str, usize) -> bool) -> Result<Entries, OpError> {
    let mut entries = Entries::default();
    let ellipsis = (0..count).find(|&at| is("ellipsis_mask", at));
    let is_new = |at: usize| is("new_axis_mask", at);
    let is_shrunk = |at: usize| is("shrink_axis_mask", at) && !is_new(at);
    for at in (0..count).filter(|&at| Some(at) != ellipsis) {
        if ellipsis.is_some() && is("ellipsis_mask", at) {
            return Err(OpError::attribute("it has two ellipses"));
        }
        let behind = ellipsis.is_some_and(|ellipsis| at > ellipsis);
        let others = if behind { at..count } else { 0..at };
        // In the input no axis is new, and in the output none is dropped.
        let taken = others.clone().filter(|&other| !is_new(other)).count() as i64;
        let made = others.filter(|&other| !is_shrunk(other)).count() as i64;
        let signed = |count: i64| if behind { -count } else { count };
        if is_new(at) {
            entries.new.push(signed(made));
            continue;
        }
        entries.bounds.push((at, signed(taken)));
        if is_shrunk(at) {
            entries.shrunk.push(signed(taken));
        }
    }
    Ok(entries)
}

fn strided(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let x = call.input(0)?;
    let count = call.length(1)?;
    const MASKS: [&str; 5] = ["begin_mask", "end_mask", "new_axis_mask", "shrink_axis_mask", "ellipsis_mask"];
    let masks = MASKS.map(|name| call.numbers::<i64>(name).map(|mask| (name, mask)));
    let masks = masks.into_iter().collect::<Result<Vec<_>, _>>()?;
    let is = |name: &str, at: usize| {
        let mask = masks.iter().find(|(known, _)| *known == name);
        mask.is_some_and(|(_, mask)| mask.get(at).is_some_and(|&bit| bit != 0))
    };
    let Entries { bounds, shrunk, new } = entries(count, &is)?;
    let mut made = x;
    if !bounds.is_empty() {
        let step = match call.opt(3) {
            Some(_) => call.ints_of(3)?,
            None => vec![1; count],
        };
        if step.len() < count {
            return Err(OpError::arity(format!("it has {} strides for {count} bounds", step.len())));
        }
        let is_one = |at: usize| is("shrink_axis_mask", at);
        let step: Vec<_> = bounds.iter().map(|&(at, _)| if is_one(at) { 1 } else { step[at] }).collect();
        let which: Vec<_> = bounds.iter().map(|&(at, _)| at as i64).collect();
        let which = call.ints(&which)?;
        let (begin, end) = (call.input(1)?, call.input(2)?);
        let mut bound = [begin, end];
        for bound in &mut bound {
            *bound = call.cast(*bound, DataType::I64)?;
            *bound = call.op("Gather", &[*bound, which])?;
        }
        let [mut begin, mut end] = bound;
        let flags =
            |name: &str| -> Vec<bool> { bounds.iter().map(|&(at, _)| is(name, at) && !is_one(at)).collect() };
        let forward = |at: usize| step[at] > 0;
        begin = masked(call, begin, &flags("begin_mask"), &|at| if forward(at) { 0 } else { i64::MAX })?;
        end = masked(call, end, &flags("end_mask"), &|at| if forward(at) { i64::MAX } else { i64::MIN })?;
        let one_only: Vec<_> = bounds.iter().map(|&(at, _)| is_one(at)).collect();
        if one_only.contains(&true) {
            // From begin to the next; the next of the last is the end.
            let (one, last, most) = (call.ints(&[1])?, call.ints(&[-1])?, call.ints(&[i64::MAX])?);
            let (next, is_last) = (call.op("Add", &[begin, one])?, call.op("Equal", &[begin, last])?);
            let next = call.op("Where", &[is_last, most, next])?;
            let is_one = truths(call, &one_only)?;
            end = call.op("Where", &[is_one, next, end])?;
        }
        let axes: Vec<_> = bounds.iter().map(|&(_, axis)| axis).collect();
        let (axes, step) = (call.ints(&axes)?, call.ints(&step)?);
        made = call.op("Slice", &[made, begin, end, axes, step])?;
    }
    if !shrunk.is_empty() {
        made = call.squeeze(made, &shrunk)?;
    }
    if !new.is_empty() {
        made = call.unsqueeze(made, &new)?;
    }
    Ok(made)
}

/// Numbers with others in the place of those that are masked.
fn masked(
    call: &mut Conversion<'_, '_, '_>,
    values: ValueId,
    mask: &[bool],
    other: &dyn Fn(usize) -> i64,
) -> Result<ValueId, OpError> {
    if !mask.contains(&true) {
        return Ok(values);
    }
    let others: Vec<_> = (0..mask.len()).map(other).collect();
    let (mask, others) = (truths(call, mask)?, call.ints(&others)?);
    call.op("Where", &[mask, others, values])
}

fn truths(call: &mut Conversion<'_, '_, '_>, values: &[bool]) -> Result<ValueId, OpError> {
    let values: Vec<_> = values.iter().map(|&value| Bool::from(value)).collect();
    let tensor = Tensor::from_elements([values.len()], &values)
        .ok_or_else(|| OpError::internal("a list is too long"))?;
    Ok(call.constant(tensor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_behind_an_ellipsis_count_from_the_end() {
        // x[0, new, ..., new, 1:2]
        let is = |name: &str, at: usize| match name {
            "shrink_axis_mask" => at == 0,
            "new_axis_mask" => at == 1 || at == 3,
            "ellipsis_mask" => at == 2,
            _ => false,
        };
        let entries = entries(5, &is).unwrap();
        assert_eq!(entries.bounds, [(0, 0), (4, -1)]);
        assert_eq!((entries.shrunk, entries.new), (vec![0], vec![0, -2]));
    }
}
