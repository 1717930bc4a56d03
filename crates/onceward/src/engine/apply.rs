//! Applies one event to one record.
//!
//! 1. Believe something about the record: that it is absent, what was last written, or what the store answers.
//! 2. The machine decides what the event does to it.
//! 3. What it writes is swapped in. On a conflict the machine decides again, about the record that won. If the answer is lost,
//!    the record is read, because the write may have been carried out.
//! 4. The step is counted and logged, and caches are offered the record.

use std::sync::Arc;
use std::time::Duration;

use super::observe::Observation;
use super::outage::Call;
use super::{EngineError, Inner, log};
use crate::claim::Claim;
use crate::event::{Answer, Event, Moment, Notice, Step, Write, keep};
use crate::record::{Record, StateKind};
use crate::store::{Seen, Stamped, StoreError, StoreFuture, Swapped, Version};
use crate::time::{Instant, Reading, instant, sleep};
use crate::{RecordId, Timestamp};

/// Each conflict means that another writer made progress. After this many, the caller gets `Contended`.
const CONFLICTS_MAX: u32 = 32;
/// The first pause after a failed call. It is short, because most faults are a reconnect.
const BACKOFF_FIRST: Duration = Duration::from_millis(20);
/// The longest pause. An answer that waits for the store is at most this late once the store is back.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// A call gets this long even where patience ends sooner, because most stores answer within it.
const CALL_MIN: Duration = Duration::from_millis(250);

/// The pauses between tries, each twice as long as the one before.
struct Backoff(Duration);

impl Backoff {
    async fn pause(&mut self) {
        sleep(self.0).await;
        self.0 = (self.0 * 2).min(BACKOFF_MAX);
    }
}

/// What is believed about the record before the store is asked.
pub(super) enum Start {
    /// Nothing: it is read first.
    Load,
    /// That there is none. A fresh key is then one call.
    Absent,
    /// That it is what this owner last wrote. An ordinary settlement is then one call.
    LastWritten(StoredRecord),
    /// That it is what was just read, about which the machine has decided already, at this moment.
    Decided(StoredRecord, Moment, Step),
    /// That it is what the caller saw. The event is about that version only: another one in the store is a conflict.
    Pinned(StoredRecord),
}

/// A record as it is in the store. The record is shared by the owner of its tenure and the cache.
#[derive(Debug, Clone)]
pub(super) struct StoredRecord {
    pub record: Arc<Record>,
    pub version: Version,
}

impl From<Stamped> for StoredRecord {
    fn from(Stamped { record, version }: Stamped) -> Self {
        Self { record: Arc::new(record), version }
    }
}

impl From<StoredRecord> for Stamped {
    fn from(StoredRecord { record, version }: StoredRecord) -> Self {
        Self { record: Arc::unwrap_or_clone(record), version }
    }
}

/// How long, and after which failures, a call is tried again.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// When the event came.
    now: Reading,
    deadline: Instant,
    retry: Retry,
}

/// Which failed writes are tried again.
#[derive(Clone, Copy)]
enum Retry {
    /// Those that may have been carried out.
    Lost,
    All,
}

impl Patience {
    /// For a claim. A write that certainly failed is given up at once, and its client may retry.
    pub(super) fn of_claim(now: Reading, limit: Duration) -> Self {
        Self { now, deadline: now.at + limit, retry: Retry::Lost }
    }

    /// For every other event, which is tried again until the deadline.
    pub(super) fn until(now: Reading, deadline: Instant) -> Self {
        Self { now, deadline, retry: Retry::All }
    }
}

/// The result of an event.
pub(super) struct Applied {
    /// The machine's answer.
    pub answer: Answer,
    /// The record as it is in the store now.
    pub stored: Option<StoredRecord>,
    /// An earlier write of this event whose answer was lost. It may be what a later one conflicted with, or still arrive.
    pub lost: Option<LostWrite>,
}

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrote {
    Nothing,
    Record,
    /// The record was removed.
    Removal,
}

