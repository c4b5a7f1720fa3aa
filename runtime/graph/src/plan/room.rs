//! Plans with room: made for inputs that are larger than they are, and used for all that need no more.
//!
//! A decoder's cache grows with every token, and all that follows from its length with it. A plan for each length would cost more than the
//! run. So where inputs grow evenly, a plan is made for what they will be some runs later. Its places hold for every run whose values need no
//! more bytes than the plan has for them, and whose nodes do the same: which ones are computed while planning, which are written over
//! inputs. Neither follows from the sizes being smaller, since an operator's rules may be anything: each is looked at when types have been
//! worked out anew ([`Plan::fit`]), for the nodes that depend on what grows and for no others.

use super::{Learned, Place, Plan, evaluate, inputs_of};
use crate::context::RunContext;
use crate::graph::{Graph, ValueId};
use crate::operator::Known;
use std::collections::HashMap;
use std::sync::Arc;
use stepalloc_tensor::{Tensor, Type};

/// Runs that a plan has room for at least, if inputs go on growing as they did.
pub(crate) const LEAST_RUNS: usize = 32;

/// By how much inputs have grown, each of their dimensions; `None` if they differ in another way, or not at all.
pub(crate) fn growth(before: &[Option<Type>], now: &[Option<Type>]) -> Option<Vec<Vec<usize>>> {
    let mut grown = Vec::with_capacity(now.len());
    for pair in before.iter().zip(now) {
        let (before, now) = match pair {
            (Some(before), Some(now)) if before.dtype == now.dtype && before.rank() == now.rank() => {
                (&before.shape, &now.shape)
            }
            (None, None) => {
                grown.push(Vec::new());
                continue;
            }
            _ => return None,
        };
        let by = |(&now, &before): (&usize, &usize)| now.checked_sub(before);
        grown.push(now.iter().zip(before).map(by).collect::<Option<Vec<_>>>()?);
    }
    grown.iter().flatten().any(|&by| by > 0).then_some(grown)
}

/// In how many runs inputs that grow as they did will be half as large again, and no less than [`LEAST_RUNS`].
pub(crate) fn runs_ahead(now: &[Option<Type>], grown: &[Vec<usize>]) -> usize {
    let runs = now.iter().zip(grown).flat_map(|(ty, by)| {
        let shape = ty.as_ref().map_or(&[][..], |ty| &ty.shape);
        shape.iter().zip(by).filter(|(_, by)| **by > 0).map(|(size, by)| size / by / 2)
    });
    runs.max().unwrap_or(0).max(LEAST_RUNS)
}

/// Types of inputs that go on growing as they did, after some runs.
pub(crate) fn with_room(
    now: &[Option<Type>],
    grown: &[Vec<usize>],
    runs: usize,
) -> Option<Vec<Option<Type>>> {
    let roomy = |(ty, by): (&Option<Type>, &Vec<usize>)| {
        let Some(ty) = ty else { return Some(None) };
        let shape = ty.shape.iter().zip(by).map(|(size, by)| size.checked_add(by.checked_mul(runs)?));
        Type::new(ty.dtype, shape.collect::<Option<Vec<_>>>()?).map(Some)
    };
    now.iter().zip(grown).map(roomy).collect()
}

/// Whether no input is larger than a plan was made for.
pub(crate) fn covers(roomy: &[Option<Type>], now: &[Option<Type>]) -> bool {
    let fits = |(roomy, now): (&Option<Type>, &Option<Type>)| match (roomy, now) {
        (Some(roomy), Some(now)) => {
            roomy.dtype == now.dtype
                && roomy.rank() == now.rank()
                && roomy.shape.iter().zip(&now.shape).all(|(roomy, now)| now <= roomy)
        }
        (None, None) => true,
        _ => false,
    };
    roomy.len() == now.len() && roomy.iter().zip(now).all(fits)
}

/// What depends on the types of inputs that grow.
pub(crate) struct Varying {
    /// For each value its place in a [`Fit`], if it depends on them.
    slots: Vec<Option<u32>>,
    count: usize,
    nodes: Vec<VaryingNode>,
    inputs: Vec<(usize, ValueId)>,
}

struct VaryingNode {
    node: usize,
    /// The step that runs it; none for views, and for what is computed while planning.
    step: Option<usize>,
    /// Whether it is computed while planning.
    folds: bool,
}

impl Varying {
    /// Of a graph whose nodes run or not as a plan says.
    pub(super) fn new(graph: &Graph, plan: &Plan, inputs: &[bool], runs: &[bool]) -> Self {
        let mut slots = vec![None; graph.values.len()];
        let mut count = 0;
        let mut add = |slots: &mut Vec<Option<u32>>, id: ValueId| {
            slots[id] = Some(count);
            count += 1;
        };
        let needed = needed(graph);
        let all = graph.inputs.iter().chain(&graph.captured).copied().enumerate();
        let inputs: Vec<_> = all.filter(|&(number, _)| inputs.get(number) == Some(&true)).collect();
        inputs.iter().for_each(|&(_, id)| add(&mut slots, id));
        let steps: HashMap<_, _> = plan.steps.iter().enumerate().map(|(at, step)| (step.node, at)).collect();
        let mut nodes = Vec::new();
        for (at, node) in graph.nodes.iter().enumerate().filter(|&(at, _)| needed[at]) {
            if node.operator.constant().is_none() && inputs_of(node).flatten().any(|id| slots[id].is_some()) {
                node.outputs.iter().flatten().for_each(|&id| add(&mut slots, id));
                nodes.push(VaryingNode { node: at, step: steps.get(&at).copied(), folds: !runs[at] });
            }
        }
        Self { slots, count: count as usize, nodes, inputs }
    }
}

