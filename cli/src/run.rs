//! `stepalloc run`: a program with libstepalloc.so in front of its malloc.
//!
//! The library writes what it measured into files of a directory of ours: one line of JSON for each process that made
//! steps, and the number of each process it was loaded into. Both are read when the program has ended; standard
//! streams, signals and the exit status are the program's.

use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use thiserror::Error;

use crate::os::{self, Ended, Forward, How};
use crate::output::{Output, OutputError};
use crate::recording;
use crate::size;

mod library;
mod metrics;
pub mod watched;

pub use library::Library;
use library::LibraryError;
use watched::{Recorded, Wanted, Watched};

/// What `stepalloc run` takes.
#[derive(clap::Args)]
#[command(
    group = clap::ArgGroup::new("recorded").args(["report", "trace"]).multiple(true),
    after_help = "The program's steps are found by the period of its allocations, or marked by it with stepalloc_step(), which the
library exports. Settings are taken from the environment: START_STATISTIC_STEP, STABLE_STATISTIC_STEP, MAX_STATISTIC_STEP, ENABLE_MEMORY_OPTIMIZATION, STEPALLOC_*.
The library is looked for in STEPALLOC_LIBRARY (its path), beside this command, and in ../lib.

Exit status: the program's own; 126 it cannot be executed, 127 it was not found, 2 wrong arguments (nothing was run), or the
figures could not be written.

Examples:
  stepalloc run -- python3 train.py
  stepalloc run --report train.html --call-sites -- python3 train.py
  stepalloc run --plan train.plan -- python3 train.py     (the second time it begins with the plan of the first)
  stepalloc run --plan 'rank-%r.plan' -- mpirun -n 2 python3 train.py
  START_STATISTIC_STEP=4 stepalloc run --backend jemalloc --json figures.json -- python3 train.py --epochs 3"
)]
pub struct Arguments {
    /// The allocator underneath [default: STEPALLOC_BACKEND, else glibc]
    #[arg(long, value_name = "B")]
    backend: Option<Backend>,
    /// Write one JSON object for each process that made steps; - is standard output
    #[arg(long, value_name = "F")]
    json: Option<PathBuf>,
    /// Begin with the plans of this file, and keep new ones in it; %r stands for the process's rank (torchrun, mpirun)
    #[arg(long, value_name = "F")]
    plan: Option<PathBuf>,
    /// Write a page that shows the plan, the steps and what found no place in it
    #[arg(long, value_name = "F.html")]
    report: Option<PathBuf>,
    /// Write every allocation and free of planned size (memtrace v1, gzip'ed where the name ends in .gz), for `stepalloc report`
    /// and `stepalloc plan`
    #[arg(long, value_name = "F.csv.gz")]
    trace: Option<PathBuf>,
    /// With --report or --trace: also who asked for each block
    #[arg(long, requires = "recorded")]
    call_sites: bool,
    /// Write metrics as OpenMetrics text, again each second while the program runs
    #[arg(long, value_name = "F.prom")]
    metrics: Option<PathBuf>,
    /// Do not sum up the run on standard error
    #[arg(long, short)]
    quiet: bool,
    /// The program and its arguments, after --
    #[arg(last = true, required = true, value_names = ["PROGRAM", "ARGS"])]
    pub program: Vec<OsString>,
}

/// The allocators the library can have underneath.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Backend {
    /// The C library's.
    Glibc,
    /// jemalloc.
    Jemalloc,
    /// mimalloc.
    Mimalloc,
}

impl Backend {
    /// As STEPALLOC_BACKEND spells it.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Glibc => "glibc",
            Backend::Jemalloc => "jemalloc",
            Backend::Mimalloc => "mimalloc",
        }
    }
}

