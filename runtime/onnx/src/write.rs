//! From the graph to messages, the other way round than `read`.
//!
//! Elements that are always the same are initializers of the outermost graph, each tensor once, wherever it is needed: graphs within
//! nodes may name them. Names are kept as far as no two values that see each other have the same.

use super::proto::tensor_shape_proto::{Dimension, dimension};
use super::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto,
    TensorProto, TensorShapeProto, TypeProto, ValueInfoProto, type_proto,
};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use stepalloc_graph::{Attribute, Declared, Dim, Error, Graph, Header, Model, Node, Value, ValueId};
use stepalloc_tensor::{OpError, Tensor};

/// The first version of the format in which initializers need not be inputs.
const FREE_INITIALIZERS: i64 = 4;

/// A model's messages; elements of its weights are beside them.
pub(super) struct Written {
    /// Without its graph.
    pub model: ModelProto,
    /// Without its initializers.
    pub graph: GraphProto,
    /// Initializers without elements, and these as they are in files.
    pub weights: Vec<(TensorProto, Bytes)>,
}

impl Written {
    pub(super) fn new(model: &Model) -> Result<Self, Error> {
        let graph = &*model.graph;
        let mut writer = Writer { all: HashMap::new(), opsets: BTreeMap::new(), weights: Weights::default() };
        writer.count(graph);
        let proto = writer.graph(graph, None, &[])?;
        for &id in graph.inputs.iter().chain(&graph.outputs) {
            let value = &graph.values[id];
            if value.declared.is_none() && value.constant.is_none() {
                return Err(Error::model(format!(
                    "{} cannot be written: nothing says its type, and that of a model's inputs and outputs must be said",
                    value.name
                )));
            }
        }
        let weights = std::mem::take(&mut writer.weights.made);
        let inputs: HashSet<_> = proto.input.iter().filter_map(|input| input.name.as_deref()).collect();
        let is_input = |(name, _): &(String, Arc<Tensor>)| inputs.contains(name.as_str());
        let mut header = written(model);
        if !weights.iter().all(is_input) {
            header.ir_version = header.ir_version.max(Some(FREE_INITIALIZERS));
        }
        header.opset_import = writer.imports(model);
        let weights = weights.into_iter().map(|(name, tensor)| {
            let (proto, bytes) = parts(&tensor);
            (TensorProto { name: Some(name), ..proto }, bytes)
        });
        Ok(Self { model: header, weights: weights.collect(), graph: proto })
    }
}

/// The message without graph and versions.
fn written(model: &Model) -> ModelProto {
    let Header { ir_version, producer_version, domain, model_version, doc_string, metadata } = &*model.header;
    let word = |(key, value): &(String, String)| StringStringEntryProto {
        key: Some(key.clone()),
        value: Some(value.clone()),
    };
    ModelProto {
        ir_version: *ir_version,
        producer_name: (!model.producer.is_empty()).then(|| model.producer.clone()),
        producer_version: producer_version.clone(),
        domain: domain.clone(),
        model_version: *model_version,
        doc_string: doc_string.clone(),
        metadata_props: metadata.iter().map(word).collect(),
        ..ModelProto::default()
    }
}

/// What tells two tensors apart.
fn address(tensor: &Arc<Tensor>) -> *const Tensor {
    Arc::as_ptr(tensor)
}

/// Tensors that become initializers of the outermost graph.
#[derive(Default)]
struct Weights {
    /// Names that graphs within know them by, and whether they are not written unless one does.
    names: HashMap<*const Tensor, (String, bool)>,
    made: Vec<(String, Arc<Tensor>)>,
}

struct Writer {
    /// How many values have a name, in all graphs.
    all: HashMap<String, usize>,
    /// Versions by domain, and the first node that needs one.
    opsets: BTreeMap<String, (i64, String)>,
    weights: Weights,
}

/// A graph that is being written.
struct Scope<'a> {
    names: Vec<String>,
    /// Names that its values must not have.
    used: HashSet<String>,
    outer: Option<&'a Scope<'a>>,
}

