//! `stepalloc plan`: its exit status, its figures and its errors; solutions are checked by a few lines of our own.

use crate::process::{self, Ended};
use serde_json::Value;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

mod constraints;
mod limits;
mod refused;

/// Runs `stepalloc plan INPUT OPTIONS`.
fn plan(input: &Path, options: &[&str]) -> Ended {
    let mut command: Command = process::stepalloc(["plan"]);
    command.arg(input).args(options);
    process::finish(&mut command)
}

/// Runs `stepalloc plan - OPTIONS` with this file for standard input.
fn plan_standard_input(input: &Path, options: &[&str]) -> Ended {
    let mut command: Command = process::stepalloc(["plan", "-"]);
    command.args(options).stdin(File::open(input).expect("opened"));
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    process::await_end(child, "stepalloc plan -")
}

/// The path as an argument.
fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// The figures of a plan.
fn figures(input: &Path) -> Value {
    let ended = plan(input, &["--json", "-"]).with_status(0);
    serde_json::from_str(ended.out()).unwrap_or_else(|error| panic!("{error}: {}", ended.out()))
}

/// A row of a CSV file.
struct Block {
    lower: u64,
    upper: u64,
    size: u64,
    align: u64,
    offset: u64,
}

/// The rows of a file by their id; columns are found by name, and `offset` is 0 where there is none.
fn rows(text: &str) -> HashMap<String, Block> {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().expect("a header").split(',').collect();
    let mut rows = HashMap::new();
    for line in lines {
        let cells: Vec<&str> = line.split(',').collect();
        let cell = |name| names.iter().position(|n| *n == name).map(|at| cells[at]);
        let number = |name| cell(name).map_or(0, |text| text.parse().expect("a number"));
        let block = Block {
            lower: number("lower"),
            upper: number("upper"),
            size: number("size"),
            align: number("alignment").max(1),
            offset: number("offset"),
        };
        assert!(rows.insert(cell("id").expect("an id").to_owned(), block).is_none(), "an id twice: {line}");
    }
    rows
}

/// Fails where two blocks that are alive together share a byte, or one is misaligned; the plan's height. Lifetimes wrap
/// round at the period, if there is one.
fn checked_height(blocks: &[&Block], period: Option<u64>) -> u64 {
    let mut pieces: Vec<(u64, u64, &Block)> = Vec::new();
    for &block in blocks {
        assert_eq!(block.offset % block.align, 0, "misaligned");
        match period {
            Some(period) if block.upper > period => {
                pieces.push((block.lower, period, block));
                pieces.push((0, block.upper - period, block));
            }
            _ => pieces.push((block.lower, block.upper, block)),
        }
    }
    pieces.sort_unstable_by_key(|piece| piece.0);
    let mut alive: Vec<(u64, &Block)> = Vec::new();
    for (lower, upper, block) in pieces {
        alive.retain(|(end, _)| *end > lower);
        for (_, other) in &alive {
            let apart =
                block.offset + block.size <= other.offset || other.offset + other.size <= block.offset;
            assert!(apart || block.size == 0 || other.size == 0, "two blocks share a byte at event {lower}");
        }
        if lower < upper {
            alive.push((upper, block));
        }
    }
    blocks.iter().map(|block| block.offset + block.size).max().unwrap_or(0)
}

#[test]
fn the_json_has_every_key_of_the_contract() {
    let (_directory, input) = file("id,lower,upper,size\na,0,2,10\nb,1,3,10\n");
    let figures = figures(&input);
    for (key, value) in [("buffers", 2), ("height", 20), ("lower_bound", 20)] {
        assert_eq!(figures[key], value, "{key} in {figures}");
    }
    assert!(figures["ratio"] == 1.0 && figures["cpu_seconds"].is_number(), "{figures}");
    assert!(figures["optimal"] == true && figures["proof"] == "load_bound", "{figures}");
    assert!(figures["algorithm"].is_string(), "{figures}");
}

#[test]
fn solutions_of_the_instances_are_valid_and_as_high_as_told() {
    let Some(instances) = process::shared("instances") else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let output = directory.path().join("solution.csv");
    for name in ["A.1048576", "B.1048576", "C.1048576", "D.1048576", "E.1048576", "F.1048576", "resnet50"] {
        let input = instances.join(format!("{name}.csv"));
        let options = ["--output", text(&output), "--json", "-"];
        let told: Value = serde_json::from_str(plan(&input, &options).with_status(0).out()).expect("JSON");
        let asked = rows(&std::fs::read_to_string(&input).expect("read"));
        let solved = rows(&std::fs::read_to_string(&output).expect("a solution"));
        assert_eq!(asked.len(), solved.len(), "{name}");
        for (id, block) in &asked {
            let same = &solved[id];
            let both = [(block.lower, block.upper, block.size), (same.lower, same.upper, same.size)];
            assert_eq!(both[0], both[1], "{name}: block {id}");
        }
        let height = checked_height(&solved.values().collect::<Vec<_>>(), None);
        assert_eq!(told["height"], height, "{name}");
        assert_eq!(told["buffers"], asked.len(), "{name}");
        let bound = told["lower_bound"].as_u64().expect("a number");
        assert!(bound <= height && (height > bound || told["optimal"] == true), "{name}: {told}");
    }
}

