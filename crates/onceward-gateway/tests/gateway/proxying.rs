//! What changes in a request and in an answer on their way through, and how an unreachable API is answered.

use crate::harness::{Gateway, Request, Response};
use crate::ledger::Ledger;

/// The values of a header in the head that the API received, joined.
fn received(echoed: &Response, name: &str) -> String {
    let text = echoed.text();
    let values = text.split("\r\n").filter_map(|line| line.split_once(':'));
    let found = values.filter(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim());
    found.collect::<Vec<_>>().join(", ")
}

const OPERATION: [&str; 4] =
    ["onceward-operation", "onceward-fence", "onceward-attempt", "onceward-recovery-point"];

#[tokio::test]
async fn the_api_gets_the_forwarding_headers_and_no_header_that_concerns_one_connection_only() {
    let (_folder, _ledger, gateway) = Gateway::with_ledger(&[]);
    for key in ["", "k"] {
        let mut request = Request::new("POST", "/echo?a=b%20c").behave("echo");
        if !key.is_empty() {
            request = request.header("idempotency-key", key);
        }
        let request = request
            .header("host", "api.example")
            .header("connection", "keep-alive, x-hop")
            .header("x-hop", "1")
            .header("keep-alive", "timeout=5")
            .header("te", "trailers")
            .header("proxy-authorization", "Basic abc")
            .header("x-forwarded-for", "10.0.0.1")
            .header("x-end", "1")
            .header("via", "1.1 cdn")
            .body("{}");
        let answer = gateway.send(request).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        assert!(answer.text().starts_with("POST /echo?a=b%20c HTTP/1.1\r\n"), "{answer:?}");
        for gone in ["x-hop", "keep-alive", "te", "proxy-authorization"] {
            assert_eq!(received(&answer, gone), "", "{gone} of {key:?}");
        }
        // Some servers leave out the length of their answer where a request asks them to close its connection.
        assert_eq!(received(&answer, "connection"), "");
        let header = |name| received(&answer, name);
        assert_eq!((header("host"), header("x-forwarded-for")), ("api.example".into(), "127.0.0.1".into()));
        assert_eq!(
            (header("x-forwarded-host"), header("x-forwarded-proto")),
            ("api.example".into(), "http".into())
        );
        assert_eq!((header("x-end"), header("via")), ("1".into(), "1.1 cdn, 1.1 onceward".into()));
    }
}

#[tokio::test]
async fn an_operation_is_named_to_the_api_by_the_gateway_and_never_by_a_client() {
    let (_folder, _ledger, gateway) = Gateway::with_ledger(&[]);
    let forged = |mut request: Request<'static>| {
        for name in OPERATION {
            request = request.header(name, "forged");
        }
        request.header("onceward_operation", "forged").behave("echo")
    };
    let unkeyed = gateway.send(forged(Request::new("POST", "/echo").body("{}"))).await;
    assert!(!unkeyed.text().contains("forged"), "{unkeyed:?}");
    let keyed = gateway.send(forged(Request::charge("k"))).await;
    assert!(!keyed.text().contains("forged"), "{keyed:?}");
    for name in OPERATION {
        assert_eq!(received(&unkeyed, name), "");
        assert!(!received(&keyed, name).is_empty(), "{name}: {keyed:?}");
    }
    assert_eq!(
        (received(&keyed, "onceward-attempt"), received(&keyed, "onceward-recovery-point")),
        ("1".into(), "started".into())
    );
    assert_eq!(received(&keyed, "idempotency-key"), "k");
}

#[tokio::test]
async fn an_api_below_a_path_gets_that_path_before_every_other() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let upstream = format!("http://{}/base/v1", ledger.address);
    let gateway = Gateway::spawn(
        Gateway::command_without_scope(folder.path(), &upstream).args(["--scope", "fixed:test"]),
    );
    for (target, path) in
        [("/charges?x=1", "/base/v1/charges?x=1"), ("/", "/base/v1/"), ("//a/../b", "/base/v1//a/../b")]
    {
        let answer = gateway.send(Request::new("GET", target)).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        assert_eq!(ledger.entries().last().unwrap().path, path);
    }
    assert_eq!(gateway.charge("k").await.status, 201);
    assert_eq!(ledger.entries().last().unwrap().path, "/base/v1/charges");
}

#[tokio::test]
async fn an_answer_keeps_all_headers_but_those_that_concern_one_connection_only() {
    let (_folder, _ledger, gateway) = Gateway::with_ledger(&[]);
    for key in ["", "k", "k"] {
        let request = if key.is_empty() { Request::new("GET", "/a") } else { Request::charge(key) };
        let answer = gateway.send(request.behave("hop")).await;
        for gone in ["x-hop", "keep-alive", "proxy-authenticate"] {
            assert_eq!(answer.header(gone), "", "{gone} of {key:?}");
        }
        assert_eq!((answer.header("x-end"), answer.status), ("1", 201));
        assert_eq!(answer.text(), "{\"charged\":true}");
    }
}

