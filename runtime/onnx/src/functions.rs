//! Functions of a model: their bodies take the place of the nodes that call them.

use super::proto::{AttributeProto, FunctionProto, GraphProto, NodeProto, OperatorSetIdProto};
use prost::Message;
use std::collections::HashMap;
use std::rc::Rc;
use stepalloc_graph::Error;

/// Functions may call others so deep; none may call itself.
const DEPTH: usize = 32;
/// All bodies that take the place of calls may take so many bytes: each could call the next one twice.
const MOST_BYTES: usize = 64 << 20;
/// A node of a body takes so many bytes, and what is in it so many times its size in the file.
const NODE_BYTES: usize = 2048;
const TIMES: usize = 10;

/// Versions of domains.
pub(super) type Versions = Rc<[(String, i64)]>;

/// The versions that a model or a function imports.
pub(super) fn versions(opsets: &[OperatorSetIdProto]) -> Versions {
    let version =
        |set: &OperatorSetIdProto| (set.domain.clone().unwrap_or_default(), set.version.unwrap_or(1));
    opsets.iter().map(version).collect()
}

/// A model's functions by domain, name and overload.
pub(super) struct Functions<'a> {
    by_name: HashMap<(&'a str, &'a str, &'a str), Function<'a>>,
    /// Calls so far, so that each body's values have names of their own.
    calls: usize,
    /// Bytes that bodies may still take.
    left: usize,
}

struct Function<'a> {
    proto: &'a FunctionProto,
    versions: Versions,
    /// What a body in place of a call takes.
    bytes: usize,
}

impl<'a> Functions<'a> {
    pub(super) fn new(functions: &'a [FunctionProto]) -> Self {
        let name = |function: &'a FunctionProto| {
            (domain(function.domain.as_deref()), text(&function.name), text(&function.overload))
        };
        Self {
            by_name: functions.iter().map(|proto| (name(proto), Function::new(proto))).collect(),
            calls: 0,
            left: MOST_BYTES,
        }
    }

    /// The nodes with all calls of functions replaced; with the versions of domains where those of a function differ.
    pub(super) fn inline(
        &mut self,
        nodes: Vec<NodeProto>,
        depth: usize,
        opsets: Option<&Versions>,
        out: &mut Vec<(NodeProto, Option<Versions>)>,
    ) -> Result<(), Error> {
        for node in nodes {
            let key = (domain(node.domain.as_deref()), text(&node.op_type), text(&node.overload));
            let Some(function) = self.by_name.get(&key) else {
                out.push((node, opsets.cloned()));
                continue;
            };
            if depth >= DEPTH {
                return Err(Error::model(format!("function {} calls itself, or others too deep", key.1)));
            }
            let left = self.left.checked_sub(function.bytes).ok_or_else(|| {
                let what = "in place of their calls, its functions would take more than";
                Error::model(format!("{what} {} MiB", MOST_BYTES >> 20))
            })?;
            self.calls += 1;
            let body = body(function.proto, &node, &format!("{}/{}/", key.1, self.calls));
            let versions = Rc::clone(&function.versions);
            self.left = left;
            self.inline(body, depth + 1, Some(&versions), out)?;
        }
        Ok(())
    }
}

impl<'a> Function<'a> {
    fn new(proto: &'a FunctionProto) -> Self {
        let nodes = proto.node.iter().map(count_nodes).sum::<usize>();
        let bytes: usize = proto.node.iter().map(Message::encoded_len).sum();
        Self { proto, versions: versions(&proto.opset_import), bytes: nodes * NODE_BYTES + bytes * TIMES }
    }
}

/// A node, and those of graphs within it.
fn count_nodes(node: &NodeProto) -> usize {
    let graphs = node.attribute.iter().flat_map(graphs_of);
    1 + graphs.flat_map(|graph| graph.node.iter()).map(count_nodes).sum::<usize>()
}

/// Graphs within an attribute.
pub(super) fn graphs_of(attribute: &AttributeProto) -> impl Iterator<Item = &GraphProto> {
    attribute.g.as_deref().into_iter().chain(&attribute.graphs)
}

/// ai.onnx has two names.
fn domain(name: Option<&str>) -> &str {
    match name {
        None | Some("ai.onnx") => "",
        Some(name) => name,
    }
}

fn text(text: &Option<String>) -> &str {
    text.as_deref().unwrap_or_default()
}

/// A function's nodes with the caller's names and attributes in them.
fn body(function: &FunctionProto, call: &NodeProto, prefix: &str) -> Vec<NodeProto> {
    let mut names = HashMap::new();
    let arguments = call.input.iter().map(Some).chain(std::iter::repeat(None));
    for (formal, given) in function.input.iter().zip(arguments) {
        names.insert(formal.as_str(), given.map_or("", String::as_str));
    }
    for (formal, wanted) in function.output.iter().zip(&call.output).filter(|(_, wanted)| !wanted.is_empty())
    {
        names.insert(formal.as_str(), wanted);
    }
    let given = |name: &str| {
        let of =
            |list: &[AttributeProto]| list.iter().find(|found| found.name.as_deref() == Some(name)).cloned();
        of(&call.attribute).or_else(|| of(&function.attribute_proto))
    };
    let mut nodes = function.node.clone();
    rename(&mut nodes, &names, prefix, &given);
    nodes
}

fn rename(
    nodes: &mut [NodeProto],
    names: &HashMap<&str, &str>,
    prefix: &str,
    given: &dyn Fn(&str) -> Option<AttributeProto>,
) {
    let renamed = |name: &mut String| {
        if !name.is_empty() {
            *name = names.get(name.as_str()).map_or_else(|| format!("{prefix}{name}"), |name| (*name).into());
        }
    };
    for node in nodes {
        if let Some(name) = &mut node.name {
            name.insert_str(0, prefix);
        }
        node.input.iter_mut().chain(&mut node.output).for_each(renamed);
        node.attribute.retain_mut(|attribute| {
            let Some(asked) = attribute.ref_attr_name.take().filter(|name| !name.is_empty()) else {
                return true;
            };
            let name = attribute.name.take();
            match given(&asked) {
                Some(found) => {
                    *attribute = AttributeProto { name, ..found };
                    true
                }
                None => false,
            }
        });
        for attribute in &mut node.attribute {
            for graph in attribute.g.as_deref_mut().into_iter().chain(&mut attribute.graphs) {
                let GraphProto { input, output, initializer, .. } = graph;
                let values = input.iter_mut().chain(output).map(|value| &mut value.name);
                values
                    .chain(initializer.iter_mut().map(|tensor| &mut tensor.name))
                    .flatten()
                    .for_each(renamed);
                rename(&mut graph.node, names, prefix, given);
            }
        }
    }
}
