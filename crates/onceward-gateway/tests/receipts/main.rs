//! Receipt rows from end to end: the real gateway before handlers that commit a row with each order, on SQLite and PostgreSQL.
//!
//! A test leads a handler through a request (`control.rs`), ends or delays it at an exact point, and compares what clients are
//! answered with the table of orders (`shop.rs`), which nobody but the handlers writes. Each test is played in several worlds
//! (`world.rs`): each store of the gateway's with each database of the handlers', and handlers in Python and in Rust.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod control;
mod cut;
mod failover;
mod forgotten;
mod gateways_killed;
mod handler;
#[path = "../gateway/harness/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the tests of the gateway use the rest")]
mod harness;
mod isolation;
mod killed;
mod open;
mod operators;
mod page;
mod paused;
mod repeater;
mod rounds;
mod rust;
mod shared;
mod shop;
mod statuses;
mod twice;
mod world;
