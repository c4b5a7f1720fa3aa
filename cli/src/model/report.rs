//! `model infer --report`: the plan of a run on the page of `stepalloc report`. Its time is the nodes that run, in their order.

use crate::report::Report;
use crate::report::model::file_name;
use crate::report::picture::{Picture, Words};
use crate::size;
use std::collections::BTreeMap;
use std::path::Path;
use stepalloc_planner::{Block, Problem};
use stepalloc_runtime::{ALIGNMENT, Error, PlannedBlock, PlannedRun, PlannedStep, Session, Tensor};

/// Nodes that are named at most.
const NAMED: usize = 5;
/// What scratch memory is called among the operators.
const SCRATCH: &str = "scratch memory";

/// What is said of a run beside its plan.
pub(super) struct About<'a> {
    pub model: &'a Path,
    /// Of all outputs together.
    pub output_bytes: u64,
    pub weight_bytes: u64,
    /// Of weights that are not used where they lie in the file.
    pub copied_bytes: u64,
    pub run_ms: f64,
    /// Values share memory.
    pub shares: bool,
}

/// The page of a run on these inputs.
pub(super) fn page(
    session: &Session,
    inputs: &[(String, Option<Tensor>)],
    about: &About<'_>,
) -> Result<String, Error> {
    let views: Vec<_> = inputs.iter().map(|(_, tensor)| tensor.as_ref().map(Tensor::view)).collect();
    let (run, figures) = (&session.planned_run(&views)?, session.figures(&views)?);
    let name = file_name(about.model);
    let mut report = Report { title: name.clone(), subtitle: subtitle(inputs), ..Report::default() };
    report.arena(figures.arena_bytes, figures.lower_bound_bytes);
    report.fact("Planned tensors", figures.planned_tensors.to_string());
    report.fact("In the place of another", figures.inplace_tensors.to_string());
    report.fact("Outputs, beside the arena", size::show(about.output_bytes));
    report.fact("Weights, beside the arena", size::show(about.weight_bytes));
    report.fact("Copied from the file", size::show(about.copied_bytes));
    report.fact("Median of a run", format!("{:.3} ms", about.run_ms));
    if !about.shares {
        report.notices.push("This plan gives every value memory of its own (--no-plan).".to_owned());
    }
    report.notices.extend(unplanned(run));
    if run.blocks.is_empty() {
        report.notices.push(
            "No value of this run lies in an arena, so there is no plan to look at: its values are inputs, outputs, weights, known \
             before it runs, or of sizes that are not."
                .to_owned(),
        );
        return Ok(report.to_html());
    }
    // By number, in the order of the operators' names.
    let mut kinds: BTreeMap<&str, u64> = run.blocks.iter().map(|block| (kind(run, block), 0)).collect();
    kinds.values_mut().zip(0..).for_each(|(number, next)| *number = next);
    report.kinds = kinds.keys().map(|&kind| kind.to_owned()).collect();
    let problem = problem(run);
    let offsets: Vec<u64> = run.blocks.iter().map(|block| block.offset).collect();
    let picture = Picture {
        name: format!("Plan of a run of {name}"),
        problem: &problem,
        offsets: &offsets,
        height: figures.arena_bytes,
        lower_bound: figures.lower_bound_bytes,
        optimal: figures.arena_bytes == figures.lower_bound_bytes,
        callers: None,
        words: Words {
            labels: Some(run.blocks.iter().map(|block| label(run, block)).collect()),
            holds: Some(run.blocks.iter().map(|block| holds(run, block)).collect()),
            kinds: Some(run.blocks.iter().map(|block| kinds[kind(run, block)]).collect()),
            unit: Some("step"),
        },
    };
    let mut plan = picture.to_json();
    // Nodes may follow the end of the last block.
    plan["events"] = run.steps.len().into();
    let peak = run.steps.get(problem.load().at as usize);
    plan["peak"]["name"] = peak.map(node).into();
    report.plans.push(plan);
    Ok(report.to_html())
}

fn subtitle(inputs: &[(String, Option<Tensor>)]) -> String {
    let input = |(name, tensor): &(String, Option<Tensor>)| Some(format!("{name} {}", tensor.as_ref()?.ty()));
    let inputs: Vec<_> = inputs.iter().filter_map(input).collect();
    format!(
        "The arena of a run{}. A step is a node, in the order in which they run; a block is a tensor, with those that lie in \
         its place, or an operator's scratch memory.",
        if inputs.is_empty() { String::new() } else { format!(" on {}", inputs.join(", ")) }
    )
}

/// The blocks as the planner has them; an event is a step.
fn problem(run: &PlannedRun) -> Problem {
    let block = |(block, id): (&PlannedBlock, u64)| Block {
        id,
        lower: block.steps.start as u64,
        upper: block.steps.end as u64,
        size: block.bytes,
        align: ALIGNMENT as u64,
    };
    Problem::new(run.blocks.iter().zip(0..).map(block).collect())
}

fn node(step: &PlannedStep) -> String {
    format!("{} ({})", step.name, step.op_type)
}

/// The operator that a block is first of.
fn kind<'a>(run: &'a PlannedRun, block: &PlannedBlock) -> &'a str {
    if block.values.is_empty() { SCRATCH } else { &run.steps[block.steps.start].op_type }
}

fn label(run: &PlannedRun, block: &PlannedBlock) -> String {
    match block.values.first() {
        Some(value) => value.name.clone(),
        None => format!("scratch of {}", run.steps[block.steps.start].name),
    }
}

/// A line for each value: its name and type, and the node that makes it.
fn holds(run: &PlannedRun, block: &PlannedBlock) -> Vec<String> {
    if block.values.is_empty() {
        return vec![format!("{SCRATCH} of {}", node(&run.steps[block.steps.start]))];
    }
    let values = block.values.iter().enumerate().map(|(index, value)| {
        let step = &run.steps[value.step];
        let how = match index {
            0 => "",
            _ if step.is_view => ", a view",
            _ => ", in place",
        };
        format!("{} {} of step {}, {}{how}", value.name, value.ty, value.step, node(step))
    });
    values.collect()
}

/// What is not in the plan because its size is only known when it runs.
fn unplanned(run: &PlannedRun) -> Option<String> {
    let nodes: Vec<_> = run.steps.iter().filter(|step| step.is_unplanned).map(node).collect();
    let (count, rest) = (nodes.len(), nodes.len().saturating_sub(NAMED));
    let names = nodes.into_iter().take(NAMED).collect::<Vec<_>>().join(", ");
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    (count > 0).then(|| {
        format!(
            "Not all of the run is planned. Nodes that take memory beside this arena, since the sizes of their outputs depend on \
             elements or they run graphs of their own: {count} of {}, {names}{more}.",
            run.steps.len()
        )
    })
}
