//! APIs and clients that use rare features of HTTP/1.1.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::harness::{Gateway, Request, read_head};

/// A socket on which the test itself plays the API.
async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[tokio::test]
async fn no_client_can_switch_to_another_http_version_and_send_requests_past_the_gateway() {
    let (_folder, _ledger, gateway) = Gateway::with_ledger(&[]);
    for protocol in ["h2c", "H2C", "websocket, h2c", "HTTP/2.0", "h2", "TLS/1.3"] {
        let request = Request::new("GET", "/a")
            .header("connection", "Upgrade, HTTP2-Settings")
            .header("upgrade", protocol)
            .header("http2-settings", "AAMAAABkAAQAAP__");
        let answer = gateway.send(request.behave("echo")).await;
        assert_eq!(answer.status, 201, "{protocol}: {answer:?}");
        assert!(!answer.text().to_ascii_lowercase().contains("\r\nupgrade:"), "{protocol}: {answer:?}");
    }
}

#[tokio::test]
async fn a_connection_header_does_not_remove_the_operation_headers_on_their_way_to_the_api() {
    let (_folder, _ledger, gateway) = Gateway::with_ledger(&[]);
    let nominated = "close, Onceward-Operation, onceward-fence, onceward-attempt, onceward-recovery-point";
    let answer = gateway.send(Request::charge("k").header("connection", nominated).behave("echo")).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    for name in ["operation", "fence", "attempt", "recovery-point"] {
        let name = format!("\r\nonceward-{name}:");
        assert!(answer.text().to_ascii_lowercase().contains(&name), "{name}: {answer:?}");
    }
}

#[tokio::test]
async fn a_body_of_unknown_length_reaches_the_api_whatever_the_method() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    for method in ["GET", "DELETE", "OPTIONS", "POST"] {
        let head = format!("{method} /search HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
        let answer = gateway.raw(format!("{head}5\r\nquery\r\n0\r\n\r\n")).await;
        assert_eq!(answer.status, 201, "{method}: {answer:?}");
        assert_eq!(ledger.entries().last().unwrap().body, "query", "{method}");
    }
}

#[tokio::test]
async fn a_client_gets_its_answer_when_the_api_answers_before_it_has_read_the_body() {
    let folder = tempfile::tempdir().unwrap();
    let (listener, address) = listen().await;
    let gateway = Gateway::start(folder.path(), address, &["--limits-upstream-idle", "1h"]);
    let mut client = gateway.connect().await;
    client.write(b"POST /files HTTP/1.1\r\nhost: a\r\ncontent-length: 100000000\r\n\r\nbegun").await;
    let (mut socket, _) = listener.accept().await.unwrap();
    read_head(&mut socket).await.unwrap();
    socket.write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    assert_eq!(client.read().await.unwrap().status, 413);
    // The rest of the body is not read: both connections are closed.
    assert!(client.closed().await);
    let mut rest = Vec::new();
    // A reset is an end as well.
    let _ended = socket.read_to_end(&mut rest).await;
    // The next request has a connection of its own, on which nothing is left of this one.
    let (answer, ()) = tokio::join!(gateway.charge("k"), async {
        let (mut socket, _) = listener.accept().await.unwrap();
        assert!(read_head(&mut socket).await.unwrap().starts_with("POST /charges "));
        socket.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
    });
    assert_eq!((answer.status, answer.text()), (201, "ok".to_owned()));
}

#[tokio::test]
async fn a_connection_is_used_again_after_every_kind_of_complete_answer() {
    let folder = tempfile::tempdir().unwrap();
    let (listener, address) = listen().await;
    let shared = ["--limits-upstream-idle", "1h", "--upstream-keepalive", "all"];
    let gateway = Gateway::start(folder.path(), address, &shared);
    let api = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        for answer in [
            "200 OK\r\ncontent-length: 2\r\n\r\nok",
            "200 OK\r\ncontent-length: 0\r\n\r\n",
            "204 No Content\r\n\r\n",
            "304 Not Modified\r\ncontent-length: 7\r\n\r\n",
            "200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            "429 Too Many Requests\r\ncontent-length: 2\r\n\r\nno",
        ] {
            for _keyed_or_not in 0..2 {
                let head = read_head(&mut socket).await.unwrap().to_ascii_lowercase();
                let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
                let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
                socket.read_exact(&mut body).await.unwrap();
                socket.write_all(format!("HTTP/1.1 {answer}").as_bytes()).await.unwrap();
            }
        }
        listener
    });
    for number in 0..6 {
        gateway.charge(&format!("k{number}")).await;
        gateway.send(Request::new("POST", "/a").body("{}")).await;
    }
    api.await.unwrap();
}

#[tokio::test]
async fn what_an_api_sends_after_its_answer_is_never_the_answer_to_the_next_request() {
    let folder = tempfile::tempdir().unwrap();
    let (listener, address) = listen().await;
    let gateway = Gateway::start(folder.path(), address, &["--upstream-keepalive", "all"]);
    let wrong = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwrong";
    for (number, first) in [
        "HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 304 Not Modified\r\ncontent-length: 2\r\n\r\n",
    ]
    .into_iter()
    .enumerate()
    {
        let keys = [format!("a{number}"), format!("b{number}")];
        let (answer, _first_socket) = tokio::join!(gateway.charge(&keys[0]), async {
            let (mut socket, _) = listener.accept().await.unwrap();
            read_head(&mut socket).await.unwrap();
            socket.write_all(format!("{first}{wrong}").as_bytes()).await.unwrap();
            socket
        });
        assert!(matches!(answer.status, 201 | 204 | 304), "{answer:?}");
        let (answer, ()) = tokio::join!(gateway.charge(&keys[1]), async {
            let (mut socket, _) = listener.accept().await.unwrap();
            read_head(&mut socket).await.unwrap();
            let right = "HTTP/1.1 201 Created\r\nconnection: close\r\ncontent-length: 5\r\n\r\nright";
            socket.write_all(right.as_bytes()).await.unwrap();
        });
        assert_eq!((answer.status, answer.text()), (201, "right".to_owned()), "{first}");
    }
}
