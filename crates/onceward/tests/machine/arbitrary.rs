//! Arbitrary records, events and times. Times come from a narrow range, so that boundaries are met and not only passed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onceward::event::{
    Barrier, Control, Event, Expiry, FindStart, FindTerms, Finding, Moment, Resolution, Step,
};
use onceward::{
    Claim, Fence, Fingerprint, Key, OnLapse, Outcome, Record, RecoveryPoint, Reply, Scope, Terms, Timestamp,
    claim::OwnerToken,
    key::NamespaceHash,
    machine,
    outcome::{Evidence, Verdict, Void},
    record::{Absence, Cause, Doubt, Extension, Letter, RecordFormat, State},
};
use onceward_testkit::sample;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Half a minute: the terms below are a few of these, so that leases and windows end among the drawn times.
pub const TICK: Duration = Duration::from_secs(30);

/// Every run draws the same cases, so that a failure can be reproduced.
pub fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        max_global_rejects: cases * 64,
        rng_seed: RngSeed::Fixed(0x0ce0_ced0),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

pub fn tick(count: u32) -> Timestamp {
    sample::START.after(TICK * count)
}

pub fn timestamp() -> impl Strategy<Value = Timestamp> {
    prop_oneof![
        20 => (0_u32..12, 0_u64..3).prop_map(|(ticks, micros)| tick(ticks).after(Duration::from_micros(micros))),
        1 => Just(Timestamp::from_micros(0)),
        1 => Just(Timestamp::NEVER),
    ]
}

/// Expiry is sometimes held back.
pub fn moment() -> impl Strategy<Value = Moment> {
    (timestamp(), prop_oneof![3 => Just(0), 1 => 1_u64..400]).prop_map(|(now, behind)| Moment {
        now,
        expiry_now: Timestamp::from_micros(now.as_micros().saturating_sub(behind * 1_000_000)),
    })
}

pub fn terms() -> impl Strategy<Value = Terms> {
    let on_lapse = prop_oneof![
        Just(OnLapse::Unknown),
        (2_u32..4, 1_u32..4).prop_map(|(attempts, ticks)| OnLapse::Resume { attempts, within: TICK * ticks }),
    ];
    (1_u32..3, on_lapse, 1_u32..5, 0_u32..3).prop_map(|(lease, on_lapse, retention, grace)| Terms {
        lease: TICK * lease,
        on_lapse,
        retention: TICK * retention,
        grace: TICK * grace,
    })
}

pub fn reply() -> impl Strategy<Value = Arc<Reply>> {
    prop::sample::select(vec![
        sample::reply(201, "one"),
        sample::reply(402, "two"),
        sample::reply(500, "three"),
    ])
}

pub fn cause() -> impl Strategy<Value = Cause> {
    prop_oneof![Just(Cause::Lost), Just(Cause::Said), Just(Cause::DoneNotKept)]
}

pub fn state() -> impl Strategy<Value = State> {
    let letter = prop_oneof![Just(Letter::Live), Just(Letter::Dead)];
    prop_oneof![
        timestamp().prop_map(|lease_until| State::InProgress { lease_until }),
        (reply(), timestamp(), timestamp()).prop_map(|(reply, settled_at, expires_at)| State::Completed {
            reply,
            settled_at,
            expires_at
        }),
        (timestamp(), timestamp())
            .prop_map(|(settled_at, expires_at)| State::FailedRetryable { settled_at, expires_at }),
        (timestamp(), timestamp(), prop_oneof![0_u32..5, Just(u32::MAX)], letter, cause()).prop_map(
            |(since, due_at, probes, letter, cause)| State::Unknown { since, due_at, probes, letter, cause }
        ),
        (prop::option::of(200_u16..600), timestamp())
            .prop_map(|(status, expires_at)| State::Expired { status, expires_at }),
    ]
}

/// Three fences around the beginning, in the order that records keep: opened, origin, fence.
fn fences() -> impl Strategy<Value = [Fence; 3]> {
    prop::array::uniform3(0_u64..4).prop_map(|mut steps| {
        steps.sort_unstable();
        steps.map(|step| Fence::from_number(sample::START.as_micros() + step))
    })
}

