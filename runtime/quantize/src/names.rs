//! Names of a model: new ones that nobody has, and initializers that nobody takes.

use std::collections::{HashMap, HashSet};
use stepalloc_onnx::proto::{GraphProto, NodeProto};

/// Names in use anywhere in a model.
#[derive(Default)]
pub(super) struct Names {
    values: Used,
    nodes: Used,
}

#[derive(Default)]
struct Used {
    names: HashSet<String>,
    /// The last number at the end of each name that was wanted more than once.
    numbers: HashMap<String, u64>,
}

impl Used {
    fn fresh(&mut self, wanted: &str) -> String {
        let mut name = wanted.to_owned();
        while !self.names.insert(name.clone()) {
            let number = self.numbers.entry(wanted.to_owned()).or_default();
            *number += 1;
            name = format!("{wanted}_{number}");
        }
        name
    }
}

impl Names {
    pub(super) fn of(graph: &GraphProto) -> Self {
        let mut names = Self::default();
        names.collect(graph);
        names
    }

    fn collect(&mut self, graph: &GraphProto) {
        let values = graph.input.iter().chain(&graph.output).map(|value| &value.name);
        let tensors = graph.initializer.iter().map(|tensor| &tensor.name);
        self.values.names.extend(values.chain(tensors).flatten().cloned());
        for node in &graph.node {
            self.values.names.extend(node.input.iter().chain(&node.output).cloned());
            self.nodes.names.extend(node.name.clone());
            graphs(node).for_each(|graph| self.collect(graph));
        }
    }

    /// A name for a value: as wanted, or with a number at its end.
    pub(super) fn value(&mut self, wanted: &str) -> String {
        self.values.fresh(wanted)
    }

    /// A name for a node: as wanted, or with a number at its end.
    pub(super) fn node(&mut self, wanted: &str) -> String {
        self.nodes.fresh(wanted)
    }
}

/// Graphs within a node.
pub(super) fn graphs(node: &NodeProto) -> impl Iterator<Item = &GraphProto> {
    node.attribute.iter().flat_map(|attribute| attribute.g.as_deref().into_iter().chain(&attribute.graphs))
}

/// Values that the graphs within a node take from around it.
pub(super) fn captured(node: &NodeProto) -> Vec<String> {
    let mut names: Vec<_> = graphs(node).flat_map(outside).collect();
    names.sort();
    names.dedup();
    names
}

fn outside(graph: &GraphProto) -> HashSet<String> {
    let mut names: HashSet<_> = graph.output.iter().filter_map(|value| value.name.clone()).collect();
    for node in &graph.node {
        names.extend(node.input.iter().filter(|name| !name.is_empty()).cloned());
        names.extend(captured(node));
    }
    let inputs = graph.input.iter().filter_map(|value| value.name.as_ref());
    let tensors = graph.initializer.iter().filter_map(|tensor| tensor.name.as_ref());
    for name in inputs.chain(tensors).chain(graph.node.iter().flat_map(|node| &node.output)) {
        names.remove(name);
    }
    names
}

/// Removes the initializers that nothing takes, with the inputs they were defaults of, and those that a node makes now; and what is said
/// of values that are not there any more. Returns the names that the graph takes from around it.
pub(super) fn sweep(graph: &mut GraphProto) -> HashSet<String> {
    let mut taken: HashSet<_> = graph.output.iter().filter_map(|value| value.name.clone()).collect();
    let mut made = HashSet::new();
    for node in &mut graph.node {
        taken.extend(node.input.iter().filter(|name| !name.is_empty()).cloned());
        made.extend(node.output.iter().filter(|name| !name.is_empty()).cloned());
        for attribute in &mut node.attribute {
            let inner = attribute.g.as_deref_mut().into_iter().chain(&mut attribute.graphs);
            taken.extend(inner.flat_map(sweep));
        }
    }
    let mut gone = HashSet::new();
    graph.initializer.retain(|tensor| {
        let name = tensor.name.as_deref().unwrap_or_default();
        let stays = taken.contains(name) && !made.contains(name);
        if !stays {
            gone.insert(name.to_owned());
        }
        stays
    });
    let is_gone = |name: &Option<String>| name.as_ref().is_some_and(|name| gone.contains(name));
    graph.input.retain(|input| !is_gone(&input.name));
    let tensors = graph.initializer.iter().filter_map(|tensor| tensor.name.as_ref());
    let inputs = graph.input.iter().filter_map(|input| input.name.as_ref());
    made.extend(tensors.chain(inputs).cloned());
    let is_there = |name: &Option<String>| name.as_ref().is_some_and(|name| made.contains(name));
    graph.value_info.retain(|value| is_there(&value.name));
    taken.retain(|name| !made.contains(name));
    taken
}
