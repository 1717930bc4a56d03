//! Minutes of claims that a sweep can skip, because nothing in them has expired.
//!
//! Expired records are found by the time of their claim, so without this cache every sweep would read every live row. A
//! minute that was swept is skipped until the first of its records expires. Writes of this process update that time; writes
//! of other processes are found by sweeping the minute again after a while. A late sweep is no error: a claim of an expired
//! key is decided by the record's expiry.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onceward::Timestamp;

/// Other gateways settle operations and operators expire them, so a minute is swept again after this time.
const AGAIN_AFTER: Duration = Duration::from_secs(15 * 60);
/// About two months of minutes. A longer retention only costs extra reads.
const MINUTES_MAX: usize = 100_000;
/// The length of a minute, as a power of two in microseconds: 67 s.
const MINUTE_BITS: u32 = 26;

/// The minute of a time.
pub(crate) fn minute(at: Timestamp) -> u64 {
    at.as_micros() >> MINUTE_BITS
}

/// The beginning of a minute.
pub(crate) fn start_of(minute: u64) -> Timestamp {
    Timestamp::from_micros(minute << MINUTE_BITS)
}

/// The swept minutes.
#[derive(Default)]
pub(crate) struct SweptMinutes {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Ranges: the first minute, the minute after the last, and the time until which nothing in the range expires.
    stretches: BTreeMap<u64, (u64, Timestamp)>,
    /// The crowded minute that is being swept, and the first expiry that was seen in it.
    crowd: Option<(u64, Timestamp)>,
}

impl SweptMinutes {
    // No code in this file panics while the lock is held, so a poisoned lock guards a consistent state.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first minute, from this one on, that must be swept.
    pub(crate) fn first_unswept(&self, mut minute: u64, now: Timestamp) -> u64 {
        let state = self.state();
        while let Some((_, (end, until))) = state.stretches.range(..=minute).next_back()
            && *end > minute
            && *until > now
        {
            minute = *end;
        }
        minute
    }

    /// Marks minutes as swept, with the first expiry in them.
    pub(crate) fn mark_swept(&self, minutes: std::ops::Range<u64>, first_expiry: Timestamp, now: Timestamp) {
        // New claims are still added to the current minute, and slightly later.
        if minutes.end >= minute(now) {
            return;
        }
        let mut state = self.state();
        if state.stretches.len() >= MINUTES_MAX {
            state.stretches.clear();
        }
        // Ranges never overlap, so that an expiry updates the only range of its minute.
        if let Some((_, (end, _))) = state.stretches.range_mut(..minutes.start).next_back() {
            *end = (*end).min(minutes.start);
        }
        let covered: Vec<_> = state.stretches.range(minutes.clone()).map(|(start, _)| *start).collect();
        for start in covered {
            state.stretches.remove(&start);
        }
        state.stretches.insert(minutes.start, (minutes.end, first_expiry.min(now.after(AGAIN_AFTER))));
    }

    /// Begins a crowded minute.
    pub(crate) fn begin_crowd(&self, minute: u64) {
        self.state().crowd = Some((minute, Timestamp::NEVER));
    }

    /// Records an expiry in a crowded minute.
    pub(crate) fn note_expiry_in_crowd(&self, minute: u64, expiry: Timestamp) {
        if let Some((open, first)) = &mut self.state().crowd
            && *open == minute
        {
            *first = (*first).min(expiry);
        }
    }

    /// Marks a crowded minute as swept, if it was swept from its beginning.
    pub(crate) fn end_crowd(&self, minute: u64, now: Timestamp) {
        let closed = self.state().crowd.take_if(|(open, _)| *open == minute);
        if let Some((_, first)) = closed {
            self.mark_swept(minute..minute + 1, first, now);
        }
    }

    /// Records that a record in this minute now expires at this time.
    pub(crate) fn note_expiry(&self, created_at: Timestamp, expiry: Timestamp) {
        let minute = minute(created_at);
        if let Some((_, (end, until))) = self.state().stretches.range_mut(..=minute).next_back()
            && *end > minute
        {
            *until = (*until).min(expiry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minutes(count: u64) -> Timestamp {
        start_of(count)
    }

    #[test]
    fn a_minute_rests_until_its_first_record_expires_or_it_is_time_to_look_again() {
        let swept = SweptMinutes::default();
        let now = minutes(1_000);
        swept.mark_swept(10..12, minutes(1_005), now);
        swept.mark_swept(12..13, Timestamp::NEVER, now);
        assert_eq!(
            (swept.first_unswept(10, now), swept.first_unswept(11, now), swept.first_unswept(9, now)),
            (13, 13, 9)
        );
        assert_eq!(swept.first_unswept(10, minutes(1_005)), 10, "its first record has expired");
        assert_eq!(swept.first_unswept(12, minutes(1_005)), 13);
        assert_eq!(swept.first_unswept(12, minutes(1_020)), 12, "others may have written there");
    }

    #[test]
    fn what_is_written_wakes_its_minute_and_the_present_one_never_rests() {
        let swept = SweptMinutes::default();
        let now = minutes(1_000);
        swept.mark_swept(10..12, Timestamp::NEVER, now);
        swept.note_expiry(minutes(11), minutes(1_001));
        assert_eq!(swept.first_unswept(10, now), 12);
        assert_eq!(swept.first_unswept(10, minutes(1_001)), 10);
        swept.mark_swept(999..1_000, Timestamp::NEVER, now);
        assert_eq!(swept.first_unswept(999, now), 999);
    }

    #[test]
    fn a_minute_that_is_part_of_two_stretches_is_woken_for_both() {
        let now = minutes(1_000);
        for (first, second) in [(0..12, 11..12), (11..12, 0..12), (0..20, 5..7)] {
            let swept = SweptMinutes::default();
            swept.mark_swept(first.clone(), Timestamp::NEVER, now);
            swept.mark_swept(second.clone(), Timestamp::NEVER, now);
            swept.note_expiry(minutes(second.end - 1), minutes(999));
            assert!(swept.first_unswept(0, now) < second.end, "{first:?}, then {second:?}");
            assert!(swept.first_unswept(second.end - 1, now) < second.end, "{first:?}, then {second:?}");
        }
    }

    #[test]
    fn a_crowd_rests_only_when_all_of_it_was_seen() {
        let swept = SweptMinutes::default();
        let now = minutes(1_000);
        swept.end_crowd(10, now);
        assert_eq!(swept.first_unswept(10, now), 10, "its beginning was not seen");
        swept.begin_crowd(10);
        swept.note_expiry_in_crowd(10, minutes(1_003));
        swept.note_expiry_in_crowd(10, minutes(1_002));
        swept.end_crowd(10, now);
        assert_eq!((swept.first_unswept(10, now), swept.first_unswept(10, minutes(1_002))), (11, 10));
    }
}
