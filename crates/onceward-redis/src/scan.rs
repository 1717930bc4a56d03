//! Scans, one bounded page at a time, from the sorted sets of all buckets.
//!
//! Due records are merged over all buckets, the longest overdue first. An operator's list goes bucket by bucket.

use futures_util::future::{join_all, try_join_all};
use onceward::store::driver::PageBudget;
use onceward::store::{Entry, Filter, Page, Scan, StoreError, Which};
use onceward::{Record, RecordId, Timestamp, record::StateKind};

use crate::cursor::Position;
use crate::error::Failure;
use crate::keys::{List, bucket, buckets};
use crate::reply::{places, record};
use crate::script::LIST;
use crate::store::{SCORE_MAX, StoreInner};

/// Concurrent reads of records, or of buckets in an operator's list.
const AT_ONCE: usize = 32;

/// A query of one bucket's list.
#[derive(Clone, Copy)]
struct ListQuery {
    bucket: u8,
    list: List,
    after: Option<(u64, RecordId)>,
    until: Until,
    count: usize,
}

/// The time up to which records are listed.
#[derive(Clone, Copy)]
enum Until {
    /// The server's time.
    Now,
    /// The time of the test's clock.
    At(Timestamp),
    /// All records, due or not.
    Ever,
}

/// A part of a bucket's list.
struct ListSlice {
    now: Timestamp,
    found: Vec<(u64, RecordId)>,
    /// Whether more may follow.
    full: bool,
}

impl StoreInner {
    pub(crate) async fn page(&self, scan: &Scan) -> Result<Page, StoreError> {
        let after = scan.after.as_ref().map(|cursor| Position::read(cursor, &scan.which)).transpose()?;
        let budget = PageBudget::new(scan.limit);
        match &scan.which {
            Which::Due(due) => self.due(&scan.which, List::of(*due), after, budget).await,
            Which::Filter(filter) => self.filtered(&scan.which, filter, after, budget).await,
        }
    }

    /// Records of one list of all buckets, in the order of their times.
    async fn due(
        &self,
        which: &Which,
        list: List,
        after: Option<Position>,
        budget: PageBudget,
    ) -> Result<Page, StoreError> {
        let most = budget.rows_left();
        // A few of each bucket. If a bucket has more, the page ends after the last one that was read from it.
        let count = (most / 64 + 2).min(most.max(1));
        let until = self.clock().map_or(Until::Now, Until::At);
        let after = after.map(|place| (place.score, place.id));
        let wanted = buckets().map(|bucket| ListQuery { bucket, list, after, until, count });
        let listed = try_join_all(wanted.map(|wanted| self.list(wanted))).await?;
        let now = listed.iter().map(|listed| listed.now).min().unwrap_or(Timestamp::from_micros(0));
        let known_to = listed
            .iter()
            .filter(|listed| listed.full)
            .filter_map(|listed| listed.found.last())
            .min()
            .copied();
        let mut found: Vec<_> = listed.into_iter().flat_map(|listed| listed.found).collect();
        found.sort_unstable();
        let all = found.len();
        found.retain(|place| known_to.is_none_or(|known| *place <= known));
        found.truncate(most);
        let mut builder = PageBuilder::new(now, budget);
        for some in found.chunks(AT_ONCE) {
            if builder.budget.is_full() {
                break;
            }
            self.fill(&mut builder, list, some, |record| {
                record.due().1 <= now && List::of(record.due().0) == list
            })
            .await?;
        }
        let more = builder.budget.looks() < all || known_to.is_some();
        Ok(builder.page(which, more && most > 0))
    }

    /// Records that match an operator's filter, bucket by bucket.
    async fn filtered(
        &self,
        which: &Which,
        filter: &Filter,
        after: Option<Position>,
        budget: PageBudget,
    ) -> Result<Page, StoreError> {
        let (most, lists) = (budget.rows_left(), lists_of(filter));
        if after.is_some_and(|place| !lists.contains(&place.list)) {
            let reason = "the cursor belongs to a list with another state: start the list anew".to_owned();
            return Err(StoreError::Refused { reason });
        }
        let start = after.map(|place| (bucket(place.id), place));
        let steps: Vec<ListQuery> = buckets()
            .flat_map(|bucket| lists.iter().map(move |list| (bucket, *list)))
            .skip_while(|(bucket, list)| {
                start.is_some_and(|(first, place)| (*bucket, *list) != (first, place.list))
            })
            .map(|(bucket, list)| ListQuery {
                bucket,
                list,
                after: None,
                until: Until::Ever,
                count: most.clamp(1, AT_ONCE),
            })
            .collect();
        let mut builder = PageBuilder::new(Timestamp::from_micros(0), budget);
        let mut after = after.map(|place| (place.score, place.id));
        for some in steps.chunks(AT_ONCE) {
            let first = after.take();
            let wanted = some
                .iter()
                .enumerate()
                .map(|(n, step)| ListQuery { after: first.filter(|_| n == 0), ..*step });
            let firsts = try_join_all(wanted.map(|wanted| self.list(wanted))).await?;
            for (step, listed) in some.iter().zip(firsts) {
                if self.walk(&mut builder, filter, *step, listed).await? == WalkEnd::Full {
                    return Ok(builder.page(which, most > 0));
                }
            }
        }
        Ok(builder.page(which, false))
    }

