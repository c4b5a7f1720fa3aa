//! Runs a planned graph.
//!
//! This is the one place where memory is dealt out by address: the plan's offsets become slices. Two slices that are given to an
//! operator at once never overlap: values alive in the same step share no bytes (the plan was verified; where it has room for more,
//! each needs no more bytes than it was verified with), and an input that an output is written over is not given out.

use crate::arena::Charge;
use crate::context::RunContext;
use crate::error::Error;
use crate::graph::{Node, ValueId};
use crate::operator::{Call, Known, Operator, Reuse, Types, Unclear, typed};
use crate::plan::room::Fit;
use crate::plan::{Place, Plan, Step};
use crate::prepacked::Prepacked;
use crate::watch::RunOptions;
use smallvec::SmallVec;
use std::sync::PoisonError;
use stepalloc_tensor::growing::{Append, Blocks};
use stepalloc_tensor::{DataType, OpError, Tensor, Type, View, ViewMut};

/// Tensors that an operator has made.
pub type Tensors = SmallVec<[Tensor; 4]>;

/// What a run leaves for the next one of its plan: vectors that are as long as they must be.
#[derive(Default)]
pub(crate) struct Spare {
    inputs: Vec<Option<View<'static>>>,
    types: Vec<Option<&'static Type>>,
    outputs: Vec<Option<ViewMut<'static>>>,
    spans: Vec<Span>,
    /// Of inputs, where the plan is for any.
    given: Vec<Option<Type>>,
    heap: Vec<Option<Tensor>>,
}

/// Elements of another type in an empty vector's memory: the standard library collects in place what is as large.
fn emptied<A, B>(mut vector: Vec<A>) -> Vec<B> {
    vector.clear();
    vector.into_iter().map(|_| -> B { unreachable!("it is empty") }).collect()
}

/// Runs one operator with memory of its own for its outputs.
pub fn run_one(
    operator: &dyn Operator,
    inputs: &[Option<View<'_>>],
    types: Types,
    wanted: usize,
    context: &RunContext,
) -> Result<Vec<Tensor>, OpError> {
    let shapes: Vec<_> = inputs
        .iter()
        .map(|view| view.map(|view| Type { dtype: view.dtype, shape: view.shape.into() }))
        .collect();
    let shapes: Vec<_> = shapes.iter().map(Option::as_ref).collect();
    let known = Known { types: &shapes, values: inputs, context };
    let scratch = Type { dtype: DataType::U8, shape: [operator.scratch(&known, &types)].into() };
    let mut scratch = Tensor::try_zeroed(scratch)?;
    let mut tensors = types.into_iter().map(Tensor::try_zeroed).collect::<Result<Vec<_>, _>>()?;
    let mut outputs: Vec<_> = tensors.iter_mut().map(|tensor| Some(tensor.view_mut())).collect();
    outputs.iter_mut().skip(wanted).for_each(|output| *output = None);
    operator.run(&mut Call {
        inputs,
        outputs: &mut outputs,
        scratch: scratch.view_mut().bytes,
        in_place: None,
        prepacked: None,
        blocks: &[],
        context,
    })?;
    Ok(tensors)
}

/// Memory of a run: where the places of a plan are.
pub(crate) struct Frame<'a> {
    plan: &'a Plan,
    /// What values are, where the plan has room for more.
    fit: Option<&'a Fit>,
    /// Inputs, followed by what the graph takes from outside.
    inputs: &'a dyn Fn(usize) -> Option<View<'a>>,
    arena: Span,
    /// Outputs that are made where an input is, by the plan's numbers.
    appends: &'a mut [Option<Append>],
    /// What the heap counts.
    charge: Charge,
    context: &'a RunContext,
    /// Outputs of the run before whose types are known only now: their memory is used again. `None` for the values of graphs within nodes.
    formers: Option<&'a mut Formers>,
    /// Outputs of known types, and what is on the heap.
    spare: Spare,
}

/// Tensors by the number of the output.
pub(crate) type Formers = SmallVec<[(usize, Tensor); 4]>;

/// Bytes that are read and written by address.
#[derive(Clone, Copy)]
struct Span {
    begin: *mut u8,
    length: usize,
}

// SAFETY: it is an address and a length; who reads or writes there says why that may be.
unsafe impl Send for Span {}

