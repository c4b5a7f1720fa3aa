//! Elements of any type as those of a few.
//!
//! Code for every type of elements is large, and most types are rare. So what computes with numbers does it in one of three types:
//! elements of others are converted a block at a time, computed with, and converted back.

use crate::no;
use half::slice::HalfFloatSliceExt;
use std::ops::Range;
use stepalloc_tensor::{DataType, Number, OpError, View, bf16, by_number, by_type, f16};

/// Elements that are converted at once: few enough for the stack and the first cache.
pub const BLOCK: usize = 256;
/// What makes the order of signed numbers that of unsigned ones.
pub const SIGN: i64 = i64::MIN;

/// What is computed in: f32, for halves too; f64; and i64 for all integers and truth values, whose bits are those of u64.
pub trait Wide: Number<Wide = Self> {
    /// A number in the opposite order of all others; NaNs stay such.
    fn turned(self) -> Self;
    /// Converts elements. With `flip`, u64 keeps its order, not its bits.
    fn load(dtype: DataType, from: &[u8], flip: bool, to: &mut [Self]);
    /// Converts them back. With `clamp`, integers of less than 64 bits are the nearest ones, else what their bits say.
    fn store(from: &[Self], clamp: bool, dtype: DataType, to: &mut [u8]);
}

impl Wide for f32 {
    fn turned(self) -> Self {
        -self
    }

    fn load(dtype: DataType, from: &[u8], _: bool, to: &mut [Self]) {
        match dtype {
            DataType::F16 => bytemuck::cast_slice::<_, f16>(from).convert_to_f32_slice(to),
            DataType::BF16 => bytemuck::cast_slice::<_, bf16>(from).convert_to_f32_slice(to),
            DataType::I8 => convert::<i8, f32>(from, to, |x| x.into()),
            DataType::U8 => convert::<u8, f32>(from, to, |x| x.into()),
            _ => to.copy_from_slice(bytemuck::cast_slice(from)),
        }
    }

    fn store(from: &[Self], _: bool, dtype: DataType, to: &mut [u8]) {
        match dtype {
            DataType::F16 => bytemuck::cast_slice_mut::<_, f16>(to).convert_from_f32_slice(from),
            DataType::BF16 => bytemuck::cast_slice_mut::<_, bf16>(to).convert_from_f32_slice(from),
            DataType::I8 => convert_back::<i8, f32>(from, to, |x| x as i8),
            DataType::U8 => convert_back::<u8, f32>(from, to, |x| x as u8),
            _ => to.copy_from_slice(bytemuck::cast_slice(from)),
        }
    }
}

impl Wide for f64 {
    fn turned(self) -> Self {
        -self
    }

    fn load(dtype: DataType, from: &[u8], _: bool, to: &mut [Self]) {
        by_number!(dtype, T => convert::<T, f64>(from, to, |x| x.to_f64()), unreachable!("{dtype} is no number"));
    }

    fn store(from: &[Self], _: bool, dtype: DataType, to: &mut [u8]) {
        by_number!(dtype, T => convert_back::<T, f64>(from, to, T::from_f64), unreachable!("{dtype} is no number"));
    }
}

impl Wide for i64 {
    fn turned(self) -> Self {
        !self
    }

    fn load(dtype: DataType, from: &[u8], flip: bool, to: &mut [Self]) {
        by_type!(dtype, [I8, I16, I32, U8, U16, U32], T => convert::<T, i64>(from, to, |x| x.into()), match dtype {
            DataType::Bool => convert::<u8, i64>(from, to, |x| x.into()),
            _ => {
                to.copy_from_slice(bytemuck::cast_slice(from));
                if flip && dtype == DataType::U64 {
                    to.iter_mut().for_each(|x| *x ^= SIGN);
                }
            }
        });
    }

    fn store(from: &[Self], clamp: bool, dtype: DataType, to: &mut [u8]) {
        by_type!(dtype, [I8, I16, I32, U8, U16, U32], T => {
            let (least, most) = if clamp { (T::MIN.into(), T::MAX.into()) } else { (i64::MIN, i64::MAX) };
            let to: &mut [T] = bytemuck::cast_slice_mut(to);
            for (to, x) in to.iter_mut().zip(from) {
                *to = (*x).clamp(least, most) as T;
            }
        }, match dtype {
            DataType::Bool => convert_back::<u8, i64>(from, to, |x| (x != 0).into()),
            _ => to.copy_from_slice(bytemuck::cast_slice(from)),
        });
    }
}

