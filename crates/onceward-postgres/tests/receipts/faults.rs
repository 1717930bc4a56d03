//! Networks that are cut, servers that restart, handlers that hold rows, and callers that leave.

use std::task::Poll;
use std::time::Duration;

use onceward::receipts::{Note, ReceiptTable, TableError};
use onceward::store::{Clock, SystemClock};
use onceward::{Fence, OperationId};
use onceward_postgres::PostgresUrl;
use onceward_postgres::receipts::{PostgresReceipts, ReceiptOptions, TableName};
use onceward_testkit::receipts::{Answer, Handler, Step};
use onceward_testkit::servers::{Cut, Postgres, Wire};
use onceward_testkit::{sample, wait};

use crate::handler::{table, table_in};
use crate::support::{client, database, name, port};

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_void_whose_connection_is_cut_is_carried_out_once_more() {
    let (wire, table) = (Wire::to(port()).await, table().await);
    let receipts = table.receipts_at(&format!("postgres://postgres@127.0.0.1:{}/{}", wire.port(), name()));
    let cuts = [
        Cut::Before,
        Cut::Sent,
        Cut::Answered { bytes: 0 },
        Cut::Answered { bytes: 1 },
        Cut::Answered { bytes: 40 },
    ];
    for (n, cut) in (1..).zip(cuts) {
        receipts.noted("a connection to reuse").await.unwrap();
        wire.arm(operation(n).to_string(), cut);
        let voided = receipts.void(operation(n), FENCE).await;
        wire.made(n).await;
        assert_eq!(voided.unwrap().fence, FENCE, "{cut:?}");
    }
}

/// A new connection is not tried twice: who asks again decides that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_is_away_or_hangs_is_unavailable_and_later_works_again() {
    let (wire, table) = (Wire::to(port()).await, table().await);
    let receipts = table.receipts_at(&format!("postgres://postgres@127.0.0.1:{}/{}", wire.port(), name()));
    receipts.void(operation(1), FENCE).await.unwrap();
    wire.refuse();
    wire.cut();
    let why = reason(receipts.void(operation(1), FENCE).await);
    assert!(why.contains("connection"), "{why}");
    wire.accept();
    wire.arm(operation(2).to_string(), Cut::Stall);
    let why = reason(receipts.void(operation(2), FENCE).await);
    assert!(why.contains("did not answer within 2s"), "{why}");
    wire.release();
    assert_eq!(receipts.void(operation(2), FENCE).await.unwrap().fence, FENCE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_restarts_is_used_again_without_a_failed_call() {
    let mut server = Postgres::start();
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", server.port());
    let table = table_in(&url).await;
    let receipts = table.receipts();
    receipts.void(operation(1), FENCE).await.unwrap();
    server.restart();
    assert_eq!(receipts.read(operation(1)).await.unwrap().map(|row| row.fence), Some(FENCE));
    server.stop();
    let why = reason(receipts.void(operation(1), FENCE).await);
    assert!(!why.is_empty());
    server.restart();
    assert_eq!(receipts.void(operation(1), FENCE.above()).await.unwrap().fence, FENCE.above());
}

/// One connection for each, and no call waits without an end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn voids_that_are_held_keep_others_waiting_for_a_limited_time() {
    let table = table().await;
    let options = ReceiptOptions::default()
        .connections(2)
        .lock_wait(Duration::from_secs(60))
        .statement_timeout(Duration::from_secs(61))
        .answer_timeout(Duration::from_secs(62));
    let receipts = table.receipts_with(&table.url, options);
    let fence = Fence::from_number(SystemClock.now().as_micros());
    let mut handlers = Vec::new();
    for n in 1..=2 {
        let mut handler = table.handler("READ COMMITTED").await;
        handler.begin().await.unwrap();
        handler.complete(Step::first(operation(n), fence), Answer::json(200, b"")).await.unwrap();
        handlers.push(handler);
    }
    let voids: Vec<_> = (1..=2)
        .map(|n| {
            let receipts = receipts.clone();
            tokio::spawn(async move { receipts.void(operation(n), fence.above()).await })
        })
        .collect();
    let observer = client(&table.url).await;
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'onceward' \
                   AND query LIKE '%' || $1 || '%'";
    let schema = table.name.schema().unwrap();
    wait::until("both voids wait", async || {
        let count: i64 = observer.query_one(waiting, &[&schema]).await.unwrap().get(0);
        wait::seen(count, |&count| count == 2)
    })
    .await;
    // A third waits for a connection, and is dropped while it does.
    let mut third = receipts.read(operation(3));
    let pending =
        std::future::poll_fn(|context| Poll::Ready(third.as_mut().poll(context).is_pending())).await;
    assert!(pending);
    drop(third);
    handlers[0].commit().await.unwrap();
    assert_eq!(receipts.read(operation(3)).await.unwrap(), None);
    handlers[1].rollback().await.unwrap();
    let mut statuses = Vec::new();
    for void in voids {
        statuses.push(void.await.unwrap().unwrap().reply.map(|reply| reply.unwrap().status));
    }
    assert_eq!(statuses, [Some(200), None]);
}

