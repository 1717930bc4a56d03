//! Looking at operations, resolving and expiring them.

use super::*;

const PAID: &str = r#"{"verdict":"completed","reply":{"status":201,"headers":{"x-psp":["a","b"]},"body":"found"},
    "reason":"the provider shows the charge"}"#;

#[tokio::test]
async fn a_resolved_operation_is_replayed_and_a_second_resolver_is_told_who_was_first() {
    let bench = Bench::new().await;
    let id = bench.lose("k").await;
    let path = format!("/v1/operations/{id}/resolve");
    let (status, resolved) = bench.operate(Method::POST, &path, PAID).await;
    assert_eq!(status, StatusCode::OK, "{resolved}");
    assert_eq!((&resolved["state"], &resolved["verdict"]["by"]), (&"completed".into(), &"olga".into()));

    let Ran::Replayed { reply, .. } = bench.run("k", "body", done()).await else { panic!("not replayed") };
    assert_eq!((reply.status, &reply.body[..], reply.headers.len()), (201, &b"found"[..], 2));

    let retryable = r#"{"verdict":"retryable","reason":"I did not see it"}"#;
    let (status, conflict) = bench.operate(Method::POST, &path, retryable).await;
    assert_eq!((status, &conflict["code"]), (StatusCode::CONFLICT, &"conflict".into()));
    assert_eq!(conflict["verdict"]["by"], "olga");
    assert_eq!(conflict["verdict"]["reason"], "the provider shows the charge");
}

#[tokio::test]
async fn a_verdict_retryable_lets_the_next_claim_execute() {
    let bench = Bench::new().await;
    let path = format!("/v1/operations/{}/resolve", bench.lose("k").await);
    let body = r#"{"verdict":"retryable","reason":"the provider has never seen it"}"#;
    assert_eq!(bench.operate(Method::POST, &path, body).await.0, StatusCode::OK);
    assert!(matches!(bench.run("k", "body", done()).await, Ran::Executed { .. }));
}

