//! Certificates that are made for a test, and clients that trust them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// A certificate for `localhost` and its key, in files.
pub struct Certificate {
    pub file: PathBuf,
    pub key: PathBuf,
    certificate: CertificateDer<'static>,
}

impl Certificate {
    pub fn make(folder: &Path, name: &str) -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (file, key) = (folder.join(format!("{name}.pem")), folder.join(format!("{name}.key")));
        std::fs::write(&file, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        Self { file, key, certificate: made.cert.der().clone() }
    }

    /// A connection that trusts this certificate and offers these protocols.
    pub async fn connect(&self, to: TcpStream, alpn: &[&[u8]]) -> TlsStream<TcpStream> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, to).await.unwrap()
    }

    /// Terminates TLS in front of a server until the test ends. Returns the port to connect to.
    pub async fn terminate_tls(&self, server: std::net::SocketAddr) -> u16 {
        self.terminate_tls_with(server, &[]).await
    }

    /// The same, and accepts only these protocols.
    pub async fn terminate_tls_with(&self, server: std::net::SocketAddr, alpn: &[&[u8]]) -> u16 {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![self.certificate.clone()],
                PrivateKeyDer::from_pem_file(&self.key).unwrap(),
            )
            .unwrap();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    // A client that does not trust this certificate closes the connection here.
                    let Ok(mut client) = acceptor.accept(socket).await else { return };
                    let mut server = TcpStream::connect(server).await.unwrap();
                    drop(tokio::io::copy_bidirectional(&mut client, &mut server).await);
                });
            }
        });
        port
    }
}
