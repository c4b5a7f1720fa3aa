//! Statistics: what the allocator did, as a snapshot a program can ask for, and as one line of JSON.
//!
//! Counting costs the allocation path nothing where the plan serves: the matcher's own counters say how many planned
//! blocks a step asked for. Only slot misses are counted one by one.

use crate::lookup::counter::Count;
use crate::lookup::misses::{Miss, REPORTED};
use crate::os::{self, Text};
use core::fmt::{self, Write};

/// Newest planned steps whose figures are recorded.
const STEPS_RECORDED: usize = 100;

/// What a process is doing about its steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Phase {
    /// Counting steps; every call goes to the backend.
    Waiting = 0,
    /// Recording; every call goes to the backend.
    Collecting = 1,
    /// Serving from the plan.
    Planned = 2,
}

impl fmt::Display for Phase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Waiting => "waiting",
            Self::Collecting => "collecting",
            Self::Planned => "planned",
        })
    }
}

/// A snapshot of one process.
#[derive(Clone, Debug, PartialEq)]
pub struct Statistics {
    /// The process.
    pub pid: u32,
    /// Its rank among processes that one launcher has started (torchrun, Open MPI, MPICH, Slurm).
    pub rank: Option<u64>,
    /// Name of the backend; empty before the allocator was first used.
    pub backend: &'static str,
    /// What it is doing now.
    pub phase: Phase,
    /// Why nothing is planned any more, where that is an error of the allocator's own: `panic`.
    pub stopped: Option<&'static str>,
    /// Whether the program marks its steps. Else they are detected, where there is a period.
    pub marked: bool,
    /// Planned-size allocations in the period; `None` where no period was found, or steps are marked.
    pub period_allocations: Option<u64>,
    /// Step boundaries passed; of detected steps, those passed since a plan serves.
    pub steps: u64,
    /// The first step served from the plan in force, counted from 0.
    pub planned_at_step: Option<u64>,
    /// Plans made so far, this one included.
    pub plans: u64,
    /// Plans that could not be made or put in force: no memory for the arena or its tables.
    pub failed_plans: u64,
    /// Plans not made, or left, because marked steps did not repeat (their load together exceeded the most live bytes by far, or the
    /// plan served less than three quarters of each), or because the process would have risen above its peak beside them.
    pub refused_plans: u64,
    /// Bytes of the arena that can be served.
    pub arena_bytes: u64,
    /// Bytes of the arena occupied by live blocks now.
    pub arena_occupied_bytes: u64,
    /// Bytes of the large heap occupied by live blocks now.
    pub heap_bytes: u64,
    /// Bytes of the large heap that may be resident: those of live blocks, and free ones that stay resident.
    pub heap_resident_bytes: u64,
    /// Bytes that were moved from free extents of the large heap to where they were wanted, since the process's start.
    pub heap_moved_bytes: u64,
    /// Bytes of free extents that went back to the system, since the process's start.
    pub heap_returned_bytes: u64,
    /// The plan in force came from the file that `STEPALLOC_PLAN` names.
    pub kept: bool,
    /// Step variants planned.
    pub kinds: u64,
    /// The largest load of the collected steps in bytes: no plan that has a slot for every block is smaller.
    pub lower_bound_bytes: u64,
    /// Blocks that have a slot.
    pub planned_blocks: u64,
    /// Blocks of the plan left to the backend, because the arena may not be as large as it (`STEPALLOC_MAX_ARENA`).
    pub blocks_beyond_limit: u64,
    /// Times that the arena's pages went back to the system, because nothing was asked for.
    pub idle_releases: u64,
    /// Blocks without a slot since the plan in force serves, by size and reason, those of the most bytes first.
    pub misses: [Option<Miss>; REPORTED],
    /// The newest half of the planned steps, at most 100 of them.
    pub last_steps: LastSteps,
    /// Resident bytes now.
    pub vm_rss_bytes: u64,
    /// Resident bytes at most.
    pub vm_hwm_bytes: u64,
}

/// Figures over several steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LastSteps {
    /// How many steps these figures cover.
    pub count: u64,
    /// Minor page faults a step, the whole process: median.
    pub minor_faults_median: u64,
    /// Minor page faults a step, the whole process: maximum.
    pub minor_faults_max: u64,
    /// Allocations of planned size served from the arena, sum.
    pub planned_allocations: u64,
    /// Allocations of planned size that the backend had to serve though the plan did not leave them to it, sum.
    pub fallback_allocations: u64,
    /// Allocations served from a gap of the arena (among `planned_allocations`), sum.
    pub gap_allocations: u64,
    /// Bytes of `planned_allocations`, rounded up to 64 each.
    pub planned_bytes: u64,
    /// Bytes of `fallback_allocations`, rounded up to 64 each.
    pub fallback_bytes: u64,
    /// Bytes of `gap_allocations`, rounded up to 64 each.
    pub gap_bytes: u64,
    /// Milliseconds from boundary to boundary: median.
    pub step_ms_median: f64,
}

