//! The plan of a graph for inputs of some types: what each value is, where it lies, and what is left to be done.
//!
//! Types follow from those of the inputs, node by node; values that follow from what is known (shapes, above all) are computed
//! here, once. What then runs has a place in one arena: values that are views of others lie where these lie, outputs are written over
//! inputs that nobody needs any more, and the rest, with the operators' scratch memory, is planned by `stepalloc-planner`. Where a
//! type depends on elements that are only known when the model runs, its node and what follows from it take memory as they go.

use crate::element::DataType;
use crate::error::Error;
use crate::graph::{Attribute, Graph, Node, ValueId};
use crate::inline::{inline, is_if};
use crate::operators::{Known, Reuse, Unclear};
use crate::order::{self, Task};
use crate::run::run_one;
use crate::tensor::{ALIGNMENT, Tensor, Type, View};
use std::collections::HashMap;
use std::sync::Arc;
use stepalloc_planner::{Block, Effort, Planner, Problem, verify};

/// What is computed while planning may have so many bytes: shapes and indices, no activations.
const FOLD_BYTES: usize = 64 << 10;

/// What a plan may do. All of it is on by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// Values that are views of others lie where these lie, and outputs are written over inputs.
    pub in_place: bool,
    /// Values that are not alive at the same time share memory. Off, every intermediate value can be read after a run.
    pub reuse: bool,
}

impl Default for Sharing {
    fn default() -> Self {
        Self { in_place: true, reuse: true }
    }
}

/// Where a value lies.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// Nobody needs it.
    Nowhere,
    /// It was known before the model ran.
    Known(Arc<Tensor>),
    /// It is that input, or a view of it. Inputs are followed by what the graph takes from outside.
    Input(usize),
    /// In that output.
    Output(usize),
    /// At that offset of the arena.
    Arena(usize),
    /// In memory of its own, taken when its type is known.
    Heap,
}

/// What runs.
pub(crate) struct Step {
    pub node: usize,
    /// The input that output 0 is written over.
    pub in_place: Option<usize>,
    /// Offset and length.
    pub scratch: (usize, usize),
    /// Types of its outputs are known only when it runs.
    pub on_heap: bool,
    /// Values on the heap that nobody needs afterwards.
    pub drops: Vec<ValueId>,
}

/// Where everything lies for inputs of some types.
pub(crate) struct Plan {
    /// What is run: the model's graph, with branches in it whose conditions are known.
    pub graph: Arc<Graph>,
    pub types: Vec<Option<Type>>,
    pub places: Vec<Place>,
    pub steps: Vec<Step>,
    /// Outputs that lie elsewhere when the last step has run.
    pub copies: Vec<(ValueId, usize)>,
    pub figures: Figures,
}

/// How good a plan is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// Bytes that no arena can do without: the largest sum of what is alive at once.
    pub lower_bound_bytes: u64,
    /// Tensors with a place in the arena or an output.
    pub planned_tensors: u64,
    /// Tensors that lie where another lies: written over it, or views of it.
    pub inplace_tensors: u64,
    /// Nodes whose outputs' sizes depend on elements, and those that run graphs of their own.
    pub unplanned_nodes: u64,
    /// Nodes that were computed while planning.
    pub folded_nodes: u64,
}

/// Bytes that one or more values share.
struct Buffer {
    bytes: usize,
    /// Steps from which to which it is alive, the last one included.
    first: usize,
    last: usize,
    /// The graph's output that it is.
    output: Option<usize>,
}

struct Drafting<'g> {
    graph: &'g Arc<Graph>,
    sharing: Sharing,
    types: Vec<Option<Type>>,
    known: Vec<Option<Arc<Tensor>>>,
    /// The input that a value is.
    input: Vec<Option<usize>>,
    /// Nodes to be run, in order; whether on the heap.
    running: Vec<(usize, bool)>,
    figures: Figures,
}

impl Plan {
    /// For inputs of these types, followed by what the graph takes from outside; `None` for those with a constant that are left out.
    /// Those that are `told` have just these elements.
    pub(crate) fn new(
        graph: &Arc<Graph>,
        inputs: &[Option<Type>],
        told: &[Option<Arc<Tensor>>],
        sharing: Sharing,
    ) -> Result<Self, Error> {
        let mut graph = Arc::clone(graph);
        loop {
            let mut draft = Drafting::new(&graph, inputs, told, sharing);
            let mut decided = HashMap::new();
            for (index, node) in graph.nodes.iter().enumerate() {
                if let Some(condition) = draft.condition(node) {
                    decided.insert(index, condition);
                    continue;
                }
                draft.learn(index, node)?;
            }
            if decided.is_empty() {
                return draft.place();
            }
            let inlined = inline(&graph, &decided)?;
            graph = Arc::new(inlined);
        }
    }
}