impl Span {
    fn of(bytes: &mut [u8]) -> Self {
        Self { begin: bytes.as_mut_ptr(), length: bytes.len() }
    }

    /// The address of a part.
    fn at(self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset <= self.length && length <= self.length - offset, "a place beyond its memory");
        self.begin.wrapping_add(offset)
    }
}

impl<'a> Frame<'a> {
    /// `outputs` are those of the graph, of which those that the plan knows the types of are there.
    pub(crate) fn new(
        (plan, fit): (&'a Plan, Option<&'a Fit>),
        inputs: &'a dyn Fn(usize) -> Option<View<'a>>,
        arena: &'a mut [u8],
        (outputs, formers): (&'a mut [Option<Tensor>], Option<&'a mut Formers>),
        appends: &'a mut [Option<Append>],
        context: &'a RunContext,
    ) -> Self {
        let spare = plan.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut spare = spare.unwrap_or_default();
        let bytes = |output: &'a mut Option<Tensor>| output.as_mut().map(|tensor| tensor.view_mut().bytes);
        spare.spans.extend(outputs.iter_mut().map(|output| Span::of(bytes(output).unwrap_or_default())));
        if plan.steps.iter().any(|step| step.on_heap) {
            spare.heap.resize_with(plan.graph.values.len(), || None);
        }
        if plan.is_open {
            let count = plan.graph.inputs.len() + plan.graph.captured.len();
            let ty = |view: View<'_>| Type { dtype: view.dtype, shape: view.shape.into() };
            spare.given.extend((0..count).map(|index| inputs(index).map(ty)));
        }
        let (arena, charge) = (Span::of(arena), Charge::of_tensors(&context.arenas));
        Self { plan, fit, inputs, arena, appends, charge, context, formers, spare }
    }

    /// Runs all steps. Outputs whose types the plan does not know are returned, by number.
    pub(crate) fn run(mut self, options: &mut RunOptions<'_>) -> Result<Formers, Error> {
        let (plan, graph) = (self.plan, &self.plan.graph);
        options.begin(plan)?;
        for (number, step) in plan.steps.iter().enumerate() {
            let node = &graph.nodes[step.node];
            options.step(number, || {
                let done = match step.appends {
                    Some(append) if self.append(append).is_some() => Ok(()),
                    _ if step.on_heap => self.run_on_heap(step, node),
                    _ => self.run_planned(number, step, node),
                };
                done.map_err(|error| Error::node(node, error))
            })?;
            for &id in &step.drops {
                if let Some(tensor) = self.spare.heap[id].take() {
                    self.charge.shrink(tensor.ty().bytes() as u64);
                }
            }
        }
        options.end();
        let mut free = Formers::new();
        for (number, &(id, output)) in plan.copies.iter().enumerate() {
            if self.ty(id).is_some() {
                let from = self.view(id).expect("a value with a type has a place").bytes;
                let span = self.spare.spans[output];
                assert_eq!(span.length, from.len(), "an output of another size");
                // SAFETY: the output is ours to write for the whole run, as long as its type says, and no value's place.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), span.begin, from.len()) };
            } else if let Some(ty) = self.type_of(id).cloned() {
                let again = plan.copies[number + 1..].iter().any(|&(other, _)| other == id);
                // The caller has no memory of the pool, nor a graph's input as its output.
                let stays = |tensor: &Tensor| again || tensor.is_leased() && self.formers.is_some();
                let made = self.spare.heap.get_mut(id).and_then(|made| made.take_if(|made| !stays(made)));
                let tensor = match made {
                    Some(made) => made,
                    None => {
                        let mut tensor = self.output(output, ty)?;
                        let from = self.view(id).expect("a value with a type has a place").bytes;
                        tensor.view_mut().bytes.copy_from_slice(from);
                        tensor
                    }
                };
                free.push((output, tensor));
            }
        }
        self.spare.spans.clear();
        self.spare.given.clear();
        self.spare.heap.clear();
        plan.spare.lock().unwrap_or_else(PoisonError::into_inner).push(std::mem::take(&mut self.spare));
        Ok(free)
    }

