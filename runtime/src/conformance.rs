//! Directories in the layout of ONNX's own tests.
//!
//! `DIR/model.onnx` (or `model.xml`, the same in OpenVINO's format), `DIR/test_data_set_K/{input_I,output_I}.pb`, and `DIR/tolerance.json` with `rtol` and `atol` if the test has
//! its own.

use crate::Error;
use crate::Options;
use crate::Session;
use crate::{Declared, Dim};
use crate::{Level, Optimization};
use crate::{Model, read_tensor};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use stepalloc_tensor::{Bool, DataType, Tensor, Type, View, bf16, f16};

/// Relative and absolute tolerance where a test has none of its own: those of ONNX's backend tests.
const RTOL: f64 = 1e-3;
const ATOL: f64 = 1e-7;
/// Relative tolerance for bfloat16 at least: two units in its last place, as in ONNX's own runner.
const BF16_RTOL: f64 = 1.0 / 64.0;

/// How a test ended.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// Every output is as it should be.
    Passed,
    /// Some output is not, or there was an error on the way.
    Wrong(String),
    /// The model asks for something that is not known here, or for numbers at random, which nobody can compare.
    Unsupported(String),
}

/// The directories with a `model.onnx` or `model.xml` at or below `directory`, sorted.
pub fn tests(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    collect(directory, &mut found)?;
    found.sort();
    Ok(found)
}

/// A test's model.
fn model(directory: &Path) -> PathBuf {
    let onnx = directory.join("model.onnx");
    if onnx.is_file() { onnx } else { directory.join("model.xml") }
}

fn collect(directory: &Path, tests: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if model(directory).is_file() {
        tests.push(directory.into());
        return Ok(());
    }
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, tests)?;
        }
    }
    Ok(())
}

/// Makes of a model the one that is run: an optimized one, or one that was written and read again.
pub type Prepare<'a> = &'a dyn Fn(Model) -> Result<Model, Error>;

/// Runs one test, on what `prepare` makes of its model.
pub fn judge(directory: &Path, prepare: Prepare<'_>) -> Verdict {
    // Built to abort on a panic, there is nothing to catch, and the test is seen to be wrong by everybody.
    catch_unwind(AssertUnwindSafe(|| judge_caught(directory, prepare)))
        .unwrap_or_else(|_| Verdict::Wrong("panicked".into()))
}

fn judge_caught(directory: &Path, prepare: Prepare<'_>) -> Verdict {
    let model = match Model::open(model(directory)) {
        Ok(model) => model,
        Err(error) => return Verdict::Unsupported(error.to_string()),
    };
    let graph = &model.graph;
    let session = match prepare(model.clone()) {
        // As it was prepared.
        Ok(prepared) => {
            let options = Options::new().optimization(&Optimization::new(Level::Disable));
            Session::with_options(&prepared, options)
        }
        Err(error) => return Verdict::Unsupported(error.to_string()),
    };
    let (rtol, atol) = tolerance(directory);
    let known = |name: &str| {
        let graph = session.graph();
        graph.inputs.iter().any(|&id| graph.values[id].name == name)
    };
    let is_pure = graph.nodes.iter().all(|node| node.operator.is_pure());
    for set in 0.. {
        let data = directory.join(format!("test_data_set_{set}"));
        if !data.is_dir() {
            return if set == 0 { Verdict::Wrong("it has no data".into()) } else { Verdict::Passed };
        }
        let names: Vec<_> = graph.inputs.iter().map(|&id| graph.values[id].name.clone()).collect();
        let mut inputs = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let path = data.join(format!("input_{index}.pb"));
            if !path.exists() {
                let value = &graph.values[graph.inputs[index]];
                if let Some(tensor) =
                    value.declared.as_ref().filter(|_| value.constant.is_none()).and_then(ramp)
                {
                    inputs.push((name.as_str(), tensor));
                }
                continue;
            }
            match tensor(&path) {
                Ok(tensor) => inputs.push((name.as_str(), tensor)),
                Err(error) => return Verdict::Unsupported(error.to_string()),
            }
        }
        // Weights of old models are inputs that are given; the optimized one knows them.
        inputs.retain(|(name, _)| known(name));
        let views: Vec<_> = inputs.iter().map(|(name, tensor)| (*name, tensor.view())).collect();
        let outputs = match session.run(&views) {
            Ok(outputs) => outputs,
            Err(error) => return Verdict::Wrong(error.to_string()),
        };
        // What one run gives by chance, others do not: the verdict on numbers at random is the same each time.
        let changes = !is_pure
            && (0..8).any(|_| {
                session.run(&views).is_ok_and(|again| {
                    let differ = |one: &Tensor, other: &Tensor| {
                        difference(&one.view(), &other.view(), 0.0, 0.0).is_some()
                    };
                    again.iter().zip(&outputs).any(|((_, one), (_, other))| differ(one, other))
                })
            });
        for (index, (name, got)) in outputs.iter().enumerate() {
            let path = data.join(format!("output_{index}.pb"));
            if !path.exists() {
                continue;
            }
            let wanted = match tensor(&path) {
                Ok(tensor) => tensor,
                Err(error) => return Verdict::Unsupported(error.to_string()),
            };
            let why = difference(&got.view(), &wanted.view(), rtol, atol);
            if !is_pure && got.ty() == wanted.ty() && (changes || why.is_some()) {
                return Verdict::Unsupported(
                    "numbers at random cannot be compared; type and shape are right".into(),
                );
            }
            if let Some(why) = why {
                return Verdict::Wrong(format!("output {name}: {why}"));
            }
        }
    }
    Verdict::Passed
}

