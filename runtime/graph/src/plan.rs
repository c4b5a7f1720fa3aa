//! The plan of a graph for inputs of some types: what each value is, where it lies, and what is left to be done.
//!
//! Types follow from those of the inputs, node by node; values that follow from what is known (shapes, above all) are computed
//! here, once. What then runs has a place in one arena: values that are views of others lie where these lie, outputs are written over
//! inputs that nobody needs any more, and the rest, with the operators' scratch memory, is planned by `stepalloc-planner`. Where a
//! type depends on elements that are only known when the model runs, its node and what follows from it take memory as they go.

mod layout;
mod planned;
pub(crate) mod room;

pub use planned::{PlannedBlock, PlannedRun, PlannedStep, PlannedValue};

use crate::context::RunContext;
use crate::error::Error;
use crate::graph::{Graph, Node, ValueId};
use crate::inline::{inline, is_if};
use crate::operator::{Known, Registry, Types, Unclear};
use crate::order::{self, Task};
use crate::prepacked::Prepacked;
use crate::run::{Spare, run_one};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use stepalloc_tensor::{DataType, OpError, Tensor, Type, View};

/// What is computed while planning may have so many bytes: shapes and indices, no activations.
const FOLD_BYTES: usize = 64 << 10;

/// What a plan may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// Values that are views of others lie where these lie, and outputs are written over inputs. On by default.
    pub in_place: bool,
    /// Values that are not alive at the same time share memory; on by default. Off, every intermediate value can be read after a run.
    pub reuse: bool,
    /// Constant factors of products and weights of convolutions are packed once. On by default.
    pub packed: bool,
}

