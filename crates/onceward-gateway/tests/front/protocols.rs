//! HTTP/2, and TLS with either protocol.

use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{Request, StatusCode, Version};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use onceward_gateway::front::Front;
use onceward_gateway::front::tls::Certificate;
use onceward_gateway::settings::{Limits, Tls};
use rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::{Running, front, listen};

type H2 = http2::SendRequest<Full<Bytes>>;

async fn http2_over(io: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static) -> H2 {
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(io)).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    sender
}

pub fn post(uri: &str, body: &'static str) -> Request<Full<Bytes>> {
    Request::post(uri).body(Full::from(body)).unwrap()
}

#[tokio::test]
async fn http2_is_spoken_with_clients_that_begin_with_it() {
    let running = listen(front(Limits::default())).await;
    let mut sender = http2_over(running.connect().await).await;
    let response = sender.send_request(post("http://a/two", "hi")).await.unwrap();
    assert_eq!((response.version(), response.status()), (Version::HTTP_2, StatusCode::OK));
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "POST /two hi");
}

#[tokio::test]
async fn http2_has_the_same_limits_and_goes_on_after_a_refusal() {
    let limits = Limits { url_bytes: 100, header_bytes: 4096, ..Limits::default() };
    let running = listen(front(limits)).await;
    let mut sender = http2_over(running.connect().await).await;
    let path = |length: usize| format!("http://a/{}", "t".repeat(length - 1));
    let ask = |uri: &str| Request::get(uri).body(Full::default()).unwrap();
    assert_eq!(sender.send_request(ask(&path(100))).await.unwrap().status(), 200);
    assert_eq!(sender.send_request(ask(&path(101))).await.unwrap().status(), 414);

    let mut large = ask("http://a/");
    large.headers_mut().insert("large", "l".repeat(4096).parse().unwrap());
    assert_eq!(sender.send_request(large).await.unwrap().status(), 431);

    let mut other_host = ask("http://a/");
    other_host.headers_mut().insert("host", "b".parse().unwrap());
    assert_eq!(sender.send_request(other_host).await.unwrap().status(), 400);
    let mut lengths = ask("http://a/");
    lengths.headers_mut().append("content-length", "0".parse().unwrap());
    lengths.headers_mut().append("content-length", "0".parse().unwrap());
    assert_eq!(sender.send_request(lengths).await.unwrap().status(), 400);

    for method in ["get", "Post"] {
        let mut miscased = ask("http://a/");
        *miscased.method_mut() = method.parse().unwrap();
        assert_eq!(sender.send_request(miscased).await.unwrap().status(), 400);
    }

    assert_eq!(sender.send_request(ask("http://a/last")).await.unwrap().status(), 200);
    assert_eq!(running.ledger.whole().len(), 2);
}

#[tokio::test]
async fn a_stop_lets_the_http2_request_in_flight_end() {
    let running = listen(front(Limits::default())).await;
    let mut sender = http2_over(running.connect().await).await;
    let waiting = tokio::spawn(sender.send_request(post("http://a/wait", "")));
    running.ledger.entered.notified().await;
    running.stop.send(()).unwrap();
    running.ledger.go_on.notify_one();
    assert_eq!(waiting.await.unwrap().unwrap().status(), 200);
    running.ended.await.unwrap();
}

#[tokio::test]
async fn an_http2_request_that_panics_takes_no_other_of_its_connection_with_it() {
    let running = listen(front(Limits::default())).await;
    let mut sender = http2_over(running.connect().await).await;
    let waiting = tokio::spawn(sender.send_request(post("http://a/wait", "")));
    running.ledger.entered.notified().await;
    for uri in ["http://a/panic", "http://a/panic-at-once"] {
        assert!(sender.send_request(post(uri, "")).await.is_err());
    }
    running.ledger.go_on.notify_one();
    assert_eq!(waiting.await.unwrap().unwrap().status(), 200);
}

/// A certificate and its key, in files.
struct Files {
    _folder: tempfile::TempDir,
    tls: Tls,
    certificate: CertificateDer<'static>,
}

fn files() -> Files {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let tls = Tls { certificate: folder.path().join("cert.pem"), key: folder.path().join("key.pem") };
    std::fs::write(&tls.certificate, made.cert.pem()).unwrap();
    std::fs::write(&tls.key, made.signing_key.serialize_pem()).unwrap();
    Files { _folder: folder, tls, certificate: made.cert.der().clone() }
}

async fn connect(running: &Running, files: &Files, alpn: &[&[u8]]) -> TlsStream<tokio::net::TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(files.certificate.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, running.connect().await).await.unwrap()
}

#[tokio::test]
async fn over_tls_either_protocol_is_spoken() {
    let files = files();
    let tls = Some(Arc::new(ArcSwap::from_pointee(Certificate::load(&files.tls).unwrap())));
    let running = listen(Front { limits: Limits::default(), tls }).await;

    let stream = connect(&running, &files, &[b"h2", b"http/1.1"]).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
    let response = http2_over(stream).await.send_request(post("https://localhost/h2", "")).await.unwrap();
    assert_eq!((response.version(), response.status()), (Version::HTTP_2, StatusCode::OK));

    for alpn in [[b"http/1.1".as_slice()].as_slice(), &[]] {
        let stream = connect(&running, &files, alpn).await;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(async move { drop(connection.await) });
        let mut request = post("/h1", "x");
        request.headers_mut().insert("host", "localhost".parse().unwrap());
        let response = sender.send_request(request).await.unwrap();
        assert_eq!((response.version(), response.status()), (Version::HTTP_11, StatusCode::OK));
    }
    assert_eq!(running.ledger.whole(), ["POST /h2 ", "POST /h1 x", "POST /h1 x"]);
}

#[tokio::test]
async fn a_client_that_speaks_no_tls_is_closed_where_tls_is_spoken() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let files = files();
    let tls = Some(Arc::new(ArcSwap::from_pointee(Certificate::load(&files.tls).unwrap())));
    let running = listen(Front { limits: Limits::default(), tls }).await;
    let mut stream = running.connect().await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut got = Vec::new();
    // Whether it ends or is reset, no HTTP comes of it.
    drop(stream.read_to_end(&mut got).await);
    assert!(!got.starts_with(b"HTTP"));
    assert_eq!(running.ledger.whole(), [""; 0]);
}

#[test]
fn files_that_make_no_certificate_say_which_and_what_to_do() {
    let (files, others) = (files(), files());
    let told = |certificate: &Path, key: &Path| {
        let tls = Tls { certificate: certificate.to_owned(), key: key.to_owned() };
        Certificate::load(&tls).unwrap_err().to_string()
    };
    let (certificate, key) = (&files.tls.certificate, &files.tls.key);
    let missing = Path::new("/nowhere/cert.pem");
    assert!(told(missing, key).starts_with("/nowhere/cert.pem cannot be read: "));
    assert!(told(certificate, missing).starts_with("/nowhere/cert.pem cannot be read: "));
    assert!(told(key, key).contains("key.pem has no certificate in it"));
    assert!(told(certificate, certificate).contains("cert.pem has no private key in it"));
    let mismatch = told(certificate, &others.tls.key);
    assert!(mismatch.contains("is not that of the first certificate in"), "{mismatch}");

    let cut = others.tls.key.with_file_name("cut.pem");
    let whole = std::fs::read_to_string(key).unwrap();
    std::fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let told = told(certificate, &cut);
    assert!(told.contains("cut.pem is not a PEM file that can be read (a block has no end)"), "{told}");
}
