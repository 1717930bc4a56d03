//! The real binary between a client that sees every byte (`harness/`) and an API that keeps a ledger of its own (`ledger/`).
#![expect(clippy::unwrap_used, clippy::panic, reason = "these are tests")]
#![cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "disks and clocks fail here only on Linux"))]

mod alerts;
mod answers;
mod certificate;
mod configuration;
mod connections;
#[cfg(target_os = "linux")]
mod crash;
mod demo;
mod execution;
#[cfg(target_os = "linux")]
mod faults;
mod forwarding;
mod harness;
mod keys;
#[cfg(target_os = "linux")]
mod late;
mod ledger;
mod lingering;
mod logging;
mod observing;
mod peculiar;
mod peers;
mod proxying;
mod readme;
mod reloading;
mod secrets;
#[cfg(target_os = "linux")]
mod sharing;
mod stopping;
#[cfg(target_os = "linux")]
mod store;
mod streaming;
mod tenants;
#[cfg(target_os = "linux")]
mod time;
mod tls;
mod tracing;
mod waiting;
mod wire;
