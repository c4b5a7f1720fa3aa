//! The planner's way with constraints: the same placements and the same walk, over groups instead of blocks.
//!
//! Skylines are run on the hulls of groups, which is valid but wastes gaps, and only where no offset is given, as a
//! skyline cannot build round what stands already; where planning may end early, one is put above all that is fixed, to
//! have a plan at once. First and best fit see every part. Where pairs may work in place,
//! all is tried twice: with pairs free to share what comes about, and with pairs of equal size joined at one offset.
//! At last an iterated first fit starts from the best order of each.

use crate::capacity::Attempt;
use crate::fit::Fit;
use crate::forest::Forest;
use crate::groups::Groups;
use crate::improve::Walk;
use crate::limits::{Limits, Progress};
use crate::mosaic::Mosaic;
use crate::order::Order;
use crate::plan::{Plan, Proof};
use crate::planner::{self, Effort, SEARCH_MEMORY};
use crate::problem::Problem;
use crate::search::Outcome;
use crate::sections::Sections;
use crate::skyline;

/// Plans a problem with constraints that passes its check; within a capacity, where one is given.
pub(crate) fn plan(
    problem: &Problem,
    effort: Effort,
    seed: u64,
    limits: Limits,
    capacity: Option<u64>,
) -> Plan {
    let mut best = Best {
        problem,
        bound: problem.lower_bound().bytes,
        capacity,
        limits,
        height: u64::MAX,
        offsets: Vec::new(),
        algorithm: String::new(),
    };
    let mut variants = vec![Variant::new(Groups::new(problem))];
    variants[0].place(&mut best, effort);
    if !problem.constraints.in_place.is_empty() && !best.done() {
        let joined = Groups::joined(problem, &|| best.over());
        if joined.joined > 0 {
            let mut joined = Variant::new(joined);
            joined.place(&mut best, effort);
            variants.push(joined);
        }
    }
    let count = problem.blocks.len() as u64;
    let (looks, placements) = (planner::looks(count), planner::placements(count));
    // Each time twice as far, so that no way waits for ever for another.
    let mut spent = 0;
    while spent < effort.factor() && !best.done() {
        let share = spent.max(1).min(effort.factor() - spent);
        for variant in &mut variants {
            variant.search(&mut best, seed.wrapping_add(spent), looks.saturating_mul(share));
            variant.walk(&mut best, placements.saturating_mul(share));
        }
        spent += share;
    }
    best.into_plan()
}

/// The lowest plan so far.
struct Best<'a> {
    problem: &'a Problem,
    bound: u64,
    /// A plan of so many bytes is good enough, and without hope where the bound is above.
    capacity: Option<u64>,
    limits: Limits,
    height: u64,
    /// By block; empty: there is none.
    offsets: Vec<u64>,
    algorithm: String,
}

impl Best<'_> {
    /// Whether there is no point or no time in going on.
    fn done(&self) -> bool {
        let decided = |capacity| self.height <= capacity || self.bound > capacity;
        self.is_there() && (self.height <= self.bound || self.capacity.is_some_and(decided) || self.over())
    }

    /// Whether there is a plan, and no time to look for another.
    fn over(&self) -> bool {
        self.is_there() && self.limits.over(self.progress())
    }

    fn is_there(&self) -> bool {
        !self.offsets.is_empty()
    }

    fn progress(&self) -> Progress {
        Progress { height: self.height, lower_bound: self.bound }
    }

    /// Takes offsets by item if they make a lower plan.
    fn offer(&mut self, groups: &Groups, by_item: &[u64], name: impl FnOnce() -> String) {
        let offsets = groups.offsets(by_item, self.problem.blocks.len());
        let ends = self.problem.blocks.iter().zip(&offsets).map(|(block, offset)| offset + block.size);
        let height = ends.max().unwrap_or(0);
        if self.offsets.is_empty() || height < self.height {
            let pairs = if groups.joined > 0 { ", pairs at one offset" } else { "" };
            self.algorithm = name() + pairs;
            (self.height, self.offsets) = (height, offsets);
        }
    }

    fn into_plan(self) -> Plan {
        let height = if self.offsets.is_empty() { 0 } else { self.height };
        let proof = (height == self.bound).then_some(Proof::LoadBound);
        Plan { offsets: self.offsets, height, lower_bound: self.bound, proof, algorithm: self.algorithm }
    }
}

/// One way of making groups, and the start of its walk.
struct Variant {
    groups: Groups,
    mosaic: Mosaic,
    /// The order that gave the lowest first fit, and what becomes of it.
    walk: Option<(Order, Walk)>,
}

impl Variant {
    fn new(groups: Groups) -> Variant {
        Variant { groups, mosaic: Mosaic::default(), walk: None }
    }

