//! What a plan says of a run, for who wants to see it: what runs when, and what lies where meanwhile.

use std::ops::Range;
use stepalloc_tensor::Type;

/// A run as it is planned, as [`Session::planned_run`] tells it.
///
/// [`Session::planned_run`]: crate::Session::planned_run
#[derive(Clone, Debug, Default)]
pub struct PlannedRun {
    /// The nodes, in the order in which they run; those that were computed while planning are not there.
    pub steps: Vec<PlannedStep>,
    /// What the arena holds, by the step from which on it does.
    pub blocks: Vec<PlannedBlock>,
}

impl PlannedRun {
    /// The step in which most bytes of the arena are alive, and the largest block then; `None` where the arena is empty.
    pub(crate) fn peak(&self) -> Option<(&PlannedStep, &PlannedBlock)> {
        let mut changes = vec![0i64; self.steps.len() + 1];
        for block in &self.blocks {
            changes[block.steps.start] += block.bytes as i64;
            changes[block.steps.end.min(self.steps.len())] -= block.bytes as i64;
        }
        let mut alive = 0;
        let load = changes[..self.steps.len()].iter().map(|change| {
            alive += change;
            alive
        });
        // Of equal ones the first.
        let (step, _) = load.enumerate().max_by_key(|&(step, load)| (load, std::cmp::Reverse(step)))?;
        let block =
            self.blocks.iter().filter(|block| block.steps.contains(&step)).max_by_key(|block| block.bytes)?;
        Some((&self.steps[step], block))
    }
}

/// A node in its place of the order.
#[derive(Clone, Debug)]
pub struct PlannedStep {
    /// The node's name, or its first output's.
    pub name: String,
    /// The operator.
    pub op_type: String,
    /// Nothing runs: what it makes lies where its input lies.
    pub is_view: bool,
    /// It takes memory beside the arena as it runs: the sizes of its outputs depend on elements, or it runs graphs of its own.
    pub is_unplanned: bool,
}

/// Bytes of the arena, from one step to another. Inputs, weights and the graph's outputs lie elsewhere.
#[derive(Clone, Debug)]
pub struct PlannedBlock {
    /// Values that lie in it, in the order in which they are made; none in scratch memory, which is of the node of its step.
    pub values: Vec<PlannedValue>,
    /// The steps, as indices, in which its bytes are its own: from the one that makes its first value to the last that needs any.
    pub steps: Range<usize>,
    /// Bytes of the arena before it.
    pub offset: u64,
    /// Its bytes: a multiple of [`ALIGNMENT`](stepalloc_tensor::ALIGNMENT), with those that nothing lies in.
    pub bytes: u64,
}

/// A value in a block.
#[derive(Clone, Debug)]
pub struct PlannedValue {
    /// Its name in the graph that runs.
    pub name: String,
    /// Its type.
    pub ty: Type,
    /// The step that makes it, as an index: by writing it, over the value before it where there is one, or as a view of that.
    pub step: usize,
}
