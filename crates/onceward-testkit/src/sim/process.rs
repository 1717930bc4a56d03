//! A process that can be killed, or stopped and continued, before each step that is visible to other processes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use onceward::plumbing::time::{Instant, instant, sleep};

/// One life of a process. A restart is another one.
#[derive(Debug, Default)]
pub struct Process {
    dead: AtomicBool,
    stopped_until: Mutex<Option<Instant>>,
}

impl Process {
    /// Kills it: nothing that it awaits ever returns.
    pub fn kill(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    /// Whether it lives.
    pub fn lives(&self) -> bool {
        !self.dead.load(Ordering::Relaxed)
    }

    /// Stops it for a while, as a debugger, a hypervisor or a swapping machine would.
    pub fn stop_for(&self, span: Duration) {
        *self.stopped_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(instant() + span);
    }

    /// Awaited before every step that is visible to other processes.
    pub async fn pass(&self) {
        loop {
            if !self.lives() {
                return std::future::pending().await;
            }
            let until = *self.stopped_until.lock().unwrap_or_else(PoisonError::into_inner);
            match until.map(|until| until.saturating_duration_since(instant())) {
                Some(left) if left > Duration::ZERO => sleep(left).await,
                _ => return,
            }
        }
    }
}
