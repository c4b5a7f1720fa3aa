//! What a run is told while it runs, and what it tells.

use crate::error::Error;
use crate::plan::{Plan, Step};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Ends runs from another thread, before the next node of theirs; within nodes that run graphs of their own (Loop, Scan, If), before
/// the next node of these.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Nothing is cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends all runs that were given this, with [`Error::Cancelled`].
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Lets runs go on again.
    pub fn reset(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// What a node took, over all runs of a [`Profile`].
#[derive(Clone, Debug)]
pub struct NodeProfile {
    /// The node's name, or its first output's.
    pub name: String,
    /// The operator.
    pub op_type: String,
    /// In all runs together.
    pub time: Duration,
    /// Bytes of its outputs; 0 where their sizes depend on elements.
    pub output_bytes: u64,
    /// Bytes of scratch memory.
    pub scratch_bytes: u64,
    /// Whether its output was written over an input.
    pub in_place: bool,
}

/// Time and memory of each node of the plan that was run, in order. A run with another plan begins anew.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// What ran, in this order; nodes that were computed while planning, and views, are not there.
    pub nodes: Vec<NodeProfile>,
    /// Runs so far.
    pub runs: u64,
}

impl Profile {
    /// Of nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn begin(&mut self, plan: &Plan) {
        let node = |step: &Step| {
            let node = &plan.graph.nodes[step.node];
            let outputs = node.outputs.iter().flatten().filter_map(|&id| plan.types[id].as_ref());
            NodeProfile {
                name: node.name.clone(),
                op_type: node.op_type.clone(),
                time: Duration::ZERO,
                output_bytes: outputs.map(|ty| ty.bytes() as u64).sum(),
                scratch_bytes: step.scratch.1 as u64,
                in_place: step.in_place.is_some(),
            }
        };
        let nodes: Vec<_> = plan.steps.iter().map(node).collect();
        let what = |node: &NodeProfile| (node.output_bytes, node.scratch_bytes, node.in_place);
        let is_like = |(a, b): (&NodeProfile, &NodeProfile)| a.name == b.name && what(a) == what(b);
        if nodes.len() != self.nodes.len() || !nodes.iter().zip(&self.nodes).all(is_like) {
            (self.nodes, self.runs) = (nodes, 0);
        }
    }
}

/// How one run is made: what may end it, and what is noted of it.
#[derive(Debug, Default)]
pub struct RunOptions<'a> {
    cancel: Option<&'a Cancel>,
    profile: Option<&'a mut Profile>,
    shrinks: bool,
}

impl<'a> RunOptions<'a> {
    /// Nothing ends it, and nothing is noted.
    pub fn new() -> Self {
        Self::default()
    }

    /// What ends it.
    #[must_use]
    pub fn cancel(mut self, cancel: &'a Cancel) -> Self {
        self.cancel = Some(cancel);
        self
    }

    /// Where times and bytes of each node are added.
    #[must_use]
    pub fn profile(mut self, profile: &'a mut Profile) -> Self {
        self.profile = Some(profile);
        self
    }

    /// When it is done, arenas that no run has go back to the system (`memory.enable_memory_arena_shrinkage`).
    #[must_use]
    pub fn memory_arena_shrinkage(mut self, on: bool) -> Self {
        self.shrinks = on;
        self
    }

    pub(crate) fn shrinks(&self) -> bool {
        self.shrinks
    }

    /// What ends it.
    pub(crate) fn cancelled_by(&self) -> Option<&'a Cancel> {
        self.cancel
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(Cancel::is_cancelled)
    }

    pub(crate) fn begin(&mut self, plan: &Plan) -> Result<(), Error> {
        // A graph without nodes may be run again and again.
        if self.is_cancelled() {
            return Err(Error::Cancelled);
        }
        if let Some(profile) = &mut self.profile {
            profile.begin(plan);
        }
        Ok(())
    }

    /// All steps are done.
    pub(crate) fn end(&mut self) {
        if let Some(profile) = &mut self.profile {
            profile.runs += 1;
        }
    }

    /// Runs a step of the plan by its number.
    pub(crate) fn step(
        &mut self,
        number: usize,
        step: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let began = self.profile.is_some().then(Instant::now);
        let done = step();
        // What a graph within the node was ended by comes out as an error of the node.
        if done.is_err() && self.is_cancelled() {
            return Err(Error::Cancelled);
        }
        if let (Some(profile), Some(began)) = (&mut self.profile, began) {
            profile.nodes[number].time += began.elapsed();
        }
        done
    }
}
