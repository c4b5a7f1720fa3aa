//! The arena at other batch sizes, from two traces of one program at two.
//!
//! The newest step's allocations at the one scale are matched with those at the other. Each size is taken to be linear in
//! the scale, `size(s) = c + k s`, by the two that were seen: activations grow with the batch, weights' gradients do not.
//! Lifetimes are those of the larger scale. What the program holds for many steps (weights) is no part of it, as it is no
//! part of the arena.
//!
//! **Matching.** Steps with the same number of allocations are matched one by one. Others are aligned: the pairs, in order in
//! both, that score the most (Needleman, Wunsch, J. of Molecular Biology 48, 1970, without a price for gaps). A pair scores
//! where the two sizes can be one line's with neither part negative: from equal, to as far apart as the scales are; twice
//! as much where they are just equal or just in proportion. A step has thousands of allocations at most, mostly alike at
//! both ends; only a band of what remains in the middle is looked at.
//!
//! An allocation of the larger step without partner is taken to be in proportion: mostly it is one that was too small to be
//! recorded at the smaller scale.

use std::collections::HashMap;

use serde_json::{Value, json};
use stepalloc_planner::{Block, Key, Problem, Trace};
use thiserror::Error;

use super::{PATIENCE, WhatIfError, planned};
use crate::report::walk::{Change, Walk};

/// Cells of the aligned band at most, a byte each.
const CELLS: usize = 1 << 24;
/// Shares of bytes below which a note says so.
const MATCHED: f64 = 0.99;
/// Beyond so many times the larger scale, or below the smaller one by it, a prediction is called far.
const FAR: u64 = 4;
/// Sizes are equal, or in proportion, if they are off by one in so many: rows and workspaces are rounded up.
const ROUNDED: u128 = 256;

/// What the arena needs at another scale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prediction {
    /// The scale: a batch size, or whatever was given with the traces.
    pub scale: u64,
    /// Height of the plan, in bytes.
    pub bytes: u64,
    /// Bytes no plan can do without.
    pub lower_bound: u64,
    /// Why it may be off.
    pub note: Option<String>,
}

impl Prediction {
    /// For programs.
    pub fn to_json(&self) -> Value {
        json!({
            "scale": self.scale,
            "bytes": self.bytes,
            "lower_bound": self.lower_bound,
            "note": self.note,
        })
    }
}

/// Why nothing can be predicted.
#[derive(Debug, Error)]
pub enum PredictError {
    /// Two traces of one scale say nothing of another.
    #[error("both traces are of scale {0}; record the program at two different batch sizes")]
    SameScale(u64),
    /// A scale of 0 is in proportion to nothing.
    #[error("a trace is of scale 0; scales begin at 1")]
    Zero,
    /// A trace without a step.
    #[error("the trace of scale {0} has no complete step")]
    NoStep(u64),
    /// The scaled step cannot be planned.
    #[error("at scale {scale}: {source}")]
    Plan {
        /// The scale asked for.
        scale: u64,
        /// What is wrong.
        source: WhatIfError,
    },
}

/// A trace with its scale.
#[derive(Debug, Clone, Copy)]
pub struct Scaled<'a> {
    /// The trace.
    pub trace: &'a Trace,
    /// Its scale.
    pub scale: u64,
}

/// An allocation of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Request {
    size: u64,
    align: u64,
}

/// The arena for each of `scales`: of a step's blocks, those that have at least `min_bytes` bytes there.
///
/// # Errors
/// Scales that are equal, a trace without steps, sizes that cannot be added up.
pub fn predict(
    one: Scaled,
    other: Scaled,
    min_bytes: u64,
    scales: &[u64],
) -> Result<Vec<Prediction>, PredictError> {
    if one.scale == other.scale {
        return Err(PredictError::SameScale(one.scale));
    }
    if one.scale.min(other.scale) == 0 {
        return Err(PredictError::Zero);
    }
    let (small, large) = if one.scale < other.scale { (one, other) } else { (other, one) };
    for Scaled { trace, scale } in [small, large] {
        if trace.steps.is_empty() {
            return Err(PredictError::NoStep(scale));
        }
    }
    let lines = Lines::new(small, large);
    scales.iter().map(|&scale| lines.predict(scale, min_bytes)).collect()
}

/// A block's size at any scale.
#[derive(Debug, Clone, Copy)]
struct Line {
    /// At the smaller scale; `None`: in proportion to the scale.
    small: Option<u64>,
    large: u64,
}

