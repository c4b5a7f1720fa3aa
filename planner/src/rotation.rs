//! Plans over several periods: a block's offset may differ from one period to the next, and comes again after `k`.
//!
//! On a circle the load is not always attainable: three blocks alive two at a time round the circle need three slots of
//! a plan that is the same in every period. Over two periods they are six, which two slots hold in turn: the graph of
//! who meets whom is a ring, and a ring of even length has two colours. (Circular-arc colouring: A. Tucker, "Coloring a
//! family of circular arcs", 1975; register allocators call it modulo variable expansion: M. Lam, "Software pipelining",
//! 1988, section 2.3.) So a *rotation* is a plan of the *unrolled* problem: `k` periods as one, with a copy of each block
//! in every period. A block longer than the period meets itself; over enough periods its copies get offsets of their own.

use thiserror::Error;

use crate::plan::Proof;
use crate::planner::Planner;
use crate::problem::{Block, MAX_BLOCKS, Problem, ProblemError};
use crate::verify::{Violation, verify};

/// Offsets that come again after several periods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rotation {
    /// Periods after which the offsets come again, at least 1.
    pub periods: usize,
    /// Where each block begins, in bytes: `offsets[period][block]`, for the instance that starts in this period.
    pub offsets: Vec<Vec<u64>>,
    /// Bytes of the arena: the largest offset + size.
    pub height: u64,
    /// Bytes no plan over any number of periods can do without.
    pub lower_bound: u64,
    /// Why no lower rotation exists, where that is known.
    pub proof: Option<Proof>,
    /// What found the offsets, for people: "skyline by length".
    pub algorithm: String,
}

impl Rotation {
    /// Height over lower bound, at least 1; 1 for a problem that needs no bytes.
    pub fn ratio(&self) -> f64 {
        if self.lower_bound == 0 { 1.0 } else { self.height as f64 / self.lower_bound as f64 }
    }

    /// Whether it is proven that no rotation of this problem is lower.
    pub fn optimal(&self) -> bool {
        self.proof.is_some()
    }

    /// Where a block begins, in bytes, in the step of this number (counted from 0); `None` for a block that is not.
    pub fn offset(&self, step: u64, block: usize) -> Option<u64> {
        let period = (step % self.periods.max(1) as u64) as usize;
        self.offsets.get(period)?.get(block).copied()
    }
}

/// Why a problem cannot be planned over several periods.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RotationError {
    /// The problem, unrolled where that is allowed, cannot be planned.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// Nothing repeats.
    #[error("the problem has no period, so nothing rotates; plan it once")]
    NoPeriod,
    /// No period may be used.
    #[error("a rotation over 0 periods holds nothing; allow at least 1")]
    NoPeriods,
    /// The problem has constraints.
    #[error("problems with constraints cannot be planned over several periods yet; plan one period")]
    Constraints,
    /// A block that meets itself however many of the allowed periods are used.
    #[error(
        "block {id} lives {length} events, more than {limit} periods of {period}; allow {needed} periods"
    )]
    TooFewPeriods {
        /// The block's id.
        id: u64,
        /// Its lifetime in events.
        length: u64,
        /// The period in events.
        period: u64,
        /// The periods allowed.
        limit: usize,
        /// The periods it takes.
        needed: u64,
    },
}

/// Plans a periodic problem over as few periods, up to `limit`, as the lowest height found takes.
///
/// Each number of periods is planned by `planner` and costs as much as a problem with so many times the blocks; a time
/// limit of the planner holds for each anew. It ends early where the height is the bound, or the planner's watch
/// breaks. A rotation over one period is the planner's plan, so the height is never above that plan's. Blocks may be
/// longer than the period, up to `limit` of them; a problem with such blocks starts at the periods its longest block
/// takes.
///
/// # Errors
/// See [`RotationError`].
pub fn rotate(problem: &Problem, planner: &Planner, limit: usize) -> Result<Rotation, RotationError> {
    let first = least_periods(problem, limit)?;
    let mut best: Option<Rotation> = None;
    for periods in first..=limit {
        let unrolled = match problem.unrolled(periods) {
            Ok(unrolled) => unrolled,
            // Fewer periods could be planned, so that is the answer.
            Err(error) => return best.ok_or(error),
        };
        let plan = planner.plan(&unrolled)?;
        if best.as_ref().is_none_or(|best| plan.height < best.height) {
            let count = problem.blocks.len();
            let rest = |period: usize| plan.offsets[period * count..(period + 1) * count].to_vec();
            best = Some(Rotation {
                periods,
                offsets: (0..periods).map(rest).collect(),
                height: plan.height,
                // What a search proves holds for so many periods alone; more of them may do with less.
                lower_bound: unrolled.lower_bound().bytes,
                proof: plan.proof.filter(|&proof| proof == Proof::LoadBound),
                algorithm: plan.algorithm,
            });
        }
        let enough = |best: &Rotation| best.optimal() || planner.stopped(best.height, best.lower_bound);
        if best.as_ref().is_some_and(enough) {
            break;
        }
    }
    best.ok_or(RotationError::NoPeriods)
}

