//! The builder of an engine, and every default with its reason.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::observe::Observer;
use super::reconcile::{Reconciler, Reconciling};
use super::shared_cache::SharedCache;
use crate::entropy::Instance;
use crate::event::{Event, Expiry, Moment, Step};
use crate::machine;
use crate::record::{Record, RecordFormat};
use crate::store::Store;
use crate::time::{Clock, SystemClock};

pub(crate) type Machine = Arc<dyn Fn(Option<&Record>, Moment, &Event<'_>) -> Step + Send + Sync>;

/// Opens an engine: see [`Engine::builder`](crate::Engine::builder).
#[must_use]
pub struct EngineBuilder {
    pub(super) store: Arc<dyn Store>,
    pub(super) instance: Option<Instance>,
    pub(super) limits: Limits,
    pub(super) sweeping: Sweeping,
    pub(super) identity_change: IdentityChange,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) machine: Machine,
    pub(super) shared_cache: Option<Arc<dyn SharedCache>>,
    pub(super) record_format: Option<RecordFormat>,
    pub(super) reconciler: Option<Arc<dyn Reconciler>>,
    pub(super) reconciling: Reconciling,
}

impl fmt::Debug for EngineBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineBuilder")
            .field("instance", &self.instance)
            .field("limits", &self.limits)
            .field("sweeping", &self.sweeping)
            .field("identity_change", &self.identity_change)
            .finish_non_exhaustive()
    }
}

impl EngineBuilder {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            instance: None,
            limits: Limits::default(),
            sweeping: Sweeping::default(),
            identity_change: IdentityChange::Refuse,
            observer: Arc::new(()),
            clock: Arc::new(SystemClock),
            machine: Arc::new(machine::step),
            shared_cache: None,
            record_format: None,
            reconciler: None,
            reconciling: Reconciling::default(),
        }
    }

    /// Names this engine, which otherwise gets a random name. Two engines on one store must never share a name.
    pub fn instance(mut self, instance: Instance) -> Self {
        self.instance = Some(instance);
        self
    }

    /// Sets how much is held at once, and for how long.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets how often lapsed leases and expired records are looked for.
    pub fn sweeping(mut self, sweeping: Sweeping) -> Self {
        self.sweeping = sweeping;
        self
    }

    /// Sets what happens when the store was used under another namespace, scope rule or secret.
    pub fn identity_change(mut self, change: IdentityChange) -> Self {
        self.identity_change = change;
        self
    }

    /// Sets the observer of what the engine does.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = observer;
        self
    }

    /// Sets this machine's wall clock. It only shows whether the process was suspended between a claim and its work.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Shares completed records with other engines, so that their replays cost the store nothing either. All of them should
    /// have the same [`Limits::cache_revalidate`].
    pub fn shared_cache(mut self, cache: Arc<dyn SharedCache>) -> Self {
        self.shared_cache = Some(cache);
        self
    }

    /// Sets the format that records are written in. Without it, a new store gets the newest, and a store that was used
    /// before keeps what it has, because other engines that share it may not read a newer one. A record never goes back to
    /// an older format, and an engine that cannot read one fails closed for that record.
    pub fn record_format(mut self, format: RecordFormat) -> Self {
        self.record_format = Some(format);
        self
    }

    /// Sets what finds unknown outcomes out. Without it, they wait for their late owner, a webhook or a person.
    pub fn reconciler(mut self, reconciler: Arc<dyn Reconciler>) -> Self {
        self.reconciler = Some(reconciler);
        self
    }

    /// Sets when, and by how many finders at once, unknown outcomes are found out.
    pub fn reconciling(mut self, reconciling: Reconciling) -> Self {
        self.reconciling = reconciling;
        self
    }

    /// Replaces the machine. Tests use it to check every step, and to prove that they detect a broken machine.
    #[doc(hidden)]
    pub fn machine(
        mut self,
        machine: impl Fn(Option<&Record>, Moment, &Event<'_>) -> Step + Send + Sync + 'static,
    ) -> Self {
        self.machine = Arc::new(machine);
        self
    }
}

/// What happens when the store was used under another namespace, scope rule or secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum IdentityChange {
    /// The engine does not start: every stored key would be forgotten, and retries would execute again.
    Refuse,
    /// The engine starts, and from now on this is the identity of its namespace. Those of other namespaces stay known.
    Accept,
}