/// Types and known elements of a node's inputs, with what its graphs take from outside.
fn inputs_of(node: &Node) -> impl Iterator<Item = Option<ValueId>> {
    node.inputs.iter().copied().chain(node.captures.iter().copied().map(Some))
}

impl<'g> Drafting<'g> {
    fn new(
        graph: &'g Arc<Graph>,
        inputs: &[Option<Type>],
        told: &[Option<Arc<Tensor>>],
        sharing: Sharing,
    ) -> Self {
        let count = graph.values.len();
        let mut draft = Self {
            graph,
            sharing,
            types: vec![None; count],
            known: graph.values.iter().map(|value| value.constant.clone()).collect(),
            input: vec![None; count],
            running: Vec::new(),
            figures: Figures::default(),
        };
        for (index, (&id, ty)) in graph.inputs.iter().chain(&graph.captured).zip(inputs).enumerate() {
            if let Some(ty) = ty {
                draft.types[id] = Some(ty.clone());
                draft.known[id] = told.get(index).cloned().flatten();
                draft.input[id] = Some(index);
            }
        }
        for (ty, known) in draft.types.iter_mut().zip(&draft.known) {
            if let Some(known) = known {
                *ty = Some(known.ty().clone());
            }
        }
        draft
    }

    /// The condition of a node with branches, if it is known.
    fn condition(&self, node: &Node) -> Option<bool> {
        if !is_if(node) {
            return None;
        }
        let condition = self.known[node.inputs.first().copied().flatten()?].as_ref()?.view();
        (condition.dtype == DataType::Bool && condition.len() == 1).then(|| condition.bytes[0] != 0)
    }

    /// Tells the types of a node's outputs, and computes them if all is known.
    fn learn(&mut self, index: usize, node: &Node) -> Result<(), Error> {
        let wrong = |what: String| Error::Node { node: node.name.clone(), op: node.op_type.clone(), what };
        if let (Some(tensor), [Some(output), ..]) = (node.operator.constant(), &node.outputs[..]) {
            self.types[*output] = Some(tensor.ty().clone());
            self.known[*output] = Some(tensor);
            return Ok(());
        }
        let ids: Vec<_> = inputs_of(node).collect();
        if ids.iter().flatten().any(|&id| self.types[id].is_none()) {
            self.running.push((index, true));
            return Ok(());
        }
        let types: Vec<_> = ids.iter().map(|id| id.and_then(|id| self.types[id].as_ref())).collect();
        let tensors: Vec<_> = ids.iter().map(|id| id.and_then(|id| self.known[id].as_ref())).collect();
        let views: Vec<_> = tensors.iter().map(|known| known.map(|known| known.view())).collect();
        let made = match node.operator.infer(&Known { types: &types, values: &views }) {
            Ok(made) => made,
            Err(Unclear::Needs(_)) => {
                self.running.push((index, true));
                return Ok(());
            }
            Err(Unclear::Wrong(what)) => return Err(wrong(what)),
        };
        if made.len() < node.outputs.len() {
            return Err(wrong(format!("it has {} outputs at most", made.len())));
        }
        let all_known = ids.iter().zip(&views).all(|(id, view)| id.is_none() || view.is_some());
        let bytes: usize = made.iter().map(Type::bytes).sum();
        let folds = bytes <= FOLD_BYTES && (all_known || node.operator.looks_at_types_only());
        if folds && node.operator.is_pure() {
            let stand_ins: Vec<_> = types
                .iter()
                .zip(&views)
                .map(|(ty, view)| {
                    view.or(ty.map(|ty| View { dtype: ty.dtype, shape: &ty.shape, bytes: &[] }))
                })
                .collect();
            let outputs = run_one(&*node.operator, &stand_ins, made, node.outputs.len()).map_err(wrong)?;
            for (tensor, id) in outputs.into_iter().zip(&node.outputs) {
                if let Some(id) = *id {
                    self.types[id] = Some(tensor.ty().clone());
                    self.known[id] = Some(Arc::new(tensor));
                }
            }
            self.figures.folded_nodes += 1;
            return Ok(());
        }
        for (ty, id) in made.into_iter().zip(&node.outputs) {
            if let Some(id) = *id {
                self.types[id] = Some(ty);
            }
        }
        self.running.push((index, false));
        Ok(())
    }

