//! One process of the demo: trains the network under the allocator its environment names, and measures.
//!
//! The measuring is the same in all of them: the wall time, the CPU time and the minor page faults of every step from the process's
//! own counters, medians over the newest half of the steps; resident bytes when training ends, their highest value
//! since half time, when its mark is set back. What is learnt, warmed up and planned in the first half counts for none.
//! The parent reads standard output: `progress N` after each epoch, then one line of JSON.

use std::fs;
use std::io::{self, Write};
use std::time::Instant;

use serde_json::{Value, json};
use thiserror::Error;

use super::data::{self, DataError, Random};
use super::network::{BATCH, Network, Set};
use crate::os::Usage;

/// Begins each line that tells how many epochs are done.
pub const PROGRESS: &str = "progress ";

/// Any seed would do; with a fixed one, every run holds back the same images and begins with the same weights.
const SEED: u64 = 7;

/// What a child takes.
#[derive(clap::Args)]
pub struct Arguments {
    /// Passes over the training images
    #[arg(long)]
    pub epochs: u32,
}

/// Why a child has no figures.
#[derive(Debug, Error)]
pub enum ChildError {
    /// The embedded data.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The tensor library.
    #[error("training failed: {0}")]
    Training(#[from] candle_core::Error),
    /// The parent is gone, or a counter cannot be read.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl ChildError {
    fn system(what: &'static str) -> impl FnOnce(io::Error) -> ChildError {
        move |source| ChildError::System { what, source }
    }
}

/// Steps of an epoch: an incomplete last batch is dropped.
pub const fn steps_per_epoch() -> usize {
    (data::IMAGES - data::TEST_IMAGES) / BATCH
}

/// Trains, measures and prints.
pub fn train(arguments: &Arguments) -> Result<(), ChildError> {
    let digits = data::load()?;
    let mut random = Random(SEED);
    let (train, test) = data::split(&digits, &mut random);
    let (train, test) = (Set::new(&train)?, Set::new(&test)?);
    let mut network = Network::new(&mut random)?;
    let mut order: Vec<u32> = (0..train.len() as u32).collect();

    let steps = arguments.epochs as usize * steps_per_epoch();
    let mut times = Vec::with_capacity(steps);
    let mut cpu_times = Vec::with_capacity(steps);
    let mut faults = Vec::with_capacity(steps);
    let mut out = io::stdout().lock();
    for epoch in 1..=arguments.epochs {
        random.shuffle(&mut order);
        for batch in order.chunks_exact(BATCH) {
            if times.len() == steps / 2 {
                // Sets VmHWM back. Where /proc refuses it, the highest value of the whole run stands in its place.
                let _ = fs::write("/proc/self/clear_refs", "5");
            }
            let _step = stepalloc::step();
            let (before, start) = (Usage::now(), Instant::now());
            network.train(&train, batch)?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
            let after = Usage::now();
            cpu_times.push((after.cpu_seconds - before.cpu_seconds) * 1e3);
            faults.push(after.minor_faults - before.minor_faults);
        }
        writeln!(out, "{PROGRESS}{epoch}")
            .and_then(|()| out.flush())
            .map_err(ChildError::system("progress cannot be told"))?;
    }

    let resident = fs::read_to_string("/proc/self/status")
        .map_err(ChildError::system("/proc/self/status cannot be read"))?;
    let statistics = stepalloc::statistics();
    let (times, faults) = (&mut times[steps / 2..], &mut faults[steps / 2..]);
    let cpu_times = &mut cpu_times[steps / 2..];
    times.sort_unstable_by(f64::total_cmp);
    cpu_times.sort_unstable_by(f64::total_cmp);
    faults.sort_unstable();
    let figures = json!({
        "step_ms_median": times.get(times.len() / 2),
        "step_ms_quartiles": [times.get(times.len() / 4), times.get(times.len() * 3 / 4)],
        "step_cpu_ms_median": cpu_times.get(cpu_times.len() / 2),
        "minor_faults_median": faults.get(faults.len() / 2),
        "minor_faults_max": faults.last(),
        "vm_rss_bytes": kibibytes(&resident, "VmRSS:"),
        "vm_hwm_bytes": kibibytes(&resident, "VmHWM:"),
        "accuracy": network.accuracy(&test)?,
        "statistics": serde_json::from_str(&statistics.to_json()).unwrap_or(Value::Null),
    });
    writeln!(out, "{figures}").map_err(ChildError::system("the figures cannot be handed over"))
}

/// A line of /proc/self/status, in bytes.
fn kibibytes(status: &str, name: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    value.split_whitespace().next()?.parse::<u64>().ok().map(|kibibytes| kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_bytes_are_read_from_the_line_of_that_name() {
        let status = "Name:\tx\nVmHWM:\t    12 kB\nVmRSS:\t     7 kB\n";
        assert_eq!(kibibytes(status, "VmHWM:"), Some(12 * 1024));
        assert_eq!(kibibytes(status, "VmRSS:"), Some(7 * 1024));
        assert_eq!(kibibytes(status, "VmSwap:"), None);
    }
}
