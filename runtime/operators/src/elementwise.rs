//! Operators that make each element from two at the same place, broadcast.

use super::unary::{FEW, blocks, each, wide};
use super::{Call, Definition, Known, Made, Operator, Reuse, Types, Unclear, cast, typed};
use bytemuck::Pod;
use smallvec::smallvec;
use stepalloc_kernels::broadcast::{Walk, broadcast};
use stepalloc_kernels::no;
use stepalloc_tensor::{DataType, Number, OpError, Shape, Type, View, ViewMut};

pub(super) fn make(node: &Definition<'_>) -> Made {
    let attributes = node.attributes;
    Some(Ok(match node.op {
        "Add" => Box::new(Arithmetic::Add),
        "Sub" => Box::new(Arithmetic::Sub),
        "Mul" => Box::new(Arithmetic::Mul),
        "Div" => Box::new(Arithmetic::Div),
        "Mod" => match attributes.int("fmod", 0) {
            0 => Box::new(Arithmetic::FloorMod),
            1 => Box::new(Arithmetic::TruncMod),
            other => return Some(Err(OpError::attribute(format!("its fmod is {other}, neither 0 nor 1")))),
        },
        "PRelu" => Box::new(Arithmetic::PRelu),
        "Pow" => Box::new(Pow),
        _ => return None,
    }))
}

/// Two operands and an output of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arithmetic {
    Add,
    Sub,
    Mul,
    Div,
    FloorMod,
    TruncMod,
    PRelu,
    Max,
    Min,
}

impl Operator for Arithmetic {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (a, b) = (inputs.ty(0)?, inputs.ty(1)?);
        if a.dtype != b.dtype {
            return Err(OpError::element_type(format!("{a} and {b} have elements of two types")).into());
        }
        Ok(smallvec![typed(a.dtype, broadcast_types(&[a, b])?)?])
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&[0, 1])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let dtype = call.dtype(0)?;
        let out = call.output(0)?;
        self.compute(out, dtype, &Operand::new(call, 0)?, &Operand::new(call, 1)?)
    }
}

impl Arithmetic {
    /// Computes the elements of `out`, of which one of the operands may be.
    pub(super) fn compute(
        &self,
        out: ViewMut<'_>,
        dtype: DataType,
        a: &Operand<'_>,
        b: &Operand<'_>,
    ) -> Result<(), OpError> {
        let all = (out, a, b);
        match (wide(dtype), self) {
            (Some(DataType::F32), Self::Add) => f32s(all, |a, b| a + b),
            (Some(DataType::F32), Self::Sub) => f32s(all, |a, b| a - b),
            (Some(DataType::F32), Self::Mul) => f32s(all, |a, b| a * b),
            (Some(DataType::F32), Self::Div) => f32s(all, |a, b| a / b),
            (Some(DataType::F32), Self::PRelu) => f32s(all, |x, slope| if x < 0.0 { x * slope } else { x }),
            (Some(DataType::F32), Self::FloorMod) => meet(all, floor_mod::<f32>),
            (Some(DataType::F32), Self::TruncMod) => meet(all, |a: f32, b: f32| a % b),
            (Some(DataType::F32), Self::Max) => f32s(all, greater),
            (Some(DataType::F32), Self::Min) => f32s(all, less),
            (Some(DataType::F64), Self::Add) => meet(all, |a: f64, b: f64| a + b),
            (Some(DataType::F64), Self::Sub) => meet(all, |a: f64, b: f64| a - b),
            (Some(DataType::F64), Self::Mul) => meet(all, |a: f64, b: f64| a * b),
            (Some(DataType::F64), Self::Div) => meet(all, |a: f64, b: f64| a / b),
            (Some(DataType::F64), Self::PRelu) => {
                meet(all, |x: f64, slope: f64| if x < 0.0 { x * slope } else { x });
            }
            (Some(DataType::F64), Self::FloorMod) => meet(all, floor_mod::<f64>),
            (Some(DataType::F64), Self::TruncMod) => meet(all, |a: f64, b: f64| a % b),
            (Some(DataType::F64), Self::Max) => meet(all, greater::<f64>),
            (Some(DataType::F64), Self::Min) => meet(all, less::<f64>),
            // Of integers, signs make no difference to these.
            (Some(_), Self::Add) => meet(all, i64::wrapping_add),
            (Some(_), Self::Sub) => meet(all, i64::wrapping_sub),
            (Some(_), Self::Mul) => meet(all, i64::wrapping_mul),
            (Some(DataType::U64), Self::Div) => meet(all, <u64 as Number>::over),
            (Some(DataType::U64), Self::PRelu) => meet(all, |x: u64, _: u64| x),
            (Some(DataType::U64), Self::FloorMod | Self::TruncMod) => {
                meet(all, |a: u64, b: u64| a.checked_rem(b).unwrap_or(0));
            }
            (Some(DataType::U64), Self::Max) => meet(all, u64::max),
            (Some(DataType::U64), Self::Min) => meet(all, u64::min),
            (Some(_), Self::Div) => meet(all, <i64 as Number>::over),
            (Some(_), Self::PRelu) => {
                meet(all, |x: i64, slope: i64| if x < 0 { x.wrapping_mul(slope) } else { x });
            }
            (Some(_), Self::FloorMod) => {
                // Euclid's remainder is never negative; floor's has the divisor's sign.
                meet(all, |a: i64, b: i64| match a.checked_rem_euclid(b).unwrap_or(0) {
                    rest if rest != 0 && b < 0 => rest.wrapping_add(b),
                    rest => rest,
                });
            }
            (Some(_), Self::TruncMod) => meet(all, |a: i64, b: i64| a.checked_rem(b).unwrap_or(0)),
            (Some(_), Self::Max) => meet(all, i64::max),
            (Some(_), Self::Min) => meet(all, i64::min),
            (None, _) => return Err(no(dtype)),
        }
        Ok(())
    }
}

