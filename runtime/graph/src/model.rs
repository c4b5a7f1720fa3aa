//! A model that was read and understood.

use crate::graph::Graph;
use crate::operator::Registry;
use std::sync::Arc;

/// A graph, and what its file says beside it. Every node has its operator.
#[derive(Clone, Debug)]
pub struct Model {
    /// What it computes.
    pub graph: Arc<Graph>,
    /// Who made it, as the file says.
    pub producer: String,
    /// Versions of the domains it is written in.
    pub opsets: Vec<(String, i64)>,
    /// What else the file says.
    pub header: Arc<Header>,
    /// Where its operators came from.
    pub registry: Registry,
}

impl AsRef<Self> for Model {
    fn as_ref(&self) -> &Self {
        self
    }
}

/// What files of ONNX say of a model as a whole. What is left out is not said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Version of the format.
    pub ir_version: Option<i64>,
    /// Version of who made it.
    pub producer_version: Option<String>,
    /// Whose model it is.
    pub domain: Option<String>,
    /// Its version.
    pub model_version: Option<i64>,
    /// What it is for.
    pub doc_string: Option<String>,
    /// Further words of its maker, by name.
    pub metadata: Vec<(String, String)>,
}
