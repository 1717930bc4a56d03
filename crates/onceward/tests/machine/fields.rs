//! Fields of format 2 that forbid something are obeyed, also where only a newer version writes them.

use std::time::Duration;

use onceward::event::{Answer, Decision, Event, Moment, Refusal, Step, Write};
use onceward::fingerprint::{Difference, ProfileId};
use onceward::{
    Claim, Fence, Fingerprint, Key, OnLapse, Outcome, Record, RecoveryPoint, Reply, Scope, Terms,
    claim::OwnerToken,
    key::NamespaceHash,
    machine,
    record::{Entered, RecordFormat, State},
};
use onceward_testkit::sample;

fn at(second: u64) -> Moment {
    let now = sample::START.after(Duration::from_secs(second));
    Moment { now, expiry_now: now }
}

fn claim_of(fingerprint: Fingerprint, route: &str) -> Claim {
    let on_lapse = OnLapse::Resume { attempts: 9, within: Duration::from_secs(86_400) };
    Claim::new(Scope::new("acme").unwrap(), Key::new("k").unwrap(), fingerprint)
        .route(route)
        .unwrap()
        .terms(Terms { on_lapse, ..Terms::default() })
        .unwrap()
}

fn claimed(record: Option<&Record>, second: u64, claim: &Claim, who: &str) -> Step {
    let owner = OwnerToken::named(who);
    let (format, namespace) = (RecordFormat::Two, NamespaceHash::from_bytes([7; 16]));
    let event = Event::Claim { claim, owner, label: "k", format, namespace };
    machine::step(record, at(second), &event)
}

fn written(step: Step) -> Record {
    match step.write {
        Write::Put(record) => *record,
        Write::Keep | Write::Remove => panic!("nothing was written: {step:?}"),
    }
}

fn payment() -> Claim {
    claim_of(Fingerprint::of_bytes(b"x"), "POST /payments")
}

/// A record in its first tenure, after a recovery point.
fn checkpointed() -> Record {
    let record = written(claimed(None, 0, &payment(), "A"));
    Record { recovery_point: Some(RecoveryPoint::new("rode", "").unwrap()), ..record }
}

#[test]
fn work_with_an_open_outside_call_is_resumed_only_while_the_call_may_be_repeated() {
    let entered = |dedup_until| Record {
        entered: vec![Entered { point: "charge".to_owned(), at: at(1).now, dedup_until }],
        ..checkpointed()
    };
    for (dedup_until, resumes) in [(None, false), (Some(at(100).now), false), (Some(at(101).now), true)] {
        let step = claimed(Some(&entered(dedup_until)), 100, &payment(), "B");
        let resumed = matches!(step.answer, Answer::Decision(Decision::Resume(_)));
        assert_eq!(resumed, resumes, "{dedup_until:?}: {:?}", step.answer);
        if !resumes {
            assert!(matches!(written(step).state, State::Unknown { .. }));
        }
    }
}

#[test]
fn a_result_from_below_the_void_is_not_kept_and_completes_nothing() {
    let record = written(claimed(None, 0, &payment(), "A"));
    let first = record.fence;
    let voided = Fence::from_number(first.as_number() + 1);
    let state = State::FailedRetryable { settled_at: at(5).now, expires_at: at(3000).now };
    let record = Record { fence: voided, voided: Some(voided), state, ..record };
    for outcome in [Outcome::completed(Reply::new("paid")), Outcome::done_not_kept("too large")] {
        let step = machine::step(Some(&record), at(6), &Event::Settle { fence: first, outcome });
        assert_eq!((step.write, step.answer), (Write::Keep, Answer::Fenced));
    }
    let step = claimed(Some(&record), 7, &payment(), "B");
    assert_eq!(step.answer, Answer::Decision(Decision::Execute));
}

#[test]
fn a_tenure_that_takes_over_does_not_inherit_when_the_former_connection_was_closed() {
    let record = Record { closed_at: Some(at(3).now), ..checkpointed() };
    assert_eq!(written(claimed(Some(&record), 100, &payment(), "B")).closed_at, None);
}

#[test]
fn a_fingerprint_without_a_target_on_another_route_is_another_request() {
    let record = written(claimed(None, 0, &payment(), "A"));
    let outcome = Outcome::completed(Reply::new("paid"));
    let record =
        written(machine::step(Some(&record), at(1), &Event::Settle { fence: record.fence, outcome }));
    let by_hand = Fingerprint::new(ProfileId::from_bytes([9; 8]), [1; 32]);
    let answer = |route| claimed(Some(&record), 2, &claim_of(by_hand, route), "B").answer;
    assert_eq!(
        answer("POST /refunds"),
        Answer::Decision(Decision::Refuse(Refusal::Mismatch(Difference::Any)))
    );
    assert!(matches!(answer("POST /payments"), Answer::Decision(Decision::Replay(_))));
}
