//! Eight threads run programs of operations through every phase: waiting, collecting, planned, and planned while the
//! needs are collected again.
//!
//! A run is a row of *segments*. In each one the threads repeat their programs step by step; from one to the next the
//! programs change a little, or altogether, the threads are new ones and fewer or more, and take turns, meet at boundaries, or neither.
//! While threads take turns, plans serve most of a step, so that it is collected again when it changes; later plans rarely help and are left.

use crate::process;
use crate::program::{MIN_BYTES_SETTING, Operation, Places, change_sizes, perturb, program};
use crate::shadow::{Block, Random, disjoint};
use crate::{scaled, test_name};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Barrier, Condvar, Mutex};
use std::time::Instant;
use stepalloc::Phase;
use stepalloc_tests::{by_setting, count, seed};

const THREADS: usize = 8;
const PLACES: usize = 48;
/// Operations of a thread's step. Fewer where the planner is not optimised, so that plans come in time.
const LENGTH: usize = if cfg!(debug_assertions) { 60 } else { 260 };
/// Plans that a run must see.
const PLANS: u64 = 1;
/// Calls of the allocator asked for in a round, over all backends. A round has a process for each backend, as one that has left plans often
/// enough makes few more.
const CALLS: u64 = 10_000_000;
/// Where a round's processes find the seed of their programs.
const SEED: &str = "STEPALLOC_HEAP_SEED";
/// Segments at the beginning of a run, in two of three of which threads take turns.
const IN_TURN: usize = 24;
/// Steps before collecting begins.
const WAITING: u64 = 60;

/// What the engine does, as the four cases tests tell apart.
const CASES: [&str; 4] = ["waiting", "collecting", "planned", "collecting_again"];

#[test]
fn ten_million_operations_on_eight_threads_keep_every_byte_in_every_phase() {
    let name = test_name!(ten_million_operations_on_eight_threads_keep_every_byte_in_every_phase);
    if process::is_child(name) {
        return run_segments();
    }
    let waiting = WAITING.to_string();
    let rounds = by_setting(1, 100);
    let (mut calls, mut sizes, mut in_arena) = ([0; CASES.len()], 0, 0);
    for round in 0..rounds {
        let seed = seed().wrapping_add(0x5701 + round).to_string();
        for &backend in process::backends() {
            let said = process::run(
                name,
                &[
                    (SEED, &seed),
                    ("STEPALLOC_BACKEND", backend),
                    ("START_STATISTIC_STEP", &waiting),
                    ("STABLE_STATISTIC_STEP", "8"),
                    ("MAX_STATISTIC_STEP", "30"),
                    MIN_BYTES_SETTING,
                ],
            );
            for (calls, case) in calls.iter_mut().zip(CASES) {
                *calls += said.figure(case);
            }
            sizes += said.figure("blocks_of_planned_size");
            in_arena += said.figure("in_arena");
        }
        if rounds > 1 {
            eprintln!("round {} of {rounds}: {} operations", round + 1, calls.iter().sum::<u64>());
        }
    }
    let total: u64 = calls.iter().sum();
    println!(
        "{total} operations: {CASES:?} {calls:?}{}",
        if cfg!(debug_assertions) { " (debug: scaled down)" } else { "" }
    );
    assert!(total >= scaled(CALLS * rounds), "{total} operations");
    count("in process", "operations", total);
    // Programs that change so much are the heap's most of the time.
    assert!(in_arena * 100 >= sizes, "only {in_arena} of {sizes} blocks of planned size lay in the arena");
    // Phases that last for a time have fewer operations with a sanitizer.
    let least = if process::sanitizer().is_some() { 5_000 } else { 100_000 };
    for (calls, case) in calls.into_iter().zip(CASES) {
        assert!(calls >= scaled(least), "{calls} operations while {case}");
    }
}

