//! Numbers at the edge of 64 bits: a plan, or a refusal, and never bytes laid over each other.

use stepalloc_planner::generate::{Heap, heap};
use stepalloc_planner::{
    Arena, Block, Change, Constraints, Fixed, Inside, LowerBound, Planner, Problem, ProblemError,
    ReplanError, Replanner, Unproven, Within, verify, verify_arenas, verify_bound,
};

fn block(lower: u64, upper: u64, size: u64, align: u64) -> Block {
    Block { id: 0, lower, upper, size, align }
}

/// Two blocks alive together.
fn two(first: u64, second: u64) -> Problem {
    Problem::new(vec![block(0, 4, first, 1), block(2, 6, second, 1)])
}

#[test]
fn a_capacity_of_all_bytes_there_are_is_no_reason_not_to_plan() {
    let problem = two(10, 20);
    let Within::Found(plan) = Planner::new().plan_within(&problem, u64::MAX).expect("a sound problem") else {
        panic!("30 bytes are not above the capacity")
    };
    assert_eq!(verify(&problem, &plan.offsets, plan.height), Ok(()));
}

#[test]
fn blocks_of_nearly_all_bytes_lie_apart_and_those_of_all_are_refused() {
    let problem = two(u64::MAX - 3, 2);
    let plan = Planner::new().plan(&problem).expect("a sound problem");
    assert_eq!(verify(&problem, &plan.offsets, plan.height), Ok(()));
    assert!(matches!(Planner::new().plan(&two(u64::MAX - 2, 2)), Err(ProblemError::TooLarge { .. })));
}

#[test]
fn a_block_fixed_so_high_that_the_others_reach_the_last_byte_is_refused() {
    let at = |offset| {
        let fixed = vec![Fixed { block: 0, offset }];
        two(10, 20).with_constraints(Constraints { fixed, ..Constraints::default() })
    };
    let problem = at(u64::MAX - 41);
    let plan = Planner::new().plan(&problem).expect("a sound problem");
    assert_eq!(verify(&problem, &plan.offsets, plan.height), Ok(()));
    assert!(matches!(at(u64::MAX - 40).check(), Err(ProblemError::Constraint(_))));
}

#[test]
fn a_problem_that_fails_its_check_has_a_load_and_a_bound_all_the_same() {
    let itself = Problem::new(vec![block(0, u64::MAX, u64::MAX, 1); 3]).with_period(1);
    assert_eq!((itself.load().max, itself.lower_bound().bytes), (u64::MAX, u64::MAX));
    let aligned = Problem::new(vec![block(0, 2, u64::MAX, 1 << 63); 3]);
    assert_eq!(aligned.lower_bound().bytes, u64::MAX);
}

#[test]
fn a_slot_removed_twice_at_once_is_refused() {
    let problem = two(10, 20);
    let mut replanner = Replanner::new(&problem, &[0, 10]).expect("a valid plan");
    let twice = [Change::Remove(1), Change::Remove(1)];
    assert_eq!(replanner.apply(&twice), Err(ReplanError::Twice { slot: 1 }));
    assert_eq!(replanner.snapshot().0, problem);
}

#[test]
fn a_block_aligned_to_half_of_all_bytes_finds_its_arena() {
    let problem = Problem::new(vec![block(0, 4, 10, 1 << 63)]);
    let arenas = [Arena::new("DRAM", None)];
    let plan = Planner::new().plan_arenas(&problem, &arenas, &[]).expect("a sound problem");
    assert_eq!(verify_arenas(&problem, &arenas, &[], &plan), Ok(()));
}

#[test]
fn a_bound_of_a_problem_with_senseless_views_is_refused() {
    let view = |of, distance| {
        let inside = vec![Inside { block: 1, of, distance }];
        two(10, 20).with_constraints(Constraints { inside, ..Constraints::default() })
    };
    let bound = LowerBound { bytes: 30, at: 3, align: 1 };
    let verdict = verify_bound(&view(7, 0), &bound, &[0, 1]);
    assert_eq!(verdict, Err(Unproven::NoSuchBlock { index: 7, blocks: 2 }));
    let verdict = verify_bound(&view(0, u64::MAX), &bound, &[0, 1]);
    assert!(matches!(verdict, Err(Unproven::TooHigh { .. })));
    // The witness is looked for, whatever it is worth.
    let _ = bound.witness(&view(7, 0));
}

#[test]
fn blocks_of_half_of_all_bytes_are_searched_without_an_overflow() {
    let blocks = vec![
        block(0, 1, (1 << 63) - 4096, 4096),
        block(3, 4, 1, 1 << 27),
        block(0, 4, 64, 1 << 47),
        block(3, 8, 9_223_090_561_609_625_540, 1),
    ];
    let problem = Problem::new(blocks).with_period(5);
    let plan = Planner::new().plan(&problem).expect("a sound problem");
    assert_eq!(verify(&problem, &plan.offsets, plan.height), Ok(()));
}

#[test]
fn a_heap_of_endless_lifetimes_is_made_all_the_same() {
    let mix = Heap { lasting: 50, longest: u64::MAX, medium: 10, large: 10 };
    assert_eq!(heap(1000, 7, mix).check(), Ok(()));
}
