//! Keys and fingerprints: which requests are one operation.

use crate::harness::{Gateway, Request, Response};
use crate::ledger::Ledger;

const INVALID: &str = "idempotency_key_invalid";
const REUSED: &str = "idempotency_key_reused_with_different_payload";

/// A gateway in front of an API.
struct World {
    ledger: Ledger,
    gateway: Gateway,
    _folder: tempfile::TempDir,
}

fn world(arguments: &[&str]) -> World {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let gateway = Gateway::start(folder.path(), ledger.address, arguments);
    World { ledger, gateway, _folder: folder }
}

impl World {
    /// Sends a body under a key, as it is.
    async fn post(&self, key: &str, kind: &str, body: impl AsRef<[u8]>) -> Response {
        let body = body.as_ref();
        let head = format!(
            "POST /charges HTTP/1.1\r\nhost: test\r\nidempotency-key: {key}\r\ncontent-type: {kind}\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        self.gateway.raw([head.as_bytes(), body].concat()).await
    }

    /// Whether the second body is the same request as the first.
    async fn are_same(&self, key: &str, first: impl AsRef<[u8]>, second: impl AsRef<[u8]>) -> bool {
        const JSON: &str = "application/json";
        let before = self.ledger.count();
        let executed = self.post(key, JSON, first).await;
        assert_eq!((executed.status, executed.is_replayed()), (201, false), "{key}: {executed:?}");
        let answer = self.post(key, JSON, second).await;
        assert_eq!(self.ledger.count(), before + 1, "{key}: the second was not executed");
        if answer.is_replayed() {
            return true;
        }
        assert_eq!(answer.told(), (422, REUSED.to_owned()), "{key}: {answer:?}");
        false
    }
}

#[tokio::test]
async fn a_key_that_is_required_and_missing_is_400_with_a_link_to_the_policy() {
    let world = world(&["--key", "required"]);
    let answer = world.gateway.send(Request::new("POST", "/charges").body("{}")).await;
    assert_eq!(answer.told(), (400, "idempotency_key_missing".to_owned()), "{answer:?}");
    assert_eq!(answer.header("link"), "</.well-known/idempotency>; rel=\"describedby\"");
    assert_eq!(answer.header("content-type"), "application/problem+json");
    assert_eq!(answer.json()["next_action"], "fix_request");
    assert_eq!(world.ledger.count(), 0);
    let policy = world.gateway.send(Request::new("GET", "/.well-known/idempotency")).await;
    assert_eq!(policy.json()["routes"][0]["key"], "required", "{policy:?}");
}

#[tokio::test]
async fn get_head_options_put_and_delete_with_a_key_pass_and_leave_no_record() {
    let world = world(&["--key", "required"]);
    for (number, method) in ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"].into_iter().enumerate() {
        for _ in 0..2 {
            let request = Request { method, ..Request::charge("passes") };
            let answer = world.gateway.send(request).await;
            assert_eq!((answer.status, answer.is_replayed()), (201, false), "{method}: {answer:?}");
            assert_eq!(answer.header("idempotency-expires"), "", "{method}");
        }
        let entries = world.ledger.entries();
        assert_eq!(entries.len(), 2 * (number + 1));
        let last = entries.last().unwrap();
        assert_eq!(
            (last.method.as_str(), last.key.as_str(), last.operation.as_str()),
            (method, "passes", "-")
        );
    }
    assert_eq!(world.gateway.status_of("passes").await.status, 404);
}

