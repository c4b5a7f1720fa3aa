//! `model infer`: runs a model, and says how long it takes and what memory it needs.

use super::batch;
use super::inputs::{self, Given};
use super::passes;
use super::profile;
use super::reload;
use super::report::{self, About};
use super::rss::{Process, Total};
use crate::counting;
use crate::os::{Resident, Usage, forget_peak, mapped_of};
use crate::output::{self, Output, OutputError, say};
use crate::size;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use stepalloc_runtime::{
    Binding, Error, Graph, Light, Model, Needs, Options, Profile, RunOptions, Session, Tensor,
};

/// Runs before faults are counted: the arena's pages come in the first, and threads' packing buffers with it.
const WARM: usize = 2;
/// Exit status where memory grows by loading the model again.
const GROWS: u8 = 1;

/// Run a model, and say what memory it takes
#[derive(clap::Args)]
#[command(
    group = clap::ArgGroup::new("limit").args(["max_mem", "max_rss"]).multiple(true),
    after_help = "Inputs that are not given are filled with numbers at random, the same each time; dimensions without a size are 1
unless --shape says more. Figures are for runs whose inputs and outputs are bound.

The graph is optimized before, as `stepalloc model optimize` does it; --level disable leaves it alone.

JSON: load_ms, nodes_before, nodes, run_ms_median, arena_bytes, lower_bound_bytes, planned_tensors, inplace_tensors, unplanned_nodes,
allocations_per_run, minor_faults_per_run (the most of any run from the third on), vm_rss_bytes, vm_hwm_bytes,
vm_hwm_before_bytes (right before the model is read); weight_bytes, loaded_weight_bytes (those in memory right after it was read),
loaded_bytes (by how much the process grew meanwhile), copied_weight_bytes (those that are not used where they lie in the file); with --profile profile (of
each node name, op, ms a run, output_bytes, scratch_bytes, in_place).

--max-mem counts the arena (intermediate values and scratch memory), outputs, weights that are copied from the file or made by passes, and
what nodes take whose outputs' sizes depend on elements. It does not count weights that are used where they lie in the file, inputs,
plans, and what the process has besides. A run that would need more is an error before it starts, by the plan's figure, which is that of
--find-batch; nodes whose outputs' sizes depend on elements end it when they are reached.

--max-rss counts all of the process, as VmHWM does: what it has once the model is read and planned (code, the graph, plans, weights that are
copied already), weights that will be used where they lie in the file (64 KiB around each), those to be copied, packed weights and the
largest of them as it was loaded (not with --no-prepacking), the arena, inputs, outputs, and 4 MiB and 1 MiB a thread for pages of code that the first
run brings in, threads' stacks, and the buffers of matrix products. A run that would need more, or whose nodes' sizes depend on
elements, is refused before inputs are made, with the figure of each part (rss_bytes and rss_parts in the JSON; rss_before_bytes is the
most that the process had until then, and refused if it is more). What --profile, --report
and --save-outputs take after the runs is not counted.

--find-batch: the batch is the first dimension of the first input that is open, and dimensions of that name; batch has it, batch_bytes
what it takes of --max-mem by its plan, batch_rss_bytes what the process takes with it where there is a --max-rss, of which 1 MiB is kept
free. It is then run within these limits.
--feed-back: plans_made counts plans, copied_input_bytes what of inputs was copied so that outputs could grow where these lie.
--sessions: the model is opened for each, and each runs once; session_bytes is what all but the first added to VmRSS.
--also: also_bytes is what these runs added to VmHWM, also_alive_bytes the most that is alive in any of them.
--report: time is the nodes that run; a block is a tensor with those in its place, or scratch memory. The page needs no network.
--reload: reload_bytes has VmRSS after each turn; the exit status is 1 if it grew, as `stepalloc leaks` judges (30 turns are needed,
and the first third does not count).

