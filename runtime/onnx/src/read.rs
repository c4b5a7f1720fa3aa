//! From the file to the graph. What is read is checked before it is believed.

use super::functions::{Functions, Versions, graphs_of, versions};
use super::proto::tensor_shape_proto::dimension;
use super::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, StringStringEntryProto, ValueInfoProto, type_proto,
};
use super::seems::seems;
use super::tensors::{Folder, STRING, tensor};
use super::weigh;
use bytes::Bytes;
use prost::Message;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use stepalloc_graph::{
    Attribute, Attributes, Declared, Definition, Dim, Error, Graph, Header, Model, Node, Registry,
    UnknownOperators, Value, ValueId,
};
use stepalloc_tensor::{DataType, OpError, Tensor};

/// Reads a model; its weights from `folder` where they are not in `bytes`.
pub fn read(bytes: Bytes, folder: &mut Folder, registry: &Registry) -> Result<Model, Error> {
    let weigh::Counts { nodes, initializers } =
        weigh::check(&bytes).map_err(|error| match seems(&bytes) {
            Some(seems) => Error::model(format!("no ONNX model: it seems to be {seems}")),
            None => error,
        })?;
    let graph = || GraphProto {
        node: Vec::with_capacity(nodes),
        initializer: Vec::with_capacity(initializers),
        ..GraphProto::default()
    };
    let mut proto = ModelProto { graph: (nodes + initializers > 0).then(graph), ..ModelProto::default() };
    let seems = seems(&bytes);
    let no_model = |why: String| match seems {
        Some(seems) => Error::model(format!("no ONNX model: it seems to be {seems}")),
        None => Error::model(format!("no ONNX model: {why}")),
    };
    proto.merge(bytes).map_err(|error| no_model(error.to_string()))?;
    let graph = proto.graph.take().ok_or_else(|| no_model("it has no graph".into()))?;
    let opsets = versions(&proto.opset_import);
    let functions = Functions::new(&proto.functions);
    check_versions(&opsets)?;
    let unknown = UnknownOperators::default();
    let mut reader = Reader { opsets: Rc::clone(&opsets), functions, folder, registry, unknown };
    let made = reader.graph(graph, None, None);
    if !reader.unknown.is_empty() {
        return Err(Error::Unsupported(reader.unknown));
    }
    let mut graph = made?;
    // Before the fourth version of the format initializers had to be inputs, and nobody meant them to be given.
    if proto.ir_version < Some(4) {
        graph.inputs.retain(|&id| graph.values[id].constant.is_none());
    }
    let word = |entry: StringStringEntryProto| Some((entry.key?, entry.value.unwrap_or_default()));
    let header = Header {
        ir_version: proto.ir_version,
        producer_version: proto.producer_version,
        domain: proto.domain,
        model_version: proto.model_version,
        doc_string: proto.doc_string,
        metadata: proto.metadata_props.into_iter().filter_map(word).collect(),
    };
    Ok(Model {
        graph: Arc::new(graph),
        producer: proto.producer_name.unwrap_or_default(),
        opsets: opsets.to_vec(),
        header: Arc::new(header),
        registry: registry.clone(),
    })
}

/// The version of a domain, if it is imported.
fn opset(opsets: &[(String, i64)], domain: &str) -> Option<i64> {
    let plain = |name| if name == "ai.onnx" { "" } else { name };
    let found = opsets.iter().find(|(name, _)| plain(name.as_str()) == plain(domain));
    found.map(|(_, version)| *version)
}

/// The newest versions of domains that are known: of ai.onnx that of ONNX 1.23.
const NEWEST: [(&str, i64); 2] = [("", 28), ("com.microsoft", 1)];

