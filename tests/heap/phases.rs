//! When collecting begins and ends, and what counts as a boundary. Steps count from 0.

use crate::process::scenario;
use crate::shadow::{Block, Random};
use crate::test_name;
use stepalloc::Phase::{self, *};

/// Runs `work` in `steps` steps; returns the phase in which each one ran.
fn phases(steps: u64, work: impl Fn(u64)) -> Vec<Phase> {
    // The shadow heap's template is allocated before, so that it belongs to no step.
    Block::new(1, 1, false).and_then(Block::free).expect("memory");
    (0..steps)
        .map(|step| {
            stepalloc::boundary();
            let phase = stepalloc::phase();
            work(step);
            phase
        })
        .collect()
}

/// Three blocks that overlap.
fn repeat(offset: usize) {
    let [a, b, c] = [40_000, 50_000, 60_000].map(|size| Block::new(size + offset, 1, false).expect("memory"));
    b.free().expect("as it was");
    a.free().expect("as it was");
    c.free().expect("as it was");
}

/// `Waiting`, `Collecting` and `Planned`, so many steps of each.
fn row(waiting: usize, collecting: usize, planned: usize) -> Vec<Phase> {
    [(waiting, Waiting), (collecting, Collecting), (planned, Planned)]
        .iter()
        .flat_map(|&(count, phase)| std::iter::repeat_n(phase, count))
        .collect()
}

#[test]
fn a_step_that_repeats_is_collected_from_start_until_more_than_stable_steps_changed_nothing() {
    let name =
        test_name!(a_step_that_repeats_is_collected_from_start_until_more_than_stable_steps_changed_nothing);
    scenario(name, &[("START_STATISTIC_STEP", "4"), ("STABLE_STATISTIC_STEP", "3")], || {
        // Step 4 is the first one and changes the needs; 5, 6, 7 and 8 do not.
        assert_eq!(phases(14, |_| repeat(0)), row(4, 5, 5));
        let statistics = stepalloc::statistics();
        assert_eq!(statistics.planned_at_step, Some(9));
        assert_eq!((statistics.plans, statistics.failed_plans, statistics.steps), (1, 0, 14));
        assert_eq!(statistics.planned_blocks, 3);
        // Steps 9 to 12 are over, and their newest half is told.
        let last = statistics.last_steps;
        assert_eq!((last.count, last.planned_allocations, last.fallback_allocations), (2, 6, 0));
    });
}

#[test]
fn collecting_begins_with_the_first_step_where_start_is_zero() {
    let name = test_name!(collecting_begins_with_the_first_step_where_start_is_zero);
    scenario(name, &[("START_STATISTIC_STEP", "0"), ("STABLE_STATISTIC_STEP", "0")], || {
        assert_eq!(phases(5, |_| repeat(0)), row(0, 2, 3));
        assert_eq!(stepalloc::statistics().planned_at_step, Some(2));
    });
}

#[test]
fn a_change_makes_the_stable_steps_count_from_the_beginning() {
    let name = test_name!(a_change_makes_the_stable_steps_count_from_the_beginning);
    scenario(name, &[("START_STATISTIC_STEP", "4"), ("STABLE_STATISTIC_STEP", "3")], || {
        // 4 and 7 change the needs; 8, 9, 10 and 11 do not.
        assert_eq!(phases(14, |step| repeat(if step == 7 { 6_400 } else { 0 })), row(4, 8, 2));
    });
}

#[test]
fn steps_that_always_change_are_collected_until_more_than_max() {
    let name = test_name!(steps_that_always_change_are_collected_until_more_than_max);
    let settings =
        [("START_STATISTIC_STEP", "2"), ("STABLE_STATISTIC_STEP", "3"), ("MAX_STATISTIC_STEP", "5")];
    scenario(name, &settings, || {
        assert_eq!(phases(11, |step| repeat(640 * step as usize)), row(2, 6, 3));
        assert_eq!(stepalloc::statistics().planned_at_step, Some(8));
    });
}

