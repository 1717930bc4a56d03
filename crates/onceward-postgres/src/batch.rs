//! Carries out batches: one statement for all calls, and an answer for each.

use std::collections::HashMap;

use bytes::Bytes;
use onceward::store::StoreError;
use onceward::store::driver::{AnswerSender, RawRecord, RawSeen};
use onceward::{RecordId, Timestamp};
use tokio_postgres::types::ToSql;

use crate::error::{ErrorKind, StatementError};
use crate::job::{Forget, Loaded, Swap, Written};
use crate::queue::{Job, SwapGroup, Work};
use crate::statements::Sql;
use crate::values::{At, Id, column, version};
use crate::worker::Worker;

/// The most attempts of a statement that is aborted by a deadlock, or by a concurrent write under a stricter isolation level
/// than it needs. Each failure means that another transaction made progress, so many in a row mean that something is wrong.
const ATTEMPTS_MAX: u32 = 8;

/// After this many blocked rows the rest of a batch fails at once: the database is blocked then, and not a row.
const STUCK_MAX: u32 = 2;

/// The statement for the swaps.
#[derive(Clone, Copy)]
enum Kind {
    Claim,
    Update,
}

impl Worker {
    pub(crate) async fn carry_out(&mut self, work: Work) {
        match work {
            Work::Claims(batch) => self.swap(Kind::Claim, batch).await,
            Work::Updates(batch) => self.swap(Kind::Update, batch).await,
            Work::Loads(batch) => self.load(batch).await,
            Work::Forget(forget) => self.forget(forget).await,
        }
    }

    async fn swap(&mut self, kind: Kind, mut batch: Vec<SwapGroup>) {
        // Connecting may have taken a while.
        batch.retain_mut(SwapGroup::is_wanted);
        if batch.is_empty() {
            return;
        }
        let answers = self.write(kind, &mut batch).await;
        for (SwapGroup { first, followers }, answer) in batch.into_iter().zip(answers) {
            self.answer_followers(&first, followers, &answer);
            first.answer.send(answer);
        }
    }

    /// Answers the swaps that expected the same version as the first.
    fn answer_followers(&self, first: &Swap, followers: Vec<Swap>, answer: &Result<Written, StoreError>) {
        if followers.is_empty() {
            return;
        }
        self.counters().swaps.add(followers.len());
        for follower in followers {
            let result = match answer {
                Ok(Written::Applied { version, now }) => {
                    let record = RawRecord { version: *version, bytes: first.row.record.clone() };
                    Ok(Written::Conflict(RawSeen { now: *now, record: Some(record) }))
                }
                Ok(Written::Conflict(found)) => Ok(Written::Conflict(found.clone())),
                // The first swap was refused because of its values, which says nothing about the next.
                Err(StoreError::Refused { .. }) => {
                    if let Err(error) = self.queue().push(Job::Swap(follower)) {
                        tracing::debug!(%error, "a swap could not be queued again");
                    }
                    continue;
                }
                // The follower was not written, but the first swap may have been. A caller that continues without a store
                // must not conclude that the key is free.
                Err(error @ StoreError::Ambiguous { .. }) => Err(error.clone()),
                Err(error) => Err(StoreError::Unavailable {
                    reason: format!("another write of the same key was sent, and failed: {error}"),
                }),
            };
            follower.answer.send(result);
        }
    }

    /// Writes all swaps in one statement, or each in its own if one row is refused, locked or damaged.
    async fn write(&mut self, kind: Kind, batch: &mut [SwapGroup]) -> Vec<Result<Written, StoreError>> {
        let mut answers = match self.write_at_once(kind, &firsts(batch)).await {
            Ok(answers) => answers,
            Err(failed)
                if matches!(failed.kind, ErrorKind::BadRow | ErrorKind::RowBlocked) && batch.len() > 1 =>
            {
                self.write_one_by_one(kind, batch, &failed).await
            }
            Err(failed) => vec![Err(failed.of_write()); batch.len()],
        };
        let swaps = firsts(batch);
        // A conflict wrote nothing and waited for no standby, so its record is confirmed like that of a load.
        let shown: Vec<_> = swaps
            .iter()
            .zip(&answers)
            .filter(|(_, answer)| matches!(answer, Ok(Written::Conflict(_))))
            .map(|(swap, _)| Id(swap.id))
            .collect();
        if let Err(failed) = self.confirm(&shown).await {
            for answer in answers.iter_mut().filter(|answer| matches!(answer, Ok(Written::Conflict(_)))) {
                *answer = Err(failed.of_read());
            }
        }
        let lost: Vec<_> = swaps
            .iter()
            .zip(&answers)
            .filter(|(_, answer)| matches!(answer, Err(StoreError::Ambiguous { .. })))
            .map(|(swap, _)| swap.id)
            .collect();
        self.counters().ambiguous.add(lost.len());
        self.context().unconfirmed.add(&lost);
        self.counters().swaps.add(swaps.len());
        answers
    }

