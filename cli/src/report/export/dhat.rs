//! DHAT's profile, version 2: what each program point asks for, and how long its blocks live.
//!
//! The format is told in the comments of valgrind's dhat/dh_main.c ("File format"); what its viewer checks stands in
//! dhat/dh_view.js (`checkFields`, `checkPP`, `buildTree`). Of the modes it is "heap", without counts of reads and writes.
//! Time is counted in events. Frames are given innermost first, and no two points may have the same: allocations with equal
//! stacks are one point, those without a stack one for each size.

use std::collections::HashMap;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::Recorded;
use crate::report::walk::{Change, Moment, Walk};
use crate::size;

/// Lifetimes up to so many events on average are called short in the viewer. Within them a step's function calls one or two
/// others.
const SHORT: u64 = 10;

/// What a program point asked for.
#[derive(Debug, Default)]
struct Point {
    frames: Vec<usize>,
    /// Bytes and blocks: in all, alive now, most alive, alive at the peak of all points.
    total: (u64, u64),
    live: (u64, u64),
    most: (u64, u64),
    at_peak: (u64, u64),
    /// Sum of the blocks' lifetimes, in events.
    lifetimes: u64,
}

impl Point {
    fn to_json(&self) -> Value {
        json!({
            "tb": self.total.0, "tbk": self.total.1, "tl": self.lifetimes,
            "mb": self.most.0, "mbk": self.most.1,
            "gb": self.at_peak.0, "gbk": self.at_peak.1,
            "eb": self.live.0, "ebk": self.live.1,
            "fs": self.frames,
        })
    }
}

/// A block that is or was alive.
struct Block {
    point: usize,
    size: u64,
    /// The event of its birth.
    born: u64,
}

/// Program points with the frames they have.
#[derive(Default)]
struct Points {
    /// By their frames.
    numbers: HashMap<Vec<usize>, usize>,
    points: Vec<Point>,
    /// Frames; the first is the root's.
    frames: Vec<String>,
    frame_numbers: HashMap<String, usize>,
    /// Points of sites and of sizes, which are asked for again and again.
    of_sites: HashMap<*const String, usize>,
    of_sizes: HashMap<u64, usize>,
}

impl Points {
    /// The point of an allocation.
    fn take(&mut self, recorded: &Recorded, moment: &Moment, size: u64) -> usize {
        let stack = recorded.stack(moment.step, moment.event);
        let known = match stack {
            Some(stack) => self.of_sites.get(&stack.as_ptr()),
            None => self.of_sizes.get(&size),
        };
        if let Some(&known) = known {
            return known;
        }
        let frames = match stack {
            Some(stack) => stack.iter().rev().map(|frame| self.frame(frame)).collect(),
            None => vec![self.frame(&format!("size {}", size::exact(size)))],
        };
        let number = *self.numbers.entry(frames.clone()).or_insert(self.points.len());
        if number == self.points.len() {
            self.points.push(Point { frames, ..Point::default() });
        }
        match stack {
            Some(stack) => self.of_sites.insert(stack.as_ptr(), number),
            None => self.of_sizes.insert(size, number),
        };
        number
    }

    fn frame(&mut self, frame: &str) -> usize {
        if let Some(&number) = self.frame_numbers.get(frame) {
            return number;
        }
        self.frames.push(frame.to_owned());
        // The root's frame comes before them all.
        self.frame_numbers.insert(frame.to_owned(), self.frames.len());
        self.frames.len()
    }
}

/// Writes a trace as DHAT's profile.
///
/// # Errors
/// Those of `out`.
pub fn write(out: &mut impl Write, recorded: &Recorded) -> io::Result<()> {
    let (peak, _) = recorded.peak();
    // Events before each step.
    let mut before = vec![0u64];
    for step in &recorded.trace.steps {
        before.push(before[before.len() - 1] + step.events.len() as u64);
    }
    let end = before[before.len() - 1];
    let mut points = Points::default();
    let mut blocks: Vec<Block> = Vec::new();
    let mut alive: Vec<bool> = Vec::new();
    let mut at_peak = 0;
    for (index, moment) in Walk::whole(recorded.trace).enumerate() {
        let now = before[moment.step] + moment.event as u64;
        match moment.change {
            Change::Born { size, .. } => {
                let number = points.take(recorded, &moment, size);
                blocks.push(Block { point: number, size, born: now });
                alive.push(true);
                let point = &mut points.points[number];
                add(&mut point.total, size);
                add(&mut point.live, size);
                if point.live.0 > point.most.0 {
                    point.most = point.live;
                }
            }
            Change::Died { block } => {
                alive[block] = false;
                let Block { point, size, born } = blocks[block];
                let point = &mut points.points[point];
                point.live = (point.live.0.saturating_sub(size), point.live.1 - 1);
                // A reallocation's old block dies at an event before that of the new one.
                point.lifetimes += now.saturating_sub(born);
            }
        }
        if index + 1 == peak {
            at_peak = now + 1;
            for point in &mut points.points {
                point.at_peak = point.live;
            }
        }
    }
    for (block, _) in blocks.iter().zip(&alive).filter(|(_, alive)| **alive) {
        points.points[block.point].lifetimes += end - block.born;
    }

    write!(out, "{{\"dhatFileVersion\":2,\"mode\":\"heap\",\"verb\":\"Allocated\"")?;
    write!(out, ",\"bklt\":true,\"bkacc\":false,\"tu\":\"events\",\"Mtu\":\"Mevent\",\"tuth\":{SHORT}")?;
    // A trace does not know its process's number, and DHAT's viewer asks for one.
    writeln!(out, ",\"cmd\":{},\"pid\":0,\"te\":{end},\"tg\":{at_peak}", json!(recorded.trace.name))?;
    list(out, "pps", points.points.iter().map(Point::to_json))?;
    let frames = std::iter::once("[root]").chain(points.frames.iter().map(String::as_str));
    list(out, "ftbl", frames.map(Value::from))?;
    writeln!(out, "}}")
}

