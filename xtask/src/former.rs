//! The last version that knew record format 1 only, built from this repository's own history.
//!
//! Gateways of two versions share a store while one replaces the other. Tests run both binaries on one database.

use std::path::PathBuf;
use std::process::Command;

use crate::shell::{cargo, root, run};

/// The commit after the former version added this file.
const ADDED_AFTER: &str = "crates/onceward/src/codec/format2.rs";

/// Builds the former version's gateway. Nothing where the history does not reach back that far.
pub fn build() -> Result<Option<PathBuf>, Box<dyn std::error::Error + Send + Sync>> {
    let Some(commit) = commit() else {
        println!(
            "The history of this repository does not reach back to record format 1: the tests with the former version \
             will say what they did not check."
        );
        return Ok(None);
    };
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let target = std::path::absolute(target)?;
    let folder = target.join("former");
    let (source, binary) = (folder.join(&commit), folder.join(format!("onceward-{commit}")));
    if binary.exists() {
        return Ok(Some(binary));
    }
    std::fs::create_dir_all(&source)?;
    let archive = folder.join("source.tar");
    let mut git = Command::new("git");
    run(git.current_dir(root()).args(["archive", "--format=tar", "--output"]).arg(&archive).arg(&commit))?;
    run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&source))?;
    // In a target folder of its own: two workspaces with crates of the same names overwrite each other's. Nothing is optimised,
    // because that takes minutes and nothing is measured with it.
    let build = folder.join("build");
    let quick =
        ["profile.dev.opt-level=0", "profile.dev.debug=false", "profile.dev.package.\"*\".opt-level=0"];
    run(cargo(&["build", "--locked", "--package", "onceward-gateway", "--bin", "onceward", "--target-dir"])
        .arg(&build)
        .args(quick.iter().flat_map(|setting| ["--config", setting]))
        .current_dir(&source))?;
    std::fs::copy(build.join("debug/onceward"), &binary)?;
    Ok(Some(binary))
}

/// The parent of the commit that added format 2.
fn commit() -> Option<String> {
    let added = git(&["log", "--diff-filter=A", "--format=%H", "--", ADDED_AFTER])?;
    let added = added.lines().last()?;
    git(&["rev-parse", "--verify", "--quiet", &format!("{added}^")])
}

/// What git prints, where there is git, a repository and an answer.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").current_dir(root()).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
