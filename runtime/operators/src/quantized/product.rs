//! Products of matrices of bytes.

use super::{
    Call, Definition, Known, Operator, Type, Types, Unclear, flip, is_one, made_type, rounded, typed,
};
use crate::quantize::{scale_of, to_bytes};
use smallvec::smallvec;
use stepalloc_kernels::gemm::dot4::{WIDTH, panel_bytes};
use stepalloc_kernels::gemm::quantized::{Out, Products, Right, scratch};
use stepalloc_kernels::{no, scales::Rounded};
use stepalloc_tensor::{DataType, OpError};

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
    pub(super) fn new(node: &Definition<'_>) -> Result<Self, OpError> {
        let attributes = node.attributes;
        let dtype = made_type(attributes)?;
        let packed = match attributes.ints("packed").as_deref() {
            None => None,
            Some(&[rows, cols]) if rows > 0 && cols > 0 => Some([rows as usize, cols as usize]),
            Some(other) => return Err(OpError::attribute(format!("its right factor is of sizes {other:?}"))),
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
    fn sizes(&self, a: &[usize], b: &[usize], b_bytes: usize) -> Result<([usize; 3], usize), OpError> {
        let wrong =
            || OpError::shape(format!("matrices of shapes {a:?} and {b:?} cannot be multiplied as bytes"));
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
fn a_flip(dtype: DataType) -> Result<u8, OpError> {
    if dtype == DataType::F32 { Ok(0) } else { flip(dtype, DataType::U8) }
}

/// Room for the bytes that are made of reals; words follow.
fn made_bytes(dtype: DataType, elements: usize) -> usize {
    if dtype == DataType::F32 { elements.next_multiple_of(4) } else { 0 }
}

impl Operator for MatMul {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
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
            let fits = |ty: &Type| ty.dtype == dtype && (ty.elements() == cols || one && ty.elements() == 1);
            if let Some(ty) = inputs.opt(index).filter(|ty| !fits(ty)) {
                let what = format!("its input {index} is not of {dtype} for {cols} columns");
                return Err(OpError::operand(ty, dtype, what).into());
            }
        }
        is_one(inputs, 5, a.dtype)?;
        is_one(inputs, 6, DataType::F32)?;
        let mut shape = a.shape.clone();
        shape.pop();
        shape.push(cols);
        Ok(smallvec![typed(self.dtype, shape)?])
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
        let cores = inputs.context.threads().min(shares).max(1);
        made_bytes(a.dtype, a.elements()) + cores * scratch(size, flips, self.packed.is_some())
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (a, b, out) = (call.input(0)?, call.input(1)?, call.output(0)?);
        let (size, _) = self.sizes(a.shape, b.shape, b.bytes.len())?;
        if out.bytes.is_empty() {
            return Ok(());
        }
        if size[2] == 0 || size.iter().any(|&size| size > i32::MAX as usize) {
            return Err(OpError::unsupported(format!("products of sizes {size:?} are not known to it")));
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

#[cfg(test)]
mod tests {
    use crate::INTERNAL;
    use crate::trial::{Trial, tensor};
    use stepalloc_graph::Attribute;
    use stepalloc_tensor::{DataType, Tensor, quads};

    const DEPTH: usize = 9;
    const COLS: usize = 70;

    /// Signed weights of which each element is its row and column in some way.
    fn weight(row: usize, col: usize) -> i8 {
        ((row * COLS + col) * 53 % 251) as u8 as i8
    }

    fn of_columns(of: impl Fn(usize) -> i32) -> Tensor {
        tensor(&[COLS], &(0..COLS).map(of).collect::<Vec<_>>())
    }

    /// A product with columns of zero points 3, whose left zero point and scale are inputs, if there are any.
    fn trial<'a>(a: Tensor, made: DataType, zero: Option<Tensor>, scale: Option<Tensor>) -> Trial<'a> {
        let panels = quads::panels(COLS, DEPTH, |row, col| weight(row, col) as u8);
        let panels: Vec<i8> = bytemuck::cast_vec(panels);
        let sum = |col| (0..DEPTH).map(|row| i32::from(weight(row, col)) - 3).sum();
        let bias: Vec<f32> = (0..COLS).map(|col| col as f32).collect();
        let inputs = [
            Some(a),
            Some(tensor(&[panels.len()], &panels)),
            Some(tensor(&[1], &[0.25f32])),
            Some(of_columns(|col| 2 * col as i32)),
            Some(tensor(&[1], &[3i32])),
            zero,
            scale,
            Some(of_columns(sum)),
            Some(tensor(&[COLS], &bias)),
        ];
        let sizes = vec![DEPTH as i64, COLS as i64];
        let trial = Trial::new("QuantizedMatMul", &[("packed", Attribute::Ints(sizes))], inputs);
        Trial { domain: INTERNAL, ..trial.int("y_type", made as i64).with("alpha", Attribute::Float(2.0)) }
    }

    /// Sums with what is added to them, of rows whose elements less their zero point are told.
    fn sums(rows: usize, a: impl Fn(usize) -> i32) -> Vec<i32> {
        let sum = |at: usize| {
            let (row, col) = (at / COLS, at % COLS);
            let term = |k: usize| a(row * DEPTH + k) * (i32::from(weight(k, col)) - 3);
            (0..DEPTH).map(term).sum::<i32>() + 2 * col as i32
        };
        (0..rows * COLS).map(sum).collect()
    }

    #[test]
    fn zero_points_and_scales_are_inputs() {
        for rows in [1, 3] {
            let a: Vec<u8> = (0..rows * DEPTH).map(|at| (at * 37 % 251) as u8).collect();
            let signed: Vec<i8> = a.iter().map(|&x| (x ^ 0x80) as i8).collect();
            let wanted = sums(rows, |at| i32::from(a[at]) - 100);
            let shape = [1, rows, DEPTH];
            for (a, zero) in [
                (tensor(&shape, &a), tensor(&[], &[100u8])),
                (tensor(&shape, &signed), tensor(&[1], &[-28i8])),
            ] {
                let made = trial(a.clone(), DataType::I32, Some(zero.clone()), None).run().unwrap();
                assert_eq!(made[0].ty().shape, [1, rows, COLS]);
                assert_eq!(made[0].view().elements::<i32>(), wanted);
                let scale = Some(tensor(&[], &[0.5f32]));
                let made = trial(a, DataType::F32, Some(zero), scale).run().unwrap();
                let reals =
                    wanted.iter().enumerate().map(|(at, &sum)| sum as f32 * 0.25 + (at % COLS) as f32);
                assert_eq!(made[0].view().elements::<f32>(), reals.collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn reals_are_made_bytes() {
        // From -64 to 63.5 in steps of a half: the scale is a half, the zero point 128.
        let bytes: Vec<u8> =
            (0..2 * DEPTH).map(|at| if at == 0 { 255 } else { (at * 15) as u8 % 240 }).collect();
        let mut reals: Vec<f32> = bytes.iter().map(|&byte| (f32::from(byte) - 128.0) / 2.0).collect();
        reals[1] = -64.0;
        let byte = |at: usize| if at == 1 { 0 } else { i32::from(bytes[at]) };
        let wanted = sums(2, |at| byte(at) - 128);
        let made = trial(tensor(&[2, DEPTH], &reals), DataType::F32, None, None).run().unwrap();
        let wanted = wanted.iter().enumerate().map(|(at, &sum)| sum as f32 * 0.25 + (at % COLS) as f32);
        assert_eq!(made[0].view().elements::<f32>(), wanted.collect::<Vec<_>>());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let a = || tensor(&[2, DEPTH], &[7u8; 2 * DEPTH]);
        let run = |zero, scale| trial(a(), DataType::F32, zero, scale).run();
        assert!(run(None, None).is_ok());
        assert!(run(Some(tensor(&[2], &[1u8, 2])), None).is_err(), "a zero point for each row");
        assert!(run(Some(tensor(&[], &[1i8])), None).is_err(), "a zero point of another type");
        assert!(run(None, Some(tensor(&[2], &[1f32, 2.0]))).is_err(), "a scale for each row");
        let long = tensor(&[2, DEPTH + 1], &[7u8; 2 * (DEPTH + 1)]);
        assert!(trial(long, DataType::F32, None, None).run().is_err(), "rows that are too long");
    }
}
