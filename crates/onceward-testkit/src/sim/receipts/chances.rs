//! The parameters of a history in which handlers write receipt rows.

use std::time::Duration;

use onceward::receipts::KEEP;
use onceward::reconcile::{FindTerms, Reconciling};

use crate::Random;

/// What is fixed for one history.
#[derive(Debug, Clone)]
pub struct ReceiptPlan {
    /// Whether the route of the other target has receipts too.
    pub on_every_route: bool,
    /// How young a fence must be to make a row. In some histories a day passes in seconds, so that rows become old.
    pub day: Duration,
    /// When handlers stop leaving their row out.
    pub corrected_after: Duration,
    pub resume_after: Duration,
    pub terms: FindTerms,
    pub every: Duration,
    pub finders: usize,
    pub find_timeout: Duration,
}

impl ReceiptPlan {
    pub fn draw(random: &mut Random) -> Self {
        Self {
            on_every_route: random.permille(500),
            day: if random.permille(300) { random.millis(4000, 9000) } else { KEEP },
            corrected_after: random.millis(0, 15_000),
            resume_after: random.millis(0, 3000),
            terms: FindTerms::default()
                .attempts(random.between(3, 8) as u32)
                .backoff(random.millis(100, 1000))
                .max_backoff(random.millis(1000, 4000)),
            every: random.millis(200, 1500),
            finders: random.between(1, 4) as usize,
            find_timeout: random.millis(3000, 15_000),
        }
    }

    pub fn reconciling(&self) -> Reconciling {
        Reconciling::default().every(self.every).finders(self.finders).find_timeout(self.find_timeout)
    }
}

/// Chances in a thousand.
#[derive(Debug, Clone, Default)]
pub struct ReceiptChances {
    /// A call of the table does not get there.
    pub table_before: u64,
    /// A call is carried out, and its answer is lost.
    pub table_after: u64,
    /// A void is carried out when nobody waits for its answer any more.
    pub table_lands_late: u64,
    pub table_slow: u64,
    /// What was found is long on its way to the engine, so that the operation may be over by then.
    pub finds_late: u64,
    /// The connection to the handler breaks, and the handler works on.
    pub breaks: u64,
    /// The request is delivered twice.
    pub duplicates: u64,
    /// The handler dies: before, between, or right after its commits.
    pub dies: u64,
    /// The handler does not learn that its commit was carried out.
    pub unsure: u64,
    pub rolls_back: u64,
    /// The handler stops for a while before a transaction, and wakes up late.
    pub stalls: u64,
    /// A transaction is left open.
    pub holds: u64,
    /// The handler answers a status and does nothing.
    pub answers_only: u64,
    /// One path of the handler has no row.
    pub forgets: u64,
    /// The work has two phases.
    pub phases: u64,
    /// The work has an outside call.
    pub calls: u64,
    /// The rest are chances per disturbance, or per look of an operator.
    pub away: u64,
    pub resume_voids: u64,
    pub delete_rows: u64,
}

impl ReceiptChances {
    pub fn draw(maybe: &mut impl FnMut(u64) -> u64) -> Self {
        // One row that is left out suspends every void of its route, and hides the other faults.
        let forgets = maybe(1) * maybe(300);
        Self {
            table_before: maybe(200),
            table_after: maybe(200),
            table_lands_late: maybe(150),
            table_slow: maybe(200),
            finds_late: maybe(400),
            breaks: maybe(400),
            // Without voids nothing keeps the second delivery from committing what the first one refused.
            duplicates: if forgets == 0 { maybe(200) } else { 0 },
            dies: maybe(250),
            unsure: maybe(200),
            rolls_back: maybe(150),
            stalls: maybe(300),
            holds: maybe(200),
            answers_only: maybe(300),
            forgets,
            phases: maybe(600),
            calls: maybe(1) * maybe(300),
            away: maybe(200),
            resume_voids: 200,
            delete_rows: 700,
        }
    }

    /// Switches every fault off. What handlers do without faults stays.
    pub fn quiet(&mut self) {
        *self = Self { phases: self.phases, ..Self::default() };
    }
}
