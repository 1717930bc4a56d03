//! Who executes, and how often.

use std::collections::BTreeMap;

use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::harness::{Gateway, Port, Request};
use crate::ledger::Ledger;

#[tokio::test]
async fn a_retry_gets_the_first_answer_and_the_api_is_not_asked_again() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let gateway = Gateway::start(folder.path(), ledger.address, &[]);
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
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let gateway = Gateway::start(folder.path(), ledger.address, &[]);
    let mut client = gateway.connect().await;
    client.write(&Request::charge("k").behave("hold=work").header("x-answer", "done").bytes()).await;
    ledger.held("work").await;
    drop(client);
    assert_eq!(gateway.charge("k").await.told(), (409, "idempotency_key_in_progress".to_owned()));
    ledger.release("work").await;
    let retried = gateway.await_charge("k").await;
    assert_eq!((retried.status, retried.text().as_str()), (201, "done"));
    assert!(retried.is_replayed());
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn a_worker_that_settles_twice_because_the_first_answer_was_lost_is_told_that_it_was_settled() {
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
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let gateway = Gateway::start(folder.path(), ledger.address, &[]);
    let (tell, mut told) = mpsc::unbounded_channel();
    for number in 0..2 * EACH {
        let (address, tell) = (gateway.address, tell.clone());
        tokio::spawn(async move {
            let mut request = Request::charge("k").behave("hold=work");
            if number % 2 == 0 {
                request = request.header("prefer", "wait=10");
            }
            let mut client = crate::harness::Client(tokio::net::TcpStream::connect(address).await.unwrap());
            tell.send(client.send(request).await).unwrap();
        });
    }
    drop(tell);
    ledger.held("work").await;
    // Whoever does not want to wait is answered at once; one of them may be the one that executes.
    let mut answers = Vec::new();
    while answers.len() < EACH - 1 {
        answers.push(told.recv().await.unwrap());
    }
    assert!(answers.iter().all(|answer| answer.told() == (409, "idempotency_key_in_progress".to_owned())));
    ledger.release("work").await;
    while let Some(answer) = told.recv().await {
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
async fn a_request_that_was_never_sent_because_nobody_listens_is_executed_by_the_next_try() {
    let folder = tempfile::tempdir().unwrap();
    let port = Port::reserve();
    let gateway = Gateway::start(folder.path(), port.address, &[]);
    for _ in 0..2 {
        let refused = gateway.charge("k").await;
        assert_eq!(refused.told(), (502, "idempotency_upstream_unreachable".to_owned()));
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
async fn a_name_that_nobody_knows_proves_that_nothing_was_sent() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Gateway::bare(folder.path());
    command.args(["--listen", "127.0.0.1:0", "--scope", "fixed:test", "--upstream", "http://api.invalid"]);
    let gateway = Gateway::spawn(&mut command);
    for _ in 0..2 {
        let refused = gateway.charge("k").await;
        assert_eq!(refused.told(), (502, "idempotency_upstream_unreachable".to_owned()));
    }
    assert_eq!(gateway.counted("api_idempotency_settle_retryable_total").await, 2.0);
}

#[tokio::test]
async fn an_api_that_does_not_speak_tls_when_it_should_proves_that_nothing_was_sent() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("https://{}", listener.local_addr().unwrap());
    let plain = tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let answer = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
            tokio::io::AsyncWriteExt::write_all(&mut socket, answer).await.unwrap();
            // The other side gives up, and closes.
            let mut heard = Vec::new();
            let _ended = tokio::io::AsyncReadExt::read_to_end(&mut socket, &mut heard).await;
            assert!(!String::from_utf8_lossy(&heard).contains("charges"));
        }
    });
    let mut command = Gateway::bare(folder.path());
    command.args(["--listen", "127.0.0.1:0", "--scope", "fixed:test", "--upstream", &upstream]);
    let gateway = Gateway::spawn(&mut command);
    for _ in 0..2 {
        let refused = gateway.charge("k").await;
        assert_eq!(refused.told(), (502, "idempotency_upstream_unreachable".to_owned()));
    }
    plain.abort();
    assert!(plain.await.unwrap_err().is_cancelled());
}

#[tokio::test]
async fn a_pooled_connection_that_the_api_closed_while_idle_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let gateway = Gateway::start(folder.path(), ledger.address, &["--upstream-keepalive", "all"]);
    for number in 0..20 {
        let key = format!("k{number}");
        let response = gateway.send(Request::charge(&key).behave("close-after=closed")).await;
        assert_eq!(response.status, 201, "{response:?}");
        ledger.held("closed").await;
    }
    assert_eq!(ledger.count(), 20);
}
