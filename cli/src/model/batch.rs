//! `model infer --find-batch`: the largest batch that fits into a limit, that of --max-mem, of --max-rss, or both.
//!
//! What a batch takes is told by its plan, without running it: batches are doubled until one does not fit, and then halved in between.

use super::inputs::{self, Given, Light};
use super::rss::{Process, Total};
use crate::size;
use std::fmt;
use stepalloc_runtime::{DataType, Dim, Error, Graph, Model, Needs, Options, Session, Tensor, Type, View};

/// Batches that are tried at most.
const MOST: usize = 1 << 24;
/// What a batch must keep to.
pub(super) struct Limits {
    /// That of --max-mem.
    pub mem: Option<u64>,
    /// That of --max-rss.
    pub rss: Option<u64>,
}

/// The largest batch that fits.
pub(super) struct Found {
    pub batch: usize,
    /// What it counts towards --max-mem.
    pub bytes: u64,
    /// What the process takes with it, where there is a --max-rss.
    pub rss_bytes: Option<u64>,
    /// What the next larger one would take, or why there is none.
    next: Result<Taken, String>,
    /// All inputs, with shapes for this batch.
    pub given: Vec<Given>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let taken = Taken { bytes: self.bytes, rss_bytes: self.rss_bytes };
        write!(f, "the largest batch is {}, of {taken}; ", self.batch)?;
        match &self.next {
            Ok(taken) => write!(f, "{} would take {taken}", self.batch + 1),
            Err(why) => write!(f, "none is larger: {why}"),
        }
    }
}

/// What a batch takes.
#[derive(Clone, Copy)]
struct Taken {
    /// Of what --max-mem limits.
    bytes: u64,
    /// All of the process.
    rss_bytes: Option<u64>,
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", size::show(self.bytes))?;
        self.rss_bytes.map_or(Ok(()), |bytes| write!(f, " ({} with all of the process)", size::show(bytes)))
    }
}

/// What is kept free of --max-rss: the process grows by some pages between the search and the run, and the system counts pages inexactly.
const FREE: u64 = 1 << 20;
/// Searches at most: plans of batches take memory too, and each search begins with what the process has after the one before.
const SEARCHES: usize = 4;

/// Finds it, by the plans of a session without a limit.
pub(super) fn find(
    model: &Model,
    session: &Session,
    options: &Options,
    limits: &Limits,
    given: &[Given],
) -> Result<Found, String> {
    let unlimited = Session::with_options(model, options.clone().max_mem(u64::MAX));
    let batches = Batches::new(session.graph(), given)?;
    let first = batches.needs(&unlimited, 1).map_err(|error| error.to_string())?;
    if let Some(limit) = limits.mem.filter(|&limit| first.limited_bytes() > limit) {
        let (wanted, limit) = (size::show(first.limited_bytes()), size::show(limit));
        return Err(format!("a batch of 1 takes {wanted}, more than the {limit} of --max-mem"));
    }
    let Some(limit) = limits.rss else {
        return Ok(search(&batches, &unlimited, limits.mem, None));
    };
    // Once a plan is there: what the graph was optimized with is gone then.
    let mut before = Process::now()?;
    Total::new(&before, &first)
        .check(limit)
        .map_err(|error| format!("a batch of 1 does not fit: {error}"))?;
    let mut found = search(&batches, &unlimited, limits.mem, Some((limit.saturating_sub(FREE), &before)));
    for _ in 1..SEARCHES {
        let needs = batches.needs(&unlimited, found.batch).map_err(|error| error.to_string())?;
        let after = Process::now()?;
        if Total::new(&after, &needs).bytes() <= limit.saturating_sub(FREE / 2) {
            break;
        }
        before = after;
        found = search(&batches, &unlimited, limits.mem, Some((limit.saturating_sub(FREE), &before)));
    }
    Ok(found)
}

/// The largest batch within the limits of what is counted, and of all of a process; 1 if none is.
fn search(batches: &Batches<'_>, session: &Session, mem: Option<u64>, rss: Option<(u64, &Process)>) -> Found {
    let measure = |batch: usize| -> Result<(Taken, bool), Error> {
        let needs = batches.needs(session, batch)?;
        let total = rss.map(|(limit, process)| (limit, Total::new(process, &needs).bytes()));
        let taken = Taken { bytes: needs.limited_bytes(), rss_bytes: total.map(|(_, bytes)| bytes) };
        let fits =
            mem.is_none_or(|limit| taken.bytes <= limit) && total.is_none_or(|(limit, bytes)| bytes <= limit);
        Ok((taken, fits))
    };
    // The largest that fits so far, and the smallest that does not.
    let one = measure(1).map_or(Taken { bytes: 0, rss_bytes: None }, |(taken, _)| taken);
    let (mut found, mut too_large) = ((1, one), None);
    while too_large.is_none() && found.0 < MOST {
        match measure(found.0 * 2) {
            Ok((taken, true)) => found = (found.0 * 2, taken),
            Ok((taken, false)) => too_large = Some((found.0 * 2, Ok(taken))),
            Err(why) => too_large = Some((found.0 * 2, Err(why.to_string()))),
        }
    }
    let (mut above, mut next) =
        too_large.unwrap_or((MOST + 1, Err(format!("no more than {MOST} are tried"))));
    while above - found.0 > 1 {
        let middle = found.0 + (above - found.0) / 2;
        match measure(middle) {
            Ok((taken, true)) => found = (middle, taken),
            Ok((taken, false)) => (above, next) = (middle, Ok(taken)),
            Err(why) => (above, next) = (middle, Err(why.to_string())),
        }
    }
    let (batch, Taken { bytes, rss_bytes }) = found;
    Found { batch, bytes, rss_bytes, next, given: batches.given(batch) }
}