fn fence() -> impl Strategy<Value = Fence> {
    (0_u64..5).prop_map(|step| Fence::from_number(sample::START.as_micros() + step))
}

fn point() -> impl Strategy<Value = RecoveryPoint> {
    prop::sample::select(vec![sample::point("ride_created"), sample::point("charged")])
}

fn owner() -> impl Strategy<Value = OwnerToken> {
    prop::sample::select(vec![OwnerToken::named("A"), OwnerToken::named("B")])
}

pub fn record() -> impl Strategy<Value = Record> {
    let evidence =
        (fence(), reply(), timestamp()).prop_map(|(fence, reply, at)| Evidence { fence, reply, at });
    let verdict = Verdict { by: "ops".to_owned(), reason: "saw it".to_owned(), at: sample::START };
    (
        (state(), terms(), fences(), owner(), prop_oneof![1_u32..5, Just(u32::MAX)]),
        (prop::option::of(point()), prop::option::of(evidence), prop::option::of(Just(verdict)), timestamp()),
        prop::option::weighted(0.3, (timestamp(), cause()).prop_map(|(since, cause)| Doubt { since, cause })),
        (prop::option::weighted(0.2, fence()), extensions(), prop::option::of(absence())),
    )
        .prop_map(
            |(
                (state, terms, fences, owner, attempt),
                (recovery_point, evidence, verdict, created_at),
                doubt,
                (voided, extensions, absence),
            )| {
                let [opened, origin, fence] = fences;
                Record {
                    fingerprint: sample::fingerprint("x", None),
                    terms,
                    created_at,
                    opened,
                    origin,
                    fence,
                    owner,
                    attempt,
                    recovery_point,
                    evidence,
                    verdict,
                    // An earlier attempt was lost after the claim.
                    doubt: doubt.map(|doubt| Doubt { since: doubt.since.max(created_at), ..doubt }),
                    voided,
                    extensions,
                    // Only a tenure's own absences were seen under its fence.
                    absence: absence.map(|absence| Absence { fence, ..absence }),
                    ..sample::in_state("k", state)
                }
            },
        )
}

fn absence() -> impl Strategy<Value = Absence> {
    (0_u32..4, timestamp(), fence()).prop_map(|(count, first_at, fence)| Absence { count, first_at, fence })
}

/// Half of the records are of work that commits receipts.
fn extensions() -> impl Strategy<Value = Vec<Extension>> {
    let kept = Extension { tag: 2, critical: true, data: Bytes::new() };
    prop_oneof![Just(Vec::new()), Just(vec![kept])]
}

/// An event that owns what the machine's own borrows.
#[derive(Debug, Clone)]
pub enum Happening {
    Claim { claim: Box<Claim>, owner: OwnerToken, fingerprint: Fingerprint },
    Other(Event<'static>),
}

impl Happening {
    pub fn claim(body: &str, rules: Option<&str>, owner: &str, terms: Terms) -> Self {
        let fingerprint = sample::fingerprint(body, rules);
        let claim = Claim::new(Scope::new("acme").unwrap(), Key::new("k").unwrap(), fingerprint);
        Self::Claim {
            claim: Box::new(claim.terms(terms).unwrap()),
            owner: OwnerToken::named(owner),
            fingerprint,
        }
    }

    pub fn event(&self) -> Event<'_> {
        match self {
            Self::Claim { claim, owner, .. } => {
                let namespace = NamespaceHash::from_bytes([7; 16]);
                Event::Claim { claim, owner: *owner, label: "k", format: RecordFormat::Two, namespace }
            }
            Self::Other(event) => event.clone(),
        }
    }

    pub fn step(&self, record: Option<&Record>, at: Moment) -> Step {
        machine::step(record, at, &self.event())
    }
}

pub fn same_claim() -> impl Strategy<Value = Happening> {
    (prop::sample::select(vec!["A", "B", "C"]), terms())
        .prop_map(|(owner, terms)| Happening::claim("x", None, owner, terms))
}

