//! Products of matrices as operators: MatMul and Gemm, and of quantized elements MatMulInteger and QLinearMatMul.

use super::{Call, Definition, Known, Made, Operator, Types, Unclear, typed};
use smallvec::{SmallVec, smallvec};
use stepalloc_graph::{Attributes, PackSpec, Prepacked};
use stepalloc_kernels::gemm::{
    packed::{Columns, gemm_packed},
    prepacked::{Layout, Packed},
};
use stepalloc_kernels::{
    broadcast::{Walk, broadcast},
    gemm::{BiasVector, Matrix, PARALLEL, Panels, gemm_f32, load_halves, product, product_of},
    no,
};
use stepalloc_tensor::{DataType, Number, OpError, Type, View, ViewMut, by_type, by_width};
use stepalloc_threads as threads;

pub(super) fn make(node: &Definition<'_>) -> Made {
    let attributes = node.attributes;
    Some(Ok(match node.op {
        "MatMul" if node.domain.is_empty() => {
            Box::new(MatMul { alpha: 1.0, transposed: [false; 2], rows_first: [false; 2] })
        }
        "FusedMatMul" if node.domain == "com.microsoft" => {
            let told = |names: [&str; 2]| names.map(|name| attributes.int(name, 0) != 0);
            Box::new(MatMul {
                alpha: attributes.float("alpha", 1.0),
                transposed: told(["transA", "transB"]),
                rows_first: told(["transBatchA", "transBatchB"]),
            })
        }
        "Gemm" => Box::new(Gemm::new(attributes)),
        _ => return None,
    }))
}

/// Matrices by the number, as two operands make them.
pub(super) struct Batches {
    /// Sizes of a matrix: of the left operand `m` x `k`, of the right one `k` x `n`.
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// Dimensions before the last two, broadcast.
    shape: SmallVec<[usize; 6]>,
    /// For each of them, by how many matrices either operand moves on.
    strides: [SmallVec<[usize; 6]>; 2],
    /// The output's shape.
    pub out: SmallVec<[usize; 6]>,
}

impl Batches {
    pub(super) fn new(a: &[usize], b: &[usize]) -> Result<Self, OpError> {
        Self::turned(a, b, [false; 2], true)
    }

    /// The same of operands whose matrices are given turned; vectors are as they are. `follow`: the left operand's matrices lie one
    /// behind the other.
    fn turned(a: &[usize], b: &[usize], transposed: [bool; 2], follow: bool) -> Result<Self, OpError> {
        let turn = |shape: &[usize], transposed: bool| -> SmallVec<[usize; 6]> {
            let mut shape = SmallVec::from_slice(shape);
            let rank = shape.len();
            if transposed && rank > 1 {
                shape.swap(rank - 2, rank - 1);
            }
            shape
        };
        let (a, b) = (&turn(a, transposed[0])[..], &turn(b, transposed[1])[..]);
        let wrong = || OpError::shape(format!("matrices of shapes {a:?} and {b:?} cannot be multiplied"));
        // A vector is a row on the left and a column on the right, and that dimension is none of the output's.
        let (a_outer, m, k) = match a {
            [] => return Err(wrong()),
            [k] => (&[][..], 1, *k),
            [outer @ .., m, k] => (outer, *m, *k),
        };
        let (b_outer, depth, n) = match b {
            [] => return Err(wrong()),
            [k] => (&[][..], *k, 1),
            [outer @ .., k, n] => (outer, *k, *n),
        };
        if depth != k {
            return Err(wrong());
        }
        let rank = a_outer.len().max(b_outer.len());
        let mut out = SmallVec::with_capacity(rank + 2);
        for at in (0..rank).rev() {
            let dim = |outer: &[usize]| outer.len().checked_sub(at + 1).map_or(1, |at| outer[at]);
            out.push(match (dim(a_outer), dim(b_outer)) {
                (a, b) if a == b => a,
                (1, dim) | (dim, 1) => dim,
                _ => return Err(wrong()),
            });
        }
        let strides = [a_outer, b_outer].map(|outer| strides(outer, rank));
        let mut this = Self { m, n, k, shape: out.clone(), strides, out };
        if a.len() > 1 {
            this.out.push(m);
        }
        if b.len() > 1 {
            this.out.push(n);
        }
        // Rows of all matrices on the left times one on the right are one product.
        let rows_follow = follow && !transposed[0] || a_outer.iter().all(|&dim| dim == 1);
        if this.strides[1].iter().all(|&stride| stride == 0)
            && a_outer.len() == this.shape.len()
            && rows_follow
        {
            this.m = a_outer.iter().product::<usize>() * m;
            this.shape.clear();
            this.strides = Default::default();
        }
        Ok(this)
    }

