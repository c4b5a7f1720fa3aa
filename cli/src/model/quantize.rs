//! `model quantize`: a model with weights of 8 bits.

use crate::output::Output;
use crate::output::say;
use crate::size;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use stepalloc_runtime::{QuantizeDynamic, WeightType};

/// Nodes that could not be quantized are named up to this many.
const NAMED: usize = 5;

/// Give a model weights of 8 bits
#[derive(clap::Args)]
#[command(
    after_help = "Constant weights of MatMul, Gemm and Conv, tables of Gather and weights of LSTM become integers of 8 bits; what they are
multiplied with is quantized by its own range in each run. Nodes and their names are those of onnxruntime.quantization's
quantize_dynamic with the same options, and ONNX Runtime runs the result, too. No data are needed.

The result differs from the model's: compare both on inputs of yours, and leave out nodes that matter most by --exclude.

JSON: quantized (op and node), left (op, node and why), bytes_before, bytes_after, ratio.

Examples:
  stepalloc model quantize net.onnx -o net.int8.onnx
  stepalloc model quantize net.onnx -o net.int8.onnx --per-channel --exclude /head/MatMul
  stepalloc model quantize net.onnx -o net.int8.onnx --op-types MatMul,Gemm --weight-type uint8"
)]
pub(super) struct Arguments {
    /// The model, an ONNX file
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Where the quantized model goes; beyond 2 GiB its tensors go to OUT.data
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// The type of weights: int8 is symmetric around 0, uint8 has a zero point
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = Weights::Int8)]
    weight_type: Weights,
    /// A scale for each column of MatMul's and Gemm's weights
    #[arg(long)]
    per_channel: bool,
    /// Weights of 7 bits, for processors without VNNI
    #[arg(long)]
    reduce_range: bool,
    /// Only these operators: Conv, Gather, Gemm, LSTM, MatMul (Gemm as well), Transpose
    #[arg(long, value_name = "OP,OP", value_delimiter = ',')]
    op_types: Vec<String>,
    /// Only these nodes
    #[arg(long, value_name = "NODE,NODE", value_delimiter = ',')]
    only: Vec<String>,
    /// Not these nodes
    #[arg(long, value_name = "NODE,NODE", value_delimiter = ',')]
    exclude: Vec<String>,
    /// Nodes in the graphs of If, Loop and Scan as well
    #[arg(long)]
    subgraphs: bool,
    /// Write what was done as JSON; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Weights {
    Int8,
    Uint8,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, String> {
    let json = arguments.json.as_deref().map(Output::open).transpose().map_err(|error| error.to_string())?;
    let options = QuantizeDynamic::new()
        .weight_type(match arguments.weight_type {
            Weights::Int8 => WeightType::QInt8,
            Weights::Uint8 => WeightType::QUInt8,
        })
        .per_channel(arguments.per_channel)
        .reduce_range(arguments.reduce_range)
        .op_types(&arguments.op_types)
        .only(&arguments.only)
        .exclude(&arguments.exclude)
        .subgraphs(arguments.subgraphs);
    let done = options.run(&arguments.model, &arguments.output).map_err(|error| error.to_string())?;
    let ratio = done.bytes_before as f64 / done.bytes_after.max(1) as f64;
    if let Some(json) = json {
        let nodes = |op: &str, node: &str| json!({"op": op, "node": node});
        let quantized: Vec<_> = done.nodes.iter().map(|(op, node)| nodes(op, node)).collect();
        let left: Vec<_> =
            done.left.iter().map(|left| json!({"op": left.op, "node": left.node, "why": left.why})).collect();
        let text = json!({
            "model": arguments.model.display().to_string(),
            "quantized": quantized,
            "left": left,
            "bytes_before": done.bytes_before,
            "bytes_after": done.bytes_after,
            "ratio": ratio,
        });
        json.write(format!("{text:#}\n").as_bytes()).map_err(|error| error.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (op, _) in &done.nodes {
        *counts.entry(op).or_default() += 1;
    }
    let counts: Vec<_> = counts.iter().map(|(op, count)| format!("{op} {count}")).collect();
    say!("quantized: {}", counts.join(", "));
    for left in done.left.iter().take(NAMED) {
        say!("left as it is: node {} ({}): {}", left.node, left.op, left.why);
    }
    if done.left.len() > NAMED {
        say!("left as they are: {} nodes more (--json names them)", done.left.len() - NAMED);
    }
    say!("{} -> {}, {ratio:.2} times smaller", size::show(done.bytes_before), size::show(done.bytes_after));
    Ok(ExitCode::SUCCESS)
}
