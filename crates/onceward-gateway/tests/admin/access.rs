//! Who may do what, as a table.

use super::*;

#[tokio::test]
async fn every_change_needs_a_token_and_every_look_from_elsewhere_too() {
    let bench = Bench::new().await;
    let id = bench.lose("k").await;
    let (one, resolve) = (format!("/v1/operations/{id}"), format!("/v1/operations/{id}/resolve"));
    let (settle, local, remote) = (format!("/v1/operations/{id}/settle"), "127.0.0.1:1", "10.0.0.9:1");
    let (get, post) = (Method::GET, Method::POST);
    for (method, path, peer, token, expected) in [
        (&get, "/livez", remote, None, 200),
        (&get, "/readyz", remote, None, 200),
        (&get, "/livez", remote, Some("nonsense"), 200),
        (&get, "/metrics", local, None, 200),
        (&get, "/metrics", "[::1]:1", None, 200),
        (&get, "/metrics", "[::ffff:127.0.0.1]:1", None, 200),
        (&get, "/metrics", remote, None, 401),
        (&get, "/metrics", remote, Some(READER), 200),
        (&get, "/metrics", local, Some("a-token-that-is-wrong"), 401),
        (&get, "/v1/operations", local, None, 200),
        (&get, "/v1/operations", remote, None, 401),
        (&get, "/v1/operations", remote, Some(READER), 200),
        (&get, &one, local, None, 200),
        (&get, &one, remote, Some(OPERATOR), 200),
        (&post, "/v1/operations", local, None, 401),
        (&post, "/v1/operations", local, Some(READER), 403),
        (&post, "/v1/operations", remote, Some(WORKER), 400),
        (&post, &settle, local, None, 401),
        (&post, &settle, local, Some(READER), 403),
        (&post, &settle, remote, Some(WORKER), 400),
        (&post, &resolve, local, None, 401),
        (&post, &resolve, local, Some(READER), 403),
        (&post, &resolve, local, Some(WORKER), 403),
        (&post, &resolve, remote, Some(OPERATOR), 400),
    ] {
        let mut request = request(method.clone(), path, peer);
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let response = bench.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(response.status().as_u16(), expected, "{method} {path} from {peer} with {token:?}");
    }
}

#[tokio::test]
async fn a_look_without_a_token_is_for_programs_on_this_machine_only() {
    let bench = Bench::new().await;
    for (name, value, expected) in [
        ("host", "localhost:8421", 200),
        ("host", "evil.example", 401),
        ("host", "127.0.0.1.evil.example:8421", 401),
        ("x-forwarded-for", "203.0.113.7", 401),
        ("forwarded", "for=203.0.113.7", 401),
        ("authorization", "Basic b2xnYTpvbGdh", 401),
    ] {
        let mut request = request(Method::GET, "/metrics", "127.0.0.1:1").body(Body::empty()).unwrap();
        request.headers_mut().insert(http::HeaderName::from_static(name), value.parse().unwrap());
        assert_eq!(bench.send(request).await.status().as_u16(), expected, "{name}: {value}");
    }
    let nobody = Request::get("/metrics").header(HOST, "127.0.0.1").body(Body::empty()).unwrap();
    assert_eq!(bench.send(nobody).await.status(), StatusCode::UNAUTHORIZED, "the peer is not known");
}

#[tokio::test]
async fn a_look_without_a_token_needs_a_listener_that_no_other_machine_reaches() {
    let bench = Bench::new().await;
    let id = bench.lose("k").await;
    // The sidecar of a service mesh is a peer on loopback, wherever its request comes from.
    for (listener, without_token) in [
        ("127.0.0.1:8421", 200),
        ("[::1]:8421", 200),
        ("[::ffff:127.0.0.1]:8421", 200),
        ("0.0.0.0:8421", 401),
        ("[::]:8421", 401),
        ("10.0.0.7:8421", 401),
    ] {
        let router = admin::router(bench.state(listener));
        for path in ["/metrics".to_owned(), "/v1/operations".to_owned(), format!("/v1/operations/{id}")] {
            let ask = |request: http::request::Builder| {
                router.clone().oneshot(request.body(Body::empty()).unwrap())
            };
            let request = || request(Method::GET, &path, "127.0.0.1:1");
            let status = ask(request()).await.unwrap().status().as_u16();
            assert_eq!(status, without_token, "{path} at {listener}");
            let shown = ask(request().header(AUTHORIZATION, format!("Bearer {READER}"))).await.unwrap();
            assert_eq!(shown.status(), StatusCode::OK, "{path} at {listener}");
        }
    }
}

#[tokio::test]
async fn stored_bodies_headers_and_recovery_data_need_a_token_on_the_same_machine_too() {
    let bench = Bench::new().await;
    let mut reply = Reply::new("paid").with_status(201);
    reply.headers.push(("x-account".to_owned(), "DE89".into()));
    bench.run("k", "body", Outcome::completed(reply)).await;
    let path = format!("/v1/operations/{}", id("k"));
    let ask = async |path: &str, token: Option<&str>| {
        let mut request = request(Method::GET, path, "127.0.0.1:1");
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let response = bench.send(request.body(Body::empty()).unwrap()).await;
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, serde_json::from_slice::<Value>(&body).unwrap())
    };
    for (query, token, told) in [
        ("", None, "token_needed"),
        ("?bodies=false", None, "token_needed"),
        ("?bodies=true", None, "token_needed"),
        ("", Some(READER), "hidden"),
    ] {
        let (status, shown) = ask(&format!("{path}{query}"), token).await;
        assert_eq!((status, &shown["bodies"]), (200, &told.into()), "{query}: {shown}");
        assert_eq!((&shown["state"], &shown["reply"]["status"]), (&"completed".into(), &201.into()));
        let text = shown.to_string();
        assert!(!text.contains("paid") && !text.contains("DE89"), "{query}: {text}");
    }
    let (status, shown) = ask(&format!("{path}?bodies=true"), Some(READER)).await;
    assert_eq!((status, &shown["bodies"], &shown["reply"]["body"]), (200, &"shown".into(), &"paid".into()));
}

#[tokio::test]
async fn a_refusal_is_a_problem_with_a_code_and_never_shows_the_token() {
    let bench = Bench::new().await;
    for (method, path, token, status, code) in [
        (Method::GET, "/nothing", OPERATOR, 404, "path_not_found"),
        (Method::DELETE, "/v1/operations", OPERATOR, 405, "method_not_allowed"),
        (Method::GET, "/v1/operations", "a-token-that-is-wrong", 401, "token_wrong"),
        (Method::POST, "/v1/operations", READER, 403, "role_too_low"),
        (Method::GET, "/v1/operations/nonsense", READER, 400, "request_invalid"),
        (Method::GET, "/v1/operations?shape=round", READER, 400, "request_invalid"),
    ] {
        let (found, problem) = bench.ask(method, path, "", token).await;
        assert_eq!((found.as_u16(), problem["code"].as_str()), (status, Some(code)), "{path}");
        assert_eq!(problem["status"], status);
        assert!(!problem.to_string().contains(token), "{problem}");
    }
}
