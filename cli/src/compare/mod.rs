//! `stepalloc compare`: the user's own program under several allocators, side by side.
//!
//! An allocator is chosen when a process starts, so each run is a process of its own. In each round every allocator has a
//! run, beginning with another one each time; what is told is the middle of all rounds, and only differences that are more
//! than chance are called differences. The first run of all is not counted: it reads the program's files from the disk.
//!
//! Processes of one round are not there at once and stopped in turns, though that would show them the machine in the same
//! phases: what gives memory back after some time (mimalloc after 10 ms) would do so while it is stopped, and the time of a
//! program that waits would not be its own. A yardstick in each run tells the phases instead, and there are as many rounds
//! as the noise asks for.
//!
//! The figures' way: `allocators` (environments) -> `measure` (one run) -> `judge` (what the runs say) -> `table`.

mod allocators;
mod judge;
mod marks;
mod measure;
mod table;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar};
use serde_json::{Value, json};
use thiserror::Error;

use crate::os::{self, Ended, Forward, How};
use crate::output::{self, Output, OutputError};
use crate::progress;
use crate::report::Report;
use crate::run::watched::{Wanted, Watched};
use crate::run::{self, Library, RunError};
use allocators::{Allocator, AllocatorError};
use marks::Marks;
use measure::{Places, Run, Streams};
use table::Table;

/// What `stepalloc compare` takes.
#[derive(clap::Args)]
#[command(
    after_help = "The program is run under each allocator in turns, and once before that which is not counted. That first run has our
standard streams; later ones write nowhere and read the same file, or nothing where standard input is no file. There are
ten runs of each, and more until 5 % more CPU time than the least would be found in 19 of 20 comparisons; five, if --minutes are
over before more; what would have been found is told under the table. --runs says how many instead.
Allocators: glibc, glibc-tuned (thresholds that return and map nothing), jemalloc and mimalloc (those in stepalloc, which
jumps to them), tcmalloc where it is installed, stepalloc/glibc, stepalloc/jemalloc and stepalloc/mimalloc; stepalloc stands for
these three. All of them by default.

A difference is told where it is more than 0.5 %, and the table would tell any in one of twenty comparisons at most if all were
alike (analysis of covariance over the rounds, corrected for the number of pairs and columns); with more runs smaller
differences are found. Figures are medians with half the distance of their quartiles; ratios are of runs of the same round,
those of times without what the machine was slower at, as a yardstick beside each run (0.5 % of its time) tells. Time is that
of a step, in the mean of the newer half, where the program marks its steps with stepalloc_step() under any allocator, and of a
run where it does not. Time of runs, CPU time and page faults are of the process and those it waited for; VmHWM is the peak of the largest of them (smaller than
this command itself: of the process, as it was seen), VmRSS the process's in the newer half of its time.

Exit status: the program's own, as in its first run; 126 it cannot be executed, 127 it was not found, 2 wrong arguments (nothing
was run), or a file could not be written; 128 and the number of a signal that ended the comparison.

Examples:
  stepalloc compare -- python3 train.py
  stepalloc compare --report train.html --call-sites -- python3 train.py
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
    /// Runs of each; as many as it takes where it is not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=10_000))]
    runs: Option<u32>,
    /// No more rounds than five begin after so many minutes
    #[arg(long, value_name = "M", default_value_t = 2.0, conflicts_with = "runs", value_parser = minutes)]
    minutes: f64,
    /// Write all figures as JSON; - is standard output
    #[arg(long, value_name = "F")]
    json: Option<PathBuf>,
    /// Write a line for each run; - is standard output
    #[arg(long, value_name = "F")]
    csv: Option<PathBuf>,
    /// Write the table as Markdown; - is standard output
    #[arg(long, value_name = "F")]
    markdown: Option<PathBuf>,
    /// The page goes here: the table, and the plan and the steps of one more run under stepalloc, recorded [default:
    /// stepalloc-compare.html]
    #[arg(long, value_name = "F.html")]
    report: Option<PathBuf>,
    /// Write no page
    #[arg(long, conflicts_with_all = ["report", "call_sites"])]
    no_report: bool,
    /// The page also says who asked for each block
    #[arg(long)]
    call_sites: bool,
    /// The program and its arguments, after --
    #[arg(last = true, required = true, value_names = ["PROGRAM", "ARGS"])]
    program: Vec<OsString>,
}

