//! Work that is done elsewhere, through the operations API.

use super::*;

const CLAIM: &str = r#"{"scope":"acme","key":"job-7","fingerprint":"v1","owner":"w1","lease":"60s",
    "retention":"7d","on_lapse":"resume"}"#;

async fn work(bench: &Bench, path: &str, body: &str) -> (StatusCode, Value) {
    bench.ask(Method::POST, path, body, WORKER).await
}

#[tokio::test(start_paused = true)]
async fn a_worker_claims_renews_notes_a_phase_settles_and_a_retry_replays() {
    let bench = Bench::new().await;
    let (status, claimed) = work(&bench, "/v1/operations", CLAIM).await;
    assert_eq!(status, StatusCode::CREATED, "{claimed}");
    assert_eq!((&claimed["decision"], &claimed["recovery_point"]), (&"execute".into(), &"started".into()));
    let (id, fence) = (claimed["id"].as_str().unwrap(), claimed["fence"].as_u64().unwrap());
    // An owner whose answer was lost asks again and is recognised; somebody else is not.
    assert_eq!(work(&bench, "/v1/operations", CLAIM).await.1["fence"], fence);
    let (status, refused) = work(&bench, "/v1/operations", &CLAIM.replace("w1", "w2")).await;
    assert_eq!((status, &refused["code"]), (StatusCode::CONFLICT, &"idempotency_key_in_progress".into()));
    let (status, refused) = work(&bench, "/v1/operations", &CLAIM.replace("v1", "v2")).await;
    assert_eq!((status, &refused["next_action"]), (StatusCode::UNPROCESSABLE_ENTITY, &"new_key".into()));

    let path = |call: &str| format!("/v1/operations/{id}/{call}");
    let (status, renewed) = work(&bench, &path("renew"), &format!(r#"{{"fence":{fence}}}"#)).await;
    assert_eq!((status, renewed["lease_until"].is_string()), (StatusCode::OK, true));
    let point = format!(r#"{{"fence":{fence},"recovery_point":"charged","data":"ch_1"}}"#);
    assert_eq!(work(&bench, &path("checkpoint"), &point).await.0, StatusCode::OK);
    let old = format!(r#"{{"fence":{}}}"#, fence - 1);
    let (status, fenced) = work(&bench, &path("renew"), &old).await;
    assert_eq!((status, &fenced["code"]), (StatusCode::CONFLICT, &"fenced".into()));

    onceward::plumbing::time::sleep(61 * SECOND).await;
    let (status, resumed) = work(&bench, "/v1/operations", &CLAIM.replace("w1", "w2")).await;
    assert_eq!((status, &resumed["decision"]), (StatusCode::OK, &"resume".into()), "{resumed}");
    assert_eq!((&resumed["recovery_point"], &resumed["data"]), (&"charged".into(), &"ch_1".into()));
    assert_eq!(resumed["attempt"], 2);

    let settle = |fence: &Value| {
        format!(r#"{{"fence":{fence},"outcome":"completed","reply":{{"status":201,"body":"shipped"}}}}"#)
    };
    let (status, late) = work(&bench, &path("settle"), &settle(&fence.into())).await;
    assert_eq!((status, &late["code"]), (StatusCode::CONFLICT, &"fenced".into()), "{late}");
    let (status, settled) = work(&bench, &path("settle"), &settle(&resumed["fence"])).await;
    assert_eq!((status, &settled["state"]), (StatusCode::OK, &"completed".into()), "{settled}");
    let (status, replayed) = work(&bench, "/v1/operations", CLAIM).await;
    assert_eq!((status, &replayed["decision"]), (StatusCode::OK, &"replay".into()));
    assert_eq!((&replayed["reply"]["status"], &replayed["reply"]["body"]), (&201.into(), &"shipped".into()));
}

#[tokio::test]
async fn work_that_ends_retryable_or_unknown_leaves_that_state() {
    let bench = Bench::new().await;
    for (key, outcome, state) in [("r", "retryable", "failed_retryable"), ("u", "unknown", "unknown")] {
        let (_, claimed) = work(&bench, "/v1/operations", &CLAIM.replace("job-7", key)).await;
        let body = format!(
            r#"{{"fence":{},"outcome":"{outcome}","error":"the queue went away"}}"#,
            claimed["fence"]
        );
        let path = format!("/v1/operations/{}/settle", claimed["id"].as_str().unwrap());
        let (status, settled) = work(&bench, &path, &body).await;
        assert_eq!((status, &settled["state"]), (StatusCode::OK, &state.into()), "{settled}");
    }
    let never = format!("/v1/operations/{}/settle", id("never"));
    let (status, _) = work(&bench, &never, r#"{"fence":1,"outcome":"unknown"}"#).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}
