//! Long random histories against the simplest thing that could be right: a map.

#![allow(missing_docs, reason = "a case says in its name what it demands")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use onceward::store::{Due, Filter, Stamped, Swapped, Version, Which};
use onceward::{
    Record, RecordId,
    record::{Letter, State, StateKind},
    store::Clock,
};

use super::Bench;
use crate::{Random, sample};

/// Few ids make many conflicts.
const IDS: u64 = 6;
const STEPS: u32 = 250;
const SEEDS: [u64; 3] = [1, 0x0ce0_ced0, 42];

#[derive(Default)]
struct Model {
    rows: BTreeMap<RecordId, Stamped>,
    /// Every version that an id ever had.
    given: BTreeSet<(RecordId, Version)>,
}

impl Model {
    fn version(&self, id: RecordId) -> Option<Version> {
        self.rows.get(&id).map(|stamped| stamped.version)
    }

    fn listed(&self, accepts: impl Fn(&Record) -> bool) -> BTreeSet<RecordId> {
        self.rows.iter().filter(|(_, stamped)| accepts(&stamped.record)).map(|(id, _)| *id).collect()
    }
}

pub async fn random_histories_agree_with_the_model(bench: Bench) {
    for seed in SEEDS {
        let mut random = Random::seeded(seed);
        let mut model = Model::default();
        for step in 0..STEPS {
            // The seed and the step are all that is needed to see a failure again.
            let context = format!("seed {seed:#x}, step {step}");
            play(&bench, &mut model, &mut random, &context).await;
        }
        let left: Vec<_> = model.rows.iter().map(|(id, stamped)| (*id, stamped.version)).collect();
        assert_eq!(bench.forget(&left).await, left.len(), "seed {seed:#x}, clearing up");
        assert_eq!(bench.listed(Which::Filter(Filter::default()), 10).await, []);
    }
}

async fn play(bench: &Bench, model: &mut Model, random: &mut Random, context: &str) {
    let id = sample::id(random.below(IDS));
    match random.below(10) {
        0..=4 => swap(bench, model, random, id, context).await,
        5..=6 => assert_eq!(bench.load(id).await.as_ref(), model.rows.get(&id), "{context}"),
        7 => forget(bench, model, random, id, context).await,
        8 => scan(bench, model, random, context).await,
        _ if random.once_in(4) => bench.clock.rewind(Duration::from_secs(random.below(10))),
        _ => bench.clock.advance(Duration::from_secs(random.below(30))),
    }
}

async fn swap(bench: &Bench, model: &mut Model, random: &mut Random, id: RecordId, context: &str) {
    let next = any_record(bench, random);
    let expect = match random.below(4) {
        0 => None,
        1 => Some(any_version(model, random)),
        _ => model.version(id),
    };
    match bench.swap(id, expect, &next).await {
        Swapped::Applied { version, .. } => {
            assert_eq!(expect, model.version(id), "{context}: applied at a version that is not current");
            assert!(model.version(id).is_none_or(|old| old < version), "{context}: the version did not rise");
            assert!(model.given.insert((id, version)), "{context}: the version {version} came back");
            model.rows.insert(id, Stamped { record: next, version });
        }
        Swapped::Conflict(seen) => {
            assert_ne!(expect, model.version(id), "{context}: a conflict at the current version");
            assert_eq!(seen.record.as_ref(), model.rows.get(&id), "{context}");
        }
    }
}

async fn forget(bench: &Bench, model: &mut Model, random: &mut Random, id: RecordId, context: &str) {
    let version = if random.once_in(2) {
        any_version(model, random)
    } else {
        model.version(id).unwrap_or(Version::from_number(1))
    };
    let present = model.version(id) == Some(version);
    assert_eq!(bench.forget(&[(id, version)]).await, usize::from(present), "{context}");
    if present {
        model.rows.remove(&id);
    }
}

async fn scan(bench: &Bench, model: &Model, random: &mut Random, context: &str) {
    let limit = usize::try_from(1 + random.below(4)).expect("it is at most four");
    let (which, expected) = if random.once_in(4) {
        let state = *random.pick(&StateKind::ALL);
        let filter = Filter { state: Some(state), ..Filter::default() };
        (Which::Filter(filter), model.listed(|record| record.state.kind() == state))
    } else {
        let due = *random.pick(&[Due::Leases, Due::Reconcile, Due::Expired]);
        let now = bench.clock.now();
        let is_due = |record: &Record| record.due().0 == due && record.due().1 <= now;
        (Which::Due(due), model.listed(is_due))
    };
    let listed = bench.listed(which.clone(), limit).await;
    assert_eq!(listed.len(), expected.len(), "{context}: {which:?}");
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), expected, "{context}: {which:?}");
}

/// A version that some id once had, or one that none had.
fn any_version(model: &Model, random: &mut Random) -> Version {
    let given: Vec<_> = model.given.iter().map(|(_, version)| *version).collect();
    if given.is_empty() || random.once_in(8) {
        Version::from_number(random.next())
    } else {
        *random.pick(&given)
    }
}

fn any_record(bench: &Bench, random: &mut Random) -> Record {
    let at = bench.clock.now().after(Duration::from_secs(random.below(40)));
    let states: [State; 6] = [
        sample::in_progress(at),
        sample::completed(at),
        sample::failed_retryable(at),
        sample::unknown(at, Letter::Live),
        sample::unknown(at, Letter::Dead),
        sample::expired(at),
    ];
    let (tag, state) = (random.next().to_string(), random.pick(&states).clone());
    if random.once_in(2) { sample::full(&tag, state) } else { sample::in_state(&tag, state) }
}
