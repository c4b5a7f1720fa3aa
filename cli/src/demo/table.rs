//! The demo's table, and the words under it: what was gained and what was not, computed from the figures alone.

use std::fmt::Write;

use serde_json::{Value, json};

use super::Configuration;
use crate::size::mib;

/// Step times closer than this are called equal, as are those whose middle halves overlap. A choice, not a measurement:
/// one run of each cannot tell smaller differences from chance.
const NOISE: f64 = 0.03;
/// Peaks closer than this are called equal: the resident set counts pages of code that come and go.
const SAME_PEAK: f64 = 0.01;

/// A configuration and its figures, or what went wrong.
pub struct Row {
    /// Who served the memory.
    pub configuration: Configuration,
    /// What the child measured.
    pub outcome: Result<Value, String>,
}

impl Row {
    fn number(&self, path: &str) -> Option<f64> {
        self.outcome.as_ref().ok()?.pointer(path)?.as_f64()
    }

    fn mib(&self, path: &str) -> Option<f64> {
        let bytes = self.outcome.as_ref().ok()?.pointer(path)?.as_u64()?;
        Some(mib(bytes))
    }

    /// Whether a plan served all the steps that are measured, the newer half.
    fn served_by_plan(&self) -> bool {
        let step = |name| self.number(&format!("/statistics/{name}"));
        self.text("/statistics/phase") == Some("planned")
            && matches!((step("planned_at_step"), step("steps")), (Some(at), Some(steps)) if at <= steps / 2.0)
    }

    fn text(&self, path: &str) -> Option<&str> {
        self.outcome.as_ref().ok()?.pointer(path)?.as_str()
    }
}

const HEADER: [&str; 8] = [
    "allocator",
    "step [ms]",
    "faults/step",
    "VmRSS [MiB]",
    "VmHWM [MiB]",
    "accuracy [%]",
    "arena [MiB]",
    "lower bound [MiB]",
];

/// The aligned table, one configuration a line.
pub fn render(rows: &[Row]) -> String {
    let cell = |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |v| format!("{v:.digits$}"));
    let mut cells: Vec<Vec<String>> = vec![HEADER.iter().map(|&name| name.to_owned()).collect()];
    for row in rows {
        let name = row.configuration.name();
        if let Err(error) = &row.outcome {
            cells.push(vec![name, error.clone()]);
            continue;
        }
        let planned = |path| row.mib(path).filter(|_| row.configuration.planned && row.served_by_plan());
        cells.push(vec![
            name,
            cell(row.number("/step_ms_median"), 1),
            cell(row.number("/minor_faults_median"), 0),
            cell(row.mib("/vm_rss_bytes"), 1),
            cell(row.mib("/vm_hwm_bytes"), 1),
            cell(row.number("/accuracy").map(|share| share * 100.0), 2),
            cell(planned("/statistics/arena_bytes"), 2),
            cell(planned("/statistics/lower_bound_bytes"), 2),
        ]);
    }
    let width = |column: usize| {
        let whole = cells.iter().filter(|line| line.len() == HEADER.len());
        whole.map(|line| line[column].len()).max().unwrap_or(0)
    };
    let name_width = cells.iter().map(|line| line[0].len()).max().unwrap_or(0);
    let mut text = String::new();
    for line in &cells {
        let _ = write!(text, "{:name_width$}", line[0]);
        if line.len() < HEADER.len() {
            let _ = write!(text, "  {}", line[1]);
        } else {
            for (column, cell) in line.iter().enumerate().skip(1) {
                let _ = write!(text, "  {cell:>0$}", width(column));
            }
        }
        text.push('\n');
    }
    text
}

/// The columns of the report's comparison: name, words, unit, where the figure stands, and up to which share above the least
/// it is called equal.
const COMPARED: [(&str, &str, &str, &str, f64); 4] = [
    ("step_ms", "Time per step", "ms", "/step_ms_median", NOISE),
    ("minor_faults", "Page faults per step", "", "/minor_faults_median", 0.0),
    ("vm_rss_bytes", "VmRSS", "bytes", "/vm_rss_bytes", SAME_PEAK),
    ("vm_hwm_bytes", "Peak memory (VmHWM)", "bytes", "/vm_hwm_bytes", SAME_PEAK),
];