/// A step at any scale.
struct Lines {
    small: u64,
    large: u64,
    /// The larger trace's needs.
    problem: Problem,
    /// The line of each of its blocks; `None` for those of other steps than the newest.
    lines: Vec<Option<Line>>,
    /// Share of the bytes of both steps that were matched.
    matched: f64,
    /// Share of the larger step's bytes that shrink with the scale or grow faster than it.
    crooked: f64,
}

impl Lines {
    fn new(small: Scaled, large: Scaled) -> Lines {
        let (few, many) = (newest(small.trace), newest(large.trace));
        let partners = partners(&few, &many, small.scale, large.scale);

        let bytes = |step: &[Request]| step.iter().map(|request| u128::from(request.size)).sum::<u128>();
        let (mut matched, mut crooked) = (0, 0);
        for (request, partner) in many.iter().zip(&partners) {
            if let Some(partner) = partner.map(|index| few[index]) {
                matched += u128::from(request.size) + u128::from(partner.size);
                if score(partner, *request, small.scale, large.scale).is_none() {
                    crooked += u128::from(request.size);
                }
            }
        }
        let share = |part: u128, whole: u128| if whole == 0 { 1.0 } else { part as f64 / whole as f64 };

        let needs = large.trace.problem(0);
        let mut counts = HashMap::new();
        let mut of_keys = HashMap::new();
        for (request, partner) in many.iter().zip(&partners) {
            let nth = counts.entry((request.size, request.align)).or_insert(0u32);
            let line = Line { small: partner.map(|index| few[index].size), large: request.size };
            of_keys.insert(Key { size: request.size, align: request.align, nth: *nth }, line);
            *nth += 1;
        }
        let mut lines: Vec<Option<Line>> = needs.keys.iter().map(|key| of_keys.get(key).copied()).collect();
        // A recurring key's second block stands behind its first and begins where it does, which no other block can.
        let mut index = 1;
        while index < lines.len() {
            let second = needs.problem.blocks[index - 1].lower == needs.problem.blocks[index].lower;
            if second {
                lines[index] = lines[index - 1];
            }
            index += 1 + usize::from(second);
        }
        Lines {
            small: small.scale,
            large: large.scale,
            problem: needs.problem,
            lines,
            matched: share(matched, bytes(&few) + bytes(&many)),
            crooked: if many.is_empty() { 0.0 } else { share(crooked, bytes(&many)) },
        }
    }

    fn predict(&self, scale: u64, min_bytes: u64) -> Result<Prediction, PredictError> {
        let mut problem = Problem::default().with_period(self.problem.period);
        for (block, line) in self.problem.blocks.iter().zip(&self.lines) {
            let Some(line) = line else { continue };
            let size = self.size(*line, scale);
            if size >= min_bytes {
                problem.blocks.push(Block { size, ..*block });
            }
        }
        let plan = planned(&problem, PATIENCE).map_err(|source| PredictError::Plan { scale, source })?;
        let note = self.note(scale);
        Ok(Prediction { scale, bytes: plan.height, lower_bound: plan.lower_bound, note })
    }

    /// A size at a scale, rounded up, 0 at least.
    fn size(&self, line: Line, scale: u64) -> u64 {
        let (from, small) = line.small.map_or((0, 0), |small| (self.small, small));
        let (run, rise) = (i128::from(self.large - from), i128::from(line.large) - i128::from(small));
        let way = i128::from(scale) - i128::from(from);
        // What does not fit into 128 bits does not into 64.
        let Some(up) = rise.checked_mul(way) else {
            return if (rise < 0) == (way < 0) { u64::MAX } else { 0 };
        };
        let up = up.div_euclid(run) + i128::from(up.rem_euclid(run) != 0);
        let size = i128::from(small) + up;
        u64::try_from(size.max(0)).unwrap_or(u64::MAX)
    }

    fn note(&self, scale: u64) -> Option<String> {
        let mut notes = Vec::new();
        if self.matched < MATCHED {
            notes.push(format!(
                "only {:.1} % of the two steps' bytes were matched; the others are taken to be in proportion",
                100.0 * self.matched
            ));
        }
        if self.crooked > 1.0 - MATCHED {
            notes.push(format!(
                "{:.1} % of the bytes shrink with the scale or grow faster than it: a line may be far off",
                100.0 * self.crooked
            ));
        }
        if scale > self.large.saturating_mul(FAR) || scale.saturating_mul(FAR) < self.small {
            notes.push(format!("more than {FAR} times beyond what was recorded"));
        }
        (!notes.is_empty()).then(|| notes.join("; "))
    }
}

