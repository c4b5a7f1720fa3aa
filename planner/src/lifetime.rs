//! The kinds of lifetimes: ordinary, periodic, persistent.
//!
//! In training, gradients are often freed at the beginning of the next step: their lifetimes wrap round the step's end
//! and are *periodic*. Weights and optimizer state outlive whole steps: they are *persistent* and not planned.

use crate::problem::{Block, Problem};
use crate::steps::StepProblem;

/// The kind of one planned block's lifetime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lifetime {
    /// Ends within its own step.
    Ordinary,
    /// Ends after its step's end: it wraps round into the next one.
    Periodic,
}

impl Lifetime {
    /// The kind of a block of a problem with this period.
    pub fn of(block: &Block, period: Option<u64>) -> Lifetime {
        match period {
            Some(period) if block.upper > period => Lifetime::Periodic,
            _ => Lifetime::Ordinary,
        }
    }
}

/// How many blocks there are of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Counts {
    /// Blocks that end within their step.
    pub ordinary: usize,
    /// Blocks that wrap into the next step.
    pub periodic: usize,
    /// Blocks that live for a whole step or longer and are not planned.
    pub persistent: usize,
}

impl Counts {
    /// Counts a problem's blocks; none of them is persistent.
    pub fn of(problem: &Problem) -> Counts {
        let mut counts = Counts::default();
        for block in &problem.blocks {
            match Lifetime::of(block, problem.period) {
                Lifetime::Ordinary => counts.ordinary += 1,
                Lifetime::Periodic => counts.periodic += 1,
            }
        }
        counts
    }

    /// Counts the needs of recorded steps, held blocks included.
    pub fn of_steps(steps: &StepProblem) -> Counts {
        Counts { persistent: steps.held.len(), ..Counts::of(&steps.problem) }
    }
}