    async fn write_one_by_one(
        &mut self,
        kind: Kind,
        batch: &mut [SwapGroup],
        together: &StatementError,
    ) -> Vec<Result<Written, StoreError>> {
        let mut answers = Vec::with_capacity(batch.len());
        let mut stuck = 0;
        for group in batch {
            if stuck == STUCK_MAX {
                answers.push(Err(StatementError::not_done(together.reason.clone()).of_write()));
                continue;
            }
            // The previous statements may have taken seconds.
            if !group.is_wanted() {
                answers.push(Err(StatementError::not_done(ABANDONED).of_write()));
                continue;
            }
            answers.push(match self.write_at_once(kind, &[&group.first]).await {
                Ok(mut answer) => answer.pop().unwrap_or_else(|| Err(unanswered())),
                Err(failed) => {
                    stuck += u32::from(failed.kind == ErrorKind::RowBlocked);
                    Err(failed.of_write())
                }
            });
        }
        answers
    }

    async fn write_at_once(
        &mut self,
        kind: Kind,
        swaps: &[&Swap],
    ) -> Result<Vec<Result<Written, StoreError>>, StatementError> {
        let columns = Columns::of(swaps);
        let now = self.now();
        let context = self.context();
        let parameters = columns.parameters(&now);
        if let Some(note) = &context.statements.note {
            self.send(note, &parameters).await.map_err(|failed| StatementError::not_done(failed.reason))?;
        }
        let sql = match kind {
            Kind::Claim => &context.statements.claim,
            Kind::Update => &context.statements.update,
        };
        context.counters.batches.add(1);
        context.counters.largest_batch.raise_to(swaps.len());
        let rows = self.send(sql, &parameters).await?;
        let mut found = HashMap::with_capacity(rows.len());
        for row in rows {
            let read = || -> Result<(RecordId, Written), tokio_postgres::Error> {
                let (id, now): (Id, At) = (row.try_get(0)?, row.try_get(4)?);
                let version = version(row.try_get(2)?);
                let written = if row.try_get(1)? {
                    Written::Applied { version, now: now.0 }
                } else {
                    let bytes = Bytes::from(row.try_get::<_, Vec<u8>>(3)?);
                    Written::Conflict(RawSeen { now: now.0, record: Some(RawRecord { version, bytes }) })
                };
                Ok((id.0, written))
            };
            // The statement is committed; only its answer is lost.
            let (id, written) = read()
                .map_err(|error| StatementError { kind: ErrorKind::AnswerLost, reason: error.to_string() })?;
            found.insert(id, written);
        }
        Ok(self.complete(swaps, found).await)
    }