Examples:
  stepalloc model infer net.onnx --shape x=1x3x224x224 --runs 20
  stepalloc model infer net.onnx --input x=photo.npy --save-outputs out --json -
  stepalloc model infer net.onnx --shape x=1x3x224x224 --max-mem 2GiB --find-batch
  stepalloc model infer net.onnx --report net.html          the plan as a picture
  stepalloc model infer net.onnx --threads 1                on one thread
  stepalloc model infer decoder.onnx --shape past.0=1x8x16x64 --feed-back --runs 256   256 tokens behind 16"
)]
pub(super) struct Arguments {
    /// The model, a file of ONNX, or of OpenVINO (.xml)
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// An input's elements, from a file of numpy (.npy) or a serialized TensorProto (.pb)
    #[arg(long, value_name = "NAME=FILE", value_parser = inputs::given)]
    input: Vec<Given>,
    /// An input's shape, filled at random
    #[arg(long, value_name = "NAME=1x3x224x224", value_parser = inputs::shaped)]
    shape: Vec<Given>,
    /// How often to run it
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// Cores to use; all by default
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    threads: usize,
    /// Cores to use before the first run, to optimize and plan; as many as for runs by default
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    compilation_threads: usize,
    /// The most memory for intermediate values, outputs and copied weights, as 2GiB
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    max_mem: Option<u64>,
    /// The most memory for the whole process: weights, inputs, code and all that --max-mem counts
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with_all = ["feed_back", "sessions", "also", "reload"])]
    max_rss: Option<u64>,
    /// Find the largest batch that fits into --max-mem and --max-rss, and run that
    #[arg(long, requires = "limit")]
    find_batch: bool,
    /// Make so many sessions, opening the model for each, and run each
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    sessions: u64,
    /// Afterwards, run it with this input in this shape, once for each time it is said
    #[arg(long, value_name = "NAME=1x3x224x224", value_parser = inputs::shaped)]
    also: Vec<Given>,
    /// Open the model, plan, run and drop everything again so many times, and watch the memory
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    reload: u64,
    /// What comes out as an input with rows appended (a decoder's keys and values) goes in as that input in the next run
    #[arg(long)]
    feed_back: bool,
    /// Give every intermediate value memory of its own
    #[arg(long)]
    no_plan: bool,
    /// Use weights where they lie in the file, which other processes share, instead of packing them once for faster runs
    #[arg(long)]
    no_prepacking: bool,
    /// Ask the system for huge pages where the arena is large enough
    #[arg(long)]
    huge_pages: bool,
    /// Tell the time and memory of each node, the slowest first; in the JSON, in the order in which they ran
    #[arg(long)]
    profile: bool,
    /// Write a page that shows the plan; - is standard output
    #[arg(long, value_name = "F.html")]
    report: Option<PathBuf>,
    #[command(flatten)]
    passes: passes::Passes,
    /// Write the optimized model as ONNX
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Write the outputs as DIR/NAME.npy
    #[arg(long, value_name = "DIR")]
    save_outputs: Option<PathBuf>,
    /// Write the figures as JSON; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, String> {
    arguments.check_report()?;
    let open = |path: &Option<PathBuf>| path.as_deref().map(Output::open).transpose();
    let told = |error: OutputError| error.to_string();
    let (json, page) = (open(&arguments.json).map_err(told)?, open(&arguments.report).map_err(told)?);
    let optimization = arguments.passes.optimization()?;
    // This thread is one of those that share the work: handing it over to them would take time, and memory now and then.
    let threads = rayon::ThreadPoolBuilder::new().num_threads(arguments.threads).use_current_thread();
    let threads = threads.start_handler(|_| stepalloc_runtime::touch_stack());
    threads.build_global().map_err(|error| format!("{} threads: {error}", arguments.threads))?;
    let before = Resident::of(std::process::id());
    let began = Instant::now();
    let model = Model::open(&arguments.model).map_err(|error| error.to_string())?;
    let session = Session::with_options(&model, arguments.options()?);
    let load_ms = began.elapsed().as_secs_f64() * 1e3;
    let loaded = Loaded::of(&model, &arguments.model, before.as_ref());
    if let Some(path) = &arguments.save {
        model.clone().optimize(&optimization).0.save(path).map_err(|error| error.to_string())?;
    }
    let mut given: Vec<_> = arguments.input.iter().chain(&arguments.shape).cloned().collect();
    let limits = batch::Limits { mem: arguments.max_mem, rss: arguments.max_rss };
    let found = arguments
        .find_batch
        .then(|| batch::find(&model, &session, &arguments.options()?, &limits, &given))
        .transpose()?;
    if let Some(found) = &found {
        given.clone_from(&found.given);
    }
    let total = arguments.max_rss.map(|limit| {
        let light = inputs::light(session.graph(), &given)?;
        let views: Vec<_> = light.iter().map(|light| light.as_ref().map(Light::view)).collect();
        arguments.within(limit, session.needs(&views))
    });
    let total = total.transpose()?;
    let tensors = inputs::tensors(session.graph(), &given)?;
    let views: Vec<_> = tensors.iter().map(|(_, tensor)| tensor.as_ref().map(Tensor::view)).collect();
    if let Some(limit) = arguments.max_rss {
        // By their elements, which may decide shapes; they are there already.
        arguments.within(limit, session.needs(&views).map(|needs| Needs { input_bytes: 0, ..needs }))?;
    }
    let figures = session.figures(&views).map_err(|error| error.to_string())?;
    let mut binding = session.binding();
    for (name, tensor) in tensors {
        if let Some(tensor) = tensor {
            binding.bind_input(&name, tensor).map_err(|error| error.to_string())?;
        }
    }
    if arguments.feed_back {
        let pairs = session.appended();
        if pairs.is_empty() {
            return Err(format!(
                "--feed-back: no output of {} is an input with rows appended",
                arguments.model.display()
            ));
        }
        for (output, input) in pairs {
            binding.feed_back(output, input).map_err(|error| error.to_string())?;
        }
    }
    let mut times = Vec::new();
    let (mut allocations, mut faults) = (0, 0);
    for run in 0..arguments.runs as usize {
        let (before, began) = (Usage::now().minor_faults, Instant::now());
        let (done, counted) = counting::during(|| binding.run());
        times.push(began.elapsed().as_secs_f64() * 1e3);
        done.map_err(|error| error.to_string())?;
        if run >= WARM {
            faults = faults.max(Usage::now().minor_faults - before);
        }
        allocations = counted;
    }
    times.sort_by(f64::total_cmp);
    let run_ms = times[times.len() / 2];
    let resident = Resident::of(std::process::id());
    let session_bytes = more_sessions(arguments, session.graph(), &given)?;
    let (also_bytes, also_alive_bytes) = more_shapes(arguments, &session, &given)?;
    if let Some(directory) = &arguments.save_outputs {
        let graph = session.graph();
        let names = graph.outputs.iter().map(|&id| graph.values[id].name.as_str());
        inputs::save(directory, names.zip(binding.outputs().flatten()))?;
    }
    let nodes = profiled(arguments, &mut binding)?;
    let html = page.is_some().then(|| {
        let about = About {
            model: &arguments.model,
            output_bytes: binding.outputs().flatten().map(|output| output.ty().bytes() as u64).sum(),
            weight_bytes: loaded.weights,
            copied_bytes: loaded.copied,
            run_ms,
            shares: !arguments.no_plan,
        };
        let tensors = inputs::tensors(session.graph(), &given)?;
        report::page(&session, &tensors, &about).map_err(|error| error.to_string())
    });
    let html = html.transpose()?;
    let (plans_made, copied_input_bytes) = (session.plans_made(), binding.copied_bytes());
    let (nodes_before, nodes_after) = (session.changes().nodes_before, session.changes().nodes_after);
    // As long as anybody has the graph, the model is the same.
    drop(binding);
    drop((session, model));
    let reloads = reload::turns(arguments.reload, || {
        let model = Model::open(&arguments.model).map_err(|error| error.to_string())?;
        let session = Session::with_options(&model, arguments.options()?);
        run_once(&session, &inputs::tensors(session.graph(), &given)?)
    })?;
    let mut text = json!({
        "model": arguments.model.display().to_string(),
        "load_ms": load_ms,
        "nodes_before": nodes_before,
        "nodes": nodes_after,
        "run_ms_median": run_ms,
        "runs": arguments.runs,
        "arena_bytes": figures.arena_bytes,
        "lower_bound_bytes": figures.lower_bound_bytes,
        "planned_tensors": figures.planned_tensors,
        "inplace_tensors": figures.inplace_tensors,
        "unplanned_nodes": figures.unplanned_nodes,
        "folded_nodes": figures.folded_nodes,
        "allocations_per_run": allocations,
        "minor_faults_per_run": faults,
        "plans_made": plans_made,
        "copied_input_bytes": copied_input_bytes,
        "weight_bytes": loaded.weights,
        "copied_weight_bytes": loaded.copied,
        "loaded_weight_bytes": loaded.resident,
        "loaded_bytes": loaded.grown,
        "session_bytes": session_bytes,
        "also_bytes": also_bytes,
        "also_alive_bytes": also_alive_bytes,
        "reload_bytes": reloads,
        "vm_hwm_before_bytes": before.as_ref().map(|resident| resident.most_bytes),
        "vm_rss_bytes": resident.as_ref().map(|resident| resident.bytes),
        "vm_hwm_bytes": resident.as_ref().map(|resident| resident.most_bytes),
    });
    if let Some(found) = &found {
        text["batch"] = found.batch.into();
        text["batch_bytes"] = found.taken.bytes.into();
        text["batch_rss_bytes"] = found.taken.rss_bytes.into();
    }
    if let Some(total) = &total {
        text["rss_bytes"] = total.bytes().into();
        text["rss_before_bytes"] = total.most.into();
        text["rss_parts"] = json!(BTreeMap::from(total.parts));
    }
    if let Some(profile) = &nodes {
        text["profile"] = profile::json(profile);
    }
    if let Some((page, html)) = page.zip(html) {
        page.write(html.as_bytes()).map_err(told)?;
    }
    if let Some(json) = json {
        json.write(format!("{text:#}\n").as_bytes()).map_err(|error| error.to_string())?;
    } else if !arguments.report.as_deref().is_some_and(output::is_standard) {
        if let Some(found) = &found {
            say!("{found}");
        }
        if let Some(total) = &total {
            say!("all of the process at most {total}");
        }
        say!("loaded in {load_ms:.1} ms, median of {} runs {run_ms:.3} ms", arguments.runs);
        say!(
            "arena {}, lower bound {}; {} tensors planned, {} of them in the place of another",
            size::show(figures.arena_bytes),
            size::show(figures.lower_bound_bytes),
            figures.planned_tensors,
            figures.inplace_tensors
        );
        if figures.unplanned_nodes > 0 {
            say!(
                "{} nodes have outputs whose sizes depend on elements, and take memory as they run",
                figures.unplanned_nodes
            );
        }
        say!(
            "the newest run: {allocations} allocations; page faults in a run from the third on: {faults} at most"
        );
        if let Some(profile) = &nodes {
            say!("{}", profile::table(profile).trim_end_matches('\n'));
        }
    }
    Ok(if reload::grows(&reloads) {
        eprintln!("stepalloc model: memory grows by loading the model again and again");
        ExitCode::from(GROWS)
    } else {
        ExitCode::SUCCESS
    })
}

