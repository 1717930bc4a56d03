//! A handler of the user's service. It is a process of its own: it works on when the gateway's process dies or hangs up.

use std::time::Duration;

use onceward::plumbing::time::sleep;
use onceward::{Fence, OperationId};

use super::chances::ReceiptChances;
use super::decision::Given;
use crate::receipts::{Answer, Handler, HandlerError, Step};
use crate::sim::actors::Cast;
use crate::sim::sometimes::Sometimes;
use crate::sim::world::{AskedFor, Execution, Work};

/// The phase that the work commits first, where it has two.
const BEGUN: &str = "begun";
/// The phase of the outside call.
const CALL: &str = "call";

/// One request as the handler gets it.
#[derive(Clone)]
pub struct Delivery {
    pub cast: Cast,
    pub operation: OperationId,
    pub fence: Fence,
    /// The phase after which the work goes on.
    pub point: Option<String>,
    pub asked_for: AskedFor,
}

/// What one transaction writes into the row, beside its effects.
#[derive(Clone, Copy)]
enum Row {
    Checkpoint,
    Enter,
    Complete(u64),
}

/// Why a handler ends early.
enum Stop {
    Died,
    Answers(Given),
}

impl Delivery {
    /// Handles the request. Without an answer the handler has died.
    pub async fn serve(self) -> Option<Given> {
        self.cast.world.lock().receipts.handler_began(self.operation);
        let given = match self.handle().await {
            Ok(given) | Err(Stop::Answers(given)) => Some(given),
            Err(Stop::Died) => None,
        };
        let now = self.cast.database.true_now();
        let mut world = self.cast.world.lock();
        world.receipts.handler_ended(self.operation);
        world.note(now, || format!("handler of {} under {:?} ends: {given:?}", self.operation, self.fence));
        given
    }

    async fn handle(&self) -> Result<Given, Stop> {
        self.pause().await;
        self.may_die()?;
        if self.chance(|chances| chances.answers_only) {
            return Ok(self.answer_only());
        }
        if self.chance(|chances| chances.forgets) && self.cast.handlers_forget() {
            let number = self.number();
            self.commit(number, Work::Forgotten);
            self.may_die()?;
            return Ok(Given::Done(number));
        }
        let mut after = self.point.clone();
        if after.is_none() && self.chance(|chances| chances.phases) {
            self.transaction(None, Row::Checkpoint).await?;
            after = Some(BEGUN.to_owned());
        }
        if self.chance(|chances| chances.calls) {
            self.transaction(after.as_deref(), Row::Enter).await?;
            after = Some(CALL.to_owned());
            self.pause().await;
            self.commit(self.number(), Work::Called);
            self.may_die()?;
        }
        let number = self.number();
        self.transaction(after.as_deref(), Row::Complete(number)).await?;
        Ok(Given::Done(number))
    }

    /// One transaction: the row and the effects are committed together, or neither is.
    async fn transaction(&self, after: Option<&str>, row: Row) -> Result<(), Stop> {
        self.pause().await;
        if self.cast.user.is_away() {
            return Err(Stop::Answers(Given::Failed));
        }
        let mut handler = self.cast.user.table.handler();
        let step = Step { operation: self.operation, fence: self.fence, after };
        let refused = |error| self.refused(&error);
        handler.begin().await.map_err(refused)?;
        let (written, work) = match row {
            Row::Checkpoint => (handler.checkpoint(step, BEGUN, None).await, Work::Begun),
            Row::Enter => (handler.enter(step, CALL, None).await, Work::Entered),
            Row::Complete(number) => {
                let body = number.to_string();
                let answer = Answer { status: 200, headers: "[]", body: body.as_bytes() };
                (handler.complete(step, answer).await, Work::Completed)
            }
        };
        written.map_err(refused)?;
        let number = if let Row::Complete(number) = row { number } else { self.number() };
        self.cast.world.lock().receipts.transaction_wrote(self.operation, row.answer());
        self.hold_open().await;
        self.cast.world.lock().receipts.transaction_wrote(self.operation, None);
        self.may_die()?;
        if self.chance(|chances| chances.rolls_back) {
            handler.rollback().await.map_err(refused)?;
            return Err(Stop::Answers(Given::Failed));
        }
        handler.commit().await.map_err(refused)?;
        self.commit(number, work);
        self.may_die()?;
        if self.chance(|chances| chances.unsure) {
            return Err(Stop::Answers(Given::Failed));
        }
        Ok(())
    }

    /// The database refused a write, and the transaction is over.
    fn refused(&self, error: &HandlerError) -> Stop {
        let now = self.cast.database.true_now();
        let mut world = self.cast.world.lock();
        world.note(now, || format!("{} under {:?} is refused: {error:?}", self.operation, self.fence));
        if let HandlerError::Fenced(_) = error {
            world.saw(Sometimes::LateCommitRefused);
        }
        let conflict = world.random.permille(300);
        drop(world);
        Stop::Answers(if conflict { self.refuse() } else { Given::Failed })
    }

    fn answer_only(&self) -> Given {
        match self.cast.draw(|world| world.random.below(3)) {
            0 => self.refuse(),
            1 => Given::TryAgain,
            _ => Given::Failed,
        }
    }

    /// An answer that says that nothing was done.
    fn refuse(&self) -> Given {
        let number = self.number();
        self.commit(number, Work::Refused);
        Given::Refused(number)
    }

    fn number(&self) -> u64 {
        self.cast.world.lock().number()
    }

    /// Writes down what was committed, in the moment of the commit.
    fn commit(&self, number: u64, work: Work) {
        let now = self.cast.database.true_now();
        let Self { operation, fence, asked_for, .. } = *self;
        self.cast.world.lock().committed(now, number, Execution { name: operation, asked_for, fence, work });
    }

    fn chance(&self, which: impl FnOnce(&ReceiptChances) -> u64) -> bool {
        self.cast.draw(|world| {
            let chance = which(&world.chances.receipts);
            world.random.permille(chance)
        })
    }

    fn may_die(&self) -> Result<(), Stop> {
        if self.chance(|chances| chances.dies / 2) { Err(Stop::Died) } else { Ok(()) }
    }

    async fn pause(&self) {
        let most = if self.chance(|chances| chances.stalls) {
            15_000
        } else {
            self.cast.plan.work_max.as_millis() as u64 / 2
        };
        let span = self.cast.draw(|world| world.random.millis(0, most));
        sleep(span).await;
    }

    async fn hold_open(&self) {
        let most = if self.chance(|chances| chances.holds) { 9000 } else { 60 };
        let span: Duration = self.cast.draw(|world| world.random.millis(0, most));
        sleep(span).await;
    }
}

impl Row {
    const fn answer(self) -> Option<u64> {
        match self {
            Self::Complete(number) => Some(number),
            Self::Checkpoint | Self::Enter => None,
        }
    }
}