/// What the threads of a run share.
struct Shared {
    /// Blocks given to a thread, by thread.
    given: [Mutex<Vec<Block>>; THREADS],
    /// Calls of the allocator by case.
    calls: [AtomicU64; CASES.len()],
    /// The case now, set after each boundary.
    case: AtomicUsize,
}

/// The case that the engine is in.
fn case() -> usize {
    // Outside the arena; it is watched only while needs are recorded.
    let records = stepalloc::route::watches(0);
    match stepalloc::phase() {
        Phase::Waiting => 0,
        Phase::Collecting => 1,
        Phase::Planned => 2 + usize::from(records),
    }
}

/// A thread's own state, which outlives the thread.
struct Worker {
    number: usize,
    program: Vec<Operation>,
    places: Places,
}

fn run_segments() {
    let began = Instant::now();
    let seed = std::env::var(SEED).expect("given by the parent");
    let mut random = Random::new(seed.parse().expect("a number"));
    let shared = Shared {
        given: [const { Mutex::new(Vec::new()) }; THREADS],
        calls: [const { AtomicU64::new(0) }; CASES.len()],
        case: AtomicUsize::new(0),
    };
    let mut workers: Vec<_> = (0..THREADS)
        .map(|number| Worker {
            number,
            program: program(&mut random, LENGTH, PLACES, THREADS),
            places: Places::new(PLACES),
        })
        .collect();
    let wanted = scaled(CALLS / process::backends().len() as u64 + CALLS / 60);
    let mut segment = 0;
    // In debug builds few calls are enough, but the phases take their steps.
    while shared.calls.iter().map(|calls| calls.load(Relaxed)).sum::<u64>() < wanted
        || stepalloc::statistics().plans < PLANS
    {
        assert!(segment < 400, "not enough plans in {segment} segments: {:?}", stepalloc::statistics());
        // The first segment is waiting and the first collecting; later ones are as long as a plan's patience.
        let steps = if segment == 0 { WAITING + 40 } else { 40 };
        let (threads, pace) = match segment {
            0..IN_TURN if segment % 3 != 2 => (THREADS, Pace::InTurn),
            // The plan of the steps before is in force.
            0..IN_TURN if segment % 2 == 0 => (THREADS, Pace::Meeting),
            0..IN_TURN => (THREADS, Pace::Free),
            _ if segment % 4 != 3 => ([8, 8, 3, 8, 1, 6][segment % 6], Pace::Meeting),
            _ => ([8, 8, 3, 8, 1, 6][segment % 6], Pace::Free),
        };
        run_segment(&shared, &mut workers[..threads], steps, pace);
        verify(&workers, &shared);
        for worker in &mut workers {
            match segment % 4 {
                1 => change_sizes(&mut worker.program, &mut random),
                2 => worker.program = program(&mut random, LENGTH, PLACES, THREADS),
                _ => perturb(&mut worker.program, &mut random, 20, PLACES, THREADS),
            }
        }
        segment += 1;
    }
    let statistics = stepalloc::statistics();
    for worker in &mut workers {
        for block in worker.places.blocks.drain(..).flatten() {
            block.free().expect("as it was");
        }
    }
    for given in &shared.given {
        for block in given.lock().expect("no thread panicked").drain(..) {
            block.free().expect("as it was");
        }
    }
    let (sizes, arena) = workers
        .iter()
        .fold((0, 0), |sum, worker| (sum.0 + worker.places.planned_size, sum.1 + worker.places.in_arena));
    let calls: Vec<_> = shared.calls.iter().map(|calls| calls.load(Relaxed)).collect();
    println!(
        "figures: waiting={} collecting={} planned={} collecting_again={} segments={segment} steps={} plans={} \
         failed_plans={} blocks_of_planned_size={sizes} in_arena={arena} arena_bytes={} ms={}",
        calls[0],
        calls[1],
        calls[2],
        calls[3],
        statistics.steps,
        statistics.plans,
        statistics.failed_plans,
        statistics.arena_bytes,
        began.elapsed().as_millis(),
    );
    assert!(statistics.plans >= PLANS && statistics.last_steps.planned_allocations > 0, "{statistics:?}");
    assert_eq!(statistics.failed_plans, 0);
}

