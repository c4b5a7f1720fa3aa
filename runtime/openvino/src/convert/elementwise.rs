//! Element by element: arithmetic, comparisons, logic, functions of one number, conversions.

use super::{Conversion, Made, one};
use crate::build::With;
use stepalloc_graph::ValueId;
use stepalloc_tensor::{DataType, OpError};

pub(super) fn convert(call: &mut Conversion<'_, '_, '_>) -> Made {
    let same = match call.layer.kind {
        "Add" => "Add",
        "Subtract" => "Sub",
        "Multiply" => "Mul",
        "Power" => "Pow",
        "Maximum" => "Max",
        "Minimum" => "Min",
        "Equal" => "Equal",
        "Less" => "Less",
        "LessEqual" => "LessOrEqual",
        "Greater" => "Greater",
        "GreaterEqual" => "GreaterOrEqual",
        "LogicalAnd" => "And",
        "LogicalOr" => "Or",
        "LogicalXor" | "Xor" => "Xor",
        "BitwiseAnd" | "BitwiseOr" | "BitwiseXor"
            if call.dtype(0).is_ok_and(|dtype| dtype == DataType::Bool) =>
        {
            call.layer.kind.trim_start_matches("Bitwise")
        }
        "BitwiseAnd" | "BitwiseOr" | "BitwiseXor" => call.layer.kind,
        // Integers are cut, whatever m_pythondiv says: so does OpenVINO's own code for CPUs.
        "Divide" => "Div",
        "FloorMod" => "Mod",
        "Mod" => return one(meet(call, "Mod", With::default().int("fmod", 1))),
        "NotEqual" => {
            let equal = meet(call, "Equal", With::default());
            return one(equal.and_then(|equal| call.op("Not", &[equal])));
        }
        "SquaredDifference" => {
            let difference = meet(call, "Sub", With::default());
            return one(difference.and_then(|difference| call.op("Mul", &[difference, difference])));
        }
        "BitwiseLeftShift" => return one(meet(call, "BitShift", With::default().text("direction", "LEFT"))),
        "BitwiseRightShift" => {
            return one(meet(call, "BitShift", With::default().text("direction", "RIGHT")));
        }
        "Select" => return one(select(call)),
        _ => return unary(call),
    };
    one(meet(call, same, With::default()))
}

/// Two operands that are broadcast.
fn meet(call: &mut Conversion<'_, '_, '_>, op: &str, with: With) -> Result<ValueId, OpError> {
    call.numpy()?;
    let operands = [call.input(0)?, call.input(1)?];
    call.op_with(op, &operands, with)
}

fn select(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    call.numpy()?;
    let operands = [call.input(0)?, call.input(1)?, call.input(2)?];
    call.op("Where", &operands)
}

fn unary(call: &mut Conversion<'_, '_, '_>) -> Made {
    let op = match call.layer.kind {
        "Ceiling" => "Ceil",
        "LogicalNot" => "Not",
        "BitwiseNot" if call.dtype(0).is_ok_and(|dtype| dtype == DataType::Bool) => "Not",
        "Negative" => "Neg",
        kind @ ("Abs" | "Acos" | "Acosh" | "Asin" | "Asinh" | "Atan" | "Atanh" | "Cos" | "Cosh" | "Erf"
        | "Exp" | "Floor" | "Log" | "Sign" | "Sin" | "Sinh" | "Sqrt" | "Tan" | "Tanh" | "Sigmoid"
        | "BitwiseNot" | "IsNaN" | "Identity") => kind,
        "IsInf" => return one(is_infinite(call)),
        "IsFinite" => return one(is_finite(call)),
        "Round" => return one(round(call)),
        "Convert" => return one(to(call)),
        "ConvertLike" => {
            let dtype = call.dtype(1);
            return one(call.input(0).and_then(|x| match dtype {
                Ok(dtype) => call.cast(x, dtype),
                // Known when it runs only.
                Err(_) => call.input(1).and_then(|like| call.op("CastLike", &[x, like])),
            }));
        }
        "FakeQuantize" => return one(fake_quantize(call)),
        _ => return None,
    };
    one(call.input(0).and_then(|x| call.op(op, &[x])))
}

fn is_infinite(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let (negative, positive) = (call.flag("detect_negative", true)?, call.flag("detect_positive", true)?);
    let with = With::default().int("detect_negative", negative).int("detect_positive", positive);
    let x = call.input(0)?;
    call.op_with("IsInf", &[x], with)
}

fn is_finite(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let x = call.input(0)?;
    let (infinite, nan) = (call.op("IsInf", &[x])?, call.op("IsNaN", &[x])?);
    let either = call.op("Or", &[infinite, nan])?;
    call.op("Not", &[either])
}

fn round(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let (x, dtype) = (call.input(0)?, call.dtype(0)?);
    match call.text("mode", "half_to_even") {
        "half_to_even" => call.op("Round", &[x]),
        "half_away_from_zero" => {
            // To even, then away from zero where that rounded a half towards it: |x| - |rounded| is a half.
            let rounded = call.op("Round", &[x])?;
            let (far, near) = (call.op("Abs", &[x])?, call.op("Abs", &[rounded])?);
            let (lost, half) = (call.op("Sub", &[far, near])?, call.scalar(dtype, 0.5)?);
            let is_half = call.op("Equal", &[lost, half])?;
            let sign = call.op("Sign", &[x])?;
            let away = call.op("Add", &[rounded, sign])?;
            call.op("Where", &[is_half, away, rounded])
        }
        other => Err(OpError::unsupported(format!("its mode is {other}, which is not known here"))),
    }
}

fn to(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    let dtype =
        call.type_of("destination_type")?.ok_or_else(|| OpError::attribute("it has no destination_type"))?;
    let x = call.input(0)?;
    call.cast(x, dtype)
}

/// Rounds to as many levels between two bounds, and puts them between two others.
fn fake_quantize(call: &mut Conversion<'_, '_, '_>) -> Result<ValueId, OpError> {
    call.numpy()?;
    let levels: f64 = call.number("levels", 256.0)?;
    let dtype = call.dtype(0)?;
    let [x, low, high, to_low, to_high] =
        [call.input(0)?, call.input(1)?, call.input(2)?, call.input(3)?, call.input(4)?];
    let steps = call.scalar(dtype, levels - 1.0)?;
    // Bounds may be the wrong way round.
    let (least, most) = (call.op("Min", &[low, high])?, call.op("Max", &[low, high])?);
    let x = call.op("Max", &[x, least])?;
    let x = call.op("Min", &[x, most])?;
    let (width, x) = (call.op("Sub", &[high, low])?, call.op("Sub", &[x, low])?);
    let scale = call.op("Div", &[steps, width])?;
    let x = call.op("Mul", &[x, scale])?;
    let x = call.op("Round", &[x])?;
    let width = call.op("Sub", &[to_high, to_low])?;
    let scale = call.op("Div", &[width, steps])?;
    let x = call.op("Mul", &[x, scale])?;
    call.op("Add", &[x, to_low])
}
