//! Eight threads allocate and free planned sizes at once: how much the arena serves, and that nothing is lost.
//!
//! Within a step they race freely; what they have in common is where it ends, and at most one point more. Threads that do not even
//! share that are a program without a period, and served as well as it goes.

use crate::process;
use crate::shadow::{Block, Random};
use crate::{scaled, test_name};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Barrier, Mutex};
use std::time::Instant;

const THREADS: usize = 8;
/// Blocks that a thread allocates in a step, and how many of them live at once.
const BLOCKS: usize = 14;
const LIVE: usize = 5;
/// Steps.
const STEPS: u64 = 10_000;
/// What the resident memory may grow by over the newest half of the steps, in bytes: the backend's caches for what the
/// test itself allocates. A kibibyte lost in each step would be 5 MB.
const GROWTH: u64 = 1 << 20;
/// What the log of a process that is being collected may hold, in bytes: threads that never meet are collected again
/// and again.
const LOG: u64 = 64 << 20;
/// Times at which the resident memory is read.
const READINGS: usize = 10;
/// Planned bytes that the arena must serve, in percent.
const SERVED: u64 = 95;

const SETTINGS: [(&str, &str); 4] = [
    ("START_STATISTIC_STEP", "10"),
    ("STABLE_STATISTIC_STEP", "5"),
    ("MAX_STATISTIC_STEP", "50"),
    ("STEPALLOC_MIN_BYTES", "1024"),
];

/// What the threads have in common.
#[derive(Clone, Copy, PartialEq)]
enum Common {
    /// Boundaries, and that none frees its last blocks before all have allocated theirs. Each frees its own.
    Steps,
    /// Boundaries. Each frees a block of another's.
    Boundaries,
    /// Each frees a block of another's.
    Nothing,
}

#[test]
fn threads_that_repeat_their_own_blocks_are_served_by_the_arena_and_lose_nothing() {
    let name = test_name!(threads_that_repeat_their_own_blocks_are_served_by_the_arena_and_lose_nothing);
    compare(name, Common::Steps);
}

#[test]
fn threads_that_meet_at_boundaries_lose_nothing() {
    compare(test_name!(threads_that_meet_at_boundaries_lose_nothing), Common::Boundaries);
}

#[test]
fn threads_that_never_meet_lose_nothing() {
    compare(test_name!(threads_that_never_meet_lose_nothing), Common::Nothing);
}

fn compare(name: &str, common: Common) {
    if process::is_child(name) {
        return run(common);
    }
    for &backend in process::backends() {
        let settings: Vec<_> = SETTINGS.into_iter().chain([("STEPALLOC_BACKEND", backend)]).collect();
        process::run(name, &settings);
    }
}

/// Bytes of the blocks allocated since the plan was made, and of those in the arena.
#[derive(Default)]
struct Served {
    all: AtomicU64,
    arena: AtomicU64,
}