#[tokio::test]
async fn bare_and_quoted_spellings_are_one_key_unless_the_route_is_strict() {
    let world = world(&["--routes", "[{ match = \"POST /strict\", syntax = \"strict\" }]"]);
    assert_eq!(world.gateway.charge("k").await.status, 201);
    for spelling in ["\"k\"", "\"k\";p=1", "k"] {
        assert!(world.gateway.charge(spelling).await.is_replayed(), "{spelling}");
    }
    for refused in ["a,b", "k;p=1", "\"a\", \"b\"", "\"a", "a\"b", "a\\b", "?1", "\"k\" x"] {
        let answer = world.gateway.charge(refused).await;
        let expected = if refused == "?1" { (201, String::new()) } else { (400, INVALID.to_owned()) };
        assert_eq!(answer.told(), expected, "{refused}: {answer:?}");
    }
    let twice = Request::charge("one").header("idempotency-key", "one");
    assert_eq!(world.gateway.send(twice).await.told(), (400, INVALID.to_owned()));
    let strict = |key| Request { target: "/strict", ..Request::charge(key) };
    assert_eq!(world.gateway.send(strict("s")).await.told(), (400, INVALID.to_owned()));
    assert_eq!(world.gateway.send(strict("\"s\"")).await.status, 201);
    let entries = world.ledger.entries();
    // The API gets the key in the form in which it came.
    assert_eq!(entries.iter().map(|entry| entry.key.as_str()).collect::<Vec<_>>(), ["k", "?1", "\"s\""]);
}

#[tokio::test]
async fn keys_that_differ_in_case_or_inner_spaces_are_different() {
    let world = world(&[]);
    let keys = ["\"order 1\"", "\"order  1\"", "\"Order 1\"", "\"order 1 \"", "order-1", "ORDER-1"];
    for key in keys {
        let answer = world.gateway.charge(key).await;
        assert_eq!((answer.status, answer.is_replayed()), (201, false), "{key}: {answer:?}");
    }
    assert_eq!(world.ledger.count(), keys.len());
}

#[tokio::test]
async fn a_key_has_one_to_255_bytes_of_printable_ascii() {
    let world = world(&[]);
    let fits = "k".repeat(255);
    for key in [fits.clone(), format!("\"{fits}\"")] {
        assert_eq!(world.gateway.charge(&key).await.status, 201, "{} bytes", key.len());
    }
    assert_eq!(world.ledger.count(), 1);
    let long = "k".repeat(256);
    let quoted_long = format!("\"{long}\"");
    let refused =
        ["", "\"\"", &long, &quoted_long, "schlüssel", "\"é\"", "\"a\tb\"", "\"a\\qb\"", "\"a\\\"", "a b"];
    for key in refused {
        let answer = world.gateway.charge(key).await;
        assert_eq!(answer.told(), (400, INVALID.to_owned()), "{key:?}: {answer:?}");
        assert!(!answer.header("link").is_empty());
    }
    // Other control characters do not even make a header.
    let answer = world.gateway.raw("POST / HTTP/1.1\r\nhost: a\r\nidempotency-key: a\x01b\r\n\r\n").await;
    assert_eq!(answer.status, 400);
    assert_eq!(world.ledger.count(), 1);
}

#[tokio::test]
async fn another_method_path_query_or_body_under_a_key_is_422_also_while_the_first_runs() {
    let world = world(&[]);
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
    let mut runs = world.gateway.connect().await;
    runs.write(&first.bytes()).await;
    world.ledger.held("k").await;
    for running in [true, false] {
        for other in &others {
            let answer = world.gateway.send(other.clone()).await;
            assert_eq!(answer.told(), (422, REUSED.to_owned()), "running: {running}, {other:?}");
            assert_eq!(answer.json()["next_action"], "new_key");
        }
        if running {
            let same = world.gateway.send(first.clone()).await;
            assert_eq!(same.told(), (409, "idempotency_key_in_progress".to_owned()));
            assert!(!same.header("retry-after").is_empty());
            world.ledger.release("k").await;
            assert_eq!(runs.read(false).await.unwrap().status, 201);
        }
    }
    assert!(world.gateway.send(first).await.is_replayed());
    assert_eq!(world.ledger.count(), 1);
}

