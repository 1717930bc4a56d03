//! Lists that are long, large or crowded. The conformance suite covers ordinary ones.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::support::{applied, block_on, flush, submit};
use onceward::store::{Due, Filter, Page, Scan, Store, Which};
use onceward::{Record, RecordId, Reply, Timestamp, record::State};
use onceward_sqlite::{Options, SqliteStore};
use onceward_testkit::{VirtualClock, sample};

struct Fixture {
    store: SqliteStore,
    clock: Arc<VirtualClock>,
    _directory: tempfile::TempDir,
}

fn fixture() -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let clock = Arc::new(VirtualClock::standing_at(sample::START));
    let options = Options { clock: clock.clone(), ..Options::default() };
    let store = SqliteStore::open(directory.path().join("onceward.db"), options).unwrap();
    Fixture { store, clock, _directory: directory }
}

impl Fixture {
    /// Writes records with numbers from `from` on, all queued together, so that few commits are needed.
    fn put_all(&self, from: u64, records: impl IntoIterator<Item = Record>) -> Vec<RecordId> {
        let records: Vec<_> = (from..).map(sample::id).zip(records).collect();
        for some in records.chunks(1_000) {
            let mut waiting = Vec::new();
            for (id, record) in some {
                let mut call = self.store.swap(*id, None, record.clone());
                match submit(&mut call) {
                    Poll::Ready(answer) => {
                        applied(answer);
                    }
                    Poll::Pending => waiting.push(call),
                }
            }
            for call in waiting {
                applied(block_on(call));
            }
        }
        records.into_iter().map(|(id, _)| id).collect()
    }

    fn page(&self, which: &Which, after: Option<&Page>, limit: usize) -> Page {
        let after = after.and_then(|page| page.next.clone());
        block_on(self.store.scan(Scan { which: which.clone(), after, limit })).unwrap()
    }

    fn list(&self, which: &Which, limit: usize) -> Vec<RecordId> {
        let mut listed = Vec::new();
        let mut page = self.page(which, None, limit);
        loop {
            listed.extend(page.entries.iter().map(|entry| entry.id));
            if page.next.is_none() {
                return listed;
            }
            page = self.page(which, Some(&page), limit);
        }
    }
}

const EXPIRED: Which = Which::Due(Due::Expired);
/// The length of an expiry span in microseconds.
const SPAN: u64 = 1 << 30;

/// The beginning of the n-th span after the start.
fn span(n: u64) -> Timestamp {
    Timestamp::from_micros((sample::START.as_micros() / SPAN + 1 + n) * SPAN)
}

fn expiring(at: Timestamp) -> Record {
    sample::in_state("k", sample::failed_retryable(at))
}

#[test]
fn a_crowded_span_is_listed_when_it_is_over_and_loses_and_repeats_nothing() {
    let fixture = fixture();
    // Later claims expire earlier.
    let crowd = (0..2_500).map(|n| expiring(span(0).after(Duration::from_millis(2_500 - n))));
    let crowd = fixture.put_all(0, crowd);
    let before = fixture.put_all(10_000, [expiring(sample::START)]);
    let after = fixture.put_all(20_000, [5, 3, 4].map(|s| expiring(span(1).after(Duration::from_secs(s)))));

    fixture.clock.set(span(0).after(Duration::from_secs(10)));
    assert_eq!(fixture.list(&EXPIRED, 700), before, "the crowd waits for the end of its span");
    fixture.clock.set(span(2));
    for limit in [1_000, 700, usize::MAX] {
        let listed = fixture.list(&EXPIRED, limit);
        assert_eq!(listed[..1], before);
        assert_eq!(listed[1..=crowd.len()].iter().collect::<BTreeSet<_>>(), crowd.iter().collect());
        assert_eq!(listed[1 + crowd.len()..], [after[1], after[2], after[0]]);
    }
}

#[test]
fn a_page_is_bounded_in_rows_and_bytes_and_large_rows_still_come_one_by_one() {
    let fixture = fixture();
    let reply = Arc::new(Reply::new(vec![7; 3 << 20]));
    let large = State::Completed { reply, settled_at: sample::START, expires_at: sample::START };
    let ids = fixture.put_all(0, vec![sample::in_state("large", large); 5]);
    for which in [EXPIRED, Which::Filter(Filter::default())] {
        let page = fixture.page(&which, None, 100);
        assert_eq!(page.entries.len(), 2, "twice three mebibytes are more than four");
        assert!(page.next.is_some());
        assert_eq!(
            fixture.list(&which, 100).into_iter().collect::<BTreeSet<_>>(),
            ids.iter().copied().collect()
        );
    }
}

#[test]
fn a_search_through_many_rows_pauses_and_goes_on_where_it_was() {
    let fixture = fixture();
    let rows = 10_001;
    fixture.put_all(0, (0..rows).map(|_| expiring(Timestamp::NEVER)));
    // Later records come after them.
    flush(&fixture.store);
    let mut needle = expiring(Timestamp::NEVER);
    std::sync::Arc::make_mut(&mut needle.subject).route = "POST /needle".to_owned();
    let needle = fixture.put_all(rows, [needle]);
    let which = Which::Filter(Filter { route: Some("POST /needle".to_owned()), ..Filter::default() });
    let page = fixture.page(&which, None, 10);
    assert!(page.entries.is_empty() && page.next.is_some(), "ten thousand rows are examined for one page");
    assert_eq!(fixture.list(&which, 10), needle);
    assert_eq!(fixture.page(&Which::Filter(Filter::default()), None, usize::MAX).entries.len(), 1_000);
}