/// Why the program was not run, or its figures not kept.
#[derive(Debug, Error)]
pub enum RunError {
    /// libstepalloc.so cannot be used.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The JSON file cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// No directory for the library's files.
    #[error("no directory for temporary files can be made: {0}; set TMPDIR to one that is yours to write")]
    Temporary(io::Error),
    /// The file of plans has no place.
    #[error("--plan {}: {source}; give the path of a file, which need not be there yet", .path.display())]
    Plan {
        /// As given.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no such program.
    #[error("{}: not found; give its path, or a name that stands on PATH", .0.display())]
    NotFound(OsString),
    /// The program is there, but what it is to be run with is not.
    #[error("{}: cannot be executed: the interpreter it names (in its first line, or in its ELF header) was not found", .0.display())]
    NoInterpreter(OsString),
    /// The system does not execute it.
    #[error("{}: cannot be executed: {source}; check its permissions and that it was built for this machine", .program.display())]
    NotExecutable {
        /// As given.
        program: OsString,
        /// What the system said.
        source: io::Error,
    },
    /// Waiting failed, which the system allows only when there is no child.
    #[error("the program was started, but cannot be waited for: {0}")]
    Wait(io::Error),
}

impl RunError {
    /// The process's exit status; shells give the same for programs that do not start.
    pub fn exit_code(&self) -> u8 {
        match self {
            RunError::NotFound(_) => 127,
            RunError::NoInterpreter(_) | RunError::NotExecutable { .. } => 126,
            _ => crate::USAGE,
        }
    }

