//! What is to be planned: blocks with known lifetimes, on a line of time or on a circle.
//!
//! A problem without a period is classical dynamic storage allocation: every lifetime is an interval `[lower, upper)`.
//! With a period `P` the same blocks come again every `P` events, as the allocations of a repeated step do. A block
//! whose `upper` lies beyond `P` is still alive when the next step begins; on the circle it occupies `[lower, P)` and
//! `[0, upper - P)`, at one offset. Time is the index of an event, never a clock.

use thiserror::Error;

use crate::bound::{self, LowerBound};
use crate::constraints::{ConstraintError, Constraints};
use crate::load::{self, Load};

/// The most blocks one problem may have: ranks of lifetimes on the unrolled circle are kept in 32 bits.
pub const MAX_BLOCKS: usize = 1 << 28;

/// One block of memory with its lifetime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Block {
    /// The caller's name for it; only used in messages and output.
    pub id: u64,
    /// First event at which the block is alive.
    pub lower: u64,
    /// First event at which it is alive no more; `lower == upper` is a block that conflicts with nothing.
    pub upper: u64,
    /// Bytes asked for; 0 is allowed.
    pub size: u64,
    /// The offset must be a multiple of this power of two; 1 asks for nothing.
    pub align: u64,
}

impl Block {
    /// Length of the lifetime in events (0 where the lifetime is reversed, which [`Problem::check`] refuses).
    pub fn length(&self) -> u64 {
        self.upper.saturating_sub(self.lower)
    }
}

/// Blocks that share one arena.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Problem {
    /// The blocks; plans name them by their index here.
    pub blocks: Vec<Block>,
    /// Events after which everything repeats; `None` for a problem that happens once.
    pub period: Option<u64>,
    /// What the caller asks for beyond lifetimes, sizes and alignments; nothing by default.
    pub constraints: Constraints,
}

impl Problem {
    /// A problem that happens once, without constraints.
    pub fn new(blocks: Vec<Block>) -> Problem {
        Problem { blocks, ..Problem::default() }
    }

    /// Everything repeats after so many events; `None`: it happens once.
    #[must_use]
    pub fn with_period(mut self, period: impl Into<Option<u64>>) -> Problem {
        self.period = period.into();
        self
    }

    /// With these constraints instead of those it has.
    #[must_use]
    pub fn with_constraints(mut self, constraints: Constraints) -> Problem {
        self.constraints = constraints;
        self
    }

    /// Whether the problem can be planned at all.
    ///
    /// After an `Ok` no sum of sizes and no time on the unrolled circle overflows 64 bits.
    ///
    /// # Errors
    /// The first block that is wrong, and how: see [`ProblemError`].
    pub fn check(&self) -> Result<(), ProblemError> {
        if self.blocks.len() > MAX_BLOCKS {
            return Err(ProblemError::TooManyBlocks { count: self.blocks.len() });
        }
        if let Some(period) = self.period
            && (period == 0 || period > u64::MAX / 2)
        {
            return Err(ProblemError::Period { period });
        }
        let mut total: u64 = 0;
        for block in &self.blocks {
            let Block { id, lower, upper, size, align } = *block;
            if upper < lower {
                return Err(ProblemError::Reversed { id, lower, upper });
            }
            if !align.is_power_of_two() {
                return Err(ProblemError::Alignment { id, align });
            }
            if let Some(period) = self.period {
                if lower >= period {
                    return Err(ProblemError::StartsBeyondPeriod { id, lower, period });
                }
                if upper - lower > period {
                    return Err(ProblemError::LongerThanPeriod { id, lower, upper, period });
                }
            }
            // No placer leaves more than `align - 1` bytes idle below a block for the sake of its alignment; a family
            // of views may need as much again, as it need not begin where its aligned block does.
            let idle = if self.constraints.is_empty() { align - 1 } else { 2 * (align - 1) };
            // Below `u64::MAX`, so that this can stand for no limit of a height.
            total = size
                .checked_add(idle)
                .and_then(|bytes| total.checked_add(bytes))
                .filter(|&total| total < u64::MAX)
                .ok_or(ProblemError::TooLarge { id })?;
        }
        if !self.constraints.is_empty() {
            self.constraints.check(self, total)?;
        }
        Ok(())
    }

    /// Live bytes over time. Blocks longer than the period count as often as they overlap themselves.
    ///
    /// Of a problem with constraints that pass [`Problem::check`]: the bytes that every plan needs. Gaps count nothing,
    /// their windows what they hold; a block and its views count once; of blocks that may work in place of each other a
    /// set counts in which no two may, the larger ones first.
    pub fn load(&self) -> Load {
        load::sweep(self)
    }

    /// The least bytes any plan of this problem needs, as far as the load can tell: see [`LowerBound`].
    ///
    /// The result means something only for a problem that passes [`Problem::check`].
    pub fn lower_bound(&self) -> LowerBound {
        bound::of(self)
    }
}

/// Why a problem cannot be planned.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProblemError {
    /// A block ends before it begins.
    #[error("block {id}: lifetime [{lower}, {upper}) ends before it begins; swap its lower and upper")]
    Reversed {
        /// The block's id.
        id: u64,
        /// Its first event.
        lower: u64,
        /// Its end.
        upper: u64,
    },
    /// An alignment that is not a power of two.
    #[error("block {id}: alignment {align} is not a power of two; use 1 where none is asked for")]
    Alignment {
        /// The block's id.
        id: u64,
        /// What was given.
        align: u64,
    },
    /// A block that starts at or after the period's end.
    #[error(
        "block {id}: starts at {lower}, but the period has only the events 0..{period}; raise the period or give the start modulo it"
    )]
    StartsBeyondPeriod {
        /// The block's id.
        id: u64,
        /// Its first event.
        lower: u64,
        /// The period in events.
        period: u64,
    },
    /// A block that overlaps its own next instance, so that one offset cannot hold both.
    #[error(
        "block {id}: lifetime [{lower}, {upper}) is longer than the period of {period} events, so it meets itself in the next step; leave it out of the plan or give it one block per instance"
    )]
    LongerThanPeriod {
        /// The block's id.
        id: u64,
        /// Its first event.
        lower: u64,
        /// Its end on the unrolled circle.
        upper: u64,
        /// The period in events.
        period: u64,
    },
    /// A period of no events, or one so long that times overflow.
    #[error("a period of {period} events cannot be planned; it must lie between 1 and 2^63 - 1")]
    Period {
        /// What was given.
        period: u64,
    },
    /// The sizes and alignments add up to more than 64 bits can address.
    #[error(
        "block {id}: the sizes and alignments up to this block add up to 2^64 - 1 bytes or more; check its size"
    )]
    TooLarge {
        /// The block at which the sum overflowed.
        id: u64,
    },
    /// Constraints that cannot be kept.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// More blocks than [`MAX_BLOCKS`].
    #[error("{count} blocks are more than the {MAX_BLOCKS} one problem may have; split it")]
    TooManyBlocks {
        /// How many there are.
        count: usize,
    },
}

impl ProblemError {
    /// The ids of the blocks named, the one to be changed first.
    pub fn blocks(&self) -> Vec<u64> {
        match *self {
            ProblemError::Reversed { id, .. }
            | ProblemError::Alignment { id, .. }
            | ProblemError::StartsBeyondPeriod { id, .. }
            | ProblemError::LongerThanPeriod { id, .. }
            | ProblemError::TooLarge { id } => vec![id],
            ProblemError::Constraint(ref error) => error.blocks(),
            ProblemError::Period { .. } | ProblemError::TooManyBlocks { .. } => Vec::new(),
        }
    }
}