impl Default for Sharing {
    fn default() -> Self {
        Self { in_place: true, reuse: true, packed: true }
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

/// An input to which rows are appended, which is an output then: a decoder's keys or values.
#[derive(Clone, Copy)]
pub(crate) struct Appended {
    /// The graph's input.
    pub input: usize,
    /// The graph's output.
    pub output: usize,
    /// The value that it is.
    pub id: ValueId,
    /// The one that is appended.
    pub new: ValueId,
    pub axis: usize,
}

/// What runs.
pub(crate) struct Step {
    pub node: usize,
    /// The input that output 0 is written over.
    pub in_place: Option<usize>,
    /// Offset and length.
    pub scratch: (usize, usize),
    /// The constant input that is packed.
    pub prepacked: Option<Prepacked>,
    /// Types of its outputs are known only when it runs.
    pub on_heap: bool,
    /// Values on the heap that nobody needs afterwards.
    pub drops: Vec<ValueId>,
    /// Its number among [`Plan::appended`], if it appends to an input.
    pub appends: Option<usize>,
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
    /// Whether inputs are of any types.
    pub is_open: bool,
    /// What runs keep for the next ones.
    pub spare: Mutex<Vec<Spare>>,
    /// Inputs that may grow where they are: all that read the output take it in blocks.
    pub appended: Vec<Appended>,
    /// What depends on inputs that grow, where it was made for larger ones.
    pub varying: Option<room::Varying>,
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

struct Drafting<'g> {
    graph: &'g Arc<Graph>,
    sharing: Sharing,
    /// What the runs that are planned have.
    context: &'g RunContext,
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
        registry: &Registry,
        context: &RunContext,
    ) -> Result<Self, Error> {
        let mut graph = Arc::clone(graph);
        loop {
            let mut draft = Drafting::new(&graph, inputs, told, sharing, context);
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
            let inlined = inline(&graph, &decided, registry)?;
            graph = Arc::new(inlined);
        }
    }

    /// The same for inputs of any types, if just those are `there`: what depends on them takes memory as it goes.
    pub(crate) fn open(
        graph: &Arc<Graph>,
        there: &[bool],
        sharing: Sharing,
        context: &RunContext,
    ) -> Result<Self, Error> {
        let mut draft = Drafting::new(graph, &[], &[], sharing, context);
        let inputs = graph.inputs.iter().chain(&graph.captured).enumerate();
        for ((index, &id), _) in inputs.zip(there).filter(|(_, there)| **there) {
            (draft.input[id], draft.types[id], draft.known[id]) = (Some(index), None, None);
        }
        for (index, node) in graph.nodes.iter().enumerate() {
            draft.learn(index, node)?;
        }
        let plan = draft.place()?;
        Ok(Self { is_open: true, ..plan })
    }

    /// The same, with room: for all inputs that need no more than these, and are of the same types but for those that `grow`. `None` if
    /// that cannot be.
    pub(crate) fn with_room(
        graph: &Arc<Graph>,
        inputs: &[Option<Type>],
        grow: &[bool],
        sharing: Sharing,
        context: &RunContext,
    ) -> Option<Self> {
        let mut draft = Drafting::new(graph, inputs, &[], sharing, context);
        for (index, node) in graph.nodes.iter().enumerate() {
            // A branch that is taken for these inputs may not be for others.
            if is_if(node) {
                return None;
            }
            draft.learn(index, node).ok()?;
        }
        let mut runs = vec![false; graph.nodes.len()];
        draft.running.iter().for_each(|&(index, _)| runs[index] = true);
        let mut plan = draft.place().ok()?;
        if plan.figures.unplanned_nodes > 0 {
            return None;
        }
        plan.varying = Some(room::Varying::new(graph, &plan, grow, &runs));
        Some(plan)
    }

    /// What it says of a run, given what it was made for. How long values are needed is not kept, since runs do without: its order is
    /// laid out again, and places are the plan's own.
    pub(crate) fn planned_run(
        &self,
        inputs: &[Option<Type>],
        told: &[Option<Arc<Tensor>>],
        sharing: Sharing,
        context: &RunContext,
    ) -> Result<PlannedRun, Error> {
        let mut draft = Drafting::new(&self.graph, inputs, told, sharing, context);
        for (index, node) in self.graph.nodes.iter().enumerate() {
            draft.learn(index, node)?;
        }
        let file = draft.needed();
        let others = draft.other_orders(&file);
        let mut layouts = std::iter::once(file).chain(others).map(|order| draft.lay_out(order));
        let layout = layouts.find(|layout| layout.is_of(self));
        let layout = layout.ok_or_else(|| Error::model("the order of its plan is not found again"))?;
        Ok(layout.planned_run(self))
    }
}

/// The elements of what is known, unless they are many and were not read yet: what types depend on are few, and of weights that are
/// packed no copy is to stay.
fn small(known: &Tensor) -> Option<View<'_>> {
    (known.is_read() || known.ty().bytes() <= FOLD_BYTES).then(|| known.view())
}

/// What a node comes to while planning.
#[allow(clippy::large_enum_variant, reason = "it is taken apart where it is made")]
enum Learned {
    /// Types of its outputs depend on elements that are not known.
    OnHeap,
    /// It runs, and its outputs are of these types.
    Types(Types),
    /// All was known, and so are its outputs.
    Known(Vec<Tensor>),
}

