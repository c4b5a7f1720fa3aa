//! The certificate: does a plan keep every rule of its problem, and is its bound one?
//!
//! It trusts nobody, shares no code with the placers, the load or the bound, works on the problem as given
//! (no ranks, no compressed times, no families worked out elsewhere) and is short enough to be read in one go. One sweep
//! over time with an ordered map of the occupied ranges; on the circle what wraps is swept as two pieces. O(n log n),
//! and for blocks that share bytes with others, times how many of those are in use together.

mod arenas;
mod bound;

use std::collections::{BTreeMap, HashSet};

use thiserror::Error;

use crate::constraints::{Fixed, Gap, InPlace, Inside};
use crate::problem::Problem;

pub use arenas::{ArenaViolation, verify_arenas};
pub use bound::{Unproven, verify_bound};

/// The first rule found broken. Blocks are named by their index in the problem and their id.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Violation {
    /// Not one offset per block.
    #[error("{offsets} offsets for {blocks} blocks; a plan has exactly one per block, in the same order")]
    Length {
        /// Offsets given.
        offsets: usize,
        /// Blocks in the problem.
        blocks: usize,
    },
    /// A lifetime that is no lifetime of this problem.
    #[error("block {id} (index {index}): lifetime [{lower}, {upper}) is not valid{}", within(*.period))]
    Lifetime {
        /// Index in the problem.
        index: usize,
        /// The block's id.
        id: u64,
        /// First event.
        lower: u64,
        /// End.
        upper: u64,
        /// The problem's period in events.
        period: Option<u64>,
    },
    /// An offset that is not a multiple of the block's alignment, or an alignment that is no power of two.
    #[error("block {id} (index {index}): offset {offset} is not aligned to {align}")]
    Misaligned {
        /// Index in the problem.
        index: usize,
        /// The block's id.
        id: u64,
        /// Its offset in bytes.
        offset: u64,
        /// Its alignment.
        align: u64,
    },
    /// Offset + size does not fit in 64 bits.
    #[error("block {id} (index {index}): offset {offset} + size {size} overflows")]
    Overflow {
        /// Index in the problem.
        index: usize,
        /// The block's id.
        id: u64,
        /// Its offset in bytes.
        offset: u64,
        /// Its size in bytes.
        size: u64,
    },
    /// A block that reaches beyond the arena.
    #[error("block {id} (index {index}): bytes [{offset}, {end}) reach beyond the arena of {height} bytes")]
    OutOfBounds {
        /// Index in the problem.
        index: usize,
        /// The block's id.
        id: u64,
        /// Its offset in bytes.
        offset: u64,
        /// Offset + size.
        end: u64,
        /// The arena in bytes.
        height: u64,
    },
    /// Two blocks alive at the same event share a byte.
    #[error(
        "blocks {first_id} (index {first}) and {second_id} (index {second}) share byte {byte} and are both alive at event {at}"
    )]
    Overlap {
        /// Index of the block that was there.
        first: usize,
        /// Its id.
        first_id: u64,
        /// Index of the block that came.
        second: usize,
        /// Its id.
        second_id: u64,
        /// A byte of the arena that both hold.
        byte: u64,
        /// An event at which both are alive.
        at: u64,
    },
    /// A constraint about a block that is not there.
    #[error("a constraint names the block of index {index}, but there are only {blocks} blocks")]
    NoSuchBlock {
        /// The index named.
        index: usize,
        /// Blocks in the problem.
        blocks: usize,
    },
    /// A gap that is not part of its block's lifetime, overlaps another, or has a window beyond the block.
    #[error(
        "block {id} (index {index}): gap [{lower}, {upper}) is not one of its lifetime, or its window not one of its bytes"
    )]
    Gap {
        /// Index in the problem.
        index: usize,
        /// The block's id.
        id: u64,
        /// The gap's first event.
        lower: u64,
        /// Its end.
        upper: u64,
    },
    /// A block that is not where it is fixed.
    #[error("block {id} (index {index}): offset {offset}, but it is fixed at {fixed}")]
    NotFixed {
        /// Index in the problem.
        index: usize,
        /// The block's id.
        id: u64,
        /// Its offset in bytes.
        offset: u64,
        /// The offset asked for.
        fixed: u64,
    },
    /// A view that is not at its distance in the block it belongs in, or reaches beyond it.
    #[error(
        "block {id} (index {index}): bytes [{offset}, {end}) are not at distance {distance} in the bytes [{of_offset}, {of_end}) of block {of_id} (index {of})"
    )]
    NotInside {
        /// Index of the view.
        index: usize,
        /// Its id.
        id: u64,
        /// Its offset in bytes.
        offset: u64,
        /// Offset + size.
        end: u64,
        /// The distance asked for.
        distance: u64,
        /// Index of the block it belongs in.
        of: usize,
        /// Its id.
        of_id: u64,
        /// Its offset in bytes.
        of_offset: u64,
        /// Its offset + size.
        of_end: u64,
    },
}

