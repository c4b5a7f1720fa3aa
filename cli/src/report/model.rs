//! What a report holds, and how the parts of it that come from traces and from the library's figures are made.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Value, json};
use stepalloc_planner::{Event, Trace};

use super::column::column;
use super::page;
use super::picture::curve;
use crate::{os, size};

/// A report in the making. What is empty is not shown.
#[derive(Default)]
pub struct Report {
    /// The heading.
    pub title: String,
    /// Where it comes from, in a sentence.
    pub subtitle: String,
    /// The few numbers that matter, with what they are.
    pub facts: Vec<(String, String)>,
    /// What the reader must know.
    pub notices: Vec<String>,
    /// Plans, as [`super::picture::Picture::to_json`] makes them.
    pub plans: Vec<Value>,
    /// Call stacks; a block's number for one counts from 0, which is unknown.
    pub sites: Vec<String>,
    /// Kinds of blocks, which a block names by its index.
    pub kinds: Vec<String>,
    /// What each step has cost.
    pub steps: Vec<Value>,
    /// Live bytes over all that was recorded.
    pub course: Option<Value>,
    /// Blocks that found no slot.
    pub fallbacks: Vec<Value>,
    /// The table of `stepalloc compare`.
    pub comparison: Option<Value>,
    /// What other ways to serve the same would need.
    pub what_if: Option<Value>,
}

impl Report {
    /// The page.
    pub fn to_html(&self) -> String {
        let facts: Vec<Value> = self.facts.iter().map(|(name, value)| json!([name, value])).collect();
        page::page(&json!({
            "version": 1,
            "title": self.title,
            "subtitle": self.subtitle,
            "made": os::utc_now(),
            "machine": machine(),
            "facts": facts,
            "notices": self.notices,
            "plans": self.plans,
            "sites": self.sites.get(1..).unwrap_or_default(),
            "kinds": self.kinds,
            "steps": self.steps,
            "course": self.course,
            "fallbacks": self.fallbacks,
            "comparison": self.comparison,
            "what_if": self.what_if,
        }))
    }

    /// Adds a fact.
    pub fn fact(&mut self, name: &str, value: impl Into<String>) {
        self.facts.push((name.to_owned(), value.into()));
    }

    /// Adds an arena's size and what it is measured by.
    pub fn arena(&mut self, bytes: u64, lower_bound: u64) {
        self.fact("Arena", size::show(bytes));
        self.fact("Lower bound", size::show(lower_bound));
        if lower_bound > 0 {
            self.fact("Arena / lower bound", format!("{:.4}", bytes as f64 / lower_bound as f64));
        }
    }

    /// Adds what a trace says of time: live bytes and steps.
    pub fn course_of(&mut self, trace: &Trace) {
        let course = Course::of(trace);
        let mut drawn = curve(&course.points);
        drawn["boundaries"] = json!(column(course.boundaries.iter().copied()));
        self.course = Some(drawn);
        self.sites.clone_from(&trace.sites);
        if !self.steps.is_empty() {
            return;
        }
        let ends = trace.steps.iter().skip(1).map(|step| Some(step.micros)).chain([Some(trace.end_micros)]);
        for (number, ((step, end), most)) in trace.steps.iter().zip(ends).zip(&course.most).enumerate() {
            let ms = end.filter(|&end| end > step.micros).map(|end| (end - step.micros) as f64 / 1e3);
            self.steps.push(json!({ "step": number, "steps": 1, "ms": ms, "live_bytes": most }));
        }
    }
}

/// Live bytes over a trace.
struct Course {
    /// At each event that changes them.
    points: Vec<(u64, u64)>,
    /// The events at which steps begin, and the last one's end.
    boundaries: Vec<u64>,
    /// At most within each step.
    most: Vec<u64>,
}

