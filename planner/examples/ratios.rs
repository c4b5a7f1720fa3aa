//! Plans files and prints ratio and time of each: `cargo run --release -p stepalloc-planner --example ratios -- FILE...`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use stepalloc_planner::{Buffers, Counts, Effort, Input, Planner, Within, generate, read_any, verify};

fn main() -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    let mut planner = Planner::new();
    let mut within = false;
    println!(
        "{:<28} {:>6} {:>7} {:>6} {:>5} {:>8} {:>14} {:>10}  algorithm",
        "file", "min", "blocks", "period", "held", "ratio", "height", "ms"
    );
    for path in std::env::args().skip(1) {
        match path.as_str() {
            "--quick" => planner = Planner::quick(),
            "--thorough" => planner = Planner::new().effort(Effort::Thorough),
            "--minute" => {
                planner = Planner::new().effort(Effort::Endless).time_limit(Some(Duration::from_secs(60)));
            }
            "--within" => within = true,
            _ if path.starts_with("--seed=") => {
                planner = planner.seed(path["--seed=".len()..].parse().unwrap_or(0))
            }
            _ if path.starts_with("random:") => {
                let count = path["random:".len()..].parse().unwrap_or(1000);
                let problem = generate::crossing(count, 1);
                show(
                    &Input::Buffers(Buffers { name: path, problem, ..Buffers::default() }),
                    0,
                    &planner,
                    within,
                );
            }
            _ => {
                for min in [32768, 4096] {
                    match read_any(&path, min) {
                        Ok(input) => {
                            show(&input, min, &planner, within);
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

fn show(input: &Input, min: u64, planner: &Planner, within: bool) {
    let problem = input.problem();
    let counts = match input {
        Input::Trace { steps, .. } => Counts::of_steps(steps),
        Input::Buffers(_) => Counts::of(problem),
    };
    let start = Instant::now();
    let planned = if within {
        let capacity = input.name().rsplit('.').next().and_then(|text| text.parse().ok());
        planner.plan_within(problem, capacity.unwrap_or(0)).map(Within::into_plan)
    } else {
        planner.plan(problem)
    };
    match planned {
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
                if plan.optimal() { format!("{}; optimal", plan.algorithm) } else { plan.algorithm.clone() }
            );
            if let Err(violation) = verify(problem, &plan.offsets, plan.height) {
                println!("    WRONG: {violation}");
            }
        }
        Err(error) => println!("{}: {error}", input.name()),
    }
}
