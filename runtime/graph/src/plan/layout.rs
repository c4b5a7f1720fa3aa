//! Where values lie, for one order of the nodes: which of them share bytes, how long these are needed, and at last the offsets.

use super::{
    Appended, Drafting, Figures, Place, Plan, PlannedBlock, PlannedRun, PlannedStep, PlannedValue, Step,
    inputs_of,
};
use crate::error::Error;
use crate::graph::{Attribute, ValueId};
use crate::operator::Reuse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use stepalloc_planner::{Block, Effort, Planner, Problem, verify};
use stepalloc_tensor::{ALIGNMENT, Type, axis};

/// Bytes that one or more values share.
struct Buffer {
    bytes: usize,
    /// Steps from which to which it is alive, the last one included.
    first: usize,
    last: usize,
    /// The graph's output that it is.
    output: Option<usize>,
}

impl Drafting<'_> {
    /// What a step appends to an input to make an output, if all that read it take it in blocks.
    fn appended(
        &self,
        steps: &[Step],
        at: usize,
        places: &[Place],
        copies: &[(ValueId, usize)],
    ) -> Option<Appended> {
        let node = &self.graph.nodes[steps[at].node];
        let [Some(past), Some(new)] = node.inputs[..] else { return None };
        let &[Some(id)] = &node.outputs[..] else { return None };
        let (Place::Input(input), &Place::Output(output)) = (&places[past], &places[id]) else { return None };
        let ty = self.types[id].as_ref().filter(|ty| ty.bytes() > 0)?;
        let is_concat = node.op_type == "Concat" && node.domain.is_empty() && past != new;
        let axis = axis(node.attributes.int("axis", 0), ty.rank()).ok().filter(|_| is_concat)?;
        let takes_blocks = |step: &Step| {
            let node = &self.graph.nodes[step.node];
            let inputs = node.inputs.iter().enumerate();
            let mut uses = inputs.filter(|(_, used)| **used == Some(id)).map(|(index, _)| index);
            !node.captures.contains(&id) && uses.all(|index| node.operator.takes_blocks(index, ty.dtype))
        };
        // A view of it, or another output that is the same, would be read as a whole.
        let views =
            places.iter().filter(|place| matches!(place, Place::Output(other) if *other == output)).count();
        let is_alone = views == 1 && copies.iter().all(|&(copied, _)| copied != id);
        let reads_past = |step: &Step| inputs_of(&self.graph.nodes[step.node]).any(|used| used == Some(past));
        let others = steps.iter().enumerate().filter(|&(other, _)| other != at);
        let fits = is_alone && others.into_iter().all(|(_, step)| takes_blocks(step) && !reads_past(step));
        fits.then_some(Appended { input: *input, output, id, new, axis })
    }

    /// What lies where, and which steps there are, if the nodes run in this order; all but the offsets.
    pub(super) fn lay_out(&self, running: Vec<(usize, bool)>) -> Layout {
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
                    prepacked: None,
                    on_heap: true,
                    drops: Vec::new(),
                    appends: None,
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
            // A view is not run: what else the node makes would be missing. It has just the bytes of what it is a view of: where an
            // operator says so of more, it would have those behind.
            let size = |id: Option<ValueId>| {
                let ty = self.types[id?].as_ref()?;
                Some((ty.dtype.bytes(), ty.bytes()))
            };
            let is_as_large = size(first) == size(node.inputs.first().copied().flatten());
            if reuse == Reuse::View && (!is_as_large || node.outputs.iter().skip(1).any(Option::is_some)) {
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
            let prepacked = self.prepacked(node);
            let scratch = self.scratch(node, prepacked.is_some());
            if scratch > 0 {
                scratches.push((steps.len(), at, scratch));
            }
            steps.push(Step {
                node: index,
                in_place,
                scratch: (0, scratch),
                prepacked,
                on_heap: false,
                drops: Vec::new(),
                appends: None,
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
}

/// What lies where but for the offsets, for one order of the nodes.
pub(super) struct Layout {
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
    pub problem: Problem,
    figures: Figures,
}

impl Layout {
    pub(super) fn finish(mut self, draft: Drafting<'_>) -> Result<Plan, Error> {
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
        let copies: Vec<_> = graph.outputs.iter().enumerate().filter_map(elsewhere).collect();
        let numbers: HashMap<_, _> = steps.iter().enumerate().map(|(at, step)| (step.node, at)).collect();
        for (id, place) in places.iter().enumerate() {
            if let (Place::Heap, Some(at)) = (place, last[id])
                && let Some(&(index, _)) = running.get(at)
                && let Some(&step) = numbers.get(&index)
            {
                steps[step].drops.push(id);
            }
        }
        // What nobody needs goes at once.
        for step in steps.iter_mut().filter(|step| step.on_heap) {
            let made = graph.nodes[step.node].outputs.iter().flatten();
            step.drops.extend(made.filter(|&&id| last[id].is_none()));
        }
        let mut appended = Vec::new();
        for at in 0..steps.len() {
            if let Some(found) = draft.appended(&steps, at, &places, &copies) {
                steps[at].appends = Some(appended.len());
                appended.push(found);
            }
        }
        let (types, spare) = (draft.types, Mutex::default());
        let (is_open, varying) = (false, None);
        Ok(Plan { graph, types, places, steps, copies, is_open, spare, appended, varying, figures })
    }

    /// Whether a plan runs the same nodes in the same order, and writes over the same inputs.
    pub(super) fn is_of(&self, plan: &Plan) -> bool {
        let what = |step: &Step| (step.node, step.in_place);
        self.steps.iter().map(what).eq(plan.steps.iter().map(what))
    }

    /// What a plan of this layout says of a run.
    pub(super) fn planned_run(&self, plan: &Plan) -> PlannedRun {
        let end = self.running.len();
        let filled = |bytes: usize| bytes.next_multiple_of(ALIGNMENT) as u64;
        let mut run = PlannedRun::default();
        let mut block_of = vec![None; self.buffers.len()];
        let mut steps = plan.steps.iter().peekable();
        for (at, &(index, on_heap)) in self.running.iter().enumerate() {
            let node = &plan.graph.nodes[index];
            let step = steps.next_if(|step| step.node == index);
            run.steps.push(PlannedStep {
                name: node.name.clone(),
                op_type: node.op_type.clone(),
                is_view: step.is_none(),
                is_unplanned: on_heap || node.graphs().next().is_some(),
            });
            // Those of the plan, not of this layout: how much it is may depend on the threads that there are.
            if let Some(&Step { scratch: (offset, bytes @ 1..), .. }) = step {
                let (offset, bytes) = (offset as u64, filled(bytes));
                run.blocks.push(PlannedBlock { values: Vec::new(), steps: at..at + 1, offset, bytes });
            }
            for &id in node.outputs.iter().flatten() {
                let (Place::Arena(offset), Some(index), Some(ty)) =
                    (&plan.places[id], self.buffer_of[id], &plan.types[id])
                else {
                    continue;
                };
                let buffer = &self.buffers[index];
                if buffer.bytes == 0 {
                    continue;
                }
                let block = *block_of[index].get_or_insert_with(|| {
                    let steps = buffer.first..(buffer.last + 1).min(end);
                    let (offset, bytes) = (*offset as u64, filled(buffer.bytes));
                    run.blocks.push(PlannedBlock { values: Vec::new(), steps, offset, bytes });
                    run.blocks.len() - 1
                });
                let name = plan.graph.values[id].name.clone();
                run.blocks[block].values.push(PlannedValue { name, ty: ty.clone(), step: at });
            }
        }
        run
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
