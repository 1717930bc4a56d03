//! A primary that dies between claim and completion, and the standby that takes its place.

use onceward_testkit::servers::Postgres;

use super::start;
use crate::harness::Request;
use crate::ledger::Ledger;

#[tokio::test]
async fn a_synchronous_standby_that_is_promoted_between_claim_and_completion_has_the_claim_and_takes_the_answer()
 {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let mut primary = Postgres::start();
    let database = primary.create_database();
    let standby = primary.start_standby();
    // The URL names both machines; the gateway uses the one that accepts writes.
    let (first, second) = (primary.port(), standby.server().port());
    let (user, rest) = database.split_once('@').unwrap();
    let name = rest.split_once('/').unwrap().1;
    let store = format!("{user}@127.0.0.1:{first},127.0.0.1:{second}/{name}");
    let gateway = start(&store, folder.path(), &ledger);
    let before = gateway.send(Request::charge("before").header("x-answer", "kept")).await;
    assert_eq!(before.status, 201, "{before:?}");

    let charge = || Request::charge("k").behave("hold=work").header("x-answer", "charged");
    let mut client = gateway.connect().await;
    client.write(&charge().bytes()).await;
    ledger.held("work").await;
    primary.kill();
    let promoted = standby.promote();
    ledger.release("work").await;
    let answer = client.read().await.unwrap();
    assert_eq!((answer.status, answer.text().as_str()), (201, "charged"), "{answer:?}");
    let retried = gateway.send(charge()).await;
    assert!(retried.is_replayed(), "{retried:?}");
    let kept = gateway.send(Request::charge("before").header("x-answer", "kept")).await;
    assert!(kept.is_replayed(), "{kept:?}");
    assert_eq!(ledger.count(), 2);
    drop(promoted);
}
