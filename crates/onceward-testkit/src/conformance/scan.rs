//! Lists: what is due, and what an operator asks for.

#![allow(missing_docs, reason = "a case says in its name what it demands")]

use std::collections::BTreeSet;
use std::time::Duration;

use onceward::store::{Cursor, Due, Filter, Scan, StoreError, Which};
use onceward::{
    Record, RecordId, Timestamp,
    record::{Letter, State, StateKind, Subject},
    store::Clock,
};

use super::Bench;
use crate::sample;

const MICROSECOND: Duration = Duration::from_micros(1);

/// Makes a state whose time comes then.
type StateDue = fn(Timestamp) -> State;

/// Each kind of due record.
const KINDS: [(Due, StateDue); 4] = [
    (Due::Leases, sample::in_progress),
    (Due::Reconcile, |at| sample::unknown(at, Letter::Live)),
    (Due::Expired, sample::completed),
    (Due::Expired, sample::failed_retryable),
];

fn seconds(count: u64) -> Timestamp {
    sample::START.after(Duration::from_secs(count))
}

pub async fn each_due_scan_lists_its_own_kind(bench: Bench) {
    for due in [Due::Leases, Due::Reconcile, Due::Expired] {
        assert_eq!(bench.listed(Which::Due(due), 10).await, [], "an empty store has nothing due");
    }
    for (n, (_, state)) in (0..).zip(KINDS) {
        bench.put(sample::id(n), None, &sample::in_state("k", state(seconds(n)))).await;
    }
    bench.clock.set(seconds(10));
    assert_eq!(bench.listed(Which::Due(Due::Leases), 10).await, [sample::id(0)]);
    assert_eq!(bench.listed(Which::Due(Due::Reconcile), 10).await, [sample::id(1)]);
    assert_eq!(bench.listed(Which::Due(Due::Expired), 10).await, [sample::id(2), sample::id(3)]);
}

pub async fn what_is_due_exactly_now_is_listed_and_a_microsecond_later_is_not(bench: Bench) {
    for (n, (due, state)) in (0..).zip(KINDS) {
        let (id, at) = (sample::id(n), seconds(100 * (n + 1)));
        bench.put(id, None, &sample::in_state("k", state(at))).await;
        bench.clock.set(at);
        bench.clock.rewind(MICROSECOND);
        assert!(!bench.listed(Which::Due(due), 10).await.contains(&id), "{due:?} a microsecond too early");
        bench.clock.set(at);
        assert!(bench.listed(Which::Due(due), 10).await.contains(&id), "{due:?} exactly on time");
    }
}

pub async fn dead_letters_and_soft_expired_records_are_never_due(bench: Bench) {
    let states = [
        sample::unknown(sample::START, Letter::Dead),
        sample::expired(sample::START),
        State::Expired { status: None, expires_at: Timestamp::from_micros(0) },
    ];
    for (n, state) in (0..).zip(states) {
        bench.put(sample::id(n), None, &sample::in_state("k", state)).await;
    }
    // A century on.
    bench.clock.advance(Duration::from_secs(100 * 366 * 24 * 3600));
    for due in [Due::Leases, Due::Reconcile, Due::Expired] {
        assert_eq!(bench.listed(Which::Due(due), 10).await, [], "{due:?}");
    }
    assert_eq!(bench.listed(Which::Filter(Filter::default()), 10).await.len(), 3);
}

pub async fn the_longest_overdue_comes_first(bench: Bench) {
    // Written in an order that is neither that of the times nor that of the ids.
    let order = [4, 1, 5, 0, 3, 2];
    for (due, state) in KINDS {
        let mut versions = Vec::new();
        for n in order {
            let id = sample::id(n);
            versions.push((id, bench.put(id, None, &sample::in_state("k", state(seconds(n)))).await));
        }
        bench.clock.set(seconds(4));
        for limit in [1, 2, 10] {
            let expected: Vec<_> = (0..=4).map(sample::id).collect();
            assert_eq!(bench.listed(Which::Due(due), limit).await, expected, "{due:?} by {limit}");
        }
        assert_eq!(bench.forget(&versions).await, order.len());
    }
}

