//! The wire: a request that is not strictly HTTP, too large or too slow never reaches the API.

use bytes::Bytes;
use http_body_util::Full;
use tokio::io::AsyncWriteExt as _;

use crate::certificate::Certificate;
use crate::harness::{Gateway, Request, http2};
use crate::ledger::Ledger;

#[tokio::test]
async fn a_request_that_two_readers_could_understand_differently_is_400_and_ends_the_connection() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    let line = "POST /charges HTTP/1.1\r\n";
    let hidden = "POST /hidden HTTP/1.1\r\nhost: a\r\n\r\n";
    let heads = [
        ("both", "host: a\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n"),
        ("both, the other way round", "host: a\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n"),
        ("unequal lengths", "host: a\r\ncontent-length: 4\r\ncontent-length: 5\r\n"),
        ("a list of lengths", "host: a\r\ncontent-length: 4, 5\r\n"),
        ("a sign", "host: a\r\ncontent-length: +4\r\n"),
        ("a hexadecimal length", "host: a\r\ncontent-length: 0x4\r\n"),
        ("a folded header", "host: a\r\nx-a: b\r\n c: d\r\ncontent-length: 4\r\n"),
        ("a bare LF", "host: a\ncontent-length: 4\r\n"),
        ("a bare CR", "host: a\rcontent-length: 4\r\n"),
        ("a space before the colon", "host: a\r\ncontent-length : 4\r\n"),
        ("a tab before the colon", "host: a\r\ntransfer-encoding\t: chunked\r\n"),
        ("another encoding", "host: a\r\ntransfer-encoding: gzip, chunked\r\n"),
        ("an odd encoding", "host: a\r\ntransfer-encoding: xchunked\r\n"),
        ("an encoding twice", "host: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n"),
        ("no host", "content-length: 4\r\n"),
        ("two hosts", "host: a\r\nhost: b\r\ncontent-length: 4\r\n"),
        ("a NUL", "host: a\r\nx-a: \0\r\ncontent-length: 4\r\n"),
    ];
    for (what, head) in heads {
        for key in ["", "idempotency-key: k\r\n"] {
            let mut client = gateway.connect().await;
            client.write(format!("{line}{key}{head}\r\n0\r\n\r\n{hidden}").as_bytes()).await;
            let answer = client.read().await.unwrap_or_else(|| panic!("no answer to {what}"));
            assert_eq!(answer.status, 400, "{what}: {answer:?}");
            assert_eq!(answer.header("content-type"), "application/problem+json", "{what}");
            assert!(client.closed().await, "{what}");
        }
    }
    assert_eq!(gateway.status_of("k").await.status, 404);
    assert_eq!(ledger.count(), 0);
}

/// Registered methods in another case.
const MISCASED: [&str; 6] = ["post", "Post", "POSt", "pAtCh", "get", "delete"];
const REQUIRED: &str = "[{ match = \"POST /charges\", key = \"required\" }, { match = \"PROPFIND /charges\", key = \"required\" }]";

#[tokio::test]
async fn a_method_in_another_case_gets_around_no_required_key_and_ends_the_connection() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&["--routes", REQUIRED]);
    let mut refused = serde_json::Value::Null;
    for method in MISCASED {
        for key in ["", "idempotency-key: k\r\n"] {
            let mut client = gateway.connect().await;
            let head = format!("{method} /charges HTTP/1.1\r\nhost: a\r\n{key}content-length: 2\r\n\r\n{{}}");
            client.write(head.as_bytes()).await;
            let answer = client.read().await.unwrap_or_else(|| panic!("no answer to {method}"));
            assert_eq!(
                answer.status_and_code(),
                (400, "idempotency_method_invalid".to_owned()),
                "{method}: {answer:?}"
            );
            refused = answer.json();
            assert!(refused["detail"].as_str().unwrap().contains("capital letters"), "{answer:?}");
            assert_eq!(answer.header("onceward-outcome"), "retryable");
            assert!(client.closed().await, "{method}");
        }
    }
    // Only the configuration names this method, so the connection need not end.
    for method in ["propfind", "PropFind"] {
        let answer = gateway.send(Request::new(method, "/charges").body("{}")).await;
        assert_eq!(answer.json(), refused, "a client gets the same answer, whatever refuses it");
    }
    assert_eq!(gateway.status_of("k").await.status, 404);
    assert_eq!(ledger.count(), 0);
    // Methods that differ from every known one by more than case pass as they came.
    for method in ["MKCOL", "M-SEARCH", "mkcol", "posts", "Purge"] {
        assert_eq!(gateway.send(Request::new(method, "/charges").body("{}")).await.status, 201, "{method}");
    }
    let passed: Vec<String> = ledger.entries().into_iter().map(|entry| entry.method).collect();
    assert_eq!(passed, ["MKCOL", "M-SEARCH", "mkcol", "posts", "Purge"]);
}

