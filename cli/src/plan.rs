//! `stepalloc plan`: plans the buffers of a CSV file or the steps of a trace and says how close to the minimum that is.
//!
//! No word is said about a plan before the verifier, which shares no code with the planner, has passed it.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use stepalloc_planner::{
    Counts, Effort, Input, Plan, Planner, Problem, ProblemError, Proof, ReadError, Violation, csv, read_any,
    read_from, verify,
};
use thiserror::Error;

use crate::os::{self, Usage};
use crate::output::{self, Output, OutputError};
use crate::size;

mod waiting;

use waiting::Waiting;

/// `--capacity` was given and no plan within it was found.
const OVER_CAPACITY: u8 = 3;
/// A plan broke a rule: EX_SOFTWARE of sysexits.h.
pub const INTERNAL: u8 = 70;
/// The allocator's own default: smaller blocks are never planned.
pub const MIN_BYTES: u64 = 32 << 10;
/// What errors call the input `-`.
const STANDARD_INPUT: &str = "standard input";

/// What `stepalloc plan` takes.
#[derive(clap::Args)]
#[command(
    after_help = "Without --output the plan itself is not kept: only the summary is printed. Planning ends when the plan is proven
optimal (or fits --capacity), else when its work is done: at once for most inputs, a minute for small ones that are hard.
With --time-limit it goes on to the limit. Ctrl-C ends it with the best plan so far.

Columns that BUFFERS.csv may have beyond id,lower,upper,size (empty where a buffer asks for nothing):
  alignment  a power of two
  gaps       FROM-TO ..., events of the lifetime without use; FROM-TO@BYTE:BYTE, all but these bytes without use
  inside     ID@BYTES, a view: lies in that buffer, so many bytes from its beginning
  in_place   ID ..., may share bytes with these buffers
  fixed      the offset the buffer must have
  offset     of a solution: passed over without --fix-offsets
Other columns are passed over and not written back.

Exit status: 0 a valid plan was found (and written), 3 none within --capacity was found, 2 wrong arguments or files,
70 the plan did not pass the check (a fault of ours).

Examples:
  stepalloc plan buffers.csv
  stepalloc plan buffers.csv --capacity 1MiB --output solution.csv
  stepalloc plan buffers.csv --time-limit 60 --threads 2
  stepalloc plan solution.csv --fix-offsets --period 100    is this plan valid, come round again?
  stepalloc plan trace.csv.gz --json -"
)]
pub struct Arguments {
    /// Buffers as CSV (id,lower,upper,size) or a recorded trace (memtrace v1); plain or gzip'ed; - is standard input
    #[arg(value_name = "BUFFERS.csv|TRACE.csv.gz")]
    input: PathBuf,
    /// Look for a plan of so many bytes at most, or with KiB, MiB, GiB, or a proof that there is none
    #[arg(long, allow_negative_numbers = true, value_name = "BYTES", value_parser = size::parse)]
    capacity: Option<u64>,
    /// The buffers come again every EVENTS events: lifetimes may wrap round (a trace knows its own period)
    #[arg(long, allow_negative_numbers = true, value_name = "EVENTS", value_parser = whole)]
    period: Option<u64>,
    /// Leave every buffer at the offset that the file's column offset gives it, or say why that cannot be
    #[arg(long)]
    fix_offsets: bool,
    /// Go on for about S seconds, or until the plan is proven optimal
    #[arg(long, allow_negative_numbers = true, value_name = "S", value_parser = seconds)]
    time_limit: Option<Duration>,
    /// Search on so many threads, at most 4; the plan is the same but for a time limit
    #[arg(long, allow_negative_numbers = true, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=4))]
    threads: u8,
    /// Begin the search's chance elsewhere: another plan may be found, or the same sooner
    #[arg(long, allow_negative_numbers = true, value_name = "N", default_value_t = 0, value_parser = whole)]
    seed: u64,
    /// Of a trace, leave out smaller blocks: bytes, or with KiB, MiB, GiB [default: 32KiB]
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = size::parse)]
    min_bytes: Option<u64>,
    /// Write the plan as CSV: the buffers with a column offset; - is standard output
    #[arg(long, value_name = "F.csv")]
    output: Option<PathBuf>,
    /// Write the figures as JSON; - is standard output
    #[arg(long, value_name = "F")]
    json: Option<PathBuf>,
}

fn whole(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "expected a whole number from 0 to 2^64 - 1".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let expected = || "expected seconds, more than 0 and less than 2^64: 10 or 0.5".to_owned();
    let seconds: f64 = text.parse().map_err(|_| expected())?;
    Duration::try_from_secs_f64(seconds).ok().filter(|limit| !limit.is_zero()).ok_or_else(expected)
}

