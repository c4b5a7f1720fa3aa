//! Fourier transforms, along one axis after the other.

use super::{Conversion, Made, one};
use crate::build::With;
use stepalloc_graph::ValueId;
use stepalloc_tensor::OpError;

pub(super) fn convert(call: &mut Conversion<'_, '_, '_>) -> Made {
    let (inverse, real) = match call.layer.kind {
        "DFT" => (false, false),
        "IDFT" => (true, false),
        "RDFT" => (false, true),
        "IRDFT" => (true, true),
        _ => return None,
    };
    one(transform(call, inverse, real))
}

fn transform(call: &mut Conversion<'_, '_, '_>, inverse: bool, real: bool) -> Result<ValueId, OpError> {
    let mut x = call.input(0)?;
    // Real and imaginary part are the last dimension, and count as none.
    let is_complex = inverse || !real;
    let rank = call.rank(0)? - usize::from(is_complex);
    let axes = call.ints_of(1)?.into_iter().map(|axis| stepalloc_tensor::axis(axis, rank));
    let mut axes = axes.collect::<Result<Vec<_>, _>>()?;
    let mut lengths = match call.opt(2) {
        Some(_) => call.ints_of(2)?,
        None => vec![-1; axes.len()],
    };
    if lengths.len() != axes.len() || axes.is_empty() {
        return Err(OpError::arity(format!("it has {} lengths for {} axes", lengths.len(), axes.len())));
    }
    if !is_complex {
        x = call.unsqueeze(x, &[-1])?;
    }
    // What is real at one end is so along the last axis, which comes first then, and last on the way back.
    if real && !inverse {
        axes.reverse();
        lengths.reverse();
    }
    let turns = axes.len();
    for (turn, (axis, length)) in axes.into_iter().zip(lengths).enumerate() {
        let halves = real && if inverse { turn + 1 == turns } else { turn == 0 };
        let length = if length < 0 { None } else { Some(call.ints(&[length])?) };
        let length = length.map(|length| call.reshape(length, &[])).transpose()?;
        let with = With::default().int("inverse", inverse).int("onesided", halves);
        let axis = call.ints(&[axis as i64])?;
        let axis = call.reshape(axis, &[])?;
        let made = call.node("DFT", &[Some(x), length, Some(axis)], with, &[true])?;
        x = made[0].ok_or_else(|| OpError::internal("it makes nothing"))?;
    }
    if real && inverse { call.squeeze(x, &[-1]) } else { Ok(x) }
}
