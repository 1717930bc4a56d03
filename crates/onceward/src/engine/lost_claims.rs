//! Claims whose answer was lost: one list, and one task that looks for them.
//!
//! A claim that was given up may be in the store, or arrive there late: a disk that stalled syncs the batch that it had, a
//! database commits what it had begun. Nothing is executed under such a claim, but its lease would lapse, and the outcome
//! would be unknown although nothing was done. So it is looked for under its owner token, and released where it is found:
//! while it is in progress, and as well once it has lapsed.
//!
//! An entry leaves the list when its claim was found and released, when something else stands where the claim would have
//! been written and stays, so that it can no longer arrive, or at a deadline. The deadline counts from when the store is
//! back. A read does not tell that: a disk that does not sync still answers reads. A write that was sent after the claim
//! was given up and that is durable does. It also makes every entry due at once, because what was stalled has arrived by
//! then or is about to. A store that is away again has told nothing: what is on its way to it may wait as long as it is away.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use tokio::sync::Notify;

use super::apply::{Lost, Patience, Start};
use super::observe::Observation;
use super::operate::{Settled, settled};
use super::{EngineError, Inner};
use crate::event::Event;
use crate::outcome::Outcome;
use crate::record::{Record, State};
use crate::store::{Stamped, StoreError, Version};
use crate::time::{Instant, instant, sleep};
use crate::{RecordId, Timestamp, entropy::OwnerToken};

/// The first look comes soon: most answers are lost with a connection, and the next connection shows what was written.
const LOOK_FIRST: Duration = Duration::from_millis(250);
/// Later looks are at most this far apart: a claim that arrives unnoticed is found within a minute.
const LOOK_MAX: Duration = Duration::from_secs(60);
/// So many claims are looked for at once: ten thousand take some seconds, and ordinary claims do not wait behind them.
const LOOKS_AT_ONCE: usize = 64;
/// A store that did not answer a look is asked again after this long,
const AWAY_FIRST: Duration = Duration::from_millis(250);
/// and then ever more rarely, up to this, so that the claims are given back seconds after it is back.
const AWAY_MAX: Duration = Duration::from_secs(5);
/// What was on its way when the store took writes again arrives within this, or never: networks send again for minutes,
/// and servers end their statements sooner.
const ARRIVES_WITHIN: Duration = Duration::from_secs(5 * 60);
/// Where no write tells that the store is back, reads are believed after this long. Disks do not stall for an hour.
const STALLS_AT_MOST: Duration = Duration::from_secs(60 * 60);

/// The list.
pub(super) struct LostClaims {
    list: Mutex<List>,
    /// Wakes the task before its time.
    changed: Notify,
    /// Whether an entry came after the last write that the store is known to have taken. Read by every write.
    awaits_write: AtomicBool,
    limit: usize,
}

#[derive(Default)]
struct List {
    /// By when to look next; the number keeps those of one moment in the order in which they came.
    waiting: BTreeMap<(Instant, u64), LostClaim>,
    /// How many were taken out to be looked for just now.
    looked_for: usize,
    next_number: u64,
    /// When the last entry came, or the store was last away.
    newest: Option<Instant>,
    /// When the last write was sent that the store is known to have taken.
    written: Option<Instant>,
    /// Whether the entries have not heard of that write yet.
    news: bool,
    task: Task,
    /// Whether it was said that the list is full.
    said_full: bool,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Task {
    #[default]
    None,
    Running,
}

/// A claim that may be in the store, or arrive there.
struct LostClaim {
    id: RecordId,
    owner: OwnerToken,
    /// What it would have replaced.
    expected: Option<Version>,
    /// When it was given up, or the store was last away.
    lost_at: Instant,
    /// How long until the next look.
    pause: Duration,
    ends: Ends,
}

/// Until when a claim is looked for.
#[derive(Clone, Copy)]
enum Ends {
    /// The store has answered nothing since it was lost.
    Never,
    /// The store answers reads, and is not known to take writes.
    AfterReads(Instant),
    /// The store has taken a write since.
    AfterWrites(Instant),
}

/// What came of looking for a claim.
enum Found {
    /// It need not be looked for any more.
    Ended,
    /// It may still arrive, or could not be released for a reason of its own.
    NotYet,
    /// The store did not answer.
    Away,
}

impl LostClaims {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        let (list, changed) = (Mutex::default(), Notify::new());
        Arc::new(Self { list, changed, awaits_write: AtomicBool::new(false), limit })
    }

