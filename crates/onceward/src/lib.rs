//! Makes a retried write happen once.
//!
//! A request makes a [`Claim`]: a [`Key`] in a [`Scope`] with a [`Fingerprint`]. The pure [`machine`] reads the [`Record`]
//! that a [`store`] keeps, and decides: execute, resume, replay or refuse. The [`Engine`] is the only loop between the two:
//! it claims, runs the work detached from its caller, settles its [`Outcome`] durably, and only then answers. An outcome
//! that is not certain is never executed again automatically: it stays `unknown` until its late owner, a webhook, a find (a
//! question to the service) or an operator decides it.
//!
//! Where to look:
//!
//! - [`Engine::run`] to protect a piece of work; [`Engine::claim`] to execute elsewhere and settle later;
#![cfg_attr(
    feature = "http",
    doc = "- [`http::IdempotencyLayer`] to protect a tower service, such as an axum router;"
)]
//! - [`machine::step`] for the rules;
//! - [`store::Store`] to bring another database;
//! - [`fingerprint`] for what makes two requests the same.
//!
//! The types that most code needs are at the root. The others are in modules: [`key`] has the errors and parts of keys,
//! scopes and identities, [`engine`] the observers and the calls for operators, [`record`] and [`outcome`] what is stored.
//!
//! Errors, settings and option structs are `#[non_exhaustive]`. Results that a caller must act on, such as [`Ran`],
//! [`Refusal`] and [`store::Swapped`], are exhaustive: a match that overlooks a case may execute work twice, so it must not
//! compile.

#[macro_use]
mod setters;

pub mod claim;
pub mod codec;
mod digest;
pub mod engine;
mod entropy;
pub mod event;
pub mod fingerprint;
#[cfg(feature = "http")]
pub mod http;
mod id;
pub mod key;
pub mod machine;
mod memory;
pub mod outcome;
pub mod receipts;
pub mod record;
mod scope;
mod secret;
pub mod store;
mod time;

pub use claim::Claim;
pub use engine::{
    Claimed, Engine, EngineBuilder, EngineError, Limits, OpenError, Operation, Ran, Reservation, Sweeping,
    reconcile,
};
pub use event::Refusal;
pub use fingerprint::{Fingerprint, Profile};
pub use id::{Identity, OperationId, RecordId};
pub use key::Key;
pub use memory::MemoryStore;
pub use outcome::{Outcome, RecoveryPoint, Reply};
pub use record::{Fence, OnLapse, Record, Terms};
pub use scope::Scope;
pub use secret::Secret;
pub use time::Timestamp;

/// For Onceward's own crates, whose clocks and randomness `clippy.toml` bans elsewhere. Exempt from semantic versioning.
#[doc(hidden)]
pub mod plumbing {
    pub use crate::entropy::random_bytes;

    pub mod time {
        pub use crate::time::{Alarm, Instant, deadline, instant, sleep};
    }
}
