//! Every plan of a problem with constraints keeps them.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use stepalloc_planner::{Block, Effort, Planner, Problem, Within, verify, verify_bound};

use super::brute::Rules;
use super::cases::{Extent, fixed, gap, in_place, inside, problem, problems};

fn height(problem: &Problem) -> u64 {
    let plan = Planner::new().plan(problem).expect("a sound problem");
    assert_eq!(verify(problem, &plan.offsets, plan.height), Ok(()));
    plan.height
}

#[test]
fn a_block_may_lie_in_the_gap_of_another() {
    let rows = [(0, 9, 10, 1), (3, 6, 10, 1)];
    assert_eq!(height(&problem(&rows, None).with_constraints(gap(0, 3, 6, None))), 10);
    assert_eq!(height(&problem(&rows, None).with_constraints(gap(0, 3, 6, Some((6, 10))))), 14);
    assert_eq!(height(&problem(&rows, None).with_constraints(gap(0, 4, 6, None))), 20);
}

#[test]
fn a_block_moves_into_a_gap_across_the_end_of_the_period() {
    let rows = [(2, 12, 10, 1), (8, 12, 10, 1)];
    assert_eq!(height(&problem(&rows, Some(10)).with_constraints(gap(0, 8, 12, None))), 10);
    assert_eq!(height(&problem(&rows, Some(10)).with_constraints(gap(0, 8, 11, None))), 20);
}

#[test]
fn what_is_not_fixed_goes_round_what_is() {
    let rows = [(0, 4, 10, 1), (0, 4, 5, 1), (0, 4, 7, 1)];
    assert_eq!(height(&problem(&rows, None).with_constraints(fixed(0, 5))), 22);
    assert_eq!(height(&problem(&rows, None).with_constraints(fixed(0, 7))), 22);
    assert_eq!(height(&problem(&rows, None).with_constraints(fixed(0, 12))), 22);
    assert_eq!(height(&problem(&rows, None).with_constraints(fixed(0, 100))), 110);
}

#[test]
fn a_view_costs_no_bytes_of_its_own_and_keeps_them_when_its_block_is_gone() {
    let rows = [(0, 4, 10, 1), (2, 8, 4, 1), (5, 7, 8, 1)];
    assert_eq!(height(&problem(&rows[..2], None).with_constraints(inside(1, 0, 3))), 10);
    // After the block's end four bytes of it are in use by the view; the third lies below or above those.
    assert_eq!(height(&problem(&rows, None).with_constraints(inside(1, 0, 6))), 12);
    assert_eq!(height(&problem(&rows, None).with_constraints(inside(1, 0, 3))), 15);
}

#[test]
fn a_view_may_be_aligned_where_its_block_is_not() {
    let problem = problem(&[(0, 4, 100, 1), (0, 4, 8, 64)], None).with_constraints(inside(1, 0, 8));
    let plan = Planner::new().plan(&problem).expect("a sound problem");
    assert_eq!((plan.offsets, plan.height), (vec![56, 64], 156));
}

#[test]
fn a_chain_that_works_in_place_needs_one_place() {
    let rows: Vec<_> = (0..50).map(|i| (i, i + 2, 1000, 64)).collect();
    let pairs: Vec<_> = (0..49).map(|i| (i, i + 1)).collect();
    assert_eq!(height(&problem(&rows, None)), 2024);
    assert_eq!(height(&problem(&rows, None).with_constraints(in_place(&pairs))), 1000);
}

#[test]
fn a_pair_of_different_sizes_needs_the_larger() {
    let rows = [(0, 4, 10, 1), (2, 6, 7, 1), (0, 6, 3, 1)];
    assert_eq!(height(&problem(&rows, None).with_constraints(in_place(&[(0, 1)]))), 13);
}

#[test]
fn two_partners_of_one_block_still_lie_apart() {
    let rows = [(0, 4, 5, 1), (0, 4, 5, 1), (0, 4, 10, 1)];
    assert_eq!(height(&problem(&rows, None).with_constraints(in_place(&[(0, 2), (1, 2)]))), 10);
    assert_eq!(height(&problem(&rows, None).with_constraints(in_place(&[(0, 2)]))), 15);
}

#[test]
fn blocks_that_are_never_in_use_still_lie_where_they_should() {
    let rows = [(0, 4, 10, 1), (2, 2, 4, 1), (1, 3, 0, 1), (0, 4, 4, 1)];
    let mut constraints = fixed(1, 6);
    constraints.inside = inside(2, 3, 4).inside;
    let problem = problem(&rows, None).with_constraints(constraints);
    let plan = Planner::new().plan(&problem).expect("a sound problem");
    assert_eq!(verify(&problem, &plan.offsets, plan.height), Ok(()));
    assert_eq!((plan.offsets[1], plan.height), (6, 14));
}

