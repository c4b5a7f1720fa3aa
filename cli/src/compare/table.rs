//! The comparison as a table for people and as figures for programs.

use std::fmt::Write;

use serde_json::{Value, json};

use super::Row;
use super::judge::{Beside, Judged, Middle, Verdict, judge};
use super::measure::Run;
use crate::size;

/// A figure that is compared; less is better.
struct Figure {
    /// As figures for programs call it.
    name: &'static str,
    /// As the table does.
    title: &'static str,
    /// As the sentences under it do.
    words: &'static str,
    digits: usize,
    /// Whether a slower machine makes more of it.
    is_time: bool,
    of: fn(&Run) -> Option<f64>,
}

const CPU_TIME: Figure = Figure {
    name: "cpu_seconds",
    title: "CPU [s]",
    words: "CPU time",
    digits: 2,
    is_time: true,
    of: |run| Some(run.cpu_seconds),
};

const STEP_TIME: Figure = Figure {
    name: "step_milliseconds",
    title: "step [ms]",
    words: "Time of a step",
    digits: 2,
    is_time: true,
    of: |run| run.steps.map(|steps| steps.seconds * 1e3),
};

const RUN_TIME: Figure = Figure {
    name: "seconds",
    title: "time [s]",
    words: "Time",
    digits: 2,
    is_time: true,
    of: |run| Some(run.seconds),
};

/// All there are. A table has the step's time in place of the run's, where it is known.
const FIGURES: [Figure; 7] = [
    STEP_TIME,
    RUN_TIME,
    CPU_TIME,
    Figure {
        name: "system_seconds",
        title: "system [s]",
        words: "System time",
        digits: 2,
        is_time: true,
        of: |run| Some(run.system_seconds),
    },
    Figure {
        name: "minor_faults",
        title: "page faults",
        words: "Page faults",
        digits: 0,
        is_time: false,
        of: |run| Some(run.minor_faults as f64),
    },
    Figure {
        name: "vm_rss_mib",
        title: "VmRSS [MiB]",
        words: "Resident memory",
        digits: 1,
        is_time: false,
        of: |run| run.rss_bytes.map(size::mib),
    },
    Figure {
        name: "vm_hwm_mib",
        title: "VmHWM [MiB]",
        words: "Peak memory",
        digits: 1,
        is_time: false,
        of: |run| run.hwm_bytes.map(size::mib),
    },
];

/// Of these so many are in a table.
const SHOWN: usize = FIGURES.len() - 1;
/// The chance that a table tells any difference where there is none.
const CHANCE: f64 = 0.05;

/// A figure of all rows; without runs that can be compared a row has no middle.
struct Column {
    middles: Vec<Option<Middle>>,
    judged: Judged,
}

impl Column {
    fn of(figure: &Figure, rows: &[Row]) -> Column {
        let of_rows = |of: fn(&Run) -> Option<f64>| -> Vec<Vec<f64>> {
            let of_row = |row: &Row| match row.failure() {
                Some(_) => Vec::new(),
                None => row.runs.iter().map(of).collect::<Option<Vec<f64>>>().unwrap_or_default(),
            };
            rows.iter().map(of_row).collect()
        };
        let figures = of_rows(figure.of);
        let yardstick = if figure.is_time { of_rows(|run| run.yardstick_seconds) } else { Vec::new() };
        Column {
            middles: figures.iter().map(|figures| Middle::of(figures)).collect(),
            judged: judge(&figures, &yardstick, CHANCE / SHOWN as f64),
        }
    }

    /// A row's middle, and what it is beside the least.
    fn cell(&self, row: usize) -> Option<(Middle, Option<Beside>)> {
        Some((self.middles[row]?, self.judged.rows[row]))
    }
}

/// What of CPU time would be found with these runs; it is the figure for which as many are made as it takes.
pub fn of_cpu_time(rows: &[Row]) -> Judged {
    Column::of(&CPU_TIME, rows).judged
}

/// What was measured, judged.
pub struct Table<'a> {
    rows: &'a [Row],
    /// One of [`FIGURES`] each.
    columns: Vec<(&'static Figure, Column)>,
}

