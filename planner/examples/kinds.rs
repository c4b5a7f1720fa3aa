//! What one plan for several kinds of steps needs, and one for each kind: a trace's steps, dealt out to so many kinds.
//!
//! `cargo run --release -p stepalloc-planner --example kinds -- KINDS FILE...`; 0 kinds: every step is one of its own.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::Instant;

use stepalloc_planner::trace::{self, Step};
use stepalloc_planner::{Event, Key, Kind, Planner, Steps, verify};

/// Blocks of fewer bytes are left out.
const MIN_BYTES: u64 = 4096;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(count) = arguments.next().and_then(|count| count.parse::<usize>().ok()) else {
        eprintln!("usage: kinds KINDS FILE...");
        return ExitCode::FAILURE;
    };
    let mut code = ExitCode::SUCCESS;
    println!(
        "{:<28} {:>5} {:>6} {:>6} {:>12} {:>8} {:>8} {:>9}  algorithm of the shared plan",
        "file", "kinds", "keys", "blocks", "bound", "shared", "alone", "ms"
    );
    for path in arguments {
        match trace::read(&path) {
            Ok(trace) => show(&trace.name, &kinds(&trace.steps, count)),
            Err(error) => {
                eprintln!("{error}");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}

fn show(name: &str, kinds: &[Kind<Key>]) {
    let begin = Instant::now();
    let plan = match Planner::new().plan_kinds(kinds) {
        Ok(plan) => plan,
        Err(error) => return println!("{name}: {error}"),
    };
    let ms = begin.elapsed().as_secs_f64() * 1e3;
    let bound = plan.alone_bound();
    let ratio = |height: u64| height as f64 / bound as f64;
    println!(
        "{name:<28} {:>5} {:>6} {:>6} {bound:>12} {:>8.5} {:>8.5} {ms:>9.1}  {}",
        kinds.len(),
        plan.keys.len(),
        kinds.iter().map(|kind| kind.keys.len()).sum::<usize>(),
        ratio(plan.shared.height),
        ratio(plan.alone_height()),
        plan.shared.algorithm
    );
    for kind in kinds {
        let offsets = plan.offsets(&kind.keys).unwrap_or_default();
        if let Err(violation) = verify(&kind.problem, &offsets, plan.shared.height) {
            println!("    WRONG: {violation}");
        }
    }
}

/// The needs of the steps after the first, each of the kind that is its number modulo `count`.
fn kinds(steps: &[Step], count: usize) -> Vec<Kind<Key>> {
    let warm = usize::from(steps.len() > 1);
    let count = if count == 0 { steps.len() - warm } else { count };
    let mut merged: Vec<Merged> = (0..count).map(|_| Merged::default()).collect();
    // Key and step of every block, as all kinds see it.
    let mut births: HashMap<u32, (Key, usize)> = HashMap::new();
    for (at, step) in steps.iter().enumerate().skip(warm) {
        let mut counts: HashMap<(u64, u64), u32> = HashMap::new();
        for event in &step.events {
            if let Event::Allocate { block, size, align, .. } = *event {
                let nth = counts.entry((size, align)).or_default();
                births.insert(block, (Key { size, align, nth: *nth }, at));
                *nth += 1;
            }
        }
        merged[(at - warm) % count].add(step, at, &births);
    }
    merged.into_iter().map(|merged| Kind::from(merged.steps.problem())).collect()
}

/// The steps of a kind, as though they followed each other: what a step of another kind left behind and this one frees,
/// the last step of this kind has left behind.
#[derive(Default)]
struct Merged {
    steps: Steps,
    /// The last block of every key.
    last: HashMap<Key, u32>,
}

impl Merged {
    fn add(&mut self, step: &Step, at: usize, births: &HashMap<u32, (Key, usize)>) {
        let mut events = Vec::with_capacity(step.events.len());
        let mut born = HashMap::new();
        for event in step.events.iter().filter(|event| match event {
            Event::Allocate { size, .. } => *size >= MIN_BYTES,
            Event::Free { .. } => true,
        }) {
            match *event {
                Event::Free { block } => match births.get(&block) {
                    Some(&(key, step)) if step < at => {
                        let left = self.last.get(&key).copied();
                        events.extend(left.map(|block| Event::Free { block }));
                    }
                    _ => events.push(*event),
                },
                Event::Allocate { block, .. } => {
                    born.extend(births.get(&block).map(|&(key, _)| (key, block)));
                    events.push(*event);
                }
            }
        }
        self.last.extend(born);
        self.steps.step(events);
    }
}
