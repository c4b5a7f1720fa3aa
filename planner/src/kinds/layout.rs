//! Orders for the shared plan that know of kinds, each tried with first and best fit, and a walk from the best of them.
//!
//! The planner sees a block's hull, from its first kind to its last, and so takes what is short in many kinds for long.
//! Here length and area are what the kinds have of them together. The third order is that of the offsets in the plans
//! alone, the highest kind first: first fit in the order of offsets gives a plan again that is no higher, so the kind
//! that needs most is planned as well as alone, and the others go round it as best they can.

use std::cmp::Reverse;

use super::Kind;
use crate::fit::Fit;
use crate::groups::Groups;
use crate::improve::Walk;
use crate::limits::Progress;
use crate::mosaic::Mosaic;
use crate::plan::Plan;
use crate::planner::{Effort, Planner, placements};
use crate::problem::Problem;

/// The common problem as the placers see it, with the orders to try.
pub(super) struct Layout<'a> {
    problem: &'a Problem,
    groups: Groups,
    /// Names and items.
    orders: [(&'static str, Vec<u32>); 3],
    /// Blocks of all kinds, which tell what improving is worth.
    blocks: u64,
}

impl Layout<'_> {
    /// Of the kinds' common problem, which has passed its check, and the plans of the kinds alone.
    pub fn new<'a, K: Ord>(
        kinds: &[Kind<K>],
        keys: &[K],
        problem: &'a Problem,
        alone: &[Plan],
    ) -> Layout<'a> {
        let groups = Groups::new(problem);
        // By key: its place in the plans alone, the length of its lifetimes, and these times the size.
        let mut places = vec![(usize::MAX, 0u64); keys.len()];
        let mut lengths = vec![0u64; keys.len()];
        let mut highest: Vec<usize> = (0..kinds.len()).collect();
        highest.sort_by_key(|&kind| Reverse(alone[kind].height));
        for (rank, &kind) in highest.iter().enumerate() {
            let blocks = kinds[kind].problem.blocks.iter().zip(&alone[kind].offsets);
            for ((block, &offset), key) in blocks.zip(&kinds[kind].keys) {
                if let Ok(at) = keys.binary_search(key) {
                    places[at] = places[at].min((rank, offset));
                    // The stretches of all kinds fit on one line.
                    lengths[at] += block.length();
                }
            }
        }
        let items = &groups.timeline.items;
        let key = |&item: &u32| items[item as usize].block as usize;
        let size = |&item: &u32| items[item as usize].size;
        let length = |item: &u32| lengths[key(item)];
        let area = |item: &u32| u128::from(length(item)) * u128::from(size(item));
        let all = || (0..items.len() as u32).collect::<Vec<u32>>();
        let (mut by_place, mut by_length, mut by_area) = (all(), all(), all());
        by_place.sort_by_key(|item| places[key(item)]);
        by_length.sort_by_key(|item| Reverse((length(item), size(item))));
        by_area.sort_by_key(|item| Reverse((area(item), size(item))));
        Layout {
            orders: [
                ("place in the highest kind", by_place),
                ("length in all kinds", by_length),
                ("area in all kinds", by_area),
            ],
            problem,
            groups,
            blocks: kinds.iter().map(|kind| kind.keys.len() as u64).sum(),
        }
    }

    /// The plan, or a lower one.
    pub fn improve(&self, mut plan: Plan, planner: &Planner) -> Plan {
        if self.groups.timeline.items.is_empty() {
            return plan;
        }
        let limits = planner.limits();
        let progress = |plan: &Plan| Progress { height: plan.height, lower_bound: plan.lower_bound };
        let done = |plan: &Plan| plan.height <= plan.lower_bound || limits.over(progress(plan));
        let mut mosaic = Mosaic::default();
        let mut offsets = vec![0; self.groups.timeline.items.len()];
        let mut start: Option<(u64, usize, Vec<u64>)> = None;
        let fits: &[Fit] =
            if planner.worth() == Effort::Quick { &[Fit::First] } else { &[Fit::First, Fit::Best] };
        for &fit in fits {
            for (at, (name, order)) in self.orders.iter().enumerate() {
                if done(&plan) {
                    return plan;
                }
                let stop = || limits.over(progress(&plan));
                let (height, _) = mosaic.place(&self.groups, order, fit, (u64::MAX, &stop), &mut offsets);
                let Some(height) = height else { continue };
                self.offer(&mut plan, &offsets, || format!("{} fit by {name}", fit.name()));
                if fit == Fit::First && start.as_ref().is_none_or(|&(least, ..)| height < least) {
                    start = Some((height, at, offsets.clone()));
                }
            }
        }
        let Some((height, at, offsets)) = start else { return plan };
        let (name, order) = &self.orders[at];
        let mut walk = Walk::new(order.clone(), offsets, height, 0);
        let (mut placements, budget) = (0, placements(self.blocks).saturating_mul(planner.worth().factor()));
        while placements < budget && !done(&plan) {
            let stop = || limits.over(progress(&plan));
            let work = walk.step_by(&self.groups.timeline, |order, limit, offsets| {
                mosaic.place(&self.groups, order, Fit::First, (limit, &stop), offsets)
            });
            placements += work.max(1);
            if walk.height() < plan.height {
                self.offer(&mut plan, walk.offsets(), || format!("iterated first fit from {name}"));
            }
        }
        plan
    }

    /// Takes offsets by item that make a lower plan.
    fn offer(&self, plan: &mut Plan, by_item: &[u64], name: impl FnOnce() -> String) {
        let blocks = &self.problem.blocks;
        let offsets = self.groups.offsets(by_item, blocks.len());
        let height =
            blocks.iter().zip(&offsets).map(|(block, offset)| offset + block.size).max().unwrap_or(0);
        if height < plan.height {
            // The proof is the caller's business.
            *plan = Plan { offsets, height, proof: None, algorithm: name(), lower_bound: plan.lower_bound };
        }
    }
}
