//! Records that cannot be read. Taking one for absent would execute its operation a second time.

#![allow(missing_docs, reason = "a case says in its name what it demands")]

use std::time::Duration;

use onceward::RecordId;
use onceward::store::{Due, Filter, Stamped, StoreError, Swapped, Version, Which};

use super::Bench;
use crate::sample;

async fn damaged(bench: &Bench, id: RecordId) -> Version {
    let version = bench.put(id, None, &sample::in_state("damaged", sample::completed(sample::START))).await;
    bench.damage(id).await;
    version
}

/// Fails unless the answer names the unreadable record and the version to replace it with.
#[track_caller]
fn unreadable<T: std::fmt::Debug>(answer: Result<T, StoreError>, id: RecordId, version: Version) {
    match answer {
        Err(StoreError::Unreadable { id: found, version: at, .. }) => assert_eq!((found, at), (id, version)),
        other => panic!("an unreadable record got {other:?}"),
    }
}

pub async fn a_damaged_record_is_unreadable_and_never_absent(bench: Bench) {
    let version = damaged(&bench, sample::id(1)).await;
    unreadable(bench.store.load(sample::id(1)).await, sample::id(1), version);
}

pub async fn a_damaged_record_is_not_claimed_anew(bench: Bench) {
    let id = sample::id(1);
    let version = damaged(&bench, id).await;
    for expect in [None, Some(Version::from_number(version.as_number() + 1))] {
        let answer = bench.store.swap(id, expect, sample::record("new")).await;
        unreadable(answer, id, version);
    }
    unreadable(bench.store.load(id).await, id, version);
}

pub async fn a_damaged_record_can_be_replaced_or_forgotten_at_its_version(bench: Bench) {
    let (replaced, forgotten) = (sample::id(1), sample::id(2));
    let version = damaged(&bench, replaced).await;
    let next = sample::record("resolved");
    let swapped = bench.store.swap(replaced, Some(version), next.clone()).await;
    let Ok(Swapped::Applied { version, .. }) = swapped else { panic!("it cannot be replaced: {swapped:?}") };
    assert_eq!(bench.load(replaced).await, Some(Stamped { record: next, version }));
    let version = damaged(&bench, forgotten).await;
    assert_eq!(bench.forget(&[(forgotten, version)]).await, 1);
    assert_eq!(bench.load(forgotten).await, None);
}

pub async fn a_damaged_record_is_listed_and_does_not_hide_its_neighbours(bench: Bench) {
    let version = damaged(&bench, sample::id(2)).await;
    for n in [1, 3] {
        bench.put(sample::id(n), None, &sample::in_state("k", sample::completed(sample::START))).await;
    }
    bench.clock.advance(Duration::from_secs(1));
    let listed = bench.listed(Which::Due(Due::Expired), 2).await;
    assert!(listed.contains(&sample::id(1)) && listed.contains(&sample::id(3)), "{listed:?}");
    let pages = bench.pages(Which::Filter(Filter::default()), 2).await;
    let entries: Vec<_> = pages.into_iter().flat_map(|page| page.entries).collect();
    assert_eq!(entries.len(), 3);
    for entry in entries {
        assert_eq!(entry.record.is_err(), entry.id == sample::id(2), "{:?}", entry.record);
        if entry.record.is_err() {
            assert_eq!(entry.version, version, "its version is known all the same");
        }
    }
}
