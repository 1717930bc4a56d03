//! Handlers that take orders: a program in Python (`tests/peers/orders.py`) and one in Rust (`rust.rs`). Each connection has a
//! process of its own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::harness::Output;
use crate::rust;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    Python,
    Rust,
}

impl Language {
    /// Those that can run here: the test command installs what the Python handler needs.
    pub fn is_installed(self) -> bool {
        let installed = self == Self::Rust || installed().is_some();
        if !installed {
            println!(
                "ONCEWARD_TEST_PEERS is not set: nothing was checked in Python. Run `cargo xtask test`."
            );
        }
        installed
    }
}

/// The Python that has what the tests need.
pub fn installed() -> Option<PathBuf> {
    Some(PathBuf::from(std::env::var_os("ONCEWARD_TEST_PEERS")?).join("python/bin/python"))
}

/// A handler that takes requests. It ends with this value, or with the test.
pub struct Handler {
    child: Child,
    pub address: SocketAddr,
}

impl Handler {
    /// Starts it on a free port.
    pub fn start(language: Language, database: &str, control: SocketAddr) -> Self {
        let mut command = match language {
            Language::Python => {
                let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/orders.py");
                let mut command = Command::new(installed().unwrap());
                command.arg(source).arg("0").env("PYTHONDONTWRITEBYTECODE", "1");
                command
            }
            Language::Rust => rust::program(rust::SERVER),
        };
        command.env("ORDERS_DATABASE", database).env("ORDERS_CONTROL", control.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let printed = Output::of(child.stdout.take().unwrap());
        let address = printed.find(|line| Some(line.split_once("orders at ")?.1.trim().parse().unwrap()));
        let address = address.unwrap_or_else(|printed| panic!("the handler did not start: {printed:#?}"));
        Self { child, address }
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        // It kills the processes of its connections when its input ends.
        drop(self.child.stdin.take());
        let _waited = self.child.wait();
    }
}
