//! Tensors of models: elements of one type in a shape, in memory of their own or in a file that is mapped.
//!
//! | module | what it has |
//! |---|---|
//! | [`element`] | the types of elements, the Rust types that hold them, and macros that choose the code for one |
//! | [`tensor`] | [`Tensor`], [`View`] and [`ViewMut`]: a shape, and where its elements are |
//! | [`shape`] | sizes of dimensions |
//! | [`shared`] | memory that a tensor has together with somebody else |
//! | `arrays` | arrays of the crate ndarray, with the feature of that name |
//! | [`error`] | what can be wrong with a node, by kind |
//! | [`growing`] | tensors that grow along an axis where they are |
//! | [`quads`] | bytes of matrices as products of bytes take them |
//! | [`raw`] | elements as files have them |
//! | [`mapped`] | files of weights, mapped once in a process, copied from only where they must be |
//!
//! Kernels, graphs and file formats are built on this crate; it knows nothing of them.

#[cfg(feature = "ndarray")]
pub mod arrays;
pub mod element;
pub mod error;
pub mod growing;
pub mod mapped;
pub mod quads;
pub mod raw;
pub mod shape;
pub mod shared;
pub mod tensor;

pub use element::{Bool, DataType, Element, Number, bf16, f16};
pub use error::OpError;
pub use shape::Shape;
pub use tensor::{ALIGNMENT, Ints, OutOfMemory, Tensor, Type, View, ViewMut, axis};