    /// Adds one bucket's list, until the page is full.
    async fn walk(
        &self,
        builder: &mut PageBuilder,
        filter: &Filter,
        step: ListQuery,
        mut listed: ListSlice,
    ) -> Result<WalkEnd, StoreError> {
        loop {
            builder.now = listed.now;
            if builder.budget.is_full() {
                // The rest of this list is on the next page.
                return Ok(if listed.found.is_empty() { WalkEnd::ToTheEnd } else { WalkEnd::Full });
            }
            let mut left = listed.found.as_slice();
            while !left.is_empty() {
                if builder.budget.is_full() {
                    return Ok(WalkEnd::Full);
                }
                let (some, rest) = left.split_at(left.len().min(builder.budget.rows_left()).min(AT_ONCE));
                self.fill(builder, step.list, some, |record| filter.accepts(record)).await?;
                left = rest;
            }
            let Some(last) = listed.found.last().filter(|_| listed.full) else {
                return Ok(WalkEnd::ToTheEnd);
            };
            listed = self.list(ListQuery { after: Some(*last), ..step }).await?;
        }
    }

    /// Reads up to `count` positions of one bucket's list after a position.
    async fn list(&self, wanted: ListQuery) -> Result<ListSlice, StoreError> {
        let keys = [self.keys.list(wanted.bucket, wanted.list), self.keys.marker(wanted.bucket)];
        let lowest = wanted.after.map_or(0, |(score, _)| score).to_string();
        let highest = match wanted.until {
            Until::Now => String::new(),
            Until::At(time) => time.as_micros().to_string(),
            Until::Ever => SCORE_MAX.to_string(),
        };
        let count = wanted.count.to_string();
        let (mut offset, mut found) = (0_usize, Vec::new());
        loop {
            let skipped = offset.to_string();
            let arguments = [lowest.as_bytes(), highest.as_bytes(), skipped.as_bytes(), count.as_bytes()];
            let answer = self.ask(&LIST, wanted.bucket, &keys, &arguments).await;
            let answer = answer.map_err(|error| self.of_read(error))?;
            let some = places(answer.rest).map_err(Failure::of_read)?;
            let full = some.len() == wanted.count;
            offset += some.len();
            // Records with the same time as the last position may have been on the previous page.
            found.extend(some.into_iter().filter(|place| wanted.after.is_none_or(|after| *place > after)));
            if !full || found.len() >= wanted.count {
                return Ok(ListSlice { now: answer.now, found, full });
            }
        }
    }

    /// Reads records and adds those that match. Records that cannot be decoded are added too.
    async fn fill(
        &self,
        builder: &mut PageBuilder,
        list: List,
        some: &[(u64, RecordId)],
        wanted: impl Fn(&Record) -> bool,
    ) -> Result<(), StoreError> {
        let read = join_all(some.iter().map(|(_, id)| {
            let mut command = redis::cmd("GET");
            command.arg(self.keys.record(*id));
            async move { self.connection.send(&command).await }
        }));
        for (&(score, id), stored) in some.iter().zip(read.await) {
            let stored = stored.map_err(Failure::of_read)?;
            builder.budget.count_looks(1);
            builder.last = Some(Position { list, score, id });
            if let redis::Value::BulkString(bytes) = &stored {
                builder.budget.count_bytes(bytes.len());
            }
            match record(id, stored) {
                // It was forgotten meanwhile.
                Ok(None) => {}
                Ok(Some(stamped)) if !wanted(&stamped.record) => {}
                Ok(Some(stamped)) => {
                    builder.push(Entry { id, version: stamped.version, record: Ok(stamped.record) });
                }
                Err(StoreError::Unreadable { version, why, .. }) => {
                    builder.push(Entry { id, version, record: Err(why) });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[derive(PartialEq, Eq)]
enum WalkEnd {
    ToTheEnd,
    Full,
}

/// The lists that contain the records of a filter.
fn lists_of(filter: &Filter) -> &'static [List] {
    match filter.state {
        Some(StateKind::InProgress) => &[List::Leases],
        Some(StateKind::Unknown) => &[List::Unknown],
        Some(StateKind::Completed | StateKind::FailedRetryable | StateKind::Expired) => &[List::Settled],
        None => &List::ALL,
    }
}

/// A page under construction.
struct PageBuilder {
    now: Timestamp,
    entries: Vec<Entry>,
    budget: PageBudget,
    last: Option<Position>,
}

impl PageBuilder {
    const fn new(now: Timestamp, budget: PageBudget) -> Self {
        Self { now, entries: Vec::new(), budget, last: None }
    }

    fn push(&mut self, entry: Entry) {
        self.budget.count_row();
        self.entries.push(entry);
    }

    fn page(self, which: &Which, more: bool) -> Page {
        let next = self.last.filter(|_| more).map(|last| last.cursor(which));
        Page { now: self.now, entries: self.entries, next }
    }
}
