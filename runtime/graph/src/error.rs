//! What can go wrong, said with the node, the operator or the tensor it went wrong at.

use std::path::PathBuf;
use stepalloc_tensor::OutOfMemory;

/// An error of reading, preparing or running a model.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// What was read is no model, or a damaged one.
    #[error("{0}")]
    Model(String),
    /// The model asks for an operator that there is none of.
    #[error("node {node}: no operator {domain}.{op} (version {opset}) is known")]
    Unsupported {
        /// The node's name, or its first output's.
        node: String,
        /// The operator.
        op: String,
        /// Its domain; ai.onnx by default.
        domain: String,
        /// The version of the domain that the model imports.
        opset: i64,
    },
    /// A node is wrong, or cannot be run on its inputs.
    #[error("node {node} ({op}): {what}")]
    Node {
        /// The node's name, or its first output's.
        node: String,
        /// The operator.
        op: String,
        /// What is wrong.
        what: String,
    },
    /// Memory that was asked for is not to be had, or more than the options allow.
    #[error("{bytes} bytes of memory are wanted: {why}")]
    Memory {
        /// How much was asked for.
        bytes: u64,
        /// Why it is not there.
        why: String,
    },
    /// The run was ended by its [`crate::Cancel`].
    #[error("the run was cancelled")]
    Cancelled,
    /// An input or output is not as the model has it.
    #[error("{0}")]
    Argument(String),
}

impl From<OutOfMemory> for Error {
    fn from(OutOfMemory { bytes }: OutOfMemory) -> Self {
        Self::Memory { bytes, why: "the system has no more".into() }
    }
}

impl Error {
    /// Of a model's text or structure.
    pub fn model(what: impl Into<String>) -> Self {
        Self::Model(what.into())
    }
}
