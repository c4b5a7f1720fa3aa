//! Problems of many blocks: a plan in nearly linear time, and effort only where the height is made.
//!
//! One sweep over time ([`crate::online`]) places everything. Where no block crosses a moment, the problem falls into
//! *parts* that share nothing; only the highest part is worked on, until it is no longer the highest or its tries are
//! used up. A try is a skyline, or a sweep, from either end or outward from the peak. What is large beside the bound a
//! skyline may place with care before, as only few of it are alive at once: a sweep then fills the holes with the others.
//! What is small hangs from the ceiling. Work is counted, not timed, so that the same problem gives the same plan
//! everywhere.

mod care;
mod start;
mod sweeps;
mod tries;

use std::cmp::Reverse;

use sweeps::Sweeps;

use crate::order::Order;
use crate::timeline::Timeline;

/// Work of placing one block by a sweep, and by a sweep round given blocks: as the measured times are to each other, the
/// first 0.2 microseconds.
const SWEPT: u64 = 2;
const FILLED: u64 = 3;

/// Work of a skyline of so many blocks: 0.3 microseconds for each of 500, 1 of 20,000, 2 of 100,000.
fn skyline_work(count: u64) -> u64 {
    count * (2 + count.isqrt() / 16)
}

/// Orders of skylines, the most successful first.
const ORDERS: [Order; 4] = [Order::Length, Order::Area, Order::Start, Order::Size];

/// How much work the caller allows.
pub(crate) struct Work<'a> {
    /// In units of half a block swept: see [`SWEPT`].
    pub left: u64,
    /// Whether the caller wants no more.
    pub stop: &'a dyn Fn() -> bool,
}

/// A placement of a timeline.
struct Placement {
    /// By item.
    offsets: Vec<u64>,
    height: u64,
    name: String,
}

/// Places all items into `offsets` (by item); tries nothing more at a height of `bound` or below. Returns the height in
/// bytes and what found it.
pub(crate) fn place(timeline: &Timeline, bound: u64, mut work: Work, offsets: &mut [u64]) -> (u64, String) {
    let mut sweeps = Sweeps::new(timeline, bound);
    let mut best = sweeps.first(&mut work);
    if best.height > bound {
        let parts = parts(timeline);
        if let [part] = parts.as_slice() {
            debug_assert_eq!(part.len(), timeline.items.len());
            sweeps.improve(&mut best, &mut work);
        } else {
            let mut heights: Vec<u64> =
                parts.iter().map(|part| height(timeline, part, &best.offsets)).collect();
            // The highest part first; what it cannot be brought below, the others need not be either.
            while let Some(highest) = (0..parts.len()).max_by_key(|&part| (heights[part], Reverse(part)))
                && heights[highest] > bound
            {
                let items = &parts[highest];
                let part = timeline.of(items);
                let mut placement = Placement {
                    offsets: items.iter().map(|&item| best.offsets[item as usize]).collect(),
                    height: heights[highest],
                    name: String::new(),
                };
                Sweeps::new(&part, bound).improve(&mut placement, &mut work);
                if placement.height == heights[highest] {
                    break;
                }
                heights[highest] = placement.height;
                for (&item, &offset) in items.iter().zip(&placement.offsets) {
                    best.offsets[item as usize] = offset;
                }
                best.name = format!("{}, in parts", placement.name);
            }
            best.height = heights.into_iter().max().unwrap_or(0);
        }
    }
    offsets.copy_from_slice(&best.offsets);
    (best.height, best.name)
}

/// The bytes some items reach up to.
fn height(timeline: &Timeline, items: &[u32], offsets: &[u64]) -> u64 {
    items.iter().map(|&item| offsets[item as usize] + timeline.items[item as usize].size).max().unwrap_or(0)
}

