//! The operators, one file a family.
//!
//! An operator is made of a node ([`Definition`]): it says what types come out ([`Operator::infer`]), whether its output may
//! share memory with an input ([`Operator::reuse`]), and computes ([`Operator::run`]). It allocates nothing for tensors: outputs and
//! scratch memory are given to it in a [`Call`].

use crate::element::{DataType, Element};
use crate::graph::Attributes;
use crate::tensor::{Tensor, Type, View, ViewMut};
use smallvec::SmallVec;
use std::sync::Arc;

pub(crate) use factor::Factor;
pub use factor::Reading;
pub(crate) use threads::{Threads, count as cores, planning};

mod activation;
mod attention;
mod batchnorm;
mod blocks;
mod borders;
mod broadcast;
mod cast;
mod causal;
mod columns;
mod control;
mod conv;
mod conv_transpose;
mod cumulative;
mod deform;
mod determinant;
mod direct;
mod dots;
mod einsum;
mod elementwise;
mod extremes;
mod factor;
mod few_rows;
mod fills;
mod flex_attention;
mod fourier;
mod gemm;
mod gemm_i8;
mod grid;
mod heads;
mod image;
mod index;
mod integer;
mod interpolate;
mod linear_attention;
mod logic;
mod loss;
mod matmul;
mod minifloat;
mod movement;
mod ngrams;
mod normalize;
mod numeric;
mod optimize;
mod pool;
mod quantize;
mod quantized_lstm;
mod radix;
mod random;
mod real;
mod recurrent;
mod reduce;
mod repeat;
mod resize;
mod rotary;
mod scales;
mod scan;
mod scatter;
mod select;
mod shape;
mod signal;
mod skip_normalize;
mod slabs;
mod softmax;
mod strided;
mod threads;
#[cfg(test)]
pub(crate) mod trial;
#[cfg(test)]
mod trials;
mod unary;
mod variadic;
mod vector;
mod vector_matrix;
mod window;

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
    /// For each input: whether it is there.
    pub inputs: &'a [bool],
    /// For each output: whether anybody wants it.
    pub outputs: &'a [bool],
}

/// An operator, or why none can be made of a node; `None` where the family has none of that name.
pub type Made = Option<Result<Box<dyn Operator>, String>>;

/// The operator of a node.
pub fn make(node: &Definition<'_>) -> Made {
    if node.domain == "com.microsoft" {
        return microsoft(node);
    }
    if !matches!(node.domain, "" | "ai.onnx" | "ai.onnx.preview" | "ai.onnx.preview.training") {
        return None;
    }
    const FAMILIES: &[fn(&Definition<'_>) -> Made] = &[
        attention::make,
        batchnorm::make,
        borders::make,
        cast::make,
        causal::make,
        control::make,
        conv::make,
        conv_transpose::make,
        cumulative::make,
        deform::make,
        determinant::make,
        einsum::make,
        elementwise::make,
        extremes::make,
        fills::make,
        fourier::make,
        grid::make,
        image::make,
        index::make,
        integer::make,
        logic::make,
        loss::make,
        matmul::make,
        movement::make,
        ngrams::make,
        normalize::make,
        numeric::make,
        optimize::make,
        pool::make,
        quantize::make,
        random::make,
        recurrent::make,
        reduce::make,
        resize::make,
        scatter::make,
        select::make,
        shape::make,
        signal::make,
        softmax::make,
        unary::make,
        variadic::make,
    ];
    FAMILIES.iter().find_map(|make| make(node))
}

/// Operators of ONNX Runtime's own domain: those that passes make, and some that its tools do.
fn microsoft(node: &Definition<'_>) -> Made {
    match node.op {
        "FusedConv" => conv::make(node),
        "Gelu" | "FastGelu" | "QuickGelu" => unary::make(node),
        "FusedMatMul" => matmul::make(node),
        "DynamicQuantizeLSTM" => quantized_lstm::make(node),
        "SkipLayerNormalization" => skip_normalize::make(node),
        _ => None,
    }
}

/// Why types cannot be told.
#[derive(Debug)]
pub enum Unclear {
    /// The elements of this input are needed, and not known before the model runs.
    Needs(usize),
    /// The inputs do not fit the operator.
    Wrong(String),
}

impl From<String> for Unclear {
    fn from(what: String) -> Self {
        Self::Wrong(what)
    }
}

impl From<&str> for Unclear {
    fn from(what: &str) -> Self {
        Self::Wrong(what.into())
    }
}

/// Whether an output may lie where an input lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// No.
    No,
    /// Output 0 is input 0, byte for byte, in another shape at most.
    View,
    /// Output 0 may be written over one of these inputs if it has as many bytes: every element is read before it is written.
    InPlace(&'static [usize]),
}

/// The code of a node.
pub trait Operator: Send + Sync {
    /// Types of all outputs, those nobody wants too.
    fn infer(&self, inputs: &Known<'_>) -> Result<Vec<Type>, Unclear>;

    /// Whether output 0 may lie where an input lies.
    fn reuse(&self) -> Reuse {
        Reuse::No
    }

    /// Bytes of scratch memory for inputs and outputs of these types.
    fn scratch(&self, _inputs: &Known<'_>, _outputs: &[Type]) -> usize {
        0
    }

    /// How it reads an input of these types that is worth packing once where it is constant; the call has it as
    /// [`Call::factor`] then, and no elements of the input.
    fn packs(&self, _inputs: &Known<'_>) -> Option<Reading> {
        None
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
    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), String>;

    /// Computes the outputs where even all inputs do not say their types: operators that run graphs. The inputs are followed by what
    /// these graphs take from outside.
    fn run_freely(&self, _inputs: &[Option<View<'_>>]) -> Option<Result<Vec<Tensor>, String>> {
        None
    }
}

/// What is known of inputs before the model runs: their types, and the elements of some.
pub struct Known<'a> {
    pub(crate) types: &'a [Option<&'a Type>],
    pub(crate) values: &'a [Option<View<'a>>],
}

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
        self.opt(index).ok_or_else(|| Unclear::Wrong(format!("input {index} is missing")))
    }

    /// The elements of an input that must be there.
    pub fn value(&self, index: usize) -> Result<View<'a>, Unclear> {
        self.ty(index)?;
        self.values.get(index).copied().flatten().ok_or(Unclear::Needs(index))
    }

    /// The elements of an input of integers that must be there.
    pub fn ints(&self, index: usize) -> Result<Vec<i64>, Unclear> {
        let value = self.value(index)?;
        ints(&value)
            .map(SmallVec::into_vec)
            .ok_or_else(|| format!("input {index} is {}, not integers", value.dtype).into())
    }

    /// The same of one that may be left out.
    pub fn opt_ints(&self, index: usize) -> Result<Option<Vec<i64>>, Unclear> {
        self.opt(index).map(|_| self.ints(index)).transpose()
    }
}