/// Bytes and blocks with one block more.
fn add(counts: &mut (u64, u64), size: u64) {
    *counts = (counts.0.saturating_add(size), counts.1 + 1);
}

/// A field with a list, an element a line.
fn list(out: &mut impl Write, name: &str, values: impl Iterator<Item = Value>) -> io::Result<()> {
    write!(out, ",\"{name}\":[")?;
    for (index, value) in values.enumerate() {
        write!(out, "{}\n{value}", if index == 0 { "" } else { "," })?;
    }
    writeln!(out, "]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::export::tests::example;
    use crate::report::walk::tests::trace;
    use stepalloc_planner::{Trace, generate};

    fn written(recorded: &Recorded) -> Value {
        let mut text = Vec::new();
        write(&mut text, recorded).unwrap();
        serde_json::from_slice(&text).unwrap()
    }

    #[test]
    fn points_have_totals_maxima_peak_end_and_lifetimes() {
        let example = example();
        let json = written(&Recorded::bare(&example));
        let point = |tb, tbk, tl, mb, mbk, gb, gbk, eb, ebk, frame| {
            json!({
                "tb": tb, "tbk": tbk, "tl": tl, "mb": mb, "mbk": mbk, "gb": gb, "gbk": gbk, "eb": eb, "ebk": ebk,
                "fs": [frame],
            })
        };
        let points = json!([
            point(1 << 20, 1, 5, 1 << 20, 1, 1 << 20, 1, 0, 0, 1),
            point(15_000, 3, 11, 10_000, 2, 10_000, 2, 5000, 1, 2),
            point(64, 1, 2, 64, 1, 0, 0, 64, 1, 3),
        ]);
        assert_eq!(json["pps"], points);
        assert_eq!((&json["te"], &json["tg"]), (&json!(9), &json!(4)));
        let frames = ["[root]", "size 1048576 bytes (1.0 MiB)", "size 5000 bytes (4.9 KiB)", "size 64 bytes"];
        assert_eq!(json["ftbl"], json!(frames));
    }

    #[test]
    fn all_fields_of_version_2_are_there() {
        let json = written(&Recorded::bare(&Trace::default()));
        let fields = [
            ("dhatFileVersion", json!(2)),
            ("mode", json!("heap")),
            ("verb", json!("Allocated")),
            ("bklt", json!(true)),
            ("bkacc", json!(false)),
            ("tu", json!("events")),
            ("Mtu", json!("Mevent")),
            ("tuth", json!(SHORT)),
            ("cmd", json!("")),
            ("pid", json!(0)),
            ("te", json!(0)),
            ("tg", json!(0)),
            ("pps", json!([])),
            ("ftbl", json!(["[root]"])),
        ];
        assert_eq!(json.as_object().map(serde_json::Map::len), Some(fields.len()));
        for (name, value) in fields {
            assert_eq!(json[name], value, "{name}");
        }
    }

    #[test]
    fn equal_stacks_are_one_point_innermost_first() {
        let example = example();
        let stack = |frames: &[&str]| frames.iter().map(|frame| (*frame).to_owned()).collect::<Vec<_>>();
        let sites = [stack(&["main", "train"]), stack(&["main", "train"]), stack(&["main"])];
        let site_of = |step: usize, event: usize| Some(if step == 0 { event % 2 } else { 2 });
        let json = written(&Recorded { trace: &example, sites: &sites, site_of: &site_of });
        assert_eq!(json["ftbl"], json!(["[root]", "train", "main"]));
        let points: Vec<(&Value, &Value)> =
            json["pps"].as_array().unwrap().iter().map(|point| (&point["tbk"], &point["fs"])).collect();
        assert_eq!(points, [(&json!(3), &json!([1, 2])), (&json!(2), &json!([2]))]);
    }

    #[test]
    fn sums_are_those_of_a_direct_count() {
        let problem = generate::malloc_like(3000, 5);
        let mut events: Vec<(u64, stepalloc_planner::Event)> = Vec::new();
        for (block, of) in (0..).zip(&problem.blocks) {
            events.push((2 * of.lower + 1, crate::report::walk::tests::allocate(block, of.size)));
            if block % 10 > 0 {
                events.push((2 * of.upper, crate::report::walk::tests::free(block)));
            }
        }
        events.sort_by_key(|event| event.0);
        let events: Vec<_> = events.into_iter().map(|event| event.1).collect();
        let trace = trace(events.chunks(700).map(<[_]>::to_vec).collect());
        let json = written(&Recorded::bare(&trace));
        let sum = |field: &str| {
            json["pps"].as_array().unwrap().iter().map(|point| point[field].as_u64().unwrap()).sum::<u64>()
        };
        let total = |blocks: &mut dyn Iterator<Item = usize>| {
            blocks.map(|block| problem.blocks[block].size).sum::<u64>()
        };
        assert_eq!((sum("tb"), sum("tbk")), (total(&mut (0..3000)), 3000));
        assert_eq!((sum("eb"), sum("ebk")), (total(&mut (0..3000).step_by(10)), 300));
        assert_eq!(sum("gb"), Recorded::bare(&trace).peak().1);
        assert!(sum("mb") >= sum("gb"));
    }
}
