//! Clients that send everything before they read, as most do: they must get the reason of a refusal.

use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

use bytes::Bytes;
use http_body_util::Full;

use crate::certificate::Certificate;
use crate::harness::{Gateway, http2, within};
use crate::ledger::Ledger;

const ROUTES: &str = "[{ match = \"POST /small\", max_request_body = \"64KiB\" }, \
                       { match = \"POST /required\", max_request_body = \"64KiB\", key = \"required\" }]";

/// Each of these is refused while its body is still being sent.
const REFUSED: [(&str, &str, u16); 4] = [
    ("/small", "idempotency-key: k\r\n", 413),
    ("/required", "", 400),
    ("/small", "idempotency-key: a,b\r\n", 400),
    ("/small", "idempotency-key: k\r\nbad header\r\n", 400),
];

/// Sizes of bodies. Neither fits into the buffers between client and gateway when the answer comes.
const SIZES: [usize; 2] = [1 << 20, 20 << 20];

const PIECE: [u8; 16 << 10] = [b'x'; 16 << 10];

async fn send_all(io: &mut (impl AsyncWrite + Unpin), head: &str, size: usize, chunked: bool) {
    let framing = if chunked {
        "transfer-encoding: chunked\r\n\r\n".to_owned()
    } else {
        format!("content-length: {size}\r\n\r\n")
    };
    io.write_all(format!("{head}{framing}").as_bytes()).await.unwrap();
    for _ in 0..size / PIECE.len() {
        if chunked {
            io.write_all(format!("{:x}\r\n", PIECE.len()).as_bytes()).await.unwrap();
        }
        io.write_all(&PIECE).await.unwrap();
        if chunked {
            io.write_all(b"\r\n").await.unwrap();
        }
    }
    if chunked {
        io.write_all(b"0\r\n\r\n").await.unwrap();
    }
    io.flush().await.unwrap();
}

#[tokio::test]
async fn a_client_that_sends_all_of_its_body_before_it_reads_gets_the_reason_of_the_refusal() {
    let (folder, ledger, gateway) = Gateway::with_ledger(&["--routes", ROUTES]);
    let certificate = Certificate::make(folder.path(), "front");
    let (file, key) = (certificate.file.to_str().unwrap(), certificate.key.to_str().unwrap());
    let other = tempfile::tempdir().unwrap();
    let arguments = ["--routes", ROUTES, "--tls-certificate", file, "--tls-key", key];
    let secure = Gateway::start(other.path(), ledger.address, &arguments);
    for (target, headers, status) in REFUSED {
        let head = format!("POST {target} HTTP/1.1\r\nhost: a\r\n{headers}");
        for (size, chunked) in SIZES.into_iter().flat_map(|size| [(size, false), (size, true)]) {
            let what = format!("{head} of {size} bytes, chunked: {chunked}");
            let expected = format!("HTTP/1.1 {status} ");
            let mut plain = TcpStream::connect(gateway.address).await.unwrap();
            send_all(&mut plain, &head, size, chunked).await;
            let mut answer = Vec::new();
            plain.read_to_end(&mut answer).await.unwrap();
            assert!(answer.starts_with(expected.as_bytes()), "{what}: {}", answer.escape_ascii());

            let stream = TcpStream::connect(secure.address).await.unwrap();
            let mut tls = certificate.connect(stream, &[b"http/1.1"]).await;
            send_all(&mut tls, &head, size, chunked).await;
            let mut answer = Vec::new();
            tls.read_to_end(&mut answer).await.unwrap();
            assert!(answer.starts_with(expected.as_bytes()), "{what}, TLS: {}", answer.escape_ascii());
        }
    }
    assert_eq!(ledger.count(), 0);
}

#[tokio::test]
async fn over_http2_a_body_that_is_too_large_is_413_and_the_connection_goes_on() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&["--routes", ROUTES]);
    let mut sender = http2(TcpStream::connect(gateway.address).await.unwrap()).await;
    for (size, status) in [(20 << 20, 413), (1 << 20, 413), (16, 201)] {
        let request = http::Request::post("http://a/small").header("idempotency-key", "k");
        let request = request.body(Full::new(Bytes::from(vec![b'x'; size]))).unwrap();
        assert_eq!(sender.send_request(request).await.unwrap().status(), status, "{size}");
    }
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn a_client_that_goes_on_sending_after_its_answer_does_not_delay_a_stop() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    // Without the stop the connection would be kept open for longer than this test waits.
    let gateway =
        Gateway::start(folder.path(), ledger.address, &["--routes", ROUTES, "--limits-drain", "20s"]);
    let mut client = TcpStream::connect(gateway.address).await.unwrap();
    let head = "POST /small HTTP/1.1\r\nhost: a\r\nidempotency-key: k\r\ncontent-length: 9999999999\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 13];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413 ");
    let (mut read, mut write) = client.into_split();
    let sends = tokio::spawn(async move { while write.write_all(&PIECE).await.is_ok() {} });
    let mut rest = Vec::new();
    // The answer ends although its client still sends.
    read.read_to_end(&mut rest).await.unwrap();
    let log = tokio::task::spawn_blocking(move || gateway.stop()).await.unwrap();
    assert!(log.contains("every request was answered"), "{log}");
    within("the end of a connection to a gateway that stopped", sends).await.unwrap();
    assert_eq!(ledger.count(), 0);
}
