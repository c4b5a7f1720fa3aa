//! `model infer --find-batch`: the largest batch that fits into a limit, that of --max-mem, of --max-rss, or both.

use super::inputs::{self, Given};
use super::rss::{Process, Total};
use crate::size;
use std::fmt;
use stepalloc_runtime::{BatchInput, Batches, Model, Needs, Options, Session};

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
    pub taken: Taken,
    /// What the next larger one would take, or why there is none.
    next: Result<Taken, String>,
    /// All inputs, with shapes for this batch.
    pub given: Vec<Given>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the largest batch is {}, of {}; ", self.batch, self.taken)?;
        match &self.next {
            Ok(taken) => write!(f, "{} would take {taken}", self.batch + 1),
            Err(why) => write!(f, "none is larger: {why}"),
        }
    }
}

/// What a batch takes.
#[derive(Clone, Copy)]
pub(super) struct Taken {
    /// Of what --max-mem limits.
    pub bytes: u64,
    /// All of the process, where there is a --max-rss.
    pub rss_bytes: Option<u64>,
}

impl Taken {
    fn new(needs: &Needs, process: Option<&Process>) -> Self {
        let rss_bytes = process.map(|process| Total::new(process, needs).bytes());
        Self { bytes: needs.limited_bytes(), rss_bytes }
    }
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
    let files = inputs::only(session.graph(), given)?.into_iter();
    let files = files.map(|(name, tensor)| (name, BatchInput::Fixed(tensor)));
    let shapes = given.iter().filter_map(|given| match given {
        Given::Shape(name, shape) => Some((name.clone(), BatchInput::Shape(shape.clone()))),
        Given::File(..) => None,
    });
    let told: Vec<_> = files.chain(shapes).collect();
    let batches = Batches::new(model, options, &told).map_err(|error| error.to_string())?;
    let first = batches.needs(1).map_err(|error| error.to_string())?;
    if let Some(limit) = limits.mem.filter(|&limit| first.limited_bytes() > limit) {
        let (wanted, limit) = (size::show(first.limited_bytes()), size::show(limit));
        return Err(format!("a batch of 1 takes {wanted}, more than the {limit} of --max-mem"));
    }
    let Some(limit) = limits.rss else {
        return search(&batches, given, limits.mem, None);
    };
    // Once a plan is there: what the graph was optimized with is gone then.
    let mut before = Process::now()?;
    Total::new(&before, &first)
        .check(limit)
        .map_err(|error| format!("a batch of 1 does not fit: {error}"))?;
    let within = limit.saturating_sub(FREE);
    let mut found = search(&batches, given, limits.mem, Some((within, &before)))?;
    for _ in 1..SEARCHES {
        let needs = batches.needs(found.batch).map_err(|error| error.to_string())?;
        let after = Process::now()?;
        if Total::new(&after, &needs).bytes() <= limit.saturating_sub(FREE / 2) {
            break;
        }
        before = after;
        found = search(&batches, given, limits.mem, Some((within, &before)))?;
    }
    Ok(found)
}

/// The largest batch within the limits of what is counted, and of all of a process; 1 if none is.
fn search(
    batches: &Batches,
    given: &[Given],
    mem: Option<u64>,
    rss: Option<(u64, &Process)>,
) -> Result<Found, String> {
    let taken = |needs: &Needs| Taken::new(needs, rss.map(|(_, process)| process));
    let fits = |needs: &Needs| {
        let Taken { bytes, rss_bytes } = taken(needs);
        let limit = rss.map(|(limit, _)| limit);
        mem.is_none_or(|limit| bytes <= limit)
            && rss_bytes.zip(limit).is_none_or(|(bytes, limit)| bytes <= limit)
    };
    let largest = batches.largest_that(fits).map_err(|error| error.to_string())?;
    let shapes = batches.shapes(largest.batch).into_iter();
    let shapes = shapes.map(|(name, shape)| Given::Shape(name.to_owned(), shape));
    let files = given.iter().filter(|given| matches!(given, Given::File(..))).cloned();
    Ok(Found {
        batch: largest.batch,
        taken: taken(&largest.needs),
        next: largest.next.as_ref().map(taken).map_err(ToString::to_string),
        given: files.chain(shapes).collect(),
    })
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
        assert_eq!(found.batch, 1 << 24);
        // 4 PiB: more than a process has addresses for.
        let error = inputs::tensors(session.graph(), &found.given).expect_err("too large");
        assert!(error.starts_with("input x: 4503599627370496 bytes of memory are wanted"), "{error}");
    }
}
