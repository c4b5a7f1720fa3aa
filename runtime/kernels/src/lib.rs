//! What models are computed with: kernels on slices of numbers.
//!
//! | module | what it computes |
//! |---|---|
//! | [`gemm`] | products of matrices: f32 and other numbers, 8-bit integers, weights of fewer bits, few rows, one row, constant factors packed once |
//! | [`conv`] | convolutions, and the windows that pools have too |
//! | [`attention`], [`real`], [`activation`] | attention head by head; products and functions of f32 and f64 that nets with a state are made of |
//! | [`vector`] | functions of f32, a vector at a time |
//! | [`blocks`] | numbers of any type, widened some at a time: sums, extremes, products |
//! | [`broadcast`], [`strided`], [`repeat`] | walks through tensors whose elements do not lie in a row |
//! | [`interpolate`], [`fft`] | resized planes; Fourier transforms |
//! | [`minifloat`], [`scales`] | numbers of 8 bits and fewer; scales and zero points of quantized tensors |
//!
//! A kernel allocates nothing that grows with its operands: it is given scratch memory, of as many bytes as it says. It knows nothing
//! of nodes and graphs.

pub mod activation;
pub mod attention;
pub mod blocks;
pub mod broadcast;
pub mod conv;
pub mod fft;
pub mod gemm;
pub mod interpolate;
pub mod minifloat;
pub mod real;
pub mod repeat;
pub mod scales;
pub mod strided;
pub mod vector;

// For `by_wide!`.
#[doc(hidden)]
pub use stepalloc_tensor::DataType;

use stepalloc_tensor::OpError;

/// What a kernel says of elements of a type it is not for.
pub fn no(dtype: DataType) -> OpError {
    OpError::element_type(format!("elements of {dtype} are not known to it"))
}
