//! com.microsoft's operators from 8-bit integers to 8-bit integers, each tensor with one scale and zero point: what ONNX Runtime writes
//! for sums, activations, pools and concatenations of quantized models.

mod binary;
mod pool;
mod softmax;
mod table;

use super::{Call, Definition, Known, Made, Unclear};
use stepalloc_kernels::no;
use stepalloc_kernels::scales::load;
use stepalloc_tensor::{DataType, OpError};

pub(super) fn make(node: &Definition<'_>) -> Made {
    Some(match node.op {
        "QLinearAdd" => Ok(Box::new(binary::Binary::Add) as _),
        "QLinearMul" => Ok(Box::new(binary::Binary::Mul) as _),
        "QLinearSigmoid" => Ok(Box::new(table::Function::Sigmoid) as _),
        "QLinearLeakyRelu" => {
            Ok(Box::new(table::Function::LeakyRelu(node.attributes.float("alpha", 0.01))) as _)
        }
        "QLinearConcat" => table::Concat::new(node).map(|made| Box::new(made) as _),
        "QLinearSoftmax" => softmax::Softmax::new(node).map(|made| Box::new(made) as _),
        "QLinearAveragePool" | "QLinearGlobalAveragePool" => {
            pool::Average::new(node).map(|made| Box::new(made) as _)
        }
        _ => return None,
    })
}

/// What the bytes of a tensor stand for.
#[derive(Clone, Copy, PartialEq)]
struct Quantum {
    dtype: DataType,
    scale: f32,
    zero: f32,
}

impl Quantum {
    /// That of bytes of this type, whose scale is input `scale`, with the zero point in the one behind it.
    fn new(call: &Call<'_, '_>, scale: usize, dtype: DataType) -> Result<Self, OpError> {
        let (mut one, mut zero) = ([0.0], [0.0]);
        load(&call.input(scale)?, 0, &mut one);
        if let Some(view) = call.opt(scale + 1) {
            load(&view, 0, &mut zero);
        }
        Ok(Self { dtype, scale: one[0], zero: zero[0] })
    }

    /// Scale and zero point.
    fn pair(&self) -> (f32, f32) {
        (self.scale, self.zero)
    }

    /// What each byte stands for.
    fn reals(&self) -> [f32; 256] {
        std::array::from_fn(|byte| {
            let number = if self.dtype == DataType::I8 { f32::from(byte as u8 as i8) } else { byte as f32 };
            (number - self.zero) * self.scale
        })
    }
}

/// Checks the type of a tensor of bytes, and of its scale and zero point.
fn check(inputs: &Known<'_>, dtype: DataType, scale: usize) -> Result<(), Unclear> {
    if !matches!(dtype, DataType::U8 | DataType::I8) {
        return Err(no(dtype).into());
    }
    let told = inputs.ty(scale)?;
    if told.dtype != DataType::F32 || told.elements() != 1 {
        return Err(OpError::operand(
            told,
            DataType::F32,
            format!("input {scale} is {told}, not a scale of one element"),
        )
        .into());
    }
    match inputs.opt(scale + 1) {
        Some(zero) if zero.dtype != dtype || zero.elements() != 1 => Err(OpError::operand(
            zero,
            dtype,
            format!("input {} is {zero}, not a zero point of one element of {dtype}", scale + 1),
        )
        .into()),
        _ => Ok(()),
    }
}
