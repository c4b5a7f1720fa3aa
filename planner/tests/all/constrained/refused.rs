//! Constraints that are refused, and what is said about them.

use stepalloc_planner::{ConstraintError, Constraints, Planner, Problem, ProblemError};

use super::cases::{fixed, gap, in_place, inside, problem};

/// Three blocks: 100 of 10 bytes aligned to 8, 101 of 4 bytes, 102 of 10 bytes.
fn three(constraints: Constraints) -> Problem {
    problem(&[(2, 9, 10, 8), (3, 6, 4, 1), (4, 12, 10, 1)], None).with_constraints(constraints)
}

fn message(problem: &Problem) -> String {
    let error = problem.check().expect_err("a refusal");
    assert!(matches!(error, ProblemError::Constraint(_)));
    assert_eq!(Planner::new().plan(problem), Err(error.clone()));
    // What is refused has a load all the same.
    let _ = (problem.load(), problem.lower_bound());
    error.to_string()
}

/// Two constraints at once.
fn both(mut first: Constraints, second: Constraints) -> Constraints {
    first.fixed.extend(second.fixed);
    first.gaps.extend(second.gaps);
    first.inside.extend(second.inside);
    first.in_place.extend(second.in_place);
    first
}

#[test]
fn what_cannot_be_understood_is_refused_with_a_remedy() {
    let cases = [
        (
            fixed(3, 0),
            "fixed[0] names block index 3, but there are only 3 blocks, from index 0; correct the index",
        ),
        (
            gap(9, 0, 1, None),
            "gaps[0] names block index 9, but there are only 3 blocks, from index 0; correct the index",
        ),
        (
            inside(0, 3, 0),
            "inside[0] names block index 3, but there are only 3 blocks, from index 0; correct the index",
        ),
        (
            in_place(&[(0, 1), (5, 0)]),
            "in_place[1] names block index 5, but there are only 3 blocks, from index 0; correct the index",
        ),
        (
            gap(0, 4, 4, None),
            "block 100: gap [4, 4) has no event; a gap's lower lies below its upper, or leave it out",
        ),
        (
            gap(0, 5, 4, None),
            "block 100: gap [5, 4) has no event; a gap's lower lies below its upper, or leave it out",
        ),
        (
            gap(0, 1, 4, None),
            "block 100: gap [1, 4) is not within its lifetime [2, 9); cut it off at the lifetime's ends",
        ),
        (
            gap(0, 4, 10, None),
            "block 100: gap [4, 10) is not within its lifetime [2, 9); cut it off at the lifetime's ends",
        ),
        (
            both(gap(0, 5, 8, None), gap(0, 3, 6, None)),
            "block 100: gaps [3, 6) and [5, 8) overlap; make them one, or cut one off",
        ),
        (
            gap(0, 3, 4, Some((2, 11))),
            "block 100: window [2, 11) of a gap is not within the block's bytes [0, 10); correct it",
        ),
        (
            gap(0, 3, 4, Some((3, 2))),
            "block 100: window [3, 2) of a gap is not within the block's bytes [0, 10); correct it",
        ),
        (
            fixed(0, 12),
            "block 100: fixed offset 12 is not a multiple of its alignment 8; change one of the two",
        ),
        (
            fixed(1, u64::MAX - 3),
            "block 101: fixed offset 18446744073709551612 + size 4 leaves too few of 2^64 bytes for the other blocks; lower the offset",
        ),
        (both(fixed(1, 4), fixed(1, 5)), "block 101: fixed at offset 4 and at offset 5; keep one of them"),
        (
            both(fixed(0, 8), fixed(2, 17)),
            "blocks 100 and 102 are fixed so that both use byte 17 at event 4; move one of them, or let them share as in_place",
        ),
        (
            inside(1, 0, 7),
            "block 101: 4 bytes at distance 7 do not lie within the 10 bytes of block 100; correct distance or size",
        ),
        (
            inside(1, 0, u64::MAX),
            "block 101: 4 bytes at distance 18446744073709551615 do not lie within the 10 bytes of block 100; correct distance or size",
        ),
        (
            both(inside(1, 0, 1), inside(1, 2, 1)),
            "block 101: lies inside block 100 and inside block 102, or at two distances; keep one of the two",
        ),
        (
            both(inside(0, 2, 0), inside(2, 0, 0)),
            "block 102: lies inside itself, by way of its views; leave one of these views out",
        ),
        (inside(1, 1, 0), "block 101: lies inside itself, by way of its views; leave one of these views out"),
        (
            both(inside(1, 0, 4), fixed(1, 3)),
            "block 101: fixed offset 3, but it lies 4 bytes into block 100, which therefore begins at a negative offset; change one of the offsets or leave it out",
        ),
        (
            both(inside(1, 0, 4), both(fixed(0, 8), fixed(1, 13))),
            "block 101: fixed offset 13, but it lies 4 bytes into block 100, which therefore begins at 8 by another fixed offset; change one of the offsets or leave it out",
        ),
        (
            both(inside(1, 0, 4), fixed(1, 8)),
            "block 101: its alignment 8 at 4 bytes into block 100 cannot be had together with the other alignments and offsets there; lower it or change the distance",
        ),
        (
            in_place(&[(1, 1)]),
            "block 101: cannot work in place of itself; name two different blocks, or leave it out",
        ),
    ];
    for (constraints, expected) in cases {
        assert_eq!(message(&three(constraints)), expected);
    }
}

#[test]
fn alignments_of_a_family_that_contradict_each_other_are_refused() {
    let rows = [(0, 4, 100, 16), (0, 4, 8, 16)];
    let at = |distance| problem(&rows, None).with_constraints(inside(1, 0, distance)).check();
    assert_eq!(at(32), Ok(()));
    assert!(matches!(
        at(8),
        Err(ProblemError::Constraint(ConstraintError::InsideMisaligned { align: 16, distance: 8, .. }))
    ));
}

#[test]
fn gaps_that_only_touch_and_windows_up_to_the_end_are_none_of_it() {
    for constraints in [
        both(gap(0, 2, 4, None), gap(0, 4, 9, None)),
        gap(0, 3, 4, Some((0, 10))),
        gap(0, 3, 4, Some((4, 4))),
        both(fixed(1, 5), fixed(1, 5)),
        both(fixed(0, 8), fixed(2, 18)),
        both(both(fixed(0, 8), fixed(2, 17)), in_place(&[(2, 0)])),
        both(both(fixed(0, 8), fixed(2, 17)), gap(0, 4, 9, Some((0, 9)))),
        both(inside(1, 0, 6), inside(1, 0, 6)),
    ] {
        assert_eq!(three(constraints).check(), Ok(()));
    }
}

#[test]
fn fixed_blocks_meet_across_the_end_of_the_period() {
    let rows = [(8, 12, 10, 1), (1, 3, 10, 1)];
    let at = |offset| problem(&rows, Some(10)).with_constraints(both(fixed(0, 0), fixed(1, offset))).check();
    assert_eq!(at(10), Ok(()));
    assert!(matches!(
        at(9),
        Err(ProblemError::Constraint(ConstraintError::FixedOverlap { byte: 9, at: 1, .. }))
    ));
}

#[test]
fn a_gap_in_the_next_turn_counts_on_the_unrolled_circle() {
    let at = |lower, upper| {
        problem(&[(8, 12, 10, 1)], Some(10)).with_constraints(gap(0, lower, upper, None)).check()
    };
    assert_eq!(at(10, 12), Ok(()));
    assert!(matches!(at(0, 2), Err(ProblemError::Constraint(ConstraintError::GapOutside { .. }))));
}
