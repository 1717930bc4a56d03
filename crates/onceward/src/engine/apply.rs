//! One event, applied: machine, swap, and on a conflict again with the record that won.

use std::sync::Arc;
use std::time::Duration;

use super::observe::Observation;
use super::outage::Call;
use super::{EngineError, Inner, log};
use crate::RecordId;
use crate::claim::Claim;
use crate::event::{Answer, Event, Moment, Notice, Step, Write, keep};
use crate::record::{Record, StateKind};
use crate::store::{Seen, Stamped, StoreError, StoreFuture, Swapped, Version};
use crate::time::{Instant, Reading, instant, sleep};

/// Each conflict means that another writer made progress. After this many, the caller gets `Contended`.
const CONFLICTS_MAX: u32 = 32;
/// A store that is away is asked again soon at first, because most faults are a reconnect.
const BACKOFF_FIRST: Duration = Duration::from_millis(20);
/// And then at most this far apart, so that an answer that is held back goes out soon after the store is back.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Even a call that is made when patience is almost over gets this long: most stores answer within it.
const CALL_MIN: Duration = Duration::from_millis(250);

/// What is believed about the record before the store is asked.
pub(super) enum Start {
    /// Nothing: it is read first.
    Load,
    /// That there is none. A fresh key is then one call.
    Absent,
    /// That it is still what was last written. An ordinary settlement is then one call.
    Held(Standing),
    /// The same, and the machine has decided about it already, at this moment.
    Decided(Standing, Moment, Step),
    /// That it is still what the caller saw. The event is about that version alone: where another one stands, it is a conflict.
    Pinned(Standing),
}

/// A record that stands in the store, shared by the owner of its tenure and the cache.
#[derive(Debug, Clone)]
pub(super) struct Standing {
    pub record: Arc<Record>,
    pub version: Version,
}

impl From<Stamped> for Standing {
    fn from(Stamped { record, version }: Stamped) -> Self {
        Self { record: Arc::new(record), version }
    }
}

impl From<Standing> for Stamped {
    fn from(Standing { record, version }: Standing) -> Self {
        Self { record: Arc::unwrap_or_clone(record), version }
    }
}

/// How long a failing store is asked again.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// When the event came.
    now: Reading,
    deadline: Instant,
    trying: Trying,
}

#[derive(Clone, Copy)]
enum Trying {
    /// A write that surely did not happen is given up at once; one that may have happened is looked for.
    Claim,
    /// Everything is tried again.
    On,
}

impl Patience {
    /// For a claim: a write that surely did not happen is given up at once; one that may have happened is looked for.
    pub(super) fn of_claim(now: Reading, limit: Duration) -> Self {
        Self { now, deadline: now.at + limit, trying: Trying::Claim }
    }

    /// For everything else, which is tried again until then.
    pub(super) fn until(now: Reading, deadline: Instant) -> Self {
        Self { now, deadline, trying: Trying::On }
    }
}

/// What came of an event.
pub(super) struct Applied {
    /// The machine's answer.
    pub answer: Answer,
    /// What stands in the store now.
    pub standing: Option<Standing>,
    /// An earlier try whose answer was lost. It may be what the event met, or still arrive if what stands in its way goes.
    pub lost: Option<Lost>,
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
    /// The record as it stands, or as it was before its removal.
    pub record: Option<&'a Record>,
    pub wrote: Wrote,
    pub lost: Option<Lost>,
    /// Whether the event is about a shadow, though its record may be gone by now.
    pub shadow: bool,
}

/// What went wrong, and whether something may have been written.
pub(super) struct Failed {
    pub error: EngineError,
    pub lost: Option<Lost>,
}

/// A write whose answer was lost: it may be in the store, or arrive there later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lost {
    /// What it would have replaced. Once something else stands there, it can no longer arrive.
    pub expected: Option<Version>,
}

impl Failed {
    /// The caller's error. A caller that would go on without a store must know that its claim may be in it.
    pub(super) fn into_error(self) -> EngineError {
        match self.lost {
            Some(_) => StoreError::Ambiguous { reason: self.error.to_string() }.into(),
            None => self.error,
        }
    }
}

/// What a step says, beside what it writes.
struct Said {
    answer: Answer,
    notice: Option<Notice>,
    from: Option<StateKind>,
    shadow: bool,
    lost: Option<Lost>,
}

/// What is believed at the beginning of a round.
struct Believed {
    standing: Option<Standing>,
    /// What time it is.
    moment: Moment,
    /// When the store was asked for it. `None` where it is remembered, and may be old.
    asked: Option<Instant>,
    /// What the machine said about it, where it was asked before.
    decided: Option<Step>,
}

