//! A void that was answered is on the primary, on its disk, and on its synchronous standby.

use onceward::receipts::{ReceiptTable, TableError};
use onceward::{Fence, OperationId};
use onceward_testkit::receipts::{Answer, Handler, Step};
use onceward_testkit::servers::{Postgres, shared_postgres};
use onceward_testkit::{sample, wait};

use crate::handler::{table, table_in};
use crate::support::client;

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

/// A trigger of the test notes the setting that each write runs under.
#[tokio::test]
async fn a_void_waits_for_the_disk_although_its_role_does_not() {
    let database = shared_postgres();
    let table = table_in(&database).await;
    let (owner, quoted) = (client(&database).await, table.name.quoted());
    owner
        .batch_execute(&format!(
            "CREATE TABLE seen (setting text);
             CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               INSERT INTO public.seen VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$;
             CREATE TRIGGER note BEFORE INSERT ON {quoted} FOR EACH ROW EXECUTE FUNCTION note();"
        ))
        .await
        .unwrap();
    let database_name = database.rsplit_once('/').unwrap().1;
    for (set, expected) in [
        ("off", "on"),
        ("local", "on"),
        ("remote_write", "on"),
        ("on", "on"),
        ("remote_apply", "remote_apply"),
    ] {
        let alter = format!("ALTER DATABASE {database_name} SET synchronous_commit = {set}; TRUNCATE seen");
        owner.batch_execute(&alter).await.unwrap();
        // The setting is one of new connections.
        table.receipts().void(operation(1), FENCE).await.unwrap();
        let seen = owner.query_one("SELECT string_agg(setting, ' ') FROM seen", &[]).await.unwrap();
        assert_eq!(seen.get::<_, String>(0), expected, "under {set}");
    }
}

#[tokio::test]
async fn a_void_that_no_longer_waits_for_its_standby_is_not_believed() {
    let primary = Postgres::start();
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", primary.port());
    let table = table_in(&url).await;
    let mut standby = primary.start_standby();
    assert_eq!(table.receipts().void(operation(1), FENCE).await.unwrap().fence, FENCE);
    standby.stop();
    let patient = onceward_postgres::receipts::ReceiptOptions::default();
    let receipts = table.receipts_with(&url, patient.answer_timeout(std::time::Duration::from_secs(90)));
    for end in ["pg_cancel_backend", "pg_terminate_backend"] {
        let void = tokio::spawn({
            let receipts = receipts.clone();
            async move { receipts.void(operation(2), FENCE).await }
        });
        let observer = client(&url).await;
        let sql = format!("SELECT count({end}(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
        wait::until("the void waits for the standby", async || {
            let ended: i64 = observer.query_one(&sql, &[]).await.unwrap().get(0);
            wait::seen(ended, |&ended| ended > 0)
        })
        .await;
        if end == "pg_cancel_backend" {
            let why = reason(void.await.unwrap());
            assert!(why.contains("standby"), "{end}: {why}");
        } else {
            // The call is made again over a new connection, and waits again, unless that connection was ended as well.
            if void.is_finished() {
                let why = reason(void.await.unwrap());
                println!("{end}: {why}");
            } else {
                void.abort();
            }
        }
    }
    standby.restart();
    assert_eq!(receipts.void(operation(2), FENCE).await.unwrap().fence, FENCE);
    // What was answered survives the loss of the primary.
    drop(primary);
    let promoted = standby.promote();
    let there = table.receipts_at(&format!("postgres://postgres@127.0.0.1:{}/postgres", promoted.port()));
    for n in [1, 2] {
        assert_eq!(there.read(operation(n)).await.unwrap().map(|row| row.fence), Some(FENCE));
    }
}

#[tokio::test]
async fn a_standby_and_a_read_only_server_void_nothing() {
    let primary = Postgres::start();
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", primary.port());
    let table = table_in(&url).await;
    let standby = primary.start_standby();
    let there =
        table.receipts_at(&format!("postgres://postgres@127.0.0.1:{}/postgres", standby.server().port()));
    for why in [reason(there.void(operation(1), FENCE).await), reason(there.read(operation(1)).await)] {
        assert!(why.contains("writes") || why.contains("primary"), "{why}");
    }
    let receipts = table.receipts();
    receipts.void(operation(1), FENCE).await.unwrap();
    primary.sql("postgres", "ALTER SYSTEM SET default_transaction_read_only = on");
    primary.sql("postgres", "SELECT pg_reload_conf()");
    let observer = client(&url).await;
    wait::until("the server is read-only", async || {
        let setting = observer.query_one("SHOW transaction_read_only", &[]).await.unwrap();
        wait::seen(setting.get::<_, String>(0), |setting| setting == "on")
    })
    .await;
    // A connection that was made before, and a new one.
    for why in [
        reason(receipts.void(operation(1), FENCE).await),
        reason(table.receipts().void(operation(1), FENCE).await),
    ] {
        assert!(why.contains("primary") || why.contains("writes"), "{why}");
    }
}

/// Under another isolation level it would fail, again and again, on what a handler commits meanwhile.
#[tokio::test]
async fn a_void_waits_for_a_handler_although_its_database_is_serializable() {
    let database = shared_postgres();
    let table = table_in(&database).await;
    let alter = format!(
        "ALTER DATABASE {} SET default_transaction_isolation = serializable",
        database.rsplit_once('/').unwrap().1
    );
    client(&database).await.batch_execute(&alter).await.unwrap();
    let receipts = table.receipts();
    let fence = Fence::from_number(onceward::store::Clock::now(&onceward::store::SystemClock).as_micros());
    let step = Step::first(operation(1), fence);
    let mut handler = table.handler("SERIALIZABLE").await;
    handler.begin().await.unwrap();
    handler.complete(step, Answer::json(201, b"{}")).await.unwrap();
    let (row, committed) = tokio::join!(receipts.void(step.operation, fence.above()), async {
        let observer = client(&database).await;
        wait::until("the void waits for the handler", async || {
            let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
            let waiting: i64 = observer.query_one(sql, &[]).await.unwrap().get(0);
            wait::seen(waiting, |&waiting| waiting > 0)
        })
        .await;
        handler.commit().await
    });
    committed.unwrap();
    assert_eq!(row.unwrap().reply.unwrap().unwrap().status, 201);
}

/// It is no plain table then: the driver says so instead of taking an old fence for a new one.
#[tokio::test]
async fn a_trigger_that_suppresses_voids_is_noticed() {
    let table = table().await;
    let (owner, quoted, schema) =
        (client(&table.url).await, table.name.quoted(), table.name.schema().unwrap());
    table.receipts().void(operation(1), FENCE).await.unwrap();
    owner
        .batch_execute(&format!(
            "CREATE FUNCTION {schema}.keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.fence = OLD.fence; RETURN NEW; END $$;
             CREATE FUNCTION {schema}.skip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
             CREATE TRIGGER keep BEFORE UPDATE ON {quoted} FOR EACH ROW EXECUTE FUNCTION {schema}.keep();
             CREATE TRIGGER skip BEFORE INSERT ON {quoted} FOR EACH ROW WHEN (NEW.fence = 8) EXECUTE FUNCTION {schema}.skip();"
        ))
        .await
        .unwrap();
    let receipts = table.receipts();
    let why = reason(receipts.void(operation(1), Fence::from_number(9)).await);
    assert!(why.contains("did not raise"), "{why}");
    let why = reason(receipts.void(operation(2), Fence::from_number(8)).await);
    assert!(why.contains("wrote no row"), "{why}");
}
