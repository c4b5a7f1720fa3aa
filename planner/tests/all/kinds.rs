//! Plans for several kinds of steps: every kind can follow them, and what cannot be planned is named.

use proptest::prelude::*;
use stepalloc_planner::{
    Block, Constraints, Effort, Fixed, Gap, InPlace, Kind, KindError, KindsPlan, Planner, Problem,
    ProblemError, Smaller, verify,
};

fn block(id: u64, lower: u64, upper: u64, size: u64) -> Block {
    Block { id, lower, upper, size, align: 1 }
}

/// Blocks of (key, lower, upper, size).
fn kind(rows: &[(u8, u64, u64, u64)], period: Option<u64>) -> Kind<u8> {
    let blocks =
        rows.iter().map(|&(key, lower, upper, size)| block(u64::from(key), lower, upper, size)).collect();
    Kind {
        problem: Problem::new(blocks).with_period(period),
        keys: rows.iter().map(|&(key, ..)| key).collect(),
    }
}

/// Plans, and checks both ways for every kind by itself.
fn plan(kinds: &[Kind<u8>]) -> KindsPlan<u8> {
    let plan = Planner::new().plan_kinds(kinds).expect("sound kinds");
    assert_valid(kinds, &plan);
    plan
}

fn assert_valid(kinds: &[Kind<u8>], plan: &KindsPlan<u8>) {
    for (kind, alone) in kinds.iter().zip(&plan.alone) {
        let offsets = plan.offsets(&kind.keys).expect("every key has an offset");
        assert_eq!(verify(&kind.problem, &offsets, plan.shared.height), Ok(()));
        assert_eq!(verify(&kind.problem, &alone.offsets, plan.alone_height()), Ok(()));
    }
}

#[test]
fn threads_that_interleave_differently_share_one_plan() {
    // Two threads, each with one block and then another; either may be the faster one.
    let first = kind(&[(0, 0, 2, 8), (1, 2, 4, 8), (2, 4, 6, 4), (3, 6, 8, 4)], None);
    let second = kind(&[(2, 0, 2, 4), (3, 2, 4, 4), (0, 4, 6, 8), (1, 6, 8, 8)], None);
    let mixed = kind(&[(0, 0, 3, 8), (2, 1, 4, 4), (1, 3, 6, 8), (3, 4, 7, 4)], None);
    let apart = plan(&[first.clone(), second.clone()]);
    assert_eq!((apart.shared.height, apart.alone_height()), (8, 8));
    let all = plan(&[first, second, mixed]);
    assert_eq!((all.shared.height, all.alone_height()), (12, 12));
    assert_eq!(all.smaller(), Smaller::Shared);
}

#[test]
fn blocks_that_meet_in_any_kind_lie_apart_in_all() {
    // Each pair of three blocks meets in some kind, but no kind has all three at once.
    let rows = |a, b, c| kind(&[(a, 0, 2, 10), (b, 1, 3, 10), (c, 3, 5, 10)], None);
    let plan = plan(&[rows(0, 1, 2), rows(1, 2, 0), rows(2, 0, 1)]);
    assert_eq!((plan.shared.height, plan.alone_height(), plan.alone_bound()), (30, 20, 20));
    assert_eq!(plan.smaller(), Smaller::Alone);
}

#[test]
fn a_block_needs_only_the_bytes_its_kind_asks_for() {
    let long = kind(&[(0, 0, 4, 100), (1, 1, 3, 20)], None);
    let short = kind(&[(0, 0, 4, 30), (2, 1, 3, 90)], None);
    assert_eq!(plan(&[long, short]).shared.height, 120);
}

#[test]
fn what_wraps_round_its_circle_does_not_reach_into_the_next_kind() {
    let wraps = kind(&[(0, 6, 12, 10), (1, 3, 5, 10)], Some(8));
    let other = kind(&[(2, 0, 4, 10)], Some(8));
    let meets = kind(&[(0, 6, 12, 10), (2, 2, 3, 10)], Some(8));
    assert_eq!(plan(&[wraps.clone(), other.clone()]).shared.height, 20);
    assert_eq!(plan(&[wraps, other, meets]).shared.height, 20);
}

