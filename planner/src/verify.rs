//! The certificate: does a plan keep every rule of its problem?
//!
//! This file trusts nobody. It shares no code with the placers, the load or the bound, works on the problem as given
//! (no ranks, no compressed times) and is short enough to be read in one go. One sweep over time with an ordered map of
//! the occupied ranges; on the circle a block that wraps is swept as two pieces. O(n log n).

use std::collections::BTreeMap;

use thiserror::Error;

use crate::problem::Problem;

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
}

/// The end of the sentence about a wrong lifetime.
fn within(period: Option<u64>) -> String {
    period.map_or_else(String::new, |period| format!(" on a circle of {period} events"))
}

/// A start or an end of one piece of a lifetime. Ends sort before starts at the same event.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Edge {
    at: u64,
    starts: bool,
    index: usize,
}

/// Checks `offsets` and `height` (bytes of the arena) against every rule of `problem`.
///
/// Blocks that never live or have no bytes must be aligned and inside the arena, but conflict with nothing.
///
/// # Errors
/// The first rule found broken.
pub fn verify(problem: &Problem, offsets: &[u64], height: u64) -> Result<(), Violation> {
    let blocks = &problem.blocks;
    if offsets.len() != blocks.len() {
        return Err(Violation::Length { offsets: offsets.len(), blocks: blocks.len() });
    }
    let mut edges = Vec::with_capacity(2 * blocks.len());
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
        if size == 0 || lower == upper {
            continue;
        }
        match period {
            Some(period) if upper > period => {
                edges.push(Edge { at: lower, starts: true, index });
                edges.push(Edge { at: 0, starts: true, index });
                edges.push(Edge { at: upper - period, starts: false, index });
            }
            _ => {
                edges.push(Edge { at: lower, starts: true, index });
                edges.push(Edge { at: upper, starts: false, index });
            }
        }
    }
    edges.sort_unstable();

    // Offset -> index of the block that begins there now. Ranges in it never overlap.
    let mut occupied: BTreeMap<u64, usize> = BTreeMap::new();
    for Edge { at, starts, index } in edges {
        let offset = offsets[index];
        if !starts {
            occupied.remove(&offset);
            continue;
        }
        let end = offset + blocks[index].size;
        // The highest block that begins below our end: every block lower still ends before that one begins.
        if let Some((&other_offset, &other)) = occupied.range(..end).next_back()
            && other_offset + blocks[other].size > offset
        {
            return Err(Violation::Overlap {
                first: other,
                first_id: blocks[other].id,
                second: index,
                second_id: blocks[index].id,
                byte: offset.max(other_offset),
                at,
            });
        }
        occupied.insert(offset, index);
    }
    Ok(())
}
