//! From the files to the graph. What is read is checked before it is believed.

use super::build::{Builder, IR_VERSION, OPSET, With};
use super::control;
use super::convert::{self, Conversion, Operand};
use super::weights::{constant, element_type};
use super::xml::{Layer, Net, Port};
use bytes::Bytes;
use roxmltree::{Document, Node, ParsingOptions};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use stepalloc_graph::{Declared, Dim, Error, Graph, Header, Model, Registry, UnknownOperators, ValueId};
use stepalloc_tensor::{OpError, Tensor, mapped};

/// Graphs may lie within others so deep.
const DEPTH: usize = 32;

/// No element has more attributes.
const MOST_ATTRIBUTES: usize = 1024;

/// Whether a file is an IR, by its name or its beginning.
pub fn is_ir(path: &Path, bytes: &[u8]) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("xml"))
        || bytes.starts_with(b"<?xml")
        || bytes.starts_with(b"<net")
}

/// The model of an IR, with its weights from the file .bin beside it.
pub fn open(path: &Path, text: &[u8], registry: &Registry) -> Result<Model, Error> {
    let document = parse(text)?;
    let bin = path.with_extension("bin");
    let is_constant = |node: Node<'_, '_>| node.attribute("type") == Some("Const");
    let weights = match mapped::open(&bin) {
        Ok(weights) => weights,
        Err(source) if document.descendants().any(is_constant) => {
            return Err(Error::File { path: bin, source });
        }
        // A model without constants needs none.
        Err(_) => Bytes::new(),
    };
    model(&document, &weights, registry)
}

/// The model of an IR whose weights are in memory.
pub fn read(text: &[u8], weights: &Bytes, registry: &Registry) -> Result<Model, Error> {
    model(&parse(text)?, weights, registry)
}

fn parse(text: &[u8]) -> Result<Document<'_>, Error> {
    let wrong = |what: String| Error::Model(format!("no OpenVINO IR: {what}"));
    let text = std::str::from_utf8(text).map_err(|error| wrong(error.to_string()))?;
    // So small on the average that there is no sense in them: they would take many times the file's room.
    let nodes_limit = u32::try_from(text.len() / 8 + 64).unwrap_or(u32::MAX);
    // Each is compared with all others of its element.
    if text
        .split('<')
        .any(|element| element.bytes().filter(|&letter| letter == b'=').count() > MOST_ATTRIBUTES)
    {
        return Err(wrong(format!("an element has more than {MOST_ATTRIBUTES} attributes")));
    }
    let options = ParsingOptions { nodes_limit, ..ParsingOptions::default() };
    Document::parse_with_options(text, options).map_err(|error| wrong(error.to_string()))
}

fn model(document: &Document<'_>, weights: &Bytes, registry: &Registry) -> Result<Model, Error> {
    let root = document.root_element();
    let graph = Arc::new(graph(root, weights, registry)?);
    let version = root.attribute("version").unwrap_or_default();
    // What its layers became.
    let opsets = vec![(String::new(), OPSET), ("com.microsoft".into(), 1)];
    let header = Arc::new(Header { ir_version: Some(IR_VERSION), ..Header::default() });
    let producer = format!("OpenVINO, IR version {version}");
    Ok(Model { graph, producer, opsets, header, registry: registry.clone() })
}

/// The graph of an element and its weights.
fn graph(root: Node<'_, '_>, weights: &Bytes, registry: &Registry) -> Result<Graph, Error> {
    let wrong = |what: String| Error::Model(format!("no OpenVINO IR: {what}"));
    if !root.has_tag_name("net") {
        return Err(wrong(format!("its element is {}, not net", root.tag_name().name())));
    }
    let version = root.attribute("version").unwrap_or_default();
    if !matches!(version, "10" | "11") {
        return Err(wrong(format!("its version is {version:?}; 10 and 11 are known")));
    }
    let net = Net::parse(root).map_err(|error| wrong(error.to_string()))?;
    let reader = Reader { weights, registry, unknown: RefCell::default() };
    let made = reader.body(&net, &HashMap::new(), 0);
    let unknown = reader.unknown.into_inner();
    if !unknown.is_empty() {
        return Err(Error::Unsupported(unknown));
    }
    let mut body = made?;
    body.name_results(&net)?;
    let mut graph = body.builder.graph;
    graph.name = root.attribute("name").unwrap_or_default().into();
    graph.inputs = body.parameters.iter().map(|&(_, id)| id).collect();
    graph.outputs = body.results.iter().map(|&(_, id)| id).collect();
    Ok(graph)
}

