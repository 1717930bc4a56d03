//! Receipt rows in a user's database: the suite of every receipt table, the SQL that handlers call, failures of the network and
//! the server, and what `onceward check` says.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test reports")]

#[path = "../support/mod.rs"]
mod support;

mod check;
mod durability;
mod faults;
mod handler;
mod sql;
mod suite;
