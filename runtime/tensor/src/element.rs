//! The element types of tensors, and macros that choose the code for one.

use bytemuck::{Pod, Zeroable};
pub use half::{bf16, f16};
use std::fmt;
use std::ops::{Add, Div, Mul, Sub};

/// The type of a tensor's elements: ONNX's `TensorProto.DataType` without strings and complex numbers.
///
/// Elements of less than a byte take a byte each in memory; files pack them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[allow(missing_docs, reason = "the names say it")]
pub enum DataType {
    F32 = 1,
    U8 = 2,
    I8 = 3,
    U16 = 4,
    I16 = 5,
    I32 = 6,
    I64 = 7,
    Bool = 9,
    F16 = 10,
    F64 = 11,
    U32 = 12,
    U64 = 13,
    BF16 = 16,
    F8E4M3FN = 17,
    F8E4M3FNUZ = 18,
    F8E5M2 = 19,
    F8E5M2FNUZ = 20,
    U4 = 21,
    I4 = 22,
    F4E2M1 = 23,
    F8E8M0 = 24,
    U2 = 25,
    I2 = 26,
}

/// Every type with its number in files, its name in ONNX, the bytes an element takes here, and its bits in files.
const TYPES: [(DataType, &str, usize, u32); 23] = [
    (DataType::F32, "float32", 4, 32),
    (DataType::U8, "uint8", 1, 8),
    (DataType::I8, "int8", 1, 8),
    (DataType::U16, "uint16", 2, 16),
    (DataType::I16, "int16", 2, 16),
    (DataType::I32, "int32", 4, 32),
    (DataType::I64, "int64", 8, 64),
    (DataType::Bool, "bool", 1, 8),
    (DataType::F16, "float16", 2, 16),
    (DataType::F64, "float64", 8, 64),
    (DataType::U32, "uint32", 4, 32),
    (DataType::U64, "uint64", 8, 64),
    (DataType::BF16, "bfloat16", 2, 16),
    (DataType::F8E4M3FN, "float8e4m3fn", 1, 8),
    (DataType::F8E4M3FNUZ, "float8e4m3fnuz", 1, 8),
    (DataType::F8E5M2, "float8e5m2", 1, 8),
    (DataType::F8E5M2FNUZ, "float8e5m2fnuz", 1, 8),
    (DataType::U4, "uint4", 1, 4),
    (DataType::I4, "int4", 1, 4),
    (DataType::F4E2M1, "float4e2m1", 1, 4),
    (DataType::F8E8M0, "float8e8m0", 1, 8),
    (DataType::U2, "uint2", 1, 2),
    (DataType::I2, "int2", 1, 2),
];

impl DataType {
    /// The type of this number in ONNX's files, if it is one that is known here.
    pub fn from_onnx(number: i32) -> Option<Self> {
        TYPES.iter().map(|entry| entry.0).find(|&known| known as i32 == number)
    }

    fn entry(self) -> &'static (DataType, &'static str, usize, u32) {
        TYPES.iter().find(|entry| entry.0 == self).expect("every type has an entry")
    }

    /// Its name as ONNX spells it.
    pub fn name(self) -> &'static str {
        self.entry().1
    }

    /// Bytes of an element in memory.
    pub fn bytes(self) -> usize {
        self.entry().2
    }

    /// Bits of an element in a file.
    pub fn file_bits(self) -> usize {
        self.entry().3 as usize
    }

    /// Real numbers of 16 bits or more.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64 | Self::F16 | Self::BF16)
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that holds one element.
pub trait Element: Pod + Default + PartialEq + Send + Sync + 'static {
    /// Its type in a tensor.
    const DTYPE: DataType;
}

/// A truth value: 0 or 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct Bool(pub u8);

impl From<bool> for Bool {
    fn from(value: bool) -> Self {
        Self(value.into())
    }
}

impl Bool {
    /// As Rust has it.
    pub fn get(self) -> bool {
        self.0 != 0
    }
}

macro_rules! elements {
    ($($name:ident: $type:ty),*) => {
        $(impl Element for $type { const DTYPE: DataType = DataType::$name; })*
        /// The Rust type of each [`DataType`], by its name.
        #[allow(missing_docs, reason = "see the module")]
        pub mod types {
            pub use super::Bool;
            use super::{bf16, f16};
            $(pub type $name = $type;)*
        }
    };
}

elements!(F32: f32, F64: f64, F16: f16, BF16: bf16, I8: i8, I16: i16, I32: i32, I64: i64,
    U8: u8, U16: u16, U32: u32, U64: u64);

impl Element for Bool {
    const DTYPE: DataType = DataType::Bool;
}

/// Runs `$body` with `$t` as the Rust type of `$dtype`, where that is one of those listed; else `$other`.
#[macro_export]
macro_rules! by_type {
    ($dtype:expr, [$($name:ident),* $(,)?], $t:ident => $body:expr, $other:expr) => {
        match $dtype {
            $($crate::element::DataType::$name => { type $t = $crate::element::types::$name; $body })*
            _ => $other,
        }
    };
}

/// [`by_type!`] with all real numbers.
#[macro_export]
macro_rules! by_float {
    ($dtype:expr, $t:ident => $body:expr, $other:expr) => {
        $crate::element::by_type!($dtype, [F32, F64, F16, BF16], $t => $body, $other)
    };
}

/// [`by_type!`] with all integers.
#[macro_export]
macro_rules! by_integer {
    ($dtype:expr, $t:ident => $body:expr, $other:expr) => {
        $crate::element::by_type!($dtype, [I8, I16, I32, I64, U8, U16, U32, U64], $t => $body, $other)
    };
}

