//! The certificate that clients see, read from its files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::settings::Tls;

/// HTTP/2 and HTTP/1.1, as TLS names them.
pub(super) const H2: &[u8] = b"h2";
const HTTP11: &[u8] = b"http/1.1";

/// Why TLS cannot be spoken with these files.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{} cannot be read: {source}. Check that it exists and that this user may read it", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is not PEM.
    #[error("{} is not a PEM file that can be read ({reason}). Write it again, in PEM", path.display())]
    NotPem {
        /// Which.
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
        /// In which file.
        path: PathBuf,
    },
    /// There is no private key.
    #[error(
        "{} has no private key in it: it needs a block that begins with `-----BEGIN PRIVATE KEY-----`, not encrypted",
        path.display()
    )]
    NoKey {
        /// In which file.
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
        /// Why.
        source: rustls::Error,
    },
}

/// Reads certificate and key, and makes of them what listeners need. Clients may speak HTTP/2 or HTTP/1.1.
pub fn server_config(tls: &Tls) -> Result<Arc<ServerConfig>, TlsError> {
    let path = &tls.certificate;
    let certificates = CertificateDer::pem_slice_iter(&read(path)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| not_pem(path, &error))?;
    if certificates.is_empty() {
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
        .with_single_cert(certificates, key)
        .map_err(unusable)?;
    config.alpn_protocols = vec![H2.to_vec(), HTTP11.to_vec()];
    Ok(Arc::new(config))
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
