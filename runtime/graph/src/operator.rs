//! What an operator is to a graph.
//!
//! An operator is made of a node ([`Definition`]) by a [`Registry`]: it says what types come out ([`Operator::infer`]), whether its output
//! may share memory with an input ([`Operator::reuse`]), and computes ([`Operator::run`]). It allocates nothing for tensors: outputs and
//! scratch memory are given to it in a [`Call`].

use crate::context::RunContext;
use crate::custom::CustomOperators;
use crate::graph::Attributes;
use crate::prepacked::{PackSpec, Prepacked};
use crate::run::Tensors;
use smallvec::SmallVec;
use std::sync::Arc;
use stepalloc_tensor::growing::Blocks;
use stepalloc_tensor::{DataType, Element, Ints, OpError, Shape, Tensor, Type, View, ViewMut};

/// The domain of operators that passes make for sessions: no other engine knows them, and no model that is written has them.
pub const INTERNAL: &str = "stepalloc";

/// What a node says of its operator.
pub struct Definition<'a> {
    /// The operator's name.
    pub op: &'a str,
    /// Its domain; empty is ai.onnx.
    pub domain: &'a str,
    /// Version of the domain that the model imports.
    pub opset: i64,
    /// What else it is told.
    pub attributes: &'a Attributes,
    /// Where operators of graphs within it are found.
    pub registry: &'a Registry,
    /// For each input: whether it is there.
    pub inputs: &'a [bool],
    /// For each output: whether anybody wants it.
    pub outputs: &'a [bool],
}

/// An operator, or why none can be made of a node; `None` where the family has none of that name.
pub type Made = Option<Result<Box<dyn Operator>, OpError>>;

/// Where operators are found by what nodes say.
#[derive(Clone)]
pub struct Registry {
    make: Arc<dyn Fn(&Definition<'_>) -> Made + Send + Sync>,
    custom: CustomOperators,
}

impl Registry {
    /// Operators that are made by a function.
    pub fn new(make: impl Fn(&Definition<'_>) -> Made + Send + Sync + 'static) -> Self {
        Self { make: Arc::new(make), custom: CustomOperators::default() }
    }

    /// The same with custom operators.
    #[must_use]
    pub fn with_custom(self, custom: &CustomOperators) -> Self {
        Self { custom: custom.clone(), ..self }
    }

    /// The operator of a node.
    pub fn make(&self, node: &Definition<'_>) -> Made {
        self.custom.make(node, || (self.make)(node))
    }

    /// Whether an operator of this domain and name is a custom one.
    pub fn is_custom(&self, domain: &str, op: &str) -> bool {
        self.custom.contains(domain, op)
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registry")
    }
}

/// Why types cannot be told.
#[derive(Debug)]
pub enum Unclear {
    /// The elements of this input are needed, and not known before the model runs.
    Needs(usize),
    /// The inputs do not fit the operator.
    Wrong(OpError),
}

impl From<OpError> for Unclear {
    fn from(error: OpError) -> Self {
        Self::Wrong(error)
    }
}

/// Whether an output may lie where an input lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// No.
    No,
    /// Output 0 is input 0, byte for byte, in another shape at most. The operator does not run then, unless it must: where the output has not as
    /// many bytes in elements as wide, or has to lie elsewhere, it is run, and copies.
    View,
    /// Output 0 may be written over one of these inputs if it has as many bytes: every element is read before it is written.
    InPlace(&'static [usize]),
}

/// Types of a node's outputs.
pub type Types = SmallVec<[Type; 4]>;

/// The code of a node.
pub trait Operator: Send + Sync {
    /// Types of all outputs, those nobody wants too.
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear>;

    /// Whether output 0 may lie where an input lies.
    fn reuse(&self) -> Reuse {
        Reuse::No
    }

    /// Bytes of scratch memory for inputs and outputs of these types.
    fn scratch(&self, _inputs: &Known<'_>, _outputs: &[Type]) -> usize {
        0
    }

