//! The order of nodes that ONNX Runtime's quantizer writes: breadth first.
//!
//! Nodes that take nothing come first; then those that initializers and inputs, by name, are enough for; then those that the outputs
//! of each node before complete.

use super::names::captured;
use std::collections::{BTreeSet, HashMap, HashSet};
use stepalloc_onnx::proto::{GraphProto, NodeProto};

/// Puts the nodes of a graph in order. `None` where a node needs what it makes.
pub(super) fn sort(graph: &mut GraphProto) -> Option<()> {
    // Values that graphs within nodes take are not looked at, as long as the order is right all the same.
    let order = [false, true].into_iter().find_map(|captures| {
        breadth_first(graph, captures).filter(|order| captures || is_right(&graph.node, order))
    })?;
    let mut nodes: Vec<_> = std::mem::take(&mut graph.node).into_iter().map(Some).collect();
    graph.node = order.into_iter().filter_map(|index| nodes[index].take()).collect();
    Some(())
}

/// What a node takes, as often as it does.
fn takes(node: &NodeProto, captures: bool) -> Vec<String> {
    let mut names: Vec<_> = node.input.iter().filter(|name| !name.is_empty()).cloned().collect();
    if captures {
        names.extend(captured(node));
    }
    names
}

fn breadth_first(graph: &GraphProto, captures: bool) -> Option<Vec<usize>> {
    let inputs = graph.input.iter().filter_map(|input| input.name.as_deref());
    let given: BTreeSet<_> =
        inputs.chain(graph.initializer.iter().filter_map(|tensor| tensor.name.as_deref())).collect();
    let made: HashSet<_> = graph.node.iter().flat_map(|node| &node.output).map(String::as_str).collect();
    let mut waiting = vec![0usize; graph.node.len()];
    let mut takers: HashMap<String, Vec<usize>> = HashMap::new();
    for (index, node) in graph.node.iter().enumerate() {
        for name in takes(node, captures) {
            // What comes from around the graph is there.
            if given.contains(name.as_str()) || made.contains(name.as_str()) {
                waiting[index] += 1;
                takers.entry(name).or_default().push(index);
            }
        }
    }
    let mut order: Vec<_> = (0..waiting.len()).filter(|&index| waiting[index] == 0).collect();
    let wake = |name: &str, waiting: &mut [usize], order: &mut Vec<usize>| {
        for &index in takers.get(name).into_iter().flatten() {
            waiting[index] -= 1;
            if waiting[index] == 0 {
                order.push(index);
            }
        }
    };
    for name in given.into_iter().filter(|name| !made.contains(name)) {
        wake(name, &mut waiting, &mut order);
    }
    let mut next = 0;
    while let Some(&index) = order.get(next) {
        for name in graph.node[index].output.iter().filter(|name| !name.is_empty()) {
            wake(name, &mut waiting, &mut order);
        }
        next += 1;
    }
    (order.len() == graph.node.len()).then_some(order)
}

/// Whether everything is made before it is taken, within nodes too.
fn is_right(nodes: &[NodeProto], order: &[usize]) -> bool {
    let all: HashSet<_> = nodes.iter().flat_map(|node| &node.output).map(String::as_str).collect();
    let mut made = HashSet::new();
    order.iter().all(|&index| {
        let ready = takes(&nodes[index], true)
            .iter()
            .all(|name| !all.contains(name.as_str()) || made.contains(name.as_str()));
        made.extend(nodes[index].output.iter().map(String::as_str));
        ready
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::make;

    fn names(graph: &GraphProto) -> Vec<&str> {
        graph.node.iter().filter_map(|node| node.name.as_deref()).collect()
    }

    #[test]
    fn nodes_come_breadth_first_and_after_what_they_take() {
        let mut graph = GraphProto {
            node: vec![
                make("Add", &["b", "x"], &["y"], "last"),
                make("Neg", &["a"], &["b"], "second"),
                make("Constant", &[], &["c"], "constant"),
                make("Abs", &["x"], &["a"], "first"),
                make("Relu", &["x"], &["r"], "beside"),
            ],
            ..GraphProto::default()
        };
        graph.input =
            vec![stepalloc_onnx::proto::ValueInfoProto { name: Some("x".into()), ..Default::default() }];
        sort(&mut graph).expect("no cycle");
        assert_eq!(names(&graph), ["constant", "first", "beside", "second", "last"]);
    }

    #[test]
    fn a_cycle_is_seen() {
        let nodes = vec![make("Neg", &["a"], &["b"], "n"), make("Neg", &["b"], &["a"], "m")];
        assert!(sort(&mut GraphProto { node: nodes, ..GraphProto::default() }).is_none());
    }
}
