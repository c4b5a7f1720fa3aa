//! The verifier finds broken constraints, and agrees with a check of every byte and event on plans with one fault.

use proptest::prelude::*;
use stepalloc_planner::{LowerBound, Planner, Problem, Unproven, Violation, verify, verify_bound};

use super::brute::Rules;
use super::cases::{Extent, fixed, gap, in_place, inside, problem, problems};

/// Two blocks of 10 bytes, the second alive within the first's lifetime.
const TWO: [(u64, u64, u64, u64); 2] = [(0, 9, 10, 1), (3, 6, 10, 1)];

fn overlap(problem: &Problem, offsets: &[u64]) -> Option<(u64, u64)> {
    match verify(problem, offsets, 1000) {
        Ok(()) => None,
        Err(Violation::Overlap { byte, at, .. }) => Some((byte, at)),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_gap_too_short_by_one_event_at_either_end_is_found() {
    let with = |lower, upper| problem(&TWO, None).with_constraints(gap(0, lower, upper, None));
    assert_eq!(overlap(&with(3, 6), &[0, 0]), None);
    assert_eq!(overlap(&with(4, 6), &[0, 0]), Some((0, 3)));
    assert_eq!(overlap(&with(3, 5), &[0, 0]), Some((0, 5)));
}

#[test]
fn a_gap_across_the_end_of_the_period_ends_when_it_says() {
    let rows = [(5, 14, 10, 1), (8, 12, 10, 1)];
    let with = |lower, upper| problem(&rows, Some(10)).with_constraints(gap(0, lower, upper, None));
    assert_eq!(overlap(&with(8, 12), &[0, 0]), None);
    assert_eq!(overlap(&with(8, 11), &[0, 0]), Some((0, 1)));
    assert_eq!(overlap(&with(9, 12), &[0, 0]), Some((0, 8)));
    // A gap that lies in the next turn altogether.
    assert_eq!(overlap(&with(11, 12), &[0, 0]).map(|(byte, _)| byte), Some(0));
    let late = problem(&[(5, 14, 10, 1), (1, 2, 10, 1)], Some(10));
    assert_eq!(overlap(&late.clone().with_constraints(gap(0, 11, 12, None)), &[0, 0]), None);
    assert_eq!(overlap(&late.with_constraints(gap(0, 12, 13, None)), &[0, 0]), Some((0, 1)));
}

#[test]
fn a_byte_of_a_window_is_found_at_either_end() {
    let problem = problem(&TWO, None).with_constraints(gap(0, 3, 6, Some((4, 6))));
    assert_eq!(overlap(&problem, &[12, 6]), None, "[6, 16) below the window's [16, 18)");
    assert_eq!(overlap(&problem, &[12, 7]), Some((16, 3)));
    assert_eq!(overlap(&problem, &[12, 18]), None);
    assert_eq!(overlap(&problem, &[12, 17]), Some((17, 3)));
}

#[test]
fn a_gap_that_is_none_is_found() {
    for (lower, upper, window) in [
        (3, 3, None),
        (6, 3, None),
        (0, 10, None),
        (8, 10, None),
        (3, 6, Some((5, 11))),
        (3, 6, Some((6, 5))),
    ] {
        let problem = problem(&TWO, None).with_constraints(gap(0, lower, upper, window));
        assert!(matches!(verify(&problem, &[0, 10], 100), Err(Violation::Gap { index: 0, .. })));
    }
    let mut constraints = gap(0, 3, 6, None);
    constraints.gaps.extend(gap(0, 5, 7, None).gaps);
    let problem = problem(&TWO, None).with_constraints(constraints);
    assert!(matches!(verify(&problem, &[0, 10], 100), Err(Violation::Gap { lower: 5, upper: 7, .. })));
}

#[test]
fn a_fixed_block_one_byte_off_is_found() {
    let problem = problem(&TWO, None).with_constraints(fixed(1, 10));
    assert_eq!(verify(&problem, &[0, 10], 20), Ok(()));
    for offset in [9, 11] {
        assert!(matches!(
            verify(&problem, &[30, offset], 100),
            Err(Violation::NotFixed { index: 1, fixed: 10, .. })
        ));
    }
}

#[test]
fn a_view_one_byte_off_or_beyond_its_block_is_found() {
    let rows = [(0, 9, 10, 1), (3, 12, 4, 1), (5, 8, 3, 1)];
    let with = |distance| problem(&rows, None).with_constraints(inside(1, 0, distance));
    assert_eq!(verify(&with(6), &[20, 26, 0], 100), Ok(()));
    assert!(matches!(verify(&with(6), &[20, 27, 0], 100), Err(Violation::NotInside { index: 1, of: 0, .. })));
    assert!(matches!(verify(&with(6), &[20, 25, 0], 100), Err(Violation::NotInside { .. })));
    assert!(matches!(
        verify(&with(7), &[20, 27, 0], 100),
        Err(Violation::NotInside { end: 31, of_end: 30, .. })
    ));
    // A stranger may not lie there, neither in the view nor in the rest.
    assert_eq!(overlap(&with(6), &[20, 26, 24]), Some((24, 5)));
    assert_eq!(overlap(&with(6), &[20, 26, 28]), Some((28, 5)));
}

#[test]
fn only_the_pair_that_works_in_place_may_share() {
    let rows = [(0, 9, 10, 1), (3, 6, 10, 1), (3, 6, 10, 1)];
    let problem = problem(&rows, None).with_constraints(in_place(&[(0, 1)]));
    assert_eq!(overlap(&problem, &[0, 0, 10]), None);
    assert_eq!(overlap(&problem, &[0, 5, 15]), None);
    assert_eq!(overlap(&problem, &[0, 5, 14]), Some((14, 3)));
    assert_eq!(overlap(&problem, &[10, 5, 0]), Some((5, 3)));
    assert_eq!(overlap(&problem, &[0, 20, 9]), Some((9, 3)));
}

#[test]
fn a_constraint_about_a_block_that_is_not_there_is_found() {
    for constraints in
        [fixed(2, 0), gap(2, 0, 1, None), inside(2, 0, 0), inside(0, 2, 0), in_place(&[(0, 2)])]
    {
        let problem = problem(&TWO, None).with_constraints(constraints);
        assert_eq!(verify(&problem, &[0, 10], 20), Err(Violation::NoSuchBlock { index: 2, blocks: 2 }));
    }
}

#[test]
fn a_capacity_missed_by_a_byte_is_found() {
    let problem = problem(&TWO, None).with_constraints(in_place(&[]));
    assert_eq!(verify(&problem, &[0, 10], 20), Ok(()));
    assert!(matches!(
        verify(&problem, &[0, 10], 19),
        Err(Violation::OutOfBounds { end: 20, height: 19, .. })
    ));
}

#[test]
fn a_bound_one_byte_too_high_is_not_proven() {
    let rows = [(0, 4, 10, 16), (1, 3, 9, 16), (3, 6, 5, 1), (8, 9, 25, 1)];
    let problem = problem(&rows, None);
    let prove = |bytes, at, align, witness: &[usize]| {
        verify_bound(&problem, &LowerBound { bytes, at, align }, witness)
    };
    assert_eq!(prove(19, 2, 1, &[0, 1]), Ok(()));
    assert_eq!(prove(20, 2, 1, &[0, 1]), Err(Unproven::TooHigh { bound: 20, needed: 19 }));
    assert_eq!(prove(25, 2, 16, &[0, 1]), Ok(()));
    assert_eq!(prove(26, 2, 16, &[0, 1]), Err(Unproven::TooHigh { bound: 26, needed: 25 }));
    assert_eq!(prove(25, 0, 1, &[3]), Ok(()));
    assert_eq!(prove(26, 8, 1, &[3]), Err(Unproven::TooHigh { bound: 26, needed: 25 }));
    assert_eq!(prove(1, 2, 1, &[]), Err(Unproven::TooHigh { bound: 1, needed: 0 }));
    assert_eq!(prove(19, 4, 1, &[0, 2]), Err(Unproven::NotInUse { index: 0, at: 4 }));
    assert_eq!(prove(19, 2, 1, &[0, 0]), Err(Unproven::Named { index: 0 }));
    assert_eq!(prove(19, 2, 1, &[0, 9]), Err(Unproven::Named { index: 9 }));
    assert_eq!(prove(15, 3, 16, &[0, 2]), Err(Unproven::Unaligned { index: 2, align: 16 }));
}

#[test]
fn the_same_pair_of_several_is_named_every_time() {
    let rows = [(0, 4, 10, 1); 8];
    let problem = problem(&rows, None).with_constraints(in_place(&[(6, 3), (0, 1), (2, 5), (4, 7)]));
    let bound = LowerBound { bytes: 80, at: 2, align: 1 };
    let verdict = verify_bound(&problem, &bound, &[0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(verdict, Err(Unproven::MayShare { first: 6, second: 3 }));
}

#[test]
fn a_bound_that_counts_shared_bytes_twice_is_not_proven() {
    let rows = [(0, 4, 10, 1), (0, 4, 8, 1), (0, 4, 6, 1)];
    let prove =
        |problem: &Problem, bytes| verify_bound(problem, &LowerBound { bytes, at: 1, align: 1 }, &[0, 1, 2]);
    let view = problem(&rows, None).with_constraints(inside(2, 0, 4));
    assert_eq!(prove(&view, 18), Ok(()));
    assert_eq!(prove(&view, 19), Err(Unproven::TooHigh { bound: 19, needed: 18 }));
    let pair = problem(&rows, None).with_constraints(in_place(&[(2, 1)]));
    assert!(matches!(prove(&pair, 18), Err(Unproven::MayShare { .. })));
    let cut = problem(&rows, None).with_constraints(gap(1, 1, 2, Some((3, 4))));
    assert_eq!(prove(&cut, 17), Ok(()));
    assert_eq!(prove(&cut, 18), Err(Unproven::TooHigh { bound: 18, needed: 17 }));
}

/// What is done to a valid plan.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Move(u64),
    MoveBack(u64),
    Grow(u64),
    Shrink(u64),
    Lower(u64),
}

fn fault() -> impl Strategy<Value = Fault> {
    let bytes = prop_oneof![3 => Just(1u64), 1 => 1u64..12];
    (0..5, bytes).prop_map(|(kind, bytes)| match kind {
        0 => Fault::Move(bytes),
        1 => Fault::MoveBack(bytes),
        2 => Fault::Grow(bytes),
        3 => Fault::Shrink(bytes),
        _ => Fault::Lower(bytes),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_verifier_agrees_with_brute_force_on_every_fault(
        problem in problems(Extent { blocks: 10, events: 10, size: 12, align: 3 }),
        fault in fault(),
        block in any::<prop::sample::Index>(),
    ) {
        let plan = Planner::quick().plan(&problem).expect("a sound problem");
        let (mut problem, mut offsets, mut height) = (problem, plan.offsets, plan.height);
        let block = block.index(offsets.len());
        let size = problem.blocks[block].size;
        match fault {
            Fault::Move(bytes) => offsets[block] += bytes,
            Fault::MoveBack(bytes) => offsets[block] = offsets[block].saturating_sub(bytes),
            Fault::Grow(bytes) => problem.blocks[block].size += bytes,
            Fault::Shrink(bytes) => problem.blocks[block].size = size.saturating_sub(bytes),
            Fault::Lower(bytes) => height = height.saturating_sub(bytes),
        }
        let found = verify(&problem, &offsets, height);
        // Windows and views beyond a block are rules about the problem, which brute force does not look at.
        if !matches!(found, Err(Violation::Gap { .. } | Violation::NotInside { .. })) {
            prop_assert_eq!(found.is_ok(), Rules::new(&problem).keep(&offsets, height), "{:?}", found);
        } else if !matches!(fault, Fault::Grow(_) | Fault::Shrink(_)) {
            prop_assert!(!Rules::new(&problem).keep(&offsets, height), "{:?}", found);
        }
    }
}