#[tokio::test]
async fn a_method_in_another_case_is_refused_over_http2_with_and_without_tls() {
    let folder = tempfile::tempdir().unwrap();
    let certificate = Certificate::make(folder.path(), "front");
    let (file, key) = (certificate.file.to_str().unwrap(), certificate.key.to_str().unwrap());
    let ledger = Ledger::start(folder.path());
    let plain = Gateway::start(folder.path(), ledger.address, &["--routes", REQUIRED]);
    let other = tempfile::tempdir().unwrap();
    let arguments = ["--routes", REQUIRED, "--tls-certificate", file, "--tls-key", key];
    let tls = Gateway::start(other.path(), ledger.address, &arguments);
    let connect = async |gateway: &Gateway| tokio::net::TcpStream::connect(gateway.address).await.unwrap();
    let secure = certificate.connect(connect(&tls).await, &[b"h2"]).await;
    assert_eq!(secure.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    for mut sender in [http2(connect(&plain).await).await, http2(secure).await] {
        let mut send = async |method: &str| {
            let request = http::Request::builder().method(method).uri("http://localhost/charges");
            let request = request.body(Full::new(Bytes::from("{}"))).unwrap();
            sender.send_request(request).await.unwrap().status().as_u16()
        };
        for method in MISCASED.into_iter().chain(["propfind"]) {
            assert_eq!(send(method).await, 400, "{method}");
        }
        assert_eq!(ledger.count(), 0);
        // The connection goes on: HTTP/2 keeps its requests apart by itself.
        assert_eq!(send("POST").await, 400, "the key is required");
        assert_eq!(ledger.count(), 0);
    }
}

#[tokio::test]
async fn a_chunk_that_is_malformed_reaches_the_api_neither_whole_nor_as_another_request() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    let head =
        "POST /charges HTTP/1.1\r\nhost: a\r\nidempotency-key: k\r\ntransfer-encoding: chunked\r\n\r\n";
    let unkeyed = head.replace("idempotency-key: k\r\n", "");
    let hidden = "POST /hidden HTTP/1.1\r\nhost: a\r\n\r\n";
    for chunks in [
        "2;x\n\r\nok\r\n0\r\n\r\n",
        "2\nok\r\n0\r\n\r\n",
        " 2\r\nok\r\n0\r\n\r\n",
        "2\r\nokk\r\n0\r\n\r\n",
        "-2\r\nok\r\n0\r\n\r\n",
    ] {
        for head in [head, &unkeyed] {
            let mut client = gateway.connect().await;
            client.write(format!("{head}{chunks}{hidden}").as_bytes()).await;
            let answer = client.read().await.unwrap_or_else(|| panic!("no answer to {chunks:?}"));
            assert_eq!(answer.status, 400, "{head}{chunks:?}: {answer:?}");
            // A later answer could only be to what was hidden.
            while let Some(next) = client.read().await {
                assert_eq!(next.status, 400, "{chunks:?}: {next:?}");
            }
        }
    }
    assert_eq!(gateway.status_of("k").await.status, 404);
    assert_eq!(ledger.count(), 0);
}

/// A request whose body is another request, with either framing.
fn hiding(target: &str, key: &str) -> [String; 2] {
    let hidden = "POST /hidden HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n";
    let key = if key.is_empty() { String::new() } else { format!("idempotency-key: {key}\r\n") };
    let head = format!("POST {target} HTTP/1.1\r\nhost: a\r\n{key}content-type: text/plain\r\n");
    let length = hidden.len();
    [
        format!("{head}content-length: {length}\r\n\r\n{hidden}"),
        format!("{head}transfer-encoding: chunked\r\n\r\n{length:x}\r\n{hidden}\r\n0\r\n\r\n"),
    ]
}

