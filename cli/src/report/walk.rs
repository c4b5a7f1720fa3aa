//! The blocks of a trace in the order in which they come and go.
//!
//! Handles of a trace may be used again, frees may be of blocks nobody saw, and a reallocation is a free and the allocation
//! that moved from it. Here every block has an index of its own, in order of birth, dies once at most, and of a reallocation
//! the new block is born before the old one dies: both are alive while the bytes are copied, as `stepalloc_planner::steps`
//! takes it, too.

use std::collections::{HashMap, VecDeque};

use stepalloc_planner::trace::Step;
use stepalloc_planner::{Event, Trace};

/// A block comes or goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// The step it happens in, from the trace's first.
    pub step: usize,
    /// Which of the step's events it is.
    pub event: usize,
    /// What happens.
    pub change: Change,
}

/// What happens to a block. Blocks are numbered in order of birth, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It comes alive.
    Born {
        /// The block.
        block: usize,
        /// Bytes.
        size: u64,
        /// Power of two.
        align: u64,
    },
    /// It is freed.
    Died {
        /// The block.
        block: usize,
    },
}

/// Goes through a trace's blocks; an iterator.
#[derive(Debug)]
pub struct Walk<'a> {
    steps: &'a [Step],
    min_bytes: u64,
    step: usize,
    event: usize,
    /// Handle to block.
    live: HashMap<u32, usize>,
    born: usize,
    /// What else happens at the last event taken.
    waiting: VecDeque<Moment>,
}

impl<'a> Walk<'a> {
    /// The blocks of at least `min_bytes` bytes that are allocated from step `first` on.
    pub fn new(trace: &'a Trace, first: usize, min_bytes: u64) -> Walk<'a> {
        Walk {
            steps: &trace.steps,
            min_bytes,
            step: first,
            event: 0,
            live: HashMap::new(),
            born: 0,
            waiting: VecDeque::new(),
        }
    }

    /// Everything of a trace.
    pub fn whole(trace: &'a Trace) -> Walk<'a> {
        Walk::new(trace, 0, 0)
    }

    fn push(&mut self, event: usize, change: Change) {
        self.waiting.push_back(Moment { step: self.step, event, change });
    }

    fn take(&mut self, at: usize, event: Event) {
        let Event::Allocate { block: handle, size, align, moved_from } = event else { return };
        let lost = self.live.insert(handle, self.born);
        let moved = moved_from == Some(handle);
        // The handle was in use: its free was lost, and can have been no later than now.
        if let Some(lost) = lost.filter(|_| !moved) {
            self.push(at, Change::Died { block: lost });
        }
        self.push(at, Change::Born { block: self.born, size, align });
        if let Some(lost) = lost.filter(|_| moved) {
            self.push(at, Change::Died { block: lost });
        }
        self.born += 1;
    }
}

impl Iterator for Walk<'_> {
    type Item = Moment;

    fn next(&mut self) -> Option<Moment> {
        loop {
            if let Some(moment) = self.waiting.pop_front() {
                return Some(moment);
            }
            let events = &self.steps.get(self.step)?.events;
            let at = self.event;
            self.event += 1;
            match events.get(at).copied() {
                None => (self.step, self.event) = (self.step + 1, 0),
                Some(Event::Free { block: handle }) => {
                    let Some(block) = self.live.remove(&handle) else { continue };
                    let next = events.get(self.event).copied();
                    let moved = next.filter(|next| {
                        matches!(next, Event::Allocate { size, moved_from, .. }
                            if *moved_from == Some(handle) && *size >= self.min_bytes)
                    });
                    if let Some(moved) = moved {
                        self.take(self.event, moved);
                        self.event += 1;
                    }
                    self.push(at, Change::Died { block });
                }
                Some(event @ Event::Allocate { size, .. }) if size >= self.min_bytes => self.take(at, event),
                Some(Event::Allocate { .. }) => {}
            }
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// An allocation of a hand-made trace.
    pub fn allocate(block: u32, size: u64) -> Event {
        Event::Allocate { block, size, align: 16, moved_from: None }
    }

    /// A free of a hand-made trace.
    pub fn free(block: u32) -> Event {
        Event::Free { block }
    }

    /// A hand-made trace; its steps take a millisecond each.
    pub fn trace(steps: Vec<Vec<Event>>) -> Trace {
        let step = |(index, events)| Step { micros: 5000 + 1000 * index as u64, events, ..Step::default() };
        Trace {
            name: "by hand".to_owned(),
            steps: steps.into_iter().enumerate().map(step).collect(),
            ..Trace::default()
        }
    }

    fn changes(events: Vec<Event>, min_bytes: u64) -> Vec<(usize, Change)> {
        let trace = trace(vec![events]);
        Walk::new(&trace, 0, min_bytes).map(|moment| (moment.event, moment.change)).collect()
    }

    fn born(block: usize, size: u64) -> Change {
        Change::Born { block, size, align: 16 }
    }

    #[test]
    fn handles_that_are_used_again_are_other_blocks() {
        let seen = changes(vec![allocate(7, 10), free(7), allocate(7, 20), free(7), free(7), free(3)], 0);
        assert_eq!(
            seen,
            [
                (0, born(0, 10)),
                (1, Change::Died { block: 0 }),
                (2, born(1, 20)),
                (3, Change::Died { block: 1 })
            ]
        );
    }

    #[test]
    fn a_reallocated_block_dies_after_the_new_one_is_born() {
        let moved = Event::Allocate { block: 7, size: 20, align: 16, moved_from: Some(7) };
        let events = vec![allocate(7, 10), free(7), moved];
        let expected = [(0, born(0, 10)), (2, born(1, 20)), (1, Change::Died { block: 0 })];
        assert_eq!(changes(events.clone(), 0), expected);
        let (small, none) = (changes(events.clone(), 15), changes(events, 100));
        assert_eq!(small, [(2, born(0, 20))], "the old one was too small to be seen");
        assert_eq!(none, []);
    }

    #[test]
    fn a_block_whose_free_was_lost_dies_when_its_handle_is_used_again() {
        let seen = changes(vec![allocate(7, 10), allocate(7, 20)], 0);
        assert_eq!(seen, [(0, born(0, 10)), (1, Change::Died { block: 0 }), (1, born(1, 20))]);
    }
}