#[test]
fn the_defaults_are_those_of_deeprec() {
    let name = test_name!(the_defaults_are_those_of_deeprec);
    // 100 waiting; the first collected one changes, and more than 10 more do not.
    scenario(name, &[], || assert_eq!(phases(115, |_| repeat(0)), row(100, 12, 3)));
}

#[test]
fn a_program_that_changes_is_collected_again_while_the_old_plan_serves() {
    let name = test_name!(a_program_that_changes_is_collected_again_while_the_old_plan_serves);
    scenario(name, &[("START_STATISTIC_STEP", "2"), ("STABLE_STATISTIC_STEP", "2")], || {
        let served = std::cell::Cell::new(0);
        let again = std::cell::Cell::new(0);
        let seen = phases(80, |step| {
            again.set(again.get() + u64::from(step > 10 && stepalloc::route::watches(0)));
            repeat(if step < 10 { 0 } else { 9_600 });
            // Two kinds of steps are planned beside the program.
            std::thread::sleep(std::time::Duration::from_millis(5));
            let block = Block::new(if step < 10 { 70_000 } else { 80_000 }, 64, true).expect("memory");
            served.set(if block.is_in_arena() { served.get() + 1 } else { 0 });
            block.free().expect("as it was");
        });
        assert_eq!(seen, row(2, 4, 74), "it never stops being planned");
        let statistics = stepalloc::statistics();
        assert_eq!((statistics.plans, statistics.failed_plans), (2, 0));
        assert!(again.get() >= 4, "collected again for {} steps", again.get());
        // The newest half of the steps was served by the second plan, all of it from slots.
        let last = statistics.last_steps;
        assert_eq!((last.fallback_allocations, last.gap_allocations), (0, 0), "{last:?}");
        assert_eq!(last.planned_allocations, 4 * last.count);
        assert!(served.get() >= 40, "the newest {} blocks came from the arena", served.get());
    });
}

/// So that few steps say that none is like another.
const FEW_STEPS: [(&str, &str); 3] =
    [("START_STATISTIC_STEP", "2"), ("STABLE_STATISTIC_STEP", "2"), ("MAX_STATISTIC_STEP", "8")];

fn sized(size: usize) -> Block {
    Block::new(size, 1, false).expect("memory")
}

fn free(block: Block) {
    block.free().expect("as it was");
}

/// A table of blocks.
fn table(blocks: usize) -> Vec<Block> {
    (0..blocks).map(|index| sized(40_000 + 100 * index)).collect()
}

/// Replaces blocks of a table at random, ten times as many as there are: ever other lifetimes.
fn replace(table: &mut [Block], random: &mut Random) {
    for _ in 0..10 * table.len() {
        let size = 40_000 + random.below(100 * table.len());
        let at = random.below(table.len());
        free(std::mem::replace(&mut table[at], sized(size)));
    }
}

