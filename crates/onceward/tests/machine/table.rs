//! The transition table, row by row: what the row says, and a history that ends with it.

use onceward_testkit::scenario::{Script, on_machine};

/// Each row of the table in `docs/state_machine.md`, with the script lines that show it.
const ROWS: &[(&str, &str)] = &[
    ("none; claim: in_progress, Execute", "0s A claims k body=x -> execute state=in_progress"),
    (
        "completed, failed_retryable or expired past expires_at; claim: in_progress under a new fence, Execute",
        "terms retention=1h
         0s A claims k body=x -> execute
         0s A settles fence=1 201 -> applied
         1h B claims k body=y -> execute fence=2 state=in_progress
         1h B settles fence=2 retryable -> applied
         2h C claims k body=z -> execute fence=3 state=in_progress
         2h C settles fence=3 201 -> applied
         3h S sweeps soft -> swept state=expired
         3h D claims k body=x -> execute fence=4 state=in_progress",
    ),
    (
        "any live; claim with another fingerprint: unchanged, Refuse(Mismatch)",
        "0s A claims k body=x -> execute
         0s A claims k body=y -> refuse mismatch state=in_progress
         1s A settles fence=1 unknown -> applied
         1s B claims k body=y -> refuse mismatch state=unknown
         2s A settles fence=1 retryable -> applied
         2s B claims k body=y -> refuse mismatch state=failed_retryable
         3s A settles fence=1 201 -> applied alarm=contradiction
         3s B claims k body=y -> refuse mismatch state=completed",
    ),
    (
        "in_progress, lease live; claim by the same owner: unchanged, Execute, or Resume after a checkpoint",
        "0s A claims k body=x -> execute fence=1
         1s A claims k body=x -> execute fence=1 state=in_progress
         1s A checkpoints fence=1 point=p -> applied
         2s A claims k body=x -> resume fence=1 point=p state=in_progress",
    ),
    (
        "in_progress, lease live; claim: unchanged, Refuse(InProgress)",
        "0s A claims k body=x -> execute
         59s B claims k body=x -> refuse in_progress retry_after=1s state=in_progress",
    ),
    (
        "in_progress, lapsed, resumable; claim or completer: in_progress under a new fence, Resume",
        "terms on_lapse=resume attempts=3
         0s A claims k body=x -> execute
         0s A checkpoints fence=1 point=p -> applied
         60s B claims k body=x -> resume fence=2 attempt=2 point=p state=in_progress
         120s C resumes -> resume fence=3 attempt=3 point=p state=in_progress",
    ),
    (
        "in_progress, lapsed, over the attempt limit or too late; claim, completer or sweep: unknown, dead-lettered",
        "terms on_lapse=resume attempts=2 within=10m
         0s A claims k body=x -> execute
         0s A checkpoints fence=1 point=p -> applied
         60s B claims k body=x -> resume fence=2
         120s C claims k body=x -> refuse unknown letter=dead alarm=dead_lettered state=unknown
         200s A claims k2 body=x -> execute
         200s A checkpoints fence=1 point=p -> applied
         860s C resumes -> refuse unknown letter=dead alarm=dead_lettered state=unknown
         900s A claims k3 body=x -> execute
         900s A checkpoints fence=1 point=p -> applied
         1560s S sweeps hard -> lapsed alarm=dead_lettered state=unknown",
    ),
    (
        "in_progress, lapsed, with evidence of completion; claim or sweep: completed, Replay",
        "0s A claims k body=x -> execute
         1s W gives evidence 201 -> applied
         60s B claims k body=x -> replay 201 state=completed",
    ),
    (
        "in_progress, lapsed, otherwise; claim or sweep: unknown, Refuse(Unknown)",
        "0s A claims k body=x -> execute
         60s B claims k body=x -> refuse unknown letter=live state=unknown
         60s A claims k2 body=x -> execute
         120s S sweeps hard -> lapsed state=unknown",
    ),
    (
        "completed; claim: unchanged, Replay",
        "0s A claims k body=x -> execute
         0s A settles fence=1 201 reply=r -> applied
         1s B claims k body=x -> replay 201 reply=r state=completed",
    ),
    (
        "failed_retryable; claim: in_progress under a new fence, Execute, or Resume after a checkpoint",
        "0s A claims k body=x -> execute
         0s A settles fence=1 retryable -> applied
         1s B claims k body=x -> execute fence=2 state=in_progress
         1s B checkpoints fence=2 point=p -> applied
         1s B settles fence=2 retryable -> applied
         2s C claims k body=x -> resume fence=3 point=p state=in_progress",
    ),
    (
        "failed_retryable with evidence of completion; claim: completed with an alarm, Replay",
        "0s A claims k body=x -> execute
         0s A settles fence=1 retryable -> applied
         1s B claims k body=x -> execute fence=2
         1s B settles fence=2 retryable -> applied
         2s A settles fence=1 201 -> fenced alarm=contradiction state=failed_retryable
         3s C claims k body=x -> replay 201 alarm=contradiction state=completed",
    ),
    (
        "unknown; claim: unchanged, Refuse(Unknown)",
        "0s A claims k body=x -> execute
         0s A settles fence=1 unknown -> applied
         1s B claims k body=x -> refuse unknown state=unknown",
    ),
    (
        "in_progress, fence matches; renew, checkpoint, settle: Applied",
        "0s A claims k body=x -> execute
         1s A renews fence=1 -> applied state=in_progress
         2s A checkpoints fence=1 point=p -> applied state=in_progress
         3s A settles fence=1 201 -> applied state=completed
         4s A claims k2 body=x -> execute
         5s A settles fence=1 retryable -> applied state=failed_retryable
         6s A claims k3 body=x -> execute
         7s A settles fence=1 unknown -> applied state=unknown",
    ),
    (
        "unknown or failed_retryable, fence matches; settle(Completed) or evidence: completed",
        "0s A claims k body=x -> execute
         0s A settles fence=1 unknown -> applied
         1s A settles fence=1 201 -> applied state=completed
         2s A claims k2 body=x -> execute
         2s A settles fence=1 retryable -> applied
         3s A settles fence=1 201 -> applied alarm=contradiction state=completed
         4s A claims k3 body=x -> execute
         4s A settles fence=1 unknown -> applied
         5s W gives evidence 201 -> applied state=completed
         6s A claims k4 body=x -> execute
         6s A settles fence=1 retryable -> applied
         7s W gives evidence 201 -> applied alarm=contradiction state=completed",
    ),
    (
        "unknown, fence matches; settle(Retryable): failed_retryable; settle(Unknown): unchanged",
        "0s A claims k body=x -> execute
         0s A settles fence=1 unknown -> applied
         1s A settles fence=1 unknown -> applied state=unknown
         2s A settles fence=1 retryable -> applied state=failed_retryable",
    ),
    (
        "any live; claim at another target: Refuse(Mismatch), whatever the rules of its fingerprint",
        "0s A claims k body=x target=/payments rules=old -> execute
         1s B claims k body=x target=/refunds rules=new -> refuse mismatch state=in_progress
         2s A settles fence=1 201 -> applied
         3s B claims k body=x target=/refunds rules=new -> refuse mismatch state=completed
         4s B claims k body=x target=/payments rules=new -> replay 201 alarm=uncompared",
    ),
    (
        "record of format 1 without a target; incomparable claim on another route: Refuse(Mismatch)",
        "terms format=1
         0s A claims k body=x target=/payments rules=old -> execute naming=bare
         1s A settles fence=1 201 -> applied
         3s B claims k body=x target=/refunds rules=new -> refuse mismatch state=completed
         4s B claims k body=x target=/payments rules=new -> replay 201 alarm=uncompared",
    ),
    (
        "any that would resume; claim with incomparable content: unchanged, Refuse(Incomparable)",
        "terms on_lapse=resume attempts=3
         0s A claims k body=x -> execute
         0s A checkpoints fence=1 point=p -> applied
         60s B claims k body=x rules=new -> refuse incomparable alarm=uncompared state=in_progress
         61s B claims k body=x -> resume fence=2 point=p
         62s B settles fence=2 unknown -> applied
         63s O resolves retryable -> applied
         64s C claims k body=x rules=new -> refuse incomparable alarm=uncompared state=failed_retryable
         65s C claims k body=x -> resume fence=3 point=p",
    ),
    (
        "in_progress or unknown, in doubt, fence matches; settle(Retryable): unknown, since the doubt",
        "terms on_lapse=resume attempts=3
         0s A claims k body=x -> execute doubt=no
         0s A checkpoints fence=1 point=p -> applied
         70s B claims k body=x -> resume fence=2 point=p doubt=yes
         71s B settles fence=2 retryable -> applied state=unknown since=60s cause=lost doubt=yes
         72s B settles fence=2 retryable -> applied state=unknown doubt=yes
         73s O resolves retryable -> applied state=failed_retryable doubt=no
         74s C claims k body=x -> resume fence=3 doubt=no
         75s C settles fence=3 retryable -> applied state=failed_retryable",
    ),
    (
        "unknown or failed_retryable, cause done_not_kept: the owner's settle(Retryable) releases nothing",
        "0s A claims k body=x -> execute
         1s A settles fence=1 unknown cause=lost -> applied cause=lost since=1s
         2s A settles fence=1 unknown cause=done_not_kept -> applied state=unknown cause=done_not_kept since=1s
         3s A settles fence=1 retryable -> already_settled alarm=contradiction state=unknown cause=done_not_kept
         4s O resolves retryable -> applied state=failed_retryable
         5s A settles fence=1 unknown cause=done_not_kept -> applied alarm=contradiction state=unknown cause=done_not_kept
         6s W gives evidence 201 -> applied state=completed",
    ),
    (
        "in_progress or unknown with evidence of completion; settle or resolve(Retryable): completed with an alarm",
        "0s A claims k body=x -> execute
         1s W gives evidence 200 -> applied
         2s A settles fence=1 retryable -> already_settled 200 alarm=contradiction state=completed
         3s A claims k2 body=x -> execute
         4s A settles fence=1 retryable -> applied
         5s B claims k2 body=x -> execute fence=2
         6s A settles fence=1 200 -> fenced alarm=contradiction
         7s B settles fence=2 unknown -> applied
         8s O resolves retryable -> already_settled 200 alarm=contradiction state=completed",
    ),
    (
        "completed, fence matches; settle: unchanged, AlreadySettled",
        "0s A claims k body=x -> execute
         0s A settles fence=1 201 reply=r -> applied
         1s A settles fence=1 500 -> already_settled 201 reply=r state=completed",
    ),
    (
        "any, fence differs, or unknown; renew, checkpoint, settle: unchanged, Fenced, a result kept as evidence",
        "0s A claims k body=x -> execute
         0s A settles fence=1 retryable -> applied
         1s B claims k body=x -> execute fence=2
         2s A renews fence=1 -> fenced state=in_progress
         3s A checkpoints fence=1 point=p -> fenced state=in_progress
         4s A settles fence=1 unknown -> fenced state=in_progress
         5s A settles fence=1 201 -> fenced alarm=contradiction state=in_progress
         6s B settles fence=2 unknown -> applied
         7s B renews fence=2 -> fenced state=unknown
         8s B checkpoints fence=2 point=p -> fenced state=unknown",
    ),
    (
        "unknown; resolve: completed or failed_retryable, Applied; a second resolver: Conflict",
        "0s A claims k body=x -> execute
         0s A settles fence=1 unknown -> applied
         1s O resolves completed 201 -> applied state=completed
         2s O resolves retryable -> conflict state=completed
         3s A claims k2 body=x -> execute
         3s A settles fence=1 unknown -> applied
         4s O resolves retryable -> applied state=failed_retryable
         5s O resolves completed 201 -> conflict state=failed_retryable",
    ),
    (
        "unknown; a find begins: unchanged and held; a second one: Conflict",
        "0s A claims k body=x -> execute
         0s F asks hold=10s -> conflict state=in_progress
         1s A settles fence=1 unknown -> applied
         2s F asks hold=10s -> applied state=unknown
         11s G asks hold=10s -> conflict state=unknown
         12s G asks hold=10s -> applied state=unknown
         12s G asks now -> applied state=unknown",
    ),
    (
        "unknown with evidence of completion; a find begins: completed, AlreadySettled",
        "terms on_lapse=resume attempts=3
         0s A claims k body=x -> execute
         0s A checkpoints fence=1 point=p -> applied
         60s B claims k body=x -> resume fence=2
         61s B settles fence=2 unknown -> applied
         62s A settles fence=1 201 -> fenced
         63s F asks -> already_settled 201 state=completed",
    ),
    (
        "unknown; found inconclusive or absent: backoff, past the limit dead-lettered, Applied",
        "0s A claims k body=x -> execute
         0s A settles fence=1 unknown -> applied
         1s F finds inconclusive attempts=2 -> applied state=unknown
         2s F finds absent attempts=2 -> applied alarm=dead_lettered state=unknown
         3s F finds inconclusive attempts=2 -> conflict state=unknown",
    ),
    (
        "unknown; absent and controlled: counts after its time, releases at the second time, Applied",
        "0s A claims k body=x -> execute
         0s A settles fence=1 unknown -> applied
         890s F finds absent absent_after=15m attempts=1 -> applied state=unknown
         899s G asks -> conflict
         900s G asks -> applied
         900s F finds absent absent_after=15m attempts=1 -> applied state=unknown
         1349s F finds absent absent_after=15m attempts=1 -> applied state=unknown
         1350s F finds inconclusive attempts=9 -> applied state=unknown
         1h F finds absent absent_after=15m control=none -> applied state=unknown
         2h F finds absent absent_after=15m attempts=1 -> applied state=failed_retryable
         2h B claims k body=x -> execute fence=2
         2h B settles fence=2 unknown -> applied
         2h F finds absent absent_after=15m -> applied state=unknown",
    ),
    (
        "unknown, work with receipts; absent: only together with a void, Applied",
        "terms receipts=kept
         0s A claims k body=x -> execute
         0s A settles fence=1 unknown -> applied
         1h F finds absent absent_after=15m attempts=2 -> applied state=unknown
         1h F finds absent raised=1 absent_after=15m -> applied state=unknown
         2h F finds absent raised=1 absent_after=15m -> applied state=failed_retryable voided=yes
         2h A settles fence=1 201 -> fenced alarm=contradiction state=failed_retryable",
    ),
    (
        "unknown that is known to be done; absent: dead-lettered, Applied",
        "0s A claims k body=x -> execute
         0s A settles fence=1 unknown cause=done_not_kept -> applied
         1h F finds absent absent_after=15m -> applied alarm=dead_lettered state=unknown cause=done_not_kept",
    ),
    (
        "failed_retryable after an absence; one more find: completed with an alarm, or unchanged",
        "0s A claims k body=x -> execute
         0s A settles fence=1 unknown -> applied
         1h F finds absent absent_after=15m -> applied
         2h F finds absent absent_after=15m -> applied state=failed_retryable
         2h F asks -> conflict
         135m F asks -> applied state=failed_retryable
         136m F finds completed 201 -> applied alarm=contradiction state=completed
         3h A claims k2 body=x -> execute
         3h A settles fence=1 unknown -> applied
         4h F finds absent absent_after=15m -> applied
         5h F finds absent absent_after=15m -> applied state=failed_retryable
         315m S sweeps hard -> left state=failed_retryable
         316m F finds nobody -> applied state=failed_retryable
         6h F finds ambiguous -> applied alarm=contradiction state=unknown
         7h A claims k3 body=x -> execute
         7h A settles fence=1 unknown -> applied
         8h F finds absent absent_after=15m -> applied
         9h F finds absent absent_after=15m -> applied state=failed_retryable
         10h F finds absent absent_after=15m -> applied state=failed_retryable
         10h F asks -> conflict
         11h B claims k3 body=x -> execute fence=2",
    ),
    (
        "unknown; the finder could not ask: tried again later, however often, Applied",
        "0s A claims k body=x -> execute
         0s A settles fence=1 unknown -> applied
         1s F finds nobody attempts=1 -> applied state=unknown
         2h F finds nobody attempts=1 -> applied state=unknown",
    ),
    (
        "unknown; found completed: completed; it was done: unknown, cause done_not_kept, dead-lettered",
        "0s A claims k body=x -> execute
         0s A settles fence=1 unknown -> applied
         1s F finds completed 201 -> applied state=completed
         2s F finds completed 201 -> already_settled 201 state=completed
         3s A claims k2 body=x -> execute
         3s A settles fence=1 unknown -> applied
         4s F finds done -> applied alarm=dead_lettered state=unknown cause=done_not_kept",
    ),
    (
        "unknown; voided right above the fence: failed_retryable, resumable at the row's point",
        "terms receipts=kept
         0s A claims k body=x -> execute
         0s A settles fence=1 unknown -> applied
         1s F finds voided -> applied state=failed_retryable voided=yes
         2s A settles fence=1 201 -> fenced alarm=contradiction state=failed_retryable
         3s B claims k body=x -> execute fence=2
         3s B settles fence=2 unknown -> applied
         4s F finds voided point=p -> applied state=failed_retryable
         5s C claims k body=x -> resume fence=3 point=p",
    ),
    (
        "unknown; ambiguous, or a void that proves nothing: dead-lettered, Applied",
        "0s A claims k body=x -> execute
         0s A settles fence=1 unknown -> applied
         1s F finds ambiguous -> applied alarm=dead_lettered state=unknown
         2s A claims k2 body=x -> execute
         2s A settles fence=1 unknown -> applied
         3s F finds voided -> applied alarm=dead_lettered state=unknown voided=no",
    ),
    (
        "any, fence differs; found: unchanged, Conflict; completed is kept as evidence, Fenced",
        "0s A claims k body=x -> execute
         0s A settles fence=1 retryable -> applied
         1s B claims k body=x -> execute fence=2
         1s B settles fence=2 unknown -> applied
         2s F finds fence=1 inconclusive -> conflict state=unknown
         3s F finds fence=1 completed 201 -> fenced alarm=contradiction state=unknown
         4s O resolves retryable -> already_settled 201 alarm=contradiction state=completed",
    ),
    (
        "unknown, nothing finds it out; gave up: dead-lettered once it is old enough, Applied",
        "0s A claims k body=x -> execute
         0s A settles fence=1 unknown -> applied
         15m E gives_up after=15m -> applied alarm=dead_lettered state=unknown
         16m E gives_up after=15m -> conflict state=unknown",
    ),
    (
        "completed, failed_retryable; operator expires it: expires_at is sooner, Applied",
        "0s A claims k body=x -> execute
         0s A settles fence=1 201 -> applied
         1s O expires after=60s -> applied state=completed
         60s B claims k body=x -> replay 201
         61s B claims k body=x -> execute fence=2
         61s B settles fence=2 retryable -> applied
         62s O expires after=60s -> applied state=failed_retryable
         121s S sweeps hard -> left
         122s S sweeps hard -> swept state=none",
    ),
    (
        "completed, failed_retryable, expired past expires_at; sweep: removed or expired, Swept",
        "terms retention=1h
         0s A claims k body=x -> execute
         0s A settles fence=1 201 -> applied
         1h S sweeps soft -> swept state=expired
         1h S sweeps hard -> swept state=none
         1h A claims k2 body=x -> execute
         1h A settles fence=1 retryable -> applied
         2h S sweeps hard -> swept state=none",
    ),
    (
        "in_progress, unknown; expire: Conflict; sweep: Left",
        "0s A claims k body=x -> execute
         1s O expires -> conflict state=in_progress
         2s S sweeps hard -> left state=in_progress
         3s A settles fence=1 unknown -> applied
         4s O expires -> conflict state=unknown
         900d S sweeps soft -> left state=unknown",
    ),
];

#[test]
fn every_row_of_the_transition_table_holds() {
    for (row, lines) in ROWS {
        let script: Script =
            format!("# {row}.\n{lines}").parse().unwrap_or_else(|error| panic!("{row}: {error}"));
        on_machine(&script);
    }
}
