//! The Python wheel as its users have it: built by maturin, installed by pip into an environment of its own, and used.
//!
//! Where Debian's python3 with its module venv, or maturin, is missing the tests say that they are skipped, unless
//! `STEPALLOC_REQUIRE_WHEEL=1` asks for them. The wheel is built once for each run of the tests, in `target/wheel`:
//! maturin moves the library that cargo made, and here other tests would miss it.

use crate::process::{self, Ended};
use crate::{BACKENDS, compiled, exports};
use serde_json::Value;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};

/// Debian's, which has no wrapper around it.
const PYTHON: &str = "/usr/bin/python3";

/// A script that repeats a step of sixteen buffers and prints its statistics and its phase: 300 times where its argument
/// says how it marks them, and unmarked for long enough that the process is not left alone as one that has hardly run.
/// Scopes are opened twice, as by a library in a marked loop.
const TRAINING: &str = r#"
import json, sys, time
import stepalloc

def train():
    held = [bytearray(40_000 + 5_000 * layer) for layer in range(16)]
    for buffer in held:
        buffer[0] = 1

for _ in range(300):
    if sys.argv[1] == "calls":
        stepalloc.step()
        train()
    elif sys.argv[1] == "scopes":
        with stepalloc.step():
            stepalloc.step()
            with stepalloc.step():
                train()
while sys.argv[1] == "none" and time.process_time() < 1:
    train()
print(json.dumps([stepalloc.stats(), stepalloc.phase()]))
"#;

/// Prints whether the library is there.
const PHASE: &str = "import stepalloc; print(stepalloc.phase())";

/// maturin, where it is on the path.
pub fn maturin() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|place| place.join("maturin")).find(|file| file.is_file())
}

/// Fails with what the program wrote, unless it ends well; however long it takes.
pub fn succeed(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Where maturin has cargo build, one wheel at a time.
fn target() -> &'static Mutex<PathBuf> {
    static TARGET: OnceLock<Mutex<PathBuf>> = OnceLock::new();
    TARGET.get_or_init(|| {
        let built = stepalloc_tests::built();
        let target = built.with_file_name("wheel");
        // A copy of what cargo made of the same crates, jemalloc above all, so that it is not made again. No hard links: cargo
        // writes its fingerprints in place. (Where the copy fails, all is made again.)
        if !target.exists() && fs::create_dir(&target).is_ok() {
            let _ = process::command("cp").args(["-a", "--reflink=auto"]).arg(built).arg(&target).output();
        }
        Mutex::new(target)
    })
}

/// Builds the wheel of a folder of the repository into `place`; its file.
pub fn build(maturin: &Path, folder: &str, place: &Path) -> PathBuf {
    let target = target().lock().expect("no build has panicked");
    let _ = fs::remove_dir_all(place);
    let mut build = process::command(maturin);
    build.args(["build", "--quiet", "--release", "--locked", "--target-dir"]).arg(&*target);
    build.arg("--out").arg(place);
    build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder));
    // The interpreter that maturin was installed for has cffi beside it.
    let interpreter = maturin.with_file_name("python3");
    if interpreter.is_file() {
        build.arg("--interpreter").arg(interpreter);
    }
    succeed(&mut build);
    let wheels: Vec<PathBuf> =
        fs::read_dir(place).expect("a directory").map(|entry| entry.expect("an entry").path()).collect();
    let [wheel] = &wheels[..] else { panic!("not one wheel: {wheels:?}") };
    wheel.clone()
}

/// Says that what is missing is, or fails where wheels are asked for.
pub fn without_wheel(missing: &str) {
    let required = std::env::var_os("STEPALLOC_REQUIRE_WHEEL").is_some_and(|value| value == "1");
    assert!(!required, "{missing}, and STEPALLOC_REQUIRE_WHEEL=1");
    process::skip(missing);
}

