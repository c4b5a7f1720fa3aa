//! Steps whose threads take turns as they like.
//!
//! Threads that each repeat their own blocks, in an order among each other that is another one in every step, have no order of all blocks
//! that a plan could rely on: lifetimes merged over all threads grow with each step, and their plan is missed in the next one. What repeats is
//! each thread's own order. So each thread's blocks are merged by themselves too. Where these steps are the same again and again, while
//! those of all threads are not, each thread gets a *lane*, a part of the arena for its blocks alone, as an allocator with an arena for each
//! thread has it (jemalloc, glibc). That takes the sum of the threads' peaks instead of the peak of their sum; so it is done only where
//! the sum is little more than what was alive at once.
//!
//! A block that another thread frees belongs to no thread's order; then there are no lanes.

use super::step_profile::Lane;
use std::collections::BTreeMap;
use stepalloc_planner::{Event, Steps};

/// Most threads that may have lanes.
const LANES: usize = 256;
/// Upper bound of the lanes' bytes, in quarters of the most live bytes.
const QUARTERS: u64 = 6;

/// The steps of each thread, by the thread's number, once several have allocated.
#[derive(Default)]
pub(super) struct Lanes {
    threads: BTreeMap<u16, Steps>,
    /// Steps in a row that changed no thread's.
    stable: u64,
    /// A block was freed by another thread, or events were lost.
    mixed: bool,
}

impl Lanes {
    /// Takes in a step: events, and the thread of each.
    pub(super) fn step(&mut self, events: &[Event], threads: &[u16], whole: bool) {
        self.mixed |= !whole || events.len() != threads.len();
        if self.mixed {
            self.threads.clear();
            return;
        }
        // While one thread does all, its steps are those of all threads, which are merged anyway.
        if self.threads.is_empty() && threads.windows(2).all(|pair| pair[0] == pair[1]) {
            return;
        }
        let mut of_threads: BTreeMap<u16, Vec<Event>> = BTreeMap::new();
        for (event, thread) in events.iter().zip(threads) {
            of_threads.entry(*thread).or_default().push(*event);
        }
        for &thread in of_threads.keys() {
            self.threads.entry(thread).or_default();
        }
        self.mixed = self.threads.len() > LANES;
        let mut changed = false;
        for (thread, steps) in &mut self.threads {
            changed |= steps.step(of_threads.remove(thread).unwrap_or_default());
        }
        self.stable = if changed { 0 } else { self.stable + 1 };
    }

    /// A block was freed by another thread than the one that has allocated it.
    pub(super) fn mix(&mut self) {
        self.mixed = true;
    }

    /// What each thread repeats, where more than `stable` steps in a row were the same for all, and they take little more than
    /// `most_alive` bytes together.
    pub(super) fn lanes(&self, stable: u64, most_alive: u64) -> Option<Vec<Lane>> {
        if self.mixed || self.threads.len() < 2 || self.stable <= stable {
            return None;
        }
        let lane = |(&thread, steps): (&u16, &Steps)| Lane { thread, step: steps.problem() };
        let lanes: Vec<_> = self.threads.iter().map(lane).collect();
        let bytes: u64 = lanes.iter().map(|lane| lane.step.problem.load().max).sum();
        (bytes <= most_alive / 4 * QUARTERS).then_some(lanes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step of two threads of three blocks each: the second thread runs between the first one's events.
    fn step(lanes: &mut Lanes, after: usize) {
        let of = |thread: u32| {
            let allocate = |block| Event::Allocate {
                block: 10 * thread + block,
                size: u64::from(1 + block) << 16,
                align: 1,
                moved_from: None,
            };
            let free = |block| Event::Free { block: 10 * thread + block };
            [allocate(0), allocate(1), free(0), allocate(2), free(2), free(1)]
        };
        let mut events: Vec<(Event, u16)> = of(1).into_iter().map(|event| (event, 1)).collect();
        events.splice(after..after, of(2).into_iter().map(|event| (event, 2)));
        let (events, threads): (Vec<_>, Vec<_>) = events.into_iter().unzip();
        lanes.step(&events, &threads, true);
    }

    #[test]
    fn threads_that_take_turns_as_they_like_have_a_lane_each() {
        let mut lanes = Lanes::default();
        for after in [0, 3, 5] {
            assert!(lanes.lanes(1, 1 << 20).is_none());
            step(&mut lanes, after);
        }
        let problems = lanes.lanes(1, 1 << 20).expect("three steps were alike");
        assert_eq!(
            problems.iter().map(|lane| lane.step.problem.load().max).collect::<Vec<_>>(),
            [5 << 16, 5 << 16]
        );
        assert!(lanes.lanes(1, 6 << 16).is_none(), "far more than was alive");
    }

    #[test]
    fn a_block_that_another_thread_frees_has_no_lane() {
        let mut lanes = Lanes::default();
        lanes.step(&[], &[], true);
        (0..3).for_each(|_| step(&mut lanes, 0));
        assert!(lanes.lanes(1, 1 << 20).is_some());
        lanes.mix();
        step(&mut lanes, 0);
        assert!(lanes.lanes(1, 1 << 20).is_none());
    }
}
