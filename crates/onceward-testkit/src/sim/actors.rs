//! The actors of a history: clients that retry, an operator, and a source of faults.

use std::sync::Arc;
use std::time::Duration;

use onceward::event::{FindTerms, Resolution};
use onceward::fingerprint::Target;
use onceward::plumbing::time::{instant, sleep};
use onceward::store::{Filter, Scan, Version, Which};
use onceward::{
    Claim, Engine, EngineBuilder, Fence, Fingerprint, Identity, Key, Limits, Outcome, Ran, RecordId, Reply,
    Scope, Sweeping, Terms, Timestamp,
    engine::{Instance, Observation, Observer, Resolve},
    fingerprint::ProfileId,
    receipts::{ReceiptFinder, ReceiptTable},
    record::{Cause, Receipts, State},
};

use super::mutant::Mutant;
use super::plan::{CACHE_REVALIDATE, Plan};
use super::process::Process;
use super::receipts::{CheckedFinder, TableConnection, UserDatabase};
use super::sometimes::Sometimes;
use super::store::{Connection, Database, Stalled};
use super::worker::Worker;
use super::world::{AskedFor, OPERATOR, World, route_of};
use super::{SharedLock, TrueClock};

/// The namespace of every engine.
const NAMESPACE: &str = "simulation";

/// How far the store's clock jumps: well beyond what expiry trusts, and short enough to be sat out at the end.
pub const JUMP: Duration = Duration::from_secs(6 * 60);

/// Everything that acts.
#[derive(Clone)]
pub struct Cast {
    pub plan: Arc<Plan>,
    pub world: SharedLock<World>,
    pub database: Arc<Database>,
    pub user: Arc<UserDatabase>,
    pub nodes: SharedLock<Vec<Option<Node>>>,
    pub mutant: Mutant,
    pub instances: SharedLock<u64>,
}

/// One life of a process with its engine.
#[derive(Clone)]
pub struct Node {
    pub engine: Engine,
    pub process: Arc<Process>,
    pub instance: u64,
    pub finder: Option<Arc<ReceiptFinder>>,
}

struct Watch(SharedLock<World>);

impl Observer for Watch {
    fn observe(&self, _: &str, id: RecordId, what: Observation) {
        self.0.lock().observed(id, what);
    }
}

/// What a client asks for.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    pub scope: u64,
    pub key: u64,
    pub body: u64,
    /// Where it goes. Each target has fingerprint rules of its own.
    pub target: u64,
}

impl Cast {
    /// Starts a process. While the store is away, opening is retried.
    pub async fn start(&self) -> Node {
        let process = Arc::new(Process::default());
        let store = Arc::new(Connection { database: self.database.clone(), process: process.clone() });
        loop {
            let instance = {
                let mut next = self.instances.lock();
                *next += 1;
                *next
            };
            let finder = self.finder(&process).map(Arc::new);
            let builder = self.builder(store.clone(), instance);
            let builder = match (&finder, &self.plan.receipts) {
                (Some(finder), Some(receipts)) => {
                    let (world, database) = (self.world.clone(), self.database.clone());
                    let checked = CheckedFinder { finder: finder.clone(), world, database };
                    builder.reconciler(Arc::new(checked)).reconciling(receipts.reconciling())
                }
                _ => builder,
            };
            match builder.open(identity()).await {
                Ok(engine) => return Node { engine, process, instance, finder },
                Err(_) => sleep(Duration::from_millis(200)).await,
            }
        }
    }

    fn builder(&self, store: Arc<Connection>, instance: u64) -> EngineBuilder {
        let (world, mutant) = (self.world.clone(), self.mutant);
        let mut random = self.world.lock().random.clone();
        Engine::builder(store)
            .instance(Instance::named(instance))
            .clock(Arc::new(TrueClock(self.database.clone())))
            .observer(Arc::new(Watch(self.world.clone())))
            .limits(
                Limits::default()
                    .executions(64)
                    .attached(64)
                    .lost_claims(64)
                    .cache_bytes(20_000)
                    .cache_revalidate(CACHE_REVALIDATE)
                    .reply_bytes(1024)
                    .claim_patience(Duration::from_millis(700))
                    .settle_patience(Duration::from_secs(1))
                    .settle_give_up(Duration::from_secs(6))
                    .linger(Duration::from_secs(5)),
            )
            .sweeping(
                Sweeping::default()
                    .leases_every(random.millis(300, 1500))
                    .expired_every(random.millis(200, 1500))
                    .batch(random.between(1, 8) as usize)
                    .pause(Duration::from_millis(10))
                    .expiry(self.plan.expiry),
            )
            .machine(move |record, at, event| {
                let step = mutant.step(record, at, event);
                world.lock().stepped(record, at, event, &step);
                step
            })
    }

