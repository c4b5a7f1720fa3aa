//! Instructions of allocate/free pairs, counted by callgrind: the same on every machine with these libraries, whatever else
//! it does. `instructions.py` makes the table of them; alone, `cargo bench --bench instructions` says what is different since
//! it was run last.
//!
//! Each case is a process of `pairs.rs`. Small blocks are counted over more pairs, because the backends' own housekeeping
//! comes every few hundred of them. A planned block costs more the more words the states of its cells lie in: one where
//! nothing else of the plan cuts its slot, two for 40 cells, three for 80.

// The macros make modules that nobody reads.
#![allow(missing_docs)]

use std::path::PathBuf;

use gungraun::{
    Bench, BinaryBenchmark, BinaryBenchmarkConfig, BinaryBenchmarkGroup, Callgrind, Command,
    binary_benchmark_group, main,
};

const BACKENDS: [&str; 3] = ["glibc", "jemalloc", "mimalloc"];
/// Bytes, phase, and cells under the block.
const CASES: [(usize, &str, usize); 8] = [
    (64, "waiting", 0),
    (64, "planned", 0),
    (1 << 10, "waiting", 0),
    (1 << 10, "planned", 0),
    (64 << 10, "planned", 1),
    (1 << 20, "planned", 1),
    (5 << 19, "planned", 40),
    (5 << 20, "planned", 80),
];

fn pairs_of(size: usize) -> u64 {
    if size < 32 << 10 { 50_000 } else { 5_000 }
}

/// The library to preload, which cargo has put beside this bench's folder.
fn library() -> PathBuf {
    let bench = std::env::current_exe().expect("a bench knows its own path");
    let folder = bench.parent().and_then(|deps| deps.parent()).expect("target/release/deps");
    folder.join("libstepalloc.so")
}

/// One process: `pairs WAY BACKEND SIZE PHASE COUNT`, named so that `instructions.py` can take it apart.
fn case(way: &str, backend: &str, (size, phase, cells): (usize, &str, usize)) -> Bench {
    let (count, start) = (pairs_of(size), if phase == "waiting" { "1000000" } else { "1" });
    let mut command = Command::new(env!("CARGO_BIN_EXE_pairs"));
    command.args([way, backend, &size.to_string(), phase, &count.to_string()]);
    command.env("STABLE_STATISTIC_STEP", "1").env("START_STATISTIC_STEP", start);
    command.env("STEPALLOC_BACKEND", backend).env("CELLS", cells.to_string());
    if way == "c" {
        command.env("LD_PRELOAD", library());
    }
    let way = way.replace('-', "_");
    let mut bench = Bench::new(format!("{way}__{backend}__{size}__{phase}__{cells}__{count}"));
    bench.command(command);
    bench
}

fn all(group: &mut BinaryBenchmarkGroup) {
    let mut benchmark = BinaryBenchmark::new("pair");
    for way in ["rust", "c"] {
        benchmark.bench(case("nothing", way, (64, "waiting", 0)));
    }
    for backend in BACKENDS {
        for (way, bare) in [("rust", "bare"), ("c", "bare-c")] {
            let mut sizes: Vec<usize> = CASES.iter().map(|case| case.0).collect();
            sizes.dedup();
            for size in sizes {
                benchmark.bench(case(bare, backend, (size, "waiting", 0)));
            }
            for of in CASES {
                benchmark.bench(case(way, backend, of));
            }
        }
    }
    group.binary_benchmark(benchmark);
}

binary_benchmark_group!(name = pairs, benchmarks = |group: &mut BinaryBenchmarkGroup| all(group));

main!(
    config = BinaryBenchmarkConfig::default().tool(Callgrind::with_args([
        "--toggle-collect=measured_pairs",
        "--cache-sim=no",
        "--separate-threads=no",
        "--trace-children=no",
    ])),
    binary_benchmark_groups = pairs
);
