//! hyper's timer for the heads of one HTTP/1.1 connection.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::{Sleep, Timer};
use onceward::time::{Alarm, Instant, deadline, instant};

/// hyper asks for a new timer with each head, and drops it when the head is there. All of them are one alarm.
#[derive(Default)]
pub(super) struct HeadTimer {
    alarm: Arc<Mutex<Option<Alarm>>>,
}

struct Until {
    alarm: Arc<Mutex<Option<Alarm>>>,
    deadline: Instant,
}

impl Timer for HeadTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(deadline(instant(), duration).into())
    }

    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(Until { alarm: Arc::clone(&self.alarm), deadline: deadline.into() })
    }

    fn now(&self) -> std::time::Instant {
        instant().into()
    }
}

impl Sleep for Until {}

impl Future for Until {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // A panic while the lock is held leaves an alarm that rings or one that is set again.
        let mut alarm = self.alarm.lock().unwrap_or_else(PoisonError::into_inner);
        alarm.get_or_insert_with(|| Alarm::new(self.deadline)).poll_until(self.deadline, context)
    }
}
