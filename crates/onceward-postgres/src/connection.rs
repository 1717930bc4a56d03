//! A connection: how it is made, how a statement is sent, and when it is given up.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use onceward::plumbing::time::sleep;
use tokio::task::JoinHandle;
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Row, SimpleQueryMessage, SimpleQueryRow, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::{self, ConnectionState, ErrorKind, StatementError};
use crate::statements::{SLOTS, Sql};
use crate::statistics::Counters;
use crate::url::Prepared;
use crate::{Options, PostgresUrl};

/// The parameters of a statement.
pub(crate) type Parameters<'a> = [&'a (dyn ToSql + Sync)];

/// A lock may be waited for this fraction of the statement's time, which leaves time to carry on without the row.
const LOCK_TIMEOUT_DIVISOR: u128 = 5;

/// Makes connections.
pub(crate) struct Dialer {
    config: Config,
    tls: MakeRustlsConnect,
    prepared: Prepared,
    answer_timeout: Duration,
    /// The limits that the server gets as startup options. A pooler may refuse them; they are then left out.
    limits: String,
    limits_refused: AtomicBool,
    counters: Arc<Counters>,
}

impl Dialer {
    pub(crate) fn new(
        url: &PostgresUrl,
        tls: MakeRustlsConnect,
        options: &Options,
        counters: Arc<Counters>,
    ) -> Self {
        let timeout = options.statement_timeout.as_millis();
        // A wait for a lock delays the whole batch, most of which does not need that lock. Never 0, which would mean no
        // limit.
        let lock_timeout = (timeout / LOCK_TIMEOUT_DIVISOR).max(1);
        Self {
            config: url.config.clone(),
            tls,
            prepared: url.prepared,
            answer_timeout: options.answer_timeout,
            limits: format!("-c statement_timeout={timeout} -c lock_timeout={lock_timeout}"),
            // An old pooler refuses startup options, and `prepared=off` tells that there is one.
            limits_refused: AtomicBool::new(url.prepared == Prepared::Off),
            counters,
        }
    }

    /// For statements that bring their own limits.
    pub(crate) fn without_limits(
        url: &PostgresUrl,
        tls: MakeRustlsConnect,
        answer_timeout: Duration,
    ) -> Self {
        Self {
            config: url.config.clone(),
            tls,
            prepared: Prepared::Off,
            answer_timeout,
            limits: String::new(),
            limits_refused: AtomicBool::new(true),
            counters: Arc::default(),
        }
    }

    pub(crate) async fn connect(&self) -> Result<Connection, StatementError> {
        if !self.limits_refused.load(Ordering::Relaxed) {
            let mut config = self.config.clone();
            config.options(&self.limits);
            match self.connect_with(&config).await {
                Err(DialError::LimitsRefused) => {
                    tracing::warn!(
                        next = "set it on the role, as docs/postgres.md says",
                        "the server or a pooler refuses statement_timeout as a startup option: a statement that hangs is not cancelled"
                    );
                    self.limits_refused.store(true, Ordering::Relaxed);
                }
                done => return done.map_err(DialError::failed),
            }
        }
        self.connect_with(&self.config).await.map_err(DialError::failed)
    }

    async fn connect_with(&self, config: &Config) -> Result<Connection, DialError> {
        // The library limits how long an address may take to accept, but not how long the server may then be silent.
        let limit =
            config.get_connect_timeout().copied().unwrap_or(self.answer_timeout).max(self.answer_timeout);
        let connected = tokio::select! {
            biased;
            connected = config.connect(self.tls.clone()) => connected,
            () = sleep(limit) => {
                return Err(DialError::Failed(format!("the server did not answer within {limit:?}")));
            }
        };
        let (client, mut connection) = connected.map_err(|error| match error.as_db_error() {
            Some(db_error)
                if *db_error.code() == SqlState::PROTOCOL_VIOLATION
                    && db_error.message().contains("startup parameter") =>
            {
                DialError::LimitsRefused
            }
            _ => DialError::Failed(error::words(&error)),
        })?;
        self.counters.connections.add(1);
        let warned = Arc::new(AtomicBool::new(false));
        let warning = warned.clone();
        let driver = tokio::spawn(async move {
            while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
                match message {
                    Ok(AsyncMessage::Notice(notice)) => {
                        // The store's statements cause only one warning: that a commit no longer waits for its synchronous
                        // standby. Its text depends on the server's language, so any warning counts.
                        if matches!(notice.parsed_severity(), Some(Severity::Warning)) {
                            warning.store(true, Ordering::Release);
                        }
                    }
                    Ok(_) => {}
                    // Pending queries get the error from the client.
                    Err(error) => {
                        tracing::debug!(reason = error::words(&error), "a connection to the database ended");
                        return;
                    }
                }
            }
        });
        Ok(Connection {
            client: Arc::new(client),
            driver,
            warned,
            prepared: self.prepared,
            statements: (0..SLOTS).map(|_| None).collect(),
            answer_timeout: self.answer_timeout,
            state: ConnectionState::Usable,
            counters: self.counters.clone(),
        })
    }
}

enum DialError {
    /// The server or a pooler refuses the startup options.
    LimitsRefused,
    Failed(String),
}

impl DialError {
    fn failed(self) -> StatementError {
        match self {
            Self::LimitsRefused => {
                StatementError::not_done("the server refuses the settings of the connection")
            }
            Self::Failed(reason) => {
                StatementError::not_done(format!("no connection to the database: {reason}"))
            }
        }
    }
}

/// Why a batch failed.
pub(crate) enum BatchError {
    /// The server refused it, or the connection was lost.
    Server(tokio_postgres::Error),
    /// The server gave a warning with the commit.
    Warned,
    /// There was no answer in time.
    Silent,
}

