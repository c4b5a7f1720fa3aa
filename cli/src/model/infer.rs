//! `model infer`: runs a model, and says how long it takes and what memory it needs.

use super::inputs::{self, Given};
use crate::counting;
use crate::os::{Resident, Usage};
use crate::output::Output;
use crate::size;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use stepalloc_runtime::{Model, Options, Session, Tensor};

/// Runs before faults are counted: the arena's pages come in the first, and threads' packing buffers with it.
const WARM: usize = 2;

/// Run a model, and say what memory it takes
#[derive(clap::Args)]
#[command(
    after_help = "Inputs that are not given are filled with numbers at random, the same each time; dimensions without a size are 1
unless --shape says more. Figures are for runs whose inputs and outputs are bound.

JSON: load_ms, run_ms_median, arena_bytes, lower_bound_bytes, planned_tensors, inplace_tensors, unplanned_nodes,
allocations_per_run, minor_faults_per_run (the most of any run from the third on), vm_rss_bytes, vm_hwm_bytes,
vm_hwm_before_bytes (right before the model is read).

Examples:
  stepalloc model infer net.onnx --shape x=1x3x224x224 --runs 20
  stepalloc model infer net.onnx --input x=photo.npy --save-outputs out --json -
  RAYON_NUM_THREADS=1 stepalloc model infer net.onnx        on one thread"
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
    /// The most memory for intermediate values, as 2GiB
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    max_mem: Option<u64>,
    /// Give every intermediate value memory of its own
    #[arg(long)]
    no_plan: bool,
    /// Write the outputs as DIR/NAME.npy
    #[arg(long, value_name = "DIR")]
    save_outputs: Option<PathBuf>,
    /// Write the figures as JSON; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, String> {
    let json = arguments.json.as_deref().map(Output::open).transpose().map_err(|error| error.to_string())?;
    // This thread is one of those that share the work: handing it over to them would take time, and memory now and then.
    let threads = rayon::ThreadPoolBuilder::new().num_threads(arguments.threads).use_current_thread();
    threads.build_global().map_err(|error| format!("{} threads: {error}", arguments.threads))?;
    let before = Resident::of(std::process::id());
    let began = Instant::now();
    let model = Model::open(&arguments.model).map_err(|error| error.to_string())?;
    let mut options = Options::new().memory_pattern(!arguments.no_plan);
    if let Some(bytes) = arguments.max_mem {
        options = options.max_mem(bytes);
    }
    let session = Session::with_options(&model, options);
    let load_ms = began.elapsed().as_secs_f64() * 1e3;
    let given: Vec<_> = arguments.input.iter().chain(&arguments.shape).cloned().collect();
    let tensors = inputs::tensors(session.graph(), &given)?;
    let views: Vec<_> = tensors.iter().map(|(_, tensor)| tensor.as_ref().map(Tensor::view)).collect();
    let figures = session.figures(&views).map_err(|error| error.to_string())?;
    let mut binding = session.binding();
    for (name, tensor) in tensors {
        if let Some(tensor) = tensor {
            binding.bind_input(&name, tensor).map_err(|error| error.to_string())?;
        }
    }
    let mut times = Vec::with_capacity(arguments.runs as usize);
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
    if let Some(directory) = &arguments.save_outputs {
        let graph = session.graph();
        let names = graph.outputs.iter().map(|&id| graph.values[id].name.as_str());
        inputs::save(directory, names.zip(binding.outputs().flatten()))?;
    }
    let text = json!({
        "model": arguments.model.display().to_string(),
        "load_ms": load_ms,
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
        "vm_hwm_before_bytes": before.as_ref().map(|resident| resident.most_bytes),
        "vm_rss_bytes": resident.as_ref().map(|resident| resident.bytes),
        "vm_hwm_bytes": resident.as_ref().map(|resident| resident.most_bytes),
    });
    if let Some(json) = json {
        json.write(format!("{text:#}\n").as_bytes()).map_err(|error| error.to_string())?;
    } else {
        println!("loaded in {load_ms:.1} ms, median of {} runs {run_ms:.3} ms", arguments.runs);
        println!(
            "arena {}, lower bound {}; {} tensors planned, {} of them in the place of another",
            size::show(figures.arena_bytes),
            size::show(figures.lower_bound_bytes),
            figures.planned_tensors,
            figures.inplace_tensors
        );
        if figures.unplanned_nodes > 0 {
            println!(
                "{} nodes have outputs whose sizes depend on elements, and take memory as they run",
                figures.unplanned_nodes
            );
        }
        println!(
            "the newest run: {allocations} allocations; page faults in a run from the third on: {faults} at most"
        );
    }
    Ok(ExitCode::SUCCESS)
}