/// One planned step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepFigures {
    pub(crate) minor_faults: u64,
    pub(crate) nanoseconds: u64,
    pub(crate) planned: Count,
    pub(crate) fallback: Count,
    pub(crate) gap: Count,
    /// Blocks whose slot was held by another.
    pub(crate) busy: Count,
}

impl StepFigures {
    /// Nothing.
    pub(crate) const NONE: Self = {
        const NONE: Count = Count { allocations: 0, bytes: 0 };
        Self { minor_faults: 0, nanoseconds: 0, planned: NONE, fallback: NONE, gap: NONE, busy: NONE }
    };
}

/// The newest planned steps, oldest overwritten first.
pub(crate) struct History {
    steps: [StepFigures; STEPS_RECORDED],
    /// Planned steps ever pushed.
    pushed: u64,
}

impl History {
    pub(crate) const fn new() -> Self {
        Self { steps: [StepFigures::NONE; STEPS_RECORDED], pushed: 0 }
    }

    pub(crate) fn push(&mut self, figures: StepFigures) {
        self.steps[(self.pushed % STEPS_RECORDED as u64) as usize] = figures;
        self.pushed += 1;
    }

    /// The newest `count` steps (at most those recorded), in no particular order.
    pub(crate) fn newest(&self, count: u64) -> impl Iterator<Item = &StepFigures> {
        let count = count.min(self.pushed).min(STEPS_RECORDED as u64);
        (self.pushed - count..self.pushed).map(|index| &self.steps[(index % STEPS_RECORDED as u64) as usize])
    }

    /// The newest half of all planned steps. Allocates nothing.
    pub(crate) fn last_steps(&self) -> LastSteps {
        let (mut faults, mut times) = ([0u64; STEPS_RECORDED], [0u64; STEPS_RECORDED]);
        let (mut count, mut last) = (0, LastSteps::default());
        for step in self.newest(self.pushed.div_ceil(2)) {
            faults[count] = step.minor_faults;
            times[count] = step.nanoseconds;
            count += 1;
            last.planned_allocations += step.planned.allocations;
            last.planned_bytes += step.planned.bytes;
            last.fallback_allocations += step.fallback.allocations;
            last.fallback_bytes += step.fallback.bytes;
            last.gap_allocations += step.gap.allocations;
            last.gap_bytes += step.gap.bytes;
        }
        if count > 0 {
            faults[..count].sort_unstable();
            times[..count].sort_unstable();
            last.count = count as u64;
            last.minor_faults_median = faults[count / 2];
            last.minor_faults_max = faults[count - 1];
            last.step_ms_median = times[count / 2] as f64 / 1e6;
        }
        last
    }
}

impl Statistics {
    /// The JSON object of `stepalloc run`, on one line.
    pub fn to_json(&self) -> String {
        let mut text = Text::<JSON_BYTES>::new();
        // The capacity holds every number at its longest; only the program's path can be cut off.
        let _ = self.write_json(&mut text);
        String::from_utf8_lossy(text.as_bytes()).into_owned()
    }

