//! Sends traces to the collector through the gateway's own HTTP client: one small request every few seconds.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::uri::Scheme;
use http::{Request, Response, Uri};
use opentelemetry_http::HttpError;
use tokio::runtime::Handle;

use crate::http_client::{ClientLimits, HttpClient};
use crate::tls_roots::{self, client_config};

/// A collector that does not answer within this is away; the exporter drops the batch and counts it. It answers with a few bytes.
const LIMITS: ClientLimits = ClientLimits { time: Duration::from_secs(10), body_bytes: 64 << 10 };

/// The exporter's client. The exporter has a thread of its own without a runtime, so each request is a task of the gateway's.
pub(super) struct OtlpClient {
    runtime: Handle,
    client: HttpClient,
}

impl OtlpClient {
    /// A client for one collector. The machine's certificates are read only for `https`.
    pub(super) fn new(runtime: Handle, collector: &Uri) -> Result<Self, rustls::Error> {
        let mut client = HttpClient::new(LIMITS);
        if collector.scheme() == Some(&Scheme::HTTPS) {
            client = client.with_tls(client_config(tls_roots::native("the collector"))?);
        }
        Ok(Self { runtime, client })
    }
}

impl fmt::Debug for OtlpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OtlpClient")
    }
}

impl opentelemetry_http::HttpClient for OtlpClient {
    // As `async_trait` writes it; that crate would be needed for this one signature.
    fn send_bytes<'a, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let client = self.client.clone();
        let sent = self.runtime.spawn(async move { client.send(request).await });
        Box::pin(async move { Ok(sent.await??) })
    }
}
