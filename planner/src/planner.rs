//! The planner: runs the placements in several orders, improves the best, and says how good it is.
//!
//! Everything is counted in placements, so that the same problem and settings give the same plan on every machine; a
//! clock is read only where the caller sets a time limit. It stops as soon as the height is the lower bound.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::capacity::Attempt;
use crate::constrained;
use crate::fit::{Fit, Floor};
use crate::forest::Forest;
use crate::improve::Walk;
use crate::large::{self, Work};
use crate::limits::{Limits, Progress, Watch};
use crate::order::Order;
use crate::plan::{Plan, Proof};
use crate::problem::{Problem, ProblemError};
use crate::search::Outcome;
use crate::sections::Sections;
use crate::skyline;
use crate::timeline::Timeline;

/// What is done one way before another is tried, first: a part in so many of [`Effort::Normal`]'s work.
const SHARES: u64 = 8;

/// How often the search of [`Effort::Normal`] may look at a block of a section, for `count` blocks: some tenths of a
/// second from 300 blocks on, and less for fewer, which are easier.
pub(crate) fn looks(count: u64) -> u64 {
    (1_000 * count * count).clamp(2_000_000, 80_000_000)
}

/// How many blocks the improvement of `count` blocks may place with [`Effort::Normal`].
///
/// A placement takes 0.2 to 2 microseconds here, more of them the more blocks there are: about 1 ms for 300 blocks,
/// a second for 10,000.
pub(crate) fn placements(count: u64) -> u64 {
    10 * count + (count * count / 100).min(500_000)
}

/// How much work a plan is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Effort {
    /// Skylines only: for planning in the middle of a program's run.
    Quick,
    /// All placements, a bounded search and a bounded improvement: 300 blocks in milliseconds where they are easy, in
    /// some tenths of a second where they are not, up to a second and a half where nearly all of them meet. Thousands of
    /// blocks may take some seconds.
    #[default]
    Normal,
    /// Fifty times the search and the improvement of [`Effort::Normal`].
    Thorough,
    /// Until the plan is proven optimal or the time limit is over. Without a time limit this may take for ever.
    Endless,
}

impl Effort {
    /// Times the search and the improvement of [`Effort::Normal`].
    pub(crate) fn factor(self) -> u64 {
        match self {
            Effort::Quick => 0,
            Effort::Normal => 1,
            Effort::Thorough => 50,
            Effort::Endless => 1 << 40,
        }
    }
}

/// The work for `count` blocks that are more than [`LARGE`], in the units of [`Work`].
///
/// These take 0.1 microseconds here, so that 100,000 blocks take a second and a half where no bound is met, and a million
/// one second at most, of which their check, ranks and bound take a quarter.
fn swept(count: u64, effort: Effort) -> u64 {
    let normal = 19_000_000u64.saturating_sub(13 * count).max(6 * count);
    if effort == Effort::Quick { normal / 4 } else { normal.saturating_mul(effort.factor()) }
}

/// Blocks beyond which nothing runs whose time grows with their square: first and best fit of 10,000 blocks that all
/// meet take half a second, in all orders.
const LARGE: usize = 10_000;

/// What planning within a capacity came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Within {
    /// A plan of at most so many bytes.
    Found(Plan),
    /// There is no such plan. The lowest one that was met, and its lower bound, which is above the capacity.
    Impossible(Plan),
    /// It was not decided; the lowest plan that was met.
    Unknown(Plan),
}

impl Within {
    /// The plan, within the capacity or not.
    pub fn plan(&self) -> &Plan {
        match self {
            Within::Found(plan) | Within::Impossible(plan) | Within::Unknown(plan) => plan,
        }
    }

    /// The same, for good.
    pub fn into_plan(self) -> Plan {
        match self {
            Within::Found(plan) | Within::Impossible(plan) | Within::Unknown(plan) => plan,
        }
    }
}

/// Plans problems. Cheap to make; a builder.
#[derive(Debug, Clone)]
pub struct Planner {
    effort: Effort,
    time_limit: Option<Duration>,
    threads: usize,
    seed: u64,
    search_memory: usize,
    watch: Option<Watch>,
}

/// Bytes in which the searches within one capacity remember what is hopeless, unless told otherwise.
pub(crate) const SEARCH_MEMORY: usize = 16 << 20;

impl Default for Planner {
    fn default() -> Planner {
        Planner {
            effort: Effort::Normal,
            time_limit: None,
            threads: 1,
            seed: 0,
            search_memory: SEARCH_MEMORY,
            watch: None,
        }
    }
}

