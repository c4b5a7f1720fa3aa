//! The largest batch that fits into a limit.
//!
//! What a batch takes is told by its plan, without running it: batches are doubled until one does not fit, and then halved in between.

use crate::{Light, Model};
use stepalloc_graph::{Dim, Error, Needs, Options, Session};
use stepalloc_tensor::{DataType, Tensor, Type, View};

/// Batches that are tried at most.
const MOST: usize = 1 << 24;
/// What is said of an input before a batch is looked for.
#[derive(Clone, Debug)]
pub enum BatchInput {
    /// It stays as it is, whatever the batch.
    Fixed(Tensor),
    /// Its shape, but for the batch.
    Shape(Vec<usize>),
}

/// A model's inputs, some of whose dimensions are the batch: the first dimension of the first input that is open, and all dimensions of
/// that name. Other open dimensions are 1, unless a shape says more.
///
/// ```no_run
/// use stepalloc_runtime::{Batches, Error, Model, Options};
///
/// fn main() -> Result<(), Error> {
///     let batches = Batches::new(&Model::open("net.onnx")?, &Options::new(), &[])?;
///     let found = batches.largest(2 << 30)?;
///     println!("{} takes {} bytes", found.batch, found.needs.limited_bytes());
///     Ok(())
/// }
/// ```
pub struct Batches {
    /// Without a limit.
    session: Session,
    inputs: Vec<Input>,
}

/// An input of the graph.
enum Input {
    /// It has a value, and is left out.
    Default,
    Fixed(Tensor),
    /// Its shape for a batch of 1, and which dimensions are the batch.
    Open {
        name: String,
        dtype: DataType,
        shape: Vec<usize>,
        batch_at: Vec<usize>,
    },
}

/// The largest batch that fits.
#[derive(Debug)]
pub struct LargestBatch {
    /// How large it is.
    pub batch: usize,
    /// What a run of it takes.
    pub needs: Needs,
    /// What the next larger one would take, or why there is none.
    pub next: Result<Needs, Error>,
}

impl Batches {
    /// Those of a model, planned by these options, whose limit does not count. Inputs that nothing is said of are as the model declares
    /// them. It is an error if none is open, or a shape has another number of dimensions than is declared.
    pub fn new(model: &Model, options: &Options, given: &[(String, BatchInput)]) -> Result<Self, Error> {
        let session = Session::with_options(model, options.clone().max_mem(u64::MAX));
        let graph = session.graph();
        let named = |name: &str| given.iter().find(|(given, _)| given == name).map(|(_, input)| input);
        if let Some((unknown, _)) =
            given.iter().find(|(name, _)| !graph.inputs.iter().any(|&id| graph.values[id].name == *name))
        {
            return Err(Error::Argument(format!("there is no input {unknown}")));
        }
        let values = || graph.inputs.iter().map(|&id| &graph.values[id]);
        let dims = |value: &'_ stepalloc_graph::Value| value.declared.as_ref()?.dims.clone();
        let open = values().filter(|value| !matches!(named(&value.name), Some(BatchInput::Fixed(_))));
        let mut first = open.filter_map(|value| dims(value)?.into_iter().next());
        let Some(batch) = first.find(|dim| !matches!(dim, Dim::Fixed(_))) else {
            let why = "no input has an open first dimension, which would be the batch (inputs whose elements are \
                       given stay as they are)";
            return Err(Error::Argument(why.into()));
        };
        let is_batch = |(at, dim): (usize, &Dim)| match batch {
            Dim::Named(_) => *dim == batch,
            _ => at == 0 && *dim == Dim::Any,
        };
        let mut inputs = Vec::new();
        for value in values() {
            let name = &value.name;
            let shape = match named(name) {
                Some(BatchInput::Fixed(tensor)) => {
                    inputs.push(Input::Fixed(tensor.clone()));
                    continue;
                }
                Some(BatchInput::Shape(shape)) => Some(shape.clone()),
                None => None,
            };
            let Some(dims) = dims(value) else {
                inputs.push(Input::Default);
                continue;
            };
            let batch_at: Vec<_> = (0..dims.len()).filter(|&at| is_batch((at, &dims[at]))).collect();
            if value.constant.is_some() && batch_at.is_empty() {
                inputs.push(Input::Default);
                continue;
            }
            let size = |dim: &Dim| if let Dim::Fixed(size) = dim { *size } else { 1 };
            let shape = shape.unwrap_or_else(|| dims.iter().map(size).collect());
            if shape.len() != dims.len() {
                let (wanted, given) = (dims.len(), shape.len());
                return Err(Error::Argument(format!(
                    "input {name} has {wanted} dimensions, and its shape {given}"
                )));
            }
            let dtype = value.declared.as_ref().map_or(DataType::F32, |declared| declared.dtype);
            inputs.push(Input::Open { name: name.clone(), dtype, shape, batch_at });
        }
        Ok(Self { session, inputs })
    }