    /// The nodes that somebody needs, in the file's order.
    fn needed(&mut self) -> Vec<(usize, bool)> {
        let mut needed = vec![false; self.types.len()];
        self.graph.outputs.iter().for_each(|&id| needed[id] = true);
        let mut kept = Vec::new();
        for (index, on_heap) in std::mem::take(&mut self.running).into_iter().rev() {
            let node = &self.graph.nodes[index];
            if node.outputs.iter().flatten().any(|&id| needed[id]) || !self.sharing.reuse {
                inputs_of(node).flatten().for_each(|id| needed[id] = true);
                kept.push((index, on_heap));
            }
        }
        kept.reverse();
        self.late(kept)
    }

    /// For each value, the step that needs it last (outputs: one past the last step).
    fn last_uses(&self, running: &[(usize, bool)]) -> Vec<Option<usize>> {
        let mut last = vec![None; self.types.len()];
        for (step, &(index, _)) in running.iter().enumerate() {
            inputs_of(&self.graph.nodes[index]).flatten().for_each(|id| last[id] = Some(step));
        }
        self.graph.outputs.iter().for_each(|&id| last[id] = Some(running.len()));
        last
    }

    /// Other orders of the same nodes.
    fn other_orders(&self, running: &[(usize, bool)]) -> Vec<Vec<(usize, bool)>> {
        if !self.sharing.reuse {
            return Vec::new();
        }
        let task = |&(index, _): &(usize, bool)| {
            let node = &self.graph.nodes[index];
            Task {
                takes: inputs_of(node).flatten().collect(),
                makes: node.outputs.iter().flatten().copied().collect(),
                keeps_order: !node.operator.is_pure(),
            }
        };
        let tasks: Vec<_> = running.iter().map(task).collect();
        let bytes: Vec<_> =
            self.types.iter().map(|ty| ty.as_ref().map_or(0, |ty| ty.bytes() as u64)).collect();
        let orders = order::others(&tasks, &bytes, &self.graph.outputs).into_iter();
        orders.map(|order| order.into_iter().map(|at| running[at]).collect()).collect()
    }

    /// Puts nodes that depend on no input right before the first that needs them: weights that are computed, which would else be
    /// alive together.
    fn late(&self, running: Vec<(usize, bool)>) -> Vec<(usize, bool)> {
        let mut maker: Vec<Option<usize>> = vec![None; self.types.len()];
        let mut may_wait: Vec<bool> = Vec::with_capacity(running.len());
        for (at, &(index, _)) in running.iter().enumerate() {
            let node = &self.graph.nodes[index];
            let needs_input = inputs_of(node).flatten().any(|id| match maker[id] {
                Some(made_at) => !may_wait[made_at],
                None => self.known[id].is_none(),
            });
            may_wait.push(!needs_input && node.operator.is_pure());
            node.outputs.iter().flatten().for_each(|&id| maker[id] = Some(at));
        }
        let mut order = Vec::with_capacity(running.len());
        let mut done = vec![false; running.len()];
        let finally = (0..running.len()).filter(|&at| may_wait[at]);
        for root in (0..running.len()).filter(|&at| !may_wait[at]).chain(finally) {
            // What waits may have to wait for others that wait: depth first, without recursion.
            let mut stack = vec![root];
            while let Some(&at) = stack.last() {
                let node = &self.graph.nodes[running[at].0];
                let before =
                    inputs_of(node).flatten().filter_map(|id| maker[id]).find(|&before| !done[before]);
                match before.filter(|_| !done[at]) {
                    Some(before) => stack.push(before),
                    None => {
                        stack.pop();
                        if !std::mem::replace(&mut done[at], true) {
                            order.push(running[at]);
                        }
                    }
                }
            }
        }
        order
    }

    /// Takes the order whose load is least.
    fn place(mut self) -> Result<Plan, Error> {
        let file = self.needed();
        let orders = self.other_orders(&file);
        let mut best = self.lay_out(file);
        for order in orders {
            let other = self.lay_out(order);
            // Equal ones would only differ from what the model's author had in mind.
            if other.problem.load().max < best.problem.load().max {
                best = other;
            }
        }
        best.finish(self)
    }

