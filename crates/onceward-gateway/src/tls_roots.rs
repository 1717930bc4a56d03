//! The certificates that the gateway trusts when it is a TLS client.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

/// A `ca` file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path:?} holds no certificates that can be read: {reason}")]
pub struct CaError {
    path: PathBuf,
    reason: String,
}

/// The certificates of a `ca` file, or [`native`] ones where none is configured.
pub fn load(ca: Option<&Path>, peer: &str) -> Result<RootCertStore, CaError> {
    match ca {
        Some(path) => from_file(path),
        None => Ok(native(peer)),
    }
}

fn from_file(path: &Path) -> Result<RootCertStore, CaError> {
    let refused = |reason: String| CaError { path: path.to_owned(), reason };
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| refused(error.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| refused(error.to_string()))?;
        roots.add(certificate).map_err(|error| refused(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(refused("it has no CERTIFICATE block".to_owned()));
    }
    Ok(roots)
}

/// This machine's roots, of which there may be none. `peer` names the server in the log, such as "the upstream".
pub fn native(peer: &str) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(cause = %error, "a root certificate of this machine cannot be read: it is not trusted for {peer}");
    }
    roots.add_parsable_certificates(found.certs);
    roots
}

/// TLS as a client that trusts these certificates.
pub fn client_config(roots: RootCertStore) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth())
}
