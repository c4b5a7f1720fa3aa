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
//!
//! Constraints make the load what `needs` says, and each `A` sees only blocks that share with no other, in pieces that
//! begin at a multiple of it. The end of a fixed block is a bound, too.

use std::collections::BTreeMap;

use crate::constraints::Fixed;
use crate::load::{self, Survey};
use crate::needs::Needs;
use crate::pieces::{Families, Piece};
use crate::problem::Problem;
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

impl LowerBound {
    /// Indices of blocks that need the bytes, so that others can check the bound ([`crate::verify_bound`]): one block
    /// whose size or fixed place does, or blocks in use at the bound's event.
    ///
    /// The problem is the one the bound is of, and passes its check.
    pub fn witness(&self, problem: &Problem) -> Vec<usize> {
        let blocks = &problem.blocks;
        if let Some(index) = blocks.iter().position(|block| block.size >= self.bytes) {
            return vec![index];
        }
        let needs = needs(problem);
        let families = needs.as_ref().and_then(|_| Families::new(problem).ok());
        if let Some((index, _)) =
            families.and_then(|f| fixed_end(problem, &f)).filter(|end| end.1 >= self.bytes)
        {
            return vec![index];
        }
        let alive = |&(_, lower, upper, _): &Span| {
            [Some(self.at), problem.period.and_then(|period| self.at.checked_add(period))]
                .into_iter()
                .flatten()
                .any(|at| lower <= at && at < upper)
        };
        match needs {
            Some(needs) if self.align == 1 => needs.witness(problem, self.at),
            needs => {
                let spans = aligned(problem, needs.as_ref(), self.align);
                spans.into_iter().filter(alive).map(|span| span.0).collect()
            }
        }
    }
}

/// Block, first event, end on the unrolled circle, bytes.
type Span = (usize, u64, u64, u64);

/// The bound of a problem that passes its check.
pub(crate) fn of(problem: &Problem) -> LowerBound {
    let survey = Survey::new(problem);
    let load = load::peak(problem, &survey);
    let mut best = LowerBound { bytes: load.max, at: load.at, align: 1 };
    let (size, lower) = survey.largest;
    if size > best.bytes {
        best = LowerBound { bytes: size, at: lower, align: 1 };
    }
    let needs = needs(problem);
    if needs.is_some()
        && let Some((index, end)) =
            Families::new(problem).ok().and_then(|families| fixed_end(problem, &families))
        && end > best.bytes
    {
        best = LowerBound { bytes: end, at: problem.blocks[index].lower, align: 1 };
    }
    // Mostly there is nothing to round, and no list to be made; under constraints blocks come in pieces.
    let levels = if needs.is_none() { survey.aligns & survey.ragged } else { survey.aligns };
    for align in (1..u64::BITS).map(|log| 1 << log).filter(|align| levels & align != 0) {
        let level = rounded(aligned(problem, needs.as_ref(), align), problem.period, align);
        if level.bytes > best.bytes {
            best = level;
        }
    }
    best
}

/// What the blocks need under constraints; `None` where there are none to be kept.
fn needs(problem: &Problem) -> Option<Needs> {
    let constrained = !problem.constraints.is_empty() && problem.check().is_ok();
    let families = if constrained { Families::new(problem).ok() } else { None };
    families.map(|families| Needs::new(problem, families))
}

/// The block that ends highest of those that are fixed, be it by a view of theirs; and where it ends.
fn fixed_end(problem: &Problem, families: &Families) -> Option<(usize, u64)> {
    let ends = problem.constraints.fixed.iter().map(|&Fixed { block, offset }| {
        let root = families.root[block] as usize;
        (root, offset.saturating_sub(families.distance[block]).saturating_add(problem.blocks[root].size))
    });
    ends.max_by_key(|&(_, end)| end)
}

/// What lies apart from everything else and begins at a multiple of `align` in every plan.
fn aligned(problem: &Problem, needs: Option<&Needs>, align: u64) -> Vec<Span> {
    let Some(needs) = needs else {
        let blocks = problem.blocks.iter().enumerate();
        return blocks
            .filter(|(_, block)| block.align >= align && block.size > 0 && block.upper > block.lower)
            .map(|(index, block)| (index, block.lower, block.upper, block.size))
            .collect();
    };
    let suits = |piece: &&Piece| {
        let block = &problem.blocks[piece.block as usize];
        needs.alone(piece.block) && block.align >= align && piece.from.is_multiple_of(align)
    };
    let span = |piece: &Piece| (piece.block as usize, piece.lower, piece.upper, piece.to - piece.from);
    needs.pieces().iter().filter(suits).map(span).collect()
}

/// The bound that the spans aligned to a multiple of `align` give.
fn rounded(members: Vec<Span>, period: Option<u64>, align: u64) -> LowerBound {
    let mut best = LowerBound { bytes: 0, at: 0, align };
    if members.iter().all(|&(.., size)| size % align == 0) {
        return best; // Nothing to round: the plain load is at least as good.
    }
    // Times on the circle, and whether the span was alive at 0 already.
    let turned = |(_, lower, upper, size): Span| match period {
        Some(period) if lower >= period => (lower - period, upper - period, size, false),
        Some(period) if upper > period => (lower, upper - period, size, true),
        _ => (lower, upper, size, false),
    };
    // Ends first: sorting keeps them before the starts at the same event.
    let mut events: Vec<(u64, (bool, u64))> = Vec::with_capacity(2 * members.len());
    events.extend(members.iter().map(|&span| turned(span)).map(|(_, upper, size, _)| (upper, (false, size))));
    for (lower, _, size, wraps) in members.iter().map(|&span| turned(span)) {
        if wraps {
            events.push((0, (true, size)));
        }
        events.push((lower, (true, size)));
    }
    radix::sort(&mut events);
    // Wide, so that problems that fail their check do not overflow.
    let (mut sum, mut slacks) = (0u128, BTreeMap::<u128, u32>::new());
    for group in events.chunk_by(|a, b| a.0 == b.0) {
        for &(_, (starts, size)) in group {
            let size = u128::from(size);
            let whole = size.next_multiple_of(u128::from(align));
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
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
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
    use crate::problem::Block;

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