    /// Products to be made.
    pub(super) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Which matrix of either operand goes into this product.
    pub(super) fn operands(&self, index: usize) -> [usize; 2] {
        let (mut rest, mut operands) = (index, [0; 2]);
        for (at, &dim) in self.shape.iter().enumerate().rev() {
            for (operand, strides) in operands.iter_mut().zip(&self.strides) {
                *operand += rest % dim * strides[at];
            }
            rest /= dim;
        }
        operands
    }
}

/// By how many matrices each of `rank` dimensions moves on: those of 1 stay.
fn strides(outer: &[usize], rank: usize) -> SmallVec<[usize; 6]> {
    let mut strides = SmallVec::from_elem(0, rank);
    let mut next = 1;
    for (stride, &dim) in strides.iter_mut().rev().zip(outer.iter().rev()) {
        if dim != 1 {
            *stride = next;
        }
        next *= dim;
    }
    strides
}

/// Products of the last two dimensions.
struct MatMul {
    /// What products are multiplied by.
    alpha: f32,
    /// Whether either operand's matrices are given turned.
    transposed: [bool; 2],
    /// Whether either operand has the rows of its matrices in front of the other dimensions.
    rows_first: [bool; 2],
}

/// An operand: all of its matrices.
struct Operand<'a, T> {
    data: &'a [T],
    /// How far matrices and rows are apart, as they lie.
    stride: usize,
    row_stride: usize,
    /// Rows and columns as they lie.
    sizes: [usize; 2],
    transposed: bool,
}

impl<'a, T: Copy> Operand<'a, T> {
    fn matrix(&self, index: usize) -> Matrix<'a, T> {
        let [rows, cols] = self.sizes;
        let data = self.data.get(index * self.stride..).unwrap_or_default();
        let matrix = Matrix { data, rows, cols, row_stride: self.row_stride, col_stride: 1 };
        if self.transposed { matrix.transposed() } else { matrix }
    }
}

impl MatMul {
    fn batches(&self, a: &[usize], b: &[usize]) -> Result<Batches, OpError> {
        let shape = |index: usize, shape: &[usize]| -> SmallVec<[usize; 6]> {
            let mut shape = SmallVec::from_slice(shape);
            if let (true, Some(last)) = (self.rows_first[index], shape.len().checked_sub(1)) {
                shape[..last].rotate_left(usize::from(last > 0));
            }
            shape
        };
        Batches::turned(&shape(0, a), &shape(1, b), self.transposed, !self.rows_first[0])
    }

