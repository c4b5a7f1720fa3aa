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

use std::cmp::Reverse;

use care::Care;
use start::{Start, load, stack};

use crate::bins::Taste;
use crate::forest::Forest;
use crate::online::{Manner, View, sweep};
use crate::order::Order;
use crate::skyline;
use crate::timeline::Timeline;
use crate::tower;

/// Work of placing one block by a sweep, and by a sweep round given blocks: as the measured times are to each other, the
/// first 0.2 microseconds.
const SWEPT: u64 = 2;
const FILLED: u64 = 3;

/// Work of a skyline of so many blocks: 0.3 microseconds for each of 500, 1 of 20,000, 2 of 100,000.
fn skyline_work(count: u64) -> u64 {
    count * (2 + count.isqrt() / 16)
}

/// Blocks up to which skylines of all of them are tried, each a microsecond or two for a block.
const SMALL: u64 = 200_000;

/// Orders of skylines, the most successful first.
const ORDERS: [Order; 4] = [Order::Length, Order::Area, Order::Start, Order::Size];

/// Which part of the bound's bytes makes a block a large one. Blocks of a byte more than that are so few at any moment,
/// and so hard to find room for, that how they lie decides.
const LARGE: [u64; 4] = [256, 512, 128, 1024];

/// Of all bytes and events, the part in large blocks from which on they are placed first.
const HEAVY: u128 = 4;

/// Of how many blocks one is placed with care, each tried in turn.
const SHARES: [usize; 5] = [64, 32, 16, 8, 4];

/// Hundredths of all bytes and events that hang from the ceiling: the smallest blocks. More of them round given blocks,
/// where looking for a gap takes longest.
const HUNG: [u64; 3] = [2, 8, 0];
const HUNG_ROUND: u64 = 5;

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

/// One sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Try {
    /// What has its offsets before.
    care: Option<Care>,
    backward: bool,
    taste: Taste,
    /// Hundredths of all bytes and events.
    hung: u64,
}

impl Try {
    /// What is left of a plan's name where nothing is placed with care.
    fn name(self) -> String {
        let taste = if self.taste == Taste::Tight { "tight " } else { "" };
        let way = if self.backward { "backward" } else { "forward" };
        match self.care {
            None => format!("{taste}sweep {way}"),
            Some(care) => format!("{taste}sweep {way} round {care}"),
        }
    }
}

/// The sweeps to try: with nothing placed before, and round what was placed with care, the most promising last of each.
fn tries(timeline: &Timeline, bound: u64) -> [Vec<Try>; 2] {
    let both = |care, hung| [true, false].map(|backward| Try { care, backward, taste: Taste::Alike, hung });
    let mut plain: Vec<Try> = HUNG.iter().flat_map(|&hung| both(None, hung)).collect();
    plain.extend([false, true].map(|backward| Try { care: None, backward, taste: Taste::Tight, hung: 0 }));
    let bytes = LARGE.iter().map(|&part| Care::Bytes((bound / part).max(1)));
    let shares = SHARES.iter().flat_map(|&share| [Care::Size(share), Care::Area(share)]);
    let cares: Vec<Care> = bytes.chain(shares).filter(|care| care.any(timeline)).collect();
    let mut round: Vec<Try> = cares.into_iter().flat_map(|care| both(Some(care), HUNG_ROUND)).collect();
    plain.reverse();
    round.reverse();
    [plain, round]
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

/// Sweeps of one timeline, one after the other.
struct Sweeps<'a> {
    timeline: &'a Timeline,
    bound: u64,
    start: Start,
    /// What is still to try, the next one last; without and with care, and the least height of either in bytes.
    tries: [Vec<Try>; 2],
    least: [u64; 2],
    /// What was placed with care last.
    placed: Option<care::Placed>,
    /// Offsets by item, of the sweep on trial.
    trial: Vec<u64>,
}