/// A model's inputs, some of whose dimensions are the batch.
struct Batches<'a> {
    graph: &'a Graph,
    given: &'a [Given],
    /// Those that come from files.
    files: Vec<(String, Tensor)>,
    /// By input: its shape for a batch of 1, and which dimensions are the batch; nothing for those that come from files.
    shapes: Vec<(String, DataType, Vec<usize>, Vec<usize>)>,
}

impl<'a> Batches<'a> {
    fn new(graph: &'a Graph, given: &'a [Given]) -> Result<Self, String> {
        let from_file =
            |name: &str| given.iter().any(|given| matches!(given, Given::File(file, _) if file == name));
        let open = graph.inputs.iter().map(|&id| &graph.values[id]).filter(|value| !from_file(&value.name));
        let open: Vec<_> = open
            .filter_map(|value| Some((&value.name, value.declared.as_ref()?.dims.as_ref()?, value)))
            .collect();
        let batch =
            open.iter().find_map(|(_, dims, _)| dims.first().filter(|dim| !matches!(dim, Dim::Fixed(_))));
        let Some(batch) = batch else {
            return Err("no input has an open first dimension, which would be the batch (inputs from files stay as they are)".into());
        };
        let mut shapes = Vec::new();
        for (name, dims, value) in open {
            let is_batch = |(at, dim): (usize, &Dim)| match batch {
                Dim::Named(_) => dim == batch,
                _ => at == 0 && *dim == Dim::Any,
            };
            let those: Vec<_> = (0..dims.len()).filter(|&at| is_batch((at, &dims[at]))).collect();
            let told = given.iter().find_map(|given| match given {
                Given::Shape(told, shape) if told == name => Some(shape.clone()),
                _ => None,
            });
            let size = |dim: &Dim| if let Dim::Fixed(size) = dim { *size } else { 1 };
            let shape = told.unwrap_or_else(|| dims.iter().map(size).collect());
            if shape.len() != dims.len() {
                return Err(format!(
                    "input {name} has {} dimensions, and --shape {}",
                    dims.len(),
                    shape.len()
                ));
            }
            if value.constant.is_none() || !those.is_empty() {
                let dtype = value.declared.as_ref().map_or(DataType::F32, |declared| declared.dtype);
                shapes.push((name.clone(), dtype, shape, those));
            }
        }
        Ok(Self { graph, given, files: inputs::only(graph, given)?, shapes })
    }

    fn shape(shape: &[usize], batch_at: &[usize], batch: usize) -> Vec<usize> {
        let mut shape = shape.to_vec();
        batch_at.iter().for_each(|&at| shape[at] = batch);
        shape
    }

    /// Inputs for a batch, as they are given.
    fn given(&self, batch: usize) -> Vec<Given> {
        let files = self.given.iter().filter(|given| matches!(given, Given::File(..))).cloned();
        let shapes = self.shapes.iter();
        let shapes =
            shapes.map(|(name, _, shape, at)| Given::Shape(name.clone(), Self::shape(shape, at, batch)));
        files.chain(shapes).collect()
    }

    /// What a batch takes.
    fn needs(&self, session: &Session, batch: usize) -> Result<Needs, Error> {
        let wrong = |name: &str| Error::Argument(format!("input {name} would be too large"));
        let mut made = Vec::new();
        for (name, dtype, shape, at) in &self.shapes {
            let ty = Type::new(*dtype, Self::shape(shape, at, batch)).ok_or_else(|| wrong(name))?;
            made.push((name, Light::from(ty)));
        }
        let view = |id: &usize| -> Option<View<'_>> {
            let name = &self.graph.values[*id].name;
            if let Some((_, tensor)) = self.files.iter().find(|(other, _)| other == name) {
                return Some(tensor.view());
            }
            made.iter().find(|(other, _)| *other == name).map(|(_, light)| light.view())
        };
        session.needs(&self.graph.inputs.iter().map(view).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shape of x [any, 2^26] comes out: a batch takes a few bytes of what is limited, and 256 MiB for each of x's rows.
    const NET: &str = r#"<net name="n" version="11"><layers>
        <layer id="0" name="x" type="Parameter" version="opset1"><data element_type="f32" shape="?,67108864"/>
            <output><port id="0" precision="FP32" names="x"><dim>-1</dim><dim>67108864</dim></port></output></layer>
        <layer id="1" name="y" type="ShapeOf" version="opset3"><data output_type="i64"/><input><port id="0"/></input>
            <output><port id="1" precision="I64" names="y"><dim>2</dim></port></output></layer>
        <layer id="2" name="r" type="Result" version="opset1"><input><port id="0"/></input></layer></layers>
        <edges><edge from-layer="0" from-port="0" to-layer="1" to-port="0"/>
            <edge from-layer="1" from-port="1" to-layer="2" to-port="0"/></edges></net>"#;

    #[test]
    fn inputs_take_memory_for_the_batch_that_was_found_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("net.xml");
        std::fs::write(&path, NET).expect("it is written");
        let (model, options) = (Model::open(&path).expect("a model"), Options::new().max_mem(1 << 20));
        let session = Session::with_options(&model, options.clone());
        let limits = Limits { mem: Some(options.limit()), rss: None };
        let found = find(&model, &session, &options, &limits, &[]).expect("a batch");
        assert_eq!(found.batch, MOST);
        // 4 PiB: more than a process has addresses for.
        let error = inputs::tensors(session.graph(), &found.given).expect_err("too large");
        assert!(error.starts_with("input x: 4503599627370496 bytes of memory are wanted"), "{error}");
    }
}
