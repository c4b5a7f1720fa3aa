//! Graph optimization: passes over a model's graph that leave what it computes as it is, but for rounding.
//!
//! A pass looks at the nodes of one graph ([`edit::Editor`]) and tells how often it changed something. All that are on run in the order
//! of [`PASSES`], again and again until none changes anything, the outer graph before those within its nodes. What a pass may do follows
//! from three rules: a value that a graph outside knows (an output, or one captured by a graph within) stays; one that another node needs
//! stays as well; and shapes and types that are not certain are a reason to leave things alone. New operators are ai.onnx's where the
//! model's version has them, else com.microsoft's, so that ONNX Runtime runs what is saved.

mod activation;
mod affine;
mod attention;
mod branches;
mod bytes;
mod constants;
mod duplicates;
mod dynamic;
mod edit;
mod facts;
mod gemm;
mod halves;
mod layer_norm;
mod no_ops;
mod opset;
mod product;
mod taps;
mod unused;
mod views;

use crate::context::RunContext;
use crate::error::Error;
use crate::graph::{Attribute, Graph, Node, ValueId};
use crate::model::Model;
use edit::{Editor, Tools};
use facts::Facts;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use stepalloc_tensor::{Tensor, Type};

/// How far a graph is optimized; each level has the passes of those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Not at all.
    Disable,
    /// With operators of ai.onnx's version that the model is written in: fewer nodes, the same kind of graph.
    Basic,
    /// With operators that do what several did; the version of ai.onnx may be raised for them.
    Extended,
    /// With all passes.
    #[default]
    All,
}

/// A pass by its name.
#[derive(Clone, Copy)]
pub struct Pass {
    /// As `--disable` takes it.
    pub name: &'static str,
    /// What it does.
    pub what: &'static str,
    /// The least level that has it.
    pub level: Level,
    /// It makes operators of our own: sessions have it, models that are written do not.
    pub in_sessions: bool,
    run: fn(&mut Editor) -> usize,
}

impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pass({})", self.name)
    }
}

const fn basic(name: &'static str, what: &'static str, run: fn(&mut Editor) -> usize) -> Pass {
    Pass { name, what, level: Level::Basic, in_sessions: false, run }
}

const fn extended(name: &'static str, what: &'static str, run: fn(&mut Editor) -> usize) -> Pass {
    Pass { name, what, level: Level::Extended, in_sessions: false, run }
}

const fn in_sessions(name: &'static str, what: &'static str, run: fn(&mut Editor) -> usize) -> Pass {
    Pass { name, what, level: Level::All, in_sessions: true, run }
}

/// Raises the version of the whole model, not of one graph.
const RAISE: &str = "raise-opset";

/// Changes the whole graph, before others; afterwards, what casts are left.
const HALVES: &str = "halves";