/// The allocations of a trace's newest step.
fn newest(trace: &Trace) -> Vec<Request> {
    let step = trace.steps.len().saturating_sub(1);
    Walk::new(trace, step, 0)
        .filter_map(|moment| match moment.change {
            Change::Born { size, align, .. } => Some(Request { size, align }),
            Change::Died { .. } => None,
        })
        .collect()
}

/// What a pair of allocations is worth: 2 if the sizes are equal or in proportion, 1 if they lie between, `None` if they
/// cannot be one line's without a negative part.
fn score(few: Request, many: Request, small: u64, large: u64) -> Option<u8> {
    if few.align != many.align {
        return None;
    }
    // Sizes as (c + k small) and (c + k large), times the smaller scale so that nothing is divided.
    let (low, high) = (u128::from(few.size) * u128::from(small), u128::from(many.size) * u128::from(small));
    let most = u128::from(few.size) * u128::from(large);
    let near = |a: u128, b: u128| a.abs_diff(b) <= a.max(b) / ROUNDED;
    if near(low, high) || near(high, most) {
        Some(2)
    } else if low < high && high < most {
        Some(1)
    } else {
        None
    }
}

/// For each allocation of the larger step, which one of the smaller step it is.
fn partners(few: &[Request], many: &[Request], small: u64, large: u64) -> Vec<Option<usize>> {
    if few.len() == many.len() {
        return (0..many.len()).map(Some).collect();
    }
    let best = |(few, many): (&Request, &Request)| score(*few, *many, small, large) == Some(2);
    // A pair of the most that any pair is worth, at an end, is part of a best alignment.
    let front = few.iter().zip(many).take_while(|&pair| best(pair)).count();
    let (few_rest, many_rest) = (&few[front..], &many[front..]);
    let back = few_rest.iter().rev().zip(many_rest.iter().rev()).take_while(|&pair| best(pair)).count();
    let (few_rest, many_rest) = (&few_rest[..few_rest.len() - back], &many_rest[..many_rest.len() - back]);

    let mut partners: Vec<Option<usize>> = (0..front).map(Some).collect();
    let middle = align(few_rest, many_rest, (small, large), CELLS);
    partners.extend(middle.into_iter().map(|partner| partner.map(|index| index + front)));
    partners.extend((few.len() - back..few.len()).map(Some));
    partners
}

/// Where a cell's best score comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum From {
    Few,
    Many,
    Pair,
}

/// The alignment with the highest score within a band round the diagonal, of about so many cells.
fn align(few: &[Request], many: &[Request], (small, large): (u64, u64), cells: usize) -> Vec<Option<usize>> {
    let mut partners = vec![None; many.len()];
    if few.is_empty() || many.is_empty() {
        return partners;
    }
    // Row `i` has the columns from `first(i)` on, `width` of them.
    let width = (cells / (many.len() + 1)).clamp(1, few.len() + 1);
    let first = |row: usize| {
        let middle = (row as u128 * few.len() as u128 / many.len() as u128) as usize;
        middle.saturating_sub(width / 2).min(few.len() + 1 - width)
    };
    let mut from = vec![From::Few; (many.len() + 1) * width];
    let mut above: Vec<u32> = vec![0; width];
    for row in 1..=many.len() {
        let (start, before) = (first(row), first(row - 1));
        let mut scores: Vec<u32> = vec![0; width];
        for column in start..start + width {
            // Behind the band's end the row above scores as at its end.
            let old = |column: usize| Some(above[column.checked_sub(before)?.min(width - 1)]);
            let mut best = (0, From::Many);
            if let Some(score) = old(column) {
                best = (score, From::Many);
            }
            if column > start && scores[column - start - 1] >= best.0 {
                best = (scores[column - start - 1], From::Few);
            }
            if column > 0
                && let Some(score) = score(few[column - 1], many[row - 1], small, large)
                && let Some(before) = old(column - 1)
                && before + u32::from(score) > best.0
            {
                best = (before + u32::from(score), From::Pair);
            }
            scores[column - start] = best.0;
            from[row * width + column - start] = best.1;
        }
        above = scores;
    }
    let (mut row, mut column) = (many.len(), first(many.len()) + width - 1);
    while row > 0 && column > 0 {
        column = column.min(first(row) + width - 1);
        let Some(at) = column.checked_sub(first(row)) else { break };
        match from[row * width + at] {
            From::Pair => {
                (row, column) = (row - 1, column - 1);
                partners[row] = Some(column);
            }
            From::Few => column -= 1,
            From::Many => row -= 1,
        }
    }
    partners
}

#[cfg(test)]
mod tests {
    use stepalloc_planner::{Event, Planner};