/// The input of ONNX's light networks, which have no file for it: numbers that rise from 0 to 1.
fn ramp(declared: &Declared) -> Option<Tensor> {
    let dims = declared.dims.as_ref().filter(|_| declared.dtype == DataType::F32)?;
    let size = |dim: &Dim| if let Dim::Fixed(size) = dim { *size } else { 1 };
    let shape: Vec<_> = dims.iter().map(size).collect();
    let count = Type::new(DataType::F32, shape.clone())?.elements();
    let elements: Vec<_> = (0..count).map(|index| (index as f64 / count as f64) as f32).collect();
    Tensor::from_elements(shape, &elements)
}

fn tensor(path: &Path) -> Result<Tensor, Error> {
    let bytes = std::fs::read(path).map_err(|source| Error::File { path: path.into(), source })?;
    let (_, tensor) = read_tensor(bytes.into()).map_err(|error| error.within(&path.display().to_string()))?;
    Ok(tensor)
}

fn tolerance(directory: &Path) -> (f64, f64) {
    let own = std::fs::read(directory.join("tolerance.json")).ok();
    let own: Option<serde_json::Value> = own.and_then(|text| serde_json::from_slice(&text).ok());
    let of = |name: &str, usual| own.as_ref().and_then(|own| own[name].as_f64()).unwrap_or(usual);
    (of("rtol", RTOL), of("atol", ATOL))
}

/// What differs between two tensors by more than |got - wanted| <= atol + rtol |wanted|.
fn difference(got: &View<'_>, wanted: &View<'_>, rtol: f64, atol: f64) -> Option<String> {
    if got.dtype != wanted.dtype || got.shape != wanted.shape {
        return Some(format!("{}{:?} instead of {}{:?}", got.dtype, got.shape, wanted.dtype, wanted.shape));
    }
    let rtol = if got.dtype == DataType::BF16 { rtol.max(BF16_RTOL) } else { rtol };
    let floats = |view: &View<'_>| -> Option<Vec<f64>> {
        Some(match view.dtype {
            DataType::F32 => view.elements::<f32>().iter().map(|&x| x.into()).collect(),
            DataType::F64 => view.elements::<f64>().to_vec(),
            DataType::F16 => view.elements::<f16>().iter().map(|&x| x.into()).collect(),
            DataType::BF16 => view.elements::<bf16>().iter().map(|&x| x.into()).collect(),
            DataType::Bool => view.elements::<Bool>().iter().map(|x| f64::from(u8::from(x.get()))).collect(),
            _ => return None,
        })
    };
    let (Some(got), Some(wanted)) = (floats(got), floats(wanted)) else {
        return (got.bytes != wanted.bytes).then(|| differing(got, wanted));
    };
    let differs = |&(_, (got, wanted)): &(usize, (&f64, &f64))| {
        let close = (got - wanted).abs() <= atol + rtol * wanted.abs();
        !(close || got == wanted || got.is_nan() && wanted.is_nan())
    };
    let (at, (got, wanted)) = got.iter().zip(&wanted).enumerate().find(differs)?;
    Some(format!("element {at} is {got} instead of {wanted}"))
}

fn differing(got: &View<'_>, wanted: &View<'_>) -> String {
    let width = got.dtype.bytes();
    let at = got.bytes.iter().zip(wanted.bytes).position(|(a, b)| a != b).unwrap_or_default() / width;
    let bytes = |view: &View<'_>| view.bytes[at * width..][..width].to_vec();
    format!("element {at} has bytes {:?} instead of {:?}", bytes(got), bytes(wanted))
}
