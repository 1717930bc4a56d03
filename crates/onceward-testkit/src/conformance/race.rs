//! Concurrent calls, which show whether a store is atomic.

#![allow(missing_docs, reason = "a case says in its name what it demands")]

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use onceward::store::{Stamped, Swapped};
use onceward::{Record, RecordId};
use tokio::task::JoinSet;

use super::{Bench, conflict};
use crate::sample;

/// Enough for every batch and lock in a driver to be contended, and quick on any machine.
const CONTENDERS: u64 = 64;

/// Swaps that expect absence, each in a task of its own.
async fn claims(bench: &Bench, claims: Vec<(RecordId, Record)>) -> Vec<(Record, Swapped)> {
    let mut tasks = JoinSet::new();
    for (id, record) in claims {
        let store = Arc::clone(&bench.store);
        tasks.spawn(async move {
            let swapped = store.swap(id, None, record.clone()).await.expect("a healthy store swaps");
            (record, swapped)
        });
    }
    tasks.join_all().await
}

pub async fn of_many_concurrent_swaps_of_one_id_exactly_one_is_applied(bench: Bench) {
    for round in 0..4 {
        let id = sample::id(round);
        let answers =
            claims(&bench, (0..CONTENDERS).map(|n| (id, sample::record(&n.to_string()))).collect()).await;
        let winners: Vec<_> = answers
            .iter()
            .filter_map(|(record, swapped)| match swapped {
                Swapped::Applied { version, .. } => {
                    Some(Stamped { record: record.clone(), version: *version })
                }
                Swapped::Conflict(_) => None,
            })
            .collect();
        let [winner] = winners.as_slice() else {
            panic!("{} of {CONTENDERS} swaps were applied", winners.len());
        };
        for (_, swapped) in answers {
            if let Swapped::Conflict(seen) = swapped {
                assert_eq!(seen.record.as_ref(), Some(winner), "a loser was not shown the winner");
            }
        }
        assert_eq!(bench.load(id).await.as_ref(), Some(winner));
    }
}

pub async fn concurrent_swaps_of_different_ids_are_all_applied(bench: Bench) {
    let all: Vec<_> = (0..CONTENDERS).map(|n| (sample::id(n), sample::record(&n.to_string()))).collect();
    for (record, swapped) in claims(&bench, all.clone()).await {
        assert!(matches!(swapped, Swapped::Applied { .. }), "{:?} was not applied", record.subject.key);
    }
    for (id, record) in all {
        assert_eq!(bench.load(id).await.map(|stamped| stamped.record), Some(record));
    }
}

pub async fn two_swaps_of_one_id_that_wait_together_have_one_winner(bench: Bench) {
    let id = sample::id(1);
    // One task polls both before either can end, so a store that commits in groups has both in one group.
    let (first, second) = tokio::join!(
        bench.store.swap(id, None, sample::record("first")),
        bench.store.swap(id, None, sample::record("second")),
    );
    let (version, record, lost) = match (first.unwrap(), second.unwrap()) {
        (Swapped::Applied { version, .. }, lost) => (version, sample::record("first"), lost),
        (lost, Swapped::Applied { version, .. }) => (version, sample::record("second"), lost),
        (Swapped::Conflict(_), Swapped::Conflict(_)) => panic!("both swaps lost"),
    };
    let winner = Some(Stamped { record, version });
    assert_eq!(conflict(lost), winner);
    assert_eq!(bench.load(id).await, winner);
}