    /// Reads the rows that the statement could not see, because they were committed after it began.
    async fn complete(
        &mut self,
        swaps: &[&Swap],
        mut found: HashMap<RecordId, Written>,
    ) -> Vec<Result<Written, StoreError>> {
        let unseen: Vec<_> =
            swaps.iter().filter(|swap| !is_seen(swap, &found)).map(|swap| Id(swap.id)).collect();
        if !unseen.is_empty() {
            self.counters().looked_again.add(unseen.len());
            let (now, stored) = match self.read(&unseen).await {
                Ok(read) => read,
                Err(failed) => {
                    let unread = |swap: &&Swap| unseen.contains(&Id(swap.id));
                    return swaps
                        .iter()
                        .map(|swap| match found.remove(&swap.id) {
                            Some(written) if !unread(swap) => Ok(written),
                            // The swap lost, so it was not written. The winner's record is unknown.
                            Some(_) | None => Err(failed.of_read()),
                        })
                        .collect();
                }
            };
            for id in unseen {
                let record = stored.get(&id.0).cloned();
                found.insert(id.0, Written::Conflict(RawSeen { now, record }));
            }
        }
        swaps
            .iter()
            .map(|swap| match found.remove(&swap.id) {
                Some(Written::Conflict(RawSeen { record: Some(record), .. }))
                    if swap.expect == Some(record.version) =>
                {
                    Err(StoreError::Unavailable {
                        reason: "the database refused a swap and still shows the version that it expected"
                            .to_owned(),
                    })
                }
                Some(written) => Ok(written),
                None => Err(unanswered()),
            })
            .collect()
    }

    /// The stored records of these ids, and the database's time.
    async fn read(
        &mut self,
        ids: &[Id],
    ) -> Result<(Timestamp, HashMap<RecordId, RawRecord<Bytes>>), StatementError> {
        let now = self.now();
        let context = self.context();
        let rows = self.send(&context.statements.load, &[&ids, &now]).await?;
        let unread = |error: tokio_postgres::Error| StatementError::not_done(error.to_string());
        let mut server_time = None;
        let mut stored = HashMap::with_capacity(rows.len());
        for row in rows {
            server_time = Some(row.try_get::<_, At>(3).map_err(unread)?.0);
            if let Some(id) = row.try_get::<_, Option<Id>>(0).map_err(unread)? {
                let bytes = Bytes::from(row.try_get::<_, Vec<u8>>(2).map_err(unread)?);
                stored.insert(id.0, RawRecord { version: version(row.try_get(1).map_err(unread)?), bytes });
            }
        }
        let now =
            server_time.ok_or_else(|| StatementError::not_done("the database did not return its time"))?;
        Ok((now, stored))
    }

    async fn load(&mut self, batch: Vec<(RecordId, Vec<AnswerSender<Loaded>>)>) {
        let ids: Vec<_> = batch.iter().map(|(id, _)| Id(*id)).collect();
        let together = match self.confirm(&ids).await {
            Ok(()) => self.read(&ids).await,
            Err(failed) => Err(failed),
        };
        let split = matches!(&together, Err(failed) if failed.kind == ErrorKind::RowBlocked) && ids.len() > 1;
        let mut stuck = 0;
        for (id, answers) in batch {
            let alone = if split && stuck < STUCK_MAX { Some(self.read(&[Id(id)]).await) } else { None };
            let read = alone.as_ref().unwrap_or(&together);
            stuck += u32::from(matches!(read, Err(failed) if failed.kind == ErrorKind::RowBlocked));
            self.counters().loads.add(answers.len());
            for answer in answers {
                answer.send(match read {
                    Ok((now, stored)) => Ok(RawSeen { now: *now, record: stored.get(&id).cloned() }),
                    Err(failed) => Err(failed.of_read()),
                });
            }
        }
    }

    /// Before an id with an unconfirmed write is read: waits until the standbys have the write, because a row that exists on
    /// the primary alone could be lost with it.
    async fn confirm(&mut self, ids: &[Id]) -> Result<(), StatementError> {
        let context = self.context();
        let (Some(unconfirmed), Some(confirm)) =
            (context.unconfirmed.among(ids), &context.statements.confirm)
        else {
            return Ok(());
        };
        self.send(confirm, &[]).await?;
        context.unconfirmed.remove(&unconfirmed);
        Ok(())
    }

    async fn forget(&mut self, forget: Forget) {
        let mut records = forget.records;
        // In the order of the ids, in which every statement takes its locks.
        records.sort_unstable();
        records.dedup();
        let ids: Vec<_> = records.iter().map(|(id, _)| Id(*id)).collect();
        let versions: Vec<_> = records.iter().map(|(_, version)| column(*version)).collect();
        let context = self.context();
        let forgotten = self.send(&context.statements.forget, &[&ids, &versions]).await;
        if matches!(&forgotten, Err(failed) if failed.kind == ErrorKind::AnswerLost) {
            self.counters().ambiguous.add(1);
        }
        forget.answer.send(forgotten.map(|rows| rows.len()).map_err(|failed| failed.of_write()));
    }

