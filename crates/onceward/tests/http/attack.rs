//! Attacks on single execution by clients that know HTTP well.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response};
use http_body_util::Full;
use onceward::fingerprint::Parts;
use onceward::http::{
    Disposition, Handled, IdempotencyLayer, InProgress, Policy, Routes, ScopeRules, StoreDown,
};
use onceward::store::{Stamped, Store as _};
use onceward::{
    Claim, Claimed, Fence, Key, OnLapse, Operation, Profile, RecoveryPoint, Scope, Terms, claim::OwnerToken,
};
use onceward_testkit::{Fault, FaultyStore};
use tower::limit::ConcurrencyLimit;
use tower::{Layer as _, Service as _};

use super::{SECOND, doing, memory, post, scoped_by, with, without, world, world_on};

#[tokio::test(start_paused = true)]
async fn a_scope_header_that_is_named_by_connection_is_refused() {
    let tenant = world(Policy::new()).await;
    let got = tenant.send(with(post("k", "{}"), "connection", "close, X-Tenant")).await;
    assert_eq!(got.problem(), (401, "idempotency_scope_missing".to_owned()));
    assert!(got.json()["detail"].as_str().unwrap().contains("Connection"), "{got:?}");

    let scope = ScopeRules::parse(["authorization"]).unwrap();
    let keyed = scoped_by(scope).await;
    let request = with(post("k", "{}"), "authorization", "Bearer sk_1");
    assert_eq!(keyed.send(with(request, "connection", "authorization")).await.problem().0, 401);
    let unrelated = with(with(post("k", "{}"), "authorization", "Bearer sk_1"), "connection", "x-tenant");
    assert_eq!(keyed.send(unrelated).await.status, 201);
    assert_eq!((tenant.ledger(), keyed.ledger()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_connection_header_is_read_even_if_a_member_is_not_utf_8() {
    let world = world(Policy::new()).await;
    let mut request = post("k", "{}");
    let strange = HeaderValue::from_bytes(b"\xff, idempotency-key").unwrap();
    request.headers_mut().insert("connection", strange);
    assert_eq!(world.send(request).await.problem(), (400, "idempotency_key_invalid".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn an_interim_status_is_no_answer_whatever_the_service_calls_it() {
    let world = world(Policy::new()).await;
    assert_eq!(world.send(doing("word:completed:101", "k", "{}")).await.problem().0, 502);
    assert_eq!(world.send(post("k", "{}")).await.problem(), (409, "idempotency_outcome_unknown".to_owned()));
    assert_eq!(world.ledger(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_saw_the_first_one_running_does_not_go_through_when_the_store_goes_away() {
    let away = Arc::new(AtomicBool::new(false));
    let gone = away.clone();
    let store = FaultyStore::new(memory(), move |_| {
        if gone.load(Ordering::SeqCst) { Fault::Unavailable } else { Fault::None }
    });
    let policy = Policy::new().in_progress(InProgress::Wait).store_down(StoreDown::Pass);
    let world = world_on(store, policy).await;
    let sender = world.clone();
    let first = tokio::spawn(async move { sender.send(doing("hang", "k", "{}")).await });
    world.upstream.began.notified().await;
    let waiter = world.clone();
    let retry = tokio::spawn(async move { waiter.send(post("k", "{}")).await });
    onceward::plumbing::time::sleep(SECOND).await;
    away.store(true, Ordering::SeqCst);
    let told = retry.await.unwrap();
    assert_eq!((told.problem(), world.ledger()), ((409, "idempotency_key_in_progress".to_owned()), 1));
    away.store(false, Ordering::SeqCst);
    world.upstream.go.notify_one();
    assert_eq!(first.await.unwrap().status, 201);
}

#[tokio::test(start_paused = true)]
async fn a_retry_does_not_go_through_while_this_process_has_not_stored_the_first_ones_outcome() {
    let away = Arc::new(AtomicBool::new(false));
    let gone = away.clone();
    let store = FaultyStore::new(memory(), move |_| {
        if gone.load(Ordering::SeqCst) { Fault::Unavailable } else { Fault::None }
    });
    let world = world_on(store, Policy::new().store_down(StoreDown::Pass)).await;
    let sender = world.clone();
    let first = tokio::spawn(async move { sender.send(doing("hang", "k", "{}")).await });
    world.upstream.began.notified().await;
    away.store(true, Ordering::SeqCst);
    let refused = (503, "idempotency_store_unavailable".to_owned());
    assert_eq!((world.send(post("k", "{}")).await.problem(), world.ledger()), (refused.clone(), 1));
    // Its answer came and cannot be stored yet, so its caller was told to wait.
    world.upstream.go.notify_one();
    assert_eq!(first.await.unwrap().problem(), (504, "idempotency_outcome_unknown".to_owned()));
    assert_eq!((world.send(post("k", "{}")).await.problem(), world.ledger()), (refused, 1));
    assert_eq!(world.send(post("other", "{}")).await.header("onceward-store"), Some("unavailable"));
    away.store(false, Ordering::SeqCst);
    onceward::plumbing::time::sleep(SECOND * 60).await;
    assert!(world.send(post("k", "{}")).await.is_replay());
    assert_eq!(world.ledger(), 2);
}

#[tokio::test(start_paused = true)]
async fn work_that_is_taken_over_goes_by_the_lease_that_it_was_claimed_with() {
    let on_lapse = OnLapse::Resume { attempts: 3, within: SECOND * 600 };
    let world = world(Policy::new().on_lapse(on_lapse)).await;
    let request = post("k", "{}");
    let fingerprint = Profile::default().fingerprint(&Parts {
        method: "POST",
        path: "/payments",
        query: None,
        headers: request.headers(),
        body: b"{}",
    });
    let terms = Terms { lease: SECOND * 2, on_lapse, ..Terms::default() };
    let claim = Claim::new(Scope::new("acme").unwrap(), Key::new("k").unwrap(), fingerprint);
    let Claimed::Reserved(lost) = world.engine.claim(claim.terms(terms).unwrap()).await.unwrap() else {
        panic!("the key is fresh")
    };
    let point = RecoveryPoint::new("charged", Bytes::new()).unwrap();
    assert_eq!(lost.checkpoint(point).await.unwrap(), onceward::engine::Tenure::Held);
    drop(lost);
    onceward::plumbing::time::sleep(SECOND * 3).await;

    // Half of two seconds is one, though the route's lease is a minute now.
    let layer = IdempotencyLayer::new(world.engine, world.scope, world.routes).unwrap();
    let inner = tower::service_fn(|_: Request<_>| async {
        Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let full = ConcurrencyLimit::with_semaphore(inner, Arc::new(tokio::sync::Semaphore::new(0)));
    let before = onceward::plumbing::time::instant();
    let response = layer.layer(full).call(request).await.unwrap();
    // Nothing was sent this time, so no answer is missing. Whether the owner before sent something is still unknown.
    assert_eq!((response.status().as_u16(), onceward::plumbing::time::instant() - before), (409, SECOND));
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_was_taken_over_answers_as_a_retry_would_be_answered() {
    let store = memory();
    let policy = Policy::new().in_progress(InProgress::Accepted);
    let world = world_on(store.clone(), policy).await;
    let layer = IdempotencyLayer::new(world.engine, world.scope, world.routes).unwrap();
    let inner = tower::service_fn(move |request: Request<_>| {
        let store = store.clone();
        async move {
            // Another process takes the operation over while this one works.
            let id = request.extensions().get::<Operation>().unwrap().id();
            let Stamped { mut record, version } = store.load(id).await.unwrap().record.unwrap();
            record.fence = Fence::from_number(record.fence.as_number() + 1);
            record.owner = OwnerToken::named("another process");
            store.swap(id, Some(version), record).await.unwrap();
            Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::default()))
        }
    });
    let response = layer.layer(inner).call(post("k", "{}")).await.unwrap();
    assert_eq!(response.status(), 202);
    let handled = response.extensions().get::<Handled>().unwrap();
    assert!(matches!(handled.disposition, Disposition::Unanswered(_)), "{handled:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_cannot_forge_the_operation_by_spelling_its_headers_with_underscores() {
    let world = world(Policy::new()).await;
    let forge = |request: Request<Full<Bytes>>| {
        let request = with(request, "onceward_fence", "1");
        with(with(request, "onceward_recovery-point", "done"), "onceward_other", "kept")
    };
    world.send(forge(post("k", "{}"))).await;
    world.send(forge(without(post("k", "{}"), "idempotency-key"))).await;
    assert_eq!(world.ledger(), 2);
    let saw = world.upstream.saw.lock().unwrap().clone();
    assert!(!saw.contains_key("onceward_fence") && !saw.contains_key("onceward_recovery-point"), "{saw:?}");
    assert!(saw.contains_key("onceward_other"));
}

#[tokio::test(start_paused = true)]
async fn the_layer_meets_an_expect_header_and_removes_it() {
    let world = world(Policy::new()).await;
    world.send(with(post("k", "{}"), "expect", "100-continue")).await;
    assert!(!world.upstream.saw.lock().unwrap().contains_key("expect"));
    let unkeyed = without(with(post("k", "{}"), "expect", "100-continue"), "idempotency-key");
    world.send(unkeyed).await;
    assert!(world.upstream.saw.lock().unwrap().contains_key("expect"));
}

#[tokio::test(start_paused = true)]
async fn an_answer_whose_status_allows_no_body_has_none() {
    let world = world(Policy::new()).await;
    for status in [204, 304] {
        let key = format!("k{status}");
        let first = world.send(doing(&format!("status:{status}"), &key, "{}")).await;
        let replay = world.send(post(&key, "{}")).await;
        assert!(first.body.is_empty() && replay.body.is_empty() && replay.is_replay(), "{replay:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn head_is_refused_without_a_body() {
    let mut world = world(Policy::new()).await;
    world.routes = Routes::new(Policy::new()).unwrap().route("HEAD /payments", Policy::new()).unwrap();
    for (path, status) in [("/payments", 401), ("/.well-known/idempotency", 200)] {
        let mut request = without(post("k", "{}"), "x-tenant");
        (*request.method_mut(), *request.uri_mut()) = (Method::HEAD, path.parse().unwrap());
        let got = world.send(request).await;
        assert_eq!((got.status, got.body.len()), (status, 0));
        let length: usize = got.header("content-length").unwrap().parse().unwrap();
        assert!(length > 100, "{got:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_beyond_ascii_in_a_header_are_replayed_as_they_came() {
    let world = world(Policy::new()).await;
    let layer = IdempotencyLayer::new(world.engine, world.scope, world.routes).unwrap();
    let service = layer.layer(tower::service_fn(|_: Request<_>| async {
        let mut response = Response::new(Full::<Bytes>::from(&b"\x1f\x8b\x08 not text"[..]));
        let headers = response.headers_mut();
        headers.insert("x-name", HeaderValue::from_bytes(b"caf\xe9").unwrap());
        headers.insert("content-encoding", HeaderValue::from_static("gzip"));
        headers.insert("vary", HeaderValue::from_static("accept-encoding"));
        Ok::<_, std::convert::Infallible>(response)
    }));
    for _ in 0..2 {
        let response = tower::ServiceExt::oneshot(service.clone(), post("k", "{}")).await.unwrap();
        assert_eq!(response.headers()["x-name"].as_bytes(), b"caf\xe9");
        assert_eq!(
            (&response.headers()["content-encoding"], &response.headers()["vary"]),
            (&"gzip".parse().unwrap(), &"accept-encoding".parse().unwrap())
        );
        let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
        assert_eq!(&body[..], b"\x1f\x8b\x08 not text");
    }
}
