//! Counts of short sequences of words, which are numbers here: TfIdfVectorizer.

use super::{Call, Definition, Known, Made, Operator, Types, Unclear, typed};
use smallvec::{SmallVec, smallvec};
use std::collections::HashMap;
use std::ops::RangeInclusive;
use stepalloc_kernels::no;
use stepalloc_tensor::{DataType, OpError, Shape, Type};

pub(super) fn make(node: &Definition<'_>) -> Made {
    (node.op == "TfIdfVectorizer").then(|| Ok(Box::new(Vectorizer::new(node)?) as _))
}

/// Words of a sequence at most, in practice; more take memory.
const FEW: usize = 8;

enum Mode {
    Count,
    /// The weight, however often.
    Weight,
    /// The weight, each time.
    Both,
}

struct Vectorizer {
    mode: Mode,
    /// The column of each sequence that is known, and its weight.
    known: HashMap<Box<[i64]>, (usize, f32)>,
    lengths: RangeInclusive<usize>,
    /// Words between two of a sequence, at most.
    skips: usize,
    columns: usize,
}

impl Vectorizer {
    fn new(node: &Definition<'_>) -> Result<Self, OpError> {
        let attributes = node.attributes;
        let mode = match attributes.text("mode", "") {
            "TF" => Mode::Count,
            "IDF" => Mode::Weight,
            "TFIDF" => Mode::Both,
            other => return Err(OpError::attribute(format!("its mode is {other:?}, not TF, IDF or TFIDF"))),
        };
        let size = |name: &str| -> Result<usize, OpError> {
            let value =
                attributes.opt_int(name).ok_or_else(|| OpError::attribute(format!("it has no {name}")))?;
            usize::try_from(value).map_err(|_| OpError::attribute(format!("its {name} is {value}")))
        };
        let (least, most) = (size("min_gram_length")?, size("max_gram_length")?);
        if least == 0 || least > most {
            return Err(OpError::attribute(format!("there are no lengths from {least} to {most}")));
        }
        let pool = attributes
            .ints("pool_int64s")
            .ok_or_else(|| OpError::attribute("it knows no sequences of integers"))?;
        let places =
            attributes.ints("ngram_indexes").ok_or_else(|| OpError::attribute("it has no ngram_indexes"))?;
        let places: Vec<usize> = places
            .into_iter()
            .map(|place| {
                usize::try_from(place).map_err(|_| OpError::attribute(format!("there is no column {place}")))
            })
            .collect::<Result<_, _>>()?;
        let weights = attributes.floats("weights");
        if weights.as_ref().is_some_and(|weights| weights.len() != places.len()) {
            return Err(OpError::attribute("it has not as many weights as sequences"));
        }
        let starts =
            attributes.ints("ngram_counts").ok_or_else(|| OpError::attribute("it has no ngram_counts"))?;
        let starts: Vec<usize> = starts
            .into_iter()
            .map(|start| {
                usize::try_from(start)
                    .map_err(|_| OpError::attribute(format!("no sequence begins at {start}")))
            })
            .collect::<Result<_, _>>()?;
        let mut known = HashMap::new();
        let mut number = 0;
        for (level, &start) in starts.iter().enumerate() {
            let end = starts.get(level + 1).copied().unwrap_or(pool.len());
            let words = pool.get(start..end).ok_or_else(|| {
                let words = pool.len();
                OpError::attribute(format!("sequences from {start} to {end} are not among {words} words"))
            })?;
            if !words.len().is_multiple_of(level + 1) {
                return Err(OpError::attribute(format!(
                    "{} words are no sequences of {}",
                    words.len(),
                    level + 1
                )));
            }
            for sequence in words.chunks_exact(level + 1) {
                let &place = places
                    .get(number)
                    .ok_or_else(|| OpError::attribute(format!("sequence {number} has no column")))?;
                let weight = weights.as_ref().map_or(1.0, |weights| weights[number]);
                known.insert(sequence.into(), (place, weight));
                number += 1;
            }
        }
        let last = places.into_iter().max().ok_or_else(|| OpError::attribute("it knows no sequences"))?;
        let columns = last.checked_add(1).ok_or_else(|| OpError::attribute("it has too many columns"))?;
        Ok(Self { mode, known, lengths: least..=most, skips: size("max_skip_count")?, columns })
    }

    /// Counts the sequences of a row.
    fn count(&self, row: &[i64], output: &mut [f32]) {
        for length in self.lengths.clone().take_while(|&length| length <= row.len()) {
            let skips = if length == 1 { 0 } else { self.skips };
            for step in 1..=skips.saturating_add(1) {
                // From the first to the last word of a sequence.
                let Some(reach) = (length - 1).checked_mul(step).filter(|&reach| reach < row.len()) else {
                    break;
                };
                for first in 0..row.len() - reach {
                    let words: SmallVec<[i64; FEW]> =
                        row[first..=first + reach].iter().step_by(step).copied().collect();
                    if let Some(&(place, weight)) = self.known.get(&words[..]) {
                        match self.mode {
                            Mode::Count => output[place] += 1.0,
                            Mode::Weight => output[place] = weight,
                            Mode::Both => output[place] += weight,
                        }
                    }
                }
            }
        }
    }
}

impl Operator for Vectorizer {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let input = inputs.ty(0)?;
        if !matches!(input.dtype, DataType::I32 | DataType::I64) {
            return Err(no(input.dtype).into());
        }
        let mut shape = match &input.shape[..] {
            [] | [_] => Shape::default(),
            [rows, _] => [*rows].into(),
            _ => return Err(OpError::shape(format!("{input} has more than two dimensions")).into()),
        };
        shape.push(self.columns);
        Ok(smallvec![typed(DataType::F32, shape)?])
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        inputs.opt(0).filter(|ty| ty.dtype == DataType::I32).map_or(0, |ty| row(&ty.shape) * size_of::<i64>())
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let (input, output) = (call.input(0)?, call.output(0)?.elements::<f32>());
        let length = row(input.shape);
        let wide = call.scratch_of::<i64>();
        output.fill(0.0);
        for (number, output) in output.chunks_exact_mut(self.columns).enumerate() {
            let words = number * length..(number + 1) * length;
            if input.dtype == DataType::I64 {
                self.count(&input.elements::<i64>()[words], output);
            } else {
                let wide = &mut wide[..length];
                let narrow = &input.elements::<i32>()[words];
                wide.iter_mut().zip(narrow).for_each(|(to, &from)| *to = from.into());
                self.count(wide, output);
            }
        }
        Ok(())
    }
}

/// Words of a row.
fn row(shape: &[usize]) -> usize {
    shape.last().copied().unwrap_or(1)
}
