//! TLS to clients and to the API.

use bytes::Bytes;
use http::{Request as Sent, StatusCode, Version};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::certificate::Certificate;
use crate::harness::{Gateway, Request, http2, onceward};
use crate::ledger::Ledger;

fn charge(uri: &str, key: &str) -> Sent<Full<Bytes>> {
    let body = Full::new(Bytes::from("{\"amount\":1299}"));
    let request = Sent::post(uri).header("host", "localhost").header("idempotency-key", key);
    request.header("x-behave", "echo").body(body).unwrap()
}

#[tokio::test]
async fn clients_speak_tls_with_either_protocol_and_the_api_gets_https_as_the_forwarded_scheme() {
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
    let mut sender = http2(stream).await;
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
    let upstream = format!("https://localhost:{}", certificate.terminate_tls(ledger.address).await);
    let start = |trusted: &Certificate| {
        let mut command = Gateway::command_without_scope(folder.path(), &upstream);
        command.args(["--scope", "fixed:test", "--upstream-tls-ca", trusted.file.to_str().unwrap()]);
        Gateway::spawn(&mut command)
    };
    let mut gateway = start(&other);
    for _ in 0..2 {
        let answer = gateway.charge("k").await;
        assert_eq!(
            answer.status_and_code(),
            (502, "idempotency_upstream_unreachable".to_owned()),
            "{answer:?}"
        );
    }
    let unkeyed = gateway.send(Request::new("GET", "/a")).await;
    assert_eq!(unkeyed.status_and_code(), (502, "upstream_unreachable".to_owned()), "{unkeyed:?}");
    assert_eq!(ledger.count(), 0);
    gateway.kill();
    // Nothing was sent, so the same key is executed as soon as the API can be trusted.
    let gateway = start(&certificate);
    assert_eq!(gateway.charge("k").await.status, 201);
    assert!(gateway.charge("k").await.is_replayed());
    assert_eq!(ledger.count(), 1);
}

#[test]
fn a_certificate_without_its_key_is_refused_before_anything_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let certificate = Certificate::make(folder.path(), "front");
    let output = onceward(folder.path())
        .args(["serve", "--scope", "fixed:test", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
        .args(["--tls-certificate", certificate.file.to_str().unwrap()])
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("tls"), "{errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_reports_an_api_that_speaks_only_http_2_over_tls_or_no_tls() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let certificate = Certificate::make(folder.path(), "api");
    let http2_only = certificate.terminate_tls_with(ledger.address, &[b"h2"]).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plain = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        // What most servers answer to bytes that are no request.
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        // The rest of the handshake is read, so that closing does not reset what was answered.
        while let Ok(1..) = socket.read(&mut [0; 1024]).await {}
    });
    for (port, advice) in [(http2_only, "speaks HTTP/2 only"), (plain, "write http:// in `upstream`")] {
        let check = onceward(folder.path())
            .args(["check", "--scope", "fixed:test", "--store", "memory:"])
            .args(["--upstream", &format!("https://localhost:{port}")])
            .args(["--upstream-tls-ca", certificate.file.to_str().unwrap()])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&check.stdout).into_owned();
        assert!(text.contains("error    upstream: ") && text.contains(advice), "{text}");
        assert_eq!(check.status.code(), Some(1), "{text}");
    }
}