/// Operators of newer versions may mean something else under the same names.
fn check_versions(opsets: &[(String, i64)]) -> Result<(), Error> {
    for (domain, newest) in NEWEST {
        if let Some(version) = opset(opsets, domain).filter(|&version| version > newest) {
            let domain = if domain.is_empty() { "ai.onnx" } else { domain };
            return Err(Error::model(format!(
                "it is of version {version} of {domain}, and versions up to {newest} are known: export it with \
                 opset_version={newest} or lower"
            )));
        }
    }
    Ok(())
}

/// What to do about operators of these domains and names: ONNX Runtime writes them for the layout of one machine's kernels.
fn advice(domain: &str, op: &str) -> Option<&'static str> {
    let of_a_layout = domain == "com.microsoft.nchwc"
        || domain == "com.microsoft.nhwc"
        || domain == "com.microsoft" && (op == "QLinearConv" || op.starts_with("Nhwc"));
    of_a_layout.then_some(
        "ONNX Runtime writes such operators for the layout of its own kernels when it saves a model at \
         graph_optimization_level = ORT_ENABLE_ALL: save it at ORT_ENABLE_EXTENDED, or take the model that it was made of",
    )
}

/// Operators of ai.onnx that took other inputs or attributes, or broadcast otherwise, before a version up to 7 (ONNX, Changelog.md).
/// None of these is known here; the others are what they were.
const CHANGED: [(i64, &str); 6] = [
    (2, "GlobalLpPool LpPool Pad Split"),
    (4, "Concat"),
    (5, "Reshape"),
    (6, "Cast Tile"),
    (
        7,
        "Add And AveragePool BatchNormalization Div Dropout Equal GRU Gemm Greater LSTM Less Mul Or PRelu Pow RNN",
    ),
    (7, "Sub Upsample Xor"),
];
/// Graphs may be so deep within others; functions in their nodes let a small file ask for any depth.
const MOST_NESTED: usize = 64;

struct Reader<'a> {
    opsets: Versions,
    functions: Functions<'a>,
    folder: &'a mut Folder,
    registry: &'a Registry,
    /// Nodes that there is no operator for are left out, and said all at once.
    unknown: UnknownOperators,
}

/// Names of a graph that is being read, and of those around it.
struct Scope<'a> {
    names: HashMap<String, ValueId>,
    /// Elements of values that are always the same: graphs within have values of their own for them, and need not be given any.
    constants: HashMap<String, Arc<Tensor>>,
    outer: Option<&'a Scope<'a>>,
}

impl Scope<'_> {
    /// Graphs around this one.
    fn depth(&self) -> usize {
        self.outer.map_or(0, |outer| outer.depth() + 1)
    }

    fn has(&self, name: &str) -> bool {
        self.names.contains_key(name) || self.outer.is_some_and(|outer| outer.has(name))
    }

    fn constant(&self, name: &str) -> Option<Arc<Tensor>> {
        if self.names.contains_key(name) {
            return self.constants.get(name).cloned();
        }
        self.outer?.constant(name)
    }
}

/// A graph that is being read.
struct Building<'a> {
    graph: Graph,
    scope: Scope<'a>,
}

impl Building<'_> {
    /// A new value.
    fn define(&mut self, name: &str) -> Result<ValueId, Error> {
        let id = self.graph.values.len();
        if self.scope.names.insert(name.into(), id).is_some() {
            return Err(Error::model(format!("value {name} is made twice")));
        }
        self.graph.values.push(Value { name: name.into(), ..Value::default() });
        Ok(id)
    }

    /// A value that is there, in this graph or one around it.
    fn find(&mut self, name: &str) -> Option<ValueId> {
        if let Some(&id) = self.scope.names.get(name) {
            return Some(id);
        }
        let outer = self.scope.outer.filter(|outer| outer.has(name))?;
        let id = self.define(name).ok()?;
        match outer.constant(name) {
            Some(constant) => {
                self.scope.constants.insert(name.into(), Arc::clone(&constant));
                self.graph.values[id].constant = Some(constant);
            }
            None => self.graph.captured.push(id),
        }
        Some(id)
    }
}

