//! What every Onceward store is tested with: a conformance suite, faults, virtual time and
//! scenario scripts.
//!
//! Nothing here reads a clock, sleeps or draws a random number of its own: time, chance and faults are inputs, so that a
//! failure can be reproduced. The one exception is [`wait`], whose limit only turns a hang into a failure.

#![expect(clippy::cast_possible_truncation, reason = "counts in a simulation are small")]
#![expect(clippy::wildcard_enum_match_arm, reason = "rules pick out the cases they are about")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is a library of assertions: a panic with a sentence in it is how they report"
)]

mod clock;
pub mod conformance;
mod faulty;
mod random;
pub mod receipts;
pub mod sample;
pub mod scenario;
#[cfg(feature = "servers")]
pub mod servers;
pub mod sim;
pub mod wait;

pub use clock::VirtualClock;
pub use faulty::{Call, Fault, FaultyStore, Method};
pub use random::Random;
