//! Dynamic quantization, as ONNX Runtime's `quantize_dynamic` does it: constant weights of 8 bits in the file, activations by their
//! own range each time the model runs, products of integers between them.
//!
//! From file to file, on ONNX's messages: what is not rewritten stays as it is, whether this runtime knows it or not. Nodes, their
//! names and their order are those that ONNX Runtime writes with the same options, so that either runs the other's models.
//!
//! | module | what it does |
//! |---|---|
//! | `graph` | goes through the nodes; knows which values are there in 8 bits, and makes f32 of them where a node needs it |
//! | `gemm`, `products`, `tables`, `recurrent` | what becomes of Gemm; MatMul and Conv; Gather and Transpose; LSTM |
//! | `weights` | scales, zero points and elements |
//! | `names`, `order` | new names, initializers nobody takes; the order of nodes |
//! | `save` | files |

mod gemm;
mod graph;
mod names;
mod order;
mod products;
mod recurrent;
mod save;
mod tables;
mod weights;

use graph::{Rewriter, called};
use names::{Names, graphs};
use prost::Message;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use stepalloc_graph::Error;
use stepalloc_onnx::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto};
use stepalloc_onnx::tensors::Folder;
pub use weights::WeightType;

/// What can be quantized.
const OPERATORS: [&str; 6] = ["Conv", "Gather", "Gemm", "LSTM", "MatMul", "Transpose"];
/// DynamicQuantizeLinear is in ai.onnx from this version on.
const LEAST_OPSET: i64 = 11;
/// From this version of the format on, initializers need not be inputs.
const FREE_INITIALIZERS: i64 = 4;
/// The domain of ONNX Runtime's own operators.
const MICROSOFT: &str = "com.microsoft";

/// Options of dynamic quantization; ONNX Runtime's defaults.
///
/// ```no_run
/// use stepalloc_graph::Error;
/// use stepalloc_quantize::{QuantizeDynamic, WeightType};
///
/// fn main() -> Result<(), Error> {
///     let options = QuantizeDynamic::new().weight_type(WeightType::QUInt8).per_channel(true).exclude(["/head/MatMul"]);
///     let done = options.run("net.onnx", "net.int8.onnx")?;
///     println!("{} nodes, {} -> {} bytes", done.nodes.len(), done.bytes_before, done.bytes_after);
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct QuantizeDynamic {
    weight_type: WeightType,
    per_channel: bool,
    reduce_range: bool,
    op_types: Vec<String>,
    only: Vec<String>,
    exclude: Vec<String>,
    weight_symmetric: Option<bool>,
    subgraphs: bool,
}

/// What was quantized.
#[derive(Clone, Debug, Default)]
pub struct Quantized {
    /// Operators and names of the nodes that were; Gemms as MatMul.
    pub nodes: Vec<(String, String)>,
    /// Nodes that could not be.
    pub left: Vec<Left>,
    /// Bytes of the model, with the tensors in files beside it.
    pub bytes_before: u64,
    /// Bytes of what was written.
    pub bytes_after: u64,
}

/// A node that could not be quantized.
#[derive(Clone, Debug)]
pub struct Left {
    /// Its operator.
    pub op: String,
    /// Its name, or its first output's.
    pub node: String,
    /// Why.
    pub why: String,
}

impl QuantizeDynamic {
    /// Signed weights, one scale per tensor, in all nodes outside of subgraphs.
    pub fn new() -> Self {
        Self::default()
    }

    /// The type of the weights of MatMul, Gemm and Conv. Tables of Gather are unsigned, those of LSTM signed.
    pub fn weight_type(mut self, ty: WeightType) -> Self {
        self.weight_type = ty;
        self
    }

    /// A scale for each column of MatMul's and each gate's row of LSTM's weights.
    pub fn per_channel(mut self, per_channel: bool) -> Self {
        self.per_channel = per_channel;
        self
    }

    /// Weights of 7 bits, for processors without VNNI, whose sums of u8 x i8 saturate in ONNX Runtime.
    pub fn reduce_range(mut self, reduce_range: bool) -> Self {
        self.reduce_range = reduce_range;
        self
    }

    /// Only these operators: Conv, Gather, Gemm, LSTM, MatMul (Gemm as well), Transpose. All by default.
    pub fn op_types<S: Into<String>>(mut self, ops: impl IntoIterator<Item = S>) -> Self {
        self.op_types = ops.into_iter().map(Into::into).collect();
        self
    }

    /// Only these nodes, by name, or by the name of the first output where they have none.
    pub fn only<S: Into<String>>(mut self, nodes: impl IntoIterator<Item = S>) -> Self {
        self.only = nodes.into_iter().map(Into::into).collect();
        self
    }

    /// Not these nodes.
    pub fn exclude<S: Into<String>>(mut self, nodes: impl IntoIterator<Item = S>) -> Self {
        self.exclude = nodes.into_iter().map(Into::into).collect();
        self
    }

    /// Whether 0 is in the middle of the range of weights; by default that of signed ones.
    pub fn weight_symmetric(mut self, symmetric: bool) -> Self {
        self.weight_symmetric = Some(symmetric);
        self
    }

    /// Whether nodes in the graphs of If, Loop and Scan are quantized, too.
    pub fn subgraphs(mut self, subgraphs: bool) -> Self {
        self.subgraphs = subgraphs;
        self
    }

