//! Products of matrices of bytes.

use super::{Call, Definition, Known, Operator, Type, Unclear, flip, made_type, rounded, typed};
use crate::quantize::{scale_of, to_bytes};
use stepalloc_kernels::gemm::dot4::{WIDTH, panel_bytes};
use stepalloc_kernels::gemm::quantized::{Out, Products, Right, scratch};
use stepalloc_kernels::{no, scales::Rounded};
use stepalloc_tensor::DataType;
use stepalloc_threads as threads;

/// Inputs:
///
/// 0. a; reals where it is made bytes here, as `DynamicQuantizeLinear` would;
/// 1. b, as it is or in panels;
/// 2. what sums of a column are multiplied with (f32), unless they are the output;
/// 3. what is added to sums of a column before (i32);
/// 4. the zero points of columns (i32), unless all are 0;
/// 5. a's zero point, where it is not known before, of a's type; then `a_zero` says nothing;
/// 6. a's scale (f32), likewise, with which 2 is multiplied;
/// 7. sums of the columns of a b in panels, less their zero points (i32), where 3 does not have what a's zero point makes of them;
/// 8. a bias, which is added to reals (f32).
///
/// 2, 4 and 8 are one for all columns, or one for each; 3 and 7 are one for each; 5 and 6 are one.
pub(super) struct MatMul {
    /// Rows and columns of a right factor in panels.
    packed: Option<[usize; 2]>,
    /// Zero points of both.
    a_zero: i64,
    b_zero: i64,
    /// What sums are multiplied with besides.
    alpha: f32,
    dtype: DataType,
    /// Of bytes that are made.
    rounded: Option<Rounded>,
}

impl MatMul {
    pub(super) fn new(node: &Definition<'_>) -> Result<Self, String> {
        let attributes = node.attributes;
        let dtype = made_type(attributes)?;
        let packed = match attributes.ints("packed").as_deref() {
            None => None,
            Some(&[rows, cols]) if rows > 0 && cols > 0 => Some([rows as usize, cols as usize]),
            Some(other) => return Err(format!("its right factor is of sizes {other:?}")),
        };
        Ok(Self {
            packed,
            a_zero: attributes.int("a_zero", 0),
            b_zero: attributes.int("b_zero", 0),
            alpha: attributes.float("alpha", 1.0),
            dtype,
            rounded: match dtype {
                DataType::F32 | DataType::I32 => None,
                _ => Some(rounded(attributes, dtype)?),
            },
        })
    }

    /// Rows, columns and depth of the products, and how many there are, one after the other.
    fn sizes(&self, a: &[usize], b: &[usize], b_bytes: usize) -> Result<([usize; 3], usize), String> {
        let wrong = || format!("matrices of shapes {a:?} and {b:?} cannot be multiplied as bytes");
        if let Some([depth, cols]) = self.packed {
            let (&last, outer) = a.split_last().ok_or_else(wrong)?;
            if last != depth || b_bytes != panel_bytes(cols, depth) {
                return Err(wrong());
            }
            // All rows are those of one product.
            return Ok(([outer.iter().product(), cols, depth], 1));
        }
        let (&[ref a_outer @ .., rows, depth], &[ref b_outer @ .., b_depth, cols]) = (a, b) else {
            return Err(wrong());
        };
        if a_outer != b_outer || depth != b_depth {
            return Err(wrong());
        }
        Ok(([rows, cols, depth], a_outer.iter().product()))
    }
}

/// What makes a's elements unsigned; nothing where they are made so here.
fn a_flip(dtype: DataType) -> Result<u8, String> {
    if dtype == DataType::F32 { Ok(0) } else { flip(dtype, DataType::U8) }
}

/// Room for the bytes that are made of reals; words follow.
fn made_bytes(dtype: DataType, elements: usize) -> usize {
    if dtype == DataType::F32 { elements.next_multiple_of(4) } else { 0 }
}