fn run(common: Common) {
    let meet = common != Common::Nothing;
    let began = Instant::now();
    let steps = scaled(STEPS).max(1_000);
    let (served, barrier) = (Served::default(), Barrier::new(THREADS));
    // One block of each thread is freed by the next one.
    let handed: [Mutex<Option<Block>>; THREADS] = [const { Mutex::new(None) }; THREADS];
    let planned = AtomicBool::new(false);
    let resident = [const { AtomicU64::new(0) }; READINGS];
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let (served, barrier, handed, planned, resident) =
                (&served, &barrier, &handed, &planned, &resident);
            scope.spawn(move || {
                for step in 0..steps {
                    if meet {
                        barrier.wait();
                    }
                    if number == 0 {
                        stepalloc::boundary();
                        planned.store(stepalloc::phase() == stepalloc::Phase::Planned, Relaxed);
                        if (step + 1).is_multiple_of(steps / READINGS as u64) {
                            let reading = ((step + 1) / (steps / READINGS as u64)) as usize - 1;
                            resident[reading].store(stepalloc::statistics().vm_rss_bytes, Relaxed);
                        }
                    }
                    if meet {
                        barrier.wait();
                    }
                    let given = (common != Common::Steps).then_some(handed);
                    let served = planned.load(Relaxed).then_some(served);
                    let held = || {
                        if common == Common::Steps {
                            barrier.wait();
                        }
                    };
                    work(number, held, given, served).unwrap_or_else(|error| {
                        eprintln!("thread {number} in step {step}: {error}");
                        std::process::exit(1);
                    });
                }
            });
        }
    });
    for block in handed.into_iter().filter_map(|block| block.into_inner().expect("no thread panicked")) {
        block.free().expect("as it was");
    }
    let statistics = stepalloc::statistics();
    let (all, arena) = (served.all.into_inner(), served.arena.into_inner());
    let resident = resident.map(AtomicU64::into_inner);
    println!(
        "figures: steps={steps} served_per_mille={} bytes={all} gap_per_mille={} arena_bytes={} plans={} \
         occupied_at_end={} ms={} rss={resident:?}",
        arena * 1000 / all.max(1),
        statistics.last_steps.gap_bytes * 1000 / statistics.last_steps.planned_bytes.max(1),
        statistics.arena_bytes,
        statistics.plans,
        statistics.arena_occupied_bytes,
        began.elapsed().as_millis(),
    );
    if common == Common::Steps {
        // The others may have no plan: of them, only that nothing is lost is asked.
        assert!(all > 0 && stepalloc::phase() == stepalloc::Phase::Planned, "{statistics:?}");
        assert!(arena * 100 >= all * SERVED, "{arena} of {all} bytes came from the arena");
        let last = statistics.last_steps;
        assert!(last.planned_bytes * 100 >= (last.planned_bytes + last.fallback_bytes) * SERVED, "{last:?}");
    }
    let (before, after) = (resident[READINGS / 2 - 1], resident[READINGS - 1]);
    let growth = if meet { GROWTH } else { GROWTH + LOG };
    // What a sanitizer takes for itself grows as it will.
    assert!(
        after <= before + growth || process::sanitizer().is_some(),
        "resident memory grew from {before} to {after} bytes: {resident:?}"
    );
    // What the harness itself may hold: no block of the test is alive.
    assert!(
        statistics.arena_occupied_bytes <= 64 << 10,
        "{} bytes stay occupied",
        statistics.arena_occupied_bytes
    );
}

/// A thread's step: the same sizes in the same order every time, at most `LIVE` of them alive.
/// `held` is called when it has allocated all.
fn work(
    number: usize,
    held: impl Fn(),
    handed: Option<&[Mutex<Option<Block>>; THREADS]>,
    served: Option<&Served>,
) -> Result<(), String> {
    let mut random = Random::new(number as u64 / 2);
    let mut live: [Option<Block>; LIVE] = [const { None }; LIVE];
    for at in 0..BLOCKS {
        let size = 1024 * (1 + random.below(8));
        let block = Block::new(size, 1, at % 7 == 0)?;
        if let Some(served) = served {
            served.all.fetch_add(size as u64, Relaxed);
            served.arena.fetch_add(if block.is_in_arena() { size as u64 } else { 0 }, Relaxed);
        }
        live[random.below(LIVE)].replace(block).map_or(Ok(()), Block::free)?;
    }
    held();
    let mut left = live.into_iter().flatten();
    let Some(handed) = handed else { return left.try_for_each(Block::free) };
    let next = &handed[(number + 1) % THREADS];
    let before = std::mem::replace(&mut *next.lock().expect("no thread panicked"), left.next());
    before.map_or(Ok(()), Block::free)?;
    left.try_for_each(Block::free)?;
    let given = handed[number].lock().expect("no thread panicked").take();
    given.map_or(Ok(()), Block::free)
}
