//! The store: its four methods, and the scripts behind them.

use std::sync::Arc;

use futures_util::future::join_all;
use onceward::store::driver::partly_forgotten;
use onceward::store::{Finding, Health, Page, Scan, Seen, Store, StoreError, StoreFuture, Swapped, Version};
use onceward::{Record, RecordId, Timestamp, codec, store::Clock};
use redis::Value;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::connection::Connection;
use crate::error::{Failure, OpenError};
use crate::examine;
use crate::keys::{Keys, List, bucket};
use crate::loss_detector::{Loss, LossDetector};
use crate::options::Options;
use crate::reply::{Reply, ReplyKind, digits, record};
use crate::script::{FORGET, LOAD, SWAP, Script};
use crate::statistics::{Counters, Statistics};
use crate::url::RedisUrl;
use crate::{marker, monitor};

/// Concurrent deletions of a forget; claims are served between them.
const FORGET_AT_ONCE: usize = 64;
/// The highest score that Lua represents exactly. Records that never come due have it, and are last in their list.
pub(crate) const SCORE_MAX: u64 = 1 << 53;

/// A store in Redis. Clones share it.
///
/// Must be created within a tokio runtime with time and network: a task there maintains the connection and checks the
/// markers. It ends when the last clone is dropped.
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<StoreInner>,
}

pub(crate) struct StoreInner {
    pub connection: Connection,
    pub keys: Keys,
    pub loss_detector: LossDetector,
    pub counters: Counters,
    /// Wakes the monitor.
    pub wake_monitor: Arc<Notify>,
    pub server: String,
    clock: Option<Arc<dyn Clock>>,
    permits: Semaphore,
    in_flight: usize,
}

/// The answer of a script.
pub(crate) struct ScriptAnswer {
    pub kind: ReplyKind,
    pub now: Timestamp,
    pub last: u64,
    pub rest: Value,
}

/// Why a script has no answer.
pub(crate) enum ScriptError {
    Failed(Failure),
    /// The bucket's marker is not the known one. Nothing was written.
    Lost,
}

impl RedisStore {
    /// Connects, checks the server's settings, and reads or creates the markers.
    ///
    /// Refuses a Redis that may evict records, a replica, a cluster whose URL lacks `cluster=true`, and a store that has
    /// lost records.
    pub async fn connect(url: &RedisUrl, options: Options) -> Result<Self, OpenError> {
        options.check()?;
        let server = url.to_string();
        let unavailable =
            |failure: Failure| OpenError::Unavailable { server: server.clone(), reason: failure.reason() };
        let connection = Connection::connect(url, &options).await.map_err(unavailable)?;
        for Finding { health, subject: setting, text } in
            examine::look(&connection, url).await.map_err(unavailable)?
        {
            match health {
                Health::Good => {}
                Health::Warning => tracing::warn!(%server, setting, "{text}"),
                Health::Problem => return Err(examine::refusal(&server, setting, text)),
            }
        }
        let keys = Keys::new(url.prefix());
        let (generation, markers) = marker::open(&connection, &keys, options.first_use, &server).await?;
        let inner = Arc::new(StoreInner {
            connection,
            keys,
            loss_detector: LossDetector::new(&generation, &markers),
            counters: Counters::default(),
            wake_monitor: Arc::default(),
            server,
            clock: options.clock,
            permits: Semaphore::new(options.in_flight),
            in_flight: options.in_flight,
        });
        tokio::spawn(monitor::run(Arc::downgrade(&inner)));
        Ok(Self { inner })
    }

    /// Accepts the loss of records: their keys name new operations from now on, and retries of them execute again. Running
    /// gateways continue by themselves within a second.
    pub async fn accept_loss(url: &RedisUrl) -> Result<(), OpenError> {
        let server = url.to_string();
        let connection = Connection::connect(url, &Options::default())
            .await
            .map_err(|failure| OpenError::Unavailable { server: server.clone(), reason: failure.reason() })?;
        marker::accept(&connection, &Keys::new(url.prefix()), &server).await
    }

    /// What the store has done since it was opened, for metrics.
    pub fn statistics(&self) -> Statistics {
        self.inner.counters.read()
    }

    /// The known loss of records, with what to do: for readiness.
    pub fn loss(&self) -> Option<String> {
        self.inner.loss_detector.generation().err()
    }
}

impl StoreInner {
    /// Runs a script on one bucket. The known generation and version precede the arguments.
    pub(crate) async fn ask(
        &self,
        script: &Script,
        bucket: u8,
        keys: &[String],
        arguments: &[&[u8]],
    ) -> Result<ScriptAnswer, ScriptError> {
        let Ok(generation) = self.loss_detector.generation() else { return Err(ScriptError::Lost) };
        let seen = self.loss_detector.last_seen(bucket).to_string();
        let all: Vec<&[u8]> =
            [generation.as_bytes(), seen.as_bytes()].into_iter().chain(arguments.iter().copied()).collect();
        let answer = self.connection.run(script, keys, &all).await.and_then(Reply::read);
        match answer {
            Ok(Reply::Answer { kind, now, last, rest }) => {
                self.loss_detector.observe(bucket, last);
                let now = self.clock.as_ref().map_or(now, |clock| clock.now());
                Ok(ScriptAnswer { kind, now, last, rest })
            }
            Ok(Reply::Lost { generation: found }) => {
                self.marker_mismatch(&generation, &found);
                Err(ScriptError::Lost)
            }
            Err(failure) => {
                // The connection may be lost: the monitor makes another.
                if matches!(failure, Failure::Lost(_) | Failure::Demoted(_)) {
                    self.wake_monitor.notify_one();
                }
                Err(ScriptError::Failed(failure))
            }
        }
    }

