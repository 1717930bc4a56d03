//! Two doors: the machine over a map, and the machine over any store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use onceward::event::{Answer, Barrier, Decision, Event, Finding, Moment, Resolution, Step, Write};
use onceward::store::{Seen, Stamped, Store, Swapped};
use onceward::{
    Claim, Fence, Identity, Key, Outcome, Record, RecordId, RecoveryPoint, Reply, Scope, Timestamp,
    claim::OwnerToken,
    key::NamespaceHash,
    machine,
    outcome::{Unsure, Void},
    record::{Naming, State},
    store::Clock,
};

use super::run::Silence;
use super::{Act, Answered, Deed, Door, Ending, FoundOut, Observed, Reaction, Voiding};
use crate::{VirtualClock, sample};

/// Why something is so, in a script.
const WHY: &str = "as the script says";

/// Whose records a script's are.
const NAMESPACE: NamespaceHash = NamespaceHash::from_bytes([7; 16]);

/// The pure machine over a map: no store, no clock, no engine.
#[derive(Debug, Default)]
pub struct MachineDoor {
    records: BTreeMap<(String, String), Record>,
    elapsed: Duration,
    ahead: Duration,
}

impl Door for MachineDoor {
    async fn wait_until(&mut self, at: Duration, ahead: Duration) {
        (self.elapsed, self.ahead) = (at, ahead);
    }

    async fn act(&mut self, act: &Act, fence: Option<Fence>) -> Observed {
        let name = (act.scope.clone(), act.key.clone());
        let record = self.records.get(&name);
        let Some(request) = Request::of(act, fence) else {
            return observed(None, record);
        };
        let now = sample::START.after(self.elapsed).after(self.ahead);
        let step = machine::step(record, moment(now, self.ahead), &request.event(record));
        match &step.write {
            Write::Keep => {}
            Write::Put(next) => {
                self.records.insert(name.clone(), (**next).clone());
            }
            Write::Remove => {
                self.records.remove(&name);
            }
        }
        observed(Some(step), self.records.get(&name))
    }
}

/// The machine over a store: load, decide, swap; on a conflict decide again.
pub struct StoreDoor {
    store: Arc<dyn Store>,
    clock: Arc<VirtualClock>,
    identity: Identity,
    ahead: Duration,
    /// What each actor has read and not yet acted on.
    read: BTreeMap<String, Seen>,
}

impl StoreDoor {
    /// A door to this store, which must be empty and use this clock.
    pub fn new(store: Arc<dyn Store>, clock: Arc<VirtualClock>) -> Self {
        let identity = Identity::in_namespace("scenarios").scoped_by("fixed").expect("both names are short");
        Self { store, clock, identity, ahead: Duration::ZERO, read: BTreeMap::new() }
    }

    async fn load(&self, id: RecordId) -> Seen {
        self.store.load(id).await.expect("a healthy store loads")
    }

    /// Applies a step's write, or returns the record that it conflicted with.
    async fn write(&self, id: RecordId, seen: &Seen, write: &Write) -> Result<(), Seen> {
        let expect = seen.record.as_ref().map(|stamped| stamped.version);
        match (write, expect) {
            (Write::Keep, _) | (Write::Remove, None) => Ok(()),
            (Write::Put(next), expect) => {
                match self.store.swap(id, expect, (**next).clone()).await.expect("a healthy store swaps") {
                    Swapped::Applied { .. } => Ok(()),
                    Swapped::Conflict(seen) => Err(seen),
                }
            }
            (Write::Remove, Some(version)) => {
                match self.store.forget(vec![(id, version)]).await.expect("a healthy store forgets") {
                    0 => Err(self.load(id).await),
                    _ => Ok(()),
                }
            }
        }
    }
}

impl Door for StoreDoor {
    async fn wait_until(&mut self, at: Duration, ahead: Duration) {
        self.ahead = ahead;
        self.clock.set(sample::START.after(at).after(ahead));
    }