    /// Writes the same without allocating.
    pub fn write_json(&self, out: &mut impl Write) -> fmt::Result {
        let last = &self.last_steps;
        write!(out, "{{\"pid\": {}, \"rank\": ", self.pid)?;
        match self.rank {
            Some(rank) => write!(out, "{rank}")?,
            None => out.write_str("null")?,
        }
        out.write_str(", \"program\": \"")?;
        let mut path = [0; PROGRAM_BYTES];
        write_escaped(out, os::program(&mut path))?;
        write!(
            out,
            "\", \"backend\": \"{}\", \"phase\": \"{}\", \"marked\": {}",
            self.backend, self.phase, self.marked
        )?;
        if let Some(reason) = self.stopped {
            write!(out, ", \"stopped\": \"{reason}\"")?;
        }
        match self.period_allocations {
            Some(period) => write!(out, ", \"period_allocations\": {period}")?,
            None => out.write_str(", \"period_allocations\": null")?,
        }
        write!(out, ", \"steps\": {}", self.steps)?;
        match self.planned_at_step {
            Some(step) => write!(out, ", \"planned_at_step\": {step}")?,
            None => out.write_str(", \"planned_at_step\": null")?,
        }
        write!(
            out,
            ", \"plans\": {}, \"failed_plans\": {}, \"refused_plans\": {}, \"arena_bytes\": {}, \"arena_occupied_bytes\": {}, \
             \"heap_bytes\": {}, \"heap_resident_bytes\": {}, \"heap_moved_bytes\": {}, \"heap_returned_bytes\": {}, \
             \"kept\": {}, \"kinds\": {}, \"gaps_only\": false, \"lower_bound_bytes\": {}, \"planned_blocks\": {}, \"blocks_beyond_limit\": {}, \"idle_releases\": {}",
            self.plans,
            self.failed_plans,
            self.refused_plans,
            self.arena_bytes,
            self.arena_occupied_bytes,
            self.heap_bytes,
            self.heap_resident_bytes,
            self.heap_moved_bytes,
            self.heap_returned_bytes,
            self.kept,
            self.kinds,
            self.lower_bound_bytes,
            self.planned_blocks,
            self.blocks_beyond_limit,
            self.idle_releases,
        )?;
        write!(
            out,
            ", \"last_steps\": {{\"count\": {}, \"minor_faults_median\": {}, \"minor_faults_max\": {}, \
             \"planned_allocations\": {}, \"fallback_allocations\": {}, \"gap_allocations\": {}, \
             \"planned_bytes\": {}, \"fallback_bytes\": {}, \"gap_bytes\": {}, \"step_ms_median\": {:.3}}}",
            last.count,
            last.minor_faults_median,
            last.minor_faults_max,
            last.planned_allocations,
            last.fallback_allocations,
            last.gap_allocations,
            last.planned_bytes,
            last.fallback_bytes,
            last.gap_bytes,
            last.step_ms_median,
        )?;
        out.write_str(", \"misses\": [")?;
        for (index, miss) in self.misses.iter().flatten().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(
                out,
                "{comma}{{\"reason\": \"{}\", \"size\": {}, \"gap_allocations\": {}, \"fallback_allocations\": {}}}",
                miss.reason, miss.size, miss.gap_allocations, miss.fallback_allocations
            )?;
        }
        out.write_char(']')?;
        write!(out, ", \"vm_rss_bytes\": {}, \"vm_hwm_bytes\": {}}}", self.vm_rss_bytes, self.vm_hwm_bytes)
    }
}

/// Bytes of a program's path that are shown.
const PROGRAM_BYTES: usize = 512;
/// A JSON object at its longest: every byte of the path escaped, every number with 20 digits, and the names.
pub(crate) const JSON_BYTES: usize = 6 * PROGRAM_BYTES + 2048 + REPORTED * MISS_BYTES;
/// A miss at its longest.
const MISS_BYTES: usize = 160;

fn write_escaped(out: &mut impl Write, bytes: &[u8]) -> fmt::Result {
    for character in bytes.utf8_chunks().flat_map(|chunk| {
        chunk.valid().chars().chain((!chunk.invalid().is_empty()).then_some(char::REPLACEMENT_CHARACTER))
    }) {
        match character {
            '"' | '\\' => write!(out, "\\{character}")?,
            control if control < ' ' => write!(out, "\\u{:04x}", control as u32)?,
            other => out.write_char(other)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_steps_are_the_newest_half_and_at_most_a_hundred() {
        let mut history = History::new();
        assert_eq!(history.last_steps(), LastSteps::default());
        for step in 0..301 {
            let planned = Count { allocations: 1, bytes: 100 };
            history.push(StepFigures {
                minor_faults: step,
                nanoseconds: step * 1_000_000,
                planned,
                ..Default::default()
            });
            let last = history.last_steps();
            assert_eq!(last.count, (step + 1).div_ceil(2).min(100));
            assert_eq!(last.minor_faults_max, step);
            assert_eq!(last.minor_faults_median, step + 1 - last.count + last.count / 2);
            assert_eq!(last.planned_bytes, 100 * last.count);
        }
    }

    #[test]
    fn strings_are_escaped_as_json_wants() {
        let mut out = String::new();
        write_escaped(&mut out, b"/a \"b\"\\\n\xff/\xc3\xa9").expect("a String takes all");
        assert_eq!(out, "/a \\\"b\\\"\\\\\\u000a\u{fffd}/\u{e9}");
    }
}
