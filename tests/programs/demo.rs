//! `stepalloc demo`: the main job, whole.

use crate::{BACKENDS, process, report};
use serde_json::Value;

/// What the network must have learnt, as a share of the test images; guessing gives 0.1.
const LEAST_ACCURACY: f64 = 0.9;

#[test]
fn the_help_says_where_the_data_come_from() {
    let ended = process::finish(&mut process::stepalloc(["demo", "--help"])).with_status(0);
    for word in ["handwritten digits", "CC BY 4.0", "--json"] {
        assert!(ended.out().contains(word), "{word}: {}", ended.out());
    }
}

#[test]
fn a_json_file_that_cannot_be_written_is_told_before_training() {
    let ended =
        process::finish(&mut process::stepalloc(["demo", "--json", "/no/such/directory/f"])).with_status(2);
    assert!(ended.ours()[0].contains("/no/such/directory/f"), "{}", ended.err());
}

#[test]
fn six_processes_learn_alike_and_those_with_a_plan_without_faults() {
    if cfg!(debug_assertions) {
        return process::skip("a training without optimisation takes many minutes; use --release");
    }
    let _alone = process::alone();
    let directory = tempfile::tempdir().expect("a directory");
    let (file, page) = (directory.path().join("figures.json"), directory.path().join("stepalloc-demo.html"));
    let mut demo = process::stepalloc(["demo", "--json"]);
    let ended = process::finish(demo.arg(&file).current_dir(directory.path())).with_status(0);
    assert!(ended.err().contains("the report: stepalloc-demo.html"), "{}", ended.err());
    let seen = report::data(&page);
    assert_eq!(seen["comparison"]["rows"].as_array().map(Vec::len), Some(6));
    assert!(seen["plans"][0]["blocks"]["count"].as_u64() > Some(0), "{}", seen["plans"]);
    assert!(seen["sites"].to_string().contains("candle"), "{}", seen["sites"]);
    let json = std::fs::read_to_string(&file).expect("the figures were written");
    let figures: Value = serde_json::from_str(&json).expect("JSON");
    let rows = figures["results"].as_array().expect("an array");

    let names: Vec<&str> = rows.iter().filter_map(|row| row["allocator"].as_str()).collect();
    let expected: Vec<String> = ["", "stepalloc over "]
        .iter()
        .flat_map(|over| BACKENDS.map(|name| format!("{over}{name}")))
        .collect();
    assert_eq!(names, expected);
    for name in names {
        let row = ended.out().lines().find(|line| line.split("  ").next().map(str::trim_end) == Some(name));
        assert!(row.is_some(), "{name} is not in the table:\n{}", ended.out());
    }
    for row in rows {
        assert_eq!(row["accuracy"], rows[0]["accuracy"], "{row}");
        assert!(row["accuracy"].as_f64().is_some_and(|share| share > LEAST_ACCURACY), "{row}");
    }
    for row in rows.iter().filter(|row| row["planned"] == true) {
        assert_eq!(row["statistics"]["phase"], "planned", "{row}");
        assert_eq!(row["minor_faults_median"], 0, "{row}");
    }
}
