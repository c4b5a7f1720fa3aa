//! Operators that give elements another type.

use super::{Call, Definition, Known, Made, Operator, Reuse, Types, Unclear, typed};
use smallvec::smallvec;
use stepalloc_kernels::{
    broadcast::{PARALLEL, PART},
    minifloat::{Rounding, decode, encode, encode_power, is_minifloat, small_integer, small_value},
};
use stepalloc_tensor::{Bool, DataType, Element, Number, OpError, bf16, by_number, f16};
use stepalloc_threads as threads;

pub(super) fn make(node: &Definition<'_>) -> Made {
    Some(match node.op {
        "Cast" => target(node).and_then(|to| cast(node, Some(to))),
        "CastLike" => cast(node, None),
        "BitCast" => target(node).map(|to| Box::new(BitCast(to)) as _),
        _ => return None,
    })
}

/// The type that the node is told.
fn target(node: &Definition<'_>) -> Result<DataType, OpError> {
    let to = node.attributes.opt_int("to").ok_or_else(|| OpError::attribute("it is told no type"))?;
    let known = i32::try_from(to).ok().and_then(DataType::from_onnx);
    known.ok_or_else(|| OpError::unsupported(format!("element type {to} is not known")))
}

fn cast(node: &Definition<'_>, to: Option<DataType>) -> Result<Box<dyn Operator>, OpError> {
    let rounding = match node.attributes.text("round_mode", "up") {
        "up" => Rounding::Up,
        "down" => Rounding::Down,
        "nearest" => Rounding::Nearest,
        other => {
            return Err(OpError::attribute(format!(
                "its round_mode is {other:?}, none of up, down and nearest"
            )));
        }
    };
    Ok(Box::new(Cast { to, saturate: node.attributes.int("saturate", 1) != 0, rounding }))
}

/// The same numbers as far as the type has them.
struct Cast {
    /// `None` for the type of input 1.
    to: Option<DataType>,
    saturate: bool,
    rounding: Rounding,
}

impl Operator for Cast {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let to = match self.to {
            Some(to) => to,
            None => inputs.ty(1)?.dtype,
        };
        Ok(smallvec![typed(to, inputs.ty(0)?.shape.clone())?])
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&[0])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let from = call.dtype(0)?;
        let out = call.output(0)?;
        let to = out.dtype;
        let input = match call.in_place() {
            Some(_) if from.bytes() != to.bytes() && !out.bytes.is_empty() => {
                return Err(OpError::internal(format!("elements of {to} cannot lie over those of {from}")));
            }
            Some(_) => None,
            None => Some(call.input(0)?.bytes),
        };
        let convert = |part: usize, out: &mut [u8]| match input {
            Some(input) => {
                let begin = part * PART * from.bytes();
                self.convert(from, to, &input[begin..begin + out.len() / to.bytes() * from.bytes()], out);
            }
            None if from == to => {}
            None => {
                let mut before = [0u64; COPIED / size_of::<u64>()];
                for out in out.chunks_mut(COPIED) {
                    let before = &mut bytemuck::cast_slice_mut(&mut before)[..out.len()];
                    before.copy_from_slice(out);
                    self.convert(from, to, before, out);
                }
            }
        };
        let part = PART * to.bytes();
        if out.bytes.len() < PARALLEL * to.bytes() {
            out.bytes.chunks_mut(part).enumerate().for_each(|(part, out)| convert(part, out));
        } else {
            threads::pieces(out.bytes, part, 1, &convert);
        }
        Ok(())
    }
}

/// The same numbers as another type, as [`Cast`] makes them.
pub(super) fn convert(from: DataType, to: DataType, input: &[u8], out: &mut [u8]) {
    Cast { to: None, saturate: true, rounding: Rounding::Up }.convert(from, to, input, out);
}

