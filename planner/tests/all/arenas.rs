//! Plans for several arenas: blocks lie where they may, no arena is too high, and who found no place is named.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use stepalloc_planner::{
    Arena, ArenaError, ArenaViolation, ArenasPlan, Block, Constraints, Fixed, Gap, InPlace, Inside, Place,
    Planner, Problem, ProblemError, Used, Violation, verify_arenas,
};

/// Blocks of (lower, upper, size); ids from 100.
fn problem(rows: &[(u64, u64, u64)]) -> Problem {
    let block = |(id, &(lower, upper, size)): (usize, &(u64, u64, u64))| Block {
        id: 100 + id as u64,
        lower,
        upper,
        size,
        align: 1,
    };
    Problem::new(rows.iter().enumerate().map(block).collect())
}

fn arenas(capacities: &[Option<u64>]) -> Vec<Arena> {
    capacities.iter().map(|&capacity| Arena::new("", capacity)).collect()
}

/// Plans, checks, and gives the arena of each block.
fn homes(problem: &Problem, arenas: &[Arena], allowed: &[Vec<usize>]) -> Result<Vec<usize>, ArenaError> {
    let plan = Planner::new().plan_arenas(problem, arenas, allowed)?;
    assert_eq!(verify_arenas(problem, arenas, allowed, &plan), Ok(()));
    for used in &plan.used {
        assert!(used.lower_bound <= used.height, "{plan:?}");
    }
    Ok(plan.places.iter().map(|place| place.arena).collect())
}

#[test]
fn what_does_not_fit_the_first_arena_goes_to_the_second() {
    let three = problem(&[(0, 4, 60), (0, 4, 50), (0, 4, 40)]);
    assert_eq!(homes(&three, &arenas(&[Some(100), None]), &[]), Ok(vec![0, 1, 0]));
    assert_eq!(homes(&three, &arenas(&[Some(150), None]), &[]), Ok(vec![0, 0, 0]));
    assert_eq!(homes(&three, &arenas(&[None, Some(100)]), &[]), Ok(vec![0, 0, 0]));
}

#[test]
fn capacities_that_are_exactly_enough_are_enough() {
    let three = problem(&[(0, 4, 60), (0, 4, 50), (0, 4, 40)]);
    assert_eq!(homes(&three, &arenas(&[Some(100), Some(50)]), &[]), Ok(vec![0, 1, 0]));
    let full = homes(&three, &arenas(&[Some(100), Some(49)]), &[]);
    assert_eq!(full, Err(ArenaError::Full { ids: vec![101] }));
}

#[test]
fn a_block_too_large_for_every_arena_is_named() {
    let two = problem(&[(0, 4, 60), (0, 4, 500)]);
    assert_eq!(homes(&two, &arenas(&[Some(100), Some(50)]), &[]), Err(ArenaError::Full { ids: vec![101] }));
    let never = problem(&[(3, 3, 500)]);
    assert_eq!(homes(&never, &arenas(&[Some(100)]), &[]), Err(ArenaError::Full { ids: vec![100] }));
}

#[test]
fn blocks_stay_out_of_arenas_they_may_not_go_to() {
    let three = problem(&[(0, 4, 60), (0, 4, 50), (0, 4, 40)]);
    let allowed = [vec![1], vec![0, 1], vec![0]];
    assert_eq!(homes(&three, &arenas(&[Some(90), None]), &allowed), Ok(vec![1, 0, 0]));
    // The last may not go elsewhere, so it comes before larger ones that may.
    assert_eq!(homes(&three, &arenas(&[Some(60), None]), &allowed), Ok(vec![1, 1, 0]));
}

#[test]
fn views_go_with_their_block_and_pairs_share_within_an_arena() {
    let mut views = problem(&[(0, 4, 60), (2, 6, 20), (0, 6, 50)]);
    views.constraints.inside = vec![Inside { block: 1, of: 0, distance: 40 }];
    assert_eq!(homes(&views, &arenas(&[Some(59), None]), &[]), Ok(vec![1, 1, 0]));
    let allowed = [vec![0, 1], vec![1], vec![0, 1]];
    assert_eq!(homes(&views, &arenas(&[Some(200), None]), &allowed), Ok(vec![1, 1, 0]));

    let mut pair = problem(&[(0, 4, 60), (3, 8, 60)]);
    pair.constraints.in_place = vec![InPlace { first: 0, second: 1 }];
    assert_eq!(homes(&pair, &arenas(&[Some(60), None]), &[]), Ok(vec![0, 0]));
    pair.constraints = Constraints {
        gaps: vec![Gap { block: 1, lower: 3, upper: 4, window: None }],
        ..Constraints::default()
    };
    assert_eq!(homes(&pair, &arenas(&[Some(60), None]), &[]), Ok(vec![0, 0]));
}

