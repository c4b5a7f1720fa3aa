//! `stepalloc plan`: its exit status, its figures and its errors; solutions are checked by a few lines of our own.

use crate::process::{self, Ended};
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

/// Runs `stepalloc plan INPUT OPTIONS`.
fn plan(input: &Path, options: &[&str]) -> Ended {
    let mut command: Command = process::stepalloc(["plan"]);
    command.arg(input).args(options);
    process::finish(&mut command)
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
    let Some(instances) = process::shared("instances") else { return };
    let figures = figures(&instances.join("A.1048576.csv"));
    for key in ["buffers", "height", "lower_bound", "ratio", "cpu_seconds"] {
        assert!(figures[key].is_number(), "{key} in {figures}");
    }
    assert!(figures["optimal"].is_boolean() && figures["algorithm"].is_string(), "{figures}");
}

#[test]
fn solutions_of_the_instances_are_valid_and_as_high_as_told() {
    let Some(instances) = process::shared("instances") else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let output = directory.path().join("solution.csv");
    for name in ["A.1048576", "B.1048576", "C.1048576", "D.1048576", "E.1048576", "F.1048576", "resnet50"] {
        let input = instances.join(format!("{name}.csv"));
        let options = ["--output", output.to_str().expect("UTF-8"), "--json", "-"];
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
    plan(&input, &["--period", "10", "--output", output.to_str().expect("UTF-8")]).with_status(0);
    let solved = rows(&std::fs::read_to_string(&output).expect("a solution"));
    assert_eq!(checked_height(&solved.values().collect::<Vec<_>>(), Some(10)), 200);
}

#[test]
fn a_capacity_below_the_bound_is_status_3() {
    let (directory, input) = file("id,lower,upper,size\na,0,2,10\nb,1,3,10\n");
    let output = directory.path().join("solution.csv");
    let options = ["--output", output.to_str().expect("UTF-8"), "--capacity"];
    let ended = plan(&input, &[&options[..], &["19"]].concat()).with_status(3);
    assert!(ended.ours()[0].contains("19 bytes"), "{}", ended.err());
    assert!(!output.exists(), "a plan that does not fit was written");
    plan(&input, &[&options[..], &["20"]].concat()).with_status(0);
    assert!(output.exists());
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
fn file(content: impl AsRef<[u8]>) -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("input.csv");
    std::fs::write(&path, content).expect("written");
    (directory, path)
}

/// The content is refused with status 2 and one line: the file, the number of the line that is wrong (0: the file as
/// a whole), and the word.
#[track_caller]
fn refused(content: impl AsRef<[u8]>, line: usize, word: &str) {
    let (_directory, path) = file(content);
    refused_file(&path, line, word);
}

#[track_caller]
fn refused_file(path: &Path, line: usize, word: &str) {
    let ended = plan(path, &[]).with_status(2);
    assert_eq!(ended.out(), "");
    let [said] = ended.ours()[..] else { panic!("not one line: {}", ended.err()) };
    let place = if line == 0 { path.display().to_string() } else { format!("{}:{line}: ", path.display()) };
    assert!(said.contains(&place), "{place} is not in: {said}");
    assert!(said.contains(word), "{word} is not in: {said}");
}

const HEADER: &str = "id,lower,upper,size\n";

#[test]
fn an_empty_file_is_refused() {
    refused("", 0, "empty");
}

#[test]
fn a_header_alone_is_refused() {
    refused(HEADER, 0, "no buffers");
}

#[test]
fn a_missing_column_is_named_with_its_line() {
    refused("id,lower,size\n0,1,2\n", 1, "upper");
}

#[test]
fn a_missing_cell_is_named_with_its_line() {
    refused(format!("{HEADER}0,1,2,3\n1,2,3\n"), 3, "");
}

#[test]
fn text_in_place_of_a_number_is_named_with_its_line() {
    refused(format!("{HEADER}0,1,2,3\n1,2,x,4\n"), 3, "\"x\" is not a number");
    refused(format!("{HEADER}0,1,2,-3\n"), 2, "\"-3\" is not a number");
}

#[test]
fn a_lifetime_that_ends_before_it_begins_is_named_with_its_line() {
    refused(format!("{HEADER}0,1,2,3\n1,5,4,3\n"), 3, "");
}

#[test]
fn numbers_beyond_64_bits_are_named_with_their_line() {
    refused(format!("{HEADER}0,1,2,18446744073709551616\n"), 2, "18446744073709551616");
}

#[test]
fn sizes_that_add_up_beyond_64_bits_are_named_with_their_line() {
    refused(format!("{HEADER}0,1,2,18446744073709551615\n1,5,6,1\n"), 3, "overflow");
}

#[test]
fn an_id_that_comes_twice_is_named_with_its_line() {
    refused(format!("{HEADER}a,1,2,3\nb,1,2,3\na,4,5,6\n"), 4, "\"a\"");
}

#[test]
fn bytes_that_are_no_text_are_named_with_their_line() {
    refused(b"id,lower,upper,size\n0,1,2,3\n\xff\xfe,1,2,3\n", 3, "UTF-8");
}

#[test]
fn a_truncated_gzip_file_is_refused() {
    let Some(instances) = process::shared("instances") else { return };
    let whole = std::fs::read(instances.join("S_1.csv.gz")).expect("read");
    refused(&whole[..whole.len() / 2], 0, "cannot be read after line");
}

#[test]
fn a_directory_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    refused_file(directory.path(), 0, "directory");
}

#[test]
fn a_missing_file_is_refused() {
    refused_file(Path::new("/no/such/file.csv"), 0, "No such file");
}

#[test]
fn a_bad_line_of_a_trace_is_named() {
    let head = "# memtrace v1 name=x min=4096 steps=1 threads=1 columns=op,thread,id,size,align\n";
    refused(format!("{head}S,0,0,0,0\na,0,1,40000,0\nz,0,1,,\nS,0,1,0,0\n"), 4, "z");
    refused(format!("{head}S,0,0,0,0\nf,0,7,,\nS,0,1,0,0\n"), 3, "7");
    refused(format!("{head}S,0,0,0,0\na,0,1,40000,3\nS,0,1,0,0\n"), 3, "3");
}

#[test]
fn a_trace_without_a_whole_step_is_refused() {
    refused("# memtrace v1 name=x\nS,0,0,0,0\na,0,1,40000,0\n", 0, "no complete step");
}

#[test]
fn bad_options_are_refused() {
    let (_directory, input) = file("id,lower,upper,size\na,0,2,10\n");
    for options in [["--capacity", "1MB"], ["--time-limit", "0"], ["--period", "x"], ["--nonsense", "1"]] {
        let ended = plan(&input, &options).with_status(2);
        assert!(ended.err().contains(options[0]), "{options:?}: {}", ended.err());
    }
}
