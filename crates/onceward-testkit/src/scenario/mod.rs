//! Scenario scripts: one format from the pure machine to the running gateway.
//!
//! ```text
//! # A lapsed lease makes the outcome unknown until its late owner settles it.
//! terms lease=60s
//! 0s   A claims k body=x       -> execute fence=1
//! 1s   B claims k body=x       -> refuse in_progress
//! 2s   C claims k body=y       -> refuse mismatch
//! 61s  B claims k body=x       -> refuse unknown
//! 62s  A settles fence=1 201   -> applied
//! 63s  B claims k body=x       -> replay 201
//! ```
//!
//! A line is a time since the beginning, who acts, what they do, and the answer they must get.
//!
//! - The first line is the title: `#` and a sentence. Later lines that begin with `#` are comments.
//! - `terms NAME=VALUE…` sets the terms of the claims that follow: `lease`, `retention`, `grace`, `on_lapse=unknown` or
//!   `on_lapse=resume` with `attempts` and `within`.
//! - `clock ahead=24h` makes the store's clock run ahead of elapsed time from there on, and holds expiry back by as much.
//! - Who acts is also the owner token: the same name claims as the same owner.
//! - `fence=N` is the N-th tenure that the script has handed out for that key. Fences themselves are times.
//! - Without `key=` the key that was claimed last is meant; likewise with `scope=`.
//! - `reads` remembers the record; the same actor's next act begins from what was read then, however stale it is by now.
//! - `terms format=1` writes the records of the claims that follow in format 1; `terms receipts=kept` says that their work
//!   commits receipt rows.
//! - A finder `asks` before it `finds` something: `completed 201`, `done`, `absent`, `voided`, `inconclusive`, `ambiguous`
//!   or `nobody`, where it could not ask. A void names by how much the fence was `raised=` (1) and the row's `point=`; so does an
//!   absence that comes with a void. `absent_after=` is when an absence counts, and `control=none` says that it was not controlled.
//! - `target=` is where the claim's request goes, whatever its body; `rules=` names the rules of its fingerprint.
//! - Every answer may assert `state=` (or `state=none`) and `alarm=`. Where no alarm is named, there must be none. It may
//!   also assert `cause=` and `since=` of an unknown outcome, `doubt=yes` or `no`, `voided=yes` or `no`, and `naming=bare`
//!   or `windowed`.

mod doors;
mod list;
mod parse;
mod run;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use onceward::event::{Control, FindStart, FindTerms};
use onceward::{
    Terms,
    record::{Cause, Receipts, RecordFormat},
};

pub use doors::{MachineDoor, StoreDoor};
pub use list::{SCRIPTS, named, on_machine, on_store};
pub use parse::ScriptError;
pub use run::{Alarm, Door, Failure, Observed, Reaction, Silence, run};

/// A script that has been read.
#[derive(Debug, Clone)]
pub struct Script {
    /// What it shows, as a sentence.
    pub title: String,
    /// What happens, in order.
    pub lines: Vec<Line>,
}

impl FromStr for Script {
    type Err = ScriptError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse::script(text)
    }
}

/// One thing that happens, and what must come of it.
#[derive(Debug, Clone)]
pub struct Line {
    /// Where it stands in the file, from 1.
    pub number: usize,
    /// As it was written.
    pub text: String,
    /// When, since the beginning.
    pub at: Duration,
    /// By how much the store's clock runs ahead of that.
    pub ahead: Duration,
    /// What is done.
    pub act: Act,
    /// The expected answer: the words that begin it, and named values.
    pub expected: Expected,
}

/// An act on a key.
#[derive(Debug, Clone)]
pub struct Act {
    /// Who, which is also the owner token.
    pub actor: String,
    /// Whose key.
    pub scope: String,
    /// Which key.
    pub key: String,
    /// Which tenure it names, from 1.
    pub tenure: Option<usize>,
    /// What.
    pub deed: Deed,
}

/// What can be done.
#[derive(Debug, Clone)]
pub enum Deed {
    /// `claims KEY body=…`
    Claim {
        /// What the fingerprint is made of.
        body: String,
        /// The name of the fingerprint rules, where they are not the usual ones.
        rules: Option<String>,
        /// The name of the target, where it is not the usual one.
        target: Option<String>,
        /// The terms that stand in the script.
        terms: Terms,
        /// The format that stands in the script.
        format: RecordFormat,
        /// Whether the work commits receipts.
        receipts: Receipts,
    },
    /// `reads`
    Read,
    /// `resumes`: the completer takes a lapsed operation over.
    Resume,
    /// `renews fence=N`
    Renew,
    /// `checkpoints fence=N point=…`
    Checkpoint {
        /// The phase that was committed.
        point: String,
        /// What the next phase needs to know.
        data: String,
    },
    /// `settles fence=N 201`, `… retryable`, `… voided` or `… unknown cause=…`
    Settle(Ending),
    /// `gives evidence 201`
    Evidence(Answered),
    /// `asks` or `asks now`: a finder begins a find.
    Ask {
        /// How long other finders leave it alone.
        hold: Duration,
        /// Whether it may begin before the find is due.
        start: FindStart,
    },
    /// `finds absent` and the other findings, about the record's tenure or that of `fence=N`.
    Found {
        /// What was found out. Without one, the finder could not ask.
        finding: Option<FoundOut>,
        /// `control=none`: an absence was not controlled.
        control: Control,
        /// How often, and how soon again, it is asked.
        terms: FindTerms,
    },
    /// `gives up`
    GiveUp {
        /// How long after it became unknown.
        after: Duration,
    },
    /// `resolves completed 201` or `resolves retryable`
    Resolve(Ending),
    /// `expires`
    Expire {
        /// How long caches have to notice.
        after: Duration,
    },
    /// `sweeps hard` or `sweeps soft`
    Sweep(onceward::event::Expiry),
}

/// How an execution ended.
#[derive(Debug, Clone)]
pub enum Ending {
    /// With this reply.
    Completed(Answered),
    /// It did not happen.
    Retryable,
    /// Unknown, for this cause. Only an owner can settle so.
    Unknown(Cause),
    /// It was voided. Only an owner can settle so.
    Voided(Voiding),
}

/// What a find brought.
#[derive(Debug, Clone)]
pub enum FoundOut {
    /// `finds completed 201`
    Completed(Answered),
    /// `finds done`: it happened, and its answer is not known.
    Done,
    /// `finds absent`, or `finds absent raised=1` where its receipt row was voided as well.
    Absent(Option<Voiding>),
    /// `finds voided`
    Voided(Voiding),
    /// `finds inconclusive`
    Inconclusive,
    /// `finds ambiguous`
    Ambiguous,
}

/// A void of a receipt row.
#[derive(Debug, Clone)]
pub struct Voiding {
    /// By how much the fence was raised above the tenure's.
    pub raised: u64,
    /// The phase that the row had.
    pub point: Option<String>,
}

/// The part of a reply that scripts speak of.
#[derive(Debug, Clone)]
pub struct Answered {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: String,
}

/// The expected answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expected {
    /// `["refuse", "unknown"]`
    pub words: Vec<String>,
    /// `[("state", "unknown")]`
    pub values: Vec<(String, String)>,
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words.join(" "))?;
        self.values.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}
