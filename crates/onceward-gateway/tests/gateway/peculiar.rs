//! APIs, and clients, that use what HTTP/1.1 allows and few have thought of.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{Gateway, Request};
use crate::ledger::Ledger;

/// An API that is only a socket.
async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Reads the head of a request, and none of its body.
async fn head(socket: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

#[tokio::test]
async fn no_client_gets_a_tunnel_to_the_api_in_which_it_could_speak_http_past_the_gateway() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let gateway = Gateway::start(folder.path(), ledger.address, &[]);
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
async fn a_client_cannot_have_an_operations_name_taken_away_on_its_way_to_the_api() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let gateway = Gateway::start(folder.path(), ledger.address, &[]);
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
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let gateway = Gateway::start(folder.path(), ledger.address, &[]);
    for method in ["GET", "DELETE", "OPTIONS", "POST"] {
        let head = format!("{method} /search HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
        let answer = gateway.raw(format!("{head}5\r\nquery\r\n0\r\n\r\n")).await;
        assert_eq!(answer.status, 201, "{method}: {answer:?}");
        assert_eq!(ledger.entries().last().unwrap().body, "query", "{method}");
    }
}
