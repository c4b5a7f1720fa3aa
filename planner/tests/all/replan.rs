//! Replanning and rotations, by what a caller sees: valid plans, nothing moved that nobody named, honest bounds.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use stepalloc_planner::{
    Block, Change, Constraints, Fixed, Plan, Planner, Problem, ReplanError, Replanner, RotationError, replan,
    rotate, verify, verify_rotation,
};

/// Events of the lines and circles of the tests; several leaves of the index where blocks are many.
const EVENTS: u64 = 400;

fn block(id: u64, lower: u64, upper: u64, size: u64) -> Block {
    Block { id, lower, upper, size, align: 1 }
}

fn blocks(periodic: bool) -> impl Strategy<Value = Block> {
    let length = prop_oneof![1 => Just(0u64), 6 => 1u64..20, 3 => 1u64..=EVENTS];
    let size = prop_oneof![1 => Just(0u64), 3 => Just(64), 6 => 1u64..2000];
    let align = prop_oneof![3 => Just(0u32), 1 => 1u32..9];
    (0..EVENTS, length, size, align).prop_map(move |(lower, length, size, log)| {
        let upper = if periodic { lower + length } else { lower + length.min(EVENTS) };
        Block { id: 0, lower, upper, size, align: 1 << log }
    })
}

/// What a change does (0: add, 1: remove, 2: replace, 3: take bytes away, 4: end some events sooner or later), to which of
/// the blocks that are there, and the new block.
type Step = (u8, prop::sample::Index, Block);

fn programs(most: usize) -> impl Strategy<Value = (Problem, Vec<Vec<Step>>)> {
    any::<bool>().prop_flat_map(move |periodic| {
        let step = (0u8..5, any::<prop::sample::Index>(), blocks(periodic));
        let rounds = prop::collection::vec(prop::collection::vec(step, 0..12), 1..8);
        let blocks = prop::collection::vec(blocks(periodic), 0..most);
        (blocks, rounds).prop_map(move |(mut blocks, rounds)| {
            for (id, block) in blocks.iter_mut().enumerate() {
                block.id = id as u64;
            }
            (Problem::new(blocks).with_period(periodic.then_some(EVENTS)), rounds)
        })
    })
}

/// Changes of distinct blocks of those in the slots.
fn changes(
    steps: &[Step],
    slots: &mut Vec<usize>,
    replanner: &Replanner,
    period: Option<u64>,
) -> Vec<Change> {
    let mut free = slots.clone();
    let mut changes = Vec::new();
    for (kind, which, block) in steps {
        if *kind == 0 || free.is_empty() {
            changes.push(Change::Add(*block));
            continue;
        }
        let slot = free.swap_remove(which.index(free.len()));
        if *kind == 1 {
            slots.retain(|&other| other != slot);
            changes.push(Change::Remove(slot));
        } else {
            let old = *replanner.block(slot).expect("a block that is there");
            let end = period.map_or(u64::MAX, |period| old.lower + period);
            let new = match kind {
                3 => Block { size: old.size * (block.size % 5) / 4, ..old },
                4 => {
                    let upper = (old.upper + block.size % 13).saturating_sub(6);
                    Block { upper: upper.max(old.lower).min(end), ..old }
                }
                _ => *block,
            };
            changes.push(Change::Replace(slot, new));
        }
    }
    changes
}

