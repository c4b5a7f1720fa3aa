//! Reductions along axes, and sums as they go.

use super::{Conversion, Made, one};
use crate::build::With;
use stepalloc_graph::ValueId;
use stepalloc_tensor::{DataType, OpError};

pub(super) fn convert(call: &mut Conversion<'_, '_, '_>) -> Made {
    let made = match call.layer.kind {
        kind @ ("ReduceMean" | "ReduceSum" | "ReduceMax" | "ReduceMin" | "ReduceProd" | "ReduceL1"
        | "ReduceL2") => reduce(call, kind),
        "ReduceLogicalAnd" => reduce(call, "ReduceMin"),
        "ReduceLogicalOr" => reduce(call, "ReduceMax"),
        "CumSum" => cum_sum(call),
        _ => return None,
    };
    one(made)
}

fn reduce(call: &mut Conversion<'_, '_, '_>, op: &str) -> Result<ValueId, OpError> {
    let (x, axes) = (call.input(0)?, call.indices(1)?);
    let keep = call.flag("keep_dims", false)?;
    // Along no axes nothing is reduced.
    let with = With::default().int("keepdims", keep).int("noop_with_empty_axes", 1);
    call.op_with(op, &[x, axes], with)
}

fn cum_sum(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let (x, axis) = (call.input(0)?, call.input(1)?);
    let axis = call.cast(axis, DataType::I64)?;
    let with = With::default()
        .int("exclusive", call.flag("exclusive", false)?)
        .int("reverse", call.flag("reverse", false)?);
    call.op_with("CumSum", &[x, axis], with)
}
