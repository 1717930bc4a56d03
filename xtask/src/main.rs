//! Onceward's own commands.

mod bench;
mod former;
mod fuzz;
mod lint;
mod peers;
mod promtool;
mod shell;
mod sim;
mod test;

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
    /// Runs every test, and installs first what is missing for them.
    Test,
    /// Checks format, lints, documentation and, where `cargo-deny` is installed, licences and sources.
    Lint,
    /// Lints and tests: what a change must pass.
    Ci,
    /// Plays simulated histories, or replays one.
    Sim(sim::Options),
    /// Measures.
    #[command(subcommand)]
    Bench(bench::Subject),
    /// Fuzzes. Needs a nightly compiler and `cargo-fuzz`.
    Fuzz(fuzz::Options),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().verb {
        Verb::Test => test::run(),
        Verb::Lint => lint::run(),
        Verb::Ci => lint::run().and_then(|()| test::run()),
        Verb::Sim(options) => sim::run(&options),
        Verb::Bench(subject) => bench::run(&subject),
        Verb::Fuzz(options) => fuzz::run(&options),
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
type Done = Result<(), Box<dyn std::error::Error + Send + Sync>>;