/// Builds the wheel and installs it; the directory of the environment.
fn install(maturin: &Path) -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wheel");
    let wheel = build(maturin, "allocators/python", &place);
    let environment = place.join("environment");
    succeed(process::command(PYTHON).args(["-m", "venv"]).arg(&environment));
    let mut pip = process::command(environment.join("bin/python3"));
    pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check"]);
    succeed(pip.arg(wheel));
    environment
}

/// The interpreter of an environment with the wheel; `None`, with a line, where there cannot be one.
fn python() -> Option<&'static Path> {
    static PYTHON_THERE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let python = PYTHON_THERE.get_or_init(|| {
        let venv = Command::new(PYTHON).args(["-c", "import venv, ensurepip"]).output();
        let venv = venv.is_ok_and(|output| output.status.success());
        Some(install(&maturin().filter(|_| venv)?).join("bin/python3"))
    });
    if python.is_none() {
        without_wheel("maturin (PyPI) and Debian's python3-venv are not both installed");
    }
    python.as_deref()
}

/// The package as installed for an interpreter.
fn package(python: &Path) -> PathBuf {
    let code = "import os, stepalloc; print(os.path.dirname(stepalloc.__file__))";
    let ended = process::finish(process::command(python).args(["-c", code])).with_status(0);
    PathBuf::from(ended.out().trim_end())
}

/// `python -m stepalloc ARGUMENTS`.
fn wheel<'a>(python: &Path, arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = process::command(python);
    command.args(["-m", "stepalloc"]).args(arguments);
    command
}

/// A directory with a script of this text.
fn script(text: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("train.py");
    fs::write(&file, text).expect("written");
    let file = file.to_str().expect("paths of temporary files are UTF-8").to_owned();
    (directory, file)
}

/// What `TRAINING` prints: its statistics, once its phase is known to be in them.
#[track_caller]
fn statistics(ended: &Ended) -> Value {
    let printed: Value = serde_json::from_str(ended.out()).unwrap_or_else(|e| panic!("{e}: {}", ended.out()));
    assert_eq!(printed[0]["phase"], printed[1]);
    printed[0].clone()
}

/// Trains by the wheel.
#[track_caller]
fn trained(python: &Path, options: &[&str], marks: &str) -> Value {
    let (_directory, file) = script(TRAINING);
    let arguments = options.iter().copied().chain([file.as_str(), marks]);
    statistics(&process::finish(&mut wheel(python, arguments)).with_status(0))
}

#[test]
fn a_script_that_marks_nothing_is_planned() {
    let Some(python) = python() else { return };
    let figures = trained(python, &[], "none");
    assert_eq!((&figures["phase"], &figures["marked"]), (&"planned".into(), &false.into()), "{figures}");
    assert_eq!(figures["last_steps"]["fallback_bytes"], 0, "{figures}");
}

#[test]
fn a_call_is_a_boundary() {
    let Some(python) = python() else { return };
    let figures = trained(python, &[], "calls");
    assert_eq!((&figures["phase"], &figures["marked"]), (&"planned".into(), &true.into()), "{figures}");
    assert_eq!((&figures["steps"], &figures["planned_blocks"]), (&300.into(), &16.into()), "{figures}");
}

#[test]
fn a_scope_is_one_boundary_whatever_is_marked_in_it() {
    let Some(python) = python() else { return };
    let figures = trained(python, &[], "scopes");
    assert_eq!((&figures["phase"], &figures["marked"]), (&"planned".into(), &true.into()), "{figures}");
    assert_eq!((&figures["steps"], &figures["planned_blocks"]), (&300.into(), &16.into()), "{figures}");
}

#[test]
fn scopes_that_threads_open_at_once_are_one_boundary() {
    let Some(python) = python() else { return };
    let code = "import stepalloc, threading
together = threading.Barrier(4)
def work():
    for _ in range(300):
        together.wait()
        with stepalloc.step(): together.wait()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(stepalloc.stats()['steps'])";
    let ended = process::finish(&mut wheel(python, ["-c", code])).with_status(0);
    let steps: u32 = ended.out().trim_end().parse().expect("a number");
    // The interpreter may change threads between a boundary and its scope, where the machine kept it waiting there.
    assert!((300..=310).contains(&steps), "{steps}");
}