#[tokio::test]
async fn a_request_hidden_in_the_body_of_a_replayed_or_refused_one_is_never_seen() {
    let routes = "[{ match = \"POST /required\", key = \"required\" }, \
                   { match = \"POST /small\", max_request_body = 16 }]";
    let (_folder, ledger, gateway) = Gateway::with_ledger(&["--routes", routes]);
    assert_eq!(gateway.raw(&hiding("/charges", "executed")[0]).await.status, 201);
    assert_eq!(gateway.charge("other").await.status, 201);
    let mut running_client = gateway.connect().await;
    let [running, _] = hiding("/charges", "running\r\nx-behave: hold=running");
    running_client.write(running.as_bytes()).await;
    ledger.held("running").await;
    let after = Request::new("GET", "/after").bytes();
    for (target, key, status) in [
        ("/charges", "executed", 201),
        ("/charges", "other", 422),
        ("/charges", "running", 409),
        ("/charges", "a,b", 400),
        ("/required", "", 400),
        ("/small", "small", 413),
    ] {
        for bytes in hiding(target, key) {
            let before = ledger.count();
            let mut client = gateway.connect().await;
            client.write(bytes.as_bytes()).await;
            let answer = client.read().await.unwrap();
            assert_eq!((answer.status, answer.is_replayed()), (status, status == 201), "{bytes}: {answer:?}");
            // The connection goes on behind the whole body, or ends.
            let mut executed = before;
            if client.0.write_all(&after).await.is_ok()
                && let Some(next) = client.read().await
            {
                assert_eq!(next.status, 201, "{bytes}: {next:?}");
                executed += 1;
            }
            assert_eq!(ledger.count(), executed, "{bytes}: {:?}", ledger.entries());
        }
    }
    assert!(ledger.entries().iter().all(|entry| entry.path != "/hidden"), "{:?}", ledger.entries());
}

#[tokio::test]
async fn requests_that_are_sent_without_waiting_are_answered_in_order() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    let mut client = gateway.connect().await;
    let refused = Request::charge("a,b");
    let other = Request::charge("k").body("{}");
    let sent = [Request::charge("k"), refused, Request::charge("k"), other, Request::new("GET", "/last")];
    client.write(&sent.iter().flat_map(Request::bytes).collect::<Vec<u8>>()).await;
    let mut statuses = Vec::new();
    for _ in &sent {
        statuses.push(client.read().await.unwrap().status);
    }
    assert_eq!(statuses, [201, 400, 201, 422, 201]);
    assert_eq!(ledger.count(), 2);
    client.write(b"GET / HTTP/1.0\r\n\r\n").await;
    assert_eq!(client.read().await.unwrap().status, 201);
    assert!(client.closed().await, "HTTP/1.0 has no second request unless it asks for one");
}

#[tokio::test]
async fn a_huge_header_url_or_body_is_431_414_or_413_and_nothing_is_reserved() {
    let limits =
        ["--limits-header-bytes", "4KiB", "--limits-url-bytes", "1KiB", "--max-request-body", "2KiB"];
    let (_folder, ledger, gateway) = Gateway::with_ledger(&limits);
    let long = "x".repeat(8 << 10);
    let url = format!("/charges?{long}");
    let header = Request::charge("k").header("x-long", &long);
    assert_eq!(gateway.send(header).await.status, 431);
    assert_eq!(gateway.send(Request { target: &url, ..Request::charge("k") }).await.status, 414);
    let body = gateway.send(Request::charge("k").body(&long)).await;
    assert_eq!(body.status_and_code(), (413, "idempotency_request_too_large".to_owned()), "{body:?}");
    let head =
        "POST /charges HTTP/1.1\r\nhost: a\r\nidempotency-key: k\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunked = gateway.raw(format!("{head}2000\r\n{long}\r\n0\r\n\r\n")).await;
    assert_eq!(chunked.status_and_code(), (413, "idempotency_request_too_large".to_owned()), "{chunked:?}");
    // A length alone is enough to refuse.
    let claimed = gateway
        .raw("POST /charges HTTP/1.1\r\nhost: a\r\nidempotency-key: k\r\ncontent-length: 99999999999\r\n\r\n")
        .await;
    assert_eq!(claimed.status, 413);
    assert_eq!(gateway.status_of("k").await.status, 404);
    assert_eq!(ledger.count(), 0);
    assert_eq!(gateway.charge("k").await.status, 201);
}