#[tokio::test]
async fn a_verdict_about_another_version_is_a_conflict() {
    let bench = Bench::new().await;
    let id = bench.lose("k").await;
    let version = bench.engine.load(id).await.unwrap().unwrap().version.as_number();
    let resolve = async |version: String| {
        let body = format!(r#"{{"verdict":"retryable","reason":"r","version":{version}}}"#);
        bench.operate(Method::POST, &format!("/v1/operations/{id}/resolve"), &body).await
    };
    // As a number, and as the text that lists show.
    for other in [format!("{}", version + 1), format!("\"{}\"", version + 1)] {
        let (status, conflict) = resolve(other).await;
        assert_eq!((status, &conflict["code"]), (StatusCode::CONFLICT, &"conflict".into()));
        let detail = conflict["detail"].as_str().unwrap();
        assert!(detail.contains(&format!("version {} of", version + 1)), "{detail}");
        assert!(detail.contains(&format!("its version is {version}")), "{detail}");
        assert_eq!(conflict["version"], version.to_string());
    }
    let (_, shown) = bench.operate(Method::GET, &format!("/v1/operations/{id}"), "").await;
    assert_eq!(shown["version"], version.to_string());
    assert_eq!(resolve(shown["version"].to_string()).await.0, StatusCode::OK);
    assert_eq!(resolve(version.to_string()).await.0, StatusCode::CONFLICT);
}

#[tokio::test]
async fn a_name_of_another_window_is_not_found_and_the_one_that_stands_there_is_named() {
    let bench = Bench::new().await;
    let id = bench.lose("k").await;
    let (_, shown) = bench.operate(Method::GET, &format!("/v1/operations/{id}"), "").await;
    let stands = shown["operation"].as_str().unwrap();
    assert_ne!(stands, id.to_string());
    let fence = shown["fence"].as_u64().unwrap();
    for (method, call, body) in [
        (Method::GET, "", String::new()),
        (Method::POST, "/resolve", r#"{"verdict":"retryable","reason":"r"}"#.to_owned()),
        (Method::POST, "/expire", r#"{"reason":"r"}"#.to_owned()),
        (Method::POST, "/renew", format!(r#"{{"fence":{fence}}}"#)),
    ] {
        let (status, problem) = bench.operate(method, &format!("/v1/operations/{id}-5f{call}"), &body).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::NOT_FOUND, &"operation_not_found".into()),
            "{call}"
        );
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(&format!("{id}-5f")) && detail.contains(stands), "{call}: {detail}");
    }
}

#[tokio::test]
async fn a_conflict_says_what_state_the_operation_is_in_and_what_to_do() {
    let bench = Bench::new().await;
    let lost = bench.lose("lost").await;
    bench.run("done", "body", done()).await;
    let claimed = r#"{"scope":"acme","key":"held","fingerprint":"f"}"#;
    let (_, held) = bench.operate(Method::POST, "/v1/operations", claimed).await;
    let held = held["id"].as_str().unwrap();
    for (path, body, told) in [
        (format!("{lost}/expire"), r#"{"reason":"r"}"#, "is unknown: resolve it first."),
        (format!("{held}/expire"), r#"{"reason":"r"}"#, "is in_progress: it is being executed; wait"),
        (
            format!("{held}/resolve"),
            r#"{"verdict":"retryable","reason":"r"}"#,
            "is in_progress: it is being executed; wait",
        ),
        (
            format!("{}/resolve", id("done")),
            r#"{"verdict":"retryable","reason":"r"}"#,
            "is completed: it is decided, and its answer is replayed",
        ),
    ] {
        let (status, conflict) = bench.operate(Method::POST, &format!("/v1/operations/{path}"), body).await;
        assert_eq!((status, &conflict["code"]), (StatusCode::CONFLICT, &"conflict".into()), "{path}");
        let detail = conflict["detail"].as_str().unwrap();
        assert!(detail.contains(told), "{path}: {detail}");
    }
}

#[tokio::test]
async fn a_request_that_is_not_understood_changes_nothing_and_says_what_is_wrong() {
    let bench = Bench::new().await;
    let id = bench.lose("k").await;
    for (call, body, told) in [
        ("resolve", r#"{"verdict":"retryable"}"#, "missing field `reason`"),
        ("resolve", r#"{"verdict":"retryable","reason":"  "}"#, "reason is empty"),
        ("resolve", r#"{"verdict":"completed","reason":"r"}"#, "needs a reply"),
        ("resolve", r#"{"verdict":"perhaps","reason":"r"}"#, "unknown variant"),
        ("resolve", r#"{"verdict":"retryable","reason":"r","force":true}"#, "unknown field `force`"),
        ("resolve", r#"{"verdict":"completed","reason":"r","reply":{"status":99}}"#, "between 200 and 599"),
        ("resolve", r#"{"verdict":"completed","reason":"r","reply":{"headers":{"a b":"c"}}}"#, "header"),
        ("resolve", r#"{"verdict":"retryable","reason":"r"} more"#, "goes on"),
        ("resolve", "nonsense", "not JSON"),
        ("expire", "{}", "missing field `reason`"),
        ("expire", "", "the body is empty: send {\"reason\": \"…\"}"),
        ("renew", r#"{"fence":"12 "}"#, "another type"),
        ("renew", r#"{"fence":-1}"#, "another type"),
        ("settle", r#"{"fence":"secret","outcome":"unknown"}"#, "another type"),
    ] {
        let (status, problem) =
            bench.operate(Method::POST, &format!("/v1/operations/{id}/{call}"), body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(told), "{body}: {detail}");
        assert!(!detail.contains("secret"), "{detail}");
    }
    assert_eq!(bench.engine.load(id).await.unwrap().unwrap().record.state.name(), "unknown");
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let bench = Bench::new().await;
    let path = format!("/v1/operations/{}/resolve", bench.lose("k").await);
    let long = format!(r#"{{"verdict":"retryable","reason":"{}"}}"#, "x".repeat(4 << 20));
    assert_eq!(bench.operate(Method::POST, &path, &long).await.0, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn an_operation_shows_its_bodies_only_when_asked_for() {
    let bench = Bench::new().await;
    bench.run("k", "body", done()).await;
    let path = format!("/v1/operations/{}", id("k"));
    let (_, hidden) = bench.operate(Method::GET, &path, "").await;
    assert_eq!((&hidden["state"], &hidden["reply"]["status"]), (&"completed".into(), &201.into()));
    assert!(!hidden.to_string().contains("paid"), "{hidden}");
    assert_eq!(hidden["timeline"][0]["event"], "claimed");
    assert_eq!(hidden["timeline"][1]["event"], "completed");
    let (_, shown) = bench.operate(Method::GET, &format!("{path}?bodies=true"), "").await;
    assert_eq!(shown["reply"]["body"], "paid");
    let (status, problem) = bench.operate(Method::GET, &format!("/v1/operations/{}", id("other")), "").await;
    assert_eq!((status, &problem["code"]), (StatusCode::NOT_FOUND, &"operation_not_found".into()));
}

#[tokio::test]
async fn a_body_that_is_not_text_comes_and_goes_in_base64() {
    let bench = Bench::new().await;
    let id = bench.lose("k").await;
    let body = r#"{"verdict":"completed","reason":"r","reply":{"body":{"base64":"/wA="}}}"#;
    let (status, _) = bench.operate(Method::POST, &format!("/v1/operations/{id}/resolve"), body).await;
    assert_eq!(status, StatusCode::OK);
    let (_, shown) = bench.operate(Method::GET, &format!("/v1/operations/{id}?bodies=true"), "").await;
    assert_eq!(shown["reply"]["body"]["base64"], "/wA=");
}

#[tokio::test(start_paused = true)]
async fn a_list_is_narrowed_by_every_filter_and_goes_on_after_its_cursor() {
    let bench = Bench::new().await;
    bench.lose("old").await;
    bench.clock.advance(60 * SECOND);
    for key in ["a", "b", "c"] {
        bench.run(key, "body", done()).await;
    }
    for (query, expected) in [
        ("", 4),
        ("state=unknown", 1),
        ("state=completed&limit=1000", 3),
        ("state=expired", 0),
        ("route=POST+%2Fpayments", 4),
        ("route=other", 0),
        ("scope=acme", 4),
        ("scope=acme&key=a", 1),
        ("scope=acme&key=a&state=unknown", 0),
        ("scope=acme&key=never", 0),
        ("older_than=30s", 1),
        ("older_than=1h", 0),
    ] {
        let (status, page) = bench.operate(Method::GET, &format!("/v1/operations?{query}"), "").await;
        assert_eq!(status, StatusCode::OK, "{query}: {page}");
        assert_eq!(page["operations"].as_array().unwrap().len(), expected, "{query}");
        assert!(page["next_cursor"].is_null(), "{query}");
    }
    let (mut seen, mut query) = (Vec::new(), String::from("/v1/operations?limit=3"));
    for _ in 0..2 {
        let (_, page) = bench.operate(Method::GET, &query, "").await;
        seen.extend(page["operations"].as_array().unwrap().iter().map(|one| one["id"].to_string()));
        query = format!("/v1/operations?limit=3&cursor={}", page["next_cursor"].as_str().unwrap_or_default());
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 4);
    for query in [
        "state=open",
        "dead=yes",
        "dead=true&dead=false",
        "limit=0",
        "limit=1001",
        "older_than=soon",
        "key=a",
        "cursor=!!",
        "cursor=AAAA",
        "limit=1&limit=2",
    ] {
        let (status, problem) = bench.operate(Method::GET, &format!("/v1/operations?{query}"), "").await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{query}: {problem}");
    }
}

#[tokio::test]
async fn dead_letters_are_listed_alone_or_left_out_with_every_other_filter() {
    let bench = Bench::new().await;
    for key in ["live-1", "dead-1", "live-2", "dead-2", "dead-3"] {
        bench.lose(key).await;
    }
    for key in ["dead-1", "dead-2", "dead-3"] {
        bench.bury(key).await;
    }
    bench.run("done", "body", done()).await;
    let (dead, live) = (vec!["dead-1", "dead-2", "dead-3"], vec!["live-1", "live-2"]);
    let rest = vec!["done", "live-1", "live-2"];
    for (query, expected) in [
        ("dead=true", dead.clone()),
        ("dead=true&state=unknown", dead.clone()),
        ("dead=true&state=completed", vec![]),
        ("dead=true&route=POST+%2Fpayments", dead.clone()),
        ("dead=true&route=other", vec![]),
        ("dead=true&older_than=1h", vec![]),
        ("dead=true&scope=acme&key=dead-1", vec!["dead-1"]),
        ("dead=true&scope=acme&key=live-1", vec![]),
        ("dead=false", rest),
        ("dead=false&state=unknown", live),
        ("dead=false&scope=acme&key=dead-1", vec![]),
        ("dead=", vec!["dead-1", "dead-2", "dead-3", "done", "live-1", "live-2"]),
    ] {
        for limit in [1, 2, 100] {
            assert_eq!(keys_of(&bench, &format!("{query}&limit={limit}")).await, expected, "{query}");
        }
    }
    let (status, problem) = bench.operate(Method::GET, "/v1/operations?dead=yes", "").await;
    assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &"request_invalid".into()));
    assert!(problem["detail"].as_str().unwrap().contains("dead = \"yes\" is neither true nor false"));
}

#[tokio::test]
async fn a_dead_letter_leaves_its_list_when_it_is_resolved() {
    let bench = Bench::new().await;
    let id = bench.lose("k").await;
    bench.bury("k").await;
    assert_eq!(keys_of(&bench, "dead=true").await, ["k"]);
    bench.operate(Method::POST, &format!("/v1/operations/{id}/resolve"), PAID).await;
    assert_eq!(keys_of(&bench, "dead=true").await, Vec::<String>::new());
    assert_eq!(keys_of(&bench, "dead=false").await, ["k"]);
}

/// The keys of every page of a list, sorted. No page but the last is empty.
async fn keys_of(bench: &Bench, query: &str) -> Vec<String> {
    let (mut keys, mut cursor) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/operations?{query}&cursor={cursor}");
        let (status, page) = bench.operate(Method::GET, &path, "").await;
        assert_eq!(status, StatusCode::OK, "{path}: {page}");
        let found = page["operations"].as_array().unwrap();
        keys.extend(found.iter().map(|one| one["key"].as_str().unwrap().to_owned()));
        let Some(next) = page["next_cursor"].as_str() else { break };
        assert!(!found.is_empty(), "{path}: an empty page says that there are more");
        next.clone_into(&mut cursor);
    }
    keys.sort();
    keys
}

#[tokio::test]
async fn a_list_that_is_read_one_by_one_has_no_empty_page_before_its_end() {
    let bench = Bench::new().await;
    for key in ["a", "b", "c"] {
        bench.run(key, "body", done()).await;
    }
    for query in ["limit=1", "limit=1&state=completed", "limit=2&route=POST+%2Fpayments"] {
        let (mut seen, mut cursor) = (0, String::new());
        loop {
            let path = format!("/v1/operations?{query}&cursor={cursor}");
            let (_, page) = bench.operate(Method::GET, &path, "").await;
            let found = page["operations"].as_array().unwrap().len();
            seen += found;
            let Some(next) = page["next_cursor"].as_str() else { break };
            assert!(found > 0, "{query}: an empty page says that there are more: {page}");
            next.clone_into(&mut cursor);
        }
        assert_eq!(seen, 3, "{query}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_operation_whose_window_was_ended_early_executes_anew_and_an_unknown_one_cannot_be() {
    let bench = Bench::new().await;
    bench.run("k", "body", done()).await;
    let expire = async |key: &str| {
        let path = format!("/v1/operations/{}/expire", id(key));
        bench.operate(Method::POST, &path, r#"{"reason":"a test account"}"#).await.0
    };
    assert_eq!(expire("k").await, StatusCode::OK);
    onceward::plumbing::time::sleep(66 * SECOND).await;
    assert!(matches!(bench.run("k", "body", done()).await, Ran::Executed { .. }));
    bench.lose("lost").await;
    assert_eq!(expire("lost").await, StatusCode::CONFLICT);
    assert_eq!(expire("never").await, StatusCode::NOT_FOUND);
}
