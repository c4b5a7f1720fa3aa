//! Models in OpenVINO's format (IR, versions 10 and 11): layers in a file .xml, weights in a file .bin beside it.
//!
//! A layer becomes one of ONNX's operators or a few (`convert`), so that everything behind the graph is the same for both formats.
//! The elements of constants stay in the .bin, which is mapped.

mod build;
mod control;
mod convert;
mod iterate;
mod read;
mod weights;
mod xml;

pub use read::{is_ir, open, read};
