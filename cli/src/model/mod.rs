//! `stepalloc model`: ONNX models in planned memory.

mod batch;
mod infer;
mod inputs;
mod inspect;
mod optimize;
mod passes;
mod profile;
mod quantize;
mod reload;
mod report;
mod rss;
mod test;

use crate::USAGE;
use clap::Subcommand;
use std::process::ExitCode;
use stepalloc::Backend;
use stepalloc::backend::{Chosen, Retention};

/// What to do with a model.
#[derive(clap::Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  stepalloc model infer net.onnx --shape x=1x3x224x224   run it on random numbers
  stepalloc model inspect net.onnx                       what is in it, and what memory a run takes
  stepalloc model optimize net.onnx -o small.onnx        write it with fewer nodes
  stepalloc model quantize net.onnx -o net.int8.onnx     give it weights of 8 bits
  stepalloc model test tests/node tests/light            run directories in ONNX's test layout"
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a model, and say what memory it takes
    Infer(infer::Arguments),
    /// Say what is in a model, and what memory a run takes
    Inspect(inspect::Arguments),
    /// Write a model with fewer nodes that computes the same but for rounding
    Optimize(optimize::Arguments),
    /// Give a model weights of 8 bits
    Quantize(quantize::Arguments),
    /// Run directories in the layout of ONNX's own tests, and compare what comes out
    Test(test::Arguments),
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    // A model's structure and its plans are many small blocks, and each model's are scattered anew over what a backend keeps.
    Chosen::retain(Retention::Immediate);
    let done = match arguments.command {
        Command::Infer(arguments) => infer::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Optimize(arguments) => optimize::run(&arguments),
        Command::Quantize(arguments) => quantize::run(&arguments),
        Command::Test(arguments) => test::run(&arguments),
    };
    done.unwrap_or_else(|error| {
        eprintln!("stepalloc model: {error}");
        ExitCode::from(USAGE)
    })
}
