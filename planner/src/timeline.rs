//! A problem as the placers see it: times compressed to ranks, blocks that need no placing left out.
//!
//! Only the order of starts and ends matters to a placement, so times become ranks `0..turn` of 32 bits. An [`Item`]'s
//! lifetime is `[lower, upper)` on the unrolled circle: `lower < turn`, and `upper` may reach `lower + turn`. A problem
//! without a period gets a circle so large that nothing ever wraps, which lets one comparison serve both.

use crate::problem::Problem;

/// The circle of a problem that has none: no rank reaches it.
pub(crate) const NEVER: u32 = u32::MAX / 2;

/// Times per moment up to which a table of all times is smaller and faster than a sorted list of the moments.
const DENSE: u64 = 4;

/// A block to be placed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item {
    /// First rank alive.
    pub lower: u32,
    /// End on the unrolled circle.
    pub upper: u32,
    /// Bytes; never 0.
    pub size: u64,
    /// Power of two.
    pub align: u64,
    /// Index of the block in the problem.
    pub block: u32,
    /// Length of the lifetime in events of the problem.
    pub length: u64,
}

/// The items of a problem on their circle of ranks.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    /// Blocks with a length and a size.
    pub items: Vec<Item>,
    /// Ranks in use: all of the circle's where there is one.
    pub ranks: u32,
    /// Ranks of the whole circle, or more than any rank.
    pub turn: u32,
}

impl Timeline {
    /// Compresses a problem that passes its check.
    pub fn new(problem: &Problem) -> Timeline {
        let alive = || {
            problem.blocks.iter().enumerate().filter(|(_, block)| block.size > 0 && block.upper > block.lower)
        };
        let fold = |time: u64| match problem.period {
            Some(period) if time >= period => time - period,
            _ => time,
        };
        let moments = || alive().flat_map(|(_, block)| [block.lower, fold(block.upper)]);
        let clock = Clock::new(moments, 2 * problem.blocks.len());
        let ranks = clock.ranks();
        let rank = |time: u64| clock.rank(time);
        let items = alive()
            .map(|(index, block)| {
                let lower = rank(block.lower);
                let folded = fold(block.upper);
                let turns = if folded == block.upper { 0 } else { ranks };
                Item {
                    lower,
                    upper: rank(folded) + turns,
                    size: block.size,
                    align: block.align,
                    block: index as u32,
                    length: block.upper - block.lower,
                }
            })
            .collect();
        Timeline { items, ranks, turn: if problem.period.is_some() { ranks } else { NEVER } }
    }

    /// Some of the items alone, with ranks of their own; a circle stays one.
    pub fn of(&self, items: &[u32]) -> Timeline {
        let fold = |rank: u32| if rank >= self.turn { rank - self.turn } else { rank };
        let chosen = || items.iter().map(|&item| self.items[item as usize]);
        let moments = || chosen().flat_map(|item| [item.lower, fold(item.upper)]);
        let first = moments().min().unwrap_or(0);
        let mut ranks = vec![0u32; moments().max().map_or(0, |last| (last - first) as usize + 1)];
        moments().for_each(|rank| ranks[(rank - first) as usize] = 1);
        let mut count = 0;
        for rank in &mut ranks {
            count += std::mem::replace(rank, count);
        }
        let rank = |old: u32| ranks[(old - first) as usize];
        let items = chosen().map(|item| {
            let turns = if fold(item.upper) == item.upper { 0 } else { count };
            Item { lower: rank(item.lower), upper: rank(fold(item.upper)) + turns, ..item }
        });
        let items = items.collect();
        Timeline { items, ranks: count, turn: if self.circular() { count } else { NEVER } }
    }

    /// Whether time is a circle.
    pub fn circular(&self) -> bool {
        self.turn != NEVER
    }
}

/// Times of a problem, and their ranks.
enum Clock {
    /// By time: its rank. For times that are not many more than the blocks, as indices of events are.
    Dense { ranks: Vec<u32>, count: u32 },
    /// Times, ascending.
    Sparse(Vec<u64>),
}

impl Clock {
    /// Of up to `count` moments, in any order and more than once.
    fn new<M: Iterator<Item = u64>>(moments: impl Fn() -> M, count: usize) -> Clock {
        let end = moments().max().map_or(0, |last| last.saturating_add(1));
        if end <= DENSE * count as u64 {
            let mut ranks = vec![0u32; end as usize];
            moments().for_each(|time| ranks[time as usize] = 1);
            let mut count = 0;
            for rank in &mut ranks {
                // `Problem::check` bounds the blocks, hence the moments.
                count += std::mem::replace(rank, count);
            }
            return Clock::Dense { ranks, count };
        }
        let mut sorted: Vec<u64> = Vec::with_capacity(count);
        sorted.extend(moments());
        sorted.sort_unstable();
        sorted.dedup();
        Clock::Sparse(sorted)
    }

    fn ranks(&self) -> u32 {
        match self {
            Clock::Dense { count, .. } => *count,
            Clock::Sparse(sorted) => sorted.len() as u32,
        }
    }

    /// The rank of one of the moments.
    fn rank(&self, time: u64) -> u32 {
        match self {
            Clock::Dense { ranks, .. } => ranks[time as usize],
            Clock::Sparse(sorted) => sorted.partition_point(|&moment| moment < time) as u32,
        }
    }
}

/// Whether two lifetimes on a circle of `turn` ranks share a rank.
#[inline]
pub(crate) fn meet(a: (u32, u32), b: (u32, u32), turn: u32) -> bool {
    (a.0 < b.1 && b.0 < a.1) | (a.0 + turn < b.1) | (b.0 + turn < a.1)
}

/// The next multiple of a power of two; sums stay below 2^64 by [`Problem::check`].
#[inline]
pub(crate) fn align_up(offset: u64, align: u64) -> u64 {
    (offset + (align - 1)) & !(align - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Block;

    #[test]
    fn lifetimes_that_only_touch_do_not_meet() {
        assert!(!meet((0, 2), (2, 4), NEVER));
        assert!(meet((0, 3), (2, 4), NEVER));
    }

    #[test]
    fn a_lifetime_that_wraps_meets_the_start_of_the_circle() {
        assert!(meet((8, 12), (1, 3), 10));
        assert!(meet((1, 3), (8, 12), 10));
        assert!(!meet((8, 12), (2, 8), 10));
        assert!(meet((8, 12), (9, 11), 10));
    }

    #[test]
    fn the_end_of_the_period_is_its_start() {
        let block = |lower, upper| Block { id: 0, lower, upper, size: 1, align: 1 };
        let problem = Problem {
            blocks: vec![block(30, 100), block(0, 30), block(30, 130)],
            period: Some(100),
            ..Problem::default()
        };
        let timeline = Timeline::new(&problem);
        assert_eq!(timeline.turn, 2);
        let ranges: Vec<_> = timeline.items.iter().map(|item| (item.lower, item.upper)).collect();
        assert_eq!(ranges, [(1, 2), (0, 1), (1, 3)]);
    }
}