    use super::*;
    use crate::report::walk::tests::{free, trace};

    /// A training step at a scale: activations in proportion to it, gradients that are not, and workspaces of both; the last
    /// gradient is freed in the next step. `extra` steps have one small block more.
    fn program(scale: u64, extra: bool) -> Trace {
        let step = |n: u32| {
            let mut events = Vec::new();
            let mut next = 1000 * n;
            let mut allocate = |events: &mut Vec<Event>, size: u64| {
                next += 1;
                events.push(Event::Allocate { block: next, size, align: 64, moved_from: None });
                next
            };
            let mut activations = Vec::new();
            for layer in 1..20u64 {
                let workspace = allocate(&mut events, 50_000 * layer + 700 * scale);
                activations.push(allocate(&mut events, (3000 + 100 * (layer % 7)) * scale));
                if extra && layer == 9 {
                    let odd = allocate(&mut events, 8192);
                    events.push(free(odd));
                }
                events.push(free(workspace));
            }
            for layer in (1..20u64).rev() {
                let gradient = allocate(&mut events, 40_000 * (layer % 5 + 1));
                events.extend(activations.pop().map(free));
                if layer > 1 {
                    events.push(free(gradient));
                } else {
                    events.insert(0, free(gradient.wrapping_sub(1000)));
                }
            }
            events
        };
        trace((1..6).map(step).collect())
    }

    fn truth(scale: u64, min_bytes: u64) -> (u64, u64) {
        let plan = Planner::new().plan(&program(scale, false).problem(min_bytes).problem).unwrap();
        (plan.height, plan.lower_bound)
    }

    fn predicted(one: &Trace, other: &Trace, scales: &[u64]) -> Vec<Prediction> {
        let (one, other) = (Scaled { trace: one, scale: 8 }, Scaled { trace: other, scale: 32 });
        predict(other, one, 32 << 10, scales).unwrap()
    }

    #[test]
    fn a_program_of_lines_is_predicted_to_the_byte() {
        let scales = [8, 16, 32, 64, 100, 1];
        for (scale, prediction) in
            scales.into_iter().zip(predicted(&program(8, false), &program(32, false), &scales))
        {
            let (height, lower_bound) = truth(scale, 32 << 10);
            assert_eq!((prediction.bytes, prediction.lower_bound), (height, lower_bound), "scale {scale}");
            assert_eq!(prediction.note.is_some(), scale == 1, "{prediction:?}");
        }
    }

    #[test]
    fn steps_of_other_lengths_are_aligned() {
        let predictions = predicted(&program(8, true), &program(32, false), &[64]);
        assert_eq!((predictions[0].bytes, predictions[0].note.as_ref()), (truth(64, 32 << 10).0, None));
    }

    #[test]
    fn blocks_too_small_to_be_recorded_at_the_smaller_scale_are_in_proportion() {
        let recorded = |mut trace: Trace| {
            for step in &mut trace.steps {
                step.events.retain(|event| !matches!(event, Event::Allocate { size, .. } if *size < 26_000));
            }
            trace
        };
        let predictions = predicted(&recorded(program(8, false)), &recorded(program(32, false)), &[64]);
        assert_eq!(predictions[0].bytes, truth(64, 32 << 10).0);
        let note = predictions[0].note.as_deref().unwrap_or_default();
        assert!(note.contains("were matched"), "{note}");
    }

    #[test]
    fn what_is_far_or_no_line_is_noted() {
        let far = predicted(&program(8, false), &program(32, false), &[128, 129, 2]);
        assert_eq!(
            far.iter().map(|prediction| prediction.note.is_some()).collect::<Vec<_>>(),
            [false, true, false]
        );
        // Attention: the square of the scale.
        let square = |scale: u64| {
            let block = Event::Allocate { block: 0, size: 1000 * scale * scale, align: 64, moved_from: None };
            trace(vec![vec![block, free(0)]; 3])
        };
        let note = predicted(&square(8), &square(32), &[16])[0].note.clone().unwrap_or_default();
        assert!(note.starts_with("100.0 % of the bytes shrink"), "{note}");
    }

