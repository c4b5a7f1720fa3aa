//! What planning is worth: the same blocks under other strategies, and under other batch sizes.
//!
//! `stream` says which blocks those are, `simulate` and `deeprec` serve them, `predict` scales a step. All strategies serve
//! the same requests and are measured by the bytes of addresses they need at most; what they cost in time is not told here.

mod deeprec;
mod gaps;
pub mod predict;
mod simulate;
mod stream;

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};
use stepalloc_planner::{Block, Plan, Planner, Problem, ProblemError, StepProblem, Trace, Violation, verify};
use thiserror::Error;

use crate::size;
use predict::Prediction;
use stream::{Action, Stream};

/// How long one plan may take: a report is to be there at once. Most recorded steps take milliseconds.
const PATIENCE: Duration = Duration::from_millis(300);
/// Steps whose common plan needs more than this over their load differ too much to be planned as one: the allocator's slots
/// bear sizes that are so much off.
const ALIKE: f64 = 1.06;

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum WhatIfError {
    /// The step cannot be planned.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// More bytes than can be added up.
    #[error("the trace's blocks have more bytes together than 64 bits can count; is it damaged?")]
    TooLarge,
    /// The verifier refused our plan.
    #[error(
        "internal error: {algorithm} gave a plan that is not valid ({violation}); please report it with the trace"
    )]
    Invalid {
        /// What made the plan.
        algorithm: String,
        /// The rule it breaks.
        violation: Violation,
    },
}

/// One strategy.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// What it is.
    pub name: &'static str,
    /// Bytes of addresses it needs at most.
    pub bytes: u64,
    /// Over [`WhatIf::lower_bound`]; 1 where nothing is needed.
    pub ratio: f64,
    /// What is to be known about it.
    pub note: String,
}

/// The table.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WhatIf {
    /// The load of what is served, in bytes: no allocator can do with less.
    pub lower_bound: u64,
    /// The strategies, the load itself first.
    pub rows: Vec<Row>,
    /// The arena at other batch sizes, where they were asked for ([`predict::predict`]).
    pub predictions: Vec<Prediction>,
}

/// Serves a trace's blocks of at least `min_bytes` bytes by each strategy.
///
/// # Errors
/// What [`stepalloc_planner::Problem::check`] finds in the trace, and sizes beyond 64 bits.
pub fn what_if(trace: &Trace, min_bytes: u64) -> Result<WhatIf, WhatIfError> {
    let needs = trace.problem(min_bytes);
    let common = planned(&needs.problem, PATIENCE)?;
    let stream = Stream::new(trace, min_bytes, &needs);
    stream.bounded().ok_or(WhatIfError::TooLarge)?;
    let mut table = WhatIf { lower_bound: stream.load(), ..WhatIf::default() };
    // The common plan serves the stream as well. Only where it must be higher than the load, because the steps differ, are
    // other places for the same blocks in other steps worth a plan of their own.
    let own = if common.lower_bound > table.lower_bound {
        Some(planned(&problem_of(&stream), PATIENCE)?)
    } else {
        None
    };
    let perfect = own.as_ref().filter(|own| own.height < common.height).unwrap_or(&common);
    let bins = deeprec::bins(&stream);

    table.add("load", table.lower_bound, "bytes alive at the worst moment: no allocator can need less");
    let best = if perfect.height == table.lower_bound { "no packing is lower" } else { "the lowest found" };
    table.add("perfect packing", perfect.height, &format!("all of the future known; {best}"));
    let differ = if differ(&common, table.lower_bound) {
        "; the steps differ: planned kind by kind they need less"
    } else {
        ""
    };
    table.add(
        "one plan for every step",
        common.height,
        &format!("blocks at the same place in each; {}{differ}", proven(&common)),
    );
    table.add(
        "first fit, online",
        simulate::first_fit(&stream),
        "an arena in the program's own order, nothing known of the future",
    );
    table.add(
        "best fit, as glibc",
        simulate::best_fit(&stream),
        "headers, splitting, coalescing; no caches, and no block mapped alone",
    );
    table.add(
        "pool of powers of two",
        simulate::pool(&stream, simulate::power_of_two),
        "freed blocks serve their own class only; nothing goes back",
    );
    table.add(
        "pool of four classes to a doubling",
        simulate::pool(&stream, simulate::four_to_a_doubling),
        "the same with jemalloc's classes",
    );
    let how = if bins.estimated { ", estimated: no slots of larger bins" } else { "" };
    let width = size::show(bins.width);
    table.add(
        "DeepRec's bins",
        bins.bytes,
        &format!("slots by lifetime in bins of {width}, the best of three{how}"),
    );
    Ok(table)
}