    /// Shapes of the inputs for a batch, by name; without those whose elements are given.
    pub fn shapes(&self, batch: usize) -> Vec<(&str, Vec<usize>)> {
        let mut shapes = Vec::new();
        for input in &self.inputs {
            if let Input::Open { name, shape, batch_at, .. } = input {
                shapes.push((name.as_str(), sized(shape, batch_at, batch)));
            }
        }
        shapes
    }

    /// What a run of a batch takes, as [`Session::needs`] tells.
    pub fn needs(&self, batch: usize) -> Result<Needs, Error> {
        let mut made = Vec::new();
        for input in &self.inputs {
            let Input::Open { name, dtype, shape, batch_at } = input else {
                made.push(None);
                continue;
            };
            let ty = Type::new(*dtype, sized(shape, batch_at, batch))
                .ok_or_else(|| Error::Argument(format!("input {name} would be too large")))?;
            made.push(Some(Light::from(ty)));
        }
        let views: Vec<_> = self.inputs.iter().zip(&made).map(view).collect();
        self.session.needs(&views)
    }

    /// The largest batch whose [`Needs::limited_bytes`] are within the limit; an error if those of a batch of 1 are not.
    pub fn largest(&self, limit: u64) -> Result<LargestBatch, Error> {
        let bytes = self.needs(1)?.limited_bytes();
        if bytes > limit {
            let why = format!("a batch of 1 takes more than the limit of {limit} bytes");
            return Err(Error::Memory { bytes, why });
        }
        self.largest_that(|needs| needs.limited_bytes() <= limit)
    }

    /// The largest batch whose needs fit, as the caller says it of each; 1 if none does.
    pub fn largest_that(&self, fits: impl Fn(&Needs) -> bool) -> Result<LargestBatch, Error> {
        // The largest that fits so far, and the smallest that does not.
        let (mut found, mut too_large) = ((1, self.needs(1)?), None);
        while too_large.is_none() && found.0 < MOST {
            match self.needs(found.0 * 2) {
                Ok(needs) if fits(&needs) => found = (found.0 * 2, needs),
                Ok(needs) => too_large = Some((found.0 * 2, Ok(needs))),
                Err(error) => too_large = Some((found.0 * 2, Err(error))),
            }
        }
        let too_many = || (MOST + 1, Err(Error::Argument(format!("no more than {MOST} are tried"))));
        let (mut above, mut next) = too_large.unwrap_or_else(too_many);
        while above - found.0 > 1 {
            let middle = found.0 + (above - found.0) / 2;
            match self.needs(middle) {
                Ok(needs) if fits(&needs) => found = (middle, needs),
                Ok(needs) => (above, next) = (middle, Ok(needs)),
                Err(error) => (above, next) = (middle, Err(error)),
            }
        }
        Ok(LargestBatch { batch: found.0, needs: found.1, next })
    }
}

/// An input, or what was made for it, to be read.
fn view<'a>((input, made): (&'a Input, &'a Option<Light>)) -> Option<View<'a>> {
    match input {
        Input::Fixed(tensor) => Some(tensor.view()),
        _ => made.as_ref().map(Light::view),
    }
}

fn sized(shape: &[usize], batch_at: &[usize], batch: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    batch_at.iter().for_each(|&at| shape[at] = batch);
    shape
}
