//! The gateway against the least proxy, in one run on one machine.

pub mod compare;
pub mod load;
pub mod peers;
pub mod side_by_side;

use std::process::Command;

use self::load::{Workload, load};
use self::side_by_side::{Process, Row, gateway, print};
use super::store::preload_file;
use crate::shell::{cargo, run as run_command};
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

pub fn run(options: &Options) -> Done {
    test::install_missing(&[test::WRK])?;
    run_command(&mut cargo(&["build", "--quiet", "--release", "--package", "onceward-gateway"]))?;
    let folder = tempfile::tempdir()?;
    let xtask = std::env::current_exe()?;
    let upstream = Process::start(Command::new(&xtask).args(["bench", "peer", "upstream"]))?;
    let address = upstream.address.to_string();
    let proxy = Process::start(Command::new(&xtask).args(["bench", "peer", "proxy", &address]))?;
    let sqlite = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
    let gateway = gateway(&sqlite("empty.db"), upstream.address, &[])?;

    let full = folder.path().join("full.db");
    println!("storing {} keys", options.keys);
    preload_file(&full, options.keys)?;
    let gateway_full = side_by_side::gateway(&sqlite("full.db"), upstream.address, &[])?;

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
    print(&[&unkeyed, &new_keys, &replays, &full_keys], options.seconds, options.rounds);
    println!("\nmost memory of the gateway: {:.0} MiB (to reach: 150)", gateway.peak_mib()?);
    println!("most memory of the gateway on {} keys: {:.0} MiB", options.keys, gateway_full.peak_mib()?);
    Ok(())
}
