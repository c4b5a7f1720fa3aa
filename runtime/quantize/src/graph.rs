//! A graph that is rewritten node by node, with what is known of its values in 8 bits.

use super::names::{Names, captured, graphs, sweep};
use super::weights::{Scheme, quantize};
use super::{Left, QuantizeDynamic, Quantized, gemm, order};
use std::collections::{HashMap, HashSet};
use stepalloc_graph::Error;
use stepalloc_onnx::proto::{AttributeProto, GraphProto, NodeProto, TensorProto};
use stepalloc_onnx::tensors::{Folder, packed, tensor};
use stepalloc_tensor::{DataType, Tensor};

/// `AttributeProto.AttributeType.INT`.
const INT: i32 = 2;
/// `TensorProto.DataType.FLOAT`.
pub(super) const FLOAT: i32 = DataType::F32 as i32;
/// DequantizeLinear knows scales along an axis from this version of ai.onnx on.
const SCALES_ALONG_AXIS: i64 = 13;

/// A value in 8 bits.
#[derive(Clone, Debug)]
pub(super) struct Eight {
    pub name: String,
    pub scale: String,
    pub zero: String,
    /// The axis along which scales differ.
    pub axis: Option<i64>,
    /// Whether the value is there as f32, too, for nodes behind this one.
    float: bool,
}

/// A graph that is being rewritten.
#[derive(Default)]
pub(super) struct Level {
    pub initializers: Vec<TensorProto>,
    places: HashMap<String, usize>,
    /// Everything that the graph gives a name to.
    defined: HashSet<String>,
    eights: HashMap<String, Eight>,
    /// Transposed copies of initializers.
    pub transposed: HashMap<String, String>,
    /// Weights of LSTM in 8 bits.
    pub recurrent: HashMap<String, [String; 3]>,
    /// Products of two scales, by the names of the node and the scales.
    products: HashMap<[String; 3], String>,
    nodes: Vec<NodeProto>,
}

impl Level {
    pub(super) fn add(&mut self, tensor: TensorProto) {
        let name = tensor.name.clone().unwrap_or_default();
        self.defined.insert(name.clone());
        self.places.insert(name, self.initializers.len());
        self.initializers.push(tensor);
    }
}

/// Why a node is left as it is.
pub(super) enum Why {
    /// Nobody would expect anything else.
    Expected,
    /// What does not allow it, for whoever expected otherwise.
    Unfit(String),
}

impl Why {
    pub(super) fn unfit(what: impl Into<String>) -> Self {
        Self::Unfit(what.into())
    }
}

/// What is at work on a model.
pub(super) struct Rewriter<'a> {
    pub options: &'a QuantizeDynamic,
    pub opset: i64,
    pub names: Names,
    pub folder: Folder,
    /// What initializers without elements are transposed copies of.
    pub turned: HashMap<String, TensorProto>,
    /// The graph that is being rewritten, and those around it before it.
    pub levels: Vec<Level>,
    pub done: Quantized,
}

