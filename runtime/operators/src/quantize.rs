//! Operators between real numbers and those of few bits, with a scale and a zero point for all, for each index of an axis, or for
//! each block along one.

use super::{Call, Definition, Known, Made, Operator, Types, Unclear, typed};
use rten_simd::{Isa, SimdOp};
use smallvec::smallvec;
use stepalloc_kernels::{
    broadcast::{PARALLEL, PART},
    minifloat::{encode, is_minifloat, small_integer},
    no,
    scales::{FEW, Few, Grid, Scales, is_read, load, nearest},
};
use stepalloc_tensor::{DataType, Element, OpError, View, ViewMut, bf16, f16};
use stepalloc_threads as threads;

pub(super) fn make(node: &Definition<'_>) -> Made {
    Some(match node.op {
        "QuantizeLinear" => told(node).map(|told| Box::new(Quantize(told)) as _),
        "DequantizeLinear" => told(node).map(|told| Box::new(Dequantize(told)) as _),
        "DynamicQuantizeLinear" => Ok(Box::new(DynamicQuantize) as _),
        _ => return None,
    })
}

/// What a node says of its scales and types.
struct Told {
    axis: i64,
    /// 0 where there are no blocks.
    block: usize,
    output: Option<DataType>,
    /// What quotients are rounded to.
    precision: Option<DataType>,
    saturate: bool,
}

fn told(node: &Definition<'_>) -> Result<Told, OpError> {
    let attributes = node.attributes;
    let dtype = |name| match attributes.int(name, 0) {
        0 => Ok(None),
        number => match i32::try_from(number).ok().and_then(DataType::from_onnx) {
            Some(dtype) => Ok(Some(dtype)),
            None => Err(OpError::attribute(format!("its {name} is {number}, no element type that is known"))),
        },
    };
    let block = attributes.int("block_size", 0);
    Ok(Told {
        axis: attributes.int("axis", 1),
        block: usize::try_from(block)
            .map_err(|_| OpError::attribute(format!("its block_size is {block}")))?,
        output: dtype("output_dtype")?,
        precision: dtype("precision")?,
        saturate: attributes.int("saturate", 1) != 0,
    })
}

const BYTE: (f32, f32) = (0.0, 255.0);

/// The least and the largest integer of a type to quantize to.
fn range(dtype: DataType) -> Option<(f32, f32)> {
    Some(match dtype {
        DataType::U8 => BYTE,
        DataType::I8 => (-128.0, 127.0),
        DataType::U16 => (0.0, 65535.0),
        DataType::I16 => (-32768.0, 32767.0),
        DataType::U4 => (0.0, 15.0),
        DataType::I4 => (-8.0, 7.0),
        DataType::U2 => (0.0, 3.0),
        DataType::I2 => (-2.0, 1.0),
        _ => return None,
    })
}

/// A quotient rounded to an integer, ties to even, and the zero point added, within the range.
#[inline(always)]
fn round(quotient: f32, zero: f32, (least, largest): (f32, f32)) -> i32 {
    nearest(quotient, least - zero, largest - zero) + zero as i32
}

/// Rounds some, each with its zero point, and puts them by `put`.
fn round_all<T>(quotients: &[f32], zero: &[f32], range: (f32, f32), out: &mut [T], put: impl Fn(i32) -> T) {
    for ((out, &quotient), &zero) in out.iter_mut().zip(quotients).zip(zero) {
        *out = put(round(quotient, zero, range));
    }
}

/// Bytes of one scale and zero point, compiled for the machine's vectors.
struct Bytes<'x, 'o> {
    x: &'x [f32],
    scale: f32,
    zero: f32,
    range: (f32, f32),
    out: &'o mut [u8],
}

impl SimdOp for Bytes<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, _: I) {
        let Self { x, scale, zero, range, out } = self;
        for (out, x) in out.iter_mut().zip(x) {
            *out = round(x / scale, zero, range) as u8;
        }
    }
}

/// Reals of bytes with one scale and zero point, compiled for the machine's vectors.
struct Reals<'x, 'o, T> {
    x: &'x [T],
    scale: f32,
    zero: f32,
    out: &'o mut [f32],
}

impl<T: Copy + Into<f32>> SimdOp for Reals<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, _: I) {
        let Self { x, scale, zero, out } = self;
        for (out, &x) in out.iter_mut().zip(x) {
            *out = (x.into() - zero) * scale;
        }
    }
}

