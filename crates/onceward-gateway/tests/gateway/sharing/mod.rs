//! Several gateways on one store, and stores that fail.

mod cache;
mod commands;
mod crowd;
mod cut;
mod failover;
mod many;
mod outages;
mod redis;
mod versions;

use std::path::Path;
use std::process::Command;

use crate::harness::{Gateway, onceward};
use crate::ledger::Ledger;

/// The command of a gateway on a store that others use too.
fn on(store: &str, folder: &Path, ledger: &Ledger) -> Command {
    on_port(store, folder, ledger, "127.0.0.1:0")
}

/// The same, on a port that a later gateway uses again.
fn on_port(store: &str, folder: &Path, ledger: &Ledger, listen: &str) -> Command {
    let mut command = onceward(folder);
    let upstream = format!("http://{}", ledger.address);
    command.args(["serve", "--listen", listen, "--admin-listen", "127.0.0.1:0"]);
    command.args(["--store", store, "--upstream", &upstream, "--scope", "fixed:test"]);
    command
}

fn start(store: &str, folder: &Path, ledger: &Ledger) -> Gateway {
    Gateway::spawn(&mut on(store, folder, ledger))
}
