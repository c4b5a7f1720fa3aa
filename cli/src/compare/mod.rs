//! `stepalloc compare`: the user's own program under several allocators, side by side.
//!
//! An allocator is chosen when a process starts, so each run is a process of its own. In each round every allocator has a
//! run, beginning with another one each time; what is told is the middle of all rounds, and only differences that are more
//! than chance are called differences. The first run of all is not counted: it reads the program's files from the disk.
//!
//! The figures' way: `allocators` (environments) -> `measure` (one run) -> `judge` (what the runs say) -> `table`.

mod allocators;
mod judge;
mod measure;
mod table;

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar};
use serde_json::json;
use thiserror::Error;

use crate::os::{self, Ended, Forward, How};
use crate::output::{Output, OutputError};
use crate::progress;
use crate::run::{self, Library, RunError};
use allocators::{Allocator, AllocatorError};
use measure::{Places, Run, Streams};
use table::Table;

/// What `stepalloc compare` takes.
#[derive(clap::Args)]
#[command(
    after_help = "The program is run N times under each allocator, in turns, and once before that which is not counted. That first run has
our standard streams; later ones write nowhere and read the same file, or nothing where standard input is no file.
Allocators: glibc, glibc-tuned (thresholds that return and map nothing), jemalloc and mimalloc (those in stepalloc, which
jumps to them), tcmalloc where it is installed, stepalloc/glibc, stepalloc/jemalloc and stepalloc/mimalloc; stepalloc stands for
these three. All of them by default.

A difference is told where it is more than 0.5 %, and a column would tell any in one of fifty sittings at most if all were alike
(analysis of variance over the rounds, corrected for the number of pairs); with more runs smaller differences are found. Time,
CPU time and page faults are of the process and those it waited for; VmHWM is the peak of the largest of them (smaller than
this command itself: of the process, as it was seen), VmRSS the process's in the newer half of its time.

Exit status: the program's own, as in its first run; 126 it cannot be executed, 127 it was not found, 2 wrong arguments (nothing
was run), or a file could not be written; 128 and the number of a signal that ended the comparison.

Examples:
  stepalloc compare -- python3 train.py
  stepalloc compare --allocators glibc,jemalloc,stepalloc/jemalloc --runs 9 -- ./simulate --steps 100
  stepalloc compare --allocator quick=/usr/lib/libquick.so,QUICK_ARENAS=4 --markdown table.md -- ./server --bench"
)]
pub struct Arguments {
    /// Compare these, separated by commas, in place of all
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    allocators: Vec<String>,
    /// Compare this library as well, with these variables set; may be given again. Without LIB: glibc with the variables
    #[arg(long, value_name = "NAME=LIB[,VAR=VALUE...]")]
    allocator: Vec<String>,
    /// Runs of each
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    runs: u32,
    /// Write all figures as JSON; - is standard output
    #[arg(long, value_name = "F")]
    json: Option<PathBuf>,
    /// Write a line for each run; - is standard output
    #[arg(long, value_name = "F")]
    csv: Option<PathBuf>,
    /// Write the table as Markdown; - is standard output
    #[arg(long, value_name = "F")]
    markdown: Option<PathBuf>,
    /// The program and its arguments, after --
    #[arg(last = true, required = true, value_names = ["PROGRAM", "ARGS"])]
    program: Vec<std::ffi::OsString>,
}

