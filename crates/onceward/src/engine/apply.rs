//! One event, applied: machine, swap, and on a conflict again with the record that won.

use std::time::Duration;

use super::observe::Observation;
use super::{EngineError, Inner};
use crate::RecordId;
use crate::event::{Event, Notice, Step, Write};
use crate::store::{Stamped, StoreError, Swapped};
use crate::time::{Instant, instant, sleep};

/// Each conflict means that somebody else made progress. A record that moves on this often is being hammered, and
/// whoever asked is better told so.
const CONFLICTS_MAX: u32 = 32;
/// A store that is away is asked again soon at first, because most faults are a reconnect.
const BACKOFF_FIRST: Duration = Duration::from_millis(20);
/// And then at most this far apart, so that an answer that is held back goes out soon after the store is back.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// What is believed about the record before the store is asked.
pub(super) enum Start {
    /// Nothing: it is read first.
    Load,
    /// That there is none. A fresh key is then one call.
    Absent,
    /// That it is still what was last written. An ordinary settlement is then one call.
    Held(Box<Stamped>),
}

/// How long a failing store is asked again.
#[derive(Clone, Copy)]
pub(super) enum Patience {
    /// A write that surely did not happen is given up at once; one that may have happened is looked for until then.
    Claim(Instant),
    /// Everything is tried again until then.
    Until(Instant),
}

impl Patience {
    const fn deadline(self) -> Instant {
        match self {
            Self::Claim(at) | Self::Until(at) => at,
        }
    }
}