/// All passes, in the order in which they run.
pub const PASSES: &[Pass] = &[
    in_sessions(HALVES, "halves become f32, weights once and not in each run", halves::casts),
    // Before weights in bytes are made reals.
    Pass {
        level: Level::Basic,
        ..in_sessions(
            "bytes",
            "nodes between DequantizeLinear and QuantizeLinear compute on bytes; products of bytes have their weights laid out once",
            bytes::run,
        )
    },
    basic("constant-folding", "nodes whose inputs are all known become weights", constants::run),
    basic("known-branches", "an If whose condition is known is replaced by its branch", branches::run),
    basic(
        "no-ops",
        "nodes that give what they take are left out: Identity, Dropout, Cast to the same type, ...",
        no_ops::run,
    ),
    basic("view-chains", "of reshapes and of transpositions in a row one is left", views::run),
    basic("duplicates", "nodes that compute the same from the same are one", duplicates::run),
    basic(
        "conv-batchnorm",
        "BatchNormalization after Conv or ConvTranspose goes into its weights",
        affine::batchnorm,
    ),
    basic("conv-mul", "a product by constants after Conv goes into its weights", affine::mul),
    basic("conv-add", "a sum with constants after Conv becomes its bias", affine::add),
    basic("conv-input", "a product and a sum with one number before Conv go into its weights", affine::input),
    basic("conv-taps", "weights of Conv that only ever meet the padding are left out", taps::run),
    basic("gemm-batchnorm", "BatchNormalization after Gemm goes into its weights", gemm::batchnorm),
    basic("matmul-add", "MatMul and Add of matrices become Gemm", gemm::matmul_add),
    basic("unused-nodes", "nodes that nobody needs are left out", unused::run),
    extended(RAISE, "the version of ai.onnx is raised to 17 where that gains operators", |_| 0),
    extended(
        "hard-swish",
        "x * clip(x + 3, 0, 6) / 6 becomes HardSwish, or HardSigmoid and Mul",
        product::hard_swish,
    ),
    extended("gelu", "x * 0.5 * (1 + erf(x / sqrt 2)) becomes Gelu", product::gelu),
    extended("fast-gelu", "Gelu's approximation by tanh becomes FastGelu", product::fast_gelu),
    extended("quick-gelu", "x * sigmoid(a x) becomes QuickGelu", product::quick_gelu),
    extended("layer-norm", "mean, variance, scale and bias become LayerNormalization", layer_norm::run),
    extended("skip-layer-norm", "Add and LayerNormalization become SkipLayerNormalization", layer_norm::skip),
    extended(
        "conv-sum",
        "a sum with a tensor of the same shape after Conv becomes part of it (FusedConv)",
        activation::sum,
    ),
    extended("conv-activation", "an activation after Conv becomes part of it (FusedConv)", activation::run),
    in_sessions(
        "conv-swish",
        "HardSwish and x * sigmoid(a x) after Conv become part of it",
        activation::swish,
    ),
    in_sessions(
        "attention",
        "MatMul, Softmax and MatMul become ScaledDotProductAttention, with scale, mask and transpositions",
        attention::run,
    ),
];

/// What constant folding makes of one node has so many bytes at most: a weight of a layer that is transposed, not a table that is smaller
/// computed than stored.
const FOLD_LIMIT: usize = 16 << 20;
/// Rounds through all passes: each that changes something may let another one change more. Models take three or four.
const ROUNDS: usize = 16;

/// What to optimize, and how far.
///
/// ```
/// use stepalloc_graph::{Level, Optimization};
///
/// let optimization = Optimization::new(Level::Extended).without("conv-mul")?.fold_limit(1 << 20);
/// # Ok::<(), stepalloc_graph::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Optimization {
    level: Level,
    disabled: HashSet<&'static str>,
    fold_limit: usize,
    for_sessions: bool,
}

impl Default for Optimization {
    fn default() -> Self {
        Self::new(Level::All)
    }
}

impl Optimization {
    /// All passes of a level.
    pub fn new(level: Level) -> Self {
        Self { level, disabled: HashSet::new(), fold_limit: FOLD_LIMIT, for_sessions: false }
    }

    /// Without a pass; an error where there is none of that name.
    pub fn without(mut self, name: &str) -> Result<Self, Error> {
        let Some(pass) = PASSES.iter().find(|pass| pass.name == name) else {
            let names: Vec<_> = PASSES.iter().map(|pass| pass.name).collect();
            return Err(Error::Argument(format!("there is no pass {name}; passes are {}", names.join(", "))));
        };
        self.disabled.insert(pass.name);
        Ok(self)
    }

    /// What constant folding makes of one node may have so many bytes; 16 MiB by default.
    #[must_use]
    pub fn fold_limit(mut self, bytes: usize) -> Self {
        self.fold_limit = bytes;
        self
    }

    /// With passes whose operators no other engine knows: for a model that is run here, and not written.
    #[must_use]
    pub fn for_sessions(mut self) -> Self {
        self.for_sessions = true;
        self
    }

    fn has_named(&self, name: &str) -> bool {
        PASSES.iter().any(|pass| pass.name == name && self.has(pass))
    }

    fn has(&self, pass: &Pass) -> bool {
        pass.level <= self.level
            && (self.for_sessions || !pass.in_sessions)
            && !self.disabled.contains(pass.name)
    }
}

/// What passes did to a model.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// How often each pass changed something; those that did not are left out.
    pub passes: Vec<(&'static str, usize)>,
    /// Nodes before, those of graphs within nodes too.
    pub nodes_before: usize,
    /// Nodes afterwards.
    pub nodes_after: usize,
}

