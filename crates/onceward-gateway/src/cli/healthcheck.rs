//! `onceward healthcheck`: for containers, whose image has no other HTTP client.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri};

use super::Failure;
use crate::config::Sources;
use crate::http_client::{ClientLimits, HttpClient, HttpClientError};

/// Container runtimes give up after thirty seconds by default, and then the reason is lost. The answer is a few words.
const LIMITS: ClientLimits = ClientLimits { time: Duration::from_secs(5), body_bytes: 16 << 10 };

/// The URL to ask.
pub(super) fn target(url: Option<&str>, sources: &Sources) -> Result<Uri, Failure> {
    let refused = |text: String| Failure::Failed(text.into());
    let Some(url) = url else {
        let address = reachable(sources.admin_listen()?);
        return format!("http://{address}/readyz")
            .parse()
            .map_err(|error| refused(format!("{address}: {error}")));
    };
    let uri: Uri = url.parse().map_err(|error| refused(format!("--url {url:?} is no URL ({error})")))?;
    if uri.scheme_str() != Some("http") || uri.authority().is_none() {
        return Err(refused(format!("--url {url:?} must begin with http://, such as http://127.0.0.1:8421")));
    }
    match uri.path() {
        "" | "/" => format!("http://{}/readyz", uri.authority().map_or("", http::uri::Authority::as_str))
            .parse()
            .map_err(|error| refused(format!("--url {url:?} is no URL ({error})"))),
        _ => Ok(uri),
    }
}

/// A listener on all addresses is asked on loopback.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip @ (IpAddr::V4(_) | IpAddr::V6(_)) => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Asks once, and puts the answer into words.
pub(super) async fn ask(target: &Uri) -> Result<String, Failure> {
    let failed = |text: String| Failure::Failed(text.into());
    let request = Request::get(target)
        .body(Bytes::new())
        .map_err(|error| failed(format!("{target} cannot be asked ({error})")))?;
    let (status, text) = match HttpClient::new(LIMITS).send(request).await {
        Ok(answer) => (answer.status(), String::from_utf8_lossy(answer.body()).into_owned()),
        Err(error @ HttpClientError::Body { status, .. }) => (status, format!("({error})")),
        Err(HttpClientError::Connect(error)) => {
            return Err(failed(format!(
                "{target} cannot be reached ({error}): is the gateway running, and is this its admin listener?"
            )));
        }
        Err(error) => return Err(failed(format!("{target}: {error}"))),
    };
    match status {
        status if status.is_success() && is_its_own(target, &text) => {
            Ok(format!("ready: {target} answered {status}"))
        }
        status if status.is_success() => Err(failed(format!(
            "{target} answered {status}, but not as the gateway's admin listener does: name that one, such as \
             http://127.0.0.1:8421"
        ))),
        status => Err(failed(format!("not ready: {target} answered {status}: {}", text.trim()))),
    }
}

/// Whether the answer is the gateway's own. The clients' listener would pass the question on, and the API behind may answer
/// anything.
fn is_its_own(target: &Uri, text: &str) -> bool {
    let answer = serde_json::from_str::<serde_json::Value>(text);
    target.path() != "/readyz" || answer.is_ok_and(|answer| answer["ready"] == true)
}
