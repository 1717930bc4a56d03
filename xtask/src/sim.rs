//! Simulated histories: as many as asked for, or one again.

use onceward_testkit::sim::{Mutant, Trace, campaign, history};

use crate::Done;

#[derive(clap::Args)]
pub struct Options {
    /// Replays this seed and prints everything that happens in it.
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// How many histories to play.
    #[arg(long, default_value_t = 20_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Puts a bug in, to see it found: for example `LapseReexecutes`.
    #[arg(long, value_parser = parse_mutant)]
    mutant: Option<Mutant>,
}

fn parse_mutant(name: &str) -> Result<Mutant, String> {
    let names = || Mutant::ALL.map(|mutant| format!("{mutant:?}")).join(", ");
    Mutant::ALL
        .into_iter()
        .find(|mutant| format!("{mutant:?}") == name)
        .ok_or_else(|| format!("there is no bug {name:?}; there are {}", names()))
}

pub fn run(options: &Options) -> Done {
    let mutant = options.mutant.unwrap_or(Mutant::None);
    if let Some(seed) = options.seed {
        let history = history(seed, mutant, Trace::On)?;
        for line in &history.trace {
            println!("{line}");
        }
        if let Some(first) = history.violations.first() {
            return Err(format!("seed {seed} broke a rule: {first}").into());
        }
        println!("seed {seed} broke no rule");
        return Ok(());
    }
    let threads = std::thread::available_parallelism()?.into();
    let campaign = campaign(options.from..options.from.saturating_add(options.seeds), mutant, threads)?;
    print!("{campaign}");
    match campaign.objection() {
        Some(objection) => Err(objection.into()),
        None => Ok(()),
    }
}