/// A connection.
pub(crate) struct Connection {
    client: Arc<Client>,
    driver: JoinHandle<()>,
    warned: Arc<AtomicBool>,
    prepared: Prepared,
    statements: Vec<Option<Statement>>,
    answer_timeout: Duration,
    state: ConnectionState,
    counters: Arc<Counters>,
}

impl Connection {
    pub(crate) fn is_usable(&self) -> bool {
        self.state == ConnectionState::Usable && !self.client.is_closed()
    }

    /// Sends a statement as its own transaction, and waits until it is committed.
    pub(crate) async fn ask(
        &mut self,
        sql: &Sql,
        parameters: &Parameters<'_>,
    ) -> Result<Vec<Row>, StatementError> {
        if !self.is_usable() {
            return Err(StatementError::not_done(
                "the connection to the database was lost before anything was sent",
            ));
        }
        let statement = match self.prepared {
            Prepared::Off => None,
            Prepared::On => Some(self.prepare(sql).await?),
        };
        self.warned.store(false, Ordering::Release);
        self.counters.statements.add(1);
        let client = self.client.clone();
        let answer = async {
            match &statement {
                Some(statement) => client.query(statement, parameters).await,
                None => {
                    let typed: Vec<(&(dyn ToSql + Sync), Type)> =
                        parameters.iter().copied().zip(sql.types.iter().cloned()).collect();
                    client.query_typed(&sql.text, &typed).await
                }
            }
        };
        match self.in_time(answer).await {
            Some(Ok(_)) if self.warned.load(Ordering::Acquire) => {
                self.state = ConnectionState::Broken;
                let reason =
                    "the server gave a warning with the commit: it may no longer have waited for its standby";
                Err(StatementError { kind: ErrorKind::AnswerLost, reason: reason.to_owned() })
            }
            Some(Ok(rows)) => Ok(rows),
            Some(Err(error)) => Err(self.failed(&error)),
            None => Err(self.timed_out(ErrorKind::AnswerLost)),
        }
    }

    /// Sends statements as one transaction, and waits until it is committed. Returns the rows of each statement that has
    /// columns.
    ///
    /// They are one message, so the server ends the transaction also if this client is gone, and a pooler sends them to one
    /// server.
    pub(crate) async fn batch(&mut self, sql: &str) -> Result<Vec<Vec<SimpleQueryRow>>, BatchError> {
        self.warned.store(false, Ordering::Release);
        self.counters.statements.add(1);
        let client = self.client.clone();
        match self.in_time(client.simple_query(sql)).await {
            Some(Ok(_)) if self.warned.load(Ordering::Acquire) => {
                self.state = ConnectionState::Broken;
                Err(BatchError::Warned)
            }
            Some(Ok(messages)) => Ok(by_statement(messages)),
            Some(Err(error)) => {
                self.failed(&error);
                Err(BatchError::Server(error))
            }
            None => {
                self.state = ConnectionState::Broken;
                Err(BatchError::Silent)
            }
        }
    }

    async fn prepare(&mut self, sql: &Sql) -> Result<Statement, StatementError> {
        if let Some(Some(statement)) = self.statements.get(sql.slot) {
            return Ok(statement.clone());
        }
        let client = self.client.clone();
        match self.in_time(client.prepare_typed(&sql.text, &sql.types)).await {
            Some(Ok(statement)) => {
                if let Some(slot) = self.statements.get_mut(sql.slot) {
                    *slot = Some(statement.clone());
                }
                Ok(statement)
            }
            Some(Err(error)) => {
                let StatementError { kind, reason } = self.failed(&error);
                // Preparing a statement writes nothing, even if its answer is lost.
                let kind = match kind {
                    ErrorKind::AnswerLost | ErrorKind::BadRow | ErrorKind::RowBlocked => ErrorKind::NotDone,
                    ErrorKind::Retry | ErrorKind::Unprepared | ErrorKind::NotDone => kind,
                };
                Err(StatementError { kind, reason })
            }
            None => Err(self.timed_out(ErrorKind::NotDone)),
        }
    }

    async fn in_time<T>(&self, answer: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            answer = answer => Some(answer),
            () = sleep(self.answer_timeout) => None,
        }
    }

    fn failed(&mut self, error: &tokio_postgres::Error) -> StatementError {
        let (failed, connection) = error::of_statement(error);
        if connection == ConnectionState::Broken || self.client.is_closed() {
            self.state = ConnectionState::Broken;
        }
        failed
    }

    /// The answer did not arrive in time. The statement is not cancelled: a commit that waits for its standby would stop
    /// waiting, and others would see data that only one machine has. A statement that waits for a lock ends by its own
    /// limit.
    fn timed_out(&mut self, kind: ErrorKind) -> StatementError {
        self.state = ConnectionState::Broken;
        StatementError {
            kind,
            reason: format!("the database did not answer within {:?}", self.answer_timeout),
        }
    }
}

fn by_statement(messages: Vec<SimpleQueryMessage>) -> Vec<Vec<SimpleQueryRow>> {
    let mut statements: Vec<Vec<SimpleQueryRow>> = Vec::new();
    for message in messages {
        match (message, statements.last_mut()) {
            (SimpleQueryMessage::RowDescription(_), _) => statements.push(Vec::new()),
            (SimpleQueryMessage::Row(row), Some(rows)) => rows.push(row),
            _ => {}
        }
    }
    statements
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Dropping the client closes the connection in order. A connection that hangs would never get there.
        if self.state == ConnectionState::Broken {
            self.driver.abort();
        }
    }
}
