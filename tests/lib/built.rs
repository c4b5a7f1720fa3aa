//! The command and the libraries to preload, built once with the profile of the tests that use them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Where `stepalloc`, `libstepalloc.so`, `libstepalloc_marks.so` and `libstepalloc_runtime.so` lie; builds them first.
///
/// # Panics
/// If they cannot be built: the tests that ask have nothing to test then.
pub fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let test = std::env::current_exe().expect("a test knows its own path");
        // target/PROFILE/deps/test-HASH
        let directory = test.parent().and_then(Path::parent).expect("tests lie in target/PROFILE/deps");
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build.args(["build", "--quiet"]);
        for package in ["stepalloc-cli", "stepalloc-preload", "stepalloc-marks", "stepalloc-runtime-capi"] {
            build.args(["--package", package]);
        }
        if directory.ends_with("release") {
            build.arg("--release");
        }
        build.arg("--target-dir").arg(directory.parent().expect("PROFILE lies in the target directory"));
        build.current_dir(env!("CARGO_MANIFEST_DIR"));
        assert!(build.status().expect("cargo can be run").success(), "cargo build failed");
        directory.to_path_buf()
    })
}