/// A step that was applied, for the log and the counters.
pub(super) struct Report<'a> {
    pub id: RecordId,
    pub event: &'a Event<'a>,
    pub answer: &'a Answer,
    pub notice: Option<Notice>,
    /// The state that the machine decided about, where there was a record.
    pub from: Option<StateKind>,
    /// The record as it is now, or as it was before its removal.
    pub record: Option<&'a Record>,
    pub wrote: Wrote,
    pub lost: Option<LostWrite>,
    /// Whether the event is about a shadow, even if its record is gone by now.
    pub shadow: bool,
    /// The store's time.
    pub now: Timestamp,
}

/// Why an event was not applied, and whether it may have been written.
pub(super) struct Failed {
    pub error: EngineError,
    pub lost: Option<LostWrite>,
}

/// A write whose answer was lost: it may be in the store, or arrive there later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LostWrite {
    /// The version that it would have replaced. Once another one is in the store, it can no longer arrive.
    pub expected: Option<Version>,
}

impl Failed {
    /// The caller's error. It is `Ambiguous` where the claim may be in the store, so that the request does not go unprotected.
    pub(super) fn into_error(self) -> EngineError {
        match self.lost {
            Some(_) => StoreError::Ambiguous { reason: self.error.to_string() }.into(),
            None => self.error,
        }
    }
}

/// What is counted and logged of a step.
struct StepResult {
    answer: Answer,
    notice: Option<Notice>,
    from: Option<StateKind>,
    shadow: bool,
    lost: Option<LostWrite>,
}

/// What is believed about a record and the time when the machine is asked.
struct Believed {
    stored: Option<StoredRecord>,
    moment: Moment,
    /// When the store was asked for the record. `None` where it was not, so that the record may be old.
    asked: Option<Instant>,
    /// What the machine decided, where it was asked before.
    decided: Option<Step>,
}

/// Whether an event is about a shadow, as far as that is known before the store is asked.
fn is_of_shadow(start: &Start, event: &Event<'_>) -> bool {
    match (start, event) {
        (Start::LastWritten(stored) | Start::Pinned(stored) | Start::Decided(stored, ..), _) => {
            stored.record.subject.is_shadow()
        }
        (Start::Load | Start::Absent, Event::Claim { claim, .. }) => claim.scope.is_shadow(),
        (Start::Load | Start::Absent, _) => false,
    }
}

/// The shortest lease that this event may write. It decides how exact the estimate of the store's time must be.
fn lease_of(stored: Option<&StoredRecord>, event: &Event<'_>) -> Duration {
    let held = stored.map(|stored| stored.record.terms.lease);
    let claimed = if let Event::Claim { claim, .. } = event { Some(claim.terms.lease) } else { None };
    held.into_iter().chain(claimed).min().unwrap_or(Claim::MIN_LEASE)
}

