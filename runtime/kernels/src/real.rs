//! Real numbers as whole rows are computed with: f64 as it is, everything else in f32.
//!
//! Operators that multiply matrices read their inputs as one of the two ([`widened`]), and write outputs through a [`Target`]; only
//! halves are copied for that, to scratch memory, which is dealt out by a [`Space`].

use crate::gemm::packed::{Columns, gemm_packed};
use crate::gemm::panels::WIDTH;
use crate::gemm::small_m::rows_by_panels;
use crate::gemm::{BiasVector, Matrix, gemm_f32, gemm_tiles};
use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use rten_simd::{SimdOp, SimdUnaryOp};
use rten_vecmath::{Sigmoid, Softmax, Tanh};
use stepalloc_tensor::{ALIGNMENT, DataType, Number, OpError, View, ViewMut, bf16, f16};

/// Rows up to which states are multiplied without laying their weights out anew, which are read column by column here: of LSTM and GRU with 256
/// hidden elements, 2 rows take less than half the time so, 8 as long, and 16 a tenth to a third more.
const FEW_ROWS: usize = 8;

/// f32 and f64.
pub trait Real:
    Number<Wide = Self>
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
{
    /// 1.
    const ONE: Self;
    /// The least finite number.
    const LOWEST: Self;
    /// `out = alpha a b + beta out`, row by row.
    fn multiply(out: &mut [Self], a: Matrix<'_, Self>, b: Matrix<'_, Self>, alpha: f32, beta: Self);
    /// `out = a b`, with `bias` added to each row.
    fn multiply_biased(out: &mut [Self], a: Matrix<'_, Self>, b: Matrix<'_, Self>, bias: &[Self]);
    /// The same with a group of packed columns, which there are of f32 only.
    fn multiply_packed(
        _out: &mut [Self],
        _a: Matrix<'_, Self>,
        _b: (&Columns, usize),
        _bias: &[Self],
    ) -> Result<(), OpError> {
        Err(OpError::internal("packed columns are of float32"))
    }
    /// `out = a b`, row by row, with `cols` columns of `b` in [`panels`](crate::gemm::panels).
    fn multiply_panels(out: &mut [Self], a: Matrix<'_, Self>, b: &[Self], cols: usize);
    /// e^x.
    fn exp(self) -> Self;
    /// The square root.
    fn root(self) -> Self;
    /// ln(1 + e^x), without overflow.
    fn softplus(self) -> Self;
    /// 1 / (1 + e^-x) of each.
    fn sigmoid(row: &mut [Self]);
    /// The hyperbolic tangent of each.
    fn tanh(row: &mut [Self]);
    /// Of one row that is not empty.
    fn softmax(row: &mut [Self]);
    /// Rounds, or widens.
    fn from_f32s(to: &mut [Self], from: &[f32]);
    /// Rounds.
    fn from_f64s(to: &mut [Self], from: &[f64]);
    /// Halves of either kind.
    fn from_halves(to: &mut [Self], from: &[impl Number<Wide = f32>]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = Self::from_f64(from.wide().into()));
    }
}

impl Real for f32 {
    const ONE: Self = 1.0;
    const LOWEST: Self = f32::NEG_INFINITY;

    fn multiply(out: &mut [Self], a: Matrix<'_, Self>, b: Matrix<'_, Self>, alpha: f32, beta: Self) {
        if scaled_only(out, &a, &b, beta) {
            return;
        }
        let multiply = if a.rows > FEW_ROWS { gemm_tiles } else { gemm_f32 };
        multiply(out, a, b, (alpha, beta), None).expect("matrices that fit, within their data");
    }

    fn multiply_biased(out: &mut [Self], a: Matrix<'_, Self>, b: Matrix<'_, Self>, bias: &[Self]) {
        if scaled_only(out, &a, &b, 0.0) {
            return repeat(out, bias);
        }
        let multiply = if a.rows > FEW_ROWS { gemm_tiles } else { gemm_f32 };
        multiply(out, a, b, (1.0, 0.0), Some(BiasVector::Row(bias)))
            .expect("matrices that fit, within their data");
    }

    fn multiply_packed(
        out: &mut [Self],
        a: Matrix<'_, Self>,
        b: (&Columns, usize),
        bias: &[Self],
    ) -> Result<(), OpError> {
        gemm_packed(out, a, b, (1.0, 0.0), Some(BiasVector::Row(bias)))
    }

    fn multiply_panels(out: &mut [Self], a: Matrix<'_, Self>, b: &[Self], cols: usize) {
        rows_by_panels(out, a, b, cols);
    }