#[test]
fn a_fixed_offset_is_one_in_the_only_arena_allowed() {
    let mut two = problem(&[(0, 4, 60), (0, 4, 50), (0, 4, 40)]);
    two.constraints.fixed = vec![Fixed { block: 0, offset: 0 }, Fixed { block: 1, offset: 0 }];
    let both = arenas(&[Some(100), Some(80)]);
    assert_eq!(homes(&two, &both, &[vec![0], vec![1], vec![0, 1]]), Ok(vec![0, 1, 0]));
    assert_eq!(homes(&two, &both, &[]), Err(ArenaError::FixedAnywhere { id: 100 }));
    let same = homes(&two, &both, &[vec![0], vec![0], vec![0, 1]]);
    assert!(matches!(same, Err(ArenaError::Problem(ProblemError::Constraint(_)))), "{same:?}");
    two.constraints.fixed[0].offset = u64::MAX - 70;
    let far = homes(&two, &both, &[vec![0], vec![1], vec![0, 1]]);
    assert!(matches!(far, Err(ArenaError::Problem(ProblemError::Constraint(_)))), "{far:?}");
}

#[test]
fn dealing_out_ends_when_the_watch_says_stop() {
    let row = |i: u64| (i * 7919 % 200, i * 7919 % 200 + 1 + i * 31 % 60, 10 + i * 37 % 101);
    let (problem, arenas) = (problem(&(0..200).map(row).collect::<Vec<_>>()), arenas(&[Some(1200), None]));
    let asked = Arc::new(AtomicU64::new(0));
    let count = asked.clone();
    let planner = Planner::new().watch(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        ControlFlow::Break(())
    });
    let plan = planner.plan_arenas(&problem, &arenas, &[]).expect("room for all");
    assert_eq!(verify_arenas(&problem, &arenas, &[], &plan), Ok(()));
    let asked = asked.load(Ordering::Relaxed);
    assert!(asked < 10, "asked {asked} times although it broke at the first");
}

#[test]
fn what_is_asked_wrongly_is_named() {
    let one = problem(&[(0, 4, 60)]);
    let both = arenas(&[Some(100), None]);
    assert_eq!(homes(&one, &[], &[]), Err(ArenaError::Nowhere { id: 100 }));
    assert_eq!(homes(&one, &both, &[vec![]]), Err(ArenaError::Nowhere { id: 100 }));
    assert_eq!(homes(&one, &both, &[vec![], vec![]]), Err(ArenaError::Allowed { lists: 2, blocks: 1 }));
    let beyond = ArenaError::NoSuchArena { id: 100, arena: 2, arenas: 2 };
    assert_eq!(homes(&one, &both, &[vec![2]]), Err(beyond));
    let reversed = ProblemError::Reversed { id: 100, lower: 4, upper: 0 };
    assert_eq!(homes(&problem(&[(4, 0, 1)]), &both, &[]), Err(ArenaError::Problem(reversed)));
    assert_eq!(homes(&problem(&[]), &[], &[]), Ok(vec![]));
}

#[test]
fn the_certificate_finds_every_fault() {
    let mut two = problem(&[(0, 4, 60), (0, 4, 50)]);
    let both = arenas(&[Some(100), None]);
    let check = |problem: &Problem, places: [(usize, u64); 2], heights: [u64; 2]| {
        let plan = ArenasPlan {
            places: places.iter().map(|&(arena, offset)| Place { arena, offset }).collect(),
            used: heights.iter().map(|&height| Used { height, lower_bound: 0 }).collect(),
        };
        verify_arenas(problem, &both, &[vec![0, 1], vec![1]], &plan)
    };
    assert_eq!(check(&two, [(0, 0), (1, 0)], [60, 50]), Ok(()));
    assert_eq!(check(&two, [(1, 0), (1, 60)], [0, 110]), Ok(()));
    let overlap = check(&two, [(1, 0), (1, 59)], [0, 110]);
    assert!(matches!(
        overlap,
        Err(ArenaViolation::Within { arena: 1, violation: Violation::Overlap { first: 0, second: 1, .. } })
    ));
    let outside = check(&two, [(0, 0), (1, 0)], [59, 50]);
    assert!(matches!(outside, Err(ArenaViolation::Within { arena: 0, .. })));
    assert_eq!(
        check(&two, [(0, 41), (1, 0)], [101, 50]),
        Err(ArenaViolation::Capacity { arena: 0, height: 101, capacity: 100 })
    );
    let not_allowed = |arena| Err(ArenaViolation::NotAllowed { index: 1, id: 101, arena });
    assert_eq!(check(&two, [(1, 0), (0, 0)], [60, 60]), not_allowed(0));
    assert_eq!(check(&two, [(1, 0), (2, 0)], [60, 60]), not_allowed(2));
    two.constraints.inside = vec![Inside { block: 1, of: 0, distance: 0 }];
    assert_eq!(check(&two, [(1, 0), (1, 0)], [0, 60]), Ok(()));
    assert_eq!(check(&two, [(0, 0), (1, 0)], [60, 60]), Err(ArenaViolation::Parted { index: 1, id: 101 }));
    let none = ArenasPlan { places: vec![], used: vec![] };
    assert!(matches!(verify_arenas(&two, &both, &[], &none), Err(ArenaViolation::Length { .. })));
}