impl<'a> Table<'a> {
    /// Judges the rows.
    pub fn of(rows: &'a [Row]) -> Table<'a> {
        let runs = || rows.iter().filter(|row| row.failure().is_none()).flat_map(|row| &row.runs);
        let steps_are_known = runs().count() > 0 && runs().all(|run| run.steps.is_some());
        let left_out = if steps_are_known { RUN_TIME.name } else { STEP_TIME.name };
        let shown = FIGURES.iter().filter(|figure| figure.name != left_out);
        Table { rows, columns: shown.map(|figure| (figure, Column::of(figure, rows))).collect() }
    }

    fn cell(&self, column: usize, row: usize) -> String {
        let (Figure { digits, .. }, column) = &self.columns[column];
        let Some((middle, beside)) = column.cell(row) else { return "-".to_owned() };
        let figure = format!("{:.digits$} ± {:.digits$}", middle.median, middle.spread);
        let Some(Beside { verdict, ratio }) = beside else { return figure };
        match (verdict, ratio) {
            (Verdict::Best, _) => format!("{figure}    best"),
            (Verdict::Equal, _) => format!("{figure}   equal"),
            (Verdict::More, Some(ratio)) if ratio < 100.0 => format!("{figure} {ratio:>5.2} x"),
            (Verdict::More, _) => format!("{figure}    more"),
        }
    }

    /// A row's cells; of one with a run that went wrong its name and what.
    fn cells(&self) -> Vec<Vec<String>> {
        let titles = self.columns.iter().map(|(figure, _)| figure.title.to_owned());
        let mut cells = vec![std::iter::once("allocator".to_owned()).chain(titles).collect()];
        for (index, row) in self.rows.iter().enumerate() {
            let name = std::iter::once(row.allocator.name.clone());
            cells.push(match row.failure() {
                Some(failure) => name.chain([failure]).collect(),
                None => name.chain((0..SHOWN).map(|column| self.cell(column, index))).collect(),
            });
        }
        cells
    }

    /// Aligned, one allocator a line.
    pub fn aligned(&self) -> String {
        let cells = self.cells();
        let length = |cell: &String| cell.chars().count();
        let width = |column: usize| {
            let whole = cells.iter().filter(|line| column == 0 || line.len() > 2);
            whole.filter_map(|line| line.get(column)).map(length).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..=SHOWN).map(width).collect();
        let mut text = String::new();
        for line in &cells {
            for (column, cell) in line.iter().enumerate() {
                let _ = match column {
                    0 => write!(text, "{cell:<width$}", width = widths[0]),
                    _ if line.len() == 2 => write!(text, "  {cell}"),
                    _ => write!(text, "  {cell:>width$}", width = widths[column]),
                };
            }
            text.push('\n');
        }
        text
    }

    /// As Markdown.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        for (index, line) in self.cells().iter().enumerate() {
            let tidy =
                |cell: &String| cell.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
            let mut cells: Vec<String> = line.iter().map(tidy).collect();
            cells.resize(SHOWN + 1, String::new());
            let _ = writeln!(text, "| {} |", cells.join(" | "));
            if index == 0 {
                let _ = writeln!(text, "|---|{}", "---:|".repeat(SHOWN));
            }
        }
        text
    }

    /// One line a run.
    pub fn csv(&self) -> String {
        let names: Vec<&str> = FIGURES.iter().map(|figure| figure.name).collect();
        let mut text = format!("allocator,round,{},yardstick_seconds,ended\n", names.join(","));
        for row in self.rows {
            for (round, run) in row.runs.iter().enumerate() {
                let field = |figure: Option<f64>, digits: usize| {
                    figure.map_or(String::new(), |figure| format!("{figure:.digits$}"))
                };
                let mut figures: Vec<String> =
                    FIGURES.iter().map(|figure| field((figure.of)(run), 6)).collect();
                figures.push(field(run.yardstick_seconds, 9));
                let ended = super::measure::ended(run.how);
                let _ =
                    writeln!(text, "{},{round},{},{ended}", quoted(&row.allocator.name), figures.join(","));
            }
        }
        text
    }

    /// Each row's figures, runs and verdicts.
    pub fn json(&self) -> Vec<Value> {
        let rows = self.rows.iter().enumerate().map(|(index, row)| {
            let mut figures = json!({});
            for (figure, column) in &self.columns {
                if let Some((middle, beside)) = column.cell(index) {
                    figures[figure.name] = json!({
                        "median": middle.median,
                        "spread": middle.spread,
                        "ratio": beside.and_then(|beside| beside.ratio),
                        "verdict": beside.map(|beside| beside.verdict.name()),
                    });
                }
            }
            let variables: serde_json::Map<String, Value> =
                row.allocator.variables().iter().map(|(name, value)| (name.clone(), json!(value))).collect();
            json!({
                "allocator": row.allocator.name,
                "library": row.allocator.library(),
                "variables": variables,
                "figures": figures,
                "failure": row.failure(),
                "runs": row.runs.iter().map(Run::to_json).collect::<Vec<_>>(),
            })
        });
        rows.collect()
    }

    /// The same for a report's page.
    pub fn page(&self) -> Value {
        let columns = self.columns.iter().map(|(figure, _)| {
            let unit = figure.title.rsplit_once('[').map_or("", |(_, unit)| unit.trim_end_matches(']'));
            json!({ "name": figure.name, "words": figure.words, "unit": unit })
        });
        let rows = self.rows.iter().enumerate().map(|(index, row)| {
            let cells = self.columns.iter().map(|(_, column)| {
                let (middle, beside) = column.cell(index)?;
                Some(json!({
                    "median": middle.median,
                    "spread": middle.spread,
                    "ratio": beside.and_then(|beside| beside.ratio),
                    "verdict": beside.map(|beside| beside.verdict.name()),
                }))
            });
            json!({
                "allocator": row.allocator.name,
                "cells": cells.collect::<Vec<_>>(),
                "failure": row.failure(),
            })
        });
        json!({
            "columns": columns.collect::<Vec<_>>(),
            "rows": rows.collect::<Vec<_>>(),
            "conclusion": self.conclusion(),
        })
    }

    /// Who is ahead, where that is no chance: of time, CPU time and peak memory.
    pub fn conclusion(&self) -> String {
        let mut text = String::new();
        for (figure, column) in &self.columns {
            if ["system_seconds", "minor_faults", "vm_rss_mib"].contains(&figure.name) {
                continue;
            }
            let named = |wanted: Verdict| {
                let cells = column.judged.rows.iter().zip(self.rows);
                let named =
                    cells.filter(move |(beside, _)| beside.is_some_and(|beside| beside.verdict == wanted));
                named.map(|(_, row)| row.allocator.name.as_str()).collect::<Vec<_>>()
            };
            let (best, equal, more) = (named(Verdict::Best), named(Verdict::Equal), named(Verdict::More));
            let Some(best) = best.first() else { continue };
            let _ = match (equal.is_empty(), more.is_empty()) {
                (_, true) => writeln!(text, "{}: no difference that is more than chance.", figure.words),
                (true, false) => writeln!(text, "{}: least with {best}.", figure.words),
                (false, false) => writeln!(
                    text,
                    "{}: least with {best}; within chance of it: {}.",
                    figure.words,
                    equal.join(", ")
                ),
            };
        }
        if let Some(detectable) = of_cpu_time(self.rows).detectable.filter(|share| share.is_finite()) {
            let _ = if detectable < 1.0 {
                let percent = 100.0 * detectable;
                writeln!(
                    text,
                    "Of CPU time {percent:.1} % more than the least would have been found in 19 of 20 such comparisons."
                )
            } else {
                writeln!(
                    text,
                    "So few runs would hardly have found any difference of CPU time; --runs says how many."
                )
            };
        }
        text
    }
}

