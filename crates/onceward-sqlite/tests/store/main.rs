//! The store in this process.
//!
//! No test here starts another process: a child holds its parent's file locks until it executes its own program, so a store
//! that another test opens a second time would be refused.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test reports")]

#[path = "../support/mod.rs"]
mod support;

mod conformance;
mod first_format;
mod flushing;
mod journal;
mod listing;
mod lock;
mod opening;
mod planted;
#[cfg(unix)]
mod secret;
mod torn;
mod writing;
