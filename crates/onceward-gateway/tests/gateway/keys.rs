//! Keys and fingerprints: which requests are one operation.

use crate::harness::{Gateway, Request, Response};
use crate::ledger::Ledger;

const INVALID: &str = "idempotency_key_invalid";
const REUSED: &str = "idempotency_key_reused_with_different_payload";

/// Sends a body under a key, as it is.
async fn post(gateway: &Gateway, key: &str, kind: &str, body: impl AsRef<[u8]>) -> Response {
    let body = body.as_ref();
    let head = format!(
        "POST /charges HTTP/1.1\r\nhost: test\r\nidempotency-key: {key}\r\ncontent-type: {kind}\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    gateway.raw([head.as_bytes(), body].concat()).await
}

/// A gateway and its API, for tests that send two JSON bodies under one key.
struct Comparison {
    _folder: tempfile::TempDir,
    ledger: Ledger,
    gateway: Gateway,
}

impl Comparison {
    fn new() -> Self {
        let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
        Self { _folder, ledger, gateway }
    }

    async fn post(&self, key: &str, body: impl AsRef<[u8]>) -> Response {
        post(&self.gateway, key, "application/json", body).await
    }

    /// Whether the second body is the same request as the first.
    async fn are_same(&self, key: &str, first: impl AsRef<[u8]>, second: impl AsRef<[u8]>) -> bool {
        let before = self.ledger.count();
        let executed = self.post(key, first).await;
        assert_eq!((executed.status, executed.is_replayed()), (201, false), "{key}: {executed:?}");
        let answer = self.post(key, second).await;
        assert_eq!(self.ledger.count(), before + 1, "{key}: the second body was executed");
        if answer.is_replayed() {
            return true;
        }
        assert_eq!(answer.status_and_code(), (422, REUSED.to_owned()), "{key}: {answer:?}");
        false
    }
}

#[tokio::test]
async fn a_required_key_that_is_missing_is_400_with_a_link_to_the_policy() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&["--key", "required"]);
    let answer = gateway.send(Request::new("POST", "/charges").body("{}")).await;
    assert_eq!(answer.status_and_code(), (400, "idempotency_key_missing".to_owned()), "{answer:?}");
    assert_eq!(answer.header("link"), "</.well-known/idempotency>; rel=\"describedby\"");
    assert_eq!(answer.header("content-type"), "application/problem+json");
    assert_eq!(answer.json()["next_action"], "fix_request");
    assert_eq!(ledger.count(), 0);
    let policy = gateway.send(Request::new("GET", "/.well-known/idempotency")).await;
    assert_eq!(policy.json()["routes"][0]["key"], "required", "{policy:?}");
}

#[tokio::test]
async fn get_head_options_put_and_delete_with_a_key_pass_and_leave_no_record() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&["--key", "required"]);
    for (number, method) in ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"].into_iter().enumerate() {
        for _ in 0..2 {
            let request = Request { method, ..Request::charge("passes") };
            let answer = gateway.send(request).await;
            assert_eq!((answer.status, answer.is_replayed()), (201, false), "{method}: {answer:?}");
            assert_eq!(answer.header("idempotency-expires"), "", "{method}");
        }
        let entries = ledger.entries();
        assert_eq!(entries.len(), 2 * (number + 1));
        let last = entries.last().unwrap();
        assert_eq!(
            (last.method.as_str(), last.key.as_str(), last.operation.as_str()),
            (method, "passes", "-")
        );
    }
    assert_eq!(gateway.status_of("passes").await.status, 404);
}

#[tokio::test]
async fn bare_and_quoted_spellings_are_one_key_unless_the_route_is_strict() {
    let (_folder, ledger, gateway) =
        Gateway::with_ledger(&["--routes", "[{ match = \"POST /strict\", syntax = \"strict\" }]"]);
    assert_eq!(gateway.charge("k").await.status, 201);
    for spelling in ["\"k\"", "\"k\";p=1", "k"] {
        assert!(gateway.charge(spelling).await.is_replayed(), "{spelling}");
    }
    for refused in ["a,b", "k;p=1", "\"a\", \"b\"", "\"a", "a\"b", "a\\b", "?1", "\"k\" x"] {
        let answer = gateway.charge(refused).await;
        let expected = if refused == "?1" { (201, String::new()) } else { (400, INVALID.to_owned()) };
        assert_eq!(answer.status_and_code(), expected, "{refused}: {answer:?}");
    }
    let twice = Request::charge("one").header("idempotency-key", "one");
    assert_eq!(gateway.send(twice).await.status_and_code(), (400, INVALID.to_owned()));
    let strict = |key| Request { target: "/strict", ..Request::charge(key) };
    assert_eq!(gateway.send(strict("s")).await.status_and_code(), (400, INVALID.to_owned()));
    assert_eq!(gateway.send(strict("\"s\"")).await.status, 201);
    let entries = ledger.entries();
    // The API gets the key in the form in which it came.
    assert_eq!(entries.iter().map(|entry| entry.key.as_str()).collect::<Vec<_>>(), ["k", "?1", "\"s\""]);
}

