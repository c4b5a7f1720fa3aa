//! Small models for tests of passes, and what is left of them.

use std::collections::HashMap;
use std::sync::Arc;
use stepalloc_graph::{Attribute, Attributes, Definition, Header};
use stepalloc_operators::registry;
use stepalloc_runtime::{
    Declared, Dim, Graph, Level, Model, Node, Optimization, Options, PASSES, Session, Value, ValueId,
};
use stepalloc_tensor::{DataType, Tensor};

/// A graph that is put together by names.
#[derive(Clone)]
pub(crate) struct Sketch {
    opset: i64,
    graph: Graph,
    names: HashMap<String, ValueId>,
    state: u32,
}

impl Sketch {
    pub(crate) fn new(opset: i64) -> Self {
        Self { opset, graph: Graph::default(), names: HashMap::new(), state: 1 }
    }

    fn id(&mut self, name: &str) -> ValueId {
        let graph = &mut self.graph;
        *self.names.entry(name.into()).or_insert_with(|| {
            graph.values.push(Value { name: name.into(), ..Value::default() });
            graph.values.len() - 1
        })
    }

    /// An input of float32. Sizes of -1 are open, each for itself; of lower numbers those that are the same have the same name.
    pub(crate) fn input(mut self, name: &str, dims: &[i64]) -> Self {
        let id = self.id(name);
        let dim = |&dim: &i64| match dim {
            0.. => Dim::Fixed(dim as usize),
            -1 => Dim::Any,
            _ => Dim::Named(format!("size {dim}")),
        };
        let dims = Some(dims.iter().map(dim).collect());
        self.graph.values[id].declared = Some(Declared { dtype: DataType::F32, dims });
        self.graph.inputs.push(id);
        self
    }

    /// What an input or output is declared as, instead of float32.
    pub(crate) fn declared(mut self, name: &str, dtype: DataType) -> Self {
        let id = self.id(name);
        let declared = self.graph.values[id].declared.get_or_insert(Declared { dtype, dims: None });
        declared.dtype = dtype;
        self
    }

    /// Numbers between -1 and 1, the same each time.
    pub(crate) fn numbers(&mut self, shape: &[usize]) -> Tensor {
        let mut next = || {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 17;
            self.state ^= self.state << 5;
            f32::from((self.state >> 16) as i16) / 32768.0
        };
        let elements: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
        Tensor::from_elements(shape, &elements).expect("as many as the shape says")
    }

    pub(crate) fn tensor(mut self, name: &str, tensor: Tensor) -> Self {
        let id = self.id(name);
        self.graph.values[id].constant = Some(Arc::new(tensor));
        self
    }

    /// A weight of numbers at random.
    pub(crate) fn weight(mut self, name: &str, shape: &[usize]) -> Self {
        let tensor = self.numbers(shape);
        self.tensor(name, tensor)
    }

    /// A weight of numbers above zero.
    pub(crate) fn positive(mut self, name: &str, shape: &[usize]) -> Self {
        let mut tensor = self.numbers(shape);
        tensor.view_mut().elements::<f32>().iter_mut().for_each(|x| *x = x.abs() + 0.1);
        self.tensor(name, tensor)
    }

    pub(crate) fn number(self, name: &str, number: f32) -> Self {
        self.tensor(name, Tensor::from_elements([], &[number]).expect("one"))
    }

    pub(crate) fn ints(self, name: &str, ints: &[i64]) -> Self {
        self.tensor(name, Tensor::from_elements([ints.len()], ints).expect("a row"))
    }

    /// A node of ai.onnx; names of inputs and outputs are apart by spaces, and _ is none.
    pub(crate) fn node(self, op: &str, inputs: &str, outputs: &str) -> Self {
        self.node_with(op, inputs, outputs, &[])
    }

    pub(crate) fn node_with(
        self,
        op: &str,
        inputs: &str,
        outputs: &str,
        attributes: &[(&str, Attribute)],
    ) -> Self {
        self.node_of("", op, inputs, outputs, attributes)
    }

