//! A model as a graph: values, and the nodes that make them from others.

use crate::operator::Operator;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use stepalloc_tensor::{DataType, Tensor};

/// A value's number in its graph.
pub type ValueId = usize;

/// A dimension as a model declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dim {
    /// Of this size.
    Fixed(usize),
    /// Of a size that has a name.
    Named(String),
    /// Of any size.
    Any,
}

/// A type as a model declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Of the elements.
    pub dtype: DataType,
    /// Of each dimension; `None` if even their number is open.
    pub dims: Option<Vec<Dim>>,
}

/// What a node makes or takes.
#[derive(Clone, Debug, Default)]
pub struct Value {
    /// Unique in its graph.
    pub name: String,
    /// What the model says of it.
    pub declared: Option<Declared>,
    /// Its elements, where the model has them.
    pub constant: Option<Arc<Tensor>>,
}

/// An operator at work.
#[derive(Clone)]
pub struct Node {
    /// As the model names it, or its first output.
    pub name: String,
    /// The operator's name.
    pub op_type: String,
    /// The operator's domain; empty is ai.onnx.
    pub domain: String,
    /// Version of the domain.
    pub opset: i64,
    /// What else it was told.
    pub attributes: Attributes,
    /// Values it takes; `None` for optional ones that are left out.
    pub inputs: Vec<Option<ValueId>>,
    /// Values of this graph that graphs within the node take from outside: graph after graph in the order of the
    /// attributes' names, each in its own order.
    pub captures: Vec<ValueId>,
    /// Values it makes; `None` for those nobody wants.
    pub outputs: Vec<Option<ValueId>>,
    /// Its code.
    pub operator: Arc<dyn Operator>,
}

impl Node {
    /// Graphs within, with the names of their attributes, in the order of these.
    pub fn graphs(&self) -> impl Iterator<Item = (&str, &Arc<Graph>)> {
        let graphs = self.attributes.0.iter().filter_map(|(name, attribute)| match attribute {
            Attribute::Graph(graph) => Some((name.as_str(), graph)),
            _ => None,
        });
        graphs.collect::<BTreeMap<_, _>>().into_iter()
    }
}

/// Values, and nodes in an order in which they can run.
#[derive(Clone, Default)]
pub struct Graph {
    /// Its name.
    pub name: String,
    /// All values.
    pub values: Vec<Value>,
    /// All nodes; each after those that make what it takes.
    pub nodes: Vec<Node>,
    /// What is to be given, in this order. Those with a constant may be left out.
    pub inputs: Vec<ValueId>,
    /// What comes out, in this order.
    pub outputs: Vec<ValueId>,
    /// Of a graph within a node: values that are those of the graph around it.
    pub captured: Vec<ValueId>,
}

impl Graph {
    /// Tensors that the model has, those of graphs within nodes too, each once.
    pub fn weights(&self) -> Vec<Arc<Tensor>> {
        let (mut seen, mut found) = (HashSet::new(), Vec::new());
        self.collect_weights(&mut seen, &mut found);
        found
    }

    fn collect_weights(&self, seen: &mut HashSet<*const Tensor>, found: &mut Vec<Arc<Tensor>>) {
        let values = self.values.iter().filter_map(|value| value.constant.clone());
        let nodes = self.nodes.iter().filter_map(|node| node.operator.constant());
        found.extend(values.chain(nodes).filter(|tensor| seen.insert(Arc::as_ptr(tensor))));
        for attribute in self.nodes.iter().flat_map(|node| node.attributes.0.values()) {
            if let Attribute::Graph(graph) = attribute {
                graph.collect_weights(seen, found);
            }
        }
    }

    /// Bytes of weights that are, or will be, copied into memory.
    pub fn copied_bytes(&self) -> u64 {
        let weights = self.weights();
        weights.iter().filter(|tensor| !tensor.is_lent()).map(|tensor| tensor.ty().bytes() as u64).sum()
    }
}

/// What a node is told beside its inputs.
#[derive(Clone, Debug)]
pub enum Attribute {
    /// A number.
    Int(i64),
    /// A number.
    Float(f32),
    /// Text, as bytes.
    String(Vec<u8>),
    /// A tensor.
    Tensor(Arc<Tensor>),
    /// A graph to be run within the node.
    Graph(Arc<Graph>),
    /// Numbers.
    Ints(Vec<i64>),
    /// Numbers.
    Floats(Vec<f32>),
    /// Texts.
    Strings(Vec<Vec<u8>>),
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Graph({}: {} nodes)", self.name, self.nodes.len())
    }
}

/// A node's attributes by name.
#[derive(Clone, Debug, Default)]
pub struct Attributes(pub HashMap<String, Attribute>);

impl Attributes {
    /// A number, or `default` where it is left out.
    pub fn int(&self, name: &str, default: i64) -> i64 {
        self.opt_int(name).unwrap_or(default)
    }

    /// A number.
    pub fn opt_int(&self, name: &str) -> Option<i64> {
        match self.0.get(name)? {
            Attribute::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// A number, or `default` where it is left out.
    pub fn float(&self, name: &str, default: f32) -> f32 {
        self.opt_float(name).unwrap_or(default)
    }

    /// A number.
    pub fn opt_float(&self, name: &str) -> Option<f32> {
        match self.0.get(name)? {
            Attribute::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// Numbers.
    pub fn ints(&self, name: &str) -> Option<Vec<i64>> {
        match self.0.get(name)? {
            Attribute::Ints(values) => Some(values.clone()),
            _ => None,
        }
    }

    /// Numbers.
    pub fn floats(&self, name: &str) -> Option<Vec<f32>> {
        match self.0.get(name)? {
            Attribute::Floats(values) => Some(values.clone()),
            _ => None,
        }
    }

    /// Text, or `default` where it is left out or no UTF-8.
    pub fn text<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        match self.0.get(name) {
            Some(Attribute::String(bytes)) => std::str::from_utf8(bytes).unwrap_or(default),
            _ => default,
        }
    }

    /// Texts; those that are no UTF-8 are empty.
    pub fn texts(&self, name: &str) -> Option<Vec<&str>> {
        match self.0.get(name)? {
            Attribute::Strings(texts) => {
                Some(texts.iter().map(|text| std::str::from_utf8(text).unwrap_or_default()).collect())
            }
            _ => None,
        }
    }

    /// A tensor.
    pub fn tensor(&self, name: &str) -> Option<Arc<Tensor>> {
        match self.0.get(name)? {
            Attribute::Tensor(tensor) => Some(Arc::clone(tensor)),
            _ => None,
        }
    }

    /// A graph.
    pub fn graph(&self, name: &str) -> Option<Arc<Graph>> {
        match self.0.get(name)? {
            Attribute::Graph(graph) => Some(Arc::clone(graph)),
            _ => None,
        }
    }
}
