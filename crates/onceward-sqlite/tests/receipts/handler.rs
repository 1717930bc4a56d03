//! A handler with a connection of its own, and tables for it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onceward_sqlite::receipts::{ReceiptOptions, SqliteReceipts, TableName, print_sql};
use onceward_testkit::receipts::{Answer, Handler, HandlerError, HandlerFuture, Step};
use rusqlite::{Connection, Params, params};
use tempfile::TempDir;

/// A user's database with a receipt table.
pub struct Shop {
    pub path: PathBuf,
    _directory: TempDir,
}

impl Shop {
    /// A new database in this journal mode.
    pub fn open(journal_mode: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shop.db");
        let owner = Connection::open(&path).unwrap();
        owner.pragma_update(None, "journal_mode", journal_mode).unwrap();
        owner.execute_batch(&print_sql(&TableName::default())).unwrap();
        Self { path, _directory: directory }
    }

    /// The driver, which waits for a handler for half a second.
    pub fn receipts(&self) -> SqliteReceipts {
        receipts(&self.path)
    }

    pub fn connection(&self) -> Connection {
        connect(&self.path)
    }
}

pub fn receipts(path: &Path) -> SqliteReceipts {
    let options = ReceiptOptions::default().lock_wait(Duration::from_millis(500));
    SqliteReceipts::new(path, TableName::default(), options).unwrap()
}

/// A connection that waits for others for longer than any test takes.
pub fn connect(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    connection.busy_timeout(Duration::from_secs(120)).unwrap();
    connection
}

/// Its calls run on threads, because they wait for other transactions there.
pub struct SqliteHandler {
    connection: Arc<Mutex<Connection>>,
}

impl SqliteHandler {
    pub fn new(path: &Path) -> Self {
        Self { connection: Arc::new(Mutex::new(connect(path))) }
    }

    async fn run(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<()> + Send + 'static,
    ) -> Result<(), HandlerError> {
        let connection = self.connection.clone();
        let done = tokio::task::spawn_blocking(move || work(&connection.lock().unwrap()));
        done.await.unwrap().map_err(|error| failed(&error))
    }

    async fn insert<P: Params + Send + 'static>(
        &self,
        view: &'static str,
        values: P,
    ) -> Result<(), HandlerError> {
        self.run(move |connection| connection.execute(view, values).map(drop)).await
    }
}

/// The error with the code that its text begins with.
pub fn failed(error: &rusqlite::Error) -> HandlerError {
    let words = error.to_string();
    match words.split_once(':') {
        Some((code, _)) => HandlerError::of(code, words.clone()),
        None => HandlerError::Failed(words),
    }
}

fn fence(step: &Step<'_>) -> i64 {
    i64::try_from(step.fence.as_number()).unwrap()
}

impl Handler for SqliteHandler {
    fn begin(&mut self) -> HandlerFuture<'_> {
        Box::pin(self.run(|connection| connection.execute_batch("BEGIN")))
    }

    fn checkpoint<'a>(
        &'a mut self,
        step: Step<'a>,
        point: &'a str,
        data: Option<&'a str>,
    ) -> HandlerFuture<'a> {
        let sql = "INSERT INTO onceward_checkpoint (operation, fence, point, data, after) VALUES (?1, ?2, ?3, ?4, ?5)";
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let values =
            (step.operation.to_string(), fence(&step), point.to_owned(), owned(data), owned(step.after));
        Box::pin(self.insert(sql, values))
    }

    fn enter<'a>(&'a mut self, step: Step<'a>, point: &'a str, dedup: Option<Duration>) -> HandlerFuture<'a> {
        let sql =
            "INSERT INTO onceward_enter (operation, fence, point, dedup, after) VALUES (?1, ?2, ?3, ?4, ?5)";
        let seconds = dedup.map(|dedup| dedup.as_secs_f64());
        let after = step.after.map(str::to_owned);
        Box::pin(
            self.insert(sql, (step.operation.to_string(), fence(&step), point.to_owned(), seconds, after)),
        )
    }

    fn complete<'a>(&'a mut self, step: Step<'a>, answer: Answer<'a>) -> HandlerFuture<'a> {
        let sql = "INSERT INTO onceward_complete (operation, fence, status, headers, body, after) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let Answer { status, headers, body } = answer;
        let (headers, body, after) = (headers.to_owned(), body.to_vec(), step.after.map(str::to_owned));
        Box::pin(self.insert(sql, (step.operation.to_string(), fence(&step), status, headers, body, after)))
    }

    fn commit(&mut self) -> HandlerFuture<'_> {
        Box::pin(self.run(|connection| connection.execute_batch("COMMIT")))
    }

    fn rollback(&mut self) -> HandlerFuture<'_> {
        // An error of a view has rolled it back already.
        Box::pin(self.run(|connection| match connection.is_autocommit() {
            true => Ok(()),
            false => connection.execute("ROLLBACK", params![]).map(drop),
        }))
    }
}