/// A few integers: of shapes, axes, pads.
pub type Ints = SmallVec<[i64; 8]>;

/// The elements of a tensor of integers.
pub fn ints(view: &View<'_>) -> Option<Ints> {
    match view.dtype {
        DataType::I64 => Some(SmallVec::from_slice(view.elements::<i64>())),
        DataType::I32 => Some(view.elements::<i32>().iter().map(|&value| value.into()).collect()),
        _ => None,
    }
}

/// A dimension's number from one that may count from the end.
pub fn axis(axis: i64, rank: usize) -> Result<usize, String> {
    let counted = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(counted)
        .ok()
        .filter(|&counted| counted < rank)
        .ok_or_else(|| format!("there is no axis {axis} among {rank} dimensions"))
}

/// A type that can be addressed.
pub fn typed(dtype: DataType, shape: impl Into<Vec<usize>>) -> Result<Type, String> {
    let shape = shape.into();
    Type::new(dtype, shape.clone()).ok_or_else(|| format!("a tensor of shape {shape:?} is too large"))
}

/// A tensor of zeros, for what is not known before it runs.
fn zeroed(ty: Type) -> Result<Tensor, String> {
    Tensor::try_zeroed(ty).map_err(|error| error.to_string())
}

/// Inputs, outputs and scratch memory of an operator that runs.
pub struct Call<'c, 'a> {
    pub(crate) inputs: &'c [Option<View<'a>>],
    pub(crate) outputs: &'c mut [Option<ViewMut<'a>>],
    pub(crate) scratch: &'a mut [u8],
    /// The input over which output 0 is written: its elements are there.
    pub(crate) in_place: Option<(usize, DataType)>,
    /// The constant input that was packed.
    pub(crate) factor: Option<&'a Factor>,
}

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
    pub fn input(&self, index: usize) -> Result<View<'a>, String> {
        self.opt(index).ok_or_else(|| format!("input {index} is missing"))
    }

    /// The element type of an input that must be there, even if the output is written over it.
    pub fn dtype(&self, index: usize) -> Result<DataType, String> {
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
    pub fn output(&mut self, index: usize) -> Result<ViewMut<'a>, String> {
        self.opt_output(index).ok_or_else(|| format!("output {index} is wanted by nobody"))
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
    pub fn map<A: Element, B: Element>(&mut self, f: impl Fn(A) -> B) -> Result<(), String> {
        let output = self.output(0)?;
        if self.in_place.is_some() {
            if size_of::<A>() != size_of::<B>() {
                return Err("an output lies over an input of another width".into());
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