#[tokio::test]
async fn a_key_that_the_connection_header_would_remove_is_400() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    for value in ["Idempotency-Key", "close, idempotency-key", "keep-alive,IDEMPOTENCY-KEY"] {
        let answer = gateway.send(Request::charge("k").header("connection", value)).await;
        assert_eq!(
            answer.status_and_code(),
            (400, "idempotency_key_invalid".to_owned()),
            "{value}: {answer:?}"
        );
    }
    assert_eq!(ledger.count(), 0);
}

#[tokio::test]
async fn slow_heads_and_bodies_are_ended_and_no_other_client_waits_for_them() {
    let limits = ["--limits-header-timeout", "1s", "--limits-body-timeout", "1s"];
    let (_folder, ledger, gateway) = Gateway::with_ledger(&limits);
    let mut head = gateway.connect().await;
    head.write(b"POST /charges HTTP/1.1\r\nhost: a\r\nidempotency-key: slow").await;
    let begun = "POST /charges HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n";
    let mut keyed = gateway.connect().await;
    keyed.write(format!("{begun}idempotency-key: slow\r\n\r\n{{").as_bytes()).await;
    let mut unkeyed = gateway.connect().await;
    unkeyed.write(format!("{begun}\r\n{{").as_bytes()).await;
    assert_eq!(gateway.charge("quick").await.status, 201);
    // From here on the test waits for the limits of the gateway.
    let answer = keyed.read().await.unwrap();
    assert_eq!(answer.status_and_code(), (400, "idempotency_request_broken".to_owned()), "{answer:?}");
    assert_eq!(answer.json()["next_action"], "retry_same_key");
    assert!(keyed.closed().await);
    assert!(head.read().await.is_none_or(|answer| answer.status == 408));
    let answer = unkeyed.read().await.unwrap();
    assert_eq!(answer.status_and_code(), (408, "request_paused".to_owned()), "{answer:?}");
    assert_eq!(gateway.status_of("slow").await.status, 404);
    let seen: Vec<String> = ledger.entries().into_iter().map(|entry| entry.key).collect();
    assert_eq!(seen, ["quick"]);
}

#[tokio::test]
async fn idle_connections_beyond_the_limit_are_ended_and_the_next_request_is_served() {
    let limits = ["--limits-connections", "4", "--limits-header-timeout", "500ms"];
    let (_folder, ledger, gateway) = Gateway::with_ledger(&limits);
    let mut idle = Vec::new();
    for _ in 0..12 {
        idle.push(gateway.connect().await);
    }
    assert_eq!(gateway.charge("k").await.status, 201);
    for mut client in idle {
        assert!(client.closed().await);
    }
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn a_connection_between_two_requests_has_a_limit_of_its_own() {
    let (_folder, ledger, gateway) =
        Gateway::with_ledger(&["--limits-header-timeout", "500ms", "--limits-idle-timeout", "1h"]);
    let mut idle = gateway.connect().await;
    assert_eq!(idle.send(Request::charge("k")).await.status, 201);
    // A new connection that sends nothing is closed once the other limit has passed, however slow this machine is.
    assert!(gateway.connect().await.closed().await);
    assert!(idle.send(Request::charge("k")).await.is_replayed());
    // A head that has begun still has the limit of heads.
    idle.write(b"GET /begun HTTP/1.1\r\n").await;
    assert!(idle.closed().await);
    assert_eq!(ledger.count(), 1);

    let other = tempfile::tempdir().unwrap();
    let limits = ["--limits-header-timeout", "1h", "--limits-idle-timeout", "500ms"];
    let gateway = Gateway::start(other.path(), ledger.address, &limits);
    let mut idle = gateway.connect().await;
    assert_eq!(idle.send(Request::charge("k")).await.status, 201);
    assert!(idle.closed().await);
}
