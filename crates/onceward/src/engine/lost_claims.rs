//! Claims whose answer was lost: one list, and one task that searches for them in the store.
//!
//! A claim that was given up may be in the store, or arrive there late: a stalled disk syncs its batch, a database commits a
//! transaction. Nothing is executed under such a claim. But its lease would lapse, and the outcome would be unknown although
//! nothing was done. So the claim is looked up by its owner token, and released when it is found, whether it is in progress or
//! has lapsed.
//!
//! An entry leaves the list
//!
//! 1. when its claim was found and released,
//! 2. when another record is in its place for good, so that the claim can no longer arrive, or
//! 3. at a deadline.
//!
//! The deadline counts from when the store is known to take writes again. A read does not show that, because a disk that does
//! not sync still answers reads. A durable write that was sent after the claim was given up does. It also makes every entry
//! due at once, because stalled writes have arrived by then or soon will. If the store fails again, the deadline is void:
//! writes that are on their way may be delayed for as long as it is away.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use tokio::sync::Notify;

use super::apply::{LostWrite, Patience, Start};
use super::observe::Observation;
use super::operate::{Settled, settled};
use super::{EngineError, Inner};
use crate::event::Event;
use crate::outcome::Outcome;
use crate::record::{Record, State};
use crate::store::{Stamped, StoreError, Version};
use crate::time::{Instant, instant, sleep};
use crate::{RecordId, Timestamp, entropy::OwnerToken};

/// The first search. It is early, because most answers are lost with a connection, and the next one shows what was written.
const SEARCH_FIRST: Duration = Duration::from_millis(250);
/// The longest pause between searches: a claim that arrives later is found within a minute.
const SEARCH_MAX: Duration = Duration::from_secs(60);
/// The number of concurrent searches. Ten thousand then take some seconds, and do not delay ordinary claims.
const CONCURRENT_SEARCHES: usize = 64;
/// The pause after a search that the store did not answer,
const AWAY_FIRST: Duration = Duration::from_millis(250);
/// and the longest one, so that claims are released seconds after the store is back.
const AWAY_MAX: Duration = Duration::from_secs(5);
/// A write that is on its way when the store takes writes again arrives within this time, or never: TCP sends again for
/// minutes, and servers end their statements sooner.
const ARRIVES_WITHIN: Duration = Duration::from_secs(5 * 60);
/// If no write shows that the store is back, answered reads count as proof after this time. Disks do not stall for an hour.
const STALL_MAX: Duration = Duration::from_secs(60 * 60);

/// The list of lost claims.
pub(super) struct LostClaims {
    list: Mutex<List>,
    /// Wakes the task before the next entry is due.
    changed: Notify,
    /// Whether a durable write would be news: an entry came after the last one that is known. Read by every write.
    awaits_write: AtomicBool,
    limit: usize,
}

#[derive(Default)]
struct List {
    /// By the time of the next search, and a number that keeps entries of one moment in order.
    waiting: BTreeMap<(Instant, u64), LostClaim>,
    /// How many were taken out and are searched now.
    in_search: usize,
    next_number: u64,
    /// When the last entry came, or the store last failed.
    newest: Option<Instant>,
    /// When the last durable write was sent.
    written: Option<Instant>,
    /// Whether that write has not been applied to the entries yet.
    is_write_new: bool,
    task: Task,
    /// Whether it was logged that the list is full.
    logged_full: bool,
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
    /// When it was given up, or the store last failed.
    lost_at: Instant,
    /// The pause until the next search.
    pause: Duration,
    ends: Ends,
}

/// Until when a claim is searched.
#[derive(Clone, Copy)]
enum Ends {
    /// The store has not answered since.
    Never,
    /// The store has answered reads since.
    AfterReads(Instant),
    /// The store has made a write durable since.
    AfterWrites(Instant),
}

/// The result of one search.
enum SearchResult {
    /// The claim was released, or can no longer arrive.
    Ended,
    /// It may still arrive, or could not be released.
    NotYet,
    /// The store did not answer.
    Away,
}

