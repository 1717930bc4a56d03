//! The gateway's own HTTP client, for everything but clients' requests: health checks and traces today.
//!
//! Each request gets a new connection, is sent once, and is answered as a whole within limits of time and size. Redirects are
//! answers like any other: they are not followed. Clients' requests go through [`proxy`](crate::proxy) instead, which streams
//! bodies and proves what was sent.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use onceward::plumbing::time::sleep;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Sends single requests. Cheap to clone.
#[derive(Clone)]
pub struct HttpClient {
    limits: ClientLimits,
    tls: Option<TlsConnector>,
}

/// The limits of one request.
#[derive(Debug, Clone, Copy)]
pub struct ClientLimits {
    /// The time from connecting to the last byte of the answer.
    pub time: Duration,
    /// The bytes of an answer's body.
    pub body_bytes: usize,
}

/// Why there is no whole answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpClientError {
    /// It is not an absolute `http` or `https` URL, or it is `https` and the client has no TLS.
    #[error("the URL cannot be requested: it must be absolute, and begin with {0}")]
    Url(&'static str),
    /// No connection came about.
    #[error("it cannot be reached ({0})")]
    Connect(#[source] io::Error),
    /// The connection broke, or did not carry HTTP/1.1.
    #[error("it did not answer in HTTP ({0})")]
    Http(#[source] hyper::Error),
    /// The body of the answer broke off, or was too large.
    #[error("its answer could not be read: {error}")]
    Body {
        /// The status, which did arrive.
        status: StatusCode,
        /// What was wrong with the body.
        #[source]
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// There was no whole answer in time.
    #[error("it did not answer within {0:?}")]
    TimedOut(Duration),
}

impl HttpClient {
    /// A client for `http` URLs only.
    pub fn new(limits: ClientLimits) -> Self {
        Self { limits, tls: None }
    }

    /// Also takes `https` URLs. [`tls_roots`](crate::tls_roots) makes such a configuration.
    #[must_use]
    pub fn with_tls(self, config: ClientConfig) -> Self {
        Self { tls: Some(TlsConnector::from(Arc::new(config))), ..self }
    }

    /// Sends a request to the absolute URL that it has, once. `Host` is set here. Must be called within a runtime. A future that
    /// is dropped closes the connection.
    pub async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpClientError> {
        tokio::select! {
            biased;
            answer = self.connect_and_send(request) => answer,
            () = sleep(self.limits.time) => Err(HttpClientError::TimedOut(self.limits.time)),
        }
    }

    async fn connect_and_send(
        &self,
        mut request: Request<Bytes>,
    ) -> Result<Response<Bytes>, HttpClientError> {
        let refused =
            || HttpClientError::Url(if self.tls.is_some() { "http:// or https://" } else { "http://" });
        let uri = request.uri();
        let tls = match (uri.scheme(), &self.tls) {
            (Some(scheme), _) if *scheme == Scheme::HTTP => None,
            (Some(scheme), Some(tls)) if *scheme == Scheme::HTTPS => Some(tls),
            (Some(_) | None, _) => return Err(refused()),
        };
        let host = uri.host().ok_or_else(refused)?;
        // Without a user, which may stand before it in the URL.
        let host_header = match uri.port() {
            Some(port) => HeaderValue::try_from(format!("{host}:{port}")),
            None => HeaderValue::from_str(host),
        };
        let host_header = host_header.map_err(|_| refused())?;
        // An IPv6 address has brackets in a URL, and none in a name.
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = uri.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
        let target = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        request.headers_mut().insert(HOST, host_header);
        *request.uri_mut() = Uri::from(target);
        let connect = HttpClientError::Connect;
        let stream = TcpStream::connect((host.as_str(), port)).await.map_err(connect)?;
        match tls {
            None => self.exchange(request, stream).await,
            Some(tls) => {
                let name = ServerName::try_from(host).map_err(|error| connect(io::Error::other(error)))?;
                self.exchange(request, tls.connect(name, stream).await.map_err(connect)?).await
            }
        }
    }

    async fn exchange<S>(
        &self,
        request: Request<Bytes>,
        stream: S,
    ) -> Result<Response<Bytes>, HttpClientError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(HttpClientError::Http)?;
        let exchange = async {
            let response = sender.send_request(request.map(Full::new)).await;
            let (head, body) = response.map_err(HttpClientError::Http)?.into_parts();
            match Limited::new(body, self.limits.body_bytes).collect().await {
                Ok(body) => Ok(Response::from_parts(head, body.to_bytes())),
                Err(error) => Err(HttpClientError::Body { status: head.status, error }),
            }
        };
        // The connection must be driven during the exchange. The one that fails first has the reason.
        let (mut connection, mut exchange) = (std::pin::pin!(connection), std::pin::pin!(exchange));
        tokio::select! {
            biased;
            answer = &mut exchange => answer,
            ended = &mut connection => match ended {
                Ok(()) => exchange.await,
                Err(error) => Err(HttpClientError::Http(error)),
            },
        }
    }
}

impl std::fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpClient").field("limits", &self.limits).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    const LIMITS: ClientLimits = ClientLimits { time: Duration::from_secs(10), body_bytes: 8 };

    /// Answers one request with these bytes. Gives the base URL, and what was asked.
    async fn server(answer: &'static str) -> (String, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let asked = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = vec![0; 1024];
            let length = stream.read(&mut asked).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8_lossy(&asked[..length]).into_owned()
        });
        (base, asked)
    }

    fn post(url: String) -> Request<Bytes> {
        Request::post(url).body(Bytes::from_static(b"{}")).unwrap()
    }

    #[tokio::test]
    async fn a_request_is_sent_whole_and_a_redirect_is_an_answer() {
        let (base, asked) =
            server("HTTP/1.1 302 Found\r\nlocation: http://elsewhere/\r\ncontent-length: 2\r\n\r\nhi").await;
        let answer = HttpClient::new(LIMITS).send(post(format!("{base}/find?id=1"))).await.unwrap();
        assert_eq!((answer.status(), &answer.body()[..]), (StatusCode::FOUND, &b"hi"[..]));
        let asked = asked.await.unwrap();
        assert!(asked.starts_with("POST /find?id=1 HTTP/1.1\r\n"), "{asked}");
        assert!(asked.contains(&format!("host: {}\r\n", &base["http://".len()..])), "{asked}");
        assert!(asked.ends_with("\r\n\r\n{}"), "{asked}");
    }

    #[tokio::test]
    async fn an_answer_that_is_too_large_is_none_but_has_a_status() {
        let (base, _asked) = server("HTTP/1.1 503 Away\r\ncontent-length: 9\r\n\r\n123456789").await;
        let error = HttpClient::new(LIMITS).send(post(base)).await.unwrap_err();
        assert!(
            matches!(error, HttpClientError::Body { status: StatusCode::SERVICE_UNAVAILABLE, .. }),
            "{error:?}"
        );
    }

    #[tokio::test]
    async fn a_server_that_is_silent_or_speaks_something_else_is_told_apart() {
        let (base, _asked) = server("220 smtp.example ESMTP\r\n").await;
        let error = HttpClient::new(LIMITS).send(post(base)).await.unwrap_err();
        assert!(matches!(error, HttpClientError::Http(_)), "{error:?}");

        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let limits = ClientLimits { time: Duration::from_millis(1), ..LIMITS };
        let error = HttpClient::new(limits).send(post(url)).await.unwrap_err();
        assert!(matches!(error, HttpClientError::TimedOut(_)), "{error:?}");
    }

    #[tokio::test]
    async fn urls_that_cannot_be_requested_are_refused() {
        for url in ["/find", "https://127.0.0.1/", "ftp://127.0.0.1/"] {
            let error = HttpClient::new(LIMITS).send(post(url.to_owned())).await.unwrap_err();
            assert!(matches!(error, HttpClientError::Url("http://")), "{url}: {error:?}");
        }
    }
}