impl Operator for MatMul {
    fn infer(&self, inputs: &Known<'_>) -> Result<Vec<Type>, Unclear> {
        let (a, b) = (inputs.ty(0)?, inputs.ty(1)?);
        a_flip(a.dtype)?;
        flip(b.dtype, DataType::I8)?;
        let ([_, cols, _], _) = self.sizes(&a.shape, &b.shape, b.bytes())?;
        inputs.ty(2)?;
        // Whether there may be one for all columns.
        for (index, dtype, one) in [
            (2, DataType::F32, true),
            (3, DataType::I32, false),
            (4, DataType::I32, true),
            (7, DataType::I32, false),
            (8, DataType::F32, true),
        ] {
            if inputs.opt(index).is_some_and(|many| {
                many.dtype != dtype || many.elements() != cols && !(one && many.elements() == 1)
            }) {
                return Err(format!("its input {index} is not of {dtype} for {cols} columns").into());
            }
        }
        for (index, dtype) in [(5, a.dtype), (6, DataType::F32)] {
            if let Some(one) = inputs.opt(index).filter(|one| one.dtype != dtype || one.elements() != 1) {
                return Err(format!("its input {index} is {one}, not one element of {dtype}").into());
            }
        }
        let mut shape = a.shape.clone();
        shape.pop();
        shape.push(cols);
        Ok(vec![typed(self.dtype, shape)?])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let (Some(a), Some(b)) = (inputs.opt(0), inputs.opt(1)) else { return 0 };
        let Ok((size, count)) = self.sizes(&a.shape, &b.shape, b.bytes()) else { return 0 };
        let flips = a_flip(a.dtype).is_ok_and(|flip| flip != 0);
        let [rows, cols, _] = size;
        let shares = match count.saturating_mul(rows) {
            1 => cols.div_ceil(WIDTH),
            rows => rows,
        };
        let cores = threads::for_runs().min(shares).max(1);
        made_bytes(a.dtype, a.elements()) + cores * scratch(size, flips, self.packed.is_some())
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), String> {
        let (a, b, out) = (call.input(0)?, call.input(1)?, call.output(0)?);
        let (size, _) = self.sizes(a.shape, b.shape, b.bytes.len())?;
        if out.bytes.is_empty() {
            return Ok(());
        }
        if size[2] == 0 || size.iter().any(|&size| size > i32::MAX as usize) {
            return Err(format!("products of sizes {size:?} are not known to it"));
        }
        let (a_flip, b_flip) = (a_flip(a.dtype)?, flip(b.dtype, DataType::I8)?);
        let (scales, adds, zeros) = (call.input(2)?, call.opt(3), call.opt(4));
        let (a_zero, a_scale, col_sums, bias) = (call.opt(5), call.opt(6), call.opt(7), call.opt(8));
        let mut left_zero = a_zero.map_or(self.a_zero as u8, |zero| zero.bytes[0]) ^ a_flip;
        let mut scale = a_scale.map_or(1.0, |scale| scale.elements::<f32>()[0]) * self.alpha;
        let (bytes, scratch) = call.scratch().split_at_mut(made_bytes(a.dtype, a.len()));
        let left = if a.dtype == DataType::F32 {
            let (reals, bytes) = (a.elements::<f32>(), &mut bytes[..a.len()]);
            let (a_scale, a_zero) = scale_of(reals);
            to_bytes(reals, (a_scale, a_zero), DataType::U8, bytes);
            (left_zero, scale) = (a_zero as u8, a_scale * scale);
            bytes
        } else {
            a.bytes
        };
        let b_zero = [i32::from((self.b_zero as u8 ^ b_flip) as i8)];
        let products = Products {
            size,
            left,
            flip: a_flip,
            left_zero,
            right: match self.packed {
                Some(_) => Right::Packed(b.bytes.as_chunks().0),
                None => Right::Plain(b.bytes, b_flip),
            },
            right_zeros: match zeros {
                Some(zeros) => zeros.elements::<i32>(),
                None => &b_zero,
            },
            col_sums: col_sums.map(|sums| sums.elements::<i32>()),
            adds: adds.map(|adds| adds.elements::<i32>()),
            scales: scales.elements::<f32>(),
            scale,
            bias: bias.map(|bias| bias.elements::<f32>()),
        };
        let out = match self.rounded {
            Some(rounded) => Out::Bytes(out.bytes, rounded),
            None if out.dtype == DataType::F32 => Out::Reals(out.elements::<f32>()),
            None if out.dtype == DataType::I32 => Out::Sums(out.elements::<i32>()),
            None => return Err(no(out.dtype)),
        };
        products.run(out, scratch);
        Ok(())
    }
}
