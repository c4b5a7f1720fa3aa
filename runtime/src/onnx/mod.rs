//! Models in ONNX's format.

mod functions;
#[allow(missing_docs, clippy::all, clippy::pedantic, unused_qualifications, reason = "it is kept as it came")]
pub(crate) mod proto;
mod read;
mod tensors;
mod weigh;

pub use read::Model;
pub use tensors::read_tensor;