    /// The same where the input that it packs is packed.
    fn packed_scratch(&self, inputs: &Known<'_>, outputs: &[Type]) -> usize {
        self.scratch(inputs, outputs)
    }

    /// How it reads an input of these types that is worth packing once where it is constant; the call has it as
    /// [`Call::prepacked`] then, and no elements of the input.
    fn packs(&self, _inputs: &Known<'_>) -> Option<PackSpec> {
        None
    }

    /// Packs that input, if no run has done so: for [`Session::warm_up`](crate::Session::warm_up).
    fn prepack(&self, _prepacked: &Prepacked) -> Result<(), OpError> {
        Ok(())
    }

    /// Whether it can take an input of this type in blocks, one for each member of the batch or each head: the call has it as
    /// [`Call::blocks`] then, and no elements of the input.
    fn takes_blocks(&self, _input: usize, _dtype: DataType) -> bool {
        false
    }

    /// Whether the same inputs always give the same outputs.
    fn is_pure(&self) -> bool {
        true
    }

    /// Whether the outputs follow from the inputs' types alone: shapes.
    fn looks_at_types_only(&self) -> bool {
        false
    }

    /// Output 0 where it is always the same tensor.
    fn constant(&self) -> Option<Arc<Tensor>> {
        None
    }

    /// Computes the outputs.
    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError>;

    /// Computes the outputs where even all inputs do not say their types: operators that run graphs. The inputs are followed by what
    /// these graphs take from outside. [`RunContext::tensor`] has memory for the outputs.
    fn run_freely(
        &self,
        _inputs: &[Option<View<'_>>],
        _context: &RunContext,
    ) -> Option<Result<Tensors, OpError>> {
        None
    }
}

/// What is known of inputs before the model runs: their types, and the elements of some.
pub struct Known<'a> {
    /// Of inputs that are there.
    pub types: &'a [Option<&'a Type>],
    /// Those that are known.
    pub values: &'a [Option<View<'a>>],
    /// What the run that is planned has.
    pub context: &'a RunContext,
}

#[allow(clippy::len_without_is_empty, reason = "every operator knows whether it has inputs")]
impl<'a> Known<'a> {
    /// Number of inputs, left out or not.
    pub fn len(&self) -> usize {
        self.types.len()
    }

    /// The type of an input that may be left out.
    pub fn opt(&self, index: usize) -> Option<&'a Type> {
        self.types.get(index).copied().flatten()
    }

    /// The type of an input that must be there.
    pub fn ty(&self, index: usize) -> Result<&'a Type, Unclear> {
        self.opt(index).ok_or(Unclear::Wrong(OpError::MissingInput(index)))
    }

    /// The elements of an input that must be there.
    pub fn value(&self, index: usize) -> Result<View<'a>, Unclear> {
        self.ty(index)?;
        self.values.get(index).copied().flatten().ok_or(Unclear::Needs(index))
    }

    /// The elements of an input of integers that must be there.
    pub fn ints(&self, index: usize) -> Result<Ints, Unclear> {
        let value = self.value(index)?;
        ints(&value).ok_or_else(|| {
            OpError::element_type(format!("input {index} is {}, not integers", value.dtype)).into()
        })
    }

    /// The same of one that may be left out.
    pub fn opt_ints(&self, index: usize) -> Result<Option<Ints>, Unclear> {
        self.opt(index).map(|_| self.ints(index)).transpose()
    }
}

/// The elements of a tensor of integers.
pub fn ints(view: &View<'_>) -> Option<Ints> {
    match view.dtype {
        DataType::I64 => Some(SmallVec::from_slice(view.elements::<i64>())),
        DataType::I32 => Some(view.elements::<i32>().iter().map(|&value| value.into()).collect()),
        _ => None,
    }
}

/// A type that can be addressed.
pub fn typed(dtype: DataType, shape: impl Into<Shape>) -> Result<Type, OpError> {
    let shape = shape.into();
    Type::new(dtype, shape.clone())
        .ok_or_else(|| OpError::shape(format!("a tensor of shape {shape:?} is too large")))
}