impl<'a> Sweeps<'a> {
    fn new(timeline: &'a Timeline, bound: u64) -> Sweeps<'a> {
        let area = |at_least: u64| {
            let items = timeline.items.iter().filter(|item| item.size >= at_least);
            items.map(|item| u128::from(item.size) * u128::from(item.upper - item.lower)).sum::<u128>()
        };
        let heavy = area(bound / LARGE[0]) >= area(0) / HEAVY;
        Sweeps {
            timeline,
            bound,
            start: Start::new(timeline),
            tries: tries(timeline, bound),
            // Each is tried once, the more promising first, and then the lower one again.
            least: [u64::from(heavy), u64::from(!heavy)],
            placed: None,
            trial: vec![0; timeline.items.len()],
        }
    }

    fn count(&self) -> u64 {
        self.timeline.items.len() as u64
    }

    /// A placement in nearly linear time.
    fn first(&mut self, work: &mut Work) -> Placement {
        // Blocks given before may make a sweep too much work.
        for _ in 0..2 {
            if let Some(next) = self.next()
                && let Some(height) = self.run(next, u64::MAX, work)
            {
                return Placement { offsets: self.trial.clone(), height, name: next.name() };
            }
        }
        // This is always valid, and never too much.
        let order = Order::Length.sort(self.timeline);
        let height = tower::place(self.timeline, &order, u64::MAX, &mut self.trial).unwrap_or(u64::MAX);
        Placement { offsets: self.trial.clone(), height, name: String::from("tower by length") }
    }

    /// The sweep to try next.
    fn next(&mut self) -> Option<Try> {
        let [plain, round] = self.least;
        let [first, other] = if plain <= round { [0, 1] } else { [1, 0] };
        self.tries[first].pop().or_else(|| self.tries[other].pop())
    }

    /// One sweep, into `trial`. Returns its height in bytes, where it is less than `limit`.
    fn run(&mut self, next: Try, limit: u64, work: &mut Work) -> Option<u64> {
        let timeline = self.timeline;
        let manner = Manner { taste: next.taste, hung: smallest(timeline, next.hung) };
        let view = self.start.view(timeline, next.backward);
        let (kind, cost, (height, placed)) = if let Some(care) = next.care {
            if self.placed.as_ref().is_none_or(|placed| placed.care != care) {
                self.placed = care::place(timeline, care, &self.start, limit, work);
            }
            let swept = self.placed.as_ref().map(|placed| {
                let given = placed.give(&mut self.trial);
                let given = |item: u32| given[item as usize];
                sweep(timeline, view, manner, given, limit, &mut self.trial)
            });
            (1, FILLED, swept.unwrap_or((None, 0)))
        } else {
            let given = self.start.give(timeline, &mut self.trial);
            let given = |item: u32| given[item as usize];
            (0, SWEPT, sweep(timeline, view, manner, given, limit, &mut self.trial))
        };
        work.left = work.left.saturating_sub(cost * placed);
        let least = &mut self.least[kind];
        let this = height.unwrap_or(limit);
        *least = if *least < 2 { this } else { this.min(*least) };
        height
    }

    /// Tries to bring a placement down, until it is no higher than the bound or the work is done.
    fn improve(&mut self, best: &mut Placement, work: &mut Work) {
        let count = self.count();
        let timeline = self.timeline;
        let mut forest = None;
        for order in ORDERS.into_iter().filter(|_| count <= SMALL) {
            if best.height <= self.bound || work.left < skyline_work(count) || (work.stop)() {
                return;
            }
            let forest = forest.get_or_insert_with(|| Forest::new(timeline));
            forest.fill(&order.sort(timeline));
            let (height, placed) = skyline::place(timeline, forest, best.height, &mut self.trial);
            // What is given up early costs less.
            work.left -= skyline_work(count) * placed / count.max(1);
            self.offer(height, best, || format!("skyline by {}", order.name()));
        }
        while let Some(next) = self.next() {
            if best.height <= self.bound || work.left < FILLED * count || (work.stop)() {
                return;
            }
            let height = self.run(next, best.height, work);
            self.offer(height, best, || next.name());
        }
        if !timeline.circular() && best.height > self.bound && work.left >= 2 * SWEPT * count {
            work.left -= 2 * SWEPT * count;
            let (height, _) = outward(timeline, best.height, &mut self.trial);
            self.offer(height, best, || String::from("sweep outward"));
        }
    }

    /// Takes the trial as the best, if it is a placement lower than that.
    fn offer(&self, height: Option<u64>, best: &mut Placement, name: impl FnOnce() -> String) {
        if let Some(height) = height.filter(|&height| height < best.height) {
            *best = Placement { offsets: self.trial.clone(), height, name: name() };
        }
    }
}

/// The size below which blocks have so many hundredths of all bytes and events.
fn smallest(timeline: &Timeline, share: u64) -> u64 {
    // By size, eight to a power of two.
    let class =
        |size: u64| (size.ilog2() as usize) << 3 | (u128::from(size) << 3 >> size.ilog2() & 7) as usize;
    let mut areas = [0u128; 64 << 3];
    for item in &timeline.items {
        areas[class(item.size)] += u128::from(item.size) * u128::from(item.upper - item.lower);
    }
    let most = areas.iter().sum::<u128>() / 100 * u128::from(share);
    let mut sum = 0;
    let fits = |&&area: &&u128| {
        sum += area;
        sum <= most
    };
    let classes = areas.iter().take_while(fits).count() as u64;
    if share == 0 {
        return 0;
    }
    // The least size of the class that does not fit.
    ((8 | classes & 7) << (classes >> 3)) >> 3
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
    let manner = Manner { taste: Taste::Alike, hung: smallest(timeline, HUNG[0]) };
    for backward in [false, true] {
        let view = View { from: peak, backward };
        let given = |item: u32| given[item as usize];
        if let Some(before) = height {
            let (half, some) = sweep(timeline, view, manner, given, limit, offsets);
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