    /// What finds outcomes out by receipt rows, where handlers write them.
    fn finder(&self, process: &Arc<Process>) -> Option<ReceiptFinder> {
        let receipts = self.plan.receipts.as_ref()?;
        let connection: Arc<dyn ReceiptTable> = Arc::new(TableConnection {
            user: self.user.clone(),
            process: process.clone(),
            world: self.world.clone(),
            database: self.database.clone(),
            mutant: self.mutant,
        });
        let targets = (0..2).filter(|target| self.plan.receipts_of(*target).is_some());
        Some(targets.fold(
            ReceiptFinder::new(Identity::in_namespace(NAMESPACE), &receipts.reconciling()),
            |finder, target| finder.route(&route_of(target), connection.clone(), receipts.terms),
        ))
    }

    pub fn node(&self) -> Option<Node> {
        let nodes = self.nodes.lock().clone();
        let start = self.world.lock().random.below(nodes.len() as u64) as usize;
        (0..nodes.len()).find_map(|offset| nodes[(start + offset) % nodes.len()].clone())
    }

    pub fn draw<T>(&self, draw: impl FnOnce(&mut World) -> T) -> T {
        draw(&mut self.world.lock())
    }

    /// A client that sends a request, times out, disconnects, and retries.
    pub async fn client(self) {
        for _ in 0..self.plan.requests {
            let request = self.draw(|world| Request {
                scope: world.random.below(self.plan.scopes),
                key: world.random.below(self.plan.keys),
                body: u64::from(world.random.permille(world.chances.other_body)),
                target: u64::from(world.random.permille(world.chances.other_target)),
            });
            for _ in 0..3 {
                let gap = self.draw(|world| world.random.millis(0, 2500));
                sleep(gap).await;
                let Some(node) = self.node() else { continue };
                let terms = self.draw(|world| self.plan.terms(&mut world.random));
                let patience = self.draw(|world| {
                    let leaves = world.random.permille(world.chances.disconnect);
                    if leaves { world.random.millis(1, 800) } else { Duration::from_secs(9) }
                });
                if self.ask(&node, request, terms, patience).await == ClientAnswer::Answer {
                    break;
                }
            }
        }
    }

    /// One request. The client's answer is compared with what really happened.
    pub async fn ask(&self, node: &Node, request: Request, terms: Terms, patience: Duration) -> ClientAnswer {
        let Ok(claim) = claim(request, terms, &self.plan) else { return ClientAnswer::Nothing };
        let asked = self.database.true_now();
        self.world.lock().answers.asked += 1;
        let asked_for = AskedFor { body: request.body, target: request.target };
        let worker = Worker::new(self.clone(), node.process.clone(), asked_for);
        let run = node.engine.run(claim, move |operation| worker.work(operation));
        let answered = async {
            let ran = run.await;
            node.process.pass().await;
            ran
        };
        let ran = tokio::select! {
            biased;
            ran = answered => ran,
            () = sleep(patience) => return ClientAnswer::Nothing,
        };
        let now = self.database.true_now();
        let mut world = self.world.lock();
        match ran {
            Ok(Ran::Executed { reply, expires_at } | Ran::Replayed { reply, expires_at }) => {
                let number = std::str::from_utf8(&reply.body).ok().and_then(|text| text.parse().ok());
                let answer = (number.unwrap_or(u64::MAX), expires_at);
                world.answered(now, asked, (id_of(request), asked_for), answer);
                ClientAnswer::Answer
            }
            Ok(Ran::Refused(refusal)) => {
                world.answers.refused += 1;
                match refusal {
                    onceward::Refusal::Mismatch(_) => ClientAnswer::Mismatch,
                    onceward::Refusal::Unknown { .. } | onceward::Refusal::Incomparable => {
                        ClientAnswer::Unknown
                    }
                    onceward::Refusal::InProgress { .. } => ClientAnswer::InProgress,
                }
            }
            Ok(Ran::Retryable(_)) => ClientAnswer::Retryable,
            Ok(Ran::Unknown(_)) => ClientAnswer::Unknown,
            Err(_) => {
                world.answers.failed += 1;
                ClientAnswer::Nothing
            }
        }
    }