    /// Why a program did not start, in the terms of its user.
    pub fn not_started(program: &OsStr, source: io::Error) -> RunError {
        let path = Path::new(program);
        match source.kind() {
            io::ErrorKind::NotFound if path.components().count() > 1 && path.exists() => {
                RunError::NoInterpreter(program.to_owned())
            }
            io::ErrorKind::NotFound => RunError::NotFound(program.to_owned()),
            _ => RunError::NotExecutable { program: program.to_owned(), source },
        }
    }
}

/// Runs the program, keeps its figures, and says how it ended.
pub fn run(arguments: Arguments) -> Result<Ended, RunError> {
    // clap asks for one argument at least.
    let [program, rest @ ..] = arguments.program.as_slice() else {
        return Err(RunError::NotFound(OsString::new()));
    };
    let open = |path: &Option<PathBuf>| path.as_deref().map(Output::open).transpose();
    let (json, report) = (open(&arguments.json)?, open(&arguments.report)?);
    let trace = arguments.trace.as_deref().zip(open(&arguments.trace)?);
    let directory = tempfile::Builder::new().prefix("stepalloc-").tempdir().map_err(RunError::Temporary)?;
    let figures = directory.path().join("figures");
    let attached = directory.path().join("attached");
    let library = Library::find(directory.path())?;

    let mut command = Command::new(program);
    command.args(rest).env("LD_PRELOAD", library.before(std::env::var_os("LD_PRELOAD")));
    command.env("STEPALLOC_JSON", &figures).env("STEPALLOC_ATTACHED", &attached);
    choose_backend(&mut command, arguments.backend);
    if let Some(plan) = &arguments.plan {
        // The program may change its directory before it writes.
        let plan =
            std::path::absolute(plan).map_err(|source| RunError::Plan { path: plan.clone(), source })?;
        command.env("STEPALLOC_PLAN", plan);
    }
    let wanted = Wanted {
        trace: trace.is_some(),
        report: report.is_some(),
        call_sites: arguments.call_sites,
        metrics: arguments.metrics,
        plan: arguments.plan,
    };
    let watched = Watched::prepare(wanted, directory.path(), &mut command);
    let signals = Forward::for_program();
    let child = command.spawn().map_err(|source| RunError::not_started(program, source))?;
    let pid = child.id();
    signals.to(pid);
    let name = program.to_string_lossy();
    let refreshing = watched.refresh(pid, &name);
    let ended = os::wait(pid).map_err(RunError::Wait)?;
    drop(refreshing);

    let lines = fs::read_to_string(&figures).unwrap_or_default();
    let mut processes = read(&lines, pid);
    hand_on(&lines);
    warn_unless_loaded(&attached, pid, &name);
    watched.end_metrics(&name, &processes, pid, &ended);
    if trace.is_some() || report.is_some() {
        let words: Vec<String> =
            arguments.program.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let recorded = watched.recorded(name.rsplit('/').next().unwrap_or(&name));
        if let Some((path, out)) = trace {
            write_trace(path, out, recorded.as_ref(), &name)?;
        }
        if let Some(out) = report {
            out.write(watched.report(&words, &processes, pid, recorded).to_html().as_bytes())?;
        }
    }
    if let Some(json) = json {
        if processes.is_empty() {
            processes.push(without_steps(pid, &name, arguments.backend, &ended));
        }
        let text: String = processes.iter().map(|process| format!("{process}\n")).collect();
        json.write(text.as_bytes())?;
    } else if !arguments.quiet {
        summary(&processes).iter().for_each(|line| os::say(line));
    }
    Ok(ended)
}

/// Gives the program the backend that was asked for; else the environment's, if there is one of that name.
pub fn choose_backend(command: &mut Command, backend: Option<Backend>) {
    if let Some(backend) = backend {
        command.env("STEPALLOC_BACKEND", backend.name());
    } else if std::env::var_os("STEPALLOC_BACKEND").is_some() && known_backend().is_none() {
        // This process's own allocator has complained already.
        command.env("STEPALLOC_BACKEND", Backend::Glibc.name());
    }
}

/// Says so where the library was not in the program.
pub fn warn_unless_loaded(attached: &Path, pid: u32, name: &str) {
    if !was_loaded(attached, pid) {
        os::say(&format!(
            "libstepalloc.so was not loaded into {name} (statically linked, setuid, or not for this architecture); it ran without stepalloc"
        ));
    }
}

/// Writes the trace, if there is one.
fn write_trace(path: &Path, out: Output, recorded: Option<&Recorded>, name: &str) -> Result<(), OutputError> {
    match recorded {
        Some(recorded) => {
            out.write(&recording::file_bytes(&recorded.memtrace, path))?;
            if recorded.cut_off {
                os::say(
                    "--trace: the beginning only; STEPALLOC_TRACE_EVENTS says how many events are traced at most",
                );
            }
        }
        None => os::say(&format!(
            "--trace {}: not written: {name} asked for no block of planned size",
            path.display()
        )),
    }
    Ok(())
}

/// The objects the library left, the started process's first.
fn read(lines: &str, pid: u32) -> Vec<Value> {
    let mut processes = Vec::new();
    for line in lines.lines().filter(|line| !line.trim().is_empty()) {
        match serde_json::from_str::<Value>(line) {
            Ok(process) if process.is_object() => processes.push(process),
            // A process killed while it wrote: the others' lines are whole.
            _ => os::say(
                "the figures of one process are damaged and left out; it was ended while it wrote them",
            ),
        }
    }
    processes.sort_by_key(|process| process["pid"] != pid);
    processes
}

/// Appends the figures to the file that the user's own STEPALLOC_JSON names: ours stood in its place.
fn hand_on(lines: &str) {
    let Some(path) = std::env::var_os("STEPALLOC_JSON").filter(|path| !path.is_empty()) else { return };
    let appended = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&path)
        .and_then(|mut file| file.write_all(lines.as_bytes()));
    if let Err(error) = appended {
        os::say(&format!("STEPALLOC_JSON={}: cannot be written: {error}", path.display()));
    }
}

/// Whether the library has told that it is in the process.
pub fn was_loaded(attached: &Path, pid: u32) -> bool {
    let told = fs::read_to_string(attached).unwrap_or_default();
    told.lines().any(|line| line.trim().parse() == Ok(pid))
}

/// The backend that the environment names, if there is one of that name.
fn known_backend() -> Option<String> {
    let setting = std::env::var("STEPALLOC_BACKEND").ok()?;
    ["glibc", "jemalloc", "mimalloc"].contains(&setting.as_str()).then_some(setting)
}

