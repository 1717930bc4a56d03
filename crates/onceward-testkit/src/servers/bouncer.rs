//! PgBouncer, in transaction mode.

use std::net::TcpStream;

use tempfile::TempDir;

use super::free_port;
use super::guardian::Guarded;
use super::postgres::{Postgres, as_server, give, text};
use crate::wait;

/// A pooler in front of a server. It is ended when this is dropped, or with the process.
pub struct PgBouncer {
    // Ended before its directory goes.
    running: Guarded,
    directory: TempDir,
    port: u16,
}

impl PgBouncer {
    /// A pooler with few connections of its own, so that clients do share them.
    pub fn start(server: &Postgres) -> Self {
        Self::to(server.port())
    }

    /// The same, for a server on this port.
    pub fn to(server: u16) -> Self {
        for _ in 0..20 {
            if let Some(bouncer) = Self::try_start(server) {
                return bouncer;
            }
        }
        panic!("pgbouncer does not start");
    }

    fn try_start(server: u16) -> Option<Self> {
        let directory = tempfile::Builder::new().prefix("onceward-bouncer").tempdir().expect("a directory");
        let port = free_port();
        let users = directory.path().join("users.txt");
        std::fs::write(&users, "\"postgres\" \"\"\n").expect("the directory can be written");
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={server}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = transaction\n\
             default_pool_size = 3\nmax_client_conn = 500\n",
            text(&users)
        );
        let file = directory.path().join("pgbouncer.ini");
        std::fs::write(&file, settings).expect("the directory can be written");
        give(directory.path());
        let program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"]
            .into_iter()
            .find(|path| std::path::Path::new(path).exists())
            .unwrap_or("pgbouncer");
        let words = as_server(vec![program.to_owned(), text(&file)]);
        let running = Guarded::start("INT", directory.path(), &words);
        let started = wait::until_blocking("pgbouncer takes connections or has ended", || {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(_) => Ok(true),
                Err(_) if running.is_gone() => Ok(false),
                Err(error) => Err(error),
            }
        });
        started.then_some(Self { directory, port, running })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of a database, by way of the pooler.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }
}

impl std::fmt::Debug for PgBouncer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PgBouncer")
            .field("port", &self.port)
            .field("directory", &self.directory.path())
            .field("pid", &self.running.pid())
            .finish()
    }
}