#[test]
fn an_exception_leaves_the_scope() {
    let Some(python) = python() else { return };
    let code = "import stepalloc
for _ in range(7):
    try:
        with stepalloc.step(): raise ValueError
    except ValueError: pass
print(stepalloc.stats()['steps'])";
    assert_eq!(process::finish(&mut wheel(python, ["-c", code])).with_status(0).out(), "7\n");
}

#[test]
fn a_child_forked_within_a_scope_marks_steps_of_its_own() {
    let Some(python) = python() else { return };
    let code = "import os, sys, stepalloc
with stepalloc.step():
    child = os.fork()
    if child == 0:
        for _ in range(5):
            with stepalloc.step(): pass
        print(stepalloc.stats()['steps'], flush=True)
if child == 0:
    os._exit(0)
sys.exit(os.waitpid(child, 0)[1])";
    assert_eq!(process::finish(&mut wheel(python, ["-c", code])).with_status(0).out(), "5\n");
}

#[test]
fn options_are_settings() {
    let Some(python) = python() else { return };
    for backend in BACKENDS {
        let figures = trained(python, &["--backend", backend], "calls");
        assert_eq!((&figures["backend"], &figures["phase"]), (&backend.into(), &"planned".into()));
    }
    // Of 40,000 to 115,000 bytes, six are smaller.
    let figures = trained(python, &["--min-bytes=70000"], "calls");
    assert_eq!(figures["planned_blocks"], 10, "{figures}");
    let directory = tempfile::tempdir().expect("a directory");
    let code = "import os; os.chdir('/'); print(os.environ['STEPALLOC_PLAN'])";
    let mut command = wheel(python, ["--plan", "of %r.plan", "-c", code]);
    let ended = process::finish(command.current_dir(&directory)).with_status(0);
    assert_eq!(Path::new(ended.out().trim_end()), directory.path().join("of %r.plan"));
}

#[test]
fn each_process_that_made_steps_appends_to_the_json_file() {
    let Some(python) = python() else { return };
    let (directory, file) = script(TRAINING);
    for _ in 0..2 {
        let mut command = wheel(python, ["--json", "figures.json", &file, "calls"]);
        process::finish(command.current_dir(&directory)).with_status(0);
    }
    let json = fs::read_to_string(directory.path().join("figures.json")).expect("figures");
    let steps: Vec<Value> = json
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["steps"].clone())
        .collect();
    assert_eq!(steps, [300, 300]);
}

#[test]
fn scripts_modules_and_code_find_what_they_find_without_the_wheel() {
    let Some(python) = python() else { return };
    // What the interpreter was told, and what a program sees of it.
    let text = "import os, sys
print(sys.argv, sys.path, __name__, __package__, sys.flags, sys.warnoptions, sys._xoptions, sys.executable)
print(sys.stdout.write_through, os.getcwd(), sys.stdin.read())";
    let (directory, file) = script(text);
    for options in [&[][..], &["-O", "-u", "-X", "utf8", "-W", "error"], &["-BOs"]] {
        for program in [
            &[file.as_str()][..],
            &["train.py", "-m", "x"],
            &["-m", "train", "--json", ""],
            &["-c", text, "-c"],
        ] {
            let run = |ours: &[&str]| {
                let mut command = process::command(python);
                command.args(options).args(ours).args(program).current_dir(&directory);
                command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
                let mut child = command.spawn().expect("started");
                std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), b"given")
                    .expect("written");
                process::await_end(child, "python").with_status(0)
            };
            let plain = run(&[]);
            for ours in
                [&["-m", "stepalloc"][..], &["-mstepalloc"], &["-m", "stepalloc", "--backend", "glibc", "--"]]
            {
                assert_eq!(run(ours), plain, "{options:?} {ours:?} {program:?}");
            }
        }
    }
}

