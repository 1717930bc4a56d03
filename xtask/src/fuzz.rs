//! Fuzz targets, one after the other.

use crate::Done;
use crate::shell::{cargo, has, root, run as run_command};

const TARGETS: [&str; 4] = ["key", "fingerprint", "canonical_differential", "record"];

#[derive(clap::Args)]
pub struct Options {
    /// One target; all of them where none is named.
    #[arg(value_parser = TARGETS)]
    target: Option<String>,
    /// How long each is fuzzed.
    #[arg(long, default_value_t = 180)]
    seconds: u64,
}

pub fn run(options: &Options) -> Done {
    if !has("cargo-fuzz") {
        return Err("cargo-fuzz is not installed: `cargo install cargo-fuzz`, and a nightly toolchain".into());
    }
    for target in
        TARGETS.into_iter().filter(|target| options.target.as_deref().is_none_or(|one| one == *target))
    {
        let time = format!("-max_total_time={}", options.seconds);
        let mut command = cargo(&["fuzz", "run", target, "--", &time]);
        // The outer cargo pins its own toolchain; fuzzing needs the nightly one.
        command.current_dir(root().join("fuzz")).env("RUSTUP_TOOLCHAIN", "nightly").env_remove("CARGO");
        run_command(&mut command)?;
    }
    Ok(())
}
