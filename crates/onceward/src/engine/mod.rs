//! The only loop between the machine and a store.
//!
//! [`Engine::run`] protects one piece of work. What happens to a claim, in order:
//!
//! 1. A completed record in memory, or in a shared cache if there is one, is replayed without a call of the store.
//! 2. Where too many executions are running, the claim is refused before anything is written.
//! 3. From here on everything runs in a task of its own: a caller that goes away cancels nothing.
//! 4. The claim is swapped into the store; for a fresh key that is one call. A conflict returns the record that is there,
//!    and the machine decides about that one: replay, refuse, resume or execute.
//! 5. Where another execution is in progress, the caller may wait for it, and is woken when it ends.
//! 6. The work runs, unless too much time has passed since the claim. The lease of long work is renewed. A panic is an
//!    unknown outcome.
//! 7. The outcome is settled with a compare-and-swap that names the fence, and tried again until it is durable.
//! 8. Only then is the caller answered: with this outcome, or with the record's if another owner has settled it.

mod apply;
mod attach;
mod cache;
mod claiming;
mod clock;
mod identity;
mod log;
mod lost_claims;
mod observe;
mod operate;
mod operation;
mod options;
mod outage;
#[cfg(feature = "http")]
mod pass_through;
pub mod reconcile;
mod reservation;
mod running;
mod seen;
mod shared_cache;
mod sweep;

use std::fmt;
use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};

pub use self::identity::{IdentityRefused, Recognition};
pub use self::observe::{FindResult, Observation, Observer};
pub use self::operate::{By, Operated, Resolve, Settled};
pub use self::operation::{Operation, Tenure};
pub use self::options::{EngineBuilder, IdentityChange, Limits, OptionsError, Sweeping};
pub use self::reservation::Reservation;
pub use self::shared_cache::{CacheError, CacheFuture, SharedCache};
pub use self::sweep::SweepReport;
pub use crate::entropy::{EntropyUnavailable, Instance};

use self::apply::Start;
use self::attach::{LocalExecutions, Pace, Woken};
use self::cache::Cache;
use self::clock::StoreClock;
use self::identity::{Asked, Recognised};
use self::lost_claims::LostClaims;
use self::outage::Outages;
#[cfg(feature = "http")]
pub(crate) use self::pass_through::Entry as PassThroughEntry;
#[cfg(feature = "http")]
use self::pass_through::PassThrough;
use self::reconcile::{Finders, StoreName};
pub(crate) use self::seen::SeenOperation;
use self::shared_cache::SharedCacheClient;
use crate::claim::Claim;
use crate::event::Refusal;
use crate::id::NamespaceHash;
use crate::outcome::{Outcome, Reply};
use crate::store::{Store, StoreError};
use crate::time::{Clock, instant};
use crate::{
    Identity, Key, RecordId, Scope, Timestamp,
    record::{Record, RecordFormat},
};