    /// A node of a domain.
    pub(crate) fn node_of(
        mut self,
        domain: &str,
        op: &str,
        inputs: &str,
        outputs: &str,
        attributes: &[(&str, Attribute)],
    ) -> Self {
        let opset = if domain.is_empty() { self.opset } else { 1 };
        let ids = |this: &mut Self, names: &str| -> Vec<Option<ValueId>> {
            names.split_whitespace().map(|name| (name != "_").then(|| this.id(name))).collect()
        };
        let (inputs, outputs) = (ids(&mut self, inputs), ids(&mut self, outputs));
        let mut captures = Vec::new();
        let mut sorted: Vec<_> = attributes.iter().collect();
        sorted.sort_by_key(|(name, _)| *name);
        for (_, attribute) in sorted {
            if let Attribute::Graph(inner) = attribute {
                let outer = inner.captured.iter().map(|&id| self.names[&inner.values[id].name]);
                captures.extend(outer);
            }
        }
        let attributes = attributes.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        let attributes = Attributes(attributes.collect());
        let operator = registry().make(&Definition {
            op,
            domain,
            opset,
            attributes: &attributes,
            registry: &registry(),
            inputs: &inputs.iter().map(Option::is_some).collect::<Vec<_>>(),
            outputs: &outputs.iter().map(Option::is_some).collect::<Vec<_>>(),
        });
        let node = Node {
            name: format!("{op}{}", self.graph.nodes.len()),
            op_type: op.into(),
            domain: domain.into(),
            opset,
            attributes,
            inputs,
            captures,
            outputs,
            operator: operator.expect("it is known").expect("it is right").into(),
        };
        self.graph.nodes.push(node);
        self
    }

    pub(crate) fn output(mut self, name: &str) -> Self {
        let id = self.id(name);
        self.graph.values[id].declared.get_or_insert(Declared { dtype: DataType::F32, dims: None });
        self.graph.outputs.push(id);
        self
    }

    /// A graph within a node, which takes these values from outside.
    pub(crate) fn within(mut self, captured: &[&str]) -> Attribute {
        let ids = captured.iter().map(|name| self.id(name)).collect();
        self.graph.captured = ids;
        Attribute::Graph(Arc::new(self.graph))
    }

    pub(crate) fn model(&self) -> Model {
        let header = Header { ir_version: Some(8), ..Header::default() };
        let model = stepalloc_graph::Model {
            graph: Arc::new(self.graph.clone()),
            producer: String::new(),
            opsets: vec![(String::new(), self.opset)],
            header: Arc::new(header),
            registry: registry(),
        };
        model.into()
    }

    /// Operators that are left by some passes alone, in order; what they compute on numbers at random is what it was before, also when
    /// the model is written and read again, where passes are for that. Open sizes are 3.
    pub(crate) fn left(&self, passes: &[&str]) -> Vec<String> {
        let optimization = PASSES.iter().filter(|pass| !passes.contains(&pass.name));
        let optimization = optimization
            .fold(Optimization::new(Level::All), |all, pass| all.without(pass.name).expect("its name"));
        let is_written = PASSES.iter().all(|pass| !pass.in_sessions || !passes.contains(&pass.name));
        let optimization = if is_written { optimization } else { optimization.for_sessions() };
        let (before, after) = (self.model(), self.model().optimize(&optimization).0);
        let write = || Model::from_bytes(after.to_bytes().expect("it can be written")).expect("a model");
        let again = is_written.then(write);
        let mut this = self.clone();
        this.state = 7;
        let inputs: Vec<_> = before
            .graph
            .inputs
            .iter()
            .map(|&id| {
                let value = &before.graph.values[id];
                let dims = value.declared.as_ref().and_then(|declared| declared.dims.clone());
                let size = |dim: &Dim| if let Dim::Fixed(size) = dim { *size } else { 3 };
                let shape: Vec<_> = dims.iter().flatten().map(size).collect();
                (value.name.clone(), this.numbers(&shape))
            })
            .collect();
        let run = |model: &Model| {
            let views: Vec<_> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor.view())).collect();
            let as_it_is = Options::new().optimization(&Optimization::new(Level::Disable));
            Session::with_options(model, as_it_is).run(&views).expect("it runs")
        };
        let wanted = run(&before);
        for model in std::iter::once(&after).chain(&again) {
            for ((name, wanted), (_, got)) in wanted.iter().zip(run(model)) {
                assert_eq!(wanted.ty(), got.ty(), "{name}");
                if wanted.ty().dtype != DataType::F32 {
                    assert_eq!(wanted.view().bytes, got.view().bytes, "{name}");
                    continue;
                }
                let (wanted, got) = (wanted.view().elements::<f32>(), got.view().elements::<f32>());
                let largest = wanted.iter().fold(1.0f32, |most, x| most.max(x.abs()));
                for (wanted, got) in wanted.iter().zip(got) {
                    assert!((wanted - got).abs() <= 1e-5 * largest, "{name}: {got} instead of {wanted}");
                }
            }
        }
        after.graph.nodes.iter().map(|node| node.op_type.clone()).collect()
    }
}