    fn exp(self) -> Self {
        f32::exp(self)
    }

    fn root(self) -> Self {
        self.sqrt()
    }

    fn softplus(self) -> Self {
        self.max(0.0) + (-self.abs()).exp().ln_1p()
    }

    fn sigmoid(row: &mut [Self]) {
        Sigmoid {}.map_mut(row);
    }

    fn tanh(row: &mut [Self]) {
        Tanh {}.map_mut(row);
    }

    fn softmax(row: &mut [Self]) {
        Softmax::new_mut(row).dispatch();
    }

    fn from_f32s(to: &mut [Self], from: &[f32]) {
        to.copy_from_slice(from);
    }

    fn from_f64s(to: &mut [Self], from: &[f64]) {
        to.iter_mut().zip(from).for_each(|(to, &from)| *to = from as f32);
    }
}

impl Real for f64 {
    const ONE: Self = 1.0;
    const LOWEST: Self = f64::NEG_INFINITY;

    fn multiply(out: &mut [Self], a: Matrix<'_, Self>, b: Matrix<'_, Self>, alpha: f32, beta: Self) {
        if scaled_only(out, &a, &b, beta) {
            return;
        }
        for (row, out) in out.chunks_exact_mut(b.cols).enumerate() {
            scale(out, beta);
            for at in 0..a.cols {
                let factor = f64::from(alpha) * a.data[row * a.row_stride + at * a.col_stride];
                let b_row = b.data[at * b.row_stride..].iter().step_by(b.col_stride.max(1));
                out.iter_mut().zip(b_row).for_each(|(out, &b)| *out += factor * b);
            }
        }
    }

    fn multiply_biased(out: &mut [Self], a: Matrix<'_, Self>, b: Matrix<'_, Self>, bias: &[Self]) {
        repeat(out, bias);
        Self::multiply(out, a, b, 1.0, 1.0);
    }

    fn multiply_panels(out: &mut [Self], a: Matrix<'_, Self>, b: &[Self], cols: usize) {
        out.fill(0.0);
        if out.is_empty() || a.cols == 0 {
            return;
        }
        for (row, out) in out.chunks_exact_mut(cols).enumerate() {
            for (out, panel) in out.chunks_mut(WIDTH).zip(b.chunks(WIDTH * a.cols)) {
                for (at, b) in panel.chunks_exact(out.len()).enumerate() {
                    let factor = a.data[row * a.row_stride + at * a.col_stride];
                    out.iter_mut().zip(b).for_each(|(out, &b)| *out += factor * b);
                }
            }
        }
    }

    fn exp(self) -> Self {
        f64::exp(self)
    }

    fn root(self) -> Self {
        self.sqrt()
    }

    fn softplus(self) -> Self {
        self.max(0.0) + (-self.abs()).exp().ln_1p()
    }

    fn sigmoid(row: &mut [Self]) {
        row.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp()));
    }

    fn tanh(row: &mut [Self]) {
        row.iter_mut().for_each(|x| *x = x.tanh());
    }

    fn softmax(row: &mut [Self]) {
        let most = row.iter().copied().fold(f64::MIN, f64::max);
        let mut sum = 0.0;
        for x in row.iter_mut() {
            *x = (*x - most).exp();
            sum += *x;
        }
        row.iter_mut().for_each(|x| *x /= sum);
    }

    fn from_f32s(to: &mut [Self], from: &[f32]) {
        to.iter_mut().zip(from).for_each(|(to, &from)| *to = from.into());
    }

    fn from_f64s(to: &mut [Self], from: &[f64]) {
        to.copy_from_slice(from);
    }
}

/// Whether there is nothing to be multiplied; what is left of the output is done then.
fn scaled_only<W: Real>(out: &mut [W], a: &Matrix<'_, W>, b: &Matrix<'_, W>, beta: W) -> bool {
    assert!(a.cols == b.rows && out.len() == a.rows * b.cols, "matrices that do not fit");
    if out.is_empty() || a.cols == 0 {
        scale(out, beta);
        return true;
    }
    false
}

/// Each row a copy of `row`.
fn repeat<W: Copy>(out: &mut [W], row: &[W]) {
    out.chunks_exact_mut(row.len().max(1)).for_each(|out| out.copy_from_slice(row));
}

/// What is in `row` may be anything, NaN too, where `beta` is 0.
fn scale<W: Real>(row: &mut [W], beta: W) {
    if beta == W::default() {
        row.fill(beta);
    } else if beta != W::ONE {
        row.iter_mut().for_each(|x| *x = *x * beta);
    }
}

