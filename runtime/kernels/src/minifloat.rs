//! Numbers of 8 bits and less that are no machine type: how they are read and made.
//!
//! Each takes a byte, its bits in the low ones. Formats are those of ONNX's documentation, "Float stored in 8 bits" and "4 bit
//! integer types"; reals are rounded to the nearest, ties to even.

use stepalloc_tensor::DataType;

/// A format of a sign, an exponent and a mantissa.
struct Format {
    /// Bits in all.
    bits: u32,
    mantissa: u32,
    bias: i32,
    /// The largest finite number; what is above it is infinite or none.
    largest: u8,
    infinity: Option<u8>,
    nan: Nan,
}

enum Nan {
    /// With either sign.
    Signed(u8),
    /// In the place of negative zero.
    NegativeZero,
    /// There is none; negative zero is made of it.
    Missing,
}

fn format(dtype: DataType) -> Option<Format> {
    let (bits, mantissa, bias, largest, infinity, nan) = match dtype {
        DataType::F8E4M3FN => (8, 3, 7, 0x7e, None, Nan::Signed(0x7f)),
        DataType::F8E4M3FNUZ => (8, 3, 8, 0x7f, None, Nan::NegativeZero),
        DataType::F8E5M2 => (8, 2, 15, 0x7b, Some(0x7c), Nan::Signed(0x7e)),
        DataType::F8E5M2FNUZ => (8, 2, 16, 0x7f, None, Nan::NegativeZero),
        DataType::F4E2M1 => (4, 1, 1, 0x7, None, Nan::Missing),
        _ => return None,
    };
    Some(Format { bits, mantissa, bias, largest, infinity, nan })
}

/// Reals of 8 bits and less.
pub fn is_minifloat(dtype: DataType) -> bool {
    dtype == DataType::F8E8M0 || format(dtype).is_some()
}

/// Bits and sign of integers of less than a byte.
pub fn small_integer(dtype: DataType) -> Option<(u32, bool)> {
    match dtype {
        DataType::U4 => Some((4, false)),
        DataType::I4 => Some((4, true)),
        DataType::U2 => Some((2, false)),
        DataType::I2 => Some((2, true)),
        _ => None,
    }
}

/// An integer of so few bits.
pub fn small_value(bits: u32, signed: bool, byte: u8) -> i8 {
    let high = (byte << (8 - bits)) as i8;
    if signed { high >> (8 - bits) } else { (high as u8 >> (8 - bits)) as i8 }
}

/// 2^`exponent`, where that is a normal number.
fn power(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// The largest whole number whose power of 2 is no more than this positive finite number; subnormals are taken for less.
fn exponent(x: f64) -> i32 {
    ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023
}

/// The value of a byte; 0 where the type is none of [`is_minifloat`].
pub fn decode(dtype: DataType, byte: u8) -> f32 {
    let Some(Format { bits, mantissa, bias, largest, infinity, nan }) = format(dtype) else {
        return match (dtype, byte) {
            (DataType::F8E8M0, 0xff) => f32::NAN,
            (DataType::F8E8M0, byte) => power(i32::from(byte) - 127) as f32,
            _ => 0.0,
        };
    };
    let sign_bit = 1u8 << (bits - 1);
    let (negative, magnitude) = (byte & sign_bit != 0, byte & (sign_bit - 1));
    let value = if Some(magnitude) == infinity {
        f32::INFINITY
    } else if magnitude > largest || matches!(nan, Nan::NegativeZero) && byte == sign_bit {
        f32::NAN
    } else {
        let (scale, digits) = (i32::from(magnitude >> mantissa), magnitude & ((1 << mantissa) - 1));
        // The smallest exponent stands for subnormal numbers, which have no leading 1.
        let digits = if scale == 0 { digits } else { digits | 1 << mantissa };
        f32::from(digits) * power(scale.max(1) - bias - mantissa as i32) as f32
    };
    if negative { -value } else { value }
}

/// The byte for a number; too large ones are made the largest if `saturate`. 0 where the type is none of [`is_minifloat`] or F8E8M0.
pub fn encode(dtype: DataType, x: f64, saturate: bool) -> u8 {
    let Some(Format { bits, mantissa, bias, largest, infinity, nan }) = format(dtype) else { return 0 };
    let sign_bit = 1u8 << (bits - 1);
    let sign = if x.is_sign_negative() { sign_bit } else { 0 };
    let no_number = match nan {
        Nan::Signed(nan) => sign | nan,
        Nan::NegativeZero | Nan::Missing => sign_bit,
    };
    if x.is_nan() {
        return no_number;
    }
    let x = x.abs();
    let smallest = 1 - bias;
    let magnitude = if x.is_finite() {
        let scale = exponent(x).max(smallest);
        // In units of the last place; the leading 1 of normal numbers adds one to the exponent.
        let digits = (x / power(scale - mantissa as i32)).round_ties_even() as i64;
        (i64::from(scale - smallest) << mantissa) + digits
    } else {
        i64::MAX
    };
    if magnitude <= i64::from(largest) {
        let magnitude = magnitude as u8;
        let no_negative_zero = matches!(nan, Nan::NegativeZero) && magnitude == 0;
        return if no_negative_zero { 0 } else { sign | magnitude };
    }
    match (saturate || matches!(nan, Nan::Missing), infinity) {
        (true, _) => sign | largest,
        (false, Some(infinity)) => sign | infinity,
        (false, None) => no_number,
    }
}

/// How numbers become powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To the next larger one.
    Up,
    /// To the next smaller one.
    Down,
    /// Ties up.
    Nearest,
}

