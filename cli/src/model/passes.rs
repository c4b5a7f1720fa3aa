//! What a model is optimized by: options that `infer`, `optimize` and `test` share.

use crate::size;
use clap::ValueEnum;
use stepalloc_runtime::{Level, Optimization, PASSES};

/// Levels by the names the command has for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Levels {
    /// Not at all
    Disable,
    /// Fewer nodes, with operators of the model's own version of ai.onnx
    Basic,
    /// Operators that do what several did
    Extended,
    /// Everything
    All,
}

/// Passes and how far they go.
#[derive(clap::Args)]
pub(super) struct Passes {
    /// How far to optimize the graph
    #[arg(long, value_name = "LEVEL", default_value = "all")]
    pub level: Levels,
    /// Passes to leave out; `stepalloc model optimize --help` names them
    #[arg(long, value_name = "PASS,...", value_delimiter = ',')]
    disable: Vec<String>,
    /// The most that constant folding may make of one node, as 16MiB
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    fold_limit: Option<u64>,
}

impl Passes {
    pub(super) fn optimization(&self) -> Result<Optimization, String> {
        let level = match self.level {
            Levels::Disable => Level::Disable,
            Levels::Basic => Level::Basic,
            Levels::Extended => Level::Extended,
            Levels::All => Level::All,
        };
        let mut optimization = Optimization::new(level);
        for pass in &self.disable {
            optimization = optimization.without(pass).map_err(|error| error.to_string())?;
        }
        if let Some(bytes) = self.fold_limit {
            optimization = optimization.fold_limit(usize::try_from(bytes).unwrap_or(usize::MAX));
        }
        Ok(optimization)
    }
}

/// All passes, a line each.
pub(super) fn list() -> String {
    let mut text = String::new();
    let levels = [
        (Level::Basic, "basic"),
        (Level::Extended, "extended"),
        (Level::All, "all, where the model is run and not written"),
    ];
    for (level, name) in levels {
        text += &format!("Passes of level {name}:\n");
        for pass in PASSES.iter().filter(|pass| pass.level == level) {
            text += &format!("  {:<17} {}\n", pass.name, pass.what);
        }
    }
    text
}