/// Reals to bytes of one scale and zero point, U8 or I8; on all cores if they are many.
pub(super) fn to_bytes(x: &[f32], (scale, zero): (f32, f32), dtype: DataType, out: &mut [u8]) {
    let range = range(dtype).unwrap_or(BYTE);
    let least = if x.len() < PARALLEL { usize::MAX } else { 1 };
    threads::pieces(out, PART, least, &|part, out| {
        Bytes { x: &x[part * PART..][..out.len()], scale, zero, range, out }.dispatch();
    });
}

/// Bytes of one scale and zero point, U8 or I8, to reals.
pub(super) fn to_reals(dtype: DataType, x: &[u8], (scale, zero): (f32, f32), out: &mut [f32]) {
    match dtype {
        DataType::I8 => Reals { x: bytemuck::cast_slice::<_, i8>(x), scale, zero, out }.dispatch(),
        _ => Reals { x, scale, zero, out }.dispatch(),
    }
}

/// The scale and the zero point with which bytes use their whole range for these.
pub(super) fn scale_of(x: &[f32]) -> (f32, f32) {
    let (least, largest) = rten_vecmath::MinMax::new(x).dispatch();
    // Zero is always a number that there is.
    let (least, largest) = (least.min(0.0), largest.max(0.0));
    let scale = if least == largest { 1.0 } else { (largest - least) / 255.0 };
    (scale, (-least / scale).clamp(0.0, 255.0).round_ties_even())
}

/// Reals to numbers of few bits.
struct Quantize(Told);

impl Operator for Quantize {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (x, scale, zero) = (inputs.ty(0)?, inputs.ty(1)?, inputs.opt(2));
        Grid::new(self.0.axis, self.0.block, &x.shape, &scale.shape)?;
        let to = zero.map(|zero| zero.dtype).or(self.0.output).unwrap_or(DataType::U8);
        if zero.is_some_and(|zero| zero.elements() != scale.elements())
            || self.0.output.is_some_and(|told| told != to)
        {
            return Err(OpError::element_type(format!(
                "its zero points are not of the scales' {scale} or the output's type"
            ))
            .into());
        }
        for dtype in [x.dtype, scale.dtype] {
            if !is_read(dtype) {
                return Err(no(dtype).into());
            }
        }
        if range(to).is_none() && (!is_minifloat(to) || to == DataType::F8E8M0) {
            return Err(OpError::element_type(format!("nothing can be quantized to {to}")).into());
        }
        Ok(smallvec![typed(to, x.shape.clone())?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (x, scale) = (call.input(0)?, call.input(1)?);
        let grid = Grid::new(self.0.axis, self.0.block, x.shape, scale.shape)?;
        let precision = self.0.precision.unwrap_or(scale.dtype);
        let out = call.output(0)?;
        quantize(&x, &Scales { grid, scale, zero: call.opt(2) }, precision, self.0.saturate, out);
        Ok(())
    }
}

fn quantize(x: &View<'_>, scales: &Scales<'_>, precision: DataType, saturate: bool, out: ViewMut<'_>) {
    let to = out.dtype;
    // Divides a few, in the precision that is wanted.
    let divide = |begin: usize, few: &Few, count: usize| {
        let mut quotients = [0.0; FEW];
        let some = &mut quotients[..count];
        load(x, begin, some);
        some.iter_mut().zip(&few.scale).for_each(|(x, scale)| *x /= scale);
        match precision {
            DataType::F16 => some.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32()),
            DataType::BF16 => some.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32()),
            _ => {}
        }
        quotients
    };
    let Some(range) = range(to) else {
        return scales.write(out.bytes, |begin, few, out| {
            let quotients = divide(begin, few, out.len());
            for ((out, x), zero) in out.iter_mut().zip(quotients).zip(few.zero) {
                *out = encode(to, (x + zero).into(), saturate);
            }
        });
    };
    if x.dtype == DataType::F32 && precision == DataType::F32 && matches!(to, DataType::U8 | DataType::I8) {
        let x = x.elements::<f32>();
        let row = |begin: usize, scale, zero, out: &mut [u8]| {
            Bytes { x: &x[begin..][..out.len()], scale, zero, range, out }.dispatch();
        };
        if scales.write_rows(out.bytes, row) {
            return;
        }
    }
    if to.bytes() == 2 {
        return scales.write(out.raw::<u16>(), |begin, few, out| {
            round_all(&divide(begin, few, out.len()), &few.zero, range, out, |x| x as u16);
        });
    }
    let mask = small_integer(to).map_or(u8::MAX, |(bits, _)| (1 << bits) - 1);
    scales.write(out.bytes, |begin, few, out| {
        round_all(&divide(begin, few, out.len()), &few.zero, range, out, |x| x as u8 & mask);
    });
}

