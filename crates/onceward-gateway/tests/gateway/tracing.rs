//! Traces through the real binary: from the client to the API, and to a collector.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::harness::{Gateway, Request, read_head, within};
use crate::ledger::Ledger;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// The body of the first request that comes in, which is answered with 200.
async fn first_export(collector: TcpListener) -> Vec<u8> {
    let (mut socket, _) = collector.accept().await.unwrap();
    let head = read_head(&mut socket).await.unwrap().to_ascii_lowercase();
    assert!(head.starts_with("post /v1/traces "), "{head}");
    let length = head.split("content-length:").nth(1).unwrap().split("\r\n").next().unwrap();
    let mut body = vec![0; length.trim().parse().unwrap()];
    socket.read_exact(&mut body).await.unwrap();
    socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    body
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

#[tokio::test]
async fn a_trace_continues_from_the_client_to_the_api_and_is_exported_to_the_collector() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let collector = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let otlp = format!("http://{}", collector.local_addr().unwrap());
    let export = tokio::spawn(first_export(collector));
    let gateway = Gateway::start(folder.path(), ledger.address, &["--traces-otlp", &otlp]);
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let request = Request::charge("very-secret-key").header("traceparent", &parent).behave("echo");
    let seen = gateway.send(request).await.text();
    let line = seen.lines().find_map(|line| line.strip_prefix("traceparent: ")).unwrap();
    assert!(line.starts_with(&format!("00-{TRACE}-")) && !line.contains(PARENT), "{line}");
    tokio::task::spawn_blocking(move || gateway.stop()).await.unwrap();
    let export = within("an export to the collector", export).await.unwrap();
    for part in [&unhex(TRACE)[..], &unhex(PARENT), b"POST default", b"executed"] {
        assert!(has(&export, part), "{part:?} was not exported to the collector");
    }
    assert!(!has(&export, b"very-secret-key"));
}

#[tokio::test]
async fn without_a_collector_the_clients_trace_passes_through_untouched() {
    let (_folder, _ledger, gateway) = Gateway::with_ledger(&[]);
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let request = Request::charge("k").header("traceparent", &parent).behave("echo");
    assert!(gateway.send(request).await.text().contains(&format!("traceparent: {parent}")));
}