pub fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        reply().prop_map(Outcome::Completed),
        Just(Outcome::Retryable("connection refused".to_owned())),
        Just(Outcome::lost("timed out")),
        Just(Outcome::done_not_kept("too large")),
        void().prop_map(|void| Outcome::Voided { void, why: "timed out".to_owned() }),
    ]
}

fn void() -> impl Strategy<Value = Void> {
    (fence(), prop::option::of(point())).prop_map(|(fence, point)| Void { fence, point })
}

fn finding() -> impl Strategy<Value = Result<Finding, String>> {
    let why = || "nobody can tell".to_owned();
    prop_oneof![
        reply().prop_map(|reply| Ok(Finding::Completed(reply))),
        Just(Ok(Finding::DoneNotKept(why()))),
        Just(Ok(Finding::Absent)),
        Just(Ok(Finding::Absent)),
        void().prop_map(|void| Ok(Finding::AbsentAndVoided(void))),
        void().prop_map(|void| Ok(Finding::Voided(void))),
        void().prop_map(|void| Ok(Finding::Voided(void))),
        void().prop_map(|void| Ok(Finding::Voided(void))),
        Just(Ok(Finding::Inconclusive(why()))),
        Just(Ok(Finding::Ambiguous(why()))),
        Just(Err(why())),
    ]
}

/// What an owner does, under any fence.
pub fn owned() -> impl Strategy<Value = Happening> {
    prop_oneof![
        1 => fence().prop_map(|fence| Event::Renew { fence }),
        1 => (fence(), point()).prop_map(|(fence, point)| Event::Checkpoint { fence, point }),
        3 => (fence(), outcome()).prop_map(|(fence, outcome)| Event::Settle { fence, outcome }),
    ]
    .prop_map(Happening::Other)
}

fn found() -> impl Strategy<Value = Event<'static>> {
    let absent_after = prop::option::of((0_u32..4).prop_map(|ticks| TICK * ticks));
    let control = prop_oneof![3 => Just(Control::Made), 1 => Just(Control::None)];
    (fence(), finding(), control, 0_u32..3, 0_u32..4, absent_after).prop_map(
        |(fence, finding, control, ticks, attempts, after)| {
            let terms = FindTerms::default().attempts(attempts).backoff(TICK * ticks).absent_after(after);
            Event::Found { fence, finding, control, terms, by: "a finder" }
        },
    )
}

/// Events of neither a claimant nor an owner.
pub fn unowned() -> impl Strategy<Value = Happening> {
    let verdict = prop_oneof![reply().prop_map(Resolution::Completed), Just(Resolution::Retryable)];
    let expiry = prop_oneof![Just(Expiry::Delete), Just(Expiry::Soft)];
    prop_oneof![
        prop::sample::select(vec!["A", "B", "completer"])
            .prop_map(|owner| Event::Resume { owner: OwnerToken::named(owner) }),
        reply().prop_map(|reply| Event::Evidence { fence: None, reply, by: "webhook".to_owned() }),
        (fence(), 0_u32..3, any::<bool>()).prop_map(|(fence, ticks, due)| Event::Find {
            fence,
            hold: TICK * ticks,
            start: if due { FindStart::WhenDue } else { FindStart::Now },
        }),
        found(),
        found(),
        found(),
        (0_u32..3).prop_map(|ticks| Event::GiveUp { after: TICK * ticks }),
        verdict.prop_map(|verdict| {
            Event::Resolve {
                fence: None,
                verdict,
                barrier: Barrier::None,
                by: "ops".to_owned(),
                reason: "saw it".to_owned(),
            }
        }),
        (0_u32..3).prop_map(|ticks| Event::Expire { opened: None, after: TICK * ticks }),
        expiry.prop_map(|expiry| Event::Sweep { expiry }),
    ]
    .prop_map(Happening::Other)
}

pub fn happening() -> impl Strategy<Value = Happening> {
    let other_claim = prop_oneof![Just(("y", None)), Just(("x", Some("new"))), Just(("y", Some("new")))];
    let other_claim =
        (other_claim, terms()).prop_map(|((body, rules), terms)| Happening::claim(body, rules, "B", terms));
    prop_oneof![3 => same_claim(), 1 => other_claim, 4 => owned(), 4 => unowned()]
}
