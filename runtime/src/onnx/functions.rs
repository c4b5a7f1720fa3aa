//! Functions of a model: their bodies take the place of the nodes that call them.

use super::proto::{AttributeProto, FunctionProto, GraphProto, NodeProto, OperatorSetIdProto};
use crate::error::Error;
use std::collections::HashMap;

/// Functions may call others so deep; none may call itself.
const DEPTH: usize = 32;
/// All bodies together may have so many nodes: each could call the next one twice.
const MOST_NODES: usize = 1 << 20;

/// A model's functions by domain, name and overload.
pub(super) struct Functions<'a> {
    by_name: HashMap<(&'a str, &'a str, &'a str), &'a FunctionProto>,
    /// Calls so far, so that each body's values have names of their own.
    calls: usize,
    nodes: usize,
}

impl<'a> Functions<'a> {
    pub(super) fn new(functions: &'a [FunctionProto]) -> Self {
        let name = |function: &'a FunctionProto| {
            (domain(function.domain.as_deref()), text(&function.name), text(&function.overload))
        };
        Self {
            by_name: functions.iter().map(|function| (name(function), function)).collect(),
            calls: 0,
            nodes: 0,
        }
    }

    /// The nodes with all calls of functions replaced; with the versions of domains where those of a function differ.
    pub(super) fn inline(
        &mut self,
        nodes: &[NodeProto],
        depth: usize,
        opsets: Option<&[OperatorSetIdProto]>,
        out: &mut Vec<(NodeProto, Option<Vec<OperatorSetIdProto>>)>,
    ) -> Result<(), Error> {
        for node in nodes {
            let key = (domain(node.domain.as_deref()), text(&node.op_type), text(&node.overload));
            let Some(&function) = self.by_name.get(&key) else {
                self.nodes += 1;
                if self.nodes > MOST_NODES {
                    return Err(Error::model("its functions have more than a million nodes in all"));
                }
                out.push((node.clone(), opsets.map(<[_]>::to_vec)));
                continue;
            };
            if depth >= DEPTH {
                return Err(Error::model(format!("function {} calls itself, or others too deep", key.1)));
            }
            self.calls += 1;
            let body = body(function, node, &format!("{}/{}/", key.1, self.calls));
            self.inline(&body, depth + 1, Some(&function.opset_import), out)?;
        }
        Ok(())
    }
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
            for graph in attribute.g.iter_mut().chain(&mut attribute.graphs) {
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
