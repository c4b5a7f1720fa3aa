//! A graph that is being made of ONNX's operators.

use std::collections::HashSet;
use std::sync::Arc;
use stepalloc_graph::{
    Attribute, Attributes, Definition, Graph, Known, Node, Operator, Registry, RunContext, Value, ValueId,
    run_one,
};
use stepalloc_tensor::{Bool, DataType, Element, Number, OpError, Tensor, Type, View, by_number};

/// The version of ONNX's operators that layers are put into.
pub(super) const OPSET: i64 = 24;
/// The version of ONNX's files that has it.
pub(super) const IR_VERSION: i64 = 12;
/// What is computed while reading may have so many bytes: what attributes are made of.
const FOLD_BYTES: usize = 4 << 10;

/// What an operator is told beside its inputs.
#[derive(Default)]
pub(super) struct With(Attributes);

impl With {
    fn set(mut self, name: &str, value: Attribute) -> Self {
        self.0.0.insert(name.into(), value);
        self
    }

    pub(super) fn without(mut self, name: &str) -> Self {
        self.0.0.remove(name);
        self
    }

    pub(super) fn int(self, name: &str, value: impl Into<i64>) -> Self {
        self.set(name, Attribute::Int(value.into()))
    }

    pub(super) fn float(self, name: &str, value: f64) -> Self {
        self.set(name, Attribute::Float(value as f32))
    }

    pub(super) fn ints(self, name: &str, values: impl Into<Vec<i64>>) -> Self {
        self.set(name, Attribute::Ints(values.into()))
    }

    pub(super) fn text(self, name: &str, text: &str) -> Self {
        self.set(name, Attribute::String(text.into()))
    }

    pub(super) fn texts(self, name: &str, texts: &[&str]) -> Self {
        let texts = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
        self.set(name, Attribute::Strings(texts))
    }

    pub(super) fn graph(self, name: &str, graph: Graph) -> Self {
        self.set(name, Attribute::Graph(Arc::new(graph)))
    }
}

/// A graph, and the names of its values.
pub(super) struct Builder {
    pub graph: Graph,
    registry: Registry,
    /// What nodes have that are computed while reading.
    context: RunContext,
    names: HashSet<String>,
}

impl Builder {
    /// An empty graph, of these operators.
    pub(super) fn new(registry: &Registry) -> Self {
        let (graph, registry, context) = (Graph::default(), registry.clone(), RunContext::new());
        Self { graph, registry, context, names: HashSet::new() }
    }

    /// A value of this name, or of one like it where another has it.
    pub(super) fn define(&mut self, name: &str) -> ValueId {
        let name = self.unused(name);
        self.graph.values.push(Value { name, ..Value::default() });
        self.graph.values.len() - 1
    }

    /// Gives a value another name.
    pub(super) fn rename(&mut self, id: ValueId, name: &str) {
        let name = self.unused(name);
        let old = std::mem::replace(&mut self.graph.values[id].name, name);
        self.names.remove(&old);
    }

    fn unused(&mut self, name: &str) -> String {
        let (mut unused, mut number) = (name.to_owned(), self.graph.values.len());
        while !self.names.insert(unused.clone()) {
            unused = format!("{name}#{number}");
            number += 1;
        }
        unused
    }

    /// A value that is always the same.
    pub(super) fn constant(&mut self, name: &str, tensor: Arc<Tensor>) -> ValueId {
        let id = self.define(name);
        self.graph.values[id].constant = Some(tensor);
        id
    }