    // A panic while the lock is held cannot leave the list half changed: nothing in this file panics in between.
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store has made a write durable that was sent at this time.
    pub(super) fn wrote(&self, sent: Instant) {
        if !self.awaits_write.load(Ordering::Relaxed) {
            return;
        }
        let mut list = self.list();
        if list.written.is_none_or(|written| written < sent) {
            list.written = Some(sent);
            list.news = true;
        }
        if list.newest.is_none_or(|newest| newest <= sent) {
            self.awaits_write.store(false, Ordering::Relaxed);
        }
        drop(list);
        self.changed.notify_one();
    }

    /// Puts a claim on the list, unless it is full. Tells whether a task must be started for it.
    fn add(&self, id: RecordId, owner: OwnerToken, lost: Lost) -> Result<Task, Full> {
        let mut list = self.list();
        if list.waiting.len() + list.looked_for >= self.limit {
            let said = std::mem::replace(&mut list.said_full, true);
            return Err(if said { Full::Still } else { Full::Now });
        }
        list.said_full = false;
        let now = instant();
        list.newest = Some(now);
        self.awaits_write.store(true, Ordering::Relaxed);
        let expected = lost.expected;
        list.put(LostClaim { id, owner, expected, lost_at: now, pause: LOOK_FIRST, ends: Ends::Never });
        let task = std::mem::replace(&mut list.task, Task::Running);
        drop(list);
        self.changed.notify_one();
        Ok(task)
    }

    /// Takes out what is due, at most so many.
    fn take_due(&self, most: usize) -> Vec<LostClaim> {
        let now = instant();
        let mut list = self.list();
        list.hear_of_writes(now);
        let mut due = Vec::new();
        while due.len() < most
            && let Some(first) = list.waiting.first_entry().filter(|first| first.key().0 <= now)
        {
            due.push(first.remove());
        }
        list.looked_for = due.len();
        due
    }

    /// Puts back what must be looked for again.
    fn put_back(&self, looked_for: Vec<(LostClaim, Found)>) {
        let now = instant();
        let mut list = self.list();
        list.looked_for = 0;
        let away = looked_for.iter().any(|(_, found)| matches!(found, Found::Away));
        for (claim, found) in looked_for {
            let again = match found {
                Found::Ended => None,
                // Where the store is away, no claim's time is over.
                Found::NotYet if away => Some(claim),
                Found::NotYet => claim.again(now),
                Found::Away => Some(LostClaim { pause: Duration::ZERO, ..claim }),
            };
            if let Some(claim) = again {
                list.put(claim);
            }
        }
        if away {
            list.lose_again(now);
            self.awaits_write.store(true, Ordering::Relaxed);
        }
    }

    /// How long until something is due. `None` where nothing is on the list: then the task has ended.
    fn due_in(&self) -> Option<Duration> {
        let mut list = self.list();
        let first = list.waiting.first_key_value().map(|((due, _), _)| *due);
        match first {
            Some(_) if list.news => Some(Duration::ZERO),
            Some(due) => Some(due.saturating_duration_since(instant())),
            None => {
                list.task = Task::None;
                None
            }
        }
    }
}

/// Why a claim is not looked for.
enum Full {
    /// Nobody was told yet that the list is full.
    Now,
    Still,
}

