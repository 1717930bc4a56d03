//! Finding out what became of operations whose outcome is unknown.
//!
//! A [`Reconciler`] asks; the engine decides when, and the machine what its finding means. What happens to an unknown
//! operation, in order:
//!
//! 1. The engine that executed it asks at once, when the execution has ended. A pass over the store finds every other
//!    operation that is due, the longest overdue first.
//! 2. An operation that nothing can find out is given up after a while: it waits for a person, as a dead letter.
//! 3. Any other is held for this finder by a compare-and-swap, so that no two engines ask at once.
//! 4. The reconciler asks, in a task of its own and for a limited time. A panic and a late answer decide nothing.
//!    Before an absence counts, the same question must find an operation that is known to be there.
//! 5. The finding is applied to the record as it was held: completed, released, asked about again later, or a dead letter.

mod control;
mod finders;

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub use crate::event::{FindTerms, Finding};
use crate::id::NamespaceHash;
pub use crate::outcome::Void;
use crate::record::{Fence, Record};
use crate::{OperationId, Timestamp};

pub(super) use self::finders::{Finders, ask_once_more, claims_receipt, start};

/// What a reconciler's methods return.
pub type ReconcileFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Finds out what became of an operation whose outcome is unknown.
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::Arc;
/// use onceward::Reply;
/// use onceward::reconcile::{Finding, ReconcileFuture, Reconciler, UnknownOperation};
///
/// /// The payment provider's books, by the reference that each payment was sent with.
/// struct Books(HashMap<String, &'static str>);
///
/// impl Reconciler for Books {
///     fn find<'a>(&'a self, unknown: &'a UnknownOperation) -> ReconcileFuture<'a, Result<Finding, String>> {
///         Box::pin(async move {
///             Ok(match self.0.get(&unknown.operation.to_string()) {
///                 Some(charge) => Finding::Completed(Arc::new(Reply::new(*charge))),
///                 None => Finding::Absent,
///             })
///         })
///     }
/// }
/// ```
pub trait Reconciler: Send + Sync + 'static {
    /// Asks whether it happened. It must change nothing, except that it may raise the fence in the effect's own database and
    /// return [`Finding::Voided`]. An error says why it could not ask, without keys or bodies. The future is dropped when it
    /// takes longer than [`Reconciling::find_timeout`].
    fn find<'a>(&'a self, unknown: &'a UnknownOperation) -> ReconcileFuture<'a, Result<Finding, String>>;

    /// Asks about an operation that is known to be there, exactly as [`Self::find`] asks. Where this does not find it, an absence
    /// proves nothing.
    fn control<'a>(&'a self, known: &'a CompletedOperation) -> ReconcileFuture<'a, Result<Finding, String>> {
        Box::pin(async move {
            let CompletedOperation { operation, fence, record, checked_at } = known.clone();
            let execution = Execution::Ended;
            let asked = UnknownOperation { operation, fence, record, execution, asked_at: checked_at };
            self.find(&asked).await
        })
    }

    /// How unknown operations of a route are found out.
    fn plan(&self, route: &str) -> Plan {
        let _ = route;
        Plan::Find(FindTerms::default())
    }

    /// Called when an engine opens a store with this reconciler. An error refuses to open it.
    fn bind<'a>(&'a self, store: &'a StoreName) -> ReconcileFuture<'a, Result<(), String>> {
        let _ = store;
        Box::pin(async { Ok(()) })
    }

    /// Called after the owner of work with receipts said that the work was done, so that the receipt can be checked. After an error,
    /// which says why it could not be checked, it is called again a few times.
    fn completed<'a>(&'a self, operation: &'a CompletedOperation) -> ReconcileFuture<'a, Result<(), String>> {
        let _ = operation;
        Box::pin(async { Ok(()) })
    }

    /// Called before a person's verdict releases work with receipts: no owner may commit after that. [`Finding::Voided`] says that none
    /// can, [`Finding::Unproven`] that only those who write receipts cannot, and [`Finding::Absent`] that nothing had to be done. Any
    /// other finding prevents the release, and [`Finding::Completed`] completes the operation.
    fn before_release<'a>(
        &'a self,
        unknown: &'a UnknownOperation,
    ) -> ReconcileFuture<'a, Result<Finding, String>> {
        let _ = unknown;
        Box::pin(async { Ok(Finding::Absent) })
    }

    /// Called after a person's verdict has released work with receipts, so that the next execution can begin.
    fn released<'a>(&'a self, unknown: &'a UnknownOperation) -> ReconcileFuture<'a, Result<(), String>> {
        let _ = unknown;
        Box::pin(async { Ok(()) })
    }
}

