//! Convolutions of bytes.

use super::{Call, Definition, Known, Operator, Type, Unclear, flip, made_type, rounded};
use crate::conv::Filters;
use smallvec::{SmallVec, smallvec};
use stepalloc_kernels::conv::Sizes;
use stepalloc_kernels::conv::quantized::{Quantized, scratch};
use stepalloc_kernels::gemm::dot4::quads;
use stepalloc_kernels::scales::Rounded;
use stepalloc_tensor::{DataType, View};
use stepalloc_threads as threads;

/// Inputs: x; signed weights, a row for each filter with zeros up to a multiple of four; of each filter what its sums are multiplied
/// with (f32), what is added to them before (i32), and its zero point (i32), unless all are 0.
pub(super) struct Conv {
    filters: Filters,
    kernel: Vec<usize>,
    /// The input's zero point.
    zero: u8,
    dtype: DataType,
    rounded: Rounded,
}

impl Conv {
    pub(super) fn new(node: &Definition<'_>) -> Result<Self, String> {
        let dtype = made_type(node.attributes)?;
        let filters = Filters::new(node)?;
        let kernel = filters.sliding.kernel.clone().ok_or("it has no kernel_shape")?;
        let zero = node.attributes.int("x_zero", 0) as u8;
        Ok(Self { filters, kernel, zero, dtype, rounded: rounded(node.attributes, dtype)? })
    }

    /// Shapes of weights as `Conv` has them, of which there are these rows.
    fn weights(&self, x: &[usize], w: &[usize]) -> Result<SmallVec<[usize; 6]>, String> {
        let (&[_, channels, ..], &[filters, _]) = (x, w) else {
            return Err(format!("an input {x:?} or rows of weights {w:?} have no channels"));
        };
        let mut shape: SmallVec<[usize; 6]> = smallvec![filters, channels / self.filters.group];
        shape.extend_from_slice(&self.kernel);
        Ok(shape)
    }

    fn sizes(&self, x: &[usize], w: &[usize]) -> Result<Sizes, String> {
        let sizes = self.filters.sizes(x, &self.weights(x, w)?)?;
        if w[1] != 4 * quads(sizes.depth()) {
            return Err(format!("rows of weights {w:?} are not of {} elements", sizes.depth()));
        }
        Ok(Sizes { window: sizes.window.with_long_rows(), ..sizes })
    }
}

impl Operator for Conv {
    fn infer(&self, inputs: &Known<'_>) -> Result<Vec<Type>, Unclear> {
        let (x, w) = (inputs.ty(0)?, inputs.ty(1)?);
        flip(x.dtype, DataType::U8)?;
        let filters = w.shape.first().copied().unwrap_or(0);
        let each = |index: usize, dtype| match inputs.opt(index) {
            Some(each) if each.dtype == dtype && each.shape == [filters] => Ok(()),
            _ => Err(Unclear::Wrong(format!(
                "its input {index} is not one {dtype} for each of {filters} filters"
            ))),
        };
        each(2, DataType::F32)?;
        each(3, DataType::I32)?;
        if inputs.opt(4).is_some() {
            each(4, DataType::I32)?;
        }
        self.sizes(&x.shape, &w.shape)?;
        // The output's shape has all dimensions.
        Ok(vec![self.filters.sizes(&x.shape, &self.weights(&x.shape, &w.shape)?)?.out(self.dtype)?])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let (Some(x), Some(w)) = (inputs.opt(0), inputs.opt(1)) else { return 0 };
        let Ok(sizes) = self.sizes(&x.shape, &w.shape) else { return 0 };
        // No core would have less than a filter.
        let filters = sizes.batch * sizes.group * sizes.to;
        let cores = if sizes.is_small() { 1 } else { threads::for_runs().min(filters).max(1) };
        cores * scratch(&sizes)
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), String> {
        let (x, w, out) = (call.input(0)?, call.input(1)?, call.output(0)?);
        let (scales, adds, zeros): (View<'_>, View<'_>, _) = (call.input(2)?, call.input(3)?, call.opt(4));
        let sizes = self.sizes(x.shape, w.shape)?;
        if out.bytes.is_empty() {
            return Ok(());
        }
        if sizes.window.input() == 0 || sizes.depth() == 0 {
            return Err("a convolution of bytes of nothing but padding is not known to it".into());
        }
        let quantized = Quantized {
            sizes: &sizes,
            x: x.bytes,
            flip: flip(x.dtype, DataType::U8)?,
            zero: self.zero,
            w: w.bytes.as_chunks().0,
            w_zeros: zeros.map(|zeros| zeros.elements::<i32>()),
            adds: adds.elements::<i32>(),
            scales: scales.elements::<f32>(),
            rounded: self.rounded,
        };
        quantized.convolve(out.bytes, call.scratch());
        Ok(())
    }
}