    async fn act(&mut self, act: &Act, fence: Option<Fence>) -> Observed {
        let scope = Scope::new(&act.scope).expect("a script's scope is short");
        let key = Key::new(&act.key).expect("a script's key is a key");
        let id = self.identity.id_of(&scope, &key);
        let Some(request) = Request::of(act, fence) else {
            let seen = self.load(id).await;
            let observed = observed(None, seen.record.as_ref().map(|stamped| &stamped.record));
            self.read.insert(act.actor.clone(), seen);
            return observed;
        };
        let mut seen = match self.read.remove(&act.actor) {
            Some(stale) => Seen { now: self.clock.now(), ..stale },
            None => self.load(id).await,
        };
        loop {
            let record = seen.record.as_ref().map(|stamped: &Stamped| &stamped.record);
            let step = machine::step(record, moment(seen.now, self.ahead), &request.event(record));
            match self.write(id, &seen, &step.write).await {
                Ok(()) => {
                    let now = self.load(id).await.record.map(|stamped| stamped.record);
                    return observed(Some(step), now.as_ref());
                }
                Err(winner) => seen = winner,
            }
        }
    }
}

fn moment(now: Timestamp, ahead: Duration) -> Moment {
    let ahead = u64::try_from(ahead.as_micros()).unwrap_or(u64::MAX);
    Moment { now, expiry_now: Timestamp::from_micros(now.as_micros().saturating_sub(ahead)) }
}

/// The result of a step, or of a read, that left this record.
fn observed(step: Option<Step>, record: Option<&Record>) -> Observed {
    let state = Some(record.map_or("none", |record| record.state.name()));
    let facts = record.map(facts).unwrap_or_default();
    let Some(step) = step else {
        return Observed { reaction: Reaction::Read, tenure: None, state, facts, alarm: None };
    };
    let tenure = match &step.answer {
        Answer::Decision(Decision::Execute | Decision::Resume(_)) => {
            record.map(|record| (record.fence, record.attempt))
        }
        Answer::Decision(Decision::Replay(_) | Decision::Refuse(_))
        | Answer::Applied
        | Answer::AlreadySettled(_)
        | Answer::Fenced
        | Answer::Conflict
        | Answer::Lapsed
        | Answer::Swept
        | Answer::Left => None,
    };
    Observed {
        reaction: Reaction::Answer(step.answer),
        tenure,
        state,
        facts,
        alarm: Some(step.notice.ok_or(Silence)),
    }
}

/// What scripts may assert of a record besides its state.
fn facts(record: &Record) -> Vec<(&'static str, String)> {
    let yes_or_no = |is_so: bool| if is_so { "yes" } else { "no" }.to_owned();
    let naming = match record.naming {
        Naming::Bare => "bare",
        Naming::Windowed => "windowed",
    };
    let mut facts = vec![
        ("doubt", yes_or_no(record.doubt.is_some())),
        ("voided", yes_or_no(record.voided.is_some())),
        ("naming", naming.to_owned()),
    ];
    if let State::Unknown { since, cause, .. } = &record.state {
        facts.push(("cause", cause.name().to_owned()));
        facts.push(("since", format!("{}s", since.since(sample::START).as_secs())));
    }
    facts
}

/// An act as the machine takes it; it keeps what an event only borrows.
struct Request<'a> {
    act: &'a Act,
    /// The tenure that the act names.
    fence: Option<Fence>,
    claim: Claim,
}

impl<'a> Request<'a> {
    /// Nothing for an act that only reads.
    fn of(act: &'a Act, fence: Option<Fence>) -> Option<Self> {
        let scope = Scope::new(&act.scope).expect("a script's scope is short");
        let key = Key::new(&act.key).expect("a script's key is a key");
        let claim = |body: &str, rules: Option<&str>, target: Option<&str>| {
            let fingerprint = sample::fingerprint(body, rules);
            let fingerprint = target.map_or(fingerprint, |name| fingerprint.at(sample::target(name)));
            Claim::new(scope.clone(), key.clone(), fingerprint)
        };
        let claim = match &act.deed {
            Deed::Read => return None,
            Deed::Claim { body, rules, target, terms, receipts, .. } => {
                claim(body, rules.as_deref(), target.as_deref())
                    .route(target.as_deref().unwrap_or("default"))
                    .and_then(|claim| claim.terms(terms.clone()))
                    .expect("a script's terms and target make sense")
                    .receipts(*receipts)
            }
            Deed::Resume
            | Deed::Renew
            | Deed::Checkpoint { .. }
            | Deed::Settle(_)
            | Deed::Evidence(_)
            | Deed::Ask { .. }
            | Deed::Found { .. }
            | Deed::GiveUp { .. }
            | Deed::Resolve(_)
            | Deed::Expire { .. }
            | Deed::Sweep(_) => claim("", None, None),
        };
        Some(Self { act, fence, claim })
    }

