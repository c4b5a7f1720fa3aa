//! Plans generated problems and prints how good the plans are and how long they took, on one core:
//! `cargo run --release -p stepalloc-planner --example scale -- [--csv] [MOST] [SEEDS] [LEAST]` with the numbers of blocks.
//!
//! Times are CPU seconds where the system tells them (Linux), else by the clock. Every plan is verified.

use std::process::ExitCode;
use std::time::Instant;

use stepalloc_planner::generate::{self, Dice, Heap};
use stepalloc_planner::{Block, Plan, Planner, Problem, verify};

/// Kinds of problems: a name, and the problem of so many blocks and a seed.
type Kind = (&'static str, fn(usize, u64) -> Problem);

const KINDS: [Kind; 15] = [
    ("malloc-like", generate::malloc_like),
    ("malloc, exponential", exponential),
    ("malloc, short-lived", |count, seed| heap(count, seed, 10, 14, 9, 10)),
    ("malloc, small only", |count, seed| heap(count, seed, 25, 18, 20, 0)),
    ("malloc, more large", |count, seed| heap(count, seed, 50, 13, 30, 100)),
    ("malloc, unordered", |count, seed| unordered(generate::malloc_like(count, seed), 1)),
    ("malloc, nanoseconds", |count, seed| unordered(generate::malloc_like(count, seed), 1_000)),
    ("training-like", generate::training_like),
    ("training, 1000 layers", |count, seed| generate::training(count, seed, 1000)),
    ("training, one step", |count, seed| generate::training(count, seed, count / 5)),
    ("training, periodic", |count, seed| periodic(generate::training_like(count, seed))),
    ("crossing", generate::crossing),
    ("crossing, uniform", generate::uniform),
    ("perfect", generate::perfect),
    ("laminar", generate::laminar),
];

fn heap(count: usize, seed: u64, lasting: u64, longest: u64, medium: u64, large: u64) -> Problem {
    generate::heap(count, seed, Heap { lasting, longest, medium, large })
}

/// Lifetimes of exponential length, a hundredth of all on average, and sizes of every order of magnitude from 16 bytes to
/// 64 KiB alike: a heap in which nothing is large.
fn exponential(count: usize, seed: u64) -> Problem {
    let mut dice = Dice::new(seed);
    let mean = (count as u64 / 100).max(1);
    let block = |id: u64| {
        // Whole means by tosses that fail at 1 / e, the rest even: in steps, but with that distribution's tail.
        let mut length = 1 + dice.below(mean);
        while dice.below(1 << 32) < E_TH {
            length += mean;
        }
        let base = 16 << dice.below(12);
        let size = base + dice.below(base) / 16 * 16;
        Block { id, lower: id, upper: id + length, size, align: 16 }
    };
    Problem::new((0..count as u64).map(block).collect())
}

/// 2^32 / e.
const E_TH: u64 = 1_580_030_169;

/// The same with its blocks backward, and so many moments to an event.
fn unordered(mut problem: Problem, moments: u64) -> Problem {
    problem.blocks.reverse();
    for block in &mut problem.blocks {
        (block.lower, block.upper) = (block.lower * moments, block.upper * moments);
    }
    problem
}

/// The same on a circle that begins in the middle of it.
fn periodic(problem: Problem) -> Problem {
    let period = problem.blocks.iter().map(|block| block.upper).max().unwrap_or(1);
    let turn = |block: &Block| {
        let lower = (block.lower + period / 2) % period;
        Block { lower, upper: lower + block.length(), ..*block }
    };
    Problem::new(problem.blocks.iter().map(turn).collect()).with_period(period)
}

/// CPU seconds of this process; where the system does not tell them, seconds since it began.
#[cfg(target_os = "linux")]
fn seconds(_: Instant) -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

#[cfg(not(target_os = "linux"))]
fn seconds(began: Instant) -> f64 {
    began.elapsed().as_secs_f64()
}

/// What was measured.
struct Row {
    name: &'static str,
    seed: u64,
    blocks: usize,
    bound: u64,
    plan: Plan,
    /// CPU seconds of the bound, and of the plan.
    bounding: f64,
    planning: f64,
}

impl Row {
    fn print(&self, csv: bool) {
        let Row { name, seed, blocks, bound, plan, bounding, planning } = self;
        let ratio = plan.height as f64 / *bound as f64;
        if csv {
            // The columns of benches/planner.py.
            let alone = "lower bound alone";
            println!("\"{name}\",seed {seed},{alone},{blocks},,,{bound},,,{bounding:.4}");
            let proof = if plan.optimal() { "load" } else { "" };
            println!(
                "\"{name}\",seed {seed},stepalloc,{blocks},,{},{bound},{ratio:.6},{proof},{planning:.4}",
                plan.height
            );
        } else {
            println!(
                "{name:<22} {blocks:>8} {seed:>4} {ratio:>8.4} {bounding:>8.4} {planning:>8.4}  {}",
                plan.algorithm
            );
        }
    }
}

/// Plans and verifies one problem.
fn measure(name: &'static str, problem: &Problem, seed: u64, began: Instant) -> Result<Row, String> {
    let start = seconds(began);
    let bound = problem.lower_bound().bytes;
    let bounding = seconds(began) - start;
    let start = seconds(began);
    let plan = Planner::new().plan(problem).map_err(|error| error.to_string())?;
    let planning = seconds(began) - start;
    verify(problem, &plan.offsets, plan.height).map_err(|violation| violation.to_string())?;
    Ok(Row { name, seed, blocks: problem.blocks.len(), bound, plan, bounding, planning })
}

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let csv = arguments.iter().any(|argument| argument == "--csv");
    arguments.retain(|argument| argument != "--csv");
    let number = |at: usize, default| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (most, seeds, least) = (number(0, 1_000_000), number(1, 3), number(2, 100));
    let began = Instant::now();
    if !csv {
        println!(
            "{:<22} {:>8} {:>4} {:>8} {:>8} {:>8}  algorithm",
            "kind", "blocks", "seed", "ratio", "bound s", "plan s"
        );
    }
    let mut code = ExitCode::SUCCESS;
    let mut count = least;
    while count <= most {
        for (name, kind) in KINDS {
            for seed in 1..=seeds as u64 {
                match measure(name, &kind(count, seed), seed, began) {
                    Ok(row) => row.print(csv),
                    Err(error) => {
                        eprintln!("{name} of {count} blocks, seed {seed}: {error}");
                        code = ExitCode::FAILURE;
                    }
                }
            }
        }
        count *= 10;
    }
    code
}
