//! Properties of a single step, whatever the record, the event and the time.

use onceward::event::{
    Answer, Control, Decision, Event, Expiry, Finding, Moment, Notice, Refusal, Step, Write,
};
use onceward::fingerprint::Comparison;
use onceward::{
    OnLapse, Record, Timestamp,
    record::{Cause, Letter, Receipts, State, StateKind},
};
use proptest::prelude::*;

use crate::arbitrary::{Happening, config, happening, moment, owned, record, same_claim, unowned};

/// The record after a step.
fn after(record: Option<&Record>, step: &Step) -> Option<Record> {
    match &step.write {
        Write::Keep => record.cloned(),
        Write::Put(next) => Some((**next).clone()),
        Write::Remove => None,
    }
}

const fn begins_a_tenure(step: &Step) -> bool {
    matches!(step.answer, Answer::Decision(Decision::Execute | Decision::Resume(_)))
}

const fn writes(step: &Step) -> bool {
    !matches!(step.write, Write::Keep)
}

fn is_past_its_window(record: &Record, at: Moment) -> bool {
    match record.state {
        State::Completed { expires_at, .. } => expires_at <= at.expiry_now,
        // What is known to have been done is remembered as an answer would be.
        State::FailedRetryable { expires_at, .. } => {
            let known = record.evidence.as_ref().map(|evidence| evidence.at);
            let known = known.or(record.doubt.map(|doubt| doubt.since));
            let kept = known.map_or(expires_at, |at| expires_at.max(at.after(record.terms.retention)));
            kept <= at.expiry_now
        }
        State::Expired { .. } => true,
        State::InProgress { .. } | State::Unknown { .. } => false,
    }
}

/// Whether that was the time already, and only something else changed.
fn is_settled_at(record: &Record, then: Timestamp) -> bool {
    match record.state {
        State::Completed { settled_at, .. } | State::FailedRetryable { settled_at, .. } => settled_at == then,
        State::Unknown { since, .. } => since == then,
        State::InProgress { .. } | State::Expired { .. } => false,
    }
}