impl List {
    fn put(&mut self, claim: LostClaim) {
        let number = self.next_number;
        self.next_number += 1;
        // After its pause from now, which is when it was last looked for, or lost.
        self.waiting.insert((instant() + claim.pause, number), claim);
    }

    /// The store is away: every claim may arrive as late as if it were lost now.
    fn lose_again(&mut self, now: Instant) {
        self.newest = Some(now);
        for claim in self.waiting.values_mut() {
            (claim.lost_at, claim.ends) = (now, Ends::Never);
        }
    }

    /// Entries that came before a write which the store has taken are due now, and end soon.
    fn hear_of_writes(&mut self, now: Instant) {
        let Some(written) = self.written.filter(|_| std::mem::take(&mut self.news)) else { return };
        let concerned =
            |claim: &LostClaim| claim.lost_at <= written && !matches!(claim.ends, Ends::AfterWrites(_));
        let due: Vec<_> =
            self.waiting.iter().filter(|(_, claim)| concerned(claim)).map(|(key, _)| *key).collect();
        for key in due {
            let Some(claim) = self.waiting.remove(&key) else { continue };
            let ends = Ends::AfterWrites(now + ARRIVES_WITHIN);
            self.waiting.insert((now.min(key.0), key.1), LostClaim { pause: LOOK_FIRST, ends, ..claim });
        }
    }
}

impl LostClaim {
    /// The same for the next look, unless there is none any more.
    fn again(self, now: Instant) -> Option<Self> {
        let ends = match self.ends {
            Ends::Never => Ends::AfterReads(now + STALLS_AT_MOST),
            Ends::AfterReads(end) | Ends::AfterWrites(end) if end <= now => return None,
            ends @ (Ends::AfterReads(_) | Ends::AfterWrites(_)) => ends,
        };
        let pause = (self.pause.max(LOOK_FIRST) * 2).min(LOOK_MAX);
        Some(Self { pause, ends, ..self })
    }

    /// Whether the claim may still replace what stands there, or be written when that is gone. Versions do not come back, but
    /// a place can be free again: where records are kept for minutes only, a claim may be on its way for longer.
    fn can_arrive_after(&self, other: &Stamped, now: Timestamp) -> bool {
        if self.expected.is_some() {
            return self.expected == Some(other.version);
        }
        let arrived = now.after(ARRIVES_WITHIN);
        match &other.record.state {
            State::Completed { expires_at, .. }
            | State::FailedRetryable { expires_at, .. }
            | State::Expired { expires_at, .. } => *expires_at <= arrived,
            State::InProgress { .. } | State::Unknown { .. } => {
                other.record.terms.retention <= ARRIVES_WITHIN
            }
        }
    }

    /// Whether this is the tenure that nobody works under: it may have lapsed by now.
    fn is(&self, record: &Record) -> bool {
        record.owner == self.owner && matches!(record.state, State::InProgress { .. } | State::Unknown { .. })
    }
}

/// Looks for the claims on the list until there is none, or the engine is gone.
async fn look_after(claims: Arc<LostClaims>, inner: Weak<Inner>) {
    let (mut most, mut away) = (LOOKS_AT_ONCE, AWAY_FIRST);
    while let Some(due) = claims.due_in() {
        if due > Duration::ZERO {
            tokio::select! {
                biased;
                () = claims.changed.notified() => {}
                () = sleep(due) => {}
            }
        }
        let Some(inner) = inner.upgrade() else { return };
        let due = claims.take_due(most);
        if due.is_empty() {
            continue;
        }
        let found = join_all(due.iter().map(|claim| inner.look_for_without_panic(claim))).await;
        drop(inner);
        let answered = found.iter().all(|found| !matches!(found, Found::Away));
        claims.put_back(due.into_iter().zip(found).collect());
        if answered {
            (most, away) = (LOOKS_AT_ONCE, AWAY_FIRST);
        } else {
            // One question is enough to learn that it is back.
            most = 1;
            sleep(away).await;
            away = (away * 2).min(AWAY_MAX);
        }
    }
}

