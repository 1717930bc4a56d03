//! The only loop between the machine and a store.
//!
//! [`Engine::run`] protects one piece of work. What happens to a claim, in order:
//!
//! 1. A completed record in memory answers at once; one in a shared cache, if there is one, almost.
//! 2. Too many executions already: shed, before anything is claimed.
//! 3. From here on everything is detached from the caller, who may go away without harm.
//! 4. The claim is swapped into the store; for a fresh key that is one call. A conflict brings the record that stands
//!    there, and the machine decides again about it: replay, refuse, resume or execute.
//! 5. In progress elsewhere: the caller may attach, and is woken when that execution ends.
//! 6. The work runs. Long work renews its lease; a panic is an unknown outcome; too late a start is none at all.
//! 7. The outcome is settled with a compare-and-swap that names the fence, and tried again until it is durable.
//! 8. Only then is the caller answered: from what it wrote, or from the record if another owner settled it.

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
mod reservation;
mod running;
mod shared_cache;
mod sweep;

use std::fmt;
use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};

pub use self::identity::{IdentityRefused, Recognition};
pub use self::observe::{Observation, Observer};
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
use self::shared_cache::SharedCacheClient;
use crate::claim::Claim;
use crate::event::Refusal;
use crate::outcome::{Outcome, Reply};
use crate::store::{Store, StoreError};
use crate::time::{Clock, instant};
use crate::{Identity, Key, RecordId, Scope, Timestamp, record::RecordFormat};

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

/// What came of [`Engine::run`]. Exhaustive, because a caller that overlooks a case may do work twice.
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
    /// It is unknown whether the work was done. It is not done again by itself.
    Unknown(String),
}

/// Why an engine could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// An option makes no sense.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The store is used under another identity, or cannot be read.
    #[error(transparent)]
    Identity(#[from] IdentityRefused),
    /// The engine could not get a random name.
    #[error(transparent)]
    Entropy(#[from] EntropyUnavailable),
}

/// Why an engine could not decide about a claim. Nothing was executed, unless the runtime itself was torn down under
/// running work, which is [`EngineError::Stopping`]; either way the same key is safe to try again. Exhaustive, because doors decide
/// what each means to their callers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The store is away, overloaded, or holds what cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Too much is going on already.
    #[error("{limit} {what} are under way, which is the limit: try again shortly with the same key")]
    Overloaded {
        /// What there is too much of.
        what: &'static str,
        /// How much there may be.
        limit: usize,
    },
    /// A reply from outside is too large to be kept.
    #[error(
        "the reply has {found} bytes, but at most {limit} are kept: shorten it, or raise `Limits::reply_bytes`"
    )]
    ReplyTooLarge {
        /// How large it was.
        found: usize,
        /// How large it may be.
        limit: usize,
    },
    /// The engine is shutting down.
    #[error("the engine is shutting down: try again with the same key")]
    Stopping,
    /// The record changed faster than it could be read.
    #[error(
        "the record {id} changed {conflicts} times while it was being claimed: try again with the same key"
    )]
    Contended {
        /// Which record.
        id: RecordId,
        /// How often.
        conflicts: u32,
    },
}

/// What the work of [`Engine::run_with`] returned for its own caller, beside its outcome.
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

/// What came of [`Engine::claim`]. Within the engine, an [`Operation`] is taken without the duty to settle it.
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
    /// Do nothing.
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
        let limits = self.limits;
        let inner = Inner {
            store: self.store,
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
        // An engine that is started again under its old name must not take its dead self's claims for its own.
        inner.instance.count_from(now.as_micros());
        let engine = Engine { inner: Arc::new(inner) };
        sweep::start(&engine.inner);
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
        self.run_with(id, claim, work).await.map(|(ran, _)| ran)
    }

    /// The same under an id that is known already, for work that returns a value to its caller beside the outcome that is stored.
    pub(crate) async fn run_with<W, F, T>(
        &self,
        id: RecordId,
        claim: Claim,
        work: W,
    ) -> Result<(Ran, WorkValue<T>), EngineError>
    where
        W: FnOnce(Operation) -> F + Send + 'static,
        F: Future<Output = (Outcome, T)> + Send + 'static,
        T: Send + 'static,
    {
        let inner = &self.inner;
        if let Some(ran) = inner.replay_from_caches(id, &claim).await {
            return Ok((ran, WorkValue::NotRun));
        }
        let deadline = instant() + claim.timing.attach;
        let claim = Arc::new(claim);
        let (mut work, mut pace, mut waiting) = (work, Pace::new(), None);
        let mut known = None;
        loop {
            // Looked up before the claim, so that an execution that ends in between is not missed.
            let running = inner.running.attach(id);
            // A first claim writes first; one that has waited expects a record, and reads.
            let first = if waiting.is_none() { Start::Absent } else { Start::Load };
            let (refusal, returned) = match (inner.start(id, &claim, work, first).await, known) {
                (Ok(ControlFlow::Break(answered)), _) => return Ok(answered),
                (Ok(ControlFlow::Continue((refusal, work))), _) => (refusal, work),
                (Err(error), None) => return Err(error),
                // Another execution was seen. A caller that goes on without a store must not conclude that there is none.
                (Err(_), Some(refusal)) => {
                    inner.observe(&claim.route, id, Observation::InProgress);
                    return Ok((Ran::Refused(refusal), WorkValue::NotRun));
                }
            };
            work = returned;
            let remaining = deadline.saturating_duration_since(instant());
            if remaining == Duration::ZERO {
                inner.observe(&claim.route, id, Observation::InProgress);
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

    /// Stops accepting, lets what runs finish for up to `grace`, and settles the rest as unknown.
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
        // What is left settles itself now; each is bounded by the patience of a settlement.
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

    /// Where the record of a key in a scope lives.
    pub fn id_of(&self, scope: &Scope, key: &Key) -> RecordId {
        self.inner.identity.id_of(scope, key)
    }

    /// Enters a request of a route that goes through while the store is away. Nothing where another one under its key does so now.
    #[cfg(feature = "http")]
    pub(crate) fn enter(&self, id: RecordId) -> Option<PassThroughEntry> {
        self.inner.pass_through.enter(id)
    }

    /// Whether this process executes the operation, or has an outcome of it that is not stored yet.
    #[cfg(feature = "http")]
    pub(crate) fn has(&self, id: RecordId) -> bool {
        self.inner.running.has(id)
    }

    /// What keys this engine's hashes, for doors that must hash a credential before it becomes a scope.
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
