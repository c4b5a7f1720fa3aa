//! Steps that run on several threads at once, as a server's do.

use crate::process::{self, scenario};
use crate::shadow::{Block, Random};
use crate::{scaled, test_name};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use stepalloc::Phase;

const THREADS: u64 = 8;
/// Steps of each thread.
const STEPS: u64 = 600;
/// Resident bytes of the heap for each byte that was alive at once at most.
const MOST_RESIDENT: f64 = 1.25;

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

/// What a server's figures must be after its threads have ended: little more resident than was ever alive at once. (The last thread that
/// runs has a plan, perhaps.)
fn assert_is_served() {
    let (statistics, most) = (stepalloc::statistics(), MOST.load(Relaxed));
    // What lives on is the template of the blocks' contents.
    let resident = statistics.heap_resident_bytes - statistics.heap_bytes + statistics.arena_bytes;
    let ratio = resident as f64 / most as f64;
    println!("figures: steps={} most_alive={most} ratio={ratio:.4}", statistics.steps);
    assert!((0.0..MOST_RESIDENT).contains(&ratio), "{most} bytes alive at most: {statistics:?}");
}

#[test]
fn a_server_is_served_from_the_heap() {
    let name = test_name!(a_server_is_served_from_the_heap);
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
        assert_is_served();
    });
}

/// As in a program that nobody changes: no thread says where its steps begin.
#[test]
fn a_server_that_marks_nothing_is_served_from_the_heap() {
    let name = test_name!(a_server_that_marks_nothing_is_served_from_the_heap);
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
    assert_is_served();
    // One thread alone has a plan, by and by.
    for _ in 0..200 {
        (0..50).for_each(|_| serve(1));
        if stepalloc::phase() == Phase::Planned {
            break;
        }
    }
    // What lived while the plan came into force is freed in its first steps.
    (0..200).for_each(|_| serve(1));
    let statistics = stepalloc::statistics();
    println!("figures: {}", statistics.to_json());
    assert!(statistics.phase == Phase::Planned && statistics.planned_blocks >= 40, "{statistics:?}");
    assert_eq!(statistics.last_steps.gap_allocations + statistics.last_steps.fallback_allocations, 0);
}

#[test]
fn one_thread_after_concurrent_steps_has_a_plan_again() {
    let name = test_name!(one_thread_after_concurrent_steps_has_a_plan_again);
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