    /// Injects a fault about once a second.
    pub async fn misfortune(self) {
        let until = instant() + self.plan.busy;
        while instant() < until {
            let pause = self.draw(|world| world.random.millis(200, 1500));
            sleep(pause).await;
            let chances = self.world.lock().chances.clone();
            let which = self.draw(|world| world.random.below(self.plan.engines as u64) as usize);
            if self.draw(|world| world.random.permille(chances.crash)) {
                self.crash(which);
            }
            if self.draw(|world| world.random.permille(chances.stall)) {
                let span = self.draw(|world| world.random.millis(100, 9000));
                if let Some(node) = self.nodes.lock()[which].clone() {
                    self.world.lock().disturbed.insert(node.instance);
                    self.note(|| format!("process {} stops for {span:?}", node.instance));
                    node.process.stop_for(span);
                }
            }
            if self.draw(|world| world.random.permille(chances.outage)) {
                let span = self.draw(|world| world.random.millis(100, 5000));
                self.note(|| format!("the store is away for {span:?}"));
                self.database.away_for(span);
            }
            if self.draw(|world| world.random.permille(chances.store_stall)) {
                let (span, all) =
                    self.draw(|world| (world.random.millis(800, 6000), world.random.permille(500)));
                let what = if all { Stalled::Everything } else { Stalled::Writes };
                self.note(|| format!("the store stalls for {span:?}: {what:?}"));
                self.database.stall_for(span, what);
            }
            if self.draw(|world| world.random.permille(chances.store_crash)) {
                self.note(|| "the store crashes".to_owned());
                self.database.crash();
            }
            if self.draw(|world| world.random.permille(chances.receipts.away)) {
                let span = self.draw(|world| world.random.millis(100, 5000));
                self.note(|| format!("the user's database is away for {span:?}"));
                self.user.away_for(span);
            }
            if self.draw(|world| world.random.permille(chances.clock_jump)) {
                let ahead = self.draw(|world| JUMP * world.random.below(2) as u32);
                self.note(|| format!("the store's clock is {ahead:?} ahead"));
                self.database.jump(ahead);
            }
        }
        self.database.jump(Duration::ZERO);
    }

    fn crash(&self, which: usize) {
        let Some(node) = self.nodes.lock()[which].take() else { return };
        node.process.kill();
        self.note(|| format!("process {} is killed", node.instance));
        let executed = self.database.records().iter().any(|(id, record)| {
            matches!(record.state, State::InProgress { .. }) && self.executed(*id, record.fence).is_some()
        });
        let mut world = self.world.lock();
        world.disturbed.insert(node.instance);
        if executed {
            world.saw(Sometimes::ProcessCrashedAfterExecuting);
        }
        let pause = world.random.millis(0, 3000);
        drop(world);
        let cast = self.clone();
        tokio::spawn(async move {
            sleep(pause).await;
            let node = cast.start().await;
            cast.nodes.lock()[which] = Some(node);
        });
    }

    /// An operator and a webhook sender, who report what the ledger shows.
    pub async fn operator(self) {
        let until = instant() + self.plan.busy;
        while instant() < until {
            let pause = self.draw(|world| world.random.millis(200, 2000));
            sleep(pause).await;
            let Some(node) = self.node() else { continue };
            // A process that is killed meanwhile never answers, so the operator's calls have a timeout.
            tokio::select! {
                biased;
                () = self.act_on_records(&node) => {}
                () = sleep(Duration::from_secs(5)) => {}
            }
        }
    }

    async fn act_on_records(&self, node: &Node) {
        let scan = Scan { which: Which::Filter(Filter::default()), after: None, limit: 64 };
        let Ok(page) = node.engine.list(scan).await else { return };
        for entry in page.entries {
            let Ok(record) = entry.record else { continue };
            if record.receipts() == Receipts::Kept {
                self.operate_on_receipts(node, (entry.id, entry.version), &record).await;
            } else {
                self.operate(node, (entry.id, entry.version), record.fence, &record.state).await;
            }
        }
    }

    /// The execution that the ledger has of a tenure.
    pub fn executed(&self, id: RecordId, fence: Fence) -> Option<u64> {
        let world = self.world.lock();
        let mut done = world.ledger.iter().filter(|(_, done)| done.is_done());
        done.find(|(_, done)| done.id() == id && done.fence == fence).map(|(number, _)| *number)
    }