/// What came of an event.
pub(super) struct Applied {
    pub step: Step,
    /// What stands in the store now.
    pub stamped: Option<Stamped>,
    /// The name of the state that the machine decided about, where there was a record.
    pub from: Option<&'static str>,
    /// Whether a write was made.
    pub wrote: Wrote,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrote {
    Nothing,
    Record,
}

/// What went wrong, and whether something may have been written.
pub(super) struct Failed {
    pub error: EngineError,
    pub ambiguous: Ambiguous,
}

impl Failed {
    /// What the caller is told. Whoever would go on without a store must know that a claim may be in it.
    pub(super) fn told(self) -> EngineError {
        match (self.ambiguous, self.error) {
            (Ambiguous::Maybe, EngineError::Store(StoreError::Unavailable { reason })) => {
                StoreError::Ambiguous { reason }.into()
            }
            (_, error) => error,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ambiguous {
    /// Nothing of this event is in the store, nor will it be.
    No,
    /// Something of this event may be in the store, or arrive there later.
    Maybe,
}

impl Inner {
    pub(super) async fn apply(
        &self,
        id: RecordId,
        start: Start,
        event: &Event<'_>,
        patience: Patience,
    ) -> Result<Applied, Failed> {
        let mut ambiguous = Ambiguous::No;
        let failed = |error: EngineError, ambiguous| Failed { error, ambiguous };
        let mut backoff = BACKOFF_FIRST;
        let (mut believed, mut moment) = match start {
            Start::Absent => (None, self.store_clock.estimate()),
            Start::Held(stamped) => (Some(*stamped), self.store_clock.estimate()),
            Start::Load => {
                let seen = self.look(id, patience).await.map_err(|error| failed(error.into(), ambiguous))?;
                (seen.record, self.store_clock.saw(seen.now))
            }
        };
        let mut conflicts = 0;
        while conflicts < CONFLICTS_MAX {
            let version = believed.as_ref().map(|stamped| stamped.version);
            let step = (self.machine)(believed.as_ref().map(|stamped| &stamped.record), moment, event);
            let from = believed.as_ref().map(|stamped| stamped.record.state.name());
            let next = match (&step.write, version) {
                (Write::Put(next), _) => next.clone(),
                (Write::Keep, _) | (Write::Remove, None) => {
                    return Ok(self.applied(id, step, from, believed, Wrote::Nothing));
                }
                (Write::Remove, Some(version)) => {
                    let forgotten = self.store.forget(vec![(id, version)]).await;
                    let count = forgotten.map_err(|error| failed(error.into(), Ambiguous::Maybe))?;
                    if count == 1 {
                        return Ok(self.applied(id, step, from, None, Wrote::Record));
                    }
                    let seen =
                        self.look(id, patience).await.map_err(|error| failed(error.into(), ambiguous))?;
                    (believed, moment) = (seen.record, self.store_clock.saw(seen.now));
                    conflicts += 1;
                    continue;
                }
            };
            match self.store.swap(id, version, (*next).clone()).await {
                Ok(Swapped::Applied { version, now }) => {
                    self.store_clock.saw(now);
                    let stamped = Stamped { record: *next, version };
                    return Ok(self.applied(id, step, from, Some(stamped), Wrote::Record));
                }
                Ok(Swapped::Conflict(seen)) => {
                    (believed, moment) = (seen.record, self.store_clock.saw(seen.now));
                    conflicts += 1;
                }
                Err(error @ StoreError::Ambiguous { .. }) => {
                    self.observe_ambiguous(id, event);
                    if instant() >= patience.deadline() {
                        return Err(failed(error.into(), Ambiguous::Maybe));
                    }
                    if ambiguous == Ambiguous::Maybe {
                        sleep(backoff).await;
                        backoff = (backoff * 2).min(BACKOFF_MAX);
                    }
                    ambiguous = Ambiguous::Maybe;
                    let seen =
                        self.look(id, patience).await.map_err(|error| failed(error.into(), ambiguous))?;
                    (believed, moment) = (seen.record, self.store_clock.saw(seen.now));
                }
                Err(error @ (StoreError::Unavailable { .. } | StoreError::Overloaded { .. })) => {
                    self.observe("", id, Observation::StoreError);
                    let give_up = match patience {
                        Patience::Claim(_) => ambiguous == Ambiguous::No,
                        Patience::Until(_) => false,
                    };
                    if give_up || instant() >= patience.deadline() {
                        return Err(failed(error.into(), ambiguous));
                    }
                    sleep(backoff).await;
                    backoff = (backoff * 2).min(BACKOFF_MAX);
                    moment = self.store_clock.estimate();
                }
                Err(error @ (StoreError::Unreadable { .. } | StoreError::Refused { .. })) => {
                    self.observe("", id, Observation::StoreError);
                    return Err(failed(error.into(), ambiguous));
                }
            }
        }
        Err(failed(EngineError::Contended { id, conflicts }, ambiguous))
    }

    /// Reads a record, and asks a store that is away again for as long as that may take.
    async fn look(&self, id: RecordId, patience: Patience) -> Result<crate::store::Seen, StoreError> {
        let mut backoff = BACKOFF_FIRST;
        loop {
            match self.store.load(id).await {
                Ok(seen) => return Ok(seen),
                Err(error @ (StoreError::Unreadable { .. } | StoreError::Refused { .. })) => {
                    self.observe("", id, Observation::StoreError);
                    return Err(error);
                }
                Err(error) => {
                    self.observe("", id, Observation::StoreError);
                    if instant() >= patience.deadline() {
                        return Err(error);
                    }
                    sleep(backoff).await;
                    backoff = (backoff * 2).min(BACKOFF_MAX);
                }
            }
        }
    }

    fn applied(
        &self,
        id: RecordId,
        step: Step,
        from: Option<&'static str>,
        stamped: Option<Stamped>,
        wrote: Wrote,
    ) -> Applied {
        let route = stamped.as_ref().map_or("", |stamped| stamped.record.subject.route.as_str());
        match step.notice {
            Some(Notice::Contradiction) => self.observe(route, id, Observation::Contradiction),
            Some(Notice::DeadLettered) => self.observe(route, id, Observation::DeadLettered),
            Some(Notice::Uncompared) => self.observe(route, id, Observation::Uncompared),
            None => {}
        }
        if let Some(stamped) = &stamped {
            self.cache.keep(id, &stamped.record);
        }
        Applied { step, stamped, from, wrote }
    }

    fn observe_ambiguous(&self, id: RecordId, event: &Event<'_>) {
        let what = match event {
            Event::Claim { .. } | Event::Resume { .. } => Observation::AmbiguousClaim,
            Event::Renew { .. }
            | Event::Checkpoint { .. }
            | Event::Settle { .. }
            | Event::Evidence { .. }
            | Event::Inconclusive { .. }
            | Event::Resolve { .. }
            | Event::Expire { .. }
            | Event::Sweep { .. } => Observation::AmbiguousWrite,
        };
        self.observe("", id, what);
    }

    pub(super) fn observe(&self, route: &str, id: RecordId, what: Observation) {
        self.observer.observe(route, id, what);
    }
}