/// Whether an event is about the shadow of an operation, as far as that is known before the store is asked.
fn is_of_shadow(start: &Start, event: &Event<'_>) -> bool {
    match (start, event) {
        (Start::Held(standing) | Start::Pinned(standing) | Start::Decided(standing, ..), _) => {
            standing.record.subject.is_shadow()
        }
        (Start::Load | Start::Absent, Event::Claim { claim, .. }) => claim.scope.is_shadow(),
        (Start::Load | Start::Absent, _) => false,
    }
}

/// The shortest lease that this event may write. The estimate of the store's time must be exact enough for it.
fn lease_of(standing: Option<&Standing>, event: &Event<'_>) -> Duration {
    let held = standing.map(|standing| standing.record.terms.lease);
    let claimed = if let Event::Claim { claim, .. } = event { Some(claim.terms.lease) } else { None };
    held.into_iter().chain(claimed).min().unwrap_or(Claim::MIN_LEASE)
}

impl Inner {
    pub(super) async fn apply(
        &self,
        id: RecordId,
        start: Start,
        event: &Event<'_>,
        patience: Patience,
    ) -> Result<Applied, Failed> {
        let (mut lost, mut backoff, mut conflicts) = (None, BACKOFF_FIRST, 0);
        let failed = |error: EngineError, lost| Failed { error, lost };
        let unseen = |error: StoreError| failed(error.into(), None);
        let shadow = is_of_shadow(&start, event);
        let pinned = if let Start::Pinned(standing) = &start { Some(standing.version) } else { None };
        let unread = log::About { shadow, ..log::About::new(id, None) };
        let mut believed = self.begin(id, unread, start, event, patience).await.map_err(unseen)?;
        while conflicts < CONFLICTS_MAX {
            let standing = believed.standing.as_ref();
            let expected = standing.map(|standing| standing.version);
            let record = standing.map(|standing| &*standing.record);
            let decided = believed.decided.take();
            let Step { write, answer, notice } = if pinned.is_some() && pinned != expected {
                keep(Answer::Conflict)
            } else {
                decided.unwrap_or_else(|| (self.machine)(record, believed.moment, event))
            };
            let from = record.map(|record| record.state.kind());
            let said = Said { answer, notice, from, shadow, lost };
            let next = match (write, expected) {
                (Write::Put(mut next), _) => {
                    // A record that an older version wrote is written in the newer format from here on.
                    next.format = next.format.max(self.record_format);
                    next
                }
                (Write::Keep, _) | (Write::Remove, None) => {
                    return Ok(self.applied(id, event, said, believed, Wrote::Nothing));
                }
                (Write::Remove, Some(version)) => {
                    let forgotten = self.store.forget(vec![(id, version)]).await;
                    let count = forgotten.map_err(|error| {
                        self.outages.failed(Call::Write, &error);
                        failed(error.into(), Some(Lost { expected }))
                    })?;
                    if count == 1 {
                        return Ok(self.applied(id, event, said, believed, Wrote::Removal));
                    }
                    believed = self.look(id, unread, patience).await.map_err(unseen)?;
                    conflicts += 1;
                    continue;
                }
            };
            let call = self.store.swap(id, expected, (*next).clone());
            match self.within(patience, call).await {
                Ok((Swapped::Applied { version, now }, sent)) => {
                    self.lost_claims.wrote(sent);
                    let moment = self.store_clock.saw(now, sent);
                    let standing = Some(Standing { record: Arc::from(next), version });
                    let written = Believed { standing, moment, asked: Some(sent), decided: None };
                    self.outages.answered(Call::Write);
                    return Ok(self.applied(id, event, said, written, Wrote::Record));
                }
                Ok((Swapped::Conflict(seen), sent)) => {
                    believed = self.saw(seen, sent);
                    conflicts += 1;
                }
                Err(error @ StoreError::Ambiguous { .. }) => {
                    self.observe_ambiguous(id, event);
                    self.outages.failed(Call::Write, &error);
                    let again = lost.replace(Lost { expected }).is_some();
                    if instant() >= patience.deadline {
                        return Err(failed(error.into(), lost));
                    }
                    if again {
                        sleep(backoff).await;
                        backoff = (backoff * 2).min(BACKOFF_MAX);
                    }
                    let looked = self.look(id, unread, patience).await;
                    believed = looked.map_err(|error| failed(error.into(), lost))?;
                }
                Err(error @ (StoreError::Unavailable { .. } | StoreError::Overloaded { .. })) => {
                    self.observe("", id, Observation::StoreError);
                    self.outages.failed(Call::Write, &error);
                    let give_up = match patience.trying {
                        Trying::Claim => lost.is_none(),
                        Trying::On => false,
                    };
                    if give_up || instant() >= patience.deadline {
                        return Err(failed(error.into(), lost));
                    }
                    sleep(backoff).await;
                    backoff = (backoff * 2).min(BACKOFF_MAX);
                    let lease = lease_of(believed.standing.as_ref(), event);
                    match self.store_clock.estimate_at(self.store_clock.read(), lease) {
                        Some(moment) => believed.moment = moment,
                        None => {
                            let looked = self.look(id, unread, patience).await;
                            believed = looked.map_err(|error| failed(error.into(), lost))?;
                        }
                    }
                }
                Err(error @ (StoreError::Unreadable { .. } | StoreError::Refused { .. })) => {
                    self.observe("", id, Observation::StoreError);
                    // The caller of a settlement logs what it does about it.
                    if !matches!(event, Event::Settle { .. }) {
                        self.tell_of_record(id, log::About { shadow, ..log::About::new(id, record) }, &error);
                    }
                    return Err(failed(error.into(), lost));
                }
            }
        }
        Err(failed(EngineError::Contended { id, conflicts }, lost))
    }