/// The server ends what it was sent, and nothing of it stays open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_void_that_is_dropped_while_the_server_waits_leaves_no_transaction() {
    let table = table().await;
    let receipts = table.receipts();
    let fence = Fence::from_number(SystemClock.now().as_micros());
    let mut handler = table.handler("READ COMMITTED").await;
    handler.begin().await.unwrap();
    handler.complete(Step::first(operation(1), fence), Answer::json(200, b"")).await.unwrap();
    let void = tokio::spawn({
        let receipts = receipts.clone();
        async move { receipts.void(operation(1), fence.above()).await }
    });
    let observer = client(&table.url).await;
    let count = async |state: &str| -> i64 {
        let sql = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'onceward' AND query LIKE '%{}%' AND {state}",
            table.name.schema().unwrap()
        );
        observer.query_one(&sql, &[]).await.unwrap().get(0)
    };
    wait::until("the void waits", async || {
        let waiting = count("wait_event_type = 'Lock'").await;
        wait::seen(waiting, |&waiting| waiting == 1)
    })
    .await;
    void.abort();
    assert!(void.await.unwrap_err().is_cancelled());
    wait::until("the server has ended it, although the handler still holds the row", async || {
        let left = count("state <> 'idle'").await;
        wait::seen(left, |&left| left == 0)
    })
    .await;
    handler.commit().await.unwrap();
    let row = receipts.void(operation(1), fence.above()).await.unwrap();
    assert_eq!(row.reply.unwrap().unwrap().status, 200);
}

#[tokio::test]
async fn a_table_that_is_missing_or_another_one_is_said_to_be() {
    let url = PostgresUrl::parse(database()).unwrap();
    for (name, ddl) in [
        ("public.nowhere", ""),
        ("no_schema.onceward_receipts", ""),
        ("public.another", "CREATE TABLE another (operation text PRIMARY KEY)"),
        (
            "public.keyless",
            "CREATE TABLE keyless (operation text, fence bigint, point text, data text, entered text, \
          entered_at timestamptz, dedup_until timestamptz, status int, headers text, body bytea)",
        ),
    ] {
        client(database()).await.batch_execute(ddl).await.unwrap();
        let name: TableName = name.parse().unwrap();
        let receipts = PostgresReceipts::new(&url, name.clone(), ReceiptOptions::default()).unwrap();
        let why = reason(receipts.void(operation(1), FENCE).await);
        assert!(why.contains(&name.to_string()) && why.contains("--print-sql"), "{why}");
    }
}

#[tokio::test]
async fn a_note_that_no_column_can_hold_is_refused_in_words() {
    let receipts = table().await.receipts();
    for note in [
        Note { number: u64::MAX, text: String::new() },
        Note { number: 1, text: "x".repeat(5_000) },
        Note { number: 1, text: "a\0b".to_owned() },
    ] {
        assert!(!reason(receipts.note("store", &note).await).is_empty());
        assert_eq!(receipts.noted("store").await.unwrap(), None);
    }
}

#[test]
fn options_out_of_their_range_and_other_databases_are_refused() {
    let url = PostgresUrl::parse("postgres://app@db/shop").unwrap();
    let second = Duration::from_secs(1);
    for options in [
        ReceiptOptions::default().connections(0),
        ReceiptOptions::default().connections(65),
        ReceiptOptions::default().lock_wait(Duration::ZERO),
        ReceiptOptions::default().lock_wait(5 * second),
        ReceiptOptions::default().statement_timeout(10 * second),
        ReceiptOptions::default().answer_timeout(5 * second),
    ] {
        let refused = PostgresReceipts::new(&url, TableName::default(), options.clone());
        assert!(refused.is_err(), "{options:?}");
    }
    let url = PostgresUrl::parse("postgres://app@db/shop?flavor=cockroach").unwrap();
    assert!(PostgresReceipts::new(&url, TableName::default(), ReceiptOptions::default()).is_err());
}