/// The object of a process that left none: it made no steps, was killed, or the library was not in it.
fn without_steps(pid: u32, name: &str, backend: Option<Backend>, ended: &Ended) -> Value {
    let backend = backend.map(|backend| backend.name().to_owned()).or_else(known_backend);
    let mut process = json!({
        "pid": pid,
        "rank": null,
        "program": name,
        "backend": backend.unwrap_or_else(|| Backend::Glibc.name().to_owned()),
        "phase": "waiting",
        "marked": false,
        "period_allocations": null,
        "steps": 0,
        "planned_at_step": null,
        "plans": 0,
        "failed_plans": 0,
        "refused_plans": 0,
        "arena_bytes": 0,
        "arena_occupied_bytes": 0,
        "heap_bytes": 0,
        "heap_resident_bytes": 0,
        "heap_moved_bytes": 0,
        "heap_returned_bytes": 0,
        "kept": false,
        "kinds": 0,
        "gaps_only": false,
        "lower_bound_bytes": 0,
        "planned_blocks": 0,
        "blocks_beyond_limit": 0,
        "idle_releases": 0,
        "last_steps": {
            "count": 0,
            "minor_faults_median": 0,
            "minor_faults_max": 0,
            "planned_allocations": 0,
            "fallback_allocations": 0,
            "gap_allocations": 0,
            "planned_bytes": 0,
            "fallback_bytes": 0,
            "gap_bytes": 0,
            "step_ms_median": 0.0,
        },
        "vm_rss_bytes": 0,
        "vm_hwm_bytes": ended.peak_bytes,
    });
    if let How::Signal(signal) = ended.how {
        process["ended"] = json!(format!("signal {signal}"));
    }
    process
}

/// Ranks that the summary tells one by one.
const RANKS_TOLD: usize = 16;

/// A line about the process that made most steps, or about each rank where several made some; nothing where none did.
fn summary(processes: &[Value]) -> Vec<String> {
    let steps = |process: &Value| process["steps"].as_u64().unwrap_or(0);
    let mut ranks: Vec<&Value> =
        processes.iter().filter(|process| process["rank"].is_u64() && steps(process) > 0).collect();
    // Of a rank's processes the one with most steps.
    ranks.sort_by_key(|process| (process["rank"].as_u64(), std::cmp::Reverse(steps(process))));
    ranks.dedup_by_key(|process| process["rank"].as_u64());
    if ranks.len() > 1 {
        let line = |process: &&Value| format!("rank {}: {}", process["rank"], about(process));
        let mut lines: Vec<String> = ranks.iter().take(RANKS_TOLD).map(line).collect();
        if let Some(more) = ranks.len().checked_sub(RANKS_TOLD).filter(|&more| more > 0) {
            lines.push(format!("and {more} ranks more; --json tells all of them"));
        }
        return lines;
    }
    let told =
        |process: &&Value| steps(process) > 0 || process["marked"] == false && process.get("ended").is_none();
    let Some(most) = processes.iter().filter(told).max_by_key(|process| steps(process)) else {
        return Vec::new();
    };
    let mut text = about(most);
    match processes.len() {
        0 | 1 => {}
        2 => text.push_str(" (and 1 process more)"),
        more => text.push_str(&format!(" (and {} processes more)", more - 1)),
    }
    vec![text]
}