/// The byte of the power of 2 for a number, of which the sign is dropped.
pub fn encode_power(x: f64, saturate: bool, rounding: Rounding) -> u8 {
    const NAN: u8 = 0xff;
    /// Exponents there are.
    const RANGE: (i32, i32) = (-127, 127);
    let x = x.abs();
    if x.is_nan() {
        return NAN;
    }
    if x < power(RANGE.0) {
        return if saturate { 0 } else { NAN };
    }
    let down = exponent(x);
    let up = match rounding {
        Rounding::Down => false,
        Rounding::Up => x.is_finite() && x > power(down),
        Rounding::Nearest => x.is_finite() && x >= 1.5 * power(down),
    };
    let rounded = down + i32::from(up);
    match rounded > RANGE.1 {
        true if !saturate => NAN,
        _ => (rounded.min(RANGE.1) - RANGE.0) as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOATS: [DataType; 5] =
        [DataType::F8E4M3FN, DataType::F8E4M3FNUZ, DataType::F8E5M2, DataType::F8E5M2FNUZ, DataType::F4E2M1];

    #[test]
    fn every_byte_comes_back_and_the_largest_are_those_of_the_standard() {
        for dtype in FLOATS {
            for byte in 0..1u16 << dtype.file_bits() {
                let value = decode(dtype, byte as u8);
                let back = encode(dtype, value.into(), false);
                assert!(back == byte as u8 || value.is_nan(), "{dtype} {byte:#x} is {value}, is {back:#x}");
            }
        }
        let largest = FLOATS.map(|dtype| decode(dtype, encode(dtype, f64::INFINITY, true)));
        assert_eq!(largest, [448.0, 240.0, 57344.0, 57344.0, 6.0]);
        assert_eq!(decode(DataType::F8E5M2, encode(DataType::F8E5M2, -1e9, false)), f32::NEG_INFINITY);
    }

    #[test]
    fn reals_go_to_the_nearest_and_ties_to_even() {
        let of = |x| decode(DataType::F4E2M1, encode(DataType::F4E2M1, x, true));
        assert_eq!(
            [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.1].map(of),
            [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0]
        );
        // Half of the smallest subnormal number, and a little more.
        assert_eq!(encode(DataType::F8E4M3FN, 2f64.powi(-10), true), 0);
        assert_eq!(encode(DataType::F8E4M3FN, 2f64.powi(-10) * 1.01, true), 1);
        assert_eq!(encode(DataType::F8E4M3FNUZ, -1e-300, true), 0);
    }

    #[test]
    fn powers_of_two_are_rounded_as_told() {
        let of = |x, rounding| decode(DataType::F8E8M0, encode_power(x, true, rounding));
        assert_eq!([1.0, 1.1, 1.5].map(|x| of(x, Rounding::Up)), [1.0, 2.0, 2.0]);
        assert_eq!([1.0, 1.9].map(|x| of(x, Rounding::Down)), [1.0, 1.0]);
        assert_eq!([1.4, 1.5].map(|x| of(x, Rounding::Nearest)), [1.0, 2.0]);
        assert_eq!(encode_power(f64::INFINITY, true, Rounding::Up), 0xfe);
        assert_eq!(encode_power(f64::INFINITY, false, Rounding::Nearest), 0xff);
        assert_eq!(
            [encode_power(0.0, true, Rounding::Up), encode_power(0.0, false, Rounding::Nearest)],
            [0, 0xff]
        );
    }
}
