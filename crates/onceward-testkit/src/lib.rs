//! What Onceward is tested with.
#![expect(clippy::cast_possible_truncation, reason = "counts in a simulation are small")]
#![expect(clippy::wildcard_enum_match_arm, reason = "rules pick out the cases they are about")]

pub mod sim;