/// What a node comes to for inputs of these types, some of which are known; `ids` has `None` where an input is left out.
fn evaluate(
    node: &Node,
    ids: &[Option<ValueId>],
    types: &[Option<&Type>],
    tensors: &[Option<&Arc<Tensor>>],
    context: &RunContext,
) -> Result<Learned, Error> {
    let wrong = |error| Error::node(node, error);
    if ids.iter().zip(types).any(|(id, ty)| id.is_some() && ty.is_none()) {
        return Ok(Learned::OnHeap);
    }
    let views = || tensors.iter().map(|known| known.map(|known| known.view())).collect::<Vec<_>>();
    let small: Vec<_> = tensors.iter().map(|known| known.and_then(|known| small(known))).collect();
    let made = match node.operator.infer(&Known { types, values: &small, context }) {
        Err(Unclear::Needs(_)) => node.operator.infer(&Known { types, values: &views(), context }),
        told => told,
    };
    let made = match made {
        Ok(made) => made,
        Err(Unclear::Needs(_)) => return Ok(Learned::OnHeap),
        Err(Unclear::Wrong(error)) => return Err(wrong(error)),
    };
    if made.len() < node.outputs.len() {
        return Err(wrong(OpError::arity(format!("it has {} outputs at most", made.len()))));
    }
    let all_known = ids.iter().zip(tensors).all(|(id, known)| id.is_none() || known.is_some());
    let bytes: usize = made.iter().map(Type::bytes).sum();
    let folds = bytes <= FOLD_BYTES && (all_known || node.operator.looks_at_types_only());
    if !folds || !node.operator.is_pure() {
        return Ok(Learned::Types(made));
    }
    let stand_ins: Vec<_> = types
        .iter()
        .zip(views())
        .map(|(ty, view)| view.or(ty.map(|ty| View { dtype: ty.dtype, shape: &ty.shape, bytes: &[] })))
        .collect();
    let made = run_one(&*node.operator, &stand_ins, made, node.outputs.len(), context);
    made.map(Learned::Known).map_err(wrong)
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
        context: &'g RunContext,
    ) -> Self {
        let count = graph.values.len();
        let mut draft = Self {
            graph,
            sharing,
            context,
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
        if let (Some(tensor), [Some(output), ..]) = (node.operator.constant(), &node.outputs[..]) {
            self.types[*output] = Some(tensor.ty().clone());
            self.known[*output] = Some(tensor);
            return Ok(());
        }
        let ids: Vec<_> = inputs_of(node).collect();
        let types: Vec<_> = ids.iter().map(|id| id.and_then(|id| self.types[id].as_ref())).collect();
        let tensors: Vec<_> = ids.iter().map(|id| id.and_then(|id| self.known[id].as_ref())).collect();
        match evaluate(node, &ids, &types, &tensors, self.context)? {
            Learned::OnHeap => self.running.push((index, true)),
            Learned::Types(made) => {
                for (ty, id) in made.into_iter().zip(&node.outputs) {
                    if let Some(id) = *id {
                        self.types[id] = Some(ty);
                    }
                }
                self.running.push((index, false));
            }
            Learned::Known(outputs) => {
                for (tensor, id) in outputs.into_iter().zip(&node.outputs) {
                    if let Some(id) = *id {
                        self.types[id] = Some(tensor.ty().clone());
                        self.known[id] = Some(Arc::new(tensor));
                    }
                }
                self.figures.folded_nodes += 1;
            }
        }
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

    /// The constant input of a node that is packed.
    fn prepacked(&self, node: &Node) -> Option<Prepacked> {
        if !self.sharing.packed {
            return None;
        }
        let types: Vec<_> = inputs_of(node).map(|id| id.and_then(|id| self.types[id].as_ref())).collect();
        let spec = node.operator.packs(&Known { types: &types, values: &[], context: self.context })?;
        // What a pass made would stay beside what is packed.
        let tensor = self.known[node.inputs[spec.input]?].as_ref().filter(|tensor| tensor.is_of_file())?;
        Some(Prepacked::new(spec, Arc::clone(tensor)))
    }

    fn scratch(&self, node: &Node, is_packed: bool) -> usize {
        let types: Vec<_> = inputs_of(node).map(|id| id.and_then(|id| self.types[id].as_ref())).collect();
        let views: Vec<_> = inputs_of(node).map(|id| small(self.known[id?].as_ref()?)).collect();
        // Outputs that nobody wants have no type here; operators ask for those they need.
        let made: Vec<_> = node
            .outputs
            .iter()
            .map(|id| id.and_then(|id| self.types[id].clone()))
            .map_while(|ty| ty)
            .collect();
        // What nothing could hold is an error when the arena is made, whatever is added to it before.
        let inputs = Known { types: &types, values: &views, context: self.context };
        let bytes = match is_packed {
            true => node.operator.packed_scratch(&inputs, &made),
            false => node.operator.scratch(&inputs, &made),
        };
        bytes.min(isize::MAX as usize / 2)
    }
}