    /// The event. An act that names no tenure is about the record's.
    fn event(&self, record: Option<&Record>) -> Event<'_> {
        let owner = OwnerToken::named(&self.act.actor);
        let fence = self.fence.or(record.map(|record| record.fence)).unwrap_or(Fence::from_number(0));
        let by = self.act.actor.clone();
        match &self.act.deed {
            Deed::Claim { format, .. } => {
                let (claim, label) = (&self.claim, self.act.key.as_str());
                Event::Claim { claim, owner, label, format: *format, namespace: NAMESPACE }
            }
            // A read has no event; resuming with an unused token is the nearest that changes nothing.
            Deed::Read | Deed::Resume => Event::Resume { owner },
            Deed::Renew => Event::Renew { fence },
            Deed::Checkpoint { point, data } => {
                let point =
                    RecoveryPoint::new(point, data.clone()).expect("a script's recovery point is short");
                Event::Checkpoint { fence, point }
            }
            Deed::Settle(ending) => Event::Settle {
                fence,
                outcome: match ending {
                    Ending::Completed(answered) => Outcome::Completed(reply(answered)),
                    Ending::Retryable => Outcome::Retryable(WHY.to_owned()),
                    Ending::Voided(voiding) => {
                        Outcome::Voided { void: void(fence, voiding), why: WHY.to_owned() }
                    }
                    Ending::Unknown(cause) => Outcome::Unknown(Unsure::new(*cause, WHY)),
                },
            },
            Deed::Evidence(answered) => Event::Evidence { fence: None, reply: reply(answered), by },
            Deed::Ask { hold, start } => Event::Find { fence, hold: *hold, start: *start },
            Deed::Found { finding, control, terms } => {
                let finding = finding.as_ref().map(|finding| found(fence, finding));
                let finding = finding.ok_or_else(|| "the service did not answer".to_owned());
                Event::Found { fence, finding, control: *control, terms: *terms, by: &self.act.actor }
            }
            Deed::GiveUp { after } => Event::GiveUp { after: *after },
            Deed::Resolve(ending) => Event::Resolve {
                fence: None,
                verdict: match ending {
                    Ending::Completed(answered) => Resolution::Completed(reply(answered)),
                    Ending::Retryable | Ending::Unknown(_) | Ending::Voided(_) => Resolution::Retryable,
                },
                barrier: Barrier::None,
                by,
                reason: WHY.to_owned(),
            },
            Deed::Expire { after } => Event::Expire { opened: None, after: *after },
            Deed::Sweep(expiry) => Event::Sweep { expiry: *expiry },
        }
    }
}

fn found(fence: Fence, finding: &FoundOut) -> Finding {
    match finding {
        FoundOut::Completed(answered) => Finding::Completed(reply(answered)),
        FoundOut::Done => Finding::DoneNotKept(WHY.to_owned()),
        FoundOut::Absent(None) => Finding::Absent,
        FoundOut::Absent(Some(voiding)) => Finding::AbsentAndVoided(void(fence, voiding)),
        FoundOut::Voided(voiding) => Finding::Voided(void(fence, voiding)),
        FoundOut::Inconclusive => Finding::Inconclusive(WHY.to_owned()),
        FoundOut::Ambiguous => Finding::Ambiguous(WHY.to_owned()),
    }
}

fn void(fence: Fence, Voiding { raised, point }: &Voiding) -> Void {
    let point = point
        .as_ref()
        .map(|name| RecoveryPoint::new(name, String::new()).expect("a script's recovery point is short"));
    Void { fence: Fence::from_number(fence.as_number() + raised), point }
}

fn reply(answered: &Answered) -> Arc<Reply> {
    Arc::new(Reply::new(answered.body.clone()).with_status(answered.status))
}