#[test]
fn the_exit_status_and_the_process_are_the_programs() {
    let Some(python) = python() else { return };
    for (code, status) in [("raise SystemExit(3)", 3), ("raise ValueError('told')", 1), ("", 0)] {
        let ended = process::finish(&mut wheel(python, ["-c", code])).with_status(status);
        assert_eq!(ended.err().contains("ValueError: told"), status == 1, "{}", ended.err());
    }
    let code = "import os, signal; print(os.getpid(), flush=True); os.kill(os.getpid(), signal.SIGUSR2)";
    let child = wheel(python, ["-c", code]).stdout(Stdio::piped()).spawn().expect("started");
    let id = child.id();
    let output = child.wait_with_output().expect("a child can be waited for");
    assert_eq!(output.status.signal(), Some(libc::SIGUSR2));
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{id}\n"));
}

#[test]
fn wrong_arguments_are_named_and_nothing_is_run() {
    let Some(python) = python() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().to_str().expect("UTF-8");
    let run = ["-c", "print('started')"];
    let cases: [(&[&str], &[&str]); 10] = [
        (&["train.py"], &["train.py: no such file", place, "give the path of a script"]),
        (&["/no/such/train.py"], &["/no/such/train.py: no such file;"]),
        (&[], &["no program", "--help"]),
        (&["-m"], &["-m: a module is missing"]),
        (&["--backend"], &["--backend: a value is missing"]),
        (&["--backend", "tcmalloc", run[0], run[1]], &["--backend tcmalloc", "glibc, jemalloc, mimalloc"]),
        (&["--min-bytes", "32KiB", run[0], run[1]], &["--min-bytes 32KiB", "1024"]),
        (&["--json", "/no/such/f", run[0], run[1]], &["--json /no/such/f", "No such file or directory"]),
        (&["--json", "-", run[0], run[1]], &["--json -", "the path of a file"]),
        (&["-O", run[0], run[1]], &["-O: no such option", "before -m stepalloc"]),
    ];
    for (arguments, words) in cases {
        let mut command = wheel(python, arguments.iter().copied());
        let ended = process::finish(command.current_dir(&directory)).with_status(2);
        let [line] = ended.ours()[..] else { panic!("not one line: {}", ended.err()) };
        for word in words {
            assert!(line.contains(word), "{arguments:?}: {word}: {line}");
        }
        assert_eq!((ended.err().lines().count(), ended.out()), (1, ""), "{arguments:?}");
    }
}

