//! The Rust block of the README, compiled and run.
//!
//! A code host shows hidden doctest lines (`# use …`), so the README has none. This file holds a copy of the block between two
//! markers, with the surroundings that it needs, and a test compares the two.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests report by panicking, as tests do"
)]

use std::error::Error;

const README: &str = include_str!("../../../README.md");
const THIS_FILE: &str = include_str!("readme.rs");

/// The handler of the service in the block.
async fn pay() -> &'static str {
    "paid"
}

#[tokio::test]
async fn the_rust_block_of_the_readme_runs() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    // The block opens `onceward.db` in the working directory.
    std::env::set_current_dir(&folder)?;
    let _app: axum::Router = app().await?;
    assert!(folder.path().join("onceward.db").exists());
    Ok(())
}

async fn app() -> Result<axum::Router, Box<dyn Error>> {
    // README begins
    use std::sync::Arc;

    use axum::{Router, routing::post};
    use onceward::http::{IdempotencyLayer, KeyRule, Policy, Routes, ScopeRules};
    use onceward::{Engine, Identity};
    use onceward_sqlite::{Options, SqliteStore};

    let store = SqliteStore::open("onceward.db", Options::default())?;
    let scope = ScopeRules::parse(["authorization"])?;
    let identity = store.keyed(Identity::in_namespace("payments").scoped_by(&scope)?).await?;
    let engine = Engine::builder(Arc::new(store)).open(identity).await?;
    let routes = Routes::new(Policy::new())?.route("POST /payments", Policy::new().key(KeyRule::Required))?;
    let layer = IdempotencyLayer::new(engine, scope, routes)?;

    let app: Router = Router::new().route("/payments", post(pay)).layer(layer);
    // README ends
    Ok(app)
}

#[test]
fn the_rust_block_of_the_readme_and_its_copy_here_are_the_same() {
    let shown = between(README, "```rust", "```");
    let run = between(THIS_FILE, "// README begins", "// README ends");
    assert!(
        shown == run,
        "the README and its copy differ (- README.md, + crates/onceward-sqlite/tests/readme.rs):\n{}",
        difference(&shown, &run)
    );
}

/// The lines between the only line that is `begin` and the next one that is `end`, without their common indentation.
fn between(text: &str, begin: &str, end: &str) -> Vec<String> {
    let begins = text.lines().filter(|line| line.trim() == begin).count();
    assert_eq!(begins, 1, "lines that are {begin:?}");
    let lines: Vec<&str> = text
        .lines()
        .skip_while(|line| line.trim() != begin)
        .skip(1)
        .take_while(|line| line.trim() != end)
        .collect();
    assert!(lines.len() > 1, "nothing stands between {begin:?} and {end:?}");
    let indentation = |line: &&str| line.len() - line.trim_start().len();
    let common = lines.iter().filter(|line| !line.trim().is_empty()).map(indentation).min().unwrap();
    lines.iter().map(|line| line.get(common..).unwrap_or_default().trim_end().to_owned()).collect()
}

/// What is left of both when the lines that are equal at the beginning and at the end are taken away.
fn difference(old: &[String], new: &[String]) -> String {
    let start = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let (old, new) = (&old[start..], &new[start..]);
    let end = old.iter().rev().zip(new.iter().rev()).take_while(|(old, new)| old == new).count();
    let marked = |sign: char, lines: &[String]| -> Vec<String> {
        lines[..lines.len() - end].iter().map(|line| format!("{sign} {line}")).collect()
    };
    [marked('-', old), marked('+', new)].concat().join("\n")
}

#[test]
fn a_difference_is_shown_line_by_line() {
    let lines = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(difference(&lines("a b c d"), &lines("a x y d")), "- b\n- c\n+ x\n+ y");
    assert_eq!(difference(&lines("a d"), &lines("a b d")), "+ b");
    assert_eq!(difference(&lines("a b"), &lines("a b")), "");
}