/// Checks a rotation against every rule of its problem, as [`verify()`] does for the unrolled one.
///
/// # Errors
/// The first rule found broken; block indices are those of [`Problem::unrolled`]. A problem that cannot be unrolled, or
/// a rotation without one row of offsets per period, breaks [`Violation::Length`].
pub fn verify_rotation(problem: &Problem, rotation: &Rotation) -> Result<(), Violation> {
    let Ok(unrolled) = problem.unrolled(rotation.periods) else {
        return Err(Violation::Length { offsets: rotation.offsets.len(), blocks: 0 });
    };
    let count = problem.blocks.len();
    if rotation.offsets.len() != rotation.periods {
        return Err(Violation::Length {
            offsets: rotation.offsets.len() * count,
            blocks: unrolled.blocks.len(),
        });
    }
    if let Some(row) = rotation.offsets.iter().find(|row| row.len() != count) {
        return Err(Violation::Length { offsets: row.len(), blocks: count });
    }
    verify(&unrolled, &rotation.offsets.concat(), rotation.height)
}

impl Problem {
    /// The problem over `periods` periods: its period is so many times as long, and after all blocks of one period come
    /// those of the next, with the same ids. Blocks may be longer than one period, but not than all of them.
    ///
    /// # Errors
    /// See [`RotationError`]; the unrolled problem passes [`Problem::check`].
    pub fn unrolled(&self, periods: usize) -> Result<Problem, RotationError> {
        least_periods(self, periods)?;
        let period = self.period.ok_or(RotationError::NoPeriod)?;
        let count = self.blocks.len().saturating_mul(periods);
        if count > MAX_BLOCKS {
            return Err(ProblemError::TooManyBlocks { count }.into());
        }
        let turn = period.saturating_mul(periods as u64);
        if turn > u64::MAX / 2 {
            return Err(ProblemError::Period { period: turn }.into());
        }
        // Starts lie below `turn` and no lifetime is longer, so no time overflows.
        let shifted = |by: u64| {
            move |block: &Block| Block { lower: block.lower + by, upper: block.upper + by, ..*block }
        };
        let copies = (0..periods as u64).flat_map(|copy| self.blocks.iter().map(shifted(copy * period)));
        let unrolled = Problem::new(copies.collect()).with_period(turn);
        unrolled.check()?;
        Ok(unrolled)
    }
}

/// The fewest periods over which no block meets itself, if not more than `limit`.
fn least_periods(problem: &Problem, limit: usize) -> Result<usize, RotationError> {
    let period = problem.period.ok_or(RotationError::NoPeriod)?;
    if limit == 0 {
        return Err(RotationError::NoPeriods);
    }
    if !problem.constraints.is_empty() {
        return Err(RotationError::Constraints);
    }
    if period == 0 || period > u64::MAX / 2 {
        return Err(ProblemError::Period { period }.into());
    }
    let mut least = 1;
    for block in &problem.blocks {
        let Block { id, lower, upper, .. } = *block;
        if upper < lower {
            return Err(ProblemError::Reversed { id, lower, upper }.into());
        }
        if lower >= period {
            return Err(ProblemError::StartsBeyondPeriod { id, lower, period }.into());
        }
        let (length, needed) = (block.length(), block.length().div_ceil(period));
        if needed > limit as u64 {
            return Err(RotationError::TooFewPeriods { id, length, period, limit, needed });
        }
        least = least.max(needed as usize);
    }
    Ok(least)
}
