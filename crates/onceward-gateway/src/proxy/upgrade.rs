//! Connections that change to another protocol, such as WebSocket.

use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderValue, Request, response};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::body::AnswerConnection;
use super::{ProxyError, Sendable, headers};

/// A client's request to change the protocol.
pub(super) struct UpgradeRequest {
    protocol: HeaderValue,
    client: OnUpgrade,
}

impl UpgradeRequest {
    /// The upgrade that a request asks for, if it asks for one.
    pub(super) fn of<B>(request: &mut Request<B>) -> Option<Self> {
        let protocol = headers::upgrade_of(request.headers())?;
        Some(Self { protocol, client: hyper::upgrade::on(request) })
    }

    /// Asks the upstream for the same upgrade.
    pub(super) fn add_headers(&self, headers: &mut HeaderMap) {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, self.protocol.clone());
    }
}

/// The upstream agreed: bytes are copied both ways from now on, until one side ends.
pub(super) fn switch<B: Sendable>(
    requested: Option<UpgradeRequest>,
    head: &mut response::Parts,
    arrives_on: Option<AnswerConnection<B>>,
) -> Result<(), ProxyError> {
    let (Some(requested), Some(arrives_on)) = (requested, arrives_on) else {
        // The client did not ask for it, and would not understand it.
        return Err(ProxyError::Unasked);
    };
    let protocol = head.headers.get(UPGRADE).cloned();
    headers::strip(&mut head.headers);
    head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    head.headers.extend(protocol.map(|protocol| (UPGRADE, protocol)));
    let Some(upstream) = head.extensions.remove::<OnUpgrade>() else { return Err(ProxyError::Unasked) };
    tokio::spawn(async move {
        let AnswerConnection { connection, permit, .. } = arrives_on;
        let (sides, ()) = tokio::join!(
            async { tokio::try_join!(requested.client, upstream) },
            // The driver ends as soon as it has handed the connection over.
            connection.drive_to_the_end(),
        );
        match sides {
            Err(error) => {
                tracing::debug!(%error, "an upgrade was agreed on, but a connection failed before it")
            }
            Ok((client, upstream)) => {
                let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
                let ended = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
                tracing::debug!(
                    error = ended.err().map(tracing::field::display),
                    "an upgraded connection ended"
                );
            }
        }
        drop(permit);
    });
    Ok(())
}