impl Scope<'_> {
    fn sees(&self, name: &str) -> bool {
        self.used.contains(name) || self.outer.is_some_and(|outer| outer.sees(name))
    }
}

impl Writer {
    fn count(&mut self, graph: &Graph) {
        for value in &graph.values {
            *self.all.entry(value.name.clone()).or_default() += 1;
        }
        graph.nodes.iter().flat_map(Node::graphs).for_each(|(_, inner)| self.count(inner));
    }

    /// A name that no value of any graph has.
    fn fresh(&mut self, like: &str) -> String {
        let found = (1..).map(|number| format!("{like}_{number}")).find(|name| !self.all.contains_key(name));
        let name = found.unwrap_or_default();
        self.all.insert(name.clone(), 1);
        name
    }

    /// The name of a tensor in the outermost graph, for a graph within.
    fn weight(&mut self, value: &Value, tensor: &Arc<Tensor>) -> String {
        if let Some((name, waits)) = self.weights.names.get_mut(&address(tensor)) {
            if std::mem::replace(waits, false) {
                self.weights.made.push((name.clone(), Arc::clone(tensor)));
            }
            return name.clone();
        }
        let alone = self.all.get(&value.name) == Some(&1);
        let name = if alone { value.name.clone() } else { self.fresh(&value.name) };
        self.weights.names.insert(address(tensor), (name.clone(), false));
        self.weights.made.push((name.clone(), Arc::clone(tensor)));
        name
    }

    /// A graph's names: what it takes from outside has those it is given.
    fn names<'a>(&mut self, graph: &Graph, outer: Option<&'a Scope<'a>>, captured: &[String]) -> Scope<'a> {
        let mut scope = Scope { names: vec![String::new(); graph.values.len()], used: HashSet::new(), outer };
        for (&id, name) in graph.captured.iter().zip(captured) {
            scope.names[id].clone_from(name);
        }
        // Inputs and outputs are known by their names outside.
        let first = graph.inputs.iter().chain(&graph.outputs).copied();
        let made = graph.nodes.iter().flat_map(|node| node.outputs.iter().flatten().copied());
        let constants = (0..graph.values.len()).filter(|&id| graph.values[id].constant.is_some());
        for id in first.chain(made).chain(constants) {
            let is_weight = graph.values[id].constant.is_some() && !graph.inputs.contains(&id);
            if !scope.names[id].is_empty() || outer.is_some() && is_weight {
                continue;
            }
            let name = &graph.values[id].name;
            let name = if name.is_empty() || scope.sees(name) { self.fresh(name) } else { name.clone() };
            scope.used.insert(name.clone());
            scope.names[id] = name;
        }
        scope
    }

