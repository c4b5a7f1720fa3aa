//! Files that `stepalloc plan` refuses: each with one line that says where and what, and nothing is left behind.

use std::path::Path;

use super::{file, plan, plan_standard_input, text};
use crate::process;

/// The content is refused with status 2 and one line: the file, the number of the line that is wrong (0: the file as
/// a whole), and the word.
#[track_caller]
fn refused(content: impl AsRef<[u8]>, line: usize, word: &str) {
    let (_directory, path) = file(content);
    refused_file(&path, line, word);
}

#[track_caller]
fn refused_file(path: &Path, line: usize, word: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    let (output, json) = (directory.path().join("solution.csv"), directory.path().join("figures"));
    let ended = plan(path, &["--output", text(&output), "--json", text(&json)]).with_status(2);
    assert_eq!(ended.out(), "");
    let [said] = ended.ours()[..] else { panic!("not one line: {}", ended.err()) };
    assert_eq!(ended.err().lines().count(), 1, "{}", ended.err());
    let place =
        if line == 0 { format!("{}: ", path.display()) } else { format!("{}:{line}: ", path.display()) };
    assert!(said.contains(&place), "{place} is not in: {said}");
    assert!(said.contains(word), "{word} is not in: {said}");
    assert!(!output.exists() && !json.exists(), "a file was left behind");
}

const HEADER: &str = "id,lower,upper,size\n";

#[test]
fn an_empty_file_is_refused() {
    refused("", 0, "empty");
    refused("\n \r\n\n", 0, "empty");
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
    refused(format!("{HEADER}0,1,2,3\n1,2,3\n"), 3, "3 fields");
    refused(format!("{HEADER}0,1,2,3,4\n"), 2, "5 fields");
}

#[test]
fn text_in_place_of_a_number_is_named_with_its_line() {
    refused(format!("{HEADER}0,1,2,3\n1,2,x,4\n"), 3, "\"x\" is not a number");
    for text in ["-3", "nan", "inf", "1e5", "4.0", "+4", "0x10", "4 KiB", "", "\"4\""] {
        refused(format!("{HEADER}0,1,2,{text}\n"), 2, "is not a number");
    }
}

#[test]
fn a_lifetime_that_ends_before_it_begins_is_named_with_its_line() {
    refused(format!("{HEADER}0,1,2,3\n1,5,4,3\n"), 3, "upper 4 is below lower 5");
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
fn bytes_of_other_formats_are_refused_with_what_is_read() {
    let zstd = [0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x58];
    let junk: Vec<u8> = (0..20_000u32).map(|place| !((place * place) >> 3) as u8).collect();
    refused(zstd, 1, "plain or gzip'ed");
    refused(junk, 1, "plain or gzip'ed");
    refused([0; 70_000], 1, "plain or gzip'ed");
    refused("id;lower;upper;size\n0;1;2;3\n", 1, "no column is named id");
    refused([0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3], 0, "check that the file exists and is complete");
    refused([0x1f, 0x8b, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7], 0, "check that the file exists and is complete");
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
fn standard_input_is_named_where_it_is_refused() {
    let (_directory, input) = file(format!("{HEADER}0,1,2,x\n"));
    let ended = plan_standard_input(&input, &[]).with_status(2);
    assert!(ended.ours()[0].starts_with("stepalloc: standard input:2: "), "{}", ended.err());
}

#[test]
fn a_lifetime_that_does_not_suit_the_period_is_named_with_its_line() {
    let (_directory, input) = file(format!("{HEADER}0,1,2,3\n\n7,5,16,3\n"));
    for (period, word) in [
        ("10", "longer than the period of 10"),
        ("5", "starts at 5"),
        ("0", "a period of 0 events cannot be"),
    ] {
        let ended = plan(&input, &["--period", period]).with_status(2);
        let [said] = ended.ours()[..] else { panic!("not one line: {}", ended.err()) };
        assert!(said.contains(word), "{period}: {said}");
        assert!(said.contains("input.csv:4: ") || period == "0", "{period}: {said}");
    }
}

/// Rows of `id,lower,upper,size,alignment,gaps,inside,in_place,fixed` below an ordinary one of id `a` on line 2.
const CONSTRAINED: [(&str, usize, &str); 22] = [
    ("b,0,9,10,0,,,,", 3, "the alignment 0 is not a power of two"),
    ("b,0,9,10,12,,,,", 3, "the alignment 12 is not a power of two"),
    ("b,0,9,18446744073709551615,,,,,", 3, "the sizes up to this line overflow"),
    ("b,0,9,10,9223372036854775808,,,,\nc,0,9,10,9223372036854775808,,,,", 4, "the sizes up to this line"),
    ("b,0,9,10,,5-3,,,", 3, "the gap \"5-3\""),
    ("b,0,9,10,,5-10,,,", 3, "the gap \"5-10\""),
    ("b,0,9,10,,2-4@3:11,,,", 3, "the window of the gap"),
    ("b,0,9,10,,2-5 4-6,,,", 3, "overlap"),
    ("b,0,9,10,,,z@0,,", 3, "\"z\", which no line has"),
    ("b,0,9,10,,,a,,", 3, "inside is \"a\""),
    ("b,0,9,10,,,a@1,,", 3, "block 1 is \"b\" on line 3, block 0 is \"a\" on line 2"),
    ("b,0,9,10,,,b@0,,", 3, "lies inside itself"),
    ("b,0,9,10,,,c@0,,\nc,0,9,10,,,d@0,,\nd,0,9,10,,,b@0,,", 4, "lies inside itself"),
    ("b,0,9,2,8,,c@1,,\nc,0,9,8,8,,,,", 4, "its alignment 8, with views inside,"),
    ("b,0,9,10,,,,z,", 3, "\"z\", which no line has"),
    ("b,0,9,10,,,,b,", 3, "cannot work in place of itself"),
    ("b,0,9,10,,,,,-1", 3, "the fixed \"-1\" is not a number"),
    ("b,0,9,10,8,,,,4", 3, "fixed offset 4 is not a multiple of its alignment 8"),
    ("b,0,9,10,,,,,18446744073709551615", 3, "leaves too few of 2^64 bytes"),
    ("b,0,9,10,,,,,0\nc,8,10,10,,,,,9", 3, "both use byte 9 at event 8"),
    ("b,0,9,10,,,c@1,,3\nc,0,9,20,,,,,3", 4, "fixed offset 3, but with views inside it begins at 2"),
    ("b,0,9,10,,,c@1,,0\nc,0,9,20,,,,,", 3, "a negative offset"),
];

#[test]
fn constraints_that_cannot_be_kept_are_named_with_their_line() {
    for (rows, line, word) in CONSTRAINED {
        let header = "id,lower,upper,size,alignment,gaps,inside,in_place,fixed";
        refused(format!("{header}\na,0,9,10,,,,,\n{rows}\n"), line, word);
    }
}