    /// An operand whose matrices have `rows` x `cols` when they are not turned any more.
    fn operand<'a, T: Copy>(&self, index: usize, data: &'a [T], rows: usize, cols: usize) -> Operand<'a, T> {
        let transposed = self.transposed[index];
        let [rows, cols] = if transposed { [cols, rows] } else { [rows, cols] };
        let (stride, row_stride) = match self.rows_first[index] {
            true => (cols, data.len() / rows.max(1)),
            false => (rows * cols, cols),
        };
        Operand { data, stride, row_stride, sizes: [rows, cols], transposed }
    }

    /// All products of a batch, none of which is empty.
    fn multiply(&self, batches: &Batches, out: ViewMut<'_>, a: &[u8], b: &[u8]) -> Result<(), OpError> {
        let Batches { m, n, k, .. } = *batches;
        let (dtype, width) = (out.dtype, out.dtype.bytes());
        let multiply = |index: usize, out: &mut [u8]| {
            by_width!(dtype, T => {
                let [a_at, b_at] = batches.operands(index);
                let a = self.operand::<T>(0, bytemuck::cast_slice(a), m, k).matrix(a_at);
                let b = self.operand::<T>(1, bytemuck::cast_slice(b), k, n).matrix(b_at);
                product_of(dtype, out, a.bytes(), b.bytes(), false)?;
            });
            if self.alpha == 1.0 { Ok(()) } else { scale(dtype, out, self.alpha) }
        };
        let (many, size) = (batches.len(), m * n * width);
        if many == 1 || many.saturating_mul(m * n).saturating_mul(k) < PARALLEL {
            let mut products = out.bytes.chunks_exact_mut(size).enumerate();
            products.try_for_each(|(index, out)| multiply(index, out))
        } else {
            threads::try_pieces(out.bytes, size, &multiply)
        }
    }
}

impl Operator for MatMul {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (a, b) = (inputs.ty(0)?, inputs.ty(1)?);
        if a.dtype != b.dtype {
            return Err(OpError::element_type(format!("{a} and {b} have elements of two types")).into());
        }
        Ok(smallvec![typed(a.dtype, &self.batches(&a.shape, &b.shape)?.out[..])?])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let (Some(a), Some(b)) = (inputs.opt(0), inputs.opt(1)) else { return 0 };
        match self.batches(&a.shape, &b.shape) {
            Ok(batches) if is_half(a.dtype) => Panels::new::<f32>(batches.m, batches.n, batches.k).scratch(),
            _ => 0,
        }
    }

    fn packs(&self, inputs: &Known<'_>) -> Option<PackSpec> {
        let (a, b) = (inputs.opt(0)?, inputs.opt(1)?);
        let batches = self.batches(&a.shape, &b.shape).ok().filter(|_| !self.rows_first[1])?;
        let transposed = self.transposed[1] && b.rank() > 1;
        (batches.len() == 1)
            .then(|| worth_packing(a.dtype, [batches.m, batches.n, batches.k], transposed))
            .flatten()
    }

    fn prepack(&self, prepacked: &Prepacked) -> Result<(), OpError> {
        matrix(prepacked).map(drop)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (a, b, out) = (call.input(0)?, call.input(1)?, call.output(0)?);
        let batches = self.batches(a.shape, b.shape)?;
        if out.bytes.is_empty() {
            return Ok(());
        }
        let scratch = call.scratch();
        if let Some(prepacked) = call.prepacked {
            let Batches { m, k, .. } = batches;
            return gemm_packed(
                out.elements(),
                self.operand(0, a.elements(), m, k).matrix(0),
                (matrix(prepacked)?, 0),
                (self.alpha, 0.0),
                None,
            );
        }
        if !is_half(out.dtype) {
            return self.multiply(&batches, out, a.bytes, b.bytes);
        }
        by_type!(out.dtype, [F16, BF16], T => {
            let out = out.elements::<T>();
            let Batches { m, n, k, .. } = batches;
            let panels = Panels::new::<f32>(m, n, k);
            for (index, out) in out.chunks_exact_mut(m * n).enumerate() {
                let [a_at, b_at] = batches.operands(index);
                let a = self.operand(0, a.elements::<T>(), m, k).matrix(a_at);
                let b = self.operand(1, b.elements::<T>(), k, n).matrix(b_at);
                panels.multiply(scratch, [m, n, k], &load_halves(a), &load_halves(b), &mut |row, col, sums: &[f32]| {
                    out[row * n + col..].iter_mut().zip(sums).for_each(|(to, &sum)| *to = T::narrow(sum * self.alpha));
                })?;
            }
            Ok(())
        }, Err(no(out.dtype)))
    }
}