/// How the threads of a segment make a step.
#[derive(Clone, Copy, PartialEq)]
enum Pace {
    /// One after the other, and nothing lives on: each step is as the one before.
    InTurn,
    /// All at once, and they wait for each other at boundaries.
    Meeting,
    /// All at once.
    Free,
}

/// Has threads go on one after the other.
struct Turns {
    next: Mutex<usize>,
    changed: Condvar,
}

impl Turns {
    fn wait_for(&self, number: usize) {
        drop(self.changed.wait_while(lock(&self.next), |next| *next != number).expect("no thread panicked"));
    }

    fn end(&self, number: usize, threads: usize) {
        *lock(&self.next) = (number + 1) % threads;
        self.changed.notify_all();
    }
}

/// All workers repeat their programs, each in a thread of its own; the first says where steps end.
fn run_segment(shared: &Shared, workers: &mut [Worker], steps: u64, pace: Pace) {
    let threads = workers.len();
    let barrier = &Barrier::new(threads);
    let turns = &Turns { next: Mutex::new(0), changed: Condvar::new() };
    std::thread::scope(|scope| {
        for worker in workers {
            scope.spawn(move || {
                for _ in 0..steps {
                    match pace {
                        Pace::InTurn => turns.wait_for(worker.number),
                        Pace::Meeting => _ = barrier.wait(),
                        Pace::Free => {}
                    }
                    if worker.number == 0 {
                        stepalloc::boundary();
                        shared.case.store(case(), Relaxed);
                    }
                    if pace == Pace::Meeting {
                        barrier.wait();
                    }
                    worker.step(shared).unwrap_or_else(|error| {
                        // A barrier would wait for this thread for ever.
                        eprintln!(
                            "thread {} in case {}: {error}",
                            worker.number,
                            CASES[shared.case.load(Relaxed)]
                        );
                        std::process::exit(1);
                    });
                    if pace == Pace::InTurn {
                        worker.free_all(shared);
                        turns.end(worker.number, threads);
                    }
                }
            });
        }
    });
}

impl Worker {
    fn free_all(&mut self, shared: &Shared) {
        let given = std::mem::take(&mut *lock(&shared.given[self.number]));
        let own = self.places.blocks.iter_mut().filter_map(Option::take);
        given.into_iter().chain(own).for_each(|block| block.free().expect("as it was"));
    }

    fn step(&mut self, shared: &Shared) -> Result<(), String> {
        for &operation in &self.program {
            let calls = self.places.calls;
            let number = self.number;
            self.places.run(
                operation,
                |thread, block| lock(&shared.given[thread]).push(block),
                || std::mem::take(&mut *lock(&shared.given[number])),
            )?;
            // With threads that do not meet, the case may change within a step.
            shared.calls[shared.case.load(Relaxed)].fetch_add(self.places.calls - calls, Relaxed);
        }
        // A sample of what stays alive: all of it is checked when it goes, and between segments.
        let places = self.places.blocks.len();
        let at = (self.places.calls % places as u64) as usize;
        self.places.blocks[at].as_ref().map_or(Ok(()), Block::check)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("no thread panicked")
}

/// No thread runs: every byte of every live block is compared, and every range with every other.
fn verify(workers: &[Worker], shared: &Shared) {
    let given: Vec<_> = shared.given.iter().map(lock).collect();
    let blocks = || {
        let own = workers.iter().flat_map(|worker| worker.places.blocks.iter().flatten());
        own.chain(given.iter().flat_map(|given| given.iter()))
    };
    disjoint(blocks()).expect("live blocks");
    blocks().for_each(|block| block.check().expect("a live block"));
}