#[inline(always)]
fn convert<T: bytemuck::Pod, W>(from: &[u8], to: &mut [W], make: fn(T) -> W) {
    for (to, &from) in to.iter_mut().zip(bytemuck::cast_slice::<_, T>(from)) {
        *to = make(from);
    }
}

#[inline(always)]
fn convert_back<T: bytemuck::Pod, W: Copy>(from: &[W], to: &mut [u8], make: fn(W) -> T) {
    for (to, &from) in bytemuck::cast_slice_mut::<_, T>(to).iter_mut().zip(from) {
        *to = make(from);
    }
}

/// Runs `$body` with `$w` as the type that elements of `$dtype` are computed in, if they are numbers; else `$other`.
#[macro_export]
macro_rules! by_wide {
    ($dtype:expr, $w:ident => $body:expr, $other:expr) => {{
        use $crate::DataType as Type;
        match $dtype {
            Type::F32 | Type::F16 | Type::BF16 => {
                type $w = f32;
                $body
            }
            Type::F64 => {
                type $w = f64;
                $body
            }
            Type::I8 | Type::I16 | Type::I32 | Type::I64 | Type::U8 | Type::U16 | Type::U32 | Type::U64 => {
                type $w = i64;
                $body
            }
            _ => $other,
        }
    }};
}

pub use by_wide;

/// Elements that are read as others.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    dtype: DataType,
    bytes: &'a [u8],
    flip: bool,
}

#[allow(clippy::len_without_is_empty, reason = "nobody asks")]
impl<'a> Source<'a> {
    /// All elements of a tensor.
    pub fn new(view: &View<'a>) -> Self {
        Self { dtype: view.dtype, bytes: view.bytes, flip: false }
    }

    /// The same, but u64 as i64 keeps its order, not its bits.
    pub fn flipped(view: &View<'a>) -> Self {
        Self { flip: true, ..Self::new(view) }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.dtype.bytes()
    }

    /// As many elements as can be read at once.
    pub fn most<W: Wide>(&self) -> usize {
        if self.dtype == W::DTYPE { usize::MAX } else { BLOCK }
    }

    /// Some elements: where they lie, or converted.
    pub fn read<'b, W: Wide>(&self, at: Range<usize>, block: &'b mut [W; BLOCK]) -> &'b [W]
    where
        'a: 'b,
    {
        let (width, length) = (self.dtype.bytes(), at.len());
        let bytes = &self.bytes[at.start * width..at.end * width];
        if self.dtype == W::DTYPE {
            return bytemuck::cast_slice(bytes);
        }
        let block = &mut block[..length];
        W::load(self.dtype, bytes, self.flip, block);
        block
    }

    /// Copies elements from one on.
    pub fn copy(&self, first: usize, to: &mut [f64]) {
        let (width, length) = (self.dtype.bytes(), to.len());
        f64::load(self.dtype, &self.bytes[first * width..][..length * width], false, to);
    }

    /// One element as f64.
    pub fn at(&self, index: usize) -> f64 {
        let width = self.dtype.bytes();
        let bytes = &self.bytes[index * width..][..width];
        match self.dtype {
            DataType::F32 => bytemuck::pod_read_unaligned::<f32>(bytes).into(),
            dtype => {
                let mut x = [0.0];
                f64::load(dtype, bytes, false, &mut x);
                x[0]
            }
        }
    }
}

/// An error if elements of a type are no numbers.
pub fn number(dtype: DataType) -> Result<(), OpError> {
    by_number!(dtype, _T => Ok(()), Err(no(dtype)))
}

/// Writes one element, given as f64.
pub fn put(dtype: DataType, to: &mut [u8], index: usize, x: f64) {
    let width = dtype.bytes();
    f64::store(&[x], false, dtype, &mut to[index * width..][..width]);
}