/// Reads graphs, and those within their layers.
pub(super) struct Reader<'w> {
    weights: &'w Bytes,
    registry: &'w Registry,
    /// Layers that nothing is known for make values all the same, and are said all at once.
    unknown: RefCell<UnknownOperators>,
}

/// A graph that was read, without inputs and outputs yet.
pub(super) struct Body {
    pub builder: Builder,
    /// Layers by id, and what they stand for, in the file's order.
    pub parameters: Vec<(u64, ValueId)>,
    /// The same of what comes out.
    pub results: Vec<(u64, ValueId)>,
}

impl Reader<'_> {
    /// Reads layers. Parameters that are always the same are given by the layer's id.
    pub(super) fn body(
        &self,
        net: &Net<'_>,
        constants: &HashMap<u64, Arc<Tensor>>,
        depth: usize,
    ) -> Result<Body, Error> {
        if depth > DEPTH {
            return Err(Error::model(format!("its graphs lie more than {DEPTH} deep within each other")));
        }
        let wiring = Wiring::new(net)?;
        let mut body =
            Body { builder: Builder::new(self.registry), parameters: Vec::new(), results: Vec::new() };
        let mut made: HashMap<(usize, usize), ValueId> = HashMap::new();
        let mut results = Vec::new();
        for index in wiring.order(net)? {
            let layer = &net.layers[index];
            let wrong = |error| wrong(layer, error);
            let mut inputs = Vec::with_capacity(layer.inputs.len());
            for &(from, port) in &wiring.sources[index] {
                let missing =
                    || wrong(OpError::arity(format!("layer {} makes no such output", net.layers[from].id)));
                let id = *made.get(&(from, port)).ok_or_else(missing)?;
                inputs.push(Operand { id, port: &net.layers[from].outputs[port] });
            }
            let before = body.builder.graph.values.len();
            let outputs = match layer.kind {
                "Parameter" => {
                    let id = match constants.get(&layer.id) {
                        Some(tensor) => body.builder.constant(layer.name, Arc::clone(tensor)),
                        None => body.builder.define(layer.name),
                    };
                    body.parameters.push((layer.id, id));
                    vec![Some(id)]
                }
                "Const" => {
                    let tensor = constant(layer, self.weights).map_err(wrong)?;
                    vec![Some(body.builder.constant(layer.name, Arc::new(tensor)))]
                }
                "Result" => {
                    let input = inputs.first().ok_or_else(|| wrong(OpError::MissingInput(0)))?;
                    results.push((index, layer.id, input.id));
                    continue;
                }
                _ => {
                    let used = |port: &Port| wiring.used.contains(&(layer.id, port.id));
                    let wanted: Vec<_> = layer.outputs.iter().map(used).collect();
                    let mut call = Conversion { layer, inputs, wanted, builder: &mut body.builder };
                    if control::is_known(layer.kind) {
                        control::convert(&mut call, self, depth)?
                    } else {
                        match convert::convert(&mut call) {
                            Some(made) => made.map_err(wrong)?,
                            None => {
                                self.add_unknown(layer)?;
                                let mut define = || Some(body.builder.define(layer.name));
                                layer.outputs.iter().map(|_| define()).collect()
                            }
                        }
                    }
                }
            };
            for (number, (port, id)) in layer.outputs.iter().zip(outputs).enumerate() {
                let Some(id) = id else { continue };
                let id = body.own(layer, id, before).map_err(wrong)?;
                let value = match (port.names.first(), number) {
                    (Some(name), _) => name.clone(),
                    (None, 0) => layer.name.into(),
                    (None, _) => format!("{}.{number}", layer.name),
                };
                if body.builder.graph.values[id].name != value {
                    body.builder.rename(id, &value);
                }
                body.builder.graph.values[id].declared = declared(layer, port);
                made.insert((index, number), id);
            }
        }
        results.sort_unstable();
        body.results = results.into_iter().map(|(_, layer, id)| (layer, id)).collect();
        Ok(body)
    }

    /// One more layer that nothing is known for.
    fn add_unknown(&self, layer: &Layer<'_>) -> Result<(), Error> {
        let Some(Ok(opset)) = layer.version.strip_prefix("opset").map(str::parse) else {
            let what = format!("no such operation is known in the set {:?}", layer.version);
            return Err(wrong(layer, OpError::unsupported(what)));
        };
        let node = format!("{} (layer {})", layer.name, layer.id);
        self.unknown.borrow_mut().add(("openvino", layer.kind, opset), &node);
        Ok(())
    }
}

