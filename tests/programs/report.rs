//! Reports: of traces, plans, buffers and models, looked at in a browser; and of runs, however the program ends.

use crate::process::{self, Ended};
use crate::{compiled, model, pytorch::PYTHON};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use stepalloc_planner::{Effort, Planner, csv, generate};

/// Blocks of the large plan.
const MANY: usize = 100_000;

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of temporary files are UTF-8")
}

/// The data of a page.
pub fn data(page: &Path) -> Value {
    let page = std::fs::read_to_string(page).expect("the page was written");
    let begin = page.find("id=\"data\">").expect("data") + "id=\"data\">".len();
    let end = begin + page[begin..].find("</script>").expect("their end");
    serde_json::from_str(&page[begin..end]).expect("JSON")
}

/// A column of a plan's blocks, as the page reads it.
fn column(plan: &Value, name: &str) -> Vec<u64> {
    let text = plan["blocks"]["columns"][name].as_str().unwrap_or_else(|| panic!("no column {name}"));
    let (mut numbers, mut number, mut shift, mut before) = (Vec::new(), 0u64, 0, 0i64);
    for byte in BASE64_STANDARD.decode(text).expect("base64") {
        number |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            before += (number >> 1).cast_signed() ^ -(number & 1).cast_signed();
            numbers.push(before.cast_unsigned());
            (number, shift) = (0, 0);
        }
    }
    numbers
}

/// Looks at a page in a browser; `None` where there is none.
fn looked_at(page: &Path, options: &[&str]) -> Option<Value> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/report.py");
    let mut command = process::command(PYTHON);
    command.arg(script).arg(page).args(options);
    let ended = process::finish(&mut command);
    let required = std::env::var_os("STEPALLOC_REQUIRE_BROWSER").is_some();
    if ended.status == 77 && !required {
        process::skip(ended.err().trim());
        return None;
    }
    let ended = ended.with_status(0);
    Some(serde_json::from_str(ended.out().trim()).expect("a line of JSON"))
}

/// `stepalloc report` of a file.
fn report(file: &Path, page: &Path, options: &[&str]) -> Ended {
    let mut command = process::stepalloc(["report", text(file), "-o", text(page)]);
    process::finish(command.args(options)).with_status(0)
}

/// A generated problem and a plan of it as minimalloc's CSV, with an offset changed by the hand of `change`.
fn solution(blocks: usize, directory: &Path, change: impl FnOnce(&mut Vec<u64>)) -> PathBuf {
    let problem = generate::malloc_like(blocks, 1);
    let mut plan = Planner::new().effort(Effort::Quick).plan(&problem).expect("a plan");
    change(&mut plan.offsets);
    let mut bytes = Vec::new();
    csv::write(&mut bytes, &problem, &plan).expect("a vector takes every write");
    let file = directory.join("solution.csv");
    std::fs::write(&file, bytes).expect("written");
    file
}

#[test]
fn the_largest_recorded_trace_is_shown_in_a_browser() {
    let Some(traces) = process::shared("traces") else { return };
    let files = std::fs::read_dir(traces).expect("a directory").flatten();
    let traces = files.filter(|file| file.file_name().to_string_lossy().ends_with(".csv.gz"));
    let largest = traces.max_by_key(|file| file.metadata().map_or(0, |data| data.len())).expect("a trace");
    let directory = tempfile::tempdir().expect("a directory");
    let page = directory.path().join("page.html");
    report(&largest.path(), &page, &["--what-if"]);
    let data = data(&page);
    assert!(
        data["plans"][0]["blocks"]["count"].as_u64() > Some(100),
        "{}",
        data["plans"][0]["blocks"]["count"]
    );
    assert_eq!(data["plans"][0]["overlaps"]["total"], 0);
    assert!(data["what_if"]["rows"].as_array().is_some_and(|rows| rows.len() >= 6));
    looked_at(&page, &[]);
}