#[test]
fn steps_that_do_not_repeat_are_left_to_the_heap_until_they_do() {
    let name = test_name!(steps_that_do_not_repeat_are_left_to_the_heap_until_they_do);
    scenario(name, &FEW_STEPS, || {
        const BLOCKS: usize = 600;
        let step = || {
            table(BLOCKS).into_iter().for_each(free);
            // It is planned beside the program.
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        let plans = (0..200).any(|_| {
            stepalloc::boundary();
            step();
            stepalloc::phase() == Planned
        });
        assert!(plans);

        let (mut table, mut random) = (table(BLOCKS), Random::new(7));
        let waits = (0..200).any(|_| {
            replace(&mut table, &mut random);
            stepalloc::boundary();
            stepalloc::phase() == Waiting
        });
        let statistics = stepalloc::statistics();
        assert!(waits && statistics.refused_plans == 1, "{statistics:?}");
        assert!(statistics.arena_occupied_bytes > 0, "nothing lives on in the arena: {statistics:?}");
        replace(&mut table, &mut random);
        assert!(table.iter().all(|block| !block.is_in_arena()), "the heap serves all that is new");
        table.into_iter().for_each(free);
        assert_eq!(stepalloc::statistics().arena_occupied_bytes, 0);

        // It is asked again, ever more rarely.
        let again = (0..5 * stepalloc::statistics().steps).any(|_| {
            stepalloc::boundary();
            step();
            stepalloc::phase() == Planned
        });
        assert!(again, "{:?}", stepalloc::statistics());
        stepalloc::boundary();
        let blocks = self::table(BLOCKS);
        assert!(blocks.iter().all(Block::is_in_arena));
        blocks.into_iter().for_each(free);
    });
}

#[test]
fn steps_of_few_blocks_that_do_not_repeat_are_the_heaps() {
    let name = test_name!(steps_of_few_blocks_that_do_not_repeat_are_the_heaps);
    scenario(name, &FEW_STEPS, || {
        const BLOCKS: usize = 100;
        let (mut table, mut random) = (table(BLOCKS), Random::new(7));
        for _ in 0..100 {
            stepalloc::boundary();
            replace(&mut table, &mut random);
        }
        let statistics = stepalloc::statistics();
        assert!(statistics.refused_plans > 0 && statistics.arena_bytes == 0, "{statistics:?}");
        let (alive, resident) = (statistics.heap_bytes, statistics.heap_resident_bytes);
        assert!(resident < alive * 5 / 4, "{resident} for {alive}: {statistics:?}");
        table.into_iter().for_each(free);
    });
}

#[test]
fn only_the_outermost_scope_is_a_boundary() {
    scenario(test_name!(only_the_outermost_scope_is_a_boundary), &[], || {
        let steps = || stepalloc::statistics().steps;
        assert_eq!(steps(), 0);
        for step in 1..=3 {
            let _outer = stepalloc::step();
            assert_eq!(steps(), step);
            let inner = stepalloc::step();
            {
                let _innermost = stepalloc::step();
            }
            drop(inner);
            let again = stepalloc::step();
            let shared = again.share();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let _part = shared.attach();
                    drop(stepalloc::step());
                });
            });
            assert_eq!(steps(), step, "scopes inside a scope count nothing");
        }
        assert_eq!(steps(), 3, "the end of a scope is no boundary");
        stepalloc::boundary();
        assert_eq!(steps(), 4);
        let _here = stepalloc::step();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(stepalloc::step()));
        });
        assert_eq!(steps(), 6, "another thread's step is one of its own");
    });
}

#[test]
fn boundaries_count_from_whichever_thread_they_come() {
    let name = test_name!(boundaries_count_from_whichever_thread_they_come);
    scenario(name, &[("START_STATISTIC_STEP", "4"), ("STABLE_STATISTIC_STEP", "3")], || {
        Block::new(1, 1, false).and_then(Block::free).expect("memory");
        for step in 0..12 {
            std::thread::spawn(stepalloc::boundary).join().expect("boundaries do not panic");
            assert_eq!(stepalloc::statistics().steps, step + 1);
            repeat(0);
        }
        assert_eq!(stepalloc::statistics().planned_at_step, Some(9));
        // From many at once: none is lost.
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..500).for_each(|_| stepalloc::boundary()));
            }
        });
        assert_eq!(stepalloc::statistics().steps, 12 + 4_000);
        assert_eq!(stepalloc::phase(), Planned);
    });
}

#[test]
fn nothing_is_planned_where_it_is_switched_off() {
    let name = test_name!(nothing_is_planned_where_it_is_switched_off);
    let settings = [
        ("ENABLE_MEMORY_OPTIMIZATION", "0"),
        ("START_STATISTIC_STEP", "1"),
        ("STABLE_STATISTIC_STEP", "1"),
        ("MAX_STATISTIC_STEP", "3"),
    ];
    scenario(name, &settings, || {
        assert_eq!(phases(50, |_| repeat(0)), row(50, 0, 0));
        let block = Block::new(40_000, 1, false).expect("memory");
        assert!(!block.is_in_arena());
        block.free().expect("as it was");
        let statistics = stepalloc::statistics();
        assert_eq!((statistics.steps, statistics.plans, statistics.arena_bytes), (50, 0, 0));
        assert_eq!(statistics.planned_at_step, None);
    });
}
