//! Operators that give the same elements in another shape, and those that tell and make shapes.

use super::{Call, Definition, Known, Made, Operator, Reuse, Types, Unclear, axis, typed};
use smallvec::smallvec;
use std::sync::Arc;
use stepalloc_tensor::{DataType, Ints, OpError, Shape as Sizes, Tensor, Type, by_width};

pub(super) fn make(node: &Definition<'_>) -> Made {
    let attributes = node.attributes;
    let axes = || attributes.ints("axes");
    Some(Ok(match node.op {
        "Reshape" => Box::new(Reshaped::Reshape {
            shape: attributes.ints("shape"),
            allow_zero: attributes.int("allowzero", 0) != 0,
        }),
        "Identity" => Box::new(Reshaped::Identity),
        "Flatten" => Box::new(Reshaped::Flatten(attributes.int("axis", 1))),
        "Squeeze" => Box::new(Reshaped::Squeeze(axes())),
        "Unsqueeze" => Box::new(Reshaped::Unsqueeze(axes())),
        "Shape" => Box::new(Shape { start: attributes.int("start", 0), end: attributes.opt_int("end") }),
        "Size" => Box::new(Size),
        "Constant" => return Some(constant(node)),
        "ConstantOfShape" => Box::new(ConstantOfShape { value: attributes.tensor("value") }),
        _ => return None,
    }))
}

/// The same elements, byte for byte.
enum Reshaped {
    Reshape { shape: Option<Vec<i64>>, allow_zero: bool },
    Identity,
    Flatten(i64),
    Squeeze(Option<Vec<i64>>),
    Unsqueeze(Option<Vec<i64>>),
}

impl Operator for Reshaped {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        // An attribute in old versions, an input in new ones.
        let told = |attribute: &Option<Vec<i64>>| match attribute {
            Some(told) => Ok(Some(Ints::from_slice(told))),
            None => inputs.opt_ints(1),
        };
        let shape = match self {
            Self::Identity => input.shape.clone(),
            Self::Reshape { shape, allow_zero } => {
                let wanted = told(shape)?.ok_or_else(|| OpError::arity("it is told no shape"))?;
                reshape(input, &wanted, *allow_zero)?
            }
            Self::Flatten(at) => {
                let rank = input.rank();
                let at = if *at == rank as i64 { rank } else { axis(*at, rank)? };
                [input.shape[..at].iter().product(), input.shape[at..].iter().product()].into()
            }
            Self::Squeeze(axes) => {
                let rank = input.rank();
                let gone = match told(axes)? {
                    Some(axes) => axes.into_iter().map(|at| axis(at, rank)).collect::<Result<Sizes, _>>()?,
                    None => (0..rank).filter(|&at| input.shape[at] == 1).collect(),
                };
                if let Some(at) = gone.iter().find(|&&at| input.shape[at] != 1) {
                    return Err(OpError::shape(format!("axis {at} of {input} is not 1")).into());
                }
                (0..rank).filter(|at| !gone.contains(at)).map(|at| input.shape[at]).collect()
            }
            Self::Unsqueeze(axes) => {
                let axes = told(axes)?.ok_or_else(|| OpError::arity("it is told no axes"))?;
                let rank = input.rank() + axes.len();
                let new = axes.into_iter().map(|at| axis(at, rank)).collect::<Result<Sizes, _>>()?;
                let mut old = input.shape.iter();
                let dim = |at| if new.contains(&at) { Some(1) } else { old.next().copied() };
                (0..rank)
                    .map(dim)
                    .collect::<Option<_>>()
                    .ok_or_else(|| OpError::value("an axis is named twice"))?
            }
        };
        Ok(smallvec![typed(input.dtype, shape)?])
    }

    fn reuse(&self) -> Reuse {
        Reuse::View
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let output = call.output(0)?;
        if call.in_place().is_none() {
            output.bytes.copy_from_slice(call.input(0)?.bytes);
        }
        Ok(())
    }
}

