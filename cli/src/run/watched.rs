//! What is seen of a program while and after it runs, beyond its figures: the trace, the journal of its steps, its plan;
//! and the report and the file of metrics that are made of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use stepalloc_planner::{Input, Trace, read_from};

use super::metrics;
use crate::os::{self, Ended};
use crate::recording;
use crate::report::{self, Report, model};
use crate::size;

/// Seconds from one writing of metrics to the next.
const REFRESH: Duration = Duration::from_secs(1);

/// What is asked for.
#[derive(Default)]
pub struct Wanted {
    /// `--trace`: all events.
    pub trace: bool,
    /// `--report`.
    pub report: bool,
    /// `--call-sites`.
    pub call_sites: bool,
    /// `--metrics`.
    pub metrics: Option<PathBuf>,
    /// The file of plans, where the user has named one.
    pub plan: Option<PathBuf>,
}

/// The places of the library's files.
pub struct Watched {
    wanted: Wanted,
    trace: PathBuf,
    steps: PathBuf,
    plan: Option<PathBuf>,
}

/// What was recorded of the busiest process.
pub struct Recorded {
    pid: u32,
    /// The process went on when the trace was as long as it may be.
    pub cut_off: bool,
    /// As memtrace v1.
    pub memtrace: String,
}

impl Watched {
    /// Tells the library, by the program's environment, what to write, and where in `directory`.
    pub fn prepare(wanted: Wanted, directory: &Path, command: &mut Command) -> Watched {
        let (trace, steps) = (directory.join("trace"), directory.join("steps"));
        if wanted.trace || wanted.report {
            command.env("STEPALLOC_TRACE", &trace);
            command.env("STEPALLOC_CALL_SITES", if wanted.call_sites { "1" } else { "0" });
            if !wanted.trace {
                command.env("STEPALLOC_TRACE_EVENTS", recording::EVENTS_OF_A_REPORT.to_string());
            }
        }
        if wanted.report || wanted.metrics.is_some() {
            command.env("STEPALLOC_STEPS", &steps);
        }
        let given = wanted.plan.clone().or_else(|| std::env::var_os("STEPALLOC_PLAN").map(PathBuf::from));
        let plan = given.or_else(|| {
            let plan = directory.join("plan-%r");
            wanted.report.then(|| {
                command.env("STEPALLOC_PLAN", &plan);
                plan
            })
        });
        Watched { wanted, trace, steps, plan }
    }

