//! Runs single operators with memory of their own, for tests.

use super::{Call, Definition, Known, Operator, Reuse, Unclear, make};
use stepalloc_graph::{Attribute, Attributes, RunContext};
use stepalloc_tensor::{Element, OpError, Tensor, Type, View};

/// A node with all inputs known.
pub(super) struct Trial<'a> {
    pub op: &'a str,
    pub domain: &'a str,
    pub opset: i64,
    pub attributes: Vec<(&'a str, Attribute)>,
    pub inputs: Vec<Option<Tensor>>,
    /// Whether each output is wanted.
    pub outputs: Vec<bool>,
}

/// An input, which may be left out.
pub(super) trait Given {
    fn given(self) -> Option<Tensor>;
}

impl Given for Tensor {
    fn given(self) -> Option<Tensor> {
        Some(self)
    }
}

impl<T: Given> Given for Option<T> {
    fn given(self) -> Option<Tensor> {
        self.and_then(T::given)
    }
}

impl<T: Given + Clone> Given for &T {
    fn given(self) -> Option<Tensor> {
        self.clone().given()
    }
}

impl<'a> Trial<'a> {
    /// Of a new version, with one output.
    pub(super) fn new<I: Given>(
        op: &'a str,
        attributes: &[(&'a str, Attribute)],
        inputs: impl IntoIterator<Item = I>,
    ) -> Self {
        let inputs = inputs.into_iter().map(Given::given).collect();
        Self { op, domain: "", opset: 25, attributes: attributes.to_vec(), inputs, outputs: vec![true] }
    }

    /// With an attribute more.
    pub(super) fn with(mut self, name: &'a str, attribute: Attribute) -> Self {
        self.attributes.push((name, attribute));
        self
    }

    pub(super) fn text(self, name: &'a str, text: &str) -> Self {
        self.with(name, Attribute::String(text.into()))
    }

    pub(super) fn int(self, name: &'a str, value: i64) -> Self {
        self.with(name, Attribute::Int(value))
    }

    pub(super) fn opset(self, opset: i64) -> Self {
        Self { opset, ..self }
    }

    /// With so many outputs.
    pub(super) fn outputs(self, count: usize) -> Self {
        Self { outputs: vec![true; count], ..self }
    }

    pub(super) fn operator(&self) -> Result<Box<dyn Operator>, OpError> {
        let attributes = self.attributes.iter().map(|(name, value)| ((*name).into(), value.clone()));
        let operator = make(&Definition {
            op: self.op,
            domain: self.domain,
            opset: self.opset,
            attributes: &Attributes(attributes.collect()),
            registry: &crate::registry(),
            inputs: &self.inputs.iter().map(Option::is_some).collect::<Vec<_>>(),
            outputs: &self.outputs,
        });
        operator.ok_or_else(|| OpError::unsupported("it is not known"))?
    }

    pub(super) fn views(&self) -> Vec<Option<View<'_>>> {
        self.inputs.iter().map(|input| input.as_ref().map(Tensor::view)).collect()
    }

    /// The outputs, those nobody wants too. Where their types are not known before, the operator runs freely.
    pub(super) fn run(&self) -> Result<Vec<Tensor>, OpError> {
        self.run_over(None)
    }

    /// The outputs, of which the first one is written over an input if one is named; the operator must allow that.
    pub(super) fn run_over(&self, over: Option<usize>) -> Result<Vec<Tensor>, OpError> {
        let (operator, context) = (self.operator()?, RunContext::new());
        let mut views = self.views();
        let types: Vec<_> = self.inputs.iter().map(|input| input.as_ref().map(Tensor::ty)).collect();
        let known = Known { types: &types, values: &views, context: &context };
        let types = match operator.infer(&known) {
            Ok(types) => types,
            Err(Unclear::Wrong(error)) => return Err(error),
            Err(Unclear::Needs(index)) => {
                let missing = || Err(OpError::MissingInput(index));
                let made = operator.run_freely(&views, &context).unwrap_or_else(missing)?;
                return Ok(made.into_vec());
            }
        };
        let scratch = operator.scratch(&known, &types);
        // Those of hostile sizes are not tried out.
        if let Some(bytes) = types.iter().map(Type::bytes).chain([scratch]).find(|&bytes| bytes > 1 << 24) {
            return Err(OpError::Memory { bytes: bytes as u64, why: "it is too large for a test".into() });
        }
        let mut tensors: Vec<_> = types.into_iter().map(Tensor::zeroed).collect();
        // What is in outputs before is anything.
        tensors.iter_mut().for_each(|tensor| tensor.view_mut().bytes.fill(0xa5));
        let mut in_place = None;
        if let Some(index) = over {
            assert!(
                matches!(operator.reuse(), Reuse::InPlace(allowed) if allowed.contains(&index)),
                "{} over input {index}",
                self.op
            );
            let source = views[index].take().ok_or(OpError::MissingInput(index))?;
            assert_eq!(source.bytes.len(), tensors[0].ty().bytes(), "an output of another size");
            tensors[0].view_mut().bytes.copy_from_slice(source.bytes);
            in_place = Some((index, source.dtype));
        }
        let wanted = self.outputs.iter().copied().chain(std::iter::repeat(false));
        let mut outputs: Vec<_> = tensors
            .iter_mut()
            .zip(wanted)
            .map(|(tensor, wanted)| wanted.then(|| tensor.view_mut()))
            .collect();
        let mut scratch = vec![u64::MAX; scratch.div_ceil(8)];
        operator.run(&mut Call {
            blocks: &[],
            inputs: &views,
            outputs: &mut outputs,
            scratch: bytemuck::cast_slice_mut(&mut scratch),
            in_place,
            prepacked: None,
            context: &context,
        })?;
        Ok(tensors)
    }
}

/// Makes an operator of one output and runs it.
pub(super) fn run(
    op: &str,
    opset: i64,
    attributes: &[(&str, Attribute)],
    inputs: &[Option<&Tensor>],
) -> Result<Vec<Tensor>, OpError> {
    run_for(op, opset, attributes, inputs, 1)
}

/// Makes an operator of so many outputs and runs it.
pub(super) fn run_for(
    op: &str,
    opset: i64,
    attributes: &[(&str, Attribute)],
    inputs: &[Option<&Tensor>],
    outputs: usize,
) -> Result<Vec<Tensor>, OpError> {
    Trial::new(op, attributes, inputs).opset(opset).outputs(outputs).run()
}

/// Makes an operator and runs it with output 0 over an input.
pub(super) fn in_place(
    op: &str,
    opset: i64,
    attributes: &[(&str, Attribute)],
    inputs: &[Option<&Tensor>],
    over: usize,
) -> Result<Tensor, OpError> {
    let outputs = Trial::new(op, attributes, inputs).opset(opset).run_over(Some(over))?;
    outputs.into_iter().next().ok_or_else(|| OpError::arity("it has no outputs"))
}

/// A tensor of these elements.
pub(super) fn tensor<T: Element>(shape: &[usize], elements: &[T]) -> Tensor {
    Tensor::from_elements(shape, elements).expect("as many elements as the shape says")
}

/// Integers in a row.
pub(super) fn row(elements: &[i64]) -> Tensor {
    tensor(&[elements.len()], elements)
}

/// A tensor that counts.
pub(super) fn counting(shape: &[usize]) -> Tensor {
    let elements: Vec<f32> = (0..shape.iter().product::<usize>()).map(|n| n as f32).collect();
    tensor(shape, &elements)
}

/// Numbers between -1 and 1 that look like none in particular.
pub(crate) fn numbers(shape: &[usize], seed: u32) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        f32::from((state >> 16) as i16) / 32768.0
    };
    let elements: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
    tensor(shape, &elements)
}

/// The elements of a tensor of f32.
pub(super) fn floats(tensor: &Tensor) -> &[f32] {
    tensor.view().elements()
}

/// Whether two tensors are the same but for rounding.
pub(super) fn close(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5 + 1e-4 * b.abs())
}