/// Nodes that outputs depend on.
fn needed(graph: &Graph) -> Vec<bool> {
    let mut values = vec![false; graph.values.len()];
    graph.outputs.iter().for_each(|&id| values[id] = true);
    let mut nodes = vec![false; graph.nodes.len()];
    for (at, node) in graph.nodes.iter().enumerate().rev() {
        nodes[at] = node.outputs.iter().flatten().any(|&id| values[id]);
        if nodes[at] {
            inputs_of(node).flatten().for_each(|id| values[id] = true);
        }
    }
    nodes
}

/// What values are in runs on inputs that need less than a plan has room for.
pub(crate) struct Fit {
    types: Vec<Option<Type>>,
    known: Vec<Option<Arc<Tensor>>>,
    /// Bytes of scratch memory, by the number of the step.
    scratch: HashMap<usize, usize>,
}

impl Fit {
    /// The type of a value, if it varies.
    pub(crate) fn ty(&self, plan: &Plan, id: ValueId) -> Option<&Option<Type>> {
        let slot = plan.varying.as_ref()?.slots[id]?;
        self.types.get(slot as usize)
    }

    /// The elements of a value that varies and was computed while planning.
    pub(crate) fn known(&self, plan: &Plan, id: ValueId) -> Option<&Arc<Tensor>> {
        let slot = plan.varying.as_ref()?.slots[id]?;
        self.known.get(slot as usize)?.as_ref()
    }

    /// Bytes of scratch memory of a step.
    pub(crate) fn scratch(&self, step: usize) -> Option<usize> {
        self.scratch.get(&step).copied()
    }
}

impl Plan {
    /// What values are for inputs of these types; `None` if the plan does not hold for them, or that cannot be known.
    pub(crate) fn fit(&self, inputs: &[Option<Type>], context: &RunContext) -> Option<Fit> {
        let varying = self.varying.as_ref()?;
        let (types, known) = (vec![None; varying.count], vec![None; varying.count]);
        let mut fit = Fit { types, known, scratch: HashMap::new() };
        for &(number, id) in &varying.inputs {
            let slot = varying.slots[id].expect("inputs that grow vary") as usize;
            fit.types[slot].clone_from(&inputs[number]);
        }
        varying.nodes.iter().try_for_each(|node| self.fit_node(varying, node, &mut fit, context))?;
        Some(fit)
    }

    fn fit_node(
        &self,
        varying: &Varying,
        at: &VaryingNode,
        fit: &mut Fit,
        context: &RunContext,
    ) -> Option<()> {
        let node = &self.graph.nodes[at.node];
        let ids: Vec<_> = inputs_of(node).collect();
        let slot = |id: ValueId| varying.slots[id].map(|slot| slot as usize);
        let ty = |id: ValueId| slot(id).map_or(self.types[id].as_ref(), |slot| fit.types[slot].as_ref());
        let known = |id: ValueId| match (slot(id), &self.places[id]) {
            (Some(slot), _) => fit.known[slot].as_ref(),
            (None, Place::Known(tensor)) if Some(tensor.ty()) == self.types[id].as_ref() => Some(tensor),
            _ => None,
        };
        let types: Vec<_> = ids.iter().map(|id| ty((*id)?)).collect();
        let tensors: Vec<_> = ids.iter().map(|id| known((*id)?)).collect();
        match evaluate(node, &ids, &types, &tensors, context).ok()? {
            Learned::Known(tensors) if at.folds => {
                for (tensor, id) in tensors.into_iter().zip(&node.outputs) {
                    if let Some(slot) = id.and_then(slot) {
                        fit.types[slot] = Some(tensor.ty().clone());
                        fit.known[slot] = Some(Arc::new(tensor));
                    }
                }
            }
            Learned::Types(made) if !at.folds => {
                let step = at.step.map(|number| (number, &self.steps[number]));
                if let Some((number, step)) = step {
                    let views: Vec<_> = tensors.iter().map(|known| super::small(known.as_ref()?)).collect();
                    let inputs = Known { types: &types, values: &views, context };
                    let scratch = match step.prepacked {
                        Some(_) => node.operator.packed_scratch(&inputs, &made),
                        None => node.operator.scratch(&inputs, &made),
                    };
                    let packs = || node.operator.packs(&Known { types: &types, values: &[], context });
                    let written_over = step.in_place.map(|input| types[input].map(Type::bytes));
                    let holds = scratch <= step.scratch.1
                        && written_over.is_none_or(|bytes| bytes == made.first().map(Type::bytes))
                        && step.prepacked.as_ref().is_none_or(|packed| packs() == Some(packed.spec));
                    holds.then(|| fit.scratch.insert(number, scratch))?;
                }
                for (ty, id) in made.into_iter().zip(&node.outputs) {
                    let Some(id) = *id else { continue };
                    let has_room = match self.places[id] {
                        Place::Arena(_) => {
                            self.types[id].as_ref().is_some_and(|had| ty.bytes() <= had.bytes())
                        }
                        _ => true,
                    };
                    let slot = slot(id).filter(|_| has_room)?;
                    fit.types[slot] = Some(ty);
                }
            }
            _ => return None,
        }
        Some(())
    }
}
