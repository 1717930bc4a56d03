//! The conformance suite, lists, and the ways to a database.
//!
//! The other programs of this crate have a database of their own, because their tests measure it (`tables.rs`), read which
//! of its clients wait (`writing.rs`) or end servers and backends (`faults.rs`).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test reports")]

#[path = "../support/mod.rs"]
mod support;

mod conformance;
mod lists;
mod paths;
