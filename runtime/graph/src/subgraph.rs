//! Graphs within nodes.

use crate::context::RunContext;
use crate::error::Error;
use crate::graph::Graph;
use crate::operator::Registry;
use crate::plan::Sharing;
use crate::run::Tensors;
use crate::session::Executor;
use crate::watch::RunOptions;
use std::sync::Arc;
use stepalloc_tensor::{Type, View};

/// A graph that an operator runs: its plans, by the types it is given. It takes arenas of the run around it, and ends with that: what
/// this run has is in the context.
pub struct Subgraph(Executor);

impl Subgraph {
    /// Nothing is planned yet.
    pub fn new(graph: Arc<Graph>, registry: &Registry) -> Self {
        Self(Executor::new(graph, registry.clone(), Sharing::default()))
    }

    /// Types of what comes out, as far as those of its inputs and of what it takes from outside, in this order, tell them.
    pub fn output_types(
        &self,
        types: &[Option<Type>],
        context: &RunContext,
    ) -> Result<Vec<Option<Type>>, Error> {
        self.0.output_types(types, context)
    }

    /// Runs it on inputs, followed by what it takes from outside.
    pub fn run(&self, inputs: &[Option<View<'_>>], context: &RunContext) -> Result<Tensors, Error> {
        let options = RunOptions::new();
        let mut options = match &context.cancel {
            Some(cancel) => options.cancel(cancel),
            None => options,
        };
        self.0.run(inputs, &mut options, context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arenas;
    use crate::watch::Cancel;

    #[test]
    fn it_takes_arenas_of_the_run_around_and_ends_with_that() {
        let graph = Subgraph::new(Arc::default(), &Registry::new(|_| None));
        let (arenas, cancel) = (Arenas::new(), Cancel::new());
        let context = RunContext { arenas: arenas.clone(), cancel: Some(cancel.clone()), threads: 0 };
        assert!(graph.run(&[], &context).expect("nothing is wrong with nothing").is_empty());
        assert_eq!(arenas.statistics().num_allocs, 1);
        cancel.cancel();
        assert!(matches!(graph.run(&[], &context), Err(Error::Cancelled)));
    }
}