    /// What lies where, and which steps there are, if the nodes run in this order; all but the offsets.
    fn lay_out(&self, running: Vec<(usize, bool)>) -> Layout {
        let mut figures = self.figures;
        let last = self.last_uses(&running);
        let (graph, end) = (self.graph, running.len());
        let mut outputs = HashMap::new();
        for (index, &id) in graph.outputs.iter().enumerate() {
            outputs.entry(id).or_insert(index);
        }
        let mut places = vec![Place::Nowhere; self.types.len()];
        for ((place, input), known) in places.iter_mut().zip(&self.input).zip(&self.known) {
            if let Some(index) = *input {
                *place = Place::Input(index);
            } else if let Some(known) = known {
                *place = Place::Known(Arc::clone(known));
            }
        }
        let mut buffers: Vec<Buffer> = Vec::new();
        let mut buffer_of: Vec<Option<usize>> = vec![None; places.len()];
        let (mut steps, mut scratches) = (Vec::new(), Vec::new());
        for (at, &(index, on_heap)) in running.iter().enumerate() {
            let node = &graph.nodes[index];
            if on_heap {
                figures.unplanned_nodes += 1;
                node.outputs.iter().flatten().for_each(|&id| places[id] = Place::Heap);
                steps.push(Step {
                    node: index,
                    in_place: None,
                    scratch: (0, 0),
                    on_heap: true,
                    drops: Vec::new(),
                });
                continue;
            }
            // What runs within it has plans and arenas of its own.
            let has_graph =
                node.attributes.0.values().any(|attribute| matches!(attribute, Attribute::Graph(_)));
            figures.unplanned_nodes += u64::from(has_graph);
            let mut in_place = None;
            let first = node.outputs.first().copied().flatten();
            let mut reuse = if self.sharing.in_place { node.operator.reuse() } else { Reuse::No };
            // A view is not run: what else the node makes would be missing.
            if reuse == Reuse::View && node.outputs.iter().skip(1).any(Option::is_some) {
                reuse = Reuse::No;
            }
            if let (Some(made), Reuse::View, Some(Some(source))) = (first, reuse, node.inputs.first()) {
                let is_output = outputs.contains_key(&made);
                match (&places[*source], buffer_of[*source]) {
                    (Place::Input(_) | Place::Known(_), _) if !is_output => {
                        places[made] = places[*source].clone();
                        figures.inplace_tensors += 1;
                        continue;
                    }
                    (_, Some(buffer)) if !(is_output && buffers[buffer].output.is_some()) => {
                        buffer_of[made] = Some(buffer);
                        buffers[buffer].last = buffers[buffer].last.max(last[made].unwrap_or(at));
                        buffers[buffer].output = buffers[buffer].output.or(outputs.get(&made).copied());
                        figures.inplace_tensors += 1;
                        continue;
                    }
                    _ => {}
                }
            }
            if let (Some(made), Reuse::InPlace(inputs)) = (first, reuse) {
                let bytes = self.types[made].as_ref().map_or(0, Type::bytes);
                in_place = inputs.iter().copied().find(|&input| {
                    let Some(source) = node.inputs.get(input).copied().flatten() else { return false };
                    let Some(buffer) = buffer_of[source] else { return false };
                    let alone = inputs_of(node).enumerate().all(|(other, id)| {
                        other == input || id.is_none_or(|id| buffer_of[id] != Some(buffer))
                    });
                    let two_outputs = outputs.contains_key(&made) && buffers[buffer].output.is_some();
                    self.types[source].as_ref().is_some_and(|ty| ty.bytes() == bytes)
                        && alone
                        && !two_outputs
                        && buffers[buffer].last == at
                });
                if let Some(buffer) = in_place.and_then(|input| buffer_of[node.inputs[input]?]) {
                    buffer_of[made] = Some(buffer);
                    buffers[buffer].last = last[made].unwrap_or(at);
                    buffers[buffer].output = buffers[buffer].output.or(outputs.get(&made).copied());
                    figures.inplace_tensors += 1;
                }
            }
            for id in
                node.outputs.iter().flatten().copied().filter(|&id| Some(id) != first || in_place.is_none())
            {
                buffer_of[id] = Some(buffers.len());
                buffers.push(Buffer {
                    bytes: self.types[id].as_ref().map_or(0, Type::bytes),
                    first: at,
                    last: if self.sharing.reuse { last[id].unwrap_or(at) } else { end },
                    output: outputs.get(&id).copied(),
                });
            }
            let scratch = self.scratch(node);
            if scratch > 0 {
                scratches.push((steps.len(), at, scratch));
            }
            steps.push(Step {
                node: index,
                in_place,
                scratch: (0, scratch),
                on_heap: false,
                drops: Vec::new(),
            });
        }
        let blocks: Vec<_> = buffers
            .iter()
            .map(|buffer| (buffer.output.is_none(), buffer.bytes, buffer.first, buffer.last.min(end)))
            .chain(scratches.iter().map(|&(_, at, bytes)| (true, bytes, at, at)))
            .collect();
        let there: Vec<_> =
            (0..blocks.len()).filter(|&index| blocks[index].0 && blocks[index].1 > 0).collect();
        let block = |&index: &usize| {
            let (_, bytes, first, last) = blocks[index];
            Block {
                id: index as u64,
                lower: first as u64,
                upper: last as u64 + 1,
                size: bytes.next_multiple_of(ALIGNMENT) as u64,
                align: ALIGNMENT as u64,
            }
        };
        let problem = Problem::new(there.iter().map(block).collect());
        Layout { running, last, places, buffers, buffer_of, steps, scratches, there, problem, figures }
    }

