//! Prints a line for every decision of the engine.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use onceward::{
    RecordId,
    engine::{FindResult, Observation, Observer},
};
use tokio::sync::mpsc;

/// Prints to standard output. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Console {
    failed: mpsc::Sender<io::Error>,
    dead_letters: mpsc::Sender<String>,
    operators: Arc<OnceLock<Operators>>,
}

/// Where dead letters are resolved.
#[derive(Debug)]
struct Operators {
    admin: SocketAddr,
    token: Option<PathBuf>,
}

/// Dead letters whose line is not pasted yet.
const DEAD_LETTERS: usize = 16;

impl Console {
    /// A console, a channel for the error when nothing reads the output any more, after which the demo ends, and one with the line
    /// that resolves each dead letter.
    pub(super) fn new() -> (Self, mpsc::Receiver<io::Error>, mpsc::Receiver<String>) {
        let (failed, failures) = mpsc::channel(1);
        let (dead_letters, announced) = mpsc::channel(DEAD_LETTERS);
        (Self { failed, dead_letters, operators: Arc::default() }, failures, announced)
    }

    /// Says where dead letters are resolved, and in which file the token for it is.
    pub(super) fn resolve_at(&self, admin: SocketAddr, token: Option<PathBuf>) {
        self.operators.get_or_init(|| Operators { admin, token });
    }

    /// Prints the line that resolves a dead letter.
    fn announce(&self, id: RecordId) {
        let Some(Operators { admin, token: Some(token) }) = self.operators.get() else { return };
        let line = format!(
            "curl http://{admin}/v1/operations/{id}/resolve -H \"Authorization: Bearer $(cat {})\" -d '{{\"verdict\": \"completed\", \
             \"reason\": \"the bank shows the charge\", \"reply\": {{\"status\": 201, \"body\": \"charged, says the bank\"}}}}'",
            token.display()
        );
        self.say(format_args!("                          to resolve it, paste:\n   {line}"));
        // Where nothing takes it, it was printed all the same.
        drop(self.dead_letters.try_send(line));
    }

    /// Prints a line. A failure ends the demo and not the task that prints: `println!` would panic there.
    pub(super) fn say(&self, line: impl Display) {
        let mut out = io::stdout().lock();
        if let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush()) {
            // The first failure is enough.
            drop(self.failed.try_send(error));
        }
    }
}

impl Observer for Console {
    fn observe(&self, _: &str, id: RecordId, what: Observation) {
        let Some((decision, meaning)) = line_for(what) else { return };
        let short: String = id.to_string().chars().take(8).collect();
        self.say(format_args!("  gateway       {short}  {decision:<9} {meaning}"));
        if what == Observation::DeadLettered {
            self.announce(id);
        }
    }
}

/// The decision and its meaning. `None` for details that a demo leaves out.
fn line_for(what: Observation) -> Option<(&'static str, &'static str)> {
    Some(match what {
        Observation::Created => ("execute", "a new key: claimed on disk, now sent to the API"),
        Observation::Reclaimed => ("execute", "proven not done before: sent to the API"),
        Observation::Resumed => ("resume", "goes on after its last recovery point"),
        Observation::Completed => ("completed", "the answer is on disk, now the client gets it"),
        Observation::Replayed | Observation::ReplayedFromCache => {
            ("replay", "the first answer again; the API was not asked")
        }
        Observation::Mismatch => ("refuse", "422: this key belongs to another request"),
        Observation::InProgress => ("refuse", "409: the first request with this key still runs"),
        Observation::Unknown => {
            ("refuse", "409: nobody knows yet whether it was done, so it is not done again")
        }
        Observation::Released => ("released", "proven not done: the same key may be tried again"),
        Observation::Lost => {
            ("unknown", "the API gave no answer: it may have charged, so nothing is sent again")
        }
        Observation::StoreError => ("error", "503: the store could not be written, so nothing was sent"),
        Observation::Contradiction => ("alarm", "a late answer contradicts what was decided"),
        Observation::Found(FindResult::Completed) => ("found", "it had happened: retries get its answer"),
        Observation::Found(FindResult::Voided) => {
            ("voided", "it had not happened, and the old attempt can no longer commit")
        }
        Observation::DeadLettered => ("dead", "nothing can find out what happened: a person must say it"),
        Observation::Uncompared
        | Observation::Found(_)
        | Observation::Fenced
        | Observation::Lapsed
        | Observation::Swept
        | Observation::ReconcileScheduled
        | Observation::Reconciled
        | Observation::Panicked
        | Observation::TooLate
        | Observation::AmbiguousClaim
        | Observation::AmbiguousWrite
        | Observation::GivenBack
        | Observation::LostClaimDropped
        | Observation::AttachWoken
        | Observation::ExpirySuspended
        | Observation::KeyMissing
        | Observation::KeyInvalid
        | Observation::ScopeMissing
        | Observation::SuspiciousKey => return None,
    })
}
