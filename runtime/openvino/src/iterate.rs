//! Layers that run a graph again and again: `Loop` and `TensorIterator`, as ONNX's Loop.
//!
//! A parameter of the graph is carried on (a back edge leads to it from a result), a part of what is given for each turn, the number of
//! the turn, or the same in each turn. What comes out is carried on, or put together from all turns.

use super::build::{With, scalar};
use super::convert::Conversion;
use super::read::{Body, Reader, wrong};
use super::xml::{Net, children, number};
use roxmltree::Node;
use std::collections::HashMap;
use std::sync::Arc;
use stepalloc_graph::{Error, ValueId};
use stepalloc_tensor::{DataType, OpError, Tensor};

/// An entry of the layer's port map.
struct Entry {
    /// By the id of a port; none of what goes nowhere.
    outer: Option<u64>,
    /// By the id of a layer of the graph.
    inner: u64,
    /// Of parts or of what is put together: the axis, and whether the last comes first.
    axis: Option<(i64, bool)>,
    /// `current_iteration` and `execution_condition` are not the program's own.
    purpose: String,
}

impl Entry {
    fn parse(entry: Node<'_, '_>) -> Result<Self, OpError> {
        let text = |name: &str| entry.attribute(name).unwrap_or_default();
        let value = |name: &str, usual: i64| match text(name) {
            "" => Ok(usual),
            text => text.parse::<i64>().map_err(|_| OpError::attribute(format!("its {name} is {text:?}"))),
        };
        let axis = match entry.attribute("axis") {
            None => None,
            Some(_) => {
                let stride = value("stride", 1)?;
                let ends = (value("start", 0)?, value("end", -1)?, value("part_size", 1)?);
                match (stride, ends) {
                    (1, (0, -1, 1)) => Some((value("axis", 0)?, false)),
                    (-1, (-1, 0, 1)) => Some((value("axis", 0)?, true)),
                    _ => {
                        return Err(OpError::unsupported(
                            "its parts are not of one element each, from end to end",
                        ));
                    }
                }
            }
        };
        Ok(Self {
            outer: text("external_port_id").parse().ok(),
            inner: number(entry, "internal_layer_id")?,
            axis,
            purpose: text("purpose").into(),
        })
    }
}

/// What a layer makes.
pub(super) fn convert(
    call: &mut Conversion<'_, '_, '_>,
    reader: &Reader<'_>,
    depth: usize,
) -> Result<Vec<Option<ValueId>>, Error> {
    let layer = call.layer;
    let wrong = |error| wrong(layer, error);
    let part =
        |name: &str| layer.child(name).ok_or_else(|| wrong(OpError::attribute(format!("it has no {name}"))));
    let (map, net) = (part("port_map")?, Net::parse(part("body")?).map_err(wrong)?);
    let entries = |name| children(map, name).map(Entry::parse).collect::<Result<Vec<_>, _>>().map_err(wrong);
    let (inputs, outputs) = (entries("input")?, entries("output")?);
    let mut back = HashMap::new();
    for edge in layer.child("back_edges").into_iter().flat_map(|edges| children(edges, "edge")) {
        let ends = number(edge, "to-layer").and_then(|to| Ok((to, number(edge, "from-layer")?)));
        let (to, from) = ends.map_err(wrong)?;
        back.insert(to, from);
    }
    let ports = call.by_port();
    let given: Vec<_> = inputs.iter().map(|entry| ports.get(&entry.outer?).copied()).collect();
    let mut constants = HashMap::new();
    for (entry, id) in inputs.iter().zip(&given).filter(|(entry, _)| !back.contains_key(&entry.inner)) {
        if let (None, Some(tensor)) = (entry.axis, id.and_then(|id| call.builder.known(id))) {
            constants.insert(entry.inner, Arc::clone(tensor));
        }
    }
    let mut body = reader.body(&net, &constants, depth + 1)?;
    body.part_results().map_err(wrong)?;
    let results = body.results();
    let mut turning = Turning { call, body, inputs, given, back, results };
    turning.convert(&outputs).map_err(wrong)
}