/// The end of the sentence about a wrong lifetime.
fn within(period: Option<u64>) -> String {
    period.map_or_else(String::new, |period| format!(" on a circle of {period} events"))
}

/// Bytes in use from an event on, or no more. Ends sort before starts at the same event.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Edge {
    at: u64,
    starts: bool,
    index: usize,
    from: u64,
    to: u64,
}

/// Checks `offsets` and `height` (bytes of the arena: the plan's own, or a capacity) against every rule of `problem`.
///
/// Blocks that never live or have no bytes must be aligned, inside the arena and where constraints want them, but
/// conflict with nothing. Views, the blocks they lie in and their other views share bytes as they like; a pair that works
/// in place shares with each other and with nobody else.
///
/// # Errors
/// The first rule found broken.
pub fn verify(problem: &Problem, offsets: &[u64], height: u64) -> Result<(), Violation> {
    let blocks = &problem.blocks;
    if offsets.len() != blocks.len() {
        return Err(Violation::Length { offsets: offsets.len(), blocks: blocks.len() });
    }
    for (index, (block, &offset)) in blocks.iter().zip(offsets).enumerate() {
        let (id, size, align) = (block.id, block.size, block.align);
        let (lower, upper, period) = (block.lower, block.upper, problem.period);
        if upper < lower || period.is_some_and(|period| lower >= period || upper - lower > period) {
            return Err(Violation::Lifetime { index, id, lower, upper, period });
        }
        if !align.is_power_of_two() || offset % align != 0 {
            return Err(Violation::Misaligned { index, id, offset, align });
        }
        let Some(end) = offset.checked_add(size) else {
            return Err(Violation::Overflow { index, id, offset, size });
        };
        if end > height {
            return Err(Violation::OutOfBounds { index, id, offset, end, height });
        }
    }
    verify_places(problem, offsets)?;
    let gaps = gaps_by_block(problem)?;
    verify_overlaps(problem, offsets, &gaps)
}

/// Checks that fixed blocks and views are where they should be.
fn verify_places(problem: &Problem, offsets: &[u64]) -> Result<(), Violation> {
    let blocks = &problem.blocks;
    let known = |index: usize| {
        if index < blocks.len() {
            Ok(index)
        } else {
            Err(Violation::NoSuchBlock { index, blocks: blocks.len() })
        }
    };
    for &Fixed { block, offset: fixed } in &problem.constraints.fixed {
        let offset = offsets[known(block)?];
        if offset != fixed {
            return Err(Violation::NotFixed { index: block, id: blocks[block].id, offset, fixed });
        }
    }
    for &Inside { block, of, distance } in &problem.constraints.inside {
        let (offset, of_offset) = (offsets[known(block)?], offsets[known(of)?]);
        let (end, of_end) = (offset + blocks[block].size, of_offset + blocks[of].size);
        if of_offset.checked_add(distance) != Some(offset) || end > of_end {
            let (id, of_id) = (blocks[block].id, blocks[of].id);
            return Err(Violation::NotInside {
                index: block,
                id,
                offset,
                end,
                distance,
                of,
                of_id,
                of_offset,
                of_end,
            });
        }
    }
    for &InPlace { first, second } in &problem.constraints.in_place {
        known(first)?;
        known(second)?;
    }
    Ok(())
}

/// All gaps by block and start, checked.
fn gaps_by_block(problem: &Problem) -> Result<Vec<Gap>, Violation> {
    let mut gaps = problem.constraints.gaps.clone();
    gaps.sort_by_key(|gap| (gap.block, gap.lower));
    for (at, gap) in gaps.iter().enumerate() {
        let Some(block) = problem.blocks.get(gap.block) else {
            return Err(Violation::NoSuchBlock { index: gap.block, blocks: problem.blocks.len() });
        };
        let overlap = at > 0 && gaps[at - 1].block == gap.block && gaps[at - 1].upper > gap.lower;
        let window = gap.window.is_none_or(|(from, to)| from <= to && to <= block.size);
        let within = block.lower <= gap.lower && gap.lower < gap.upper && gap.upper <= block.upper;
        if overlap || !window || !within {
            let Gap { block: index, lower, upper, .. } = *gap;
            return Err(Violation::Gap { index, id: block.id, lower, upper });
        }
    }
    Ok(gaps)
}

