//! What can go wrong, said with the node, the operator or the tensor it went wrong at.

use crate::graph::Node;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use stepalloc_tensor::{OpError, OutOfMemory};

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
    /// The model asks for operators that there are none of.
    #[error("{0}")]
    Unsupported(UnknownOperators),
    /// A node is wrong, or cannot be run on its inputs.
    #[error("node {node} ({op}): {source}")]
    Node {
        /// The node's name, or its first output's.
        node: String,
        /// The operator.
        op: String,
        /// What is wrong.
        source: OpError,
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

/// Of a graph within a node, or of memory that the run around it has not.
impl From<Error> for OpError {
    fn from(error: Error) -> Self {
        match error {
            Error::Memory { bytes, why } => Self::Memory { bytes, why },
            other => Self::Graph(Arc::new(other)),
        }
    }
}

impl Error {
    /// Of a model's text or structure.
    pub fn model(what: impl Into<String>) -> Self {
        Self::Model(what.into())
    }

    /// The same of a part of a model, which its text begins with; files and nodes have their names already.
    #[must_use]
    pub fn within(self, part: &str) -> Self {
        if let Self::Model(what) = self { Self::Model(format!("{part}: {what}")) } else { self }
    }

    /// Of a node, by its name.
    pub(crate) fn node(node: &Node, source: OpError) -> Self {
        Self::Node { node: node.name.clone(), op: node.op_type.clone(), source }
    }

    /// What went wrong first: where a node failed because of one in a graph within it, the inner node's error, else this one.
    pub fn innermost(&self) -> &Self {
        let Self::Node { source: OpError::Graph(inner), .. } = self else { return self };
        inner.downcast_ref().map_or(self, Self::innermost)
    }
}

/// Operators of a model that there are none of: all of them.
#[derive(Clone, Debug, Default)]
pub struct UnknownOperators {
    /// By domain, name and version of the domain: how many nodes have it, and the name of the first.
    nodes: BTreeMap<(String, String, i64), (u64, String)>,
    /// Nodes beyond as many kinds as are kept.
    more: u64,
    /// What to do about it, where that is known.
    pub advice: Option<&'static str>,
}

/// Operators that a message names.
const NAMED: usize = 32;
/// Operators that are kept: a file may name as many as it has bytes.
const KEPT: usize = 1024;

impl UnknownOperators {
    /// One more node, whose domain is ai.onnx if it is empty.
    pub fn add(&mut self, (domain, op, opset): (&str, &str, i64), node: &str) {
        let domain = if domain.is_empty() { "ai.onnx" } else { domain };
        let key = (domain.into(), op.into(), opset);
        if self.nodes.len() >= KEPT && !self.nodes.contains_key(&key) {
            self.more += 1;
            return;
        }
        self.nodes.entry(key).or_insert_with(|| (0, node.into())).0 += 1;
    }

    /// Whether all are known.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Domain, name and version of each, how many nodes have it, and the name of the first.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, i64, u64, &str)> {
        let each = self.nodes.iter();
        each.map(|((domain, op, opset), (count, node))| (&**domain, &**op, *opset, *count, &**node))
    }
}

impl fmt::Display for UnknownOperators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.nodes.len() {
            1 => write!(f, "an operator is not known: ")?,
            many => write!(f, "{many} operators are not known: ")?,
        }
        for (number, (domain, op, opset, count, node)) in self.iter().take(NAMED).enumerate() {
            let apart = if number > 0 { "; " } else { "" };
            write!(f, "{apart}{domain}.{op} (version {opset}) of ")?;
            match count {
                1 => write!(f, "node {node}")?,
                _ => write!(f, "{count} nodes, the first of which is {node}")?,
            }
        }
        if let Some(more @ 1..) = self.nodes.len().checked_sub(NAMED) {
            write!(f, "; and {more} more")?;
        }
        if self.more > 0 {
            write!(f, ", and {} nodes of others", self.more)?;
        }
        self.advice.map_or(Ok(()), |advice| write!(f, ". {advice}"))
    }
}