/// Inputs, outputs and scratch memory of an operator that runs.
pub struct Call<'c, 'a> {
    /// What it reads.
    pub inputs: &'c [Option<View<'a>>],
    /// What it writes; taken when it is.
    pub outputs: &'c mut [Option<ViewMut<'a>>],
    /// Scratch memory, as much as it asked for.
    pub scratch: &'a mut [u8],
    /// The input over which output 0 is written: its elements are there.
    pub in_place: Option<(usize, DataType)>,
    /// The constant input that was packed.
    pub prepacked: Option<&'a Prepacked>,
    /// Inputs that are there in blocks, by number.
    pub blocks: &'c [(usize, Blocks<'a>)],
    /// What the run has.
    pub context: &'c RunContext,
}

#[allow(clippy::len_without_is_empty, reason = "every operator knows whether it has inputs")]
impl<'a> Call<'_, 'a> {
    /// Number of inputs, left out or not.
    pub fn len(&self) -> usize {
        self.inputs.len()
    }

    /// An input that may be left out.
    pub fn opt(&self, index: usize) -> Option<View<'a>> {
        self.inputs.get(index).copied().flatten()
    }

    /// An input that must be there.
    pub fn input(&self, index: usize) -> Result<View<'a>, OpError> {
        self.opt(index).ok_or(OpError::MissingInput(index))
    }

    /// The blocks of an input that is there so, and whose view has no elements.
    pub fn blocks(&self, index: usize) -> Option<Blocks<'a>> {
        self.blocks.iter().find(|(number, _)| *number == index).map(|(_, blocks)| *blocks)
    }

    /// The element type of an input that must be there, even if the output is written over it.
    pub fn dtype(&self, index: usize) -> Result<DataType, OpError> {
        match self.in_place {
            Some((over, dtype)) if over == index => Ok(dtype),
            _ => Ok(self.input(index)?.dtype),
        }
    }

    /// An output, to be taken once; `None` if nobody wants it.
    pub fn opt_output(&mut self, index: usize) -> Option<ViewMut<'a>> {
        self.outputs.get_mut(index)?.take()
    }

    /// An output, to be taken once.
    pub fn output(&mut self, index: usize) -> Result<ViewMut<'a>, OpError> {
        self.opt_output(index).ok_or_else(|| OpError::arity(format!("output {index} is wanted by nobody")))
    }

    /// Scratch memory, as many bytes as the operator asked for, aligned to 64; to be taken once. What is in it is anything.
    pub fn scratch(&mut self) -> &'a mut [u8] {
        std::mem::take(&mut self.scratch)
    }

    /// The same as elements of a type whose width divides as many bytes.
    pub fn scratch_of<T: bytemuck::Pod>(&mut self) -> &'a mut [T] {
        match self.scratch() {
            // No bytes have any address.
            [] => &mut [],
            bytes => bytemuck::cast_slice_mut(bytes),
        }
    }

    /// The input that output 0 is written over, if any: [`Call::opt`] does not have it then, and its elements are in the output.
    pub fn in_place(&self) -> Option<usize> {
        self.in_place.map(|(index, _)| index)
    }

    /// Makes each element of output 0 from the one of input 0 at the same place, over it if that is where the output lies.
    pub fn map<A: Element, B: Element>(&mut self, f: impl Fn(A) -> B) -> Result<(), OpError> {
        let output = self.output(0)?;
        if self.in_place.is_some() {
            if size_of::<A>() != size_of::<B>() {
                return Err(OpError::internal("an output lies over an input of another width"));
            }
            for place in output.bytes.chunks_exact_mut(size_of::<B>()) {
                let made = f(bytemuck::pod_read_unaligned(place));
                place.copy_from_slice(bytemuck::bytes_of(&made));
            }
            return Ok(());
        }
        let input = self.input(0)?.elements::<A>();
        for (place, &from) in output.elements::<B>().iter_mut().zip(input) {
            *place = f(from);
        }
        Ok(())
    }
}
