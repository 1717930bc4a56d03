//! What is counted, and under which name.

use onceward::engine::{FindResult, Observation, Observer as _};
use onceward_gateway::telemetry::metrics::{Batches, Handled};

use super::*;

/// The value of one line of the metrics.
fn value(text: &str, line: &str) -> f64 {
    let found = text.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("{line} is not in\n{text}")).parse().unwrap()
}

fn of_route(text: &str, name: &str) -> f64 {
    value(text, &format!("api_idempotency_{name}{{route=\"{ROUTE}\"}}"))
}

#[tokio::test]
async fn every_counter_has_its_exact_name_and_begins_at_zero_for_every_route() {
    let text = Bench::new().await.text();
    for name in [
        "reserve_created_total",
        "reserve_replay_total",
        "reserve_in_progress_total",
        "reserve_key_misuse_total",
        "reserve_failed_retry_total",
        "reserve_unknown_total",
        "store_error_total",
        "zombie_key_total",
        "ttl_pruned_total",
        "reconcile_scheduled_total",
        "reconcile_resolved_total",
        "reconcile_failed_total",
        "fenced_total",
        "contradiction_total",
        "suspicious_key_total",
        "expiry_suspended_total",
        "unknown",
        "dead_letters",
        "oldest_unknown_age_seconds",
    ] {
        for route in [ROUTE, "default", "operations", "other"] {
            assert_eq!(value(&text, &format!("api_idempotency_{name}{{route=\"{route}\"}}")), 0.0, "{name}");
        }
    }
    assert!(!text.contains("otel_scope") && !text.contains("target_info"), "{text}");
}

#[test]
fn every_observation_is_counted_under_its_name_and_unknown_routes_under_other() {
    use Observation as O;
    let metrics = Metrics::new([ROUTE].into_iter()).unwrap();
    for (what, name) in [
        (O::Created, "reserve_created_total"),
        (O::Reclaimed, "reserve_failed_retry_total"),
        (O::Mismatch, "reserve_key_misuse_total"),
        (O::InProgress, "reserve_in_progress_total"),
        (O::Unknown, "reserve_unknown_total"),
        (O::Lapsed, "zombie_key_total"),
        (O::Swept, "ttl_pruned_total"),
        (O::ReconcileScheduled, "reconcile_scheduled_total"),
        (O::Reconciled, "reconcile_resolved_total"),
        (O::DeadLettered, "reconcile_failed_total"),
        (O::Fenced, "fenced_total"),
        (O::Contradiction, "contradiction_total"),
        (O::StoreError, "store_error_total"),
        (O::ExpirySuspended, "expiry_suspended_total"),
    ] {
        metrics.observe(ROUTE, id("k"), what);
        metrics.observe("POST /somewhere/else", id("k"), what);
        let text = metrics.text();
        assert_eq!(of_route(&text, name), 1.0, "{name}");
        assert_eq!(value(&text, &format!("api_idempotency_{name}{{route=\"other\"}}")), 1.0, "{name}");
    }
    assert!(!metrics.text().contains("somewhere"));
}

#[test]
fn every_find_is_counted_by_its_route_and_its_result() {
    let metrics = Metrics::new([ROUTE].into_iter()).unwrap();
    for result in FindResult::ALL {
        let line = |route: &str| {
            let result = result.name();
            format!("api_idempotency_reconcile_finds_total{{result=\"{result}\",route=\"{route}\"}}")
        };
        assert_eq!(value(&metrics.text(), &line(ROUTE)), 0.0);
        metrics.observe(ROUTE, id("k"), Observation::Found(result));
        metrics.observe("POST /somewhere/else", id("k"), Observation::Found(result));
        let text = metrics.text();
        assert_eq!((value(&text, &line(ROUTE)), value(&text, &line("other"))), (1.0, 1.0));
    }
    assert!(!metrics.text().contains("somewhere"));
}