/// The items of each part: what lies between moments no item lives across. A circle is one part.
fn parts(timeline: &Timeline) -> Vec<Vec<u32>> {
    if timeline.circular() {
        return vec![(0..timeline.items.len() as u32).collect()];
    }
    // By rank: how many more items live across it than across the one before.
    let mut across = vec![0i64; timeline.ranks as usize + 2];
    for item in &timeline.items {
        across[item.lower as usize + 1] += 1;
        across[item.upper as usize] -= 1;
    }
    let (mut live, mut part) = (0, 0u32);
    let numbers: Vec<u32> = across
        .iter()
        .enumerate()
        .map(|(rank, change)| {
            live += change;
            part += u32::from(live == 0 && rank > 0);
            part
        })
        .collect();
    let mut parts: Vec<Vec<u32>> = vec![Vec::new(); part as usize + 1];
    for (index, item) in (0..).zip(&timeline.items) {
        parts[numbers[item.lower as usize] as usize].push(index);
    }
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::start::Start;
    use super::sweeps::outward;
    use super::*;
    use crate::bins::Taste;
    use crate::bound;
    use crate::generate;
    use crate::online::{Manner, sweep};
    use crate::problem::{Block, Problem};
    use crate::tower;
    use crate::verify::{Violation, verify};

    /// Whether offsets by item are a plan.
    fn check(problem: &Problem, timeline: &Timeline, by_item: &[u64], height: u64) -> Result<(), Violation> {
        let mut offsets = vec![0; problem.blocks.len()];
        for (item, &offset) in timeline.items.iter().zip(by_item) {
            offsets[item.block as usize] = offset;
        }
        let alone = problem.blocks.iter().map(|block| block.size).max().unwrap_or(0);
        verify(problem, &offsets, height.max(alone))
    }

    /// Blocks on a line or a circle of 40 events: crossing or laminar, of any or equal sizes; some with huge alignments,
    /// without length or size, or as long as the circle.
    fn problems() -> impl Strategy<Value = Problem> {
        let size = prop_oneof![1 => Just(0u64), 3 => Just(64), 3 => 1u64..200, 3 => 1u64..5000];
        let align = prop_oneof![6 => Just(0u32), 2 => 1u32..9, 1 => 20u32..30];
        let block = (0u64..40, 0u64..41, size, align);
        let rows = prop::collection::vec(block, 0..120);
        (rows, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(rows, periodic, laminar, equal)| {
            let blocks = (0..).zip(rows).map(|(id, (lower, length, size, log))| {
                let (lower, length) = if laminar {
                    let length = 1 << (length % 5);
                    (lower / length * length % 40, length)
                } else {
                    (lower, length)
                };
                let size = if equal { 64 } else { size };
                Block { id, lower, upper: lower + length, size, align: 1 << log }
            });
            Problem::new(blocks.collect()).with_period(periodic.then_some(40))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_sweep_from_either_end_is_valid(problem in problems(), hung in 0u64..300) {
            let timeline = Timeline::new(&problem);
            let start = Start::new(&timeline);
            let mut offsets = vec![0; timeline.items.len()];
            for taste in [Taste::Tight, Taste::Alike] {
                for backward in [false, true] {
                    let given = start.give(&timeline, &mut offsets);
                    let given = |item: u32| given[item as usize];
                    let view = start.view(&timeline, backward);
                    let (height, _) = sweep(&timeline, view, Manner { taste, hung }, given, u64::MAX, &mut offsets);
                    prop_assert_eq!(check(&problem, &timeline, &offsets, height.expect("few blocks")), Ok(()));
                }
            }
            if !timeline.circular() && !timeline.items.is_empty() {
                let (height, _) = outward(&timeline, u64::MAX, &mut offsets);
                prop_assert_eq!(check(&problem, &timeline, &offsets, height.expect("few blocks")), Ok(()));
            }
        }

        #[test]
        fn a_sweep_keeps_the_room_of_given_blocks_free(problem in problems(), nth in 1usize..5, hung in 0u64..300) {
            let timeline = Timeline::new(&problem);
            let start = Start::new(&timeline);
            let mut items: Vec<u32> = (0..timeline.items.len() as u32).step_by(nth).collect();
            items.extend_from_slice(&start.across);
            items.sort_unstable();
            items.dedup();
            let some = timeline.of(&items);
            let mut placed = vec![0; items.len()];
            tower::place(&some, &Order::Size.sort(&some), u64::MAX, &mut placed).expect("no limit");
            for backward in [false, true] {
                let mut offsets = vec![0; timeline.items.len()];
                items.iter().zip(&placed).for_each(|(&item, &offset)| offsets[item as usize] = offset);
                let before = offsets.clone();
                let given = |item: u32| items.binary_search(&item).is_ok();
                let view = start.view(&timeline, backward);
                let (height, _) = sweep(&timeline, view, Manner { taste: Taste::Alike, hung }, given, u64::MAX, &mut offsets);
                prop_assert_eq!(check(&problem, &timeline, &offsets, height.expect("few blocks")), Ok(()));
                prop_assert!(items.iter().all(|&item| offsets[item as usize] == before[item as usize]));
            }
        }

        #[test]
        fn towers_are_valid_in_every_order(problem in problems()) {
            let timeline = Timeline::new(&problem);
            let mut offsets = vec![0; timeline.items.len()];
            for order in Order::ALL {
                let height = tower::place(&timeline, &order.sort(&timeline), u64::MAX, &mut offsets);
                prop_assert_eq!(check(&problem, &timeline, &offsets, height.expect("no limit")), Ok(()));
            }
        }

        #[test]
        fn all_tries_together_are_valid(problem in problems(), left in 0u64..20_000) {
            let timeline = Timeline::new(&problem);
            let mut offsets = vec![0; timeline.items.len()];
            let bound = bound::of(&problem).bytes;
            let (height, _) = place(&timeline, bound, Work { left, stop: &|| false }, &mut offsets);
            prop_assert_eq!(check(&problem, &timeline, &offsets, height), Ok(()));
        }
    }

    #[test]
    fn the_largest_first_beats_a_sweep_where_sizes_are_mixed() {
        let problem = generate::malloc_like(20_000, 7);
        let timeline = Timeline::new(&problem);
        let mut offsets = vec![0; timeline.items.len()];
        let bound = bound::of(&problem).bytes;
        let mut ratio = |left| {
            let (height, _) = place(&timeline, bound, Work { left, stop: &|| false }, &mut offsets);
            height as f64 / bound as f64
        };
        let (swept, tried) = (ratio(0), ratio(4_000_000));
        assert!(tried < swept && tried < 1.06, "{tried} after {swept}");
    }

    #[test]
    fn moments_no_block_crosses_part_a_line() {
        let block = |lower, upper| Block { id: 0, lower, upper, size: 1, align: 1 };
        let problem = Problem::new(vec![block(0, 4), block(2, 5), block(5, 7), block(6, 9), block(20, 21)]);
        assert_eq!(parts(&Timeline::new(&problem)), [vec![0, 1], vec![2, 3], vec![4]]);
    }
}
