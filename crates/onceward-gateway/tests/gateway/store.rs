//! A store that fails, is damaged, or belongs to another gateway.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;

use futures_util::future::join_all;
use onceward_testkit::wait::{self, seen};
use serde_json::json;

use crate::faults::Faults;
use crate::harness::{Gateway, Request, onceward};
use crate::ledger::Ledger;

const UNAVAILABLE: &str = "idempotency_store_unavailable";
const SIGABRT: i32 = 6;

#[tokio::test]
async fn a_full_disk_at_the_claim_refuses_and_sends_nothing() {
    let (_folder, ledger, faults, gateway) = Gateway::with_faults(&[]);
    faults.disk_is_full();
    let refused = gateway.charge("k").await;
    assert_eq!(refused.status_and_code(), (503, UNAVAILABLE.to_owned()));
    assert_ne!(refused.header("retry-after"), "");
    assert_eq!(refused.json()["next_action"], "retry_same_key");
    assert_eq!(ledger.count(), 0);
    faults.disk_has_space();
    let executed = gateway.charge("k").await;
    assert_eq!((executed.status, executed.is_replayed()), (201, false), "{executed:?}");
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn a_full_disk_at_the_completion_holds_the_answer_back_until_it_is_unknown() {
    let (_folder, ledger, faults, gateway) = Gateway::with_faults(&[]);
    let mut client =
        gateway.send_held(&ledger, "work", Request::charge("k").header("x-answer", "charged")).await;
    faults.disk_is_full();
    ledger.release("work").await;
    gateway.until_metric("api_idempotency_store_error_total", 2.0).await;
    // Longer than any client waits.
    faults.time_passed(15);
    let answer = client.read().await.unwrap();
    assert_eq!(answer.status_and_code(), (504, "idempotency_outcome_unknown".to_owned()));
    assert!(!answer.text().contains("charged"));
    // The answer that could not be stored in time is stored when there is space, and is replayed.
    faults.disk_has_space();
    let retried = gateway.await_charge("k").await;
    assert_eq!((retried.status, retried.text().as_str(), retried.is_replayed()), (201, "charged", true));
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn a_disk_that_is_full_for_a_moment_only_delays_the_answer() {
    let (_folder, ledger, faults, gateway) = Gateway::with_faults(&[]);
    let mut client = gateway.send_held(&ledger, "work", Request::charge("k")).await;
    faults.disk_is_full();
    ledger.release("work").await;
    gateway.until_metric("api_idempotency_store_error_total", 1.0).await;
    faults.disk_has_space();
    assert_eq!(client.read().await.unwrap().status, 201);
    assert!(gateway.charge("k").await.is_replayed());
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn a_sync_that_fails_stops_the_process_before_any_client_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let faults = Faults::new(folder.path());
    let start = || Gateway::spawn(faults.on(&mut Gateway::command(folder.path(), ledger.address)));
    let mut gateway = start();
    let before = gateway.charge("before").await;
    assert_eq!(before.status, 201);
    let mut client = gateway.send_held(&ledger, "work", Request::charge("k")).await;
    faults.syncs_fail();
    ledger.release("work").await;
    assert!(client.read().await.is_none(), "an answer that is not durable was given");
    assert_eq!(gateway.ended().signal(), Some(SIGABRT));
    let log = gateway.log.rest();
    assert!(log.iter().any(|line| line.contains("did not confirm a write")), "{log:?}");
    // While syncs still fail, it does not start either.
    let mut again = Gateway::command(folder.path(), ledger.address);
    let (code, printed) = Gateway::refused(faults.on(&mut again));
    assert_ne!(code, Some(0), "{printed}");
    faults.syncs_work();
    let gateway = start();
    let retried = gateway.charge("before").await;
    assert_eq!((retried.is_replayed(), &retried.body), (true, &before.body));
    // The completion may or may not have reached the disk; either way it is not executed again.
    let retried = gateway.charge("k").await;
    assert!(retried.is_replayed() || retried.status == 409, "{retried:?}");
    assert_eq!(ledger.count(), 2);
}

#[tokio::test]
async fn a_gateway_whose_output_nothing_reads_serves_and_still_ends_when_a_sync_fails() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let faults = Faults::new(folder.path());
    let mut command = Gateway::command(folder.path(), ledger.address);
    let mut gateway = Gateway::spawn_unread(faults.on(command.args(["--logs-level", "trace"])));
    for key in ["a", "b"] {
        assert_eq!(gateway.charge(key).await.status, 201);
    }
    faults.syncs_fail();
    let mut client = gateway.connect().await;
    client.write(&Request::charge("k").bytes()).await;
    assert!(client.read().await.is_none(), "an answer that is not durable was given");
    assert_eq!(gateway.ended().signal(), Some(SIGABRT));
}

#[tokio::test]
async fn a_flipped_bit_in_a_record_refuses_that_key_alone_and_an_operator_can_resolve_it() {
    let (folder, ledger, mut gateway) = Gateway::with_ledger(&[]);
    for (key, answer) in [("damaged", "an answer to be damaged"), ("whole", "an answer to be kept")] {
        let first = gateway.send(Request::charge(key).header("x-answer", answer)).await;
        assert_eq!(first.status, 201);
    }
    gateway.signal("TERM");
    assert!(gateway.ended().success());
    flip(&folder.path().join("onceward.db"), b"an answer to be damaged");
    let gateway = Gateway::start(folder.path(), ledger.address, &[]);
    let refused = gateway.charge("damaged").await;
    assert_eq!(refused.status_and_code(), (503, UNAVAILABLE.to_owned()));
    let whole = gateway.charge("whole").await;
    assert_eq!((whole.is_replayed(), whole.text().as_str()), (true, "an answer to be kept"));
    assert_eq!(gateway.charge("other").await.status, 201);

    let operation = ledger.entries()[0].operation.clone();
    let shown = gateway.ask_admin(Request::new("GET", &format!("/v1/operations/{operation}"))).await;
    assert_eq!(shown.status_and_code(), (503, "record_unreadable".to_owned()));
    let verdict = json!({
        "verdict": "completed",
        "reason": "the API shows the charge",
        "reply": { "status": 201, "headers": {}, "body": "found again" },
    });
    // A damaged record has no readable window, so an operation id with a window does not match it.
    assert_eq!(gateway.resolve(folder.path(), &operation, &verdict).await.status, 400);
    let (record, _window) = operation.split_once('-').unwrap();
    let resolved = gateway.resolve(folder.path(), record, &verdict).await;
    assert_eq!(resolved.status, 200, "{resolved:?}");
    let retried = gateway.charge("damaged").await;
    assert_eq!((retried.status, retried.text().as_str()), (201, "found again"), "{retried:?}");
    assert_eq!(ledger.count(), 3);
}

/// Flips one bit in every copy of these bytes, and asserts that there is one.
fn flip(file: &Path, bytes: &[u8]) {
    let mut content = std::fs::read(file).unwrap();
    let found: Vec<usize> = (0..content.len()).filter(|start| content[*start..].starts_with(bytes)).collect();
    assert!(!found.is_empty());
    for start in found {
        content[start] ^= 1;
    }
    std::fs::write(file, content).unwrap();
}

#[tokio::test]
async fn another_scope_namespace_or_secret_is_refused_because_every_key_would_be_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let upstream = format!("http://{}", ledger.address);
    let command = |identity: &[&str]| {
        let mut command = Gateway::command_without_upstream(folder.path());
        command.args(["--listen", "127.0.0.1:0", "--upstream", &upstream]).args(identity);
        command.env("TEST_SECRET", "a secret of sixteen bytes or more");
        command
    };
    let mine = ["--scope", "fixed:test"];
    let mut gateway = Gateway::spawn(&mut command(&mine));
    assert_eq!(gateway.charge("k").await.status, 201);
    gateway.kill();
    let others: [&[&str]; 3] = [
        &["--scope", "fixed:other"],
        &["--scope", "fixed:test", "--namespace", "other"],
        &["--scope", "fixed:test", "--secret", "{ env = \"TEST_SECRET\" }"],
    ];
    for other in others {
        let (code, printed) = Gateway::refused(&mut command(other));
        assert_eq!(code, Some(1), "{other:?}: {printed}");
        assert!(printed.contains("every stored key would be forgotten"), "{other:?}: {printed}");
        assert!(printed.contains("--accept-identity-change"), "{other:?}: {printed}");
    }
    let mut gateway = Gateway::spawn(&mut command(&mine));
    assert!(gateway.charge("k").await.is_replayed());
    gateway.kill();
    let accepted = ["--scope", "fixed:other", "--accept-identity-change"];
    let gateway = Gateway::spawn(&mut command(&accepted));
    assert!(!gateway.charge("k").await.is_replayed());
    let log = gateway.stop();
    let warnings: Vec<&str> =
        log.lines().filter(|line| line.contains("identity of the store was changed")).collect();
    let [warning] = warnings[..] else { panic!("not logged once: {log}") };
    for word in ["WARN", "another scope", "fixed:other", "default", "execute again"] {
        assert!(warning.contains(word), "{word}: {warning}");
    }
    // The change was accepted, so the next start does not report it.
    let gateway = Gateway::spawn(&mut command(&accepted));
    assert!(gateway.charge("k").await.is_replayed());
    assert_eq!(ledger.count(), 2);
    assert!(!gateway.stop().contains("was changed"), "nothing changed");
    let keyed =
        ["--scope", "fixed:other", "--secret", "{ env = \"TEST_SECRET\" }", "--accept-identity-change"];
    let log = Gateway::spawn(&mut command(&keyed)).stop();
    assert!(log.contains("another secret") && !log.contains("sixteen"), "{log}");
}

