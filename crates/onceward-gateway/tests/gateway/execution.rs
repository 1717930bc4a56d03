//! Execution and crash.

use crate::harness::{Gateway, Request};
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
async fn a_pooled_connection_that_the_api_closed_while_idle_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let gateway = Gateway::start(folder.path(), ledger.address, &[]);
    for number in 0..20 {
        let key = format!("k{number}");
        let response = gateway.send(Request::charge(&key).behave("close-after")).await;
        assert_eq!(response.status, 201, "{response:?}");
    }
    assert_eq!(ledger.count(), 20);
}
