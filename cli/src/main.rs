//! The command `stepalloc`: runs a program with its steps' memory planned, compares it under several allocators, plans buffers
//! and traces, shows plans as a page, and all of it on a real training.
//!
//! Each subcommand is a module with its own arguments and its own error type; this file only tells them apart. The
//! program's own standard output belongs to the program being run: what we have to say goes to standard error, except
//! where a user asks for it with `-`.
//!
//! | exit status | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | `demo`: a configuration failed; `leaks`: something grows |
//! | 2 | arguments or files are wrong, and nothing was run; or figures could not be written afterwards |
//! | 3 | `plan --capacity`: no plan within it was found; `leaks`: the program failed |
//! | 70 | a plan did not pass the verifier: our fault |
//! | 126, 127 | `run`, `compare`, `leaks`: the program cannot be executed, or was not found |
//! | 128 + signal | ended by a signal; 141: nobody reads its output any more |
//!
//! Otherwise `run` and `compare` end as the program does.
#![deny(unsafe_code)]

mod compare;
mod counting;
mod demo;
mod leaks;
mod model;
mod os;
mod output;
mod plan;
mod progress;
mod recording;
mod report;
mod run;
mod size;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Planning in the demo's processes, otherwise no more than the backend.
#[global_allocator]
static ALLOCATOR: counting::Counting<stepalloc::StatisticAllocator<stepalloc::backend::Chosen>> =
    counting::Counting(stepalloc::StatisticAllocator::new(stepalloc::backend::Chosen));

/// Arguments, files or settings are wrong.
const USAGE: u8 = 2;

/// Learns the memory of one step of a program, plans it once, and serves every later step from one arena.
#[derive(Parser)]
#[command(
    name = "stepalloc",
    version,
    arg_required_else_help = true,
    after_help = "Examples:
  stepalloc demo                              see it at work: a network, trained under six allocators
  stepalloc run -- python3 train.py           run a program with its steps planned
  stepalloc run --json - -- python3 train.py  and print what was planned as JSON
  stepalloc compare -- python3 train.py       the same program under eight allocators, side by side
  stepalloc plan trace.csv.gz                 how small can the arena of this step be?

'stepalloc COMMAND --help' says more."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program with libstepalloc.so in front of its malloc
    Run(run::Arguments),
    /// Run a program under several allocators, in turns, and tell what differs by more than chance
    Compare(compare::Arguments),
    /// Run a program and tell whether its memory grows from round to round
    Leaks(leaks::Arguments),
    /// Plan buffers or a recorded trace, and say how close to the minimum the plan is
    Plan(plan::Arguments),
    /// Show a trace, buffers or plans as a page for the browser
    Report(report::Arguments),
    /// Run ONNX models in planned memory
    Model(model::Arguments),
    /// Train a small network on real data under six allocators and compare them
    Demo(demo::Arguments),
    /// One of the demo's processes
    #[command(hide = true, name = demo::CHILD)]
    DemoChild(demo::child::Arguments),
}

fn main() -> ExitCode {
    let told = |error: &dyn std::error::Error, code: u8| {
        os::say(&error.to_string());
        ExitCode::from(code)
    };
    let command = Arguments::parse().command;
    // What it repeats itself, models' runs above all, has an arena already or is none of the user's.
    if !matches!(command, Command::DemoChild(_)) {
        stepalloc::disable();
    }
    match command {
        Command::Run(arguments) => match run::run(arguments) {
            Ok(ended) => ended.end_alike(),
            Err(error) => told(&error, error.exit_code()),
        },
        Command::Compare(arguments) => match compare::compare(arguments) {
            Ok(ended) => ended.end_alike(),
            Err(error) => told(&error, error.exit_code()),
        },
        Command::Leaks(arguments) => match leaks::leaks(arguments) {
            Ok(leaks::Outcome::Judged { grows }) => ExitCode::from(u8::from(grows)),
            Ok(leaks::Outcome::Failed(ended)) => ended.end_alike(),
            Err(error) => told(&error, error.exit_code()),
        },
        Command::Plan(arguments) => {
            plan::plan(arguments).unwrap_or_else(|error| told(&error, error.exit_code()))
        }
        Command::Model(arguments) => model::main(arguments),
        Command::Report(arguments) => {
            report::report(&arguments).unwrap_or_else(|error| told(&error, error.exit_code()))
        }
        Command::Demo(arguments) => {
            demo::demo(arguments).unwrap_or_else(|error| told(&error, error.exit_code()))
        }
        Command::DemoChild(arguments) => {
            demo::child::train(&arguments).map_or_else(|error| told(&error, 1), |()| ExitCode::SUCCESS)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn options_that_do_not_exist_are_refused_not_passed_to_the_program() {
        let parsed = Arguments::try_parse_from(["stepalloc", "run", "--recrod", "F", "--", "true"]);
        assert_eq!(parsed.err().map(|error| error.kind()), Some(clap::error::ErrorKind::UnknownArgument));
        let alone = Arguments::try_parse_from(["stepalloc", "run", "--call-sites", "--", "true"]);
        let missing = clap::error::ErrorKind::MissingRequiredArgument;
        assert_eq!(alone.err().map(|error| error.kind()), Some(missing));
    }

    #[test]
    fn what_follows_two_dashes_is_the_programs_own() {
        let parsed = Arguments::try_parse_from(["stepalloc", "run", "--", "env", "--json", "x"]);
        assert!(matches!(parsed.map(|a| a.command), Ok(Command::Run(run)) if run.program.len() == 3));
    }
}
