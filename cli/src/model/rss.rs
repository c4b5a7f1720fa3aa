//! `--max-rss`: whether a run keeps the whole process within a limit, told before it starts.
//!
//! What the process has is asked of the system once the run is planned. To that comes what the plan says of the run, and a margin for what
//! no plan knows: pages of the program's own code that the first run brings in, threads' stacks, and the buffers in which matrix products
//! lay out their factors. Over 54 nets (classifiers, detectors, language models, recurrent ones) the process's peak (VmHWM) rose above the
//! sum of the other parts by 4.8 MiB at most on one thread, and 4.7 on two.

use crate::os::Resident;
use crate::size;
use std::fmt;
use stepalloc_runtime::Needs;

/// What comes beside the parts, and for each thread.
const MARGIN: u64 = 4 << 20;
const MARGIN_OF_A_THREAD: u64 = 1 << 20;

/// What the process has before a run.
#[derive(Clone, Copy)]
pub(super) struct Process {
    /// With pages of the model's file that passes have read: these are of weights that the run has others in the place of.
    bytes: u64,
    /// The most that it had so far.
    most: u64,
    threads: u64,
}

impl Process {
    /// Runs will be on the threads that share work now.
    pub(super) fn now() -> Result<Self, String> {
        let unknown = || "--max-rss: the system does not tell the process's memory (/proc/self)".to_owned();
        let resident = Resident::of(std::process::id()).ok_or_else(unknown)?;
        let threads = rayon::current_num_threads() as u64;
        Ok(Self { bytes: resident.bytes, most: resident.most_bytes, threads })
    }
}

/// What the process will have at most.
pub(super) struct Total {
    /// What each part is, and its bytes.
    pub parts: [(&'static str, u64); 7],
    /// The most that the process had so far: to optimize a graph may take more than to run it.
    pub most: u64,
    unplanned: u64,
}

impl Total {
    pub(super) fn new(process: &Process, needs: &Needs) -> Self {
        // The others are among what the process has.
        let copied = needs.copied_weight_bytes.saturating_sub(needs.present_weight_bytes);
        let parts = [
            ("the process as it is", process.bytes),
            ("weights where they lie in the file", needs.mapped_weight_bytes),
            ("weights to be copied or packed", copied.saturating_add(needs.packed_weight_bytes)),
            ("the arena", needs.arena_bytes),
            ("inputs", needs.input_bytes),
            ("outputs", needs.output_bytes),
            (
                "code, stacks and buffers",
                MARGIN.saturating_add(process.threads.saturating_mul(MARGIN_OF_A_THREAD)),
            ),
        ];
        Self { parts, most: process.most, unplanned: needs.unplanned_nodes }
    }

    /// The parts, or the most that the process had so far.
    pub(super) fn bytes(&self) -> u64 {
        self.parts.iter().fold(0, |all: u64, (_, bytes)| all.saturating_add(*bytes)).max(self.most)
    }

    /// Whether that is within the limit.
    pub(super) fn check(&self, limit: u64) -> Result<(), String> {
        let allowed = size::show(limit);
        if self.unplanned > 0 {
            return Err(format!(
                "--max-rss {allowed}: {} nodes have outputs whose sizes depend on elements, so that nobody knows beforehand \
                 what a run takes; --max-mem ends such a run where it goes too far",
                self.unplanned
            ));
        }
        if self.most > limit {
            let most = size::show(self.most);
            return Err(format!("--max-rss {allowed}: to read and plan the model took {most} already"));
        }
        if self.bytes() > limit {
            return Err(format!("--max-rss {allowed}: a run would take {self}"));
        }
        Ok(())
    }
}

impl fmt::Display for Total {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", size::show(self.bytes()))?;
        for (number, (what, bytes)) in self.parts.iter().filter(|(_, bytes)| *bytes > 0).enumerate() {
            write!(f, "{} {what} {}", if number == 0 { ":" } else { "," }, size::show(*bytes))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_and_what_is_too_much_is_said_by_part() {
        let process = Process { bytes: 20 << 20, most: 25 << 20, threads: 2 };
        let needs = Needs {
            arena_bytes: 64 << 20,
            output_bytes: 1 << 20,
            input_bytes: 2 << 20,
            mapped_weight_bytes: 100 << 20,
            copied_weight_bytes: 30 << 20,
            present_weight_bytes: 10 << 20,
            packed_weight_bytes: 5 << 20,
            unplanned_nodes: 0,
        };
        let total = Total::new(&process, &needs);
        let all = (20 + 64 + 1 + 2 + 100 + (30 - 10) + 5) << 20;
        assert_eq!(total.bytes(), all + MARGIN + 2 * MARGIN_OF_A_THREAD);
        assert!(total.check(total.bytes()).is_ok());
        let said = total.check(total.bytes() - 1).expect_err("a byte too few");
        for (part, _) in total.parts {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(total.check(24 << 20).expect_err("it had more").contains("already"));
        let unplanned = Total::new(&process, &Needs { unplanned_nodes: 1, ..needs });
        assert!(unplanned.check(u64::MAX).is_err());
    }
}
