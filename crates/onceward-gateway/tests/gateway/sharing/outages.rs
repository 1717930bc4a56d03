//! A database that terminates its connections, crashes, or is stopped.

use onceward_testkit::servers::{PgBouncer, Postgres, shared_postgres};

use super::crowd::Crowd;
use super::{on, start};
use crate::harness::{Gateway, Request};
use crate::ledger::Ledger;

const UNAVAILABLE: &str = "idempotency_store_unavailable";

/// Terminates every other connection to the database.
const TERMINATE: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()";

/// The last part of a database's URL.
fn name(url: &str) -> &str {
    url.rsplit('/').next().unwrap().split('?').next().unwrap()
}

#[tokio::test]
async fn backends_that_are_terminated_under_load_lose_no_answer_and_repeat_no_work() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let server = Postgres::start();
    let store = server.create_database();
    let gateways = [start(&store, folder.path(), &ledger), start(&store, folder.path(), &ledger)];
    let mut crowd = Crowd::of(&[gateways[0].address, gateways[1].address]);
    for _ in 0..10 {
        crowd.progress(40).await;
        server.sql(name(&store), TERMINATE);
    }
    crowd.progress(40).await;
    let counts = crowd.check(&gateways[0], &ledger).await;
    assert!(counts.answered >= 200, "{counts:?}");
}

#[tokio::test]
async fn a_database_that_is_killed_under_load_comes_back_with_every_answer_that_was_given() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let mut server = Postgres::start();
    let store = server.create_database();
    let gateways = [start(&store, folder.path(), &ledger), start(&store, folder.path(), &ledger)];
    let mut crowd = Crowd::of(&[gateways[0].address, gateways[1].address]);
    for _ in 0..3 {
        crowd.progress(80).await;
        server.kill();
        server.restart();
    }
    crowd.progress(80).await;
    let counts = crowd.check(&gateways[1], &ledger).await;
    assert!(counts.answered >= 150, "{counts:?}");
}

#[tokio::test]
async fn without_a_database_nothing_is_sent_and_the_same_key_works_when_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let mut server = Postgres::start();
    let gateway = start(&server.create_database(), folder.path(), &ledger);
    server.stop();
    let refused = gateway.charge("k").await;
    assert_eq!(refused.status_and_code(), (503, UNAVAILABLE.to_owned()), "{refused:?}");
    assert_ne!(refused.header("retry-after"), "");
    assert_eq!(ledger.count(), 0);
    server.restart();
    let executed = gateway.charge("k").await;
    assert_eq!((executed.status, executed.is_replayed()), (201, false), "{executed:?}");
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn an_answer_that_comes_while_the_database_is_away_is_held_back_until_it_is_stored() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let mut server = Postgres::start();
    let gateway = start(&server.create_database(), folder.path(), &ledger);
    let mut client =
        gateway.send_held(&ledger, "work", Request::charge("k").header("x-answer", "charged")).await;
    server.kill();
    ledger.release("work").await;
    gateway.until_metric("api_idempotency_store_error_total", 1.0).await;
    server.restart();
    let answer = client.read().await.unwrap();
    assert_eq!((answer.status, answer.text().as_str()), (201, "charged"), "{answer:?}");
    let retried = gateway.send(Request::charge("k").behave("hold=work").header("x-answer", "charged")).await;
    assert!(retried.is_replayed(), "{retried:?}");
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn gateways_behind_a_pooler_in_transaction_mode_lose_no_answer_and_repeat_no_work() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let server = Postgres::start();
    let database = server.create_database();
    let pooler = PgBouncer::start(&server);
    let store = format!("{}?prepared=off", pooler.url(name(&database)));
    let gateways = [start(&store, folder.path(), &ledger), start(&store, folder.path(), &ledger)];
    let mut crowd = Crowd::of(&[gateways[0].address, gateways[1].address]);
    crowd.progress(300).await;
    let counts = crowd.check(&gateways[0], &ledger).await;
    assert_eq!((counts.completed, counts.unknown, counts.begun_late), (0, 0, 0), "{counts:?}");
}

#[tokio::test]
async fn a_gateway_with_another_scope_or_secret_is_refused_by_the_shared_database() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let store = shared_postgres();
    let _first = start(&store, folder.path(), &ledger);
    let (code, printed) =
        Gateway::refused(on(&store, folder.path(), &ledger).args(["--scope", "fixed:other"]));
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("--accept-identity-change"), "{printed}");
}
