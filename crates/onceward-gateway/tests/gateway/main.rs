//! The real binary between a client that sees every byte and an API that keeps its own ledger. Each test is a row of what
//! an expert would try.
#![expect(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod certificate;
mod configuration;
mod demo;
mod execution;
mod harness;
mod keys;
mod ledger;
mod observing;
mod peculiar;
mod proxying;
mod readme;
mod streaming;
mod tenants;
mod tls;
mod waiting;
mod wire;
