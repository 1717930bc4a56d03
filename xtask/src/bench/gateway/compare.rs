//! Two builds of the gateway against each other: what a change costs.

use std::path::PathBuf;
use std::process::Command;

use super::load::{LoadResult, Workload, load};
use super::side_by_side::{Process, built_gateway, gateway_of};
use crate::bench::median;
use crate::shell::{cargo, run as run_command};
use crate::{Done, test};

#[derive(clap::Args)]
pub struct Options {
    /// The other build's program, for example of the commit before a change.
    #[arg(long)]
    former: PathBuf,
    /// Seconds that each load lasts. Short loads in many rounds even out a noisy machine.
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    /// How often both are measured; the median of the ratios counts.
    #[arg(long, default_value_t = 9)]
    rounds: u32,
}

const WORKLOADS: [(Workload, &str); 3] =
    [(Workload::Unkeyed, "without a key"), (Workload::NewKeys, "new keys"), (Workload::Replays, "replays")];

pub fn run(options: &Options) -> Done {
    test::install_missing(&[test::WRK])?;
    run_command(&mut cargo(&["build", "--quiet", "--release", "--package", "onceward-gateway"]))?;
    let folder = tempfile::tempdir()?;
    let xtask = std::env::current_exe()?;
    let upstream = Process::start(Command::new(&xtask).args(["bench", "peer", "upstream"]))?;
    let store = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
    let this = gateway_of(&built_gateway(), &store("this.db"), upstream.address, &[])?;
    let former = gateway_of(&options.former, &store("former.db"), upstream.address, &[])?;

    let mut ratios: [Vec<(f64, f64)>; 3] = Default::default();
    for round in 0..options.rounds {
        for (part, (workload, _)) in (0..).zip(WORKLOADS) {
            let measure = |process: &Process| {
                load(process.address, workload, options.seconds, round * 10 + part, folder.path())
            };
            // Each goes first in every other round, so that what the one leaves behind meets both.
            let (now, before): (LoadResult, LoadResult) = if round % 2 == 0 {
                (measure(&this)?, measure(&former)?)
            } else {
                let before = measure(&former)?;
                (measure(&this)?, before)
            };
            if let Some(of_workload) = ratios.get_mut(part as usize) {
                of_workload.push((now.per_second / before.per_second, now.p99_ms / before.p99_ms));
            }
        }
        println!("round {} of {} done", round + 1, options.rounds);
    }

    println!("\nthis build against the former one, {} s each, {} rounds", options.seconds, options.rounds);
    println!("\n| requests | requests a second: median ratio | lowest to highest | p99: median ratio |");
    println!("| --- | ---: | ---: | ---: |");
    for ((_, name), ratios) in WORKLOADS.iter().zip(&ratios) {
        let rates = || ratios.iter().map(|(rate, _)| *rate);
        println!(
            "| {name} | {:.3} | {:.2} to {:.2} | {:.2} |",
            median(rates().collect()),
            rates().fold(f64::INFINITY, f64::min),
            rates().fold(0.0, f64::max),
            median(ratios.iter().map(|(_, p99)| *p99).collect()),
        );
    }
    println!("\nmost memory: {:.0} MiB, the former {:.0} MiB", this.peak_mib()?, former.peak_mib()?);
    Ok(())
}
