//! The gateway against the least proxy, in one run on one machine.

mod load;
pub mod peers;

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use self::load::{CONNECTIONS, Seen, Workload, load};
use super::median;
use super::store::{Failure, preload_file};
use crate::shell::{cargo, root, run as run_command};
use crate::{Done, test};

#[derive(clap::Args)]
pub struct Options {
    /// Seconds that each load lasts.
    #[arg(long, default_value_t = 8)]
    seconds: u32,
    /// How often everything is measured; the median counts.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Keys in the store that is compared with an empty one.
    #[arg(long, default_value_t = 2_000_000)]
    keys: u64,
}

/// A program that was started here, and is stopped here.
struct Process {
    child: Child,
    address: SocketAddr,
}

impl Process {
    /// Starts a program and waits for the line that tells where it listens.
    fn start(command: &mut Command) -> Result<Self, Failure> {
        let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn()?;
        let output = child.stdout.take().ok_or("the program has no output")?;
        let mut lines = BufReader::new(output).lines();
        let address = loop {
            let line = lines.next().ok_or("the program ended before it listened")??;
            if let Some(address) = line.strip_prefix("listening on http://") {
                break address.parse()?;
            }
        };
        // Whoever prints more must not be stopped by a full pipe.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Ok(Self { child, address })
    }

    /// The most memory that it has had, in MiB.
    fn peak_mib(&self) -> Result<f64, Failure> {
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

/// One row of the table, over all rounds.
struct Row {
    what: &'static str,
    to_reach: &'static str,
    seen: Vec<Seen>,
    against: Vec<Seen>,
}

pub fn run(options: &Options) -> Done {
    test::install_missing(&[test::WRK])?;
    run_command(&mut cargo(&["build", "--quiet", "--release", "--package", "onceward-gateway"]))?;
    let folder = tempfile::tempdir()?;
    let xtask = std::env::current_exe()?;
    let upstream = Process::start(Command::new(&xtask).args(["bench", "peer", "upstream"]))?;
    let address = upstream.address.to_string();
    let proxy = Process::start(Command::new(&xtask).args(["bench", "peer", "proxy", &address]))?;
    let gateway = gateway(&folder.path().join("empty.db"), upstream.address)?;

    let full = folder.path().join("full.db");
    println!("storing {} keys", options.keys);
    preload_file(&full, options.keys)?;
    let gateway_full = self::gateway(&full, upstream.address)?;

    let [mut unkeyed, mut new_keys, mut replays, mut full_keys] = [
        Row::new("without a key, against the proxy", "at least 0.9"),
        Row::new("new keys, against the proxy", "at least 0.5; p99 at most 3 times"),
        Row::new("replays, against the proxy", "at least 1.3"),
        Row::new("new keys with a full store, against an empty one", "at least 0.85"),
    ];
    for round in 0..options.rounds {
        let measure = |process: &Process, workload, part: u32| {
            load(process.address, workload, options.seconds, round * 10 + part, folder.path())
        };
        // What is compared is measured side by side.
        unkeyed.against.push(measure(&proxy, Workload::Unkeyed, 0)?);
        unkeyed.seen.push(measure(&gateway, Workload::Unkeyed, 1)?);
        new_keys.against.push(measure(&proxy, Workload::NewKeys, 2)?);
        new_keys.seen.push(measure(&gateway, Workload::NewKeys, 3)?);
        full_keys.against.extend(new_keys.seen.last());
        full_keys.seen.push(measure(&gateway_full, Workload::NewKeys, 4)?);
        replays.against.push(measure(&proxy, Workload::Replays, 5)?);
        replays.seen.push(measure(&gateway, Workload::Replays, 6)?);
        println!("round {} of {} done", round + 1, options.rounds);
    }
    println!("\n{CONNECTIONS} connections, {} s each, {} rounds, medians", options.seconds, options.rounds);
    println!(
        "\n| requests | a second | p50 ms | p99 ms | against: a second | p99 ms | ratio | p99 ratio | to reach |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |");
    for row in [&unkeyed, &new_keys, &replays, &full_keys] {
        row.print();
    }
    println!("\nmost memory of the gateway: {:.0} MiB (to reach: 150)", gateway.peak_mib()?);
    println!("most memory of the gateway on {} keys: {:.0} MiB", options.keys, gateway_full.peak_mib()?);
    Ok(())
}

fn gateway(store: &Path, upstream: SocketAddr) -> Result<Process, Failure> {
    let binary = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into);
    let mut command = Command::new(binary.join("release").join("onceward"));
    command.args([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--admin-listen",
        "127.0.0.1:0",
        "--scope",
        "fixed:bench",
    ]);
    command.arg("--store").arg(format!("sqlite:{}", store.display()));
    command.arg("--upstream").arg(format!("http://{upstream}"));
    command.args(["--namespace", "bench", "--accept-identity-change"]);
    Process::start(&mut command)
}

impl Row {
    fn new(what: &'static str, to_reach: &'static str) -> Self {
        Self { what, to_reach, seen: Vec::new(), against: Vec::new() }
    }

    fn print(&self) {
        let of = |all: &[Seen], value: fn(&Seen) -> f64| median(all.iter().map(value).collect());
        let ratio = |value: fn(&Seen) -> f64| {
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
