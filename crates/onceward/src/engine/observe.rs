//! What an engine tells about itself. Metrics and tests listen here; keys and bodies are never told. Operators are told in
//! words by `log.rs`, whatever observer there is.

use crate::RecordId;

/// Hears of everything that an engine does. Must not block. What an operator must know is logged by the engine itself.
pub trait Observer: Send + Sync + 'static {
    /// Something happened on a route. The id is all zeros where there is no operation.
    fn observe(&self, route: &str, id: RecordId, what: Observation);
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Observation {
    /// A new operation was claimed.
    Created,
    /// An operation that had failed without being executed was claimed again.
    Reclaimed,
    /// An operation was taken over from its last recovery point.
    Resumed,
    /// A stored answer was given, from the store.
    Replayed,
    /// A stored answer was given, from memory.
    ReplayedFromCache,
    /// Refused: the key names another request.
    Mismatch,
    /// Refused: it is being executed.
    InProgress,
    /// Refused: nobody knows.
    Unknown,
    /// A fingerprint made under other settings could not be compared.
    Uncompared,
    /// A result contradicts what was decided before: something may have happened twice.
    Contradiction,
    /// An unknown outcome was given up and waits for an operator.
    DeadLettered,
    /// Somebody whose tenure is over tried to write.
    Fenced,
    /// A lease had lapsed.
    Lapsed,
    /// A record past its window was swept.
    Swept,
    /// An operation was completed.
    Completed,
    /// An operation was released: proven not executed.
    Released,
    /// An operation's outcome became unknown.
    Lost,
    /// It is stored that an outcome is unknown, and is to be reconciled.
    ReconcileScheduled,
    /// An unknown outcome is known now: from its late owner, a webhook, a probe or an operator.
    Reconciled,
    /// Work panicked.
    Panicked,
    /// Too much time had passed between the claim and its work, so the work was not begun.
    TooLate,
    /// A claim's answer from the store was lost.
    AmbiguousClaim,
    /// Another write's answer from the store was lost.
    AmbiguousWrite,
    /// A claim that nobody began was given back.
    GivenBack,
    /// A claim's answer was lost, and the list of those that are looked for is full. If it was written, its lease lapses.
    LostClaimDropped,
    /// A caller that waited for another execution was woken by its end.
    AttachWoken,
    /// The store failed.
    StoreError,
    /// The store's clock runs ahead of elapsed time: expiry is suspended.
    ExpirySuspended,
    /// A request lacks the key that its route requires.
    KeyMissing,
    /// A request's key cannot be used.
    KeyInvalid,
    /// It cannot be told whose key it is.
    ScopeMissing,
    /// An execution began under a key that is short, or looks like an e-mail address or a telephone number.
    SuspiciousKey,
}

/// Hears nothing.
impl Observer for () {
    fn observe(&self, _: &str, _: RecordId, _: Observation) {}
}
