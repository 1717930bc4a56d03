//! Makes a retried write happen once.
//!
//! A request makes a [`Claim`]: a [`Key`] in a [`Scope`] with a [`Fingerprint`]. The pure [`machine`] looks at the
//! [`Record`] that a [`store`] keeps, and decides: execute, resume, replay or refuse. The [`Engine`] is the only loop
//! between the two: it claims, runs the work detached from whoever asked, settles its [`Outcome`] durably, and only then
//! answers. An outcome that nobody can be sure of is never executed again by itself: it stays `unknown` until its late
//! owner, a webhook, a probe or an operator says what it was.
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

mod claim;
pub mod codec;
mod digest;
mod engine;
mod entropy;
pub mod event;
pub mod fingerprint;
#[cfg(feature = "http")]
pub mod http;
mod id;
mod key;
pub mod machine;
mod memory;
mod outcome;
mod record;
mod scope;
mod secret;
pub mod store;
pub mod time;

pub use claim::{Claim, ClaimError};
pub use engine::{
    By, CacheError, CacheFuture, Claimed, Engine, EngineError, EngineOptions, IdentityChange,
    IdentityRefused, Limits, Observation, Observer, OpenError, Operated, Operation, OptionsError, Ran,
    Recognition, Reservation, Resolve, Settled, SharedCache, SweepReport, Sweeping, Tenure,
};
pub use entropy::{EntropyUnavailable, Instance, OwnerToken, random_bytes};
pub use event::Refusal;
pub use fingerprint::{Fingerprint, Profile, ProfileId};
pub use id::{Identity, IdentityError, NotARecordId, OperationId, RecordId};
pub use key::{ByteClass, Key, KeyError, Syntax};
pub use memory::MemoryStore;
pub use outcome::{Evidence, Outcome, RecoveryPoint, RecoveryPointError, Reply, Unsure, Verdict};
pub use record::{
    Absence, Cause, Doubt, Entered, Extension, Fence, HistoryEntry, Label, LastFinding, Letter, Naming,
    OnLapse, Record, RecordFormat, State, StateKind, Subject, Terms,
};
pub use scope::{Scope, ScopeError};
pub use secret::{Secret, SecretTooShort};
pub use time::{Clock, SystemClock, Timestamp};