#[test]
fn a_hundred_thousand_blocks_are_shown_in_a_browser() {
    let directory = tempfile::tempdir().expect("a directory");
    let page = directory.path().join("page.html");
    report(&solution(MANY, directory.path(), |_| ()), &page, &[]);
    assert_eq!(data(&page)["plans"][0]["blocks"]["count"], MANY);
    // What the script asks for: below 5 MB, ready in 3 s, a zoom in 100 ms.
    if let Some(times) = looked_at(&page, &[]) {
        assert_eq!(times["blocks"], MANY);
    }
}

#[test]
fn a_planted_overlap_is_seen_and_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let page = directory.path().join("page.html");
    let file = solution(400, directory.path(), |offsets| {
        let highest = (0..offsets.len()).max_by_key(|&index| offsets[index]).expect("blocks");
        // Every alignment of these is kept.
        offsets[highest] = (offsets[highest] / 2) & !4095;
    });
    report(&file, &page, &[]);
    let data = data(&page);
    let overlaps = &data["plans"][0]["overlaps"];
    assert!(overlaps["total"].as_u64() > Some(0), "{overlaps}");
    assert!(
        data["notices"][0].as_str().is_some_and(|notice| notice.contains("share byte")),
        "{}",
        data["notices"]
    );
    looked_at(&page, &["--expect-overlap"]);
}

/// `stepalloc run` of `steps.c`, with settings under which twelve steps are enough for a plan.
fn run(options: &[&str], program: &[&str]) -> Command {
    let mut command = process::stepalloc(["run"].iter().chain(options).chain(&["--"]).chain(program));
    command.env("START_STATISTIC_STEP", "2").env("STABLE_STATISTIC_STEP", "1");
    command
}

/// Whether a plan is as low as its granules let it be.
fn is_tight(plan: &Value) -> bool {
    let bytes = |name: &str| plan[name].as_f64().unwrap_or(f64::NAN);
    (1.0..1.01).contains(&(bytes("height") / bytes("lower_bound")))
}

fn steps() -> &'static str {
    text(compiled::steps())
}

#[test]
fn a_run_is_shown_with_its_plan_its_steps_and_who_asked() {
    let directory = tempfile::tempdir().expect("a directory");
    let (page, trace) = (directory.path().join("page.html"), directory.path().join("t.csv.gz"));
    let options = ["--report", text(&page), "--trace", text(&trace), "--call-sites"];
    let ended = process::finish(&mut run(&options, &[steps(), "30", "exit", "4"])).with_status(4);
    assert_eq!(ended.out(), "to standard output\n");
    let data = data(&page);
    let plan = &data["plans"][0];
    assert_eq!((&plan["blocks"]["count"], &plan["overlaps"]["total"]), (&Value::from(10), &Value::from(0)));
    assert!(is_tight(plan), "{plan}");
    let rows = data["steps"].as_array().expect("steps");
    assert!(rows.len() >= 28 && rows.last().is_some_and(|step| step["phase"] == "planned"), "{rows:?}");
    assert_eq!(rows.last().map(|step| &step["fallback_bytes"]), Some(&Value::from(0)));
    let sites = data["sites"].as_array().expect("sites");
    assert!(sites.iter().all(|site| site.as_str().is_some_and(|site| site.contains("main"))), "{sites:?}");
    looked_at(&page, &[]);
    // The trace is one that the planner reads.
    let planned =
        process::finish(&mut process::stepalloc(["plan", text(&trace), "--json", "-"])).with_status(0);
    let figures: Value = serde_json::from_str(planned.out()).expect("JSON");
    assert_eq!((&figures["buffers"], &figures["optimal"]), (&Value::from(10), &Value::from(true)));
}