#[tokio::test]
async fn redirects_are_returned_and_never_followed() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    for status in ["301", "302", "303", "307", "308"] {
        let behave = format!("redirect={status}");
        let key = format!("k{status}");
        for replayed in [false, true] {
            let answer = gateway.send(Request::charge(&key).behave(&behave)).await;
            assert_eq!(answer.status.to_string(), status);
            assert_eq!((answer.header("location"), answer.is_replayed()), ("/elsewhere", replayed));
        }
        let answer = gateway.send(Request::new("GET", "/a").behave(&behave)).await;
        assert_eq!((answer.status.to_string().as_str(), answer.header("location")), (status, "/elsewhere"));
    }
    assert_eq!(ledger.count(), 10);
    assert!(ledger.entries().iter().all(|entry| entry.path != "/elsewhere"));
}

#[tokio::test]
async fn answers_without_a_body_keep_their_length_and_the_connection_goes_on() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    let mut client = gateway.connect().await;
    let head = client.send(Request::new("HEAD", "/a")).await;
    assert_eq!((head.status, head.header("content-length")), (201, "16"), "{head:?}");
    for status in ["204", "304"] {
        let behave = format!("status={status}");
        let answer = client.send(Request::new("GET", "/a").behave(&behave)).await;
        assert_eq!((answer.status.to_string().as_str(), answer.header("content-length")), (status, ""));
        for replayed in [false, true] {
            let answer = client.send(Request::charge(status).behave(&behave)).await;
            assert_eq!((answer.status.to_string().as_str(), answer.is_replayed()), (status, replayed));
        }
    }
    assert_eq!(client.send(Request::new("GET", "/a")).await.text(), "{\"charged\":true}");
    assert_eq!(ledger.count(), 6);
}

#[tokio::test]
async fn without_a_key_an_api_that_gives_no_answer_is_502_or_504_with_a_problem() {
    let (_folder, mut ledger, gateway) = Gateway::with_ledger(&["--limits-response-timeout", "2s"]);
    let post = |how| Request::new("POST", "/charges").body("{}").behave(how);
    for (how, status, code) in [("reset", 502, "upstream_broken"), ("hang", 504, "upstream_timed_out")] {
        let answer = gateway.send(post(how)).await;
        assert_eq!(answer.status_and_code(), (status, code.to_owned()), "{answer:?}");
        assert_eq!(answer.header("content-type"), "application/problem+json");
        assert_eq!(answer.header("onceward-outcome"), "", "the outcome is unknown: {answer:?}");
    }
    // An answer that breaks off in its body breaks off at the client, too.
    for how in ["truncate", "truncate-chunked"] {
        let mut client = gateway.connect().await;
        client.write(&post(how).bytes()).await;
        assert!(client.read().await.is_none(), "{how}");
    }
    ledger.kill();
    let answer = gateway.send(post("")).await;
    assert_eq!(answer.status_and_code(), (502, "upstream_unreachable".to_owned()), "{answer:?}");
    assert_eq!((answer.header("onceward-outcome"), answer.header("retry-after")), ("retryable", "1"));
    assert_eq!(ledger.count(), 4);
}

#[tokio::test]
async fn each_flavor_has_its_own_statuses_and_headers() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let routes = "[{ match = \"POST /stripe\", flavor = \"stripe\" }]";
    let gateway = Gateway::start(folder.path(), ledger.address, &["--routes", routes]);
    for (target, mismatch, replayed) in [("/stripe", 400, "true"), ("/ietf", 422, "")] {
        let request = Request { target, ..Request::charge(&target[1..]) };
        let first = gateway.send(request.clone()).await;
        assert!(!first.header("idempotency-expires").is_empty(), "{first:?}");
        let again = gateway.send(request.clone()).await;
        assert!(again.is_replayed());
        assert_eq!(again.header("idempotent-replayed"), replayed, "{target}");
        let other = gateway.send(request.body("{}")).await;
        let reused = "idempotency_key_reused_with_different_payload".to_owned();
        assert_eq!(other.status_and_code(), (mismatch, reused), "{target}");
        assert_eq!(other.header("onceward-outcome"), "retryable");
    }
    assert_eq!(ledger.count(), 2);
}

#[tokio::test]
async fn a_client_is_answered_in_http_1_1_even_if_the_api_answers_in_1_0() {
    use tokio::io::AsyncReadExt as _;
    let (_folder, _ledger, gateway) = Gateway::with_ledger(&[]);
    let mut client = gateway.connect().await;
    client.write(&Request::new("GET", "/").behave("old").bytes()).await;
    let mut version = [0; 8];
    client.0.read_exact(&mut version).await.unwrap();
    assert_eq!(&version, b"HTTP/1.1");
}