#[tokio::test]
async fn keys_that_differ_in_case_or_inner_spaces_are_different() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    let keys = ["\"order 1\"", "\"order  1\"", "\"Order 1\"", "\"order 1 \"", "order-1", "ORDER-1"];
    for key in keys {
        let answer = gateway.charge(key).await;
        assert_eq!((answer.status, answer.is_replayed()), (201, false), "{key}: {answer:?}");
    }
    assert_eq!(ledger.count(), keys.len());
}

#[tokio::test]
async fn a_key_has_one_to_255_bytes_of_printable_ascii() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    let fits = "k".repeat(255);
    for key in [fits.clone(), format!("\"{fits}\"")] {
        assert_eq!(gateway.charge(&key).await.status, 201, "{} bytes", key.len());
    }
    assert_eq!(ledger.count(), 1);
    let long = "k".repeat(256);
    let quoted_long = format!("\"{long}\"");
    let refused =
        ["", "\"\"", &long, &quoted_long, "schlüssel", "\"é\"", "\"a\tb\"", "\"a\\qb\"", "\"a\\\"", "a b"];
    for key in refused {
        let answer = gateway.charge(key).await;
        assert_eq!(answer.status_and_code(), (400, INVALID.to_owned()), "{key:?}: {answer:?}");
        assert!(!answer.header("link").is_empty());
    }
    // With another control character it is no valid header.
    let answer = gateway.raw("POST / HTTP/1.1\r\nhost: a\r\nidempotency-key: a\x01b\r\n\r\n").await;
    assert_eq!(answer.status, 400);
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn another_method_path_query_or_body_under_a_key_is_422_also_while_the_first_runs() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    let first =
        Request::new("POST", "/charges?a=1").header("idempotency-key", "k").body("{}").behave("hold=k");
    let others = [
        Request { method: "PATCH", ..first.clone() },
        Request { target: "/charges/?a=1", ..first.clone() },
        Request { target: "/refunds?a=1", ..first.clone() },
        Request { target: "/charges?a=2", ..first.clone() },
        Request { target: "/charges?a=1&b=2", ..first.clone() },
        Request { target: "/charges", ..first.clone() },
        Request { body: "{\"a\":1}", ..first.clone() },
    ];
    let mut running_client = gateway.connect().await;
    running_client.write(&first.bytes()).await;
    ledger.held("k").await;
    for running in [true, false] {
        for other in &others {
            let answer = gateway.send(other.clone()).await;
            assert_eq!(answer.status_and_code(), (422, REUSED.to_owned()), "running: {running}, {other:?}");
            assert_eq!(answer.json()["next_action"], "new_key");
        }
        if running {
            let same = gateway.send(first.clone()).await;
            assert_eq!(same.status_and_code(), (409, "idempotency_key_in_progress".to_owned()));
            assert!(!same.header("retry-after").is_empty());
            ledger.release("k").await;
            assert_eq!(running_client.read().await.unwrap().status, 201);
        }
    }
    assert!(gateway.send(first).await.is_replayed());
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn json_that_means_the_same_is_the_same_request() {
    let bodies = Comparison::new();
    let pairs = [
        ("order", "{\"a\":1,\"b\":2}", "{\"b\":2,\"a\":1}"),
        ("space", "{\"a\":[1,2]}", " {\n\t\"a\" : [ 1 , 2 ] } "),
        ("fraction", "{\"a\":1.0}", "{\"a\":1}"),
        ("exponent", "{\"a\":1e2}", "{\"a\":100}"),
        ("zeros", "{\"a\":0.10}", "{\"a\":1E-1}"),
        ("escape", "{\"a\":\"\\u0041\"}", "{\"a\":\"A\"}"),
        ("name", "{\"\\u0061\":1}", "{\"a\":1}"),
        ("slash", "{\"a\":\"\\/\"}", "{\"a\":\"/\"}"),
        ("pair", "{\"a\":\"\\ud83d\\ude00\"}", "{\"a\":\"😀\"}"),
    ];
    for (key, first, second) in pairs {
        assert!(bodies.are_same(key, first, second).await, "{key}");
    }
}

#[tokio::test]
async fn json_that_differs_in_any_detail_is_another_request() {
    let bodies = Comparison::new();
    let pairs = [
        ("large", "{\"a\":9007199254740993}", "{\"a\":9007199254740992}"),
        ("fine", "{\"a\":0.1}", "{\"a\":0.10000000000000001}"),
        ("text", "{\"a\":1}", "{\"a\":\"1\"}"),
        ("null", "{\"a\":null}", "{}"),
        ("array", "[1,2]", "[2,1]"),
        ("member", "{\"a\":1}", "{\"A\":1}"),
        ("composed", "{\"a\":\"é\"}", "{\"a\":\"e\u{301}\"}"),
    ];
    for (key, first, second) in pairs {
        assert!(!bodies.are_same(key, first, second).await, "{key}");
        assert!(bodies.post(key, first).await.is_replayed(), "{key}");
    }
}