/// Makes work happen once. Cheap to clone; all clones are one engine.
///
/// A queue consumer that receives the same message twice does its work once:
///
/// ```
/// use std::sync::Arc;
/// use onceward::{Claim, Engine, Fingerprint, Identity, Key, MemoryStore, Outcome, Ran, Reply, Scope};
///
/// # async fn consume() -> Result<(), Box<dyn std::error::Error>> {
/// let identity = Identity::in_namespace("orders").scoped_by("one scope per queue")?;
/// let engine = Engine::builder(Arc::new(MemoryStore::default())).open(identity).await?;
///
/// for delivery in ["message 7", "message 7"] {
///     let claim = Claim::new(Scope::new("queue:orders")?, Key::new("message-7")?, Fingerprint::of_bytes(delivery.as_bytes()));
///     let ran = engine.run(claim, async |_operation| {
///         // Ship the order here.
///         Outcome::completed(Reply::new("shipped"))
///     }).await?;
///     match ran {
///         Ran::Executed { reply, .. } | Ran::Replayed { reply, .. } => assert_eq!(reply.body, "shipped"),
///         // Not done, or not known yet: leave the message in the queue.
///         Ran::Refused(_) | Ran::Retryable(_) | Ran::Unknown(_) => {}
///     }
/// }
/// # Ok(())
/// # }
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(consume())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A webhook receiver that is sent the same event again answers it without doing the work again, and refuses an event
/// id that comes back with another content:
///
/// ```
/// use std::sync::Arc;
/// use onceward::{Claim, Engine, Fingerprint, Identity, Key, MemoryStore, Outcome, Ran, Refusal, Reply, Scope};
///
/// async fn receive(engine: &Engine, event_id: &str, body: &'static [u8]) -> Result<u16, Box<dyn std::error::Error>> {
///     let claim = Claim::new(Scope::new("psp")?, Key::new(event_id)?, Fingerprint::of_bytes(body)).route("webhook.psp")?;
///     let ran = engine.run(claim, async move |_operation| {
///         // Book the payment here.
///         Outcome::completed(Reply::new("").with_status(204))
///     }).await?;
///     Ok(match ran {
///         Ran::Executed { reply, .. } | Ran::Replayed { reply, .. } => reply.status,
///         Ran::Refused(Refusal::Mismatch(_)) => 422,
///         // Ask the sender to come again: its next delivery is answered from the record.
///         Ran::Refused(_) | Ran::Retryable(_) | Ran::Unknown(_) => 503,
///     })
/// }
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let identity = Identity::in_namespace("webhooks").scoped_by("one scope per sender")?;
/// let engine = Engine::builder(Arc::new(MemoryStore::default())).open(identity).await?;
/// assert_eq!(receive(&engine, "evt_1", b"paid").await?, 204);
/// assert_eq!(receive(&engine, "evt_1", b"paid").await?, 204);
/// assert_eq!(receive(&engine, "evt_1", b"refunded").await?, 422);
/// # Ok(())
/// # }
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(example())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn Store>,
    identity: Identity,
    namespace: NamespaceHash,
    instance: Instance,
    limits: Limits,
    sweeping: Sweeping,
    observer: Arc<dyn Observer>,
    local_clock: Arc<dyn Clock>,
    machine: options::Machine,
    record_format: RecordFormat,
    store_clock: StoreClock,
    cache: Cache,
    shared_cache: Option<SharedCacheClient>,
    running: Arc<LocalExecutions>,
    /// The finds of this process, for callers that wait.
    finding: Arc<LocalExecutions>,
    finders: Finders,
    #[cfg(feature = "http")]
    pass_through: Arc<PassThrough>,
    executions: Arc<Semaphore>,
    attached: Arc<Semaphore>,
    lost_claims: Arc<LostClaims>,
    outages: Outages,
    stop: watch::Sender<Stage>,
}

/// How far shutting down has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Open,
    Draining,
    Stopped,
}

/// The result of [`Engine::run`]. Exhaustive, because a caller that overlooks a case may do work twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ran {
    /// The work was done now, and its answer is durable.
    Executed {
        /// The answer.
        reply: Arc<Reply>,
        /// Until when retries are promised the same answer.
        expires_at: Timestamp,
    },
    /// The work had been done before.
    Replayed {
        /// The answer it had then.
        reply: Arc<Reply>,
        /// Until when retries are promised the same answer.
        expires_at: Timestamp,
    },
    /// This call's work was not done, or its tenure was over when it ended. Any retry gets the same refusal.
    Refused(Refusal),
    /// The work is proven not to have been done: the same key may be tried again.
    Retryable(String),
    /// It is unknown whether the work was done. It is not done again automatically.
    Unknown(String),
}

