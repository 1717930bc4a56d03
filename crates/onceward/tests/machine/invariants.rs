//! The invariants, each over arbitrary histories of one record.

use std::sync::Arc;
use std::time::Duration;

use onceward::event::{Answer, Decision, Event, Expiry, Finding, Moment, Refusal, Write};
use onceward::fingerprint::Difference;
use onceward::store::{Due, Filter, Store, StoreError};
use onceward::{
    Fence, MemoryStore, OnLapse, Outcome, Record, Reply, Timestamp,
    record::{State, StateKind},
};
use onceward_testkit::scenario::{Act, Answered, Deed, Door, Ending, StoreDoor};
use onceward_testkit::{VirtualClock, sample};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::arbitrary::{Happening, TICK, config, happening, moment, outcome, record, same_claim, unowned};

/// Something happens some time after what happened before.
#[derive(Debug, Clone)]
struct Turn {
    ticks: u32,
    act: Acted,
}

#[derive(Debug, Clone)]
enum Acted {
    Happening(Happening),
    /// One of the owners so far settles; most of them are late.
    Settle(Index, Outcome),
    /// One of the owners so far notes a committed phase.
    Checkpoint(Index),
}

fn history() -> impl Strategy<Value = Vec<Turn>> {
    let act = prop_oneof![
        4 => same_claim().prop_map(Acted::Happening),
        3 => unowned().prop_map(Acted::Happening),
        3 => (any::<Index>(), outcome()).prop_map(|(index, outcome)| Acted::Settle(index, outcome)),
        1 => any::<Index>().prop_map(Acted::Checkpoint),
        1 => happening().prop_map(Acted::Happening),
    ];
    prop::collection::vec((0_u32..3, act).prop_map(|(ticks, act)| Turn { ticks, act }), 1..40)
}

/// One key's record, and every tenure that was ever handed out on it.
struct World {
    now: Timestamp,
    record: Option<Record>,
    tenures: Vec<Fence>,
}

struct Transition {
    before: Option<Record>,
    at: Moment,
    happening: Happening,
    write: Write,
    answer: Answer,
}

impl World {
    const fn new() -> Self {
        Self { now: sample::START, record: None, tenures: Vec::new() }
    }

    fn take(&mut self, turn: &Turn) -> Transition {
        self.now = self.now.after(TICK * turn.ticks + Duration::from_micros(1));
        let owner = |index: &Index| match self.tenures.as_slice() {
            [] => Fence::from_number(1),
            tenures => *index.get(tenures),
        };
        let happening = match &turn.act {
            Acted::Happening(happening) => happening.clone(),
            Acted::Settle(index, outcome) => {
                Happening::Other(Event::Settle { fence: owner(index), outcome: outcome.clone() })
            }
            Acted::Checkpoint(index) => {
                Happening::Other(Event::Checkpoint { fence: owner(index), point: sample::point("charged") })
            }
        };
        let at = Moment { now: self.now, expiry_now: self.now };
        let step = happening.step(self.record.as_ref(), at);
        let before = self.record.clone();
        match &step.write {
            Write::Keep => {}
            Write::Put(next) => self.record = Some((**next).clone()),
            Write::Remove => self.record = None,
        }
        // An owner that claims its own tenure again gets no new one, and nothing is written.
        if let (Write::Put(next), Answer::Decision(Decision::Execute | Decision::Resume(_))) =
            (&step.write, &step.answer)
        {
            self.tenures.push(next.fence);
        }
        Transition { before, at, happening, write: step.write, answer: step.answer }
    }

    fn state(&self) -> &'static str {
        self.record.as_ref().map_or("none", |record| record.state.name())
    }
}

fn window_is_over(record: &Record, now: Timestamp) -> bool {
    match record.state {
        State::Completed { expires_at, .. } | State::FailedRetryable { expires_at, .. } => expires_at <= now,
        State::Expired { .. } => true,
        State::InProgress { .. } | State::Unknown { .. } => false,
    }
}

