//! Kinds of steps: one plan for all of them, or one for each in a common arena.
//!
//! Training on sequences of several lengths, or threads that interleave differently, repeat not one step but one of
//! several *kinds*. Each kind is a [`Problem`] of its own, whose blocks a *key* of the caller names; blocks of the same
//! key in several kinds are one block. There are two ways to plan them:
//!
//! - *shared*: every key has one offset, and blocks that are alive together in any kind never share bytes. The kinds are
//!   put one behind the other on one line of time, circles cut open; a block is then in use in its kinds' stretches and
//!   has gaps between them, and a window where a kind needs fewer of its bytes than the largest. That says exactly what
//!   each kind asks for, and nothing about two blocks that no kind has both of.
//! - *alone*: each kind is planned by itself, and the arena is as high as the highest of them.
//!
//! No shared plan can be lower than the highest of the kinds' bounds, so alone is lower where plans reach their bounds;
//! but then a key moves from kind to kind. **Plans made alone serve only steps that leave nothing alive.** What a step
//! of one kind leaves to a step of another has its place in the shared plan only, and only if the other kind's problem
//! says for how long it is alive there, as it does where every kind carries the same keys over.

mod layout;
mod line;

use thiserror::Error;

use crate::plan::{Plan, Proof};
use crate::planner::Planner;
use crate::problem::{Problem, ProblemError};
use crate::steps::{Key, StepProblem};

use layout::Layout;
use line::together;

/// The needs of one kind of step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Kind<K> {
    /// Its blocks, periodic or once. Of constraints, gaps and fixed offsets are known here.
    pub problem: Problem,
    /// The key of each block, in the same order; no two the same.
    pub keys: Vec<K>,
}

impl From<StepProblem> for Kind<Key> {
    fn from(steps: StepProblem) -> Kind<Key> {
        Kind { problem: steps.problem, keys: steps.keys }
    }
}

/// Both ways to plan several kinds of steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindsPlan<K> {
    /// Every key once, ascending.
    pub keys: Vec<K>,
    /// The plan valid for all kinds; its offsets are by key.
    pub shared: Plan,
    /// The plan of each kind alone, in the order of the kinds; offsets by block.
    pub alone: Vec<Plan>,
}

/// Which of the two ways needs fewer bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Smaller {
    /// One plan for all; also where both need the same, as it moves nothing from kind to kind.
    Shared,
    /// One plan for each kind.
    Alone,
}

impl<K: Ord> KindsPlan<K> {
    /// The offset in bytes of a key in the shared plan; `None`: no kind has this key.
    pub fn offset(&self, key: &K) -> Option<u64> {
        self.keys.binary_search(key).ok().map(|at| self.shared.offsets[at])
    }

    /// The shared plan's offsets for keys, as of a [`Kind`]; `None`: some key is in no kind.
    pub fn offsets(&self, keys: &[K]) -> Option<Vec<u64>> {
        keys.iter().map(|key| self.offset(key)).collect()
    }
}

impl<K> KindsPlan<K> {
    /// Bytes of the arena in which each kind follows its own plan.
    pub fn alone_height(&self) -> u64 {
        self.alone.iter().map(|plan| plan.height).max().unwrap_or(0)
    }

    /// Bytes that no arena for all kinds can do without, whichever way they are planned.
    pub fn alone_bound(&self) -> u64 {
        self.alone.iter().map(|plan| plan.lower_bound).max().unwrap_or(0)
    }

    /// Which way needs fewer bytes.
    pub fn smaller(&self) -> Smaller {
        if self.shared.height <= self.alone_height() { Smaller::Shared } else { Smaller::Alone }
    }
}

