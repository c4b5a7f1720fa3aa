//! Products of matrices of bytes.

use super::{Call, Definition, Known, Operator, Type, Unclear, flip, made_type, rounded, typed};
use stepalloc_kernels::gemm::dot4::panel_bytes;
use stepalloc_kernels::gemm::quantized::{Out, Products, Right, scratch};
use stepalloc_kernels::{no, scales::Rounded};
use stepalloc_tensor::DataType;
use stepalloc_threads as threads;

/// Inputs: a; b, as it is or in panels; what sums of a column are multiplied with (f32), what is added to them before (i32), and the
/// zero points of columns (i32), unless all are 0. Each of these is one for all columns, or one for each.
pub(super) struct MatMul {
    /// Rows and columns of a right factor in panels.
    packed: Option<[usize; 2]>,
    /// Zero points of both.
    a_zero: i64,
    b_zero: i64,
    dtype: DataType,
    /// Of bytes.
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
            dtype,
            rounded: if dtype == DataType::F32 { None } else { Some(rounded(attributes, dtype)?) },
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

impl Operator for MatMul {
    fn infer(&self, inputs: &Known<'_>) -> Result<Vec<Type>, Unclear> {
        let (a, b) = (inputs.ty(0)?, inputs.ty(1)?);
        flip(a.dtype, DataType::U8)?;
        flip(b.dtype, DataType::I8)?;
        let ([_, cols, _], _) = self.sizes(&a.shape, &b.shape, b.bytes())?;
        for (index, dtype, needed) in
            [(2, DataType::F32, true), (3, DataType::I32, false), (4, DataType::I32, false)]
        {
            let many = inputs.opt(index);
            if many.is_none() && needed
                || many.is_some_and(|many| {
                    let one = many.elements() == 1 && index != 3;
                    many.dtype != dtype || many.elements() != cols && !one
                })
            {
                return Err(format!("its input {index} is not of {dtype} for {cols} columns").into());
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
        let flips = a.dtype != DataType::U8;
        let cores = threads::for_runs().min(count.saturating_mul(size[0])).max(1);
        cores * scratch(size, flips, self.packed.is_some())
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
        let (a_flip, b_flip) = (flip(a.dtype, DataType::U8)?, flip(b.dtype, DataType::I8)?);
        let (scales, adds, zeros) = (call.input(2)?, call.opt(3), call.opt(4));
        let b_zero = [i32::from((self.b_zero as u8 ^ b_flip) as i8)];
        let products = Products {
            size,
            left: a.bytes,
            flip: a_flip,
            left_zero: self.a_zero as u8 ^ a_flip,
            right: match self.packed {
                Some(_) => Right::Packed(b.bytes.as_chunks().0),
                None => Right::Plain(b.bytes, b_flip),
            },
            right_zeros: match zeros {
                Some(zeros) => zeros.elements::<i32>(),
                None => &b_zero,
            },
            adds: adds.map(|adds| adds.elements::<i32>()),
            scales: scales.elements::<f32>(),
        };
        let out = match self.rounded {
            Some(rounded) => Out::Bytes(out.bytes, rounded),
            None if out.dtype == DataType::F32 => Out::Reals(out.elements::<f32>()),
            None => return Err(no(out.dtype)),
        };
        products.run(out, call.scratch());
        Ok(())
    }
}