/// Why there is no plan.
#[derive(Debug, Error)]
pub enum PlanError {
    /// The input cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The trace cannot be planned.
    #[error("{}: {source}", .path.display())]
    Problem {
        /// The input.
        path: PathBuf,
        /// What is wrong with it.
        source: ProblemError,
    },
    /// A result cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// An option that the kind of input does not have.
    #[error("{}: {option} is for {wanted}, and this is {found}; leave it out", .path.display())]
    Option {
        /// The input.
        path: PathBuf,
        /// The option.
        option: &'static str,
        /// The kind of input it is for.
        wanted: &'static str,
        /// The kind that was given.
        found: &'static str,
    },
    /// Two results for one place.
    #[error("--output and --json both name {}; give them different files", .0.display())]
    SamePlace(PathBuf),
    /// A result that would overwrite what it was made of.
    #[error("{option} names the input, {}, which would be lost; name another file", .path.display())]
    OverInput {
        /// The option.
        option: &'static str,
        /// The input.
        path: PathBuf,
    },
    /// The verifier refused our plan.
    #[error(
        "internal error: {algorithm} gave a plan that is not valid ({violation}); please report it with the input"
    )]
    Invalid {
        /// What made the plan.
        algorithm: String,
        /// The rule it breaks.
        violation: Violation,
    },
}

impl PlanError {
    /// The process's exit status.
    pub fn exit_code(&self) -> u8 {
        match self {
            PlanError::Invalid { .. } => INTERNAL,
            _ => crate::USAGE,
        }
    }
}

