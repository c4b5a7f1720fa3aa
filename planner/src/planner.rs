//! The planner: runs the placements in several orders, improves the best, and says how good it is.
//!
//! Everything is counted in placements, so that the same problem and settings give the same plan on every machine; a
//! clock is read only where the caller sets a time limit. It stops as soon as the height is the lower bound.

use std::time::{Duration, Instant};

use crate::constrained;
use crate::fit::{Fit, Floor};
use crate::forest::Forest;
use crate::improve::Walk;
use crate::order::Order;
use crate::plan::{Plan, Proof};
use crate::problem::{Problem, ProblemError};
use crate::skyline;
use crate::timeline::Timeline;

/// How much work a plan is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Effort {
    /// Skylines only: for planning in the middle of a program's run.
    Quick,
    /// All placements and a bounded improvement: 300 blocks in milliseconds, 10,000 in seconds.
    #[default]
    Normal,
    /// Fifty times the improvement of [`Effort::Normal`].
    Thorough,
}

impl Effort {
    /// How many blocks the improvement of `count` blocks may place.
    ///
    /// A placement takes 0.2 to 2 microseconds here, more of them the more blocks there are: about 1 ms for 300 blocks,
    /// a second for 10,000.
    pub(crate) fn placements(self, count: u64) -> u64 {
        let normal = 10 * count + (count * count / 100).min(500_000);
        match self {
            Effort::Quick => 0,
            Effort::Normal => normal,
            Effort::Thorough => 50 * normal,
        }
    }
}

/// Plans problems. Cheap to make; a builder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Planner {
    effort: Effort,
    time_limit: Option<Duration>,
}

impl Planner {
    /// A planner of [`Effort::Normal`] without a time limit.
    pub fn new() -> Planner {
        Planner::default()
    }

    /// A planner of [`Effort::Quick`].
    pub fn quick() -> Planner {
        Planner::new().effort(Effort::Quick)
    }

    /// Sets how much work a plan is worth.
    #[must_use]
    pub fn effort(mut self, effort: Effort) -> Planner {
        self.effort = effort;
        self
    }

    /// Stops after about this wall time with the best plan so far (at least one placement is always run). Plans under a
    /// time limit may differ from run to run.
    #[must_use]
    pub fn time_limit(mut self, limit: Option<Duration>) -> Planner {
        self.time_limit = limit;
        self
    }

    /// Plans a problem.
    ///
    /// # Errors
    /// What [`Problem::check`] finds.
    pub fn plan(&self, problem: &Problem) -> Result<Plan, ProblemError> {
        problem.check()?;
        if !problem.constraints.is_empty() {
            return Ok(constrained::plan(problem, self.effort, self.deadline()));
        }
        let mut search = Search::new(problem, self.time_limit);
        search.run(self.effort);
        Ok(search.into_plan(problem))
    }

    /// How much work a plan is worth.
    pub(crate) fn worth(&self) -> Effort {
        self.effort
    }

    /// When to stop.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.time_limit.and_then(|limit| Instant::now().checked_add(limit))
    }
}

/// The best placement of a timeline found so far.
struct Search {
    timeline: Timeline,
    bound: u64,
    /// By item.
    offsets: Vec<u64>,
    height: u64,
    algorithm: String,
    deadline: Option<Instant>,
}

impl Search {
    fn new(problem: &Problem, limit: Option<Duration>) -> Search {
        let timeline = Timeline::new(problem);
        Search {
            offsets: vec![0; timeline.items.len()],
            bound: problem.lower_bound().bytes,
            height: u64::MAX,
            algorithm: String::from("nothing to place"),
            deadline: limit.and_then(|limit| Instant::now().checked_add(limit)),
            timeline,
        }
    }

    /// Whether there is no point or no time in going on.
    fn done(&self) -> bool {
        self.height <= self.bound
            || (self.height != u64::MAX && self.deadline.is_some_and(|deadline| Instant::now() >= deadline))
    }