// Comparisons are false for NaN: where the first operand is one, it is taken.
#[allow(clippy::eq_op, reason = "only NaN is not itself")]
fn greater<T: Number>(a: T, b: T) -> T {
    if a > b || a != a { a } else { b }
}

#[allow(clippy::eq_op, reason = "only NaN is not itself")]
fn less<T: Number>(a: T, b: T) -> T {
    if a < b || a != a { a } else { b }
}

/// a - floor(a / b) b, exactly; of b's sign.
fn floor_mod<T: Number<Wide = T> + std::ops::Rem<Output = T> + std::ops::Add<Output = T>>(a: T, b: T) -> T {
    let (rest, zero) = (a % b, T::default());
    if rest == zero {
        // Zero of b's sign: positive zero for positive b.
        if b < zero { zero.over(b) } else { zero }
    } else if (rest < zero) != (b < zero) {
        rest + b
    } else {
        rest
    }
}

/// A number to the power of one of any type.
struct Pow;

impl Operator for Pow {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (a, b) = (inputs.ty(0)?, inputs.ty(1)?);
        Ok(smallvec![typed(a.dtype, broadcast_types(&[a, b])?)?])
    }

    fn reuse(&self) -> Reuse {
        Reuse::InPlace(&[0])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let exponents = call.input(1)?;
        let dtype = call.dtype(0)?;
        let computed = wide(dtype).ok_or_else(|| no(dtype))?;
        let whole = match wide(exponents.dtype) {
            Some(DataType::F32 | DataType::F64) => false,
            Some(_) => true,
            None => return Err(no(exponents.dtype)),
        };
        // Most exponents are one number for all, and a small one.
        if exponents.len() == 1 && dtype == DataType::F32 {
            let mut exponent = [0.0];
            let to = bytemuck::cast_slice_mut(&mut exponent);
            cast::convert(exponents.dtype, DataType::F64, exponents.bytes, to);
            let power: Option<fn(&mut [f32])> = match exponent[0] {
                2.0 => Some(|x| each(x, |x| x * x)),
                3.0 => Some(|x| each(x, |x| x * x * x)),
                -1.0 => Some(|x| each(x, |x| 1.0 / x)),
                // Zero is added because the root of -0 is -0, and its power 0; the power of negative infinity is positive.
                0.5 => Some(|x| {
                    each(x, |x| if x == f32::NEG_INFINITY { f32::INFINITY } else { (x + 0.0).sqrt() });
                }),
                _ => None,
            };
            if let Some(power) = power {
                return blocks(call, dtype, &|x| power(bytemuck::cast_slice_mut(x)));
            }
        }
        let out = call.output(0)?;
        let (base, exponents) = (Operand::new(call, 0)?, Operand::new(call, 1)?);
        let (base, exponents) = (&base, &exponents);
        let real = [DataType::F64; 3].into();
        match computed {
            DataType::F32 => {
                let types = [DataType::F32; 3].into();
                meet_as((out, base, exponents), types, f32::powf);
            }
            DataType::F64 => meet_as((out, base, exponents), real, f64::powf),
            _ if !whole => meet_as((out, base, exponents), real, f64::powf),
            DataType::U64 => {
                let types = (DataType::U64, DataType::I64, DataType::U64);
                meet_as((out, base, exponents), types, whole_power::<u64>);
            }
            _ => meet_as((out, base, exponents), [DataType::I64; 3].into(), whole_power::<i64>),
        }
        Ok(())
    }
}