/// Converts without detour what models convert most, and what f64 between them would round twice.
fn direct(from: DataType, to: DataType, input: &[u8], out: &mut [u8]) -> bool {
    fn put<A: Element, B: Element>(input: &[u8], out: &mut [u8], f: impl Fn(A) -> B) -> bool {
        let (input, out): (&[A], &mut [B]) = (bytemuck::cast_slice(input), bytemuck::cast_slice_mut(out));
        for (out, &x) in out.iter_mut().zip(input) {
            *out = f(x);
        }
        true
    }
    use DataType as D;
    match (from, to) {
        (D::F32, D::F16) => put(input, out, f16::from_f32),
        (D::F16, D::F32) => put(input, out, f16::to_f32),
        (D::F32, D::BF16) => put(input, out, bf16::from_f32),
        (D::BF16, D::F32) => put(input, out, bf16::to_f32),
        (D::F32, D::F64) => put(input, out, |x: f32| f64::from(x)),
        (D::F64, D::F32) => put(input, out, |x: f64| x as f32),
        (D::F32, D::I64) => put(input, out, |x: f32| x as i64),
        (D::I64, D::F32) => put(input, out, |x: i64| x as f32),
        (D::F32, D::I32) => put(input, out, |x: f32| x as i32),
        (D::I32, D::F32) => put(input, out, |x: i32| x as f32),
        (D::U64, D::F32) => put(input, out, |x: u64| x as f32),
        (D::I32, D::I64) => put(input, out, |x: i32| i64::from(x)),
        (D::I64, D::I32) => put(input, out, |x: i64| x as i32),
        (D::F32, D::U8) => put(input, out, |x: f32| x as u8),
        (D::U8, D::F32) => put(input, out, |x: u8| f32::from(x)),
        (D::I8, D::F32) => put(input, out, |x: i8| f32::from(x)),
        (D::F32, D::Bool) => put(input, out, |x: f32| Bool::from(x != 0.0)),
        (D::Bool, D::F32) => put(input, out, |x: Bool| f32::from(u8::from(x.get()))),
        (D::I64, D::Bool) => put(input, out, |x: i64| Bool::from(x != 0)),
        (D::Bool, D::I64) => put(input, out, |x: Bool| i64::from(x.get())),
        (D::I32, D::Bool) => put(input, out, |x: i32| Bool::from(x != 0)),
        (D::Bool, D::I32) => put(input, out, |x: Bool| i32::from(x.get())),
        _ => false,
    }
}

/// Bytes that are copied at a time before they are written over.
const COPIED: usize = 1024;
/// Elements that are on their way at a time.
const FEW: usize = 32;

/// Numbers between two types, exact.
enum Between {
    Real([f64; FEW]),
    /// Of u64 the bits.
    Whole([i64; FEW]),
}

/// Reads at most [`FEW`] elements.
fn load(from: DataType, to: DataType, bytes: &[u8]) -> Between {
    let (mut real, mut whole) = ([0.0; FEW], [0; FEW]);
    fn fill<T: Element, B>(bytes: &[u8], into: &mut [B], f: impl Fn(T) -> B) {
        // Elements that are written over lie aligned as well.
        let from: &[T] = bytemuck::cast_slice(bytes);
        for (into, &x) in into.iter_mut().zip(from) {
            *into = f(x);
        }
    }
    let to_real = to.is_float() || is_minifloat(to);
    if from.is_float() || from == DataType::U64 && to_real {
        by_number!(from, T => fill(bytes, &mut real, T::to_f64), {});
        return Between::Real(real);
    }
    if is_minifloat(from) {
        fill(bytes, &mut real, |byte| decode(from, byte).into());
        return Between::Real(real);
    }
    match small_integer(from) {
        Some((bits, signed)) => fill(bytes, &mut whole, |byte| small_value(bits, signed, byte).into()),
        None if from == DataType::Bool => fill(bytes, &mut whole, |x: Bool| x.get().into()),
        None => by_number!(from, T => fill(bytes, &mut whole, T::to_i64), {}),
    }
    Between::Whole(whole)
}

impl Cast {
    fn convert(&self, from: DataType, to: DataType, input: &[u8], out: &mut [u8]) {
        if from == to {
            out.copy_from_slice(input);
        } else if !direct(from, to, input, out) {
            for (input, out) in input.chunks(FEW * from.bytes()).zip(out.chunks_mut(FEW * to.bytes())) {
                self.store(load(from, to, input), to, out);
            }
        }
    }

