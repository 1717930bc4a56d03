//! A PostgreSQL server, and a synchronous standby of it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tempfile::TempDir;

use super::free_port;
use super::guardian::Guarded;
use crate::wait;

/// Holds the URL of a server that many tests share: `cargo xtask test` starts one.
const SHARED: &str = "ONCEWARD_TEST_POSTGRES";

/// What a server is started with besides its defaults.
#[derive(Debug, Clone, Default)]
pub struct PostgresOptions {
    /// Lines of `postgresql.conf`.
    pub settings: Vec<(String, String)>,
    /// A certificate and its key, in PEM: the server then offers TLS.
    pub certificate: Option<(String, String)>,
}

/// A server of one's own. It is ended when this is dropped, or with the process.
pub struct Postgres {
    // Ended before its directory goes.
    running: Option<Guarded>,
    directory: TempDir,
    port: u16,
}

/// The newest of the versions that are installed.
fn program(name: &str) -> PathBuf {
    let mut found: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            let path = entry.path().join("bin").join(name);
            path.exists().then_some((version, path))
        })
        .collect();
    found.sort();
    // Where it lies elsewhere, it is on the path.
    found.pop().map_or_else(|| PathBuf::from(name), |(_, path)| path)
}

/// Whether this process is root, which the servers refuse to be.
pub(super) fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"))
}

/// The words that run a program as a user that the servers accept.
pub(super) fn as_server(words: Vec<String>) -> Vec<String> {
    if !is_root() {
        return words;
    }
    let become_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"];
    become_postgres.iter().map(|&word| word.to_owned()).chain(words).collect()
}

/// Gives a path to the user that the servers run as.
pub(super) fn give(path: &Path) {
    if is_root() {
        run(&["chown".to_owned(), "-R".to_owned(), "postgres:postgres".to_owned(), text(path)]);
    }
}

pub(super) fn text(path: &Path) -> String {
    path.to_str().expect("temporary paths are text").to_owned()
}

