//! The published pages.

use http::Request;
use http_body_util::Full;
use onceward::OperationId;
use onceward::http::{KeyRule, Policy, Routes};

use super::{doing, post, world};

fn get(path: &str, headers: &[(&str, &str)]) -> Request<Full<bytes::Bytes>> {
    let request =
        headers.iter().fold(Request::get(path), |request, (name, value)| request.header(*name, *value));
    request.body(Full::default()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_policy_of_every_route_is_published_as_json() {
    let mut world = world(Policy::new()).await;
    let required = Policy::new().key(KeyRule::Required);
    world.routes = Routes::new(Policy::new()).unwrap().route("POST /payments/{id}", required).unwrap();
    let got = world.send(get("/.well-known/idempotency", &[("accept", "*/*")])).await;
    assert_eq!((got.status, got.header("content-type")), (200, Some("application/json")));
    let body = got.json();
    assert_eq!(body["header"], "Idempotency-Key");
    assert_eq!(body["routes"][0]["match"], "POST /payments/{id}");
    assert_eq!(body["routes"][0]["key"], "required");
    assert_eq!(body["routes"][1]["match"], "default");
    assert_eq!(body["routes"][1]["methods"], serde_json::json!(["POST", "PATCH"]));
    assert_eq!(body["routes"][1]["retention_seconds"], 86_400);
    assert_eq!(world.ledger(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_browser_gets_a_page_that_has_an_anchor_for_every_problem() {
    let world = world(Policy::new()).await;
    let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    let got = world.send(get("/.well-known/idempotency", &[("accept", browser)])).await;
    assert_eq!(got.header("content-type"), Some("text/html; charset=utf-8"));
    let page = String::from_utf8_lossy(&got.body).into_owned();
    assert!(page.contains("<td>1day<td>"), "{page}");
    for code in super::protocol_doc::codes() {
        assert!(page.contains(&format!("id=\"{code}\"")), "{code} has no anchor");
    }
    for accept in ["application/json, text/html", "text/html;q=0", "text/html;q=0.5, application/json"] {
        let got = world.send(get("/.well-known/idempotency", &[("accept", accept)])).await;
        assert_eq!(got.header("content-type"), Some("application/json"), "{accept}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_state_of_a_key_is_shown_to_its_own_caller_only_and_without_its_answer() {
    let world = world(Policy::new()).await;
    let path = "/.well-known/idempotency/status/a%2Fb";
    let own = || get(path, &[("x-tenant", "acme")]);
    assert_eq!(world.send(own()).await.problem(), (404, "idempotency_key_not_found".to_owned()));

    let sender = world.clone();
    let running = tokio::spawn(async move { sender.send(doing("hang", "a/b", "{}")).await });
    world.upstream.began.notified().await;
    let got = world.send(own()).await;
    assert_eq!((got.status, &got.json()["state"]), (200, &"in_progress".into()));
    assert!(got.header("retry-after").is_some());
    world.upstream.go.notify_one();
    running.await.unwrap();

    let got = world.send(own()).await;
    let operation = got.header("onceward-operation").unwrap();
    assert_eq!(
        got.json(),
        serde_json::json!({
            "state": "completed", "status": 201, "response_version": 1, "expires_at": "2027-01-16T08:00:00Z",
            "operation": operation
        })
    );
    assert_eq!(world.send(post("a/b", "{}")).await.header("onceward-operation"), Some(operation));
    assert_eq!(got.header("cache-control"), Some("no-store"));
    assert_eq!(world.send(get(path, &[("x-tenant", "globex")])).await.problem().0, 404);
    assert_eq!(world.send(get(path, &[])).await.problem().0, 401);
    for nonsense in ["", "%C3%A9", &"x".repeat(256)] {
        let path = format!("/.well-known/idempotency/status/{nonsense}");
        assert_eq!(world.send(get(&path, &[("x-tenant", "acme")])).await.problem().0, 404, "{nonsense}");
    }

    world.send(doing("off", "lost", "{}")).await;
    let lost = world.send(get("/.well-known/idempotency/status/lost", &[("x-tenant", "acme")])).await;
    assert_eq!((&lost.json()["state"], &lost.json()["next_action"]), (&"unknown".into(), &"wait".into()));
    world.give_up(lost.header("onceward-operation").unwrap().parse::<OperationId>().unwrap().record()).await;
    let dead = world.send(get("/.well-known/idempotency/status/lost", &[("x-tenant", "acme")])).await;
    assert_eq!((&dead.json()["next_action"], dead.header("retry-after")), (&"contact".into(), None));
    world.send(doing("refused", "free", "{}")).await;
    let free = world.send(get("/.well-known/idempotency/status/free", &[("x-tenant", "acme")])).await;
    assert_eq!(free.json()["state"], "failed_retryable");
    assert_eq!(world.send(post("free", "{}")).await.status, 201);
}