/// How much is held at once, and for how long.
///
/// ```
/// let limits = onceward::Limits::default().executions(500);
/// assert_eq!(limits.executions, 500);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Executions at once. Each holds a task, a lease and a caller's answer; beyond, claims are shed before they claim.
    pub executions: usize,
    /// Callers that wait for another caller's execution at once.
    pub attached: usize,
    /// Claims whose answer was lost, and which are remembered until they are found and released. Beyond this number, one
    /// that was written lapses into an unknown outcome although nothing was executed, and [`Observation::LostClaimDropped`]
    /// is observed.
    ///
    /// [`Observation::LostClaimDropped`]: super::Observation::LostClaimDropped
    pub lost_claims: usize,
    /// Bytes of completed records kept in memory for replays.
    pub cache_bytes: u64,
    /// How long a cached record is believed before the store is asked again: the longest that an operator's early
    /// expiry goes unnoticed.
    pub cache_revalidate: Duration,
    /// Bytes of a reply. What is larger cannot be kept, so its outcome is left to an operator.
    pub reply_bytes: usize,
    /// How long a claim may take, the search for one whose answer was lost included, before its caller gets the store's
    /// error.
    pub claim_patience: Duration,
    /// How long a caller waits while a finished outcome cannot be stored.
    pub settle_patience: Duration,
    /// How long storing an outcome is retried after its caller was answered that it is unknown.
    pub settle_give_up: Duration,
    /// How long work may run on after its timeout, so that a late answer still settles it.
    pub linger: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            executions: 10_000,
            attached: 10_000,
            // Every claim that can be under way when a store stalls, several times over, because a long stall loses as many
            // again each time that `claim_patience` ends. About ten MiB.
            lost_claims: 65_536,
            cache_bytes: 64 << 20,
            cache_revalidate: Duration::from_secs(60),
            // Twice a MiB: a whole body of the default limit and its headers.
            reply_bytes: 2 << 20,
            claim_patience: Duration::from_secs(5),
            settle_patience: Duration::from_secs(10),
            settle_give_up: Duration::from_secs(10 * 60),
            linger: Duration::from_secs(5 * 60),
        }
    }
}

/// How often lapsed leases and expired records are looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sweeping {
    /// How often lapsed leases are looked for; a retry that meets one does not wait for it.
    pub leases_every: Duration,
    /// How often expired records are looked for; a claim that meets one does not wait for it.
    pub expired_every: Duration,
    /// Records read in one go. Small, so that a claim never waits behind a long deletion.
    pub batch: usize,
    /// The pause between two full batches, so that claims are served in between.
    pub pause: Duration,
    /// What becomes of a record past its window.
    pub expiry: Expiry,
}

impl Default for Sweeping {
    fn default() -> Self {
        Self {
            leases_every: Duration::from_secs(5),
            expired_every: Duration::from_secs(30),
            batch: 256,
            pause: Duration::from_millis(50),
            expiry: Expiry::Delete,
        }
    }
}

/// Why an engine's options are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// A count is zero, which would let nothing through.
    #[error("{setting} = 0 would let nothing through: it must be at least 1")]
    Zero {
        /// The name of the option.
        setting: &'static str,
    },
    /// A time is out of range.
    #[error("{setting} = {value:?} must lie between {:?} and {:?}", Limits::MIN_PAUSE, Limits::MAX_PATIENCE)]
    Duration {
        /// The name of the option.
        setting: &'static str,
        /// Its value.
        value: Duration,
    },
}

impl Limits {
    /// Anything shorter would be a busy loop.
    pub const MIN_PAUSE: Duration = Duration::from_millis(1);
    /// A month: anything longer is a mistake in the unit.
    pub const MAX_PATIENCE: Duration = Duration::from_secs(31 * 24 * 60 * 60);

    setters! {
        executions: usize,
        attached: usize,
        lost_claims: usize,
        cache_bytes: u64,
        cache_revalidate: Duration,
        reply_bytes: usize,
        claim_patience: Duration,
        settle_patience: Duration,
        settle_give_up: Duration,
        linger: Duration,
    }
}

impl Sweeping {
    setters! {
        leases_every: Duration,
        expired_every: Duration,
        batch: usize,
        pause: Duration,
        expiry: Expiry,
    }
}

impl EngineBuilder {
    pub(super) fn check(&self) -> Result<(), OptionsError> {
        let (limits, sweeping, reconciling) = (&self.limits, &self.sweeping, &self.reconciling);
        for (setting, value) in [
            ("executions", limits.executions),
            ("attached", limits.attached),
            ("lost_claims", limits.lost_claims),
            ("reply_bytes", limits.reply_bytes),
            ("batch", sweeping.batch),
            ("finders", reconciling.finders),
        ] {
            if value == 0 {
                return Err(OptionsError::Zero { setting });
            }
        }
        let by_route = reconciling.give_up_after_by_route.values();
        for (setting, value) in [
            ("cache_revalidate", limits.cache_revalidate),
            ("claim_patience", limits.claim_patience),
            ("settle_patience", limits.settle_patience),
            ("settle_give_up", limits.settle_give_up),
            ("linger", limits.linger),
            ("leases_every", sweeping.leases_every),
            ("expired_every", sweeping.expired_every),
            ("pause", sweeping.pause),
            ("every", reconciling.every),
            ("find_timeout", reconciling.find_timeout),
            ("give_up_after", reconciling.give_up_after),
        ]
        .into_iter()
        .chain(by_route.map(|value| ("give_up_after_by_route", *value)))
        {
            if value < Limits::MIN_PAUSE || value > Limits::MAX_PATIENCE {
                return Err(OptionsError::Duration { setting, value });
            }
        }
        Ok(())
    }
}