    /// Writes as many as there is room for.
    fn store(&self, from: Between, to: DataType, out: &mut [u8]) {
        fn put<A: Copy, T: Element>(from: &[A], out: &mut [u8], f: impl Fn(A) -> T) {
            let out: &mut [T] = bytemuck::cast_slice_mut(out);
            for (out, &x) in out.iter_mut().zip(from) {
                *out = f(x);
            }
        }
        let real = |x| match to {
            DataType::F8E8M0 => encode_power(x, self.saturate, self.rounding),
            _ => encode(to, x, self.saturate),
        };
        // What does not fit into few bits loses the upper ones, as integers do everywhere.
        let mask = small_integer(to).map(|(bits, _)| (1u8 << bits) - 1);
        match (&from, mask) {
            (Between::Real(from), Some(mask)) => put(from, out, |x| x as i64 as u8 & mask),
            (Between::Whole(from), Some(mask)) => put(from, out, |x| x as u8 & mask),
            (Between::Real(from), None) if is_minifloat(to) => put(from, out, real),
            (Between::Whole(from), None) if is_minifloat(to) => put(from, out, |x| real(x as f64)),
            (Between::Real(from), None) if to == DataType::Bool => put(from, out, |x| Bool::from(x != 0.0)),
            (Between::Whole(from), None) if to == DataType::Bool => put(from, out, |x| Bool::from(x != 0)),
            (Between::Real(from), None) => by_number!(to, T => put(from, out, <T as Number>::from_f64), {}),
            (Between::Whole(from), None) => by_number!(to, T => put(from, out, <T as Number>::from_i64), {}),
        }
    }
}

/// The same bits, read as another type.
struct BitCast(DataType);

impl Operator for BitCast {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        if input.dtype.file_bits() != self.0.file_bits() {
            return Err(OpError::element_type(format!(
                "elements of {} are not as wide as those of {}",
                input.dtype, self.0
            ))
            .into());
        }
        Ok(smallvec![typed(self.0, input.shape.clone())?])
    }

    fn reuse(&self) -> Reuse {
        Reuse::View
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let output = call.output(0)?;
        if call.in_place().is_none() {
            output.bytes.copy_from_slice(call.input(0)?.bytes);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{in_place, run};
    use super::*;
    use stepalloc_graph::Attribute;
    use stepalloc_tensor::Tensor;

    fn to(dtype: DataType) -> [(&'static str, Attribute); 1] {
        [("to", Attribute::Int(dtype as i64))]
    }

    #[test]
    fn all_pairs_of_types_keep_what_both_have() {
        let types = (1..=26).filter_map(DataType::from_onnx).collect::<Vec<_>>();
        // Every type has 0 or its nearest, and 1.
        let ones = Tensor::from_elements([3, 11], &[1.0f32; 33]).unwrap();
        for &from in &types {
            let source = run("Cast", 25, &to(from), &[Some(&ones)]).unwrap();
            for &into in &types {
                let made = run("Cast", 25, &to(into), &[Some(&source[0])]).unwrap();
                let straight = run("Cast", 25, &to(into), &[Some(&ones)]).unwrap();
                assert_eq!(made[0].view().bytes, straight[0].view().bytes, "{from} to {into}");
                if from.bytes() == into.bytes() {
                    let over = in_place("Cast", 25, &to(into), &[Some(&source[0])], 0).unwrap();
                    assert_eq!(over.view().bytes, made[0].view().bytes, "{from} to {into}");
                }
            }
        }
    }

    #[test]
    fn integers_lose_upper_bits_and_are_rounded_once() {
        let wide = Tensor::from_elements([3], &[200i64, -1, (1 << 53) + 1]).unwrap();
        let bytes = run("Cast", 13, &to(DataType::I8), &[Some(&wide)]).unwrap();
        assert_eq!(bytes[0].view().elements::<i8>(), [-56, -1, 1]);
        let bits = run("Cast", 25, &to(DataType::I4), &[Some(&wide)]).unwrap();
        assert_eq!(bits[0].view().bytes, [8, 15, 1]);
        let unsigned = Tensor::from_elements([2], &[u64::MAX, 3]).unwrap();
        let real = run("Cast", 13, &to(DataType::F64), &[Some(&unsigned)]).unwrap();
        assert_eq!(real[0].view().elements::<f64>(), [u64::MAX as f64, 3.0]);
        assert!(run("Cast", 13, &[("to", Attribute::Int(8))], &[Some(&wide)]).is_err());
        assert!(run("BitCast", 26, &to(DataType::F32), &[Some(&wide)]).is_err());
    }
}