/// Where the page goes if nothing is said.
const PAGE: &str = "stepalloc-compare.html";
/// Of each allocator, however long they take.
const LEAST_RUNS: u32 = 5;
/// And where nothing else ends it.
const MOST_RUNS: u32 = 10_000;

/// The value of `--minutes`.
fn minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    if (0.0..=100_000.0).contains(&minutes) { Ok(minutes) } else { Err("expected 0 to 100000".to_owned()) }
}

impl Arguments {
    /// Where the page goes. That it has no place by itself is no reason to compare nothing.
    fn page(&self) -> Result<Option<(PathBuf, Output)>, OutputError> {
        match &self.report {
            _ if self.no_report => Ok(None),
            Some(path) => Ok(Some((path.clone(), Output::open(path)?))),
            None => Ok(match Output::open(Path::new(PAGE)) {
                Ok(output) => Some((PAGE.into(), output)),
                Err(error) => {
                    os::say(&format!("there will be no report: {error}"));
                    None
                }
            }),
        }
    }
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
    let (markdown, report) = (open(&arguments.markdown)?, arguments.page()?);
    let directory = tempfile::Builder::new().prefix("stepalloc-").tempdir().map_err(RunError::Temporary)?;
    let library = Library::find(directory.path()).map_err(RunError::from)?;
    let figures = directory.path().join("figures");
    let attached = directory.path().join("attached");
    let signals = Forward::for_program();
    let input = Input::of_ours();
    let mut marks = Marks::find(&library, directory.path());
    let prepared = |allocator: &Allocator, marks: Option<&Marks>, streams| {
        let mut command = Command::new(&arguments.program[0]);
        command.args(&arguments.program[1..]);
        if streams == Streams::Nowhere {
            command.stdin(input.again());
        }
        allocator.prepare(&mut command, &library, &figures, &attached);
        if let Some(marks) = marks {
            marks.prepare(&mut command);
        }
        command
    };
    let run_of = |mut command: Command, allocator: &Allocator, marks: Option<&Marks>, streams| {
        let places = Places {
            figures: &figures,
            attached: &attached,
            marks,
            library: allocator.library(),
            is_ours: allocator.is_ours(),
        };
        measure::run(&mut command, &places, &signals, streams)
    };
    let measured = |allocator: &Allocator, marks: Option<&Marks>, streams| {
        run_of(prepared(allocator, marks, streams), allocator, marks, streams)
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

    let first = measured(&allocators[0], marks.as_ref(), Streams::Ours)
        .map_err(|source| RunError::not_started(&arguments.program[0], source))?;
    if let Some(signal) = signals.caught() {
        return Ok(Ended { how: How::Exit(128u8.wrapping_add(signal as u8)), ..first.ended() });
    }
    if first.how != How::Exit(0) {
        os::say(&format!("the program {}; runs that end alike are compared", measure::ended(first.how)));
    }
    // A program that marks nothing runs as it would without us.
    marks = marks.filter(|_| first.steps.is_some());
    let ended = first.ended();
    let of_each = arguments.runs.unwrap_or(LEAST_RUNS);
    let count = allocators.len() as u64 * u64::from(of_each);
    os::say(&format!(
        "{} allocators, {of_each} runs of about {:.1} s each: {} or so{}",
        allocators.len(),
        first.seconds,
        HumanDuration(Duration::from_secs_f64(first.seconds * count as f64)),
        match arguments.runs {
            Some(_) => String::new(),
            None => format!(
                ", and more until 5 % of CPU time would be found or {} minutes are over",
                arguments.minutes
            ),
        },
    ));
    let row = |allocator| Row { allocator, expected: first.how, runs: Vec::new(), error: None };
    let mut rows: Vec<Row> = allocators.into_iter().map(row).collect();
    let progress = Progress::new(count);
    let limit = Duration::from_secs_f64(arguments.minutes * 60.0);
    let goes_on = |round: u32, rows: &[Row], begun: Instant| match arguments.runs {
        Some(runs) => round < runs,
        None if round < LEAST_RUNS => true,
        None => round < MOST_RUNS && begun.elapsed() < limit && !table::of_cpu_time(rows).is_enough,
    };
    let mut round = 0;
    while signals.caught().is_none() && goes_on(round, &rows, progress.start) {
        let turn = round as usize % rows.len();
        for index in (turn..rows.len()).chain(0..turn) {
            let row = &mut rows[index];
            if row.error.is_some() {
                continue;
            }
            progress.begin(&row.allocator.name, round + 1);
            let measured = measured(&row.allocator, marks.as_ref(), Streams::Nowhere);
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
            let expected = match arguments.runs {
                Some(runs) => runs,
                None => rounds_expected(&rows, round, limit.div_duration_f64(progress.start.elapsed())),
            };
            progress.round(round, expected, rows.len());
        }
    }
    let recorded = match rows.iter().find(|row| row.allocator.is_planned() && row.failure().is_none()) {
        Some(Row { allocator, .. }) if report.is_some() && signals.caught().is_none() => {
            progress.begin(&format!("{}, recorded", allocator.name), round);
            let mut command = prepared(allocator, None, Streams::Nowhere);
            let plan = directory.path().join("plan-%r");
            command.env("STEPALLOC_PLAN", &plan);
            let wanted = Wanted {
                report: true,
                call_sites: arguments.call_sites,
                plan: Some(plan),
                ..Wanted::default()
            };
            let watched = Watched::prepare(wanted, directory.path(), &mut command);
            let run = run_of(command, allocator, None, Streams::Nowhere).ok();
            run.map(|run| report_of(&arguments.program, &watched, &run, &allocator.name))
        }
        _ => None,
    };
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
            "program": words(&arguments.program),
            "runs": round,
            "detectable_cpu_share": table::of_cpu_time(&rows).detectable,
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
    if let Some((path, report)) = report {
        let mut page = recorded.unwrap_or_default();
        page.title = words(&arguments.program).join(" ");
        page.comparison = Some(table.page());
        report.write(page.to_html().as_bytes())?;
        if !output::is_standard(&path) {
            os::say(&format!("the report: {}", path.display()));
        }
    }
    Ok(match signals.caught() {
        Some(signal) => Ended { how: How::Exit(128u8.wrapping_add(signal as u8)), ..ended },
        None => ended,
    })
}

/// How many rounds there will be as far as is known after some: the error becomes less by the root of their number. Of the time
/// there is as much as `limit` times what went by.
fn rounds_expected(rows: &[Row], round: u32, limit: f64) -> u32 {
    let judged = table::of_cpu_time(rows);
    let errors = judged.detectable.filter(|_| !judged.is_enough).map_or(0.0, |share| share / judge::SOUGHT);
    let by_noise = f64::from(round) * errors.powi(2);
    (by_noise.min(f64::from(round) * limit).ceil() as u32).clamp(round.max(LEAST_RUNS), MOST_RUNS)
}

fn words(program: &[OsString]) -> Vec<String> {
    program.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// What a recorded run has shown.
fn report_of(program: &[OsString], watched: &Watched, run: &Run, allocator: &str) -> Report {
    let processes: Vec<Value> = run.statistics.iter().cloned().collect();
    let pid = processes.first().and_then(|process| process["pid"].as_u64()).unwrap_or(0) as u32;
    let words = words(program);
    let name = words.first().map_or("program", |name| name.rsplit('/').next().unwrap_or(name));
    let mut report = watched.report(&words, &processes, pid, watched.recorded(name));
    report.subtitle =
        format!("The plan, the course and the steps are those of one more run under {allocator}, recorded.");
    report
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

    fn begin(&self, name: &str, round: u32) {
        self.bar.set_message(format!("round {round}, {name}"));
    }

    fn end(&self) {
        self.bar.inc(1);
    }

    /// After a round of so many as are expected.
    fn round(&self, round: u32, rounds: u32, allocators: usize) {
        self.bar.set_length(u64::from(rounds) * allocators as u64);
        // One line for each doubling where rounds are many.
        if self.lines && (rounds <= 20 || round.is_power_of_two()) {
            let left = self.start.elapsed() * (rounds - round) / round;
            os::say(&format!("round {round} of {rounds}, {} left", HumanDuration(left)));
        }
    }
}