    #[test]
    fn odd_scales_and_sizes_are_errors_and_no_panics() {
        let eight = program(8, false);
        let of = |scale| Scaled { trace: &eight, scale };
        assert!(matches!(predict(of(8), of(8), 0, &[1]), Err(PredictError::SameScale(8))));
        assert!(matches!(predict(of(8), of(0), 0, &[1]), Err(PredictError::Zero)));
        let empty = Trace::default();
        let none = Scaled { trace: &empty, scale: 1 };
        assert!(matches!(predict(of(8), none, 0, &[1]), Err(PredictError::NoStep(1))));
        let large = program(1 << 40, false);
        let large = Scaled { trace: &large, scale: 1 << 40 };
        let error = predict(of(8), large, 0, &[u64::MAX]).expect_err("too many bytes");
        assert!(matches!(error, PredictError::Plan { .. }), "{error}");
        assert!(predict(of(8), of(u64::MAX), 0, &[0, 1, u64::MAX]).is_ok());
    }

    /// The best score of all alignments, cell by cell.
    fn best_score(few: &[Request], many: &[Request]) -> u32 {
        let mut table = vec![vec![0u32; few.len() + 1]; many.len() + 1];
        for row in 1..=many.len() {
            for column in 1..=few.len() {
                let pair = score(few[column - 1], many[row - 1], 1, 4).map_or(0, u32::from);
                let best = table[row - 1][column].max(table[row][column - 1]);
                table[row][column] = best.max(table[row - 1][column - 1] + pair);
            }
        }
        table[many.len()][few.len()]
    }

    #[test]
    fn alignments_score_as_much_as_any() {
        let mut dice = 1u64;
        for _ in 0..300 {
            let mut roll = |sides: u64| {
                dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (dice >> 33) % sides
            };
            let mut step = |factor: u64| {
                let count = roll(14);
                let request = |_| Request { size: factor * (1 + roll(6)), align: 1 };
                (0..count).map(request).collect::<Vec<_>>()
            };
            let (few, many) = (step(3), step(5));
            if few.len() == many.len() {
                continue;
            }
            let partners = partners(&few, &many, 1, 4);
            let pairs: Vec<(usize, usize)> =
                partners.iter().enumerate().filter_map(|(many, few)| Some(((*few)?, many))).collect();
            assert!(pairs.windows(2).all(|two| two[0].0 < two[1].0), "{pairs:?}");
            let scores = pairs.iter().map(|&(i, j)| score(few[i], many[j], 1, 4).map(u32::from));
            assert_eq!(scores.sum::<Option<u32>>(), Some(best_score(&few, &many)), "{few:?} {many:?}");
        }
    }

    #[test]
    fn a_narrow_band_finds_what_lies_near_the_diagonal() {
        // Told apart by their alignments; every tenth is missing in the smaller step.
        let request = |n: u32| Request { size: 4000, align: 1 << (n.wrapping_mul(2_654_435_761) >> 27) };
        let many: Vec<Request> = (0..2000).map(request).collect();
        let few: Vec<Request> = (0..2000).filter(|n| n % 10 > 0).map(request).collect();
        // 40 columns do, as all that is needed is within one of the diagonal.
        for cells in [CELLS, 80_000] {
            let partners = align(&few, &many, (1, 4), cells);
            assert_eq!(partners.iter().flatten().count(), few.len(), "{cells} cells");
            let alike = |(many_index, partner): (usize, &Option<usize>)| {
                partner.is_none_or(|index| few[index] == many[many_index])
            };
            assert!(partners.iter().enumerate().all(alike), "{cells} cells");
        }
        for cells in [0, 1, 3000, 10_000] {
            let partners = align(&few, &many, (1, 4), cells);
            let pairs: Vec<usize> = partners.into_iter().flatten().collect();
            assert!(pairs.windows(2).all(|pair| pair[0] < pair[1]), "{cells} cells");
            assert!(pairs.iter().all(|&few_index| few_index < few.len()), "{cells} cells");
        }
    }

    #[test]
    fn steps_of_thousands_of_allocations_take_no_time() {
        let long = |scale: u64, extra: u32| {
            let step = |n: u32| {
                let odd = |k: u32| u64::from(k.wrapping_mul(2_654_435_761) >> 20);
                let event = |k: u32| Event::Allocate {
                    block: k,
                    size: if k % 7 == 3 && k < extra { 64_000 } else { 4096 + odd(k) * (16 + scale) },
                    align: 64,
                    moved_from: None,
                };
                let count = 20_000 + if n > 0 { extra / 7 } else { 0 };
                (0..count).flat_map(|k| [event(k), free(k)]).collect()
            };
            trace((0..3).map(step).collect())
        };
        let begun = std::time::Instant::now();
        let predictions = predicted(&long(8, 900), &long(32, 0), &[64, 128]);
        println!("{:.3} s, {predictions:?}", begun.elapsed().as_secs_f64());
        // A second here.
        assert!(begun.elapsed().as_secs() < 20);
    }
}
