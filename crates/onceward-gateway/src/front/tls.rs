//! The certificate that clients see, read from its files.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use arc_swap::ArcSwap;
use onceward::Timestamp;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_cert::der::Decode as _;

use crate::settings::Tls;

/// The ALPN names of HTTP/2 and HTTP/1.1.
pub(super) const H2: &[u8] = b"h2";
const HTTP11: &[u8] = b"http/1.1";

/// Certificates are commonly renewed weeks before they expire, so one with less time left was probably forgotten.
const SOON: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Why TLS cannot be spoken with these files.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{} cannot be read: {source}. Check that it exists and that this user may read it", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why it cannot be read.
        source: std::io::Error,
    },
    /// A file is not PEM.
    #[error("{} is not a PEM file that can be read ({reason}). Write it again, in PEM", path.display())]
    NotPem {
        /// The file.
        path: PathBuf,
        /// What is wrong with it. It never holds what is in the file.
        reason: &'static str,
    },
    /// There is no certificate.
    #[error(
        "{} has no certificate in it: it needs a block that begins with `-----BEGIN CERTIFICATE-----`",
        path.display()
    )]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// There is no private key.
    #[error(
        "{} has no private key in it: it needs a block that begins with `-----BEGIN PRIVATE KEY-----`, not encrypted",
        path.display()
    )]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// The key is another certificate's.
    #[error(
        "the key in {} is not that of the first certificate in {}: give the two that were made together, and put the \
         server's own certificate before those that lead to its root",
        key.display(),
        certificate.display()
    )]
    Mismatch {
        /// Where the certificate is.
        certificate: PathBuf,
        /// Where the key is.
        key: PathBuf,
    },
    /// The two cannot be used.
    #[error(
        "the certificate in {} and the key in {} cannot be used: {source}",
        certificate.display(),
        key.display()
    )]
    Unusable {
        /// Where the certificate is.
        certificate: PathBuf,
        /// Where the key is.
        key: PathBuf,
        /// Why they cannot be used.
        source: rustls::Error,
    },
}

/// The certificate for new connections. It can be replaced while the listener runs.
pub type CurrentCertificate = Arc<ArcSwap<Certificate>>;

/// A certificate and its key, read from their files, as listeners need them.
#[derive(Debug, Clone)]
pub struct Certificate {
    config: Arc<ServerConfig>,
    chain: Vec<CertificateDer<'static>>,
}

/// Two with the same chain have the same key.
impl PartialEq for Certificate {
    fn eq(&self, other: &Self) -> bool {
        self.chain == other.chain
    }
}

impl Certificate {
    /// Reads certificate and key. Clients may speak HTTP/2 or HTTP/1.1.
    pub fn load(tls: &Tls) -> Result<Self, TlsError> {
        let path = &tls.certificate;
        let chain = CertificateDer::pem_slice_iter(&read(path)?)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| not_pem(path, &error))?;
        if chain.is_empty() {
            return Err(TlsError::NoCertificate { path: path.clone() });
        }
        let path = &tls.key;
        let key = PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|error| {
            if matches!(error, pem::Error::NoItemsFound) {
                TlsError::NoKey { path: path.clone() }
            } else {
                not_pem(path, &error)
            }
        })?;
        let unusable = |source| {
            let (certificate, key) = (tls.certificate.clone(), tls.key.clone());
            if matches!(source, rustls::Error::InconsistentKeys(_)) {
                TlsError::Mismatch { certificate, key }
            } else {
                TlsError::Unusable { certificate, key, source }
            }
        };
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_no_client_auth()
            .with_single_cert(chain.clone(), key)
            .map_err(unusable)?;
        config.alpn_protocols = vec![H2.to_vec(), HTTP11.to_vec()];
        Ok(Self { config: Arc::new(config), chain })
    }

    /// The configuration for new connections.
    pub(super) fn config(&self) -> Arc<ServerConfig> {
        self.config.clone()
    }

    /// When the certificate expires. `None` where its validity cannot be parsed.
    pub fn expires_at(&self) -> Option<Timestamp> {
        let certificate = x509_cert::Certificate::from_der(self.chain.first()?).ok()?;
        let end = certificate.tbs_certificate.validity.not_after.to_unix_duration();
        Some(Timestamp::from_micros(u64::try_from(end.as_micros()).ok()?))
    }

    /// A warning for operators if it has expired at this time, or soon will.
    pub fn advice(&self, now: Timestamp) -> Option<String> {
        let expires_at = self.expires_at()?;
        let left = expires_at.since(now);
        if left > SOON {
            return None;
        }
        let has = if left.is_zero() { "has expired" } else { "expires soon" };
        Some(format!(
            "the certificate that clients see {has} ({}): put a new one into the files of [tls], and send SIGHUP",
            written(expires_at)
        ))
    }
}

/// For the log: with its expiry.
impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.expires_at() {
            Some(at) => write!(f, "certificate (expires {})", written(at)),
            None => f.write_str("certificate"),
        }
    }
}

/// A time in RFC 3339, which ends with the year 9999.
fn written(at: Timestamp) -> impl fmt::Display {
    let since = Duration::from_micros(at.as_micros()).min(Duration::from_secs(253_402_300_799));
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Unreadable { path: path.to_owned(), source })
}

/// A parser's error may quote the file, which may be a key.
fn not_pem(path: &Path, error: &pem::Error) -> TlsError {
    let reason = if matches!(error, pem::Error::MissingSectionEnd { .. }) {
        "a block has no end"
    } else if matches!(error, pem::Error::Base64Decode(_)) {
        "a block is not base64"
    } else {
        "a block begins with a malformed line, or is too large"
    };
    TlsError::NotPem { path: path.to_owned(), reason }
}