/// The same for the report.
pub fn comparison(rows: &[Row]) -> Value {
    let columns =
        COMPARED.map(|(name, words, unit, ..)| json!({ "name": name, "words": words, "unit": unit }));
    let least = COMPARED.map(|(_, _, _, path, _)| {
        rows.iter().filter_map(|row| row.number(path)).fold(f64::INFINITY, f64::min)
    });
    let compared = rows.iter().map(|row| {
        let cells = COMPARED.iter().zip(least).map(|(&(name, _, _, path, equal), least)| {
            let figure = row.number(path)?;
            let quartile = |index| row.number(&format!("/step_ms_quartiles/{index}"));
            let spread = quartile(1).zip(quartile(0)).map(|(upper, lower)| (upper - lower) / 2.0);
            let verdict = match figure {
                _ if figure == least => "best",
                _ if figure <= least * (1.0 + equal) => "equal",
                _ => "more",
            };
            Some(json!({
                "median": figure,
                "spread": spread.filter(|_| name == "step_ms"),
                "ratio": (least > 0.0).then(|| figure / least),
                "verdict": verdict,
            }))
        });
        json!({
            "allocator": row.configuration.name(),
            "cells": cells.collect::<Vec<_>>(),
            "failure": row.outcome.as_ref().err(),
        })
    });
    json!({
        "columns": columns,
        "rows": compared.collect::<Vec<_>>(),
        "conclusion": conclusion(rows),
    })
}

/// What the figures say, in a few lines.
pub fn conclusion(rows: &[Row]) -> String {
    let done = |planned: bool| {
        rows.iter().filter(move |row| row.outcome.is_ok() && row.configuration.planned == planned)
    };
    let (plain, planned): (Vec<&Row>, Vec<&Row>) =
        (done(false).collect(), done(true).filter(|row| row.served_by_plan()).collect());
    let mut lines = vec![
        "Medians over the newer half of the steps; VmHWM since half time. The plain allocators run as they are, untuned."
            .to_owned(),
    ];
    for row in done(true).filter(|row| !row.served_by_plan()) {
        lines.push(format!(
            "{} made no plan in time to be measured: nothing can be said about it.",
            row.configuration.name()
        ));
    }
    if plain.is_empty() || planned.is_empty() {
        lines.push("Too few processes were measured to compare.".to_owned());
    } else {
        lines.push(faults(&plain, &planned));
        lines.extend(time(&plain, &planned));
        lines.extend(peak(&plain, &planned));
    }
    lines.extend(accuracy(rows));
    lines.iter().fold(String::new(), |text, line| text + line + "\n")
}

fn faults(plain: &[&Row], planned: &[&Row]) -> String {
    let range = |rows: &[&Row]| {
        let faults: Vec<f64> = rows.iter().filter_map(|row| row.number("/minor_faults_median")).collect();
        let low = faults.iter().copied().fold(f64::INFINITY, f64::min);
        let high = faults.iter().copied().fold(0.0, f64::max);
        if low >= high { format!("{high:.0}") } else { format!("{low:.0} to {high:.0}") }
    };
    format!("Page faults: {} a step with a plan, {} without.", range(planned), range(plain))
}

/// The row with the least of a figure.
fn least<'a>(rows: &[&'a Row], path: &str) -> Option<(&'a Row, f64)> {
    rows.iter()
        .filter_map(|row| row.number(path).map(|number| (*row, number)))
        .min_by(|a, b| a.1.total_cmp(&b.1))
}

/// A difference counts only where the CPU time shows it, too: on a machine that others use, the wall time of processes
/// that run one after another differs by as much as they leave them.
fn time(plain: &[&Row], planned: &[&Row]) -> Option<String> {
    let (ours, with) = least(planned, "/step_ms_median")?;
    let (theirs, without) = least(plain, "/step_ms_median")?;
    let change = with / without - 1.0;
    let (slower, faster) = if change < 0.0 { (theirs, ours) } else { (ours, theirs) };
    let overlap = slower.number("/step_ms_quartiles/0") < faster.number("/step_ms_quartiles/1");
    let (cpu_with, cpu_without) =
        (ours.number("/step_cpu_ms_median")?, theirs.number("/step_cpu_ms_median")?);
    let cpu_change = cpu_with / cpu_without - 1.0;
    let noise =
        change.abs() < NOISE || cpu_change.abs() < NOISE || overlap || (change < 0.0) != (cpu_change < 0.0);
    let (ours, theirs) = (ours.configuration.name(), theirs.configuration.name());
    let figures = format!(
        "{ours} {with:.1} ms ({cpu_with:.1} ms of CPU time), the fastest plain one, {theirs}, {without:.1} ms ({cpu_without:.1})"
    );
    Some(if noise {
        format!("Step time: no difference that stands out of the noise: {figures}.")
    } else {
        let word = if change < 0.0 { "less" } else { "MORE" };
        format!("Step time: {:.1} % {word}: {figures}.", 100.0 * change.abs())
    })
}

fn peak(plain: &[&Row], planned: &[&Row]) -> Option<String> {
    let (ours, with) = least(planned, "/vm_hwm_bytes")?;
    let (theirs, without) = least(plain, "/vm_hwm_bytes")?;
    let change = with / without - 1.0;
    let (with, without) = (mib(with as u64), mib(without as u64));
    let (ours, theirs) = (ours.configuration.name(), theirs.configuration.name());
    Some(if change.abs() < SAME_PEAK {
        format!(
            "Peak memory: nothing gained over the lowest plain one: {ours} {with:.1} MiB, {theirs} {without:.1} MiB."
        )
    } else {
        let word = if change < 0.0 { "less" } else { "MORE" };
        format!(
            "Peak memory: {ours} {with:.1} MiB, {:.1} % {word} than the lowest plain one, {theirs} ({without:.1} MiB).",
            100.0 * change.abs()
        )
    })
}

