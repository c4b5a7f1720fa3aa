//! What a process has at one moment, as Linux shows it in `/proc`.

use std::error::Error;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::judge::Options;

/// A process after a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// The round's number.
    pub round: u64,
    /// VmRSS in bytes: pages in memory.
    pub resident_bytes: u64,
    /// VmHWM in bytes: the most that VmRSS ever was.
    pub peak_bytes: u64,
    /// Threads.
    pub threads: u64,
    /// Mappings: the lines of `/proc/PID/maps`.
    pub mappings: u64,
    /// Open descriptors.
    pub descriptors: u64,
}

/// A process could not be looked at: it has ended, or is another user's.
#[derive(Debug)]
pub struct SampleError {
    path: PathBuf,
    source: io::Error,
}

impl fmt::Display for SampleError {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(
            out,
            "{}: cannot be read: {}; the process has ended, or is not yours",
            self.path.display(),
            self.source
        )
    }
}

impl Error for SampleError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

impl Sample {
    /// Reads what a process has now. The files are read one after the other while it runs on.
    ///
    /// # Errors
    /// [`SampleError`] where the process has ended, waits to be reaped, or may not be looked at.
    pub fn of(pid: u32, round: u64) -> Result<Sample, SampleError> {
        let process = Path::new("/proc").join(pid.to_string());
        let failed = |name: &str, source| SampleError { path: process.join(name), source };
        let status = fs::read_to_string(process.join("status")).map_err(|error| failed("status", error))?;
        let number = |name: &str| -> Result<u64, SampleError> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let word = line.and_then(|line| line.split_ascii_whitespace().next());
            // Of a process without memory of its own, one that has ended, there are no such lines.
            word.and_then(|word| word.parse().ok())
                .ok_or_else(|| failed("status", io::Error::other(format!("no {name}"))))
        };
        let maps = fs::read(process.join("maps")).map_err(|error| failed("maps", error))?;
        let descriptors = fs::read_dir(process.join("fd")).map_err(|error| failed("fd", error))?;
        Ok(Sample {
            round,
            resident_bytes: number("VmRSS:")? << 10,
            peak_bytes: number("VmHWM:")? << 10,
            threads: number("Threads:")?,
            mappings: maps.iter().filter(|&&byte| byte == b'\n').count() as u64,
            descriptors: descriptors.count() as u64,
        })
    }
}

/// What of a sample is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Quantity {
    /// [`Sample::resident_bytes`].
    Resident,
    /// [`Sample::peak_bytes`].
    Peak,
    /// [`Sample::threads`].
    Threads,
    /// [`Sample::mappings`].
    Mappings,
    /// [`Sample::descriptors`].
    Descriptors,
}

impl Quantity {
    /// All of them, in the order of a sample.
    pub const ALL: [Quantity; 5] =
        [Quantity::Resident, Quantity::Peak, Quantity::Threads, Quantity::Mappings, Quantity::Descriptors];

    /// For people: VmRSS, threads, ...
    pub fn name(self) -> &'static str {
        match self {
            Quantity::Resident => "VmRSS",
            Quantity::Peak => "VmHWM",
            Quantity::Threads => "threads",
            Quantity::Mappings => "mappings",
            Quantity::Descriptors => "descriptors",
        }
    }

    /// Whether it is in bytes; else things are counted.
    pub fn is_bytes(self) -> bool {
        matches!(self, Quantity::Resident | Quantity::Peak)
    }

    /// It, in a sample.
    pub fn of(self, sample: &Sample) -> u64 {
        match self {
            Quantity::Resident => sample.resident_bytes,
            Quantity::Peak => sample.peak_bytes,
            Quantity::Threads => sample.threads,
            Quantity::Mappings => sample.mappings,
            Quantity::Descriptors => sample.descriptors,
        }
    }

    /// How it is judged where nothing else is said.
    pub fn options(self) -> Options {
        if self.is_bytes() { Options::for_bytes() } else { Options::for_counts() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_read() {
        let own = Sample::of(std::process::id(), 3).expect("it runs");
        assert_eq!(own.round, 3);
        assert!(own.resident_bytes > 1 << 18 && own.resident_bytes <= own.peak_bytes, "{own:?}");
        assert!(own.threads >= 1 && own.mappings > 5 && own.descriptors >= 3, "{own:?}");
    }

    #[test]
    fn what_is_opened_shows() {
        let count = || Sample::of(std::process::id(), 0).expect("it runs").descriptors;
        let before = count();
        let open: Vec<_> = (0..40).map(|_| fs::File::open("/dev/null").expect("it is there")).collect();
        // Other tests of this process open files, too.
        assert!(count() >= before + 30);
        drop(open);
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error_that_names_the_file() {
        let error = Sample::of(u32::MAX, 0).expect_err("no such process");
        assert!(error.to_string().starts_with("/proc/4294967295/status: cannot be read"), "{error}");
    }
}
