//! A panic of the engine's own, in programs whose panics unwind (as tests do): planning ends, and the program goes on.

use crate::process::{run, scenario};
use crate::shadow::Block;
use crate::test_name;
use stepalloc::{Phase, fail_point};

/// Steps of three blocks that overlap.
fn steps(count: u32) {
    for _ in 0..count {
        stepalloc::boundary();
        let blocks = [40_000, 50_000, 60_000].map(|size| Block::new(size, 1, false).expect("memory"));
        blocks.into_iter().for_each(|block| block.free().expect("as it was"));
    }
}

/// The program goes on, on the backend, and can say why.
fn assert_stopped() {
    let statistics = stepalloc::statistics();
    assert_eq!((statistics.stopped, statistics.phase), (Some("panic"), Phase::Waiting));
    assert!(statistics.to_json().contains("\"stopped\": \"panic\""));
    let large = statistics.heap_bytes;
    let block = Block::new(1 << 20, 1, false).expect("memory");
    steps(20);
    assert_eq!(stepalloc::statistics().heap_bytes, large, "the backend serves");
    block.free().expect("as it was");
    std::thread::spawn(|| steps(5)).join().expect("the lock is free");
    assert_eq!(stepalloc::statistics().phase, Phase::Waiting);
}

#[test]
fn a_panic_at_a_boundary_of_a_planned_program_ends_planning_only() {
    let name = test_name!(a_panic_at_a_boundary_of_a_planned_program_ends_planning_only);
    scenario(name, &[("START_STATISTIC_STEP", "1"), ("STABLE_STATISTIC_STEP", "1")], || {
        steps(8);
        assert_eq!(stepalloc::phase(), Phase::Planned);
        // One lives in the arena, one in the large heap.
        let slot = Block::new(40_000, 1, false).expect("memory");
        let extent = Block::new(3 << 20, 1, false).expect("memory");
        assert_eq!(stepalloc::statistics().stopped, None);
        fail_point::set("boundary");
        steps(1);
        assert_stopped();
        [slot, extent].into_iter().for_each(|block| block.free().expect("as it was"));
    });
}

#[test]
fn a_panic_while_steps_are_merged_or_planned_ends_planning_only() {
    let name = test_name!(a_panic_while_steps_are_merged_or_planned_ends_planning_only);
    let place = "STEPALLOC_TEST_PLACE";
    let settings = [("START_STATISTIC_STEP", "1"), ("STABLE_STATISTIC_STEP", "1")];
    if crate::process::is_child(name) {
        let here = std::env::var(place).is_ok_and(|place| place == "here");
        fail_point::set(if here { "here" } else { "beside" });
        // Many are merged beside the program.
        let blocks = if here { 100 } else { 12_000 };
        for _ in 0..100 {
            stepalloc::boundary();
            for _ in 0..blocks {
                Block::new(40_000, 1, false).and_then(Block::free).expect("memory");
            }
            if stepalloc::statistics().stopped.is_some() {
                return assert_stopped();
            }
        }
        panic!("nothing was merged: {}", stepalloc::statistics().to_json());
    }
    for at in ["here", "beside"] {
        run(name, &[settings[0], settings[1], (place, at)]);
    }
}
