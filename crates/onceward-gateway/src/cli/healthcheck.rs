//! `onceward healthcheck`: for containers, which have no other client in them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::Failure;
use crate::config::Sources;

/// Container runtimes give up after thirty seconds by default, and then nobody reads why.
const PATIENCE: Duration = Duration::from_secs(5);
/// Of what the gateway says about itself, enough to read.
const LONGEST_ANSWER_BYTES: usize = 16 << 10;

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

/// A listener on every address is asked on this machine's own.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip @ (IpAddr::V4(_) | IpAddr::V6(_)) => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Asks, and tells what was answered.
pub(super) async fn ask(target: &Uri) -> Result<String, Failure> {
    let failed = |text: String| Failure::Failed(text.into());
    match tokio::time::timeout(PATIENCE, answer(target)).await {
        Ok(Ok((status, text))) if status.is_success() && is_its_own(target, &text) => {
            Ok(format!("ready: {target} answered {status}"))
        }
        Ok(Ok((status, _))) if status.is_success() => Err(failed(format!(
            "{target} answered {status}, but not as the gateway's admin listener does: name that one, such as \
             http://127.0.0.1:8421"
        ))),
        Ok(Ok((status, text))) => {
            Err(failed(format!("not ready: {target} answered {status}: {}", text.trim())))
        }
        Ok(Err(reason)) => Err(failed(format!("{target} {reason}"))),
        Err(_) => Err(failed(format!("{target} did not answer within {PATIENCE:?}"))),
    }
}

/// Whether the gateway speaks. The clients' listener would pass the question on, and the API behind may answer anything.
fn is_its_own(target: &Uri, text: &str) -> bool {
    let told = serde_json::from_str::<serde_json::Value>(text);
    target.path() != "/readyz" || told.is_ok_and(|told| told["ready"] == true)
}

async fn answer(target: &Uri) -> Result<(StatusCode, String), String> {
    let host = target.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, target.port_u16().unwrap_or(80))).await.map_err(|error| {
        format!("cannot be reached ({error}): is the gateway running, and is this its admin listener?")
    })?;
    let broken = |error: hyper::Error| format!("did not answer in HTTP ({error})");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let request = Request::get(target.path())
        .header(http::header::HOST, target.authority().map_or("", http::uri::Authority::as_str))
        .body(Empty::<bytes::Bytes>::new())
        .map_err(|error| format!("cannot be asked ({error})"))?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), LONGEST_ANSWER_BYTES).collect().await;
        let text = body.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned());
        Ok((status, text.unwrap_or_else(|error| format!("(its answer could not be read: {error})"))))
    };
    // The connection must be driven while the exchange goes on; whichever fails first tells why.
    let mut connection = std::pin::pin!(connection);
    let mut exchange = std::pin::pin!(exchange);
    tokio::select! {
        biased;
        answer = &mut exchange => answer,
        ended = &mut connection => match ended {
            Ok(()) => exchange.await,
            Err(error) => Err(broken(error)),
        },
    }
}