    /// Memory for an output whose type is known only now: that of the run before, if it has room.
    fn output(&mut self, number: usize, ty: Type) -> Result<Tensor, Error> {
        let Some(formers) = &mut self.formers else { return self.context.tensor(ty) };
        let former = formers.iter().position(|(of, _)| *of == number);
        let former = former.map(|at| formers.swap_remove(at).1);
        // A tensor that the caller has bound is used if it is just of this type.
        let fits = former
            .and_then(|former| if *former.ty() == ty { Some(former) } else { former.retyped(ty.clone()) });
        match fits {
            Some(former) => Ok(former),
            None => Ok(Tensor::try_zeroed(ty)?),
        }
    }

    /// Memory for a value on the heap.
    fn fresh(&mut self, id: ValueId, ty: Type) -> Result<Tensor, Error> {
        // The last of an output's numbers, since the others are copies of it.
        let output = self.plan.copies.iter().rev().find(|(value, _)| *value == id);
        match output.filter(|_| self.formers.is_some()) {
            Some(&(_, number)) => self.output(number, ty),
            None => self.context.tensor(ty),
        }
    }

    /// The type of a value, if it is known.
    fn ty(&self, id: ValueId) -> Option<&Type> {
        let varying = self.fit.and_then(|fit| fit.ty(self.plan, id));
        varying.unwrap_or(&self.plan.types[id]).as_ref()
    }

    /// The same once it has run.
    fn type_of(&self, id: ValueId) -> Option<&Type> {
        match self.plan.places[id] {
            Place::Heap => self.spare.heap[id].as_ref().map(Tensor::ty),
            Place::Input(index) if self.plan.is_open => {
                self.ty(id).or_else(|| self.spare.given[index].as_ref())
            }
            _ => self.ty(id),
        }
    }

    /// Appends to an input, if it is there in blocks.
    fn append(&mut self, number: usize) -> Option<()> {
        let mut append = self.appends.get_mut(number)?.take()?;
        let new = self.view(self.plan.appended[number].new).expect("what is appended is there");
        append.write(new.bytes);
        self.appends[number] = Some(append);
        Some(())
    }

