//! How much of a file's blocks a small fast arena takes, by its share of the load.
//!
//! `cargo run --release -p stepalloc-planner --example arenas -- FILE...`

use std::process::ExitCode;
use std::time::Instant;

use stepalloc_planner::{Arena, Planner, Problem, read_any, verify_arenas};

/// Blocks of fewer bytes are left out of traces.
const MIN_BYTES: u64 = 4096;

fn main() -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    println!(
        "{:<28} {:>6} {:>6} {:>8} {:>8} {:>8} {:>8} {:>9}",
        "file", "blocks", "fast", "filled", "slow", "sum", "traffic", "ms"
    );
    for path in std::env::args().skip(1) {
        match read_any(&path, MIN_BYTES) {
            Ok(input) => {
                for percent in [25, 50, 75, 100] {
                    show(input.name(), input.problem(), percent);
                }
            }
            Err(error) => {
                eprintln!("{error}");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}

/// Heights in parts of the load; traffic is the part of all bytes times events that lies in the fast arena.
fn show(name: &str, problem: &Problem, percent: u64) {
    let load = problem.load().max;
    let capacity = (u128::from(load) * u128::from(percent) / 100) as u64;
    let arenas = [Arena::new("fast", capacity), Arena::new("slow", None)];
    let begin = Instant::now();
    let plan = match Planner::new().plan_arenas(problem, &arenas, &[]) {
        Ok(plan) => plan,
        Err(error) => return println!("{name}: {error}"),
    };
    let ms = begin.elapsed().as_secs_f64() * 1e3;
    let part = |bytes: u64| bytes as f64 / load as f64;
    let (mut all, mut fast) = (0.0, 0.0);
    for (block, place) in problem.blocks.iter().zip(&plan.places) {
        let area = block.size as f64 * block.length() as f64;
        all += area;
        fast += if place.arena == 0 { area } else { 0.0 };
    }
    let (first, second) = (plan.used[0].height, plan.used[1].height);
    println!(
        "{name:<28} {:>6} {percent:>5}% {:>8.4} {:>8.4} {:>8.4} {:>8.4} {ms:>9.1}",
        problem.blocks.len(),
        part(first),
        part(second),
        part(first + second),
        fast / all
    );
    if let Err(violation) = verify_arenas(problem, &arenas, &[], &plan) {
        println!("    WRONG: {violation}");
    }
}