impl Planner {
    /// A planner of [`Effort::Normal`] without a time limit, on one thread.
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

    /// Lets the search run on up to four threads, the calling one included. The plan is the same as with one.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Planner {
        self.threads = threads.max(1);
        self
    }

    /// Where the search's chance begins: another seed may find another plan, or the same one sooner or later.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Planner {
        self.seed = seed;
        self
    }

    /// Bytes in which the searches within one capacity remember what they found to be hopeless; 16 MiB by default, and there are up to four
    /// capacities. With less they do some of it again.
    #[must_use]
    pub fn search_memory(mut self, bytes: usize) -> Planner {
        self.search_memory = bytes;
        self
    }

    /// Has `watch` called again and again with the progress so far, on the threads that plan, mostly every few
    /// milliseconds. When it breaks, planning stops with the best plan so far.
    #[must_use]
    pub fn watch(mut self, watch: impl Fn(Progress) -> ControlFlow<()> + Send + Sync + 'static) -> Planner {
        self.watch = Some(Watch(Arc::new(watch)));
        self
    }

    /// How much work a plan is worth.
    pub(crate) fn worth(&self) -> Effort {
        self.effort
    }

    /// When to stop before that.
    pub(crate) fn limits(&self) -> Limits {
        let deadline = self.time_limit.and_then(|limit| Instant::now().checked_add(limit));
        Limits { deadline, watch: self.watch.clone() }
    }

    /// Whether the caller's watch says stop: between plannings of which each would begin anew.
    pub(crate) fn stopped(&self, height: u64, lower_bound: u64) -> bool {
        Limits { deadline: None, watch: self.watch.clone() }.over(Progress { height, lower_bound })
    }

    /// Plans a problem as low as the effort allows.
    ///
    /// # Errors
    /// What [`Problem::check`] finds.
    pub fn plan(&self, problem: &Problem) -> Result<Plan, ProblemError> {
        problem.check()?;
        if !problem.constraints.is_empty() {
            return Ok(constrained::plan(problem, self.effort, self.seed, self.limits(), None));
        }
        let mut run = Run::new(problem, self);
        run.run(None);
        Ok(run.into_plan(problem))
    }

    /// Looks for a plan of at most `capacity` bytes, or for a proof that there is none; stops at the first of them, and
    /// where the effort or the time is spent.
    ///
    /// # Errors
    /// What [`Problem::check`] finds.
    pub fn plan_within(&self, problem: &Problem, capacity: u64) -> Result<Within, ProblemError> {
        problem.check()?;
        let plan = if problem.constraints.is_empty() {
            let mut run = Run::new(problem, self);
            run.enough = capacity;
            run.run(Some(capacity));
            run.into_plan(problem)
        } else {
            constrained::plan(problem, self.effort, self.seed, self.limits(), Some(capacity))
        };
        Ok(if plan.height <= capacity {
            Within::Found(plan)
        } else if plan.lower_bound > capacity {
            Within::Impossible(plan)
        } else {
            Within::Unknown(plan)
        })
    }
}

/// Attempts at several capacities, taken up again and again.
#[derive(Default)]
struct Attempts<'a> {
    turn: u64,
    /// Taken so far.
    looks: u64,
    at: [Option<Attempt<'a>>; 4],
}

/// The best placement of a timeline found so far.
struct Run {
    effort: Effort,
    threads: usize,
    seed: u64,
    search_memory: usize,
    limits: Limits,
    timeline: Timeline,
    /// The bound of the load, and what is proven.
    load_bound: u64,
    bound: u64,
    /// All heights that differ do so by a multiple of this.
    grain: u64,
    /// A plan of so many bytes is good enough.
    enough: u64,
    /// By item.
    offsets: Vec<u64>,
    height: u64,
    algorithm: String,
}

impl Run {
    fn new(problem: &Problem, planner: &Planner) -> Run {
        let timeline = Timeline::new(problem);
        let bound = problem.lower_bound().bytes;
        Run {
            effort: planner.effort,
            threads: planner.threads,
            seed: planner.seed,
            search_memory: planner.search_memory,
            limits: planner.limits(),
            offsets: vec![0; timeline.items.len()],
            load_bound: bound,
            bound,
            grain: grain(&timeline),
            enough: 0,
            height: if timeline.items.is_empty() { 0 } else { u64::MAX },
            algorithm: String::from("nothing to place"),
            timeline,
        }
    }