pub async fn swaps_that_wait_together_each_get_their_own_answer(bench: Bench) {
    let (old, new) = (sample::id(1), sample::id(2));
    let first = bench.put(old, None, &sample::record("old")).await;
    let (stale, fresh, renewed, absent) = tokio::join!(
        bench.store.swap(old, None, sample::record("stale")),
        bench.store.swap(new, None, sample::record("fresh")),
        bench.store.swap(old, Some(first), sample::record("renewed")),
        bench.store.swap(sample::id(3), Some(first), sample::record("absent")),
    );
    let Swapped::Applied { version: fresh, .. } = fresh.unwrap() else { panic!("the fresh id was taken") };
    let Swapped::Applied { version: renewed, .. } = renewed.unwrap() else { panic!("the version had moved") };
    let met = conflict(stale.unwrap()).expect("the id was taken before");
    // Which of the two it meets is the store's choice of order; a mixture of both is not.
    assert!(
        [("old", first), ("renewed", renewed)].contains(&(met.record.subject.key.as_str(), met.version)),
        "met {met:?}"
    );
    assert_eq!(conflict(absent.unwrap()), None);
    let expected = Stamped { record: sample::record("renewed"), version: renewed };
    assert_eq!(bench.load(old).await, Some(expected));
    let expected = Stamped { record: sample::record("fresh"), version: fresh };
    assert_eq!(bench.load(new).await, Some(expected));
    assert_eq!(bench.load(sample::id(3)).await, None);
}

pub async fn of_a_racing_swap_and_forget_exactly_one_takes_place(bench: Bench) {
    for round in 0..16 {
        let id = sample::id(round);
        let version = bench.put(id, None, &sample::record("swept")).await;
        let swapper = Arc::clone(&bench.store);
        let claimed =
            tokio::spawn(async move { swapper.swap(id, Some(version), sample::record("claimed")).await });
        let forgotten = bench.forget(&[(id, version)]).await;
        match (claimed.await.expect("the claim does not panic").unwrap(), forgotten) {
            (Swapped::Applied { version, .. }, 0) => {
                let stamped = Stamped { record: sample::record("claimed"), version };
                assert_eq!(bench.load(id).await, Some(stamped));
            }
            (Swapped::Conflict(seen), 1) => {
                assert_eq!(seen.record, None);
                assert_eq!(bench.load(id).await, None);
            }
            (swapped, forgotten) => panic!("the swap was {swapped:?}, and {forgotten} were forgotten"),
        }
    }
}

pub async fn concurrent_increments_are_never_lost(bench: Bench) {
    const EACH: u32 = 8;
    const COUNTERS: u32 = 8;
    let id = sample::id(1);
    bench.put(id, None, &Record { attempt: 0, ..sample::record("count") }).await;
    let mut tasks = JoinSet::new();
    for _ in 0..COUNTERS {
        let store = Arc::clone(&bench.store);
        tasks.spawn(async move {
            let mut seen = store.load(id).await.unwrap().record.expect("it was written");
            let mut left = EACH;
            while left > 0 {
                let next = Record { attempt: seen.record.attempt + 1, ..seen.record };
                match store.swap(id, Some(seen.version), next.clone()).await.unwrap() {
                    Swapped::Applied { version, .. } => {
                        seen = Stamped { record: next, version };
                        left -= 1;
                    }
                    Swapped::Conflict(now) => seen = now.record.expect("it is never forgotten"),
                }
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(bench.load(id).await.map(|stamped| stamped.record.attempt), Some(EACH * COUNTERS));
}

pub async fn a_swap_dropped_midway_leaves_the_old_record_or_the_new_one(bench: Bench) {
    for round in 0..16 {
        let id = sample::id(round);
        let version = bench.put(id, None, &sample::record("old")).await;
        {
            let mut swap = pin!(bench.store.swap(id, Some(version), sample::record("dropped")));
            let mut context = Context::from_waker(Waker::noop());
            let _ = swap.as_mut().poll(&mut context);
        }
        let seen = bench.load(id).await.expect("the old record does not vanish").record.subject.key.clone();
        assert!(["old", "dropped"].contains(&seen.as_str()), "{seen}");
        // The next swap learns which of the two it was, and that stays so.
        let last = match bench.swap(id, Some(version), &sample::record("next")).await {
            Swapped::Applied { version, .. } => Stamped { record: sample::record("next"), version },
            Swapped::Conflict(seen) => seen.record.expect("the dropped swap does not delete"),
        };
        assert!(["dropped", "next"].contains(&last.record.subject.key.as_str()), "{last:?}");
        assert_eq!(bench.load(id).await, Some(last));
    }
    let all = bench.listed(onceward::store::Which::Filter(onceward::store::Filter::default()), 100).await;
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 16);
}