/// Why an engine could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// An option is out of range.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The store is used under another identity, or cannot be read.
    #[error(transparent)]
    Identity(#[from] IdentityRefused),
    /// The engine could not get a random name.
    #[error(transparent)]
    Entropy(#[from] EntropyUnavailable),
    /// The reconciler refuses this store.
    #[error("unknown outcomes of this store cannot be found out: {0}")]
    Reconciler(String),
    /// The records are in a format that does not name the window of an operation.
    #[error(
        "unknown outcomes are found out only where records are written in format 2, and this store has format 1: set the record format to 2 once every engine on it reads that, or leave the reconciler out"
    )]
    FormatOne,
}

/// Why an engine could not decide about a claim. Nothing was executed, unless the runtime itself was torn down under
/// running work, which is [`EngineError::Stopping`]; in both cases it is safe to try again with the same key. Exhaustive,
/// because the HTTP layer and the operations API decide what each case means to their callers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The store is away, overloaded, or holds what cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There are too many executions, or too many callers that wait.
    #[error("{limit} {what} are under way, which is the limit: try again shortly with the same key")]
    Overloaded {
        /// What is at its limit.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A reply of an operator or another process is too large to be kept.
    #[error(
        "the reply has {found} bytes, but at most {limit} are kept: shorten it, or raise `Limits::reply_bytes`"
    )]
    ReplyTooLarge {
        /// Its size in bytes.
        found: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The phase of an operation whose work commits receipts was to be written into its record.
    #[error(
        "the phases of this operation are in its receipt row: call onceward_checkpoint in the handler's own database"
    )]
    PhaseInReceipt,
    /// The place of the effect, such as a receipt row, could not be asked before a person's release.
    #[error(
        "the operation was not released, because its owner could still commit: {reason}. Try again, or resolve it as completed"
    )]
    NotVoided {
        /// Why it could not be asked.
        reason: String,
    },
    /// The engine is shutting down.
    #[error("the engine is shutting down: try again with the same key")]
    Stopping,
    /// Other writers changed the record each time before this claim could be written.
    #[error(
        "the record {id} changed {conflicts} times while it was being claimed: try again with the same key"
    )]
    Contended {
        /// The record.
        id: RecordId,
        /// How often it changed.
        conflicts: u32,
    },
}

/// What the work of [`Engine::run_with`] returned to its own caller, besides its outcome.
#[derive(Debug)]
pub(crate) enum WorkValue<T> {
    /// The work ended while its caller waited.
    Returned(T),
    /// It panicked.
    Panicked,
    /// It did not run.
    NotRun,
    /// It was stopped with the engine, or goes on after its caller was answered.
    Unfinished,
}

/// The result of [`Engine::claim`]. Inside the engine `T` is an [`Operation`], which has no duty to settle.
#[derive(Debug)]
pub enum Claimed<T = Reservation> {
    /// Do the work, or the rest of it after its recovery point, and settle the reservation.
    Reserved(T),
    /// The work had been done before.
    Replay {
        /// The answer it had then.
        reply: Arc<Reply>,
        /// Until when retries are promised the same answer.
        expires_at: Timestamp,
    },
    /// The work must not be done.
    Refused(Refusal),
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("identity", &self.inner.identity)
            .field("limits", &self.inner.limits)
            .finish_non_exhaustive()
    }
}

