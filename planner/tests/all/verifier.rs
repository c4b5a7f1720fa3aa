//! The verifier finds every kind of planted fault, and only those.

use stepalloc_planner::{Block, Problem, Violation, verify};

fn problem(rows: &[(u64, u64, u64, u64)], period: Option<u64>) -> Problem {
    let block = |(index, &(lower, upper, size, align)): (usize, &(u64, u64, u64, u64))| Block {
        id: 100 + index as u64,
        lower,
        upper,
        size,
        align,
    };
    Problem { blocks: rows.iter().enumerate().map(block).collect(), period, ..Problem::default() }
}

/// Two blocks alive together, at these offsets.
fn pair(first: (u64, u64), second: (u64, u64)) -> Result<(), Violation> {
    verify(&problem(&[(0, 4, first.1, 1), (2, 6, second.1, 1)], None), &[first.0, second.0], 100)
}

#[test]
fn ranges_that_overlap_in_any_way_are_found() {
    let slot = (5, 5);
    for request in [(3, 4), (5, 5), (6, 2), (4, 8), (9, 1), (5, 1), (0, 6), (5, 9)] {
        let found = pair(slot, request);
        assert!(
            matches!(found, Err(Violation::Overlap { first: 0, second: 1, at: 2, .. })),
            "{request:?}: {found:?}"
        );
        assert!(matches!(pair(request, slot), Err(Violation::Overlap { .. })), "{request:?} first");
    }
}

#[test]
fn ranges_that_only_touch_are_none() {
    assert_eq!(pair((5, 5), (10, 3)), Ok(()));
    assert_eq!(pair((5, 5), (3, 2)), Ok(()));
}

#[test]
fn an_overlap_names_both_blocks_a_byte_and_an_event() {
    assert_eq!(
        pair((5, 5), (3, 4)).map_err(|violation| violation.to_string()),
        Err("blocks 100 (index 0) and 101 (index 1) share byte 5 and are both alive at event 2".into())
    );
}

#[test]
fn lifetimes_that_only_touch_may_share_bytes() {
    assert_eq!(verify(&problem(&[(0, 4, 5, 1), (4, 6, 5, 1)], None), &[0, 0], 5), Ok(()));
}

#[test]
fn an_overlap_after_an_earlier_neighbour_died_is_found() {
    // The block between them in offset is gone when the third comes.
    let problem = problem(&[(0, 9, 10, 1), (1, 3, 5, 1), (4, 6, 8, 1)], None);
    assert_eq!(verify(&problem, &[0, 10, 10], 18), Ok(()));
    assert!(matches!(
        verify(&problem, &[0, 10, 9], 18),
        Err(Violation::Overlap { first: 0, second: 2, byte: 9, at: 4, .. })
    ));
}

#[test]
fn a_block_that_wraps_conflicts_with_the_start_of_the_next_step() {
    let problem = problem(&[(8, 12, 5, 1), (1, 3, 5, 1), (2, 8, 5, 1)], Some(10));
    assert_eq!(verify(&problem, &[0, 5, 0], 10), Ok(()));
    assert!(matches!(verify(&problem, &[0, 4, 10], 20), Err(Violation::Overlap { .. })));
}

#[test]
fn a_block_as_long_as_the_period_conflicts_with_all() {
    let problem = problem(&[(8, 18, 5, 1), (3, 4, 5, 1)], Some(10));
    assert_eq!(verify(&problem, &[0, 5], 10), Ok(()));
    assert!(matches!(verify(&problem, &[0, 4], 10), Err(Violation::Overlap { .. })));
}

#[test]
fn a_block_beyond_the_arena_is_found() {
    let problem = problem(&[(0, 4, 5, 1)], None);
    assert!(matches!(verify(&problem, &[6], 10), Err(Violation::OutOfBounds { end: 11, height: 10, .. })));
}

#[test]
fn a_misaligned_offset_is_found() {
    let problem = problem(&[(0, 4, 5, 8)], None);
    assert_eq!(verify(&problem, &[16], 100), Ok(()));
    assert!(matches!(verify(&problem, &[12], 100), Err(Violation::Misaligned { offset: 12, align: 8, .. })));
}

#[test]
fn an_alignment_that_is_no_power_of_two_is_found() {
    for align in [0, 3] {
        let problem = problem(&[(0, 4, 5, align)], None);
        assert!(matches!(verify(&problem, &[0], 100), Err(Violation::Misaligned { .. })));
    }
}

#[test]
fn an_offset_that_overflows_is_found() {
    let problem = problem(&[(0, 4, 5, 1)], None);
    assert!(matches!(verify(&problem, &[u64::MAX - 3], u64::MAX), Err(Violation::Overflow { .. })));
}

#[test]
fn offsets_too_few_or_too_many_are_found() {
    let problem = problem(&[(0, 4, 5, 1)], None);
    assert!(matches!(verify(&problem, &[], 100), Err(Violation::Length { offsets: 0, blocks: 1 })));
    assert!(matches!(verify(&problem, &[0, 0], 100), Err(Violation::Length { offsets: 2, blocks: 1 })));
}

#[test]
fn a_lifetime_that_is_none_is_found() {
    for (lower, upper, period) in [(4, 3, None), (2, 13, Some(10)), (10, 11, Some(10))] {
        let problem = problem(&[(lower, upper, 5, 1)], period);
        assert!(matches!(verify(&problem, &[0], 100), Err(Violation::Lifetime { .. })), "{lower} {upper}");
    }
}

#[test]
fn blocks_without_length_or_size_conflict_with_nothing() {
    let problem = problem(&[(0, 4, 5, 1), (2, 2, 5, 1), (1, 3, 0, 1)], None);
    assert_eq!(verify(&problem, &[0, 0, 3], 5), Ok(()));
}