impl LostClaims {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        let (list, changed) = (Mutex::default(), Notify::new());
        Arc::new(Self { list, changed, awaits_write: AtomicBool::new(false), limit })
    }

    // A panic while the lock is held cannot leave the list half changed, because no code in between panics.
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in that a write which was sent at this time is durable.
    pub(super) fn wrote(&self, sent: Instant) {
        if !self.awaits_write.load(Ordering::Relaxed) {
            return;
        }
        let mut list = self.list();
        if list.written.is_none_or(|written| written < sent) {
            list.written = Some(sent);
            list.is_write_new = true;
        }
        if list.newest.is_none_or(|newest| newest <= sent) {
            self.awaits_write.store(false, Ordering::Relaxed);
        }
        drop(list);
        self.changed.notify_one();
    }

    /// Adds a claim, unless the list is full. Returns whether the task was running; if not, the caller starts it.
    fn add(&self, id: RecordId, owner: OwnerToken, lost: LostWrite) -> Result<Task, Full> {
        let mut list = self.list();
        if list.waiting.len() + list.in_search >= self.limit {
            let logged = std::mem::replace(&mut list.logged_full, true);
            return Err(if logged { Full::Logged } else { Full::NotLogged });
        }
        list.logged_full = false;
        let now = instant();
        list.newest = Some(now);
        self.awaits_write.store(true, Ordering::Relaxed);
        let expected = lost.expected;
        list.put(LostClaim { id, owner, expected, lost_at: now, pause: SEARCH_FIRST, ends: Ends::Never });
        let task = std::mem::replace(&mut list.task, Task::Running);
        drop(list);
        self.changed.notify_one();
        Ok(task)
    }

    /// Takes out the entries that are due, up to a number.
    fn take_due(&self, most: usize) -> Vec<LostClaim> {
        let now = instant();
        let mut list = self.list();
        list.apply_write(now);
        let mut due = Vec::new();
        while due.len() < most
            && let Some(first) = list.waiting.first_entry().filter(|first| first.key().0 <= now)
        {
            due.push(first.remove());
        }
        list.in_search = due.len();
        due
    }

    /// Puts back the claims that must be searched again.
    fn put_back(&self, searched: Vec<(LostClaim, SearchResult)>) {
        let now = instant();
        let mut list = self.list();
        list.in_search = 0;
        let away = searched.iter().any(|(_, found)| matches!(found, SearchResult::Away));
        for (claim, found) in searched {
            let again = match found {
                SearchResult::Ended => None,
                // No deadline passes while the store is away.
                SearchResult::NotYet if away => Some(claim),
                SearchResult::NotYet => claim.again(now),
                SearchResult::Away => Some(LostClaim { pause: Duration::ZERO, ..claim }),
            };
            if let Some(claim) = again {
                list.put(claim);
            }
        }
        if away {
            list.restart_deadlines(now);
            self.awaits_write.store(true, Ordering::Relaxed);
        }
    }

    /// The time until the next entry is due. `None` where the list is empty; the task counts as ended then.
    fn due_in(&self) -> Option<Duration> {
        let mut list = self.list();
        let first = list.waiting.first_key_value().map(|((due, _), _)| *due);
        match first {
            Some(_) if list.is_write_new => Some(Duration::ZERO),
            Some(due) => Some(due.saturating_duration_since(instant())),
            None => {
                list.task = Task::None;
                None
            }
        }
    }
}

/// Why a claim is not added.
enum Full {
    /// The list is full, and that has not been logged yet.
    NotLogged,
    Logged,
}

impl List {
    fn put(&mut self, claim: LostClaim) {
        let number = self.next_number;
        self.next_number += 1;
        // Now is when it was last searched, or lost.
        self.waiting.insert((instant() + claim.pause, number), claim);
    }

    /// The store failed: every claim may arrive as late as if it were lost now.
    fn restart_deadlines(&mut self, now: Instant) {
        self.newest = Some(now);
        for claim in self.waiting.values_mut() {
            (claim.lost_at, claim.ends) = (now, Ends::Never);
        }
    }

    /// Makes entries that came before the last durable write due, and gives them their final deadline.
    fn apply_write(&mut self, now: Instant) {
        let Some(written) = self.written.filter(|_| std::mem::take(&mut self.is_write_new)) else { return };
        let concerned =
            |claim: &LostClaim| claim.lost_at <= written && !matches!(claim.ends, Ends::AfterWrites(_));
        let due: Vec<_> =
            self.waiting.iter().filter(|(_, claim)| concerned(claim)).map(|(key, _)| *key).collect();
        for key in due {
            let Some(claim) = self.waiting.remove(&key) else { continue };
            let ends = Ends::AfterWrites(now + ARRIVES_WITHIN);
            self.waiting.insert((now.min(key.0), key.1), LostClaim { pause: SEARCH_FIRST, ends, ..claim });
        }
    }
}

impl LostClaim {
    /// The entry for the next search, unless the deadline has passed.
    fn again(self, now: Instant) -> Option<Self> {
        let ends = match self.ends {
            Ends::Never => Ends::AfterReads(now + STALL_MAX),
            Ends::AfterReads(end) | Ends::AfterWrites(end) if end <= now => return None,
            ends @ (Ends::AfterReads(_) | Ends::AfterWrites(_)) => ends,
        };
        let pause = (self.pause.max(SEARCH_FIRST) * 2).min(SEARCH_MAX);
        Some(Self { pause, ends, ..self })
    }

    /// Whether the claim may still replace this record, or be written when the record is gone. Versions do not come back. But
    /// a record that is kept for minutes only may be swept before the claim arrives.
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

