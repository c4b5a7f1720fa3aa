//! Scales and zero points of quantized tensors: which element has which, and how all are read a few at a time.

use crate::broadcast::{PARALLEL, PART};
use crate::minifloat::{decode, is_minifloat, small_integer, small_value};
use bytemuck::Pod;
use stepalloc_tensor::axis;
use stepalloc_tensor::{DataType, Element, OpError, View, bf16, by_type, f16};
use stepalloc_threads as threads;

/// Which scale each element has: elements are taken in rows, and row `r`, `d = r % depth` of its `r / depth`, begins with scale
/// `r / depth * outer + d / block * step`; each scale is for `repeat` elements of the row.
#[derive(Debug, PartialEq, Eq)]
pub struct Grid {
    length: usize,
    depth: usize,
    outer: usize,
    block: usize,
    step: usize,
    repeat: usize,
}

impl Grid {
    /// One scale for all elements.
    pub const WHOLE: Self = Self { length: PART, depth: 1, outer: 0, block: 1, step: 0, repeat: usize::MAX };

    /// The grid of scales of this shape for elements of shape `x`, along axis `along` (blocks of 0: one scale for each index).
    pub fn new(along: i64, block: usize, x: &[usize], scale: &[usize]) -> Result<Self, OpError> {
        if scale.iter().product::<usize>() == 1 {
            return Ok(Self::WHOLE);
        }
        let wrong =
            || OpError::shape(format!("scales of shape {scale:?} do not fit {x:?} along axis {}", along));
        // One dimension is the axis whatever is said of it.
        let at = if x.len() == 1 { 0 } else { axis(along, x.len())? };
        let (depth, inner) = (x[at], x[at + 1..].iter().product());
        if block == 0 {
            if scale != [depth] {
                return Err(wrong());
            }
            return Ok(match inner {
                1 => Self { length: depth, depth: 1, outer: 0, block: 1, step: 0, repeat: 1 },
                _ => Self { length: inner, depth, outer: 0, block: 1, step: 1, repeat: usize::MAX },
            });
        }
        let blocks = depth.div_ceil(block);
        let fits =
            |(dim, (&x, &scale)): (usize, (&usize, &usize))| scale == if dim == at { blocks } else { x };
        if scale.len() != x.len() || !x.iter().zip(scale).enumerate().all(fits) {
            return Err(OpError::shape(format!("{} in blocks of {}", wrong(), block)));
        }
        Ok(match inner {
            1 => Self { length: depth, depth: 1, outer: blocks, block: 1, step: 0, repeat: block },
            _ => Self { length: inner, depth, outer: blocks * inner, block, step: inner, repeat: 1 },
        })
    }
}

/// A number rounded to an integer, ties to even, within bounds, which are below 2^22; NaN becomes the least.
#[inline(always)]
pub fn nearest(x: f32, least: f32, most: f32) -> i32 {
    /// 1.5 * 2^23: added to numbers below 2^22, it leaves no place for fractions, and the integer stands in the lowest bits.
    const MAGIC: f32 = 12_582_912.0;
    let x = if x > least { x } else { least };
    let x = if x < most { x } else { most };
    (x + MAGIC).to_bits().wrapping_sub(MAGIC.to_bits()) as i32
}

/// How numbers in units of a scale become bytes: rounded to even, the zero point added, within bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rounded {
    /// The zero point.
    pub zero: i32,
    /// The least byte.
    pub least: i32,
    /// The largest byte.
    pub most: i32,
}

impl Rounded {
    /// All bytes of a type; `None` of other types.
    pub fn new(dtype: DataType, zero: i32) -> Option<Self> {
        match dtype {
            DataType::U8 => Some(Self { zero, least: 0, most: 255 }),
            DataType::I8 => Some(Self { zero, least: -128, most: 127 }),
            _ => None,
        }
    }

    /// The byte of a sum that is multiplied by `scale`, whatever sign its type has.
    #[inline(always)]
    pub fn sum(self, sum: i32, scale: f32) -> u8 {
        self.real(sum as f32 * scale)
    }

    /// The byte of a number.
    #[inline(always)]
    pub fn real(self, x: f32) -> u8 {
        let (least, most) = ((self.least - self.zero) as f32, (self.most - self.zero) as f32);
        (nearest(x, least, most) + self.zero) as u8
    }
}

/// Elements that are computed at a time, in memory on the stack.
pub const FEW: usize = 64;

/// Scales and zero points of a few elements.
pub struct Few {
    /// Of each.
    pub scale: [f32; FEW],
    /// Of each, as a number.
    pub zero: [f32; FEW],
}

/// Scales, zero points, and which element has which.
pub struct Scales<'a> {
    /// Which element has which.
    pub grid: Grid,
    /// The scales.
    pub scale: View<'a>,
    /// The zero points; none are 0.
    pub zero: Option<View<'a>>,
}