    fn run(&mut self, effort: Effort) {
        if self.timeline.items.is_empty() {
            return;
        }
        let mut offsets = vec![0; self.timeline.items.len()];
        let mut forest = Forest::new(&self.timeline);
        // The order of the lowest skyline, and what became of it.
        let mut start: Option<(Order, u64, Vec<u64>)> = None;
        for order in Order::ALL {
            if self.done() {
                return;
            }
            forest.fill(&order.sort(&self.timeline));
            if let (Some(height), _) = skyline::place(&self.timeline, &mut forest, u64::MAX, &mut offsets) {
                self.offer(&offsets, height, || format!("skyline by {}", order.name()));
                if start.as_ref().is_none_or(|&(_, best, _)| height < best) {
                    start = Some((order, height, offsets.clone()));
                }
            }
        }
        if effort == Effort::Quick {
            return;
        }
        let mut floor = Floor::default();
        for fit in [Fit::First, Fit::Best] {
            for order in Order::ALL {
                if self.done() {
                    return;
                }
                let sorted = order.sort(&self.timeline);
                if let Some(height) = floor.place(&self.timeline, &sorted, fit, self.height, &mut offsets) {
                    self.offer(&offsets, height, || format!("{} fit by {}", fit.name(), order.name()));
                }
            }
        }
        if let Some((order, height, offsets)) = start {
            let walk = Walk::new(order.sort(&self.timeline), offsets, height);
            self.walk(walk, &mut forest, order, effort.placements(self.timeline.items.len() as u64));
        }
    }

    /// Walks on from the best skyline until so many blocks were placed.
    fn walk(&mut self, mut walk: Walk, forest: &mut Forest, order: Order, budget: u64) {
        let mut placements = 0;
        while placements < budget && !self.done() {
            placements += walk.step(&self.timeline, forest).max(1);
            self.offer(walk.offsets(), walk.height(), || format!("iterated skyline from {}", order.name()));
        }
    }

    /// Takes offsets that are better than the best.
    fn offer(&mut self, offsets: &[u64], height: u64, name: impl FnOnce() -> String) {
        if height < self.height {
            self.height = height;
            self.offsets.copy_from_slice(offsets);
            self.algorithm = name();
        }
    }