    async fn operate(&self, node: &Node, (id, version): (RecordId, Version), fence: Fence, state: &State) {
        let chances = self.world.lock().chances.clone();
        let executed = self.executed(id, fence);
        let reply = |number: u64| Arc::new(Reply::new(number.to_string()));
        // The record shows whether it worked; here it only matters that it was tried.
        match (state, executed) {
            (State::InProgress { .. } | State::Unknown { .. }, Some(number))
                if self.draw(|world| world.random.permille(chances.webhook)) =>
            {
                drop(node.engine.testify(id, Some(fence), reply(number), "webhook").await);
            }
            (State::Unknown { .. }, Some(number))
                if self.draw(|world| world.random.permille(chances.verdict)) =>
            {
                let hasty = self.draw(|world| world.random.permille(chances.hasty_verdict));
                let verdict =
                    if hasty { Resolution::Retryable } else { Resolution::Completed(reply(number)) };
                drop(
                    node.engine
                        .resolve(
                            id,
                            Resolve {
                                verdict,
                                by: OPERATOR,
                                reason: "the ledger says so",
                                seen: Some(version),
                            },
                        )
                        .await,
                );
            }
            (State::Unknown { .. }, None) if self.draw(|world| world.random.permille(chances.verdict)) => {
                drop(
                    node.engine
                        .resolve(
                            id,
                            Resolve {
                                verdict: Resolution::Retryable,
                                by: OPERATOR,
                                reason: "not in the ledger",
                                seen: Some(version),
                            },
                        )
                        .await,
                );
            }
            (State::Unknown { .. }, _) => {
                drop(
                    node.engine
                        .inconclusive(
                            id,
                            fence,
                            FindTerms::default().attempts(4).backoff(Duration::from_millis(300)),
                            "the ledger did not say",
                        )
                        .await,
                );
            }
            (State::Completed { .. }, _) if self.draw(|world| world.random.permille(chances.expire)) => {
                drop(node.engine.expire(id, None).await);
            }
            _ => {}
        }
    }

    /// Denies work that is on record as done. What is not on record yet would be believed, as it should be.
    pub async fn deny(&self, node: &Node, id: RecordId, fence: Fence) {
        let Ok(Some(found)) = node.engine.load(id).await else { return };
        let done = matches!(found.record.state, State::Unknown { cause: Cause::DoneNotKept, .. });
        if found.record.fence == fence && done {
            let outcome = Outcome::Retryable("simulated: it looked as if nothing was done".to_owned());
            drop(node.engine.settle(id, fence, outcome).await);
            self.world.lock().saw(Sometimes::DoneWorkDenied);
        }
    }

    pub fn note(&self, line: impl FnOnce() -> String) {
        let now: Timestamp = self.database.true_now();
        self.world.lock().note(now, line);
    }
}

/// A client's answer, in short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAnswer {
    Answer,
    Mismatch,
    InProgress,
    Unknown,
    Retryable,
    Nothing,
}

fn identity() -> Identity {
    #[expect(clippy::expect_used, reason = "two short constants")]
    Identity::in_namespace(NAMESPACE).scoped_by("one scope per number").expect("two short names")
}

fn claim(request: Request, terms: Terms, plan: &Plan) -> Result<Claim, Box<dyn std::error::Error>> {
    let scope = Scope::new(&format!("s{}", request.scope))?;
    let key = Key::new(&format!("k{}", request.key))?;
    let content = Fingerprint::of_bytes(&request.body.to_le_bytes());
    let (rules, target) =
        (ProfileId::from_bytes([request.target as u8 + 1; 8]), [request.target as u8 + 1; 16]);
    let fingerprint = Fingerprint::new(rules, *content.digest()).at(Target::from_bytes(target));
    let claim = Claim::new(scope, key, fingerprint)
        .route(&route_of(request.target))?
        .terms(terms)?
        .timeout(plan.timeout)?
        .attach(plan.attach)?;
    Ok(match plan.receipts_of(request.target) {
        Some(receipts) => claim.receipts(Receipts::Kept).resume_after(receipts.resume_after)?,
        None => claim,
    })
}

fn id_of(request: Request) -> RecordId {
    #[expect(clippy::expect_used, reason = "a letter and a small number are a valid scope and key")]
    let (scope, key) = (
        Scope::new(&format!("s{}", request.scope)).expect("a valid scope"),
        Key::new(&format!("k{}", request.key)).expect("a valid key"),
    );
    identity().id_of(&scope, &key)
}
