//! Problems of many blocks: a plan in nearly linear time, and effort only where the height is made.
//!
//! One sweep over time ([`crate::online`]) places everything. Where no block crosses a moment, the problem falls into
//! *parts* that share nothing; only the highest part is worked on, until it is no longer the highest or its tries are
//! used up. A try is a skyline, a sweep from the other end or outward from the peak, or a skyline of the largest blocks
//! alone, whose holes a sweep fills with all the others: what is large is placed with care, what is small fits anywhere.
//! Work is counted, not timed, so that the same problem gives the same plan everywhere.

use std::cmp::Reverse;

use crate::bins::Taste;
use crate::forest::Forest;
use crate::online::{View, sweep};
use crate::order::Order;
use crate::skyline;
use crate::timeline::{Timeline, align_up};
use crate::tower;

/// Work of placing one block by a sweep, and by a sweep round given blocks: as the measured times are to each other, the
/// first 0.1 microseconds.
const SWEPT: u64 = 1;
const FILLED: u64 = 2;

/// Work of a skyline of so many blocks: 0.3 microseconds for each of 500, 1 of 20,000, 2 of 100,000.
fn skyline_work(count: u64) -> u64 {
    count * (2 + count.isqrt() / 16)
}

/// Of how many blocks one is placed with care, each tried in turn.
const SHARES: [usize; 5] = [64, 32, 16, 8, 4];

/// Orders of skylines, the most successful first.
const ORDERS: [Order; 4] = [Order::Length, Order::Area, Order::Start, Order::Size];