/// Why kinds of steps cannot be planned. Kinds are named by their index.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KindError {
    /// Not one key per block.
    #[error("kind {kind}: {keys} keys for {blocks} blocks; give exactly one per block, in the same order")]
    Keys {
        /// The kind's index.
        kind: usize,
        /// Keys given.
        keys: usize,
        /// Blocks in its problem.
        blocks: usize,
    },
    /// Two blocks of one kind with the same key.
    #[error("kind {kind}: blocks {first} and {second} have the same key; number the blocks of a kind")]
    KeyTwice {
        /// The kind's index.
        kind: usize,
        /// The id of the one block.
        first: u64,
        /// The id of the other.
        second: u64,
    },
    /// A kind that cannot be planned by itself.
    #[error("kind {kind}: {source}")]
    Problem {
        /// The kind's index.
        kind: usize,
        /// What is wrong with it.
        source: ProblemError,
    },
    /// Constraints that say in one kind what they would not say in the others.
    #[error(
        "kind {kind}: views and pairs that work in place cannot be shared between kinds; plan the kinds alone, or leave them out"
    )]
    Sharing {
        /// The kind's index.
        kind: usize,
    },
    /// Kinds whose events, one behind the other, do not fit in 64 bits.
    #[error("kind {kind}: the events up to this kind are 2^64 or more; count time in larger units")]
    TooLong {
        /// The kind's index.
        kind: usize,
    },
    /// All kinds together cannot be planned; a block is named by its id in the first kind that has it.
    #[error("all kinds together: {0}")]
    Together(ProblemError),
}

impl Planner {
    /// Plans several kinds of steps both ways; the caller chooses.
    ///
    /// Each plan, the shared and each of those alone, is worth the planner's effort and time limit.
    ///
    /// ```
    /// use stepalloc_planner::{Block, Kind, Planner, Problem, verify};
    ///
    /// let block = |lower, upper, size| Block { id: 0, lower, upper, size, align: 1 };
    /// // In one kind of step the mask is freed before the sum is allocated, in the other they are alive together.
    /// let short = Kind {
    ///     problem: Problem::new(vec![block(0, 6, 100), block(1, 3, 50), block(3, 6, 50)]),
    ///     keys: vec!["input", "mask", "sum"],
    /// };
    /// let long = Kind {
    ///     problem: Problem::new(vec![block(0, 8, 120), block(1, 3, 30), block(2, 4, 40)]),
    ///     keys: vec!["input", "mask", "sum"],
    /// };
    /// let plan = Planner::new().plan_kinds(&[short.clone(), long])?;
    /// let heights: Vec<u64> = plan.alone.iter().map(|plan| plan.height).collect();
    /// assert_eq!(heights, [150, 190]);
    /// // One offset for each key costs ten bytes more here. Each kind's own check still holds.
    /// assert_eq!(plan.shared.height, 200);
    /// let offsets = plan.offsets(&short.keys).expect("all keys are planned");
    /// assert_eq!(verify(&short.problem, &offsets, plan.shared.height), Ok(()));
    /// # Ok::<(), stepalloc_planner::KindError>(())
    /// ```
    ///
    /// # Errors
    /// A [`KindError`] that names the kind.
    pub fn plan_kinds<K: Ord + Clone>(&self, kinds: &[Kind<K>]) -> Result<KindsPlan<K>, KindError> {
        let mut alone = Vec::with_capacity(kinds.len());
        for (kind, needs) in kinds.iter().enumerate() {
            alone.push(self.plan(&needs.problem).map_err(|source| KindError::Problem { kind, source })?);
        }
        let (keys, problem) = together(kinds)?;
        let mut shared = self.plan(&problem).map_err(KindError::Together)?;
        // What a kind cannot do without alone, it cannot do without among others.
        let bounds = alone.iter().map(|plan| plan.lower_bound);
        shared.lower_bound = bounds.fold(shared.lower_bound, u64::max);
        let mut shared = Layout::new(kinds, &keys, &problem, &alone).improve(shared, self);
        let loads = kinds.iter().map(|kind| kind.problem.lower_bound().bytes);
        let load = loads.fold(problem.lower_bound().bytes, u64::max);
        let proof = if shared.lower_bound > load { Proof::Search } else { Proof::LoadBound };
        shared.proof = (shared.height == shared.lower_bound).then_some(proof);
        Ok(KindsPlan { keys, shared, alone })
    }
}
