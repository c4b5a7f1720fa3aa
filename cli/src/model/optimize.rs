//! `model optimize`: writes a model with fewer nodes.

use super::passes;
use crate::output::Output;
use crate::output::say;
use crate::size;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use stepalloc_runtime::Model;

/// Write a model with fewer nodes that computes the same but for rounding
#[derive(clap::Args)]
#[command(
    after_help = format!(
        "The result is an ONNX file that ONNX Runtime runs too; FusedConv, FastGelu, QuickGelu, SkipLayerNormalization and, before version
20, Gelu are operators of its own domain, com.microsoft: --level basic has none of them. Weights lie in the file so that they need
not be copied when it is mapped. OUT may be MODEL: it is replaced when all is written.

{}
Examples:
  stepalloc model optimize net.onnx --output small.onnx
  stepalloc model optimize net.onnx -o small.onnx --level basic --disable conv-mul,conv-add",
        passes::list()
    )
)]
pub(super) struct Arguments {
    /// The model, an ONNX file
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Where to write it
    #[arg(long, short, value_name = "OUT")]
    output: PathBuf,
    #[command(flatten)]
    passes: passes::Passes,
    /// Write what was done as JSON; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, String> {
    let json = arguments.json.as_deref().map(Output::open).transpose().map_err(|error| error.to_string())?;
    let optimization = arguments.passes.optimization()?;
    let model = Model::open(&arguments.model).map_err(|error| error.to_string())?;
    let (model, changes) = model.optimize(&optimization);
    model.save(&arguments.output).map_err(|error| error.to_string())?;
    let bytes = |path: &PathBuf| path.metadata().map_or(0, |found| found.len());
    let (before, after) = (bytes(&arguments.model), bytes(&arguments.output));
    if let Some(json) = json {
        let text = json!({
            "nodes_before": changes.nodes_before,
            "nodes_after": changes.nodes_after,
            "bytes_before": before,
            "bytes_after": after,
            "passes": changes.passes.iter().copied().collect::<std::collections::BTreeMap<_, _>>(),
        });
        json.write(format!("{text:#}\n").as_bytes()).map_err(|error| error.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    for (pass, count) in &changes.passes {
        say!("{count:>6}  {pass}");
    }
    say!(
        "nodes {} before, {} afterwards; {} before, {} afterwards",
        changes.nodes_before,
        changes.nodes_after,
        size::show(before),
        size::show(after)
    );
    Ok(ExitCode::SUCCESS)
}