/// [`by_type!`] with all numbers.
#[macro_export]
macro_rules! by_number {
    ($dtype:expr, $t:ident => $body:expr, $other:expr) => {
        $crate::element::by_type!($dtype, [F32, F64, F16, BF16, I8, I16, I32, I64, U8, U16, U32, U64], $t => $body, $other)
    };
}

/// Runs `$body` with `$t` as an unsigned integer as wide as an element: for what moves elements and does not look at them.
#[macro_export]
macro_rules! by_width {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype.bytes() {
            1 => {
                type $t = u8;
                $body
            }
            2 => {
                type $t = u16;
                $body
            }
            4 => {
                type $t = u32;
                $body
            }
            _ => {
                type $t = u64;
                $body
            }
        }
    };
}

pub use {by_float, by_integer, by_number, by_type, by_width};

/// A number that can be computed with: halves in f32, and the others as they are.
pub trait Number: Element + PartialOrd {
    /// What it is computed in: f32 for halves, else itself.
    type Wide: Number<Wide = Self::Wide>
        + Add<Output = Self::Wide>
        + Sub<Output = Self::Wide>
        + Mul<Output = Self::Wide>
        + Div<Output = Self::Wide>;
    /// To the type it is computed in.
    fn wide(self) -> Self::Wide;
    /// From it.
    fn narrow(wide: Self::Wide) -> Self;
    /// To f64, rounded where it must be.
    fn to_f64(self) -> f64;
    /// From f64 as C casts: truncated, out of range what the machine makes of it.
    fn from_f64(value: f64) -> Self;
    /// To i64 as C casts.
    fn to_i64(self) -> i64;
    /// From i64 as C casts.
    fn from_i64(value: i64) -> Self;
    /// Addition; integers wrap.
    fn plus(self, other: Self) -> Self;
    /// Subtraction; integers wrap.
    fn minus(self, other: Self) -> Self;
    /// Multiplication; integers wrap.
    fn times(self, other: Self) -> Self;
    /// Division; integers truncate, and by 0 give 0.
    fn over(self, other: Self) -> Self;
}

macro_rules! wide_number {
    ($($type:ty: $plus:ident $minus:ident $times:ident $over:expr),*) => { $(impl Number for $type {
        type Wide = Self;
        #[inline]
        fn wide(self) -> Self { self }
        #[inline]
        fn narrow(wide: Self) -> Self { wide }
        #[inline]
        fn to_f64(self) -> f64 { self as f64 }
        #[inline]
        fn from_f64(value: f64) -> Self { value as Self }
        #[inline]
        fn to_i64(self) -> i64 { self as i64 }
        #[inline]
        fn from_i64(value: i64) -> Self { value as Self }
        #[inline]
        fn plus(self, other: Self) -> Self { self.$plus(other) }
        #[inline]
        fn minus(self, other: Self) -> Self { self.$minus(other) }
        #[inline]
        fn times(self, other: Self) -> Self { self.$times(other) }
        #[inline]
        fn over(self, other: Self) -> Self { let over: fn(Self, Self) -> Self = $over; over(self, other) }
    })* };
}

wide_number!(f32: add sub mul |a, b| a / b, f64: add sub mul |a, b| a / b);
wide_number!(
    i8: wrapping_add wrapping_sub wrapping_mul |a, b| if b == 0 { 0 } else { a.wrapping_div(b) },
    i16: wrapping_add wrapping_sub wrapping_mul |a, b| if b == 0 { 0 } else { a.wrapping_div(b) },
    i32: wrapping_add wrapping_sub wrapping_mul |a, b| if b == 0 { 0 } else { a.wrapping_div(b) },
    i64: wrapping_add wrapping_sub wrapping_mul |a, b| if b == 0 { 0 } else { a.wrapping_div(b) },
    u8: wrapping_add wrapping_sub wrapping_mul |a, b| a.checked_div(b).unwrap_or(0),
    u16: wrapping_add wrapping_sub wrapping_mul |a, b| a.checked_div(b).unwrap_or(0),
    u32: wrapping_add wrapping_sub wrapping_mul |a, b| a.checked_div(b).unwrap_or(0),
    u64: wrapping_add wrapping_sub wrapping_mul |a, b| a.checked_div(b).unwrap_or(0));

macro_rules! half_number {
    ($($type:ty),*) => { $(impl Number for $type {
        type Wide = f32;
        #[inline]
        fn wide(self) -> f32 { self.to_f32() }
        #[inline]
        fn narrow(wide: f32) -> Self { Self::from_f32(wide) }
        #[inline]
        fn to_f64(self) -> f64 { self.to_f64() }
        #[inline]
        fn from_f64(value: f64) -> Self { Self::from_f64(value) }
        #[inline]
        fn to_i64(self) -> i64 { self.to_f32() as i64 }
        #[inline]
        fn from_i64(value: i64) -> Self { Self::from_f64(value as f64) }
        #[inline]
        fn plus(self, other: Self) -> Self { Self::narrow(self.wide() + other.wide()) }
        #[inline]
        fn minus(self, other: Self) -> Self { Self::narrow(self.wide() - other.wide()) }
        #[inline]
        fn times(self, other: Self) -> Self { Self::narrow(self.wide() * other.wide()) }
        #[inline]
        fn over(self, other: Self) -> Self { Self::narrow(self.wide() / other.wide()) }
    })* };
}

half_number!(f16, bf16);
