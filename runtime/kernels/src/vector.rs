//! Functions of f32 on vector registers, where rten-vecmath has none or one that is too coarse.
//!
//! Errors are those against the exact value, found by trying; NaN gives NaN everywhere.

use rten_simd::ops::{BitOps, FloatOps, IntOps, NumOps, ToFloat};
use rten_simd::{Isa, Simd, SimdUnaryOp};

/// The polynomial of these coefficients, that of x itself first.
#[inline(always)]
fn poly<I: Isa>(isa: I, x: I::F32, powers: &[f32]) -> I::F32 {
    let ops = isa.f32();
    let mut sum = ops.splat(powers[powers.len() - 1]);
    let mut left = powers.len() - 1;
    while left > 0 {
        left -= 1;
        sum = ops.mul_add(sum, x, ops.splat(powers[left]));
    }
    ops.mul(sum, x)
}

/// Error function, to 4 units in the last place. rten-vecmath's is off by 7e-7 however small the result is.
#[derive(Default)]
pub struct Erf {}

/// Where erf is 1 in f32.
const ERF_ONE: f32 = 4.0;
/// Minimax fit of erf(x) = x P(x^2) / Q(x^2) up to there, in relative error; by rising powers.
const ERF_P: [f32; 6] = [
    std::f32::consts::FRAC_2_SQRT_PI,
    0.193_545_31,
    0.053_101_78,
    3.883_354_6e-3,
    2.845_661_4e-4,
    1.986_780_7e-6,
];
const ERF_Q: [f32; 6] = [1.0, 0.504_857_6, 0.115_350_105, 0.015_207_273, 1.185_573_8e-3, 3.742_017e-5];

impl SimdUnaryOp<f32> for Erf {
    #[inline(always)]
    fn eval<I: Isa>(&self, isa: I, x: I::F32) -> I::F32 {
        let ops = isa.f32();
        let one = ops.one();
        let square = ops.mul(x, x);
        let p = ops.add(poly(isa, square, &ERF_P[1..]), ops.splat(ERF_P[0]));
        let q = ops.add(poly(isa, square, &ERF_Q[1..]), ops.splat(ERF_Q[0]));
        let y = ops.div(ops.mul(x, p), q);
        let y = ops.select(one, y, ops.ge(x, ops.splat(ERF_ONE)));
        ops.select(ops.neg(one), y, ops.le(x, ops.splat(-ERF_ONE)))
    }
}

/// x / 2 (1 + erf(x / sqrt 2)).
pub struct Gelu {}

impl SimdUnaryOp<f32> for Gelu {
    #[inline(always)]
    fn eval<I: Isa>(&self, isa: I, x: I::F32) -> I::F32 {
        let ops = isa.f32();
        let erf = Erf::apply(isa, ops.mul(x, ops.splat(std::f32::consts::FRAC_1_SQRT_2)));
        ops.mul(ops.mul(x, ops.splat(0.5)), ops.add(erf, ops.one()))
    }
}

/// x clip(x / 6 + 1/2, 0, 1).
pub struct HardSwish {}

impl SimdUnaryOp<f32> for HardSwish {
    #[inline(always)]
    fn eval<I: Isa>(&self, isa: I, x: I::F32) -> I::F32 {
        let ops = isa.f32();
        let gate = ops.mul_add(x, ops.splat(1.0 / 6.0), ops.splat(0.5));
        ops.mul(x, ops.min(ops.one(), ops.max(ops.zero(), gate)))
    }
}

/// Natural logarithm, to 2 units in the last place.
#[derive(Default)]
pub struct Log {}

/// ln 2 as a sum, the first part with so few digits that its products with exponents are exact.
const LN2: (f32, f32) = (0.693_138_1, 9.058_001e-6);
/// The bits of sqrt(1/2): mantissas are taken from there to sqrt(2), so that 1 is among them.
const SQRT_HALF_BITS: i32 = 0x3f35_04f3;
/// 2^23: makes every subnormal number a normal one.
const TO_NORMAL: f32 = 8_388_608.0;

