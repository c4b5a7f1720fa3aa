//! `stepalloc leaks`: does a program's memory grow from round to round?
//!
//! The program says when a round has ended, by a line of its standard output, or a clock does. Its memory is sampled then, and
//! [`stepalloc_leaks`] judges each quantity. The samples' way: `watch` (while it runs) -> `stepalloc_leaks::judge` -> `table`.

mod table;
mod watch;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use stepalloc_leaks::{JudgeError, Quantity, Sample};
use thiserror::Error;

use crate::os::{self, Ended, Forward, How};
use crate::output::{Output, OutputError};
use crate::run::{self, Backend, Library, RunError};
use table::Table;
use watch::{Observer, Rounds};

/// What `stepalloc leaks` takes.
#[derive(clap::Args)]
#[command(
    group = clap::ArgGroup::new("marker").args(["line", "every"]).required(true),
    after_help = "A round ends with each line of the program's standard output that begins with WORD; the output is passed on as it comes. The
samples are of the process that was started, not of those that it starts; they are taken while it goes on, so a program that
sleeps some milliseconds after the line is judged in fewer rounds. Into a pipe C programs write whole buffers: flush after the line.

VmRSS, VmHWM, threads, mappings and descriptors grow where they rise by 0.1 % a round (--growth) or 10 % in all, by more than chance
and until the end. The first third of the rounds warms up and does not count. 30 rounds are needed, and 50
to find 1 % a round for sure. A cache that is still filling when the program ends grows: give it more rounds. docs/leaks.md says more.
Mappings of programs with the library in front count from 20,000 on: moving pages leaves up to 16,384 behind.

Exit status: 0 nothing grows; 1 something does; 2 wrong arguments, too few rounds, or a file could not be written; 3 the program failed,
whose status is told; 126 it cannot be executed, 127 it was not found; 128 and the signal's number where one ended the program.

Examples:
  stepalloc leaks --line 'epoch ' -- python3 -u train.py --epochs 60
  stepalloc leaks --line 'epoch ' --plain -- python3 -u train.py --epochs 60   (without stepalloc, to see whose leak it is)
  stepalloc leaks --every 0.5 --rounds 200 -- ./server                         (ends the program after 200 samples)
  stepalloc leaks --line done --backend jemalloc --json leaks.json -- ./simulate"
)]
pub struct Arguments {
    /// A round ends with each line that begins so
    #[arg(long, value_name = "WORD", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    line: Option<String>,
    /// A round ends each so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    every: Option<f64>,
    /// End the program (SIGTERM, after 10 s SIGKILL) and judge when so many rounds have ended
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rounds: Option<u64>,
    /// Rounds at the beginning that do not count [default: a third of them]
    #[arg(long, value_name = "N")]
    warm_up: Option<u64>,
    /// Growth per round that counts, in percent of the level after the warm-up
    #[arg(long, value_name = "PERCENT", default_value_t = 0.1, value_parser = percent)]
    growth: f64,
    /// The allocator underneath [default: STEPALLOC_BACKEND, else glibc]
    #[arg(long, value_name = "B")]
    backend: Option<Backend>,
    /// Run the program without libstepalloc.so
    #[arg(long, conflicts_with = "backend")]
    plain: bool,
    /// Write the verdicts and all samples as JSON; - is standard output, after the program's own
    #[arg(long, value_name = "F")]
    json: Option<PathBuf>,
    /// Say nothing on standard error but errors and what grows
    #[arg(long, short)]
    quiet: bool,
    /// The program and its arguments, after --
    #[arg(last = true, required = true, value_names = ["PROGRAM", "ARGS"])]
    program: Vec<OsString>,
}

/// More mappings than the library leaves behind where it moves pages, before it maps free memory anew.
const LEAST_MAPPINGS: f64 = 20_000.0;
/// The program failed.
const FAILED: u8 = 3;

/// The value of `--every`.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds, as 0.5".to_owned())?;
    if (0.001..=86_400.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("expected 0.001 to 86400".to_owned())
    }
}

/// The value of `--growth`.
fn percent(text: &str) -> Result<f64, String> {
    let percent: f64 = text.parse().map_err(|_| "expected a number, as 0.1".to_owned())?;
    if (0.0..=1000.0).contains(&percent) { Ok(percent) } else { Err("expected 0 to 1000".to_owned()) }
}

/// Why there is no verdict.
#[derive(Debug, Error)]
pub enum LeaksError {
    /// A file to be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The program or the library to preload.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The program marked nothing.
    #[error(
        "no line of the program's standard output began with {0:?}; check the word, have the program flush after it (python3 -u, \
         stdbuf -oL, fflush), or sample by the clock with --every SECONDS"
    )]
    NoRounds(String),
    /// The clock has not struck.
    #[error("the program ended before the first sample after {0} s; give a smaller --every")]
    NoTime(f64),
    /// Rounds are missing.
    #[error("no verdict: {0}, or a smaller --warm-up or --every")]
    Judge(#[from] JudgeError),
    /// The program's own failure.
    #[error("the program ended with status {0}; what it showed until then is no verdict")]
    Failed(u8),
}