/// The shape of `input` when it is to be `wanted`, where -1 is what is left and 0 what it was.
fn reshape(input: &Type, wanted: &[i64], allow_zero: bool) -> Result<Sizes, OpError> {
    let wrong = || OpError::shape(format!("{input} cannot be of shape {wanted:?}"));
    let mut shape = Sizes::default();
    let mut open = None;
    for (at, &dim) in wanted.iter().enumerate() {
        shape.push(match dim {
            -1 if open.is_none() => {
                open = Some(at);
                1
            }
            0 if !allow_zero => *input.shape.get(at).ok_or_else(wrong)?,
            dim => usize::try_from(dim).map_err(|_| wrong())?,
        });
    }
    let given = shape.iter().try_fold(1usize, |all, &dim| all.checked_mul(dim)).ok_or_else(wrong)?;
    if let Some(at) = open {
        if given == 0 || !input.elements().is_multiple_of(given) {
            return Err(wrong());
        }
        shape[at] = input.elements() / given;
    } else if given != input.elements() {
        return Err(wrong());
    }
    Ok(shape)
}

/// The sizes of the dimensions.
struct Shape {
    start: i64,
    end: Option<i64>,
}

impl Shape {
    fn range(&self, rank: usize) -> std::ops::Range<usize> {
        let place = |at: i64| (if at < 0 { at + rank as i64 } else { at }).clamp(0, rank as i64) as usize;
        let (start, end) = (place(self.start), self.end.map_or(rank, place));
        start..end.max(start)
    }
}

impl Operator for Shape {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        Ok(smallvec![typed(DataType::I64, [self.range(inputs.ty(0)?.rank()).len()])?])
    }

    fn looks_at_types_only(&self) -> bool {
        true
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let input = call.input(0)?;
        let output = call.output(0)?.elements::<i64>();
        let dims = &input.shape[self.range(input.shape.len())];
        output.iter_mut().zip(dims).for_each(|(to, &dim)| *to = dim as i64);
        Ok(())
    }
}

/// The number of elements.
struct Size;

impl Operator for Size {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        inputs.ty(0)?;
        Ok(smallvec![typed(DataType::I64, [])?])
    }

    fn looks_at_types_only(&self) -> bool {
        true
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let elements = call.input(0)?.len() as i64;
        call.output(0)?.elements::<i64>()[0] = elements;
        Ok(())
    }
}

/// A tensor that the node brings along.
struct Constant(Arc<Tensor>);

fn constant(node: &Definition<'_>) -> Result<Box<dyn Operator>, OpError> {
    let attributes = node.attributes;
    let tensor = if let Some(tensor) = attributes.tensor("value") {
        tensor
    } else if let Some(value) = attributes.opt_float("value_float") {
        Arc::new(Tensor::from_elements([], &[value]).ok_or_else(|| OpError::internal("one element"))?)
    } else if let Some(value) = attributes.opt_int("value_int") {
        Arc::new(Tensor::from_elements([], &[value]).ok_or_else(|| OpError::internal("one element"))?)
    } else if let Some(values) = attributes.floats("value_floats") {
        Arc::new(
            Tensor::from_elements([values.len()], &values)
                .ok_or_else(|| OpError::internal("a row of elements"))?,
        )
    } else if let Some(values) = attributes.ints("value_ints") {
        Arc::new(
            Tensor::from_elements([values.len()], &values)
                .ok_or_else(|| OpError::internal("a row of elements"))?,
        )
    } else {
        return Err(OpError::attribute("it has no value that is known here (numbers and tensors are)"));
    };
    Ok(Box::new(Constant(tensor)))
}

impl Operator for Constant {
    fn infer(&self, _: &Known<'_>) -> Result<Types, Unclear> {
        Ok(smallvec![self.0.ty().clone()])
    }

    fn constant(&self) -> Option<Arc<Tensor>> {
        Some(Arc::clone(&self.0))
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        call.output(0)?.bytes.copy_from_slice(self.0.view().bytes);
        Ok(())
    }
}

/// A tensor of a shape that is an input, with one value in all places.
struct ConstantOfShape {
    value: Option<Arc<Tensor>>,
}

impl Operator for ConstantOfShape {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let dims = inputs.ints(0)?.into_iter().map(usize::try_from).collect::<Result<Sizes, _>>();
        let dtype = self.value.as_ref().map_or(DataType::F32, |value| value.ty().dtype);
        if self.value.as_ref().is_some_and(|value| value.ty().elements() != 1) {
            return Err(OpError::attribute("its value has not one element").into());
        }
        Ok(smallvec![typed(dtype, dims.map_err(|_| OpError::value("a dimension is negative"))?)?])
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let output = call.output(0)?;
        match &self.value {
            None => output.bytes.fill(0),
            Some(value) => by_width!(output.dtype, T => {
                let value = value.view().raw::<T>()[0];
                output.raw::<T>().fill(value);
            }),
        }
        Ok(())
    }
}