proptest! {
    #![proptest_config(config(1024))]

    #[test]
    fn invariant_01_at_most_one_execution_unless_a_verdict_or_a_declared_resume_stands_between_two(
        history in history()
    ) {
        let mut world = World::new();
        // Whether the next execution would be the first one, by what was declared so far.
        let mut free = true;
        for turn in &history {
            let seen = world.take(turn);
            free |= seen.before.as_ref().is_none_or(|before| window_is_over(before, seen.at.now));
            if let (Write::Put(_), Answer::Decision(decision)) = (&seen.write, &seen.answer) {
                let before = seen.before.as_ref();
                match decision {
                    Decision::Execute => prop_assert!(free, "executed twice"),
                    Decision::Resume(_) => {
                        let declared = before.is_some_and(|before| before.terms.on_lapse != OnLapse::Unknown);
                        prop_assert!(free || declared, "resumed without a declaration");
                    }
                    Decision::Replay(_) | Decision::Refuse(_) => {}
                }
                free &= matches!(decision, Decision::Replay(_) | Decision::Refuse(_));
            }
            free |= world.state() == "failed_retryable";
        }
        // A fence names one tenure and no other, whatever was swept in between.
        let rises = world.tenures.windows(2).all(|pair| pair[0] < pair[1]);
        prop_assert!(rises, "{:?}", world.tenures);
    }

    #[test]
    fn invariant_03_the_same_request_gets_the_same_answer_for_the_whole_window(history in history()) {
        let mut world = World::new();
        let mut promised: Option<(Arc<Reply>, Timestamp)> = None;
        for turn in &history {
            let seen = world.take(turn);
            let holds = promised.clone().filter(|(_, until)| seen.at.now < *until);
            let is_the_same = matches!(&seen.happening, Happening::Claim { fingerprint, .. }
                if *fingerprint == sample::fingerprint("x", None));
            let is_its_own = seen.before.as_ref().is_some_and(|before| {
                before.fingerprint == sample::fingerprint("x", None)
            });
            if let (Some((reply, _)), true, true) = (&holds, is_the_same, is_its_own) {
                prop_assert_eq!(&seen.answer, &Answer::Decision(Decision::Replay(reply.clone())));
            }
            promised = world.record.as_ref().and_then(|record| match &record.state {
                State::Completed { reply, .. } => Some((reply.clone(), record.published_expiry()?)),
                State::InProgress { .. }
                | State::FailedRetryable { .. }
                | State::Unknown { .. }
                | State::Expired { .. } => None,
            });
            // Only an operator shortens a promised retention.
            if let (Some((reply, until)), false) = (holds, matches!(seen.happening.event(), Event::Expire { .. })) {
                prop_assert_eq!(promised.clone(), Some((reply, until)));
            }
        }
    }

    #[test]
    fn invariant_04_a_mismatch_neither_executes_replays_nor_changes_anything(
        history in history(), body in "[a-w]{1,4}"
    ) {
        let mut world = World::new();
        for turn in &history {
            world.take(turn);
            let Some(record) = world.record.clone() else { continue };
            if window_is_over(&record, world.now) || record.fingerprint != sample::fingerprint("x", None) {
                continue;
            }
            let other = Happening::claim(&body, None, "A", record.terms.clone());
            let at = Moment { now: world.now, expiry_now: world.now };
            let step = other.step(Some(&record), at);
            let mismatch = Refusal::Mismatch(Difference::Content);
            prop_assert_eq!(step.answer, Answer::Decision(Decision::Refuse(mismatch)));
            prop_assert_eq!(step.write, Write::Keep);
        }
    }

    #[test]
    fn invariant_05_unknown_and_in_progress_are_never_swept_expired_or_replaced_whatever_their_age(
        record in record(),
        acts in prop::collection::vec((0_u64..100_000, prop_oneof![same_claim(), unowned()]), 1..20)
    ) {
        prop_assume!(matches!(record.state, State::InProgress { .. } | State::Unknown { .. }));
        let mut current = record.clone();
        let mut now = sample::START;
        for (days, happening) in acts {
            let event = happening.event();
            let knows = matches!(event, Event::Evidence { .. } | Event::Resolve { .. })
                || matches!(event, Event::Found { finding: Ok(Finding::Completed(_) | Finding::Voided(_)), .. });
            if knows {
                continue;
            }
            now = now.after(Duration::from_secs(days * 24 * 3600));
            let step = happening.step(Some(&current), Moment { now, expiry_now: now });
            match step.write {
                Write::Keep => {}
                Write::Remove => panic!("it was removed after {days} days"),
                Write::Put(next) => current = *next,
            }
            if let State::Completed { reply, .. } = &current.state {
                // Only evidence that was there already may end it.
                prop_assert_eq!(Some(reply), record.evidence.as_ref().map(|evidence| &evidence.reply));
                return Ok(());
            }
            let stands = matches!(current.state, State::InProgress { .. } | State::Unknown { .. });
            prop_assert!(stands, "it became {}", current.state.name());
            prop_assert_eq!(current.origin, record.origin, "it was replaced");
        }
    }

    #[test]
    fn invariant_07_a_write_with_an_old_fence_changes_no_state(
        history in history(), late in any::<Index>(), outcome in outcome()
    ) {
        let mut world = World::new();
        for turn in &history {
            world.take(turn);
        }
        let current = world.record.as_ref().map(|record| record.fence);
        let old: Vec<_> = world.tenures.iter().filter(|fence| Some(**fence) != current).copied().collect();
        prop_assume!(!old.is_empty());
        let fence = *late.get(&old);
        let at = Moment { now: world.now, expiry_now: world.now };
        for event in [
            Event::Renew { fence },
            Event::Checkpoint { fence, point: sample::point("late") },
            Event::Settle { fence, outcome },
        ] {
            let step = Happening::Other(event).step(world.record.as_ref(), at);
            prop_assert_eq!(step.answer, Answer::Fenced);
            if let Write::Put(next) = &step.write {
                let record = world.record.clone().expect("nothing makes a record but a claim");
                let kept = Record { evidence: record.evidence.clone(), doubt: record.doubt, ..(**next).clone() };
                prop_assert_eq!(kept, record);
            }
        }
    }

    #[test]
    fn invariant_10_once_faults_stop_every_record_is_settled_or_among_the_unknown(
        record in record(), at in moment(), soft in any::<bool>()
    ) {
        let expiry = if soft { Expiry::Soft } else { Expiry::Delete };
        let sweep = Happening::Other(Event::Sweep { expiry });
        let ends = record.due().1 < Timestamp::NEVER && at.now < Timestamp::NEVER;
        prop_assume!(ends || !matches!(record.state, State::InProgress { .. } | State::Unknown { .. }));
        // From here on only the sweeper acts, when something is due.
        let mut current = Some(record.clone());
        for _ in 0..3 {
            let Some(record) = current.clone() else { break };
            let (_, due_at) = record.due();
            let patience = match record.terms.on_lapse {
                OnLapse::Resume { within, .. } => within,
                OnLapse::Unknown => Duration::ZERO,
            };
            let now = due_at.max(at.now).after(patience);
            match sweep.step(Some(&record), Moment { now, expiry_now: now }).write {
                Write::Keep => {}
                Write::Put(next) => current = Some(*next),
                Write::Remove => current = None,
            }
        }
        let Some(record) = current else { return Ok(()) };
        prop_assert_ne!(record.state.name(), "in_progress");
        if let State::Unknown { letter, .. } = record.state {
            let list = Filter { state: Some(StateKind::Unknown), ..Filter::default() };
            prop_assert!(list.accepts(&record));
            // What is still asked after has a time when it is; a dead letter waits for an operator.
            let (due, due_at) = record.due();
            prop_assert_eq!(due, Due::Reconcile);
            prop_assert_eq!(letter == onceward::record::Letter::Dead, due_at == Timestamp::NEVER);
        }
    }
}

