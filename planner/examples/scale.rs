//! Plans generated problems and prints how good the plans are and how long they took, on one core:
//! `cargo run --release -p stepalloc-planner --example scale -- [MOST] [SEEDS] [LEAST]` with the numbers of blocks.
//!
//! Times are CPU seconds where the system tells them (Linux), else by the clock. Every plan is verified.

use std::process::ExitCode;
use std::time::Instant;

use stepalloc_planner::generate::{self, Heap};
use stepalloc_planner::{Block, Planner, Problem, verify};

/// Kinds of problems: a name, and the problem of so many blocks and a seed.
type Kind = (&'static str, fn(usize, u64) -> Problem);

const KINDS: [Kind; 14] = [
    ("malloc-like", generate::malloc_like),
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

/// CPU seconds of this process, or seconds since it began.
fn seconds(began: Instant) -> f64 {
    let nanoseconds = std::fs::read_to_string("/proc/self/schedstat")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    nanoseconds.map_or_else(|| began.elapsed().as_secs_f64(), |count| count as f64 * 1e-9)
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| arguments.next().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (most, seeds, least) = (number(1_000_000), number(3), number(100));
    let (mut code, began) = (ExitCode::SUCCESS, Instant::now());
    println!(
        "{:<22} {:>8} {:>4} {:>8} {:>8} {:>8}  algorithm",
        "kind", "blocks", "seed", "ratio", "load s", "plan s"
    );
    let mut count = least;
    while count <= most {
        for (name, kind) in KINDS {
            for seed in 1..=seeds as u64 {
                let problem = kind(count, seed);
                let start = seconds(began);
                let load = problem.load();
                let loading = seconds(began) - start;
                let start = seconds(began);
                let plan = match Planner::new().plan(&problem) {
                    Ok(plan) => plan,
                    Err(error) => {
                        eprintln!("{name}: {error}");
                        return ExitCode::FAILURE;
                    }
                };
                let planning = seconds(began) - start;
                let ratio = plan.height as f64 / load.max as f64;
                println!(
                    "{name:<22} {:>8} {seed:>4} {ratio:>8.4} {loading:>8.4} {planning:>8.4}  {}",
                    problem.blocks.len(),
                    plan.algorithm
                );
                if let Err(violation) = verify(&problem, &plan.offsets, plan.height) {
                    eprintln!("{name}: {violation}");
                    code = ExitCode::FAILURE;
                }
            }
        }
        count *= 10;
    }
    code
}