/// A CSV field.
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::allocators::Allocator;
    use super::*;
    use crate::os::How;

    fn row(name: &str, cpu: f64, mib: u64, how: How) -> Row {
        let given = [format!("{name}=")];
        let allocator = Allocator::chosen(&["glibc".into()], &given).expect("an allocator").remove(1);
        let run = |round: u32| Run {
            seconds: cpu / 2.0,
            cpu_seconds: cpu + f64::from(round) / 100.0,
            system_seconds: 0.0,
            minor_faults: 7,
            rss_bytes: Some(mib << 20),
            hwm_bytes: Some(mib << 20),
            steps: None,
            yardstick_seconds: None,
            preloaded: None,
            how,
            last_line: "out of luck".to_owned(),
            statistics: None,
        };
        Row { allocator, expected: How::Exit(0), runs: (0..3).map(run).collect(), error: None }
    }

    #[test]
    fn the_table_tells_the_best_the_equal_and_the_dead() {
        let rows = [
            row("one", 10.0, 100, How::Exit(0)),
            row("other", 12.0, 100, How::Exit(0)),
            row("dead", 1.0, 1, How::Signal(11)),
        ];
        let table = Table::of(&rows);
        let expected = "\
allocator               time [s]               CPU [s]           system [s]    page faults           VmRSS [MiB]           VmHWM [MiB]
one         5.00 ± 0.00   best   10.01 ± 0.01   best  0.00 ± 0.00   best  7 ± 0   best  100.0 ± 0.0   best  100.0 ± 0.0   best
other       6.00 ± 0.00 1.20 x   12.01 ± 0.01 1.20 x  0.00 ± 0.00  equal  7 ± 0  equal  100.0 ± 0.0  equal  100.0 ± 0.0  equal
dead       was killed by signal 11: out of luck
";
        let squeezed = |text: &str| {
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
        };
        assert_eq!(squeezed(&table.aligned()), squeezed(expected));
        let lengths: Vec<usize> = table.aligned().lines().take(3).map(|line| line.chars().count()).collect();
        assert!(lengths.iter().all(|&length| length == lengths[0]), "{lengths:?}");
        assert!(table.markdown().contains("| other | 6.00 ± 0.00 1.20 x |"), "{}", table.markdown());
        assert_eq!(table.csv().lines().count(), 10);
        assert!(table.csv().contains(
            "\nother,1,,6.000000,12.010000,0.000000,7.000000,100.000000,100.000000,,ended with status 0\n"
        ));
        let figures = table.json();
        assert_eq!(figures[1]["figures"]["cpu_seconds"]["verdict"], "more");
        assert_eq!(figures[2]["failure"], "was killed by signal 11: out of luck");
        assert_eq!(figures[2]["figures"], json!({}));
        let conclusion = table.conclusion();
        assert!(conclusion.contains("CPU time: least with one.\n"), "{conclusion}");
        assert!(
            conclusion.contains("Peak memory: no difference that is more than chance.\n"),
            "{conclusion}"
        );
    }
}