/// Numbers of few bits to reals.
struct Dequantize(Told);

impl Operator for Dequantize {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (x, scale, zero) = (inputs.ty(0)?, inputs.ty(1)?, inputs.opt(2));
        Grid::new(self.0.axis, self.0.block, &x.shape, &scale.shape)?;
        if let Some(zero) = zero.filter(|zero| zero.elements() != scale.elements() || zero.dtype != x.dtype) {
            return Err(OpError::element_type(format!(
                "its zero points {zero} are not of the type of {x}, or not as many as {scale}"
            ))
            .into());
        }
        for dtype in [x.dtype, scale.dtype] {
            if !is_read(dtype) {
                return Err(no(dtype).into());
            }
        }
        let to = self.0.output.unwrap_or(scale.dtype);
        if !matches!(to, DataType::F32 | DataType::F16 | DataType::BF16) {
            return Err(OpError::element_type(format!("nothing can be dequantized to {to}")).into());
        }
        Ok(smallvec![typed(to, x.shape.clone())?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (x, scale) = (call.input(0)?, call.input(1)?);
        let grid = Grid::new(self.0.axis, self.0.block, x.shape, scale.shape)?;
        let scales = Scales { grid, scale, zero: call.opt(2) };
        let out = call.output(0)?;
        match out.dtype {
            DataType::F32 => {
                let out = out.elements::<f32>();
                let done = match x.dtype {
                    DataType::U8 => reals(x.elements::<u8>(), &scales, out),
                    DataType::I8 => reals(x.elements::<i8>(), &scales, out),
                    _ => false,
                };
                if !done {
                    dequantize(&x, &scales, out, |x| x);
                }
            }
            DataType::F16 => dequantize(&x, &scales, out.elements::<f16>(), f16::from_f32),
            DataType::BF16 => dequantize(&x, &scales, out.elements::<bf16>(), bf16::from_f32),
            dtype => return Err(no(dtype)),
        }
        Ok(())
    }
}

/// Whether each row of bytes has one scale; they are made reals then.
fn reals<T: Copy + Into<f32> + Sync>(x: &[T], scales: &Scales<'_>, out: &mut [f32]) -> bool {
    scales.write_rows(out, |begin, scale, zero, out| {
        Reals { x: &x[begin..][..out.len()], scale, zero, out }.dispatch();
    })
}

fn dequantize<T: Element>(
    x: &View<'_>,
    scales: &Scales<'_>,
    out: &mut [T],
    narrow: impl Fn(f32) -> T + Send + Sync,
) {
    scales.write(out, |begin, few, out| {
        let mut numbers = [0.0; FEW];
        load(x, begin, &mut numbers[..out.len()]);
        for (((out, x), zero), scale) in out.iter_mut().zip(numbers).zip(&few.zero).zip(&few.scale) {
            *out = narrow((x - zero) * scale);
        }
    });
}

/// Reals to bytes, with the scale and the zero point that use the whole range: outputs 1 and 2.
struct DynamicQuantize;

impl Operator for DynamicQuantize {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let x = inputs.ty(0)?;
        if x.dtype != DataType::F32 {
            return Err(no(x.dtype).into());
        }
        Ok(smallvec![
            typed(DataType::U8, x.shape.clone())?,
            typed(DataType::F32, [])?,
            typed(DataType::U8, [])?
        ])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let x = call.input(0)?.elements();
        let (scale, zero) = scale_of(x);
        if let Some(out) = call.opt_output(0) {
            to_bytes(x, (scale, zero), DataType::U8, out.bytes);
        }
        if let Some(out) = call.opt_output(1) {
            out.elements().copy_from_slice(&[scale]);
        }
        if let Some(out) = call.opt_output(2) {
            out.elements().copy_from_slice(&[zero as u8]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{run, run_for, tensor};
    use stepalloc_graph::Attribute;
    use stepalloc_tensor::{DataType, Tensor};

    /// As many elements as cores share, in every grid of scales there is, against the formula.
    #[test]
    fn every_element_has_its_scale() {
        let shape = [7usize, 300, 33];
        let at = |index: usize| [index / 33 / 300, index / 33 % 300, index % 33];
        let count: usize = shape.iter().product();
        let x: Vec<i8> = (0..count).map(|n| (n * 7 % 251) as u8 as i8).collect();
        let x_tensor = tensor(&shape, &x);
        for (axis, block) in [(0, 0), (1, 0), (2, 0), (0, 2), (1, 7), (2, 5), (2, 100), (-1, 1)] {
            let dim = if axis < 0 { 2 } else { axis as usize };
            let mut of = shape;
            of[dim] = shape[dim].div_ceil(usize::max(block, 1));
            let scale_shape = if block == 0 { vec![shape[dim]] } else { of.to_vec() };
            let scales = scale_shape.iter().product();
            let scale: Vec<f32> = (0..scales).map(|n| n as f32 / 64.0 + 0.5).collect();
            let zero: Vec<i8> = (0..scales).map(|n| (n % 11) as i8 - 5).collect();
            let attributes = [("axis", Attribute::Int(axis)), ("block_size", Attribute::Int(block as i64))];
            let (scale_tensor, zero_tensor) = (tensor(&scale_shape, &scale), tensor(&scale_shape, &zero));
            let with = [Some(&scale_tensor), Some(&zero_tensor)];
            let made =
                run("DequantizeLinear", 21, &attributes, &[Some(&x_tensor), with[0], with[1]]).unwrap();
            let own = |index: usize| {
                let mut place = at(index);
                if block == 0 {
                    return place[dim];
                }
                place[dim] /= block;
                (place[0] * of[1] + place[1]) * of[2] + place[2]
            };
            for (index, &y) in made[0].view().elements::<f32>().iter().enumerate() {
                let wanted = (f32::from(x[index]) - f32::from(zero[own(index)])) * scale[own(index)];
                assert_eq!(y, wanted, "axis {axis}, block {block}, {:?}", at(index));
            }
            let back = run("QuantizeLinear", 21, &attributes, &[Some(&made[0]), with[0], with[1]]).unwrap();
            assert_eq!(back[0].view().elements::<i8>(), x, "axis {axis}, block {block}");
        }
    }

    #[test]
    fn what_is_no_number_or_beyond_all_is_at_the_ends() {
        let x = tensor(&[6], &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, 2.5, 3.5]);
        let made = run("QuantizeLinear", 13, &[], &[Some(&x), Some(&tensor(&[], &[1.0f32])), None]).unwrap();
        assert_eq!(made[0].view().elements::<u8>(), [0, 255, 0, 255, 2, 4]);
        let zero =
            [Some(&tensor(&[], &[0.0f32])), Some(&tensor(&[], &[-3i16]))].map(Option::<&Tensor>::cloned);
        let made = run("QuantizeLinear", 21, &[], &[Some(&x), zero[0].as_ref(), zero[1].as_ref()]).unwrap();
        assert_eq!(made[0].view().elements::<i16>(), [-32768, 32767, -32768, 32767, 32767, 32767]);
    }

    #[test]
    fn empty_tensors_and_scales_that_do_not_fit() {
        let empty = tensor::<f32>(&[0, 3], &[]);
        let made = run_for("DynamicQuantizeLinear", 11, &[], &[Some(&empty)], 3).unwrap();
        assert_eq!(made[2].view().elements::<u8>(), [0]);
        let scale = tensor(&[3], &[1.0f32; 3]);
        assert!(run("QuantizeLinear", 13, &[], &[Some(&empty), Some(&scale), None]).is_ok());
        let x = tensor(&[2, 4], &[1.0f32; 8]);
        assert!(run("QuantizeLinear", 13, &[], &[Some(&x), Some(&scale), None]).is_err());
        assert!(run("QuantizeLinear", 13, &[], &[Some(&x), Some(&tensor::<f32>(&[0], &[])), None]).is_err());
        let blocks = [("block_size", Attribute::Int(3))];
        assert!(run("QuantizeLinear", 21, &blocks, &[Some(&x), Some(&scale), None]).is_err());
        let to = [("output_dtype", Attribute::Int(DataType::F8E8M0 as i64))];
        assert!(run("QuantizeLinear", 21, &to, &[Some(&x), Some(&tensor(&[], &[1.0f32])), None]).is_err());
    }
}