/// Runs a program to its end, and fails with its output.
pub(super) fn run(words: &[String]) -> String {
    let (first, rest) = words.split_first().expect("there is a program");
    let output =
        Command::new(first).args(rest).current_dir("/").stdin(Stdio::null()).output().unwrap_or_else(
            |error| panic!("{first} cannot be started: {error}; `cargo xtask test` installs it"),
        );
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{words:?} failed: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

impl Postgres {
    /// A new server with durability as it comes, and little memory.
    pub fn start() -> Self {
        Self::start_with(&PostgresOptions::default())
    }

    /// A new server with settings.
    pub fn start_with(options: &PostgresOptions) -> Self {
        let directory = tempfile::Builder::new().prefix("onceward-pg").tempdir().expect("a directory");
        give(directory.path());
        let data = directory.path().join("data");
        run(&as_server(vec![
            text(&program("initdb")),
            "--pgdata".to_owned(),
            text(&data),
            "--username=postgres".to_owned(),
            "--auth=trust".to_owned(),
            "--encoding=UTF8".to_owned(),
            "--no-locale".to_owned(),
            "--no-sync".to_owned(),
        ]));
        let mut settings = String::from(
            "\nlisten_addresses = '127.0.0.1'\nshared_buffers = '16MB'\nmax_connections = 200\nwal_level = replica\n\
             max_wal_senders = 4\nlog_min_messages = warning\nlogging_collector = off\nautovacuum_naptime = 1\n",
        );
        settings.push_str(&format!("unix_socket_directories = '{}'\n", text(directory.path())));
        if let Some((certificate, key)) = &options.certificate {
            for (name, contents) in [("server.crt", certificate), ("server.key", key)] {
                std::fs::write(data.join(name), contents).expect("the directory can be written");
            }
            run(&["chmod".to_owned(), "600".to_owned(), text(&data.join("server.key"))]);
            give(&data);
            settings.push_str("ssl = on\n");
        }
        for (name, value) in &options.settings {
            settings.push_str(&format!("{name} = '{value}'\n"));
        }
        let file = data.join("postgresql.conf");
        let before = std::fs::read_to_string(&file).expect("initdb writes it");
        std::fs::write(&file, before + &settings).expect("the directory can be written");
        let mut server = Self { directory, port: 0, running: None };
        server.restart();
        server
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Starts it, or starts it again on the same port.
    pub fn restart(&mut self) {
        self.kill();
        for _ in 0..20 {
            let port = if self.port == 0 { free_port() } else { self.port };
            if self.try_start(port) {
                self.port = port;
                return;
            }
        }
        let log = std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        panic!("the server does not start: {log}");
    }

    fn try_start(&mut self, port: u16) -> bool {
        let words = vec![
            text(&program("postgres")),
            "-D".to_owned(),
            text(&self.data()),
            "-p".to_owned(),
            port.to_string(),
        ];
        // `QUIT` is PostgreSQL's immediate end.
        let mut server = Guarded::start("QUIT", self.directory.path(), &as_server(words));
        // It exits with a status of its own once it can be asked, or when it never will.
        let ready = as_server(vec![
            text(&program("pg_isready")),
            "--quiet".to_owned(),
            "--timeout=1".to_owned(),
            "--host=127.0.0.1".to_owned(),
            format!("--port={port}"),
        ]);
        let is_ready = || {
            Command::new(&ready[0])
                .args(&ready[1..])
                .current_dir("/")
                .status()
                .is_ok_and(|status| status.success())
        };
        let started = wait::until_blocking("PostgreSQL takes connections or has ended", || {
            if is_ready() { Ok(true) } else { wait::seen(!server.is_gone(), |running| !running) }
        });
        if started {
            self.running = Some(server);
        } else {
            server.end("QUIT");
        }
        started
    }

    /// Ends it in good order.
    pub fn stop(&mut self) {
        if let Some(mut server) = self.running.take() {
            server.end("INT");
        }
    }

    /// Ends it as a crash would: no shutdown, recovery at the next start.
    pub fn kill(&mut self) {
        if let Some(mut server) = self.running.take() {
            server.end("QUIT");
        }
    }

    /// Ends it as the loss of its machine would: every process is killed at once, and none says or sends anything more.
    pub fn lose(&mut self) {
        let Some(mut server) = self.running.take() else { return };
        // Stopped first, it starts no other process while these are killed.
        let _ = Command::new("kill").args(["-STOP", &server.pid().to_string()]).status();
        for child in children_of(server.pid()) {
            let _ = Command::new("kill").args(["-KILL", &child]).status();
        }
        server.end("KILL");
    }

    /// Sends a signal to every backend: `STOP` stops them, as on a machine that hangs, and `CONT` lets them go on.
    pub fn signal_backends(&self, signal: &str) {
        let Some(server) = &self.running else { return };
        for child in children_of(server.pid()) {
            let _ = Command::new("kill").args([&format!("-{signal}"), &child]).status();
        }
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The directory of its socket and data.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Runs SQL in a database of it, and gives what it prints.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        psql(&format!("postgres://postgres@127.0.0.1:{}/{database}", self.port), sql)
    }

    /// A new, empty database, by its URL.
    pub fn create_database(&self) -> String {
        create_database(&format!("postgres://postgres@127.0.0.1:{}", self.port))
    }

    /// A standby that every commit waits for.
    pub fn start_standby(&self) -> Standby {
        Standby::of(self)
    }
}

impl std::fmt::Debug for Postgres {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Postgres").field("port", &self.port).finish_non_exhaustive()
    }
}

fn children_of(pid: u32) -> Vec<String> {
    let children =
        run(&["ps".to_owned(), "-o".to_owned(), "pid=".to_owned(), "--ppid".to_owned(), pid.to_string()]);
    children.split_whitespace().map(str::to_owned).collect()
}

fn psql(url: &str, sql: &str) -> String {
    run(&as_server(
        [&text(&program("psql")), url, "--no-psqlrc", "-v", "ON_ERROR_STOP=1", "-Atqc", sql]
            .map(str::to_owned)
            .to_vec(),
    ))
    .trim()
    .to_owned()
}

fn create_database(server: &str) -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    // Many test processes share a server.
    let name = format!("once_{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    psql(&format!("{server}/postgres"), &format!("CREATE DATABASE {name}"));
    format!("{server}/{name}")
}

/// A new, empty database on the server that all tests share: the one in `ONCEWARD_TEST_POSTGRES`, or one that
/// this process starts for itself.
pub fn shared_postgres() -> String {
    static OWN: OnceLock<Postgres> = OnceLock::new();
    match std::env::var(SHARED) {
        Ok(server) => create_database(&server),
        Err(_) => OWN.get_or_init(Postgres::start).create_database(),
    }
}

/// A standby of a server.
pub struct Standby {
    server: Postgres,
}

impl Standby {
    fn of(primary: &Postgres) -> Self {
        let directory = tempfile::Builder::new().prefix("onceward-pg").tempdir().expect("a directory");
        give(directory.path());
        run(&as_server(vec![
            text(&program("pg_basebackup")),
            "--pgdata".to_owned(),
            text(&directory.path().join("data")),
            "--write-recovery-conf".to_owned(),
            "--no-sync".to_owned(),
            "--checkpoint=fast".to_owned(),
            format!("--dbname=postgres://postgres@127.0.0.1:{}/?application_name=standby", primary.port),
        ]));
        let file = directory.path().join("data/postgresql.conf");
        let settings = std::fs::read_to_string(&file).expect("it was copied");
        let socket = format!("\nunix_socket_directories = '{}'\n", text(directory.path()));
        std::fs::write(&file, settings + &socket).expect("the directory can be written");
        let mut server = Postgres { directory, port: 0, running: None };
        server.restart();
        primary.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = 'standby'");
        primary.sql("postgres", "SELECT pg_reload_conf()");
        // From here on every commit waits for the standby.
        wait::until_blocking("the standby is synchronous", || {
            let state = primary.sql("postgres", "SELECT sync_state FROM pg_stat_replication");
            wait::seen(state, |state| state == "sync")
        });
        Self { server }
    }

    /// Makes it the primary.
    pub fn promote(self) -> Postgres {
        self.server.sql("postgres", "SELECT pg_promote(true)");
        self.server.sql("postgres", "ALTER SYSTEM RESET synchronous_standby_names");
        self.server.sql("postgres", "SELECT pg_reload_conf()");
        self.server
    }

    /// Stops it. The primary's commits then wait until it is started again.
    pub fn stop(&mut self) {
        self.server.kill();
    }

    /// Starts it again after [`Standby::stop`]: it catches up, and the primary waits no longer.
    pub fn restart(&mut self) {
        self.server.restart();
    }

    /// The server.
    pub fn server(&self) -> &Postgres {
        &self.server
    }
}

impl std::fmt::Debug for Standby {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Standby").field("server", &self.server).finish()
    }
}