#[tokio::test]
async fn json_that_means_the_same_is_the_same_request() {
    let world = world(&[]);
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
        assert!(world.are_same(key, first, second).await, "{key}");
    }
}

#[tokio::test]
async fn json_that_differs_in_the_least_is_another_request() {
    let world = world(&[]);
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
        assert!(!world.are_same(key, first, second).await, "{key}");
        assert!(world.post(key, "application/json", first).await.is_replayed(), "{key}");
    }
}

#[tokio::test]
async fn json_that_readers_disagree_about_is_compared_byte_for_byte() {
    let world = world(&[]);
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
        assert!(world.are_same(key, &first, &first).await, "{key}");
        assert!(!world.are_same(&format!("{key}-other"), &first, &second).await, "{key}");
    }
}

#[tokio::test]
async fn multipart_with_a_new_boundary_and_a_form_in_another_order_are_the_same_request() {
    let world = world(&[]);
    let part = |boundary: &str, amount: &str| {
        let head = "content-disposition: form-data; name=\"amount\"";
        format!("--{boundary}\r\n{head}\r\n\r\n{amount}\r\n--{boundary}--\r\n")
    };
    let send = async |boundary: &str, amount: &str| {
        let kind = format!("multipart/form-data; boundary={boundary}");
        world.post("multipart", &kind, part(boundary, amount)).await
    };
    assert_eq!(send("first", "1299").await.status, 201);
    assert!(send("second", "1299").await.is_replayed());
    assert_eq!(send("third", "1300").await.told(), (422, REUSED.to_owned()));

    let form = "application/x-www-form-urlencoded";
    assert_eq!(world.post("form", form, "a=1&b=2").await.status, 201);
    assert!(world.post("form", form, "b=2&a=1").await.is_replayed());
    assert_eq!(world.post("form", form, "b=2&a=2").await.told(), (422, REUSED.to_owned()));
    assert_eq!(world.ledger.count(), 2);
}

#[tokio::test]
async fn trace_headers_and_user_agents_make_no_difference() {
    let world = world(&[]);
    for (number, agent) in ["curl/8", "curl/9"].into_iter().enumerate() {
        let trace = format!("00-{}-{}-01", format!("{number}a").repeat(16), "12".repeat(8));
        let request = Request::charge("k")
            .header("user-agent", agent)
            .header("traceparent", &trace)
            .header("x-request-id", agent)
            .header("accept-encoding", agent);
        let answer = world.gateway.send(request).await;
        assert_eq!((answer.status, answer.is_replayed()), (201, number == 1), "{answer:?}");
    }
    assert_eq!(world.ledger.count(), 1);
}

#[tokio::test]
async fn a_corrected_body_under_the_old_key_is_422_and_the_first_answer_stays() {
    let world = world(&[]);
    let wrong = || Request::charge("k").behave("status=400").body("{\"amount\":\"12,99\"}");
    let first = world.gateway.send(wrong()).await;
    assert_eq!(first.status, 400);
    let corrected = world.gateway.send(Request::charge("k")).await;
    assert_eq!(corrected.told(), (422, REUSED.to_owned()));
    let again = world.gateway.send(wrong()).await;
    assert_eq!((again.status, again.is_replayed(), &again.body), (400, true, &first.body));
    assert_eq!(world.ledger.count(), 1);
}

#[tokio::test]
async fn no_spelling_of_a_path_gets_around_a_route_that_requires_a_key() {
    let world = world(&["--routes", "[{ match = \"POST /v1/payments\", key = \"required\" }]"]);
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
        let answer = world.gateway.send(Request::new("POST", target).body("{}")).await;
        assert_eq!(answer.told(), (400, "idempotency_key_missing".to_owned()), "{target}: {answer:?}");
    }
    assert_eq!(world.ledger.count(), 0);
    let elsewhere = world.gateway.send(Request::new("POST", "/v1/refunds").body("{}")).await;
    assert_eq!(elsewhere.status, 201);
}
