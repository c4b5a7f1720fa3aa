//! The certificate of a plan for several arenas: every block in one it may go to, and every arena valid by itself.

use thiserror::Error;

use super::{Violation, verify};
use crate::arenas::{Arena, ArenasPlan};
use crate::problem::Problem;

/// The first rule found broken by a plan for several arenas.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ArenaViolation {
    /// Not one place per block, or not one height per arena.
    #[error(
        "{places} places for {blocks} blocks, {used} heights for {arenas} arenas; a plan has exactly one for each"
    )]
    Length {
        /// Places given.
        places: usize,
        /// Blocks in the problem.
        blocks: usize,
        /// Heights given.
        used: usize,
        /// Arenas.
        arenas: usize,
    },
    /// A block in an arena that is not there or not allowed.
    #[error("block {id} (index {index}): lies in arena {arena}, where it may not go")]
    NotAllowed {
        /// Index in the problem.
        index: usize,
        /// The block's id.
        id: u64,
        /// The arena's index.
        arena: usize,
    },
    /// An arena of more bytes than it may have.
    #[error("arena {arena}: {height} bytes are more than its capacity of {capacity}")]
    Capacity {
        /// The arena's index.
        arena: usize,
        /// Its height in bytes.
        height: u64,
        /// Its capacity in bytes.
        capacity: u64,
    },
    /// A view in another arena than the block it belongs in.
    #[error("block {id} (index {index}): lies in another arena than the block it is a view of")]
    Parted {
        /// Index of the view.
        index: usize,
        /// Its id.
        id: u64,
    },
    /// A rule broken within an arena; blocks are named as in the whole problem.
    #[error("arena {arena}: {violation}")]
    Within {
        /// The arena's index.
        arena: usize,
        /// What is wrong there.
        violation: Violation,
    },
}

/// Checks a plan for several arenas against every rule; `allowed` as in [`crate::Planner::plan_arenas`].
///
/// # Errors
/// The first rule found broken.
pub fn verify_arenas(
    problem: &Problem,
    arenas: &[Arena],
    allowed: &[Vec<usize>],
    plan: &ArenasPlan,
) -> Result<(), ArenaViolation> {
    let (places, blocks) = (&plan.places, &problem.blocks);
    if places.len() != blocks.len() || plan.used.len() != arenas.len() {
        let (places, blocks) = (places.len(), blocks.len());
        return Err(ArenaViolation::Length { places, blocks, used: plan.used.len(), arenas: arenas.len() });
    }
    for (index, place) in places.iter().enumerate() {
        let listed = allowed.is_empty() || allowed.get(index).is_some_and(|list| list.contains(&place.arena));
        if place.arena >= arenas.len() || !listed {
            return Err(ArenaViolation::NotAllowed { index, id: blocks[index].id, arena: place.arena });
        }
    }
    let home = |index: usize| places.get(index).map(|place| place.arena);
    if let Some(view) = problem.constraints.inside.iter().find(|view| home(view.block) != home(view.of)) {
        let id = blocks.get(view.block).map_or(0, |block| block.id);
        return Err(ArenaViolation::Parted { index: view.block, id });
    }
    for (arena, (kept, used)) in arenas.iter().zip(&plan.used).enumerate() {
        if let Some(capacity) = kept.capacity.filter(|&capacity| used.height > capacity) {
            return Err(ArenaViolation::Capacity { arena, height: used.height, capacity });
        }
        // Blocks elsewhere are here without bytes, alignment and constraints, so that the others keep their index.
        let mut here = problem.clone();
        let mut offsets = vec![0; blocks.len()];
        for (index, place) in places.iter().enumerate() {
            if place.arena == arena {
                offsets[index] = place.offset;
            } else {
                here.blocks[index].size = 0;
                here.blocks[index].align = 1;
            }
        }
        let elsewhere = |index: usize| home(index).is_some_and(|home| home != arena);
        here.constraints.fixed.retain(|fixed| !elsewhere(fixed.block));
        here.constraints.gaps.retain(|gap| !elsewhere(gap.block));
        here.constraints.inside.retain(|view| !elsewhere(view.block));
        here.constraints.in_place.retain(|pair| !elsewhere(pair.first) && !elsewhere(pair.second));
        verify(&here, &offsets, used.height)
            .map_err(|violation| ArenaViolation::Within { arena, violation })?;
    }
    Ok(())
}
