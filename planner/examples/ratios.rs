//! Plans files and prints ratio and time of each: `cargo run --release -p stepalloc-planner --example ratios -- FILE...`.

use std::process::ExitCode;
use std::time::Instant;

use stepalloc_planner::{Buffers, Counts, Effort, Input, Planner, generate, read_any, verify};

fn main() -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    let mut planner = Planner::new();
    println!(
        "{:<28} {:>6} {:>7} {:>6} {:>5} {:>8} {:>14} {:>10}  algorithm",
        "file", "min", "blocks", "period", "held", "ratio", "height", "ms"
    );
    for path in std::env::args().skip(1) {
        match path.as_str() {
            "--quick" => planner = Planner::quick(),
            "--thorough" => planner = Planner::new().effort(Effort::Thorough),
            _ if path.starts_with("random:") => {
                let count = path["random:".len()..].parse().unwrap_or(1000);
                let problem = generate::crossing(count, 1);
                show(&Input::Buffers(Buffers { name: path, problem, ..Buffers::default() }), 0, planner);
            }
            _ => {
                for min in [32768, 4096] {
                    match read_any(&path, min) {
                        Ok(input) => {
                            show(&input, min, planner);
                            if matches!(input, Input::Buffers(_)) {
                                break;
                            }
                        }
                        Err(error) => {
                            eprintln!("{error}");
                            code = ExitCode::FAILURE;
                        }
                    }
                }
            }
        }
    }
    code
}

fn show(input: &Input, min: u64, planner: Planner) {
    let problem = input.problem();
    let counts = match input {
        Input::Trace { steps, .. } => Counts::of_steps(steps),
        Input::Buffers(_) => Counts::of(problem),
    };
    let start = Instant::now();
    match planner.plan(problem) {
        Ok(plan) => {
            let ms = start.elapsed().as_secs_f64() * 1e3;
            println!(
                "{:<28} {min:>6} {:>7} {:>6} {:>5} {:>8.5} {:>14} {ms:>10.2}  {}",
                input.name(),
                problem.blocks.len(),
                counts.periodic,
                counts.persistent,
                plan.ratio(),
                plan.height,
                plan.algorithm
            );
            if let Err(violation) = verify(problem, &plan.offsets, plan.height) {
                println!("    WRONG: {violation}");
            }
        }
        Err(error) => println!("{}: {error}", input.name()),
    }
}
