//! `onceward`: the gateway and its commands.

use std::process::ExitCode;

fn main() -> ExitCode {
    onceward_gateway::cli::run(std::env::args_os(), std::env::vars_os())
}