    /// Whether there is no point or no time in going on.
    fn done(&self) -> bool {
        // Without a plan there is no height to be content with, not even for a capacity of all bytes there are.
        self.height != u64::MAX
            && (self.height <= self.bound.max(self.enough) || self.limits.over(self.progress()))
    }

    fn progress(&self) -> Progress {
        Progress { height: self.height, lower_bound: self.bound }
    }

    /// As low as can be, or within a capacity.
    fn run(&mut self, capacity: Option<u64>) {
        if self.timeline.items.len() > LARGE {
            if capacity.is_some_and(|capacity| self.bound > capacity) {
                // No plan is needed that is better than another.
                self.enough = u64::MAX;
            }
            return self.place_many();
        }
        let mut forest = Forest::new(&self.timeline);
        let start = self.skylines(&mut forest);
        let over = |run: &Run| capacity.is_some_and(|capacity| run.bound > capacity) || run.done();
        if self.effort == Effort::Quick || over(self) {
            return;
        }
        let mut walk = start.map(|(order, height, offsets)| {
            let walk = Walk::new(order.sort(&self.timeline), offsets, height, self.seed);
            (walk, order)
        });
        let sections = Sections::new(&self.timeline);
        let mut attempts = Attempts::default();
        // What is easy one way or another is so at once; then the ways in turns, each time twice as far.
        let all = SHARES.saturating_mul(self.effort.factor());
        let mut spent = 0;
        let count = self.timeline.items.len() as u64;
        if let Some((walk, order)) = &mut walk {
            self.walk(walk, &mut forest, *order, placements(count));
        }
        while spent < all && !over(self) {
            let share = spent.max(1).min(all - spent);
            if let (Some((walk, order)), true) = (&mut walk, spent >= SHARES) {
                self.walk(walk, &mut forest, *order, (placements(count) / SHARES).saturating_mul(share));
            }
            if let Some(sections) = &sections {
                let looks = looks(count);
                let part = (looks / SHARES).saturating_mul(share);
                let all = looks.saturating_mul(self.effort.factor());
                self.search(sections, &mut attempts, capacity, (part, all));
            }
            if spent == 0 {
                self.fits();
            }
            spent += share;
        }
    }

    fn place_many(&mut self) {
        let count = self.timeline.items.len() as u64;
        let progress = self.progress();
        let stop = || self.limits.over(progress);
        let left = swept(count, self.effort);
        let enough = self.bound.max(self.enough);
        let (height, name) =
            large::place(&self.timeline, enough, Work { left, stop: &stop }, &mut self.offsets);
        (self.height, self.algorithm) = (height, name);
    }

    /// One skyline in each order; returns the lowest with its order.
    fn skylines(&mut self, forest: &mut Forest) -> Option<(Order, u64, Vec<u64>)> {
        let mut offsets = vec![0; self.timeline.items.len()];
        let mut start: Option<(Order, u64, Vec<u64>)> = None;
        for order in Order::ALL {
            if self.done() {
                break;
            }
            forest.fill(&order.sort(&self.timeline));
            if let (Some(height), _) = skyline::place(&self.timeline, forest, u64::MAX, &mut offsets) {
                self.offer(&offsets, height, || format!("skyline by {}", order.name()));
                if start.as_ref().is_none_or(|&(_, best, _)| height < best) {
                    start = Some((order, height, offsets.clone()));
                }
            }
        }
        start
    }

    /// First and best fit in each order.
    fn fits(&mut self) {
        let mut offsets = vec![0; self.timeline.items.len()];
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
    }

    /// Walks on from the best skyline until so many blocks were placed.
    fn walk(&mut self, walk: &mut Walk, forest: &mut Forest, order: Order, budget: u64) {
        let mut placements = 0;
        while placements < budget && !self.done() {
            placements += walk.step(&self.timeline, forest).max(1);
            self.offer(walk.offsets(), walk.height(), || format!("iterated skyline from {}", order.name()));
        }
    }

