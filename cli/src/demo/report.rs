//! The demo's report: the comparison of its six processes, and one more training, recorded, with the plan that served it.

use std::fs;
use std::io;

use serde_json::Value;

use super::table::{self, Row};
use super::{Configuration, Progress, train};
use crate::os::Forward;
use crate::report::Report;
use crate::run::Backend;
use crate::run::watched::{Wanted, Watched};

/// Passes of the training that is recorded: the plan serves after some five.
const EPOCHS: u32 = 12;

/// Trains once more, recorded, and puts everything together.
pub fn report(rows: &[Row], epochs: u32, signals: &Forward, progress: &Progress) -> io::Result<Report> {
    let directory = tempfile::Builder::new().prefix("stepalloc-").tempdir()?;
    let (figures, plan) = (directory.path().join("figures"), directory.path().join("plan"));
    let configuration = Configuration { backend: Backend::Glibc, planned: true };
    let mut command = configuration.command(epochs.min(EPOCHS))?;
    command.env("STEPALLOC_JSON", &figures).env("STEPALLOC_PLAN", &plan);
    let wanted = Wanted { report: true, call_sites: true, plan: Some(plan), ..Wanted::default() };
    let watched = Watched::prepare(wanted, directory.path(), &mut command);
    let outcome = train(command, signals, progress);
    let lines = fs::read_to_string(&figures).unwrap_or_default();
    let processes: Vec<Value> = lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let pid = processes.first().and_then(|process| process["pid"].as_u64()).unwrap_or(0) as u32;
    let name = "stepalloc demo".to_owned();
    let recorded = watched.recorded("demo");
    let mut report = watched.report(&[name], &processes, pid, recorded);
    report.subtitle =
        "A small convolutional network learns handwritten digits; the plan and the course are those of \
                       a training of its own, recorded over glibc."
            .to_owned();
    if let Err(error) = outcome {
        report.notices.push(format!("The training that was to be recorded {error}."));
    }
    report.comparison = Some(table::comparison(rows));
    Ok(report)
}
