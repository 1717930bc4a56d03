//! Ways to the database: a pooler, TLS, and what `examine` reports about each.

use std::sync::{Arc, OnceLock};

use crate::support::{damage, database, name, open, port, put, schema};
use onceward::store::{Finding, Health, Store};
use onceward_postgres::{OpenError, Options, PostgresStore, PostgresUrl, examine, migrate};
use onceward_testkit::conformance::Specimen;
use onceward_testkit::servers::{PgBouncer, Postgres, PostgresOptions};
use onceward_testkit::{VirtualClock, sample};

mod pooled {
    use super::*;

    fn bouncer() -> &'static PgBouncer {
        static BOUNCER: OnceLock<PgBouncer> = OnceLock::new();
        BOUNCER.get_or_init(|| PgBouncer::to(port()))
    }

    async fn pooled(clock: Arc<VirtualClock>) -> Specimen {
        let text = format!("{}?schema={}&prepared=off", bouncer().url(name()), schema());
        let url = PostgresUrl::parse(&text).unwrap();
        let store = open(&url, Options { clock: Some(clock), ..Options::default() }).await;
        Specimen::new(store).damaged_by(move |id| {
            let schema = url.schema().to_owned();
            async move { damage(database(), &schema, id).await }
        })
    }

    onceward_testkit::conformance!(pooled, with damage);

    #[tokio::test]
    async fn a_pooler_in_transaction_mode_is_found_out() {
        let text = format!("{}?schema={}", bouncer().url(name()), schema());
        let found = examine(&PostgresUrl::parse(&text).unwrap()).await.unwrap();
        let pooler = found.iter().find(|finding| finding.subject == "pooler").unwrap();
        assert_eq!(pooler.health, Health::Warning, "{pooler:?}");
        assert!(pooler.text.contains("prepared=off"), "{pooler:?}");
    }
}

/// A server that offers TLS, and the certificate of the authority that signed its own.
struct Encrypted {
    server: Postgres,
    authority: std::path::PathBuf,
    _directory: tempfile::TempDir,
}

fn encrypted() -> &'static Encrypted {
    static SERVER: OnceLock<Encrypted> = OnceLock::new();
    SERVER.get_or_init(|| {
        let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority_key = rcgen::KeyPair::generate().unwrap();
        let authority = rcgen::CertifiedIssuer::self_signed(authority, authority_key).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(vec!["localhost".to_owned()])
            .unwrap()
            .signed_by(&key, &authority)
            .unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("authority.pem");
        std::fs::write(&path, authority.pem()).unwrap();
        let server = Postgres::start_with(&PostgresOptions {
            certificate: Some((certificate.pem(), key.serialize_pem())),
            ..PostgresOptions::default()
        });
        Encrypted { server, authority: path, _directory: directory }
    })
}

fn encrypted_url(host: &str, parameters: &str) -> PostgresUrl {
    let text = format!(
        "postgres://postgres@{host}:{}/postgres?schema={}&{parameters}",
        encrypted().server.port(),
        schema()
    );
    PostgresUrl::parse(&text).unwrap()
}

mod over_tls {
    use super::*;

    async fn over_tls(clock: Arc<VirtualClock>) -> Specimen {
        let trust = format!("sslmode=verify-full&sslrootcert={}", encrypted().authority.display());
        let url = encrypted_url("localhost", &trust);
        Specimen::new(open(&url, Options { clock: Some(clock), ..Options::default() }).await)
    }

    onceward_testkit::conformance!(over_tls);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_believed_only_for_its_host_and_from_its_authority() {
    let trust = format!("sslmode=verify-full&sslrootcert={}", encrypted().authority.display());
    migrate(&encrypted_url("localhost", &trust)).await.unwrap();
    // The certificate names another host.
    let refused = migrate(&encrypted_url("127.0.0.1", &trust)).await;
    assert!(matches!(refused, Err(OpenError::Unreachable { .. })), "{refused:?}");
    // No authority that this machine trusts has signed it.
    let refused = migrate(&encrypted_url("localhost", "sslmode=verify-full")).await;
    assert!(
        matches!(refused, Err(OpenError::Unreachable { .. } | OpenError::Certificate { .. })),
        "{refused:?}"
    );
    // The certificate is not checked.
    for mode in ["require", "prefer", "disable"] {
        migrate(&encrypted_url("127.0.0.1", &format!("sslmode={mode}"))).await.unwrap();
    }
    let refused = migrate(&encrypted_url("localhost", "sslmode=verify-full&sslrootcert=/nowhere.pem")).await;
    assert!(
        matches!(&refused, Err(OpenError::Certificate { path, .. }) if path == "/nowhere.pem"),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_server_without_tls_is_refused_where_it_is_required() {
    let text = format!("{}?sslmode=require", database());
    let refused = PostgresStore::connect(&PostgresUrl::parse(&text).unwrap(), Options::default()).await;
    assert!(matches!(&refused, Err(OpenError::Unreachable { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_durable_server_is_found_good_and_a_careless_one_is_told_what_it_risks() {
    let url = PostgresUrl::parse(&format!("{}?schema={}", database(), schema())).unwrap();
    let level = |findings: &[Finding], subject: &str| {
        findings.iter().find(|finding| finding.subject == subject).map(|finding| finding.health)
    };
    let before = examine(&url).await.unwrap();
    assert_eq!(level(&before, "schema"), Some(Health::Warning));
    put(&open(&url, Options::default()).await, sample::id(1), None, sample::record("k")).await;
    let good = examine(&url).await.unwrap();
    for subject in
        ["fsync", "full_page_writes", "synchronous_commit", "clock", "pooler", "server version", "schema"]
    {
        assert_eq!(level(&good, subject), Some(Health::Good), "{subject}: {good:?}");
    }
    assert_eq!(level(&good, "synchronous_standby_names"), Some(Health::Warning));
    let settings = [("fsync", "off"), ("full_page_writes", "off"), ("synchronous_commit", "off")];
    let careless = Postgres::start_with(&PostgresOptions {
        settings: settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
        ..PostgresOptions::default()
    });
    let found = examine(&PostgresUrl::parse(&careless.create_database()).unwrap()).await.unwrap();
    for (subject, _) in settings {
        assert_eq!(level(&found, subject), Some(Health::Problem), "{subject}: {found:?}");
    }
}

#[tokio::test]
async fn a_store_over_a_unix_socket_works() {
    let server = Postgres::start();
    let directory = server.directory().to_str().unwrap().replace('/', "%2F");
    let url =
        PostgresUrl::parse(&format!("postgres://postgres@{directory}:{}/postgres", server.port())).unwrap();
    let store = open(&url, Options::default()).await;
    let version = put(&store, sample::id(1), None, sample::record("k")).await;
    assert_eq!(store.load(sample::id(1)).await.unwrap().record.unwrap().version, version);
}