impl LeaksError {
    /// The process's exit status.
    pub fn exit_code(&self) -> u8 {
        match self {
            LeaksError::Run(error) => error.exit_code(),
            LeaksError::Failed(_) => FAILED,
            _ => crate::USAGE,
        }
    }
}

/// What came of it.
pub enum Outcome {
    /// The program ended as it should, or was ended by us.
    Judged {
        /// Whether anything grows.
        grows: bool,
    },
    /// A signal ended it.
    Failed(Ended),
}

/// Runs the program, judges its samples, and prints the verdicts.
pub fn leaks(arguments: Arguments) -> Result<Outcome, LeaksError> {
    let json = arguments.json.as_deref().map(Output::open).transpose()?;
    let directory = tempfile::Builder::new().prefix("stepalloc-").tempdir().map_err(RunError::Temporary)?;
    let attached = directory.path().join("attached");
    let mut command = Command::new(&arguments.program[0]);
    command.args(&arguments.program[1..]);
    if !arguments.plain {
        let library = Library::find(directory.path()).map_err(RunError::from)?;
        command.env("LD_PRELOAD", library.before(std::env::var_os("LD_PRELOAD")));
        command.env("STEPALLOC_ATTACHED", &attached);
        run::choose_backend(&mut command, arguments.backend);
    }
    if arguments.line.is_some() {
        command.stdout(Stdio::piped());
    }
    let signals = Forward::for_program();
    let mut child = command.spawn().map_err(|source| RunError::not_started(&arguments.program[0], source))?;
    let pid = child.id();
    signals.to(pid);
    let observer = match (&arguments.line, child.stdout.take()) {
        (Some(word), Some(output)) => Observer::of_lines(pid, arguments.rounds, word, output),
        _ => {
            Observer::of_time(pid, arguments.rounds, Duration::from_secs_f64(arguments.every.unwrap_or(1.0)))
        }
    };
    let ended = os::wait(pid).map_err(RunError::Wait)?;
    let rounds = observer.end();

    if !arguments.plain {
        run::warn_unless_loaded(&attached, pid, &arguments.program[0].to_string_lossy());
    }
    let options = |quantity: Quantity| {
        let mut options = quantity.options();
        options.warm_up = arguments.warm_up;
        options.share_per_round = arguments.growth / 100.0;
        if quantity == Quantity::Mappings && !arguments.plain {
            options.least = LEAST_MAPPINGS;
        }
        options
    };
    let table = Table::of(&rounds.samples, options);
    if let Ok(table) = &table
        && !arguments.quiet
    {
        table.print(rounds.ended);
    }
    if let Some(json) = json {
        let figures = figures(&arguments, &rounds, &ended, table.as_ref().ok());
        json.write(format!("{figures:#}\n").as_bytes())?;
    }
    match ended.how {
        // What we asked it to do is no failure, whichever way it did so.
        _ if rounds.is_complete => {}
        How::Exit(0) => {}
        How::Exit(status) => return Err(LeaksError::Failed(status)),
        How::Signal(signal) => {
            os::say(&format!("signal {signal} ended the program"));
            return Ok(Outcome::Failed(ended));
        }
    }
    match (&arguments.line, arguments.every) {
        (Some(word), _) if rounds.ended == 0 => return Err(LeaksError::NoRounds(word.clone())),
        (None, Some(seconds)) if rounds.ended == 0 => return Err(LeaksError::NoTime(seconds)),
        _ => {}
    }
    let table = table?;
    table.conclude(arguments.quiet);
    Ok(Outcome::Judged { grows: table.grows() })
}

/// Everything, for programs.
fn figures(arguments: &Arguments, rounds: &Rounds, ended: &Ended, table: Option<&Table>) -> Value {
    let words: Vec<_> = arguments.program.iter().map(|word| word.to_string_lossy()).collect();
    let sample = |sample: &Sample| {
        json!({
            "round": sample.round,
            "vm_rss_bytes": sample.resident_bytes,
            "vm_hwm_bytes": sample.peak_bytes,
            "threads": sample.threads,
            "mappings": sample.mappings,
            "descriptors": sample.descriptors,
        })
    };
    let mut figures = json!({
        "program": words,
        "plain": arguments.plain,
        "rounds": rounds.ended,
        "ended_by_us": rounds.is_complete,
        "grows": table.map(Table::grows),
        "quantities": table.map(Table::json),
        "samples": rounds.samples.iter().map(sample).collect::<Vec<_>>(),
    });
    match ended.how {
        How::Exit(status) => figures["status"] = json!(status),
        How::Signal(signal) => figures["signal"] = json!(signal),
    }
    figures
}
