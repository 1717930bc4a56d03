//! Files that are missing, replaced, read-only or not the user's, and callers that leave.

use std::path::Path;
use std::time::Duration;

use onceward::receipts::{Note, ReceiptTable, TableError};
use onceward::{Fence, OperationId};
use onceward_sqlite::{Options, SqliteStore};
use onceward_testkit::sample;
use rusqlite::Connection;

use crate::handler::{Shop, receipts};

fn operation(n: u64) -> OperationId {
    OperationId::bare(sample::id(n))
}

const FENCE: Fence = Fence::from_number(7);

fn reason<T: std::fmt::Debug>(answer: Result<T, TableError>) -> String {
    match answer {
        Err(TableError::Unavailable { reason }) => reason,
        other => panic!("it was not unavailable: {other:?}"),
    }
}

#[tokio::test]
async fn a_missing_database_is_unavailable_and_stays_missing() {
    let directory = tempfile::tempdir().unwrap();
    for path in [
        directory.path().join("shop.db"),
        directory.path().join("no/shop.db"),
        Path::new(":memory:").to_owned(),
    ] {
        let why = reason(receipts(&path).void(operation(1), FENCE).await);
        assert!(why.contains("never creates") || why.contains("missing"), "{why}");
        assert!(!path.exists());
    }
}

#[tokio::test]
async fn a_file_that_is_no_database_of_the_user_is_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("text");
    std::fs::write(&text, "not a database, but long enough to have the header of one: 0123456789".repeat(20))
        .unwrap();
    let why = reason(receipts(&text).void(operation(1), FENCE).await);
    assert!(why.contains("text"), "{why}");
    let empty = directory.path().join("empty.db");
    Connection::open(&empty).unwrap().execute_batch("CREATE TABLE other (x)").unwrap();
    let why = reason(receipts(&empty).void(operation(1), FENCE).await);
    assert!(why.contains("--print-sql"), "{why}");
    let own = directory.path().join("onceward.db");
    let store = SqliteStore::open(&own, Options::default()).unwrap();
    let why = reason(receipts(&own).void(operation(1), FENCE).await);
    assert!(why.contains("store of Onceward's own"), "{why}");
    store.close().await;
}

/// A restored backup is another file under the same name.
#[tokio::test]
async fn a_void_goes_into_the_file_that_has_the_name_now() {
    let (shop, other) = (Shop::open("delete"), Shop::open("delete"));
    let table = shop.receipts();
    table.void(operation(1), FENCE).await.unwrap();
    std::fs::rename(&other.path, &shop.path).unwrap();
    assert_eq!(table.read(operation(1)).await.unwrap(), None);
    table.void(operation(2), FENCE).await.unwrap();
    let rows: i64 =
        shop.connection().query_row("SELECT count(*) FROM onceward_receipts", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 1);
}

#[tokio::test]
async fn the_journal_mode_is_the_users() {
    for mode in ["wal", "delete", "truncate", "persist"] {
        let shop = Shop::open(mode);
        let before: String =
            shop.connection().query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
        shop.receipts().void(operation(1), FENCE).await.unwrap();
        let after: String = shop.connection().query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
        assert_eq!(before, after);
    }
}

/// In a rollback journal's mode a commit waits for readers.
#[tokio::test]
async fn a_reader_that_stays_holds_a_void_in_a_rollback_journals_mode_only() {
    for (mode, is_held) in [("delete", true), ("wal", false)] {
        let shop = Shop::open(mode);
        shop.receipts().void(operation(1), FENCE).await.unwrap();
        let reader = shop.connection();
        reader.execute_batch("BEGIN").unwrap();
        let _: i64 =
            reader.query_row("SELECT count(*) FROM onceward_receipts", [], |row| row.get(0)).unwrap();
        let void = shop.receipts().void(operation(2), FENCE).await;
        assert_eq!(
            matches!(void, Err(TableError::Held { waited }) if waited == Duration::from_millis(500)),
            is_held,
            "{mode}: {void:?}"
        );
        reader.execute_batch("COMMIT").unwrap();
        // The void that was held has been undone, and holds nothing.
        let read = shop.receipts().read(operation(2)).await.unwrap();
        assert_eq!(read.is_none(), is_held);
        assert_eq!(shop.receipts().void(operation(2), FENCE).await.unwrap().fence, FENCE);
    }
}

/// More calls than threads, while a handler holds the database.
#[tokio::test]
async fn calls_that_wait_are_each_answered() {
    let shop = Shop::open("wal");
    let handler = shop.connection();
    handler.execute_batch("BEGIN IMMEDIATE").unwrap();
    let table = shop.receipts();
    let voids: Vec<_> = (0..12)
        .map(|n| {
            let table = table.clone();
            tokio::spawn(async move { table.void(operation(n), FENCE).await })
        })
        .collect();
    let mut held = 0;
    for (n, void) in voids.into_iter().enumerate() {
        match void.await.unwrap() {
            Err(TableError::Held { .. }) => held += 1,
            other => assert_eq!(other.unwrap().fence, FENCE),
        }
        if n == 3 {
            handler.execute_batch("COMMIT").unwrap();
        }
    }
    assert!(held >= 4, "{held}");
}

#[tokio::test]
async fn a_void_that_a_trigger_undoes_is_noticed() {
    let shop = Shop::open("wal");
    shop.receipts().void(operation(1), FENCE).await.unwrap();
    shop.connection()
        .execute_batch(
            "CREATE TRIGGER keep AFTER UPDATE OF fence ON onceward_receipts WHEN NEW.fence > 7 BEGIN
               UPDATE onceward_receipts SET fence = OLD.fence WHERE operation = NEW.operation; END;",
        )
        .unwrap();
    let why = reason(shop.receipts().void(operation(1), FENCE.above()).await);
    assert!(why.contains("did not raise"), "{why}");
}

#[tokio::test]
async fn a_note_that_no_column_can_hold_is_refused_in_words() {
    let shop = Shop::open("wal");
    let note = Note { number: u64::MAX, text: String::new() };
    assert!(!reason(shop.receipts().note("store", &note).await).is_empty());
    assert_eq!(shop.receipts().noted("store").await.unwrap(), None);
}