impl Inner {
    /// Applies an event; see the [module](self).
    pub(super) async fn apply(
        &self,
        id: RecordId,
        start: Start,
        event: &Event<'_>,
        patience: Patience,
    ) -> Result<Applied, Failed> {
        let (mut lost, mut backoff, mut conflicts) = (None, Backoff(BACKOFF_FIRST), 0);
        let failed = |error: EngineError, lost| Failed { error, lost };
        let not_read = |error: StoreError| failed(error.into(), None);
        let shadow = is_of_shadow(&start, event);
        let pinned = if let Start::Pinned(stored) = &start { Some(stored.version) } else { None };
        let unread = log::About { shadow, ..log::About::new(id, None) };
        let mut believed = self.begin(id, unread, start, event, patience).await.map_err(not_read)?;
        while conflicts < CONFLICTS_MAX {
            let stored = believed.stored.as_ref();
            let expected = stored.map(|stored| stored.version);
            let record = stored.map(|stored| &*stored.record);
            let decided = believed.decided.take();
            let Step { write, answer, notice } = if pinned.is_some() && pinned != expected {
                keep(Answer::Conflict)
            } else {
                decided.unwrap_or_else(|| (self.machine)(record, believed.moment, event))
            };
            let from = record.map(|record| record.state.kind());
            let result = StepResult { answer, notice, from, shadow, lost };
            let next = match (write, expected) {
                (Write::Put(mut next), _) => {
                    // A record in an older format is written in the newer one from here on.
                    next.format = next.format.max(self.record_format);
                    next
                }
                (Write::Keep, _) | (Write::Remove, None) => {
                    return Ok(self.applied(id, event, result, believed, Wrote::Nothing));
                }
                (Write::Remove, Some(version)) => {
                    let forgotten = self.store.forget(vec![(id, version)]).await;
                    let count = forgotten.map_err(|error| {
                        self.outages.failed(Call::Write, &error);
                        failed(error.into(), Some(LostWrite { expected }))
                    })?;
                    if count == 1 {
                        return Ok(self.applied(id, event, result, believed, Wrote::Removal));
                    }
                    believed = self.load_patiently(id, unread, patience).await.map_err(not_read)?;
                    conflicts += 1;
                    continue;
                }
            };
            let call = self.store.swap(id, expected, (*next).clone());
            match self.call_within(patience, call).await {
                Ok((Swapped::Applied { version, now }, sent)) => {
                    self.lost_claims.wrote(sent);
                    let moment = self.store_clock.saw(now, sent);
                    let stored = Some(StoredRecord { record: Arc::from(next), version });
                    let written = Believed { stored, moment, asked: Some(sent), decided: None };
                    self.outages.answered(Call::Write);
                    return Ok(self.applied(id, event, result, written, Wrote::Record));
                }
                Ok((Swapped::Conflict(seen), sent)) => {
                    believed = self.believe(seen, sent);
                    conflicts += 1;
                }
                Err(error @ StoreError::Ambiguous { .. }) => {
                    self.observe_ambiguous(id, event);
                    self.outages.failed(Call::Write, &error);
                    let again = lost.replace(LostWrite { expected }).is_some();
                    if instant() >= patience.deadline {
                        return Err(failed(error.into(), lost));
                    }
                    if again {
                        backoff.pause().await;
                    }
                    let loaded = self.load_patiently(id, unread, patience).await;
                    believed = loaded.map_err(|error| failed(error.into(), lost))?;
                }
                Err(error @ (StoreError::Unavailable { .. } | StoreError::Overloaded { .. })) => {
                    self.observe("", id, Observation::StoreError);
                    self.outages.failed(Call::Write, &error);
                    let give_up = match patience.retry {
                        Retry::Lost => lost.is_none(),
                        Retry::All => false,
                    };
                    if give_up || instant() >= patience.deadline {
                        return Err(failed(error.into(), lost));
                    }
                    backoff.pause().await;
                    let lease = lease_of(believed.stored.as_ref(), event);
                    match self.store_clock.estimate_at(self.store_clock.read(), lease) {
                        Some(moment) => believed.moment = moment,
                        None => {
                            let loaded = self.load_patiently(id, unread, patience).await;
                            believed = loaded.map_err(|error| failed(error.into(), lost))?;
                        }
                    }
                }
                Err(error @ (StoreError::Unreadable { .. } | StoreError::Refused { .. })) => {
                    self.observe("", id, Observation::StoreError);
                    // A failed settlement is logged by its caller, which also knows what happens next.
                    if !matches!(event, Event::Settle { .. }) {
                        self.log_record_error(
                            id,
                            log::About { shadow, ..log::About::new(id, record) },
                            &error,
                        );
                    }
                    return Err(failed(error.into(), lost));
                }
            }
        }
        Err(failed(EngineError::Contended { id, conflicts }, lost))
    }

    /// What is believed at first. The store is read where its time is not known well enough: after this machine was
    /// suspended, or where every answer took long.
    async fn begin(
        &self,
        id: RecordId,
        unread: log::About<'_>,
        start: Start,
        event: &Event<'_>,
        patience: Patience,
    ) -> Result<Believed, StoreError> {
        let believed = |stored, moment, decided| Believed { stored, moment, asked: None, decided };
        let stored = match start {
            Start::Decided(stored, moment, step) => {
                return Ok(believed(Some(stored), moment, Some(step)));
            }
            Start::Load => return self.load_patiently(id, unread, patience).await,
            Start::Absent => None,
            Start::LastWritten(stored) | Start::Pinned(stored) => Some(stored),
        };
        match self.store_clock.estimate_at(patience.now, lease_of(stored.as_ref(), event)) {
            Some(moment) => Ok(believed(stored, moment, None)),
            None => self.load_patiently(id, unread, patience).await,
        }
    }

