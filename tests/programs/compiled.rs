//! The C programs beside this file, compiled once for each run of the tests.

use crate::process;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Compiles a source of this directory with the options; panics with the compiler's words where that fails.
fn compile(source: &str, name: &str, options: &[&str]) -> PathBuf {
    try_compile(source, name, options).unwrap_or_else(|error| panic!("cc {source}: {error}"))
}

/// The same; what the compiler said where it fails.
fn try_compile(source: &str, name: &str, options: &[&str]) -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(source);
    // A name of its own: another run of the tests may be executing the last one's.
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let mut cc = process::command("cc");
    // Without -fno-builtin the compiler removes pairs of malloc and free.
    cc.args(["-O1", "-fno-builtin", "-w"]).arg(source).arg("-o").arg(&program).args(options);
    let ended = process::finish(&mut cc);
    if ended.status != 0 {
        return Err(String::from_utf8_lossy(&ended.err).into_owned());
    }
    let last = program.with_file_name(name);
    // The directory of the last run stands; only the newest programs are kept.
    std::fs::rename(&program, &last).map_err(|error| error.to_string())?;
    Ok(last)
}

/// `contract.c`.
pub fn contract() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("contract.c", "contract", &["-pthread", "-ldl"]))
}

/// `vfork.c`.
pub fn vfork() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("vfork.c", "vfork", &["-pthread"]))
}

/// `steps.c`.
pub fn steps() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("steps.c", "steps", &["-ldl"]))
}

/// `transition.c`.
pub fn transition() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("transition.c", "transition", &["-ldl"]))
}

/// `steps.c` without a dynamic linker; the compiler's words where the C library has no static form.
pub fn static_steps() -> Result<PathBuf, String> {
    try_compile("steps.c", "static-steps", &["-static"])
}

/// Options for what uses the runtime's library.
fn runtime_options() -> Vec<String> {
    let capi = Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtime/capi/include");
    let built = stepalloc_tests::built().display();
    let include = format!("-I{}", capi.display());
    vec![include, format!("-L{built}"), "-lstepalloc_runtime".into(), format!("-Wl,-rpath,{built}")]
}

/// `runtime.c`.
pub fn runtime() -> PathBuf {
    let options = runtime_options();
    compile("runtime.c", "runtime", &options.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The runtime's example.
pub fn infer() -> PathBuf {
    let options = runtime_options();
    let source = "../../runtime/capi/examples/infer.c";
    compile(source, "infer", &options.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A library that says on standard error that it was loaded.
pub fn marker() -> PathBuf {
    compile("marker.c", "libmarker.so", &["-shared", "-fPIC"])
}

/// `life.c`.
pub fn life() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("life.c", "life", &["-pthread", "-ldl"]))
}

/// A library of malloc's family, of which none may be called.
pub fn behind() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| compile("behind.c", "libbehind.so", &["-shared", "-fPIC"]))
}

/// `early.c`.
pub fn early() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| compile("early.c", "libearly.so", &["-shared", "-fPIC"]))
}

/// `module.c`.
pub fn module() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| compile("module.c", "libmodule.so", &["-shared", "-fPIC"]))
}

/// `operations.c`.
pub fn operations() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("operations.c", "operations", &["-pthread", "-ldl"]))
}

/// `refuse.c`.
pub fn refuse() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| compile("refuse.c", "librefuse.so", &["-shared", "-fPIC", "-ldl"]))
}

/// `restricted.c`.
pub fn restricted() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("restricted.c", "restricted", &[]))
}

/// `leaks.c`.
pub fn leaks() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("leaks.c", "leaks", &["-pthread", "-ldl"]))
}

/// `leaks.c` as the module that it loads.
pub fn leaks_module() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| compile("leaks.c", "libleaks.so", &["-shared", "-fPIC", "-DMODULE"]))
}

/// `deep.c`, which finds its library beside itself by its RUNPATH only.
pub fn deep() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let flags = ["-ldl", "-Wl,--enable-new-dtags", "-Wl,-rpath,$ORIGIN"];
    PROGRAM.get_or_init(|| compile("deep.c", "deep", &flags))
}

/// `deep.c` as the library that it loads.
pub fn deep_module() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| compile("deep.c", "libdeep.so", &["-shared", "-fPIC", "-DMODULE"]))
}