impl WhatIf {
    fn add(&mut self, name: &'static str, bytes: u64, note: &str) {
        let ratio = if self.lower_bound == 0 { 1.0 } else { bytes as f64 / self.lower_bound as f64 };
        self.rows.push(Row { name, bytes, ratio, note: note.to_owned() });
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        let rows = self
            .rows
            .iter()
            .map(|row| json!({"name": row.name, "bytes": row.bytes, "ratio": row.ratio, "note": row.note}));
        json!({
            "lower_bound": self.lower_bound,
            "rows": rows.collect::<Vec<Value>>(),
            "predictions": self.predictions.iter().map(Prediction::to_json).collect::<Vec<Value>>(),
        })
    }

    /// For people: aligned, a line a strategy, and a line a prediction.
    pub fn text(&self) -> String {
        let name = self.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
        let shown = |row: &Row| format!("{:.1}", size::mib(row.bytes));
        let bytes = self.rows.iter().map(|row| shown(row).len()).max().unwrap_or(0);
        let mut text = String::new();
        for row in &self.rows {
            let Row { name: title, ratio, note, .. } = row;
            let _ = writeln!(text, "{title:<name$}  {:>bytes$} MiB  {ratio:>7.4} x  {note}", shown(row));
        }
        for Prediction { scale, bytes, lower_bound, note } in &self.predictions {
            let ratio = if *lower_bound == 0 { 1.0 } else { *bytes as f64 / *lower_bound as f64 };
            let note = note.as_deref().unwrap_or("");
            let line = format!(
                "at scale {scale}: {:.1} MiB, {ratio:.4} of its lower bound  {note}",
                size::mib(*bytes)
            );
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text
    }
}

/// How good a plan is known to be.
fn proven(plan: &Plan) -> String {
    if plan.optimal() {
        "no such plan is lower".to_owned()
    } else {
        format!("{:.4} of the bound of all such plans", plan.ratio())
    }
}

/// Whether steps with this common plan and this load differ too much to be planned as one.
fn differ(common: &Plan, load: u64) -> bool {
    common.lower_bound as f64 > ALIKE * load as f64
}

/// The load of a trace's blocks, where its steps differ too much for the plan of all of them.
pub fn load_of_unlike(trace: &Trace, min_bytes: u64, needs: &StepProblem, common: &Plan) -> Option<u64> {
    let stream = Stream::new(trace, min_bytes, needs);
    stream.bounded()?;
    Some(stream.load()).filter(|&load| differ(common, load))
}

/// The stream as one problem on a line: what happened, each block with a place of its own choice.
fn problem_of(stream: &Stream) -> Problem {
    let end = stream.actions.len() as u64;
    let mut blocks: Vec<Block> = Vec::with_capacity(stream.blocks.len());
    for (time, action) in (0..).zip(&stream.actions) {
        match *action {
            Action::Allocate(block) => {
                let stream::Request { size, align } = stream.blocks[block];
                blocks.push(Block { id: block as u64, lower: time, upper: end, size, align });
            }
            Action::Free(block) => blocks[block].upper = time,
        }
    }
    Problem::new(blocks)
}

/// Plans a problem; the verifier has the last word.
pub fn planned(problem: &Problem, patience: Duration) -> Result<Plan, WhatIfError> {
    let plan = Planner::new().time_limit(Some(patience)).plan(problem)?;
    verify(problem, &plan.offsets, plan.height)
        .map_err(|violation| WhatIfError::Invalid { algorithm: plan.algorithm.clone(), violation })?;
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use stepalloc_planner::{Event, generate};

    use super::*;
    use crate::report::walk::tests::{allocate, free, trace};

    /// Each strategy's bytes, in the table's order.
    fn bytes(table: &WhatIf) -> Vec<u64> {
        table.rows.iter().map(|row| row.bytes).collect()
    }

    #[test]
    fn every_strategy_serves_what_the_plan_does() {
        const KIB: u64 = 1 << 10;
        // Two blocks of 40 KiB side by side, the first makes place for one of 80 KiB. 100 KiB are held from step 1 on.
        let step = |n: u32| {
            let b = 10 * n;
            let mut events =
                vec![allocate(b, 40 * KIB), allocate(b + 1, 40 * KIB), free(b), allocate(b + 2, 80 * KIB)];
            events.extend([free(b + 1), free(b + 2)]);
            if n == 1 {
                events.insert(0, allocate(5, 100 * KIB));
            }
            events
        };
        let table = what_if(&trace((0..5).map(step).collect()), 32 * KIB).unwrap();
        assert_eq!(table.lower_bound, 120 * KIB);
        let expected = [
            120 * KIB,
            120 * KIB,
            120 * KIB,
            160 * KIB,
            // Chunks: 16 bytes more each.
            160 * KIB + 3 * 16,
            2 * 64 * KIB + 128 * KIB,
            2 * 40 * KIB + 80 * KIB,
            // Slots of 84 KiB, of 44, and of 44 again: in the first step a small block borrows the large slot, but from the
            // second step on it takes its own bin's before the other comes, which then finds none.
            84 * KIB + 2 * 44 * KIB,
        ];
        assert_eq!(bytes(&table), expected);
        let ratio = |bytes: u64| bytes as f64 / (120 * KIB) as f64;
        assert!(table.rows.iter().all(|row| row.ratio == ratio(row.bytes)));
    }

    #[test]
    fn nothing_to_serve_is_a_table_of_zeros() {
        for trace in [Trace::default(), trace(vec![vec![allocate(0, 10)]])] {
            let table = what_if(&trace, 1000).unwrap();
            assert!(table.rows.iter().all(|row| (row.bytes, row.ratio) == (0, 1.0)), "{table:?}");
        }
    }

    #[test]
    fn sizes_beyond_64_bits_are_an_error_and_no_panic() {
        let huge = trace(vec![vec![allocate(0, u64::MAX), allocate(1, u64::MAX)]]);
        assert!(matches!(what_if(&huge, 0), Err(WhatIfError::Problem(_))));
        let large = trace(vec![vec![allocate(0, 1 << 62), free(0), allocate(1, 1 << 61)]]);
        assert!(matches!(what_if(&large, 0), Err(WhatIfError::TooLarge)));
        let askew = Event::Allocate { block: 0, size: 10, align: 3, moved_from: None };
        assert!(matches!(what_if(&trace(vec![vec![askew]]), 0), Err(WhatIfError::Problem(_))));
    }

    #[test]
    fn the_json_has_the_keys_of_the_contract_and_the_text_a_line_a_strategy() {
        let mut table = what_if(&trace(vec![vec![allocate(0, 1 << 20), free(0)]]), 0).unwrap();
        table.predictions.push(Prediction { scale: 8, bytes: 4, lower_bound: 4, note: None });
        let json = table.to_json();
        assert_eq!(json["lower_bound"], 1 << 20);
        assert_eq!(json["rows"].as_array().map(Vec::len), Some(table.rows.len()));
        assert_eq!(json["rows"][3]["name"], "first fit, online");
        assert_eq!((&json["rows"][3]["bytes"], &json["rows"][3]["ratio"]), (&json!(1 << 20), &json!(1.0)));
        assert!(json["rows"][3]["note"].is_string());
        assert_eq!(
            (&json["predictions"][0]["scale"], &json["predictions"][0]["bytes"]),
            (&json!(8), &json!(4))
        );
        let text = table.text();
        assert_eq!(text.lines().count(), table.rows.len() + 1);
        assert!(
            text.starts_with("load                                1.0 MiB   1.0000 x  bytes alive"),
            "{text}"
        );
    }

    /// A generated problem's blocks as the events of steps.
    pub fn steps_of(problem: &Problem, count: usize) -> Trace {
        let mut times: Vec<(u64, bool, usize)> = Vec::new();
        for (index, block) in problem.blocks.iter().enumerate() {
            times.extend([(block.lower, true, index), (block.upper, false, index)]);
        }
        times.sort_unstable();
        let event = |&(_, born, index): &(u64, bool, usize)| match born {
            true => allocate(index as u32, problem.blocks[index].size),
            false => free(index as u32),
        };
        let events: Vec<Event> = times.iter().map(event).collect();
        trace(events.chunks(events.len().div_ceil(count).max(1)).map(<[Event]>::to_vec).collect())
    }

    #[test]
    fn nothing_needs_less_than_the_load_in_recorded_or_generated_steps() {
        let mut traces: Vec<Trace> =
            (0..4).map(|seed| steps_of(&generate::malloc_like(2000, seed), 7)).collect();
        traces.extend((0..4).map(|seed| steps_of(&generate::training_like(2000, seed), 1)));
        for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/traces"))
            .into_iter()
            .flatten()
        {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "gz") {
                traces.push(stepalloc_planner::trace::read(&path).unwrap());
            }
        }
        for trace in &traces {
            let begun = Instant::now();
            let table = what_if(trace, 32 << 10).unwrap();
            println!("{}: {:.3} s\n{}", trace.name, begun.elapsed().as_secs_f64(), table.text());
            assert!(table.rows.iter().all(|row| row.bytes >= table.lower_bound), "{table:?}");
        }
    }

    #[test]
    fn a_million_events_take_seconds() {
        let one = steps_of(&generate::malloc_like(500_000, 1), 1);
        let many = steps_of(&generate::malloc_like(500_000, 1), 100);
        let step: Vec<Event> = steps_of(&generate::training_like(5000, 1), 1).steps[0].events.clone();
        let alike = trace(vec![step; 100]);
        for (name, trace) in [("one", one), ("many", many), ("alike", alike)] {
            let begun = Instant::now();
            let table = what_if(&trace, 0).unwrap();
            let seconds = begun.elapsed().as_secs_f64();
            println!("{name}: {seconds:.3} s\n{}", table.text());
            // Two here; anything quadratic takes minutes.
            assert!(seconds < 20.0);
        }
    }
}