#[test]
fn a_program_that_is_killed_leaves_what_was_seen_until_then() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str| directory.path().join(name);
    let (page, trace, metrics) = (file("page.html"), file("t.csv"), file("m.prom"));
    let options = ["--report", text(&page), "--trace", text(&trace), "--metrics", text(&metrics)];
    let mut command = run(&options, &[steps(), "20000", "kill", "9"]);
    // Steps of it take microseconds, and what was not written for a tenth of a second is lost.
    command.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null());
    let status = command.status().expect("started");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    let data = data(&page);
    assert!(data["steps"].as_array().is_some_and(|steps| steps.len() > 1000), "{}", data["steps"]);
    assert!(std::fs::read_to_string(&trace).expect("a trace").lines().count() > 10_000);
    let metrics = std::fs::read_to_string(&metrics).expect("metrics");
    assert!(metrics.contains("stepalloc_exit_status{") && metrics.contains("} 137\n"), "{metrics}");
}

#[test]
fn metrics_are_there_while_the_program_runs() {
    let directory = tempfile::tempdir().expect("a directory");
    let metrics = directory.path().join("m.prom");
    let mut command = run(&["--metrics", text(&metrics)], &[steps(), "30", "wait"]);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("started");
    let said = |word: &str| {
        let start = std::time::Instant::now();
        while start.elapsed() < std::time::Duration::from_secs(30) {
            let text = std::fs::read_to_string(&metrics).unwrap_or_default();
            if text.contains(word) {
                assert!(text.ends_with("# EOF\n"), "{text}");
                return text;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("{word} is not in {}", std::fs::read_to_string(&metrics).unwrap_or_default());
    };
    let text = said("\"} 29\n");
    assert!(text.contains("stepalloc_running{") && text.contains("stepalloc_resident_bytes{"), "{text}");
    let said_of = |name: &str| text.lines().find(|line| line.starts_with(name)).map(str::to_owned);
    assert!(said_of("stepalloc_steps_total{").is_some_and(|line| line.ends_with(" 29")), "{text}");
    assert!(said_of("stepalloc_planned{").is_some_and(|line| line.ends_with(" 1")), "{text}");
    // SAFETY: a signal to a child that is not waited for yet.
    unsafe { libc::kill(i32::try_from(child.id()).expect("a process"), libc::SIGTERM) };
    assert_eq!(child.wait().expect("it ends").code(), Some(5));
    said("stepalloc_exit_status{");
}

#[test]
fn much_output_and_forks_change_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let page = directory.path().join("page.html");
    let script = format!("head -c 1073741824 /dev/zero; {} 30 & {} 30; wait; exit 7", steps(), steps());
    let mut command = run(&["--report", text(&page), "--call-sites"], &["sh", "-c", &script]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    assert_eq!(command.status().expect("started").code(), Some(7));
    let data = data(&page);
    assert_eq!(data["plans"][0]["blocks"]["count"], 10);
    let notices = data["notices"].to_string();
    assert!(notices.contains("2 processes"), "{notices}");
}

#[test]
fn what_asks_for_nothing_large_has_a_report_that_says_so() {
    let directory = tempfile::tempdir().expect("a directory");
    let (page, trace) = (directory.path().join("page.html"), directory.path().join("t.csv"));
    let mut command = run(&["--report", text(&page), "--trace", text(&trace)], &["true"]);
    let ended = process::finish(&mut command).with_status(0);
    assert!(ended.err().contains("asked for no block of planned size"), "{}", ended.err());
    assert!(!trace.exists());
    assert_eq!(data(&page)["plans"], Value::Array(Vec::new()));
}

#[test]
fn plans_that_were_kept_are_shown() {
    let directory = tempfile::tempdir().expect("a directory");
    let (plan, page) = (directory.path().join("a.plan"), directory.path().join("page.html"));
    process::finish(&mut run(&["--plan", text(&plan)], &[steps(), "30"])).with_status(0);
    report(&plan, &page, &[]);
    let data = data(&page);
    assert_eq!(data["plans"][0]["blocks"]["count"], 10);
    assert!(is_tight(&data["plans"][0]), "{}", data["plans"][0]);
}

/// `stepalloc model infer` of a model among ONNX's tests; its figures and its page's data.
fn inferred(model: &Path, page: &Path, options: &[&str]) -> (Value, Value) {
    let arguments = ["infer", text(model), "--runs", "2", "--report", text(page), "--json", "-"];
    let ended = model::model(arguments.iter().chain(options).copied()).with_status(0);
    (serde_json::from_str(ended.out()).expect("JSON"), data(page))
}

#[test]
fn a_models_plan_is_shown_as_its_figures_say() {
    let Some(exported) = model::exported() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let page = directory.path().join("page.html");
    for name in ["light/light_squeezenet", "light/light_inception_v1", "node/test_lstm_with_peepholes"] {
        for options in [&["--no-plan"][..], &[]] {
            let (figures, data) = inferred(&exported.path(name).join("model.onnx"), &page, options);
            let plan = &data["plans"][0];
            assert_eq!(plan["height"], figures["arena_bytes"], "{name}");
            assert_eq!(plan["lower_bound"], figures["lower_bound_bytes"], "{name}");
            assert_eq!((&plan["unit"], &plan["overlaps"]["total"]), (&"step".into(), &0.into()), "{name}");
            assert!(figures["planned_tensors"].as_u64() > Some(0), "{figures:#}");
            let [lower, length, offset, size, kind] =
                ["lower", "length", "offset", "size", "kind"].map(|name| column(plan, name));
            let top = offset.iter().zip(&size).map(|(offset, size)| offset + size).max();
            assert_eq!(top, figures["arena_bytes"].as_u64(), "{name}");
            let last = lower.iter().zip(&length).map(|(lower, length)| lower + length).max();
            assert!(last <= plan["events"].as_u64(), "{name}");
            let alive = |step: u64| -> u64 {
                let those = (0..size.len())
                    .filter(|&block| (lower[block]..lower[block] + length[block]).contains(&step));
                those.map(|block| size[block]).sum()
            };
            assert_eq!(
                last.map(|last| (0..last).map(alive).max()),
                Some(figures["lower_bound_bytes"].as_u64())
            );
            let kinds = data["kinds"].as_array().map_or(0, Vec::len) as u64;
            assert!(kind.iter().all(|&kind| kind < kinds), "{}", data["kinds"]);
            for words in ["labels", "holds"] {
                assert_eq!(plan["blocks"][words].as_array().map(Vec::len), Some(size.len()), "{name}");
            }
        }
        looked_at(&page, &[]);
    }
}

#[test]
fn what_of_a_model_is_not_planned_is_said() {
    let Some(exported) = model::exported() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let page = directory.path().join("page.html");
    let notices = |name: &str| {
        let (figures, data) = inferred(&exported.path(name).join("model.onnx"), &page, &[]);
        assert_eq!((&figures["arena_bytes"], &data["plans"]), (&0.into(), &Value::Array(Vec::new())));
        looked_at(&page, &[]);
        data["notices"].to_string()
    };
    let (empty, unplanned) =
        ("No value of this run lies in an arena", "elements or they run graphs of their own: 1 of 1, ");
    let told = notices("node/test_unique_not_sorted_without_axis");
    assert!(told.contains(empty) && told.contains(unplanned) && told.contains("(Unique)"), "{told}");
    let told = notices("node/test_add");
    assert!(told.contains(empty) && !told.contains(unplanned), "{told}");
}

#[test]
fn a_models_page_that_cannot_be_written_is_an_error_before_anything_runs() {
    let directory = tempfile::tempdir().expect("a directory");
    let net = directory.path().join("net.onnx");
    std::fs::write(&net, "no model").expect("written");
    let both = directory.path().join("both");
    for (options, said) in [
        (&["--report", "/no/such/p.html"][..], "/no/such/p.html: cannot be written"),
        (&["--report", text(directory.path())], "cannot be written"),
        (&["--report", text(&net)], "would be lost"),
        (&["--report", text(&both), "--json", text(&both)], "the same place"),
        (&["--report", "-", "--json", "-"], "the same place"),
        (&["--report", text(&both)], "no ONNX model"),
    ] {
        let ended = model::model(["infer", text(&net)].iter().chain(options).copied()).with_status(2);
        assert!(ended.out().is_empty() && ended.err().contains(said), "{options:?}: {}", ended.err());
        assert!(!both.exists(), "{options:?}");
    }
    assert_eq!(std::fs::read_to_string(&net).expect("read"), "no model");
}

#[test]
fn traces_are_written_for_other_viewers() {
    let directory = tempfile::tempdir().expect("a directory");
    let trace = directory.path().join("t.csv.gz");
    let options = ["--trace", text(&trace), "--call-sites"];
    process::finish(&mut run(&options, &[steps(), "30"])).with_status(0);
    let written = |format: &str| {
        let file = directory.path().join(format);
        report(&trace, &file, &["--format", format]);
        std::fs::read_to_string(&file).expect("it was written")
    };
    let chrome: Value = serde_json::from_str(&written("chrome")).expect("JSON");
    assert!(chrome["traceEvents"].as_array().is_some_and(|events| events.len() > 100));
    let dhat: Value = serde_json::from_str(&written("dhat")).expect("JSON");
    assert_eq!(dhat["dhatFileVersion"], 2);
    assert!(dhat["ftbl"].to_string().contains("main"), "{}", dhat["ftbl"]);
    let folded = written("folded-total");
    assert!(folded.lines().count() > 0 && folded.lines().all(|line| line.contains("main")), "{folded}");
    assert!(written("csv").starts_with("id,lower,upper,size"));
}

#[test]
fn steps_that_are_not_alike_have_a_plan_that_says_so() {
    let Some(traces) = process::shared("traces") else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let page = directory.path().join("page.html");
    for (name, told) in [("torch_varlen_train", true), ("torch_convnet_train", false)] {
        report(&traces.join(name).with_extension("csv.gz"), &page, &[]);
        let notices = data(&page)["notices"].to_string();
        assert_eq!(notices.contains("These steps are not alike"), told, "{name}: {notices}");
    }
}

#[test]
fn what_is_wrong_is_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str| directory.path().join(name);
    std::fs::write(file("b.csv"), "id,lower,upper,size\n1,0,2,64\n").expect("written");
    let refused = |arguments: &[&str], status: i32, word: &str| {
        let mut command = process::stepalloc(["report"]);
        command.args(arguments).current_dir(directory.path());
        let ended = process::finish(&mut command).with_status(status);
        assert!(ended.out().is_empty() && ended.err().contains(word), "{word}: {}", ended.err());
    };
    refused(&["b.csv"], 2, "--output");
    refused(&["none.csv", "-o", "p.html"], 2, "none.csv");
    refused(&["b.csv", "-o", "/no/such/p.html"], 2, "/no/such/p.html");
    refused(&["b.csv", "-o", "b.csv"], 2, "would be lost");
    refused(&["b.csv", "--format", "dhat", "-o", "p.json"], 2, "is for traces");
    refused(&["b.csv", "--what-if"], 2, "is for traces");
    refused(&["b.csv", "--what-if", "--beside", "c.csv", "-o", "p.html"], 2, "--scales");
    refused(&["b.csv", "--format", "pdf", "-o", "p.html"], 2, "possible values");
    let mut damaged = String::from("stepplan");
    let _ = write!(damaged, "{}", "x".repeat(100));
    std::fs::write(file("a.plan"), damaged).expect("written");
    refused(&["a.plan", "-o", "p.html"], 2, "a.plan");
    assert!(!file("p.html").exists());
    let ended = process::finish(&mut run(&["--report", "/no/such/p.html"], &["echo"]));
    assert!(ended.with_status(2).out().is_empty());
}
