//! What must happen now and then in a campaign, so that a simulator that no longer gets there fails.

/// Something that a campaign must have seen, or it has tested too little.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sometimes {
    /// An owner settled after its tenure was over.
    LateFencedSettle,
    /// An owner settled an outcome that had become unknown.
    LateSettleAccepted,
    /// A lease lapsed.
    Lapse,
    /// The answer to a claim that was written got lost.
    AmbiguousClaim,
    /// The answer to a completion that was written got lost.
    AmbiguousSettle,
    /// A key was claimed after the sweeper had listed it.
    SweepRacingAClaim,
    /// An owner completed after the sweeper had seen its lease lapse.
    SweepRacingASettle,
    /// A caller that waited was woken by the end of the execution.
    AttachWoken,
    /// An operation was taken over from its recovery point.
    Resumed,
    /// A result contradicted a verdict.
    Contradiction,
    /// An unknown outcome was given up.
    DeadLetter,
    /// Work was not begun, because its claim was too old.
    TooLateToBegin,
    /// A claim whose work was never begun was released.
    ClaimGivenBack,
    /// The same, after its lease had lapsed.
    LapsedClaimGivenBack,
    /// An answer came from memory.
    ReplayFromCache,
    /// Another request came under the same key.
    Mismatch,
    /// Work panicked.
    WorkPanicked,
    /// A process died between the execution and its settlement.
    ProcessCrashedAfterExecuting,
    /// The store crashed.
    StoreCrashed,
    /// A key was claimed anew after its record was swept.
    KeyUsedAgainAfterSweep,
    /// A webhook that came early settled a lapsed lease.
    EvidenceUsedOnLapse,
    /// A released operation was executed again.
    VerdictThenSecondExecution,
    /// The store's clock ran ahead, and nothing expired.
    ExpirySuspended,
    /// The loser of a race for a new key was not shown the winner's record.
    LoserSawNothing,
    /// The loser of a race for a record was shown the version that it had expected.
    LoserSawThePast,
    /// A write was cut off by a crash before it was committed.
    WriteRolledBack,
    /// An attempt that took over after a lapse proved that it had sent nothing.
    DoubtKept,
    /// The owner denied work whose answer could not be kept.
    DoneWorkDenied,
    /// One key was used at two targets.
    OtherTarget,
    /// A key opened a second window.
    SecondWindow,
    /// A void released an operation.
    VoidReleased,
    /// A void waited for a transaction of the handler that was still open.
    VoidWaited,
    /// A handler's commit was refused because of a void.
    LateCommitRefused,
    /// A receipt row told that the work was done.
    CompletionFound,
    /// Two engines wanted to ask about one operation, and one of them got a conflict.
    FindersRaced,
    /// A handler left its row out, and the voids of its route were suspended.
    VoidsSuspended,
    /// A find met an outside call that was begun and is not done.
    OpenCallLeftToAPerson,
    /// An operator resolved a dead letter.
    DeadLetterResolved,
    /// An operator decided while a find was under way.
    OperatorBesideFinder,
    /// A receipt row was deleted.
    RowDeleted,
}

impl Sometimes {
    /// Every one of them.
    pub const ALL: [Self; 40] = [
        Self::LateFencedSettle,
        Self::LateSettleAccepted,
        Self::Lapse,
        Self::AmbiguousClaim,
        Self::AmbiguousSettle,
        Self::SweepRacingAClaim,
        Self::SweepRacingASettle,
        Self::AttachWoken,
        Self::Resumed,
        Self::Contradiction,
        Self::DeadLetter,
        Self::TooLateToBegin,
        Self::ClaimGivenBack,
        Self::LapsedClaimGivenBack,
        Self::ReplayFromCache,
        Self::Mismatch,
        Self::WorkPanicked,
        Self::ProcessCrashedAfterExecuting,
        Self::StoreCrashed,
        Self::KeyUsedAgainAfterSweep,
        Self::EvidenceUsedOnLapse,
        Self::VerdictThenSecondExecution,
        Self::ExpirySuspended,
        Self::LoserSawNothing,
        Self::LoserSawThePast,
        Self::WriteRolledBack,
        Self::DoubtKept,
        Self::DoneWorkDenied,
        Self::OtherTarget,
        Self::SecondWindow,
        Self::VoidReleased,
        Self::VoidWaited,
        Self::LateCommitRefused,
        Self::CompletionFound,
        Self::FindersRaced,
        Self::VoidsSuspended,
        Self::OpenCallLeftToAPerson,
        Self::DeadLetterResolved,
        Self::OperatorBesideFinder,
        Self::RowDeleted,
    ];
}
