//! Where a request came from: all that the proxy learns of a client's connection.

use std::net::SocketAddr;

use http::HeaderValue;

use crate::settings::Scheme;

/// The address that a request came from, and over which scheme. The front puts it among the extensions of each request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientAddress {
    /// The peer of the connection.
    pub address: SocketAddr,
    /// Plain or TLS.
    pub scheme: Scheme,
    /// The address as a header value, formatted once for all requests of a connection.
    forwarded_for: Option<HeaderValue>,
}

impl ClientAddress {
    pub(crate) fn new(address: SocketAddr, scheme: Scheme) -> Self {
        // An address consists of characters that a header can have.
        let forwarded_for = HeaderValue::try_from(address.ip().to_canonical().to_string()).ok();
        Self { address, scheme, forwarded_for }
    }

    /// The value for `X-Forwarded-For`.
    pub(crate) fn forwarded_for(&self) -> Option<&HeaderValue> {
        self.forwarded_for.as_ref()
    }
}