fn follow(problem: &Problem, rounds: &[Vec<Step>]) -> Result<(), TestCaseError> {
    let plan = Planner::quick().plan(problem).expect("a sound problem");
    let mut replanner = Replanner::new(problem, &plan.offsets).expect("a valid plan");
    prop_assert_eq!(replanner.height(), plan.height);
    let mut slots: Vec<usize> = (0..problem.blocks.len()).collect();
    for steps in rounds {
        let changes = changes(steps, &mut slots, &replanner, problem.period);
        let before: Vec<_> = slots.iter().map(|&slot| (slot, replanner.offset(slot))).collect();
        let answer = replanner.apply(&changes).expect("sound changes");
        let named: Vec<usize> = answer.placed.iter().map(|&(slot, _)| slot).collect();
        for (slot, offset) in before {
            prop_assert!(named.contains(&slot) || replanner.offset(slot) == offset, "slot {} moved", slot);
        }
        for &(slot, offset) in &answer.placed {
            prop_assert_eq!(replanner.offset(slot), Some(offset));
            if !slots.contains(&slot) {
                slots.push(slot);
            }
        }
        let (now, after) = replanner.snapshot();
        prop_assert_eq!(now.blocks.len(), slots.len());
        prop_assert_eq!(verify(&now, &after.offsets, answer.height), Ok(()));
        let end = now.blocks.iter().zip(&after.offsets).map(|(block, offset)| block.size + offset).max();
        prop_assert_eq!(answer.height, end.unwrap_or(0));
        prop_assert!(answer.lower_bound <= after.lower_bound);
        if problem.lower_bound().align == 1 {
            prop_assert_eq!(answer.lower_bound, now.load().max);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn after_any_changes_the_plan_is_valid_and_nothing_unnamed_moved((problem, rounds) in programs(40)) {
        follow(&problem, &rounds)?;
    }

    #[test]
    fn a_plan_carried_over_is_valid_and_leaves_equal_blocks((problem, rounds) in programs(40), shift in 0u64..3) {
        let plan = Planner::quick().plan(&problem).expect("a sound problem");
        let mut new = problem.clone();
        for (kind, which, block) in rounds.into_iter().flatten() {
            match kind {
                0 => new.blocks.push(Block { id: 1000 + new.blocks.len() as u64, ..block }),
                _ if new.blocks.is_empty() => {}
                1 => {
                    new.blocks.swap_remove(which.index(new.blocks.len()));
                }
                2 => {
                    let at = which.index(new.blocks.len());
                    new.blocks[at] = Block { id: new.blocks[at].id, ..block };
                }
                _ => {
                    // All later ones come later, as after an insertion into the trace.
                    let from = block.lower;
                    for block in new.blocks.iter_mut().filter(|block| block.lower >= from) {
                        let by = new.period.map_or(shift, |period| shift.min(period - 1 - block.lower));
                        (block.lower, block.upper) = (block.lower + by, block.upper + by);
                    }
                }
            }
        }
        let carried = replan(&problem, &plan, &new).expect("sound problems");
        prop_assert_eq!(verify(&new, &carried.offsets, carried.height), Ok(()));
        prop_assert_eq!(carried.lower_bound, new.lower_bound().bytes);
        for (block, &offset) in new.blocks.iter().zip(&carried.offsets) {
            if let Some(index) = problem.blocks.iter().position(|old| old == block) {
                prop_assert_eq!(offset, plan.offsets[index], "block {} moved", block.id);
            }
        }
    }

    #[test]
    fn a_rotation_is_valid_and_never_above_the_plan_of_one_period((problem, _) in programs(20)) {
        let problem = problem.with_period(EVENTS);
        let planner = Planner::quick();
        let plan = planner.plan(&problem).expect("a sound problem");
        let rotation = rotate(&problem, &planner, 3).expect("a sound problem");
        prop_assert_eq!(verify_rotation(&problem, &rotation), Ok(()));
        prop_assert!(rotation.lower_bound <= rotation.height && rotation.height <= plan.height);
        prop_assert_eq!(rotation.lower_bound, plan.lower_bound);
        prop_assert_eq!(rotation.periods == 1, rotation.height == plan.height);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// Enough blocks for an index of two levels with a summit below the root.
    #[test]
    fn the_same_holds_with_many_blocks((problem, rounds) in programs(3000)) {
        let spread = |block: &Block| {
            let lower = (block.lower * 37 + block.size * 101) % (EVENTS * 100);
            Block { lower, upper: lower + block.length() * (1 + block.size % 40), ..*block }
        };
        let rows = problem.blocks.iter().map(spread).collect();
        follow(&Problem::new(rows).with_period(problem.period.map(|period| period * 100)), &rounds)?;
    }
}

#[test]
fn a_block_goes_into_the_hole_of_the_one_it_replaces() {
    let problem = Problem::new(vec![block(0, 0, 9, 10), block(1, 0, 9, 20), block(2, 0, 9, 30)]);
    let mut replanner = Replanner::new(&problem, &[0, 10, 30]).expect("a valid plan");
    let answer = replanner.apply(&[Change::Replace(1, block(1, 2, 5, 20))]).expect("a sound change");
    assert_eq!((answer.placed, answer.height, answer.lower_bound), (vec![(1, 10)], 60, 60));
}

#[test]
fn a_changed_block_stays_where_it_still_fits() {
    // Best fit would put the shrunk block into the hole below it.
    let problem = Problem::new(vec![block(0, 0, 9, 10), block(1, 0, 9, 20), block(2, 0, 9, 30)]);
    let mut replanner = Replanner::new(&problem, &[0, 25, 45]).expect("a valid plan");
    let answer = replanner.apply(&[Change::Replace(1, block(1, 2, 5, 15))]).expect("a sound change");
    assert_eq!((answer.placed, answer.height), (vec![(1, 25)], 75));
    // It grows upward into what it left, and no further.
    let answer = replanner.apply(&[Change::Replace(1, block(1, 0, 9, 20))]).expect("a sound change");
    assert_eq!((answer.placed, answer.height), (vec![(1, 25)], 75));
    let answer = replanner.apply(&[Change::Replace(1, block(1, 0, 9, 35))]).expect("a sound change");
    assert_eq!((answer.placed, answer.height), (vec![(1, 10)], 75));
}

#[test]
fn a_block_that_grows_among_equals_loses_its_place_where_nobody_else_may_move() {
    // Whatever the old plan, as long as it wastes less than the block grows by. Four blocks of 10 bytes alive at once, the
    // lowest of which grows to 15, and every way to leave up to 4 bytes below them.
    let grown = block(0, 0, 9, 15);
    let problem = Problem::new((0..4).map(|id| block(id, 0, 9, 10)).collect());
    for gaps in (0..5u64.pow(4)).map(|code| [0, 1, 2, 3].map(|power| code / 5u64.pow(power) % 5)) {
        if gaps.iter().sum::<u64>() > 4 {
            continue;
        }
        let mut end = 0;
        let offsets = gaps.map(|gap| {
            end += gap + 10;
            end - 10
        });
        let fits = |&offset: &u64| {
            offsets[1..].iter().all(|&other| offset + grown.size <= other || other + 10 <= offset)
        };
        let least = (0..).find(fits).expect("above everything").max(end - grown.size) + grown.size;
        let mut replanner = Replanner::new(&problem, &offsets).expect("a valid plan");
        let answer = replanner.apply(&[Change::Replace(0, grown)]).expect("a sound change");
        assert_eq!((answer.height, answer.lower_bound), (least, 45), "{offsets:?}");
        assert!(least >= 55, "{offsets:?}");
    }
}

#[test]
fn the_height_falls_with_the_highest_block_and_the_answer_tells_how_far_it_is_above_the_bound() {
    let problem = Problem::new(vec![block(0, 0, 9, 10), block(1, 0, 9, 20), block(2, 0, 9, 30)]);
    let mut replanner = Replanner::new(&problem, &[0, 10, 30]).expect("a valid plan");
    let answer = replanner.apply(&[Change::Remove(0)]).expect("a sound change");
    assert_eq!((answer.height, answer.lower_bound, answer.ratio()), (60, 50, 1.2));
    let answer = replanner.apply(&[Change::Remove(2)]).expect("a sound change");
    assert_eq!((answer.height, answer.lower_bound), (30, 20));
}

#[test]
fn changed_blocks_make_room_for_each_other() {
    // Bytes 0..5 are free all the time, 15..21 at first only. The larger new block fits the former best, but the smaller
    // one fits nowhere else.
    let old = vec![block(0, 0, 9, 10), block(1, 2, 9, 6), block(2, 0, 9, 1)];
    let mut replanner = Replanner::new(&Problem::new(old), &[5, 15, 21]).expect("a valid plan");
    let answer = replanner.apply(&[Change::Add(block(3, 0, 2, 5)), Change::Add(block(4, 0, 9, 4))]);
    let answer = answer.expect("sound changes");
    assert_eq!((answer.placed, answer.height), (vec![(3, 15), (4, 0)], 22));
}

#[test]
fn an_inserted_event_moves_no_block() {
    let mut blocks: Vec<Block> =
        (0..500).map(|i| block(i, 2 * i, 2 * i + 1 + i * 7 % 90, 1 + i * 37 % 100)).collect();
    let old = Problem::new(blocks.clone());
    let plan = Planner::new().plan(&old).expect("a sound problem");
    for block in &mut blocks {
        block.lower += if block.lower >= 300 { 2 } else { 0 };
        block.upper += if block.upper >= 300 { 2 } else { 0 };
    }
    blocks.insert(150, block(1000, 300, 301, 5));
    let carried = replan(&old, &plan, &Problem::new(blocks)).expect("sound problems");
    let others: Vec<u64> = [&carried.offsets[..150], &carried.offsets[151..]].concat();
    assert_eq!(others, plan.offsets);
}

#[test]
fn the_bound_follows_when_aligned_blocks_gave_way_to_others() {
    let page = |id| Block { align: 4096, ..block(id, 0, 9, 100) };
    let problem = Problem::new(vec![page(0), page(1)]);
    let mut replanner = Replanner::new(&problem, &[0, 4096]).expect("a valid plan");
    let mut changes = vec![Change::Remove(0), Change::Remove(1)];
    changes.extend((2..20).map(|id| Change::Add(block(id, 0, 9, 100))));
    let answer = replanner.apply(&changes).expect("sound changes");
    assert_eq!((answer.height, answer.lower_bound), (1800, 1800));
}

#[test]
fn the_bound_follows_a_block_that_ends_a_little_later() {
    // Among many at other bytes and times, so that the index sees but one block's end move.
    let mut blocks: Vec<Block> = (0..47).map(|id| block(id, 4 * id, 4 * id + 1, 1)).collect();
    blocks.extend([block(47, 1, 2, 10), block(48, 2, 3, 10)]);
    let offsets: Vec<u64> = (0..49).map(|id| [0, 1, 11][(id as usize).saturating_sub(46)]).collect();
    let mut replanner = Replanner::new(&Problem::new(blocks), &offsets).expect("a valid plan");
    let answer = replanner.apply(&[Change::Replace(47, block(47, 1, 3, 10))]).expect("a sound change");
    assert_eq!((answer.placed, answer.height, answer.lower_bound), (vec![(47, 1)], 21, 20));
}

#[test]
fn the_bound_sees_all_blocks_of_a_change_that_wears_the_index_out() {
    let aligned = |id| Block { align: 4096, ..block(id, 0, 9, 100) };
    let problem = Problem::new(vec![aligned(0), aligned(1)]);
    let mut replanner = Replanner::new(&problem, &[0, 4096]).expect("a valid plan");
    let large = (2..5).map(|id| Change::Add(block(id, 0, 9, 1000)));
    let small = (5..45).map(|id| Change::Add(aligned(id)));
    let changes: Vec<Change> =
        [Change::Remove(0), Change::Remove(1)].into_iter().chain(large).chain(small).collect();
    let answer = replanner.apply(&changes).expect("sound changes");
    // The topmost block takes 100 bytes, of which this bound knows but one.
    assert_eq!((answer.height, answer.lower_bound), (39 * 4096 + 100, 39 * 4096 + 1));
}

#[test]
fn a_wrong_change_changes_nothing() {
    let problem = Problem::new(vec![block(0, 0, 4, 6), block(1, 2, 9, 6)]);
    let mut replanner = Replanner::new(&problem, &[0, 6]).expect("a valid plan");
    let good = Change::Remove(0);
    for (bad, error) in [
        (Change::Remove(7), Some(ReplanError::NoBlock { slot: 7 })),
        (Change::Remove(0), Some(ReplanError::Twice { slot: 0 })),
        (Change::Add(block(2, 5, 4, 1)), None),
        (Change::Add(block(2, 4, 5, u64::MAX)), None),
        (Change::Add(block(2, 4, 5, u64::MAX / 4)), Some(ReplanError::TooLarge)),
    ] {
        let refused = replanner.apply(&[good, bad]).expect_err("a wrong change");
        assert!(error.is_none_or(|error| error == refused), "{refused}");
        assert_eq!(replanner.snapshot().0, problem);
    }
    assert_eq!(replanner.apply(&[good]).expect("a sound change").height, 12);
}

#[test]
fn an_invalid_plan_and_constraints_are_refused() {
    let problem = Problem::new(vec![block(0, 0, 4, 6), block(1, 2, 9, 6)]);
    assert!(matches!(Replanner::new(&problem, &[0, 5]), Err(ReplanError::Plan(_))));
    let plan = Planner::new().plan(&problem).expect("a sound problem");
    let short = Plan { offsets: vec![0], ..plan.clone() };
    assert!(matches!(replan(&problem, &short, &problem), Err(ReplanError::Plan(_))));
    let fixed = Constraints { fixed: vec![Fixed { block: 0, offset: 0 }], ..Constraints::default() };
    let fixed = problem.clone().with_constraints(fixed);
    assert!(matches!(Replanner::new(&fixed, &[0, 6]), Err(ReplanError::Constraints)));
    assert_eq!(replan(&problem, &plan, &fixed), Err(ReplanError::Constraints));
    assert_eq!(rotate(&fixed.with_period(9), &Planner::new(), 2), Err(RotationError::Constraints));
}

#[test]
fn three_arcs_round_the_circle_need_two_slots_over_two_periods() {
    // Six arcs over two periods, each meeting the next: a ring of even length.
    let blocks = vec![block(0, 0, 4, 1), block(1, 2, 6, 1), block(2, 4, 8, 1)];
    let problem = Problem::new(blocks).with_period(6);
    assert_eq!(rotate(&problem, &Planner::new(), 1).expect("a sound problem").height, 3);
    let rotation = rotate(&problem, &Planner::new(), 4).expect("a sound problem");
    assert_eq!((rotation.periods, rotation.height, rotation.optimal()), (2, 2, true));
    assert_eq!(verify_rotation(&problem, &rotation), Ok(()));
    assert_eq!(rotation.offset(7, 1), rotation.offset(1, 1));
    assert_ne!(rotation.offset(0, 1), rotation.offset(1, 1));
}

#[test]
fn a_rotation_with_a_wrong_offset_is_found_out() {
    let blocks = vec![block(0, 0, 4, 1), block(1, 2, 6, 1), block(2, 4, 8, 1)];
    let problem = Problem::new(blocks).with_period(6);
    let good = rotate(&problem, &Planner::new(), 2).expect("a sound problem");
    let mut bad = good.clone();
    bad.offsets[1].swap(0, 1);
    assert!(verify_rotation(&problem, &bad).is_err());
    let mut bad = good;
    bad.offsets.pop();
    assert!(verify_rotation(&problem, &bad).is_err());
}

#[test]
fn a_block_longer_than_the_period_gets_an_offset_for_each_of_its_instances_at_once() {
    let problem = Problem::new(vec![block(0, 1, 16, 8)]).with_period(10);
    let rotation = rotate(&problem, &Planner::new(), 3).expect("two periods are enough");
    assert_eq!((rotation.periods, rotation.height, rotation.lower_bound), (2, 16, 16));
    assert_eq!(verify_rotation(&problem, &rotation), Ok(()));
    let refused = rotate(&problem, &Planner::new(), 1);
    assert!(matches!(refused, Err(RotationError::TooFewPeriods { needed: 2, .. })), "{refused:?}");
    assert_eq!(rotate(&Problem::default(), &Planner::new(), 2), Err(RotationError::NoPeriod));
}

#[test]
fn a_rotation_ends_when_the_watch_says_stop() {
    let arcs = vec![block(0, 0, 4, 1), block(1, 2, 6, 1), block(2, 4, 8, 1), block(3, 0, 6, 1)];
    let asked = Arc::new(AtomicU64::new(0));
    let count = asked.clone();
    let planner = Planner::new().watch(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        ControlFlow::Break(())
    });
    let problem = Problem::new(arcs).with_period(6);
    let rotation = rotate(&problem, &planner, 1000).expect("a sound problem");
    assert_eq!((rotation.periods, verify_rotation(&problem, &rotation)), (1, Ok(())));
    assert!(asked.load(Ordering::Relaxed) < 10, "asked again and again");
}
