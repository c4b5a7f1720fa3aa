//! Loops that ask for one size only, as simulations on arrays of one shape do: nothing says where their steps begin.

use crate::process;
use crate::shadow::Block;
use crate::test_name;
use std::collections::VecDeque;
use stepalloc::{Phase, statistics};

const MIB: usize = 1 << 20;

fn block(size: usize) -> Block {
    Block::new(size, 64, false).expect("memory")
}

fn free(block: Block) {
    block.free().expect("as it was");
}

/// One step of reaction and diffusion on two arrays: temporaries come and go, and both arrays are new ones then.
fn step(arrays: &mut [Block; 2], size: usize) {
    let reaction = block(size);
    for array in arrays {
        let mut sum = block(size);
        for _ in 0..4 {
            let shifted = block(size);
            let next = block(size);
            free(shifted);
            free(std::mem::replace(&mut sum, next));
        }
        free(std::mem::replace(array, sum));
    }
    free(reaction);
}

/// Blocks of [`step`] that live at once.
const ALIVE: usize = 2 + 4;

/// Steps until an arena for them serves; no more than `most`.
fn steps_until_served(arrays: &mut [Block; 2], size: usize, most: u64) -> u64 {
    for number in 0..most {
        let told = statistics();
        if told.phase == Phase::Planned && told.arena_bytes >= (ALIVE * size) as u64 {
            return number;
        }
        step(arrays, size);
    }
    panic!("{most} steps: {:?}", statistics());
}

#[test]
fn a_loop_of_one_size_is_served_from_gaps() {
    process::scenario(test_name!(a_loop_of_one_size_is_served_from_gaps), &[], || {
        let mut arrays = [block(MIB), block(MIB)];
        let first = steps_until_served(&mut arrays, MIB, 60);
        let served = |arrays: &mut [Block; 2], size: usize| {
            (0..100).for_each(|_| step(arrays, size));
            let told = statistics();
            assert!(arrays.iter().all(Block::is_in_arena));
            assert!(told.gaps_only && !told.marked && told.last_steps.count >= 4, "{told:?}");
            let bytes = told.arena_bytes as f64 / (ALIVE * size) as f64;
            assert!((1.0..1.06).contains(&bytes), "{bytes} x what is alive: {told:?}");
        };
        served(&mut arrays, MIB);
        assert_eq!(statistics().last_steps.fallback_allocations, 0, "{:?}", statistics());
        // A finer grid.
        let second = steps_until_served(&mut arrays, 4 * MIB, 400);
        served(&mut arrays, 4 * MIB);
        println!("figures: first={first} second={second}");
        arrays.into_iter().for_each(free);
        assert_eq!(statistics().arena_occupied_bytes, 0);
    });
}

#[test]
fn a_loop_of_mostly_one_size_is_served_from_gaps() {
    process::scenario(test_name!(a_loop_of_mostly_one_size_is_served_from_gaps), &[], || {
        let mut arrays = [block(MIB), block(MIB)];
        for _ in 0..300 {
            (0..2).for_each(|_| step(&mut arrays, MIB));
            free(block(2 * MIB));
        }
        let told = statistics();
        assert!(told.phase == Phase::Planned && told.gaps_only, "{told:?}");
        assert_eq!((told.plans, told.last_steps.fallback_allocations), (1, 0), "{told:?}");
        arrays.into_iter().for_each(free);
    });
}

#[test]
fn what_grows_and_what_takes_little_gets_no_arena() {
    process::scenario(test_name!(what_grows_and_what_takes_little_gets_no_arena), &[], || {
        // A buffer for one file after another, and a queue of small ones.
        (0..3000).for_each(|_| free(block(MIB / 3)));
        let mut queue: VecDeque<Block> = (0..100).map(|_| block(65_536)).collect();
        for _ in 0..3000 {
            queue.pop_front().into_iter().for_each(free);
            queue.push_back(block(65_536));
        }
        // Nodes of a graph that is built.
        let graph: Vec<Block> = (0..3000).map(|_| block(MIB / 7)).collect();
        let told = statistics();
        assert_eq!((told.plans, told.arena_bytes), (0, 0), "{told:?}");
        graph.into_iter().chain(queue).for_each(free);
    });
}

#[test]
fn a_step_with_a_row_of_one_size_is_planned() {
    process::scenario(test_name!(a_step_with_a_row_of_one_size_is_planned), &[], || {
        for _ in 0..60 {
            let wide = block(3 * MIB);
            (0..400).for_each(|_| free(block(MIB / 2)));
            let rows: Vec<Block> = (0..40).map(|at| block(MIB / 8 * (1 + at * at % 7))).collect();
            rows.into_iter().chain([wide]).for_each(free);
        }
        let told = statistics();
        assert!(told.phase == Phase::Planned && !told.gaps_only, "{told:?}");
        assert_eq!(told.period_allocations, Some(441), "{told:?}");
    });
}
