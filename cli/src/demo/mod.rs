//! `stepalloc demo`: a real training under six allocators, side by side.
//!
//! A small convolutional network learns handwritten digits, once for each of glibc, jemalloc and mimalloc as they are,
//! and once for the statistic allocator over each of them. An allocator is chosen at a process's start, so each
//! configuration is a process of its own: this executable again, with another environment. They run one after another,
//! do the same arithmetic (equal accuracies show it) and are measured by the same code (`child`).
//!
//! The data's way: `data` -> `network` -> `child` (figures as JSON) -> here -> `table`, `report`.

pub mod child;
mod data;
mod network;
mod report;
mod table;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use serde_json::{Value, json};
use thiserror::Error;

use crate::os::{self, Forward, How};
use crate::output::{self, Output, OutputError};
use crate::progress;
use crate::run::Backend;
use table::Row;

/// The hidden subcommand that a child process is.
pub const CHILD: &str = "demo-child";

/// Steps before collecting begins: the first ones warm up, and few are needed where every step is alike.
const START: u32 = 5;
/// Collecting ends after one more stable step than this.
const STABLE: u32 = 3;
/// Or when more than this many steps were collected: the tensor library's threads take turns as they please, and on a
/// busy machine some steps in a row may all bring an order not seen before.
const MAX: u32 = 20;
/// The network learns no more after this many passes (97.8 % of the test images), and two slow cores need a minute.
const EPOCHS: u32 = 20;
/// Threads of the tensor library: the same on every machine, so that the figures can be compared.
const THREADS: &str = "2";

/// What `stepalloc demo` takes.
#[derive(clap::Args)]
#[command(
    after_help = "The table is printed on standard output, progress on standard error. The report is a page for the browser: the table, and
the plan of one more training, recorded. Data: the UCI handwritten digits, 1797 images of
8x8 pixels (E. Alpaydin, C. Kaynak; CC BY 4.0), embedded in this binary.
Exit status: 0 all six were trained, 1 one of them failed, 2 wrong arguments, or the figures could not be written; 128 and
the number of a signal that ended it.

Examples:
  stepalloc demo
  stepalloc demo --json figures.json --no-report"
)]
pub struct Arguments {
    /// Write all figures as JSON; - is standard output, in place of the table
    #[arg(long, value_name = "F")]
    json: Option<PathBuf>,
    /// Write the report here
    #[arg(long, value_name = "F.html", default_value = "stepalloc-demo.html")]
    report: PathBuf,
    /// Write no report
    #[arg(long, conflicts_with = "report")]
    no_report: bool,
    /// Passes over the training images in each process; with fewer than 12 the plan may come too late to be measured
    #[arg(long, value_name = "N", default_value_t = EPOCHS, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    epochs: u32,
}

/// Why there is no demo at all; a configuration that fails is a row of the table.
#[derive(Debug, Error)]
pub enum DemoError {
    /// The JSON file.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// We do not know who we are.
    #[error(
        "the path of this executable is not known ({0}), so it cannot be started again; is /proc mounted?"
    )]
    Executable(io::Error),
}

impl DemoError {
    /// The process's exit status.
    pub fn exit_code(&self) -> u8 {
        crate::USAGE
    }
}

/// Who serves a process's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Configuration {
    /// The allocator, or the one underneath.
    pub backend: Backend,
    /// Whether steps are planned.
    pub planned: bool,
}

impl Configuration {
    /// All six: the plain ones first.
    fn all() -> impl Iterator<Item = Configuration> {
        let backends = [Backend::Glibc, Backend::Jemalloc, Backend::Mimalloc];
        [false, true]
            .into_iter()
            .flat_map(move |planned| backends.map(|backend| Configuration { backend, planned }))
    }

    /// As the table calls it.
    pub fn name(self) -> String {
        let backend = self.backend.name();
        if self.planned { format!("stepalloc over {backend}") } else { backend.to_owned() }
    }

    /// This executable as the configuration's process. What the user has set of ours would make processes differ in
    /// more than their allocator, or write into the user's files.
    fn command(self, epochs: u32) -> io::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("STEPALLOC_") {
                command.env_remove(name);
            }
        }
        command
            .args([CHILD, "--epochs", &epochs.to_string()])
            .env("STEPALLOC_BACKEND", self.backend.name())
            .env("ENABLE_MEMORY_OPTIMIZATION", if self.planned { "1" } else { "0" })
            .env("START_STATISTIC_STEP", START.to_string())
            .env("STABLE_STATISTIC_STEP", STABLE.to_string())
            .env("MAX_STATISTIC_STEP", MAX.to_string())
            .env("RAYON_NUM_THREADS", THREADS)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if !self.planned && std::env::var_os("MIMALLOC_ARENA_EAGER_COMMIT").is_none() {
            // mimalloc's own default, where the statistic allocator would prefer another.
            command.env("MIMALLOC_ARENA_EAGER_COMMIT", "2");
        }
        Ok(command)
    }
}

