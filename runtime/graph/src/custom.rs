//! Operators that a program brings with it, for nodes of models that use them.

use crate::operator::{Definition, Made, Operator};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use stepalloc_tensor::OpError;

/// Makes the operator of a node.
type Factory = dyn Fn(&Definition<'_>) -> Result<Box<dyn Operator>, OpError> + Send + Sync;

/// Custom operators: a program's own, by domain and name. ONNX Runtime has them as `CustomOpDomain`s.
///
/// They do not take the place of operators that the runtime has: to read a node of such a name is an error where one is registered. A
/// function of that name in a model's file comes first, since its body takes the place of the node.
#[derive(Clone, Default)]
pub struct CustomOperators(HashMap<String, HashMap<String, Arc<Factory>>>);

/// As nodes have it: ai.onnx has two names.
fn plain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

impl CustomOperators {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// One more. `factory` makes the operator of each node of this domain (empty is ai.onnx) and name, in any version of the domain; what it
    /// finds wrong with the node (most of all with its attributes) is an error that names the node. It may be asked more than once
    /// for a node. Of two factories of the same name the one that was registered last is used.
    #[must_use]
    pub fn with(
        mut self,
        domain: &str,
        name: &str,
        factory: impl Fn(&Definition<'_>) -> Result<Box<dyn Operator>, OpError> + Send + Sync + 'static,
    ) -> Self {
        let domain = self.0.entry(plain(domain).into()).or_default();
        domain.insert(name.into(), Arc::new(factory));
        self
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there is one of this domain and name.
    pub fn contains(&self, domain: &str, name: &str) -> bool {
        self.factory(domain, name).is_some()
    }

    fn factory(&self, domain: &str, name: &str) -> Option<&Arc<Factory>> {
        self.0.get(plain(domain))?.get(name)
    }

    /// The operator of a node, if it is one of these; `built_in` is what the runtime has for it.
    pub(crate) fn make(&self, node: &Definition<'_>, built_in: impl FnOnce() -> Made) -> Made {
        let Some(factory) = self.factory(node.domain, node.op) else { return built_in() };
        if built_in().is_none() {
            return Some(factory(node));
        }
        let domain = if node.domain.is_empty() { "ai.onnx" } else { node.domain };
        Some(Err(OpError::unsupported(format!(
            "the runtime has {domain}.{} itself, and a custom operator does not take its place",
            node.op
        ))))
    }
}

impl fmt::Debug for CustomOperators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().flat_map(|(domain, ops)| ops.keys().map(move |op| (domain, op)));
        f.debug_set().entries(names).finish()
    }
}