#[tokio::test]
async fn a_second_gateway_on_the_same_file_is_refused() {
    let (folder, ledger, gateway) = Gateway::with_ledger(&[]);
    let (code, printed) = Gateway::refused(&mut Gateway::command(folder.path(), ledger.address));
    assert_eq!(code, Some(1), "{printed}");
    assert!(
        printed.contains(&gateway.child.id().to_string()),
        "it does not name the process that has it: {printed}"
    );
    assert_eq!(gateway.charge("k").await.status, 201);
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn where_a_route_allows_it_requests_pass_marked_while_the_store_is_away_and_are_protected_again_after()
{
    let (_folder, ledger, faults, gateway) = Gateway::with_faults(&["--store-down", "pass"]);
    faults.disk_is_full();
    for passed in 1..=2 {
        let answer = gateway.charge("k").await;
        assert_eq!((answer.status, answer.header("onceward-store")), (201, "unavailable"), "{answer:?}");
        assert_eq!(ledger.count(), passed);
    }
    faults.disk_has_space();
    let executed = gateway.charge("k").await;
    assert_eq!((executed.status, executed.header("onceward-store")), (201, ""));
    assert!(gateway.charge("k").await.is_replayed());
    assert_eq!(ledger.count(), 3);
}

/// How many operations are in a state.
async fn operations(gateway: &Gateway, state: &str) -> usize {
    let listed =
        gateway.ask_admin(Request::new("GET", &format!("/v1/operations?state={state}&limit=1000"))).await;
    listed.json()["operations"].as_array().unwrap().len()
}

/// Claims many keys while no sync ends, and lets so many seconds pass before they end again.
async fn stall_while_keys_are_claimed(seconds: u64) {
    const KEYS: usize = 300;
    let (_folder, ledger, faults, gateway) = Gateway::with_faults(&[]);
    assert_eq!(gateway.charge("before").await.status, 201);
    faults.syncs_stall();
    let keys: Vec<String> = (0..KEYS).map(|n| format!("key-{n}")).collect();
    // Each is answered when its claim has waited for as long as a claim may.
    for refused in join_all(keys.iter().map(|key| gateway.charge(key))).await {
        assert_eq!(refused.status_and_code(), (503, UNAVAILABLE.to_owned()), "{refused:?}");
        assert_eq!(refused.json()["next_action"], "retry_same_key");
    }
    faults.time_passed(seconds);
    faults.syncs_go_on();
    // The batch that was being synced is written late. Its claims are found, and released.
    gateway.until_metric("api_idempotency_given_back_total", 1.0).await;
    wait::until("no operation is in progress or unknown", async || {
        let unsettled = [operations(&gateway, "in_progress").await, operations(&gateway, "unknown").await];
        seen(unsettled, |counts| *counts == [0, 0])
    })
    .await;
    assert_eq!(gateway.metric_or_zero("api_idempotency_unknown").await, 0.0);
    assert_eq!(gateway.metric_or_zero("api_idempotency_lost_claim_dropped_total").await, 0.0);
    assert_eq!(ledger.count(), 1, "something was sent while the store stalled");
    for key in &keys {
        let executed = gateway.charge(key).await;
        assert_eq!((executed.status, executed.is_replayed()), (201, false), "{key}: {executed:?}");
    }
    assert_eq!(ledger.count(), 1 + KEYS);
    for key in &keys {
        assert!(gateway.charge(key).await.is_replayed());
    }
    assert_eq!(ledger.count(), 1 + KEYS);
}

#[tokio::test]
async fn a_disk_that_stalls_for_longer_than_a_claims_patience_leaves_no_key_unknown() {
    stall_while_keys_are_claimed(0).await;
}

#[tokio::test]
async fn a_disk_that_stalls_for_longer_than_a_lease_leaves_no_key_unknown() {
    stall_while_keys_are_claimed(600).await;
}

#[tokio::test]
async fn an_index_that_has_lost_a_key_is_found_by_the_check() {
    let (folder, ledger, gateway) = Gateway::with_ledger(&[]);
    assert_eq!(gateway.charge("k").await.status, 201);
    let operation = ledger.entries()[0].operation.clone();
    gateway.stop();
    let check = || {
        let arguments = ["check", "--store", "sqlite:onceward.db", "--scope", "fixed:test"];
        let output = onceward(folder.path()).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, text) = check();
    assert!(code == Some(0) && text.contains("is not damaged"), "{text}");
    let digits = |place: usize| u8::from_str_radix(&operation[2 * place..2 * place + 2], 16).unwrap();
    let id: Vec<u8> = (0..16).map(digits).collect();
    let file = folder.path().join("onceward.db");
    let mut content = std::fs::read(&file).unwrap();
    let copies: Vec<usize> = (0..content.len()).filter(|start| content[*start..].starts_with(&id)).collect();
    let [_, one] = copies[..] else { panic!("the id stands in the table and in its index: {copies:?}") };
    content[one] ^= 1;
    std::fs::write(&file, content).unwrap();
    let (code, text) = check();
    assert!(code == Some(1) && text.contains("is damaged") && text.contains("REINDEX"), "{text}");
}
