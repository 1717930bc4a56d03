//! The HTTP client that sends traces away: one small request every few seconds, over a connection of its own.
//!
//! The exporter works in a thread of its own and knows no runtime, so each request is made in a task of the gateway's.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::uri::Scheme;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use onceward::plumbing::time::sleep;
use opentelemetry_http::{HttpClient, HttpError};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio_rustls::TlsConnector;

/// A collector that does not answer within this is away; the exporter drops the batch and counts it.
const PATIENCE: Duration = Duration::from_secs(10);
/// A collector answers with a few bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Sends requests on a runtime.
pub(super) struct Client {
    runtime: Handle,
    tls: Option<TlsConnector>,
}

impl Client {
    /// A client for one collector. The machine's certificates are read only where they are needed.
    pub(super) fn new(runtime: Handle, collector: &Uri) -> Result<Self, rustls::Error> {
        let tls = if collector.scheme() == Some(&Scheme::HTTPS) { Some(connector()?) } else { None };
        Ok(Self { runtime, tls })
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

impl HttpClient for Client {
    // As `async_trait` writes it; that crate would be needed for this one signature.
    fn send_bytes<'a, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let sent = self.runtime.spawn(send_in_time(request, self.tls.clone()));
        Box::pin(async move { sent.await? })
    }
}

async fn send_in_time(
    request: Request<Bytes>,
    tls: Option<TlsConnector>,
) -> Result<Response<Bytes>, HttpError> {
    tokio::select! {
        biased;
        answer = send(request, tls) => answer,
        () = sleep(PATIENCE) => Err(format!("the collector did not answer within {PATIENCE:?}").into()),
    }
}

async fn send(request: Request<Bytes>, tls: Option<TlsConnector>) -> Result<Response<Bytes>, HttpError> {
    let host = request.uri().host().ok_or("the collector's address has no host")?.to_owned();
    // An IPv6 address stands in brackets there, and without them in a name.
    let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = request.uri().port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
    let stream = TcpStream::connect((name.as_str(), port)).await?;
    match tls {
        None => exchange(request, stream).await,
        Some(tls) => exchange(request, tls.connect(ServerName::try_from(name)?, stream).await?).await,
    }
}

async fn exchange<S>(mut request: Request<Bytes>, stream: S) -> Result<Response<Bytes>, HttpError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the sender, and what goes wrong with it is told there.
    tokio::spawn(async move { drop(connection.await) });
    let authority = request.uri().authority().map(|authority| HeaderValue::from_str(authority.as_str()));
    if let Some(authority) = authority.transpose()? {
        request.headers_mut().insert(HOST, authority);
    }
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).parse::<Uri>()?;
    *request.uri_mut() = path;
    let (parts, body) = sender.send_request(request.map(Full::new)).await?.into_parts();
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await?.to_bytes();
    Ok(Response::from_parts(parts, body))
}

fn connector() -> Result<TlsConnector, rustls::Error> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(cause = %error, "a root certificate of this machine cannot be read: it is not trusted for the collector");
    }
    roots.add_parsable_certificates(found.certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
