//! `stepalloc report`: a plan, a trace or buffers as one page to look at, or in the formats of other viewers.
//!
//! `model` (what a report holds) <- `picture` (a plan), `overlaps`, `what_if` (other strategies); -> `page` (one file of
//! HTML). `run --report`, `compare --report` and `model infer --report` make theirs of the same parts. `export` writes traces for
//! other viewers.

mod column;
mod export;
pub mod model;
mod overlaps;
mod page;
pub mod picture;
mod walk;
mod what_if;

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use stepalloc::{PlanFileError, read_plans};
use stepalloc_planner::{Buffers, Input, Plan, Problem, ReadError, Trace, csv, read_any, verify};
use thiserror::Error;

use crate::output::{self, Output, OutputError};
use crate::plan::MIN_BYTES;
use crate::size;
use export::{Recorded, chrome, dhat, folded};
pub use model::Report;
use picture::{Picture, Words};
use what_if::predict::{PredictError, Scaled, predict};
use what_if::{WhatIf, WhatIfError, what_if};

/// Time for a plan that is to be looked at.
const PATIENCE: Duration = Duration::from_secs(10);

/// What `stepalloc report` takes.
#[derive(clap::Args)]
#[command(
    after_help = "FILE is a recorded trace (stepalloc run --trace), buffers as CSV (id,lower,upper,size; with a column offset: the plan they
are), or a file of plans (stepalloc run --plan). Traces and buffers without offsets are planned first.
The page needs no network and no server; any browser of these years shows it.

Formats: html; of traces also chrome (Chrome trace events, for ui.perfetto.dev), dhat (for valgrind's dh_view.html), folded
(stacks and their bytes at the peak, for flame graphs) and folded-total (the same of all bytes); of traces and buffers csv
(the plan as google/minimalloc reads it).

--what-if serves the trace's blocks by other strategies and tells the bytes each needs, to standard output where no -o is
given. With --beside, a trace of the same program at another scale (batch size), it also predicts the peak at others.

Exit status: 0 written, 2 wrong arguments or files, 70 a plan did not pass the check (a fault of ours).

Examples:
  stepalloc run --trace train.csv.gz -- python3 train.py
  stepalloc report train.csv.gz -o train.html
  stepalloc report solution.csv -o solution.html
  stepalloc report train.csv.gz --format chrome -o train.json
  stepalloc report train.csv.gz --what-if
  stepalloc report batch8.csv.gz --what-if --beside batch16.csv.gz --scales 8,16 --predict 32,64"
)]
pub struct Arguments {
    /// A trace, buffers or plans; plain or gzip'ed
    #[arg(value_name = "FILE")]
    input: PathBuf,
    /// Write the page here; - is standard output
    #[arg(long, short, value_name = "F.html", required_unless_present = "what_if")]
    output: Option<PathBuf>,
    /// In this format
    #[arg(long, value_name = "FORMAT", default_value = "html", conflicts_with = "what_if")]
    format: Format,
    /// Of a trace, tell what other strategies would need
    #[arg(long)]
    what_if: bool,
    /// With --what-if: a trace of the same program at another scale
    #[arg(long, value_name = "TRACE", requires_all = ["what_if", "scales", "predict"])]
    beside: Option<PathBuf>,
    /// The scales (batch sizes) of FILE and of the trace beside it
    #[arg(long, value_name = "A,B", value_delimiter = ',', num_args = 2, requires = "beside")]
    scales: Vec<u64>,
    /// The scales to predict
    #[arg(long, value_name = "C,D", value_delimiter = ',', requires = "beside")]
    predict: Vec<u64>,
    /// Of a trace, leave out smaller blocks: bytes, or with KiB, MiB, GiB [default: 32KiB]
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = size::parse)]
    min_bytes: Option<u64>,
}

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// A page.
    Html,
    /// Chrome trace events.
    Chrome,
    /// Valgrind's DHAT.
    Dhat,
    /// Folded stacks and their bytes at the peak.
    Folded,
    /// Folded stacks and all their bytes.
    FoldedTotal,
    /// The plan.
    Csv,
}

