//! The lower bound of every plan, with alignment folded in.
//!
//! At any moment the live blocks lie side by side, so the sum of their sizes is a bound. Alignment can raise it: let
//! `A` be a power of two and take only the live blocks whose own alignment is a multiple of `A`. Their offsets are
//! multiples of `A`, so from one such block's offset to the next one above it is a multiple of `A`, too: every block but
//! the topmost takes its size rounded up to `A`. The topmost takes its plain size, and it may be the one with most to
//! round. Hence
//!
//! ```text
//! height >= sum of round_up(size, A)  -  the largest of (round_up(size, A) - size)
//! ```
//!
//! over those blocks, for each `A`. Blocks of smaller alignment may lie in the room that rounding leaves idle, so they
//! must not be added; nor may sizes be rounded to a block's own alignment where its upper neighbour's is smaller.
//! `A = 1` is the plain load. An arena must also hold each block alone, even one that never lives.

use std::collections::BTreeMap;

use crate::load;
use crate::problem::{Block, Problem};
use crate::radix;

/// Bytes that no plan can do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LowerBound {
    /// The bound in bytes.
    pub bytes: u64,
    /// An event at which the blocks alive need that much.
    pub at: u64,
    /// The alignment `A` that proves it (see the module); 1 where the plain load does.
    pub align: u64,
}

/// The bound of a problem that passes its check.
pub(crate) fn of(problem: &Problem) -> LowerBound {
    let load = load::peak(problem);
    let mut best = LowerBound { bytes: load.max, at: load.at, align: 1 };
    for block in &problem.blocks {
        if block.size > best.bytes {
            best = LowerBound { bytes: block.size, at: block.lower, align: 1 };
        }
    }
    let mut levels: Vec<u64> = problem.blocks.iter().map(|block| block.align).filter(|&a| a > 1).collect();
    levels.sort_unstable();
    levels.dedup();
    for align in levels {
        let level = rounded(problem, align);
        if level.bytes > best.bytes {
            best = level;
        }
    }
    best
}

/// The bound that the blocks aligned to a multiple of `align` give.
fn rounded(problem: &Problem, align: u64) -> LowerBound {
    let mut best = LowerBound { bytes: 0, at: 0, align };
    let members: Vec<&Block> = problem
        .blocks
        .iter()
        .filter(|block| block.align >= align && block.size > 0 && block.upper > block.lower)
        .collect();
    if members.iter().all(|block| block.size % align == 0) {
        return best; // Nothing to round: the plain load is at least as good.
    }
    // Ends first: sorting keeps them before the starts at the same event.
    let mut events: Vec<(u64, (bool, u64))> = Vec::with_capacity(2 * members.len());
    let wrapped = |block: &Block| problem.period.filter(|&period| block.upper > period);
    for block in &members {
        let upper = wrapped(block).map_or(block.upper, |period| block.upper - period);
        events.push((upper, (false, block.size)));
    }
    for block in &members {
        if wrapped(block).is_some() {
            events.push((0, (true, block.size)));
        }
        events.push((block.lower, (true, block.size)));
    }
    radix::sort(&mut events);
    let (mut sum, mut slacks) = (0u64, BTreeMap::<u64, u32>::new());
    for group in events.chunk_by(|a, b| a.0 == b.0) {
        for &(_, (starts, size)) in group {
            let whole = size.next_multiple_of(align);
            let slack = whole - size;
            if starts {
                sum += whole;
                *slacks.entry(slack).or_default() += 1;
            } else {
                sum -= whole;
                if let Some(count) = slacks.get_mut(&slack) {
                    *count -= 1;
                    if *count == 0 {
                        slacks.remove(&slack);
                    }
                }
            }
        }
        let bytes = sum - slacks.last_key_value().map_or(0, |(&slack, _)| slack);
        if bytes > best.bytes {
            best.bytes = bytes;
            best.at = group[0].0;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(blocks: &[(u64, u64, u64, u64)], period: Option<u64>) -> LowerBound {
        let blocks = blocks
            .iter()
            .map(|&(lower, upper, size, align)| Block { id: 0, lower, upper, size, align })
            .collect();
        Problem { blocks, period, ..Problem::default() }.lower_bound()
    }

    #[test]
    fn the_topmost_block_is_not_rounded() {
        // 0..10 and 16..26, or 0..9 and 16..26 the other way round: 25 is reached with the smaller one on top.
        assert_eq!(bound(&[(0, 2, 10, 16), (1, 3, 9, 16)], None).bytes, 25);
    }

    #[test]
    fn a_block_of_smaller_alignment_may_fill_the_idle_room() {
        assert_eq!(bound(&[(0, 2, 10, 16), (0, 2, 10, 16), (0, 2, 6, 1)], None).bytes, 26);
    }

    #[test]
    fn rounding_counts_only_blocks_alive_together() {
        assert_eq!(bound(&[(0, 2, 10, 16), (2, 4, 10, 16)], None).bytes, 10);
    }

    #[test]
    fn a_block_that_wraps_meets_the_first_of_the_next_step() {
        let bound = bound(&[(8, 12, 10, 16), (1, 3, 10, 16)], Some(10));
        assert_eq!((bound.bytes, bound.at, bound.align), (26, 1, 16));
    }

    #[test]
    fn a_block_that_never_lives_still_lies_inside_the_arena() {
        assert_eq!(bound(&[(3, 3, 10, 1), (0, 5, 4, 1)], None).bytes, 10);
    }
}