    fn marker_mismatch(&self, known: &str, found: &str) {
        if found == known {
            self.report_loss(
                "a bucket's version is lower than one that was seen: writes were rolled back",
                Loss::Writes,
            );
        } else if *self.loss_detector.known_generation() == *known {
            self.report_loss("a bucket's marker is missing or belongs to another generation", Loss::Marker);
        }
        self.wake_monitor.notify_one();
    }

    fn permit(&self) -> Result<SemaphorePermit<'_>, StoreError> {
        self.counters.calls.add(1);
        self.permits.try_acquire().map_err(|_| StoreError::Overloaded { waiting: self.in_flight })
    }

    /// The time of the test's clock, if there is one: scans use it.
    pub(crate) fn clock(&self) -> Option<Timestamp> {
        self.clock.as_ref().map(|clock| clock.now())
    }

    pub(crate) fn unavailable(&self) -> StoreError {
        let reason = match self.loss_detector.generation() {
            Err(reason) => reason,
            Ok(_) => "Redis did not have the expected marker, and is being checked".to_owned(),
        };
        StoreError::Unavailable { reason }
    }

    pub(crate) fn of_read(&self, error: ScriptError) -> StoreError {
        match error {
            ScriptError::Failed(failure) => failure.of_read(),
            ScriptError::Lost => self.unavailable(),
        }
    }

    fn of_write(&self, error: ScriptError) -> StoreError {
        match error {
            ScriptError::Failed(failure) => failure.of_write(),
            ScriptError::Lost => self.unavailable(),
        }
    }

    async fn load(&self, id: RecordId) -> Result<Seen, StoreError> {
        let _permit = self.permit()?;
        let bucket = bucket(id);
        let keys = [self.keys.record(id), self.keys.marker(bucket)];
        let answer = self.ask(&LOAD, bucket, &keys, &[]).await.map_err(|error| self.of_read(error))?;
        Ok(Seen { now: answer.now, record: record(id, answer.rest)? })
    }

    async fn swap(&self, id: RecordId, expect: Option<Version>, next: Record) -> Result<Swapped, StoreError> {
        let _permit = self.permit()?;
        let bytes =
            codec::encode(id, &next).map_err(|error| StoreError::Refused { reason: error.to_string() })?;
        let (due, at) = next.due();
        drop(next);
        let expect = expect.map(digits).unwrap_or_default();
        let score = at.as_micros().min(SCORE_MAX).to_string();
        let arguments: [&[u8]; 5] =
            [expect.as_bytes(), List::of(due).letter().as_bytes(), score.as_bytes(), id.as_bytes(), &bytes];
        let answer = self.ask(&SWAP, bucket(id), &self.keys.of_write(id), &arguments).await;
        let ScriptAnswer { kind, now, last, rest } = answer.map_err(|error| self.of_write(error))?;
        match kind {
            ReplyKind::Applied => Ok(Swapped::Applied { version: Version::from_number(last), now }),
            ReplyKind::Conflict => Ok(Swapped::Conflict(Seen { now, record: record(id, rest)? })),
            ReplyKind::Found | ReplyKind::Forgotten | ReplyKind::Listed => {
                Err(Failure::Malformed("an answer to something else").of_write())
            }
        }
    }

    async fn forget_one(&self, id: RecordId, version: Version) -> Result<usize, StoreError> {
        let version = digits(version);
        let arguments: [&[u8]; 2] = [version.as_bytes(), id.as_bytes()];
        let answer = self.ask(&FORGET, bucket(id), &self.keys.of_write(id), &arguments).await;
        Ok(usize::from(answer.map_err(|error| self.of_write(error))?.rest == Value::Int(1)))
    }

    async fn forget(&self, records: Vec<(RecordId, Version)>) -> Result<usize, StoreError> {
        let _permit = self.permit()?;
        let mut forgotten = 0;
        for some in records.chunks(FORGET_AT_ONCE) {
            let answers = join_all(some.iter().map(|(id, version)| self.forget_one(*id, *version))).await;
            let mut failed = None;
            for answer in answers {
                match answer {
                    Ok(count) => forgotten += count,
                    Err(error) => failed = Some(error),
                }
            }
            if let Some(error) = failed {
                return Err(partly_forgotten(forgotten, error));
            }
        }
        Ok(forgotten)
    }

    async fn counted<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let answer = call.await;
        if answer.is_err() {
            self.counters.failures.add(1);
        }
        answer
    }

    async fn scan(&self, scan: Scan) -> Result<Page, StoreError> {
        let _permit = self.permit()?;
        self.page(&scan).await
    }
}

impl Store for RedisStore {
    fn load(&self, id: RecordId) -> StoreFuture<'_, Seen> {
        Box::pin(self.inner.counted(self.inner.load(id)))
    }

    fn swap(&self, id: RecordId, expect: Option<Version>, next: Record) -> StoreFuture<'_, Swapped> {
        Box::pin(self.inner.counted(self.inner.swap(id, expect, next)))
    }

    fn scan(&self, scan: Scan) -> StoreFuture<'_, Page> {
        Box::pin(self.inner.counted(self.inner.scan(scan)))
    }

    fn forget(&self, records: Vec<(RecordId, Version)>) -> StoreFuture<'_, usize> {
        Box::pin(self.inner.counted(self.inner.forget(records)))
    }
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStore").field("server", &self.inner.server).finish_non_exhaustive()
    }
}
