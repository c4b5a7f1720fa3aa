//! com.microsoft's `EmbedLayerNormalization`: rows of tables of words, places and segments are summed and normalized.

use super::skip_normalize::{Rows, add, known, scratch};
use super::{Call, Definition, Known, Made, Operator, Types, Unclear, typed};
use smallvec::smallvec;
use stepalloc_kernels::blocks::Wide;
use stepalloc_kernels::real::{Space, widened};
use stepalloc_kernels::scales::load;
use stepalloc_tensor::{DataType, OpError, Type, View};

pub(super) fn make(node: &Definition<'_>) -> Made {
    let rows = Rows { epsilon: node.attributes.float("epsilon", 1e-12), centre: true };
    Some(Ok(Box::new(Embed { rows, outputs: node.outputs.len() })))
}

struct Embed {
    rows: Rows,
    outputs: usize,
}

/// Its inputs: numbers of words and segments, tables of words, places and segments, what rows are scaled and shifted by, which words
/// are there, and numbers of places.
const WORDS: usize = 0;
const SEGMENTS: usize = 1;
const WORD_TABLE: usize = 2;
const PLACE_TABLE: usize = 3;
const SEGMENT_TABLE: usize = 4;
const SCALE: usize = 5;
const SHIFT: usize = 6;
const MASK: usize = 7;
const PLACES: usize = 8;

impl Operator for Embed {
    fn infer(&self, inputs: &Known<'_>) -> Result<Types, Unclear> {
        let (words, table) = (inputs.ty(WORDS)?, inputs.ty(WORD_TABLE)?);
        let (&[batch, length], &[_, width]) = (&words.shape[..], &table.shape[..]) else {
            return Err(OpError::shape(format!(
                "words {words} and their table {table} have no two dimensions"
            ))
            .into());
        };
        known(table.dtype)?;
        for index in [WORDS, SEGMENTS, MASK, PLACES] {
            let Some(ty) = inputs.opt(index) else { continue };
            let one = index == PLACES && ty.shape == [1, length];
            if !matches!(ty.dtype, DataType::I32 | DataType::I64) || ty.shape != words.shape && !one {
                return Err(OpError::shape(format!(
                    "input {index} is {ty}, not a number for each of {words}"
                ))
                .into());
            }
        }
        for index in [PLACE_TABLE, SEGMENT_TABLE] {
            let needed = index == PLACE_TABLE || inputs.opt(SEGMENTS).is_some();
            let ty = if needed { Some(inputs.ty(index)?) } else { inputs.opt(index) };
            let fits = |ty: &Type| ty.dtype == table.dtype && ty.rank() == 2 && ty.shape[1] == width;
            if let Some(ty) = ty.filter(|ty| !fits(ty)) {
                return Err(OpError::operand(
                    ty,
                    table.dtype,
                    format!("input {index} is {ty}, no table as {table}"),
                )
                .into());
            }
        }
        for index in [SCALE, SHIFT] {
            let ty = inputs.ty(index)?;
            if ty.dtype != table.dtype || ty.shape != [width] {
                return Err(OpError::operand(
                    ty,
                    table.dtype,
                    format!("input {index} is {ty}, not {width} numbers of {}", table.dtype),
                )
                .into());
            }
        }
        let made = typed(table.dtype, [batch, length, width])?;
        let mut types = smallvec![made.clone(), typed(DataType::I32, [batch])?, made];
        types.truncate(self.outputs.max(1));
        Ok(types)
    }

    fn scratch(&self, inputs: &Known<'_>, _: &[Type]) -> usize {
        let size = inputs.opt(WORD_TABLE).and_then(|table| Some((table.dtype, *table.shape.last()?)));
        size.map_or(0, |(dtype, size)| scratch(dtype, size))
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<(), OpError> {
        let words = call.input(WORDS)?;
        let length = words.shape.last().copied().unwrap_or(0);
        let table = call.input(WORD_TABLE)?;
        let mut space = Space(call.scratch());
        let scale = widened::<f32>(&call.input(SCALE)?, &mut space)?;
        let shift = widened::<f32>(&call.input(SHIFT)?, &mut space)?;
        let row = space.take::<f32>(scale.len())?;
        let segments = call.opt(SEGMENTS).map(|ids| Ok::<_, OpError>((ids, call.input(SEGMENT_TABLE)?)));
        let (segments, places) = (segments.transpose()?, call.opt(PLACES));
        let place_table = call.input(PLACE_TABLE)?;
        if let Some(there) = call.opt_output(1) {
            let mask = call.opt(MASK);
            for (member, to) in there.elements::<i32>().iter_mut().enumerate() {
                let row = member * length..(member + 1) * length;
                *to = mask.map_or(0, |mask| row.filter(|&at| number(&mask, at) == 1).count() as i32);
            }
        }
        let (out, mut sums) = (call.output(0)?.bytes, call.opt_output(2).map(|output| output.bytes));
        let (dtype, width) = (table.dtype, (scale.len() * table.dtype.bytes()).max(1));
        for (at, out) in out.chunks_exact_mut(width).enumerate() {
            let begin = |table: &View<'_>, given: i64, what: &str| {
                let rows = table.shape[0];
                let id = usize::try_from(given).ok().filter(|&id| id < rows);
                id.map(|id| id * scale.len())
                    .ok_or_else(|| OpError::value(format!("there is no {what} {given} in a table of {rows}")))
            };
            load(&table, begin(&table, number(&words, at), "word")?, row);
            let place = match &places {
                None => (at % length) as i64,
                Some(places) => number(places, at % places.len()),
            };
            add(&place_table, begin(&place_table, place, "place")?, row);
            if let Some((ids, table)) = &segments {
                add(table, begin(table, number(ids, at), "segment")?, row);
            }
            if let Some(sums) = &mut sums {
                f32::store(row, false, dtype, &mut sums[at * width..][..width]);
            }
            self.rows.normalize(row, scale, Some(shift));
            f32::store(row, false, dtype, out);
        }
        Ok(())
    }
}

