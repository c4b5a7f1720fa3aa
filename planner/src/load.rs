//! The load: live bytes over time, and its maximum.
//!
//! One sweep over the sorted starts and ends. On a circle the blocks that wrap are alive at time 0 already, and a
//! block longer than the period counts once more for each whole period it lasts. What constraints make of it is the
//! business of `needs`.

use crate::needs::Needs;
use crate::pieces::Families;
use crate::problem::Problem;

/// Live bytes over time, a step function. Where constraints let blocks share bytes, it counts what any plan needs: see
/// [`crate::Problem::load`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Load {
    /// `(event, bytes)`: from this event on, until the next entry's, so many bytes are alive. Events ascend strictly,
    /// bytes change from entry to entry; before the first entry nothing is alive. With a period all events lie in
    /// `[0, period)` and the last entry holds up to the period's end.
    pub curve: Vec<(u64, u64)>,
    /// The largest number of live bytes (saturated at `u64::MAX` for problems that fail their check).
    pub max: u64,
    /// The first event at which that many are alive.
    pub at: u64,
}

/// A change of the load at an event, in bytes; wider than 64 bits so that unchecked problems do not overflow.
type Change = (u64, i128);

/// The load of a problem.
pub(crate) fn sweep(problem: &Problem) -> Load {
    if !problem.constraints.is_empty()
        && problem.check().is_ok()
        && let Ok(families) = Families::new(problem)
    {
        let mut changes = Needs::new(problem, families).changes(problem);
        changes.sort_unstable();
        return integrate(&changes);
    }
    let mut changes: Vec<Change> = Vec::with_capacity(2 * problem.blocks.len());
    for block in &problem.blocks {
        let bytes = i128::from(block.size);
        let length = block.length();
        if length == 0 || bytes == 0 {
            continue;
        }
        let Some(period) = problem.period.filter(|&period| period > 0) else {
            changes.push((block.lower, bytes));
            changes.push((block.upper, -bytes));
            continue;
        };
        let (whole, rest) = (length / period, length % period);
        if whole > 0 {
            changes.push((0, bytes * i128::from(whole)));
        }
        if rest > 0 {
            let start = block.lower % period;
            let end = (u128::from(start) + u128::from(rest)) % u128::from(period);
            // `end` is below the period, which is 64 bits wide.
            let end = end as u64;
            changes.push((start, bytes));
            changes.push((end, -bytes));
            if end < start {
                // It wraps, or ends with the period: alive from 0 on (where `end` is 0, the two cancel out).
                changes.push((0, bytes));
            }
        }
    }
    changes.sort_unstable();
    integrate(&changes)
}

/// Adds up sorted changes into a curve.
fn integrate(changes: &[Change]) -> Load {
    let mut load = Load::default();
    let mut live: i128 = 0;
    for group in changes.chunk_by(|a, b| a.0 == b.0) {
        let before = live;
        live += group.iter().map(|change| change.1).sum::<i128>();
        if live == before {
            continue;
        }
        let at = group[0].0;
        let bytes = u64::try_from(live).unwrap_or(u64::MAX);
        load.curve.push((at, bytes));
        if bytes > load.max {
            load.max = bytes;
            load.at = at;
        }
    }
    load
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Block;

    fn block(lower: u64, upper: u64, size: u64) -> Block {
        Block { id: 0, lower, upper, size, align: 1 }
    }

    #[test]
    fn the_curve_of_a_line_rises_and_falls() {
        let load =
            Problem { blocks: vec![block(0, 4, 3), block(2, 6, 5)], period: None, ..Problem::default() }
                .load();
        assert_eq!(load.curve, [(0, 3), (2, 8), (4, 5), (6, 0)]);
        assert_eq!((load.max, load.at), (8, 2));
    }

    #[test]
    fn a_block_that_wraps_is_alive_at_both_ends() {
        let load =
            Problem { blocks: vec![block(8, 12, 3), block(1, 3, 5)], period: Some(10), ..Problem::default() }
                .load();
        assert_eq!(load.curve, [(0, 3), (1, 8), (2, 5), (3, 0), (8, 3)]);
        assert_eq!((load.max, load.at), (8, 1));
    }

    #[test]
    fn a_block_up_to_the_end_of_the_period_does_not_wrap() {
        let load = Problem { blocks: vec![block(8, 10, 3)], period: Some(10), ..Problem::default() }.load();
        assert_eq!(load.curve, [(8, 3)]);
    }

    #[test]
    fn a_block_longer_than_the_period_counts_with_multiplicity() {
        let load = Problem { blocks: vec![block(2, 15, 7)], period: Some(10), ..Problem::default() }.load();
        assert_eq!(load.curve, [(0, 7), (2, 14), (5, 7)]);
    }

    #[test]
    fn blocks_without_length_or_size_weigh_nothing() {
        let load =
            Problem { blocks: vec![block(3, 3, 9), block(1, 5, 0)], period: None, ..Problem::default() }
                .load();
        assert_eq!(load, Load::default());
    }

    #[test]
    fn an_absurd_problem_saturates() {
        let load = Problem {
            blocks: vec![block(0, 2, u64::MAX), block(0, 2, u64::MAX)],
            period: None,
            ..Problem::default()
        }
        .load();
        assert_eq!(load.max, u64::MAX);
    }
}
