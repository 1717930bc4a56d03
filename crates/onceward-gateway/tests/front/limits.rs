//! What is too large, at the limit and one beyond.

use onceward_gateway::settings::Limits;

use crate::{front, listen, send_byte_by_byte, statuses};

const SMALL: Limits = Limits {
    connections: 10,
    header_bytes: 300,
    url_bytes: 100,
    header_timeout: std::time::Duration::from_secs(30),
    idle_timeout: std::time::Duration::from_secs(30),
    body_timeout: std::time::Duration::from_secs(30),
    buffered_bytes: 0,
    upstream_connections: 1,
    connect_timeout: std::time::Duration::from_secs(1),
    upstream_idle: std::time::Duration::from_secs(1),
    response_timeout: std::time::Duration::from_secs(1),
    cache_bytes: 0,
    drain: std::time::Duration::from_secs(1),
    reply_bytes: 2 << 20,
};

fn with_target(length: usize) -> String {
    format!("GET /{} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "t".repeat(length - 1))
}

fn with_head(length: usize) -> String {
    let head =
        |filling: &str| format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nF: {filling}\r\n\r\n");
    head(&"f".repeat(length - head("").len()))
}

async fn expect(bytes: &str, status: u16) {
    let running = listen(front(SMALL)).await;
    let got = running.send(bytes.as_bytes()).await;
    assert_eq!(statuses(&got), [status], "{bytes}: {got:?}");
    let (got, ledger) = send_byte_by_byte(SMALL, bytes.as_bytes()).await;
    assert_eq!(statuses(&got), [status], "byte by byte: {bytes}: {got:?}");
    let seen = usize::from(status == 200);
    assert_eq!((running.ledger.whole().len(), ledger.whole().len()), (seen, seen));
}

#[tokio::test]
async fn a_target_at_the_limit_is_taken_and_one_beyond_is_too_long() {
    expect(&with_target(100), 200).await;
    expect(&with_target(101), 414).await;
    expect(&with_target(2000), 414).await;
    // Nor does it take an end.
    expect(&format!("GET /{}", "t".repeat(2000)), 414).await;
}

#[tokio::test]
async fn a_head_at_the_limit_is_taken_and_one_beyond_is_too_large() {
    expect(&with_head(300), 200).await;
    expect(&with_head(301), 431).await;
    expect(&with_head(5000), 431).await;
    expect(&format!("GET / HTTP/1.1\r\nHost: a\r\nF: {}", "f".repeat(2000)), 431).await;
}

#[tokio::test]
async fn a_hundred_headers_are_taken_and_one_more_is_too_many() {
    let running = listen(front(Limits::default())).await;
    for (more, status) in [(98, 200), (99, 431)] {
        let head =
            format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{}\r\n", "a: b\r\n".repeat(more));
        assert_eq!(statuses(&running.send(head.as_bytes()).await), [status]);
    }
    assert_eq!(running.ledger.whole().len(), 1);
}

#[tokio::test]
async fn a_large_head_within_the_limit_is_taken() {
    let running = listen(front(Limits::default())).await;
    let head = with_head(Limits::default().header_bytes);
    assert_eq!(statuses(&running.send(head.as_bytes()).await), [200]);
}
