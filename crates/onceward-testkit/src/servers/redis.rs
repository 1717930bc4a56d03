//! Redis servers of the machine's package, each in a folder and on a port of its own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::wait;

/// A running server. It ends when this is dropped, and also when the process that started it does, however that ends: a
/// shell waits for its end of a pipe to close, and then kills the server.
#[derive(Debug)]
pub struct RedisServer {
    port: u16,
    folder: PathBuf,
    settings: Vec<String>,
    keeper: Mutex<Option<Child>>,
}

/// Starts a server, and kills it when the other end of its input is closed.
const KEEPER: &str = r#"redis-server "$@" & server=$!; read -r line; kill -9 "$server"; wait "$server""#;

impl RedisServer {
    /// Starts a server with these settings, such as `["--appendonly", "yes"]`, and waits until it takes connections.
    pub fn start(settings: &[&str]) -> Self {
        let port = free_port();
        let folder = std::env::temp_dir().join(format!("onceward-redis-{}-{port}", std::process::id()));
        fs::create_dir_all(&folder).expect("a temporary folder can be made");
        let settings = settings.iter().map(|&setting| setting.to_owned()).collect();
        let server = Self { port, folder, settings, keeper: Mutex::new(None) };
        server.begin();
        server
    }

    /// The port on this machine.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Where it is, without a prefix or database.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Kills it, as a crash would: nothing is flushed or saved.
    pub fn kill(&self) {
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut keeper) = keeper {
            drop(keeper.stdin.take());
            keeper.wait().expect("the shell that keeps the server can be waited for");
        }
    }

    /// Starts it again, on the same port and with the same files, after [`RedisServer::kill`].
    pub fn begin(&self) {
        let mut command = Command::new("sh");
        command.args(["-c", KEEPER, "sh", "--port", &self.port.to_string(), "--dir"]).arg(&self.folder);
        command.args(["--bind", "127.0.0.1", "--save", ""]).args(&self.settings);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut keeper = command.spawn().expect("a shell can be started");
        let output = keeper.stdout.take().expect("its output is piped");
        let mut lines = BufReader::new(output).lines();
        let ready =
            lines.by_ref().any(|line| line.is_ok_and(|line| line.contains("Ready to accept connections")));
        assert!(ready, "redis-server does not start: install it (`apt-get install redis-server`)");
        // What it says later is read and dropped, so that it never waits for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        *self.keeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(keeper);
    }

    /// Sends one command through `redis-cli`, and returns what it prints.
    pub fn cli(&self, arguments: &[&str]) -> String {
        cli(&[&["-p", &self.port.to_string()][..], arguments].concat())
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
        // A folder that stays behind in the system's temporary folder is harmless.
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// Three masters without replicas.
#[derive(Debug)]
pub struct RedisCluster {
    /// The nodes.
    pub nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts three nodes and waits until each of them reports that the cluster is whole.
    pub fn start(settings: &[&str]) -> Self {
        let nodes: Vec<_> = (0..3)
            .map(|_| {
                let bus = free_port().to_string();
                let own = ["--cluster-enabled", "yes", "--cluster-port", &bus];
                RedisServer::start(&[&own[..], settings].concat())
            })
            .collect();
        let addresses: Vec<_> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        let mut arguments = vec!["--cluster", "create"];
        arguments.extend(addresses.iter().map(String::as_str));
        arguments.extend(["--cluster-replicas", "0", "--cluster-yes"]);
        let printed = cli(&arguments);
        assert!(printed.contains("All 16384 slots covered"), "{printed}");
        for node in &nodes {
            wait::until_blocking("the cluster is whole", || {
                wait::seen(node.cli(&["cluster", "info"]), |info| info.contains("cluster_state:ok"))
            });
        }
        Self { nodes }
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("{}?cluster=true", self.nodes[0].url())
    }
}

fn cli(arguments: &[&str]) -> String {
    let output = Command::new("redis-cli").args(arguments).output().expect("redis-cli is there");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A free port. The operating system does not give the same one again soon.
fn free_port() -> u16 {
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").expect("the machine has free ports");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        // A node of a cluster must be able to add ten thousand.
        if port < 55_000 {
            return port;
        }
    }
}