/// A layer and its graph on their way.
struct Turning<'t, 'c, 'n, 'x> {
    call: &'t mut Conversion<'c, 'n, 'x>,
    body: Body,
    inputs: Vec<Entry>,
    /// What is given for them, in the graph around.
    given: Vec<Option<ValueId>>,
    /// Results by parameter, both by the ids of layers.
    back: HashMap<u64, u64>,
    /// Of the graph, by the ids of layers.
    results: HashMap<u64, ValueId>,
}

impl Turning<'_, '_, '_, '_> {
    fn result(&self, layer: u64) -> Result<ValueId, OpError> {
        self.results
            .get(&layer)
            .copied()
            .ok_or_else(|| OpError::arity(format!("its body has no result {layer}")))
    }

    fn convert(&mut self, outputs: &[Entry]) -> Result<Vec<Option<ValueId>>, OpError> {
        let parameters = self.body.parameters.clone();
        let (turn, condition) = (self.body.builder.define("turn"), self.body.builder.define("go on"));
        self.body.builder.graph.inputs = vec![turn, condition];
        let (mut captures, mut carried, mut starts) = (Vec::new(), Vec::new(), Vec::new());
        let before = self.body.builder.graph.nodes.len();
        let places: HashMap<_, _> =
            self.inputs.iter().enumerate().map(|(at, entry)| (entry.inner, at)).collect();
        for &(layer, id) in &parameters {
            if self.body.builder.known(id).is_some() {
                continue;
            }
            let at = *places
                .get(&layer)
                .ok_or_else(|| OpError::arity(format!("nothing is given to layer {layer} of its body")))?;
            if self.inputs[at].purpose == "current_iteration" {
                self.count(turn, id)?;
                continue;
            }
            let outer = self.given[at]
                .ok_or_else(|| OpError::arity(format!("nothing is given to layer {layer} of its body")))?;
            match (self.back.get(&layer), self.inputs[at].axis) {
                (Some(&result), None) => {
                    self.body.builder.graph.inputs.push(id);
                    starts.push(outer);
                    carried.push(result);
                }
                (None, Some((axis, backwards))) => {
                    let whole = self.body.builder.define("whole");
                    self.body.builder.graph.captured.push(whole);
                    captures.push(outer);
                    self.part(turn, whole, id, axis, backwards)?;
                }
                (None, None) => {
                    self.body.builder.graph.captured.push(id);
                    captures.push(outer);
                }
                (Some(_), Some(_)) => {
                    return Err(OpError::arity(format!(
                        "layer {layer} of its body is carried on and a part"
                    )));
                }
            }
        }
        // What makes the parameters comes before what takes them.
        let made = self.body.builder.graph.nodes.len() - before;
        self.body.builder.graph.nodes.rotate_right(made);
        let (times, first) = self.times()?;
        let mut inner = vec![self.goes_on(outputs)?];
        for &result in &carried {
            inner.push(self.result(result)?);
        }
        let mut stacked = Vec::new();
        for entry in outputs {
            if let Some((axis, backwards)) = entry.axis {
                let result = self.result(entry.inner)?;
                let axes = self.body.list(&[axis])?;
                inner.push(self.body.op("Squeeze", &[Some(result), Some(axes)], With::default())?);
                stacked.push((entry.outer, axis, backwards));
            }
        }
        self.body.builder.graph.outputs = inner;
        let graph = std::mem::take(&mut self.body.builder.graph);
        let mut operands = vec![times, first];
        operands.extend(starts.into_iter().map(Some));
        let wanted = vec![true; carried.len() + stacked.len()];
        let (name, with) = (self.call.layer.name, With::default().graph("body", graph));
        let made = self.call.builder.node(name, "Loop", &operands, captures, with, &wanted)?;
        let ends: HashMap<_, _> = outputs.iter().filter_map(|entry| Some((entry.outer?, entry))).collect();
        let mut results = Vec::new();
        for port in &self.call.layer.outputs {
            let entry = ends
                .get(&port.id)
                .ok_or_else(|| OpError::arity(format!("its body makes nothing for output {}", port.id)))?;
            results.push(match stacked.iter().position(|&(outer, ..)| outer == Some(port.id)) {
                Some(at) => {
                    let (_, axis, backwards) = stacked[at];
                    let whole =
                        made[carried.len() + at].ok_or_else(|| OpError::internal("it makes nothing"))?;
                    Some(self.joined(whole, axis, backwards, port.dims.len())?)
                }
                None => {
                    let at = carried.iter().position(|&result| result == entry.inner);
                    made[at.ok_or_else(|| {
                        OpError::unsupported(format!(
                            "its output {} is of the last turn and not carried on, which is not known here",
                            port.id
                        ))
                    })?]
                }
            });
        }
        Ok(results)
    }

