//! Single execution, whatever happens while it runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use onceward::http::{Body, IdempotencyLayer, InProgress, Policy, Routes};
use tower::limit::ConcurrencyLimit;
use tower::{Layer as _, Service as _, ServiceExt as _};

use super::{SECOND, doing, post, world};

#[tokio::test(start_paused = true)]
async fn a_client_that_disconnects_cancels_nothing_and_its_retry_replays() {
    let world = world(Policy::new().in_progress(InProgress::Wait)).await;
    let sending = world.send(doing("hang", "k", "{}"));
    tokio::select! {
        got = sending => panic!("{got:?}"),
        () = world.upstream.began.notified() => {}
    }
    // The response future is dropped, as hyper does when a client goes away.
    world.upstream.go.notify_one();
    let retry = world.send(post("k", "{}")).await;
    assert!(retry.is_replay());
    assert_eq!((retry.status, world.ledger()), (201, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_concurrent_requests_with_one_key_are_executed_once() {
    for in_progress in [InProgress::Conflict, InProgress::Wait] {
        let world = world(Policy::new().in_progress(in_progress)).await;
        let sending: Vec<_> = (0..1000)
            .map(|_| {
                let world = world.clone();
                tokio::spawn(async move { world.send(post("k", "{}")).await })
            })
            .collect();
        let mut executed = 0;
        for sent in sending {
            let got = sent.await.unwrap();
            match (got.status, got.is_replay()) {
                (201, true) => {}
                (201, false) => executed += 1,
                (status, _) => assert_eq!((status, in_progress), (409, InProgress::Conflict)),
            }
        }
        assert_eq!((world.ledger(), executed), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn every_status_is_stored_released_or_left_unknown_as_its_class_says() {
    for status in 200..=599 {
        let world = world(Policy::new()).await;
        let first = world.send(doing(&format!("status:{status}"), "k", "{}")).await;
        assert_eq!(first.status, status);
        let retry = world.send(post("k", "{}")).await;
        match status {
            401 | 425 | 429 => {
                assert_eq!(first.body, "execution 1 of {}");
                assert_eq!(first.header("onceward-outcome"), Some("retryable"));
                assert_eq!((retry.status, retry.is_replay(), world.ledger()), (201, false, 2), "{status}");
            }
            502..=504 => assert_eq!((retry.status, world.ledger()), (409, 1), "{status}"),
            _ => {
                assert!(retry.is_replay(), "{status}");
                assert_eq!((retry.status, &retry.body, world.ledger()), (status, &first.body, 1), "{status}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_interim_status_is_no_answer() {
    let world = world(Policy::new()).await;
    assert_eq!(world.send(doing("status:101", "k", "{}")).await.problem().0, 502);
    assert_eq!(world.send(post("k", "{}")).await.status, 409);
}

#[tokio::test(start_paused = true)]
async fn the_services_own_word_wins_and_is_not_passed_on() {
    let world = world(Policy::new()).await;
    let completed = world.send(doing("word:completed:503", "a", "{}")).await;
    assert_eq!((completed.status, completed.header("onceward-outcome")), (503, None));
    let retry = world.send(post("a", "{}")).await;
    assert_eq!((retry.status, retry.is_replay(), retry.header("onceward-outcome")), (503, true, None));

    let released = world.send(doing("word:retryable:500", "b", "{}")).await;
    assert_eq!((released.status, &released.body[..]), (500, &b"execution 2 of {}"[..]));
    assert_eq!(world.send(post("b", "{}")).await.status, 201);

    // A 2xx of unknown outcome must not look like a success.
    let unknown = world.send(doing("word:unknown:200", "c", "{}")).await;
    assert_eq!(unknown.problem(), (502, "idempotency_outcome_unknown".to_owned()));
    assert_eq!(unknown.json()["upstream_status"], 200);
    assert_eq!(world.send(post("c", "{}")).await.status, 409);
}

#[tokio::test(start_paused = true)]
async fn a_route_can_say_what_a_status_proves() {
    let policy = Policy::new().retryable([409]).unknown([500]);
    let world = world(policy).await;
    assert_eq!(world.send(doing("status:409", "a", "{}")).await.body, "execution 1 of {}");
    assert_eq!(world.send(post("a", "{}")).await.status, 201);
    assert_eq!(world.send(doing("status:500", "b", "{}")).await.problem().0, 500);
    assert_eq!(world.send(doing("status:429", "c", "{}")).await.status, 429);
    assert!(world.send(post("c", "{}")).await.is_replay());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_after_the_timeout_is_the_truth() {
    let world = world(Policy::new()).await;
    assert_eq!(world.send(doing("slow:40", "k", "{}")).await.problem().0, 504);
    assert_eq!(world.send(post("k", "{}")).await.status, 409);
    onceward::plumbing::time::sleep(SECOND * 20).await;
    assert!(world.send(post("k", "{}")).await.is_replay());
    assert_eq!(world.ledger(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_unprotected_route_passes_through_and_keeps_nothing() {
    let mut world = world(Policy::new()).await;
    world.routes = Routes::new(Policy::new()).unwrap().unprotected("POST /payments").unwrap();
    for number in 1..=2 {
        assert_eq!(world.send(doing("", "k", "{}")).await.status, 201);
        assert_eq!(world.ledger(), number);
    }
}

#[tokio::test(start_paused = true)]
async fn a_rust_handler_finds_its_operation_in_the_extensions() {
    let world = world(Policy::new()).await;
    let got = world.send(doing("operation", "k", "{}")).await;
    let saw = world.upstream.saw.lock().unwrap()["onceward-operation"].clone();
    assert_eq!(got.body, saw.to_str().unwrap());
}

/// Answers a plain request body, however it came.
type Inner =
    tower::util::BoxCloneService<Request<Body<Full<Bytes>>>, Response<Full<Bytes>>, std::convert::Infallible>;

#[tokio::test(start_paused = true)]
async fn requests_that_wait_for_another_hold_no_capacity_of_the_service() {
    let world = world(Policy::new().in_progress(InProgress::Wait)).await;
    let layer = IdempotencyLayer::new(world.engine, world.scope, world.routes).unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let (began, go) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let (counted, begins, goes) = (calls.clone(), began.clone(), go.clone());
    let inner = Inner::new(tower::service_fn(move |request: Request<Body<Full<Bytes>>>| {
        let (calls, begins, goes) = (counted.clone(), begins.clone(), goes.clone());
        async move {
            calls.fetch_add(1, Ordering::SeqCst);
            if request.headers()["x-do"] == "hang" {
                begins.notify_one();
                goes.notified().await;
            }
            Ok(Response::new(Full::default()))
        }
    }));
    // Two at once: one is taken by the request that hangs.
    let service = layer.layer(ConcurrencyLimit::new(inner, 2));
    let send = |what: &str, key: &str| {
        let (mut service, request) = (service.clone(), doing(what, key, "{}"));
        tokio::spawn(async move { service.ready().await.unwrap().call(request).await.unwrap().status() })
    };
    let hanging = send("hang", "k");
    began.notified().await;
    let waiting = [send("", "k"), send("", "k"), send("", "k")];
    onceward::plumbing::time::sleep(SECOND).await;
    assert_eq!(send("", "another").await.unwrap(), 200);
    go.notify_one();
    for sent in waiting.into_iter().chain([hanging]) {
        assert_eq!(sent.await.unwrap(), 200);
    }
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_not_ready_within_half_a_lease_is_not_called() {
    let world = world(Policy::new().timeout(SECOND * 300).respond_within(SECOND * 300)).await;
    let layer = IdempotencyLayer::new(world.engine, world.scope, world.routes).unwrap();
    let inner = Inner::new(tower::service_fn(|_| async { Ok(Response::new(Full::default())) }));
    let full = ConcurrencyLimit::with_semaphore(inner.clone(), Arc::new(tokio::sync::Semaphore::new(0)));
    // `ready` would wait for ever, so the service is called without it, as some servers do.
    let response = layer.layer(full).call(post("k", "{}")).await.unwrap();
    assert_eq!(response.status(), 502);
    let response = layer.layer(inner).oneshot(post("k", "{}")).await.unwrap();
    assert_eq!((response.status().as_u16(), response.headers().get("idempotency-replayed")), (200, None));
}

#[tokio::test(start_paused = true)]
async fn the_record_keeps_what_the_service_itself_says_of_its_failure() {
    let unsure = "the service answered 503, which leaves open whether the request was executed";
    for (what, state, cause) in [
        ("refused", "failed_retryable", "Refused"),
        ("late", "unknown", "Late"),
        ("off", "unknown", "Off"),
        ("status:503", "unknown", unsure),
        ("status:429", "failed_retryable", "the service answered 429: nothing was done"),
    ] {
        let world = world(Policy::new()).await;
        let got = world.send(doing(what, "k", "{}")).await;
        let record =
            world.engine.load(got.handled.operation.unwrap().record()).await.unwrap().unwrap().record;
        assert_eq!((record.state.name(), record.last_error.as_deref()), (state, Some(cause)), "{what}");
        assert_eq!((record.subject.method.as_str(), record.subject.path.as_str()), ("POST", "/payments"));
    }
}