    /// What an answer of the store means.
    fn believe(&self, seen: Seen, sent: Instant) -> Believed {
        let moment = self.store_clock.saw(seen.now, sent);
        Believed { stored: seen.record.map(StoredRecord::from), moment, asked: Some(sent), decided: None }
    }

    /// Reads a record.
    pub(super) async fn load_stored(
        &self,
        id: RecordId,
        patience: Patience,
    ) -> Result<Option<StoredRecord>, StoreError> {
        self.load_patiently(id, log::About::new(id, None), patience).await.map(|believed| believed.stored)
    }

    /// Reads a record, and tries again while patience lasts. `unread` names the record in the log if it cannot be read.
    async fn load_patiently(
        &self,
        id: RecordId,
        unread: log::About<'_>,
        patience: Patience,
    ) -> Result<Believed, StoreError> {
        let mut backoff = Backoff(BACKOFF_FIRST);
        loop {
            let error = match self.call_within(patience, self.store.load(id)).await {
                Ok((seen, sent)) => {
                    self.outages.answered(Call::Read);
                    return Ok(self.believe(seen, sent));
                }
                Err(error) => error,
            };
            self.observe("", id, Observation::StoreError);
            let permanent = matches!(error, StoreError::Unreadable { .. } | StoreError::Refused { .. });
            if permanent {
                self.log_record_error(id, unread, &error);
            } else {
                self.outages.failed(Call::Read, &error);
            }
            if permanent || instant() >= patience.deadline {
                return Err(error);
            }
            backoff.pause().await;
        }
    }

    /// One call of the store, given up when patience ends, because a store may hang. It is then unknown whether the call was
    /// carried out. Also returns when the call was sent.
    pub(super) async fn call_within<T>(
        &self,
        patience: Patience,
        call: StoreFuture<'_, T>,
    ) -> Result<(T, Instant), StoreError> {
        let sent = instant();
        let left = patience.deadline.saturating_duration_since(sent).max(CALL_MIN);
        tokio::select! {
            biased;
            done = call => Ok((done?, sent)),
            () = sleep(left) => {
                Err(StoreError::Ambiguous { reason: format!("the store did not answer within {left:?}") })
            }
        }
    }

    /// Logs an error that is about this record, and not about the store as a whole.
    fn log_record_error(&self, id: RecordId, about: log::About<'_>, error: &StoreError) {
        match error {
            StoreError::Unreadable { why, .. } if self.outages.is_first_report(id) => {
                log::unreadable(about, why);
            }
            StoreError::Refused { reason } => log::refused(about, reason),
            StoreError::Unreadable { .. }
            | StoreError::Unavailable { .. }
            | StoreError::Overloaded { .. }
            | StoreError::Ambiguous { .. } => {}
        }
    }

    /// Counts and logs a step, and offers the record to the caches.
    fn applied(
        &self,
        id: RecordId,
        event: &Event<'_>,
        result: StepResult,
        believed: Believed,
        wrote: Wrote,
    ) -> Applied {
        let StepResult { answer, notice, from, shadow, lost } = result;
        let Believed { stored, moment, asked, .. } = believed;
        let record = stored.as_ref().map(|stored| &*stored.record);
        let shadow = shadow || record.is_some_and(|record| record.subject.is_shadow());
        let now = moment.now;
        let report = Report { id, event, answer: &answer, notice, from, record, wrote, lost, shadow, now };
        self.observe_step(&report);
        log::applied(&report, |record| self.plan_of(record));
        if let (Some(stored), Some(asked), Wrote::Nothing | Wrote::Record) = (&stored, asked, wrote) {
            self.cache.keep(id, &stored.record, asked);
            if let Some(shared) = &self.shared_cache {
                shared.offer(id, &stored.record, moment.now.before(instant().duration_since(asked)));
            }
        }
        let stored = stored.filter(|_| wrote != Wrote::Removal);
        Applied { answer, stored, lost }
    }
}