/// A block's bytes in use: (first event, end, first byte, end), with times on the unrolled circle.
fn uses(problem: &Problem, gaps: &[Gap], index: usize) -> Vec<(u64, u64, u64, u64)> {
    let block = &problem.blocks[index];
    let mut uses = Vec::new();
    let mut at = block.lower;
    let first = gaps.partition_point(|gap| gap.block < index);
    for gap in gaps[first..].iter().take_while(|gap| gap.block == index) {
        uses.push((at, gap.lower, 0, block.size));
        let (from, to) = gap.window.unwrap_or((0, 0));
        uses.push((gap.lower, gap.upper, from, to));
        at = gap.upper;
    }
    uses.push((at, block.upper, 0, block.size));
    uses.retain(|&(lower, upper, from, to)| lower < upper && from < to);
    uses
}

/// A number per block, the same for all that views join.
fn families(problem: &Problem) -> Vec<usize> {
    let mut above: Vec<usize> = (0..problem.blocks.len()).collect();
    let top = |above: &mut Vec<usize>, mut block: usize| {
        while above[block] != block {
            above[block] = above[above[block]];
            block = above[block];
        }
        block
    };
    for view in &problem.constraints.inside {
        let (view, of) = (top(&mut above, view.block), top(&mut above, view.of));
        above[view] = of;
    }
    (0..above.len()).map(|block| top(&mut above, block)).collect()
}

/// The pairs that work in place, both ways round.
fn pairs(problem: &Problem) -> HashSet<(usize, usize)> {
    let pairs = problem.constraints.in_place.iter();
    pairs.flat_map(|&InPlace { first, second }| [(first, second), (second, first)]).collect()
}

/// Checks that no two blocks use a byte at once that may not share it.
fn verify_overlaps(problem: &Problem, offsets: &[u64], gaps: &[Gap]) -> Result<(), Violation> {
    let blocks = &problem.blocks;
    let mut edges = Vec::with_capacity(2 * blocks.len());
    for (index, &offset) in offsets.iter().enumerate() {
        let mut in_use = |lower, upper, from, to| {
            let (from, to) = (offset + from, offset + to);
            edges.push(Edge { at: lower, starts: true, index, from, to });
            edges.push(Edge { at: upper, starts: false, index, from, to });
        };
        for (lower, upper, from, to) in uses(problem, gaps, index) {
            match problem.period {
                Some(period) if lower >= period => in_use(lower - period, upper - period, from, to),
                Some(period) if upper > period => {
                    in_use(lower, period, from, to);
                    in_use(0, upper - period, from, to);
                }
                _ => in_use(lower, upper, from, to),
            }
        }
    }
    edges.sort_unstable();

    let (families, pairs) = (families(problem), pairs(problem));
    let mut shares = vec![false; blocks.len()];
    for view in &problem.constraints.inside {
        shares[view.block] = true;
        shares[view.of] = true;
    }
    for &(first, _) in &pairs {
        shares[first] = true;
    }
    // Start -> end and index of the ranges in use now by blocks that share with nobody: they never overlap.
    let mut alone: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    // Start, end and index of the ranges of the other blocks.
    let mut shared: Vec<(u64, u64, usize)> = Vec::new();
    for Edge { at, starts, index, from, to } in edges {
        if !starts {
            if shares[index] {
                shared.retain(|&range| range != (from, to, index));
            } else {
                alone.remove(&from);
            }
            continue;
        }
        // Of the blocks alone, the highest that begins below our end: every lower one ends before that one begins.
        let below =
            alone.range(..to).next_back().map(|(&other_from, &(end, other))| (other_from, end, other));
        for (other_from, other_to, other) in below.into_iter().chain(shared.iter().copied()) {
            let allowed = families[index] == families[other] || pairs.contains(&(index, other));
            if other_from < to && from < other_to && !allowed {
                return Err(Violation::Overlap {
                    first: other,
                    first_id: blocks[other].id,
                    second: index,
                    second_id: blocks[index].id,
                    byte: from.max(other_from),
                    at,
                });
            }
        }
        if shares[index] {
            shared.push((from, to, index));
        } else {
            alone.insert(from, (to, index));
        }
    }
    Ok(())
}
