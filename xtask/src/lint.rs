//! Everything that can be said about the source without running it.

use crate::Done;
use crate::shell::{cargo, has, run as run_command};

pub fn run() -> Done {
    run_command(&mut cargo(&["fmt", "--all", "--check"]))?;
    run_command(&mut cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "--deny",
        "warnings",
    ]))?;
    run_command(
        cargo(&["doc", "--workspace", "--no-deps", "--locked"]).env("RUSTDOCFLAGS", "--deny warnings"),
    )?;
    if has("cargo-deny") {
        // Advisories are left out: they need a database of their own, and would fail a change for what others published.
        run_command(&mut cargo(&["deny", "check", "bans", "licenses", "sources"]))
    } else {
        println!("cargo-deny is not installed: licences and sources of dependencies were not checked.");
        Ok(())
    }
}