impl EngineBuilder {
    /// Opens the engine. Refused where the store was used under another identity: its keys would be forgotten.
    ///
    /// Must be called within a tokio runtime: sweepers are started there, and end when the last clone is dropped.
    pub async fn open(self, identity: Identity) -> Result<Engine, OpenError> {
        self.check()?;
        let instance = self.instance.map_or_else(Instance::random, Ok)?;
        let sent = instant();
        let asked = Asked { change: self.identity_change, format: self.record_format };
        let Recognised { now, since, format } = identity::verify(&*self.store, &identity, asked).await?;
        if let Some(reconciler) = &self.reconciler {
            if format < RecordFormat::Two {
                return Err(OpenError::FormatOne);
            }
            reconciler
                .bind(&StoreName::first_used(since, identity.namespace_hash()))
                .await
                .map_err(OpenError::Reconciler)?;
        }
        let limits = self.limits;
        let inner = Inner {
            store: self.store,
            namespace: identity.namespace_hash(),
            identity,
            sweeping: self.sweeping,
            observer: self.observer,
            local_clock: self.clock.clone(),
            machine: self.machine,
            record_format: format,
            store_clock: StoreClock::new(self.clock),
            cache: Cache::new(limits.cache_bytes, limits.cache_revalidate, instance.name()),
            shared_cache: self
                .shared_cache
                .map(|cache| SharedCacheClient::start(cache, limits.cache_revalidate, since)),
            running: LocalExecutions::new(instance.name()),
            finding: LocalExecutions::new(instance.name()),
            finders: Finders::new(self.reconciler, self.reconciling),
            #[cfg(feature = "http")]
            pass_through: PassThrough::new(instance.name()),
            executions: Arc::new(Semaphore::new(limits.executions.min(Semaphore::MAX_PERMITS))),
            attached: Arc::new(Semaphore::new(limits.attached.min(Semaphore::MAX_PERMITS))),
            lost_claims: LostClaims::new(limits.lost_claims),
            outages: Outages::default(),
            stop: watch::channel(Stage::Open).0,
            instance,
            limits,
        };
        inner.store_clock.saw(now, sent);
        // An engine that is started again under its old name must not take claims from before the restart for its own.
        inner.instance.count_from(now.as_micros());
        let engine = Engine { inner: Arc::new(inner) };
        sweep::start(&engine.inner);
        reconcile::start(&engine.inner);
        Ok(engine)
    }
}

impl Engine {
    /// Begins an engine on this store; [`EngineBuilder::open`] takes its [`Identity`].
    pub fn builder(store: Arc<dyn Store>) -> EngineBuilder {
        EngineBuilder::new(store)
    }

    /// Does `work` once under the claim's key, however often and wherever this is called.
    ///
    /// The work is detached from this call: dropping the returned future does not stop it, and a retry gets its answer.
    /// The answer is given only once it is durable. A name given with [`Claim::owner`] is not used here, because the work
    /// may still run when its caller asks again.
    pub async fn run<W, F>(&self, claim: Claim, work: W) -> Result<Ran, EngineError>
    where
        W: FnOnce(Operation) -> F + Send + 'static,
        F: Future<Output = Outcome> + Send + 'static,
    {
        let id = self.inner.id_of(&claim);
        let work = move |operation| async move { (work(operation).await, ()) };
        self.run_with(id, claim, &SeenOperation::default(), work).await.map(|(ran, _)| ran)
    }

    /// [`Self::run`] under an id that is known already, for work that also returns a value to its caller. Meanwhile the caller can
    /// read in `seen` which operation this is.
    pub(crate) async fn run_with<W, F, T>(
        &self,
        id: RecordId,
        claim: Claim,
        seen: &SeenOperation,
        work: W,
    ) -> Result<(Ran, WorkValue<T>), EngineError>
    where
        W: FnOnce(Operation) -> F + Send + 'static,
        F: Future<Output = (Outcome, T)> + Send + 'static,
        T: Send + 'static,
    {
        let inner = &self.inner;
        if let Some(ran) = inner.replay_from_caches(id, &claim, seen).await {
            return Ok((ran, WorkValue::NotRun));
        }
        let deadline = instant() + claim.timing.attach;
        let claim = Arc::new(claim);
        let (mut work, mut pace, mut waiting) = (work, Pace::new(), None);
        let mut known = None;
        loop {
            // Looked up before the claim, so that an execution that ends in between is not missed.
            let running = inner.running.attach(id).or_else(|| inner.finding.attach(id));
            // A first claim writes first; one that has waited expects a record, and reads.
            let first = if waiting.is_none() { Start::Absent } else { Start::Load };
            let (refusal, returned) = match (inner.start(id, &claim, (work, seen), first).await, known) {
                (Ok(ControlFlow::Break(answered)), _) => return Ok(answered),
                (Ok(ControlFlow::Continue((refusal, work))), _) => (refusal, work),
                (Err(error), None) => return Err(error),
                // Another execution was seen. A caller that goes on without a store must not conclude that there is none.
                (Err(_), Some(refusal)) => {
                    inner.observe_gave_up_waiting(&claim.route, id, &refusal);
                    return Ok((Ran::Refused(refusal), WorkValue::NotRun));
                }
            };
            work = returned;
            let remaining = deadline.saturating_duration_since(instant());
            if remaining == Duration::ZERO {
                inner.observe_gave_up_waiting(&claim.route, id, &refusal);
                return Ok((Ran::Refused(refusal), WorkValue::NotRun));
            }
            known = Some(refusal);
            if waiting.is_none() {
                waiting = Some(inner.permit(&inner.attached, "attached callers", inner.limits.attached)?);
            }
            if pace.wait(running, remaining).await == Woken::Ended {
                inner.observe(&claim.route, id, Observation::AttachWoken);
            }
        }
    }

