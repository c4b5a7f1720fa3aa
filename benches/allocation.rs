//! Time of one allocate/free pair: each backend alone, and under `StatisticAllocator` while it waits and once it serves
//! from a plan. Blocks of 64 B and 1 KiB are below the threshold and never planned; 64 KiB and 1 MiB are.
//!
//! A process has one phase at a time and never goes back, so the groups run in the order of the phases. A step serves
//! as many pairs as were planned; the boundaries between steps are not timed.

mod bare;

use bare::Bare;
use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion};
use stepalloc::{Glibc, Jemalloc, Mimalloc, Phase, StatisticAllocator};

/// Bytes of the blocks.
const SIZES: [usize; 4] = [64, 1 << 10, 64 << 10, 1 << 20];
/// Pairs of each size in a step: many, so that reading the clock twice costs no pair as much as 0.1 ns.
const PAIRS: u64 = 1000;
/// The plan is there after a few steps of a millisecond; by then something is wrong.
const STEPS_MAX: u32 = 10_000;
/// Boundaries after the plan came into force at which the backend's caches are still given back, and one more.
const SETTLING: u32 = 3;

/// One pair of blocks of this many bytes.
type Pair = fn(usize);

/// The backends' names and pairs.
type Pairs = [(&'static str, Pair); 3];

const BARE: Pairs = [
    ("glibc", |size| pair(size, &Bare::<Glibc>::new())),
    ("jemalloc", |size| pair(size, &Bare::<Jemalloc>::new())),
    ("mimalloc", |size| pair(size, &Bare::<Mimalloc>::new())),
];

const STATISTIC: Pairs = [
    ("glibc", |size| pair(size, &const { StatisticAllocator::new(Glibc) })),
    ("jemalloc", |size| pair(size, &const { StatisticAllocator::new(Jemalloc) })),
    ("mimalloc", |size| pair(size, &const { StatisticAllocator::new(Mimalloc) })),
];

#[inline]
fn pair(size: usize, allocator: &impl GlobalAlloc) {
    let layout = Layout::from_size_align(size, 16).expect("a small size");
    // SAFETY: the size is not 0; the block is freed once, with its layout.
    unsafe { allocator.dealloc(black_box(allocator.alloc(black_box(layout))), black_box(layout)) }
}

/// Measures all sizes and backends, with `between` before every [`PAIRS`] pairs.
fn group(criterion: &mut Criterion, name: &str, pairs: &Pairs, between: fn()) {
    let mut group = criterion.benchmark_group(name);
    group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_millis(1500));
    for size in SIZES {
        for &(backend, pair) in pairs {
            group.bench_function(BenchmarkId::new(backend, size), |bencher| {
                bencher.iter_custom(|count| timed(count, || pair(size), between));
            });
        }
    }
    group.finish();
}

fn timed(count: u64, pair: impl Fn(), between: fn()) -> Duration {
    let (mut left, mut spent) = (count, Duration::ZERO);
    while left > 0 {
        let now = left.min(PAIRS);
        between();
        let start = Instant::now();
        (0..now).for_each(|_| pair());
        spent += start.elapsed();
        left -= now;
    }
    spent
}

/// Makes steps until a plan serves.
fn reach_planned() {
    let pair = STATISTIC[0].1;
    let step = || {
        SIZES.iter().for_each(|&size| (0..PAIRS).for_each(|_| pair(size)));
        stepalloc::boundary();
    };
    for _ in 0..STEPS_MAX {
        step();
        if stepalloc::phase() == Phase::Planned {
            (0..SETTLING).for_each(|_| step());
            return;
        }
        // The planner works in a thread beside this one.
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("no plan after {STEPS_MAX} steps: {:?}", stepalloc::statistics());
}

fn main() {
    // SAFETY: no other thread runs yet that could read the environment.
    unsafe {
        // Step 0 is the waiting phase; collecting begins at the boundary after it.
        std::env::set_var("START_STATISTIC_STEP", "1");
        std::env::set_var("STABLE_STATISTIC_STEP", "1");
    }
    let mut criterion = Criterion::default().configure_from_args();
    group(&mut criterion, "bare", &BARE, || ());
    stepalloc::boundary();
    assert_eq!(stepalloc::phase(), Phase::Waiting);
    group(&mut criterion, "waiting", &STATISTIC, || ());
    reach_planned();
    group(&mut criterion, "planned", &STATISTIC, stepalloc::boundary);
    let last = stepalloc::statistics().last_steps;
    assert_eq!(last.fallback_allocations, 0, "the planned group measured the backend: {last:?}");
    criterion.final_summary();
}
