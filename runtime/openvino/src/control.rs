//! Layers with graphs of their own: `If`, and those of `iterate`.

use super::build::With;
use super::convert::Conversion;
use super::iterate;
use super::read::{Reader, wrong};
use super::xml::{Net, children, number};
use roxmltree::Node;
use std::collections::HashMap;
use stepalloc_graph::{Error, Graph, ValueId};
use stepalloc_tensor::OpError;

/// Whether an operation has graphs of its own, and is known here.
pub(super) fn is_known(kind: &str) -> bool {
    matches!(kind, "If" | "Loop" | "TensorIterator")
}

/// What a layer makes.
pub(super) fn convert(
    call: &mut Conversion<'_, '_, '_>,
    reader: &Reader<'_>,
    depth: usize,
) -> Result<Vec<Option<ValueId>>, Error> {
    let layer = call.layer;
    if layer.kind != "If" {
        return iterate::convert(call, reader, depth);
    }
    let wrong = |error| wrong(layer, error);
    let condition = call.input(0).map_err(wrong)?;
    // Captures are in the order of the attributes' names.
    let (otherwise, mut captures) = branch(call, reader, depth, "else")?;
    let (then, captured) = branch(call, reader, depth, "then")?;
    captures.extend(captured);
    let with = With::default().graph("else_branch", otherwise).graph("then_branch", then);
    let wanted = call.wanted.clone();
    call.builder.node(layer.name, "If", &[Some(condition)], captures, with, &wanted).map_err(wrong)
}

/// A branch, and what it takes from outside.
fn branch(
    call: &Conversion<'_, '_, '_>,
    reader: &Reader<'_>,
    depth: usize,
    name: &str,
) -> Result<(Graph, Vec<ValueId>), Error> {
    let layer = call.layer;
    let wrong = |error| wrong(layer, error);
    let part = |part: &str| {
        let name = format!("{name}_{part}");
        layer.child(&name).ok_or_else(|| wrong(OpError::attribute(format!("it has no {name}"))))
    };
    let (map, net) = (part("port_map")?, Net::parse(part("body")?).map_err(wrong)?);
    let ends = |end: Node<'_, '_>| {
        Ok::<_, OpError>((number(end, "internal_layer_id")?, number(end, "external_port_id")?))
    };
    let (ports, mut given) = (call.by_port(), HashMap::new());
    for input in children(map, "input") {
        let (inner, port) = ends(input).map_err(wrong)?;
        given.insert(
            inner,
            *ports.get(&port).ok_or_else(|| wrong(OpError::arity(format!("it has no input {port}"))))?,
        );
    }
    let constants = given.iter().filter_map(|(&inner, &id)| Some((inner, call.builder.known(id)?.clone())));
    let mut body = reader.body(&net, &constants.collect(), depth + 1)?;
    body.part_results().map_err(wrong)?;
    let mut captures = Vec::new();
    for &(inner, id) in &body.parameters {
        if body.builder.known(id).is_some() {
            continue;
        }
        let outer = given.get(&inner);
        captures.push(*outer.ok_or_else(|| {
            wrong(OpError::arity(format!("nothing is given to layer {inner} of its {name} body")))
        })?);
        body.builder.graph.captured.push(id);
    }
    let (made, mut results) = (body.results(), HashMap::new());
    for output in children(map, "output") {
        let (inner, port) = ends(output).map_err(wrong)?;
        results.insert(port, inner);
    }
    for port in &layer.outputs {
        let inner = results.get(&port.id);
        let id = inner.and_then(|inner| made.get(inner)).copied();
        let id = id.ok_or_else(|| {
            wrong(OpError::arity(format!("its {name} body makes nothing for output {}", port.id)))
        })?;
        body.builder.graph.outputs.push(id);
    }
    Ok((body.builder.graph, captures))
}
