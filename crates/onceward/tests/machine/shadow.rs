//! Shadows, the records of routes that only observe: none is ever unknown, and all of them expire.

use std::sync::Arc;
use std::time::Duration;

use onceward::event::{Answer, Decision, Event, Expiry, Moment, Refusal, Step, Write};
use onceward::store::{Due, Filter};
use onceward::{
    OnLapse, Outcome, Record, Terms,
    claim::OwnerToken,
    key::NamespaceHash,
    machine,
    record::{Cause, Doubt, Letter, State, StateKind, Subject},
};
use onceward_testkit::sample;

const HOUR: u64 = 3600;

fn at(second: u64) -> Moment {
    let now = sample::START.after(Duration::from_secs(second));
    Moment { now, expiry_now: now }
}

/// A shadow in its first tenure.
fn shadow() -> Record {
    let record = sample::record("x");
    let terms =
        Terms { retention: Duration::from_secs(HOUR), grace: Duration::from_secs(60), ..Terms::default() };
    let subject = Arc::new(Subject { scope: "%shadow,acme".to_owned(), ..(*record.subject).clone() });
    Record { subject, terms, ..record }
}

fn sweep(record: &Record, second: u64) -> Step {
    machine::step(Some(record), at(second), &Event::Sweep { expiry: Expiry::Delete })
}

fn settle(record: &Record, second: u64, outcome: Outcome) -> Step {
    machine::step(Some(record), at(second), &Event::Settle { fence: record.fence, outcome })
}

fn claim(record: &Record, second: u64) -> Step {
    let claim = onceward::Claim::new(
        onceward::Scope::new("acme").unwrap(),
        onceward::Key::new("x").unwrap(),
        record.fingerprint,
    );
    let (owner, format) = (OwnerToken::named("retry"), record.format);
    let namespace = NamespaceHash::from_bytes([7; 16]);
    let event = Event::Claim { claim: &claim, owner, label: "x", format, namespace };
    machine::step(Some(record), at(second), &event)
}

fn written(step: Step) -> Record {
    match step.write {
        Write::Put(record) => *record,
        Write::Keep | Write::Remove => panic!("nothing was written: {step:?}"),
    }
}

#[test]
fn every_end_without_an_outcome_is_in_doubt_and_expires_with_the_retention() {
    let lapsed_resumable = Record {
        recovery_point: Some(sample::point("charged")),
        terms: Terms {
            on_lapse: OnLapse::Resume { attempts: 2, within: Duration::from_secs(1) },
            ..shadow().terms
        },
        ..shadow()
    };
    let left = State::Unknown {
        since: at(60).now,
        due_at: at(60).now,
        probes: 3,
        letter: Letter::Dead,
        cause: Cause::Lost,
    };
    let ends = [
        ("settled as lost", written(settle(&shadow(), 60, Outcome::lost("it timed out")))),
        ("settled as said", written(settle(&shadow(), 60, Outcome::said_unknown("503")))),
        ("settled as done", written(settle(&shadow(), 60, Outcome::done_not_kept("too large")))),
        ("lapsed, swept", written(sweep(&shadow(), 60))),
        ("lapsed, met by a claim", written(claim(&shadow(), 60))),
        ("lapsed for good", written(sweep(&lapsed_resumable, 60 + 2))),
        ("left by an earlier version", written(sweep(&Record { state: left.clone(), ..shadow() }, 70))),
        (
            "left by an earlier version, and settled as done",
            written(settle(&Record { state: left, ..shadow() }, 70, Outcome::done_not_kept("too large"))),
        ),
    ];
    for (how, ended) in ends {
        assert_eq!(ended.state.name(), "failed_retryable", "{how}");
        assert!(matches!(ended.doubt, Some(Doubt { since, .. }) if since >= at(60).now), "{how}");
        assert!(!Filter { state: Some(StateKind::Unknown), ..Filter::default() }.accepts(&ended), "{how}");
        assert_eq!(ended.due().0, Due::Expired, "{how}");
        let step = claim(&ended, 100);
        let refused = matches!(
            step.answer,
            Answer::Decision(Decision::Refuse(Refusal::Unknown { letter: Letter::Live, .. }))
        );
        assert!(refused && step.write == Write::Keep && step.notice.is_none(), "{how}: {step:?}");
        assert_eq!(sweep(&ended, HOUR).answer, Answer::Left, "{how}");
        assert_eq!(sweep(&ended, HOUR + 200).write, Write::Remove, "{how}");
        assert_eq!(claim(&ended, HOUR + 200).answer, Answer::Decision(Decision::Execute), "{how}");
    }
}

#[test]
fn a_late_answer_is_the_truth_about_a_shadow() {
    let lost = written(settle(&shadow(), 30, Outcome::lost("it timed out")));
    let completed = written(settle(&lost, 40, Outcome::Completed(sample::reply(201, ""))));
    assert_eq!((completed.state.name(), completed.doubt), ("completed", None));
    assert!(matches!(claim(&completed, 50).answer, Answer::Decision(Decision::Replay(_))));
}

#[test]
fn an_operation_ends_as_unknown_where_a_shadow_does_not() {
    let operation = Record { subject: sample::record("x").subject, ..shadow() };
    assert_eq!(written(sweep(&operation, 60)).state.name(), "unknown");
    let lost = written(settle(&operation, 60, Outcome::lost("it timed out")));
    assert_eq!(lost.state.name(), "unknown");
    assert_eq!(sweep(&lost, 900 * 24 * HOUR).answer, Answer::Left);
}
