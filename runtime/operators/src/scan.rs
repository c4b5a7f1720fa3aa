//! Scan: a graph runs for each element of sequences, and what it makes becomes sequences again.
//!
//! Before version 9 it runs so for each member of a batch: dimension 0 of every input, and the sequences are along dimension 1.

use super::control::{Body, FEW, axis_of, body, certain, deliver};
use super::{Call, Definition, Known, Operator, RunContext, Types, Unclear, copied, typed};
use smallvec::SmallVec;
use stepalloc_graph::Tensors;
use stepalloc_tensor::{OpError, Tensor, Type, View};

pub(super) struct Scan {
    body: Body,
    /// Values that go from one run to the next.
    states: usize,
    /// Sequences that are walked through.
    scans: usize,
    in_axes: Option<Vec<i64>>,
    in_directions: Option<Vec<i64>>,
    out_axes: Option<Vec<i64>>,
    out_directions: Option<Vec<i64>>,
    batched: bool,
}

impl Scan {
    pub(super) fn new(node: &Definition<'_>) -> Result<Self, OpError> {
        let batched = node.opset < 9;
        let body = body(node)?;
        let told = node.attributes.int("num_scan_inputs", 0);
        let own = node.inputs.len().saturating_sub(usize::from(batched));
        let scans = usize::try_from(told).ok().filter(|&scans| scans >= 1 && scans <= own);
        let scans =
            scans.ok_or_else(|| OpError::attribute(format!("{told} of {own} inputs are to be scanned")))?;
        let states = own - scans;
        if body.inputs != own || body.outputs < states || body.outputs < node.outputs.len() {
            return Err(OpError::arity(format!(
                "with {own} inputs and {} outputs, its graph has {} inputs and {} outputs",
                node.outputs.len(),
                body.inputs,
                body.outputs
            )));
        }
        let ints = |name: &str| node.attributes.ints(name);
        let in_directions = ints(if batched { "directions" } else { "scan_input_directions" });
        Ok(Self {
            body,
            states,
            scans,
            in_axes: ints("scan_input_axes"),
            in_directions,
            out_axes: ints("scan_output_axes"),
            out_directions: ints("scan_output_directions"),
            batched,
        })
    }

    /// The type of a sequence's elements, and its length.
    fn element(&self, index: usize, ty: &Type) -> Result<(Type, usize), OpError> {
        let axis = axis_of(self.in_axes.as_deref(), index, ty.rank())?;
        let mut shape = ty.shape.clone();
        let length = shape.remove(axis);
        Ok((typed(ty.dtype, shape)?, length))
    }

    /// Types that the graph is given, and the length of all sequences, for inputs of these types without a batch.
    fn own_types(&self, types: &[Type]) -> Result<(Types, usize), OpError> {
        let mut own: Types = types[..self.states].iter().cloned().collect();
        let mut all = None;
        for (index, ty) in types[self.states..].iter().enumerate() {
            let (element, length) = self.element(index, ty)?;
            if all.is_some_and(|all| all != length) {
                return Err(OpError::shape(format!(
                    "its sequences are of {} and {length} elements",
                    all.unwrap_or(0)
                )));
            }
            all = Some(length);
            own.push(element);
        }
        Ok((own, all.unwrap_or(0)))
    }

    /// The type of a sequence of such elements.
    fn sequence(&self, index: usize, element: &Type, length: usize) -> Result<(Type, usize), OpError> {
        let axis = axis_of(self.out_axes.as_deref(), index, element.rank() + 1)?;
        let mut shape = element.shape.clone();
        shape.insert(axis, length);
        Ok((typed(element.dtype, shape)?, axis))
    }

    /// The types of all own inputs without their batch, and its size.
    fn members(&self, types: Types) -> Result<(Types, usize), OpError> {
        let mut all = None;
        let mut members = Types::new();
        for ty in types {
            let (&size, rest) = ty
                .shape
                .split_first()
                .ok_or_else(|| OpError::shape(format!("{ty} has no dimension for a batch")))?;
            if all.is_some_and(|all| all != size) {
                return Err(OpError::shape(format!("its batch is of {} and of {size}", all.unwrap_or(0))));
            }
            all = Some(size);
            members.push(typed(ty.dtype, rest)?);
        }
        Ok((members, all.unwrap_or(0)))
    }