impl Arguments {
    /// Whether the page has a file to itself.
    fn check_report(&self) -> Result<(), String> {
        let Some(report) = &self.report else { return Ok(()) };
        let is_json = |json: &PathBuf| {
            output::is_standard(report) && output::is_standard(json) || output::same(report, json)
        };
        if self.json.as_ref().is_some_and(is_json) {
            return Err("--report and --json name the same place".into());
        }
        if !output::is_standard(report) && output::same(report, &self.model) {
            return Err(format!("--report names the model, {}, which would be lost", self.model.display()));
        }
        Ok(())
    }

    /// What the process takes with a run, which is an error if that is beyond --max-rss.
    fn within(&self, limit: u64, needs: Result<Needs, Error>) -> Result<Total, String> {
        let needs = needs.map_err(|error| error.to_string())?;
        let total = Total::new(&Process::now()?, &needs);
        total.check(limit).map(|()| total)
    }

    fn options(&self) -> Result<Options, String> {
        let options = Options::new()
            .memory_pattern(!self.no_plan)
            .prepacking(!self.no_prepacking)
            .huge_pages(self.huge_pages)
            .compilation_num_threads(self.compilation_threads)
            .optimization(&self.passes.optimization()?);
        Ok(self.max_mem.map_or(options.clone(), |bytes| options.max_mem(bytes)))
    }
}

