//! A deterministic simulator: several engines, a shared database with every fault, workers that crash, stall, disconnect
//! and retry, and a ledger of what was really done. Everything follows from one seed.
//!
//! The rules are checked against two records that no engine writes: the ledger that workers keep in the moment of
//! execution, and the history of durable writes. A campaign also fails if too little succeeded, or if something that must
//! sometimes happen never did, so that a simulator that no longer reaches the rare cases fails.
//!
//! In half of the histories the work of a route commits receipt rows in a database of the user's (`receipts/`), and the real
//! finder finds unknown outcomes out by them. What was committed there is the ledger of these routes.
//!
//! Half of the seeds play on a database whose writes are seen at once, the other half on one with PostgreSQL's visibility
//! (`statement.rs`).

mod actors;
mod mutant;
mod plan;
mod process;
mod receipts;
mod rule;
mod sometimes;
mod statement;
mod store;
mod worker;
mod world;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onceward::plumbing::time::sleep;
use onceward::receipts::KEEP;
use onceward::{OnLapse, Terms, Timestamp, record::State, store::Clock};

use crate::Random;

use self::actors::{Cast, ClientAnswer, JUMP, Request};
pub use self::mutant::Mutant;
use self::plan::Plan;
use self::receipts::UserDatabase;
pub use self::rule::{Rule, Violation};
pub use self::sometimes::Sometimes;
use self::store::{Database, IDENTITY};
use self::world::{Answers, World};

/// When simulated time begins, in seconds since 1970. Any time will do that leaves room for a clock that jumps back.
const EPOCH_SECS: u64 = 1_000_000_000;
/// How many of the answers that clients got must be real ones, in a hundred. With fewer, faults leave too little work to
/// check.
const REPLIES_MIN_PERCENT: u64 = 25;

/// A value behind a lock that all actors share. Everything runs on one thread, so the lock is never contended.
pub struct SharedLock<T>(Arc<Mutex<T>>);

impl<T> SharedLock<T> {
    fn new(value: T) -> Self {
        Self(Arc::new(Mutex::new(value)))
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Clone for SharedLock<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct TrueClock(Arc<Database>);

impl Clock for TrueClock {
    fn now(&self) -> Timestamp {
        self.0.true_now()
    }
}

/// The result of one history.
#[derive(Debug, Clone)]
pub struct History {
    /// Where it came from.
    pub seed: u64,
    /// The rules that it broke.
    pub violations: Vec<Violation>,
    /// What happened in it, and how often.
    pub seen: BTreeMap<Sometimes, u64>,
    /// Real executions.
    pub executions: u64,
    /// What happened, line by line, if that was asked for.
    pub trace: Vec<String>,
    answers: Answers,
}

/// Whether to write down what happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trace {
    /// Only what the rules need.
    Off,
    /// Every durable write, execution and misfortune.
    On,
}

/// One history from its seed.
pub fn history(seed: u64, mutant: Mutant, trace: Trace) -> std::io::Result<History> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    Ok(runtime.block_on(play(seed, mutant, trace)))
}

async fn play(seed: u64, mutant: Mutant, trace: Trace) -> History {
    let mut random = Random::seeded(seed);
    let plan = Arc::new(Plan::draw(&mut random));
    let lines = (trace == Trace::On).then(|| vec![format!("{plan:?}")]);
    let world = SharedLock::new(World::new(random, plan.chances.clone(), lines));
    let database = Database::new(world.clone(), mutant, plan.visibility);
    let day = plan.receipts.as_ref().map_or(KEEP, |receipts| receipts.day);
    let user = Arc::new(UserDatabase::new(Arc::new(TrueClock(database.clone())), day));
    let cast = Cast {
        plan: plan.clone(),
        world: world.clone(),
        database: database.clone(),
        user,
        nodes: SharedLock::new(vec![None; plan.engines]),
        mutant,
        instances: SharedLock::new(seed << 16),
    };
    for which in 0..plan.engines {
        let node = cast.start().await;
        cast.nodes.lock()[which] = Some(node);
    }
    let mut actors = vec![tokio::spawn(cast.clone().misfortune()), tokio::spawn(cast.clone().operator())];
    if plan.receipts.is_some() {
        actors.push(tokio::spawn(cast.clone().keep_receipts()));
    }
    actors.extend((0..plan.clients).map(|_| tokio::spawn(cast.clone().client())));
    for actor in actors {
        if actor.await.is_err() {
            world.lock().violate(database.true_now(), Rule::NotWedged, "an actor panicked".to_owned());
        }
    }
    come_to_rest(&cast).await;
    let mut world = world.lock();
    History {
        seed,
        violations: std::mem::take(&mut world.violations),
        seen: std::mem::take(&mut world.seen),
        executions: world.ledger.len() as u64,
        trace: world.trace.take().unwrap_or_default(),
        answers: world.answers,
    }
}