impl SimdUnaryOp<f32> for Log {
    #[inline(always)]
    fn eval<I: Isa>(&self, isa: I, x: I::F32) -> I::F32 {
        let (ops, ints) = (isa.f32(), isa.i32());
        let subnormal = ops.lt(x, ops.splat(f32::MIN_POSITIVE));
        let scaled = ops.select(ops.mul(x, ops.splat(TO_NORMAL)), x, subnormal);
        let bits: I::I32 = scaled.reinterpret_cast();
        let exponent = ints.shift_right::<23>(ints.sub(bits, ints.splat(SQRT_HALF_BITS)));
        let mantissa: I::F32 = ints.sub(bits, ints.shift_left::<23>(exponent)).reinterpret_cast();
        let exponent = ints.to_float(exponent);
        let exponent = ops.select(ops.sub(exponent, ops.splat(23.0)), exponent, subnormal);
        // ln(1 + f) = f - (f^2/2 - s (f^2/2 + R)), with s = f / (2 + f) and R what is left of the series 2 atanh(s).
        let f = ops.sub(mantissa, ops.one());
        let s = ops.div(f, ops.add(f, ops.splat(2.0)));
        let square = ops.mul(s, s);
        let rest = poly(isa, square, &[2.0 / 3.0, 2.0 / 5.0, 2.0 / 7.0, 2.0 / 9.0]);
        let half = ops.mul(ops.mul(f, f), ops.splat(0.5));
        let low = ops.mul_add(s, ops.add(half, rest), ops.mul(exponent, ops.splat(LN2.1)));
        let y = ops.add(ops.sub(low, half), f);
        let y = ops.mul_add(exponent, ops.splat(LN2.0), y);
        let y = ops.select(ops.splat(f32::NEG_INFINITY), y, ops.eq(x, ops.zero()));
        let y = ops.select(ops.splat(f32::NAN), y, ops.lt(x, ops.zero()));
        // Infinity and NaN.
        ops.select(y, x, ops.lt(x, ops.splat(f32::INFINITY)))
    }
}

/// ln(1 + e^x), to 4 units in the last place.
pub struct Softplus {}

impl SimdUnaryOp<f32> for Softplus {
    #[inline(always)]
    fn eval<I: Isa>(&self, isa: I, x: I::F32) -> I::F32 {
        let ops = isa.f32();
        let e = rten_vecmath::Exp::apply(isa, ops.neg(ops.abs(x)));
        let sum = ops.add(ops.one(), e);
        // What the sum lost in rounding comes back to first order.
        let lost = ops.sub(e, ops.sub(sum, ops.one()));
        let y = ops.add(Log::apply(isa, sum), ops.div(lost, sum));
        let positive = ops.select(x, ops.zero(), ops.gt(x, ops.zero()));
        let y = ops.add(y, positive);
        ops.select(y, x, ops.eq(x, x))
    }
}

/// x tanh(ln(1 + e^x)).
pub struct Mish {}

/// Where tanh(ln(1 + e^x)) is 1 in f32, and e^2x still far from infinity.
const MISH_LINEAR: f32 = 20.0;

impl SimdUnaryOp<f32> for Mish {
    #[inline(always)]
    fn eval<I: Isa>(&self, isa: I, x: I::F32) -> I::F32 {
        let ops = isa.f32();
        // tanh(ln(1 + e)) = n / (n + 2) with n = e (e + 2): nothing is subtracted.
        let e = rten_vecmath::Exp::apply(isa, x);
        let n = ops.mul(e, ops.add(e, ops.splat(2.0)));
        let y = ops.div(ops.mul(x, n), ops.add(n, ops.splat(2.0)));
        ops.select(x, y, ops.ge(x, ops.splat(MISH_LINEAR)))
    }
}

/// e^x - 1, to 4 units in the last place.
#[derive(Default)]
struct ExpM1 {}

/// Below it the series is used: above, the subtraction loses two bits at most.
const SERIES: f32 = 0.35;

impl SimdUnaryOp<f32> for ExpM1 {
    #[inline(always)]
    fn eval<I: Isa>(&self, isa: I, x: I::F32) -> I::F32 {
        let ops = isa.f32();
        let powers = [1.0, 1.0 / 2.0, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0, 1.0 / 720.0, 1.0 / 5040.0];
        let small = poly(isa, x, &powers);
        let large = ops.sub(rten_vecmath::Exp::apply(isa, x), ops.one());
        ops.select(small, large, ops.lt(ops.abs(x), ops.splat(SERIES)))
    }
}

/// `slope` x for positive x, else `scale` (e^(`rate` x) - 1): Elu, Selu and Celu.
pub struct Elu {
    /// Of positive elements.
    pub slope: f32,
    /// Of the others.
    pub scale: f32,
    /// Of their exponent.
    pub rate: f32,
}

impl SimdUnaryOp<f32> for Elu {
    #[inline(always)]
    fn eval<I: Isa>(&self, isa: I, x: I::F32) -> I::F32 {
        let ops = isa.f32();
        let bent = ops.mul(ExpM1::apply(isa, ops.mul(x, ops.splat(self.rate))), ops.splat(self.scale));
        ops.select(ops.mul(x, ops.splat(self.slope)), bent, ops.gt(x, ops.zero()))
    }
}

/// To the nearest whole number, halves to even ones.
#[derive(Default)]
pub struct Round {}

impl SimdUnaryOp<f32> for Round {
    #[inline(always)]
    fn eval<I: Isa>(&self, isa: I, x: I::F32) -> I::F32 {
        isa.f32().round_ties_even(x)
    }
}

