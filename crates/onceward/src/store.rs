//! What a database must be able to do: compare-and-swap, and nothing clever.
//!
//! A driver has four methods and nothing to get wrong but atomicity and durability; all logic stays in the machine.
//! Every driver runs the same conformance suite, in `onceward-testkit`. [`driver`] has what all drivers share.

pub mod driver;

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use crate::codec::Unreadable;
use crate::record::{Letter, Record, State, StateKind};
pub use crate::time::{Clock, SystemClock};
use crate::{RecordId, Timestamp};

/// What a store's methods return. Boxed, so that one engine serves whichever store the configuration names.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A durable map from ids to records that can be swapped one at a time.
pub trait Store: Send + Sync + 'static {
    /// Reads a record. A read that begins after a swap was acknowledged sees it. Neither a read nor a conflict shows a
    /// write that is not durable yet. An engine gives up on a call that takes too long by dropping its future.
    fn load(&self, id: RecordId) -> StoreFuture<'_, Seen>;

    /// Writes `next` if the record is still at `expect`, or still absent where that is `None`.
    ///
    /// Answers only once the write is durable. An error says whether the record may have been written nevertheless.
    ///
    /// A swap whose future is dropped may or may not be carried out, then or later: the caller treats it as
    /// [`Ambiguous`](StoreError::Ambiguous), and reads again. A store in which swaps wait for their turn should skip those
    /// whose future is gone when their turn comes: a claim that is written after its caller gave up has no
    /// owner.
    fn swap(&self, id: RecordId, expect: Option<Version>, next: Record) -> StoreFuture<'_, Swapped>;

    /// Lists a page of records. It may miss concurrent changes, so callers act on it by compare-and-swap.
    fn scan(&self, scan: Scan) -> StoreFuture<'_, Page>;

    /// Deletes each record that is still at its version, and returns how many were.
    fn forget(&self, records: Vec<(RecordId, Version)>) -> StoreFuture<'_, usize>;
}

/// A number that rises with every write of a record. Compare-and-swap compares it.
///
/// The store assigns it, and never assigns one twice to an id, not even after the record was forgotten. Otherwise a delayed
/// sweeper could delete a newer claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    /// A version that the store gave or wrote down.
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// The number to write down.
    pub const fn as_number(self) -> u64 {
        self.0
    }
}

/// What the store has for an id, and the time by the store's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The store's own clock.
    pub now: Timestamp,
    /// The record, unless there is none.
    pub record: Option<Stamped>,
}

/// A record and its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamped {
    /// The record.
    pub record: Record,
    /// Its version.
    pub version: Version,
}

/// The result of a swap.
#[expect(
    clippy::large_enum_variant,
    reason = "a replay is a conflict, and boxing its record would cost every one of them"
)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Swapped {
    /// It is written, durably.
    Applied {
        /// The record's version now.
        version: Version,
        /// The store's own clock.
        now: Timestamp,
    },
    /// The record is not at the expected version, and nothing was written.
    Conflict(Seen),
}

/// A request for one page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scan {
    /// Which records.
    pub which: Which,
    /// Where the page begins. Without a cursor, at the beginning of the list.
    pub after: Option<Cursor>,
    /// How many at most. A store may return fewer, to bound the bytes of a page.
    pub limit: usize,
}

/// Which records to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// Those whose time has come by the store's clock, the longest overdue first.
    Due(Due),
    /// Those that an operator asks for.
    Filter(Filter),
}

/// What a record can be due for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Due {
    /// `in_progress`, and the lease has lapsed.
    Leases,
    /// `unknown`, and the next find is due.
    Reconcile,
    /// Past its window.
    Expired,
}

/// An operator's filter. A record must match every field that is set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    /// In this state only.
    pub state: Option<StateKind>,
    /// [`Dead`](Letter::Dead): dead letters only. [`Live`](Letter::Live): everything else, in whichever state.
    pub letter: Option<Letter>,
    /// A route.
    pub route: Option<String>,
    /// A scope's text.
    pub scope: Option<String>,
    /// Claimed before this time.
    pub created_before: Option<Timestamp>,
}

impl Filter {
    /// Whether a record matches. Stores may narrow the list by an index first, and then check each record with this.
    pub fn accepts(&self, record: &Record) -> bool {
        self.state.is_none_or(|state| record.state.kind() == state)
            && self.letter.is_none_or(|letter| record.state.letter() == letter)
            && self.route.as_ref().is_none_or(|route| record.subject.route == *route)
            && self.scope.as_ref().is_none_or(|scope| record.subject.scope == *scope)
            && self.created_before.is_none_or(|before| record.created_at < before)
    }
}

/// Where a page ended. Only the store that made it can read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor(Box<[u8]>);

impl Cursor {
    /// A cursor that a store makes, or that a client brought back.
    pub fn from_bytes(bytes: impl Into<Box<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// What to hand to the client.
    pub const fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The store's own clock.
    pub now: Timestamp,
    /// The records; one that cannot be read does not hide its neighbours.
    pub entries: Vec<Entry>,
    /// Where to go on, if there may be more.
    pub next: Option<Cursor>,
}

/// One record of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The record's id.
    pub id: RecordId,
    /// Its version, which is known even where the record cannot be read.
    pub version: Version,
    /// The record.
    pub record: Result<Record, Unreadable>,
}

impl Record {
    /// What the record is due for, and when. Stores index by it.
    pub const fn due(&self) -> (Due, Timestamp) {
        match &self.state {
            State::InProgress { lease_until } => (Due::Leases, *lease_until),
            State::Unknown { due_at, letter: Letter::Live, .. } => (Due::Reconcile, *due_at),
            State::Unknown { letter: Letter::Dead, .. } => (Due::Reconcile, Timestamp::NEVER),
            State::Completed { expires_at, .. } | State::FailedRetryable { expires_at, .. } => {
                (Due::Expired, *expires_at)
            }
            State::Expired { .. } => (Due::Expired, Timestamp::NEVER),
        }
    }
}

/// A property of a server that a store's promise depends on, as `onceward check` reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub health: Health,
    /// Which setting or property.
    pub subject: &'static str,
    /// What it is, what that means, and what to change.
    pub text: String,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// As it should be.
    Good,
    /// It works, with a risk that should be a deliberate choice.
    Warning,
    /// It breaks the promise, or does not work.
    Problem,
}

/// Why a call of a store failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Nothing was written.
    #[error("the store is unavailable, nothing was written: {reason}")]
    Unavailable {
        /// What happened, and what to do.
        reason: String,
    },
    /// Too many requests were waiting already; nothing was written.
    #[error(
        "the store has {waiting} requests waiting, which is its limit; nothing was written: try again shortly, or send less"
    )]
    Overloaded {
        /// How many were waiting.
        waiting: usize,
    },
    /// It may or may not have been written: the answer was lost.
    #[error("the store's answer was lost, the write may or may not have happened: {reason}")]
    Ambiguous {
        /// What happened.
        reason: String,
    },
    /// The record is there and cannot be used.
    #[error("the record {id} cannot be read: {why}")]
    Unreadable {
        /// The record.
        id: RecordId,
        /// Its version, with which it can be replaced.
        version: Version,
        /// Why it cannot be read.
        why: Unreadable,
    },
    /// This write can never succeed.
    #[error("the store refuses this write for good: {reason}")]
    Refused {
        /// Which rule it breaks.
        reason: String,
    },
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
