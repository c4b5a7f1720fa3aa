//! Attention.

use super::{Conversion, Made, one};
use crate::build::With;
use stepalloc_graph::ValueId;
use stepalloc_tensor::{DataType, OpError};

pub(super) fn convert(call: &mut Conversion<'_, '_, '_>) -> Made {
    match call.layer.kind {
        "ScaledDotProductAttention" => one(attention(call)),
        _ => None,
    }
}

fn attention(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let [mut q, k, v] = [call.input(0)?, call.input(1)?, call.input(2)?];
    let causal = call.flag("causal", false)?;
    // What is causal has no other mask.
    let mask = call.opt(3).filter(|_| !causal && !is_nothing(call));
    let scale = match call.opt(4) {
        Some(given) if call.float_of(4).is_err() => {
            // Known when it runs only: it is applied before.
            let given = call.reshape(given, &[])?;
            q = call.op("Mul", &[q, given])?;
            Some(1.0)
        }
        Some(_) => Some(call.float_of(4)?),
        None => None,
    };
    let same = |at: usize, axes: std::ops::Range<usize>| {
        let (dims, others) = (call.dims(0)?, call.dims(at)?);
        Ok::<_, OpError>(dims.len() == 4 && others.len() == 4 && dims[axes.clone()] == others[axes])
    };
    let fits = |at: usize| Ok::<_, OpError>(same(at, 0..2)? && call.dims(at)?[1].is_some());
    // A mask of one column is for all keys here, and for the first in ONNX.
    let is_wide = mask.is_none() || call.dims(3)?.last().is_some_and(|&columns| columns != Some(1));
    if is_wide && fits(1)? && fits(2)? {
        let mut with = With::default().int("is_causal", causal);
        if let Some(scale) = scale {
            with = with.float("scale", scale);
        }
        let mut operands = vec![q, k, v];
        operands.extend(mask);
        return call.op_with("Attention", &operands, with);
    }
    if causal {
        return Err(OpError::unsupported(
            "it is causal and not of four dimensions with as many heads each, which is not known here",
        ));
    }
    let dtype = call.dtype(0)?;
    let width = call.dims(0)?.last().copied().flatten();
    let scale = match (scale, width) {
        (Some(scale), _) => scale,
        (None, Some(width)) => 1.0 / (width as f64).sqrt(),
        (None, None) => return Err(OpError::unsupported("its last dimension has no fixed size")),
    };
    let scale = call.scalar(dtype, scale)?;
    let q = call.op("Mul", &[q, scale])?;
    let mut scores = call.op_with("com.microsoft.FusedMatMul", &[q, k], With::default().int("transB", 1))?;
    if let Some(mask) = mask {
        scores = if call.dtype(3)? == DataType::Bool {
            let low = call.scalar(dtype, f64::NEG_INFINITY)?;
            call.op("Where", &[mask, scores, low])?
        } else {
            call.op("Add", &[scores, mask])?
        };
    }
    let weights = call.op_with("Softmax", &[scores], With::default().int("axis", -1))?;
    call.op("MatMul", &[weights, v])
}

/// Whether a mask is one number that is added, and it is 0.
fn is_nothing(call: &Conversion<'_, '_, '_>) -> bool {
    call.float_of(3).is_ok_and(|value| value == 0.0)
}