/// Fifty records of which each five are due at the same time, so that pages end between equals.
async fn fifty_due(bench: &Bench, state: StateDue) -> BTreeSet<RecordId> {
    for n in 0..50 {
        bench.put(sample::id(n), None, &sample::in_state("k", state(seconds(n / 5)))).await;
    }
    bench.clock.set(seconds(100));
    (0..50).map(sample::id).collect()
}

#[track_caller]
fn each_once(listed: Vec<RecordId>, expected: &BTreeSet<RecordId>) {
    let set: BTreeSet<_> = listed.iter().copied().collect();
    assert_eq!(set.len(), listed.len(), "something was listed twice");
    assert_eq!(&set, expected, "something was lost, or does not belong there");
}

pub async fn pages_of_due_records_lose_and_repeat_nothing(bench: Bench) {
    let expected = fifty_due(&bench, |at| sample::unknown(at, Letter::Live)).await;
    for limit in [1, 3, 5, 7, 49, 50, 51] {
        each_once(bench.listed(Which::Due(Due::Reconcile), limit).await, &expected);
    }
}

pub async fn a_sweeper_that_changes_what_it_lists_still_meets_every_record(bench: Bench) {
    let expected = fifty_due(&bench, sample::in_progress).await;
    let mut met = Vec::new();
    let mut after = None;
    for _ in 0..expected.len() {
        let scan = Scan { which: Which::Due(Due::Leases), after, limit: 7 };
        let page = bench.store.scan(scan).await.unwrap();
        for (n, entry) in page.entries.iter().enumerate() {
            met.push(entry.id);
            if n % 2 == 0 {
                assert_eq!(bench.forget(&[(entry.id, entry.version)]).await, 1);
            } else {
                let lost = sample::in_state("k", sample::unknown(bench.clock.now(), Letter::Live));
                bench.put(entry.id, Some(entry.version), &lost).await;
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    each_once(met, &expected);
    assert_eq!(bench.listed(Which::Due(Due::Leases), 10).await, []);
}

pub async fn a_due_scan_follows_what_a_swap_changed(bench: Bench) {
    let id = sample::id(1);
    bench.clock.set(seconds(10));
    let leases = || bench.listed(Which::Due(Due::Leases), 10);
    let version = bench.put(id, None, &sample::in_state("k", sample::in_progress(seconds(5)))).await;
    assert_eq!(leases().await, [id]);
    let renewed = sample::in_state("k", sample::in_progress(seconds(50)));
    let version = bench.put(id, Some(version), &renewed).await;
    assert_eq!(leases().await, [], "a renewed lease has not lapsed");
    let version = bench.put(id, Some(version), &sample::in_state("k", sample::completed(seconds(9)))).await;
    assert_eq!(leases().await, [], "a completed record has no lease");
    assert_eq!(bench.listed(Which::Due(Due::Expired), 10).await, [id]);
    let sooner = sample::in_state("k", sample::in_progress(seconds(7)));
    let version = bench.put(id, Some(version), &sooner).await;
    assert_eq!(leases().await, [id]);
    assert_eq!(bench.listed(Which::Due(Due::Expired), 10).await, []);
    assert_eq!(bench.forget(&[(id, version)]).await, 1);
    assert_eq!(leases().await, [], "a forgotten record is still due");
}

/// One record for each combination of state, letter, route, scope and age.
fn combinations() -> Vec<(RecordId, Record)> {
    let mut all = Vec::new();
    for state in [
        sample::in_progress(seconds(60)),
        sample::completed(seconds(60)),
        sample::failed_retryable(seconds(60)),
        sample::unknown(seconds(60), Letter::Live),
        sample::unknown(seconds(60), Letter::Dead),
        sample::expired(seconds(60)),
    ] {
        for route in ["POST /payments", "POST /PAYMENTS"] {
            for scope in ["acme", "acme,eu"] {
                for created in [5, 6] {
                    let subject = Subject {
                        scope: scope.into(),
                        key: "k".into(),
                        route: route.into(),
                        ..Subject::default()
                    };
                    let record = sample::in_state("k", state.clone());
                    let number = u64::try_from(all.len()).expect("there are forty-eight");
                    all.push((
                        sample::id(number),
                        Record { subject: subject.into(), created_at: seconds(created), ..record },
                    ));
                }
            }
        }
    }
    all
}

/// Every filter there can be over the combinations, matching and not.
fn filters() -> Vec<Filter> {
    let states = std::iter::once(None).chain(StateKind::ALL.map(Some));
    let mut all = Vec::new();
    for (state, letter) in states.flat_map(|state| LETTERS.map(|letter| (state, letter))) {
        for route in [None, Some("POST /payments"), Some("POST /pay")] {
            for scope in [None, Some("acme"), Some("acme,eu"), Some("ACME")] {
                for created_before in [None, Some(seconds(5)), Some(seconds(6)), Some(seconds(7))] {
                    all.push(Filter {
                        state,
                        letter,
                        route: route.map(str::to_owned),
                        scope: scope.map(str::to_owned),
                        created_before,
                    });
                }
            }
        }
    }
    all
}

const LETTERS: [Option<Letter>; 3] = [None, Some(Letter::Live), Some(Letter::Dead)];

pub async fn a_filter_lists_what_agrees_with_every_field_given(bench: Bench) {
    let records = combinations();
    for (id, record) in &records {
        bench.put(*id, None, record).await;
    }
    let agrees = |filter: &Filter, record: &Record| {
        let is_dead = matches!(record.state, State::Unknown { letter: Letter::Dead, .. });
        filter.state.is_none_or(|state| state == record.state.kind())
            && filter.letter.is_none_or(|letter| (letter == Letter::Dead) == is_dead)
            && filter.route.as_deref().is_none_or(|route| route == record.subject.route)
            && filter.scope.as_deref().is_none_or(|scope| scope == record.subject.scope)
            && filter.created_before.is_none_or(|before| before > record.created_at)
    };
    for filter in filters() {
        let expected =
            records.iter().filter(|(_, record)| agrees(&filter, record)).map(|(id, _)| *id).collect();
        each_once(bench.listed(Which::Filter(filter), 64).await, &expected);
    }
}

pub async fn pages_of_filtered_records_lose_and_repeat_nothing(bench: Bench) {
    for (id, record) in combinations() {
        bench.put(id, None, &record).await;
    }
    let states = [None, Some(StateKind::Unknown)];
    for (state, letter) in states.into_iter().flat_map(|state| LETTERS.map(|letter| (state, letter))) {
        let filter = Filter { state, letter, ..Filter::default() };
        let expected =
            combinations().iter().filter(|(_, record)| filter.accepts(record)).map(|(id, _)| *id).collect();
        for limit in [1, 3, 8, 47, 48, 49] {
            each_once(bench.listed(Which::Filter(filter.clone()), limit).await, &expected);
        }
    }
}

pub async fn a_cursor_that_the_store_never_gave_is_refused(bench: Bench) {
    bench.put(sample::id(1), None, &sample::record("k")).await;
    bench.clock.advance(Duration::from_secs(3600));
    for which in [Which::Due(Due::Leases), Which::Filter(Filter::default())] {
        for bytes in [&b""[..], b"xyz", &[0xff; 300]] {
            let after = Some(Cursor::from_bytes(bytes));
            let answer = bench.store.scan(Scan { which: which.clone(), after, limit: 10 }).await;
            assert!(
                matches!(answer, Err(StoreError::Refused { .. })),
                "a cursor of {} bytes got {answer:?}",
                bytes.len()
            );
        }
    }
}

pub async fn a_limit_of_nothing_lists_nothing_and_a_limit_of_one_lists_one(bench: Bench) {
    fifty_due(&bench, sample::completed).await;
    for which in [Which::Due(Due::Expired), Which::Filter(Filter::default())] {
        let page = |limit| bench.store.scan(Scan { which: which.clone(), after: None, limit });
        let none = page(0).await.unwrap();
        assert_eq!((none.entries.len(), none.next), (0, None), "a page of nothing leads nowhere");
        let one = page(1).await.unwrap();
        assert_eq!(one.entries.len(), 1);
        assert!(one.next.is_some(), "there are more, and the page does not say where");
        let many = page(usize::MAX).await.unwrap();
        assert!(!many.entries.is_empty(), "a limit without end is a limit all the same");
    }
}