    /// A node; where all it takes is known and small, what it makes.
    pub(super) fn node(
        &mut self,
        name: &str,
        op: &str,
        inputs: &[Option<ValueId>],
        captures: Vec<ValueId>,
        with: With,
        wanted: &[bool],
    ) -> Result<Vec<Option<ValueId>>, OpError> {
        let attributes = with.0;
        let (domain, op) = op.rsplit_once('.').unwrap_or(("", op));
        let definition = Definition {
            op,
            domain,
            opset: OPSET,
            attributes: &attributes,
            registry: &self.registry,
            inputs: &inputs.iter().map(Option::is_some).collect::<Vec<_>>(),
            outputs: wanted,
        };
        let operator = self
            .registry
            .make(&definition)
            .ok_or_else(|| OpError::unsupported(format!("there is no operator {op}")))??;
        let own = |at: usize| if at == 0 { format!("{name}/{op}") } else { format!("{name}/{op}.{at}") };
        let has_graph = attributes.0.values().any(|value| matches!(value, Attribute::Graph(_)));
        if !has_graph && let Some(made) = self.folded(&*operator, inputs, wanted.len()) {
            let made = made.into_iter().enumerate();
            return Ok(made.map(|(at, tensor)| Some(self.constant(&own(at), Arc::new(tensor)))).collect());
        }
        let outputs: Vec<_> =
            wanted.iter().enumerate().map(|(at, wanted)| wanted.then(|| self.define(&own(at)))).collect();
        self.graph.nodes.push(Node {
            name: name.into(),
            op_type: op.into(),
            domain: domain.into(),
            opset: OPSET,
            attributes,
            inputs: inputs.to_vec(),
            captures,
            outputs: outputs.clone(),
            operator: operator.into(),
        });
        Ok(outputs)
    }

    fn folded(
        &self,
        operator: &dyn Operator,
        inputs: &[Option<ValueId>],
        outputs: usize,
    ) -> Option<Vec<Tensor>> {
        let known = |id: &Option<ValueId>| match id {
            Some(id) => self.graph.values[*id].constant.as_ref().map(|tensor| Some(tensor.view())),
            None => Some(None),
        };
        let views: Vec<Option<View<'_>>> = inputs.iter().map(known).collect::<Option<_>>()?;
        let small = |bytes: usize| bytes <= FOLD_BYTES;
        if !operator.is_pure() || !small(views.iter().flatten().map(|view| view.bytes.len()).sum()) {
            return None;
        }
        let types: Vec<_> = views
            .iter()
            .map(|view| view.map(|view| Type { dtype: view.dtype, shape: view.shape.into() }))
            .collect();
        let types: Vec<_> = types.iter().map(Option::as_ref).collect();
        let made = operator.infer(&Known { types: &types, values: &views, context: &self.context }).ok()?;
        let bytes = made.iter().try_fold(0usize, |all, ty| all.checked_add(ty.bytes()));
        if made.len() < outputs || !bytes.is_some_and(small) {
            return None;
        }
        run_one(operator, &views, made, outputs, &self.context).ok().map(|mut made| {
            made.truncate(outputs);
            made
        })
    }

    /// The elements of a value that is always the same.
    pub(super) fn known(&self, id: ValueId) -> Option<&Arc<Tensor>> {
        self.graph.values[id].constant.as_ref()
    }
}

/// One element of a type.
pub(super) fn scalar(dtype: DataType, value: f64) -> Result<Tensor, OpError> {
    fn of<T: Element>(value: T) -> Option<Tensor> {
        Tensor::from_elements([], &[value])
    }
    let made = match dtype {
        DataType::Bool => of(Bool::from(value != 0.0)),
        _ => by_number!(dtype, T => of(T::from_f64(value)), None),
    };
    made.ok_or_else(|| OpError::element_type(format!("there are no numbers of type {dtype}")))
}

/// The elements of a tensor of numbers.
pub(super) fn numbers(view: &View<'_>) -> Option<Vec<f64>> {
    by_number!(view.dtype, T => Some(view.elements::<T>().iter().map(|x| x.to_f64()).collect()), None)
}

/// The elements of a tensor of integers.
pub(super) fn integers(view: &View<'_>) -> Option<Vec<i64>> {
    if view.dtype.is_float() {
        return None;
    }
    by_number!(view.dtype, T => Some(view.elements::<T>().iter().map(|x| x.to_i64()).collect()), None)
}
