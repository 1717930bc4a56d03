//! Making a connection to the upstream.

use std::io;
use std::sync::Arc;

use onceward::plumbing::time::sleep;
use rustls::ClientConfig;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::error::ProxyError;
use super::opening::OtherProtocol;
use super::wire::{Socket, Wire};
use crate::settings::{Limits, Scheme, Upstream};
use crate::tls_roots::{self, CaError};

/// Connects to the one upstream.
#[derive(Clone)]
pub(super) struct Connector {
    address: (String, u16),
    tls: Option<(TlsConnector, ServerName<'static>)>,
    patience: std::time::Duration,
}

/// An upstream that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// Its certificate could not be checked against this name.
    #[error("the upstream's host {host:?} cannot stand in a certificate: use a DNS name or an address")]
    Name {
        /// The host.
        host: String,
        /// Why not.
        #[source]
        error: InvalidDnsNameError,
    },
    /// The file of trusted certificates cannot be read.
    #[error("upstream_tls.ca = {0}")]
    Ca(#[from] CaError),
    /// There is no certificate to trust.
    #[error(
        "this machine has no trusted root certificates: install the package ca-certificates, or name a file in upstream_tls.ca"
    )]
    NoRoots,
    /// TLS itself cannot be set up.
    #[error("TLS to the upstream cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
}

impl Connector {
    pub(super) fn new(upstream: &Upstream, limits: &Limits) -> Result<Self, UpstreamError> {
        let host = upstream.authority.host().trim_start_matches('[').trim_end_matches(']');
        let tls = match upstream.scheme {
            Scheme::Http => None,
            Scheme::Https => Some((TlsConnector::from(client_config(upstream)?), server_name(host)?)),
        };
        let port = upstream.authority.port_u16().unwrap_or(match upstream.scheme {
            Scheme::Http => 80,
            Scheme::Https => 443,
        });
        Ok(Self { address: (host.to_owned(), port), tls, patience: limits.connect_timeout })
    }

    /// Opens a connection. Every failure here proves that nothing was sent.
    pub(super) async fn connect(&self) -> Result<Wire, ProxyError> {
        let upstream = || format!("{}:{}", self.address.0, self.address.1);
        tokio::select! {
            biased;
            connected = self.establish() => {
                connected.map_err(|error| match OtherProtocol::of_handshake(&error) {
                    Some(speaks) => ProxyError::OtherProtocol { speaks },
                    None => ProxyError::Connect { upstream: upstream(), error },
                })
            }
            () = sleep(self.patience) => {
                Err(ProxyError::ConnectTimedOut { upstream: upstream(), patience: self.patience })
            }
        }
    }

    async fn establish(&self) -> io::Result<Wire> {
        let socket = TcpStream::connect((self.address.0.as_str(), self.address.1)).await?;
        // A request is one small write that must not wait for company.
        socket.set_nodelay(true)?;
        let socket = Socket::new(socket);
        match &self.tls {
            None => Ok(Wire::Plain(socket)),
            Some((connector, name)) => {
                Ok(Wire::Tls(Box::new(connector.connect(name.clone(), socket).await?)))
            }
        }
    }
}

fn server_name(host: &str) -> Result<ServerName<'static>, UpstreamError> {
    ServerName::try_from(host.to_owned())
        .map_err(|error| UpstreamError::Name { host: host.to_owned(), error })
}

fn client_config(upstream: &Upstream) -> Result<Arc<ClientConfig>, UpstreamError> {
    let roots = tls_roots::load(upstream.ca.as_deref(), "the upstream")?;
    if roots.is_empty() {
        return Err(UpstreamError::NoRoots);
    }
    let mut config = tls_roots::client_config(roots)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
