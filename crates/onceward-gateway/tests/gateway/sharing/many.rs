//! Many gateways on one store.

use bytes::Bytes;
use http_body_util::Full;
use onceward_testkit::servers::shared_postgres;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::crowd::Crowd;
use super::start;
use crate::harness::{Gateway, Port, Request, http2, within};
use crate::ledger::Ledger;

const REQUESTS: usize = 10_000;
/// Requests at once on one connection; the gateway allows a few more.
const STREAMS: usize = 250;
/// Short enough for a test to wait for, and long enough that a busy machine renews in time.
const SHORT_LEASE: [&str; 4] = ["--lease", "4s", "--timeout", "2s"];

/// Sends charges with one key over HTTP/2, all at once, and sends the statuses to a channel as they come.
async fn all_at_once(gateways: &[Gateway], key: &'static str, statuses: &mpsc::Sender<u16>) {
    for number in 0..REQUESTS / STREAMS {
        let gateway = gateways[number % gateways.len()].address;
        let socket = TcpStream::connect(gateway).await.unwrap();
        let sender = http2(socket).await;
        for _ in 0..STREAMS {
            let (mut sender, statuses) = (sender.clone(), statuses.clone());
            let request = http::Request::post(format!("http://{gateway}/charges"))
                .header("idempotency-key", key)
                .header("content-type", "application/json")
                .header("x-behave", "hold=work")
                .body(Full::new(Bytes::from_static(b"{}")))
                .unwrap();
            tokio::spawn(async move {
                sender.ready().await.unwrap();
                let status = sender.send_request(request).await.unwrap().status().as_u16();
                statuses.send(status).await.unwrap();
            });
        }
    }
}

#[tokio::test]
async fn ten_thousand_concurrent_requests_with_one_key_over_two_gateways_charge_once() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let store = shared_postgres();
    let gateways = [start(&store, folder.path(), &ledger), start(&store, folder.path(), &ledger)];
    let (sender, mut statuses) = mpsc::channel(REQUESTS);
    all_at_once(&gateways, "k", &sender).await;
    // One request is executed, and all others are refused meanwhile.
    for number in 1..REQUESTS {
        let status = within("the status of a refused request", statuses.recv()).await;
        assert_eq!(status, Some(409), "answer {number}");
    }
    ledger.held("work").await;
    assert_eq!(ledger.count(), 1);
    ledger.release("work").await;
    assert_eq!(within("the status of the executed request", statuses.recv()).await, Some(201));
    // Each gateway replays the answer, also the one that did not execute the request.
    for gateway in &gateways {
        let request =
            Request::new("POST", "/charges").header("idempotency-key", "k").behave("hold=work").body("{}");
        let replayed = gateway.send(request).await;
        assert!(replayed.is_replayed(), "{replayed:?}");
    }
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn three_gateways_of_which_one_is_killed_again_and_again_lose_no_answer_and_repeat_no_work() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let store = shared_postgres();
    let start = |listen: &str| {
        Gateway::spawn(super::on_port(&store, folder.path(), &ledger, listen).args(SHORT_LEASE))
    };
    let steady = [start("127.0.0.1:0"), start("127.0.0.1:0")];
    let port = Port::reserve();
    let third = || start(&port.address.to_string());
    let mut killed = third();
    let mut crowd = Crowd::of(&[steady[0].address, steady[1].address, port.address]);
    for round in 1..=5 {
        crowd.progress(60).await;
        // At least this request is being executed when the gateway is killed.
        let (key, hold) = (format!("held-{round}"), format!("hold=held-{round}"));
        let mut held = killed.connect().await;
        held.write(&Request::charge(&key).behave(&hold).bytes()).await;
        ledger.held(&key).await;
        killed.kill();
        assert!(held.read().await.is_none());
        // Another gateway knows that the key was being executed, and that the outcome is unknown.
        let answer = steady[0].await_charge(&key).await;
        assert_eq!(answer.status_and_code(), (409, "idempotency_outcome_unknown".to_owned()));
        killed = third();
    }
    let counts = crowd.check(&steady[1], &ledger).await;
    assert!(counts.answered >= 150, "{counts:?}");
}
