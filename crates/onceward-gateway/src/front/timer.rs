//! hyper's timer for the heads of one HTTP/1.1 connection.
//!
//! hyper has one limit for a head, from when it begins to wait until the head is complete. But a connection may be idle between
//! requests for longer than a head may take. So this timer chooses the limit, and ignores the duration that hyper passes.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::{Sleep, Timer};
use onceward::plumbing::time::{Alarm, Instant, deadline, instant};

use super::http1_state::Http1State;
use crate::settings::Limits;

/// The limit that hyper is configured with. So the deadline that it passes is the moment at which it begins to wait.
pub(super) const FROM_NOW: Duration = Duration::ZERO;

/// hyper makes a timer for each head and drops it when the head is complete. All of them use one alarm.
pub(super) struct HeadTimer {
    header_timeout: Duration,
    idle_timeout: Duration,
    state: Arc<Http1State>,
    alarm: Arc<Mutex<Option<Alarm>>>,
    /// Whether this is not the first head.
    used: AtomicBool,
}

impl HeadTimer {
    pub(super) fn new(limits: &Limits, state: Arc<Http1State>) -> Self {
        Self {
            header_timeout: limits.header_timeout,
            idle_timeout: limits.idle_timeout,
            state,
            alarm: Arc::default(),
            used: AtomicBool::new(false),
        }
    }
}

struct HeadWait {
    state: Arc<Http1State>,
    alarm: Arc<Mutex<Option<Alarm>>>,
    header_timeout: Duration,
    deadline: Instant,
    /// Whether no byte of the head has come yet.
    idle: bool,
}

impl Timer for HeadTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(deadline(instant(), duration).into())
    }

    fn sleep_until(&self, now: std::time::Instant) -> Pin<Box<dyn Sleep>> {
        self.state.await_head();
        // A new connection must send its first head sooner.
        let idle = self.used.swap(true, Ordering::Relaxed);
        let limit = if idle { self.idle_timeout } else { self.header_timeout };
        Box::pin(HeadWait {
            state: Arc::clone(&self.state),
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
        // hyper has just read from the guard, so the state is current.
        if self.idle && self.state.has_head_begun() {
            self.idle = false;
            self.deadline = deadline(instant(), self.header_timeout);
        }
        // A panic while the lock is held leaves an alarm that rings or one that is set again.
        let mut alarm = self.alarm.lock().unwrap_or_else(PoisonError::into_inner);
        alarm.get_or_insert_with(|| Alarm::new(self.deadline)).poll_until(self.deadline, context)
    }
}
