//! Shared helpers of the tests.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    dead_code,
    reason = "a panic is how a test reports, and no test needs all of it"
)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use onceward::store::{Store, StoreError, Swapped, Version};
use onceward::{Record, RecordId};
use onceward_postgres::{Migrate, Options, PostgresStore, PostgresUrl};
use onceward_testkit::servers::shared_postgres;
use tokio_postgres::{Client, NoTls};

/// The database of this test process, on the server that all tests share.
pub fn database() -> &'static str {
    static DATABASE: OnceLock<String> = OnceLock::new();
    DATABASE.get_or_init(shared_postgres)
}

/// The port of the server that all tests share.
pub fn port() -> u16 {
    PostgresUrl::parse(database()).unwrap();
    let (_, rest) = database().split_once("127.0.0.1:").unwrap();
    rest.split_once('/').unwrap().0.parse().unwrap()
}

/// The name of the database.
pub fn name() -> &'static str {
    database().rsplit_once('/').unwrap().1
}

/// The name of a new schema.
pub fn schema() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("s{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// An empty schema of its own in the shared database, as a URL with these parameters.
pub fn url(parameters: &str) -> PostgresUrl {
    PostgresUrl::parse(&format!("{}?schema={}&{parameters}", database(), schema())).unwrap()
}

/// A store that creates its tables.
pub async fn open(url: &PostgresUrl, options: Options) -> PostgresStore {
    PostgresStore::connect(url, Options { migrate: Migrate::Apply, ..options }).await.unwrap()
}

/// Another client, to read the tables directly.
pub async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub async fn observer() -> Client {
    client(database()).await
}

#[track_caller]
pub fn applied(answer: Result<Swapped, StoreError>) -> Version {
    match answer {
        Ok(Swapped::Applied { version, .. }) => version,
        other => panic!("it was not applied: {other:?}"),
    }
}

/// Writes a record that must be applied.
pub async fn put(store: &PostgresStore, id: RecordId, expect: Option<Version>, record: Record) -> Version {
    applied(store.swap(id, expect, record).await)
}

/// Flips a bit of a stored record directly.
pub async fn damage(url: &str, schema: &str, id: RecordId) {
    let client = client(url).await;
    let sql = format!(
        "UPDATE {schema}.operations
         SET record = set_byte(record, octet_length(record) - 1, get_byte(record, octet_length(record) - 1) # 1)
         WHERE id = '{id}'"
    );
    assert_eq!(client.execute(&sql, &[]).await.unwrap(), 1);
}
