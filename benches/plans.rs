//! Instructions of the planner, counted by callgrind: of the load of generated problems, and of quick plans of them.
//! `cargo bench --bench plans` says what is different since it was run last; `instructions.py` makes the table of them.

// The macros make modules that nobody reads, and paths that are longer than they need be.
#![allow(missing_docs, unused_qualifications)]

use std::hint::black_box;

use gungraun::{Callgrind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main};
use stepalloc_planner::generate;
use stepalloc_planner::{Load, Planner, Problem};

#[library_benchmark]
#[bench::malloc_like_1000(setup = generate::malloc_like, args = (1_000, 1))]
#[bench::malloc_like_10000(setup = generate::malloc_like, args = (10_000, 1))]
#[bench::training_like_1000(setup = generate::training_like, args = (1_000, 1))]
#[bench::training_like_10000(setup = generate::training_like, args = (10_000, 1))]
#[bench::crossing_1000(setup = generate::crossing, args = (1_000, 1))]
#[bench::crossing_10000(setup = generate::crossing, args = (10_000, 1))]
fn quick_plan(problem: Problem) -> u64 {
    black_box(Planner::quick().plan(black_box(&problem))).map_or(0, |plan| plan.height)
}

#[library_benchmark]
#[bench::malloc_like_10000(setup = generate::malloc_like, args = (10_000, 1))]
#[bench::training_like_10000(setup = generate::training_like, args = (10_000, 1))]
#[bench::crossing_10000(setup = generate::crossing, args = (10_000, 1))]
fn load(problem: Problem) -> Load {
    black_box(&problem).load()
}

library_benchmark_group!(name = plans, benchmarks = [quick_plan, load]);

main!(
    config = LibraryBenchmarkConfig::default()
        .tool(Callgrind::with_args(["--cache-sim=no", "--separate-threads=no"])),
    library_benchmark_groups = plans
);
