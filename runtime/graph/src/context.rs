//! What nodes have of the run around them.

use crate::arena::Arenas;
use crate::error::Error;
use crate::watch::Cancel;
use stepalloc_tensor::{Tensor, Type};

/// What a node has of the run that it is part of, or that it is planned for: memory, what ends it, and cores. Graphs within nodes are given
/// that of the run around them.
#[derive(Clone, Debug, Default)]
pub struct RunContext {
    pub(crate) arenas: Arenas,
    pub(crate) cancel: Option<Cancel>,
    /// Cores of the run; 0 for those of the caller, whoever that is.
    pub(crate) threads: usize,
}

impl RunContext {
    /// For nodes that run alone: memory without a limit, nothing that ends them, and the caller's cores.
    pub fn new() -> Self {
        Self::default()
    }

    /// A tensor for an operator that makes tensors of sizes that it alone knows
    /// ([`Operator::run_freely`](crate::Operator::run_freely)), in memory of the run. What is in it is anything.
    pub fn tensor(&self, ty: Type) -> Result<Tensor, Error> {
        self.arenas.tensor(ty)
    }

    /// Cores that share the work of the run: what scratch memory is for.
    pub fn threads(&self) -> usize {
        match self.threads {
            0 => stepalloc_threads::count(),
            threads => threads,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stepalloc_threads::Threads;

    #[test]
    fn cores_are_those_of_the_run_or_of_who_asks() {
        let asked = |context: &RunContext| Threads::new(3).run(|| context.threads());
        assert_eq!(asked(&RunContext { threads: 5, ..RunContext::new() }), 5);
        assert_eq!(asked(&RunContext::new()), 3);
    }
}