/// Blocks on a line or a circle of 16 events, some of them views, pairs or with a gap.
fn problems() -> impl Strategy<Value = Problem> {
    let row = (0u64..16, 0u64..17, prop_oneof![1 => Just(0u64), 9 => 1u64..100], 0u32..4);
    let wish = (0usize..3, any::<[prop::sample::Index; 2]>());
    let rows = prop::collection::vec(row, 1..20);
    (rows, any::<bool>(), prop::collection::vec(wish, 0..8)).prop_map(|(rows, periodic, wishes)| {
        let ends: Vec<_> =
            rows.iter().map(|&(lower, length, size, _)| (lower, lower + length, size)).collect();
        let mut problem = problem(&ends).with_period(periodic.then_some(16));
        for (block, row) in problem.blocks.iter_mut().zip(&rows) {
            block.align = 1 << row.3;
        }
        for (kind, indices) in wishes {
            let before = problem.constraints.clone();
            let [block, of] = indices.map(|index| index.index(rows.len()));
            let Block { lower, upper, .. } = problem.blocks[block];
            match kind {
                0 => problem.constraints.inside.push(Inside { block, of, distance: 0 }),
                1 => problem.constraints.in_place.push(InPlace { first: block, second: of }),
                _ => problem.constraints.gaps.push(Gap { block, lower: lower + 1, upper, window: None }),
            }
            if problem.check().is_err() {
                problem.constraints = before;
            }
        }
        problem
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_plan_is_valid_and_needs_no_less_than_one_arena(
        problem in problems(),
        capacities in prop::collection::vec(0u64..300, 0..3),
    ) {
        let mut some: Vec<Option<u64>> = capacities.into_iter().map(Some).collect();
        some.push(None);
        let some = arenas(&some);
        let plan = Planner::new().plan_arenas(&problem, &some, &[]).expect("the last arena holds all");
        prop_assert_eq!(verify_arenas(&problem, &some, &[], &plan), Ok(()));
        let sum: u64 = plan.used.iter().map(|used| used.height).sum();
        prop_assert!(sum >= problem.load().max, "what is alive at once lies somewhere");
        prop_assert_eq!(&plan, &Planner::new().plan_arenas(&problem, &some, &[]).expect("as before"));
        // One arena as high as the plan of all is enough, whatever comes after it.
        let whole = Planner::new().plan(&problem).expect("a sound problem");
        let one = arenas(&[Some(whole.height), Some(0)]);
        let plan = Planner::new().plan_arenas(&problem, &one, &[]).expect("the first arena holds all");
        prop_assert!(plan.places.iter().all(|place| place.arena == 0));
    }

    #[test]
    fn blocks_lie_where_they_may_or_are_named(
        problem in problems(),
        capacities in prop::collection::vec(prop::option::of(0u64..300), 1..4),
        masks in prop::collection::vec(1usize..8, 20),
    ) {
        let arenas = arenas(&capacities);
        let allowed: Vec<Vec<usize>> = masks[..problem.blocks.len()]
            .iter()
            .map(|mask| (0..arenas.len()).filter(|arena| mask >> arena & 1 == 1).collect())
            .collect();
        match Planner::quick().plan_arenas(&problem, &arenas, &allowed) {
            Ok(plan) => prop_assert_eq!(verify_arenas(&problem, &arenas, &allowed, &plan), Ok(())),
            Err(ArenaError::Nowhere { .. }) => {}
            Err(ArenaError::Full { ids }) => prop_assert!(!ids.is_empty()),
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}
