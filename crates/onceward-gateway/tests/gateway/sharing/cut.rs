//! The network to the database, cut at each step of a claim and of a completion. The tests need a second thread for the wire,
//! because starting a gateway blocks one until the gateway has reached the database.

use onceward_testkit::servers::{Cut, Postgres, Wire};

use super::start;
use crate::harness::Request;
use crate::ledger::Ledger;

const CUTS: [Cut; 4] = [Cut::Before, Cut::Sent, Cut::Answered { bytes: 0 }, Cut::Answered { bytes: 7 }];

/// A database whose URL leads through the wire.
async fn database(server: &Postgres) -> (Wire, String) {
    let wire = Wire::to(server.port()).await;
    let url =
        server.create_database().replace(&format!(":{}/", server.port()), &format!(":{}/", wire.port()));
    (wire, url)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_cut_at_any_step_executes_once_or_is_released() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let server = Postgres::start();
    let (wire, store) = database(&server).await;
    let gateway = start(&store, folder.path(), &ledger);
    for (number, cut) in CUTS.into_iter().enumerate() {
        let key = format!("claim-cut-{number}");
        // The statement of the claim is the first one that has the key in it.
        wire.arm(&key, cut);
        let first = gateway.charge(&key).await;
        wire.made(number as u64 + 1).await;
        let times = || ledger.entries().iter().filter(|entry| entry.key == key).count();
        match (first.status, first.code().as_str()) {
            (201, _) => assert_eq!(times(), 1, "{cut:?}"),
            (503, "idempotency_store_unavailable") => assert_eq!(times(), 0, "{cut:?}"),
            _ => panic!("{cut:?} got {first:?}"),
        }
        // A claim that was written and not used is released in the background, so the key can be executed.
        let retried = gateway.await_charge(&key).await;
        assert_eq!(retried.status, 201, "{cut:?}: {retried:?}");
        assert_eq!(times(), 1, "{cut:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_that_is_cut_at_any_step_is_stored_once_before_it_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let server = Postgres::start();
    let (wire, store) = database(&server).await;
    let gateway = start(&store, folder.path(), &ledger);
    for (number, cut) in CUTS.into_iter().enumerate() {
        let (key, hold) = (format!("completion-cut-{number}"), format!("hold=work-{number}"));
        let charge = || Request::charge(&key).behave(&hold).header("x-answer", &key);
        let mut client = gateway.connect().await;
        client.write(&charge().bytes()).await;
        ledger.held(&format!("work-{number}")).await;
        // Now that it is claimed, the next statement that has the key in it stores the answer.
        wire.arm(&key, cut);
        ledger.release(&format!("work-{number}")).await;
        let answer = client.read().await.unwrap();
        wire.made(number as u64 + 1).await;
        assert_eq!((answer.status, answer.text()), (201, key.clone()), "{cut:?}: {answer:?}");
        let retried = gateway.send(charge()).await;
        assert!(retried.is_replayed(), "{cut:?}: {retried:?}");
        assert_eq!(ledger.count(), number + 1, "{cut:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_is_cut_under_load_loses_no_answer_and_repeats_no_work() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let server = Postgres::start();
    let (wire, store) = database(&server).await;
    let gateways = [start(&store, folder.path(), &ledger), start(&store, folder.path(), &ledger)];
    let mut crowd = super::crowd::Crowd::of(&[gateways[0].address, gateways[1].address]);
    for _ in 0..10 {
        crowd.progress(40).await;
        wire.cut();
    }
    crowd.progress(40).await;
    crowd.check(&gateways[1], &ledger).await;
}
