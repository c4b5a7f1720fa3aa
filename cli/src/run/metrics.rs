//! Metrics of a run as OpenMetrics text (version 1.0, "Text format"), for node_exporter's textfile collector and the like.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use serde_json::Value;

use crate::os::{Ended, How, Resident};
use crate::report::model;

/// Families of metrics, each with its samples.
#[derive(Default)]
pub struct Metrics(String);

impl Metrics {
    fn family(&mut self, name: &str, kind: &str, unit: &str, help: &str) {
        let _ = writeln!(self.0, "# TYPE {name} {kind}");
        if !unit.is_empty() {
            let _ = writeln!(self.0, "# UNIT {name} {unit}");
        }
        let _ = writeln!(self.0, "# HELP {name} {help}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let _ = writeln!(self.0, "{name}{{{}}} {value}", labels.join(","));
    }

    fn gauge(&mut self, name: &str, unit: &str, help: &str, labels: &[(&str, &str)], value: f64) {
        self.family(name, "gauge", unit, help);
        self.sample(name, labels, value);
    }

    fn counter(&mut self, name: &str, unit: &str, help: &str, labels: &[(&str, &str)], value: f64) {
        self.family(name, "counter", unit, help);
        self.sample(&format!("{name}_total"), labels, value);
    }

    fn text(self) -> String {
        format!("{}# EOF\n", self.0)
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// A process as the system shows it while it runs.
pub struct Process {
    resident: Resident,
    minor_faults: u64,
}

impl Process {
    /// `None` where it is there no more.
    pub fn read(pid: u32) -> Option<Process> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Behind the name, which may hold anything: state, and six more before the minor faults (proc(5)).
        let minor_faults = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(7)?.parse().ok()?;
        Some(Process { resident: Resident::of(pid)?, minor_faults })
    }
}

/// What the journal and the system say while the program runs.
pub fn of_journal(journal: &Path, program: &str, pid: u32, live: Option<&Process>) -> String {
    let mut metrics = Metrics::default();
    let id = pid.to_string();
    let labels = [("program", program), ("pid", id.as_str())];
    steps(&mut metrics, journal, program);
    if let Some(live) = live {
        metrics.gauge(
            "stepalloc_resident_bytes",
            "bytes",
            "VmRSS of the started process.",
            &labels,
            live.resident.bytes as f64,
        );
        metrics.gauge(
            "stepalloc_resident_max_bytes",
            "bytes",
            "VmHWM of the started process.",
            &labels,
            live.resident.most_bytes as f64,
        );
        metrics.counter(
            "stepalloc_minor_faults",
            "",
            "Minor page faults of the started process.",
            &labels,
            live.minor_faults as f64,
        );
    }
    metrics.gauge("stepalloc_running", "", "1 while the program runs.", &labels, 1.0);
    metrics.text()
}

/// The last metrics of a run.
pub fn of_the_end(journal: &Path, program: &str, pid: u32, processes: &[Value], ended: &Ended) -> String {
    let mut metrics = Metrics::default();
    let id = pid.to_string();
    let labels = [("program", program), ("pid", id.as_str())];
    steps(&mut metrics, journal, program);
    if let Some(hwm) = processes
        .iter()
        .find(|process| process["pid"] == pid)
        .and_then(|process| process["vm_hwm_bytes"].as_f64())
    {
        metrics.gauge("stepalloc_resident_max_bytes", "bytes", "VmHWM of the started process.", &labels, hwm);
    }
    metrics.counter(
        "stepalloc_cpu_seconds",
        "seconds",
        "CPU time of the program and those it waited for.",
        &labels,
        ended.usage.cpu_seconds,
    );
    metrics.counter(
        "stepalloc_minor_faults",
        "",
        "Minor page faults of the program and those it waited for.",
        &labels,
        ended.usage.minor_faults as f64,
    );
    let status = match ended.how {
        How::Exit(status) => f64::from(status),
        How::Signal(signal) => 128.0 + f64::from(signal),
    };
    metrics.gauge(
        "stepalloc_exit_status",
        "",
        "Exit status of the program; 128 and the number of a signal.",
        &labels,
        status,
    );
    metrics.gauge("stepalloc_running", "", "1 while the program runs.", &labels, 0.0);
    metrics.text()
}

/// What the steps so far have cost, of the process that makes most.
fn steps(metrics: &mut Metrics, journal: &Path, program: &str) {
    let journal = fs::read_to_string(journal).unwrap_or_default();
    let Some(pid) = model::busiest(&journal) else { return };
    let (id, steps) = (pid.to_string(), model::steps_of(&journal, pid));
    let labels: &[(&str, &str)] = &[("program", program), ("pid", id.as_str())];
    let Some(newest) = steps.last() else { return };
    let number = |name: &str| newest[name].as_f64().unwrap_or(0.0);
    let sum = |name: &str| steps.iter().filter_map(|step| step[name].as_f64()).sum::<f64>();
    metrics.counter("stepalloc_steps", "", "Steps that have ended.", labels, number("step") + 1.0);
    metrics.gauge(
        "stepalloc_planned",
        "",
        "1 while a plan serves.",
        labels,
        f64::from(newest["phase"] == "planned"),
    );
    metrics.counter("stepalloc_plans", "", "Plans made.", labels, number("plans"));
    metrics.gauge("stepalloc_arena_bytes", "bytes", "Bytes of the arena.", labels, number("arena_bytes"));
    metrics.gauge(
        "stepalloc_lower_bound_bytes",
        "bytes",
        "The load: no plan is smaller.",
        labels,
        number("lower_bound_bytes"),
    );
    metrics.gauge(
        "stepalloc_step_seconds",
        "seconds",
        "Time of a step, as of the newest.",
        labels,
        number("ms") / 1e3,
    );
    metrics.gauge(
        "stepalloc_step_minor_faults",
        "",
        "Minor page faults of a step, as of the newest.",
        labels,
        number("faults"),
    );
    metrics.family(
        "stepalloc_served_bytes",
        "counter",
        "bytes",
        "Bytes of planned size asked for, by where they came from.",
    );
    let gaps = sum("gap_bytes");
    for (place, bytes) in
        [("slot", sum("planned_bytes") - gaps), ("gap", gaps), ("backend", sum("fallback_bytes"))]
    {
        let labels = [labels, &[("from", place)]].concat();
        metrics.sample("stepalloc_served_bytes_total", &labels, bytes);
    }
}

/// Puts the text into the file at once: who reads it sees the old one or the new one.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".stepalloc-").tempfile_in(directory)?;
    io::Write::write_all(&mut file, text.as_bytes())?;
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    file.as_file().set_permissions(readable)?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_the_form_of_open_metrics() {
        let directory = tempfile::tempdir().expect("a directory");
        let journal = directory.path().join("steps");
        fs::write(
            &journal,
            "7,0,1,2,2000000,4,1,64,0,0,0,16,1,128,128\n7,1,1,2,3000000,0,1,64,1,36,0,0,1,128,128\n",
        )
        .expect("written");
        let live = Process { resident: Resident { bytes: 4096, most_bytes: 8192 }, minor_faults: 3 };
        let text = of_journal(&journal, "a \"b\"\\", 7, Some(&live));
        assert!(
            text.ends_with("stepalloc_running{program=\"a \\\"b\\\"\\\\\",pid=\"7\"} 1\n# EOF\n"),
            "{text}"
        );
        let value = |name: &str| -> f64 {
            let line = text.lines().find(|line| line.starts_with(&format!("{name}{{"))).expect(name);
            line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect(name)
        };
        assert_eq!(value("stepalloc_steps_total"), 2.0);
        assert_eq!(value("stepalloc_step_seconds"), 0.003);
        assert_eq!(value("stepalloc_resident_bytes"), 4096.0);
        let served: Vec<&str> =
            text.lines().filter(|line| line.starts_with("stepalloc_served_bytes_total")).collect();
        assert!(
            served[0].contains("from=\"slot\"} 112")
                && served[1].ends_with("} 16")
                && served[2].ends_with("} 36"),
            "{served:?}"
        );
        // Every family is told before its samples, and once.
        let mut told = std::collections::HashSet::new();
        for line in text.lines().filter(|line| line.starts_with("# TYPE ")) {
            assert!(told.insert(line.split(' ').nth(2).expect("a name")), "{line}");
        }
    }

    #[test]
    fn a_file_of_metrics_is_replaced_as_a_whole() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.prom");
        write(&path, "one\n").expect("written");
        write(&path, "two\n").expect("written");
        assert_eq!(fs::read_to_string(&path).expect("read"), "two\n");
        assert_eq!(fs::read_dir(directory.path()).expect("listed").count(), 1);
        assert!(write(Path::new("/nowhere/a.prom"), "").is_err());
    }

    #[test]
    fn a_running_process_is_read() {
        let own = Process::read(std::process::id()).expect("this one runs");
        assert!(own.minor_faults > 0);
        assert!(Process::read(u32::MAX).is_none());
    }
}