impl<'a> Reader<'a> {
    /// A graph; within the body of a function, in its versions.
    fn graph(
        &mut self,
        proto: GraphProto,
        outer: Option<&Scope<'_>>,
        opsets: Option<&Versions>,
    ) -> Result<Graph, Error> {
        let graph = Graph { name: proto.name.unwrap_or_default(), ..Graph::default() };
        let scope = Scope { names: HashMap::new(), constants: HashMap::new(), outer };
        if scope.depth() > MOST_NESTED {
            let what = format!("graph {} is more than {MOST_NESTED} deep within others", graph.name);
            return Err(Error::model(what));
        }
        let mut building = Building { graph, scope };
        for input in &proto.input {
            let id = building.define(input.name.as_deref().unwrap_or_default())?;
            building.graph.values[id].declared = declared(input)?;
            building.graph.inputs.push(id);
        }
        for initializer in proto.initializer {
            let name = initializer.name.as_deref().unwrap_or_default();
            let made = tensor(&initializer, self.folder);
            let made = made.map_err(|error| error.within(&format!("initializer {name}")))?;
            // From IR version 4 on initializers need not be inputs.
            let id = match building.scope.names.get(name) {
                Some(&id) if building.graph.values[id].constant.is_none() => id,
                _ => building.define(name)?,
            };
            let made = Arc::new(made);
            // Inputs are the first values.
            if id >= building.graph.inputs.len() {
                building.scope.constants.insert(name.into(), Arc::clone(&made));
            }
            building.graph.values[id].constant = Some(made);
        }
        if let Some(sparse) = proto.sparse_initializer.first() {
            let name = sparse.values.as_ref().and_then(|values| values.name.clone()).unwrap_or_default();
            return Err(Error::model(format!("initializer {name}: sparse tensors are not known here")));
        }
        let mut nodes = Vec::with_capacity(proto.node.len());
        self.functions.inline(proto.node, 0, opsets, &mut nodes)?;
        building.graph.nodes.reserve_exact(nodes.len());
        if outer.is_none() {
            // Others have values from outside, too: nobody knows yet how many.
            building.graph.values.reserve_exact(nodes.iter().map(|(node, _)| node.output.len()).sum());
        }
        for index in in_order(&nodes)? {
            let (node, opsets) = std::mem::take(&mut nodes[index]);
            self.node(node, opsets, &mut building)?;
        }
        for value in &proto.value_info {
            if let Some(&id) = value.name.as_deref().and_then(|name| building.scope.names.get(name)) {
                building.graph.values[id].declared = declared(value).unwrap_or(None);
            }
        }
        for output in &proto.output {
            let name = output.name.as_deref().unwrap_or_default();
            let id = building
                .find(name)
                .ok_or_else(|| Error::model(format!("output {name} is made by no node")))?;
            if building.graph.values[id].declared.is_none() {
                building.graph.values[id].declared = declared(output)?;
            }
            building.graph.outputs.push(id);
        }
        Ok(building.graph)
    }