/// Why nothing was compared.
#[derive(Debug, Error)]
pub enum CompareError {
    /// No such allocators.
    #[error(transparent)]
    Allocator(#[from] AllocatorError),
    /// A file to be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The program or the library to preload.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl CompareError {
    /// The process's exit status.
    pub fn exit_code(&self) -> u8 {
        match self {
            CompareError::Run(error) => error.exit_code(),
            _ => crate::USAGE,
        }
    }
}

/// An allocator and the runs under it.
struct Row {
    allocator: Allocator,
    /// How a run ends where all is well.
    expected: How,
    /// By round.
    runs: Vec<Run>,
    /// Why there were no more.
    error: Option<String>,
}

impl Row {
    /// What went wrong first; the row is not compared then.
    fn failure(&self) -> Option<String> {
        let count = self.runs.len();
        let failed = |run: &&Run| run.how != self.expected || run.preloaded == Some(false);
        let bad: Vec<&Run> = self.runs.iter().filter(failed).collect();
        let Some(first) = bad.first() else { return self.error.clone() };
        let what = match first.last_line.as_str() {
            _ if first.how == self.expected => NOT_LOADED.to_owned(),
            "" => measure::ended(first.how),
            line => format!("{}: {line}", measure::ended(first.how)),
        };
        Some(if bad.len() == count { what } else { format!("{} of {count} runs: {what}", bad.len()) })
    }
}

/// Of a library that did not come to serve.
const NOT_LOADED: &str =
    "its library was not loaded into the program (statically linked, setuid, or not for this architecture)";

/// Runs the program under all allocators, prints the table, and says how its first run ended.
pub fn compare(arguments: Arguments) -> Result<Ended, CompareError> {
    let allocators = Allocator::chosen(&arguments.allocators, &arguments.allocator)?;
    let open = |path: &Option<PathBuf>| path.as_deref().map(Output::open).transpose();
    let (json, csv) = (open(&arguments.json)?, open(&arguments.csv)?);
    let markdown = open(&arguments.markdown)?;
    let directory = tempfile::Builder::new().prefix("stepalloc-").tempdir().map_err(RunError::Temporary)?;
    let library = Library::find(directory.path()).map_err(RunError::from)?;
    let figures = directory.path().join("figures");
    let attached = directory.path().join("attached");
    let signals = Forward::for_program();
    let input = Input::of_ours();
    let measured = |allocator: &Allocator, streams| {
        let mut command = Command::new(&arguments.program[0]);
        command.args(&arguments.program[1..]);
        if streams == Streams::Nowhere {
            command.stdin(input.again());
        }
        allocator.prepare(&mut command, &library, &figures, &attached);
        let places = Places {
            figures: &figures,
            attached: &attached,
            library: allocator.library(),
            is_ours: allocator.is_ours(),
        };
        measure::run(&mut command, &places, &signals, streams)
    };
    if let Some(preloaded) = std::env::var_os("LD_PRELOAD").filter(|list| !list.is_empty()) {
        os::say(&format!(
            "LD_PRELOAD={} stays behind each allocator, and is what glibc's rows have",
            preloaded.display()
        ));
    }
    if input.is_used_up {
        os::say(
            "standard input is no file: the first run reads it, and the runs that are compared find it empty",
        );
    }

    let first = measured(&allocators[0], Streams::Ours)
        .map_err(|source| RunError::not_started(&arguments.program[0], source))?;
    if let Some(signal) = signals.caught() {
        return Ok(Ended { how: How::Exit(128u8.wrapping_add(signal as u8)), ..first.ended() });
    }
    if first.how != How::Exit(0) {
        os::say(&format!("the program {}; runs that end alike are compared", measure::ended(first.how)));
    }
    let ended = first.ended();
    let count = allocators.len() as u64 * u64::from(arguments.runs);
    os::say(&format!(
        "{} allocators, {} runs of about {:.1} s each: {} or so",
        allocators.len(),
        arguments.runs,
        first.seconds,
        HumanDuration(Duration::from_secs_f64(first.seconds * count as f64)),
    ));
    let row = |allocator| Row { allocator, expected: first.how, runs: Vec::new(), error: None };
    let mut rows: Vec<Row> = allocators.into_iter().map(row).collect();
    let progress = Progress::new(count);
    let mut round = 0;
    while round < arguments.runs && signals.caught().is_none() {
        let turn = round as usize % rows.len();
        for index in (turn..rows.len()).chain(0..turn) {
            let row = &mut rows[index];
            if row.error.is_some() {
                continue;
            }
            progress.begin(&row.allocator.name, round + 1, arguments.runs);
            let measured = measured(&row.allocator, Streams::Nowhere);
            if signals.caught().is_some() {
                break;
            }
            match measured {
                Ok(run) => row.runs.push(run),
                Err(error) => row.error = Some(format!("could not be run: {error}")),
            }
            progress.end();
        }
        round += 1;
        if signals.caught().is_none() {
            progress.round(round, arguments.runs);
        }
    }
    progress.bar.finish_and_clear();

    let table = Table::of(&rows);
    if let Some(signal) = signals.caught() {
        os::say(&format!("signal {signal}: what was measured until then"));
    }
    let mut text = format!("{}\n{}", table.aligned(), table.conclusion());
    for row in rows.iter().filter(|row| row.allocator.is_planned()) {
        if let Some(statistics) = row.runs.last().and_then(|run| run.statistics.as_ref()) {
            text.push_str(&format!("{}: {}\n", row.allocator.name, run::about(statistics)));
        }
    }
    let _ = io::stderr().lock().write_all(text.as_bytes());
    if let Some(json) = json {
        let figures = json!({
            "program": arguments.program.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>(),
            "runs": arguments.runs,
            "first": first.to_json(),
            "results": table.json(),
        });
        json.write(format!("{figures:#}\n").as_bytes())?;
    }
    if let Some(csv) = csv {
        csv.write(table.csv().as_bytes())?;
    }
    if let Some(markdown) = markdown {
        markdown.write(table.markdown().as_bytes())?;
    }
    Ok(match signals.caught() {
        Some(signal) => Ended { how: How::Exit(128u8.wrapping_add(signal as u8)), ..ended },
        None => ended,
    })
}

/// Standard input, which the first run reads as it is, and later ones again where that can be.
struct Input {
    /// The file and where the first run begins in it.
    file: Option<u64>,
    /// It is a pipe, or the like.
    is_used_up: bool,
}

impl Input {
    fn of_ours() -> Input {
        let stdin = io::stdin();
        let own = stdin.as_fd().try_clone_to_owned().map(File::from);
        let metadata = own.as_ref().ok().and_then(|own| own.metadata().ok());
        let is_file = metadata.as_ref().is_some_and(|data| data.is_file());
        let is_used_up =
            metadata.is_some_and(|data| data.file_type().is_fifo() || data.file_type().is_socket());
        let file = own.ok().filter(|_| is_file).and_then(|mut own| own.stream_position().ok());
        Input { file, is_used_up }
    }

    fn again(&self) -> Stdio {
        let file = self.file.and_then(|from| {
            let mut file = File::open("/proc/self/fd/0").ok()?;
            file.seek(SeekFrom::Start(from)).ok()?;
            Some(file)
        });
        file.map_or_else(Stdio::null, Stdio::from)
    }
}

/// A bar over all runs, or a line a round where standard error is no terminal.
struct Progress {
    bar: ProgressBar,
    lines: bool,
    start: Instant,
}

impl Progress {
    fn new(count: u64) -> Progress {
        let (bar, lines) = progress::bar(count, "{msg:40} [{bar:30}] {pos} of {len}  {eta} left");
        Progress { bar, lines, start: Instant::now() }
    }

    fn begin(&self, name: &str, round: u32, rounds: u32) {
        self.bar.set_message(format!("round {round} of {rounds}, {name}"));
    }

    fn end(&self) {
        self.bar.inc(1);
    }

    fn round(&self, round: u32, rounds: u32) {
        if self.lines {
            let left = self.start.elapsed() * (rounds - round) / round;
            os::say(&format!("round {round} of {rounds}, {} left", HumanDuration(left)));
        }
    }
}