    /// Quantizes a model from file to file. The second may be the first: it is replaced when all is done.
    ///
    /// Where nothing can be quantized, nothing is written: the error says why.
    pub fn run(&self, model: impl AsRef<Path>, output: impl AsRef<Path>) -> Result<Quantized, Error> {
        let (path, output) = (model.as_ref(), output.as_ref());
        let named = |error| match error {
            Error::Model(what) => Error::Model(format!("{}: {what}", path.display())),
            other => other,
        };
        let bytes = stepalloc_tensor::mapped::open(path)
            .map_err(|source| Error::File { path: path.into(), source })?;
        let length = bytes.len() as u64;
        let proto = ModelProto::decode(bytes)
            .map_err(|error| named(Error::model(format!("no ONNX model: {error}"))))?;
        let folder = Folder::new(path.parent().map(Path::to_owned));
        let (proto, mut done) = self.rewrite(proto, folder).map_err(named)?;
        done.bytes_before += length;
        done.bytes_after = save::save(proto, output, save::MOST)?;
        Ok(done)
    }

    /// The same of a message, with weights that lie in files of that folder; nothing is written.
    pub fn rewrite(
        &self,
        mut model: ModelProto,
        mut folder: Folder,
    ) -> Result<(ModelProto, Quantized), Error> {
        if let Some(unknown) = self.op_types.iter().find(|op| !OPERATORS.contains(&op.as_str())) {
            return Err(Error::Argument(format!(
                "{unknown} cannot be quantized; those that can are {}",
                OPERATORS.join(", ")
            )));
        }
        let plain = |set: &&OperatorSetIdProto| matches!(set.domain.as_deref(), None | Some("" | "ai.onnx"));
        let opset = model.opset_import.iter().find(plain).and_then(|set| set.version).unwrap_or(1);
        if opset < LEAST_OPSET {
            return Err(Error::model(format!(
                "it is of opset {opset}, and DynamicQuantizeLinear of {LEAST_OPSET}: convert it first, as \
                 onnx.version_converter.convert_version(model, {LEAST_OPSET}) does"
            )));
        }
        let beside = save::gather(&mut model, &mut folder)?;
        let graph = model.graph.take().ok_or_else(|| Error::model("no ONNX model: it has no graph"))?;
        self.check_names(&graph)?;
        let inner = graph.node.iter().flat_map(graphs).next().is_some();
        let mut rewriter = Rewriter {
            options: self,
            opset,
            names: Names::of(&graph),
            folder,
            turned: HashMap::new(),
            levels: Vec::new(),
            done: Quantized { bytes_before: beside, ..Quantized::default() },
        };
        let mut graph = rewriter.graph(graph)?;
        let Rewriter { turned, mut folder, done, .. } = rewriter;
        gemm::fill(&mut graph, &turned, &mut folder)?;
        if done.nodes.is_empty() {
            return Err(Error::model(nothing(&done.left, inner && !self.subgraphs)));
        }
        let is_microsoft = |set: &OperatorSetIdProto| set.domain.as_deref() == Some(MICROSOFT);
        if done.nodes.iter().any(|(op, _)| op == "LSTM") && !model.opset_import.iter().any(is_microsoft) {
            let set = OperatorSetIdProto { domain: Some(MICROSOFT.into()), version: Some(1) };
            model.opset_import.push(set);
        }
        model.ir_version = Some(model.ir_version.unwrap_or_default().max(FREE_INITIALIZERS));
        model.graph = Some(graph);
        Ok((model, done))
    }

    /// Names that no node has are mistakes.
    fn check_names(&self, graph: &GraphProto) -> Result<(), Error> {
        let mut known = HashSet::new();
        self.collect(graph, &mut known);
        match self.only.iter().chain(&self.exclude).find(|&name| !known.contains(name)) {
            Some(name) => {
                let hint = if self.subgraphs { "" } else { " outside of subgraphs" };
                Err(Error::Argument(format!("there is no node {name}{hint}")))
            }
            None => Ok(()),
        }
    }

    fn collect(&self, graph: &GraphProto, known: &mut HashSet<String>) {
        for node in &graph.node {
            known.insert(called(node).to_owned());
            if node.op_type.as_deref() == Some("Gemm") {
                known.insert(format!("{}_MatMul", called(node)));
            }
            if self.subgraphs {
                graphs(node).for_each(|graph| self.collect(graph, known));
            }
        }
    }

    /// Whether a node is one of those to be quantized; `gemm` is the name of the Gemm that a MatMul is of.
    fn wants(&self, node: &NodeProto, gemm: Option<&str>) -> bool {
        let op = node.op_type.as_deref().unwrap_or_default();
        let is_gemm = op == "Gemm" || gemm.is_some();
        let asked = self
            .op_types
            .iter()
            .any(|asked| asked == op || is_gemm && (asked == "Gemm" || asked == "MatMul"));
        let names = [Some(called(node)), gemm];
        let listed = self.only.iter().any(|name| names.contains(&Some(name)));
        (self.op_types.is_empty() || asked) && (self.only.is_empty() || listed) && !self.excludes(node)
    }

    fn excludes(&self, node: &NodeProto) -> bool {
        self.exclude.iter().any(|name| name == called(node))
    }

    fn is_symmetric(&self) -> bool {
        self.weight_symmetric.unwrap_or(self.weight_type == WeightType::QInt8)
    }
}

/// Why nothing was quantized; `inner`: whether there are graphs within nodes, which were not looked into.
fn nothing(left: &[Left], inner: bool) -> String {
    let most = 3;
    let mut text = "nothing to quantize".to_owned();
    for Left { op, node, why } in left.iter().take(most) {
        text.push_str(&format!("; node {node} ({op}): {why}"));
    }
    if left.len() > most {
        text.push_str(&format!("; and {} more", left.len() - most));
    }
    if inner {
        text.push_str(
            "; nodes in the graphs of If, Loop and Scan are only quantized where --subgraphs asks for it",
        );
    }
    text
}
