//! What operators do where handlers write receipt rows: they decide what waits for a person, correct handlers, and delete old
//! rows.

use std::sync::Arc;
use std::time::Duration;

use onceward::engine::{Operated, Resolve};
use onceward::event::Resolution;
use onceward::plumbing::time::{instant, sleep};
use onceward::record::{Letter, State};
use onceward::store::Version;
use onceward::{Record, RecordId, Reply};

use crate::sim::actors::{Cast, Node};
use crate::sim::sometimes::Sometimes;
use crate::sim::world::OPERATOR;

impl Cast {
    /// Whether handlers still have a path without a row.
    pub fn handlers_forget(&self) -> bool {
        let since = self.database.true_now().as_micros() - super::super::EPOCH_SECS * 1_000_000;
        let corrected = self.plan.receipts.as_ref().map(|receipts| receipts.corrected_after);
        corrected.is_some_and(|corrected| u128::from(since) < corrected.as_micros())
    }

    /// Resumes voids once the handlers are corrected, and deletes old rows.
    pub async fn keep_receipts(self) {
        let until = instant() + self.plan.busy;
        while instant() < until {
            let pause = self.draw(|world| world.random.millis(200, 1500));
            sleep(pause).await;
            let Some(node) = self.node() else { continue };
            // A process that is killed meanwhile never answers.
            tokio::select! {
                biased;
                () = self.see_to_receipts(&node) => {}
                () = sleep(Duration::from_secs(5)) => {}
            }
        }
    }

    async fn see_to_receipts(&self, node: &Node) {
        let Some(finder) = &node.finder else { return };
        let chances = self.world.lock().chances.receipts.clone();
        // What could not be done is done the next time.
        if self.draw(|world| world.random.permille(chances.delete_rows)) {
            drop(finder.delete_old_rows(&node.engine).await);
        }
        let suspended = self.world.lock().receipts.suspended_routes();
        for route in suspended {
            if !self.handlers_forget() && self.draw(|world| world.random.permille(chances.resume_voids)) {
                drop(finder.resume_voids(&route, self.database.true_now()).await);
            }
        }
    }

    /// An operator decides by the ledger, and a webhook reports what it shows.
    pub async fn operate_on_receipts(
        &self,
        node: &Node,
        (id, version): (RecordId, Version),
        record: &Record,
    ) {
        let chances = self.world.lock().chances.clone();
        let truth = self.world.lock().truth(record.operation(id));
        let reply = |number: u64| Arc::new(Reply::new(number.to_string()));
        let executed = self.executed(id, record.fence);
        match (&record.state, executed) {
            (State::InProgress { .. } | State::Unknown { .. }, Some(number))
                if self.draw(|world| world.random.permille(chances.webhook * 2)) =>
            {
                drop(node.engine.testify(id, Some(record.fence), reply(number), "webhook").await);
            }
            (State::Unknown { letter, .. }, _) => {
                // Dead letters wait for a person. What is still being found out is seldom touched.
                let chance = if *letter == Letter::Dead { chances.verdict } else { chances.verdict / 4 };
                if !self.draw(|world| world.random.permille(chance)) {
                    return;
                }
                let verdict = match truth.done {
                    Some(number) => Resolution::Completed(reply(number)),
                    // A handler that is still at work may commit.
                    None if truth.at_work => return,
                    None => Resolution::Retryable,
                };
                let (by, reason, seen) = (OPERATOR, "the ledger says so", Some(version));
                let resolved = node.engine.resolve(id, Resolve { verdict, by, reason, seen }).await;
                if let Ok(Operated::Applied(_)) = resolved {
                    let mut world = self.world.lock();
                    if *letter == Letter::Dead {
                        world.saw(Sometimes::DeadLetterResolved);
                    }
                    if truth.being_found {
                        world.saw(Sometimes::OperatorBesideFinder);
                    }
                }
            }
            (State::Completed { .. }, _) if self.draw(|world| world.random.permille(chances.expire)) => {
                drop(node.engine.expire(id, None).await);
            }
            _ => {}
        }
    }
}
