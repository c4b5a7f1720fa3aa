//! Reads whatever can be planned: buffers or a trace, told apart by the first line.

use std::io::Read;
use std::path::Path;

use crate::csv::{self, Buffers};
use crate::lines::Lines;
use crate::lines::ReadError;
use crate::problem::Problem;
use crate::steps::StepProblem;
use crate::trace::{self, Trace};

/// What a file held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Buffers with lifetimes.
    Buffers(Buffers),
    /// A trace of steps, and the needs merged from them.
    Trace {
        /// As read.
        trace: Trace,
        /// The periodic problem.
        steps: StepProblem,
    },
}

impl Input {
    /// What is to be planned.
    pub fn problem(&self) -> &Problem {
        match self {
            Input::Buffers(buffers) => &buffers.problem,
            Input::Trace { steps, .. } => &steps.problem,
        }
    }

    /// The workload's or file's name.
    pub fn name(&self) -> &str {
        match self {
            Input::Buffers(buffers) => &buffers.name,
            Input::Trace { trace, .. } => &trace.name,
        }
    }
}

/// Reads buffers or a trace; of a trace, blocks of fewer than `min_bytes` bytes are left out.
///
/// # Errors
/// A [`ReadError`] with file and line.
pub fn read_any(path: impl AsRef<Path>, min_bytes: u64) -> Result<Input, ReadError> {
    parse(Lines::open(path.as_ref())?, min_bytes)
}

/// The same of what `reader` gives; `name` stands for the file in errors.
///
/// # Errors
/// A [`ReadError`] with name and line.
pub fn read_from(
    reader: impl Read + 'static,
    name: impl AsRef<Path>,
    min_bytes: u64,
) -> Result<Input, ReadError> {
    parse(Lines::new(reader, name.as_ref())?, min_bytes)
}

fn parse(mut lines: Lines, min_bytes: u64) -> Result<Input, ReadError> {
    let traced = lines.next()?.is_some_and(|line| line.starts_with(trace::MAGIC));
    lines.unread();
    if !traced {
        return Ok(Input::Buffers(csv::parse(&mut lines)?));
    }
    let trace = trace::parse(&mut lines)?;
    let steps = trace.problem(min_bytes);
    Ok(Input::Trace { trace, steps })
}
