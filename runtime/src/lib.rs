//! Runs models of ONNX and OpenVINO in planned memory.
//!
//! ```text
//! file --Model--> graph --Session--> plan for the inputs' types --run--> outputs
//! ```
//!
//! - [`Model`] reads a file, checks it, and finds the code of every node. Weights stay in the file, which is mapped.
//! - [`Model::optimize`] makes a model of fewer nodes from it, and [`Model::save`] writes it.
//! - [`Session`] plans the memory of a run for each set of input types: one arena, in which values lie that are not alive at
//!   the same time, views lie where their sources lie, and outputs are written over inputs that nobody needs any more.
//! - [`QuantizeDynamic`] writes a model whose weights have 8 bits.
//!
//! ```no_run
//! use stepalloc_runtime::{Error, Model, Options, Session, Tensor};
//!
//! fn main() -> Result<(), Error> {
//!     let session = Session::with_options(&Model::open("net.onnx")?, Options::new().max_mem(256 << 20));
//!     let mut binding = session.binding();
//!     binding.bind_input("x", Tensor::from_elements([1, 4], &[0.0f32, 1.0, 2.0, 3.0]).expect("four elements"))?;
//!     binding.run()?;
//!     println!("{:?}", binding.output("y")?.elements::<f32>());
//!     Ok(())
//! }
//! ```

mod arena;
mod binding;
pub mod conformance;
mod element;
mod error;
mod file;
mod graph;
mod inline;
mod mapped;
mod onnx;
mod openvino;
mod operators;
mod options;
mod order;
mod outputs;
mod passes;
mod plan;
mod quantize;
mod run;
mod session;
mod tensor;
mod watch;

pub use arena::{ArenaExtendStrategy, Arenas, Statistics};
pub use binding::Binding;
pub use element::{Bool, DataType, Element, Number, bf16, f16};
pub use error::Error;
pub use graph::{Declared, Dim, Graph, Node, Value, ValueId};
pub use onnx::{Model, read_tensor};
pub use options::Options;
pub use passes::{Changes, Level, Optimization, PASSES, Pass};
pub use plan::{Figures, PlannedBlock, PlannedRun, PlannedStep, PlannedValue};
pub use quantize::{Left, QuantizeDynamic, Quantized, WeightType};
pub use session::Session;
pub use tensor::{ALIGNMENT, Tensor, Type, View, ViewMut};
pub use watch::{Cancel, NodeProfile, Profile, RunOptions};