impl Model {
    /// The model with fewer nodes, computing the same but for rounding, and what was done to it. Weights that passes made lie in memory, not
    /// in the file, and are shared by all sessions of the model that is returned.
    pub fn optimize(self, optimization: &Optimization) -> (Self, Changes) {
        self.optimize_with(optimization, RunContext::new())
    }

    /// The same; nodes that are computed have what runs of a session have.
    pub(crate) fn optimize_with(
        mut self,
        optimization: &Optimization,
        context: RunContext,
    ) -> (Self, Changes) {
        let nodes_before = count(&self.graph);
        let mut done = Done::new(Tools { registry: self.registry.clone(), context });
        if optimization.level > Level::Disable {
            // Weights that passes replace go at once, if nobody else has the model.
            let mut graph = Arc::unwrap_or_clone(std::mem::take(&mut self.graph));
            if optimization.has_named(HALVES)
                && let Some(widened) = halves::widen(&graph, &done.tools)
            {
                graph = widened;
                *done.counts.entry(HALVES).or_default() += 1;
            }
            let basic = Optimization { level: Level::Basic, ..optimization.clone() };
            graph = optimize(graph, &[], &basic, self.opset(), false, &mut done);
            if optimization.level > Level::Basic {
                if let Some(raised) = optimization
                    .has_named(RAISE)
                    .then(|| opset::raise(&graph, self.opset(), &done.tools))
                    .flatten()
                {
                    graph = raised;
                    self.opsets.retain(|(domain, _)| !matches!(domain.as_str(), "" | "ai.onnx"));
                    self.opsets.push((String::new(), opset::RAISED));
                    *done.counts.entry(RAISE).or_default() += 1;
                }
                graph = optimize(graph, &[], optimization, self.opset(), false, &mut done);
            }
            self.graph = Arc::new(compact(&graph));
        }
        let told =
            |pass: &Pass| Some((pass.name, *done.counts.get(pass.name)?)).filter(|&(_, count)| count > 0);
        let passes = PASSES.iter().filter_map(told).collect();
        let nodes_after = count(&self.graph);
        (self, Changes { passes, nodes_before, nodes_after })
    }

    /// The version of ai.onnx that it is written in.
    fn opset(&self) -> i64 {
        let found = self.opsets.iter().find(|(domain, _)| matches!(domain.as_str(), "" | "ai.onnx"));
        found.map_or(1, |(_, version)| *version)
    }
}

/// What passes did so far.
struct Done {
    tools: Tools,
    counts: HashMap<&'static str, usize>,
    /// Weights that passes made, by type and a hash of their elements: graphs within nodes may have come to the same ones.
    made: HashMap<(Type, u64), Arc<Tensor>>,
}

impl Done {
    fn new(tools: Tools) -> Self {
        Self { tools, counts: HashMap::new(), made: HashMap::new() }
    }

    /// Weights that were made before are taken for those of this graph that are the same.
    fn share(&mut self, editor: &mut Editor) {
        for tensor in editor.constants_mut().filter(|tensor| tensor.own_bytes() > 0) {
            let mut hasher = DefaultHasher::new();
            tensor.view().bytes.hash(&mut hasher);
            let first =
                self.made.entry((tensor.ty().clone(), hasher.finish())).or_insert_with(|| Arc::clone(tensor));
            if first.view().bytes == tensor.view().bytes {
                *tensor = Arc::clone(first);
            }
        }
    }
}

/// Nodes of a graph and those within.
fn count(graph: &Graph) -> usize {
    graph.nodes.len()
        + graph.nodes.iter().flat_map(Node::graphs).map(|(_, inner)| count(inner)).sum::<usize>()
}