/// Multiplies all elements by a number.
fn scale(dtype: DataType, elements: &mut [u8], number: f32) -> Result<(), OpError> {
    by_type!(dtype, [F32, F64], T => {
        let elements: &mut [T] = bytemuck::cast_slice_mut(elements);
        elements.iter_mut().for_each(|x| *x = T::from_f64(x.to_f64() * f64::from(number)));
        Ok(())
    }, Err(no(dtype)))
}

/// The packed matrix of a constant factor.
fn matrix(prepacked: &Prepacked) -> Result<&Columns, OpError> {
    prepacked.packed(|tensor, spec| Packed::of(tensor, layout(spec))).map(|packed: &Packed| &**packed)
}

/// How a packed input is read, for kernels.
pub(super) fn layout(PackSpec { rows, cols, transposed, groups, taps, .. }: PackSpec) -> Layout {
    Layout { rows, cols, transposed, groups, taps }
}

/// How input 1 is read, where a product of so many rows, columns, and so deep is one for which it is worth packing: a vector is
/// multiplied without, and of few columns most of a panel would be empty.
fn worth_packing(dtype: DataType, [m, n, k]: [usize; 3], transposed: bool) -> Option<PackSpec> {
    let is_worth = dtype == DataType::F32 && m > 1 && n >= 32 && n.saturating_mul(k) >= 1024;
    is_worth.then_some(PackSpec { input: 1, rows: k, cols: n, transposed, groups: 1, taps: 1 })
}

fn is_half(dtype: DataType) -> bool {
    matches!(dtype, DataType::F16 | DataType::BF16)
}

/// One product, scaled, and a term that is broadcast.
pub(super) struct Gemm {
    alpha: f32,
    beta: f32,
    /// Whether either operand is given turned.
    transposed: [bool; 2],
}

impl Gemm {
    pub(super) fn new(attributes: &Attributes) -> Self {
        Self {
            alpha: attributes.float("alpha", 1.0),
            beta: attributes.float("beta", 1.0),
            transposed: [attributes.int("transA", 0) != 0, attributes.int("transB", 0) != 0],
        }
    }

    /// Rows, columns, and depth.
    fn sizes(&self, a: &[usize], b: &[usize]) -> Result<[usize; 3], OpError> {
        let (&[a_rows, a_cols], &[b_rows, b_cols]) = (a, b) else {
            return Err(OpError::shape(format!("it multiplies matrices, and has shapes {a:?} and {b:?}")));
        };
        let (m, k) = if self.transposed[0] { (a_cols, a_rows) } else { (a_rows, a_cols) };
        let (depth, n) = if self.transposed[1] { (b_cols, b_rows) } else { (b_rows, b_cols) };
        if depth != k {
            return Err(OpError::shape(format!(
                "{a:?} and {b:?} cannot be multiplied when transposed {:?}",
                self.transposed
            )));
        }
        Ok([m, n, k])
    }

    fn matrix<'a, T: Number>(&self, index: usize, view: View<'a>) -> Matrix<'a, T> {
        let matrix = Matrix::new(view.elements::<T>(), view.shape[0], view.shape[1]);
        if self.transposed[index] { matrix.transposed() } else { matrix }
    }
}