/// An integer to the power of one, wrapping; a fraction is 0.
fn whole_power<T: Number>(base: T, exponent: i64) -> T {
    let (one, zero) = (T::from_i64(1), T::default());
    if exponent < 0 {
        let minus_one = zero.minus(one);
        return match base {
            base if base == one => one,
            base if base == minus_one && minus_one < zero => {
                if exponent % 2 == 0 {
                    one
                } else {
                    minus_one
                }
            }
            _ => zero,
        };
    }
    let (mut result, mut square, mut left) = (one, base, exponent);
    while left > 0 {
        if left % 2 == 1 {
            result = result.times(square);
        }
        square = square.times(square);
        left /= 2;
    }
    result
}

/// The shape of operands of these types together.
pub(super) fn broadcast_types(types: &[&Type]) -> Result<Shape, OpError> {
    broadcast(types.iter().map(|ty| &ty.shape[..])).ok_or_else(|| {
        let shapes: Vec<_> = types.iter().map(|ty| ty.to_string()).collect();
        OpError::shape(format!("shapes do not fit: {}", shapes.join(" and ")))
    })
}

/// One of two operands; without elements where they lie in the output.
#[derive(Clone, Copy)]
pub(super) struct Operand<'a> {
    dtype: DataType,
    view: Option<View<'a>>,
}

impl<'a> Operand<'a> {
    /// An input that must be there, if only in the output.
    pub(super) fn new(call: &Call<'_, 'a>, index: usize) -> Result<Self, OpError> {
        Ok(Self { dtype: call.dtype(index)?, view: call.opt(index) })
    }

    /// What lies elsewhere.
    pub(super) fn one(view: View<'a>) -> Self {
        Self { dtype: view.dtype, view: Some(view) }
    }

    /// What lies in an output.
    pub(super) fn there(dtype: DataType) -> Self {
        Self { dtype, view: None }
    }
}

