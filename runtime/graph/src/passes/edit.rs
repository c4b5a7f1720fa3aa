//! A graph while passes change it: who makes and who needs a value is kept up to date.
//!
//! Nodes keep their places: what replaces some of them takes the place of the last one, after all that it needs. Values keep their
//! numbers and what they are, so that types found once hold throughout.

use super::facts::Facts;
use crate::context::RunContext;
use crate::graph::{Attribute, Attributes, Graph, Node, Value, ValueId};
use crate::operator::{Call, Definition, Known, Operator, Registry, Unclear};
use std::collections::HashSet;
use std::sync::Arc;
use stepalloc_tensor::{OpError, Tensor};

/// What passes over all graphs of a model work with.
#[derive(Clone)]
pub(crate) struct Tools {
    /// Where operators are found.
    pub registry: Registry,
    /// What nodes have that are computed.
    pub context: RunContext,
}

/// A graph that is being changed.
pub(crate) struct Editor {
    values: Vec<Value>,
    /// Nodes in order; nothing where one was taken out.
    nodes: Vec<Option<Node>>,
    /// For each value, places of the nodes that need it, as often as they do; graphs within them count.
    users: Vec<Vec<usize>>,
    makers: Vec<Option<usize>>,
    names: HashSet<String>,
    graph: Graph,
    /// What is known of values' types.
    pub facts: Facts,
    /// Operators, and what they run with.
    pub tools: Tools,
    /// The version of ai.onnx.
    pub opset: i64,
    /// What constant folding may make a node's outputs, in bytes.
    pub fold_limit: usize,
    /// Whether the graph is within a node: what it gives must be made in it.
    pub is_inner: bool,
}

/// Everything a node takes, by its own inputs and by graphs within.
pub(crate) fn taken(node: &Node) -> impl Iterator<Item = ValueId> + '_ {
    node.inputs.iter().flatten().copied().chain(node.captures.iter().copied())
}

impl Editor {
    pub(crate) fn new(
        mut graph: Graph,
        facts: Facts,
        tools: Tools,
        opset: i64,
        fold_limit: usize,
        is_inner: bool,
    ) -> Self {
        let values = std::mem::take(&mut graph.values);
        let nodes: Vec<_> = std::mem::take(&mut graph.nodes).into_iter().map(Some).collect();
        let names = values.iter().map(|value| value.name.clone()).collect();
        let mut editor = Self {
            users: vec![Vec::new(); values.len()],
            makers: vec![None; values.len()],
            values,
            nodes,
            names,
            graph,
            facts,
            tools,
            opset,
            fold_limit,
            is_inner,
        };
        for at in 0..editor.nodes.len() {
            if let Some(node) = editor.nodes[at].take() {
                editor.put(at, node);
            }
        }
        editor
    }

    /// The graph as it is now.
    pub(crate) fn finish(self) -> Graph {
        Graph { values: self.values, nodes: self.nodes.into_iter().flatten().collect(), ..self.graph }
    }

    /// Numbers of all places, those of nodes taken out too.
    pub(crate) fn places(&self) -> std::ops::Range<usize> {
        0..self.nodes.len()
    }

    pub(crate) fn node(&self, at: usize) -> Option<&Node> {
        self.nodes.get(at)?.as_ref()
    }

    /// A node of one of ai.onnx's operators.
    pub(crate) fn is(&self, at: usize, op: &str) -> bool {
        self.node(at).is_some_and(|node| node.op_type == op && node.domain.is_empty())
    }

    /// Takes a node out.
    pub(crate) fn remove(&mut self, at: usize) -> Option<Node> {
        let node = self.nodes[at].take()?;
        for id in taken(&node) {
            if let Some(found) = self.users[id].iter().position(|&user| user == at) {
                self.users[id].swap_remove(found);
            }
        }
        for &id in node.outputs.iter().flatten() {
            if self.makers[id] == Some(at) {
                self.makers[id] = None;
            }
        }
        Some(node)
    }

    /// Puts a node in a place, where another one goes out.
    pub(crate) fn put(&mut self, at: usize, node: Node) {
        self.remove(at);
        taken(&node).for_each(|id| self.users[id].push(at));
        node.outputs.iter().flatten().for_each(|&id| self.makers[id] = Some(at));
        self.nodes[at] = Some(node);
    }

