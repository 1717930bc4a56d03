//! Requests without a key, and their answers, are passed on while they arrive.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use crate::harness::{Gateway, Request, http2, read_head};

#[tokio::test]
async fn an_event_arrives_before_the_next_one_is_sent() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&["--max-response-body", "1KiB"]);
    let mut client = gateway.connect().await;
    client.write(&Request::new("GET", "/events").behave("sse=s").bytes()).await;
    assert!(read_head(&mut client.0).await.unwrap().contains("text/event-stream"));
    assert_eq!(client.chunk().await.unwrap().unwrap(), b"data: first\n\n");
    ledger.release("s").await;
    assert_eq!(client.chunk().await.unwrap().unwrap(), b"data: second\n\n");
    assert_eq!(client.chunk().await, Some(None));
}

#[tokio::test]
async fn an_upload_reaches_the_api_while_it_is_still_being_sent_and_may_be_larger_than_a_keyed_one() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&["--max-request-body", "1KiB"]);
    let mut client = gateway.connect().await;
    let head = "POST /files HTTP/1.1\r\nhost: a\r\nx-behave: upload=u\r\ntransfer-encoding: chunked\r\n\r\n";
    client.write(format!("{head}5\r\nbegun\r\n").as_bytes()).await;
    ledger.held("u").await;
    client.write(b"4\r\ndone\r\n0\r\n\r\n").await;
    assert_eq!(client.read().await.unwrap().status, 201);
    assert_eq!(ledger.entries()[0].body, "begundone");

    let large = "x".repeat(3 << 20);
    assert_eq!(gateway.send(Request::new("POST", "/files").body(&large)).await.status, 201);
    assert_eq!(ledger.entries()[1].body.len(), large.len());
    let keyed = Request::new("POST", "/files").header("idempotency-key", "k").body(&large[..32 << 10]);
    assert_eq!(gateway.send(keyed).await.status, 413);
}

#[tokio::test]
async fn a_client_that_expects_100_continue_gets_it() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    for key in ["", "idempotency-key: k\r\n"] {
        let mut client = gateway.connect().await;
        let head = "POST /files HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 4\r\n";
        client.write(format!("{head}{key}\r\n").as_bytes()).await;
        assert_eq!(client.read().await.unwrap().status, 100, "{key}");
        client.write(b"body").await;
        assert_eq!(client.read().await.unwrap().status, 201, "{key}");
    }
    assert_eq!(ledger.count(), 2);
}

#[tokio::test]
async fn an_upgraded_connection_carries_bytes_both_ways() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    let upgrade =
        |method| Request::new(method, "/ws").header("connection", "Upgrade").header("upgrade", "echo");
    let mut client = gateway.connect().await;
    client.write(&upgrade("GET").behave("upgrade").bytes()).await;
    let answer = client.read().await.unwrap();
    assert_eq!((answer.status, answer.header("upgrade")), (101, "echo"), "{answer:?}");
    for sent in [&b"GET /looks-like HTTP/1.1\n\n"[..], b"\0\xff binary", b"last"] {
        client.write(sent).await;
        let mut got = vec![0; sent.len()];
        client.0.read_exact(&mut got).await.unwrap();
        assert_eq!(got, sent);
    }
    drop(client);

    // An answer in another protocol could not be replayed, so a keyed request does not ask for one.
    let keyed = upgrade("POST").header("idempotency-key", "k").behave("echo");
    for replayed in [false, true] {
        let answer = gateway.send(keyed.clone()).await;
        assert_eq!((answer.status, answer.is_replayed()), (201, replayed), "{answer:?}");
        assert!(!answer.text().to_ascii_lowercase().contains("\r\nupgrade:"), "{answer:?}");
    }
    assert_eq!(ledger.count(), 2);
}

#[tokio::test]
async fn http2_in_plain_text_is_spoken_and_trailers_arrive_and_are_replayed() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    let mut sender = http2(TcpStream::connect(gateway.address).await.unwrap()).await;
    for (key, replayed) in [(None, false), (Some("k"), false), (Some("k"), true)] {
        let mut request = http::Request::post("http://api.example/charges").header("x-behave", "trailers");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let response =
            sender.send_request(request.body(Full::new(Bytes::from("{}"))).unwrap()).await.unwrap();
        assert_eq!((response.status(), response.version()), (http::StatusCode::OK, http::Version::HTTP_2));
        assert_eq!(response.headers().contains_key("idempotency-replayed"), replayed);
        let body = response.into_body().collect().await.unwrap();
        assert_eq!(body.trailers().and_then(|trailers| trailers.get("x-sum")).unwrap(), "42", "{key:?}");
        assert_eq!(body.to_bytes(), "body");
    }
    assert_eq!(ledger.count(), 2);
}

#[tokio::test]
async fn trailers_reach_an_http1_client_that_asks_for_them() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    for key in [None, Some("k"), Some("k")] {
        let mut request =
            Request::new("POST", "/charges").header("te", "trailers").header("connection", "close, te");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let mut client = gateway.connect().await;
        client.write(&request.behave("trailers").body("{}").bytes()).await;
        let mut all = String::new();
        client.0.read_to_string(&mut all).await.unwrap();
        assert!(all.ends_with("4\r\nbody\r\n0\r\nx-sum: 42\r\n\r\n"), "{key:?}: {all}");
    }
    assert_eq!(ledger.count(), 2);
}
