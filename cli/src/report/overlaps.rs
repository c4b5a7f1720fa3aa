//! Pairs of blocks that share bytes at one time, which a plan must not have.

use std::collections::{BTreeSet, HashSet};

use stepalloc_planner::Problem;

/// Pairs that are told one by one.
pub const TOLD: usize = 1000;

/// Two blocks, by index, and what they share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overlap {
    /// The one that was there.
    pub first: usize,
    /// The one that came.
    pub second: usize,
    /// Bytes that both have.
    pub bytes: (u64, u64),
    /// Events at which both are alive; of blocks that wrap round, of the stretch in which they meet first.
    pub events: (u64, u64),
}

/// A stretch of a block's life on the line.
#[derive(Clone, Copy)]
struct Piece {
    start: u64,
    end: u64,
    block: usize,
}

/// All pairs, at most so many that nobody would read more, and how many there are up to then.
///
/// A sweep along time; at each start the blocks that are alive and lie near are looked at.
pub fn overlaps(problem: &Problem, offsets: &[u64]) -> Vec<Overlap> {
    let mut pieces: Vec<Piece> = Vec::new();
    for (block, of) in problem.blocks.iter().enumerate().filter(|(_, block)| block.size > 0) {
        let period = problem.period.unwrap_or(u64::MAX);
        let mut piece = |start: u64, end: u64| {
            if start < end {
                pieces.push(Piece { start, end, block });
            }
        };
        piece(of.lower, of.upper.min(period));
        piece(0, of.upper.saturating_sub(period).min(of.lower));
    }
    pieces.sort_by_key(|piece| (piece.start, piece.block));
    let mut ends: Vec<usize> = (0..pieces.len()).collect();
    ends.sort_by_key(|&index| pieces[index].end);
    let mut ends = ends.into_iter().peekable();
    // By offset: pieces that are alive; and the largest of all sizes, so far as a block reaches.
    let mut alive: BTreeSet<(u64, usize)> = BTreeSet::new();
    let reach = problem.blocks.iter().map(|block| block.size).max().unwrap_or(0);
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    for (index, piece) in pieces.iter().enumerate() {
        while let Some(over) = ends.next_if(|&other| pieces[other].end <= piece.start) {
            alive.remove(&(offsets[pieces[over].block], over));
        }
        let from = offsets[piece.block];
        let to = from.saturating_add(problem.blocks[piece.block].size);
        for &(offset, other) in alive.range((from.saturating_sub(reach), 0)..(to, 0)) {
            let there = pieces[other];
            let end = offset.saturating_add(problem.blocks[there.block].size);
            let pair = (there.block.min(piece.block), there.block.max(piece.block));
            if end > from && there.block != piece.block && seen.insert(pair) {
                found.push(Overlap {
                    first: there.block,
                    second: piece.block,
                    bytes: (from.max(offset), to.min(end)),
                    events: (piece.start, piece.end.min(there.end)),
                });
            }
        }
        if found.len() >= TOLD {
            break;
        }
        alive.insert((from, index));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use stepalloc_planner::{Block, Planner, generate};

    fn block(id: u64, lower: u64, upper: u64, size: u64) -> Block {
        Block { id, lower, upper, size, align: 1 }
    }

    #[test]
    fn shared_bytes_and_times_are_named() {
        let problem = Problem::new(vec![block(0, 0, 9, 100), block(1, 3, 5, 50), block(2, 5, 9, 10)]);
        assert_eq!(overlaps(&problem, &[0, 100, 100]), []);
        let found = overlaps(&problem, &[0, 80, 100]);
        assert_eq!(found, [Overlap { first: 0, second: 1, bytes: (80, 100), events: (3, 5) }]);
    }

    #[test]
    fn blocks_that_wrap_round_meet_those_of_the_beginning() {
        let problem = Problem::new(vec![block(0, 8, 12, 100), block(1, 0, 1, 100), block(2, 2, 3, 100)])
            .with_period(10);
        let found = overlaps(&problem, &[0, 50, 0]);
        assert_eq!(found, [Overlap { first: 0, second: 1, bytes: (50, 100), events: (0, 1) }]);
    }

    #[test]
    fn plans_have_none_and_each_planted_one_is_found() {
        for seed in 0..20 {
            let problem = generate::malloc_like(300, seed);
            let plan = Planner::new().plan(&problem).expect("a problem");
            assert_eq!(overlaps(&problem, &plan.offsets), []);
            let slow = |offsets: &[u64]| {
                let blocks = &problem.blocks;
                let meet = |a: usize, b: usize| {
                    blocks[a].lower.max(blocks[b].lower) < blocks[a].upper.min(blocks[b].upper)
                        && offsets[a].max(offsets[b])
                            < (offsets[a] + blocks[a].size).min(offsets[b] + blocks[b].size)
                };
                (0..blocks.len())
                    .flat_map(|b| (0..b).map(move |a| (a, b)))
                    .filter(|&(a, b)| meet(a, b))
                    .count()
            };
            let mut offsets = plan.offsets.clone();
            offsets[seed as usize * 7] /= 2;
            assert_eq!(overlaps(&problem, &offsets).len(), slow(&offsets).min(TOLD));
        }
    }
}
