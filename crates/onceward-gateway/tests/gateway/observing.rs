//! Metrics and the operations API for operators, and routes that only observe.

use std::os::unix::fs::PermissionsExt as _;

use crate::faults::Faults;
use crate::harness::{Gateway, Request};
use crate::ledger::Ledger;

#[tokio::test]
async fn health_checks_answer_and_every_documented_metric_exists() {
    let (_folder, _ledger, gateway) = Gateway::with_ledger(&[]);
    for key in ["k", "k"] {
        gateway.charge(key).await;
    }
    assert_eq!(gateway.ask_admin(Request::new("GET", "/livez")).await.text(), "ok\n");
    let ready = gateway.ask_admin(Request::new("GET", "/readyz")).await;
    assert_eq!((ready.status, ready.json()["ready"].as_bool()), (200, Some(true)), "{ready:?}");

    let samples = gateway.metrics().await;
    let documented =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md")).unwrap();
    let names: Vec<&str> = documented
        .lines()
        .filter_map(|line| line.strip_prefix("| `api_idempotency_")?.split('`').next())
        // Those exist for routes with receipts only.
        .filter(|name| !name.starts_with("receipt_"))
        .collect();
    assert!(names.len() > 30, "{names:?}");
    for name in names {
        let name = format!("api_idempotency_{name}");
        assert!(
            samples.keys().any(|found| found.starts_with(&name)),
            "{name} is not in {:?}",
            samples.keys()
        );
    }
    assert!(samples.keys().all(|found| !found.contains("\"k\"") && !found.contains("fixed")), "{samples:?}");
    for (name, count) in [("reserve_created", 1.0), ("reserve_replay", 1.0), ("settle_completed", 1.0)] {
        assert_eq!(gateway.metric(&format!("api_idempotency_{name}_total")).await, count, "{name}");
    }
}

#[tokio::test]
async fn reads_from_the_same_machine_need_no_token_and_every_change_needs_the_one_beside_the_store() {
    let (folder, ledger, gateway) = Gateway::with_ledger(&[]);
    let lost = gateway.send(Request::charge("k").behave("reset")).await;
    assert_eq!(lost.status_and_code(), (502, "idempotency_outcome_unknown".to_owned()), "{lost:?}");

    let list = || Request::new("GET", "/v1/operations?state=unknown");
    let listed = gateway.ask_admin(list()).await;
    let id = listed.json()["operations"][0]["operation"].as_str().unwrap().to_owned();
    assert_eq!(id, ledger.entries()[0].operation, "operators and the API use one name");
    for (name, value) in [
        ("host", "evil.example"),
        ("x-forwarded-for", "10.0.0.1"),
        ("via", "1.1 proxy"),
        ("authorization", "Bearer wrong"),
    ] {
        let refused = gateway.ask_admin(list().header(name, value)).await;
        assert_eq!(refused.status, 401, "{name}: {refused:?}");
    }

    let path = format!("/v1/operations/{id}/resolve");
    let verdict = "{\"verdict\":\"completed\",\"reason\":\"seen at the bank\",\
                    \"reply\":{\"status\":201,\"body\":\"found\"}}";
    let resolve = || Request::new("POST", &path).body(verdict);
    assert_eq!(gateway.ask_admin(resolve()).await.status_and_code(), (401, "token_missing".to_owned()));
    let wrong = gateway.ask_admin(resolve().header("authorization", "Bearer onceward_wrong")).await;
    assert_eq!(wrong.status_and_code(), (401, "token_wrong".to_owned()));
    let retry = || Request::charge("k").behave("reset");
    assert_eq!(
        gateway.send(retry()).await.status_and_code(),
        (409, "idempotency_outcome_unknown".to_owned())
    );

    let file = folder.path().join("onceward.db.token");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let token = format!("Bearer {}", std::fs::read_to_string(file).unwrap().trim());
    let resolved = gateway.ask_admin(resolve().header("authorization", &token)).await;
    assert_eq!(resolved.status, 200, "{resolved:?}");
    let second = gateway.ask_admin(resolve().header("authorization", &token)).await;
    assert_eq!(second.status_and_code(), (409, "conflict".to_owned()), "{second:?}");
    let replayed = gateway.send(retry()).await;
    assert_eq!((replayed.status, replayed.is_replayed(), replayed.text().as_str()), (201, true, "found"));
    assert_eq!(ledger.count(), 1);
    // The listener for clients has none of these paths.
    assert_eq!(gateway.send(Request::new("GET", "/livez").behave("status=404")).await.status, 404);
    assert_eq!(ledger.entries().last().unwrap().path, "/livez");
}