#[test]
fn gzipped_buffers_are_read() {
    let Some(instances) = process::shared("instances") else { return };
    let figures = figures(&instances.join("S_1.csv.gz"));
    assert_eq!(figures["buffers"], 28526);
    assert_eq!(figures["lower_bound"], 1_498_635_932u64);
}

#[test]
fn every_trace_is_planned_close_to_its_bound() {
    let Some(traces) = process::shared("traces") else { return };
    for entry in std::fs::read_dir(traces).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "gz") {
            continue;
        }
        let figures = figures(&path);
        let ratio = figures["ratio"].as_f64().expect("a number");
        assert!((1.0..=1.02).contains(&ratio), "{}: {figures}", path.display());
    }
}

#[test]
fn a_period_makes_lifetimes_wrap_round() {
    let (directory, input) = file("id,lower,upper,size\n0,0,6,100\n1,6,12,100\n2,3,6,50\n");
    let output = directory.path().join("solution.csv");
    let ended = plan(&input, &["--period", "10", "--output", text(&output)]).with_status(0);
    assert!(ended.out().contains("2 ordinary, 1 periodic"), "{}", ended.out());
    let solved = rows(&std::fs::read_to_string(&output).expect("a solution"));
    assert_eq!(checked_height(&solved.values().collect::<Vec<_>>(), Some(10)), 200);
    assert_eq!(solved["1"].upper, 12, "the lifetime is written back as it was read");
}

#[test]
fn a_dash_reads_standard_input() {
    let (_directory, input) = file("id,lower,upper,size\na,0,2,10\nb,1,3,10\n");
    let piped = plan_standard_input(&input, &["--output", "-"]).with_status(0);
    assert_eq!(piped.out(), plan(&input, &["--output", "-"]).with_status(0).out());
}

#[test]
fn the_summary_stays_off_a_standard_output_that_holds_a_result() {
    let (_directory, input) = file("id,lower,upper,size\na,0,2,10\n");
    let ended = plan(&input, &["--output", "-"]).with_status(0);
    assert_eq!(ended.out(), "id,lower,upper,size,offset\na,0,2,10,0\n");
    assert!(ended.err().contains("height       10 bytes\n"), "{}", ended.err());
}

#[test]
fn an_output_that_cannot_be_written_is_named() {
    let (_directory, input) = file("id,lower,upper,size\na,0,2,10\n");
    for option in ["--output", "--json"] {
        let ended = plan(&input, &[option, "/no/such/directory/f"]).with_status(2);
        assert!(ended.ours()[0].contains("/no/such/directory/f"), "{option}: {}", ended.err());
    }
}

/// A file of this content, and the directory that holds it.
fn file(content: impl AsRef<[u8]>) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("input.csv");
    std::fs::write(&path, content).expect("written");
    (directory, path)
}

#[test]
fn results_that_would_overwrite_each_other_or_the_input_are_refused() {
    let content = "id,lower,upper,size\na,0,2,10\n";
    let (directory, input) = file(content);
    let (plain, dotted) = (directory.path().join("f"), directory.path().join("./f"));
    let twice = ["--output", text(&plain), "--json", text(&dotted)];
    let ended = plan(&input, &twice).with_status(2);
    assert!(ended.ours()[0].contains("different files"), "{}", ended.err());
    for option in ["--output", "--json"] {
        let ended = plan(&input, &[option, text(&input)]).with_status(2);
        assert!(ended.ours()[0].contains(option) && ended.ours()[0].contains("the input"), "{}", ended.err());
        assert_eq!(std::fs::read_to_string(&input).expect("read"), content);
    }
    plan(&input, &["--output", "/dev/null", "--json", "/dev/null"]).with_status(0);
}

#[test]
fn bad_options_are_refused() {
    let (_directory, input) = file("id,lower,upper,size\na,0,2,10\n");
    let options = [
        ["--capacity", "1MB"],
        ["--time-limit", "0"],
        ["--time-limit", "nan"],
        ["--period", "x"],
        ["--threads", "0"],
        ["--threads", "5"],
        ["--seed", "junk"],
        ["--seed", "-1"],
        ["--capacity", "-1"],
        ["--nonsense", "1"],
    ];
    for options in options {
        let ended = plan(&input, &options).with_status(2);
        assert!(ended.err().contains(options[0]), "{options:?}: {}", ended.err());
    }
}

#[test]
fn options_for_another_kind_of_input_are_named() {
    let (_directory, buffers) = file("id,lower,upper,size\na,0,2,10\n");
    let (_directory, trace) = file(
        "# memtrace v1 name=x min=4096 steps=1 threads=1 columns=op,thread,id,size,align\nS,0,0,0,0\na,0,1,40000,0\nf,0,1,,\nS,0,1,0,0\n",
    );
    plan(&trace, &[]).with_status(0);
    let cases: [(&Path, &[&str]); 4] = [
        (&buffers, &["--min-bytes", "1"]),
        (&buffers, &["--fix-offsets"]),
        (&trace, &["--period", "10"]),
        (&trace, &["--fix-offsets"]),
    ];
    for (input, options) in cases {
        let ended = plan(input, options).with_status(2);
        assert!(ended.ours()[0].contains(options[0]), "{options:?}: {}", ended.err());
        assert!(ended.ours()[0].contains("leave it out"), "{options:?}: {}", ended.err());
    }
}
