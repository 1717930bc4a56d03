//! Connections that cease to be HTTP.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use onceward_gateway::front::Body;
use onceward_gateway::settings::Limits;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{ADDRESS, answers, front, read_to_end, statuses};

const HANDSHAKE: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";

/// Echoes what comes after an upgrade. Where it is asked for anything else, it takes no upgrade.
async fn echo(mut request: Request<Body>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = Response::new(Full::default());
    if request.uri().path() != "/" || !request.headers().contains_key("upgrade") {
        return Ok(response);
    }
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let (mut read, mut write) = tokio::io::split(TokioIo::new(upgrade.await.unwrap()));
        tokio::io::copy(&mut read, &mut write).await.unwrap();
        write.shutdown().await.unwrap();
    });
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert("connection", "upgrade".parse().unwrap());
    response.headers_mut().insert("upgrade", "echo".parse().unwrap());
    Ok(response)
}

fn pipe() -> tokio::io::DuplexStream {
    let (client, server) = tokio::io::duplex(1024);
    tokio::spawn(async move {
        let service = tower::service_fn(echo);
        let front = front(Limits::default());
        front.serve_connection(server, ADDRESS, service, std::future::pending()).await.unwrap();
    });
    client
}

#[tokio::test]
async fn bytes_after_an_upgrade_pass_as_they_are() {
    let mut client = pipe();
    // Some come before the answer, which is early but must not be taken for a request.
    client.write_all(HANDSHAKE).await.unwrap();
    client.write_all(b"\0\n early ").await.unwrap();
    let mut head = vec![0; b"HTTP/1.1 101".len()];
    client.read_exact(&mut head).await.unwrap();
    assert_eq!(head, b"HTTP/1.1 101");
    client.write_all(b"\x81late\r\n\r\n").await.unwrap();
    client.shutdown().await.unwrap();
    let rest = read_to_end(&mut client).await;
    assert!(rest.ends_with(b"\r\n\r\n\0\n early \x81late\r\n\r\n"), "{}", rest.escape_ascii());
}

#[tokio::test]
async fn where_the_upgrade_is_not_taken_the_next_request_is_guarded_as_before() {
    let refused = b"GET /no HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    for (next, status) in [
        ("GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 200),
        ("GET /a HTTP/1.1\r\nHost: a\nConnection: close\r\n\r\n", 400),
    ] {
        let mut client = pipe();
        client.write_all(&[refused.as_slice(), next.as_bytes()].concat()).await.unwrap();
        assert_eq!(statuses(&answers(&read_to_end(&mut client).await)), [200, status]);
    }
}