/// Invariant 10: once faults stop, every record ends settled or on the list of unknowns, and every key answers.
async fn come_to_rest(cast: &Cast) {
    cast.world.lock().chances.quiet();
    // A lease that was taken while the store's clock ran ahead lapses only when the time really comes.
    let leases_from_the_future = if cast.plan.chances.clock_jump > 0 { JUMP } else { Duration::ZERO };
    sleep(Duration::from_secs(60) + leases_from_the_future).await;
    let now = cast.database.true_now();
    for (id, record) in cast.database.records() {
        if matches!(record.state, State::InProgress { .. }) {
            cast.world.lock().violate(
                now,
                Rule::NotWedged,
                format!("invariant 10: {id} is in progress for ever"),
            );
        }
        cast.world.lock().check_unknown(now, id, &record);
        cast.world.lock().check_found_out(now, id, &record);
    }
    let Some(node) = cast.node() else {
        return cast.world.lock().violate(now, Rule::NotWedged, "no process came back".to_owned());
    };
    for scope in 0..cast.plan.scopes {
        for key in 0..cast.plan.keys {
            let terms = Terms {
                lease: cast.plan.lease,
                on_lapse: OnLapse::Unknown,
                retention: cast.plan.retention,
                grace: cast.plan.grace,
            };
            let request = Request { scope, key, body: 0, target: 0 };
            let answer = cast.ask(&node, request, terms, Duration::from_secs(30)).await;
            // Ordinary work may still take longer than its timeout, which is an unknown outcome like any other.
            if !matches!(answer, ClientAnswer::Answer | ClientAnswer::Mismatch | ClientAnswer::Unknown) {
                let now = cast.database.true_now();
                let what = format!(
                    "invariant 10: without faults, key {key} of scope {scope} was answered {answer:?}"
                );
                cast.world.lock().violate(now, Rule::NotWedged, what);
            }
        }
    }
    let stray = cast.database.records().iter().filter(|(id, _)| *id == IDENTITY).count();
    if stray != 1 {
        cast.world.lock().violate(now, Rule::NeverRemoved, "the store forgot its identity".to_owned());
    }
}

/// Many histories, added up.
#[derive(Debug, Clone, Default)]
pub struct Campaign {
    /// How many histories.
    pub histories: u64,
    /// The first history that broke a rule.
    pub failure: Option<(u64, Vec<Violation>)>,
    /// What happened, and how often.
    pub seen: BTreeMap<Sometimes, u64>,
    /// Real executions.
    pub executions: u64,
    asked: u64,
    replies: u64,
    refused: u64,
    failed: u64,
}

/// Plays all seeds of a range on so many threads, until one breaks a rule.
pub fn campaign(seeds: Range<u64>, mutant: Mutant, threads: usize) -> std::io::Result<Campaign> {
    let next = AtomicU64::new(seeds.start);
    let total = Mutex::new(Campaign::default());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1))
            .map(|_| {
                scope.spawn(|| -> std::io::Result<()> {
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= seeds.end {
                            return Ok(());
                        }
                        let history = history(seed, mutant, Trace::Off)?;
                        let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
                        total.add(&history);
                        if total.failure.is_some() {
                            return Ok(());
                        }
                    }
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    Ok(total.into_inner().unwrap_or_else(PoisonError::into_inner))
}

impl Campaign {
    fn add(&mut self, history: &History) {
        self.histories += 1;
        self.executions += history.executions;
        self.asked += history.answers.asked;
        self.replies += history.answers.replies;
        self.refused += history.answers.refused;
        self.failed += history.answers.failed;
        for (what, count) in &history.seen {
            *self.seen.entry(*what).or_default() += count;
        }
        if !history.violations.is_empty()
            && self.failure.as_ref().is_none_or(|(seed, _)| *seed > history.seed)
        {
            self.failure = Some((history.seed, history.violations.clone()));
        }
    }

    /// Why this campaign proves nothing, if it does not: a broken rule, too little success, or too little variety.
    pub fn objection(&self) -> Option<String> {
        if let Some((seed, violations)) = &self.failure {
            return Some(format!(
                "seed {seed} broke a rule: {}",
                violations.iter().map(Violation::to_string).collect::<Vec<_>>().join("; ")
            ));
        }
        if self.replies * 100 < self.asked * REPLIES_MIN_PERCENT {
            return Some(format!("only {} of {} requests got an answer", self.replies, self.asked));
        }
        let missing: Vec<_> = Sometimes::ALL.iter().filter(|what| !self.seen.contains_key(what)).collect();
        (!missing.is_empty()).then(|| format!("this never happened: {missing:?}"))
    }
}

impl fmt::Display for Campaign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} histories, {} real executions", self.histories, self.executions)?;
        writeln!(
            f,
            "{} requests: {} answered, {} refused, {} failed, {} without an answer",
            self.asked,
            self.replies,
            self.refused,
            self.failed,
            self.asked.saturating_sub(self.replies + self.refused + self.failed)
        )?;
        for what in Sometimes::ALL {
            writeln!(f, "{:>9}  {what:?}", self.seen.get(&what).copied().unwrap_or(0))?;
        }
        Ok(())
    }
}
