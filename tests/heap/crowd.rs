//! Steps that run on several threads at once, as a server's do.

use crate::process::{self, scenario};
use crate::shadow::{Block, Random};
use crate::{scaled, test_name};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use stepalloc::Phase;

const THREADS: u64 = 8;
/// Steps of each thread.
const STEPS: u64 = 600;
/// Bytes of the arena for each byte that was alive at once at most.
const MOST_ARENA: f64 = 1.10;
/// Bytes that must come from the arena, in percent.
const LEAST_SERVED: u64 = 95;

static ALIVE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

fn allocate(size: usize) -> Block {
    let alive = ALIVE.fetch_add(size, Relaxed) + size;
    MOST.fetch_max(alive, Relaxed);
    Block::new(size, 64, false).expect("memory")
}

/// Checks the block's bytes.
fn free(block: Block) {
    let size = block.size();
    block.free().expect("as it was");
    ALIVE.fetch_sub(size, Relaxed);
}

/// A request to a model: each layer has scratch, and keeps its output for some layers on.
fn serve(kind: usize) {
    let (layers, unit) = [(12, 10_000), (20, 25_000), (30, 6_000)][kind];
    let mut kept = Vec::new();
    for layer in 0..layers {
        let scratch = allocate(33_000 + unit * [1, 4, 2, 8][(layer * 7 + kind) % 4]);
        kept.push(allocate(33_000 + unit * [1, 2, 4][layer % 3]));
        free(scratch);
        if kept.len() > 4 && layer % 2 == 0 {
            free(kept.remove(0));
        }
        std::thread::yield_now();
    }
    kept.into_iter().rev().for_each(free);
}

/// What a server's figures must be after its threads have ended, by so many steps at least.
fn assert_is_served(steps: u64) {
    let statistics = stepalloc::statistics();
    let (last, most) = (statistics.last_steps, MOST.load(Relaxed));
    println!(
        "figures: steps={} plans={} planned_at={:?} arena={} most_alive={most} ratio={:.4} fallback={} of {} bytes",
        statistics.steps,
        statistics.plans,
        statistics.planned_at_step,
        statistics.arena_bytes,
        statistics.arena_bytes as f64 / most as f64,
        last.fallback_bytes,
        last.planned_bytes + last.fallback_bytes,
    );
    assert_eq!((statistics.phase, statistics.arena_occupied_bytes), (Phase::Planned, 0), "{statistics:?}");
    assert!(statistics.arena_bytes as f64 <= MOST_ARENA * most as f64, "{statistics:?}");
    let all = last.planned_bytes + last.fallback_bytes;
    assert!(last.count >= steps && last.planned_bytes * 100 >= all * LEAST_SERVED, "{last:?}");
}

#[test]
fn a_server_is_served_from_one_arena() {
    let name = test_name!(a_server_is_served_from_one_arena);
    scenario(name, &[("START_STATISTIC_STEP", "40")], || {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    let mut random = Random::new(thread + 1);
                    for _ in 0..scaled(STEPS).max(200) {
                        let _step = stepalloc::step();
                        serve(random.below(3));
                    }
                });
            }
        });
        assert_is_served(100);
    });
}

#[test]
fn threads_come_and_go_and_what_grows_is_counted_again() {
    let name = test_name!(threads_come_and_go_and_what_grows_is_counted_again);
    scenario(name, &[("START_STATISTIC_STEP", "20")], || {
        for threads in [2, 3, 8, 4] {
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    scope.spawn(move || {
                        let mut random = Random::new(thread);
                        for _ in 0..400 {
                            let _step = stepalloc::step();
                            serve(random.below(3));
                        }
                    });
                }
            });
        }
        let statistics = stepalloc::statistics();
        let last = statistics.last_steps;
        println!("figures: {}", statistics.to_json());
        assert_eq!((statistics.phase, statistics.arena_occupied_bytes), (Phase::Planned, 0));
        assert!(statistics.plans >= 2, "the arena has grown");
        assert!(statistics.arena_bytes as f64 <= MOST_ARENA * MOST.load(Relaxed) as f64, "{statistics:?}");
        assert!(last.fallback_bytes * 20 <= last.planned_bytes, "{last:?}");
    });
}

/// As in a program that nobody changes: no thread says where its steps begin.
#[test]
fn a_server_that_marks_nothing_is_served_from_one_arena() {
    let name = test_name!(a_server_that_marks_nothing_is_served_from_one_arena);
    if !process::is_child(name) {
        process::run(name, &[]);
        return;
    }
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut random = Random::new(thread + 1);
                for _ in 0..scaled(STEPS).max(400) {
                    serve(random.below(3));
                }
            });
        }
    });
    assert_is_served(50);
    let statistics = stepalloc::statistics();
    assert!(statistics.gaps_only && !statistics.marked, "{statistics:?}");
    // One thread alone has a plan again, by and by.
    for _ in 0..3000 {
        serve(1);
    }
    let statistics = stepalloc::statistics();
    println!("figures: {}", statistics.to_json());
    assert!(!statistics.gaps_only && statistics.planned_blocks >= 40, "{statistics:?}");
    assert_eq!(statistics.last_steps.gap_allocations + statistics.last_steps.fallback_allocations, 0);
}

#[test]
fn one_thread_after_the_crowd_has_a_plan_again() {
    let name = test_name!(one_thread_after_the_crowd_has_a_plan_again);
    let settings = [("START_STATISTIC_STEP", "20"), ("STABLE_STATISTIC_STEP", "3")];
    if !process::is_child(name) {
        process::run(name, &settings);
        return;
    }
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let _step = stepalloc::step();
                    serve(0);
                }
            });
        }
    });
    for _ in 0..400 {
        let _step = stepalloc::step();
        serve(1);
    }
    let statistics = stepalloc::statistics();
    assert_eq!(statistics.phase, Phase::Planned);
    assert!(statistics.kinds >= 1 && statistics.planned_blocks >= 40, "{statistics:?}");
    assert_eq!(statistics.last_steps.gap_allocations + statistics.last_steps.fallback_allocations, 0);
}