    pub(crate) fn maker(&self, id: ValueId) -> Option<usize> {
        self.makers[id]
    }

    /// The place of a value's maker, if that is one of ai.onnx's operators of this name and makes it first.
    pub(crate) fn made_by(&self, id: ValueId, op: &str) -> Option<usize> {
        let at = self.makers[id].filter(|&at| self.is(at, op))?;
        (self.node(at)?.outputs.first() == Some(&Some(id))).then_some(at)
    }

    pub(crate) fn value(&self, id: ValueId) -> &Value {
        &self.values[id]
    }

    /// A value's elements, where they are always the same.
    pub(crate) fn constant(&self, id: ValueId) -> Option<&Arc<Tensor>> {
        self.values[id].constant.as_ref().filter(|_| !self.graph.inputs.contains(&id))
    }

    pub(crate) fn is_output(&self, id: ValueId) -> bool {
        self.graph.outputs.contains(&id)
    }

    /// Places of those that need a value.
    pub(crate) fn users(&self, id: ValueId) -> &[usize] {
        &self.users[id]
    }

    /// Whether nobody needs it, neither here nor outside.
    pub(crate) fn is_unused(&self, id: ValueId) -> bool {
        self.users[id].is_empty() && !self.is_output(id)
    }

    /// Whether just these nodes need a value, and nobody outside.
    pub(crate) fn is_within(&self, id: ValueId, places: &[usize]) -> bool {
        !self.is_output(id) && self.users[id].iter().all(|user| places.contains(user))
    }

    /// The node that alone needs a value, once.
    pub(crate) fn only_user(&self, id: ValueId) -> Option<usize> {
        match self.users[id][..] {
            [user] if !self.is_output(id) => Some(user),
            _ => None,
        }
    }

    /// A new value that is always the same.
    pub(crate) fn add_constant(&mut self, name: &str, tensor: Tensor) -> ValueId {
        let mut name = name.to_owned();
        while !self.names.insert(name.clone()) {
            name.push('_');
        }
        self.facts.push(tensor.ty().clone());
        self.values.push(Value { name, declared: None, constant: Some(Arc::new(tensor)) });
        self.users.push(Vec::new());
        self.makers.push(None);
        self.values.len() - 1
    }

    /// A value is always the same from now on, and made by nobody.
    pub(crate) fn set_constant(&mut self, id: ValueId, tensor: Arc<Tensor>) {
        self.facts.set(id, tensor.ty().clone());
        self.values[id].constant = Some(tensor);
    }

    /// A node of this graph's version of ai.onnx, or of com.microsoft, if there is such an operator.
    pub(crate) fn make(
        &self,
        name: &str,
        (domain, op): (&str, &str),
        attributes: &[(&str, Attribute)],
        inputs: &[Option<ValueId>],
        outputs: &[Option<ValueId>],
    ) -> Option<Node> {
        let attributes = attributes.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        let opset = if domain.is_empty() { self.opset } else { 1 };
        Node {
            name: name.into(),
            op_type: op.into(),
            domain: domain.into(),
            opset,
            attributes: Attributes(attributes.collect()),
            inputs: inputs.to_vec(),
            captures: Vec::new(),
            outputs: outputs.to_vec(),
            operator: Arc::new(Nothing),
        }
        .remade(&self.tools.registry)
    }

    /// Puts the other value in the place of one that a node makes, for everybody; `false` where that cannot be, as both have a name
    /// outside. The node is taken out.
    pub(crate) fn replace(&mut self, at: usize, old: ValueId, new: ValueId) -> bool {
        if self.is_output(old) {
            // What is known outside keeps its number: the other one's maker makes it.
            let Some(maker) = self.makers[new].filter(|&maker| maker != at) else { return false };
            if self.is_output(new) || self.graph.inputs.contains(&new) || self.constant(new).is_some() {
                return false;
            }
            self.remove(at);
            let mut node = match self.remove(maker) {
                Some(node) => node,
                None => return false,
            };
            node.outputs.iter_mut().filter(|id| **id == Some(new)).for_each(|id| *id = Some(old));
            self.put(maker, node);
            self.rename(new, old);
            return true;
        }
        self.remove(at);
        self.rename(old, new);
        true
    }

