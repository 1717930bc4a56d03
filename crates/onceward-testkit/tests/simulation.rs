//! The simulator holds every invariant, repeats itself, and finds every bug that is put in.
#![expect(clippy::panic, reason = "these are tests")]

use onceward_testkit::sim::{Mutant, Trace, campaign, history};

/// How many histories, unless `ONCEWARD_SIM_SEEDS` says otherwise.
const SEEDS: u64 = 20_000;
/// A bug that hides in this many histories is one that the simulator does not find.
const SEEDS_PER_BUG: u64 = 3_000;

fn seeds() -> u64 {
    let asked = std::env::var("ONCEWARD_SIM_SEEDS").ok();
    asked.map_or(SEEDS, |text| {
        text.parse().unwrap_or_else(|_| panic!("ONCEWARD_SIM_SEEDS={text} is no number"))
    })
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

#[test]
fn twenty_thousand_histories_break_no_rule_and_reach_every_interesting_place() {
    let campaign = campaign(0..seeds(), Mutant::None, threads()).unwrap();
    println!("{campaign}");
    assert_eq!(campaign.objection(), None, "replay it with `cargo xtask sim --seed N`");
}

#[test]
fn the_same_seed_makes_the_same_history() {
    for seed in 0..200 {
        let (first, second) = (
            history(seed, Mutant::None, Trace::On).unwrap(),
            history(seed, Mutant::None, Trace::On).unwrap(),
        );
        assert_eq!(first.trace, second.trace, "seed {seed}");
    }
}

#[test]
fn every_bug_that_is_put_in_is_found_by_the_rule_that_is_there_for_it() {
    for mutant in Mutant::ALL {
        let rule = mutant.found_by();
        let found = (0..SEEDS_PER_BUG).find_map(|seed| {
            let violations = history(seed, mutant, Trace::Off).unwrap().violations;
            violations.into_iter().find(|broken| Some(broken.rule) == rule).map(|broken| (seed, broken))
        });
        let (seed, broken) = found.unwrap_or_else(|| panic!("{mutant:?} was not found by {rule:?}"));
        println!("{mutant:?} is found in seed {seed}: {broken}");
    }
}
