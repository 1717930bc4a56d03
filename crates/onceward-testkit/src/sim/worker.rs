//! Workers: the work that engines run, and that is written into the ledger when it really happens.

use std::sync::Arc;
use std::time::Duration;

use onceward::plumbing::time::sleep;
use onceward::{Operation, Outcome, RecoveryPoint, Reply};
use tokio::sync::oneshot;

use super::actors::Cast;
use super::process::Process;
use super::receipts::{Delivery, decided};
use super::world::AskedFor;

/// Does the work, and writes it into the ledger in the moment that it really happens.
pub struct Worker {
    cast: Cast,
    process: Arc<Process>,
    asked_for: AskedFor,
}

impl Worker {
    pub const fn new(cast: Cast, process: Arc<Process>, asked_for: AskedFor) -> Self {
        Self { cast, process, asked_for }
    }

    pub async fn work(self, operation: Operation) -> Outcome {
        let (id, fence) = (operation.id(), operation.fence());
        let now = self.cast.database.true_now();
        self.cast.world.lock().begin(now, id, fence, self.cast.plan.lease);
        self.process.pass().await;
        if self.cast.plan.receipts_of(self.asked_for.target).is_some() {
            return self.deliver(&operation).await;
        }
        let number = match operation.recovery_point() {
            // The service cannot be reached for the rest of the work.
            Some(_) if self.cast.draw(|world| world.random.permille(world.chances.resume_fails)) => {
                return Outcome::Retryable("simulated: nothing was sent this time".to_owned());
            }
            Some(point) => String::from_utf8_lossy(point.data()).into_owned(),
            None => {
                self.pause().await;
                let (fails, panics) = self.cast.draw(|world| {
                    let chances = world.chances.clone();
                    (
                        world.random.permille(chances.work_fails),
                        world.random.permille(chances.work_panics / 2),
                    )
                });
                if fails {
                    return Outcome::Retryable("simulated: nothing was done".to_owned());
                }
                if panics {
                    // Unwinds without the hook that would print every one of thousands.
                    std::panic::resume_unwind(Box::new("simulated"));
                }
                let now = self.cast.database.true_now();
                let name = operation.operation_id();
                let number = self.cast.world.lock().execute(now, name, self.asked_for, fence).to_string();
                if let Ok(point) = RecoveryPoint::new("executed", number.clone()) {
                    // Work that cannot checkpoint, or has lost its tenure, continues: its effects happen anyway.
                    drop(operation.checkpoint(point).await);
                }
                number
            }
        };
        self.pause().await;
        let (unsure, panics, unkept) = self.cast.draw(|world| {
            let chances = world.chances.clone();
            (
                world.random.permille(chances.work_unsure),
                world.random.permille(chances.work_panics / 2),
                world.random.permille(chances.work_unkept),
            )
        });
        if unsure {
            return Outcome::lost("simulated: the answer broke off");
        }
        if panics {
            std::panic::resume_unwind(Box::new("simulated"));
        }
        if unkept {
            self.contradict_later(&operation);
            return Outcome::done_not_kept("simulated: the answer is too large");
        }
        Outcome::completed(Reply::new(number))
    }

    /// Sends the request to a handler, which works on if this process dies or the connection breaks.
    async fn deliver(&self, operation: &Operation) -> Outcome {
        let (unsent, breaks, panics) = self.cast.draw(|world| {
            let chances = world.chances.clone();
            let breaks = world.random.permille(chances.receipts.breaks).then(|| world.random.millis(0, 3000));
            (
                world.random.permille(chances.work_fails / 2),
                breaks,
                world.random.permille(chances.work_panics / 2),
            )
        });
        if unsent {
            return Outcome::Retryable("simulated: it was never sent".to_owned());
        }
        let delivery = Delivery {
            cast: self.cast.clone(),
            operation: operation.operation_id(),
            fence: operation.fence(),
            point: operation.recovery_point().map(|point| point.name().to_owned()),
            asked_for: self.asked_for,
        };
        if self.cast.draw(|world| {
            let chance = world.chances.receipts.duplicates;
            world.random.permille(chance)
        }) {
            // Nobody waits for the second answer.
            tokio::spawn(delivery.clone().serve());
        }
        let (answer, answered) = oneshot::channel();
        tokio::spawn(async move {
            if let Some(given) = delivery.serve().await {
                // A gateway that is gone does not get it.
                drop(answer.send(given));
            }
        });
        let broken = async {
            match breaks {
                Some(span) => sleep(span).await,
                None => std::future::pending().await,
            }
        };
        let given = tokio::select! {
            biased;
            given = answered => given.ok(),
            () = broken => None,
        };
        self.process.pass().await;
        if panics {
            std::panic::resume_unwind(Box::new("simulated"));
        }
        decided(operation, given).await
    }

    /// A part of the owner that did not get the answer reports later that nothing was done.
    fn contradict_later(&self, operation: &Operation) {
        let (cast, id, fence) = (self.cast.clone(), operation.id(), operation.fence());
        let pause = self.cast.draw(|world| world.random.millis(50, 1500));
        tokio::spawn(async move {
            sleep(pause).await;
            let Some(node) = cast.node() else { return };
            tokio::select! {
                biased;
                () = cast.deny(&node, id, fence) => {}
                () = sleep(Duration::from_secs(5)) => {}
            }
        });
    }

    async fn pause(&self) {
        let span = self.cast.draw(|world| {
            let slow = world.random.permille(world.chances.work_slow);
            let most = if slow { 8000 } else { self.cast.plan.work_max.as_millis() as u64 };
            world.random.millis(0, most)
        });
        sleep(span).await;
        self.process.pass().await;
    }
}