    fn node(
        &mut self,
        proto: NodeProto,
        opsets: Option<Versions>,
        building: &mut Building<'_>,
    ) -> Result<(), Error> {
        let name = node_name(&proto);
        let op = proto.op_type.unwrap_or_default();
        let domain = proto.domain.filter(|domain| domain != "ai.onnx").unwrap_or_default();
        let wrong = |source| Error::Node { node: name.clone(), op: op.clone(), source };
        let mut inputs = Vec::new();
        for input in &proto.input {
            inputs.push(if input.is_empty() {
                None
            } else {
                Some(
                    building.find(input).ok_or_else(|| {
                        wrong(OpError::arity(format!("its input {input} is made by no node")))
                    })?,
                )
            });
        }
        let is_custom = self.registry.is_custom(&domain, &op);
        // By the attribute's name: an operator that has two graphs knows whose captures come first.
        let (mut attributes, mut captures) = (Attributes::default(), BTreeMap::new());
        for mut attribute in proto.attribute {
            let key = attribute.name.take().unwrap_or_default();
            let captured = captures.entry(key.clone()).or_insert_with(Vec::new);
            captured.clear();
            let made =
                self.attribute(attribute, building, captured, opsets.as_ref()).map_err(
                    |error| match error {
                        Error::Model(what) => wrong(OpError::attribute(format!("attribute {key}: {what}"))),
                        other => other,
                    },
                )?;
            match made {
                Some(made) => drop(attributes.0.insert(key, made)),
                // The runtime's own operators have none of these.
                None if is_custom => {
                    let what = "lists of tensors or graphs, sparse tensors and types are not supported";
                    return Err(wrong(OpError::unsupported(format!("attribute {key}: {what}"))));
                }
                None => {}
            }
        }
        let mut outputs = Vec::new();
        for output in &proto.output {
            outputs.push(if output.is_empty() { None } else { Some(building.define(output)?) });
        }
        // A function that does not say which version it wants has that of the model; a model that does not, the first.
        let version = opsets.as_ref().and_then(|opsets| opset(opsets, &domain));
        let version = version.or_else(|| opset(&self.opsets, &domain)).unwrap_or(1);
        let definition = Definition {
            op: &op,
            domain: &domain,
            opset: version,
            attributes: &attributes,
            registry: self.registry,
            inputs: &inputs.iter().map(Option::is_some).collect::<Vec<_>>(),
            outputs: &outputs.iter().map(Option::is_some).collect::<Vec<_>>(),
        };
        let changed =
            |(since, ops): &(i64, &str)| version < *since && ops.split(' ').any(|other| other == op);
        let is_older = domain.is_empty() && CHANGED.iter().any(changed);
        let made = if is_older && !is_custom { None } else { self.registry.make(&definition) };
        let Some(operator) = made.transpose().map_err(wrong)? else {
            self.unknown.advice = self.unknown.advice.or(advice(&domain, &op));
            self.unknown.add((&domain, &op, version), &name);
            return Ok(());
        };
        if let (Some(constant), Some(name)) = (operator.constant(), proto.output.first()) {
            building.scope.constants.insert(name.clone(), constant);
        }
        building.graph.nodes.push(Node {
            name,
            op_type: op,
            domain,
            opset: version,
            attributes,
            inputs,
            captures: captures.into_values().flatten().collect(),
            outputs,
            operator: operator.into(),
        });
        Ok(())
    }

    fn attribute(
        &mut self,
        proto: AttributeProto,
        building: &mut Building<'_>,
        captures: &mut Vec<ValueId>,
        opsets: Option<&Versions>,
    ) -> Result<Option<Attribute>, Error> {
        // Files of the first version have no type.
        let kind = proto.r#type.unwrap_or_default();
        Ok(Some(match kind {
            1 => Attribute::Float(proto.f.unwrap_or_default()),
            2 => Attribute::Int(proto.i.unwrap_or_default()),
            3 => Attribute::String(proto.s.unwrap_or_default().to_vec()),
            4 => {
                let made = proto.t.as_ref().map(|proto| tensor(proto, self.folder));
                // What its type is not known of may not be needed: the operator says so.
                match made {
                    Some(Ok(made)) => Attribute::Tensor(Arc::new(made)),
                    Some(Err(error)) => return Err(error),
                    None => return Ok(None),
                }
            }
            5 => {
                let Some(proto) = proto.g else { return Ok(None) };
                let graph = self.graph(*proto, Some(&building.scope), opsets)?;
                for &inner in &graph.captured {
                    let name = &graph.values[inner].name;
                    let outer = building.find(name);
                    captures
                        .push(outer.ok_or_else(|| Error::model(format!("value {name} is made by no node")))?);
                }
                Attribute::Graph(Arc::new(graph))
            }
            6 => Attribute::Floats(proto.floats),
            7 => Attribute::Ints(proto.ints),
            8 => Attribute::Strings(proto.strings.iter().map(|text| text.to_vec()).collect()),
            _ => return Ok(None),
        }))
    }
}