/// An output and its operands, which are broadcast.
pub(super) type Pair<'p, 'a> = (ViewMut<'p>, &'p Operand<'a>, &'p Operand<'a>);

/// Makes each element of an output from those of two operands at the same place, in the types that they are computed in: `A`, `B` and
/// `C` are those.
pub(super) fn meet<A: Pod, B: Pod, C: Pod>(pair: Pair<'_, '_>, f: impl Fn(A, B) -> C + Sync) {
    let types = (wide_or_same(pair.1.dtype), wide_or_same(pair.2.dtype), wide_or_same(pair.0.dtype));
    meet_as(pair, types, f);
}

fn wide_or_same(dtype: DataType) -> DataType {
    wide(dtype).unwrap_or(dtype)
}

/// The same in other types.
pub(super) fn meet_as<A: Pod, B: Pod, C: Pod>(
    pair: Pair<'_, '_>,
    types: (DataType, DataType, DataType),
    f: impl Fn(A, B) -> C + Sync,
) {
    meet_bytes(pair, types, &|out, a, b| {
        let (a, b): (&[A], &[B]) = (bytemuck::cast_slice(a), bytemuck::cast_slice(b));
        let out: &mut [C] = bytemuck::cast_slice_mut(out);
        let (a, b) = (&a[..out.len()], &b[..out.len()]);
        let mut n = 0;
        while n < out.len() {
            out[n] = f(a[n], b[n]);
            n += 1;
        }
    });
}

/// Makes elements of an output from those of two operands, all as bytes.
type Make<'m> = dyn Fn(&mut [u8], &[u8], &[u8]) + Sync + 'm;

/// Calls `make` for bytes of the output and those of both operands that they are made of, as elements of these types.
pub(super) fn meet_bytes(
    (out, a, b): Pair<'_, '_>,
    (a_type, b_type, made): (DataType, DataType, DataType),
    make: &Make<'_>,
) {
    let dtype = out.dtype;
    let width = dtype.bytes();
    let walk = Walk::new(out.shape, [a.shape(out.shape), b.shape(out.shape)]);
    walk.parts(out.bytes, width, &|part, rows| {
        let (mut a_few, mut b_few, mut made_few) = ([0u64; FEW], [0u64; FEW], [0u64; FEW]);
        let a_few: &mut [u8] = bytemuck::cast_slice_mut(&mut a_few);
        let b_few: &mut [u8] = bytemuck::cast_slice_mut(&mut b_few);
        let made_few: &mut [u8] = bytemuck::cast_slice_mut(&mut made_few);
        rows.each(&mut |at, length, [a_at, b_at]| {
            let row = &mut part[at * width..(at + length) * width];
            let all = [a.fill(a_at, a_type, length, a_few), b.fill(b_at, b_type, length, b_few)];
            let step = if all == [false; 2] && made == dtype { length } else { FEW };
            for begin in (0..length).step_by(step.max(1)) {
                let count = step.min(length - begin);
                let out = &mut row[begin * width..(begin + count) * width];
                let from_a = a.read(a_at, a_type, (begin, count), out, a_few);
                let from_b = b.read(b_at, b_type, (begin, count), out, b_few);
                if made == dtype {
                    make(out, from_a, from_b);
                } else {
                    let few = &mut made_few[..count * made.bytes()];
                    make(few, from_a, from_b);
                    cast::convert(made, dtype, few, out);
                }
            }
        });
    });
}

impl Operand<'_> {
    fn shape<'s>(&'s self, out: &'s [usize]) -> &'s [usize] {
        self.view.as_ref().map_or(out, |view| view.shape)
    }

    /// Whether its elements in a row have to be brought into `few`; one that is the same for all is.
    fn fill(&self, (begin, step): (usize, usize), to: DataType, length: usize, few: &mut [u8]) -> bool {
        let Some(view) = self.view else { return true };
        if step == 0 {
            let (width, made) = (self.dtype.bytes(), to.bytes());
            cast::convert(self.dtype, to, &view.bytes[begin * width..(begin + 1) * width], &mut few[..made]);
            let wanted = length.min(FEW) * made;
            let mut filled = made;
            while filled < wanted {
                let more = filled.min(wanted - filled);
                few.copy_within(..more, filled);
                filled += more;
            }
        }
        step == 0 || self.dtype != to
    }

    /// Its elements of a row, from one on; `here` are those of the output.
    fn read<'f>(
        &'f self,
        (begin, step): (usize, usize),
        to: DataType,
        (at, count): (usize, usize),
        here: &[u8],
        few: &'f mut [u8],
    ) -> &'f [u8] {
        let width = self.dtype.bytes();
        let from = match self.view {
            None => here,
            Some(_) if step == 0 => return &few[..count * to.bytes()],
            Some(view) => {
                let from = &view.bytes[(begin + at) * width..(begin + at + count) * width];
                if self.dtype == to {
                    return from;
                }
                from
            }
        };
        let few = &mut few[..count * to.bytes()];
        cast::convert(self.dtype, to, from, few);
        few
    }
}