    fn graph(
        &mut self,
        graph: &Graph,
        outer: Option<&Scope<'_>>,
        captured: &[String],
    ) -> Result<GraphProto, Error> {
        let mut scope = self.names(graph, outer, captured);
        let mut proto = GraphProto {
            // A graph must have a name.
            name: Some(if graph.name.is_empty() { "graph".into() } else { graph.name.clone() }),
            ..GraphProto::default()
        };
        let needed = graph.nodes.iter().flat_map(|node| node.inputs.iter().flatten());
        let mut needed: Vec<_> = needed.chain(&graph.inputs).chain(&graph.outputs).copied().collect();
        needed.extend(graph.nodes.iter().flat_map(|node| &node.captures));
        let mut seen = HashSet::new();
        needed.retain(|&id| seen.insert(id));
        for id in needed {
            let value = &graph.values[id];
            let Some(tensor) = &value.constant else { continue };
            if outer.is_some() {
                if !graph.inputs.contains(&id) {
                    scope.names[id] = self.weight(value, tensor);
                }
            } else {
                self.weights.made.push((scope.names[id].clone(), Arc::clone(tensor)));
                if !graph.inputs.contains(&id) {
                    self.weights.names.insert(address(tensor), (scope.names[id].clone(), false));
                }
            }
        }
        if outer.is_none() {
            // Nodes that hold a tensor: graphs within name their outputs.
            for node in &graph.nodes {
                if let (Some(tensor), [Some(id), ..]) = (node.operator.constant(), &node.outputs[..]) {
                    self.weights.names.insert(address(&tensor), (scope.names[*id].clone(), false));
                }
            }
            for (id, value) in graph.values.iter().enumerate().filter(|(id, _)| !graph.inputs.contains(id)) {
                if let Some(tensor) = &value.constant {
                    let waiting = || (scope.names[id].clone(), true);
                    self.weights.names.entry(address(tensor)).or_insert_with(waiting);
                }
            }
        }
        for node in &graph.nodes {
            proto.node.push(self.node(node, graph, &scope)?);
        }
        let info = |id: ValueId| value_info(&scope.names[id], graph.values[id].declared.as_ref());
        proto.input = graph.inputs.iter().map(|&id| info(id)).collect();
        let own: HashSet<_> = graph.nodes.iter().flat_map(|node| node.outputs.iter().flatten()).collect();
        for &id in &graph.outputs {
            if outer.is_none() || own.contains(&id) || graph.inputs.contains(&id) {
                proto.output.push(info(id));
                continue;
            }
            // A graph within a node must make what it gives.
            let name = self.fresh(&graph.values[id].name);
            proto.node.push(identity(&scope.names[id], &name));
            proto.output.push(value_info(&name, graph.values[id].declared.as_ref()));
        }
        let made = graph.nodes.iter().flat_map(|node| node.outputs.iter().flatten());
        let said = made.filter(|id| graph.values[**id].declared.is_some() && !graph.outputs.contains(id));
        proto.value_info = said.map(|&id| info(id)).collect();
        Ok(proto)
    }

