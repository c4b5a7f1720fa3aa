//! A model as a graph, and everything that is done with it whatever its nodes compute.
//!
//! ```text
//! Model --optimize--> Model --Session--> plan for the inputs' types --run--> outputs
//! ```
//!
//! | module | what it has |
//! |---|---|
//! | [`graph`], [`model`], `declared` | values and nodes; a graph with what its file says of it; inputs and outputs |
//! | [`operator`], [`custom`], [`prepacked`] | what an operator is to a graph, and where it is found; a program's own ones; constant inputs in an order of its own |
//! | [`plan`], `order` | types and places of all values for inputs of some types; orders of nodes |
//! | [`arena`], `pool`, `outputs`, `run` | memory of runs; a plan that is run |
//! | [`context`] | what nodes have of the run around them |
//! | [`session`], [`binding`], [`options`], [`watch`] | plans by the inputs' types; inputs and outputs that stay; settings; profiles, and ends |
//! | [`subgraph`] | graphs within nodes |
//! | [`passes`] | graph optimization |
//!
//! Which operators there are is not known here: who reads a model brings a [`Registry`]. Files are read and written by crates of
//! their own.

pub mod arena;
pub mod binding;
pub mod context;
pub mod custom;
mod declared;
pub mod error;
pub mod graph;
mod inline;
pub mod model;
pub mod needs;
pub mod operator;
pub mod options;
mod order;
mod outputs;
pub mod passes;
pub mod plan;
mod pool;
pub mod prepacked;
mod run;
pub mod session;
pub mod subgraph;
pub mod watch;

pub use arena::{ArenaExtendStrategy, Arenas, Statistics};
pub use binding::Binding;
pub use context::RunContext;
pub use custom::CustomOperators;
pub use error::{Error, UnknownOperators};
pub use graph::{Attribute, Attributes, Declared, Dim, Graph, Node, Value, ValueId};
pub use model::{Header, Model};
pub use needs::Needs;
pub use operator::{Call, Definition, Known, Made, Operator, Registry, Reuse, Types, Unclear};
pub use options::Options;
pub use passes::{Changes, Level, Optimization, PASSES, Pass};
pub use plan::{Figures, PlannedBlock, PlannedRun, PlannedStep, PlannedValue};
pub use prepacked::{PackSpec, Prepacked};
pub use run::{Tensors, run_one};
pub use session::Session;
pub use stepalloc_threads::touch_stack;
pub use subgraph::Subgraph;
pub use watch::{Cancel, NodeProfile, Profile, RunOptions};
