//! Convolutions of bytes.

use super::{Call, Definition, Known, Operator, Type, Types, Unclear, flip, is_one, made_type, rounded};
use crate::conv::Filters;
use smallvec::{SmallVec, smallvec};
use stepalloc_kernels::conv::Sizes;
use stepalloc_kernels::conv::quantized::{Quantized, scratch};
use stepalloc_kernels::gemm::dot4::quads;
use stepalloc_kernels::{no, scales::Rounded};
use stepalloc_tensor::{DataType, OpError};

/// Inputs:
///
/// 0. x;
/// 1. signed weights, a row for each filter with zeros up to a multiple of four;
/// 2. of each filter what its sums are multiplied with (f32);
/// 3. what is added to them before (i32);
/// 4. its zero point (i32), unless all are 0;
/// 5. x's zero point, where it is not known before, of x's type; then `x_zero` says nothing;
/// 6. x's scale (f32), likewise, with which 2 is multiplied;
/// 7. of each filter the sum of its elements less its zero point (i32), where 3 does not have what x's zero point makes of it;
/// 8. of each filter a bias, which is added to reals (f32).
pub(super) struct Conv {
    filters: Filters,
    kernel: Vec<usize>,
    /// The input's zero point.
    zero: u8,
    dtype: DataType,
    /// Of bytes that are made.
    rounded: Option<Rounded>,
}

impl Conv {
    pub(super) fn new(node: &Definition<'_>) -> Result<Self, OpError> {
        let dtype = made_type(node.attributes)?;
        let filters = Filters::new(node)?;
        let kernel =
            filters.sliding.kernel.clone().ok_or_else(|| OpError::attribute("it has no kernel_shape"))?;
        let zero = node.attributes.int("x_zero", 0) as u8;
        let rounded = if dtype == DataType::F32 { None } else { Some(rounded(node.attributes, dtype)?) };
        Ok(Self { filters, kernel, zero, dtype, rounded })
    }

    /// Shapes of weights as `Conv` has them, of which there are these rows.
    fn weights(&self, x: &[usize], w: &[usize]) -> Result<SmallVec<[usize; 6]>, OpError> {
        let (&[_, channels, ..], &[filters, _]) = (x, w) else {
            return Err(OpError::shape(format!("an input {x:?} or rows of weights {w:?} have no channels")));
        };
        let mut shape: SmallVec<[usize; 6]> = smallvec![filters, channels / self.filters.group];
        shape.extend_from_slice(&self.kernel);
        Ok(shape)
    }

    fn sizes(&self, x: &[usize], w: &[usize]) -> Result<Sizes, OpError> {
        let sizes = self.filters.sizes(x, &self.weights(x, w)?)?;
        if w[1] != 4 * quads(sizes.depth()) {
            return Err(OpError::shape(format!(
                "rows of weights {w:?} are not of {} elements",
                sizes.depth()
            )));
        }
        Ok(Sizes { window: sizes.window.with_long_rows(), ..sizes })
    }
}

impl Operator for Conv {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (x, w) = (inputs.ty(0)?, inputs.ty(1)?);
        flip(x.dtype, DataType::U8)?;
        let filters = w.shape.first().copied().unwrap_or(0);
        inputs.ty(2)?;
        for (index, dtype) in [
            (2, DataType::F32),
            (3, DataType::I32),
            (4, DataType::I32),
            (7, DataType::I32),
            (8, DataType::F32),
        ] {
            if let Some(ty) = inputs.opt(index).filter(|ty| ty.dtype != dtype || ty.shape != [filters]) {
                let what = format!("its input {index} is not one {dtype} for each of {filters} filters");
                return Err(OpError::operand(ty, dtype, what).into());
            }
        }
        is_one(inputs, 5, x.dtype)?;
        is_one(inputs, 6, DataType::F32)?;
        self.sizes(&x.shape, &w.shape)?;
        // The output's shape has all dimensions.
        Ok(smallvec![self.filters.sizes(&x.shape, &self.weights(&x.shape, &w.shape)?)?.out(self.dtype)?])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let (Some(x), Some(w)) = (inputs.opt(0), inputs.opt(1)) else { return 0 };
        let Ok(sizes) = self.sizes(&x.shape, &w.shape) else { return 0 };
        // No core would have less than a filter.
        let filters = sizes.batch * sizes.group * sizes.to;
        let cores = if sizes.is_small() { 1 } else { inputs.context.threads().min(filters).max(1) };
        cores * scratch(&sizes)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (x, w, out) = (call.input(0)?, call.input(1)?, call.output(0)?);
        let scales = call.input(2)?;
        let [adds, zeros, w_sums] = [3, 4, 7].map(|index| call.opt(index).map(|ints| ints.elements::<i32>()));
        let [x_scale, bias] = [6, 8].map(|index| call.opt(index).map(|reals| reals.elements::<f32>()));
        let zero = call.opt(5).map_or(self.zero, |zero| zero.bytes[0]);
        let sizes = self.sizes(x.shape, w.shape)?;
        if out.bytes.is_empty() {
            return Ok(());
        }
        if sizes.window.input() == 0 || sizes.depth() == 0 {
            return Err(OpError::unsupported(
                "a convolution of bytes of nothing but padding is not known to it",
            ));
        }
        let quantized = Quantized {
            sizes: &sizes,
            x: x.bytes,
            flip: flip(x.dtype, DataType::U8)?,
            zero,
            w: w.bytes.as_chunks().0,
            w_zeros: zeros,
            w_sums,
            adds,
            scales: scales.elements::<f32>(),
            scale: x_scale.map_or(1.0, |scale| scale[0]),
            bias,
        };
        match self.rounded {
            Some(rounded) => quantized.bytes(out.bytes, rounded, call.scratch()),
            None if out.dtype == DataType::F32 => quantized.reals(out.elements::<f32>(), call.scratch()),
            None => return Err(no(out.dtype)),
        }
        Ok(())
    }
}