#[test]
fn gaps_and_fixed_offsets_hold_in_their_kinds() {
    let mut first = kind(&[(0, 0, 9, 10), (1, 3, 6, 10)], None);
    first.problem.constraints = Constraints {
        gaps: vec![Gap { block: 0, lower: 3, upper: 6, window: None }],
        ..Constraints::default()
    };
    let mut second = kind(&[(2, 0, 4, 10), (0, 2, 5, 10)], None);
    second.problem.constraints =
        Constraints { fixed: vec![Fixed { block: 0, offset: 0 }], ..Constraints::default() };
    let plan = plan(&[first, second]);
    assert_eq!((plan.shared.height, plan.offset(&2), plan.offset(&3)), (20, Some(0), None));
}

#[test]
fn no_kinds_need_no_bytes() {
    let plan = plan(&[]);
    assert_eq!((plan.shared.height, plan.alone_height(), plan.keys.len()), (0, 0, 0));
    assert_eq!(self::plan(&[kind(&[(0, 3, 3, 7)], None), kind(&[], None)]).shared.height, 7);
}

#[test]
fn what_cannot_be_planned_is_named() {
    let good = kind(&[(0, 0, 2, 10), (1, 0, 2, 10)], None);
    let error = |bad: Kind<u8>| Planner::new().plan_kinds(&[good.clone(), bad]).expect_err("a wrong kind");
    let mut bad = good.clone();
    bad.keys.pop();
    assert_eq!(error(bad), KindError::Keys { kind: 1, keys: 1, blocks: 2 });
    assert_eq!(
        error(kind(&[(5, 0, 2, 1), (5, 2, 4, 1)], None)),
        KindError::KeyTwice { kind: 1, first: 5, second: 5 }
    );
    let reversed = ProblemError::Reversed { id: 3, lower: 2, upper: 1 };
    assert_eq!(error(kind(&[(3, 2, 1, 1)], None)), KindError::Problem { kind: 1, source: reversed });
    assert_eq!(error(kind(&[(3, 0, u64::MAX, 1)], None)), KindError::TooLong { kind: 1 });
    let large = error(kind(&[(3, 0, 1, u64::MAX - 1)], None));
    assert_eq!(large, KindError::Together(ProblemError::TooLarge { id: 3 }));
    let mut bad = good.clone();
    bad.problem.constraints.in_place.push(InPlace { first: 0, second: 1 });
    assert_eq!(error(bad), KindError::Sharing { kind: 1 });
}

/// Kinds of up to 12 of 16 keys, on lines and circles, with sizes and alignments of their own.
fn kinds() -> impl Strategy<Value = Vec<Kind<u8>>> {
    let row = (0u64..12, 0u64..13, prop_oneof![Just(0u64), 1u64..100], 0u32..4);
    let keys = prop::collection::btree_map(0u8..16, row, 0..12);
    let kind = (keys, any::<bool>()).prop_map(|(rows, periodic)| {
        let block = |(&key, &(lower, length, size, log)): (&u8, &(u64, u64, u64, u32))| Block {
            align: 1 << log,
            ..block(u64::from(key), lower, lower + length, size)
        };
        Kind {
            problem: Problem::new(rows.iter().map(block).collect()).with_period(periodic.then_some(12)),
            keys: rows.keys().copied().collect(),
        }
    });
    prop::collection::vec(kind, 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_plans_hold_in_every_kind_above_every_bound(kinds in kinds()) {
        for effort in [Effort::Quick, Effort::Normal] {
            let planner = Planner::new().effort(effort);
            let plan = planner.plan_kinds(&kinds).expect("sound kinds");
            assert_valid(&kinds, &plan);
            prop_assert!(plan.alone_bound() <= plan.shared.height);
            prop_assert!(plan.alone_bound() <= plan.alone_height());
            prop_assert!(plan.shared.lower_bound <= plan.shared.height);
            prop_assert_eq!(plan.shared.optimal(), plan.shared.lower_bound == plan.shared.height);
            prop_assert_eq!(planner.plan_kinds(&kinds).expect("sound kinds"), plan);
        }
    }

    #[test]
    fn a_kind_twice_has_the_bound_of_one(kind in kinds()) {
        let Some(kind) = kind.first() else { return Ok(()) };
        let plan = plan(&[kind.clone(), kind.clone()]);
        prop_assert_eq!(plan.shared.lower_bound, plan.alone_bound());
    }
}