#[tokio::test]
async fn only_routes_with_receipts_tell_whether_their_voids_release() {
    let bench = Bench::new().await;
    for name in ["receipt_voids_controlled", "receipt_voids_suspended"] {
        assert_eq!(of_route(&bench.text(), name), 0.0);
        assert_eq!(bench.text().matches(&format!("\napi_idempotency_{name}{{")).count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn what_an_engine_does_is_counted_for_its_route() {
    let bench = Bench::new().await;
    bench.run("k", "body", done()).await;
    bench.run("k", "body", done()).await;
    bench.run("k", "another body", done()).await;
    bench.run("free", "body", Outcome::Retryable("refused".to_owned())).await;
    bench.run("free", "body", done()).await;
    let lost = bench.lose("lost").await;
    bench.run("lost", "body", done()).await;
    drop(bench.engine.claim(claim("zombie", "body")).await.unwrap());
    drop(bench.engine.claim(claim("zombie", "body")).await.unwrap());
    bench.clock.advance(61 * SECOND);
    bench.engine.sweep_leases().await.unwrap();
    let text = bench.text();
    for (name, expected) in [
        ("reserve_created_total", 4.0),
        ("reserve_replay_total", 1.0),
        ("reserve_key_misuse_total", 1.0),
        ("reserve_failed_retry_total", 1.0),
        ("reserve_unknown_total", 1.0),
        ("reserve_in_progress_total", 1.0),
        ("zombie_key_total", 1.0),
        ("reconcile_scheduled_total", 2.0),
        ("reconcile_resolved_total", 0.0),
        ("settle_completed_total", 2.0),
    ] {
        assert_eq!(of_route(&text, name), expected, "{name}");
    }
    let resolve = r#"{"verdict":"retryable","reason":"never arrived"}"#;
    bench.operate(Method::POST, &format!("/v1/operations/{lost}/resolve"), resolve).await;
    assert_eq!(of_route(&bench.text(), "reconcile_resolved_total"), 1.0);
    assert!(!bench.text().contains("acme") && !bench.text().contains("zombie\""));
}

#[tokio::test(start_paused = true)]
async fn the_unknown_outcomes_in_the_store_are_counted_when_somebody_asks() {
    let bench = Bench::new().await;
    bench.lose("a").await;
    bench.clock.advance(100 * SECOND);
    bench.lose("b").await;
    bench.bury("b").await;
    bench.clock.advance(20 * SECOND);
    let request = request(Method::GET, "/metrics", "127.0.0.1:1").body(Body::empty()).unwrap();
    let answer = to_bytes(bench.send(request).await.into_body(), 1 << 20).await.unwrap();
    let text = String::from_utf8(answer.to_vec()).unwrap();
    assert_eq!(of_route(&text, "unknown"), 2.0);
    assert_eq!(of_route(&text, "dead_letters"), 1.0);
    assert_eq!(of_route(&text, "oldest_unknown_age_seconds"), 120.0);
    assert_eq!(of_route(&text, "reconcile_failed_total"), 1.0);
}

#[tokio::test]
async fn times_flights_and_batches_are_measured() {
    let bench = Bench::new().await;
    let metrics = &bench.metrics;
    let flight = metrics.in_flight();
    metrics.request(ROUTE, Handled::Replayed, 0.003);
    metrics.upstream(ROUTE, 0.2);
    metrics.batches(|| Batches { batches: 2, writes: 7, statements: 9 });
    bench.run("k", "body", done()).await;
    let text = bench.text();
    assert_eq!(value(&text, "api_idempotency_in_flight"), 1.0);
    assert_eq!(value(&text, "api_idempotency_batch_size"), 3.5);
    assert_eq!(value(&text, "api_idempotency_store_writes_total"), 7.0);
    assert_eq!(
        value(&text, "api_idempotency_store_swap_seconds_count"),
        3.0,
        "its identity, a claim, a completion"
    );
    let labels = format!("{{handled=\"replayed\",route=\"{ROUTE}\"}}");
    assert_eq!(value(&text, &format!("api_idempotency_request_seconds_count{labels}")), 1.0);
    assert_eq!(of_route(&text, "upstream_seconds_count"), 1.0);
    drop(flight);
    assert_eq!(value(&bench.text(), "api_idempotency_in_flight"), 0.0);
}