fn accuracy(rows: &[Row]) -> Option<String> {
    let all: Vec<f64> = rows.iter().filter_map(|row| row.number("/accuracy")).collect();
    let first = all.first()?;
    Some(if all.iter().all(|accuracy| accuracy == first) {
        format!("Accuracy: the same in all {} processes, as it must be.", all.len())
    } else {
        "Accuracy: DIFFERS between processes that do the same arithmetic: something is wrong.".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Backend;
    use serde_json::json;

    fn row(backend: Backend, planned: bool, ms: f64, faults: u64, peak: u64) -> Row {
        let phase = if planned { "planned" } else { "waiting" };
        Row {
            configuration: Configuration { backend, planned },
            outcome: Ok(json!({
                "step_ms_median": ms, "step_ms_quartiles": [ms - 2.0, ms + 2.0], "step_cpu_ms_median": 1.5 * ms, "minor_faults_median": faults, "accuracy": 0.975,
                "vm_rss_bytes": peak, "vm_hwm_bytes": peak,
                "statistics": {"phase": phase, "planned_at_step": 10, "steps": 100, "arena_bytes": 21 << 20, "lower_bound_bytes": 20 << 20},
            })),
        }
    }

    #[test]
    fn columns_are_aligned_and_only_planned_rows_have_an_arena() {
        let rows = [
            row(Backend::Glibc, false, 80.25, 5800, 40 << 20),
            row(Backend::Glibc, true, 70.0, 0, 38 << 20),
            Row {
                configuration: Configuration { backend: Backend::Mimalloc, planned: true },
                outcome: Err("was killed by signal 9".to_owned()),
            },
        ];
        let expected = "\
allocator                step [ms]  faults/step  VmRSS [MiB]  VmHWM [MiB]  accuracy [%]  arena [MiB]  lower bound [MiB]
glibc                         80.2         5800         40.0         40.0         97.50            -                  -
stepalloc over glibc          70.0            0         38.0         38.0         97.50        21.00              20.00
stepalloc over mimalloc  was killed by signal 9
";
        assert_eq!(render(&rows), expected);
    }

    #[test]
    fn a_loss_is_called_a_loss() {
        let rows =
            [row(Backend::Glibc, false, 70.0, 0, 30 << 20), row(Backend::Glibc, true, 77.0, 0, 33 << 20)];
        let text = conclusion(&rows);
        assert!(text.contains("Page faults: 0 a step with a plan, 0 without."), "{text}");
        assert!(text.contains("Step time: 10.0 % MORE: stepalloc over glibc 77.0 ms"), "{text}");
        assert!(text.contains("10.0 % MORE than the lowest plain one, glibc (30.0 MiB)"), "{text}");
    }

    #[test]
    fn differences_within_the_noise_are_no_gain() {
        let rows =
            [row(Backend::Glibc, false, 70.0, 9, 30 << 20), row(Backend::Glibc, true, 69.0, 0, 30 << 20)];
        let text = conclusion(&rows);
        assert!(text.contains("Step time: no difference"), "{text}");
        assert!(text.contains("Peak memory: nothing gained"), "{text}");
    }

    #[test]
    fn a_gain_that_the_cpu_time_does_not_show_is_noise() {
        let mut ours = row(Backend::Glibc, true, 50.0, 0, 30 << 20);
        if let Ok(figures) = &mut ours.outcome {
            figures["step_cpu_ms_median"] = json!(105.0);
        }
        let text = conclusion(&[row(Backend::Glibc, false, 70.0, 0, 30 << 20), ours]);
        assert!(text.contains("Step time: no difference"), "{text}");
    }

    #[test]
    fn a_plan_that_came_in_the_measured_half_is_not_compared() {
        let mut late = row(Backend::Glibc, true, 1.0, 0, 1);
        if let Ok(figures) = &mut late.outcome {
            figures["statistics"]["planned_at_step"] = json!(51);
        }
        assert!(!late.served_by_plan());
    }

    #[test]
    fn a_process_without_a_plan_is_not_compared() {
        let mut unplanned = row(Backend::Jemalloc, true, 1.0, 0, 1);
        if let Ok(figures) = &mut unplanned.outcome {
            figures["statistics"]["phase"] = json!("collecting");
        }
        let text = conclusion(&[row(Backend::Glibc, false, 70.0, 9, 30 << 20), unplanned]);
        assert!(text.contains("stepalloc over jemalloc made no plan in time"), "{text}");
        assert!(text.contains("Too few processes"), "{text}");
    }
}
