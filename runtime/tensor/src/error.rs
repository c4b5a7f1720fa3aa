//! Why an operator cannot be made of a node, or cannot run on its inputs.

use crate::element::DataType;
use crate::tensor::{OutOfMemory, Type};
use std::error::Error;
use std::sync::Arc;

/// What is wrong with a node, by what a caller can do about it. Each message says what is wrong and where; the graph adds the node's
/// name.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OpError {
    /// An attribute is missing, or has a value that the operator does not allow: the model is wrong.
    #[error("{0}")]
    Attribute(String),
    /// An input that must be there is left out, by its number.
    #[error("input {0} is missing")]
    MissingInput(usize),
    /// Numbers of inputs, outputs or attributes' elements that do not go together: the model is wrong.
    #[error("{0}")]
    Arity(String),
    /// Elements of a type that the operator does not take, or not together with those of its other inputs.
    #[error("{0}")]
    ElementType(String),
    /// Shapes that do not fit the operator or each other, or have more elements than can be addressed.
    #[error("{0}")]
    Shape(String),
    /// Elements of an input that are out of range: an index, a size, a probability.
    #[error("{0}")]
    Value(String),
    /// The standard allows it, and this runtime does not have it.
    #[error("{0}")]
    Unsupported(String),
    /// Memory that was asked for is not to be had, or more than the options allow.
    #[error("{bytes} bytes of memory are wanted: {why}")]
    Memory {
        /// How much was asked for.
        bytes: u64,
        /// Why it is not there.
        why: String,
    },
    /// A graph within the node failed.
    #[error(transparent)]
    Graph(Arc<dyn Error + Send + Sync>),
    /// An operator broke its own promise: a defect of this runtime, to be reported.
    #[error("{0}")]
    Internal(String),
}

impl From<OutOfMemory> for OpError {
    fn from(OutOfMemory { bytes }: OutOfMemory) -> Self {
        Self::Memory { bytes, why: "the system has no more".into() }
    }
}

/// The kinds with texts, for call sites that fit on a line.
impl OpError {
    /// See [`OpError::Attribute`].
    pub fn attribute(what: impl Into<String>) -> Self {
        Self::Attribute(what.into())
    }

    /// See [`OpError::Arity`].
    pub fn arity(what: impl Into<String>) -> Self {
        Self::Arity(what.into())
    }

    /// See [`OpError::ElementType`].
    pub fn element_type(what: impl Into<String>) -> Self {
        Self::ElementType(what.into())
    }

    /// See [`OpError::Shape`].
    pub fn shape(what: impl Into<String>) -> Self {
        Self::Shape(what.into())
    }

    /// Of an operand that is not of the type it has to be: by its elements, if they are not of this type, else by its shape.
    pub fn operand(ty: &Type, dtype: DataType, what: impl Into<String>) -> Self {
        if ty.dtype == dtype { Self::shape(what) } else { Self::element_type(what) }
    }

    /// See [`OpError::Value`].
    pub fn value(what: impl Into<String>) -> Self {
        Self::Value(what.into())
    }

    /// See [`OpError::Unsupported`].
    pub fn unsupported(what: impl Into<String>) -> Self {
        Self::Unsupported(what.into())
    }

    /// See [`OpError::Internal`].
    pub fn internal(what: impl Into<String>) -> Self {
        Self::Internal(what.into())
    }
}
