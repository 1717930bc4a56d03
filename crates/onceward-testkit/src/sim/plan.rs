//! The parameters of one history, drawn from its seed. Each seed switches some faults off, because faults hide each other.

use std::time::Duration;

use onceward::event::Expiry;
use onceward::{OnLapse, Terms};

use crate::Random;

use super::receipts::{ReceiptChances, ReceiptPlan};

/// How long an engine believes a cached record.
pub const CACHE_REVALIDATE: Duration = Duration::from_secs(1);

/// The size of one history, and the chances of its faults.
#[derive(Debug, Clone)]
pub struct Plan {
    pub engines: usize,
    pub scopes: u64,
    pub keys: u64,
    pub clients: u64,
    pub requests: u64,
    /// How long clients send requests and faults are injected. After that the history comes to rest.
    pub busy: Duration,
    pub lease: Duration,
    pub retention: Duration,
    pub grace: Duration,
    pub timeout: Duration,
    pub attach: Duration,
    /// How long an execution without faults takes at most.
    pub work_max: Duration,
    pub expiry: Expiry,
    pub chances: Chances,
    pub visibility: Visibility,
    /// In which histories handlers write receipt rows, and how.
    pub receipts: Option<ReceiptPlan>,
}

/// What a statement sees of those that run at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    /// Every write, at once: SQLite, Redis.
    Latest,
    /// What was committed when the statement began: PostgreSQL. The loser of a race may not be shown the winner.
    Snapshot,
}

/// Chances in a thousand.
#[derive(Debug, Clone)]
pub struct Chances {
    pub receipts: ReceiptChances,
    pub store_before: u64,
    pub store_after: u64,
    pub store_instead: u64,
    pub store_lands_late: u64,
    /// A call, or a commit, takes much longer than others. Two of them can take half of a short lease.
    pub store_slow: u64,
    pub disconnect: u64,
    pub other_body: u64,
    pub other_target: u64,
    pub resumable: u64,
    pub work_fails: u64,
    pub work_unsure: u64,
    /// The work is done, and its answer cannot be kept.
    pub work_unkept: u64,
    /// An attempt that takes over sends nothing.
    pub resume_fails: u64,
    pub work_panics: u64,
    pub work_slow: u64,
    /// The rest are chances per disturbance. There is about one disturbance a second.
    pub crash: u64,
    pub stall: u64,
    pub outage: u64,
    pub store_stall: u64,
    pub store_crash: u64,
    pub clock_jump: u64,
    pub webhook: u64,
    pub expire: u64,
    pub verdict: u64,
    pub hasty_verdict: u64,
}

impl Plan {
    /// The plan that a seed stands for.
    pub fn draw(random: &mut Random) -> Self {
        let lease = random.millis(800, 4000);
        let receipts = random.permille(500).then(|| ReceiptPlan::draw(random));
        // Short windows, so that a find that takes long may end in another one.
        let short = receipts.is_some() && random.permille(700);
        Self {
            engines: random.between(1, 3) as usize,
            scopes: random.between(1, 2),
            keys: random.between(1, 3),
            clients: random.between(2, 5),
            requests: random.between(3, 8),
            busy: random.millis(8_000, 25_000),
            lease,
            retention: random.millis(1000, if short { 1500 } else { 12_000 }),
            grace: random.millis(0, 1500),
            timeout: random.millis(500, 6000),
            attach: if random.permille(500) { Duration::ZERO } else { random.millis(100, 3000) },
            work_max: random.millis(20, 1500),
            expiry: if random.permille(250) { Expiry::Soft } else { Expiry::Delete },
            chances: Chances::draw(random),
            visibility: if random.permille(500) { Visibility::Latest } else { Visibility::Snapshot },
            receipts,
        }
    }

    /// Whether the work of a target's route commits receipt rows.
    pub fn receipts_of(&self, target: u64) -> Option<&ReceiptPlan> {
        self.receipts.as_ref().filter(|receipts| target == 0 || receipts.on_every_route)
    }

    /// How an operation of this history is treated.
    pub fn terms(&self, random: &mut Random) -> Terms {
        let on_lapse = if random.permille(self.chances.resumable) {
            OnLapse::Resume { attempts: 3, within: Duration::from_secs(8) }
        } else {
            OnLapse::Unknown
        };
        Terms { lease: self.lease, on_lapse, retention: self.retention, grace: self.grace }
    }
}

impl Chances {
    fn draw(random: &mut Random) -> Self {
        // A quarter of the histories have few kinds of faults, so that the effect of one is not hidden by others. In the
        // rest each kind is absent half of the time.
        let present = if random.permille(250) { 150 } else { 500 };
        let mut maybe = |most: u64| if random.permille(present) { random.between(1, most) } else { 0 };
        Self {
            receipts: ReceiptChances::draw(&mut maybe),
            store_before: maybe(150),
            store_after: maybe(150),
            store_instead: maybe(150),
            store_lands_late: maybe(100),
            store_slow: 20,
            disconnect: maybe(300),
            other_body: maybe(250),
            other_target: maybe(150),
            resumable: maybe(700),
            work_fails: maybe(300),
            work_unsure: maybe(200),
            work_unkept: maybe(150),
            resume_fails: maybe(700),
            work_panics: maybe(100),
            work_slow: maybe(300),
            crash: maybe(400),
            stall: maybe(500),
            outage: maybe(200),
            store_stall: maybe(250),
            store_crash: maybe(300),
            clock_jump: maybe(100) * u64::from(maybe(1) == 1),
            webhook: maybe(300),
            expire: maybe(150),
            verdict: maybe(900),
            hasty_verdict: maybe(400),
        }
        .consistent()
    }

    /// An engine that starts while the store's clock is wrong cannot know that it is, so the two are kept apart.
    const fn consistent(mut self) -> Self {
        if self.clock_jump > 0 {
            self.crash = 0;
        }
        self
    }

    /// Whether a claim whose work was never begun can only be an engine's own fault.
    pub const fn store_always_answers(&self) -> bool {
        self.store_before == 0
            && self.store_instead == 0
            && self.store_lands_late == 0
            && self.outage == 0
            && self.store_stall == 0
            && self.store_crash == 0
            && self.clock_jump == 0
    }

    /// Switches every fault off.
    pub fn quiet(&mut self) {
        self.receipts.quiet();
        *self = Self {
            receipts: self.receipts.clone(),
            store_before: 0,
            store_after: 0,
            store_instead: 0,
            store_lands_late: 0,
            store_slow: 0,
            disconnect: 0,
            other_body: 0,
            other_target: 0,
            resumable: self.resumable,
            work_fails: 0,
            work_unsure: 0,
            work_unkept: 0,
            resume_fails: 0,
            work_panics: 0,
            work_slow: 0,
            crash: 0,
            stall: 0,
            outage: 0,
            store_stall: 0,
            store_crash: 0,
            clock_jump: 0,
            webhook: 0,
            expire: 0,
            verdict: 0,
            hasty_verdict: 0,
        };
    }
}