    /// Searches for so many looks, of `all` there are: within the capacity if there is one, else at the bound every other
    /// turn, as a tight capacity leaves least to try, and between it and the best height in the turns between. Turns are
    /// not cut short, but all searches together take no new one at twice of `all`.
    fn search<'a>(
        &mut self,
        sections: &'a Sections,
        attempts: &mut Attempts<'a>,
        capacity: Option<u64>,
        (looks, all): (u64, u64),
    ) {
        let (from, most) = (attempts.looks, all.saturating_mul(2));
        let hopeless = |bound: u64| capacity.is_some_and(|capacity| bound > capacity);
        while attempts.looks - from < looks && attempts.looks < most && !hopeless(self.bound) && !self.done()
        {
            attempts.turn += 1;
            let gap = self.height - self.bound;
            let (at, capacity) = match (capacity, attempts.turn % 6) {
                (Some(capacity), _) => (0, capacity),
                (None, 1 | 3 | 5) => (0, self.bound),
                (None, 2) => (1, self.bound + gap / 2),
                (None, 4) => (2, self.bound + gap / 4),
                // What fails here is a proof.
                (None, _) => (3, self.height - self.grain),
            };
            let attempt = attempts.at[at].take().filter(|attempt| attempt.capacity() == capacity);
            let mut attempt =
                attempt.unwrap_or_else(|| Attempt::new(sections, capacity, self.seed, self.search_memory));
            attempts.looks = attempts.looks.saturating_add(self.turn(&mut attempt, all));
            attempts.at[at] = Some(attempt);
        }
    }

    /// One turn of an attempt, and what follows from it; returns the looks it took of `all`.
    fn turn(&mut self, attempt: &mut Attempt, all: u64) -> u64 {
        let progress = self.progress();
        let (outcome, looks) = attempt.turn(self.threads, all, &|| self.limits.over(progress));
        let capacity = attempt.capacity();
        match outcome {
            Outcome::Found => {
                let offsets = attempt.offsets().unwrap_or_default();
                let ends = self.timeline.items.iter().zip(offsets).map(|(item, offset)| offset + item.size);
                let height = ends.max().unwrap_or(0);
                self.offer(offsets, height, || format!("search within {capacity} bytes"));
            }
            Outcome::Impossible => self.bound = self.bound.max(capacity + self.grain - capacity % self.grain),
            Outcome::Unknown => {}
        }
        looks.max(1)
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
        let proof = if height == self.load_bound {
            Some(Proof::LoadBound)
        } else {
            (height <= self.bound).then_some(Proof::Search)
        };
        Plan { offsets, height, lower_bound: self.bound, proof, algorithm: self.algorithm }
    }
}

/// The greatest common divisor of all sizes and alignments: the ends of items that lie on the bottom or on each other
/// are multiples of it.
fn grain(timeline: &Timeline) -> u64 {
    let divisor = |a: u64, b: u64| {
        let (mut a, mut b) = (a, b);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    timeline.items.iter().fold(0, |all, item| {
        // What lies on a multiple of the alignment begins on one of its power of two in the rest.
        divisor(divisor(all, item.size), if item.align > 1 { item.align } else { 0 })
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use proptest::prelude::*;

    use super::*;
    use crate::generate;
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
            for planner in [Planner::quick(), Planner::new()] {
                let plan = planner.plan(&problem).expect("a sound problem");
                prop_assert_eq!(verify(&problem, &plan.offsets, plan.height), Ok(()));
                prop_assert!(plan.height >= plan.lower_bound);
                prop_assert_eq!(plan.optimal(), plan.height == plan.lower_bound);
                prop_assert_eq!(planner.plan(&problem).expect("a sound problem"), plan);
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
    fn where_the_circular_load_is_not_attainable_that_is_proven() {
        // Three arcs that overlap pairwise, but never all three.
        let blocks = vec![block(0, 4, 1), block(2, 6, 1), block(4, 8, 1)];
        let plan = Planner::new()
            .plan(&Problem { blocks, period: Some(6), ..Problem::default() })
            .expect("a sound problem");
        assert_eq!((plan.height, plan.lower_bound, plan.proof), (3, 3, Some(Proof::Search)));
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
    fn no_work_is_done_for_a_capacity_that_many_blocks_cannot_have() {
        let problem = generate::crossing(LARGE + 500, 1);
        let asked = Arc::new(AtomicU64::new(0));
        let count = asked.clone();
        let planner = Planner::new().watch(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            ControlFlow::Continue(())
        });
        let capacity = problem.lower_bound().bytes - 1;
        let within = planner.plan_within(&problem, capacity).expect("a sound problem");
        assert!(matches!(within, Within::Impossible(_)));
        assert_eq!(verify(&problem, &within.plan().offsets, within.plan().height), Ok(()));
        assert_eq!(asked.load(Ordering::Relaxed), 0, "times that more was tried");
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
