//! The rules that histories are checked by, named so that a test knows which one found a bug.

use std::fmt;

/// A rule of the simulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Nothing is executed but under a claim that is durable.
    Claimed,
    /// One claim is executed once.
    ExecutedOnce,
    /// Two tenures are separated by a release, by the end of the window or by a resume.
    GivenOutOnce,
    /// What was executed is released by a verdict only.
    Releases,
    /// An answer is durable before it is given.
    DurableFirst,
    /// What was acknowledged stays.
    Durable,
    /// An answer is kept and promised for its window, and not given after it.
    OneAnswer,
    /// A request gets its own answer, and another request under its key is refused.
    OwnAnswer,
    /// What runs, and what is unknown, is not removed.
    NeverRemoved,
    /// A record goes from one state only to those that the state machine allows.
    States,
    /// Fences rise, and do not come back.
    Fences,
    /// A window is opened when the one before is over, and an id names one window.
    Windows,
    /// A completion is that of its own tenure, and is kept.
    Completions,
    /// A lease that lives is not taken away.
    LiveLeases,
    /// A claim recognises itself.
    OwnClaim,
    /// Work begins while its lease is young.
    BegunInTime,
    /// Every key is answered in the end, and is not unknown where nothing was begun.
    NotWedged,
    /// Where a receipt row is written, each phase of a window is committed once.
    CommittedOnce,
    /// What a void releases was not committed, and never will be.
    VoidsHold,
    /// A void releases only where handlers are known to write rows.
    VoidsControlled,
    /// What has an outside call that was begun and is not done is not released by a void.
    OpenCalls,
    /// An owner below a void leaves no trace.
    VoidedIsSilent,
    /// A finding about another tenure or window changes nothing but evidence.
    OwnFinding,
    /// An answer is what was committed.
    AnswersCommitted,
}

/// A rule that was broken, and how.
#[derive(Debug, Clone)]
pub struct Violation {
    /// Which rule.
    pub rule: Rule,
    /// What happened.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}