    /// Whether this is the claim's tenure, which may have lapsed by now.
    fn is_tenure(&self, record: &Record) -> bool {
        record.owner == self.owner && matches!(record.state, State::InProgress { .. } | State::Unknown { .. })
    }
}

/// Searches for the claims on the list until it is empty, or the engine is dropped.
async fn search_until_empty(claims: Arc<LostClaims>, inner: Weak<Inner>) {
    let (mut most, mut away) = (CONCURRENT_SEARCHES, AWAY_FIRST);
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
        let found = join_all(due.iter().map(|claim| inner.search_without_panic(claim))).await;
        drop(inner);
        let answered = found.iter().all(|found| !matches!(found, SearchResult::Away));
        claims.put_back(due.into_iter().zip(found).collect());
        if answered {
            (most, away) = (CONCURRENT_SEARCHES, AWAY_FIRST);
        } else {
            // One search is enough to learn that the store is back.
            most = 1;
            sleep(away).await;
            away = (away * 2).min(AWAY_MAX);
        }
    }
}

impl Inner {
    /// Gives up a claim. If it may be in the store, or arrive there, it is searched and released.
    pub(super) fn give_back(self: &Arc<Self>, id: RecordId, owner: OwnerToken, lost: Option<LostWrite>) {
        let Some(lost) = lost else { return };
        match self.lost_claims.add(id, owner, lost) {
            Ok(Task::Running) => {}
            Ok(Task::None) => {
                tokio::spawn(search_until_empty(self.lost_claims.clone(), Arc::downgrade(self)));
            }
            Err(full) => {
                self.observe("", id, Observation::LostClaimDropped);
                if matches!(full, Full::NotLogged) {
                    tracing::error!(
                        limit = self.limits.lost_claims,
                        next = "find out why the store does not answer, or raise `Limits::lost_claims`",
                        "the list of lost claims is full: those that do not fit and were written are unknown when their leases lapse, although nothing was executed"
                    );
                }
            }
        }
    }

    /// A panic of the store must not end the task, because other claims wait for it.
    async fn search_without_panic(&self, claim: &LostClaim) -> SearchResult {
        AssertUnwindSafe(self.search(claim)).catch_unwind().await.unwrap_or_else(|_| {
            tracing::error!(id = %claim.id, "the store panicked while a lost claim was looked for");
            SearchResult::Away
        })
    }

    async fn search(&self, claim: &LostClaim) -> SearchResult {
        let patience = Patience::of_claim(self.store_clock.read(), self.limits.claim_patience);
        let (seen, now) = match self.call_within(patience, self.store.load(claim.id)).await {
            Ok((seen, sent)) => (seen.record, self.store_clock.saw(seen.now, sent).now),
            Err(error) => return claim.on_error(&error),
        };
        match seen {
            Some(stamped) if claim.is_tenure(&stamped.record) => self.release(claim, stamped, patience).await,
            Some(other) if claim.can_arrive_after(&other, now) => SearchResult::NotYet,
            None if claim.expected.is_none() => SearchResult::NotYet,
            // The version that the claim would have replaced is gone, so it can no longer arrive.
            Some(_) | None => SearchResult::Ended,
        }
    }

    /// Settles the claim as not executed. The machine decides what that proves: doubt about an earlier tenure remains.
    async fn release(&self, claim: &LostClaim, stamped: Stamped, patience: Patience) -> SearchResult {
        let route = stamped.record.subject.route.clone();
        let outcome = Outcome::Retryable("the claim's answer was lost before it had begun".to_owned());
        let event = Event::Settle { fence: stamped.record.fence, outcome };
        let applied = match self.apply(claim.id, Start::LastWritten(stamped.into()), &event, patience).await {
            Ok(applied) => applied,
            Err(failed) => {
                return match failed.error {
                    EngineError::Store(error) => claim.on_error(&error),
                    EngineError::Overloaded { .. }
                    | EngineError::ReplyTooLarge { .. }
                    | EngineError::NotVoided { .. }
                    | EngineError::PhaseInReceipt
                    | EngineError::Stopping
                    | EngineError::Contended { .. } => SearchResult::NotYet,
                };
            }
        };
        if settled(&applied.answer, applied.stored.as_ref()) == Settled::Retryable {
            self.observe(&route, claim.id, Observation::GivenBack);
        }
        SearchResult::Ended
    }
}

impl LostClaim {
    /// The result where the store answered with an error.
    fn on_error(&self, error: &StoreError) -> SearchResult {
        match error {
            StoreError::Unavailable { .. } | StoreError::Overloaded { .. } | StoreError::Ambiguous { .. } => {
                SearchResult::Away
            }
            // It is the claim itself, damaged, or another record. Either way it cannot be settled, and the claim cannot arrive.
            StoreError::Unreadable { version, .. } if Some(*version) != self.expected => SearchResult::Ended,
            StoreError::Unreadable { .. } | StoreError::Refused { .. } => SearchResult::NotYet,
        }
    }
}
