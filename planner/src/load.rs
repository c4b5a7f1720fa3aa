//! The load: live bytes over time, and its maximum.
//!
//! One sweep over the starts and ends: by a table of all times where there are few, by sorting them in linear time else.
//! On a circle the blocks that wrap are alive at time 0 already, and a block longer than the period counts once more for
//! each whole period it lasts. What constraints make of it is the business of `needs`.

use crate::needs::Needs;
use crate::pieces::Families;
use crate::problem::{Block, Problem};
use crate::radix;

/// Live bytes over time, a step function.
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
    of(problem, &Survey::new(problem), true)
}

/// The largest load of a problem and where it is, without the curve: a million blocks have one of 32 MB.
pub(crate) fn peak(problem: &Problem, survey: &Survey) -> Load {
    of(problem, survey, false)
}

fn of(problem: &Problem, survey: &Survey, keep: bool) -> Load {
    if !problem.constraints.is_empty()
        && problem.check().is_ok()
        && let Ok(families) = Families::new(problem)
    {
        let mut changes = Needs::new(problem, families).changes(problem);
        changes.sort_unstable();
        return integrate(&changes);
    }
    let curve = Curve::new(keep, 2 * problem.blocks.len());
    match survey.end {
        Some(0) => Load::default(),
        Some(end) if end <= DENSE * problem.blocks.len() as u64 => dense(problem, end, curve),
        Some(_) => sparse(problem, curve),
        None => unsound(problem),
    }
}

/// Times per block up to which a table of all times is faster than sorted ends: recorded steps have two.
const DENSE: u64 = 4;

/// What one look at all blocks tells; a million of them are 40 MB, and every look takes milliseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Survey {
    /// The end of the last lifetime, or the period, where sums of sizes stay below 2^64 and no block meets itself.
    end: Option<u64>,
    /// The largest block's size and start, the first of those.
    pub largest: (u64, u64),
    /// A bit for each alignment that a block has.
    pub aligns: u64,
    /// A bit for each power of two to which a block is aligned, but of which its size is no multiple.
    pub ragged: u64,
}

impl Survey {
    pub fn new(problem: &Problem) -> Survey {
        let mut survey = Survey::default();
        let period = problem.period.unwrap_or(u64::MAX);
        let (mut bytes, mut end, mut sound) = (0u128, 0, period > 0);
        for block in &problem.blocks {
            bytes += u128::from(block.size);
            sound &= block.lower < period && block.length() <= period;
            end = end.max(block.upper);
            if block.size > survey.largest.0 {
                survey.largest = (block.size, block.lower);
            }
            survey.aligns |= block.align;
            // Bits up to the alignment's, without those up to the lowest of the size.
            let up_to = |bit: u64| bit | bit.wrapping_sub(1);
            let lowest = block.size & block.size.wrapping_neg();
            survey.ragged |= up_to(block.align) & !up_to(lowest);
        }
        let sound = sound && bytes < u128::from(u64::MAX) && end < u64::MAX;
        survey.end = sound.then(|| problem.period.unwrap_or(end));
        survey
    }
}

/// Blocks with a length and a size.
fn alive(problem: &Problem) -> impl Iterator<Item = &Block> {
    problem.blocks.iter().filter(|block| block.size > 0 && block.upper > block.lower)
}

/// A curve under way.
struct Curve {
    load: Load,
    live: u64,
    /// Whether more than the maximum is wanted.
    keep: bool,
}

impl Curve {
    fn new(keep: bool, most: usize) -> Curve {
        let curve = Vec::with_capacity(if keep { most } else { 0 });
        Curve { load: Load { curve, ..Load::default() }, live: 0, keep }
    }

    /// From `at` on, so many bytes are alive.
    fn goes_to(&mut self, at: u64, live: u64) {
        if live == self.live {
            return;
        }
        self.live = live;
        if self.keep {
            self.load.curve.push((at, live));
        }
        if live > self.load.max {
            (self.load.max, self.load.at) = (live, at);
        }
    }
}

/// The load by a table of all times up to `end`; changes are added modulo 2^64, and their sums are bytes alive.
fn dense(problem: &Problem, end: u64, mut curve: Curve) -> Load {
    let mut changes = vec![0u64; end as usize + 1];
    let mut change = |at: u64, bytes: u64| {
        let sum = &mut changes[at as usize];
        *sum = sum.wrapping_add(bytes);
    };
    for block in alive(problem) {
        change(block.lower, block.size);
        let mut upper = block.upper;
        if upper > end {
            change(0, block.size);
            upper -= end;
        }
        change(upper, block.size.wrapping_neg());
    }
    let mut live = 0u64;
    // On a circle nothing happens at the period's end that does not at its beginning.
    let last = if problem.period.is_some() { end } else { end + 1 };
    for (at, &bytes) in (0..last).zip(&changes) {
        live = live.wrapping_add(bytes);
        curve.goes_to(at, live);
    }
    curve.load
}

/// The load by starts and ends, sorted.
fn sparse(problem: &Problem, mut curve: Curve) -> Load {
    let period = problem.period.unwrap_or(u64::MAX);
    let mut starts: Vec<(u64, u64)> = Vec::new();
    let mut ends: Vec<(u64, u64)> = Vec::new();
    for block in alive(problem) {
        if block.upper > period {
            starts.push((0, block.size));
        }
        if block.upper != period {
            ends.push((if block.upper > period { block.upper - period } else { block.upper }, block.size));
        }
    }
    starts.extend(alive(problem).map(|block| (block.lower, block.size)));
    radix::sort(&mut starts);
    radix::sort(&mut ends);
    let mut live = 0u64;
    let (mut starts, mut ends) = (starts.into_iter().peekable(), ends.into_iter().peekable());
    while let Some(at) = starts.peek().into_iter().chain(ends.peek()).map(|edge| edge.0).min() {
        // Sums modulo 2^64, so in any order.
        while let Some((_, bytes)) = starts.next_if(|edge| edge.0 == at) {
            live = live.wrapping_add(bytes);
        }
        while let Some((_, bytes)) = ends.next_if(|edge| edge.0 == at) {
            live = live.wrapping_sub(bytes);
        }
        curve.goes_to(at, live);
    }
    curve.load
}

/// What a block longer than the period counts at most: far beyond 64 bits, and the sum of all blocks is below 128.
const MOST: i128 = 1 << 96;

/// The load of a problem that fails its check, too.
fn unsound(problem: &Problem) -> Load {
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
            changes.push((0, bytes.saturating_mul(i128::from(whole)).min(MOST)));
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
    use proptest::prelude::*;

    use super::*;

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

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn tables_sorted_ends_and_wide_sums_agree(
            rows in prop::collection::vec((0u64..40, 0u64..41, 0u64..9), 0..40),
            period in prop::option::of(Just(40u64)),
        ) {
            let blocks = rows.iter().map(|&(lower, length, size)| block(lower, lower + length, size)).collect();
            let problem = Problem::new(blocks).with_period(period);
            let expected = unsound(&problem);
            let survey = Survey::new(&problem);
            let end = survey.end.expect("sound");
            prop_assert_eq!(&dense(&problem, end, Curve::new(true, 0)), &expected);
            prop_assert_eq!(&sparse(&problem, Curve::new(true, 0)), &expected);
            prop_assert_eq!(&sweep(&problem), &expected);
            let peak = peak(&problem, &survey);
            prop_assert_eq!((peak.max, peak.at), (expected.max, expected.at));
        }
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
