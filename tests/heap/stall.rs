//! What boundaries cost the step's own thread while a large step is merged and planned.

use crate::process;
use crate::test_name;
use std::alloc::{Layout, alloc, dealloc};
use std::mem::MaybeUninit;
use stepalloc::Phase;

/// Milliseconds that a boundary may take of its own thread's processor time at most: the promised 5, and noise of
/// caches that other processes share.
const MOST_MS: f64 = if cfg!(debug_assertions) { 500.0 } else { 10.0 };
/// Blocks of a step: a little step planned at once, the largest step merged at once, and larger ones.
const BLOCKS: [&str; 4] = ["200", "5000", "10000", "30000"];
/// Says to a child how many, and that all are of one size.
const COUNT: &str = "STEPALLOC_HEAP_BLOCKS";
const SAME: &str = "STEPALLOC_HEAP_SAME";

#[test]
fn no_boundary_stalls_the_step_that_has_ten_thousand_blocks() {
    let name = test_name!(no_boundary_stalls_the_step_that_has_ten_thousand_blocks);
    if process::is_child(name) {
        let number =
            |name| std::env::var(name).ok().and_then(|text| text.parse().ok()).expect("set by the parent");
        return measure(number(COUNT), number(SAME) == 1);
    }
    let steps =
        [("START_STATISTIC_STEP", "3"), ("STABLE_STATISTIC_STEP", "2"), ("STEPALLOC_MIN_BYTES", "1024")];
    for count in BLOCKS {
        for same in ["0", "1"] {
            let settings: Vec<_> = steps.into_iter().chain([(COUNT, count), (SAME, same)]).collect();
            let said = process::run(name, &settings);
            let longest = said.figure("longest_us") as f64 / 1e3;
            assert!(longest <= MOST_MS, "a boundary took {longest} ms of its thread with {count} blocks");
        }
    }
}

/// Processor time of this thread in microseconds.
fn thread_us() -> u64 {
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: the kernel fills the structure it is given; zeros are a valid value too.
    let time = unsafe {
        assert_eq!(libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, time.as_mut_ptr()), 0);
        time.assume_init()
    };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

fn measure(count: usize, same: bool) {
    let mut live = vec![(std::ptr::null_mut(), Layout::new::<u8>()); 300];
    let (mut longest, mut at, mut planned_steps) = (0, 0, 0);
    let mut step = 0u64;
    while planned_steps < 10 {
        let before = thread_us();
        stepalloc::boundary();
        let cost = thread_us() - before;
        if cost > longest {
            (longest, at) = (cost, step);
        }
        if stepalloc::phase() == Phase::Planned {
            planned_steps += 1;
        } else if step > 10 {
            // The thread beside may need a processor.
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert!(step < 2_000, "no plan after {step} steps");
        // Lifetimes cross each other; every one of them ends within the step.
        for number in 0..count {
            let size = if same { 2048 } else { 1024 + (number * 7919) % 5000 * 8 };
            let layout = Layout::from_size_align(size, 8).expect("a legal layout");
            let place = number * 31 % live.len();
            // SAFETY: sizes are not 0; what a place holds is live, with its layout.
            unsafe {
                let block = alloc(layout);
                assert!(!block.is_null());
                block.write(1);
                let (old, old_layout) = std::mem::replace(&mut live[place], (block, layout));
                if !old.is_null() {
                    dealloc(old, old_layout);
                }
            }
        }
        for (block, layout) in live.iter_mut().filter(|place| !place.0.is_null()) {
            // SAFETY: live, with its layout; forgotten at once.
            unsafe { dealloc(*block, *layout) };
            *block = std::ptr::null_mut();
        }
        step += 1;
    }
    let statistics = stepalloc::statistics();
    println!(
        "figures: blocks={count} longest_us={longest} in_step={at} planned_at={:?} planned_blocks={} \
         arena_over_bound_per_mille={}",
        statistics.planned_at_step,
        statistics.planned_blocks,
        statistics.arena_bytes * 1000 / statistics.lower_bound_bytes.max(1)
    );
    assert!(statistics.planned_blocks as usize >= count, "{statistics:?}");
    assert_eq!(statistics.last_steps.fallback_allocations, 0, "{statistics:?}");
}