impl Scales<'_> {
    /// Reads the scales from number `from` on into `few`: as many, or one so many times.
    fn read(&self, few: &mut Few, from: usize, count: usize, repeated: bool) {
        let several = if repeated { 1 } else { count };
        load(&self.scale, from, &mut few.scale[..several]);
        if let Some(zero) = &self.zero {
            load(zero, from, &mut few.zero[..several]);
        }
        if repeated {
            let (scale, zero) = (few.scale[0], few.zero[0]);
            few.scale[..count].fill(scale);
            few.zero[..count].fill(zero);
        }
    }

    /// Calls `f` for a few elements of a row at a time: where in the row they begin, how many there are, and their scales.
    fn row(&self, row: usize, length: usize, f: &mut dyn FnMut(usize, usize, &Few)) {
        let Grid { depth, outer, block, step, repeat, .. } = self.grid;
        let first = row / depth * outer + row % depth / block * step;
        let mut few = Few { scale: [1.0; FEW], zero: [0.0; FEW] };
        if repeat == 1 {
            for begin in (0..length).step_by(FEW) {
                let count = FEW.min(length - begin);
                self.read(&mut few, first + begin, count, false);
                f(begin, count, &few);
            }
            return;
        }
        for (index, begin) in (0..length).step_by(repeat).enumerate() {
            let end = begin + repeat.min(length - begin);
            self.read(&mut few, first + index, FEW.min(end - begin), true);
            for begin in (begin..end).step_by(FEW) {
                f(begin, FEW.min(end - begin), &few);
            }
        }
    }

    /// Where all elements of a row have one scale: calls `f` for each row of `out`, with where it begins, its scale and its zero point; on
    /// all cores if there are many elements. `false` where they have several, and nothing was done.
    pub fn write_rows<T: Pod>(
        &self,
        out: &mut [T],
        f: impl Fn(usize, f32, f32, &mut [T]) + Send + Sync,
    ) -> bool {
        let Grid { length, depth, outer, block, step, repeat } = self.grid;
        if repeat != usize::MAX {
            return false;
        }
        let least = if out.len() < PARALLEL { usize::MAX } else { PART.div_ceil(length.max(1)) };
        threads::pieces(out, length, least, &|row, out| {
            let at = row / depth * outer + row % depth / block * step;
            let (mut scale, mut zero) = ([1.0], [0.0]);
            load(&self.scale, at, &mut scale);
            self.zero.iter().for_each(|zeros| load(zeros, at, &mut zero));
            f(row * length, scale[0], zero[0], out);
        });
        true
    }

    /// Calls `f` for a few elements of `out` at a time, with where they begin; on all cores if they are many.
    pub fn write<T: Pod>(&self, out: &mut [T], f: impl Fn(usize, &Few, &mut [T]) + Send + Sync) {
        self.write_bytes(bytemuck::cast_slice_mut(out), size_of::<T>(), &|begin, few, out| {
            f(begin, few, bytemuck::cast_slice_mut(out));
        });
    }

    /// The same for elements of `width` bytes.
    fn write_bytes(&self, out: &mut [u8], width: usize, f: &(dyn Fn(usize, &Few, &mut [u8]) + Sync)) {
        if out.is_empty() {
            return;
        }
        let length = self.grid.length;
        let row = |row: usize, out: &mut [u8]| {
            self.row(row, out.len() / width, &mut |begin, count, few| {
                f(row * length + begin, few, &mut out[begin * width..(begin + count) * width]);
            });
        };
        if out.len() < PARALLEL * width {
            out.chunks_mut(length * width).enumerate().for_each(|(number, out)| row(number, out));
        } else {
            threads::pieces(out, length * width, PART.div_ceil(length), &row);
        }
    }
}

/// Types that [`load`] reads.
pub fn is_read(dtype: DataType) -> bool {
    let known = by_type!(dtype, [F32, F16, BF16, I8, U8, I16, U16, I32], T => T::DTYPE == dtype, false);
    known || small_integer(dtype).is_some() || is_minifloat(dtype)
}

/// Reads elements from number `from` on, as f32; 0 where the type is none of [`is_read`].
pub fn load(view: &View<'_>, from: usize, into: &mut [f32]) {
    fn fill<T: Copy>(from: &[T], into: &mut [f32], f: impl Fn(T) -> f32) {
        for (into, &x) in into.iter_mut().zip(from) {
            *into = f(x);
        }
    }
    let dtype = view.dtype;
    match dtype {
        DataType::F32 => into.copy_from_slice(&view.elements::<f32>()[from..from + into.len()]),
        DataType::F16 => fill(&view.elements::<f16>()[from..], into, f16::to_f32),
        DataType::BF16 => fill(&view.elements::<bf16>()[from..], into, bf16::to_f32),
        DataType::I8 => fill(&view.elements::<i8>()[from..], into, f32::from),
        DataType::U8 => fill(&view.elements::<u8>()[from..], into, f32::from),
        DataType::I16 => fill(&view.elements::<i16>()[from..], into, f32::from),
        DataType::U16 => fill(&view.elements::<u16>()[from..], into, f32::from),
        DataType::I32 => fill(&view.elements::<i32>()[from..], into, |x| x as f32),
        _ => match small_integer(dtype) {
            Some((bits, signed)) => fill(&view.bytes[from..], into, |x| small_value(bits, signed, x).into()),
            None if is_minifloat(dtype) => fill(&view.bytes[from..], into, |x| decode(dtype, x)),
            None => into.fill(0.0),
        },
    }
}