impl Course {
    fn of(trace: &Trace) -> Course {
        let mut sizes: HashMap<u32, u64> = trace.already.iter().copied().collect();
        let mut bytes = sizes.values().fold(0, |sum: u64, &size| sum.saturating_add(size));
        let mut course = Course { points: vec![(0, bytes)], boundaries: vec![0], most: Vec::new() };
        let mut time = 0;
        for step in &trace.steps {
            let mut most = bytes;
            for event in &step.events {
                time += 1;
                match *event {
                    Event::Allocate { block, size, .. } => {
                        sizes.insert(block, size);
                        bytes = bytes.saturating_add(size);
                    }
                    Event::Free { block } => bytes = bytes.saturating_sub(sizes.remove(&block).unwrap_or(0)),
                }
                most = most.max(bytes);
                course.points.push((time, bytes));
            }
            course.boundaries.push(time);
            course.most.push(most);
        }
        course
    }
}

/// The phases by their number.
const PHASES: [&str; 3] = ["waiting", "collecting", "planned"];

/// The process with the most lines in a journal: the started one may only have started it.
pub fn busiest(journal: &str) -> Option<u32> {
    let mut lines: HashMap<u32, usize> = HashMap::new();
    for pid in journal.lines().filter_map(|line| line.split(',').next()?.parse().ok()) {
        *lines.entry(pid).or_default() += 1;
    }
    lines.into_iter().max_by_key(|&(pid, count)| (count, pid)).map(|(pid, _)| pid)
}

/// Of a journal's lines those of one process.
pub fn steps_of(journal: &str, pid: u32) -> Vec<Value> {
    let line = |line: &str| {
        let fields: Vec<u64> = line.split(',').map(|field| field.parse().ok()).collect::<Option<_>>()?;
        let [
            process,
            step,
            steps,
            phase,
            nanoseconds,
            faults,
            planned,
            planned_bytes,
            fallback,
            fallback_bytes,
            _,
            gap_bytes,
            plans,
            arena,
            bound,
        ] = *<&[u64; 15]>::try_from(fields.as_slice()).ok()?;
        let per = |sum: u64| sum as f64 / steps.max(1) as f64;
        (process == u64::from(pid)).then(|| {
            json!({
                "step": step,
                "steps": steps,
                "ms": per(nanoseconds) / 1e6,
                "faults": per(faults),
                "planned_bytes": planned_bytes,
                "fallback_bytes": fallback_bytes,
                "gap_bytes": gap_bytes,
                "planned_allocations": planned,
                "fallback_allocations": fallback,
                "phase": PHASES.get(phase as usize),
                "plans": plans,
                "arena_bytes": arena,
                "lower_bound_bytes": bound,
            })
        })
    };
    journal.lines().filter_map(line).collect()
}

/// The machine in a line.
pub fn machine() -> String {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let model = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = model
        .lines()
        .find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim().to_owned()));
    let memory = total.map(|kib| size::show(kib << 10));
    let parts = [Some(format!("{cpus} CPUs")), model, memory, Some(format!("Linux {}", kernel.trim()))];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The file's name without directories.
pub fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_has_each_process_lines_and_bad_ones_are_left_out() {
        let journal = "7,0,1,2,2000000,4,1,64,0,0,0,0,1,128,128\n8,0,1,2,0,0,0,0,0,0,0,0,1,1,1\n7,2,2,2,2000000\n7,2,2,2,4000000,4,1,64,0,0,0,0,1,128,128\n";
        let steps = steps_of(journal, 7);
        assert_eq!(steps.len(), 2);
        assert_eq!((busiest(journal), busiest("")), (Some(7), None));
        assert_eq!((steps[1]["ms"].as_f64(), steps[1]["faults"].as_f64()), (Some(2.0), Some(2.0)));
        assert_eq!((&steps[0]["phase"], &steps[0]["arena_bytes"]), (&json!("planned"), &json!(128)));
    }

    #[test]
    fn a_machine_has_processors_and_a_kernel() {
        let machine = machine();
        assert!(machine.contains("CPUs") && machine.contains("Linux "), "{machine}");
    }
}
