//! One record at a time: reading, swapping and forgetting.

#![allow(missing_docs, reason = "a case says in its name what it demands")]

use std::sync::Arc;
use std::time::Duration;

use onceward::store::{Filter, Scan, Stamped, Swapped, Version, Which};
use onceward::{Timestamp, store::Clock};

use super::{Bench, conflict};
use crate::sample;

pub async fn an_id_that_was_never_written_is_absent(bench: Bench) {
    assert_eq!(bench.load(sample::id(1)).await, None);
    bench.put(sample::id(1), None, &sample::record("neighbour")).await;
    assert_eq!(bench.load(sample::id(2)).await, None);
}

pub async fn a_first_swap_is_applied_and_read_back_exactly(bench: Bench) {
    let at = sample::START.after(Duration::from_micros(1));
    for (n, state) in (0..).zip(sample::states(at)) {
        for (m, record) in
            (0..).zip([sample::in_state("plain", state.clone()), sample::full("full", state.clone())])
        {
            let id = sample::id(n * 2 + m);
            let version = bench.put(id, None, &record).await;
            assert_eq!(bench.load(id).await, Some(Stamped { record, version }), "{}", state.name());
        }
    }
}

pub async fn a_later_swap_replaces_every_field(bench: Bench) {
    let id = sample::id(1);
    let mut version = bench.put(id, None, &sample::record("first")).await;
    let mut records: Vec<_> =
        sample::states(sample::START).into_iter().map(|state| sample::full("later", state)).collect();
    // What was set must also be unset again.
    records.push(sample::record("last"));
    for record in records {
        version = bench.put(id, Some(version), &record).await;
        assert_eq!(bench.load(id).await, Some(Stamped { record, version }));
    }
}

pub async fn a_swap_that_expects_absence_meets_the_very_record_that_is_there(bench: Bench) {
    let id = sample::id(1);
    let record = sample::full("first", sample::completed(sample::START));
    let version = bench.put(id, None, &record).await;
    let stamped = Some(Stamped { record, version });
    let met = bench.swap(id, None, &sample::record("second")).await;
    assert_eq!(conflict(met), stamped);
    assert_eq!(bench.load(id).await, stamped, "the refused swap wrote all the same");
}

pub async fn a_swap_at_a_stale_version_meets_the_current_record(bench: Bench) {
    let id = sample::id(1);
    let first = bench.put(id, None, &sample::record("first")).await;
    let second = bench.put(id, Some(first), &sample::record("second")).await;
    let stamped = Some(Stamped { record: sample::record("second"), version: second });
    for stale in [first, Version::from_number(0), Version::from_number(u64::MAX)] {
        let met = bench.swap(id, Some(stale), &sample::record("third")).await;
        assert_eq!(conflict(met), stamped, "the stale version was {stale}");
    }
    assert_eq!(bench.load(id).await, stamped);
}

pub async fn a_swap_that_expects_a_record_meets_absence(bench: Bench) {
    let id = sample::id(1);
    for expect in [0, 1, u64::MAX] {
        let met = bench.swap(id, Some(Version::from_number(expect)), &sample::record("k")).await;
        assert_eq!(conflict(met), None);
        assert_eq!(bench.load(id).await, None, "the refused swap wrote all the same");
    }
}

pub async fn a_version_rises_with_every_write(bench: Bench) {
    let id = sample::id(1);
    let mut version = bench.put(id, None, &sample::record("k")).await;
    for _ in 0..10 {
        // The same content is a write too: a version counts writes, not differences.
        let next = bench.put(id, Some(version), &sample::record("k")).await;
        assert!(next > version, "{next} follows {version}");
        version = next;
    }
}

pub async fn a_version_never_comes_back_after_the_record_was_forgotten(bench: Bench) {
    let id = sample::id(1);
    let mut given = Vec::new();
    for _ in 0..5 {
        let first = bench.put(id, None, &sample::record("k")).await;
        let second = bench.put(id, Some(first), &sample::record("k")).await;
        given.extend([first, second]);
        assert_eq!(bench.forget(&[(id, second)]).await, 1);
    }
    let new = bench.put(id, None, &sample::record("k")).await;
    assert!(!given.contains(&new), "{new} was given before: {given:?}");
    for old in given {
        assert_eq!(bench.forget(&[(id, old)]).await, 0, "a sweeper that slept deleted a newer claim");
    }
    assert!(bench.load(id).await.is_some());
}