    fn node(&mut self, node: &Node, graph: &Graph, scope: &Scope<'_>) -> Result<NodeProto, Error> {
        let (version, first) =
            self.opsets.entry(node.domain.clone()).or_insert_with(|| (node.opset, node.name.clone())).clone();
        if version != node.opset {
            let domain = if node.domain.is_empty() { "ai.onnx" } else { &node.domain };
            return Err(Error::Node {
                node: node.name.clone(),
                op: node.op_type.clone(),
                source: OpError::unsupported(format!(
                    "it is of version {} of {domain}, and {first} of {version}: a file without functions has one version of a domain",
                    node.opset
                )),
            });
        }
        let name = |id: &Option<ValueId>| id.map_or_else(String::new, |id| scope.names[id].clone());
        let mut attribute = Vec::with_capacity(node.attributes.0.len());
        let mut captures = node.captures.iter();
        let mut sorted: Vec<_> = node.attributes.0.iter().collect();
        sorted.sort_by_key(|(key, _)| *key);
        for (key, value) in sorted {
            let mut proto = AttributeProto { name: Some(key.clone()), ..AttributeProto::default() };
            match value {
                Attribute::Float(value) => (proto.r#type, proto.f) = (Some(1), Some(*value)),
                Attribute::Int(value) => (proto.r#type, proto.i) = (Some(2), Some(*value)),
                Attribute::String(text) => (proto.r#type, proto.s) = (Some(3), Some(text.clone().into())),
                Attribute::Tensor(tensor) => {
                    let (head, bytes) = parts(tensor);
                    proto.t = Some(Box::new(TensorProto { raw_data: Some(bytes), ..head }));
                    proto.r#type = Some(4);
                }
                Attribute::Graph(inner) => {
                    let count = inner.captured.len();
                    let names = captures.by_ref().take(count).map(|&id| scope.names[id].clone());
                    let names: Vec<_> = names.collect();
                    proto.g = Some(Box::new(self.graph(inner, Some(scope), &names)?));
                    proto.r#type = Some(5);
                }
                Attribute::Floats(values) => (proto.r#type, proto.floats) = (Some(6), values.clone()),
                Attribute::Ints(values) => (proto.r#type, proto.ints) = (Some(7), values.clone()),
                Attribute::Strings(texts) => {
                    proto.strings = texts.iter().map(|text| text.clone().into()).collect();
                    proto.r#type = Some(8);
                }
            }
            attribute.push(proto);
        }
        debug_assert!(node.outputs.iter().flatten().all(|&id| id < graph.values.len()));
        Ok(NodeProto {
            input: node.inputs.iter().map(name).collect(),
            output: node.outputs.iter().map(name).collect(),
            name: Some(node.name.clone()),
            op_type: Some(node.op_type.clone()),
            domain: (!node.domain.is_empty()).then(|| node.domain.clone()),
            attribute,
            ..NodeProto::default()
        })
    }

    /// Domains and versions: those that nodes need, and what else the model imports.
    fn imports(&self, model: &Model) -> Vec<OperatorSetIdProto> {
        let plain = |domain: &str| if domain == "ai.onnx" { String::new() } else { domain.to_owned() };
        let mut versions: BTreeMap<String, i64> =
            model.opsets.iter().map(|(domain, version)| (plain(domain), *version)).collect();
        versions.extend(self.opsets.iter().map(|(domain, (version, _))| (domain.clone(), *version)));
        let import = |(domain, version)| OperatorSetIdProto { domain: Some(domain), version: Some(version) };
        versions.into_iter().map(import).collect()
    }
}

fn identity(from: &str, to: &str) -> NodeProto {
    NodeProto {
        input: vec![from.into()],
        output: vec![to.into()],
        name: Some(to.into()),
        op_type: Some("Identity".into()),
        ..NodeProto::default()
    }
}

fn value_info(name: &str, declared: Option<&Declared>) -> ValueInfoProto {
    let tensor = |declared: &Declared| {
        let dim = |dim: &Dim| Dimension {
            value: match dim {
                Dim::Fixed(size) => Some(dimension::Value::DimValue(*size as i64)),
                Dim::Named(name) => Some(dimension::Value::DimParam(name.clone())),
                Dim::Any => None,
            },
            denotation: None,
        };
        let shape = declared.dims.as_ref();
        let shape = shape.map(|dims| TensorShapeProto { dim: dims.iter().map(dim).collect() });
        let tensor = type_proto::Tensor { elem_type: Some(declared.dtype as i32), shape };
        TypeProto { value: Some(type_proto::Value::TensorType(tensor)), denotation: None }
    };
    ValueInfoProto { name: Some(name.into()), r#type: declared.map(tensor), ..ValueInfoProto::default() }
}

/// A tensor whose bytes are lent for as long as they are needed.
struct Lent(Arc<Tensor>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.0.view().bytes
    }
}

/// A tensor's message without its elements, and these as they are in files: little end first, packed where they have less than a byte.
fn parts(tensor: &Arc<Tensor>) -> (TensorProto, Bytes) {
    let view = tensor.view();
    let head = TensorProto {
        dims: view.shape.iter().map(|&dim| dim as i64).collect(),
        data_type: Some(view.dtype as i32),
        ..TensorProto::default()
    };
    let bits = view.dtype.file_bits();
    let bytes = if bits < 8 {
        let pack = |elements: &[u8]| {
            let each = elements.iter().enumerate();
            each.fold(0, |byte, (at, element)| byte | (element & ((1 << bits) - 1)) << (at * bits))
        };
        view.bytes.chunks(8 / bits).map(pack).collect::<Vec<_>>().into()
    } else if cfg!(target_endian = "big") && bits > 8 {
        let elements = view.bytes.chunks_exact(view.dtype.bytes());
        elements.flat_map(|element| element.iter().rev().copied()).collect::<Vec<_>>().into()
    } else {
        Bytes::from_owner(Lent(Arc::clone(tensor)))
    };
    (head, bytes)
}