    /// What an output's elements are if there are none to be seen.
    fn unseen(
        &self,
        own: &[Type],
        all: &[Option<View<'_>>],
        at: usize,
        context: &RunContext,
    ) -> Result<Type, OpError> {
        let known: SmallVec<[_; FEW]> = all.iter().map(|view| view.as_ref().map(type_of)).collect();
        let known: SmallVec<[_; FEW]> = known.iter().map(Option::as_ref).collect();
        let made = self.body.infer(own, &Known { types: &known, values: all, context });
        let declared = || self.body.declared_output(at);
        made.get(at).cloned().flatten().or_else(declared).ok_or_else(|| {
            let what =
                format!("nothing tells the type of the elements of output {at}, of which there are none");
            OpError::unsupported(what)
        })
    }

    /// Walks through sequences as far as `length`; the sequences made are padded with zeros.
    fn walk(
        &self,
        given: &[View<'_>],
        length: Option<i64>,
        all: &[Option<View<'_>>],
        context: &RunContext,
    ) -> Result<Tensors, OpError> {
        let types: Types = given.iter().map(type_of).collect();
        let (own, whole) = self.own_types(&types)?;
        let length = match length {
            None => whole,
            Some(told) => usize::try_from(told).ok().filter(|&told| told <= whole).ok_or_else(|| {
                OpError::value(format!("a sequence of {whole} elements is said to have {told}"))
            })?,
        };
        let states = given[..self.states].iter().map(|state| copied(state, context));
        let mut states = states.collect::<Result<Tensors, _>>()?;
        let elements = own[self.states..].iter().map(|ty| context.tensor(ty.clone()));
        let mut elements = elements.collect::<Result<Tensors, _>>()?;
        let backwards = |directions: &Option<Vec<i64>>, index: usize| {
            directions.as_ref().and_then(|all| all.get(index)).is_some_and(|&direction| direction != 0)
        };
        let mut made: SmallVec<[Option<Tensor>; 4]> =
            (self.states..self.body.outputs).map(|_| None).collect();
        for round in 0..length {
            for (index, element) in elements.iter_mut().enumerate() {
                let sequence = &given[self.states + index];
                let axis = axis_of(self.in_axes.as_deref(), index, sequence.shape.len())?;
                let at = if backwards(&self.in_directions, index) { length - 1 - round } else { round };
                let inner = inner_bytes(sequence, axis);
                let to = element.view_mut().bytes;
                for (outer, to) in to.chunks_exact_mut(inner.max(1)).enumerate() {
                    to.copy_from_slice(&sequence.bytes[(outer * whole + at) * inner..][..inner]);
                }
            }
            let own = states.iter().chain(&elements).map(Tensor::view);
            let mut out = self.body.run(own, all, context)?.into_iter();
            states.clear();
            states.extend(out.by_ref().take(self.states));
            for (index, (element, made)) in out.zip(&mut made).enumerate() {
                let (ty, axis) = self.sequence(index, element.ty(), whole)?;
                let sequence = match made {
                    Some(sequence) => sequence,
                    None => made.insert(zeros(ty.clone(), context)?),
                };
                if *sequence.ty() != ty {
                    return Err(OpError::shape(format!(
                        "an element of {} is to be among {}",
                        element.ty(),
                        sequence.ty()
                    )));
                }
                let at = if backwards(&self.out_directions, index) { length - 1 - round } else { round };
                let sequence = sequence.view_mut();
                let inner = ty.shape[axis + 1..].iter().product::<usize>() * ty.dtype.bytes();
                for (outer, from) in element.view().bytes.chunks_exact(inner.max(1)).enumerate() {
                    sequence.bytes[(outer * whole + at) * inner..][..inner].copy_from_slice(from);
                }
            }
        }
        for (index, made) in made.into_iter().enumerate() {
            states.push(match made {
                Some(sequence) => sequence,
                None => {
                    let element = self.unseen(&own, all, self.states + index, context)?;
                    zeros(self.sequence(index, &element, whole)?.0, context)?
                }
            });
        }
        Ok(states)
    }

    fn scan<'a>(&self, inputs: &[Option<View<'a>>], context: &RunContext) -> Result<Tensors, OpError> {
        let first = usize::from(self.batched);
        let own = inputs
            .get(first..first + self.states + self.scans)
            .ok_or_else(|| OpError::arity("it lacks inputs"))?;
        let given = own.iter().enumerate();
        let own: SmallVec<[View<'a>; FEW]> = given
            .map(|(at, view)| view.ok_or(OpError::MissingInput(first + at)))
            .collect::<Result<_, _>>()?;
        if !self.batched {
            return self.walk(&own, None, inputs, context);
        }
        let (members, size) = self.members(own.iter().map(type_of).collect())?;
        let lengths = match inputs[0] {
            None => None,
            Some(view) => {
                Some(super::ints(&view).filter(|lengths| lengths.len() == size).ok_or_else(|| {
                    let (dtype, shape) = (view.dtype, view.shape);
                    OpError::shape(format!("lengths of {size} sequences are {dtype}{shape:?}"))
                })?)
            }
        };
        let mut batch = Tensors::new();
        for member in 0..size {
            let part = |(view, ty): (&View<'a>, &Type)| View {
                dtype: view.dtype,
                shape: &view.shape[1..],
                bytes: &view.bytes[ty.bytes() * member..][..ty.bytes()],
            };
            let given: SmallVec<[_; FEW]> = own.iter().zip(&members).map(part).collect();
            let length = lengths.as_ref().map(|lengths| lengths[member]);
            let made = self.walk(&given, length, inputs, context)?;
            for (index, tensor) in made.iter().enumerate() {
                let (ty, bytes) = (tensor.ty(), tensor.view().bytes);
                if batch.len() == index {
                    batch.push(zeros(batch_of(ty, size)?, context)?);
                }
                if batch[index].ty().shape[1..] != ty.shape[..] {
                    return Err(OpError::shape(format!(
                        "output {index} is {ty} for one of a batch, and not so for others"
                    )));
                }
                batch[index].view_mut().bytes[bytes.len() * member..][..bytes.len()].copy_from_slice(bytes);
            }
        }
        if size == 0 {
            let (types, whole) = self.own_types(&members)?;
            for ty in &types[..self.states] {
                batch.push(zeros(batch_of(ty, 0)?, context)?);
            }
            for index in 0..self.body.outputs - self.states {
                let element = self.unseen(&types, inputs, self.states + index, context)?;
                let sequence = self.sequence(index, &element, whole)?.0;
                batch.push(zeros(batch_of(&sequence, 0)?, context)?);
            }
        }
        Ok(batch)
    }
}

/// The type of a batch of these.
fn batch_of(ty: &Type, size: usize) -> Result<Type, OpError> {
    let mut shape = ty.shape.clone();
    shape.insert(0, size);
    typed(ty.dtype, shape)
}

/// A tensor of zeros in memory of the run.
fn zeros(ty: Type, context: &RunContext) -> Result<Tensor, OpError> {
    let mut tensor = context.tensor(ty)?;
    tensor.view_mut().bytes.fill(0);
    Ok(tensor)
}

fn type_of(view: &View<'_>) -> Type {
    Type { dtype: view.dtype, shape: view.shape.into() }
}

/// Bytes of what lies at one place of dimensions up to this one.
fn inner_bytes(view: &View<'_>, axis: usize) -> usize {
    view.shape[axis + 1..].iter().product::<usize>() * view.dtype.bytes()
}

impl Operator for Scan {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let first = usize::from(self.batched);
        let types = (0..self.states + self.scans)
            .map(|index| inputs.ty(first + index).cloned())
            .collect::<Result<Types, _>>()?;
        let (types, size) = if self.batched { self.members(types)? } else { (types, 0) };
        let (own, length) = self.own_types(&types)?;
        let mut made = certain(self.body.infer(&own, inputs))?;
        if made[..self.states] != own[..self.states] {
            return Err(Unclear::Needs(0));
        }
        for (index, ty) in made[self.states..].iter_mut().enumerate() {
            *ty = self.sequence(index, ty, length)?.0;
        }
        if self.batched {
            made = made.iter().map(|ty| batch_of(ty, size)).collect::<Result<_, _>>()?;
        }
        Ok(made)
    }

    fn is_pure(&self) -> bool {
        self.body.is_pure()
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let made = self.scan(call.inputs, call.context)?;
        deliver(call, &made)
    }

    fn run_freely(
        &self,
        inputs: &[Option<View<'_>>],
        context: &RunContext,
    ) -> Option<Result<Tensors, OpError>> {
        Some(self.scan(inputs, context))
    }
}