    /// The number of the turn, as the graph takes it.
    fn count(&mut self, turn: ValueId, id: ValueId) -> Result<(), OpError> {
        let declared = self.body.builder.graph.values[id].declared.clone();
        let dtype = declared.as_ref().map_or(DataType::I64, |declared| declared.dtype);
        let one = declared.and_then(|declared| declared.dims).is_some_and(|dims| dims.len() == 1);
        let shape = self.body.list(if one { &[1] } else { &[] })?;
        let number = self.body.op("Reshape", &[Some(turn), Some(shape)], With::default())?;
        self.body.op_into("Cast", &[Some(number)], With::default().int("to", dtype as i32), id)
    }

    /// The element of this turn.
    fn part(
        &mut self,
        turn: ValueId,
        whole: ValueId,
        id: ValueId,
        axis: i64,
        backwards: bool,
    ) -> Result<(), OpError> {
        let one = self.body.list(&[1])?;
        let mut at = self.body.op("Reshape", &[Some(turn), Some(one)], With::default())?;
        if backwards {
            let last = self.body.list(&[-1])?;
            at = self.body.op("Sub", &[Some(last), Some(at)], With::default())?;
        }
        self.body.op_into("Gather", &[Some(whole), Some(at)], With::default().int("axis", axis), id)
    }

    /// How many turns there are at most, and whether there is a first.
    fn times(&mut self) -> Result<(Option<ValueId>, Option<ValueId>), OpError> {
        if self.call.layer.kind == "Loop" {
            let (times, first) = (self.call.input(0)?, self.call.input(1)?);
            let times = self.call.cast(times, DataType::I64)?;
            // Below 0 there is no limit.
            let most = Tensor::from_elements([], &[i64::MAX])
                .ok_or_else(|| OpError::internal("a number is too long"))?;
            let most = self.constant(most);
            let none = self.constant(scalar(DataType::I64, 0.0)?);
            let open = self.call.op("Less", &[times, none])?;
            return Ok((Some(self.call.op("Where", &[open, most, times])?), Some(first)));
        }
        let parts = self.inputs.iter().zip(&self.given).find_map(|(entry, id)| Some((entry.axis?.0, (*id)?)));
        let (axis, whole) =
            parts.ok_or_else(|| OpError::arity("it has no input that is taken part by part"))?;
        let shape = self.call.op("Shape", &[whole])?;
        let axis = self.constant(scalar(DataType::I64, axis as f64)?);
        Ok((Some(self.call.op("Gather", &[shape, axis])?), None))
    }

    fn constant(&mut self, tensor: Tensor) -> ValueId {
        self.call.builder.constant(&format!("{}/constant", self.call.layer.name), Arc::new(tensor))
    }

    /// What the graph says of another turn.
    fn goes_on(&mut self, outputs: &[Entry]) -> Result<ValueId, OpError> {
        match outputs.iter().find(|entry| entry.purpose == "execution_condition") {
            Some(entry) => self.result(entry.inner),
            None => {
                let yes = scalar(DataType::Bool, 1.0)?;
                Ok(self.body.builder.constant("yes", Arc::new(yes)))
            }
        }
    }

    /// What comes out turn by turn, with the turns along the right axis.
    fn joined(
        &mut self,
        whole: ValueId,
        axis: i64,
        backwards: bool,
        rank: usize,
    ) -> Result<ValueId, OpError> {
        let mut whole = whole;
        if axis != 0 {
            let axis = stepalloc_tensor::axis(axis, rank)?;
            let order: Vec<_> = (1..=axis).chain([0]).chain(axis + 1..rank).collect();
            whole = self.call.transpose(whole, &order)?;
        }
        if backwards {
            whole = self.call.reversed(whole, &[axis])?;
        }
        Ok(whole)
    }
}