    fn scratch(&self, node: &Node) -> usize {
        let types: Vec<_> = inputs_of(node).map(|id| id.and_then(|id| self.types[id].as_ref())).collect();
        let views: Vec<_> = inputs_of(node).map(|id| Some(self.known[id?].as_ref()?.view())).collect();
        // Outputs that nobody wants have no type here; operators ask for those they need.
        let made: Vec<_> = node
            .outputs
            .iter()
            .map(|id| id.and_then(|id| self.types[id].clone()))
            .map_while(|ty| ty)
            .collect();
        node.operator.scratch(&Known { types: &types, values: &views }, &made)
    }
}

/// What lies where but for the offsets, for one order of the nodes.
struct Layout {
    running: Vec<(usize, bool)>,
    last: Vec<Option<usize>>,
    places: Vec<Place>,
    buffers: Vec<Buffer>,
    buffer_of: Vec<Option<usize>>,
    steps: Vec<Step>,
    /// Of scratch memory: number and time of the step, and bytes.
    scratches: Vec<(usize, usize, usize)>,
    /// Buffers followed by scratch memory: those that lie in the arena.
    there: Vec<usize>,
    problem: Problem,
    figures: Figures,
}

impl Layout {
    fn finish(mut self, draft: Drafting<'_>) -> Result<Plan, Error> {
        let offsets = self.offsets()?;
        let Self { running, last, mut places, buffers, buffer_of, mut steps, scratches, mut figures, .. } =
            self;
        let graph = Arc::clone(draft.graph);
        for (&(step, ..), &offset) in scratches.iter().zip(&offsets[buffers.len()..]) {
            steps[step].scratch.0 = offset;
        }
        for (id, buffer) in buffer_of.iter().enumerate() {
            if let Some(buffer) = *buffer {
                places[id] = buffers[buffer].output.map_or(Place::Arena(offsets[buffer]), Place::Output);
            }
        }
        figures.planned_tensors = buffer_of.iter().flatten().count() as u64;
        let elsewhere = |(index, &id): (usize, &ValueId)| {
            (!matches!(places[id], Place::Output(there) if there == index)).then_some((id, index))
        };
        let copies = graph.outputs.iter().enumerate().filter_map(elsewhere).collect();
        let numbers: HashMap<_, _> = steps.iter().enumerate().map(|(at, step)| (step.node, at)).collect();
        for (id, place) in places.iter().enumerate() {
            if let (Place::Heap, Some(at)) = (place, last[id])
                && let Some(&(index, _)) = running.get(at)
                && let Some(&step) = numbers.get(&index)
            {
                steps[step].drops.push(id);
            }
        }
        Ok(Plan { graph, types: draft.types, places, steps, copies, figures })
    }

    /// Offsets in the arena, of buffers followed by scratch memory.
    fn offsets(&mut self) -> Result<Vec<usize>, Error> {
        let mut offsets = vec![0; self.buffers.len() + self.scratches.len()];
        let problem = &self.problem;
        if problem.blocks.is_empty() {
            return Ok(offsets);
        }
        let fail = |what: String| Error::model(format!("its tensors cannot be planned: {what}"));
        let plan =
            Planner::new().effort(Effort::Normal).plan(problem).map_err(|error| fail(error.to_string()))?;
        // Tensors that share bytes by mistake would be wrong results: the plan is believed no more than a file.
        verify(problem, &plan.offsets, plan.height).map_err(|error| fail(error.to_string()))?;
        for (&index, &offset) in self.there.iter().zip(&plan.offsets) {
            offsets[index] = offset as usize;
        }
        self.figures.arena_bytes = plan.height;
        self.figures.lower_bound_bytes = problem.load().max;
        Ok(offsets)
    }
}