/// How unknown operations of a route are found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Plan {
    /// The reconciler asks.
    Find(FindTerms),
    /// Nothing can find them out. They are dead letters after this time.
    GiveUpAfter(Duration),
    /// This engine leaves them alone: another one finds them out, or the reconciler panicked.
    Leave,
}

/// An operation whose outcome is unknown.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct UnknownOperation {
    /// Its id, as the service that executed it was given it.
    pub operation: OperationId,
    /// The tenure that is asked about. A void raises the fence to the one [above](Fence::above) it.
    pub fence: Fence,
    /// What is remembered of it.
    pub record: Arc<Record>,
    /// Whether its execution may still go on.
    pub execution: Execution,
    /// When this is asked, by the store's clock.
    pub asked_at: Timestamp,
}

/// What is known of the last execution of an unknown operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Execution {
    /// The engine that executed asks, and has seen it end.
    Ended,
    /// It may go on.
    MayGoOn,
}

/// An operation whose owner said that the work was done.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CompletedOperation {
    /// Its id.
    pub operation: OperationId,
    /// The owner's tenure.
    pub fence: Fence,
    /// What was remembered of it then.
    pub record: Arc<Record>,
    /// When that is checked, by the store's clock.
    pub checked_at: Timestamp,
}

/// Names a store, so that it cannot be taken for another one, by the time when it was first used; and a namespace in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreName {
    since: Timestamp,
    namespace: NamespaceHash,
}

impl StoreName {
    pub(crate) const fn first_used(since: Timestamp, namespace: NamespaceHash) -> Self {
        Self { since, namespace }
    }

    /// The engine's namespace in the store.
    pub const fn namespace(&self) -> NamespaceHash {
        self.namespace
    }
}

impl std::fmt::Display for StoreName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "store-{:x}", self.since.as_micros())
    }
}

/// When, and by how many at once, unknown outcomes are found out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reconciling {
    /// How often due operations are looked for. The engine that executed does not wait for it.
    pub every: Duration,
    /// Finds at once. Each holds a task and a connection of the reconciler.
    pub finders: usize,
    /// How long a find may take.
    pub find_timeout: Duration,
    /// When an unknown outcome becomes a dead letter, where nothing is configured that could find it out.
    pub give_up_after: Duration,
    /// The same for single routes.
    pub give_up_after_by_route: HashMap<String, Duration>,
}

impl Default for Reconciling {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(1),
            finders: 16,
            find_timeout: Duration::from_secs(10),
            // Long enough for a late owner or an operator who is already at it.
            give_up_after: Duration::from_secs(15 * 60),
            give_up_after_by_route: HashMap::new(),
        }
    }
}

impl Reconciling {
    setters! {
        every: Duration,
        finders: usize,
        find_timeout: Duration,
        give_up_after: Duration,
        give_up_after_by_route: HashMap<String, Duration>,
    }

    /// When an unknown outcome of this route becomes a dead letter, where nothing can find it out.
    pub fn give_up_after_on(&self, route: &str) -> Duration {
        self.give_up_after_by_route.get(route).copied().unwrap_or(self.give_up_after)
    }
}
