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

#[test]
fn a_loop_of_one_size_is_served_from_warm_pages() {
    process::scenario(test_name!(a_loop_of_one_size_is_served_from_warm_pages), &[process::AT_ONCE], || {
        let mut arrays = [block(MIB), block(MIB)];
        // Then a finer grid.
        for size in [MIB, 4 * MIB] {
            (0..20).for_each(|_| step(&mut arrays, size));
            let (before, pages) = (statistics(), minor_faults());
            (0..100).for_each(|_| step(&mut arrays, size));
            let told = statistics();
            assert_eq!((told.plans, told.arena_bytes), (0, 0), "{told:?}");
            assert_eq!(told.heap_returned_bytes, before.heap_returned_bytes, "{told:?}");
            let faults = minor_faults() - pages;
            assert!(faults < 50, "{faults} page faults in 100 steps of {size} bytes: {told:?}");
            // Beside them is the template of the blocks' contents.
            let resident = told.heap_resident_bytes as usize - 6 * MIB;
            assert!(resident < (ALIVE + 1) * size + 2 * MIB, "{resident}: {told:?}");
        }
        arrays.into_iter().for_each(free);
    });
}

/// Minor page faults of the process so far.
pub(crate) fn minor_faults() -> i64 {
    // SAFETY: the kernel fills the structure; zeros are valid before that.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage.ru_minflt
    }
}

#[test]
fn what_grows_and_what_takes_little_gets_no_arena() {
    process::scenario(
        test_name!(what_grows_and_what_takes_little_gets_no_arena),
        &[process::AT_ONCE],
        || {
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
        },
    );
}

#[test]
fn a_step_with_a_row_of_one_size_is_planned() {
    process::scenario(test_name!(a_step_with_a_row_of_one_size_is_planned), &[process::AT_ONCE], || {
        for _ in 0..60 {
            let wide = block(3 * MIB);
            (0..400).for_each(|_| free(block(MIB / 2)));
            let rows: Vec<Block> = (0..40).map(|at| block(MIB / 8 * (1 + at * at % 7))).collect();
            rows.into_iter().chain([wide]).for_each(free);
        }
        let told = statistics();
        assert_eq!(told.phase, Phase::Planned, "{told:?}");
        assert_eq!(told.period_allocations, Some(441), "{told:?}");
    });
}
