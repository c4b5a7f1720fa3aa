//! A plan as the report's page draws it: blocks in columns, the load over time, the moment of the peak, and overlaps.

use serde_json::{Value, json};
use stepalloc_planner::trace::Caller;
use stepalloc_planner::{Load, Problem};

use super::column::column;
use super::overlaps;

/// Points of a curve, about.
const POINTS: usize = 4000;
/// Blocks of the peak that are told.
const LARGEST: usize = 100;

/// A plan to be drawn.
pub struct Picture<'a> {
    /// What it is the plan of.
    pub name: String,
    /// The blocks and their lifetimes.
    pub problem: &'a Problem,
    /// Where each lies.
    pub offsets: &'a [u64],
    /// Bytes of the arena.
    pub height: u64,
    /// What no plan can do without.
    pub lower_bound: u64,
    /// No plan is lower.
    pub optimal: bool,
    /// Who asked for each block, where that is known.
    pub callers: Option<&'a [Option<Caller>]>,
    /// What blocks and times are called.
    pub words: Words,
}

/// What is said of a plan's blocks and times.
#[derive(Default)]
pub struct Words {
    /// What the blocks are called, where not by a number.
    pub labels: Option<Vec<String>>,
    /// What each block holds.
    pub holds: Option<Vec<Vec<String>>>,
    /// What each block is, as an index into the report's kinds.
    pub kinds: Option<Vec<u64>>,
    /// What a unit of time is, where it is not an event.
    pub unit: Option<&'static str>,
}

impl Picture<'_> {
    /// The page's own form, as its script reads it.
    pub fn to_json(&self) -> Value {
        let blocks = &self.problem.blocks;
        let load = self.problem.load();
        let mut columns = json!({
            "id": column(blocks.iter().map(|block| block.id)),
            "lower": column(blocks.iter().map(|block| block.lower)),
            "length": column(blocks.iter().map(|block| block.length())),
            "size": column(blocks.iter().map(|block| block.size)),
            "offset": column(self.offsets.iter().copied()),
            "align": column(blocks.iter().map(|block| block.align)),
        });
        if let Some(callers) = self.callers {
            let of = |number: fn(Caller) -> u32| {
                column(callers.iter().map(move |caller| caller.map_or(0, |caller| u64::from(number(caller)))))
            };
            if callers.iter().flatten().any(|caller| caller.thread != 0) {
                columns["thread"] = json!(of(|caller| caller.thread));
            }
            if callers.iter().flatten().any(|caller| caller.site != 0) {
                columns["site"] = json!(of(|caller| caller.site));
            }
        }
        if let Some(kinds) = &self.words.kinds {
            columns["kind"] = json!(column(kinds.iter().copied()));
        }
        let last = blocks.iter().map(|block| block.upper).max().unwrap_or(0);
        let mut plan = json!({
            "name": self.name,
            "unit": self.words.unit,
            "period": self.problem.period,
            "events": self.problem.period.unwrap_or(last),
            "height": self.height,
            "lower_bound": self.lower_bound,
            "optimal": self.optimal,
            "blocks": { "count": blocks.len(), "columns": columns },
            "overlaps": self.overlaps(),
            "peak": self.peak(&load),
            "load": curve(&load.curve),
        });
        if let Some(labels) = &self.words.labels {
            plan["blocks"]["labels"] = json!(labels);
        }
        if let Some(holds) = &self.words.holds {
            plan["blocks"]["holds"] = json!(holds);
        }
        plan
    }

    /// Blocks may share bytes where constraints say so; of such plans the verifier tells what is wrong.
    fn overlaps(&self) -> Value {
        if !self.problem.constraints.is_empty() {
            return json!({ "total": 0, "pairs": [] });
        }
        let found = overlaps::overlaps(self.problem, self.offsets);
        let pairs = found.iter().map(|overlap| {
            json!({
                "a": overlap.first,
                "b": overlap.second,
                "from_byte": overlap.bytes.0,
                "to_byte": overlap.bytes.1,
                "from_event": overlap.events.0,
                "to_event": overlap.events.1,
            })
        });
        json!({ "total": found.len(), "pairs": pairs.collect::<Vec<_>>() })
    }

    fn peak(&self, load: &Load) -> Value {
        let period = self.problem.period.unwrap_or(u64::MAX);
        let is_alive = |index: &usize| {
            let block = &self.problem.blocks[*index];
            block.size > 0
                && (block.lower <= load.at && load.at < block.upper
                    || load.at < block.upper.saturating_sub(period))
        };
        let mut alive: Vec<usize> = (0..self.problem.blocks.len()).filter(is_alive).collect();
        alive.sort_by_key(|&index| std::cmp::Reverse(self.problem.blocks[index].size));
        let total = alive.len();
        alive.truncate(LARGEST);
        json!({ "event": load.at, "bytes": load.max, "total": total, "blocks": alive })
    }
}

/// A step function as columns, thinned to about [`POINTS`] points so that no peak is lost: of each stretch its first point,
/// its highest, and its last.
pub fn curve(points: &[(u64, u64)]) -> Value {
    let chosen: Vec<(u64, u64)> = if points.len() <= POINTS {
        points.to_vec()
    } else {
        let stretch = points.len().div_ceil(POINTS / 3);
        let mut chosen = Vec::new();
        for stretch in points.chunks(stretch) {
            let highest = stretch.iter().max_by_key(|(_, bytes)| bytes);
            chosen.extend([stretch.first(), highest, stretch.last()].into_iter().flatten());
        }
        chosen.sort_unstable();
        chosen.dedup();
        chosen
    };
    json!({
        "event": column(chosen.iter().map(|&(event, _)| event)),
        "bytes": column(chosen.iter().map(|&(_, bytes)| bytes)),
    })
}
