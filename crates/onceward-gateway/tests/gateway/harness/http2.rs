//! A client of HTTP/2.

use http_body_util::Full;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};

/// Speaks HTTP/2 on a connection, until the test ends.
pub async fn http2(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> SendRequest<Full<bytes::Bytes>> {
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(io)).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    sender
}
