//! TLS in front and behind.

use bytes::Bytes;
use http::{Request as Sent, StatusCode, Version};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::certificate::Certificate;
use crate::harness::{Gateway, Request, onceward};
use crate::ledger::Ledger;

fn charge(uri: &str, key: &str) -> Sent<Full<Bytes>> {
    let body = Full::new(Bytes::from("{\"amount\":1299}"));
    let request = Sent::post(uri).header("host", "localhost").header("idempotency-key", key);
    request.header("x-behave", "echo").body(body).unwrap()
}

#[tokio::test]
async fn clients_speak_tls_with_either_protocol_and_the_api_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let certificate = Certificate::make(folder.path(), "front");
    let files = [
        "--tls-certificate",
        certificate.file.to_str().unwrap(),
        "--tls-key",
        certificate.key.to_str().unwrap(),
    ];
    let gateway = Gateway::start(folder.path(), ledger.address, &files);
    let connect = async || TcpStream::connect(gateway.address).await.unwrap();

    let stream = certificate.connect(connect().await, &[b"h2", b"http/1.1"]).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    let first = sender.send_request(charge("https://localhost/charges", "k")).await.unwrap();
    assert_eq!((first.status(), first.version()), (StatusCode::CREATED, Version::HTTP_2));
    let echoed = first.into_body().collect().await.unwrap().to_bytes();
    let echoed = String::from_utf8(echoed.to_vec()).unwrap().to_ascii_lowercase();
    assert!(echoed.contains("x-forwarded-proto: https"), "{echoed}");

    let stream = certificate.connect(connect().await, &[b"http/1.1"]).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    let again = sender.send_request(charge("/charges", "k")).await.unwrap();
    assert_eq!((again.status(), again.version()), (StatusCode::CREATED, Version::HTTP_11));
    assert_eq!(again.headers()["idempotency-replayed"], "true", "one operation over both protocols");
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn an_api_behind_tls_is_spoken_to_only_if_its_certificate_is_trusted() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let certificate = Certificate::make(folder.path(), "api");
    let other = Certificate::make(folder.path(), "other");
    let upstream = format!("https://localhost:{}", certificate.stand_before(ledger.address).await);
    let start = |trusted: &Certificate| {
        let mut command = Gateway::to(folder.path(), &upstream);
        command.args(["--scope", "fixed:test", "--upstream-tls-ca", trusted.file.to_str().unwrap()]);
        Gateway::spawn(&mut command)
    };
    let mut gateway = start(&other);
    for _ in 0..2 {
        let answer = gateway.charge("k").await;
        assert_eq!(answer.told(), (502, "idempotency_upstream_unreachable".to_owned()), "{answer:?}");
    }
    let unkeyed = gateway.send(Request::new("GET", "/a")).await;
    assert_eq!(unkeyed.told(), (502, "upstream_unreachable".to_owned()), "{unkeyed:?}");
    assert_eq!(ledger.count(), 0);
    gateway.kill();
    // Nothing was done, so the same key is executed as soon as the API can be trusted.
    let gateway = start(&certificate);
    assert_eq!(gateway.charge("k").await.status, 201);
    assert!(gateway.charge("k").await.is_replayed());
    assert_eq!(ledger.count(), 1);
}

#[test]
fn a_certificate_without_its_key_is_told_before_anything_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let certificate = Certificate::make(folder.path(), "front");
    let output = onceward(folder.path())
        .args(["serve", "--scope", "fixed:test", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
        .args(["--tls-certificate", certificate.file.to_str().unwrap()])
        .output()
        .unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("tls"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_says_that_an_api_speaks_http_2_only_over_tls_or_no_tls_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let certificate = Certificate::make(folder.path(), "api");
    let http2 = certificate.stand_before_with(ledger.address, &[b"h2"]).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plain = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        // As most servers answer what is no request.
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        // The rest of the handshake is read, so that closing does not reset what was answered.
        while let Ok(1..) = socket.read(&mut [0; 1024]).await {}
    });
    for (port, says) in [(http2, "speaks HTTP/2 only"), (plain, "write http:// in `upstream`")] {
        let check = onceward(folder.path())
            .args(["check", "--scope", "fixed:test", "--store", "memory:"])
            .args(["--upstream", &format!("https://localhost:{port}")])
            .args(["--upstream-tls-ca", certificate.file.to_str().unwrap()])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&check.stdout).into_owned();
        assert!(text.contains("error    upstream: ") && text.contains(says), "{text}");
        assert_eq!(check.status.code(), Some(1), "{text}");
    }
}
