//! What the state machine promises, said again in other words than its code.
//!
//! - `table.rs`: every row of the transition table, as data.
//! - `totality.rs`: properties of a single step, over arbitrary records, events and times.
//! - `invariants.rs`: the invariants that a machine can show by itself, over arbitrary histories. The second (nothing
//!   reaches a client before it is durable) and the ninth (everything has a limit) are shown at the engine.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests report by panicking, as tests do"
)]

mod arbitrary;
mod fields;
mod invariants;
mod shadow;
mod table;
mod totality;