    /// Writes metrics again and again until it is dropped.
    pub fn refresh(&self, pid: u32, program: &str) -> Option<Refreshing> {
        let path = self.wanted.metrics.clone()?;
        let (steps, program) = (self.steps.clone(), program.to_owned());
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            let mut failed = false;
            loop {
                let live = metrics::Process::read(pid);
                let written =
                    metrics::write(&path, &metrics::of_journal(&steps, &program, pid, live.as_ref()));
                if let Err(error) = written
                    && !std::mem::replace(&mut failed, true)
                {
                    os::say(&format!("--metrics {}: cannot be written: {error}", path.display()));
                }
                match stopped.recv_timeout(REFRESH) {
                    Err(RecvTimeoutError::Timeout) => {}
                    _ => return,
                }
            }
        });
        Some(Refreshing { stop: Some(stop), thread: Some(thread) })
    }

    /// Writes the last metrics.
    pub fn end_metrics(&self, name: &str, processes: &[Value], pid: u32, ended: &Ended) {
        let Some(path) = &self.wanted.metrics else { return };
        let text = metrics::of_the_end(&self.steps, name, pid, processes, ended);
        if let Err(error) = metrics::write(path, &text) {
            os::say(&format!("--metrics {}: cannot be written: {error}", path.display()));
        }
    }

    /// What was recorded; `None` where nothing was.
    pub fn recorded(&self, name: &str) -> Option<Recorded> {
        let recording = recording::busiest(&self.trace)?;
        Some(Recorded {
            pid: recording.pid,
            cut_off: recording.cut_off,
            memtrace: recording.to_memtrace(name),
        })
    }

    /// The report of a program that has ended.
    pub fn report(
        &self,
        program: &[String],
        processes: &[Value],
        pid: u32,
        recorded: Option<Recorded>,
    ) -> Report {
        let shown = recorded.as_ref().map_or(pid, |recorded| recorded.pid);
        let process = processes.iter().find(|process| process["pid"] == shown).or(processes.first());
        let mut report = Report { title: program.join(" "), ..Report::default() };
        report.subtitle = process.map_or_else(String::new, super::about);
        report.steps = model::steps_of(&fs::read_to_string(&self.steps).unwrap_or_default(), shown);
        if let Some(process) = process {
            figures(&mut report, process);
        }
        if recorded.as_ref().is_some_and(|recorded| recorded.cut_off) {
            report.notices.push(
                "The course shows the beginning of the run only: there were more events than a report holds."
                    .to_owned(),
            );
        }
        let trace = recorded.and_then(|recorded| {
            let text = std::io::Cursor::new(recorded.memtrace.into_bytes());
            match read_from(text, "the trace", u64::MAX) {
                Ok(Input::Trace { trace, .. }) => Some(trace),
                _ => None,
            }
        });
        if let Some(plan) = &self.plan {
            add_plan(&mut report, plan, process, trace.as_ref());
        }
        if let Some(trace) = &trace {
            report.course_of(trace);
            if report.plans.is_empty() {
                let facts = std::mem::take(&mut report.facts);
                // What was recorded may be no steps at all.
                let _ = report::of_trace(&mut report, trace, trace.min_bytes);
                report.facts = facts;
                if !report.plans.is_empty() {
                    report.notices.push(
                        "No plan of slots has served this program; the plan shown is one of what was recorded."
                            .to_owned(),
                    );
                }
            }
        }
        if processes.len() > 1 {
            report.notices.push(format!(
                "{} processes made steps or logged sizes; the one shown is {shown}.",
                processes.len()
            ));
        }
        report
    }
}

/// The plan that has served, if it was kept.
fn add_plan(report: &mut Report, plan: &Path, process: Option<&Value>, trace: Option<&Trace>) {
    let serves = process.is_some_and(|process| process["phase"] == "planned");
    let rank = process.and_then(|process| process["rank"].as_u64()).unwrap_or(0);
    let path = PathBuf::from(plan.to_string_lossy().replacen("%r", &rank.to_string(), 1));
    if !serves || !path.exists() {
        return;
    }
    let facts = report.facts.len();
    match report::of_plans(report, &path, trace) {
        // The figures have said it.
        Ok(()) => report.facts.truncate(facts),
        Err(error) => report.notices.push(format!("The plan cannot be shown: {error}.")),
    }
}

/// The numbers that matter, and what found no slot.
fn figures(report: &mut Report, process: &Value) {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let last = &process["last_steps"];
    if process["phase"] == "planned" {
        report.arena(number(&process["arena_bytes"]), number(&process["lower_bound_bytes"]));
        let (planned, missed) = (number(&last["planned_bytes"]), number(&last["fallback_bytes"]));
        let share = 100.0 * planned as f64 / (planned + missed).max(1) as f64;
        report.fact("Served from the arena", format!("{share:.2} %"));
        report.fact("Page faults a step", number(&last["minor_faults_median"]).to_string());
        report.fact("Step", format!("{:.1} ms", last["step_ms_median"].as_f64().unwrap_or(0.0)));
    }
    report.fact("Peak memory (VmHWM)", size::show(number(&process["vm_hwm_bytes"])));
    for miss in process["misses"].as_array().into_iter().flatten() {
        let (gap, fallback) = (number(&miss["gap_allocations"]), number(&miss["fallback_allocations"]));
        report.fallbacks.push(json!({
            "reason": miss["reason"],
            "size": miss["size"],
            "allocations": gap + fallback,
            "fallback_allocations": fallback,
            "bytes": number(&miss["size"]).saturating_mul(gap + fallback),
        }));
    }
}

/// A thread that writes metrics.
pub struct Refreshing {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Refreshing {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
