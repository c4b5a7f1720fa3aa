//! Several arenas: fast memory and slow, or pools of their own sizes.
//!
//! Devices have a little SRAM and much DRAM, and compilers plan for several *pools* (TVM's unified static memory
//! planner). Arenas stand in the order of preference; a block may go to all of them, or to some. Where not all blocks
//! find room in the arena they like best, they are dealt out: in several orders, each into the first arena where first
//! fit leaves it below the capacity. Each arena is then planned by itself, and blocks are moved to arenas they like
//! better, those without a place first, where a plan with them stays below the capacity. Of the orders that one is kept
//! which leaves the least bytes without a place, then makes arenas without a capacity the lowest, then has the least
//! bytes times events away from the arenas that blocks like best.
//!
//! Constraints hold within an arena: views lie in the arena of their block, pairs work in place where both are in the
//! same arena, and a fixed offset is one in the only arena its block may go to.

mod deal;

use thiserror::Error;

use crate::planner::Planner;
use crate::problem::{Problem, ProblemError};

use deal::Deal;

/// A stretch of memory that blocks can be put in.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Arena {
    /// For messages.
    pub name: String,
    /// The most bytes it can have; `None`: as many as are needed.
    pub capacity: Option<u64>,
}

impl Arena {
    /// An arena of at most so many bytes, or as many as are needed.
    pub fn new(name: impl Into<String>, capacity: impl Into<Option<u64>>) -> Arena {
        Arena { name: name.into(), capacity: capacity.into() }
    }

    /// Whether it can have so many bytes.
    pub(crate) fn holds(&self, bytes: u64) -> bool {
        self.capacity.is_none_or(|capacity| bytes <= capacity)
    }
}

/// Where a block lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// Index of the arena.
    pub arena: usize,
    /// Bytes from its beginning.
    pub offset: u64,
}

/// What a plan makes of an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Used {
    /// Bytes needed: the largest offset + size.
    pub height: u64,
    /// Bytes that the blocks put here cannot do without, whatever their offsets.
    pub lower_bound: u64,
}

/// Places for the blocks of one problem in several arenas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArenasPlan {
    /// By block.
    pub places: Vec<Place>,
    /// By arena.
    pub used: Vec<Used>,
}

/// Why blocks cannot be put into arenas.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// A problem that cannot be planned whatever the arenas are.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// Not one list of allowed arenas per block.
    #[error("{lists} lists of allowed arenas for {blocks} blocks; give one per block, or none at all")]
    Allowed {
        /// Lists given.
        lists: usize,
        /// Blocks in the problem.
        blocks: usize,
    },
    /// An arena that is not there.
    #[error("block {id}: may go to arena {arena}, but there are only {arenas} arenas, from index 0")]
    NoSuchArena {
        /// The block's id.
        id: u64,
        /// The index named.
        arena: usize,
        /// Arenas given.
        arenas: usize,
    },
    /// A block, or a block with its views, that may go nowhere.
    #[error("block {id}: there is no arena that it and all its views may go to; allow one")]
    Nowhere {
        /// The block's id; of views, that of the block they lie in.
        id: u64,
    },
    /// A fixed offset without an arena.
    #[error("block {id}: its offset is fixed, but not its arena; allow it a single one")]
    FixedAnywhere {
        /// The block's id.
        id: u64,
    },
    /// Blocks that found no place. That does not prove that there is none.
    #[error("no place was found in any arena for the blocks {ids:?}; raise a capacity or allow more arenas")]
    Full {
        /// Their ids, in the problem's order.
        ids: Vec<u64>,
    },
}

impl Planner {
    /// Puts every block into one of several arenas, given in the order of preference.
    ///
    /// `allowed` lists for each block the indices of the arenas it may go to, in any order; empty, every block may go to
    /// every arena. Views go where their block goes.
    ///
    /// Where not all blocks find room in the arena they like best, this takes some hundreds of plannings of arenas at
    /// [`Effort::Quick`](crate::Effort::Quick) and, at a higher effort, about ten at that. A time limit holds for each
    /// planning of an arena; a watch that breaks ends them all.
    ///
    /// ```
    /// use stepalloc_planner::{Arena, Block, Planner, Problem, verify_arenas};
    ///
    /// let block = |id, lower, upper, size| Block { id, lower, upper, size, align: 16 };
    /// // The second and the third are never alive together and share the fast memory; the first has no room there.
    /// let problem = Problem::new(vec![block(0, 0, 8, 4096), block(1, 0, 4, 1024), block(2, 4, 8, 512)]);
    /// let arenas = [Arena::new("SRAM", 1024), Arena::new("DRAM", None)];
    /// let plan = Planner::new().plan_arenas(&problem, &arenas, &[])?;
    /// let homes: Vec<usize> = plan.places.iter().map(|place| place.arena).collect();
    /// assert_eq!(homes, [1, 0, 0]);
    /// assert_eq!((plan.used[0].height, plan.used[1].height), (1024, 4096));
    /// assert_eq!(verify_arenas(&problem, &arenas, &[], &plan), Ok(()));
    /// # Ok::<(), stepalloc_planner::ArenaError>(())
    /// ```
    ///
    /// # Errors
    /// An [`ArenaError`]; [`ArenaError::Full`] names the blocks that found no place.
    pub fn plan_arenas(
        &self,
        problem: &Problem,
        arenas: &[Arena],
        allowed: &[Vec<usize>],
    ) -> Result<ArenasPlan, ArenaError> {
        let mut deal = Deal::new(self.clone(), problem, arenas, allowed)?;
        if !deal.put_all_first() {
            deal.deal_out();
        }
        deal.into_plan()
    }
}