    /// The blocks of a value that was made where an input is.
    fn blocks(&self, id: ValueId) -> Option<Blocks<'_>> {
        let Place::Output(output) = self.plan.places[id] else { return None };
        let mut appends = self.plan.appended.iter().zip(self.appends.iter());
        let append =
            appends.find_map(|(appended, append)| append.as_ref().filter(|_| appended.output == output));
        append.map(Append::blocks)
    }

    /// A value to be read; `None` for one that is not there.
    fn view(&self, id: ValueId) -> Option<View<'_>> {
        let place = &self.plan.places[id];
        let bytes: &[u8] = match place {
            Place::Nowhere => return None,
            Place::Heap => return self.spare.heap[id].as_ref().map(Tensor::view),
            Place::Known(tensor) => {
                self.fit.and_then(|fit| fit.known(self.plan, id)).unwrap_or(tensor).view().bytes
            }
            Place::Input(index) => {
                let given = (self.inputs)(*index)?;
                if self.plan.is_open && self.ty(id).is_none() {
                    return Some(given);
                }
                given.bytes
            }
            Place::Arena(_) | Place::Output(_) => {
                let length = self.ty(id)?.bytes();
                // SAFETY: the address is within memory that lives as long as the frame and is initialised; who writes there
                // meanwhile is told by the module's text.
                unsafe { std::slice::from_raw_parts(self.address(place, length), length) }
            }
        };
        let ty = self.ty(id)?;
        Some(View { dtype: ty.dtype, shape: &ty.shape, bytes })
    }

    fn address(&self, place: &Place, length: usize) -> *mut u8 {
        match place {
            Place::Arena(offset) => self.arena.at(*offset, length),
            Place::Output(index) => self.spare.spans[*index].at(0, length),
            _ => unreachable!("only places in the arena and in outputs are written"),
        }
    }

    /// Inputs of a node, what its graphs take from outside included; but the one that is written over, and of the packed one only what
    /// it is, as of those that are there in blocks.
    fn inputs_of(
        &self,
        memory: Vec<Option<View<'static>>>,
        node: &Node,
        over: Option<usize>,
        prepacked: Option<&Prepacked>,
        blocks: &[(usize, Blocks<'_>)],
    ) -> Vec<Option<View<'_>>> {
        let packed = prepacked.map(|prepacked| prepacked.spec.input);
        let own = node.inputs.iter().copied().enumerate().map(|(index, id)| {
            let id = id.filter(|_| over != Some(index))?;
            if packed != Some(index) && !blocks.iter().any(|(number, _)| *number == index) {
                return self.view(id);
            }
            let ty = self.ty(id)?;
            Some(View { dtype: ty.dtype, shape: &ty.shape, bytes: &[] })
        });
        let mut inputs = emptied(memory);
        inputs.extend(own.chain(node.captures.iter().map(|&id| self.view(id))));
        inputs
    }

    fn run_planned(&mut self, number: usize, step: &Step, node: &Node) -> Result<(), OpError> {
        let memory = (std::mem::take(&mut self.spare.inputs), std::mem::take(&mut self.spare.outputs));
        let frame = &*self;
        let mut blocks: SmallVec<[_; 2]> = SmallVec::new();
        if !frame.appends.is_empty() {
            let there = node.inputs.iter().enumerate();
            blocks.extend(there.filter_map(|(index, id)| Some((index, frame.blocks((*id)?)?))));
        }
        let inputs = frame.inputs_of(memory.0, node, step.in_place, step.prepacked.as_ref(), &blocks);
        let mut outputs: Vec<Option<ViewMut<'_>>> = emptied(memory.1);
        for id in &node.outputs {
            outputs.push(id.map(|id| {
                let ty = frame.ty(id).expect("a planned value has a type");
                let length = ty.bytes();
                let address = frame.address(&frame.plan.places[id], length);
                // SAFETY: see the module's text: no input that is given out and no other output overlaps these bytes.
                let bytes = unsafe { std::slice::from_raw_parts_mut(address, length) };
                ViewMut { dtype: ty.dtype, shape: &ty.shape, bytes }
            }));
        }
        let (offset, most) = step.scratch;
        let length = frame.fit.and_then(|fit| fit.scratch(number)).unwrap_or(most);
        let scratch = if length == 0 {
            &mut [][..]
        } else {
            // SAFETY: as for outputs: scratch memory is a block of the plan, alive in this step.
            unsafe { std::slice::from_raw_parts_mut(frame.arena.at(offset, length), length) }
        };
        let over = |index: usize| {
            let id = node.inputs[index].expect("an input that is written over is there");
            (index, frame.ty(id).expect("it has a type").dtype)
        };
        let in_place = step.in_place.map(over);
        let prepacked = step.prepacked.as_ref();
        let done = node.operator.run(&mut Call {
            inputs: &inputs,
            outputs: &mut outputs,
            scratch,
            in_place,
            prepacked,
            blocks: &blocks,
            context: self.context,
        });
        let memory = (emptied(inputs), emptied(outputs));
        drop(blocks);
        (self.spare.inputs, self.spare.outputs) = memory;
        done
    }

    /// The input that output 0 takes the memory of: one that nobody needs any more, of as many bytes.
    fn taken_over(&self, step: &Step, node: &Node, made: &Type) -> Option<usize> {
        let output = node.outputs.first().copied().flatten()?;
        let is_output = self.formers.is_some() && self.plan.copies.iter().any(|&(id, _)| id == output);
        let allowed: &[usize] = match node.operator.reuse() {
            Reuse::InPlace(inputs) => inputs,
            Reuse::View if node.outputs.len() == 1 => &[0],
            _ => &[],
        };
        let fits = |&index: &usize| {
            let Some(id) = node.inputs.get(index).copied().flatten() else { return false };
            let uses = node.inputs.iter().flatten().chain(&node.captures).filter(|&&used| used == id).count();
            let tensor = self.spare.heap[id].as_ref();
            let has_memory = tensor.is_some_and(|tensor| tensor.ty().bytes() == made.bytes());
            uses == 1 && step.drops.contains(&id) && has_memory
        };
        allowed.iter().copied().find(|index| !is_output && fits(index))
    }

    fn run_on_heap(&mut self, step: &Step, node: &Node) -> Result<(), OpError> {
        let names = |frame: &Self| {
            let names = node.outputs.iter().flatten().map(|&id| &*frame.plan.graph.values[id].name);
            names.collect::<Vec<_>>().join(", ")
        };
        let memory = (std::mem::take(&mut self.spare.inputs), std::mem::take(&mut self.spare.types));
        let inputs = self.inputs_of(memory.0, node, None, None, &[]);
        let mut types = emptied(memory.1);
        let ids = node.inputs.iter().copied().chain(node.captures.iter().copied().map(Some));
        types.extend(ids.map(|id| self.type_of(id?)));
        if let Some(made) = node.operator.run_freely(&inputs, self.context) {
            (self.spare.inputs, self.spare.types) = (emptied(inputs), emptied(types));
            let made = made?;
            if made.len() < node.outputs.len() {
                return Err(OpError::arity(format!("it has {} outputs at most", made.len())));
            }
            for (tensor, id) in made.into_iter().zip(&node.outputs) {
                let Some(id) = *id else { continue };
                // It is counted when it is there: before, nobody knows how much it is.
                let bytes = tensor.ty().bytes() as u64;
                if let Err(error) = self.charge.grow(bytes) {
                    return Err(beyond(error, &format!("; {bytes} of them are for {}", names(self))));
                }
                self.spare.heap[id] = Some(tensor);
            }
            return Ok(());
        }
        let known = Known { types: &types, values: &inputs, context: self.context };
        let made = match node.operator.infer(&known) {
            Ok(made) if made.len() < node.outputs.len() => {
                return Err(OpError::arity(format!("it has {} outputs at most", made.len())));
            }
            Ok(made) => made,
            Err(Unclear::Wrong(error)) => return Err(error),
            Err(Unclear::Needs(index)) => return Err(OpError::MissingInput(index)),
        };
        let scratch = node.operator.scratch(&known, &made);
        let over = made.first().and_then(|made| self.taken_over(step, node, made));
        let over = over.and_then(|index| Some((index, types[index]?.dtype)));
        let memory = (emptied(inputs), emptied(types));
        let new = made.iter().zip(&node.outputs).skip(usize::from(over.is_some()));
        let new = new.filter(|(_, id)| id.is_some()).map(|(ty, _)| ty.bytes() as u64);
        let bytes = new.fold(scratch as u64, u64::saturating_add);
        if let Err(error) = self.charge.grow(bytes) {
            return Err(beyond(error, &format!("; {bytes} of them are for {}", names(self))));
        }
        let mut tensors = Tensors::new();
        for (number, (ty, id)) in made.into_iter().zip(&node.outputs).enumerate() {
            let Some(id) = *id else { continue };
            let source = over.filter(|_| number == 0).and_then(|(index, _)| node.inputs[index]);
            let taken = source.and_then(|source| self.spare.heap[source].take());
            tensors.push(match taken {
                Some(tensor) => tensor.retyped(ty).ok_or_else(|| {
                    OpError::internal("an input has no memory of its own to be written over")
                })?,
                None => self.fresh(id, ty)?,
            });
        }
        if over.is_none() || node.operator.reuse() != Reuse::View {
            let mut space = self.context.tensor(typed(DataType::U8, [scratch])?)?;
            let outputs = std::mem::take(&mut self.spare.outputs);
            let inputs = self.inputs_of(memory.0, node, over.map(|(index, _)| index), None, &[]);
            let mut outputs: Vec<Option<ViewMut<'_>>> = emptied(outputs);
            let mut made = tensors.iter_mut();
            outputs.extend(node.outputs.iter().map(|id| id.and_then(|_| made.next()).map(Tensor::view_mut)));
            let done = node.operator.run(&mut Call {
                inputs: &inputs,
                outputs: &mut outputs,
                scratch: space.view_mut().bytes,
                in_place: over,
                prepacked: None,
                blocks: &[],
                context: self.context,
            });
            let memory = (emptied(inputs), emptied(outputs));
            (self.spare.inputs, self.spare.outputs) = memory;
            done?;
        } else {
            self.spare.inputs = memory.0;
        }
        self.spare.types = memory.1;
        for (tensor, id) in tensors.into_iter().zip(node.outputs.iter().flatten()) {
            self.spare.heap[*id] = Some(tensor);
        }
        self.charge.shrink(scratch as u64);
        Ok(())
    }
}

/// An error of memory as a node has it, with more to say; others as they are.
fn beyond(error: Error, more: &str) -> OpError {
    match error {
        Error::Memory { bytes, why } => OpError::Memory { bytes, why: why + more },
        other => other.into(),
    }
}
