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
//! - [`operator`] is for nodes of operators that the runtime has not: the program brings them.
//! - [`Batches`] finds the largest batch that fits into a limit, without running any.
//! - [`QuantizeDynamic`] writes a model whose weights have 8 bits.
//!
//! With the feature `ndarray`, arrays of that crate become tensors and views by `try_into`, and these become arrays: without copies where
//! the layout allows it (`stepalloc_tensor::arrays` says when).
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

mod batch;
pub mod conformance;
mod light;
mod model;
pub mod operator;

pub use batch::{BatchInput, Batches, LargestBatch};
pub use light::Light;
pub use model::Model;
pub use stepalloc_graph::{
    ArenaExtendStrategy, Arenas, Binding, Cancel, Changes, CustomOperators, Declared, Dim, Error, Figures,
    Graph, Level, Needs, Node, NodeProfile, Optimization, Options, PASSES, Pass, PlannedBlock, PlannedRun,
    PlannedStep, PlannedValue, Profile, RunOptions, Session, Statistics, UnknownOperators, Value, ValueId,
    touch_stack,
};
pub use stepalloc_onnx::read_tensor;
pub use stepalloc_quantize::{Left, QuantizeDynamic, Quantized, WeightType};
pub use stepalloc_tensor::shared::Owner;
pub use stepalloc_tensor::{
    ALIGNMENT, Bool, DataType, Element, Number, OpError, Shape, Tensor, Type, View, ViewMut, bf16, f16,
};