/// A model's weights right after it was read.
struct Loaded {
    weights: u64,
    copied: u64,
    resident: Option<u64>,
    grown: Option<u64>,
}

impl Loaded {
    fn of(model: &Model, path: &Path, before: Option<&Resident>) -> Self {
        let grown = Resident::of(std::process::id())
            .zip(before)
            .map(|(now, before)| now.bytes.saturating_sub(before.bytes));
        let weights = model.graph.weights();
        let bytes = |counts: fn(&Tensor) -> usize| weights.iter().map(|tensor| counts(tensor) as u64).sum();
        let folder = path.canonicalize().ok().and_then(|path| Some(path.parent()?.to_owned()));
        let own: u64 = bytes(Tensor::own_bytes);
        Self {
            weights: bytes(|tensor| tensor.ty().bytes()),
            copied: bytes(|tensor| if tensor.is_lent() { 0 } else { tensor.ty().bytes() }),
            resident: folder.and_then(|folder| mapped_of(&folder)).map(|mapped| mapped + own),
            grown,
        }
    }
}

/// Runs a session once.
fn run_once(session: &Session, tensors: &[(String, Option<Tensor>)]) -> Result<(), String> {
    let given = tensors.iter().filter_map(|(name, tensor)| Some((name.as_str(), tensor.as_ref()?.view())));
    session.run(&given.collect::<Vec<_>>()).map(|_| ()).map_err(|error| error.to_string())
}