/// Runs passes over a graph, then over those within its nodes, which are told what is known of what they take from outside.
fn optimize(
    graph: Graph,
    outside: &[(ValueId, &Facts)],
    optimization: &Optimization,
    opset: i64,
    is_inner: bool,
    done: &mut Done,
) -> Graph {
    let facts = Facts::new(&graph, outside, is_inner, &done.tools.context);
    let (tools, limit) = (done.tools.clone(), optimization.fold_limit);
    let mut editor = Editor::new(graph, facts, tools, opset, limit, is_inner);
    let passes: Vec<_> = PASSES.iter().filter(|pass| optimization.has(pass)).collect();
    for _ in 0..ROUNDS {
        let mut changed = 0;
        for pass in &passes {
            let count = (pass.run)(&mut editor);
            editor.sweep();
            *done.counts.entry(pass.name).or_default() += count;
            changed += count;
        }
        if changed == 0 {
            break;
        }
    }
    let has_graphs = |at| editor.node(at).is_some_and(|node| node.graphs().next().is_some());
    if is_inner || editor.places().any(has_graphs) {
        done.share(&mut editor);
    }
    for at in editor.places() {
        let Some(node) = editor.node(at).filter(|node| node.graphs().next().is_some()).cloned() else {
            continue;
        };
        if let Some(node) = optimize_within(&editor, node, optimization, done) {
            editor.put(at, node);
        }
    }
    if let Some(pass) = passes.iter().find(|pass| pass.name == "unused-nodes") {
        *done.counts.entry(pass.name).or_default() += (pass.run)(&mut editor);
    }
    editor.finish()
}

/// A node with the graphs within it optimized.
fn optimize_within(
    editor: &Editor,
    mut node: Node,
    optimization: &Optimization,
    done: &mut Done,
) -> Option<Node> {
    let graphs: Vec<_> = node.graphs().map(|(name, graph)| (name.to_owned(), Graph::clone(graph))).collect();
    let mut captures = node.captures.iter();
    let mut kept = Vec::new();
    for (name, mut graph) in graphs {
        let mut outside = Vec::new();
        let captured = std::mem::take(&mut graph.captured);
        for (id, &outer) in captured.into_iter().zip(captures.by_ref()) {
            match editor.constant(outer) {
                Some(tensor) => graph.values[id].constant = Some(Arc::clone(tensor)),
                None => {
                    graph.captured.push(id);
                    outside.push(outer);
                }
            }
        }
        let facts: Vec<_> = outside.iter().map(|&outer| (outer, &editor.facts)).collect();
        let mut made = compact(&optimize(graph, &facts, optimization, node.opset, true, done));
        // What is taken from outside and needed no more.
        let needed: HashSet<_> = made
            .nodes
            .iter()
            .flat_map(|inner| edit::taken(inner).collect::<Vec<_>>())
            .chain(made.outputs.iter().copied())
            .collect();
        let captured = std::mem::take(&mut made.captured);
        for (id, outer) in captured.into_iter().zip(outside) {
            if needed.contains(&id) {
                made.captured.push(id);
                kept.push(outer);
            }
        }
        node.attributes.0.insert(name, Attribute::Graph(Arc::new(made)));
    }
    node.captures = kept;
    node.remade(&editor.tools.registry)
}

/// The graph without values that nobody has or needs: weights that passes replaced stay in memory no longer.
fn compact(graph: &Graph) -> Graph {
    let mut needed = vec![false; graph.values.len()];
    let nodes =
        graph.nodes.iter().flat_map(|node| edit::taken(node).chain(node.outputs.iter().flatten().copied()));
    let ends = graph.inputs.iter().chain(&graph.outputs).chain(&graph.captured).copied();
    nodes.chain(ends).for_each(|id| needed[id] = true);
    let mut numbers = vec![0; graph.values.len()];
    let mut values = Vec::new();
    for (id, value) in graph.values.iter().enumerate().filter(|(id, _)| needed[*id]) {
        numbers[id] = values.len();
        values.push(value.clone());
    }
    let ids = |ids: &[ValueId]| ids.iter().map(|&id| numbers[id]).collect::<Vec<_>>();
    let some = |ids: &[Option<ValueId>]| ids.iter().map(|id| id.map(|id| numbers[id])).collect::<Vec<_>>();
    let node = |node: &Node| Node {
        inputs: some(&node.inputs),
        outputs: some(&node.outputs),
        captures: ids(&node.captures),
        ..node.clone()
    };
    Graph {
        name: graph.name.clone(),
        nodes: graph.nodes.iter().map(node).collect(),
        inputs: ids(&graph.inputs),
        outputs: ids(&graph.outputs),
        captured: ids(&graph.captured),
        values,
    }
}
