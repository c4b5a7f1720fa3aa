//! The planner's way with constraints: the same placements and the same walk, over groups instead of blocks.
//!
//! Skylines are run on the hulls of groups, which is valid but wastes gaps, and only where no offset is given, as a
//! skyline cannot build round what stands already. First and best fit see every part. Where pairs may work in place,
//! all is tried twice: with pairs free to share what comes about, and with pairs of equal size joined at one offset.
//! At last an iterated first fit starts from the best order of each.

use std::time::Instant;

use crate::fit::Fit;
use crate::forest::Forest;
use crate::groups::Groups;
use crate::improve::Walk;
use crate::mosaic::Mosaic;
use crate::order::Order;
use crate::plan::{Plan, Proof};
use crate::planner::Effort;
use crate::problem::Problem;
use crate::skyline;

/// Plans a problem with constraints that passes its check.
pub(crate) fn plan(problem: &Problem, effort: Effort, deadline: Option<Instant>) -> Plan {
    let mut variants = vec![Variant::new(Groups::new(problem, false))];
    if !problem.constraints.in_place.is_empty() {
        let joined = Groups::new(problem, true);
        if joined.joined > 0 {
            variants.push(Variant::new(joined));
        }
    }
    let mut best = Best {
        problem,
        bound: problem.lower_bound().bytes,
        deadline,
        height: u64::MAX,
        offsets: Vec::new(),
        algorithm: String::new(),
    };
    for variant in &mut variants {
        variant.place(&mut best, effort);
    }
    let budget = effort.placements(problem.blocks.len() as u64) / variants.len() as u64;
    for variant in &mut variants {
        variant.walk(&mut best, budget);
    }
    best.into_plan()
}

/// The lowest plan so far.
struct Best<'a> {
    problem: &'a Problem,
    bound: u64,
    deadline: Option<Instant>,
    height: u64,
    /// By block; empty: there is none.
    offsets: Vec<u64>,
    algorithm: String,
}

impl Best<'_> {
    /// Whether there is no point or no time in going on.
    fn done(&self) -> bool {
        !self.offsets.is_empty()
            && (self.height <= self.bound || self.deadline.is_some_and(|deadline| Instant::now() >= deadline))
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
    /// The order that gave the lowest first fit, its height and offsets by item.
    start: Option<(Order, u64, Vec<u64>)>,
}

impl Variant {
    fn new(groups: Groups) -> Variant {
        Variant { groups, mosaic: Mosaic::default(), start: None }
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
                let (height, _) =
                    self.mosaic.place(groups, &order.sort(timeline), fit, u64::MAX, &mut offsets);
                let Some(height) = height else { continue };
                best.offer(groups, &offsets, || format!("{} fit by {}", fit.name(), order.name()));
                if fit == Fit::First && self.start.as_ref().is_none_or(|&(_, least, _)| height < least) {
                    self.start = Some((order, height, offsets.clone()));
                }
            }
        }
    }

    /// Walks on from the best first fit until the budget of placements is spent.
    fn walk(&mut self, best: &mut Best<'_>, budget: u64) {
        let Some((order, height, offsets)) = self.start.take() else { return };
        let (groups, mosaic) = (&self.groups, &mut self.mosaic);
        let mut walk = Walk::new(order.sort(&groups.timeline), offsets, height);
        let mut placements = 0;
        while placements < budget && !best.done() {
            let before = walk.height();
            let work = walk.step_by(&groups.timeline, |order, limit, offsets| {
                mosaic.place(groups, order, Fit::First, limit, offsets)
            });
            placements += work.max(1);
            if walk.height() < before {
                best.offer(groups, walk.offsets(), || format!("iterated first fit from {}", order.name()));
            }
        }
    }
}