impl Inner {
    /// A claim was given up. If its write may have been carried out, or may still be, it is looked for.
    pub(super) fn give_back(self: &Arc<Self>, id: RecordId, owner: OwnerToken, lost: Option<Lost>) {
        let Some(lost) = lost else { return };
        match self.lost_claims.add(id, owner, lost) {
            Ok(Task::Running) => {}
            Ok(Task::None) => {
                tokio::spawn(look_after(self.lost_claims.clone(), Arc::downgrade(self)));
            }
            Err(full) => {
                self.observe("", id, Observation::LostClaimDropped);
                if matches!(full, Full::Now) {
                    tracing::error!(
                        limit = self.limits.lost_claims,
                        next = "find out why the store does not answer, or raise `Limits::lost_claims`",
                        "the list of lost claims is full: those that do not fit and were written are unknown when their leases lapse, although nothing was executed"
                    );
                }
            }
        }
    }

    /// A store that panics must not take the task with it, and the claims that wait for it.
    async fn look_for_without_panic(&self, claim: &LostClaim) -> Found {
        AssertUnwindSafe(self.look_for(claim)).catch_unwind().await.unwrap_or_else(|_| {
            tracing::error!(id = %claim.id, "the store panicked while a lost claim was looked for");
            Found::Away
        })
    }

    async fn look_for(&self, claim: &LostClaim) -> Found {
        let patience = Patience::of_claim(self.store_clock.read(), self.limits.claim_patience);
        let (seen, now) = match self.within(patience, self.store.load(claim.id)).await {
            Ok((seen, sent)) => (seen.record, self.store_clock.saw(seen.now, sent).now),
            Err(error) => return claim.not_read(&error),
        };
        match seen {
            Some(stamped) if claim.is(&stamped.record) => self.release(claim, stamped, patience).await,
            Some(other) if claim.can_arrive_after(&other, now) => Found::NotYet,
            None if claim.expected.is_none() => Found::NotYet,
            // What the claim would have replaced is gone: it can no longer arrive.
            Some(_) | None => Found::Ended,
        }
    }

    /// Settles with the proof that nothing was done. The machine decides what that proves: an earlier tenure that is in
    /// doubt stays in doubt.
    async fn release(&self, claim: &LostClaim, stamped: Stamped, patience: Patience) -> Found {
        let route = stamped.record.subject.route.clone();
        let outcome = Outcome::Retryable("the claim's answer was lost before it had begun".to_owned());
        let event = Event::Settle { fence: stamped.record.fence, outcome };
        let applied = match self.apply(claim.id, Start::Held(stamped.into()), &event, patience).await {
            Ok(applied) => applied,
            Err(failed) => {
                return match failed.error {
                    EngineError::Store(error) => claim.not_read(&error),
                    EngineError::Overloaded { .. }
                    | EngineError::ReplyTooLarge { .. }
                    | EngineError::Stopping
                    | EngineError::Contended { .. } => Found::NotYet,
                };
            }
        };
        if settled(&applied.answer, applied.standing.as_ref()) == Settled::Retryable {
            self.observe(&route, claim.id, Observation::GivenBack);
        }
        Found::Ended
    }
}

impl LostClaim {
    /// What an error of the store says about this claim, or about the store.
    fn not_read(&self, error: &StoreError) -> Found {
        match error {
            StoreError::Unavailable { .. } | StoreError::Overloaded { .. } | StoreError::Ambiguous { .. } => {
                Found::Away
            }
            // It is this claim, damaged, or something else: either way nothing can be settled, and nothing can arrive.
            StoreError::Unreadable { version, .. } if Some(*version) != self.expected => Found::Ended,
            StoreError::Unreadable { .. } | StoreError::Refused { .. } => Found::NotYet,
        }
    }
}