/// Plans, verifies, writes, and tells.
pub fn plan(arguments: Arguments) -> Result<ExitCode, PlanError> {
    check_places(&arguments)?;
    let mut input = read(&arguments)?;
    take_options(&mut input, &arguments)?;
    let output = arguments.output.as_deref().map(Output::open).transpose()?;
    let json = arguments.json.as_deref().map(Output::open).transpose()?;

    let problem = input.problem();
    let before = Usage::now();
    let plan = search(problem, &arguments).map_err(|source| refused(&input, &arguments, source))?;
    let cpu_seconds = Usage::now().cpu_seconds - before.cpu_seconds;
    verify(problem, &plan.offsets, plan.height)
        .map_err(|violation| PlanError::Invalid { algorithm: plan.algorithm.clone(), violation })?;

    let fits = arguments.capacity.is_none_or(|capacity| plan.height <= capacity);
    if let (Some(output), true) = (output, fits) {
        let mut text = Vec::new();
        let written = match &input {
            Input::Buffers(buffers) => buffers.write(&mut text, &plan),
            Input::Trace { steps, .. } => csv::write(&mut text, &steps.problem, &plan),
        };
        written.expect("a vector takes every write");
        output.write(&text)?;
    }
    if let Some(json) = json {
        json.write(format!("{}\n", figures(problem, &plan, cpu_seconds)).as_bytes())?;
    }
    let summary = summary(&input, &plan, cpu_seconds);
    if [&arguments.output, &arguments.json].into_iter().flatten().any(|path| output::is_standard(path)) {
        let _ = io::stderr().lock().write_all(summary.as_bytes());
    } else {
        let _ = io::stdout().lock().write_all(summary.as_bytes());
    }
    match arguments.capacity {
        Some(capacity) if !fits => {
            os::say(&over(capacity, &plan, arguments.time_limit.is_some()));
            Ok(ExitCode::from(OVER_CAPACITY))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Sees that no result overwrites another or the input.
fn check_places(arguments: &Arguments) -> Result<(), PlanError> {
    let Arguments { input, output, json, .. } = arguments;
    if let (Some(output), Some(json)) = (output, json)
        && (output::is_standard(output) && output::is_standard(json) || output::same(output, json))
    {
        return Err(PlanError::SamePlace(json.clone()));
    }
    for (option, path) in [("--output", output), ("--json", json)] {
        if let Some(path) = path.as_deref().filter(|path| !output::is_standard(path) && path.exists())
            && output::same(path, input)
        {
            return Err(PlanError::OverInput { option, path: path.to_owned() });
        }
    }
    Ok(())
}

fn read(arguments: &Arguments) -> Result<Input, ReadError> {
    let min_bytes = arguments.min_bytes.unwrap_or(MIN_BYTES);
    if output::is_standard(&arguments.input) {
        read_from(io::stdin(), STANDARD_INPUT, min_bytes)
    } else {
        read_any(&arguments.input, min_bytes)
    }
}

/// The input as errors call it.
fn name_of(arguments: &Arguments) -> &Path {
    if output::is_standard(&arguments.input) { Path::new(STANDARD_INPUT) } else { &arguments.input }
}

/// The error about an input that was read, with what the input knows of its lines.
fn refused(input: &Input, arguments: &Arguments, source: ProblemError) -> PlanError {
    let path = name_of(arguments).to_owned();
    match input {
        Input::Buffers(buffers) => buffers.refused(path, source).into(),
        Input::Trace { .. } => PlanError::Problem { path, source },
    }
}

/// Applies the options that only one kind of input has.
fn take_options(input: &mut Input, arguments: &Arguments) -> Result<(), PlanError> {
    let misplaced = |option, wanted, found| PlanError::Option {
        path: name_of(arguments).to_owned(),
        option,
        wanted,
        found,
    };
    match input {
        Input::Buffers(_) if arguments.min_bytes.is_some() => {
            Err(misplaced("--min-bytes", "traces", "a file of buffers"))
        }
        Input::Buffers(buffers) if arguments.fix_offsets && buffers.offsets.is_none() => {
            Err(misplaced("--fix-offsets", "buffers with a column offset", "a file without"))
        }
        Input::Buffers(buffers) => {
            buffers.problem.period = arguments.period.or(buffers.problem.period);
            let fixed = if arguments.fix_offsets { buffers.fix_offsets() } else { Ok(()) };
            fixed.map_err(|source| refused(input, arguments, source))
        }
        Input::Trace { .. } if arguments.period.is_some() => {
            Err(misplaced("--period", "files of buffers", "a trace, which has its own"))
        }
        Input::Trace { .. } if arguments.fix_offsets => {
            Err(misplaced("--fix-offsets", "buffers with a column offset", "a trace"))
        }
        Input::Trace { .. } => Ok(()),
    }
}

/// Plans, with a line of progress where somebody may be waiting.
fn search(problem: &Problem, arguments: &Arguments) -> Result<Plan, ProblemError> {
    let effort = if arguments.time_limit.is_some() { Effort::Endless } else { Effort::Thorough };
    let waiting = Waiting::new();
    let shown = waiting.clone();
    let planner = Planner::new()
        .effort(effort)
        .time_limit(arguments.time_limit)
        .threads(arguments.threads.into())
        .seed(arguments.seed)
        .watch(move |progress| shown.tell(progress));
    let plan = match arguments.capacity {
        Some(capacity) => planner.plan_within(problem, capacity)?.into_plan(),
        None => planner.plan(problem)?,
    };
    waiting.end();
    Ok(plan)
}

/// The JSON object.
fn figures(problem: &Problem, plan: &Plan, cpu_seconds: f64) -> serde_json::Value {
    json!({
        "buffers": problem.blocks.len(),
        "height": plan.height,
        "lower_bound": plan.lower_bound,
        "ratio": plan.ratio(),
        "optimal": plan.optimal(),
        // The counter's own resolution.
        "cpu_seconds": (cpu_seconds * 1e6).round() / 1e6,
        "algorithm": plan.algorithm,
        "proof": plan.proof.map(name),
    })
}

/// A proof's name for programs.
fn name(proof: Proof) -> String {
    match proof {
        Proof::LoadBound => "load_bound".to_owned(),
        Proof::Search => "search".to_owned(),
        other => format!("{other:?}").to_lowercase(),
    }
}

/// The same for people.
fn summary(input: &Input, plan: &Plan, cpu_seconds: f64) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: String| text.push_str(&format!("{label:<13}{value}\n"));
    match input {
        Input::Buffers(buffers) => {
            line("buffers", format!("{} ({})", buffers.problem.blocks.len(), buffers.name));
            if buffers.problem.period.is_some() {
                let counts = Counts::of(&buffers.problem);
                line("lifetimes", format!("{} ordinary, {} periodic", counts.ordinary, counts.periodic));
            }
        }
        Input::Trace { trace, steps } => {
            line("trace", format!("{}, {} steps", trace.name, trace.steps.len()));
            let counts = Counts::of_steps(steps);
            line(
                "blocks",
                format!(
                    "{} ordinary, {} periodic; {} persistent, which are not planned",
                    counts.ordinary, counts.periodic, counts.persistent
                ),
            );
        }
    }
    line("height", size::exact(plan.height));
    line("lower bound", format!("{} bytes, ratio {:.4}", plan.lower_bound, plan.ratio()));
    line("optimal", plan.proof.map_or("not proven".to_owned(), |proof| format!("yes: {proof}")));
    line("found by", format!("{} in {cpu_seconds:.3} s of CPU time; verified", plan.algorithm));
    text
}

/// Why a capacity is missed, with or without a time limit.
fn over(capacity: u64, plan: &Plan, limited: bool) -> String {
    if capacity < plan.lower_bound {
        format!("no plan fits into {capacity} bytes: every one needs {} at least", plan.lower_bound)
    } else {
        let remedy = if limited { "try a longer --time-limit" } else { "try --time-limit" };
        format!(
            "no plan within {capacity} bytes was found (the best has {}); one may exist, as the lower bound is {}: {remedy}",
            plan.height, plan.lower_bound
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_limit_is_a_positive_number_of_seconds() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["", "0", "-1", "nan", "inf", "1s"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_json_has_the_keys_of_the_contract() {
        let plan = Planner::new().plan(&Problem::default()).expect("nothing to plan");
        let figures = figures(&Problem::default(), &plan, 0.0);
        let mut keys: Vec<&str> =
            figures.as_object().expect("an object").keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(
            keys,
            ["algorithm", "buffers", "cpu_seconds", "height", "lower_bound", "optimal", "proof", "ratio"]
        );
    }
}