#[test]
fn a_large_problem_with_few_constraints_is_planned_in_time() {
    let block =
        |i: u64| Block { id: i, lower: i, upper: i + 2 + i * i % 50, size: 64 + i * 37 % 1000, align: 64 };
    let mut constraints = gap(500, 501, 502, None);
    constraints.in_place = in_place(&[(0, 1), (7, 8)]).in_place;
    let problem = Problem::new((0..1000).map(block).collect()).with_constraints(constraints);
    let plan = Planner::new().plan(&problem).expect("a sound problem");
    assert_eq!(verify(&problem, &plan.offsets, plan.height), Ok(()));
    assert!(plan.ratio() < 1.2, "{}", plan.ratio());
}

/// A planner whose watch counts, and breaks at a count.
fn watched(effort: Effort, most: u64) -> (Planner, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    let asked = count.clone();
    let watch = move |_| {
        let enough = asked.fetch_add(1, Ordering::Relaxed) + 1 >= most;
        if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    (Planner::new().effort(effort).watch(watch), count)
}

#[test]
fn planning_within_a_capacity_ends_where_it_is_met_and_where_it_cannot_be() {
    // Three arcs that overlap pairwise, but never all three, so that the bound of 2 is not reached.
    let arcs = [(0, 4, 1, 1), (2, 6, 1, 1), (4, 8, 1, 1)];
    let problem = problem(&arcs, Some(6)).with_constraints(fixed(0, 0));
    for (capacity, found) in [(3, true), (1, false)] {
        let (planner, count) = watched(Effort::Endless, 10_000);
        let within = planner.plan_within(&problem, capacity).expect("a sound problem");
        assert_eq!(matches!(within, Within::Found(_)), found, "{within:?}");
        assert_eq!(matches!(within, Within::Impossible(_)), !found, "{within:?}");
        let count = count.load(Ordering::Relaxed);
        assert!(count < 100, "asked {count} times after it was decided");
    }
}

/// Blocks that are all alive at once, more than a first fit puts down in a few milliseconds.
fn crowd() -> Problem {
    Problem::new((0..3000).map(|id| Block { id, lower: 0, upper: 4, size: 1 + id % 97, align: 1 }).collect())
}

#[test]
fn the_caller_is_asked_many_times_while_blocks_are_put_down() {
    let problem = crowd().with_constraints(in_place(&[(0, 1), (2, 3)]));
    let (planner, count) = watched(Effort::Quick, u64::MAX);
    let plan = planner.plan(&problem).expect("a sound problem");
    assert_eq!(verify(&problem, &plan.offsets, plan.height), Ok(()));
    let count = count.load(Ordering::Relaxed);
    assert!(count > 20, "asked {count} times only");
}

#[test]
fn there_is_a_plan_round_fixed_blocks_before_first_fit_is_through() {
    let problem = crowd().with_constraints(fixed(7, 1000));
    let (planner, count) = watched(Effort::Normal, 1);
    let plan = planner.plan(&problem).expect("a sound problem");
    assert_eq!(verify(&problem, &plan.offsets, plan.height), Ok(()));
    let count = count.load(Ordering::Relaxed);
    assert_eq!(plan.algorithm, "skyline above what is fixed", "asked {count} times");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_plan_keeps_every_rule_above_a_proven_bound(
        problem in problems(Extent { blocks: 24, events: 20, size: 4000, align: 30 })
    ) {
        prop_assert_eq!(problem.check(), Ok(()));
        let bound = problem.lower_bound();
        prop_assert_eq!(verify_bound(&problem, &bound, &bound.witness(&problem)), Ok(()));
        for effort in [Effort::Quick, Effort::Normal] {
            let planner = Planner::new().effort(effort);
            let plan = planner.plan(&problem).expect("a sound problem");
            prop_assert_eq!(verify(&problem, &plan.offsets, plan.height), Ok(()));
            prop_assert!(Rules::new(&problem).keep(&plan.offsets, plan.height));
            prop_assert!(plan.height >= bound.bytes);
            prop_assert!(plan.lower_bound >= bound.bytes);
            prop_assert_eq!(plan.optimal(), plan.height == plan.lower_bound);
            prop_assert_eq!(planner.plan(&problem).expect("a sound problem"), plan);
        }
    }
}