/// A node's name, or its first output's.
fn node_name(proto: &NodeProto) -> String {
    let named = proto.name.iter().chain(&proto.output).find(|name| !name.is_empty());
    named.cloned().unwrap_or_else(|| "without a name".into())
}

/// What a model says of a value's type; `None` where it is no tensor or nothing is said.
fn declared(proto: &ValueInfoProto) -> Result<Option<Declared>, Error> {
    let Some(type_proto::Value::TensorType(tensor)) = proto.r#type.as_ref().and_then(|ty| ty.value.as_ref())
    else {
        return Ok(None);
    };
    let number = tensor.elem_type.unwrap_or_default();
    if number == STRING {
        let name = proto.name.as_deref().unwrap_or_default();
        return Err(Error::model(format!("value {name} is a tensor of strings: strings are not supported")));
    }
    let Some(dtype) = DataType::from_onnx(number) else { return Ok(None) };
    let dim = |dim: &super::proto::tensor_shape_proto::Dimension| match &dim.value {
        Some(dimension::Value::DimValue(size)) => match usize::try_from(*size) {
            Ok(size) => Ok(Dim::Fixed(size)),
            // Some writers mean "any" by -1.
            Err(_) => Ok(Dim::Any),
        },
        Some(dimension::Value::DimParam(name)) if !name.is_empty() => Ok(Dim::Named(name.clone())),
        _ => Ok(Dim::Any),
    };
    let dims =
        tensor.shape.as_ref().map(|shape| shape.dim.iter().map(dim).collect::<Result<Vec<_>, Error>>());
    Ok(Some(Declared { dtype, dims: dims.transpose()? }))
}

/// Names a graph's nodes take, those of graphs within them too, as far as they may come from outside.
fn taken<'p>(node: &'p NodeProto, names: &mut Vec<&'p str>) {
    names.extend(node.input.iter().filter(|name| !name.is_empty()).map(String::as_str));
    for graph in node.attribute.iter().flat_map(graphs_of) {
        graph.node.iter().for_each(|node| taken(node, names));
        names.extend(graph.output.iter().filter_map(|output| output.name.as_deref()));
    }
}

/// Numbers of the nodes in an order in which they can run: the file's, as far as that can be.
fn in_order(nodes: &[(NodeProto, Option<Versions>)]) -> Result<Vec<usize>, Error> {
    let mut makers = HashMap::new();
    for (index, (node, _)) in nodes.iter().enumerate() {
        for output in node.output.iter().filter(|name| !name.is_empty()) {
            makers.insert(output.as_str(), index);
        }
    }
    let (mut waiting, mut wake) = (vec![0usize; nodes.len()], vec![Vec::new(); nodes.len()]);
    for (index, (node, _)) in nodes.iter().enumerate() {
        let mut names = Vec::new();
        taken(node, &mut names);
        let before: HashSet<_> = names.iter().filter_map(|name| makers.get(name)).copied().collect();
        // A graph within the node may have a value of the name of one of the node's outputs.
        for maker in before.into_iter().filter(|&maker| {
            maker != index || node.input.iter().any(|name| makers.get(name.as_str()) == Some(&index))
        }) {
            waiting[index] += 1;
            wake[maker].push(index);
        }
    }
    let mut ready: BinaryHeap<_> =
        (0..nodes.len()).filter(|&index| waiting[index] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(Reverse(index)) = ready.pop() {
        order.push(index);
        for &next in &wake[index] {
            waiting[next] -= 1;
            if waiting[next] == 0 {
                ready.push(Reverse(next));
            }
        }
    }
    let stuck = (0..nodes.len()).find(|&index| waiting[index] > 0);
    match stuck {
        Some(index) => {
            Err(Error::model(format!("node {} needs what it makes: a cycle", node_name(&nodes[index].0))))
        }
        None => Ok(order),
    }
}