#[tokio::test]
async fn invariant_06_a_record_that_cannot_be_read_is_never_treated_as_absent() {
    let (id, store) = (sample::id(1), MemoryStore::default());
    let record = sample::full("k", sample::completed(sample::START));
    store.swap(id, None, record.clone()).await.unwrap();
    let mut length = 0;
    store.damage(id, |bytes| length = bytes.len());
    let unreadable = |error: StoreError| matches!(error, StoreError::Unreadable { .. });
    type Damage = Box<dyn Fn(&mut Vec<u8>)>;
    let mut damages: Vec<Damage> = vec![
        Box::new(|bytes| bytes.clear()),
        Box::new(|bytes| bytes[0] = 1),
        Box::new(move |bytes| sample::as_of_a_newer_format(id, bytes)),
        Box::new(|bytes| bytes.push(0)),
    ];
    for at in 0..length {
        damages.push(Box::new(move |bytes| bytes[at] ^= 0x10));
    }
    for damage in damages {
        let mut whole = Vec::new();
        store.damage(id, |bytes| {
            whole.clone_from(bytes);
            damage(bytes);
        });
        assert!(unreadable(store.load(id).await.unwrap_err()));
        // A first claim is a swap that expects absence: it must meet the damage, and never take the key.
        assert!(unreadable(store.swap(id, None, sample::record("new")).await.unwrap_err()));
        store.damage(id, |bytes| *bytes = whole);
    }
    assert_eq!(store.load(id).await.unwrap().record.unwrap().record, record);
}