/// Whether a type's elements are computed in f64; `None` for what is no real number.
pub fn is_double(dtype: DataType) -> Result<bool, OpError> {
    if dtype.is_float() { Ok(dtype == DataType::F64) } else { Err(crate::no(dtype)) }
}

/// Scratch memory that is dealt out piece by piece.
pub struct Space<'a>(pub &'a mut [u8]);

impl<'a> Space<'a> {
    /// Bytes that so many elements take of it.
    pub fn bytes<T>(elements: usize) -> usize {
        elements.saturating_mul(size_of::<T>()).div_ceil(ALIGNMENT).saturating_mul(ALIGNMENT)
    }

    /// So many elements; what is in them is anything.
    pub fn take<T: Pod>(&mut self, elements: usize) -> Result<&'a mut [T], OpError> {
        let bytes = Self::bytes::<T>(elements);
        if bytes > self.0.len() {
            return Err(OpError::internal(format!(
                "its scratch memory ends {} bytes too early",
                bytes - self.0.len()
            )));
        }
        let (piece, rest) = std::mem::take(&mut self.0).split_at_mut(bytes);
        self.0 = rest;
        Ok(bytemuck::cast_slice_mut(&mut piece[..elements * size_of::<T>()]))
    }
}

/// Bytes of scratch memory that [`widened`] and [`Target`] take for so many elements of a type.
pub fn widened_bytes<W: Real>(dtype: DataType, elements: usize) -> usize {
    if dtype == W::DTYPE { 0 } else { Space::bytes::<W>(elements) }
}

/// A tensor's elements, copied only if they are of another type.
pub fn widened<'a, W: Real>(view: &View<'a>, space: &mut Space<'a>) -> Result<&'a [W], OpError> {
    if view.dtype == W::DTYPE {
        return Ok(view.elements());
    }
    let wide = space.take::<W>(view.bytes.len() / view.dtype.bytes())?;
    match view.dtype {
        DataType::F32 => W::from_f32s(wide, view.elements()),
        DataType::F64 => W::from_f64s(wide, view.elements()),
        DataType::F16 => W::from_halves(wide, view.elements::<f16>()),
        DataType::BF16 => W::from_halves(wide, view.elements::<bf16>()),
        other => return Err(crate::no(other)),
    }
    Ok(wide)
}

/// An output that is written as f32 or f64, whatever it is.
pub struct Target<'a, W> {
    /// What is computed.
    pub wide: &'a mut [W],
    /// The output itself where `wide` is not.
    narrow: Option<ViewMut<'a>>,
}

impl<'a, W: Real> Target<'a, W> {
    /// With memory of `space` where the output has other elements.
    pub fn new(output: ViewMut<'a>, space: &mut Space<'a>) -> Result<Self, OpError> {
        if output.dtype == W::DTYPE {
            return Ok(Self { wide: output.elements(), narrow: None });
        }
        let wide = space.take(output.shape.iter().product())?;
        Ok(Self { wide, narrow: Some(output) })
    }

    /// Writes the output when all is there.
    pub fn finish(self) -> Result<(), OpError> {
        let Some(output) = self.narrow else { return Ok(()) };
        narrow(self.wide, output)
    }
}

/// Rounds to the type of the output.
pub fn narrow<W: Real>(wide: &[W], output: ViewMut<'_>) -> Result<(), OpError> {
    fn each<W: Real, T: Number>(wide: &[W], to: &mut [T]) {
        to.iter_mut().zip(wide).for_each(|(to, from)| *to = T::from_f64(from.to_f64()));
    }
    match (output.dtype, bytemuck::try_cast_slice::<W, f32>(wide)) {
        (DataType::F16, Ok(wide)) if W::DTYPE == DataType::F32 => {
            output.elements::<f16>().convert_from_f32_slice(wide);
        }
        (DataType::BF16, Ok(wide)) if W::DTYPE == DataType::F32 => {
            output.elements::<bf16>().convert_from_f32_slice(wide);
        }
        (DataType::F16, _) => each(wide, output.elements::<f16>()),
        (DataType::BF16, _) => each(wide, output.elements::<bf16>()),
        (DataType::F32, _) => each(wide, output.elements::<f32>()),
        (DataType::F64, _) => each(wide, output.elements::<f64>()),
        (other, _) => return Err(crate::no(other)),
    }
    Ok(())
}
