//! Measurements, each beside the limit that it is judged by. Figures are ratios within one run: machines are noisy.

mod fingerprint;
mod gateway;
mod postgres;
mod replays;
pub mod store;

use crate::Done;
use crate::shell::{cargo, run as run_command};

/// What can be measured.
#[derive(clap::Subcommand)]
pub enum Subject {
    /// The embedded store against the disk's own limit, replays from memory, and fingerprints against a bare hash.
    Store(StoreArguments),
    /// The gateway against the least proxy that hyper makes.
    Gateway(gateway::Options),
    /// This build of the gateway against another one: what a change costs.
    Compare(gateway::compare::Options),
    /// The gateway on PostgreSQL: batches against single statements, and Redis in front.
    Postgres(postgres::Options),
    /// What stands around the gateway in its measurement.
    #[command(subcommand, hide = true)]
    Peer(gateway::peers::Peer),
}

#[derive(clap::Args)]
pub struct StoreArguments {
    /// Keys in the store that is compared with an empty one.
    #[arg(long, default_value_t = 2_000_000)]
    keys: u64,
    /// How often everything is measured; the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Numbers of concurrent callers.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64, 256])]
    callers: Vec<u64>,
}

pub fn run(subject: &Subject) -> Done {
    if cfg!(debug_assertions) {
        // Only optimised code is worth measuring: the same command again, as a release build.
        let again: Vec<String> = std::env::args().skip(1).collect();
        let mut command = cargo(&["run", "--quiet", "--release", "--package", "xtask", "--"]);
        return run_command(command.args(again));
    }
    match subject {
        Subject::Store(arguments) => {
            fingerprint::run()?;
            replays::run()?;
            store::run(&store::Options {
                keys: arguments.keys,
                rounds: arguments.rounds,
                callers: arguments.callers.clone(),
                ..store::Options::default()
            })
        }
        Subject::Gateway(options) => gateway::run(options),
        Subject::Compare(options) => gateway::compare::run(options),
        Subject::Postgres(options) => postgres::run(options),
        Subject::Peer(peer) => gateway::peers::run(peer),
    }
}

/// The middle one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