impl Rewriter<'_> {
    /// Rewrites a graph, and those within it if that is asked for.
    pub(super) fn graph(&mut self, mut graph: GraphProto) -> Result<GraphProto, Error> {
        let mut level = Level::default();
        let values = graph.input.iter().filter_map(|value| value.name.clone());
        level.defined = values.chain(graph.node.iter().flat_map(|node| node.output.clone())).collect();
        std::mem::take(&mut graph.initializer).into_iter().for_each(|tensor| level.add(tensor));
        let outputs: HashSet<_> = graph.output.iter().filter_map(|value| value.name.clone()).collect();
        let mut nodes = std::mem::take(&mut graph.node);
        self.lift(&mut nodes, &outputs, &mut level);
        self.levels.push(level);
        for (node, gemm) in gemm::replace(self, nodes) {
            self.node(node, gemm.as_deref())?;
        }
        for output in &graph.output {
            self.float(output.name.as_deref().unwrap_or_default());
        }
        let Level { nodes, initializers, .. } = self.levels.pop().unwrap_or_default();
        (graph.node, graph.initializer) = (nodes, initializers);
        if self.levels.is_empty() {
            sweep(&mut graph);
        }
        order::sort(&mut graph).ok_or_else(|| Error::model("a node needs what it makes: a cycle"))?;
        Ok(graph)
    }

    /// Weights that Constant nodes make become initializers.
    fn lift(&self, nodes: &mut Vec<NodeProto>, outputs: &HashSet<String>, level: &mut Level) {
        let mut weights = HashSet::new();
        self.weights(nodes, &mut weights);
        nodes.retain_mut(|node| {
            let name = node.output.first().filter(|name| weights.contains(*name) && !outputs.contains(*name));
            let Some(name) = name.cloned().filter(|_| node.op_type.as_deref() == Some("Constant")) else {
                return true;
            };
            let made = node
                .attribute
                .iter_mut()
                .find_map(|attribute| attribute.t.take_if(|made| made.data_type == Some(FLOAT)));
            let Some(made) = made else { return true };
            level.add(TensorProto { name: Some(name), ..*made });
            false
        });
    }

    /// Names of what nodes that are to be quantized take as weights.
    fn weights(&self, nodes: &[NodeProto], names: &mut HashSet<String>) {
        for node in nodes {
            let places: &[usize] = match node.op_type.as_deref() {
                Some("Conv" | "MatMul" | "Gemm") => &[1],
                Some("Gather") => &[0],
                Some("LSTM") => &[1, 2],
                _ => &[],
            };
            if self.options.wants(node, None) {
                names.extend(places.iter().filter_map(|&place| node.input.get(place)).cloned());
            }
            if self.options.subgraphs {
                graphs(node).for_each(|graph| self.weights(&graph.node, names));
            }
        }
    }

    fn node(&mut self, mut node: NodeProto, gemm: Option<&str>) -> Result<(), Error> {
        for name in captured(&node) {
            self.float(&name);
        }
        if self.options.subgraphs {
            for attribute in &mut node.attribute {
                for graph in attribute.g.as_deref_mut().into_iter().chain(&mut attribute.graphs) {
                    *graph = self.graph(std::mem::take(graph))?;
                }
            }
        }
        let plain = node.domain.as_deref().is_none_or(|domain| matches!(domain, "" | "ai.onnx"));
        let op = node.op_type.clone().unwrap_or_default();
        let name = called(&node).to_owned();
        let made = if plain && self.options.wants(&node, gemm) {
            match op.as_str() {
                "MatMul" => self.matmul(&node),
                "Conv" => self.conv(&node),
                "Gather" => self.gather(&node),
                "Transpose" => self.transpose(&node),
                "LSTM" => self.lstm(&node),
                _ => Err(Why::Expected),
            }
        } else if !plain && matches!(op.as_str(), "Attention" | "EmbedLayerNormalization") {
            Err(Why::unfit("operators of other domains are not known to the quantizer"))
        } else {
            Err(Why::Expected)
        };
        match made {
            Ok(()) => self.done.nodes.push((op, name)),
            Err(why) => {
                if let Why::Unfit(why) = why {
                    self.done.left.push(Left { op, node: name, why });
                }
                node.input.iter().for_each(|name| self.float(name));
                self.push(node);
            }
        }
        Ok(())
    }

    fn here(&mut self) -> Option<&mut Level> {
        self.levels.last_mut()
    }

    /// Adds a node behind those before.
    pub(super) fn push(&mut self, node: NodeProto) {
        if let Some(level) = self.here() {
            level.defined.extend(node.output.iter().cloned());
            level.nodes.push(node);
        }
    }

    /// Adds an initializer to this graph.
    pub(super) fn add(&mut self, tensor: TensorProto) {
        if let Some(level) = self.here() {
            level.add(tensor);
        }
    }

    /// Adds a node with a name like this.
    pub(super) fn emit(&mut self, op: &str, inputs: &[&str], outputs: &[&str], name: &str) {
        let name = if name.is_empty() { String::new() } else { self.names.node(name) };
        self.push(make(op, inputs, outputs, &name));
    }

    /// The level that gives a value its name.
    pub(super) fn level_of(&self, name: &str) -> Option<usize> {
        self.levels.iter().rposition(|level| level.defined.contains(name))
    }

    pub(super) fn initializer(&self, name: &str) -> Option<&TensorProto> {
        let level = &self.levels[self.level_of(name)?];
        level.places.get(name).map(|&place| &level.initializers[place])
    }

    /// A value in 8 bits, if it is there so.
    pub(super) fn eight(&self, name: &str) -> Option<&Eight> {
        let nearest = self.level_of(name)?;
        self.levels[nearest..].iter().rev().find_map(|level| level.eights.get(name))
    }

    /// A value in 8 bits that is computed from others: f32 has to be made of it where it is needed.
    pub(super) fn computed(&mut self, name: &str, scales: &Eight) -> String {
        let eight = self.names.value(&format!("{name}_quantized"));
        let known = Eight { name: eight.clone(), float: false, ..scales.clone() };
        if let Some(level) = self.here() {
            level.eights.insert(name.to_owned(), known);
        }
        eight
    }

    /// Sees to it that a value is there as f32, for what is behind.
    pub(super) fn float(&mut self, name: &str) {
        let opset = self.opset;
        let Some(eight) = self.here().and_then(|level| level.eights.get_mut(name)) else { return };
        // An initializer stays as it is then.
        if eight.float || eight.axis.is_some() && opset < SCALES_ALONG_AXIS {
            return;
        }
        eight.float = true;
        let eight = eight.clone();
        let mut node = make("DequantizeLinear", &[&eight.name, &eight.scale, &eight.zero], &[name], "");
        node.name = Some(self.names.node(&format!("{name}_DequantizeLinear")));
        node.attribute.extend(eight.axis.map(|axis| int("axis", axis)));
        self.push(node);
    }

    /// An initializer in 8 bits, by the scheme, unless it is there already; `axis` is that of columns, the last one.
    pub(super) fn weight(&mut self, name: &str, scheme: Scheme, axis: Option<i64>) -> Result<Eight, Why> {
        if let Some(eight) = self.eight(name) {
            if eight.axis.is_some() && eight.axis != axis {
                return Err(Why::unfit(format!("{name} is quantized by channels for another node")));
            }
            return Ok(eight.clone());
        }
        let weight = self.read(name)?;
        let shape = weight.view().shape;
        // Zero points of more than two dimensions are not for every engine.
        let axis = axis.filter(|_| shape.len() == 2);
        let (channels, inner) = match axis {
            None => (1, weight.view().len()),
            Some(_) => (shape[shape.len() - 1], 1),
        };
        let made = quantize(weight.view().elements(), channels, inner, scheme)
            .ok_or_else(|| Why::unfit(format!("{name} has elements that are not finite")))?;
        let dims: Vec<_> = shape.iter().map(|&dim| dim as i64).collect();
        let along: Vec<_> = axis.map(|_| channels as i64).into_iter().collect();
        let eight = Eight {
            name: self.names.value(&format!("{name}_quantized")),
            scale: self.names.value(&format!("{name}_scale")),
            zero: self.names.value(&format!("{name}_zero_point")),
            axis,
            float: false,
        };
        let dtype = Some(scheme.ty.dtype() as i32);
        let tensor =
            |name: &str, dims| TensorProto { name: Some(name.into()), dims, ..TensorProto::default() };
        let level = self.level_of(name).unwrap_or_default();
        let at = &mut self.levels[level];
        at.add(TensorProto {
            data_type: Some(FLOAT),
            float_data: packed(&made.scales),
            ..tensor(&eight.scale, along.clone())
        });
        at.add(TensorProto { data_type: dtype, int32_data: made.zeros, ..tensor(&eight.zero, along) });
        at.add(TensorProto {
            data_type: dtype,
            raw_data: Some(made.elements.into()),
            ..tensor(&eight.name, dims)
        });
        at.eights.insert(name.to_owned(), eight.clone());
        Ok(eight)
    }

    /// An initializer in f32; what has no elements is not worth the trouble.
    pub(super) fn read(&mut self, name: &str) -> Result<Tensor, Why> {
        let level = self.level_of(name).map(|level| &self.levels[level]);
        let Some((level, &place)) = level.and_then(|level| Some((level, level.places.get(name)?))) else {
            return Err(Why::unfit(format!("{name} is computed")));
        };
        let proto = &level.initializers[place];
        let number = proto.data_type.unwrap_or_default();
        if number != FLOAT {
            let ty = DataType::from_onnx(number).map_or("of another type", DataType::name);
            return Err(Why::unfit(format!("{name} is {ty}; convert the model to float32 first")));
        }
        let made = match self.turned.get(name) {
            Some(source) => gemm::turn(source, &mut self.folder),
            None => tensor(proto, &mut self.folder),
        };
        let made = made.map_err(|error| Why::unfit(error.within(name).to_string()))?;
        if made.view().is_empty() { Err(Why::unfit(format!("{name} has no elements"))) } else { Ok(made) }
    }

    /// A value in 8 bits, by its own range each time the model runs, unless it is there already.
    pub(super) fn activation(&mut self, name: &str) -> Result<Eight, Why> {
        if self.initializer(name).is_some() {
            return self.weight(name, Scheme::DATA, None);
        }
        if let Some(eight) = self.eight(name) {
            return Ok(eight.clone());
        }
        let eight = Eight {
            name: self.names.value(&format!("{name}_quantized")),
            scale: self.names.value(&format!("{name}_scale")),
            zero: self.names.value(&format!("{name}_zero_point")),
            axis: None,
            float: true,
        };
        let outputs = [&eight.name[..], &eight.scale, &eight.zero];
        self.emit("DynamicQuantizeLinear", &[name], &outputs, &format!("{name}_QuantizeLinear"));
        if let Some(level) = self.here() {
            level.eights.insert(name.to_owned(), eight.clone());
        }
        Ok(eight)
    }

    /// Makes `output` of sums of products of 8 bits: a Cast to f32, times both scales.
    pub(super) fn scaled(&mut self, sums: &str, by: [&Eight; 2], output: &str, integer: &str) {
        let float = self.names.value(&format!("{sums}_cast_output"));
        let mut cast = make("Cast", &[sums], &[&float], "");
        cast.name = Some(self.names.node(&format!("{sums}_cast")));
        cast.attribute.push(int("to", FLOAT.into()));
        self.push(cast);
        let [a, b] = by;
        let wanted = match integer {
            "" => format!("{}_{}_mul", a.scale, b.scale),
            integer => format!("{integer}_scales_mul"),
        };
        let key = [wanted.as_str(), &a.scale, &b.scale].map(str::to_owned);
        let scales = match self.here().and_then(|level| level.products.get(&key).cloned()) {
            Some(made) => made,
            None => {
                let made = self.names.value(&format!("{wanted}:0"));
                self.emit("Mul", &[&a.scale, &b.scale], &[&made], &wanted);
                if let Some(level) = self.here() {
                    level.products.insert(key, made.clone());
                }
                made
            }
        };
        let name = if integer.is_empty() { String::new() } else { format!("{integer}_output_scale_mul") };
        self.emit("Mul", &[&float, &scales], &[output], &name);
    }
}

/// A node; without a name where that is empty.
pub(super) fn make(op: &str, inputs: &[&str], outputs: &[&str], name: &str) -> NodeProto {
    NodeProto {
        op_type: Some(op.into()),
        input: inputs.iter().map(|&name| name.into()).collect(),
        output: outputs.iter().map(|&name| name.into()).collect(),
        name: (!name.is_empty()).then(|| name.into()),
        ..NodeProto::default()
    }
}

/// An attribute that is an integer.
pub(super) fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { name: Some(name.into()), r#type: Some(INT), i: Some(value), ..AttributeProto::default() }
}

/// A node's name, or its first output's.
pub(super) fn called(node: &NodeProto) -> &str {
    node.name.iter().chain(&node.output).find(|name| !name.is_empty()).map_or("", String::as_str)
}
