//! The SQL that users run: the DDL, and what the views refuse at a user's first test.

use onceward::receipts::{ReceiptTable, TableName};
use onceward::store::{Clock, SystemClock};
use onceward::{Fence, OperationId};
use onceward_sqlite::receipts::{ReceiptOptions, SqliteReceipts, print_sql};
use onceward_testkit::receipts::HandlerError;
use onceward_testkit::sample;
use rusqlite::Connection;

use crate::handler::{Shop, failed};

fn operation(n: u64) -> OperationId {
    OperationId::bare(sample::id(n))
}

/// A fence of now.
fn now() -> u64 {
    SystemClock.now().as_micros()
}

/// What a statement fails with.
fn refusal(connection: &Connection, sql: &str) -> HandlerError {
    match connection.execute_batch(sql) {
        Ok(()) => panic!("{sql} was not refused"),
        Err(error) => failed(&error),
    }
}

#[tokio::test]
async fn the_ddl_runs_twice_and_keeps_what_is_there() {
    let shop = Shop::open("wal");
    let row = shop.receipts().void(operation(1), Fence::from_number(7)).await.unwrap();
    let ddl = print_sql(&TableName::default());
    shop.connection().execute_batch(&ddl).unwrap();
    shop.connection().execute_batch(&format!("BEGIN; {ddl} COMMIT;")).unwrap();
    assert_eq!(shop.receipts().read(operation(1)).await.unwrap(), Some(row));
    let complete = format!(
        "INSERT INTO onceward_complete (operation, fence, status) VALUES ('{}', {}, 200)",
        operation(2),
        now()
    );
    shop.connection().execute_batch(&complete).unwrap();
}

#[tokio::test]
async fn a_reserved_word_can_name_a_table_and_a_schema_cannot() {
    let shop = Shop::open("wal");
    let name: TableName = "order".parse().unwrap();
    shop.connection().execute_batch(&print_sql(&name)).unwrap();
    let receipts = SqliteReceipts::new(&shop.path, name, ReceiptOptions::default()).unwrap();
    assert_eq!(receipts.void(operation(1), Fence::from_number(7)).await.unwrap().fence.as_number(), 7);
    // The views write into the table of the newest DDL.
    let complete = format!(
        "INSERT INTO onceward_complete (operation, fence, status) VALUES ('{}', {}, 200)",
        operation(2),
        now()
    );
    shop.connection().execute_batch(&complete).unwrap();
    assert!(receipts.read(operation(2)).await.unwrap().is_some());
    let refused =
        SqliteReceipts::new(&shop.path, "main.receipts".parse().unwrap(), ReceiptOptions::default());
    assert!(refused.unwrap_err().to_string().contains("without a schema"));
    let zero = ReceiptOptions::default().lock_wait(std::time::Duration::ZERO);
    assert!(SqliteReceipts::new(&shop.path, TableName::default(), zero).is_err());
}

#[tokio::test]
async fn arguments_that_cannot_be_meant_fail_at_the_first_test() {
    let shop = Shop::open("wal");
    let (handler, id, fence) = (shop.connection(), operation(1), now());
    let complete = "complete (operation, fence, status, headers, body, after)";
    let checkpoint = "checkpoint (operation, fence, point, data, after)";
    let enter = "enter (operation, fence, point, dedup, after)";
    for (view, values, expected) in [
        (complete, format!("NULL, {fence}, 200, '[]', '', NULL"), "the operation must be"),
        (complete, format!("'', {fence}, 200, '[]', '', NULL"), "the operation must be"),
        (complete, format!("'the-clients-key', {fence}, 200, '[]', '', NULL"), "the operation must be"),
        (complete, format!("'{id}-', {fence}, 200, '[]', '', NULL"), "the operation must be"),
        (
            complete,
            format!("'{id}-00000000000000001', {fence}, 200, '[]', '', NULL"),
            "the operation must be",
        ),
        (complete, format!("x'00', {fence}, 200, '[]', '', NULL"), "the operation must be"),
        (complete, format!("'{id}', NULL, 200, '[]', '', NULL"), "the fence must be"),
        (complete, format!("'{id}', -1, 200, '[]', '', NULL"), "the fence must be"),
        (complete, format!("'{id}', 'abc', 200, '[]', '', NULL"), "the fence must be"),
        (complete, format!("'{id}', 1.5, 200, '[]', '', NULL"), "the fence must be"),
        (complete, format!("'{id}', {fence}, NULL, '[]', '', NULL"), "an answer needs its status"),
        (complete, format!("'{id}', {fence}, 199, '[]', '', NULL"), "from 200 to 599"),
        (complete, format!("'{id}', {fence}, 600, '[]', '', NULL"), "from 200 to 599"),
        (complete, format!("'{id}', {fence}, '200', '[]', '', NULL"), "from 200 to 599"),
        (complete, format!("'{id}', {fence}, 200, 'x', '', NULL"), "array of pairs"),
        (complete, format!("'{id}', {fence}, 200, '{{}}', '', NULL"), "array of pairs"),
        (complete, format!("'{id}', {fence}, 200, '[[\"a\"]]', '', NULL"), "array of pairs"),
        (complete, format!("'{id}', {fence}, 200, '[[\"a\", 1]]', '', NULL"), "array of pairs"),
        (complete, format!("'{id}', {fence}, 200, '[\"a\", \"b\"]', '', NULL"), "array of pairs"),
        (complete, format!("'{id}', {fence}, 200, 7, '', NULL"), "array of pairs"),
        (complete, format!("'{id}', {fence}, 200, '[]', 7, NULL"), "bytes or text"),
        (complete, format!("'{id}', {fence}, 200, '[]', '', 7"), "name of a step"),
        (checkpoint, format!("'{id}', {fence}, NULL, NULL, NULL"), "name of its point"),
        (checkpoint, format!("'{id}', {fence}, '', NULL, NULL"), "1 to 64 bytes"),
        (checkpoint, format!("'{id}', {fence}, '{}é', NULL, NULL", "a".repeat(63)), "1 to 64 bytes"),
        (checkpoint, format!("'{id}', {fence}, 'a', 'not json', NULL"), "the data must be JSON"),
        (
            checkpoint,
            format!("'{id}', {fence}, 'a', '\"{}\"', NULL", "d".repeat(4_095)),
            "the data must be JSON",
        ),
        (enter, format!("'{id}', {fence}, NULL, NULL, NULL"), "name of its point"),
        (enter, format!("'{id}', {fence}, '', NULL, NULL"), "1 to 64 bytes"),
        (enter, format!("'{id}', {fence}, 'a', 0, NULL"), "dedup"),
        (enter, format!("'{id}', {fence}, 'a', -1, NULL"), "dedup"),
        (enter, format!("'{id}', {fence}, 'a', '1h', NULL"), "dedup"),
    ] {
        // Not even a statement that ignores or replaces what it cannot insert gets past.
        for verb in ["INSERT", "INSERT OR IGNORE", "INSERT OR REPLACE", "INSERT OR FAIL"] {
            let sql = format!("{verb} INTO onceward_{view} VALUES ({values})");
            let said = refusal(&handler, &sql);
            assert!(
                matches!(&said, HandlerError::Failed(words) if words.contains(expected)),
                "{sql}: {said:?}"
            );
        }
    }
    assert_eq!(shop.receipts().read(id).await.unwrap(), None);
    for (view, values) in [
        (checkpoint, format!("'{id}', '{fence}', '{}', '\"{}\"', NULL", "a".repeat(64), "d".repeat(4_094))),
        (complete, format!("'{id}', {fence}, 599, NULL, NULL, '{}'", "a".repeat(64))),
    ] {
        handler.execute_batch(&format!("INSERT INTO onceward_{view} VALUES ({values})")).unwrap();
    }
    let reply = shop.receipts().read(id).await.unwrap().unwrap().reply.unwrap().unwrap();
    assert_eq!((reply.status, reply.headers.len(), reply.body.len()), (599, 0, 0));
}

