//! Onceward's own commands.

mod sim;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Onceward's own commands")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Plays simulated histories, or replays one.
    Sim(sim::Options),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().verb {
        Verb::Sim(options) => sim::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What every verb returns: nothing, or a sentence.
type Done = Result<(), Box<dyn std::error::Error>>;
