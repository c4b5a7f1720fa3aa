//! `model inspect`: what is in a model, and what memory a run of it takes.

use super::inputs::{self, Given};
use crate::output::Output;
use crate::output::say;
use crate::size;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use stepalloc_runtime::{Dim, Graph, Model, Session, Tensor, Value};

/// Weights of at least this many bytes are used where they lie in a file, if they are aligned there.
const LARGE: usize = 64 << 10;

/// Say what is in a model, and what memory a run takes
#[derive(clap::Args)]
#[command(
    after_help = "Dimensions without a size are 1 unless --shape says more. A model that cannot be planned is described all the same.

Examples:
  stepalloc model inspect net.onnx
  stepalloc model inspect net.onnx --shape x=8x3x224x224 --json -"
)]
pub(super) struct Arguments {
    /// The model, a file of ONNX, or of OpenVINO (.xml)
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// An input's shape
    #[arg(long, value_name = "NAME=1x3x224x224", value_parser = inputs::shaped)]
    shape: Vec<Given>,
    /// Write it as JSON; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, String> {
    let json = arguments.json.as_deref().map(Output::open).transpose().map_err(|error| error.to_string())?;
    let model = Model::open(&arguments.model).map_err(|error| error.to_string())?;
    let graph = &model.graph;
    let mut operators: BTreeMap<&str, u64> = BTreeMap::new();
    for node in &graph.nodes {
        *operators.entry(&node.op_type).or_default() += 1;
    }
    let weights = graph.weights();
    let bytes = |mapped: bool| -> u64 {
        let those = weights.iter().filter(|tensor| tensor.is_lent() == mapped);
        those.map(|tensor| tensor.ty().bytes() as u64).sum()
    };
    let tensors = inputs::tensors(graph, &arguments.shape)?;
    let views: Vec<_> = tensors.iter().map(|(_, tensor)| tensor.as_ref().map(Tensor::view)).collect();
    let figures = Session::new(&model).figures(&views).map_err(|error| error.to_string());
    if let Some(json) = json {
        let values = |ids: &[usize]| -> Vec<_> {
            ids.iter()
                .map(|&id| json!({"name": graph.values[id].name, "type": declared(&graph.values[id])}))
                .collect()
        };
        let plan = figures.as_ref().ok().map(|figures| {
            json!({
                "arena_bytes": figures.arena_bytes,
                "lower_bound_bytes": figures.lower_bound_bytes,
                "planned_tensors": figures.planned_tensors,
                "inplace_tensors": figures.inplace_tensors,
                "unplanned_nodes": figures.unplanned_nodes,
                "folded_nodes": figures.folded_nodes,
            })
        });
        let text = json!({
            "producer": model.producer,
            "opsets": model.opsets.iter().cloned().collect::<BTreeMap<_, _>>(),
            "inputs": values(&inputs_of(graph)),
            "outputs": values(&graph.outputs),
            "nodes": graph.nodes.len(),
            "operators": operators,
            "weights": weights.len(),
            "mapped_weight_bytes": bytes(true),
            "copied_weight_bytes": bytes(false),
            "plan": plan,
            "error": figures.as_ref().err(),
        });
        json.write(format!("{text:#}\n").as_bytes()).map_err(|error| error.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    let opsets = model
        .opsets
        .iter()
        .map(|(domain, version)| format!("{} {version}", if domain.is_empty() { "ai.onnx" } else { domain }));
    say!(
        "made by {}; {}",
        if model.producer.is_empty() { "nobody it names" } else { &model.producer },
        opsets.collect::<Vec<_>>().join(", ")
    );
    for (what, ids) in [("input", inputs_of(graph)), ("output", graph.outputs.clone())] {
        for id in ids {
            say!("{what:<7} {} {}", graph.values[id].name, declared(&graph.values[id]));
        }
    }
    say!(
        "weights {} tensors: {} mapped from the file, {} copied",
        weights.len(),
        size::show(bytes(true)),
        size::show(bytes(false))
    );
    let copied = weights.iter().filter(|tensor| !tensor.is_lent()).map(|tensor| tensor.ty().bytes());
    let crooked: u64 = copied.filter(|&bytes| bytes >= LARGE).map(|bytes| bytes as u64).sum();
    if crooked > 0 {
        say!(
            "        {} of the copied ones are large: `stepalloc model optimize {} OUT` writes a file where they are aligned, whose \
             pages several processes share (`model infer --no-prepacking`)",
            size::show(crooked),
            arguments.model.display()
        );
    }
    let mut counts: Vec<_> = operators.into_iter().collect();
    counts.sort_by_key(|&(name, count)| (std::cmp::Reverse(count), name));
    let counts: Vec<_> = counts.into_iter().map(|(name, count)| format!("{count} {name}")).collect();
    say!("nodes   {}: {}", graph.nodes.len(), counts.join(", "));
    match figures {
        Ok(figures) => say!(
            "plan    arena {}, lower bound {}; {} tensors, {} of them in the place of another; {} nodes computed beforehand, {} \
             left to run freely",
            size::show(figures.arena_bytes),
            size::show(figures.lower_bound_bytes),
            figures.planned_tensors,
            figures.inplace_tensors,
            figures.folded_nodes,
            figures.unplanned_nodes
        ),
        Err(error) => say!("plan    none for these shapes: {error}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Inputs that must be given.
fn inputs_of(graph: &Graph) -> Vec<usize> {
    graph.inputs.iter().copied().filter(|&id| graph.values[id].constant.is_none()).collect()
}

/// A type as the model declares it.
fn declared(value: &Value) -> String {
    let Some(declared) = &value.declared else { return "of any type".into() };
    let dim = |dim: &Dim| match dim {
        Dim::Fixed(size) => size.to_string(),
        Dim::Named(name) => name.clone(),
        Dim::Any => "?".into(),
    };
    let dims = declared.dims.as_ref().map(|dims| dims.iter().map(dim).collect::<Vec<_>>().join(", "));
    format!("{}[{}]", declared.dtype, dims.unwrap_or_else(|| "...".into()))
}
