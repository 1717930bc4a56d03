//! Whether it runs, and whether it should get requests.

use std::sync::atomic::{AtomicBool, Ordering};

use onceward_testkit::{Call, Fault, FaultyStore};

use super::*;

async fn ready(bench: &Bench) -> (StatusCode, Value) {
    let response =
        bench.send(request(Method::GET, "/readyz", "10.0.0.9:1").body(Body::empty()).unwrap()).await;
    let status = response.status();
    let body = to_bytes(response.into_body(), 1 << 10).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap())
}

#[tokio::test]
async fn a_process_that_drains_is_alive_but_not_ready() {
    let bench = Bench::new().await;
    assert_eq!(ready(&bench).await.0, StatusCode::OK);
    bench.readiness.draining();
    let (status, body) = ready(&bench).await;
    assert_eq!((status, &body["reasons"][0]), (StatusCode::SERVICE_UNAVAILABLE, &"draining".into()));
    let live = bench.send(request(Method::GET, "/livez", "10.0.0.9:1").body(Body::empty()).unwrap()).await;
    assert_eq!(live.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_process_whose_store_fails_or_hangs_is_not_ready_until_it_answers_again() {
    for fault in [Fault::Unavailable, Fault::Slow { before: 3600 * SECOND, after: Duration::ZERO }] {
        let away = Arc::new(AtomicBool::new(false));
        let switch = away.clone();
        let clock = clock();
        let store = FaultyStore::new(MemoryStore::with_clock(clock.clone()), move |_: Call| {
            if switch.load(Ordering::Relaxed) { fault } else { Fault::None }
        });
        let bench = Bench::on(store, clock).await;
        assert_eq!(ready(&bench).await.0, StatusCode::OK);
        away.store(true, Ordering::Relaxed);
        onceward::plumbing::time::sleep(2 * SECOND).await;
        let (status, body) = ready(&bench).await;
        assert_eq!(
            (status, &body["reasons"][0]),
            (StatusCode::SERVICE_UNAVAILABLE, &"store_not_answering".into())
        );
        away.store(false, Ordering::Relaxed);
        onceward::plumbing::time::sleep(2 * SECOND).await;
        assert_eq!(ready(&bench).await.0, StatusCode::OK);
    }
}
