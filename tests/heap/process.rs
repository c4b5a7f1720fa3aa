//! One process a scenario: a test runs itself again, with an environment of its own.

use std::env;
use std::process::{Command, Stdio};

/// Has steps that nobody marks looked for at once; a process that says nothing has to run for a while first.
pub(crate) const AT_ONCE: (&str, &str) = ("START_STATISTIC_STEP", "0");
/// Set in a child to the name of the test that it is to run.
const SCENARIO: &str = "STEPALLOC_HEAP_SCENARIO";
/// Every setting of the allocator, removed from what a child inherits.
const SETTINGS: [&str; 15] = [
    "ENABLE_MEMORY_OPTIMIZATION",
    "START_STATISTIC_STEP",
    "STABLE_STATISTIC_STEP",
    "MAX_STATISTIC_STEP",
    "STEPALLOC_BACKEND",
    "STEPALLOC_MIN_BYTES",
    "STEPALLOC_MAX_ARENA",
    "STEPALLOC_HUGEPAGES",
    "STEPALLOC_POPULATE",
    "STEPALLOC_IDLE",
    "STEPALLOC_LARGE",
    "STEPALLOC_JSON",
    "STEPALLOC_PLAN",
    "STEPALLOC_STATS_SIGNAL",
    "GLIBC_TUNABLES",
];

/// The sanitizer that the tests were built with, as `tests/sanitizers.sh` says it.
pub(crate) fn sanitizer() -> Option<String> {
    env::var("SUITE_SANITIZED").ok()
}

/// Backends that a test goes through: all, but for the thread sanitizer. mimalloc orders what one thread frees before what another is
/// given by atomics in code that the sanitizer does not see; jemalloc has mutexes, which it does see.
pub(crate) fn backends() -> &'static [&'static str] {
    if sanitizer().as_deref() == Some("thread") {
        &["glibc", "jemalloc"]
    } else {
        &["glibc", "jemalloc", "mimalloc"]
    }
}

/// What a child said; it has succeeded.
pub(crate) struct Said {
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    /// The number behind `name=` in the lines beginning with `figures:`.
    pub(crate) fn figure(&self, name: &str) -> u64 {
        let key = format!("{name}=");
        let words = self.figures().flat_map(str::split_whitespace);
        let value = words.filter_map(|word| word.strip_prefix(&key)).next();
        value
            .and_then(|value| value.parse().ok())
            .unwrap_or_else(|| panic!("no figure {name} in:\n{}", self.out))
    }

    fn figures(&self) -> impl Iterator<Item = &str> {
        // libtest writes "test name ... " before a test's first line.
        self.out.lines().filter_map(|line| line.find("figures: ").map(|at| &line[at..]))
    }
}

/// True in a child made by [`run`].
pub(crate) fn is_child(test: &str) -> bool {
    env::var_os(SCENARIO).is_some_and(|name| name == test)
}

/// Runs `test` again in a process of its own with these settings. Where this is that process already, runs `body` and
/// returns `None`.
///
/// # Panics
/// When the child fails, with all it said.
pub(crate) fn scenario(test: &str, settings: &[(&str, &str)], body: impl FnOnce()) -> Option<Said> {
    if is_child(test) {
        body();
        return None;
    }
    Some(run(test, settings))
}

/// As [`scenario`], for the parent alone.
pub(crate) fn run(test: &str, settings: &[(&str, &str)]) -> Said {
    // Tests are named by their path without the crate.
    let name = test.split_once("::").map_or(test, |(_, rest)| rest);
    let mut child = Command::new(env::current_exe().expect("a test knows its own path"));
    child.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    for setting in SETTINGS {
        child.env_remove(setting);
    }
    child.env(SCENARIO, test).envs(settings.iter().copied()).stdin(Stdio::null());
    let output = child.output().expect("the test can run itself");
    let said = Said {
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    };
    assert!(
        output.status.success() && said.out.contains("1 passed"),
        "{name} with {settings:?}: {}\n{}\n{}",
        output.status,
        said.out,
        said.err
    );
    for figures in said.figures() {
        println!(
            "{name} {}: {}",
            settings.iter().map(|(_, value)| *value).collect::<Vec<_>>().join(","),
            &figures[9..]
        );
    }
    said
}

/// The name by which [`scenario`] finds the test it stands in.
#[macro_export]
macro_rules! test_name {
    ($name:ident) => {{
        // The compiler checks that the test exists.
        let _: fn() = $name;
        concat!(module_path!(), "::", stringify!($name))
    }};
}