impl Body {
    /// A value that the layer at hand made: where it lets an older one through, one that is the same.
    fn own(&mut self, layer: &Layer<'_>, id: ValueId, before: usize) -> Result<ValueId, OpError> {
        if id >= before { Ok(id) } else { self.same(layer.name, id) }
    }

    fn same(&mut self, name: &str, id: ValueId) -> Result<ValueId, OpError> {
        if let Some(tensor) = self.builder.known(id) {
            let tensor = Arc::clone(tensor);
            return Ok(self.builder.constant(name, tensor));
        }
        let made = self.builder.node(name, "Identity", &[Some(id)], Vec::new(), With::default(), &[true])?;
        made[0].ok_or_else(|| OpError::internal("it makes nothing"))
    }

    /// A list of integers that is always the same.
    pub(super) fn list(&mut self, values: &[i64]) -> Result<ValueId, OpError> {
        let tensor = match values {
            [] => Tensor::from_elements::<i64>([0], &[]),
            values => Tensor::from_elements([values.len()], values),
        };
        Ok(self
            .builder
            .constant("list", Arc::new(tensor.ok_or_else(|| OpError::internal("a list is too long"))?)))
    }

    /// One more node.
    pub(super) fn op(
        &mut self,
        op: &str,
        inputs: &[Option<ValueId>],
        with: With,
    ) -> Result<ValueId, OpError> {
        let made = self.builder.node("body", op, inputs, Vec::new(), with, &[true])?;
        made[0].ok_or_else(|| OpError::internal("it makes nothing"))
    }

    /// One more node, which makes a value that is there and was made by none.
    pub(super) fn op_into(
        &mut self,
        op: &str,
        inputs: &[Option<ValueId>],
        with: With,
        id: ValueId,
    ) -> Result<(), OpError> {
        self.op(op, inputs, with)?;
        let node =
            self.builder.graph.nodes.last_mut().ok_or_else(|| OpError::internal("it makes nothing"))?;
        node.outputs = vec![Some(id)];
        Ok(())
    }

    /// Results by the ids of layers.
    pub(super) fn results(&self) -> HashMap<u64, ValueId> {
        self.results.iter().copied().collect()
    }

    /// Makes each result a value of its own, which some node makes: graphs within layers end so.
    pub(super) fn part_results(&mut self) -> Result<(), OpError> {
        for at in 0..self.results.len() {
            let id = self.results[at].1;
            self.results[at].1 = self.same("result", id)?;
        }
        Ok(())
    }

    /// Gives the results the names that the model's user knows.
    fn name_results(&mut self, net: &Net<'_>) -> Result<(), Error> {
        let layers: HashMap<_, _> = net.layers.iter().map(|layer| (layer.id, layer)).collect();
        let mut seen: HashSet<_> = self.parameters.iter().map(|&(_, id)| id).collect();
        for at in 0..self.results.len() {
            let (layer, mut id) = self.results[at];
            let Some(layer) = layers.get(&layer) else { continue };
            let names: Vec<_> = layer.attribute("output_names").unwrap_or_default().split(',').collect();
            if !seen.insert(id) || self.builder.known(id).is_some() {
                let declared = self.builder.graph.values[id].declared.clone();
                id = self.same(layer.name, id).map_err(|error| wrong(layer, error))?;
                self.builder.graph.values[id].declared = declared;
                seen.insert(id);
                self.results[at].1 = id;
            }
            if let Some(name) = names.first().filter(|name| !name.is_empty())
                && !names.contains(&self.builder.graph.values[id].name.as_str())
            {
                self.builder.rename(id, name);
            }
        }
        Ok(())
    }
}