/// An integer of a tensor.
fn number(view: &View<'_>, at: usize) -> i64 {
    match view.dtype {
        DataType::I64 => view.elements::<i64>()[at],
        _ => view.elements::<i32>()[at].into(),
    }
}

#[cfg(test)]
mod tests {
    use crate::trial::{Trial, close, floats, numbers, run, tensor};
    use stepalloc_tensor::Tensor;

    fn trial<'a>(inputs: Vec<Option<Tensor>>) -> Trial<'a> {
        let trial = Trial::new("EmbedLayerNormalization", &[], inputs).outputs(3);
        Trial { domain: "com.microsoft", opset: 1, ..trial }
    }

    #[test]
    fn it_is_lookups_a_sum_and_a_normalization() {
        let (words, segments) = ([4i32, 0, 2, 2, 1, 3], [0i32, 0, 1, 1, 0, 1]);
        let tables = [5, 4, 2].map(|rows| numbers(&[rows, 300], rows as u32));
        let [scale, shift] = [7, 8].map(|seed| numbers(&[300], seed));
        let mask = tensor(&[2, 3], &[1i32, 1, 0, 1, 0, 0]);
        let all = |places: Option<Tensor>, with_segments: bool| {
            let [word, place, segment] = tables.clone().map(Some);
            let ids = with_segments.then(|| tensor(&[2, 3], &segments));
            let segment = segment.filter(|_| with_segments);
            let words = Some(tensor(&[2, 3], &words));
            vec![
                words,
                ids,
                word,
                place,
                segment,
                Some(scale.clone()),
                Some(shift.clone()),
                Some(mask.clone()),
                places,
            ]
        };
        for (places, with_segments) in [(None, true), (Some([3i32, 0, 1]), true), (None, false)] {
            let made = trial(all(places.map(|places| tensor(&[1, 3], &places)), with_segments));
            let made = made.run().expect("it runs");
            let sums: Vec<f32> = (0..6 * 300)
                .map(|at| {
                    let (row, col) = (at / 300, at % 300);
                    let of = |table: usize, id: i32| floats(&tables[table])[id as usize * 300 + col];
                    let place = places.map_or((row % 3) as i32, |places| places[row % 3]);
                    let segment = if with_segments { of(2, segments[row]) } else { 0.0 };
                    of(0, words[row]) + of(1, place) + segment
                })
                .collect();
            let sums = tensor(&[2, 3, 300], &sums);
            assert!(close(floats(&made[2]), floats(&sums)));
            let wanted = run("LayerNormalization", 17, &[], &[Some(&sums), Some(&scale), Some(&shift)]);
            assert!(close(floats(&made[0]), floats(&wanted.expect("it runs")[0])));
            assert_eq!(made[1].view().elements::<i32>(), [2, 1]);
        }
    }

    #[test]
    fn numbers_that_no_table_has_are_errors() {
        for (index, id) in [(0, 5i32), (0, -1), (1, 2), (8, 4)] {
            let [word, place, segment] = [5, 4, 2].map(|rows| Some(numbers(&[rows, 8], 1)));
            let row = Some(numbers(&[8], 1));
            let ids = Some(tensor(&[1, 2], &[0i32, 1]));
            let mut inputs =
                vec![ids.clone(), ids.clone(), word, place, segment, row.clone(), row, None, ids];
            assert!(trial(inputs.clone()).run().is_ok());
            inputs[index] = Some(tensor(&[1, 2], &[0, id]));
            assert!(trial(inputs).run().is_err(), "input {index} of {id}");
        }
    }
}