impl Operator for Gemm {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (a, b) = (inputs.ty(0)?, inputs.ty(1)?);
        let [m, n, _] = self.sizes(&a.shape, &b.shape)?;
        let c = inputs.opt(2);
        if a.dtype != b.dtype || c.is_some_and(|c| c.dtype != a.dtype) {
            return Err(OpError::element_type("its inputs have elements of several types").into());
        }
        if let Some(c) = c
            && broadcast([&[m, n][..], &c.shape]).is_none_or(|all| all != [m, n])
        {
            return Err(OpError::shape(format!("{c} does not fit a product of {m} x {n}")).into());
        }
        Ok(smallvec![typed(a.dtype, [m, n])?])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let (Some(a), Some(b)) = (inputs.opt(0), inputs.opt(1)) else { return 0 };
        match self.sizes(&a.shape, &b.shape) {
            Ok([m, n, k]) if is_half(a.dtype) => Panels::new::<f32>(m, n, k).scratch(),
            _ => 0,
        }
    }

    fn packs(&self, inputs: &Known<'_>) -> Option<PackSpec> {
        let (a, b) = (inputs.opt(0)?, inputs.opt(1)?);
        worth_packing(a.dtype, self.sizes(&a.shape, &b.shape).ok()?, self.transposed[1])
    }

    fn prepack(&self, prepacked: &Prepacked) -> Result<(), OpError> {
        matrix(prepacked).map(drop)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (a, b, c) = (call.input(0)?, call.input(1)?, call.opt(2));
        let out = call.output(0)?;
        let [m, n, k] = self.sizes(a.shape, b.shape)?;
        let c = c.filter(|_| self.beta != 0.0);
        let dtype = out.dtype;
        // A row that is added to all is added by the product itself; other terms are laid out before.
        let row = c.filter(|c| {
            dtype == DataType::F32 && self.beta == 1.0 && c.len() == n && c.shape.last() == Some(&n)
        });
        if let Some(c) = c
            && row.is_none()
        {
            let walk = Walk::new(out.shape, [c.shape]);
            by_width!(dtype, T => {
                let from = c.raw::<T>();
                let to: &mut [T] = bytemuck::cast_slice_mut(out.bytes);
                walk.rows(|at, length, [(begin, step)]| match step {
                    0 => to[at..at + length].fill(from[begin]),
                    _ => to[at..at + length].copy_from_slice(&from[begin..begin + length]),
                });
            });
        }
        let scratch = call.scratch();
        let (alpha, beta) = (self.alpha, self.beta);
        match dtype {
            DataType::F32 => {
                let beta = if c.is_some() && row.is_none() { beta } else { 0.0 };
                let row = row.map(|row| BiasVector::Row(row.elements()));
                match call.prepacked {
                    Some(prepacked) => gemm_packed(
                        out.elements(),
                        self.matrix(0, a),
                        (matrix(prepacked)?, 0),
                        (alpha, beta),
                        row,
                    ),
                    None => {
                        gemm_f32(out.elements(), self.matrix(0, a), self.matrix(1, b), (alpha, beta), row)
                    }
                }
            }
            DataType::F16 | DataType::BF16 => by_type!(dtype, [F16, BF16], T => {
                let out = out.elements::<T>();
                let (a, b) = (self.matrix::<T>(0, a), self.matrix::<T>(1, b));
                Panels::new::<f32>(m, n, k).multiply(scratch, [m, n, k], &load_halves(a), &load_halves(b), &mut |row, col, sums: &[f32]| {
                    for (to, &sum) in out[row * n + col..].iter_mut().zip(sums) {
                        let term = if c.is_some() { beta * to.wide() } else { 0.0 };
                        *to = T::narrow(alpha * sum + term);
                    }
                })
            }, unreachable!("halves")),
            _ => by_type!(dtype, [F64, I32, I64, U32, U64], T => {
                let (a, b) = (self.matrix::<T>(0, a), self.matrix::<T>(1, b));
                if alpha == 1.0 && (beta == 1.0 || c.is_none()) {
                    return product(out.elements::<T>(), a, b, c.is_some());
                }
                // alpha ab + beta c = alpha (ab + beta / alpha c) loses integers: sums are scaled one at a time.
                for (row, out) in out.elements::<T>().chunks_exact_mut(n.max(1)).enumerate() {
                    for (col, to) in out.iter_mut().enumerate() {
                        let mut sum = T::default();
                        for k in 0..k {
                            let x = a.data[row * a.row_stride + k * a.col_stride];
                            sum = sum.plus(x.times(b.data[k * b.row_stride + col * b.col_stride]));
                        }
                        let term = if c.is_some() { f64::from(beta) * to.to_f64() } else { 0.0 };
                        *to = T::from_f64(f64::from(alpha) * sum.to_f64() + term);
                    }
                }
                Ok(())
            }, Err(no(dtype))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::{Trial, close, floats, numbers, tensor};
    use stepalloc_graph::Attribute;
    use stepalloc_tensor::Tensor;

    #[test]
    fn batches_broadcast_and_fold() {
        let batches = Batches::new(&[2, 1, 3, 4], &[5, 4, 6]).unwrap();
        assert_eq!((batches.out.as_slice(), batches.len()), (&[2, 5, 3, 6][..], 10));
        assert_eq!(batches.operands(7), [1, 2]);
        let folded = Batches::new(&[2, 7, 3, 4], &[4, 6]).unwrap();
        assert_eq!((folded.m, folded.len(), folded.out.as_slice()), (42, 1, &[2, 7, 3, 6][..]));
        // Rows of matrices that are given turned do not follow each other.
        let turned = Batches::turned(&[2, 4, 3], &[5, 4], [true; 2], true).unwrap();
        assert_eq!((turned.m, turned.n, turned.len(), turned.out.as_slice()), (3, 5, 2, &[2, 3, 5][..]));
        let empty = Batches::new(&[4], &[0, 4, 2]).unwrap();
        assert_eq!((empty.out.as_slice(), empty.len()), (&[0, 2][..], 0));
        assert!(Batches::new(&[], &[1]).is_err() && Batches::new(&[2, 3], &[4, 2]).is_err());
    }

    /// Dimensions in another order.
    fn transposed(from: &Tensor, order: &[usize]) -> Tensor {
        let shape = &from.ty().shape;
        let to: Vec<_> = order.iter().map(|&axis| shape[axis]).collect();
        let elements = (0..from.ty().elements()).map(|index| {
            let mut rest = index;
            let mut at = vec![0; shape.len()];
            for (place, &size) in to.iter().enumerate().rev() {
                at[order[place]] = rest % size;
                rest /= size;
            }
            floats(from)[at.iter().zip(shape).fold(0, |all, (at, size)| all * size + at)]
        });
        tensor(&to, &elements.collect::<Vec<_>>())
    }

    #[test]
    fn fused_products_are_those_of_matrices_that_lie_otherwise() {
        let (a, b) = (numbers(&[2, 3, 4, 5], 1), numbers(&[2, 3, 5, 6], 2));
        let plain = Trial::new("MatMul", &[], [&a, &b]).run().expect("it runs").remove(0);
        let wanted: Vec<_> = floats(&plain).iter().map(|x| x * 0.25).collect();
        for told in 0..16 {
            let [trans_a, trans_b, batch_a, batch_b] = std::array::from_fn(|bit| told >> bit & 1 == 1);
            let lay = |from: &Tensor, turned: bool, rows_first: bool| {
                let from = if turned { transposed(from, &[0, 1, 3, 2]) } else { from.clone() };
                if rows_first { transposed(&from, &[2, 0, 1, 3]) } else { from }
            };
            let flags = [
                ("transA", trans_a),
                ("transB", trans_b),
                ("transBatchA", batch_a),
                ("transBatchB", batch_b),
            ];
            let mut attributes: Vec<_> =
                flags.iter().map(|&(name, on)| (name, Attribute::Int(on.into()))).collect();
            attributes.push(("alpha", Attribute::Float(0.25)));
            let inputs = [lay(&a, trans_a, batch_a), lay(&b, trans_b, batch_b)];
            let trial = Trial { domain: "com.microsoft", ..Trial::new("FusedMatMul", &attributes, inputs) };
            let made = trial.run().expect("it runs").remove(0);
            assert_eq!(made.ty().shape, [2, 3, 4, 6], "{flags:?}");
            assert!(close(floats(&made), &wanted), "{flags:?}");
        }
        // One matrix on the right for all on the left.
        let one = numbers(&[5, 6], 3);
        let plain = Trial::new("MatMul", &[], [&a, &one]).run().expect("it runs").remove(0);
        let inputs = [transposed(&a, &[2, 0, 1, 3]), one];
        let told = [("transBatchA", Attribute::Int(1))];
        let trial = Trial { domain: "com.microsoft", ..Trial::new("FusedMatMul", &told, inputs) };
        assert!(close(floats(&trial.run().expect("it runs")[0]), floats(&plain)));
    }
}
