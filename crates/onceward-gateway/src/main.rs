//! `onceward`: the gateway and its commands.

use std::process::ExitCode;

/// A request allocates a few dozen times, and on several threads. The system's allocator took a tenth of the time for that, and
/// kept memory that another thread had freed.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    onceward_gateway::cli::run(std::env::args_os(), std::env::vars_os())
}