/// Why there is no report.
#[derive(Debug, Error)]
pub enum ReportError {
    /// The input cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The plans cannot.
    #[error(transparent)]
    Plans(#[from] PlanFileError),
    /// An option that is for traces only.
    #[error("{}: {option} is for traces (stepalloc run --trace), and this is {found}", .path.display())]
    NoTrace {
        /// The input.
        path: PathBuf,
        /// What asks for one.
        option: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// It cannot be planned, or not served by other strategies.
    #[error("{}: {source}", .path.display())]
    WhatIf {
        /// The input.
        path: PathBuf,
        /// Why.
        source: Box<WhatIfError>,
    },
    /// The two traces do not go together.
    #[error("--beside {}: {source}", .path.display())]
    Predict {
        /// The other trace.
        path: PathBuf,
        /// Why.
        source: Box<PredictError>,
    },
    /// The page cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// It would overwrite what it is made of.
    #[error("-o names the input, {}, which would be lost; name another file", .0.display())]
    OverInput(PathBuf),
}

impl ReportError {
    /// The process's exit status.
    pub fn exit_code(&self) -> u8 {
        match self {
            ReportError::WhatIf { source, .. } if matches!(**source, WhatIfError::Invalid { .. }) => {
                crate::plan::INTERNAL
            }
            _ => crate::USAGE,
        }
    }
}

/// Reads, plans where there is no plan yet, and writes.
pub fn report(arguments: &Arguments) -> Result<ExitCode, ReportError> {
    let path = &arguments.input;
    if let Some(output) = arguments.output.as_deref().filter(|output| !output::is_standard(output))
        && output.exists()
        && output::same(output, path)
    {
        return Err(ReportError::OverInput(path.clone()));
    }
    let out = arguments.output.as_deref().map(Output::open).transpose()?;
    let bytes = match arguments.format {
        Format::Html => page_of(arguments)?,
        format => exported(arguments, format)?,
    };
    if let Some(out) = out {
        out.write(&bytes)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The trace of an input, for an option that needs one.
fn trace_of(path: &Path, min_bytes: u64, option: &'static str) -> Result<Trace, ReportError> {
    let found = if is_plans(path) {
        "a file of plans"
    } else {
        match read_any(path, min_bytes)? {
            Input::Trace { trace, .. } => return Ok(trace),
            Input::Buffers(_) => "a file of buffers",
        }
    };
    Err(ReportError::NoTrace { path: path.to_owned(), option, found })
}

/// What other viewers read.
fn exported(arguments: &Arguments, format: Format) -> Result<Vec<u8>, ReportError> {
    let (path, min_bytes) = (&arguments.input, arguments.min_bytes.unwrap_or(MIN_BYTES));
    let refused = |source: WhatIfError| ReportError::WhatIf { path: path.clone(), source: source.into() };
    let mut bytes = Vec::new();
    if format == Format::Csv && !is_plans(path) {
        let written = match read_any(path, min_bytes)? {
            Input::Buffers(buffers) => {
                buffers.write(&mut bytes, &planned(&buffers.problem).map_err(refused)?)
            }
            Input::Trace { steps, .. } => {
                csv::write(&mut bytes, &steps.problem, &planned(&steps.problem).map_err(refused)?)
            }
        };
        written.expect("a vector takes every write");
        return Ok(bytes);
    }
    let trace = trace_of(path, min_bytes, "this format")?;
    let sites: Vec<Vec<String>> =
        trace.sites.iter().map(|site| site.split(';').map(str::to_owned).collect()).collect();
    let site_of = |step: usize, event: usize| {
        let caller = trace.steps.get(step)?.callers.get(event)?;
        (caller.site != 0).then_some(caller.site as usize)
    };
    let recorded = Recorded { trace: &trace, sites: &sites, site_of: &site_of };
    let mut out = BufWriter::new(&mut bytes);
    let written = match format {
        Format::Chrome => chrome::write(&mut out, &recorded, min_bytes),
        Format::Dhat => dhat::write(&mut out, &recorded),
        Format::FoldedTotal => folded::write(&mut out, &recorded, folded::Weight::Total),
        _ => folded::write(&mut out, &recorded, folded::Weight::Peak),
    };
    written.and_then(|()| out.flush()).expect("a vector takes every write");
    drop(out);
    Ok(bytes)
}

/// What other strategies would need for a trace's blocks, and the same program at other scales.
fn strategies(arguments: &Arguments, min_bytes: u64) -> Result<Option<WhatIf>, ReportError> {
    if !arguments.what_if {
        return Ok(None);
    }
    let path = &arguments.input;
    let trace = trace_of(path, min_bytes, "--what-if")?;
    let mut table = what_if(&trace, min_bytes)
        .map_err(|source| ReportError::WhatIf { path: path.clone(), source: source.into() })?;
    if let (Some(beside), &[scale, other_scale]) = (&arguments.beside, arguments.scales.as_slice()) {
        let other = trace_of(beside, min_bytes, "--beside")?;
        let (this, other) = (Scaled { trace: &trace, scale }, Scaled { trace: &other, scale: other_scale });
        table.predictions = predict(this, other, min_bytes, &arguments.predict)
            .map_err(|source| ReportError::Predict { path: beside.clone(), source: source.into() })?;
    }
    Ok(Some(table))
}

/// The page of an input.
fn page_of(arguments: &Arguments) -> Result<Vec<u8>, ReportError> {
    let path = &arguments.input;
    let min_bytes = arguments.min_bytes.unwrap_or(MIN_BYTES);
    let table = strategies(arguments, min_bytes)?;
    if let (Some(table), None) = (&table, &arguments.output) {
        let _ = io::stdout().lock().write_all(table.text().as_bytes());
        return Ok(Vec::new());
    }
    let mut report = Report { title: model::file_name(path), ..Report::default() };
    if is_plans(path) {
        of_plans(&mut report, path, None)?;
        report.subtitle = "A file of plans, as stepalloc run --plan keeps them.".to_owned();
    } else {
        let refused = |source: WhatIfError| ReportError::WhatIf { path: path.clone(), source: source.into() };
        match read_any(path, min_bytes)? {
            Input::Buffers(buffers) => of_buffers(&mut report, &buffers).map_err(refused)?,
            Input::Trace { trace, .. } => {
                report.title.clone_from(&trace.name);
                report.subtitle = format!("The recorded trace {}.", model::file_name(path));
                of_trace(&mut report, &trace, min_bytes).map_err(refused)?;
            }
        }
    }
    report.what_if = table.as_ref().map(WhatIf::to_json);
    Ok(report.to_html().into_bytes())
}

/// Whether a file begins as those of plans do.
fn is_plans(path: &Path) -> bool {
    let mut head = [0; 8];
    let read = std::fs::File::open(path).and_then(|mut file| io::Read::read_exact(&mut file, &mut head));
    read.is_ok() && &head == stepalloc::PLAN_MAGIC
}

/// The plans of a file, with who asked where a trace says so.
pub fn of_plans(report: &mut Report, path: &Path, trace: Option<&Trace>) -> Result<(), PlanFileError> {
    let kept = read_plans(path)?;
    let count = kept.steps.len();
    let lower_bound = kept.steps.iter().map(|step| step.problem.load().max).max().unwrap_or(0);
    report.arena(kept.height, lower_bound);
    let blocks: usize = kept.steps.iter().map(|step| step.problem.blocks.len()).sum();
    report.fact("Planned blocks", blocks.to_string());
    if count > 1 {
        report.fact("Step variants", count.to_string());
    }
    for (index, (step, offsets)) in kept.steps.iter().zip(&kept.offsets).enumerate() {
        let callers = trace.map(|trace| trace.callers(&step.keys, stepalloc::plan_class));
        let load = step.problem.load().max;
        let picture = Picture {
            name: if count == 1 {
                "The step's plan".to_owned()
            } else {
                format!("Kind {} of {count}", index + 1)
            },
            problem: &step.problem,
            offsets,
            height: kept.height,
            lower_bound: load,
            optimal: load == kept.height,
            callers: callers.as_deref(),
            words: Words::default(),
        };
        report.plans.push(picture.to_json());
    }
    Ok(())
}

/// Buffers and the offsets they have, or a plan of them.
fn of_buffers(report: &mut Report, buffers: &Buffers) -> Result<(), WhatIfError> {
    let problem = &buffers.problem;
    problem.check()?;
    let plan = match &buffers.offsets {
        Some(offsets) => {
            report.subtitle = format!("{} buffers with the offsets that the file gives them.", offsets.len());
            let end = |(block, &offset): (&stepalloc_planner::Block, &u64)| offset.saturating_add(block.size);
            let height = problem.blocks.iter().zip(offsets).map(end).max().unwrap_or(0);
            if let Err(violation) = verify(problem, offsets, height) {
                report.notices.push(format!("This is no valid plan: {violation}."));
            }
            let lower_bound = problem.lower_bound();
            Plan {
                offsets: offsets.clone(),
                height,
                lower_bound: lower_bound.bytes,
                proof: None,
                algorithm: "the file".to_owned(),
            }
        }
        None => {
            let plan = planned(problem)?;
            report.subtitle = format!("{} buffers, planned by {}.", problem.blocks.len(), plan.algorithm);
            plan
        }
    };
    report.arena(plan.height, plan.lower_bound);
    report.fact("Buffers", problem.blocks.len().to_string());
    let labels = (!buffers.ids.are_numbers())
        .then(|| (0..problem.blocks.len()).map(|index| buffers.id(index)).collect::<Vec<_>>());
    let picture = Picture {
        name: buffers.name.clone(),
        problem,
        offsets: &plan.offsets,
        height: plan.height,
        lower_bound: plan.lower_bound,
        optimal: plan.optimal() || plan.height == plan.lower_bound,
        callers: None,
        words: Words { labels, ..Words::default() },
    };
    report.plans.push(picture.to_json());
    Ok(())
}

/// A trace: its course, its steps, and a plan of them.
pub fn of_trace(report: &mut Report, trace: &Trace, min_bytes: u64) -> Result<(), WhatIfError> {
    report.course_of(trace);
    report.fact("Steps", trace.steps.len().to_string());
    let step = trace.problem(min_bytes);
    if step.problem.blocks.is_empty() {
        report.notices.push(format!(
            "No block of {} and more is allocated and freed again by the steps of this trace, so there is nothing to plan.",
            size::show(min_bytes)
        ));
        return Ok(());
    }
    let plan = planned(&step.problem)?;
    if let Some(alive) = what_if::load_of_unlike(trace, min_bytes, &step, &plan) {
        report.notices.push(format!(
            "These steps are not alike: one plan for all of them takes {:.2} times the {} that were alive at once. A program \
             with several step variants is served from a plan for each; stepalloc run --report shows those.",
            plan.height as f64 / alive as f64,
            size::show(alive)
        ));
    }
    report.arena(plan.height, plan.lower_bound);
    report.fact("Planned blocks", step.problem.blocks.len().to_string());
    let callers = trace.callers(&step.keys, |size, align| (size, align));
    let picture = Picture {
        name: format!("Plan of the steps of {}", trace.name),
        problem: &step.problem,
        offsets: &plan.offsets,
        height: plan.height,
        lower_bound: plan.lower_bound,
        optimal: plan.optimal(),
        callers: Some(&callers),
        words: Words::default(),
    };
    report.plans.push(picture.to_json());
    Ok(())
}

/// A plan to be looked at, which the verifier has passed.
fn planned(problem: &Problem) -> Result<Plan, WhatIfError> {
    what_if::planned(problem, PATIENCE)
}
