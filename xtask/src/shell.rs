//! Running other programs.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::Done;

/// Cargo, as it was called itself.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    // Cargo's variables about this program are not for its children: some dependencies were built anew whenever it
    // changed, so each turn from `cargo test` to `cargo xtask test` took minutes.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_MANIFEST_") || text.starts_with("CARGO_PKG_") {
            command.env_remove(&name);
        }
    }
    command
}

/// The workspace.
pub fn root() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest)
}

/// Shows a command, runs it, and fails with its text if it fails.
pub fn run(command: &mut Command) -> Done {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let line = words.join(" ");
    println!("$ {line}");
    let status = command.status().map_err(|error| format!("`{line}` could not be started: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{line}` failed: {status}").into()) }
}

/// Whether a program is there.
pub fn has(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        // Some print their version and fail all the same.
        .is_ok()
}
