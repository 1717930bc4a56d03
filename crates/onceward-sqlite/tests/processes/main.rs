//! The store in child processes: each child is this program, run for one test.
//!
//! No parent opens one path twice: see `tests/store/main.rs`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test reports")]

#[path = "../support/mod.rs"]
mod support;

#[cfg(target_os = "linux")]
mod disk;
mod second_process;
