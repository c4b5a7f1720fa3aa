//! `model test`: directories in the layout of ONNX's own tests.

use super::passes;
use crate::output::say;
use std::path::PathBuf;
use std::process::ExitCode;
use stepalloc_runtime::Model;
use stepalloc_runtime::conformance::{Verdict, judge, tests};

/// Run directories in the layout of ONNX's own tests
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Directories of tests, or of directories of tests
    #[arg(required = true, value_name = "DIR")]
    directories: Vec<PathBuf>,
    #[command(flatten)]
    passes: passes::Passes,
    /// Write each model and read it again before it is run
    #[arg(long)]
    rewrite: bool,
    /// Print only what did not pass
    #[arg(long)]
    quiet: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, String> {
    let optimization = arguments.passes.optimization()?;
    let prepare = |model: Model| {
        let (model, _) = model.optimize(&optimization);
        if arguments.rewrite { Model::from_bytes(model.to_bytes()?) } else { Ok(model) }
    };
    let mut all = Vec::new();
    for directory in &arguments.directories {
        let found = tests(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        if found.is_empty() {
            return Err(format!(
                "{}: no model.onnx or model.xml in it or in the directories in it",
                directory.display()
            ));
        }
        all.extend(found);
    }
    let (mut passed, mut wrong, mut unsupported) = (0, 0, 0);
    for test in &all {
        let name = test.file_name().unwrap_or_default().to_string_lossy();
        match judge(test, &prepare) {
            Verdict::Passed => {
                passed += 1;
                if !arguments.quiet {
                    say!("passed       {name}");
                }
            }
            Verdict::Wrong(why) => {
                wrong += 1;
                say!("wrong        {name}: {why}");
            }
            Verdict::Unsupported(why) => {
                unsupported += 1;
                say!("unsupported  {name}: {why}");
            }
        }
    }
    say!("passed {passed}, wrong {wrong}, unsupported {unsupported}");
    Ok(ExitCode::from(u8::from(wrong > 0)))
}
