//! Layers as ONNX's operators, one file a family.

mod activation;
mod attention;
mod detect;
mod elementwise;
mod index;
mod move_data;
mod normalize;
mod pool;
mod recurrent;
mod reduce;
mod resize;
mod shape;
mod slice;
mod spectrum;
mod window;

use super::build::{Builder, With, integers, numbers, scalar};
use super::xml::{Layer, Port, dtype};
use std::collections::HashMap;
use std::sync::Arc;
use stepalloc_graph::ValueId;
use stepalloc_tensor::{DataType, OpError, Tensor};

/// What a layer makes, one for each output, or why it cannot; `None` where the family has none of that name.
type Made = Option<Result<Vec<Option<ValueId>>, OpError>>;

/// What a layer makes.
pub(super) fn convert(call: &mut Conversion<'_, '_, '_>) -> Made {
    if !call.layer.version.starts_with("opset") {
        return None;
    }
    const FAMILIES: &[fn(&mut Conversion<'_, '_, '_>) -> Made] = &[
        activation::convert,
        attention::convert,
        detect::convert,
        elementwise::convert,
        index::convert,
        move_data::convert,
        normalize::convert,
        pool::convert,
        recurrent::convert,
        reduce::convert,
        resize::convert,
        shape::convert,
        slice::convert,
        spectrum::convert,
        window::convert,
    ];
    FAMILIES.iter().find_map(|convert| convert(call))
}

/// What comes into a layer.
pub(super) struct Operand<'n> {
    pub id: ValueId,
    /// Where it comes from, which says of what type it is.
    pub port: &'n Port,
}

/// A layer that is to become nodes.
pub(super) struct Conversion<'c, 'n, 'x> {
    pub layer: &'n Layer<'x>,
    pub inputs: Vec<Operand<'n>>,
    /// For each output: whether it goes anywhere.
    pub wanted: Vec<bool>,
    pub builder: &'c mut Builder,
}

/// Nothing has more dimensions.
const MOST_DIMS: usize = 64;

/// One output.
fn one(made: Result<ValueId, OpError>) -> Made {
    Some(made.map(|id| vec![Some(id)]))
}

