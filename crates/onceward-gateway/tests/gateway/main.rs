//! The real binary between a client that sees every byte and an API that keeps its own ledger. Each test is a row of what
//! an expert would try.
#![expect(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod execution;
mod harness;
mod ledger;
