//! The user's side of receipts: a database with receipt rows, handlers that commit their effects there, and the engines' way
//! to it. What was really committed is written down by the handlers, in the moment of each commit.

mod chances;
mod connection;
mod decision;
mod finder;
mod handler;
mod upkeep;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use onceward::plumbing::time::{Instant, instant};
use onceward::store::Clock;

use crate::receipts::MemoryReceipts;

pub use self::chances::{ReceiptChances, ReceiptPlan};
pub use self::connection::TableConnection;
pub use self::decision::decided;
pub use self::finder::CheckedFinder;
pub use self::handler::Delivery;

/// The user's database.
pub struct UserDatabase {
    pub table: MemoryReceipts,
    away_until: Mutex<Option<Instant>>,
}

impl UserDatabase {
    /// An empty one, whose rows may be made by fences that are younger than `day`.
    pub fn new(clock: Arc<dyn Clock>, day: Duration) -> Self {
        Self { table: MemoryReceipts::with_clock_and_keep(clock, day), away_until: Mutex::default() }
    }

    /// Nobody reaches it for a while.
    pub fn away_for(&self, span: Duration) {
        *self.away_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(instant() + span);
    }

    fn is_away(&self) -> bool {
        let until = *self.away_until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| until > instant())
    }
}
