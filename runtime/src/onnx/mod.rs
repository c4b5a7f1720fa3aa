//! Models in ONNX's format.

mod functions;
#[allow(missing_docs, clippy::all, clippy::pedantic, unused_qualifications, reason = "it is kept as it came")]
pub(crate) mod proto;
mod read;
mod save;
pub(crate) mod tensors;
mod weigh;
mod write;

pub use read::Model;
pub(crate) use tensors::from_raw;
pub use tensors::read_tensor;