/// The next whole number below.
pub struct Floor {}

impl SimdUnaryOp<f32> for Floor {
    #[inline(always)]
    fn eval<I: Isa>(&self, isa: I, x: I::F32) -> I::F32 {
        let ops = isa.f32();
        let near = ops.round_ties_even(x);
        ops.select(ops.sub(near, ops.one()), near, ops.gt(near, x))
    }
}

/// The next whole number above.
pub struct Ceil {}

impl SimdUnaryOp<f32> for Ceil {
    #[inline(always)]
    fn eval<I: Isa>(&self, isa: I, x: I::F32) -> I::F32 {
        let ops = isa.f32();
        let near = ops.round_ties_even(x);
        ops.select(ops.add(near, ops.one()), near, ops.lt(near, x))
    }
}

/// erf to the precision of f64, slowly: a series of positive terms, and a continued fraction where that would be long.
pub fn erf(x: f64) -> f64 {
    use std::f64::consts::PI;
    /// From here on the fraction of so many levels is exact to 16 digits.
    const FRACTION: (f64, u32) = (3.0, 60);
    let z = x.abs();
    if z < FRACTION.0 {
        let (mut term, mut sum, mut n) = (z, z, 1.0);
        while term > sum * f64::EPSILON / 4.0 {
            term *= 2.0 * z * z / (2.0 * n + 1.0);
            sum += term;
            n += 1.0;
        }
        (2.0 / PI.sqrt() * (-z * z).exp() * sum).copysign(x)
    } else if z.is_nan() {
        x
    } else {
        let tail = (1..=FRACTION.1).rev().fold(z, |below, n| z + f64::from(n) / 2.0 / below);
        (1.0 - (-z * z).exp() / tail / PI.sqrt()).copysign(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest relative error of `op` against `exact` over a range.
    fn error(op: &impl SimdUnaryOp<f32>, exact: impl Fn(f64) -> f64, from: f32, to: f32) -> f64 {
        const POINTS: usize = 20_000;
        let step = (to - from) / POINTS as f32;
        let points: Vec<f32> = (0..POINTS).map(|n| from + step * n as f32).collect();
        let mut made = points.clone();
        op.map_mut(&mut made);
        let errors = points.iter().zip(&made).map(|(&x, &y)| {
            let exact = exact(x.into());
            (f64::from(y) - exact).abs() / exact.abs().max(f64::from(f32::MIN_POSITIVE))
        });
        errors.fold(0.0, f64::max)
    }

    #[test]
    fn functions_are_as_precise_as_they_say() {
        const UNIT: f64 = f32::EPSILON as f64;
        assert!((erf(0.5) - 0.520_499_877_813_046_5).abs() < 1e-15);
        assert!((erf(-3.5) + 0.999_999_256_901_627_7).abs() < 1e-15);
        assert!(error(&Erf {}, erf, -5.0, 5.0) < 4.0 * UNIT);
        assert!(error(&Erf {}, erf, -1e-4, 1e-4) < 4.0 * UNIT);
        assert!(error(&Log {}, f64::ln, 1e-3, 3.0) < 2.0 * UNIT);
        assert!(error(&Log {}, f64::ln, 1e-39, 1e-37) < 2.0 * UNIT);
        assert!(error(&Softplus {}, |x| x.max(0.0) + (-x.abs()).exp().ln_1p(), -80.0, 80.0) < 4.0 * UNIT);
        assert!(error(&ExpM1 {}, f64::exp_m1, -5.0, 5.0) < 4.0 * UNIT);
    }

    #[test]
    fn the_ends_of_the_range_are_as_ieee_has_them() {
        let ends = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0];
        let of = |op: &dyn Fn(&mut [f32])| {
            let mut ends = ends;
            op(&mut ends);
            assert!(ends[0].is_nan(), "{ends:?}");
            [ends[1], ends[2], ends[3]]
        };
        assert_eq!(of(&|x| Erf {}.map_mut(x)), [1.0, -1.0, 0.0]);
        assert_eq!(of(&|x| Softplus {}.map_mut(x)), [f32::INFINITY, 0.0, 2f32.ln()]);
        assert_eq!(of(&|x| Floor {}.map_mut(x)), [f32::INFINITY, f32::NEG_INFINITY, 0.0]);
        let elu = Elu { slope: 1.0, scale: 1.0, rate: 1.0 };
        assert_eq!(of(&|x| elu.map_mut(x)), [f32::INFINITY, -1.0, 0.0]);
        let mut ends = [0.0, f32::INFINITY, -1.0, f32::NAN, f32::MIN_POSITIVE / 4.0];
        Log {}.map_mut(&mut ends);
        assert_eq!(&ends[..2], [f32::NEG_INFINITY, f32::INFINITY]);
        assert!(ends[2].is_nan() && ends[3].is_nan());
    }
}
