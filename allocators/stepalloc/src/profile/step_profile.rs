//! What is to be planned of one kind of step, and where in it a program is.

use crate::lookup::{Begin, Class, KINDS};
use std::sync::Arc;
use stepalloc_planner::StepProblem;
use stepalloc_planner::rhythm::{self, Rhythm};

/// Steps are of one kind when so many of their bytes are asked for in blocks of the same sizes, in percent.
pub(super) const SAME_KIND: u64 = 90;

/// The newest allocations that must be a step's, one after the other, if it is to be known by them.
pub(crate) const TELLING: usize = 24;

/// So many of them may differ.
const DIFFERING: usize = 2;

/// A place in a step is given up looking for after comparing so many times as many allocations as it has.
const MOST_LOOKS: usize = 16;

/// What is to be planned of one kind of step.
#[derive(Clone, Debug)]
pub(crate) struct StepProfile {
    pub(crate) step: StepProblem,
    /// Smallest and largest size of each family.
    pub(crate) families: Vec<(u64, u64)>,
    /// How steps are known to begin, where nobody marks them.
    pub(crate) begin: Option<Begin>,
    /// What a step asks for, in its order.
    pub(crate) sequence: Vec<Class>,
}

impl StepProfile {
    /// The class of a request, or of its family.
    pub(crate) fn class(&self, class: Class) -> Class {
        let bytes = class.bytes();
        let of = |family: &&(u64, u64)| family.0 <= bytes && bytes <= family.1;
        self.families.iter().find(of).map_or(class, |family| class.with_bytes(family.1))
    }

    /// Where in a step the program is that has asked for `heard`: how many of the newest are those of a step, but for
    /// [`DIFFERING`], and the number of the step's allocations before the next. Steps follow each other, so a step's beginning
    /// may come after its end. `None` where fewer than [`TELLING`] are alike, or no fewer elsewhere in the step; but of a step
    /// that repeats within itself, and was seen whole, the first such place.
    pub(crate) fn place(&self, heard: &[Class]) -> Option<(usize, usize)> {
        let length = self.sequence.len();
        let telling = TELLING.min(length);
        let newest: Vec<Class> =
            heard.iter().rev().take(length.max(telling)).map(|&class| self.class(class)).collect();
        if telling == 0 || newest.len() < telling {
            return None;
        }
        let differing = DIFFERING.min(telling / 8);
        // Where a step is mostly of one size, it is alike everywhere, and tells nothing.
        let mut looks = MOST_LOOKS * length;
        let mut alike = |at: usize| {
            let before = self.sequence[..at].iter().rev().chain(self.sequence.iter().rev());
            let mut differ = 0;
            let pairs = newest.iter().zip(before).take_while(|(one, other)| {
                differ += usize::from(one != other);
                differ <= differing
            });
            let count = pairs.count();
            looks = looks.saturating_sub(count);
            (looks > 0).then_some(count)
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
        (best.0 >= telling && (best.0 > second + differing || best.0 >= length)).then_some(best)
    }

    /// Whether most of another's bytes are asked for in blocks that this has as well.
    fn covers(&self, other: &Self) -> bool {
        let sizes = |needs: &Self| {
            let mut sizes: Vec<u64> = needs.step.problem.blocks.iter().map(|block| block.size).collect();
            sizes.sort_unstable();
            sizes
        };
        let (mine, others) = (sizes(self), sizes(other));
        common_bytes(&mine, &others) * 100 >= others.iter().sum::<u64>() * SAME_KIND
    }
}

/// Adds to new kinds those planned before that they do not stand for, in their order and as many as are kept.
pub(crate) fn with_others(
    mut new: Vec<Arc<StepProfile>>,
    others: &[Arc<StepProfile>],
) -> Vec<Arc<StepProfile>> {
    let fresh = new.len();
    for other in others {
        if new.len() < KINDS && !new[..fresh].iter().any(|needs| needs.covers(other)) {
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
        let alike = rhythm::alike(left, right);
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
    pub(crate) rhythm: Rhythm,
    /// Allocations from the beginning of the recording to a boundary.
    pub(crate) boundary: u64,
}

impl Start {
    /// The allocations of the running step, by what was heard since the recording began.
    pub(crate) fn running<'a>(&self, heard: &'a [Class]) -> &'a [Class] {
        let sizes: Vec<u64> = heard.iter().map(|class| class.bytes()).collect();
        let Ok(mut at) = usize::try_from(self.boundary) else { return &[] };
        if at > sizes.len() {
            return &[];
        }
        while let Some(next) = rhythm::next_boundary(&sizes, at, self.rhythm.period) {
            at = next;
        }
        // So near to the next boundary that its head was not yet seen.
        if at + self.rhythm.period <= sizes.len() {
            at += self.rhythm.period;
        }
        &heard[at..]
    }
}