pub async fn forget_deletes_only_what_is_still_at_its_version_and_counts_it(bench: Bench) {
    let ids: Vec<_> = (0..4).map(sample::id).collect();
    let mut versions = Vec::new();
    for id in &ids {
        versions.push(bench.put(*id, None, &sample::record("k")).await);
    }
    let moved = bench.put(ids[1], Some(versions[1]), &sample::record("moved")).await;
    let asked = [
        (ids[0], versions[0]),
        // Twice the same is still one record.
        (ids[0], versions[0]),
        (ids[1], versions[1]),
        (ids[2], versions[2]),
        // The version of another record.
        (ids[3], versions[2]),
        (sample::id(99), versions[3]),
    ];
    assert_eq!(bench.forget(&asked).await, 2);
    assert_eq!(bench.load(ids[0]).await, None);
    assert_eq!(bench.load(ids[1]).await, Some(Stamped { record: sample::record("moved"), version: moved }));
    assert_eq!(bench.load(ids[2]).await, None);
    assert_eq!(bench.load(ids[3]).await, Some(Stamped { record: sample::record("k"), version: versions[3] }));
}

pub async fn forgetting_what_is_absent_is_no_error_and_counts_nothing(bench: Bench) {
    assert_eq!(bench.forget(&[]).await, 0);
    assert_eq!(bench.forget(&[(sample::id(1), Version::from_number(u64::MAX))]).await, 0);
}

pub async fn every_answer_tells_the_time_of_the_stores_clock(bench: Bench) {
    let id = sample::id(1);
    let tick = || {
        bench.clock.advance(Duration::from_micros(1_000_001));
        bench.clock.now()
    };
    let now = tick();
    assert_eq!(bench.seen(id).await.now, now, "load of nothing");
    let now = tick();
    let answered: Timestamp = match bench.swap(id, None, &sample::record("k")).await {
        Swapped::Applied { now, .. } => now,
        Swapped::Conflict(_) => panic!("a swap of a new id met a conflict"),
    };
    assert_eq!(answered, now, "applied");
    let now = tick();
    let answered = match bench.swap(id, None, &sample::record("k")).await {
        Swapped::Conflict(seen) => seen.now,
        Swapped::Applied { .. } => panic!("a second claim was applied"),
    };
    assert_eq!(answered, now, "conflict");
    let now = tick();
    assert_eq!(bench.seen(id).await.now, now, "load");
    let now = tick();
    let all = Scan { which: Which::Filter(Filter::default()), after: None, limit: 1 };
    assert_eq!(bench.store.scan(all).await.map(|page| page.now), Ok(now), "scan");
    // A wall clock is sometimes set back, and the store's answers follow it.
    bench.clock.rewind(Duration::from_secs(3600));
    assert_eq!(bench.seen(id).await.now, bench.clock.now());
}

pub async fn an_acknowledged_swap_is_seen_by_whoever_reads_next(bench: Bench) {
    let id = sample::id(1);
    let mut version = None;
    for n in 0..20 {
        let record = sample::record(&n.to_string());
        let applied = bench.put(id, version, &record).await;
        version = Some(applied);
        let store = Arc::clone(&bench.store);
        let seen =
            tokio::spawn(async move { store.load(id).await }).await.expect("the reader does not panic");
        let seen = seen.expect("a healthy store loads").record;
        assert_eq!(seen, Some(Stamped { record, version: applied }));
    }
}

pub async fn reads_leave_records_as_they_are(bench: Bench) {
    let id = sample::id(1);
    let record = sample::full("k", sample::completed(sample::START));
    let version = bench.put(id, None, &record).await;
    bench.clock.advance(Duration::from_secs(100 * 24 * 3600));
    for _ in 0..3 {
        assert_eq!(bench.load(id).await, Some(Stamped { record: record.clone(), version }));
        assert_eq!(bench.listed(Which::Due(onceward::store::Due::Expired), 10).await, [id]);
        assert_eq!(bench.listed(Which::Filter(Filter::default()), 10).await, [id]);
        conflict(bench.swap(id, None, &sample::record("other")).await);
    }
    assert_eq!(bench.load(id).await, Some(Stamped { record, version }));
}
