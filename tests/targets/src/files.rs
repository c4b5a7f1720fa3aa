//! What the planner reads: buffers as CSV and traces, plain or gzip'ed.

use crate::memory::within;
use crate::plans;
use flate2::bufread::MultiGzDecoder;
use std::fmt::Write as _;
use std::io::{Cursor, Read};
use stepalloc_planner::trace::{COLUMNS, COLUMNS_WITH_SITES, MAGIC};
use stepalloc_planner::{Block, Buffers, Constraints, Event, Input, Problem, Trace, read_from};

/// Larger texts are not read here: a gzip'ed file of some kilobytes may hold a gigabyte, which takes its time.
const MOST_BYTES: usize = 1 << 20;
/// A line of five bytes becomes an event, a block, or a gap of 48 bytes in a vector that doubles, with its share of tables.
const TIMES: usize = 64;
/// The reader's own buffers.
const BASE: usize = 512 << 10;
/// Messages are for people.
const MOST_OF_A_MESSAGE: usize = 1000;

/// Buffers: what was read is written and read the same, plans keep the rules, a solution is read as it was written.
pub fn buffers(data: &[u8]) {
    file(data);
}

/// Traces: what was read is written and read the same, and the needs of the steps are planned.
pub fn trace(data: &[u8]) {
    file(data);
}

fn file(data: &[u8]) {
    let Some(bytes) = text_bytes(data).filter(|&bytes| bytes <= MOST_BYTES) else { return };
    let content = data.to_vec();
    match within(bytes, TIMES, BASE, || read_from(Cursor::new(content), "file.csv", 4096)) {
        Ok(Input::Buffers(read)) => buffers_hold(&read),
        Ok(Input::Trace { trace, steps }) => trace_holds(trace, &steps.problem),
        Err(error) => {
            let text = error.to_string();
            let is_tidy = text.len() <= MOST_OF_A_MESSAGE && !text.chars().any(char::is_control);
            assert!(text.starts_with("file.csv") && is_tidy, "{} bytes: {text:?}", text.len());
        }
    }
}

/// Bytes of the text; `None` where they are more than is read here, or cannot be unzipped.
fn text_bytes(data: &[u8]) -> Option<usize> {
    if !data.starts_with(&[0x1f, 0x8b]) {
        return Some(data.len());
    }
    let most = MOST_BYTES as u64 + 1;
    let mut unzipped = MultiGzDecoder::new(data).take(most);
    let mut total = 0;
    let mut buffer = [0; 4096];
    loop {
        match unzipped.read(&mut buffer) {
            // What is damaged is read until there.
            Ok(0) | Err(_) => return Some(total + data.len()),
            Ok(read) => total += read,
        }
        if total as u64 >= most {
            return None;
        }
    }
}

fn read_again(text: Vec<u8>) -> Input {
    let shown = String::from_utf8_lossy(&text).into_owned();
    read_from(Cursor::new(text), "file.csv", 4096)
        .unwrap_or_else(|error| panic!("{error}, written as\n{shown}"))
}

fn buffers_again(text: Vec<u8>) -> Buffers {
    let Input::Buffers(again) = read_again(text) else { panic!("buffers were written") };
    again
}

/// Whether what is written has lines that are too long to be read: long ids and many gaps may need more digits than they had.
fn is_long(text: &[u8]) -> bool {
    text.split(|&byte| byte == b'\n').any(|line| line.len() >= 64 << 10)
}

fn buffers_hold(read: &Buffers) {
    assert_eq!(read.problem.check(), Ok(()));
    let mut text = Vec::new();
    read.write_problem(&mut text).expect("memory takes every write, and ids that were named can be");
    if is_long(&text) {
        return;
    }
    let again = buffers_again(text);
    assert_eq!(sorted(&again.problem), sorted(&read.problem));
    assert_eq!((&again.ids, &again.offsets), (&read.ids, &None));
    if let Some(plan) = plans::plan(&read.problem) {
        let mut text = Vec::new();
        read.write(&mut text, &plan).expect("as above");
        if is_long(&text) {
            return;
        }
        let mut solution = buffers_again(text);
        assert_eq!(solution.offsets.as_ref(), Some(&plan.offsets));
        // Offsets that are asked for make room for alignments twice.
        let room = |block: &Block| u128::from(block.size) + 2 * u128::from(block.align);
        let fixed = solution.fix_offsets();
        let is_vast = solution.problem.blocks.iter().map(room).sum::<u128>() >= 1 << 62;
        assert!(fixed.is_ok() || is_vast, "a plan cannot be asked for: {fixed:?}");
    }
}

/// The problem with its constraints in one order.
fn sorted(problem: &Problem) -> Problem {
    let Constraints { mut fixed, mut gaps, mut inside, in_place } = problem.constraints.clone();
    fixed.sort_by_key(|fixed| fixed.block);
    gaps.sort_by_key(|gap| (gap.block, gap.lower));
    inside.sort_by_key(|view| view.block);
    Problem { constraints: Constraints { fixed, gaps, inside, in_place }, ..problem.clone() }
}

fn trace_holds(read: Trace, needs: &Problem) {
    let text = text_of(&read);
    let Input::Trace { trace: again, steps } = read_again(text.into_bytes()) else {
        panic!("a trace was written")
    };
    // Events after the last boundary are counted only.
    assert_eq!(again, Trace { unfinished: 0, ..read });
    assert_eq!(&steps.problem, needs);
    plans::plan(needs);
}

/// A trace as its file.
fn text_of(trace: &Trace) -> String {
    let columns = if trace.sites.is_empty() { COLUMNS } else { COLUMNS_WITH_SITES };
    let mut text = format!(
        "{MAGIC} name={} min={} steps={} threads={} columns={columns}\n",
        trace.name,
        trace.min_bytes,
        trace.steps.len(),
        trace.threads
    );
    let mut line = |arguments: std::fmt::Arguments<'_>| {
        text.write_fmt(arguments).expect("memory takes every write");
        text.push('\n');
    };
    for (site, frames) in trace.sites.iter().enumerate().skip(1) {
        line(format_args!("# site {site} {frames}"));
    }
    for &(block, size) in &trace.already {
        line(format_args!("L,0,{block},{size},0"));
    }
    for (number, step) in trace.steps.iter().enumerate() {
        line(format_args!("S,0,{number},{},{}", step.calls, step.micros));
        let mut events = step.events.iter().zip(&step.callers).peekable();
        while let Some((event, caller)) = events.next() {
            let (thread, site) = (caller.thread, caller.site);
            match (*event, events.peek()) {
                (
                    Event::Free { block: from },
                    Some(&(&Event::Allocate { block, size, align, moved_from }, _)),
                ) if moved_from == Some(from) => {
                    line(format_args!("r,{thread},{block},{size},{align},{site}"));
                    events.next();
                }
                (Event::Free { block }, _) => line(format_args!("f,{thread},{block},,,{site}")),
                (Event::Allocate { block, size, align, .. }, _) => {
                    line(format_args!("a,{thread},{block},{size},{align},{site}"));
                }
            }
        }
    }
    line(format_args!("S,0,{},0,{}", trace.steps.len(), trace.end_micros));
    text
}
