//! Blocks that outlive their step, and vectors that grow: the plan serves them without one fallback.

use crate::process::scenario;
use crate::shadow::Block;
use crate::test_name;
use stepalloc::LastSteps;

const SETTINGS: [(&str, &str); 3] =
    [("START_STATISTIC_STEP", "3"), ("STABLE_STATISTIC_STEP", "2"), ("MAX_STATISTIC_STEP", "20")];

/// Runs 60 steps; returns the figures of the newest half of the planned ones.
fn served(mut work: impl FnMut()) -> LastSteps {
    Block::new(1, 1, false).and_then(Block::free).expect("memory");
    for _ in 0..60 {
        stepalloc::boundary();
        work();
    }
    stepalloc::boundary();
    let statistics = stepalloc::statistics();
    let last = statistics.last_steps;
    println!(
        "figures: planned={} gap={} fallback={} plans={} planned_at={:?}",
        last.planned_allocations,
        last.gap_allocations,
        last.fallback_allocations,
        statistics.plans,
        statistics.planned_at_step
    );
    assert_eq!((statistics.plans, statistics.failed_plans), (1, 0), "{statistics:?}");
    assert!(last.count >= 20, "{last:?}");
    last
}

/// Every allocation of the newest steps came from a slot, and the block at hand lies in the arena.
fn assert_all_from_slots(last: &LastSteps, each_step: u64) {
    assert_eq!((last.fallback_allocations, last.gap_allocations), (0, 0), "{last:?}");
    assert_eq!(last.planned_allocations, each_step * last.count, "{last:?}");
}

fn block(size: usize) -> Block {
    Block::new(size, 64, false).expect("memory")
}

#[test]
fn a_block_freed_in_the_next_step_comes_from_its_slot() {
    scenario(test_name!(a_block_freed_in_the_next_step_comes_from_its_slot), &SETTINGS, || {
        let mut gradient: Option<Block> = None;
        let last = served(|| {
            let input = block(100_000);
            gradient.take().map_or(Ok(()), Block::free).expect("as it was");
            let inner = block(200_000);
            gradient = Some(block(300_000));
            inner.free().expect("as it was");
            input.free().expect("as it was");
        });
        assert_all_from_slots(&last, 3);
        let gradient = gradient.expect("the last step's");
        assert!(gradient.is_in_arena());
        gradient.free().expect("as it was");
        assert_eq!(stepalloc::statistics().arena_occupied_bytes, 0);
    });
}

#[test]
fn a_new_block_made_before_the_old_one_goes_finds_a_second_slot() {
    scenario(test_name!(a_new_block_made_before_the_old_one_goes_finds_a_second_slot), &SETTINGS, || {
        let mut state: Option<Block> = None;
        let last = served(|| {
            let inner = block(200_000);
            let old = state.replace(block(300_000));
            inner.free().expect("as it was");
            old.map_or(Ok(()), Block::free).expect("as it was");
        });
        assert_all_from_slots(&last, 2);
        let state = state.expect("the last step's");
        assert!(state.is_in_arena());
        state.free().expect("as it was");
        assert_eq!(stepalloc::statistics().arena_occupied_bytes, 0);
    });
}

#[test]
fn a_persistent_block_stays_with_the_backend_and_costs_no_fallback() {
    scenario(test_name!(a_persistent_block_stays_with_the_backend_and_costs_no_fallback), &SETTINGS, || {
        let weights: Vec<_> = (0..4).map(|_| block(500_000)).collect();
        let last = served(|| {
            let inner = block(500_000);
            weights.iter().for_each(|block| block.check().expect("as it was"));
            inner.free().expect("as it was");
        });
        assert_all_from_slots(&last, 1);
        assert!(stepalloc::statistics().arena_bytes < 600_000, "room for the one block of a step");
        for block in weights {
            assert!(!block.is_in_arena());
            block.free().expect("as it was");
        }
    });
}

#[test]
fn a_vector_that_doubles_in_each_step_needs_no_fallback() {
    scenario(test_name!(a_vector_that_doubles_in_each_step_needs_no_fallback), &SETTINGS, || {
        let last = served(|| {
            let mut vector = Vec::new();
            for number in 0..150_000u64 {
                vector.push(number);
            }
            assert!(vector.iter().copied().eq(0..150_000));
        });
        // 64 KiB (the first of 32 KiB at least, with 4 numbers doubled) to 2 MiB.
        assert_all_from_slots(&last, 7);
    });
}

#[test]
fn a_block_that_grows_and_shrinks_by_little_needs_no_fallback() {
    scenario(test_name!(a_block_that_grows_and_shrinks_by_little_needs_no_fallback), &SETTINGS, || {
        let last = served(|| {
            let mut growing = block(40_000);
            let mut others = Vec::with_capacity(4);
            for size in [40_010, 40_020, 40_500, 41_000, 41_001] {
                growing.resize(size).expect("kept");
                others.push(block(40_000));
            }
            growing.resize(40_000).expect("kept");
            others.into_iter().try_for_each(Block::free).expect("as it was");
            growing.free().expect("as it was");
        });
        assert_eq!(last.fallback_allocations, 0, "{last:?}");
        assert_eq!(last.gap_allocations, 0, "every size has its slot: {last:?}");
    });
}