/// How much work the caller allows.
pub(crate) struct Work<'a> {
    /// Blocks swept, or what takes as long.
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
    let mut best = first(timeline, &mut work);
    if best.height > bound {
        let parts = parts(timeline);
        if let [part] = parts.as_slice() {
            debug_assert_eq!(part.len(), timeline.items.len());
            improve(timeline, &mut best, bound, &mut work);
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
                improve(&part, &mut placement, bound, &mut work);
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

/// A placement in linear time.
fn first(timeline: &Timeline, work: &mut Work) -> Placement {
    let mut offsets = vec![0; timeline.items.len()];
    let start = Start::new(timeline);
    let given = start.give(timeline, &mut offsets);
    work.left = work.left.saturating_sub(SWEPT * timeline.items.len() as u64);
    let view = start.view(timeline, false);
    let swept = sweep(timeline, view, Taste::Beside, |item| given[item as usize], u64::MAX, &mut offsets);
    if let (Some(height), _) = swept {
        return Placement { offsets, height, name: String::from("sweep forward") };
    }
    // Blocks that wrap made the sweep too much work. This is always valid, and never too much.
    let order = Order::Length.sort(timeline);
    let height = tower::place(timeline, &order, u64::MAX, &mut offsets).unwrap_or(u64::MAX);
    Placement { offsets, height, name: String::from("tower by length") }
}

/// Where sweeps begin.
struct Start {
    rank: u32,
    /// Items that live across it: none on a line.
    across: Vec<u32>,
}

impl Start {
    /// On a circle where the fewest bytes live.
    fn new(timeline: &Timeline) -> Start {
        if !timeline.circular() {
            return Start { rank: 0, across: Vec::new() };
        }
        let load = load(timeline);
        let rank = (0..timeline.ranks).min_by_key(|&rank| load[rank as usize]).unwrap_or(0);
        let across = |item: &u32| {
            let item = &timeline.items[*item as usize];
            item.lower < rank && rank < item.upper || item.upper > rank + timeline.ranks
        };
        let mut across: Vec<u32> = (0..timeline.items.len() as u32).filter(across).collect();
        across.sort_by_key(|&item| Reverse(timeline.items[item as usize].length));
        Start { rank, across }
    }

    fn view(&self, timeline: &Timeline, backward: bool) -> View {
        View { from: if backward && !timeline.circular() { timeline.ranks } else { self.rank }, backward }
    }

    /// Puts what lives across the start at the bottom. Returns, by item, whether it has its offset.
    fn give(&self, timeline: &Timeline, offsets: &mut [u64]) -> Vec<bool> {
        stack(timeline, &self.across, offsets)
    }
}

/// Puts items one on another. Returns, by item, whether it is one of them.
fn stack(timeline: &Timeline, items: &[u32], offsets: &mut [u64]) -> Vec<bool> {
    let mut given = vec![false; timeline.items.len()];
    let mut top = 0;
    for &index in items {
        let item = &timeline.items[index as usize];
        let offset = align_up(top, item.align);
        (offsets[index as usize], given[index as usize]) = (offset, true);
        top = offset + item.size;
    }
    given
}

/// Live bytes by rank.
fn load(timeline: &Timeline) -> Vec<u64> {
    let ranks = timeline.ranks as usize;
    // Changes modulo 2^64: their sums are bytes alive.
    let mut load = vec![0u64; ranks + 1];
    let mut change = |rank: usize, bytes: u64| load[rank] = load[rank].wrapping_add(bytes);
    for item in &timeline.items {
        let (lower, upper) = (item.lower as usize, item.upper as usize);
        change(lower, item.size);
        if upper > ranks {
            change(0, item.size);
            change(upper - ranks, item.size.wrapping_neg());
        } else {
            change(upper, item.size.wrapping_neg());
        }
    }
    let mut live = 0u64;
    for bytes in &mut load {
        live = live.wrapping_add(*bytes);
        *bytes = live;
    }
    load.truncate(ranks);
    load
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

/// Tries to bring a placement down, until it is no higher than `bound` or the work is done.
fn improve(timeline: &Timeline, best: &mut Placement, bound: u64, work: &mut Work) {
    let count = timeline.items.len() as u64;
    let start = Start::new(timeline);
    let mut trial = vec![0; timeline.items.len()];
    let mut go = |cost: u64, name: &str, best: &mut Placement, place: &mut Try| -> bool {
        if best.height <= bound || cost > work.left || (work.stop)() {
            return false;
        }
        let (height, placed) = place(best.height, &mut trial);
        // What is given up early costs less.
        work.left -= (cost * placed / count.max(1)).clamp(cost / 16, cost);
        if let Some(height) = height {
            *best = Placement { offsets: trial.clone(), height, name: name.to_owned() };
        }
        true
    };

    let mut forest = None;
    for order in ORDERS.into_iter().filter(|_| count <= SMALL) {
        let forest = forest.get_or_insert_with(|| Forest::new(timeline));
        let mut place = |limit, offsets: &mut [u64]| {
            forest.fill(&order.sort(timeline));
            skyline::place(timeline, forest, limit, offsets)
        };
        go(skyline_work(count), &format!("skyline by {}", order.name()), best, &mut place);
    }
    for (backward, taste) in [(true, Taste::Beside), (false, Taste::Tight), (true, Taste::Tight)] {
        // Of a million blocks, the rest of the work goes to the largest.
        if taste == Taste::Tight && count > SMALL {
            continue;
        }
        let mut place = |limit, offsets: &mut [u64]| {
            let given = start.give(timeline, offsets);
            let view = start.view(timeline, backward);
            sweep(timeline, view, taste, |item| given[item as usize], limit, offsets)
        };
        let name = if backward { "sweep backward" } else { "sweep forward" };
        go(SWEPT * count, name, best, &mut place);
    }
    for share in SHARES {
        let size = |item: u32| timeline.items[item as usize].size;
        for square in [false, true] {
            let weight = |item: u32| {
                let length = if square { u128::from(timeline.items[item as usize].length) } else { 1 };
                // The size twice, as the length may differ by more than it: what is small finds room later.
                (u128::from(size(item)) * length, size(item), Reverse(item))
            };
            fill(timeline, &start, (share, square), weight, best, &mut go);
        }
    }
    if !timeline.circular() {
        go(2 * SWEPT * count, "sweep outward", best, &mut |limit, offsets| outward(timeline, limit, offsets));
    }
}

/// Blocks up to which skylines of all of them are tried, each a microsecond or two for a block.
const SMALL: u64 = 200_000;

/// Places a timeline below a height, into offsets by item; returns the height, and how many were placed.
type Try<'a> = dyn FnMut(u64, &mut [u64]) -> (Option<u64>, u64) + 'a;

/// The largest blocks by skylines, the others in their holes by sweeps.
fn fill<W: Ord>(
    timeline: &Timeline,
    start: &Start,
    (share, square): (usize, bool),
    weight: impl Fn(u32) -> W,
    best: &mut Placement,
    go: &mut impl FnMut(u64, &str, &mut Placement, &mut Try) -> bool,
) {
    let count = timeline.items.len();
    let some = (count / share).max(1);
    let mut items: Vec<u32> = Vec::new();
    let mut large = Timeline::default();
    let mut chosen: Option<(u64, Vec<u64>)> = None;
    let mut going = true;
    for order in [Order::Length, Order::Area] {
        // Never better than the best in its own right: the others are not placed yet.
        going = going
            && go(skyline_work(some as u64), "", best, &mut |limit, _| {
                if items.is_empty() {
                    items = (0..count as u32).collect();
                    items.select_nth_unstable_by_key(some - 1, |&item| Reverse(weight(item)));
                    items.truncate(some);
                    items.extend_from_slice(&start.across);
                    items.sort_unstable();
                    items.dedup();
                    large = timeline.of(&items);
                }
                let mut forest = Forest::new(&large);
                forest.fill(&order.sort(&large));
                let mut offsets = vec![0; items.len()];
                let limit = chosen.as_ref().map_or(limit, |chosen| chosen.0);
                if let (Some(height), _) = skyline::place(&large, &mut forest, limit, &mut offsets) {
                    chosen = Some((height, offsets));
                }
                (None, count as u64)
            });
    }
    let Some((_, placed)) = chosen.filter(|_| going) else {
        return;
    };
    let mut given = vec![false; count];
    items.iter().for_each(|&item| given[item as usize] = true);
    let name = format!("sweep round the largest 1/{share} by {}", if square { "area" } else { "size" });
    for backward in [false, true] {
        go(FILLED * count as u64, &name, best, &mut |limit, offsets| {
            items.iter().zip(&placed).for_each(|(&item, &offset)| offsets[item as usize] = offset);
            let view = start.view(timeline, backward);
            sweep(timeline, view, Taste::Beside, |item| given[item as usize], limit, offsets)
        });
    }
}

/// What lives at the peak of a line side by side, the rest by sweeps from there to either end.
fn outward(timeline: &Timeline, limit: u64, offsets: &mut [u64]) -> (Option<u64>, u64) {
    let load = load(timeline);
    let peak = (0..timeline.ranks).max_by_key(|&rank| (load[rank as usize], Reverse(rank))).unwrap_or(0);
    let alive = |item: &u32| {
        let item = &timeline.items[*item as usize];
        item.lower <= peak && peak < item.upper
    };
    let mut items: Vec<u32> = (0..timeline.items.len() as u32).filter(alive).collect();
    items.sort_by_key(|&item| Reverse(timeline.items[item as usize].length));
    let given = stack(timeline, &items, offsets);
    let (mut height, mut placed) = (Some(0), 0);
    for backward in [false, true] {
        let view = View { from: peak, backward };
        let given = |item: u32| given[item as usize];
        if let Some(before) = height {
            let (half, some) = sweep(timeline, view, Taste::Beside, given, limit, offsets);
            (height, placed) = (half.map(|half| half.max(before)), placed + some);
        }
    }
    (height, placed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bound;
    use crate::generate;
    use crate::problem::{Block, Problem};
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
        fn every_sweep_from_either_end_is_valid(problem in problems()) {
            let timeline = Timeline::new(&problem);
            let start = Start::new(&timeline);
            let mut offsets = vec![0; timeline.items.len()];
            for taste in [Taste::Tight, Taste::Beside, Taste::Alike] {
                for backward in [false, true] {
                    let given = start.give(&timeline, &mut offsets);
                    let given = |item: u32| given[item as usize];
                    let view = start.view(&timeline, backward);
                    let (height, _) = sweep(&timeline, view, taste, given, u64::MAX, &mut offsets);
                    prop_assert_eq!(check(&problem, &timeline, &offsets, height.expect("few blocks")), Ok(()));
                }
            }
            if !timeline.circular() && !timeline.items.is_empty() {
                let (height, _) = outward(&timeline, u64::MAX, &mut offsets);
                prop_assert_eq!(check(&problem, &timeline, &offsets, height.expect("few blocks")), Ok(()));
            }
        }

        #[test]
        fn a_sweep_keeps_the_room_of_given_blocks_free(problem in problems(), nth in 1usize..5) {
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
                let (height, _) = sweep(&timeline, view, Taste::Beside, given, u64::MAX, &mut offsets);
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
