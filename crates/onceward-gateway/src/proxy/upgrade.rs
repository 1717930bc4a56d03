//! Connections that become something else, such as a WebSocket. Only requests without a key may.

use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderValue, Request, response};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::body::Lent;
use super::{ProxyError, Sendable, headers};

/// A client's wish to change the protocol.
pub(super) struct Asked {
    protocol: HeaderValue,
    client: OnUpgrade,
}

impl Asked {
    /// What the request asks for, if it asks for anything.
    pub(super) fn by<B>(request: &mut Request<B>) -> Option<Self> {
        let protocol = headers::upgrade_of(request.headers())?;
        Some(Self { protocol, client: hyper::upgrade::on(request) })
    }

    /// Asks the upstream for the same.
    pub(super) fn ask(&self, headers: &mut HeaderMap) {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, self.protocol.clone());
    }
}

/// The upstream agreed: from now on bytes go both ways as they come, until one side ends.
pub(super) fn switch<B: Sendable>(
    asked: Option<Asked>,
    head: &mut response::Parts,
    lent: Option<Lent<B>>,
) -> Result<(), ProxyError> {
    let (Some(asked), Some(lent)) = (asked, lent) else {
        // Nobody asked for it, so there is nobody who could go on with it.
        return Err(ProxyError::Unasked);
    };
    let protocol = head.headers.get(UPGRADE).cloned();
    headers::strip(&mut head.headers);
    head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    head.headers.extend(protocol.map(|protocol| (UPGRADE, protocol)));
    let Some(upstream) = head.extensions.remove::<OnUpgrade>() else { return Err(ProxyError::Unasked) };
    tokio::spawn(async move {
        let Lent { line, permit, .. } = lent;
        let (sides, ()) = tokio::join!(
            async { tokio::try_join!(asked.client, upstream) },
            // The driver ends as soon as it has handed the connection over.
            line.drive_to_the_end(),
        );
        match sides {
            Err(error) => tracing::debug!(%error, "an upgrade was agreed on and did not come about"),
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