/// Trains under all configurations and prints the table.
pub fn demo(arguments: Arguments) -> Result<ExitCode, DemoError> {
    std::env::current_exe().map_err(DemoError::Executable)?;
    let json = arguments.json.as_deref().map(Output::open).transpose()?;
    let page = (!arguments.no_report).then(|| Output::open(&arguments.report)).transpose()?;
    let signals = Forward::for_child();
    let count = Configuration::all().count();
    let progress = Progress::new(count, arguments.epochs);
    let mut rows = Vec::with_capacity(count);
    for configuration in Configuration::all() {
        progress.begin(rows.len(), &configuration.name());
        let start = Instant::now();
        let outcome = match configuration.command(arguments.epochs) {
            Ok(command) => train(command, &signals, &progress),
            Err(error) => Err(format!("could not be started: {error}")),
        };
        if let Some(signal) = signals.caught() {
            progress.bar.finish_and_clear();
            return Ok(ExitCode::from(128u8.wrapping_add(signal as u8)));
        }
        progress.end(rows.len(), &configuration.name(), start.elapsed(), &outcome);
        rows.push(Row { configuration, outcome });
    }
    let report = page.map(|page| (page, report::report(&rows, arguments.epochs, &signals, &progress)));
    progress.bar.finish_and_clear();
    if let Some(signal) = signals.caught() {
        return Ok(ExitCode::from(128u8.wrapping_add(signal as u8)));
    }

    let on_standard = arguments.json.as_deref().is_some_and(output::is_standard);
    if !on_standard {
        let text = format!("{}\n{}", table::render(&rows), table::conclusion(&rows));
        let _ = io::stdout().lock().write_all(text.as_bytes());
    }
    if let Some(json) = json {
        json.write(format!("{:#}\n", figures(arguments.epochs, &rows)).as_bytes())?;
    }
    match report {
        Some((page, Ok(report))) => {
            page.write(report.to_html().as_bytes())?;
            if !output::is_standard(&arguments.report) {
                os::say(&format!("the report: {}", arguments.report.display()));
            }
        }
        Some((_, Err(error))) => os::say(&format!("there is no report: {error}")),
        None => {}
    }
    let failed = rows.iter().any(|row| row.outcome.is_err());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Everything measured, for programs.
fn figures(epochs: u32, rows: &[Row]) -> Value {
    let results: Vec<Value> = rows
        .iter()
        .map(|row| {
            let mut result = match &row.outcome {
                Ok(figures) => figures.clone(),
                Err(error) => json!({ "error": error }),
            };
            result["allocator"] = json!(row.configuration.name());
            result["backend"] = json!(row.configuration.backend.name());
            result["planned"] = json!(row.configuration.planned);
            result
        })
        .collect();
    json!({
        "epochs": epochs,
        "steps": epochs as usize * child::steps_per_epoch(),
        "batch": network::BATCH,
        "results": results,
    })
}

/// Runs one process to its end: its figures, or what went wrong.
fn train(mut command: Command, signals: &Forward, progress: &Progress) -> Result<Value, String> {
    let started = command.spawn();
    let mut child = started.map_err(|error| format!("could not be started: {error}"))?;
    let pid = child.id();
    signals.to(pid);
    let (out, err) = (child.stdout.take(), child.stderr.take());
    // Read beside standard output, or a child with much to complain about would wait for us and we for it.
    let complaints = thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(mut err) = err {
            let _ = err.read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    });
    let mut figures = None;
    for line in out.into_iter().flat_map(|out| BufReader::new(out).lines()).map_while(Result::ok) {
        match line.strip_prefix(child::PROGRESS) {
            Some(epoch) => progress.epoch(epoch.parse().unwrap_or(0)),
            None => figures = serde_json::from_str(&line).ok().or(figures),
        }
    }
    let ended = os::wait(pid).map_err(|error| format!("cannot be waited for: {error}"))?;
    let complaints = complaints.join().unwrap_or_default();
    let last = complaints.lines().rev().find(|line| !line.trim().is_empty());
    let because = last.map_or(String::new(), |line| format!(": {line}"));
    match (ended.how, figures) {
        (How::Exit(0), Some(figures)) => {
            if !complaints.is_empty() {
                progress.say(complaints.trim_end());
            }
            Ok(figures)
        }
        (How::Exit(0), None) => Err(format!("ended without figures{because}")),
        (How::Exit(code), _) => Err(format!("ended with status {code}{because}")),
        (How::Signal(signal), _) => Err(format!("was killed by signal {signal}{because}")),
    }
}

/// A bar over all processes' epochs, or plain lines where standard error is no terminal.
struct Progress {
    bar: ProgressBar,
    epochs: u32,
    count: usize,
    lines: bool,
}

impl Progress {
    fn new(count: usize, epochs: u32) -> Progress {
        let (bar, lines) =
            progress::bar(count as u64 * u64::from(epochs), "{msg:34} [{bar:30}] {percent:>3} %  {eta} left");
        Progress { bar, epochs, count, lines }
    }

    fn begin(&self, index: usize, name: &str) {
        self.bar.set_message(format!("training, {name} ({} of {})", index + 1, self.count));
        self.bar.set_position(index as u64 * u64::from(self.epochs));
    }

    /// A process has done this many of its epochs.
    fn epoch(&self, epoch: u64) {
        let before = self.bar.position() / u64::from(self.epochs) * u64::from(self.epochs);
        if epoch < u64::from(self.epochs) {
            self.bar.set_position(before + epoch);
        }
    }

    fn end(&self, index: usize, name: &str, took: Duration, outcome: &Result<Value, String>) {
        match outcome {
            Ok(_) if !self.lines => {}
            Ok(_) => os::say(&format!(
                "{name}: trained in {:.1} s ({} of {})",
                took.as_secs_f64(),
                index + 1,
                self.count
            )),
            Err(error) => self.say(&format!("stepalloc: {name} {error}")),
        }
    }

    /// Lines on standard error, above the bar.
    fn say(&self, text: &str) {
        self.bar.suspend(|| {
            let _ = writeln!(io::stderr().lock(), "{text}");
        });
    }
}
