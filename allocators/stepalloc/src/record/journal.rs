//! The journal: what each step of a process has cost, a line in the file that `STEPALLOC_STEPS` names.
//!
//! A line has the process's id, the number of the newest step it is about, how many steps it sums up, the phase, and of
//! these steps together nanoseconds, minor faults, allocations and bytes that were planned, left to the backend, and served
//! from a gap; then the plans made so far, the arena's bytes, and its lower bound. All are numbers with commas between them.
//! Several processes may write into one file: a line is one write. After [`LINES`] lines each is about twice as many steps as
//! before, so that a long run has a journal of bounded length.

use crate::lookup::counter::Count;
use crate::os::{self, Text};
use crate::settings;
use crate::statistics::StepFigures;
use core::fmt::Write;

/// Lines of one length.
const LINES: u64 = 4096;

/// What is not written yet.
pub(crate) struct Journal {
    /// Steps to a line, and lines of that length.
    stride: u64,
    lines: u64,
    steps: u64,
    sum: StepFigures,
}

/// What a line says beside the figures of its steps.
pub(crate) struct State {
    /// The newest step's number, from 0.
    pub(crate) step: u64,
    pub(crate) phase: u8,
    pub(crate) plans: u64,
    pub(crate) arena_bytes: u64,
    pub(crate) lower_bound: u64,
}

impl Journal {
    pub(crate) const fn new() -> Self {
        Self { stride: 1, lines: 0, steps: 0, sum: StepFigures::NONE }
    }

    /// Takes in what ended with a boundary: so many steps.
    pub(crate) fn add(&mut self, steps: u64, figures: &StepFigures, state: &State) {
        let Some(path) = settings::STEPS.path() else { return };
        let sum = &mut self.sum;
        sum.minor_faults += figures.minor_faults;
        sum.nanoseconds += figures.nanoseconds;
        for (sum, count) in [
            (&mut sum.planned, &figures.planned),
            (&mut sum.fallback, &figures.fallback),
            (&mut sum.gap, &figures.gap),
        ] {
            *sum = Count { allocations: sum.allocations + count.allocations, bytes: sum.bytes + count.bytes };
        }
        self.steps += steps;
        if self.steps < self.stride {
            return;
        }
        let mut line = Text::<512>::new();
        let _ = writeln!(
            line,
            "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
            os::pid(),
            state.step,
            self.steps,
            state.phase,
            sum.nanoseconds,
            sum.minor_faults,
            sum.planned.allocations,
            sum.planned.bytes,
            sum.fallback.allocations,
            sum.fallback.bytes,
            sum.gap.allocations,
            sum.gap.bytes,
            state.plans,
            state.arena_bytes,
            state.lower_bound,
        );
        // Whoever wants the journal sees that it has an end.
        let _ = os::append(path, line.as_bytes());
        (self.steps, self.sum) = (0, StepFigures::NONE);
        self.lines += 1;
        if self.lines == LINES {
            (self.lines, self.stride) = (0, 2 * self.stride);
        }
    }
}
