//! hyper's timer for the heads of one HTTP/1.1 connection.
//!
//! hyper knows one limit, from when it waits for a head until the head is there. A connection between two requests may wait
//! for longer than a head that has begun, so the limit is chosen here, and hyper's own means nothing.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::{Sleep, Timer};
use onceward::plumbing::time::{Alarm, Instant, deadline, instant};

use super::raw::Shared;
use crate::settings::Limits;

/// What hyper is told. With it, the deadline that hyper asks for is the moment at which it begins to wait.
pub(super) const FROM_NOW: Duration = Duration::ZERO;

/// hyper asks for a new timer with each head, and drops it when the head is there. All of them are one alarm.
pub(super) struct HeadTimer {
    header_timeout: Duration,
    idle_timeout: Duration,
    shared: Arc<Shared>,
    alarm: Arc<Mutex<Option<Alarm>>>,
    /// Whether a head was waited for before.
    used: AtomicBool,
}

impl HeadTimer {
    pub(super) fn new(limits: &Limits, shared: Arc<Shared>) -> Self {
        Self {
            header_timeout: limits.header_timeout,
            idle_timeout: limits.idle_timeout,
            shared,
            alarm: Arc::default(),
            used: AtomicBool::new(false),
        }
    }
}

struct HeadWait {
    shared: Arc<Shared>,
    alarm: Arc<Mutex<Option<Alarm>>>,
    header_timeout: Duration,
    deadline: Instant,
    /// Whether the connection is idle, as far as is known.
    idle: bool,
}

impl Timer for HeadTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(deadline(instant(), duration).into())
    }

    fn sleep_until(&self, now: std::time::Instant) -> Pin<Box<dyn Sleep>> {
        self.shared.await_head();
        // A new connection has not been of use yet, and must be soon.
        let idle = self.used.swap(true, Ordering::Relaxed);
        let limit = if idle { self.idle_timeout } else { self.header_timeout };
        Box::pin(HeadWait {
            shared: Arc::clone(&self.shared),
            alarm: Arc::clone(&self.alarm),
            header_timeout: self.header_timeout,
            deadline: deadline(now.into(), limit),
            idle,
        })
    }

    fn now(&self) -> std::time::Instant {
        instant().into()
    }
}

impl Sleep for HeadWait {}

impl Future for HeadWait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // hyper has just asked the guard for more, so what the guard says is of this moment.
        if self.idle && self.shared.has_head_begun() {
            self.idle = false;
            self.deadline = deadline(instant(), self.header_timeout);
        }
        // A panic while the lock is held leaves an alarm that rings or one that is set again.
        let mut alarm = self.alarm.lock().unwrap_or_else(PoisonError::into_inner);
        alarm.get_or_insert_with(|| Alarm::new(self.deadline)).poll_until(self.deadline, context)
    }
}