/// Such a statement would otherwise carry on without its row, and the transaction would commit.
#[tokio::test]
async fn no_conflict_clause_gets_past_a_fence_and_the_whole_transaction_is_gone() {
    let shop = Shop::open("wal");
    shop.receipts().void(operation(1), Fence::from_number(now() + 60_000_000)).await.unwrap();
    let handler = shop.connection();
    handler.execute_batch("CREATE TABLE charges (id INTEGER)").unwrap();
    for verb in ["INSERT", "INSERT OR IGNORE", "INSERT OR REPLACE", "INSERT OR ABORT", "INSERT OR FAIL"] {
        handler.execute_batch("BEGIN; INSERT INTO charges VALUES (1); SAVEPOINT nested").unwrap();
        let sql = format!(
            "{verb} INTO onceward_complete (operation, fence, status) VALUES ('{}', {}, 200)",
            operation(1),
            now()
        );
        assert!(matches!(refusal(&handler, &sql), HandlerError::Fenced(_)), "{verb}");
        // A savepoint does not keep the rest.
        assert!(handler.execute_batch("RELEASE nested").is_err());
        assert!(handler.is_autocommit());
    }
    let charges: i64 = handler.query_row("SELECT count(*) FROM charges", [], |row| row.get(0)).unwrap();
    assert_eq!(charges, 0);
}

/// Python's sqlite3 gives both, and other programs write into the table directly.
#[tokio::test]
async fn a_body_of_text_and_columns_of_any_type_can_be_read() {
    let shop = Shop::open("wal");
    let handler = shop.connection();
    let sql = format!(
        "INSERT INTO onceward_complete (operation, fence, status, body) VALUES ('{}', '{}', 200, 'é')",
        operation(1),
        now()
    );
    handler.execute_batch(&sql).unwrap();
    let reply = shop.receipts().read(operation(1)).await.unwrap().unwrap().reply.unwrap().unwrap();
    assert_eq!(reply.body, "é");
    let sql = format!(
        "INSERT INTO onceward_receipts (operation, fence, point, data, status, headers, body) \
         VALUES ('{}', 7, 12, x'31', 'many', 5, 'text')",
        operation(2)
    );
    handler.execute_batch(&sql).unwrap();
    let row = shop.receipts().void(operation(2), Fence::from_number(8)).await.unwrap();
    assert!(row.reply.unwrap().unwrap_err().contains("status 0"));
    assert_eq!(row.point.unwrap().name, "12");
}

#[tokio::test]
async fn an_answer_that_is_too_large_stays_in_the_database_and_completes_all_the_same() {
    let shop = Shop::open("wal");
    for (n, bytes, kept) in [(1, 16 << 20, true), (2, (16 << 20) + 1, false)] {
        let sql = format!(
            "INSERT INTO onceward_complete (operation, fence, status, body) VALUES ('{}', {}, 200, zeroblob({bytes}))",
            operation(n),
            now()
        );
        shop.connection().execute_batch(&sql).unwrap();
        match shop.receipts().void(operation(n), Fence::from_number(7)).await.unwrap().reply.unwrap() {
            Ok(reply) => assert!(kept && reply.body.len() == bytes),
            Err(why) => assert!(!kept && why.contains("16777217 bytes"), "{why}"),
        }
    }
}