#[tokio::test]
async fn json_that_readers_disagree_about_is_compared_byte_for_byte() {
    let bodies = Comparison::new();
    let deep = |space: &str| format!("{}{space}{}", "[".repeat(200_000), "]".repeat(200_000)).into_bytes();
    let pairs: [(&str, Vec<u8>, Vec<u8>); 6] = [
        ("twice", b"{\"a\":1,\"a\":2}".into(), b"{\"a\":1, \"a\":2}".into()),
        ("lone", b"{\"a\":\"\\ud800\"}".into(), b"{\"a\": \"\\ud800\"}".into()),
        ("bytes", b"{\"a\":\"\xff\"}".into(), b"{\"a\": \"\xff\"}".into()),
        ("cut", b"{\"a\":1".into(), b"{\"a\": 1".into()),
        ("deep", deep(""), deep(" ")),
        ("mark", b"\xef\xbb\xbf{}".into(), b"\xef\xbb\xbf{} ".into()),
    ];
    for (key, first, second) in pairs {
        assert!(bodies.are_same(key, &first, &first).await, "{key}");
        assert!(!bodies.are_same(&format!("{key}-other"), &first, &second).await, "{key}");
    }
}

#[tokio::test]
async fn multipart_with_a_new_boundary_and_a_form_in_another_order_are_the_same_request() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    let part = |boundary: &str, amount: &str| {
        let head = "content-disposition: form-data; name=\"amount\"";
        format!("--{boundary}\r\n{head}\r\n\r\n{amount}\r\n--{boundary}--\r\n")
    };
    let send = async |boundary: &str, amount: &str| {
        let kind = format!("multipart/form-data; boundary={boundary}");
        post(&gateway, "multipart", &kind, part(boundary, amount)).await
    };
    assert_eq!(send("first", "1299").await.status, 201);
    assert!(send("second", "1299").await.is_replayed());
    assert_eq!(send("third", "1300").await.status_and_code(), (422, REUSED.to_owned()));

    let form = "application/x-www-form-urlencoded";
    assert_eq!(post(&gateway, "form", form, "a=1&b=2").await.status, 201);
    assert!(post(&gateway, "form", form, "b=2&a=1").await.is_replayed());
    assert_eq!(post(&gateway, "form", form, "b=2&a=2").await.status_and_code(), (422, REUSED.to_owned()));
    assert_eq!(ledger.count(), 2);
}

#[tokio::test]
async fn trace_headers_and_user_agents_make_no_difference() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    for (number, agent) in ["curl/8", "curl/9"].into_iter().enumerate() {
        let trace = format!("00-{}-{}-01", format!("{number}a").repeat(16), "12".repeat(8));
        let request = Request::charge("k")
            .header("user-agent", agent)
            .header("traceparent", &trace)
            .header("x-request-id", agent)
            .header("accept-encoding", agent);
        let answer = gateway.send(request).await;
        assert_eq!((answer.status, answer.is_replayed()), (201, number == 1), "{answer:?}");
    }
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn a_corrected_body_under_the_old_key_is_422_and_the_first_answer_stays() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    let wrong = || Request::charge("k").behave("status=400").body("{\"amount\":\"12,99\"}");
    let first = gateway.send(wrong()).await;
    assert_eq!(first.status, 400);
    let corrected = gateway.send(Request::charge("k")).await;
    assert_eq!(corrected.status_and_code(), (422, REUSED.to_owned()));
    let again = gateway.send(wrong()).await;
    assert_eq!((again.status, again.is_replayed(), &again.body), (400, true, &first.body));
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn no_spelling_of_a_path_gets_around_a_route_that_requires_a_key() {
    let (_folder, ledger, gateway) =
        Gateway::with_ledger(&["--routes", "[{ match = \"POST /v1/payments\", key = \"required\" }]"]);
    let spellings = [
        "/v1/payments",
        "/v1//payments",
        "//v1/payments",
        "/v1/payments/",
        "/v1/payments//",
        "/v1%2Fpayments",
        "/v1%2fpayments",
        "/v1/payments;x=1",
        "/v1;x=1/payments",
        "/v1/./payments",
        "/v1/x/../payments",
        "/v1/x/%2e%2e/payments",
        "/v1/%70ayments",
        "/v1\\payments",
        "/v1%5Cpayments",
        "/v1/payments?x=1",
        "http://elsewhere.example/v1/payments",
    ];
    for target in spellings {
        let answer = gateway.send(Request::new("POST", target).body("{}")).await;
        assert_eq!(
            answer.status_and_code(),
            (400, "idempotency_key_missing".to_owned()),
            "{target}: {answer:?}"
        );
    }
    assert_eq!(ledger.count(), 0);
    let elsewhere = gateway.send(Request::new("POST", "/v1/refunds").body("{}")).await;
    assert_eq!(elsewhere.status, 201);
}
