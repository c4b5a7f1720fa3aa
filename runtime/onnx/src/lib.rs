//! Models in ONNX's format.

pub mod file;
mod functions;
#[allow(missing_docs, clippy::all, clippy::pedantic, unused_qualifications, reason = "it is kept as it came")]
pub mod proto;
mod read;
mod save;
mod seems;
pub mod tensors;
mod weigh;
mod write;

pub use read::read;
pub use save::{save, to_bytes};
pub use tensors::{Folder, read_tensor};