/// What a tenant does, in the fewest words that reach every state.
fn deed(number: u8) -> Deed {
    let answered = || Answered { status: 201, body: "paid".to_owned() };
    match number {
        0 => Deed::Settle(Ending::Completed(answered())),
        1 => Deed::Settle(Ending::Retryable),
        2 => Deed::Settle(Ending::Unknown(onceward::record::Cause::Lost)),
        3 => Deed::Evidence(answered()),
        4 => Deed::Resolve(Ending::Retryable),
        5 => Deed::Expire { after: Duration::ZERO },
        6 => Deed::Sweep(Expiry::Delete),
        7 => Deed::Sweep(Expiry::Soft),
        _ => Deed::Claim {
            body: "x".to_owned(),
            rules: None,
            target: None,
            terms: onceward::Terms::default(),
            format: onceward::record::RecordFormat::Two,
            receipts: onceward::record::Receipts::None,
        },
    }
}

/// The answers that one tenant gets, in a store where these tenants act.
async fn answers(acts: &[(&'static str, u32, u8)], tenant: &str, present: &[&str]) -> Vec<String> {
    let clock = Arc::new(VirtualClock::standing_at(sample::START));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::with_clock(clock.clone()));
    let mut door = StoreDoor::new(store, clock);
    let (mut elapsed, mut answers) = (Duration::ZERO, Vec::new());
    let mut fences = std::collections::BTreeMap::new();
    for (number, (scope, ticks, which)) in acts.iter().enumerate() {
        elapsed += TICK * *ticks;
        if !present.contains(scope) {
            continue;
        }
        door.wait_until(elapsed, Duration::ZERO).await;
        let act = Act {
            actor: format!("{number}"),
            scope: (*scope).to_owned(),
            key: "the same key".to_owned(),
            tenure: None,
            deed: deed(*which),
        };
        let answer = door.act(&act, fences.get(scope).copied()).await;
        fences.extend(answer.tenure.map(|(fence, _)| (*scope, fence)));
        if *scope == tenant {
            answers.push(format!("{answer:?}"));
        }
    }
    answers
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn invariant_08_no_answer_depends_on_another_scopes_records(
        acts in prop::collection::vec(
            (prop::sample::select(vec!["acme", "globex", "acme,globex"]), 0_u32..4, 0_u8..14), 1..30
        )
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let alone = answers(&acts, "acme", &["acme"]).await;
            let among_others = answers(&acts, "acme", &["acme", "globex", "acme,globex"]).await;
            prop_assert_eq!(alone, among_others);
            Ok(())
        })?;
    }
}