/// What a process did, in a line.
pub fn about(process: &Value) -> String {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let path = process["program"].as_str().unwrap_or("the program");
    let name = path.rsplit('/').next().unwrap_or(path);
    match (process["phase"].as_str(), process["planned_at_step"].as_u64()) {
        (Some("planned"), Some(step)) => {
            let (arena, bound) = (number(&process["arena_bytes"]), number(&process["lower_bound_bytes"]));
            let last = &process["last_steps"];
            let missed = number(&last["fallback_bytes"]) as f64;
            let all = missed + number(&last["planned_bytes"]) as f64;
            let begin = match process["period_allocations"].as_u64() {
                _ if process["kept"] == true => "served from the plan of an earlier run".to_owned(),
                Some(period) => format!("steps of {period} allocations found and planned"),
                None => format!("planned from step {step}"),
            };
            let beyond = match number(&process["blocks_beyond_limit"]) {
                0 => String::new(),
                blocks => format!("; STEPALLOC_MAX_ARENA left {blocks} blocks to the backend"),
            };
            format!(
                "{name}: {begin}, arena {} ({:.3} x lower bound), {} faults a step, {:.1} % of the bytes from the arena{beyond}",
                size::show(arena),
                if bound == 0 { 1.0 } else { arena as f64 / bound as f64 },
                last["minor_faults_median"].as_f64().unwrap_or(0.0),
                if all == 0.0 { 100.0 } else { 100.0 * (1.0 - missed / all) },
            )
        }
        _ if process["marked"] == false => format!(
            "{name}: not planned: no period was found in its allocations; {} served it",
            process["backend"].as_str().unwrap_or("the backend"),
        ),
        _ if number(&process["refused_plans"]) > 0 => format!(
            "{name}: not planned: its steps do not repeat, what they ask for together is more than twice what was ever alive; {} served it",
            process["backend"].as_str().unwrap_or("the backend"),
        ),
        (phase, _) => format!(
            "{name}: not planned: still {} after {} steps; START_STATISTIC_STEP and STABLE_STATISTIC_STEP say when to begin and end collecting",
            phase.unwrap_or("waiting"),
            number(&process["steps"]),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED: Ended = Ended {
        how: How::Signal(9),
        peak_bytes: 4096,
        usage: os::Usage { cpu_seconds: 0.0, system_seconds: 0.0, minor_faults: 0 },
    };

    #[test]
    fn the_started_process_comes_first_and_damaged_lines_are_left_out() {
        let processes = read("{\"pid\": 7}\n{\"pid\": 8}\n{\"pid\":\n\n", 8);
        assert_eq!(processes, [json!({"pid": 8}), json!({"pid": 7})]);
    }

    #[test]
    fn a_killed_process_without_steps_has_an_object_that_says_so() {
        let process = without_steps(5, "sleep", Some(Backend::Mimalloc), &KILLED);
        assert_eq!(process["ended"], "signal 9");
        assert_eq!(process["backend"], "mimalloc");
        assert_eq!(process["vm_hwm_bytes"], 4096);
    }

    #[test]
    fn nothing_is_summed_up_where_no_steps_were_made() {
        assert_eq!(summary(&[]), [""; 0]);
        assert_eq!(summary(&[without_steps(5, "true", None, &KILLED)]), [""; 0]);
    }

    #[test]
    fn the_summary_says_whether_there_is_a_period() {
        let without = json!({"program": "/bin/tar", "phase": "waiting", "marked": false, "steps": 0, "backend": "glibc"});
        assert_eq!(
            summary(&[without]),
            ["tar: not planned: no period was found in its allocations; glibc served it"]
        );
        let unlike = json!({"program": "/bin/a", "phase": "waiting", "marked": true, "steps": 300, "refused_plans": 1, "backend": "glibc"});
        let [line] = &summary(&[unlike])[..] else { panic!("one line") };
        assert!(
            line.starts_with("a: not planned: its steps do not repeat") && line.ends_with("glibc served it"),
            "{line}"
        );
        let found = json!({
            "program": "/bin/a", "phase": "planned", "marked": false, "steps": 40, "planned_at_step": 0,
            "period_allocations": 45, "arena_bytes": 2048, "lower_bound_bytes": 2048,
            "last_steps": {"minor_faults_median": 0, "planned_bytes": 100, "fallback_bytes": 0},
        });
        let lines = summary(&[found]);
        assert!(
            lines[0].starts_with("a: steps of 45 allocations found and planned, arena 2.0 KiB"),
            "{lines:?}"
        );
    }

    #[test]
    fn the_summary_names_the_plan() {
        let process = json!({
            "program": "/usr/bin/python3", "phase": "planned", "steps": 40, "planned_at_step": 9,
            "arena_bytes": 63 << 20, "lower_bound_bytes": 63 << 20,
            "last_steps": {"minor_faults_median": 0, "planned_bytes": 100, "fallback_bytes": 0},
        });
        assert_eq!(
            summary(&[process, json!({})]),
            [
                "python3: planned from step 9, arena 63.0 MiB (1.000 x lower bound), 0 faults a step, 100.0 % of the bytes from the arena (and 1 process more)"
            ]
        );
    }
}