    /// What is believed to begin with. Where this machine slept, or every answer took long, only the store knows what time
    /// it is: it is asked.
    async fn begin(
        &self,
        id: RecordId,
        unread: log::About<'_>,
        start: Start,
        event: &Event<'_>,
        patience: Patience,
    ) -> Result<Believed, StoreError> {
        let believed = |standing, moment, decided| Believed { standing, moment, asked: None, decided };
        let standing = match start {
            Start::Decided(standing, moment, step) => {
                return Ok(believed(Some(standing), moment, Some(step)));
            }
            Start::Load => return self.look(id, unread, patience).await,
            Start::Absent => None,
            Start::Held(standing) | Start::Pinned(standing) => Some(standing),
        };
        match self.store_clock.estimate_at(patience.now, lease_of(standing.as_ref(), event)) {
            Some(moment) => Ok(believed(standing, moment, None)),
            None => self.look(id, unread, patience).await,
        }
    }

    fn saw(&self, seen: Seen, sent: Instant) -> Believed {
        let moment = self.store_clock.saw(seen.now, sent);
        Believed { standing: seen.record.map(Standing::from), moment, asked: Some(sent), decided: None }
    }

    /// The record that stands in the store.
    pub(super) async fn load_standing(
        &self,
        id: RecordId,
        patience: Patience,
    ) -> Result<Option<Standing>, StoreError> {
        self.look(id, log::About::new(id, None), patience).await.map(|believed| believed.standing)
    }

    /// Reads a record, and asks a store that is away again for as long as that may take. `unread` names a record that cannot be
    /// read in the log.
    async fn look(
        &self,
        id: RecordId,
        unread: log::About<'_>,
        patience: Patience,
    ) -> Result<Believed, StoreError> {
        let mut backoff = BACKOFF_FIRST;
        loop {
            let error = match self.within(patience, self.store.load(id)).await {
                Ok((seen, sent)) => {
                    self.outages.answered(Call::Read);
                    return Ok(self.saw(seen, sent));
                }
                Err(error) => error,
            };
            self.observe("", id, Observation::StoreError);
            let hopeless = matches!(error, StoreError::Unreadable { .. } | StoreError::Refused { .. });
            if hopeless {
                self.tell_of_record(id, unread, &error);
            } else {
                self.outages.failed(Call::Read, &error);
            }
            if hopeless || instant() >= patience.deadline {
                return Err(error);
            }
            sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// One call, given up when patience ends: a store that hangs must not keep its caller. It is then unknown whether the call
    /// was carried out. Returns when the call was sent, too.
    pub(super) async fn within<T>(
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

    /// What the store says about one record, and not about itself.
    fn tell_of_record(&self, id: RecordId, about: log::About<'_>, error: &StoreError) {
        match error {
            StoreError::Unreadable { why, .. } if self.outages.is_first_sight(id) => {
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
        said: Said,
        believed: Believed,
        wrote: Wrote,
    ) -> Applied {
        let Said { answer, notice, from, shadow, lost } = said;
        let Believed { standing, moment, asked, .. } = believed;
        let record = standing.as_ref().map(|standing| &*standing.record);
        let shadow = shadow || record.is_some_and(|record| record.subject.is_shadow());
        let report = Report { id, event, answer: &answer, notice, from, record, wrote, lost, shadow };
        self.observe_step(&report);
        log::applied(&report);
        if let (Some(standing), Some(asked), Wrote::Nothing | Wrote::Record) = (&standing, asked, wrote) {
            self.cache.keep(id, &standing.record, asked);
            if let Some(shared) = &self.shared_cache {
                shared.offer(id, &standing.record, moment.now.before(instant().duration_since(asked)));
            }
        }
        let standing = standing.filter(|_| wrote != Wrote::Removal);
        Applied { answer, standing, lost }
    }
}
