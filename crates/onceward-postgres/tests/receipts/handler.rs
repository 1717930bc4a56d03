//! A handler with a connection of its own, and tables for it.

use std::time::Duration;

use onceward_postgres::PostgresUrl;
use onceward_postgres::receipts::{PostgresReceipts, ReceiptOptions, TableName, print_sql};
use onceward_testkit::receipts::{Answer, Handler, HandlerError, HandlerFuture, Step};
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use crate::support::{client, database, schema};

/// A receipt table in a schema of its own.
#[derive(Clone)]
pub struct Table {
    pub url: String,
    pub name: TableName,
}

/// A new table in the database that this program's tests share.
pub async fn table() -> Table {
    table_in(database()).await
}

/// A new table in this database.
pub async fn table_in(url: &str) -> Table {
    let schema = schema();
    let name: TableName = format!("{schema}.onceward_receipts").parse().unwrap();
    let owner = client(url).await;
    owner.batch_execute(&format!("CREATE SCHEMA {schema}; {}", print_sql(&name))).await.unwrap();
    Table { url: url.to_owned(), name }
}

impl Table {
    /// The driver, which waits for a handler for half a second.
    pub fn receipts(&self) -> PostgresReceipts {
        self.receipts_at(&self.url)
    }

    /// The driver, by another way to the same database.
    pub fn receipts_at(&self, url: &str) -> PostgresReceipts {
        let options = ReceiptOptions::default()
            .lock_wait(Duration::from_millis(500))
            .statement_timeout(Duration::from_secs(1))
            .answer_timeout(Duration::from_secs(2));
        self.receipts_with(url, options)
    }

    pub fn receipts_with(&self, url: &str, options: ReceiptOptions) -> PostgresReceipts {
        PostgresReceipts::new(&PostgresUrl::parse(url).unwrap(), self.name.clone(), options).unwrap()
    }

    pub async fn handler(&self, isolation: &'static str) -> PostgresHandler {
        let schema = self.name.schema().unwrap().to_owned();
        PostgresHandler { client: client(&self.url).await, schema, isolation }
    }
}

pub struct PostgresHandler {
    client: Client,
    schema: String,
    isolation: &'static str,
}

impl PostgresHandler {
    async fn simple(&self, sql: &str) -> Result<(), HandlerError> {
        self.client.batch_execute(sql).await.map_err(|error| failed(&error))
    }

    async fn call(
        &self,
        function: &str,
        arguments: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<(), HandlerError> {
        let sql = format!("SELECT {}.{function}({arguments})", self.schema);
        self.client.execute(&sql, values).await.map(drop).map_err(|error| failed(&error))
    }
}

/// The error with its code, message and hint.
pub fn failed(error: &tokio_postgres::Error) -> HandlerError {
    let Some(db_error) = error.as_db_error() else { return HandlerError::Failed(error.to_string()) };
    let words = format!("{} {}", db_error.message(), db_error.hint().unwrap_or_default());
    HandlerError::of(db_error.code().code(), words)
}

fn fence(step: &Step<'_>) -> i64 {
    i64::try_from(step.fence.as_number()).unwrap()
}

impl Handler for PostgresHandler {
    fn begin(&mut self) -> HandlerFuture<'_> {
        Box::pin(async { self.simple(&format!("BEGIN ISOLATION LEVEL {}", self.isolation)).await })
    }

    fn checkpoint<'a>(
        &'a mut self,
        step: Step<'a>,
        point: &'a str,
        data: Option<&'a str>,
    ) -> HandlerFuture<'a> {
        Box::pin(async move {
            let operation = step.operation.to_string();
            let values: [&(dyn ToSql + Sync); 5] = [&operation, &fence(&step), &point, &data, &step.after];
            self.call("onceward_checkpoint", "$1, $2, $3, $4, $5", &values).await
        })
    }

    fn enter<'a>(&'a mut self, step: Step<'a>, point: &'a str, dedup: Option<Duration>) -> HandlerFuture<'a> {
        Box::pin(async move {
            let operation = step.operation.to_string();
            let seconds = dedup.map(|dedup| dedup.as_secs_f64());
            let values: [&(dyn ToSql + Sync); 5] = [&operation, &fence(&step), &point, &seconds, &step.after];
            self.call("onceward_enter", "$1, $2, $3, $4 * interval '1s', $5", &values).await
        })
    }

    fn complete<'a>(&'a mut self, step: Step<'a>, answer: Answer<'a>) -> HandlerFuture<'a> {
        Box::pin(async move {
            let operation = step.operation.to_string();
            let values: [&(dyn ToSql + Sync); 6] =
                [&operation, &fence(&step), &answer.status, &answer.headers, &answer.body, &step.after];
            self.call("onceward_complete", "$1, $2, $3, $4, $5, $6", &values).await
        })
    }

    fn commit(&mut self) -> HandlerFuture<'_> {
        Box::pin(async { self.simple("COMMIT").await })
    }

    fn rollback(&mut self) -> HandlerFuture<'_> {
        Box::pin(async { self.simple("ROLLBACK").await })
    }
}
