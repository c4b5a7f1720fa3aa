//! The profile of one step variant: what is to be planned of it, and where in it a program is.

use crate::lookup::{Begin, Class, VARIANTS};
use std::sync::Arc;
use stepalloc_planner::period::{self, Period};
use stepalloc_planner::{Block, StepProblem};

/// Steps are of one variant when so many of their bytes are asked for in blocks of the same sizes, in
/// percent.
pub(super) const SAME_VARIANT: u64 = 90;

/// Length of a fingerprint: as many of the newest allocations must be a step's, one after the other, to
/// recognise the step.
pub(crate) const FINGERPRINT: usize = 24;

/// So many of them may differ.
const DIFFERING: usize = 2;

/// The search for a place in a step ends after so many comparisons for each of the step's allocations.
const MOST_COMPARISONS: usize = 16;

/// What is to be planned of one step variant.
#[derive(Clone, Debug)]
pub(crate) struct StepProfile {
    /// The step's blocks; where its threads take turns as they like, those of each thread, whose places are apart from those of all others.
    pub(crate) lanes: Vec<Lane>,
    /// Smallest and largest size of each family.
    pub(crate) families: Vec<(u64, u64)>,
    /// How the beginning of a step is recognised, where steps were detected.
    pub(crate) begin: Option<Begin>,
    /// What a step asks for, in its order.
    pub(crate) sequence: Vec<Class>,
}

/// The blocks of one thread, or of all ([`lanes`](super::lanes)).
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    /// The thread's number; 0 for all threads.
    pub(crate) thread: u16,
    pub(crate) step: StepProblem,
}

impl Lane {
    /// The one of all threads.
    pub(crate) fn of_all(step: StepProblem) -> Self {
        Self { thread: 0, step }
    }
}

impl StepProfile {
    /// The blocks of all threads, unless each thread has a lane.
    pub(crate) fn only(&self) -> Option<&StepProblem> {
        if let [Lane { step, .. }] = &self.lanes[..] { Some(step) } else { None }
    }

    /// No plan takes fewer bytes.
    pub(crate) fn load(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.step.problem.load().max).sum()
    }

    /// The blocks of all lanes.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.lanes.iter().flat_map(|lane| &lane.step.problem.blocks)
    }

    /// The class of a request, or of its family.
    pub(crate) fn class(&self, class: Class) -> Class {
        let bytes = class.bytes();
        let of = |family: &&(u64, u64)| family.0 <= bytes && bytes <= family.1;
        self.families.iter().find(of).map_or(class, |family| class.with_bytes(family.1))
    }

    /// Where in a step a program is, by its newest classes: how many of them are those of a step, but for
    /// [`DIFFERING`], and the number of the step's allocations before the next. Steps follow each other, so a
    /// step's beginning may come after its end. `None` where fewer than [`FINGERPRINT`] are alike, or no
    /// fewer elsewhere in the step; but of a step that repeats within itself, and was seen whole, the first
    /// such place.
    pub(crate) fn place(&self, newest: &[Class]) -> Option<(usize, usize)> {
        let length = self.sequence.len();
        let fingerprint = FINGERPRINT.min(length);
        let newest: Vec<Class> =
            newest.iter().rev().take(length.max(fingerprint)).map(|&class| self.class(class)).collect();
        if fingerprint == 0 || newest.len() < fingerprint {
            return None;
        }
        let differing = DIFFERING.min(fingerprint / 8);
        // A step that is mostly of one size is alike everywhere, and no place in it is distinct.
        let mut left = MOST_COMPARISONS * length;
        let mut alike = |at: usize| {
            let before = self.sequence[..at].iter().rev().chain(self.sequence.iter().rev());
            let mut differ = 0;
            let pairs = newest.iter().zip(before).take_while(|(one, other)| {
                differ += usize::from(one != other);
                differ <= differing
            });
            let count = pairs.count();
            left = left.saturating_sub(count);
            (left > 0).then_some(count)
        };
        let (mut best, mut second) = ((0, 0), 0);
        for at in 0..length {
            let alike = alike(at)?;
            if alike > best.0 {
                (best, second) = ((alike, at), best.0);
            } else {
                second = second.max(alike);
            }
        }
        (best.0 >= fingerprint && (best.0 > second + differing || best.0 >= length)).then_some(best)
    }

    /// Whether most of another's bytes are asked for in blocks that this has as well.
    fn covers(&self, other: &Self) -> bool {
        let sizes = |profile: &Self| {
            let mut sizes: Vec<u64> = profile.blocks().map(|block| block.size).collect();
            sizes.sort_unstable();
            sizes
        };
        let (mine, others) = (sizes(self), sizes(other));
        common_bytes(&mine, &others) * 100 >= others.iter().sum::<u64>() * SAME_VARIANT
    }
}

/// Adds to the profiles of new variants those planned before that they do not cover, in their order and up to
/// [`VARIANTS`]. Lanes of threads are planned alone.
pub(crate) fn with_others(
    mut new: Vec<Arc<StepProfile>>,
    others: &[Arc<StepProfile>],
) -> Vec<Arc<StepProfile>> {
    let fresh = new.len();
    for other in others {
        let in_lanes = new.iter().chain([other]).any(|profile| profile.only().is_none());
        if new.len() < VARIANTS && !in_lanes && !new[..fresh].iter().any(|profile| profile.covers(other)) {
            new.push(Arc::clone(other));
        }
    }
    new
}

/// Bytes of what is alike in two ascending sequences of sizes.
pub(super) fn common_bytes(one: &[u64], other: &[u64]) -> u64 {
    let (mut one, mut other) = (one.iter().peekable(), other.iter().peekable());
    let mut bytes = 0;
    while let (Some(&&left), Some(&&right)) = (one.peek(), other.peek()) {
        let alike = period::alike(left, right);
        if alike || left < right {
            one.next();
        }
        if alike || right < left {
            other.next();
        }
        bytes += if alike { left.min(right) } else { 0 };
    }
    bytes
}

/// Where a plan's steps begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub(crate) period: Period,
    /// Allocations from the beginning of the recording to a boundary.
    pub(crate) boundary: u64,
}

impl Start {
    /// The allocations of the running step, by the classes logged since the recording began.
    pub(crate) fn running<'a>(&self, logged: &'a [Class]) -> &'a [Class] {
        let sizes: Vec<u64> = logged.iter().map(|class| class.bytes()).collect();
        let Ok(mut at) = usize::try_from(self.boundary) else { return &[] };
        if at > sizes.len() {
            return &[];
        }
        while let Some(next) = period::next_boundary(&sizes, at, self.period.allocations) {
            at = next;
        }
        // The next boundary is so near that its fingerprint was not yet seen.
        if at + self.period.allocations <= sizes.len() {
            at += self.period.allocations;
        }
        &logged[at..]
    }
}
