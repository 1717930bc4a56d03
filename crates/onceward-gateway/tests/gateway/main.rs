//! The real binary between a client that sees every byte and an API that keeps its own ledger. Each test is a row of what
//! an expert would try.
#![expect(clippy::unwrap_used, clippy::panic, reason = "these are tests")]
#![cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "disks and clocks fail here only on Linux"))]

mod answers;
#[cfg(target_os = "linux")]
mod crash;
mod execution;
#[cfg(target_os = "linux")]
mod faults;
mod harness;
#[cfg(target_os = "linux")]
mod late;
mod ledger;
mod stopping;
#[cfg(target_os = "linux")]
mod store;
#[cfg(target_os = "linux")]
mod time;
