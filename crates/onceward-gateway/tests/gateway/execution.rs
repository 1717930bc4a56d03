//! How often a key is executed.

use std::collections::BTreeMap;

use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::harness::{Client, Gateway, Port, Request, within};
use crate::ledger::Ledger;

#[tokio::test]
async fn a_retry_gets_the_first_answer_and_the_api_is_not_asked_again() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    let first = gateway.charge("k").await;
    assert_eq!(first.status, 201, "{first:?}");
    let second = gateway.charge("k").await;
    assert!(second.is_replayed());
    assert_eq!((second.status, &second.body), (201, &first.body));
    let [entry] = &ledger.entries()[..] else { panic!("{:?}", ledger.entries()) };
    assert_eq!((entry.method.as_str(), entry.path.as_str(), entry.key.as_str()), ("POST", "/charges", "k"));
    assert_ne!(entry.operation, "-");
}

#[tokio::test]
async fn work_goes_on_when_its_client_goes_away_and_the_retry_gets_its_answer() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    let client = gateway.send_held(&ledger, "work", Request::charge("k").header("x-answer", "done")).await;
    drop(client);
    assert_eq!(gateway.charge("k").await.status_and_code(), (409, "idempotency_key_in_progress".to_owned()));
    ledger.release("work").await;
    let retried = gateway.await_charge("k").await;
    assert_eq!((retried.status, retried.text().as_str()), (201, "done"));
    assert!(retried.is_replayed());
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn a_worker_that_settles_twice_because_the_first_answer_was_lost_learns_that_it_was_settled() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(folder.path(), Port::reserve().address, &[]);
    let claim = json!({ "scope": "jobs", "key": "k", "fingerprint": "invoice 7" });
    let claimed = gateway.change(folder.path(), "/v1/operations", &claim).await;
    assert_eq!(claimed.status, 201, "{claimed:?}");
    let claimed = claimed.json();
    let target = format!("/v1/operations/{}/settle", claimed["id"].as_str().unwrap());
    let settle = |answer: &str| {
        let reply = json!({ "status": 200, "headers": {}, "body": answer });
        json!({ "fence": claimed["fence"], "outcome": "completed", "reply": reply })
    };
    let first = gateway.change(folder.path(), &target, &settle("done")).await;
    assert_eq!((first.status, &first.json()["by"]), (200, &json!("this")), "{first:?}");
    let again = gateway.change(folder.path(), &target, &settle("done otherwise")).await;
    assert_eq!((again.status, &again.json()["by"]), (200, &json!("other")), "{again:?}");
    let replayed = gateway.change(folder.path(), "/v1/operations", &claim).await.json();
    assert_eq!((&replayed["decision"], &replayed["reply"]["body"]), (&json!("replay"), &json!("done")));
}

#[tokio::test]
async fn two_thousand_requests_with_one_key_at_once_are_one_execution() {
    const EACH: usize = 1000;
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    let (sender, mut received) = mpsc::unbounded_channel();
    for number in 0..2 * EACH {
        let (address, sender) = (gateway.address, sender.clone());
        tokio::spawn(async move {
            let mut request = Request::charge("k").behave("hold=work");
            if number % 2 == 0 {
                request = request.header("prefer", "wait=10");
            }
            sender.send(Client::connect(address).await.send(request).await).unwrap();
        });
    }
    drop(sender);
    ledger.held("work").await;
    // Clients that do not wait are answered at once; one of them may be the one whose request is executed.
    let mut answers = Vec::new();
    while answers.len() < EACH - 1 {
        answers.push(within("an answer to a client that does not wait", received.recv()).await.unwrap());
    }
    assert!(
        answers
            .iter()
            .all(|answer| answer.status_and_code() == (409, "idempotency_key_in_progress".to_owned()))
    );
    ledger.release("work").await;
    while let Some(answer) = within("the other answers", received.recv()).await {
        answers.push(answer);
    }
    let mut counts: BTreeMap<(u16, String, bool), usize> = BTreeMap::new();
    for answer in &answers {
        *counts.entry((answer.status, answer.code(), answer.is_replayed())).or_default() += 1;
    }
    assert_eq!(answers.len(), 2 * EACH);
    assert_eq!(counts.get(&(201, String::new(), false)), Some(&1), "{counts:?}");
    let attached = counts.get(&(201, String::new(), true)).copied().unwrap_or_default();
    let refused = counts.get(&(409, "idempotency_key_in_progress".to_owned(), false)).copied();
    assert_eq!(1 + attached + refused.unwrap_or_default(), 2 * EACH, "{counts:?}");
    assert!(attached >= EACH - 1, "{counts:?}");
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn a_request_that_was_never_sent_because_the_api_is_down_is_executed_by_the_next_try() {
    let folder = tempfile::tempdir().unwrap();
    let port = Port::reserve();
    let gateway = Gateway::start(folder.path(), port.address, &[]);
    for _ in 0..2 {
        let refused = gateway.charge("k").await;
        assert_eq!(refused.status_and_code(), (502, "idempotency_upstream_unreachable".to_owned()));
        assert_ne!(refused.header("retry-after"), "");
        assert_eq!(refused.json()["next_action"], "retry_same_key");
    }
    let ledger = Ledger::start_on(folder.path(), &port.address.to_string());
    let executed = gateway.charge("k").await;
    assert_eq!((executed.status, executed.is_replayed()), (201, false), "{executed:?}");
    assert!(gateway.charge("k").await.is_replayed());
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn a_host_that_does_not_resolve_proves_that_nothing_was_sent() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Gateway::command_without_scope(folder.path(), "http://api.invalid");
    let gateway = Gateway::spawn(command.args(["--scope", "fixed:test"]));
    for _ in 0..2 {
        let refused = gateway.charge("k").await;
        assert_eq!(refused.status_and_code(), (502, "idempotency_upstream_unreachable".to_owned()));
    }
    assert_eq!(gateway.metric_or_zero("api_idempotency_settle_retryable_total").await, 2.0);
}

#[tokio::test]
async fn a_tls_handshake_that_fails_proves_that_nothing_was_sent() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("https://{}", listener.local_addr().unwrap());
    let plain = tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let answer = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
            tokio::io::AsyncWriteExt::write_all(&mut socket, answer).await.unwrap();
            // The gateway gives up, and closes the connection.
            let mut received = Vec::new();
            let _ended = tokio::io::AsyncReadExt::read_to_end(&mut socket, &mut received).await;
            assert!(!String::from_utf8_lossy(&received).contains("charges"));
        }
    });
    let mut command = Gateway::command_without_scope(folder.path(), &upstream);
    let gateway = Gateway::spawn(command.args(["--scope", "fixed:test"]));
    for _ in 0..2 {
        let refused = gateway.charge("k").await;
        assert_eq!(refused.status_and_code(), (502, "idempotency_upstream_unreachable".to_owned()));
    }
    plain.abort();
    assert!(plain.await.unwrap_err().is_cancelled());
}

#[tokio::test]
async fn a_pooled_connection_that_the_api_closed_while_idle_is_replaced() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&["--upstream-keepalive", "all"]);
    for number in 0..20 {
        let key = format!("k{number}");
        let response = gateway.send(Request::charge(&key).behave("close-after=closed")).await;
        assert_eq!(response.status, 201, "{response:?}");
        ledger.held("closed").await;
    }
    assert_eq!(ledger.count(), 20);
}
