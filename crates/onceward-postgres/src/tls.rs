//! TLS, and which certificates are trusted.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::url::Tls;
use crate::{OpenError, PostgresUrl};

/// The TLS connector that the URL asks for.
pub(crate) fn connector(url: &PostgresUrl) -> Result<MakeRustlsConnect, OpenError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("of this program", &error.to_string()))?;
    let trusted = match (url.tls, &url.root_certificate) {
        (Tls::Disable | Tls::Prefer, _) | (Tls::Require, None) => None,
        (Tls::Require | Tls::VerifyFull, Some(path)) => {
            let name = path.display().to_string();
            let certificates = CertificateDer::pem_file_iter(path)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(|error| unusable(&name, &error.to_string()))?;
            Some(roots(certificates, &name)?)
        }
        (Tls::VerifyFull, None) => {
            Some(roots(rustls_native_certs::load_native_certs().certs, "of the operating system")?)
        }
    };
    let config = match trusted {
        Some(roots) => builder.with_root_certificates(roots).with_no_client_auth(),
        None => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate(provider)))
            .with_no_client_auth(),
    };
    Ok(MakeRustlsConnect::new(config))
}

fn unusable(path: &str, reason: &str) -> OpenError {
    OpenError::Certificate { path: path.to_owned(), reason: reason.to_owned() }
}

fn roots(certificates: Vec<CertificateDer<'static>>, name: &str) -> Result<RootCertStore, OpenError> {
    let mut roots = RootCertStore::empty();
    let (usable, _) = roots.add_parsable_certificates(certificates);
    if usable == 0 {
        return Err(unusable(name, "there is no certificate in them"));
    }
    Ok(roots)
}

/// Accepts any certificate: `sslmode=prefer` and `require` protect against eavesdropping only, as in every PostgreSQL
/// client.
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