    /// Stops accepting claims, waits up to `grace` for running work, and settles the rest as unknown.
    pub async fn shut_down(&self, grace: Duration) {
        let inner = &self.inner;
        inner.stop.send_replace(Stage::Draining);
        let all = u32::try_from(inner.limits.executions.min(Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        let drained = inner.executions.acquire_many(all);
        tokio::select! {
            biased;
            _ = drained => {}
            () = crate::time::sleep(grace) => {}
        }
        inner.stop.send_replace(Stage::Stopped);
        // The executions that are left settle themselves now, each within the patience of a settlement.
        let settled = inner.executions.acquire_many(all);
        tokio::select! {
            biased;
            _ = settled => {}
            () = crate::time::sleep(inner.limits.settle_patience) => {}
        }
    }

    /// How much is held at once, and for how long.
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// The format that records are written in.
    pub fn record_format(&self) -> RecordFormat {
        self.inner.record_format
    }

    /// The id of the record of a key in a scope.
    pub fn id_of(&self, scope: &Scope, key: &Key) -> RecordId {
        self.inner.identity.id_of(scope, key)
    }

    /// Registers a request that may go through unprotected while the store is unavailable. `None` while another request
    /// under its key goes through unprotected.
    #[cfg(feature = "http")]
    pub(crate) fn enter(&self, id: RecordId) -> Option<PassThroughEntry> {
        self.inner.pass_through.enter(id)
    }

    /// How an operation is found out while its outcome is unknown.
    pub fn plan(&self, record: &Record) -> reconcile::Plan {
        self.inner.plan_of(record)
    }

    /// Whether the reconciler asks about unknown operations of this route.
    #[cfg(feature = "http")]
    pub(crate) fn finds_out(&self, route: &str) -> bool {
        matches!(self.inner.finders.plan(route), reconcile::Plan::Find(_))
    }

    /// Whether this process executes the operation, or has an outcome of it that is not stored yet.
    #[cfg(feature = "http")]
    pub(crate) fn has(&self, id: RecordId) -> bool {
        self.inner.running.has(id)
    }

    /// The secret that keys this engine's hashes. The HTTP layer needs it to hash a credential before that becomes a scope.
    #[cfg(feature = "http")]
    pub(crate) fn secret(&self) -> Option<&crate::Secret> {
        self.inner.identity.secret()
    }

    /// The rule by which keys are scoped, in the words of the identity.
    #[cfg(feature = "http")]
    pub(crate) fn scope_rule(&self) -> &str {
        self.inner.identity.scope_rule()
    }

    /// Passes an observation of the HTTP layer to the observer.
    #[cfg(feature = "http")]
    pub(crate) fn note(&self, route: &str, id: RecordId, what: Observation) {
        self.inner.observe(route, id, what);
    }

    /// An operator confirms that the store's clock is right, after a jump that suspended expiry.
    pub fn trust_clock(&self) {
        self.inner.store_clock.trust();
    }
}