#[tokio::test]
async fn a_route_that_only_observes_changes_nothing_and_counts_double_executions() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let observe = ["--mode", "observe", "--key", "required", "--logs-level", "info,onceward=trace"];
    let gateway = Gateway::start(folder.path(), ledger.address, &observe);
    let charge = || Request::charge("observed-key").behave("echo");
    for what in ["Completed", "Replayed"] {
        let answer = gateway.send(charge()).await;
        assert_eq!((answer.status, answer.is_replayed()), (201, false), "{answer:?}");
        assert!(answer.headers.iter().all(|(name, _)| !name.starts_with("idempotency-")), "{answer:?}");
        assert!(!answer.text().contains("onceward-"), "{answer:?}");
        gateway.logged(what);
    }
    let other = gateway.send(charge().body("{}")).await;
    assert_eq!(other.status, 201);
    gateway.logged("Mismatch");
    // A required key is missing, or is invalid.
    for request in [Request::new("POST", "/charges").body("{}"), Request::charge("a,b")] {
        assert_eq!(gateway.send(request).await.status, 201);
    }
    assert_eq!(ledger.count(), 5);
    for (name, count) in [
        ("reserve_created", 1.0),
        ("reserve_replay", 1.0),
        ("reserve_key_misuse", 1.0),
        ("key_missing", 1.0),
        ("key_invalid", 1.0),
    ] {
        assert_eq!(gateway.metric(&format!("api_idempotency_{name}_total")).await, count, "{name}");
    }
    assert_eq!(gateway.status_of("observed-key").await.status, 404, "what is only observed is no record");
}

#[tokio::test]
async fn an_observed_request_never_waits_for_an_operator_and_blocks_nothing_once_the_route_is_protected() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let faults = Faults::new(folder.path());
    let start = |mode: &str| {
        let mut command = Gateway::command(folder.path(), ledger.address);
        command.args(["--mode", mode, "--logs-level", "info,onceward=trace"]);
        Gateway::spawn(faults.on(&mut command))
    };
    let mut gateway = start("observe");
    assert_eq!(
        gateway.send(Request::charge("cut-off").behave("reset")).await.status_and_code(),
        (502, "upstream_broken".to_owned())
    );
    gateway.logged("Lost");
    let client = gateway.send_held(&ledger, "work", Request::charge("held")).await;
    gateway.logged("Created");
    gateway.kill();
    drop(client);

    let mut gateway = start("observe");
    // The lease of the gateway that was killed lapses.
    faults.time_passed(60 * 60);
    for key in ["held", "cut-off"] {
        assert_eq!(gateway.charge(key).await.status, 201, "{key}");
        gateway.logged("Unknown");
    }
    let listed = gateway.ask_admin(Request::new("GET", "/v1/operations?state=unknown")).await.json();
    assert_eq!(listed["operations"], serde_json::json!([]));
    for gauge in ["unknown", "oldest_unknown_age_seconds", "reconcile_scheduled_total"] {
        assert_eq!(gateway.metric_or_zero(&format!("api_idempotency_{gauge}")).await, 0.0, "{gauge}");
    }
    gateway.kill();

    let gateway = start("enforce");
    let before = ledger.count();
    for key in ["cut-off", "held"] {
        let first = gateway.charge(key).await;
        assert_eq!((first.status, first.is_replayed()), (201, false), "{key}: {first:?}");
        assert!(gateway.charge(key).await.is_replayed(), "{key}");
    }
    assert_eq!(ledger.count(), before + 2);
}

#[tokio::test]
async fn no_key_credential_or_body_reaches_the_log_even_if_everything_is_logged() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let upstream = format!("http://{}", ledger.address);
    let mut command = Gateway::command_without_scope(folder.path(), &upstream);
    let gateway = Gateway::spawn(command.args(["--scope", "authorization", "--logs-level", "trace"]));
    let charge = |how| {
        let request = Request::charge("order-secretkey").header("authorization", "Bearer sk_live_secretkey");
        request.behave(how).body("{\"card\":\"secretcard\"}")
    };
    let token = "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJzZWNyZXQifQ.secretsignature";
    let requests = [
        (charge("body=secretanswer"), 201),
        (charge("body=secretanswer"), 201),
        (charge("").body("{\"card\":\"secretcard2\"}"), 422),
        (Request { target: "/a?q=secretquery", ..charge("reset").header("x", "y") }, 422),
        (Request::charge("secret,key").header("authorization", "Bearer sk_live_secretkey"), 400),
        (Request::charge("secretkey2").header("authorization", token), 401),
        (Request::new("POST", "/a?q=secretquery").body("secretbody").behave("reset"), 502),
        (Request::new("GET", "/.well-known/idempotency/status/secretkey3"), 401),
    ];
    for (request, status) in requests {
        assert_eq!(gateway.send(request.clone()).await.status, status, "{request:?}");
    }
    let unknown = Request::charge("secretkey4").header("authorization", "Bearer sk_live_secretkey");
    assert_eq!(gateway.send(unknown.behave("reset")).await.status, 502);
    gateway.ask_admin(Request::new("GET", "/metrics").header("authorization", "Bearer secrettoken")).await;
    let log = gateway.stop();
    assert!(log.contains("got no whole answer from the upstream"), "{log}");
    let leaks: Vec<&str> = log.lines().filter(|line| line.contains("secret")).collect();
    assert!(leaks.is_empty(), "{leaks:#?}");
}