impl<'n, 'x> Conversion<'_, 'n, 'x> {
    /// An input that must be there.
    pub(super) fn input(&self, at: usize) -> Result<ValueId, OpError> {
        self.opt(at).ok_or(OpError::MissingInput(at))
    }

    /// What comes in, by the ids of ports.
    pub(super) fn by_port(&self) -> HashMap<u64, ValueId> {
        self.layer.inputs.iter().zip(&self.inputs).map(|(port, operand)| (port.id, operand.id)).collect()
    }

    /// An input that may be left out.
    fn opt(&self, at: usize) -> Option<ValueId> {
        self.inputs.get(at).map(|operand| operand.id)
    }

    fn port(&self, at: usize) -> Result<&'n Port, OpError> {
        self.inputs.get(at).map(|operand| operand.port).ok_or(OpError::MissingInput(at))
    }

    /// The number of an input's dimensions.
    fn rank(&self, at: usize) -> Result<usize, OpError> {
        match self.dims(at)?.len() {
            0 => Err(OpError::unsupported(format!(
                "input {at} may have any number of dimensions: save the model with it fixed"
            ))),
            rank => Ok(rank),
        }
    }

    /// Sizes of an input's dimensions, as far as the model says them.
    fn dims(&self, at: usize) -> Result<Vec<Option<usize>>, OpError> {
        if let Some(tensor) = self.opt(at).and_then(|id| self.builder.known(id)) {
            return Ok(tensor.ty().shape.iter().map(|&dim| Some(dim)).collect());
        }
        Ok(self.port(at)?.dims.clone())
    }

    /// The number of elements of an input that has one for each dimension.
    fn length(&self, at: usize) -> Result<usize, OpError> {
        match self.dims(at)?[..] {
            [Some(length @ ..=MOST_DIMS)] => Ok(length),
            ref dims => Err(OpError::unsupported(format!(
                "input {at} is no list of a fixed length, one for each dimension: {dims:?}"
            ))),
        }
    }

    /// Sizes of an input's dimensions, all of which must be fixed.
    fn fixed(&self, at: usize) -> Result<Vec<usize>, OpError> {
        let dims: Option<Vec<_>> = self.dims(at)?.into_iter().collect();
        dims.ok_or_else(|| {
            let what = format!("input {at} has dimensions without a size: save the model with fixed ones");
            OpError::unsupported(what)
        })
    }

    /// The type of an input's elements.
    fn dtype(&self, at: usize) -> Result<DataType, OpError> {
        if let Some(tensor) = self.opt(at).and_then(|id| self.builder.known(id)) {
            return Ok(tensor.ty().dtype);
        }
        self.port(at)?
            .dtype
            .ok_or_else(|| OpError::unsupported(format!("input {at} is of a type that is not known")))
    }

    /// An attribute.
    fn text(&self, name: &str, usual: &'x str) -> &'x str {
        self.layer.data(name).unwrap_or(usual)
    }

    /// An attribute that is a number.
    fn number<T: std::str::FromStr>(&self, name: &str, usual: T) -> Result<T, OpError> {
        let Some(text) = self.layer.data(name) else { return Ok(usual) };
        text.trim().parse().map_err(|_| OpError::attribute(format!("its {name} is {text:?}")))
    }

    /// An attribute that is a truth value.
    fn flag(&self, name: &str, usual: bool) -> Result<bool, OpError> {
        let Some(text) = self.layer.data(name) else { return Ok(usual) };
        match text.trim().to_ascii_lowercase().as_str() {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => Err(OpError::attribute(format!("its {name} is {text:?}"))),
        }
    }

    /// An attribute of numbers with commas between them; none where it is left out.
    fn numbers<T: std::str::FromStr>(&self, name: &str) -> Result<Vec<T>, OpError> {
        let text = self.layer.data(name).unwrap_or_default();
        let numbers = text.split(',').map(str::trim).filter(|number| !number.is_empty());
        numbers
            .map(|number| number.parse().map_err(|_| OpError::attribute(format!("its {name} is {text:?}"))))
            .collect()
    }

    /// An attribute that is a type.
    fn type_of(&self, name: &str) -> Result<Option<DataType>, OpError> {
        let Some(text) = self.layer.data(name) else { return Ok(None) };
        dtype(text)
            .map(Some)
            .ok_or_else(|| OpError::unsupported(format!("its {name} is {text}, which is not known here")))
    }

    /// Integers of an input, where they are always the same.
    fn known_ints(&self, at: usize) -> Option<Vec<i64>> {
        integers(&self.builder.known(self.opt(at)?)?.view())
    }

    /// Integers of an input that must always be the same.
    fn ints_of(&self, at: usize) -> Result<Vec<i64>, OpError> {
        self.input(at)?;
        self.known_ints(at)
            .ok_or_else(|| OpError::unsupported(format!("input {at} is not a constant of integers")))
    }

    /// The one integer of such an input.
    fn int_of(&self, at: usize) -> Result<i64, OpError> {
        match self.ints_of(at)?[..] {
            [value] => Ok(value),
            ref values => Err(OpError::shape(format!("input {at} is {values:?}, not one number"))),
        }
    }

    /// The one number of an input that must always be the same.
    fn float_of(&self, at: usize) -> Result<f64, OpError> {
        let tensor = self.builder.known(self.input(at)?);
        match tensor.and_then(|tensor| numbers(&tensor.view())).as_deref() {
            Some([value]) => Ok(*value),
            _ => Err(OpError::unsupported(format!("input {at} is not a constant number"))),
        }
    }

    /// A list of integers that is always the same.
    fn ints(&mut self, values: &[i64]) -> Result<ValueId, OpError> {
        let tensor = Tensor::from_elements([values.len()], values)
            .ok_or_else(|| OpError::internal("a list is too long"))?;
        Ok(self.constant(tensor))
    }

    /// One number of a type.
    fn scalar(&mut self, dtype: DataType, value: f64) -> Result<ValueId, OpError> {
        let tensor = scalar(dtype, value)?;
        Ok(self.constant(tensor))
    }

    fn constant(&mut self, tensor: Tensor) -> ValueId {
        self.builder.constant(&format!("{}/constant", self.layer.name), Arc::new(tensor))
    }

    /// A node with one output.
    pub(super) fn op(&mut self, op: &str, inputs: &[ValueId]) -> Result<ValueId, OpError> {
        self.op_with(op, inputs, With::default())
    }

    /// A node with one output, told more.
    fn op_with(&mut self, op: &str, inputs: &[ValueId], with: With) -> Result<ValueId, OpError> {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        self.node(op, &inputs, with, &[true])?[0].ok_or_else(|| OpError::internal("it makes nothing"))
    }

    /// A node.
    fn node(
        &mut self,
        op: &str,
        inputs: &[Option<ValueId>],
        with: With,
        wanted: &[bool],
    ) -> Result<Vec<Option<ValueId>>, OpError> {
        self.builder.node(self.layer.name, op, inputs, Vec::new(), with, wanted)
    }

    /// The same elements of another type.
    pub(super) fn cast(&mut self, id: ValueId, dtype: DataType) -> Result<ValueId, OpError> {
        // What is too large for 8 bits is no number there.
        let saturates = !matches!(dtype, DataType::F8E4M3FN | DataType::F8E5M2);
        self.op_with("Cast", &[id], With::default().int("to", dtype as i32).int("saturate", saturates))
    }

    pub(super) fn transpose(&mut self, id: ValueId, order: &[usize]) -> Result<ValueId, OpError> {
        if order.iter().enumerate().all(|(at, &axis)| at == axis) {
            return Ok(id);
        }
        let order: Vec<_> = order.iter().map(|&axis| axis as i64).collect();
        self.op_with("Transpose", &[id], With::default().ints("perm", order))
    }

    /// Along these axes the last comes first.
    pub(super) fn reversed(&mut self, id: ValueId, axes: &[i64]) -> Result<ValueId, OpError> {
        let count = axes.len();
        let (begin, end) = (self.ints(&vec![-1; count])?, self.ints(&vec![i64::MIN; count])?);
        let (axes, step) = (self.ints(axes)?, self.ints(&vec![-1; count])?);
        self.op("Slice", &[id, begin, end, axes, step])
    }

    fn unsqueeze(&mut self, id: ValueId, axes: &[i64]) -> Result<ValueId, OpError> {
        let axes = self.ints(axes)?;
        self.op("Unsqueeze", &[id, axes])
    }

    fn squeeze(&mut self, id: ValueId, axes: &[i64]) -> Result<ValueId, OpError> {
        let axes = self.ints(axes)?;
        self.op("Squeeze", &[id, axes])
    }

    /// An input of integers that an operator looks at: of a type it knows.
    fn indices(&mut self, at: usize) -> Result<ValueId, OpError> {
        let id = self.input(at)?;
        match self.dtype(at)? {
            DataType::I64 | DataType::I32 => Ok(id),
            _ => self.cast(id, DataType::I64),
        }
    }

    /// As a list of these sizes; where the value is always the same, its memory is that of the old one.
    fn reshape(&mut self, id: ValueId, sizes: &[i64]) -> Result<ValueId, OpError> {
        let fixed: Option<Vec<_>> = sizes.iter().map(|&size| usize::try_from(size).ok()).collect();
        let known = self.builder.known(id);
        if let (Some(tensor), Some(shape)) = (known, fixed)
            && let Some(reshaped) = Tensor::clone(tensor).reshaped(shape)
        {
            return Ok(self.constant(reshaped));
        }
        let sizes = self.ints(sizes)?;
        self.op("Reshape", &[id, sizes])
    }

    /// Operands broadcast as numpy does.
    fn numpy(&self) -> Result<(), OpError> {
        match self.text("auto_broadcast", "numpy") {
            "numpy" | "none" => Ok(()),
            other => {
                Err(OpError::unsupported(format!("its auto_broadcast is {other}; numpy and none are known")))
            }
        }
    }
}
