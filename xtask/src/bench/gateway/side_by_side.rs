//! What every measurement of the gateway is made of: programs side by side, and a table of ratios.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::load::{CONNECTIONS, LoadResult};
use crate::bench::median;
use crate::bench::store::Failure;
use crate::shell::root;

/// A program that was started here, and is stopped here.
pub struct Process {
    child: Child,
    pub address: SocketAddr,
    /// The address of a gateway's metrics.
    admin: Option<SocketAddr>,
}

impl Process {
    /// Starts a program and waits for the line with its address.
    pub fn start(command: &mut Command) -> Result<Self, Failure> {
        let (child, address, _) = started(command)?;
        Ok(Self { child, address, admin: None })
    }

    /// A counter of a gateway, over all its labels.
    pub fn counter(&self, name: &str) -> Result<f64, Failure> {
        let admin = self.admin.ok_or("the program has no admin listener")?;
        let output =
            Command::new("curl").args(["--silent", "--fail", &format!("http://{admin}/metrics")]).output()?;
        let text = String::from_utf8(output.stdout)?;
        let values = text.lines().filter(|line| line.split(['{', ' ']).next() == Some(name));
        Ok(values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }

    /// The most memory that it has had, in MiB.
    pub fn peak_mib(&self) -> Result<f64, Failure> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
        Ok(line.trim().trim_end_matches(" kB").trim().parse::<f64>()? / 1024.0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to end.
        let _ended = self.child.kill();
        let _waited = self.child.wait();
    }
}

type Lines = std::io::Lines<BufReader<ChildStdout>>;

fn started(command: &mut Command) -> Result<(Child, SocketAddr, Lines), Failure> {
    let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn()?;
    let output = child.stdout.take().ok_or("the program has no output")?;
    let mut lines = BufReader::new(output).lines();
    let address = address_after(&mut lines, "listening on http://")?;
    Ok((child, address, lines))
}

fn address_after(lines: &mut Lines, before: &str) -> Result<SocketAddr, Failure> {
    loop {
        let line = lines.next().ok_or("the program ended before it listened")??;
        if let Some(address) = line.strip_prefix(before) {
            return Ok(address.parse()?);
        }
    }
}

/// One row of the table, over all rounds.
pub struct Row {
    what: &'static str,
    to_reach: &'static str,
    pub seen: Vec<LoadResult>,
    pub against: Vec<LoadResult>,
}

/// The gateway of this source tree, as `cargo build --release` leaves it.
pub fn built_gateway() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    target.join("release").join("onceward")
}

/// A gateway of this source tree on a store.
pub fn gateway(store: &str, upstream: SocketAddr, more: &[&str]) -> Result<Process, Failure> {
    gateway_of(&built_gateway(), store, upstream, more)
}

/// A gateway of any build on a store.
pub fn gateway_of(
    program: &Path,
    store: &str,
    upstream: SocketAddr,
    more: &[&str],
) -> Result<Process, Failure> {
    let mut command = Command::new(program);
    command.args([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--admin-listen",
        "127.0.0.1:0",
        "--scope",
        "fixed:bench",
    ]);
    command.args(["--store", store]);
    command.arg("--upstream").arg(format!("http://{upstream}"));
    command.args(["--namespace", "bench", "--accept-identity-change"]);
    command.args(more);
    let (child, address, mut lines) = started(&mut command)?;
    let admin = Some(address_after(&mut lines, "admin on http://")?);
    // The rest of the output is read too: a full pipe would stop the program.
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    Ok(Process { child, address, admin })
}

/// Prints the table.
pub fn print(rows: &[&Row], seconds: u32, rounds: u32) {
    println!("\n{CONNECTIONS} connections, {seconds} s each, {rounds} rounds, medians");
    println!(
        "\n| requests | a second | p50 ms | p99 ms | against: a second | p99 ms | ratio | p99 ratio | to reach |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |");
    rows.iter().for_each(|row| row.print());
}

impl Row {
    pub fn new(what: &'static str, to_reach: &'static str) -> Self {
        Self { what, to_reach, seen: Vec::new(), against: Vec::new() }
    }

    fn print(&self) {
        let of = |all: &[LoadResult], value: fn(&LoadResult) -> f64| median(all.iter().map(value).collect());
        let ratio = |value: fn(&LoadResult) -> f64| {
            median(
                self.seen
                    .iter()
                    .zip(&self.against)
                    .map(|(seen, against)| value(seen) / value(against))
                    .collect(),
            )
        };
        println!(
            "| {} | {:.0} | {:.2} | {:.2} | {:.0} | {:.2} | {:.2} | {:.2} | {} |",
            self.what,
            of(&self.seen, |seen| seen.per_second),
            of(&self.seen, |seen| seen.p50_ms),
            of(&self.seen, |seen| seen.p99_ms),
            of(&self.against, |seen| seen.per_second),
            of(&self.against, |seen| seen.p99_ms),
            ratio(|seen| seen.per_second),
            ratio(|seen| seen.p99_ms),
            self.to_reach,
        );
    }
}
