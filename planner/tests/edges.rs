//! Numbers at the edge of 64 bits: a plan, or a refusal, and never bytes laid over each other.

use stepalloc_planner::{Block, Constraints, Fixed, Planner, Problem, ProblemError, Within, verify};

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