#[test]
fn the_help_has_the_options_and_examples() {
    let Some(python) = python() else { return };
    let ended = process::finish(&mut wheel(python, ["--help"])).with_status(0);
    for word in
        ["--backend B", "--json F", "--plan F", "--min-bytes N", "examples:\n  python -m stepalloc train.py"]
    {
        assert!(ended.out().contains(word), "{word}: {}", ended.out());
    }
    let ended = process::finish(&mut wheel(python, ["--version"])).with_status(0);
    assert_eq!(ended.out(), concat!("stepalloc ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn without_the_library_nothing_happens_and_one_line_says_so() {
    let Some(python) = python() else { return };
    let (_directory, file) = script(TRAINING);
    // Warnings made errors stop nobody, for it is a line and no warning.
    for marks in ["calls", "scopes"] {
        let ended =
            process::finish(process::command(python).args(["-W", "error", &file, marks])).with_status(0);
        assert_eq!(ended.out(), "[{\"phase\": \"none\"}, \"none\"]\n");
        let [line] = ended.ours()[..] else { panic!("not one line: {}", ended.err()) };
        assert!(line.contains("not preloaded") && line.contains("python -m stepalloc"), "{line}");
        assert_eq!(ended.err().lines().count(), 1, "{}", ended.err());
    }
    // One that asks for nothing hears nothing.
    let ended = process::finish(process::command(python).args(["-c", "import stepalloc"])).with_status(0);
    assert_eq!((ended.out(), ended.err()), ("", ""));
}

#[test]
fn without_the_library_and_standard_error_nothing_is_said() {
    let Some(python) = python() else { return };
    let mut shell = process::command("sh");
    shell.args(["-c", "exec \"$0\" -c \"$1\" 2>&-"]).arg(python).arg(PHASE);
    assert_eq!(process::finish(&mut shell).with_status(0).out(), "none\n");
}

#[test]
fn programs_that_the_script_starts_have_the_library_once() {
    let Some(python) = python() else { return };
    let code = format!(
        "import os, subprocess, sys
for wheel in [], ['-m', 'stepalloc']:
    subprocess.run([sys.executable, *wheel, '-c', '{PHASE}'], check=True)
    subprocess.run([sys.executable, *wheel, '-c', 'import os; print(os.environ[\"LD_PRELOAD\"])'], check=True)"
    );
    let ended = process::finish(&mut wheel(python, ["-c", &code])).with_status(0);
    let library = package(python).join("stepalloc/libstepalloc.so");
    let both = format!("waiting\n{}\n", library.display());
    assert_eq!((ended.out(), ended.err()), (both.repeat(2).as_str(), ""));
}

#[test]
fn what_was_preloaded_before_is_preloaded_still() {
    let Some(python) = python() else { return };
    let marker = compiled::marker();
    let mut command = wheel(python, ["-c", PHASE]);
    let ended = process::finish(command.env("LD_PRELOAD", &marker)).with_status(0);
    assert_eq!(ended.out(), "waiting\n");
    // Once before the interpreter executed itself anew, and once after.
    assert_eq!(ended.err(), "the marker is loaded\n".repeat(2));
}

#[test]
fn under_the_command_its_library_is_used() {
    let Some(python) = python() else { return };
    let (directory, file) = script(TRAINING);
    let figures = directory.path().join("figures.json");
    let python = python.to_str().expect("the target directory's path is UTF-8");
    for ours in [&[][..], &["-m", "stepalloc"]] {
        let mut command = process::stepalloc(["run", "--json"]);
        command.arg(&figures).args(["--", python]).args(ours).args([&file, "calls"]);
        command.env("START_STATISTIC_STEP", "2").env("STABLE_STATISTIC_STEP", "1");
        let seen = statistics(&process::finish(&mut command).with_status(0));
        let json = fs::read_to_string(&figures).expect("figures");
        let [told] = json.lines().collect::<Vec<_>>()[..] else { panic!("not one process: {json}") };
        let told: Value = serde_json::from_str(told).expect("JSON");
        for name in ["pid", "phase", "steps", "planned_at_step"] {
            assert_eq!(told[name], seen[name], "{name}: {told} {seen}");
        }
        assert_eq!((&seen["phase"], &seen["steps"]), (&"planned".into(), &300.into()), "{seen}");
    }
    let code = "import os; print(os.environ['LD_PRELOAD'])";
    let mut command = process::stepalloc(["run", "--quiet", "--", python, "-m", "stepalloc", "-c", code]);
    let ended = process::finish(&mut command).with_status(0);
    let library = process::library().canonicalize().expect("the library is built");
    assert_eq!(Path::new(ended.out().trim_end()), library);
}

#[test]
fn steps_are_timed_under_other_allocators() {
    let Some(python) = python() else { return };
    let (directory, file) = script(TRAINING);
    let figures = directory.path().join("figures.json");
    let python = python.to_str().expect("the target directory's path is UTF-8");
    let mut command = process::stepalloc(["compare", "--no-report", "--runs", "2"]);
    command.args(["--allocators", "glibc,stepalloc/glibc", "--json"]).arg(&figures);
    process::finish(command.args(["--", python, &file, "scopes"])).with_status(0);
    let figures: Value = serde_json::from_str(&fs::read_to_string(&figures).expect("figures")).expect("JSON");
    for row in figures["results"].as_array().expect("rows") {
        // A boundary each: 300, with a step between two.
        assert!(row["runs"].as_array().expect("runs").iter().all(|run| run["steps"] == 299), "{row}");
    }
}

#[test]
fn call_sites_have_the_lines_of_the_script() {
    let Some(python) = python() else { return };
    let (directory, file) = script(TRAINING);
    let trace = directory.path().join("trace.csv");
    let mut command = process::stepalloc(["run", "--quiet", "--call-sites", "--trace"]);
    command.arg(&trace).arg("--").arg(python).args([&file, "calls"]);
    command.env("START_STATISTIC_STEP", "2").env("STABLE_STATISTIC_STEP", "1");
    let seen = statistics(&process::finish(&mut command).with_status(0));
    assert_eq!(seen["phase"], "planned");
    let text = fs::read_to_string(&trace).expect("the trace was written");
    let sites: Vec<&str> = text.lines().filter(|line| line.starts_with("# site ")).collect();
    // Line 6 of the script makes the buffers; a comprehension may be a frame of its own.
    let buffers = sites.iter().find(|site| site.contains("train (train.py:6)")).expect("the line");
    assert!(buffers.contains("<module> (train.py:13);"), "{buffers}");
    let number = buffers.split_whitespace().nth(2).expect("a number");
    let asked = text.lines().filter(|line| line.starts_with("a,") && line.rsplit(',').next() == Some(number));
    assert!(asked.count() > 299 * 15, "{buffers}");
    // Nobody is told who has not asked.
    let mut alone = process::command(python);
    let ended =
        process::finish(alone.args(["-c", "import sys; print(sys.gettrace(), 'stepalloc' in sys.modules)"]));
    assert_eq!(ended.with_status(0).out(), "None False\n");
}

#[test]
fn a_package_below_a_directory_with_a_space_is_preloaded_by_a_link() {
    let Some(python) = python() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("a place: with spaces");
    fs::create_dir(&place).expect("a directory");
    succeed(process::command("cp").arg("-r").arg(package(python)).arg(&place));
    let cache = directory.path().join("cache");
    // PYTHONPATH is a list that colons separate, too.
    let mut command = wheel(python, ["-c", PHASE]);
    command.current_dir(&place).env("XDG_CACHE_HOME", &cache);
    // Twice: the link of the first run serves the second.
    for _ in 0..2 {
        let ended = process::finish(&mut command).with_status(0);
        assert_eq!((ended.out(), ended.err()), ("waiting\n", ""));
    }
    command.env("XDG_CACHE_HOME", place.join("cache"));
    let ended = process::finish(&mut command).with_status(2);
    assert!(ended.err().contains("XDG_CACHE_HOME"), "{}", ended.err());
    fs::remove_file(place.join("stepalloc/stepalloc/libstepalloc.so")).expect("removed");
    let ended = process::finish(&mut command).with_status(2);
    assert!(ended.err().contains("libstepalloc.so: not found"), "{}", ended.err());
}

#[test]
fn the_library_in_the_wheel_exports_exactly_the_golden_list() {
    let Some(python) = python() else { return };
    let library = package(python).join("stepalloc/libstepalloc.so");
    exports::are_the_golden_list(&library);
}

#[test]
fn the_package_is_typed_and_needs_no_other() {
    let Some(python) = python() else { return };
    assert!(package(python).join("py.typed").is_file());
    let code = "import importlib.metadata as m; print(m.requires('stepalloc'), m.metadata('stepalloc')['Requires-Python'])";
    let ended = process::finish(process::command(python).args(["-c", code])).with_status(0);
    assert_eq!(ended.out(), "None >=3.9\n");
}
