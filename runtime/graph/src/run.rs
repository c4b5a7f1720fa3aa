//! Runs a planned graph.
//!
//! This is the one place where memory is dealt out by address: the plan's offsets become slices. Two slices that are given to an
//! operator at once never overlap: values alive in the same step share no bytes (the plan was verified; where it has room for more,
//! each needs no more bytes than it was verified with), and an input that an output is written over is not given out.

use crate::arena::{Arenas, Charge};
use crate::error::Error;
use crate::graph::{Node, ValueId};
use crate::operator::{Call, Known, Operator, Types};
use crate::plan::room::Fit;
use crate::plan::{Place, Plan, Step};
use crate::prepacked::Prepacked;
use crate::watch::RunOptions;
use smallvec::SmallVec;
use stepalloc_tensor::growing::{Append, Blocks};
use stepalloc_tensor::{DataType, Tensor, Type, View, ViewMut};

/// Operands of one node at most, in practice; more take memory.
const FEW: usize = 16;

/// Runs one operator with memory of its own for its outputs.
pub fn run_one(
    operator: &dyn Operator,
    inputs: &[Option<View<'_>>],
    types: Types,
    wanted: usize,
) -> Result<Vec<Tensor>, String> {
    let shapes: Vec<_> = inputs
        .iter()
        .map(|view| view.map(|view| Type { dtype: view.dtype, shape: view.shape.into() }))
        .collect();
    let known = Known { types: &shapes.iter().map(Option::as_ref).collect::<Vec<_>>(), values: inputs };
    let scratch = Type { dtype: DataType::U8, shape: [operator.scratch(&known, &types)].into() };
    let zeroed = |ty: Type| Tensor::try_zeroed(ty).map_err(|error| error.to_string());
    let mut scratch = zeroed(scratch)?;
    let mut tensors = types.into_iter().map(zeroed).collect::<Result<Vec<_>, _>>()?;
    let mut outputs: Vec<_> = tensors.iter_mut().map(|tensor| Some(tensor.view_mut())).collect();
    outputs.iter_mut().skip(wanted).for_each(|output| *output = None);
    operator.run(&mut Call {
        inputs,
        outputs: &mut outputs,
        scratch: scratch.view_mut().bytes,
        in_place: None,
        prepacked: None,
        blocks: &[],
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
    outputs: SmallVec<[Span; FEW]>,
    /// Outputs that are made where an input is, by the plan's numbers.
    appends: &'a mut [Option<Append>],
    heap: Vec<Option<Tensor>>,
    /// What the heap counts.
    charge: Charge,
}

/// Bytes that are read and written by address.
#[derive(Clone, Copy)]
struct Span {
    begin: *mut u8,
    length: usize,
}

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
    /// `outputs` are those of the graph whose types the plan knows, in their places; the others are empty.
    pub(crate) fn new(
        (plan, fit): (&'a Plan, Option<&'a Fit>),
        inputs: &'a dyn Fn(usize) -> Option<View<'a>>,
        arena: &'a mut [u8],
        outputs: &mut [&'a mut [u8]],
        appends: &'a mut [Option<Append>],
        arenas: &Arenas,
    ) -> Self {
        let needs_heap = plan.steps.iter().any(|step| step.on_heap);
        Self {
            plan,
            fit,
            appends,
            inputs,
            arena: Span::of(arena),
            outputs: outputs.iter_mut().map(|output| Span::of(output)).collect(),
            heap: if needs_heap { vec![None; plan.graph.values.len()] } else { Vec::new() },
            charge: Charge::new(arenas),
        }
    }

    /// Runs all steps. Outputs whose types the plan does not know are returned, by number.
    pub(crate) fn run(mut self, options: &mut RunOptions<'_>) -> Result<Vec<(usize, Tensor)>, Error> {
        let (plan, graph) = (self.plan, &self.plan.graph);
        options.begin(plan)?;
        for (number, step) in plan.steps.iter().enumerate() {
            let node = &graph.nodes[step.node];
            options.step(number, || {
                let done = match step.appends {
                    Some(append) if self.append(append).is_some() => Ok(()),
                    _ if step.on_heap => self.run_on_heap(node),
                    _ => self.run_planned(number, step, node),
                };
                done.map_err(|what| Error::Node { node: node.name.clone(), op: node.op_type.clone(), what })
            })?;
            for &id in &step.drops {
                if let Some(tensor) = self.heap[id].take() {
                    self.charge.shrink(tensor.ty().bytes() as u64);
                }
            }
        }
        options.end();
        let mut free = Vec::new();
        for (number, &(id, output)) in plan.copies.iter().enumerate() {
            if self.ty(id).is_some() {
                let from = self.view(id).expect("a value with a type has a place").bytes;
                let span = self.outputs[output];
                assert_eq!(span.length, from.len(), "an output of another size");
                // SAFETY: the output is ours to write for the whole run, as long as its type says, and no value's place.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), span.begin, from.len()) };
            } else {
                let again = plan.copies[number + 1..].iter().any(|&(other, _)| other == id);
                let tensor = if again { self.heap[id].clone() } else { self.heap[id].take() };
                free.extend(tensor.map(|tensor| (output, tensor)));
            }
        }
        Ok(free)
    }

    /// The type of a value, if it is known.
    fn ty(&self, id: ValueId) -> Option<&Type> {
        let varying = self.fit.and_then(|fit| fit.ty(self.plan, id));
        varying.unwrap_or(&self.plan.types[id]).as_ref()
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
            Place::Heap => return self.heap[id].as_ref().map(Tensor::view),
            Place::Known(tensor) => {
                self.fit.and_then(|fit| fit.known(self.plan, id)).unwrap_or(tensor).view().bytes
            }
            Place::Input(index) => (self.inputs)(*index)?.bytes,
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
            Place::Output(index) => self.outputs[*index].at(0, length),
            _ => unreachable!("only places in the arena and in outputs are written"),
        }
    }

    /// Inputs of a node, what its graphs take from outside included; but the one that is written over, and of the packed one only what
    /// it is, as of those that are there in blocks.
    fn inputs_of(
        &self,
        node: &Node,
        over: Option<usize>,
        prepacked: Option<&Prepacked>,
        blocks: &[(usize, Blocks<'_>)],
    ) -> SmallVec<[Option<View<'_>>; FEW]> {
        let packed = prepacked.map(|prepacked| prepacked.spec.input);
        let own = node.inputs.iter().copied().enumerate().map(|(index, id)| {
            let id = id.filter(|_| over != Some(index))?;
            if packed != Some(index) && !blocks.iter().any(|(number, _)| *number == index) {
                return self.view(id);
            }
            let ty = self.ty(id)?;
            Some(View { dtype: ty.dtype, shape: &ty.shape, bytes: &[] })
        });
        own.chain(node.captures.iter().map(|&id| self.view(id))).collect()
    }

    fn run_planned(&self, number: usize, step: &Step, node: &Node) -> Result<(), String> {
        let mut blocks: SmallVec<[_; 2]> = SmallVec::new();
        if !self.appends.is_empty() {
            let there = node.inputs.iter().enumerate();
            blocks.extend(there.filter_map(|(index, id)| Some((index, self.blocks((*id)?)?))));
        }
        let inputs = self.inputs_of(node, step.in_place, step.prepacked.as_ref(), &blocks);
        let mut outputs: SmallVec<[Option<ViewMut<'_>>; FEW]> = SmallVec::new();
        for id in &node.outputs {
            outputs.push(id.map(|id| {
                let ty = self.ty(id).expect("a planned value has a type");
                let length = ty.bytes();
                let address = self.address(&self.plan.places[id], length);
                // SAFETY: see the module's text: no input that is given out and no other output overlaps these bytes.
                let bytes = unsafe { std::slice::from_raw_parts_mut(address, length) };
                ViewMut { dtype: ty.dtype, shape: &ty.shape, bytes }
            }));
        }
        let (offset, most) = step.scratch;
        let length = self.fit.and_then(|fit| fit.scratch(number)).unwrap_or(most);
        let scratch = if length == 0 {
            &mut [][..]
        } else {
            // SAFETY: as for outputs: scratch memory is a block of the plan, alive in this step.
            unsafe { std::slice::from_raw_parts_mut(self.arena.at(offset, length), length) }
        };
        let over = |index: usize| {
            let id = node.inputs[index].expect("an input that is written over is there");
            (index, self.ty(id).expect("it has a type").dtype)
        };
        let in_place = step.in_place.map(over);
        let prepacked = step.prepacked.as_ref();
        node.operator.run(&mut Call {
            inputs: &inputs,
            outputs: &mut outputs,
            scratch,
            in_place,
            prepacked,
            blocks: &blocks,
        })
    }

    fn run_on_heap(&mut self, node: &Node) -> Result<(), String> {
        let mut charge = self.charge.take();
        let inputs = self.inputs_of(node, None, None, &[]);
        let names = || {
            let names = node.outputs.iter().flatten().map(|&id| &*self.plan.graph.values[id].name);
            names.collect::<Vec<_>>().join(", ")
        };
        let (tensors, counted) =
            run_freely(&*node.operator, &inputs, node.outputs.len(), &mut charge, &names)?;
        if tensors.len() < node.outputs.len() {
            return Err(format!("it has {} outputs at most", tensors.len()));
        }
        drop(inputs);
        let mut kept = 0;
        for (tensor, id) in tensors.into_iter().zip(&node.outputs) {
            if let Some(id) = *id {
                kept += tensor.ty().bytes() as u64;
                self.heap[id] = Some(tensor);
            }
        }
        charge.shrink(counted.saturating_sub(kept));
        self.charge = charge;
        Ok(())
    }
}

/// Runs an operator on inputs that are there, whatever comes out; with what was counted for it. What graphs within it make is counted
/// when it is there: before, nobody knows how much it is.
fn run_freely(
    operator: &dyn Operator,
    inputs: &[Option<View<'_>>],
    wanted: usize,
    charge: &mut Charge,
    names: &dyn Fn() -> String,
) -> Result<(Vec<Tensor>, u64), String> {
    let mut count = |bytes: u64| {
        let counted = charge.grow(bytes).map(|()| bytes);
        counted.map_err(|error| format!("{error}; {bytes} of them are for {}", names()))
    };
    if let Some(made) = operator.run_freely(inputs) {
        let made = made?;
        let counted = count(made.iter().map(|tensor| tensor.ty().bytes() as u64).sum())?;
        return Ok((made, counted));
    }
    let types: Vec<_> = inputs
        .iter()
        .map(|view| view.map(|view| Type { dtype: view.dtype, shape: view.shape.into() }))
        .collect();
    let types: Vec<_> = types.iter().map(Option::as_ref).collect();
    let known = Known { types: &types, values: inputs };
    match operator.infer(&known) {
        Ok(made) => {
            let scratch = operator.scratch(&known, &made) as u64;
            let counted = count(made.iter().fold(scratch, |all, ty| all.saturating_add(ty.bytes() as u64)))?;
            Ok((run_one(operator, inputs, made, wanted)?, counted))
        }
        Err(crate::operator::Unclear::Wrong(what)) => Err(what),
        Err(crate::operator::Unclear::Needs(index)) => Err(format!("input {index} is missing")),
    }
}