/// An error of a layer.
pub(super) fn wrong(layer: &Layer<'_>, source: OpError) -> Error {
    let op = format!("{} {}", layer.kind, layer.version);
    Error::Node { node: format!("{} (layer {})", layer.name, layer.id), op, source }
}

/// What the model says of a value.
fn declared(layer: &Layer<'_>, port: &Port) -> Option<Declared> {
    let dim = |dim: &Option<usize>| dim.map_or(Dim::Any, Dim::Fixed);
    if layer.kind == "Parameter" {
        let dtype = element_type(layer).ok().or(port.dtype)?;
        let any = layer.data("shape").is_some_and(|shape| shape.contains("..."));
        let dims = (!any).then(|| port.dims.iter().map(dim).collect());
        return Some(Declared { dtype, dims });
    }
    // Ports do not tell scalars from what has any number of dimensions.
    let dims = (!port.dims.is_empty()).then(|| port.dims.iter().map(dim).collect());
    Some(Declared { dtype: port.dtype?, dims })
}

/// Which output goes to which input.
struct Wiring {
    /// For each layer and each of its inputs: layer and output, by number.
    sources: Vec<Vec<(usize, usize)>>,
    /// Outputs that go anywhere, by the ids of layer and port.
    used: HashSet<(u64, u64)>,
}

impl Wiring {
    fn new(net: &Net<'_>) -> Result<Self, Error> {
        let mut numbers = HashMap::new();
        for (index, layer) in net.layers.iter().enumerate() {
            if numbers.insert(layer.id, index).is_some() {
                return Err(Error::model(format!("two layers have the id {}", layer.id)));
            }
        }
        let mut outputs = HashMap::new();
        for (index, layer) in net.layers.iter().enumerate() {
            for (number, port) in layer.outputs.iter().enumerate() {
                if outputs.insert((layer.id, port.id), (index, number)).is_some() {
                    return Err(wrong(
                        layer,
                        OpError::arity(format!("two of its outputs have the id {}", port.id)),
                    ));
                }
            }
        }
        let (mut from, mut used) = (HashMap::new(), HashSet::new());
        for edge in &net.edges {
            let nowhere = |(layer, port)| {
                Error::model(format!("an edge names port {port} of layer {layer}, which is not there"))
            };
            let source = *outputs.get(&edge.from).ok_or_else(|| nowhere(edge.from))?;
            if !numbers.contains_key(&edge.to.0) {
                return Err(nowhere(edge.to));
            }
            if from.insert(edge.to, source).is_some() {
                return Err(Error::model(format!(
                    "two edges lead to port {} of layer {}",
                    edge.to.1, edge.to.0
                )));
            }
            used.insert(edge.from);
        }
        let mut sources = Vec::with_capacity(net.layers.len());
        for layer in &net.layers {
            let source = |port: &Port| {
                let found = from.get(&(layer.id, port.id)).copied();
                found.ok_or_else(|| {
                    wrong(layer, OpError::arity(format!("no edge leads to its input {}", port.id)))
                })
            };
            sources.push(layer.inputs.iter().map(source).collect::<Result<_, _>>()?);
        }
        Ok(Self { sources, used })
    }

    /// Numbers of the layers in an order in which they can run: the file's, as far as that can be.
    fn order(&self, net: &Net<'_>) -> Result<Vec<usize>, Error> {
        let count = net.layers.len();
        let (mut waiting, mut wake) = (vec![0usize; count], vec![Vec::new(); count]);
        for (index, sources) in self.sources.iter().enumerate() {
            waiting[index] = sources.len();
            sources.iter().for_each(|&(from, _)| wake[from].push(index));
        }
        let mut ready: BinaryHeap<_> = (0..count).filter(|&index| waiting[index] == 0).map(Reverse).collect();
        let mut order = Vec::with_capacity(count);
        while let Some(Reverse(index)) = ready.pop() {
            order.push(index);
            for &next in &wake[index] {
                waiting[next] -= 1;
                if waiting[next] == 0 {
                    ready.push(Reverse(next));
                }
            }
        }
        match (0..count).find(|&index| waiting[index] > 0) {
            Some(stuck) => Err(wrong(&net.layers[stuck], OpError::arity("it needs what it makes: a cycle"))),
            None => Ok(order),
        }
    }
}