    /// Runs all placements in all orders.
    fn place(&mut self, best: &mut Best<'_>, effort: Effort) {
        let groups = &self.groups;
        let timeline = &groups.timeline;
        let mut offsets = vec![0; timeline.items.len()];
        if timeline.items.is_empty() {
            best.offer(groups, &offsets, || String::from("nothing to place"));
            return;
        }
        if groups.any_fixed() && best.limits.any() {
            self.stack(best);
        }
        if !groups.any_fixed() {
            let mut forest = Forest::new(timeline);
            for order in Order::ALL {
                if best.done() {
                    return;
                }
                forest.fill(&order.sort(timeline));
                if skyline::place(timeline, &mut forest, u64::MAX, &mut offsets).0.is_some() {
                    best.offer(groups, &offsets, || format!("skyline by {}", order.name()));
                }
            }
        }
        let fits: &[Fit] = if effort == Effort::Quick { &[Fit::First] } else { &[Fit::First, Fit::Best] };
        for &fit in fits {
            for order in Order::ALL {
                if best.done() {
                    return;
                }
                let limit = (u64::MAX, &(|| best.over()) as &dyn Fn() -> bool);
                let (height, _) = self.mosaic.place(groups, &order.sort(timeline), fit, limit, &mut offsets);
                let Some(height) = height else { continue };
                best.offer(groups, &offsets, || format!("{} fit by {}", fit.name(), order.name()));
                if fit == Fit::First && self.walk.as_ref().is_none_or(|(_, walk)| height < walk.height()) {
                    self.walk = Some((order, Walk::new(order.sort(timeline), offsets.clone(), height, 0)));
                }
            }
        }
    }

    /// Puts all that is not fixed above all that is, so that there is a plan at once whatever time first fit takes.
    fn stack(&self, best: &mut Best<'_>) {
        let (groups, timeline) = (&self.groups, &self.groups.timeline);
        let (fixed, free): (Vec<u32>, Vec<u32>) =
            (0..timeline.items.len() as u32).partition(|&item| groups.fixed[item as usize].is_some());
        let mut offsets: Vec<u64> = groups.fixed.iter().map(|offset| offset.unwrap_or(0)).collect();
        let ends = fixed.iter().map(|&item| offsets[item as usize] + timeline.items[item as usize].size);
        let align = free.iter().map(|&item| timeline.items[item as usize].align).max().unwrap_or(1);
        let above = ends.max().unwrap_or(0).checked_next_multiple_of(align);
        let free_time = timeline.of(&free);
        let mut forest = Forest::new(&free_time);
        forest.fill(&Order::Length.sort(&free_time));
        let mut placed = vec![0; free.len()];
        let height = skyline::place(&free_time, &mut forest, u64::MAX, &mut placed).0;
        if let (Some(above), Some(height)) = (above, height)
            && above.checked_add(height).is_some()
        {
            free.iter().zip(placed).for_each(|(&item, offset)| offsets[item as usize] = above + offset);
            best.offer(groups, &offsets, || String::from("skyline above what is fixed"));
        }
    }

    /// Searches for a plan of the hulls at the bound, or at the capacity. That there is none proves nothing about the
    /// parts.
    fn search(&self, best: &mut Best<'_>, seed: u64, looks: u64) {
        if self.groups.any_fixed() || best.done() {
            return;
        }
        let Some(sections) = Sections::new(&self.groups.timeline) else { return };
        let capacity = best.capacity.map_or(best.bound, |capacity| capacity.max(best.bound));
        let mut attempt = Attempt::new(&sections, capacity, seed, SEARCH_MEMORY);
        let mut spent = 0u64;
        while spent < looks && !best.done() {
            let (outcome, took) = attempt.turn(1, looks, &|| best.over());
            spent = spent.saturating_add(took.max(1));
            if let (Outcome::Found, Some(offsets)) = (outcome, attempt.offsets()) {
                best.offer(&self.groups, offsets, || String::from("search of hulls"));
            }
            if outcome != Outcome::Unknown {
                return;
            }
        }
    }

    /// Walks on from the best first fit until so many more were placed.
    fn walk(&mut self, best: &mut Best<'_>, budget: u64) {
        let Some((order, walk)) = &mut self.walk else { return };
        let (groups, mosaic) = (&self.groups, &mut self.mosaic);
        let mut placements = 0;
        while placements < budget && !best.done() {
            let before = walk.height();
            let work = walk.step_by(&groups.timeline, |order, limit, offsets| {
                mosaic.place(groups, order, Fit::First, (limit, &|| best.over()), offsets)
            });
            placements += work.max(1);
            if walk.height() < before {
                best.offer(groups, walk.offsets(), || format!("iterated first fit from {}", order.name()));
            }
        }
    }
}