/// [`meet`] for f32, and for halves. Where all are f32 they are taken as they lie.
pub(super) fn f32s(pair: Pair<'_, '_>, f: impl Fn(f32, f32) -> f32 + Sync) {
    if pair.0.dtype != DataType::F32 {
        return meet(pair, f);
    }
    f32_rows(pair, &|out, a, b| match (a, b) {
        (Run::Along(a), Run::Along(b)) => {
            let (a, b) = (&a[..out.len()], &b[..out.len()]);
            let mut n = 0;
            while n < out.len() {
                out[n] = f(a[n], b[n]);
                n += 1;
            }
        }
        (Run::Along(a), Run::Same(b)) => {
            for (out, &a) in out.iter_mut().zip(a) {
                *out = f(a, b);
            }
        }
        (Run::Same(a), Run::Along(b)) => {
            for (out, &b) in out.iter_mut().zip(b) {
                *out = f(a, b);
            }
        }
        (Run::Same(a), Run::Same(b)) => out.fill(f(a, b)),
        (Run::There, Run::Along(b)) => {
            for (out, &b) in out.iter_mut().zip(b) {
                *out = f(*out, b);
            }
        }
        (Run::Along(a), Run::There) => {
            for (out, &a) in out.iter_mut().zip(a) {
                *out = f(a, *out);
            }
        }
        (Run::There, Run::Same(b)) => each(out, |a| f(a, b)),
        (Run::Same(a), Run::There) => each(out, |b| f(a, b)),
        (Run::There, Run::There) => each(out, |x| f(x, x)),
    });
}

/// The elements of an operand that a row is made of.
enum Run<'r> {
    /// Those of the row itself.
    There,
    /// One for all.
    Same(f32),
    Along(&'r [f32]),
}

impl<'r> Run<'r> {
    fn of(elements: Option<&'r [f32]>, (begin, step): (usize, usize), length: usize) -> Self {
        match elements {
            None => Self::There,
            Some(elements) if step == 0 => Self::Same(elements[begin]),
            Some(elements) => Self::Along(&elements[begin..begin + length]),
        }
    }
}

/// Calls `make` for rows of the output, or parts of them.
fn f32_rows((out, a, b): Pair<'_, '_>, make: &(dyn Fn(&mut [f32], Run<'_>, Run<'_>) + Sync)) {
    let walk = Walk::new(out.shape, [a.shape(out.shape), b.shape(out.shape)]);
    let [a, b] = [a.view.map(|view| view.elements::<f32>()), b.view.map(|view| view.elements::<f32>())];
    walk.write(out.elements::<f32>(), |row, [a_at, b_at]| {
        let (a, b) = (Run::of(a, a_at, row.len()), Run::of(b, b_at, row.len()));
        make(row, a, b);
    });
}

#[cfg(test)]
mod tests {
    use super::super::trial::run;
    use super::*;
    use stepalloc_graph::Attribute;
    use stepalloc_tensor::Tensor;

    #[test]
    fn remainders_have_the_sign_they_should_and_no_value_panics() {
        assert_eq!(
            [floor_mod(-7.0, 3.0), floor_mod(7.0, -3.0), floor_mod(1.0, f32::NEG_INFINITY)],
            [2.0, -2.0, f32::NEG_INFINITY]
        );
        assert!(floor_mod(4.0, -2.0f32).is_sign_negative() && floor_mod(1.0, 0.0f32).is_nan());
    }

    #[test]
    fn division_by_zero_and_of_the_least_integer_are_defined() {
        let a = Tensor::from_elements([4], &[-7i32, 7, i32::MIN, 5]).unwrap();
        let b = Tensor::from_elements([4], &[3i32, -3, -1, 0]).unwrap();
        let of = |op, fmod| {
            let made = run(op, 28, &[("fmod", Attribute::Int(fmod))], &[Some(&a), Some(&b)]).unwrap();
            made[0].view().elements::<i32>().to_vec()
        };
        assert_eq!(of("Mod", 0), [2, -2, 0, 0]);
        assert_eq!(of("Mod", 1), [-1, 1, 0, 0]);
        assert_eq!(of("Div", 0), [-2, -2, i32::MIN, 0]);
    }

    #[test]
    fn whole_powers_wrap_and_fractions_are_zero() {
        assert_eq!(whole_power(3i32, 4), 81);
        assert_eq!(whole_power(2i32, 40), 0);
        assert_eq!(whole_power(2u32, -1), 0);
        assert_eq!([whole_power(-1i64, i64::MIN), whole_power(-1i64, -3), whole_power(0i64, -1)], [1, -1, 0]);
    }
}