    fn into_plan(self, problem: &Problem) -> Plan {
        // Blocks that never live or have no bytes conflict with nothing and stay at 0.
        let mut offsets = vec![0; problem.blocks.len()];
        for (item, offset) in self.timeline.items.iter().zip(self.offsets) {
            offsets[item.block as usize] = offset;
        }
        let height = problem.blocks.iter().zip(&offsets).map(|(block, offset)| offset + block.size).max();
        let height = height.unwrap_or(0);
        let proof = (height == self.bound).then_some(Proof::LoadBound);
        Plan { offsets, height, lower_bound: self.bound, proof, algorithm: self.algorithm }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::problem::Block;
    use crate::verify::verify;

    /// Blocks on a line or a circle of 24 events: crossing, laminar or of equal size; some aligned, without length or
    /// without size, and on the circle some as long as it.
    fn problems() -> impl Strategy<Value = Problem> {
        let size = prop_oneof![Just(0u64), Just(64), 1u64..200, 1u64..5000];
        let align = prop_oneof![3 => Just(0u32), 1 => 1u32..9];
        let block = (0u64..24, 0u64..25, size, align);
        (prop::collection::vec(block, 0..60), any::<bool>(), any::<bool>()).prop_map(
            |(rows, periodic, laminar)| {
                let block = |(id, (lower, length, size, log)): (usize, (u64, u64, u64, u32))| {
                    let (lower, length) = if laminar {
                        // Dyadic intervals nest or lie apart.
                        let length = 1 << (length % 5);
                        (lower / length * length, length)
                    } else {
                        (lower, length)
                    };
                    let lower = if periodic { lower % 24 } else { lower };
                    Block { id: id as u64, lower, upper: lower + length, size, align: 1 << log }
                };
                Problem {
                    blocks: rows.into_iter().enumerate().map(block).collect(),
                    period: periodic.then_some(24),
                    ..Problem::default()
                }
            },
        )
    }

    fn offsets_of(problem: &Problem, timeline: &Timeline, by_item: &[u64]) -> Vec<u64> {
        let mut offsets = vec![0; problem.blocks.len()];
        for (item, &offset) in timeline.items.iter().zip(by_item) {
            offsets[item.block as usize] = offset;
        }
        offsets
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_placement_in_every_order_is_valid(problem in problems()) {
            let timeline = Timeline::new(&problem);
            let mut forest = Forest::new(&timeline);
            let mut floor = Floor::default();
            let tallest = problem.blocks.iter().map(|block| block.size).max().unwrap_or(0);
            let mut by_item = vec![0; timeline.items.len()];
            for order in Order::ALL {
                let sorted = order.sort(&timeline);
                forest.fill(&sorted);
                let (height, _) = skyline::place(&timeline, &mut forest, u64::MAX, &mut by_item);
                let height = height.expect("no limit").max(tallest);
                prop_assert_eq!(verify(&problem, &offsets_of(&problem, &timeline, &by_item), height), Ok(()));
                for fit in [Fit::First, Fit::Best] {
                    let height = floor.place(&timeline, &sorted, fit, u64::MAX, &mut by_item);
                    let height = height.expect("no limit").max(tallest);
                    prop_assert_eq!(verify(&problem, &offsets_of(&problem, &timeline, &by_item), height), Ok(()));
                }
            }
        }

        #[test]
        fn a_plan_is_valid_above_its_bound_and_the_same_again(problem in problems()) {
            for effort in [Effort::Quick, Effort::Normal, Effort::Thorough] {
                let planner = Planner::new().effort(effort);
                let plan = planner.plan(&problem).expect("a sound problem");
                prop_assert_eq!(verify(&problem, &plan.offsets, plan.height), Ok(()));
                prop_assert!(plan.height >= plan.lower_bound);
                prop_assert_eq!(plan.optimal(), plan.height == plan.lower_bound);
                if effort != Effort::Thorough {
                    prop_assert_eq!(planner.plan(&problem).expect("a sound problem"), plan);
                }
            }
        }
    }

    fn block(lower: u64, upper: u64, size: u64) -> Block {
        Block { id: 0, lower, upper, size, align: 1 }
    }

    #[test]
    fn laminar_lifetimes_are_planned_to_the_load() {
        let mut blocks = Vec::new();
        for level in 0..6u64 {
            for at in 0..1 << level {
                let length = 64 >> level;
                blocks.push(block(at * length, (at + 1) * length, 10 + (at * 37 + level * 11) % 90));
            }
        }
        let plan = Planner::quick()
            .plan(&Problem { blocks, period: None, ..Problem::default() })
            .expect("a sound problem");
        assert!(plan.optimal(), "{} above {}", plan.height, plan.lower_bound);
    }

    #[test]
    fn the_circular_load_is_not_always_attainable() {
        // Three arcs that overlap pairwise, but never all three.
        let blocks = vec![block(0, 4, 1), block(2, 6, 1), block(4, 8, 1)];
        let plan = Planner::new()
            .plan(&Problem { blocks, period: Some(6), ..Problem::default() })
            .expect("a sound problem");
        assert_eq!((plan.height, plan.lower_bound, plan.proof), (3, 2, None));
    }

    #[test]
    fn a_large_circle_of_crossing_blocks_is_valid() {
        let mut state = 1u64;
        let mut dice = |sides: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % sides
        };
        let blocks = (0..2000)
            .map(|_| {
                let (lower, class) = (dice(4000), dice(12));
                Block { align: 1 << dice(7), ..block(lower, lower + 1 + dice(1 << class), 1 + dice(100_000)) }
            })
            .collect();
        let problem = Problem { blocks, period: Some(4000), ..Problem::default() };
        let plan = Planner::quick().plan(&problem).expect("a sound problem");
        assert_eq!(verify(&problem, &plan.offsets, plan.height), Ok(()));
        assert!(plan.ratio() < 1.15, "{}", plan.ratio());
    }

    #[test]
    fn no_time_still_gives_a_plan() {
        let blocks = vec![block(0, 4, 1), block(2, 6, 1), block(4, 8, 1)];
        let problem = Problem { blocks, period: Some(6), ..Problem::default() };
        let plan = Planner::new().time_limit(Some(Duration::ZERO)).plan(&problem).expect("a sound problem");
        assert_eq!(verify(&problem, &plan.offsets, plan.height), Ok(()));
    }

    #[test]
    fn nothing_needs_no_bytes() {
        let plan = Planner::new().plan(&Problem::default()).expect("a sound problem");
        assert_eq!((plan.height, plan.ratio(), plan.optimal()), (0, 1.0, true));
    }

    #[test]
    fn a_block_longer_than_the_period_is_refused() {
        let problem = Problem { blocks: vec![block(1, 12, 1)], period: Some(10), ..Problem::default() };
        assert!(matches!(Planner::new().plan(&problem), Err(ProblemError::LongerThanPeriod { .. })));
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        let problem = Problem {
            blocks: vec![block(0, 1, u64::MAX), block(1, 2, 1)],
            period: None,
            ..Problem::default()
        };
        assert!(matches!(Planner::new().plan(&problem), Err(ProblemError::TooLarge { .. })));
    }
}