    /// Sends a statement, and repeats it if the server reports that it wrote nothing and may be repeated.
    pub(crate) async fn send(
        &mut self,
        sql: &Sql,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<tokio_postgres::Row>, StatementError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let connection = self.connection().await?;
            match connection.ask(sql, parameters).await {
                Err(failed)
                    if matches!(failed.kind, ErrorKind::Retry | ErrorKind::Unprepared)
                        && attempts < ATTEMPTS_MAX =>
                {
                    self.counters().retries.add(1);
                }
                done => return done,
            }
        }
    }
}

/// Whether the statement's answer is final for a swap. A conflict with the expected version shows the row as it was when the
/// statement began.
fn is_seen(swap: &Swap, found: &HashMap<RecordId, Written>) -> bool {
    match found.get(&swap.id) {
        None => false,
        Some(Written::Applied { .. }) => true,
        Some(Written::Conflict(found)) => {
            found.record.as_ref().is_some_and(|record| swap.expect != Some(record.version))
        }
    }
}

/// The error of a swap that was abandoned before it was sent; no caller receives it.
const ABANDONED: &str = "its caller gave up before it was sent";

fn firsts(batch: &[SwapGroup]) -> Vec<&Swap> {
    batch.iter().map(|group| &group.first).collect()
}

fn unanswered() -> StoreError {
    StoreError::Ambiguous { reason: "the database gave no answer for this row".to_owned() }
}

/// The rows as arrays, one for each column.
struct Columns<'a> {
    ids: Vec<Id>,
    expected: Vec<Option<i64>>,
    texts: [Vec<Option<&'a str>>; 6],
    statuses: Vec<Option<i32>>,
    attempts: Vec<i32>,
    fences: Vec<i64>,
    times: [Vec<Option<At>>; 6],
    records: Vec<&'a [u8]>,
}

impl<'a> Columns<'a> {
    fn of(swaps: &[&'a Swap]) -> Self {
        let text = |of: fn(&Swap) -> Option<&str>| swaps.iter().map(|swap| of(swap)).collect::<Vec<_>>();
        let time = |of: fn(&Swap) -> Option<At>| swaps.iter().map(|swap| of(swap)).collect::<Vec<_>>();
        Self {
            ids: swaps.iter().map(|swap| Id(swap.id)).collect(),
            expected: swaps.iter().map(|swap| swap.expect.map(column)).collect(),
            texts: [
                text(|swap| Some(swap.row.state.name())),
                text(|swap| Some(&swap.row.scope)),
                text(|swap| Some(&swap.row.key)),
                text(|swap| Some(&swap.row.route)),
                text(|swap| swap.row.recovery_point.as_deref()),
                text(|swap| swap.row.last_error.as_deref()),
            ],
            statuses: swaps.iter().map(|swap| swap.row.status).collect(),
            attempts: swaps.iter().map(|swap| swap.row.attempt).collect(),
            fences: swaps.iter().map(|swap| swap.row.fence).collect(),
            times: [
                time(|swap| Some(swap.row.created_at)),
                time(|swap| swap.row.lease_until),
                time(|swap| swap.row.unknown_since),
                time(|swap| swap.row.reconcile_at),
                time(|swap| swap.row.settled_at),
                time(|swap| swap.row.expires_at),
            ],
            records: swaps.iter().map(|swap| swap.row.record.as_ref()).collect(),
        }
    }

    /// In the order of the statement's parameters.
    fn parameters<'b>(&'b self, now: &'b Option<At>) -> [&'b (dyn ToSql + Sync); 19] {
        let [state, scope, key, route, recovery_point, last_error] = &self.texts;
        let [created_at, lease_until, unknown_since, reconcile_at, settled_at, expires_at] = &self.times;
        [
            &self.ids,
            &self.expected,
            state,
            scope,
            key,
            route,
            recovery_point,
            &self.statuses,
            &self.attempts,
            &self.fences,
            created_at,
            lease_until,
            unknown_since,
            reconcile_at,
            settled_at,
            expires_at,
            last_error,
            &self.records,
            now,
        ]
    }
}