fn resident() -> u64 {
    Resident::of(std::process::id()).map_or(0, |resident| resident.bytes)
}

/// What all sessions but the first add to the process's memory, once each has run.
fn more_sessions(arguments: &Arguments, graph: &Graph, given: &[Given]) -> Result<u64, String> {
    let tensors = inputs::tensors(graph, given)?;
    let before = resident();
    let mut sessions = Vec::new();
    for _ in 1..arguments.sessions {
        let model = Model::open(&arguments.model).map_err(|error| error.to_string())?;
        let session = Session::with_options(&model, arguments.options()?);
        run_once(&session, &tensors)?;
        sessions.push(session);
    }
    Ok(resident().saturating_sub(before))
}

/// What runs on inputs of other shapes add to the process's peak, and the most that is alive in any of them.
fn more_shapes(arguments: &Arguments, session: &Session, given: &[Given]) -> Result<(u64, u64), String> {
    let (before, mut alive) = (resident(), 0);
    forget_peak();
    for shape in &arguments.also {
        let others = given.iter().filter(|given| given.name() != shape.name());
        let given: Vec<_> = others.chain([shape]).cloned().collect();
        let tensors = inputs::tensors(session.graph(), &given)?;
        let views: Vec<_> = tensors.iter().map(|(_, tensor)| tensor.as_ref().map(Tensor::view)).collect();
        let figures = session.figures(&views).map_err(|error| error.to_string())?;
        alive = alive.max(figures.lower_bound_bytes);
        run_once(session, &tensors)?;
    }
    let peak = Resident::of(std::process::id()).map_or(0, |resident| resident.most_bytes);
    Ok((peak.saturating_sub(before), alive))
}

/// What each node takes, over as many runs again.
fn profiled(arguments: &Arguments, binding: &mut Binding) -> Result<Option<Profile>, String> {
    if !arguments.profile {
        return Ok(None);
    }
    let mut profile = Profile::new();
    for _ in 0..arguments.runs {
        let options = RunOptions::new().profile(&mut profile);
        binding.run_with(options).map_err(|error| error.to_string())?;
    }
    Ok(Some(profile))
}