proptest! {
    #![proptest_config(config(2048))]

    #[test]
    fn every_step_ends_and_is_the_same_when_taken_again(
        record in prop::option::of(record()), at in moment(), happening in happening()
    ) {
        prop_assert_eq!(happening.step(record.as_ref(), at), happening.step(record.as_ref(), at));
    }

    #[test]
    fn nobody_is_told_what_was_meant_for_somebody_else(
        record in prop::option::of(record()), at in moment(), happening in happening()
    ) {
        let step = happening.step(record.as_ref(), at);
        let fits = match happening.event() {
            Event::Claim { .. } => matches!(step.answer, Answer::Decision(_)),
            Event::Resume { .. } => matches!(step.answer, Answer::Decision(_) | Answer::Conflict),
            Event::Renew { .. } => matches!(step.answer, Answer::Applied | Answer::Fenced),
            Event::Checkpoint { .. } => {
                matches!(step.answer, Answer::Applied | Answer::Fenced | Answer::Conflict)
            }
            Event::Settle { .. } => {
                matches!(step.answer, Answer::Applied | Answer::Fenced | Answer::AlreadySettled(_))
            }
            Event::Evidence { .. } | Event::Resolve { .. } => {
                matches!(step.answer, Answer::Applied | Answer::AlreadySettled(_) | Answer::Conflict)
            }
            Event::Find { .. } => {
                matches!(step.answer, Answer::Applied | Answer::AlreadySettled(_) | Answer::Conflict)
            }
            Event::Found { .. } => matches!(
                step.answer,
                Answer::Applied | Answer::AlreadySettled(_) | Answer::Fenced | Answer::Conflict
            ),
            Event::GiveUp { .. } => {
                matches!(step.answer, Answer::Applied | Answer::Conflict | Answer::Left)
            }
            Event::Expire { .. } => matches!(step.answer, Answer::Applied | Answer::Conflict),
            Event::Sweep { .. } => matches!(step.answer, Answer::Lapsed | Answer::Swept | Answer::Left),
        };
        prop_assert!(fits, "{:?}", step.answer);
    }

    #[test]
    fn only_a_claim_makes_a_record_where_there_was_none(at in moment(), happening in happening()) {
        let step = happening.step(None, at);
        let is_claim = matches!(happening, Happening::Claim { .. });
        prop_assert_eq!(writes(&step), is_claim);
        prop_assert_eq!(begins_a_tenure(&step), is_claim);
    }

    #[test]
    fn a_fence_changes_only_with_a_new_tenure_or_a_void_and_then_it_rises(
        record in record(), at in moment(), happening in happening()
    ) {
        let step = happening.step(Some(&record), at);
        if let Write::Put(next) = &step.write {
            let was_voided = next.voided != record.voided;
            if was_voided && !begins_a_tenure(&step) {
                prop_assert_eq!((next.fence, next.voided), (record.fence.above(), Some(next.fence)));
            } else if begins_a_tenure(&step) {
                prop_assert!(next.fence > record.fence);
            } else {
                prop_assert_eq!(next.fence, record.fence);
            }
            prop_assert!(next.opened <= next.origin && next.origin <= next.fence);
        }
    }

    #[test]
    fn whoever_begins_a_tenure_owns_a_running_record(
        record in prop::option::of(record()), at in moment(), claim in same_claim()
    ) {
        let step = claim.step(record.as_ref(), at);
        if begins_a_tenure(&step) {
            let Happening::Claim { owner, .. } = claim else { unreachable!("it is a claim") };
            let next = after(record.as_ref(), &step).unwrap();
            prop_assert_eq!(next.owner, owner);
            let State::InProgress { lease_until } = next.state else { panic!("it does not run") };
            prop_assert!(lease_until >= at.now);
        }
    }

    #[test]
    fn what_is_told_is_what_is_stored(record in record(), at in moment(), happening in happening()) {
        let step = happening.step(Some(&record), at);
        let stored = after(Some(&record), &step).map(|record| record.state);
        match step.answer {
            Answer::Decision(Decision::Replay(answered)) | Answer::AlreadySettled(Some(answered)) => {
                let Some(State::Completed { reply, .. }) = stored else { panic!("answered with {answered:?}") };
                prop_assert_eq!(reply, answered);
            }
            Answer::Decision(Decision::Refuse(Refusal::Unknown { letter: answered, .. })) => {
                let Some(State::Unknown { letter, .. }) = stored else { panic!("refused as unknown") };
                prop_assert_eq!(letter, answered);
            }
            Answer::Decision(Decision::Refuse(Refusal::InProgress { .. })) => {
                let runs = matches!(stored, Some(State::InProgress { lease_until }) if lease_until > at.now);
                prop_assert!(runs);
            }
            Answer::Swept => {
                let gone = matches!(stored, None | Some(State::Expired { .. }));
                prop_assert!(gone);
            }
            Answer::Decision(
                Decision::Execute
                | Decision::Resume(_)
                | Decision::Refuse(Refusal::Mismatch(_) | Refusal::Incomparable),
            )
            | Answer::Applied
            | Answer::AlreadySettled(None)
            | Answer::Fenced
            | Answer::Conflict
            | Answer::Lapsed
            | Answer::Left => {}
        }
    }

    #[test]
    fn work_that_runs_and_outcomes_nobody_knows_are_not_removed_emptied_or_executed_anew(
        record in record(), at in moment(), happening in happening()
    ) {
        prop_assume!(matches!(record.state, State::InProgress { .. } | State::Unknown { .. }));
        let step = happening.step(Some(&record), at);
        let next = after(Some(&record), &step).expect("it was removed");
        let emptied = matches!(next.state, State::Expired { .. });
        prop_assert!(!emptied);
        prop_assert_eq!(next.origin, record.origin, "it was executed anew");
        if matches!(step.answer, Answer::Decision(Decision::Execute)) {
            prop_assert_eq!(next, record, "only its own owner, whose answer was lost, is answered with Execute");
        }
    }

    #[test]
    fn a_lapse_is_resumed_only_where_that_was_agreed(record in record(), at in moment(), claim in same_claim()) {
        let step = claim.step(Some(&record), at);
        let State::InProgress { lease_until } = record.state else { return Ok(()) };
        if begins_a_tenure(&step) && writes(&step) {
            let OnLapse::Resume { attempts, within } = record.terms.on_lapse else {
                panic!("resuming was not agreed")
            };
            prop_assert!(lease_until <= at.now && at.now < lease_until.after(within));
            prop_assert!(record.attempt < attempts);
            prop_assert_eq!(step.answer, Answer::Decision(Decision::Resume(record.recovery_point.unwrap())));
        }
    }

    #[test]
    fn a_committed_phase_is_never_executed_from_the_beginning_within_its_window(
        record in record(), at in moment(), claim in same_claim()
    ) {
        prop_assume!(record.recovery_point.is_some() && !is_past_its_window(&record, at));
        let step = claim.step(Some(&record), at);
        prop_assert_ne!(step.answer, Answer::Decision(Decision::Execute));
    }

    #[test]
    fn what_is_known_to_be_done_is_not_released(record in record(), at in moment(), happening in happening()) {
        prop_assume!(record.evidence.is_some() && !is_past_its_window(&record, at));
        let step = happening.step(Some(&record), at);
        let next = after(Some(&record), &step).map(|next| next.state);
        let was_released = matches!(record.state, State::FailedRetryable { .. });
        let is_released = matches!(next, Some(State::FailedRetryable { .. }));
        prop_assert!(!is_released || was_released);
        prop_assert!(!(was_released && begins_a_tenure(&step)));
    }

    #[test]
    fn only_somebody_who_knows_changes_an_unknown_outcome(
        record in record(), at in moment(), happening in happening()
    ) {
        prop_assume!(matches!(record.state, State::Unknown { .. }));
        let step = happening.step(Some(&record), at);
        let next = after(Some(&record), &step).unwrap();
        // A claim knows what a tenure of this execution left as evidence.
        let knows = match happening.event() {
            Event::Settle { .. } | Event::Evidence { .. } | Event::Resolve { .. } => true,
            Event::Found { finding: Ok(Finding::Completed(_) | Finding::Voided(_)), .. } => true,
            Event::Claim { .. } | Event::Find { .. } => record.evidence.is_some(),
            Event::Resume { .. }
            | Event::Renew { .. }
            | Event::Checkpoint { .. }
            | Event::Found { .. }
            | Event::GiveUp { .. }
            | Event::Expire { .. }
            | Event::Sweep { .. } => false,
        };
        if !knows {
            let unknown = matches!(next.state, State::Unknown { .. });
            prop_assert!(unknown);
            let asked = matches!(
                happening.event(),
                Event::Find { .. } | Event::Found { .. } | Event::GiveUp { .. }
            );
            prop_assert_eq!(writes(&step), asked && step.answer == Answer::Applied);
        }
    }

    #[test]
    fn another_request_is_refused_and_changes_nothing(record in record(), at in moment(), happening in happening()) {
        let Happening::Claim { fingerprint, .. } = &happening else { return Ok(()) };
        let step = happening.step(Some(&record), at);
        let other = record.fingerprint.compare(fingerprint) == Comparison::Different;
        let refused = matches!(step.answer, Answer::Decision(Decision::Refuse(Refusal::Mismatch(_))));
        prop_assert_eq!(refused, other && !is_past_its_window(&record, at));
        if refused {
            prop_assert!(!writes(&step) && step.notice.is_none());
        }
    }

    #[test]
    fn an_old_fence_changes_nothing_but_the_evidence_and_the_doubt(
        record in record(), at in moment(), happening in owned()
    ) {
        let (Event::Renew { fence } | Event::Checkpoint { fence, .. } | Event::Settle { fence, .. }) =
            happening.event()
        else {
            unreachable!("owners do nothing else")
        };
        prop_assume!(fence != record.fence);
        let step = happening.step(Some(&record), at);
        prop_assert_eq!(&step.answer, &Answer::Fenced);
        let next = after(Some(&record), &step).expect("it was removed");
        if let (Some(old), new) = (&record.evidence, &next.evidence) {
            prop_assert_eq!(Some(old), new.as_ref(), "evidence was replaced");
        }
        if next.evidence != record.evidence {
            prop_assert!(fence >= record.opened, "an earlier window's result became evidence");
        }
        if next.doubt != record.doubt {
            prop_assert!(fence >= record.opened, "an earlier window's result left doubt");
            prop_assert_eq!(next.doubt.map(|doubt| doubt.cause), Some(Cause::DoneNotKept));
        }
        prop_assert_eq!(Record { evidence: record.evidence.clone(), doubt: record.doubt, ..next }, record);
    }

    #[test]
    fn what_was_asked_for_changes_only_with_an_execution(record in record(), at in moment(), happening in happening()) {
        let step = happening.step(Some(&record), at);
        if let (Write::Put(next), false) = (&step.write, step.answer == Answer::Decision(Decision::Execute)) {
            prop_assert_eq!(&next.subject, &record.subject);
            prop_assert_eq!(next.fingerprint.compare(&record.fingerprint), Comparison::Same);
            prop_assert_eq!(&next.terms, &record.terms);
            prop_assert_eq!(next.created_at, record.created_at);
            prop_assert_eq!((next.opened, next.origin), (record.opened, record.origin));
        }
    }

    #[test]
    fn nothing_happens_to_a_record_before_it_was_claimed(record in record(), at in moment(), happening in happening()) {
        let step = happening.step(Some(&record), at);
        let Write::Put(next) = &step.write else { return Ok(()) };
        if next.state != record.state {
            match next.state {
                State::Completed { settled_at: then, .. }
                | State::FailedRetryable { settled_at: then, .. }
                | State::Unknown { since: then, .. } => {
                    prop_assert!(then >= next.created_at || is_settled_at(&record, then));
                }
                State::InProgress { .. } | State::Expired { .. } => {}
            }
        }
        if let (Some(evidence), true) = (&next.evidence, next.evidence != record.evidence) {
            prop_assert!(evidence.at >= next.created_at);
        }
        if let (Some(verdict), true) = (&next.verdict, next.verdict != record.verdict) {
            prop_assert!(verdict.at >= next.created_at);
        }
    }

    #[test]
    fn an_answer_stays_the_answer_until_its_window_ends(record in record(), at in moment(), happening in happening()) {
        let State::Completed { reply, settled_at, expires_at } = record.state.clone() else { return Ok(()) };
        prop_assume!(!is_past_its_window(&record, at));
        let step = happening.step(Some(&record), at);
        let next = after(Some(&record), &step).expect("it was removed within its window");
        let State::Completed { reply: kept, settled_at: settled, expires_at: expires } = next.state else {
            panic!("it is {} now", next.state.name())
        };
        prop_assert_eq!((kept, settled), (reply, settled_at));
        let ended = matches!(happening.event(), Event::Expire { .. });
        prop_assert!(expires == expires_at || ended && expires < expires_at);
    }

    #[test]
    fn a_sweep_that_left_something_wrote_nothing_and_takes_only_what_is_over(
        record in record(), at in moment(), soft in any::<bool>()
    ) {
        let expiry = if soft { Expiry::Soft } else { Expiry::Delete };
        let step = Happening::Other(Event::Sweep { expiry }).step(Some(&record), at);
        match step.answer {
            Answer::Left => prop_assert_eq!(step.write, Write::Keep),
            Answer::Swept => prop_assert!(is_past_its_window(&record, at)),
            Answer::Lapsed => {
                let State::InProgress { lease_until } = record.state else { panic!("{} lapsed", record.state.name()) };
                let from_the_future = lease_until.since(at.now) > record.terms.lease * 2;
                prop_assert!(lease_until <= at.now || from_the_future);
            }
            Answer::Decision(_)
            | Answer::Applied
            | Answer::AlreadySettled(_)
            | Answer::Fenced
            | Answer::Conflict => panic!("a sweeper was answered {:?}", step.answer),
        }
    }

    #[test]
    fn what_a_soft_sweep_keeps_holds_nobodys_bytes(record in record(), at in moment()) {
        let step = Happening::Other(Event::Sweep { expiry: Expiry::Soft }).step(Some(&record), at);
        if step.answer == Answer::Swept {
            let next = after(Some(&record), &step).expect("a soft sweep keeps the row");
            prop_assert_eq!((next.evidence, next.recovery_point), (None, None));
        }
    }

    #[test]
    fn a_dead_letter_is_announced_once(record in record(), at in moment(), happening in happening()) {
        let dead = |record: &Record| matches!(record.state, State::Unknown { letter: Letter::Dead, .. });
        let step = happening.step(Some(&record), at);
        let next = after(Some(&record), &step);
        let became_dead = next.as_ref().is_some_and(dead) && !dead(&record);
        prop_assert_eq!(step.notice == Some(Notice::DeadLettered), became_dead);
    }

    #[test]
    fn a_retry_is_never_told_to_wait_for_no_time_or_for_long(
        record in record(), at in moment(), claim in same_claim()
    ) {
        let Answer::Decision(Decision::Refuse(refusal)) = claim.step(Some(&record), at).answer else {
            return Ok(());
        };
        match refusal {
            Refusal::InProgress { retry_after } => prop_assert!((1..=5).contains(&retry_after.as_secs())),
            Refusal::Unknown { retry_after, .. } => prop_assert!((1..=60).contains(&retry_after.as_secs())),
            Refusal::Mismatch(_) | Refusal::Incomparable => {}
        }
    }

    #[test]
    fn a_find_that_cannot_tell_is_tried_again_later_and_not_beyond_its_limit(
        record in record(), at in moment(), happening in unowned()
    ) {
        let Event::Found { finding: Ok(finding), terms, .. } = happening.event() else { return Ok(()) };
        let counts = match finding {
            Finding::Inconclusive(_) | Finding::Unproven { .. } => true,
            Finding::Absent | Finding::AbsentAndVoided(_) => terms.absent_after.is_none(),
            Finding::Completed(_)
            | Finding::DoneNotKept(_)
            | Finding::Voided(_)
            | Finding::StillOpen(_)
            | Finding::Ambiguous(_)
            | _ => false,
        };
        prop_assume!(counts && matches!(record.state, State::Unknown { .. }));
        let step = happening.step(Some(&record), at);
        if let Write::Put(next) = &step.write {
            let State::Unknown { due_at, probes, letter, .. } = next.state else { panic!("it was decided") };
            prop_assert!(due_at >= at.now);
            prop_assert_eq!(letter == Letter::Dead, probes >= terms.attempts);
        }
    }

    #[test]
    fn an_absence_releases_at_the_second_time_and_leaves_one_more_find(
        record in record(), at in moment(), happening in unowned()
    ) {
        let Event::Found { finding: Ok(Finding::Absent | Finding::AbsentAndVoided(_)), control, terms, .. } = happening.event()
        else { return Ok(()) };
        prop_assume!(matches!(record.state, State::Unknown { .. }));
        let step = happening.step(Some(&record), at);
        let Write::Put(next) = &step.write else { return Ok(()) };
        if !matches!(next.state, State::FailedRetryable { .. }) {
            return Ok(());
        }
        prop_assert_eq!(control, Control::Made);
        let after = terms.absent_after.expect("an absence that does not count releases nothing");
        let seen = record.absence.expect("one absence was seen before");
        prop_assert!(seen.count >= 1 && seen.fence == record.fence);
        prop_assert!(seen.first_at.after(after / 2) <= at.expiry_now);
        let State::FailedRetryable { expires_at, .. } = next.state else { unreachable!() };
        prop_assert!(expires_at >= at.now.after(after));
        prop_assert!(record.evidence.is_none() && record.entered.is_empty());
        let known = matches!(record.state, State::Unknown { cause: Cause::DoneNotKept, .. });
        prop_assert!(!known && record.doubt.is_none_or(|doubt| doubt.cause != Cause::DoneNotKept));
    }

    #[test]
    fn a_void_releases_only_work_with_receipts_that_nobody_knows_to_be_done(
        record in record(), at in moment(), happening in happening()
    ) {
        let step = happening.step(Some(&record), at);
        let Write::Put(next) = &step.write else { return Ok(()) };
        prop_assume!(next.voided != record.voided && next.opened == record.opened);
        prop_assert_eq!(next.state.kind(), StateKind::FailedRetryable);
        prop_assert_eq!(record.receipts(), Receipts::Kept);
        prop_assert!(record.evidence.is_none() && record.entered.is_empty());
        let known = matches!(record.state, State::Unknown { cause: Cause::DoneNotKept, .. });
        prop_assert!(!known, "it was known to be done");
        prop_assert!(record.doubt.is_none_or(|doubt| doubt.cause != Cause::DoneNotKept));
        prop_assert!(record.recovery_point.is_none() || next.recovery_point.is_some());
    }

    #[test]
    fn an_owner_below_a_void_leaves_no_trace(record in record(), at in moment(), happening in owned()) {
        let Event::Settle { fence, outcome } = happening.event() else { return Ok(()) };
        prop_assume!(record.voided.is_some_and(|voided| fence < voided));
        let step = happening.step(Some(&record), at);
        let alarm = outcome.is_done().then_some(Notice::Contradiction);
        prop_assert_eq!((step.answer, step.write, step.notice), (Answer::Fenced, Write::Keep, alarm));
    }
}
