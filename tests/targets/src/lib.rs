//! Functions that take any bytes and assert what must hold of them: no panic, no hang, no memory out of proportion, and
//! what the functions themselves say.
//!
//! `tests/bounded.rs` runs them over the corpus (`tests/corpus/TARGET/*`) and over damaged copies of it, a bounded number;
//! `fuzz/` hands the same functions to libFuzzer, which looks for inputs that reach new code.

mod feed;
mod files;
mod memory;
pub mod mutation;
mod onnx;
mod openvino;
mod operations;
mod period;
mod plan_file;
mod plans;
mod recording;
mod scratch;
mod settings;
mod sizes;
mod steps;

pub use files::{buffers, trace};
pub use onnx::{onnx, tensor};
pub use openvino::openvino;
pub use operations::operations;
pub use period::period;
pub use plan_file::plan_file;
pub use recording::recording;
pub use settings::settings;
pub use sizes::sizes;
pub use steps::steps;

/// Counts what readers take. In every binary that has the targets.
#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

/// A target: it panics where something does not hold.
pub type Target = fn(&[u8]);

/// All targets by their names, which are those of their directories in the corpus.
pub const TARGETS: &[(&str, Target)] = &[
    ("buffers", buffers),
    ("onnx", onnx),
    ("openvino", openvino),
    ("operations", operations),
    ("period", period),
    ("plan_file", plan_file),
    ("recording", recording),
    ("settings", settings),
    ("sizes", sizes),
    ("steps", steps),
    ("tensor", tensor),
    ("trace", trace),
];