    /// All that need a value take another one.
    fn rename(&mut self, old: ValueId, new: ValueId) {
        for user in std::mem::take(&mut self.users[old]) {
            let Some(node) = &mut self.nodes[user] else { continue };
            let ids = node.inputs.iter_mut().flatten().chain(&mut node.captures);
            ids.filter(|id| **id == old).for_each(|id| *id = new);
            self.users[new].push(user);
        }
    }

    /// Elements of all values that are always the same.
    pub(crate) fn constants_mut(&mut self) -> impl Iterator<Item = &mut Arc<Tensor>> {
        self.values.iter_mut().filter_map(|value| value.constant.as_mut())
    }

    /// Forgets the elements of weights that nobody needs any more.
    pub(crate) fn sweep(&mut self) {
        (0..self.values.len()).for_each(|id| self.forget(id));
    }

    /// Forgets the elements of a weight if nobody needs it any more.
    pub(crate) fn forget(&mut self, id: ValueId) {
        if self.values[id].constant.is_some() && self.is_unused(id) && !self.graph.inputs.contains(&id) {
            self.values[id].constant = None;
        }
    }

    /// The graph is replaced by one that has all of its values, and maybe more.
    pub(crate) fn rebuild(&mut self, change: impl FnOnce(&Graph, &Registry) -> Option<Graph>) -> bool {
        let graph = Graph {
            values: self.values.clone(),
            nodes: self.nodes.iter().flatten().cloned().collect(),
            ..self.graph.clone()
        };
        let Some(graph) = change(&graph, &self.tools.registry) else { return false };
        let mut facts = std::mem::take(&mut self.facts);
        facts.extend(&graph);
        let tools = self.tools.clone();
        *self = Self::new(graph, facts, tools, self.opset, self.fold_limit, self.is_inner);
        true
    }

    /// The only element of a constant of real numbers that has one.
    pub(crate) fn scalar(&self, id: ValueId) -> Option<f32> {
        let view = self.constant(id)?.view();
        match view.dtype {
            stepalloc_tensor::DataType::F32 if view.len() == 1 => Some(view.elements::<f32>()[0]),
            _ => None,
        }
    }

    /// The elements of a constant of integers.
    pub(crate) fn ints(&self, id: ValueId) -> Option<Vec<i64>> {
        crate::operator::ints(&self.constant(id)?.view()).map(|ints| ints.into_vec())
    }
}

impl Node {
    /// The same node with an operator made for what it says now; `None` if there is none.
    pub(crate) fn remade(self, registry: &Registry) -> Option<Self> {
        let operator = registry.make(&Definition {
            op: &self.op_type,
            domain: &self.domain,
            opset: self.opset,
            attributes: &self.attributes,
            registry,
            inputs: &self.inputs.iter().map(Option::is_some).collect::<Vec<_>>(),
            outputs: &self.outputs.iter().map(Option::is_some).collect::<Vec<_>>(),
        });
        let operator = operator?.ok()?;
        Some(Self { operator: operator.into(), ..self })
    }

    /// An input that is there.
    pub(crate) fn input(&self, index: usize) -> Option<ValueId> {
        self.inputs.get(index).copied().flatten()
    }

    /// The output, of nodes that have one.
    pub(crate) fn output(&self) -> Option<ValueId> {
        match self.outputs[..] {
            [Some(output)] => Some(output),
            [Some(output), ref others @ ..] if others.iter().all(Option::is_none) => Some(output),
            _ => None,
        }
    }

    /// The other one of two inputs.
    pub(crate) fn beside(&self, id: ValueId) -> Option<ValueId> {
        match self.inputs[..] {
            [Some(a), Some(b)] if a == id && b != id => Some(b),
            [Some(a), Some(b)] if b == id && a != id => Some(a),
            _ => None,
        }
    }
}

/// The operator of a node whose own is not made yet.
pub(crate) struct Nothing;

impl Operator for Nothing {
    fn infer(&self, _: &Known<'_>) -> Result<crate::operator::Types, Unclear> {
        Err(OpError::internal("it was never made").into())
    }

    fn run(&self, _: &mut Call<'_, '_>) -> Result<(), OpError> {
        Err(OpError::internal("it was never made"))
    }
}
