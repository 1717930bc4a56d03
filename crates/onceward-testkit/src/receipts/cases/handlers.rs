//! What handlers commit, in which order, and how deliveries of one request exclude each other.

use std::time::Duration;

use crate::receipts::suite::{Bench, assert_refused, is_completed, is_fenced, is_moved, status};
use crate::receipts::{Answer, HandlerError, Step};

const PAID: Answer<'static> = Answer::json(201, b"{\"paid\":true}");
const HOUR: Duration = Duration::from_secs(60 * 60);

/// Status, headers and every byte of the body.
pub async fn an_answer_is_read_back_as_it_was_committed(bench: Bench) {
    let bytes: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    let headers = r#"[["Content-Type","text/plain; charset=utf-8"],["X-A","é"],["x-a","two"]]"#;
    let mut handler = bench.handler().await;
    for (n, body) in [&b""[..], b"\\x00 'quoted' \"twice\"", &bytes].into_iter().enumerate() {
        let step = bench.step(n as u64);
        handler.begin().await.unwrap();
        handler.complete(step, Answer { status: 599, headers, body }).await.unwrap();
        handler.commit().await.unwrap();
        let voided = bench.void(step.operation, step.fence.above()).await;
        let read = bench.read(step.operation).await.unwrap();
        for row in [voided, read] {
            let reply = row.reply.unwrap().unwrap();
            assert_eq!((reply.status, &reply.body[..], reply.version), (599, body, 1));
            let headers: Vec<_> =
                reply.headers.iter().map(|(name, value)| (name.as_str(), &value[..])).collect();
            let expected = [
                ("content-type", &b"text/plain; charset=utf-8"[..]),
                ("x-a", "é".as_bytes()),
                ("x-a", b"two"),
            ];
            assert_eq!(headers, expected);
        }
    }
}

/// The operation is completed all the same.
pub async fn an_answer_that_no_client_could_get_is_said_to_be_unusable(bench: Bench) {
    let step = bench.step(1);
    let mut handler = bench.begun().await;
    let headers = r#"[["bad name","secret"]]"#;
    handler.complete(step, Answer { status: 200, headers, body: b"" }).await.unwrap();
    handler.commit().await.unwrap();
    let why = bench.void(step.operation, step.fence.above()).await.reply.unwrap().unwrap_err();
    assert!(why.contains("header") && !why.contains("secret"), "{why}");
}

/// A row is as much a part of the transaction as the effect.
pub async fn what_was_rolled_back_is_not_there(bench: Bench) {
    let step = bench.step(1);
    let mut handler = bench.begun().await;
    handler.checkpoint(step, "created", None).await.unwrap();
    handler.complete(step.after("created"), PAID).await.unwrap();
    handler.rollback().await.unwrap();
    assert_eq!(bench.read(step.operation).await, None);
}

/// A crash is a rollback.
pub async fn a_handler_that_dies_leaves_nothing_and_holds_nothing(bench: Bench) {
    let step = bench.step(1);
    let mut handler = bench.begun().await;
    handler.complete(step, PAID).await.unwrap();
    drop(handler);
    let mut next = bench.begun().await;
    next.complete(step, PAID).await.unwrap();
    next.commit().await.unwrap();
    assert_eq!(status(&bench.void(step.operation, step.fence.above()).await), Some(201));
}

/// A proxy that repeats the request afterwards gets an error.
pub async fn the_same_request_twice_is_committed_once(bench: Bench) {
    let step = bench.step(1);
    let mut handler = bench.begun().await;
    handler.complete(step, PAID).await.unwrap();
    handler.commit().await.unwrap();
    let mut second = bench.begun().await;
    assert_refused(&second.complete(step, Answer::json(202, b"again")).await, is_completed);
    let mut second = bench.begun().await;
    assert_refused(&second.checkpoint(step, "created", None).await, is_completed);
    assert_eq!(status(&bench.read(step.operation).await.unwrap()), Some(201));
}

/// Both are under way at once.
pub async fn a_second_delivery_waits_for_the_first_and_then_fails(bench: Bench) {
    let step = bench.step(1);
    let (mut first, mut second) = (bench.begun().await, bench.begun().await);
    first.complete(step, PAID).await.unwrap();
    let (refused, committed) =
        tokio::join!(second.complete(step, Answer::json(202, b"again")), first.commit());
    committed.unwrap();
    assert_refused(&refused, is_completed);
    let step = bench.step(2);
    let (mut first, mut second) = (bench.begun().await, bench.begun().await);
    first.checkpoint(step, "created", None).await.unwrap();
    let (refused, committed) = tokio::join!(second.checkpoint(step, "created", None), first.commit());
    committed.unwrap();
    assert_refused(&refused, is_moved);
}

/// The second delivery's effect is then the only one.
pub async fn a_second_delivery_succeeds_where_the_first_was_rolled_back(bench: Bench) {
    let step = bench.step(1);
    let (mut first, mut second) = (bench.begun().await, bench.begun().await);
    first.complete(step, PAID).await.unwrap();
    let again = Answer::json(202, b"again");
    let (completed, rolled_back) = tokio::join!(second.complete(step, again), first.rollback());
    rolled_back.unwrap();
    completed.unwrap();
    second.commit().await.unwrap();
    assert_eq!(status(&bench.read(step.operation).await.unwrap()), Some(202));
}

/// An execution after a void has the void's fence or a higher one.
pub async fn a_fence_above_the_rows_takes_the_operation_over(bench: Bench) {
    let step = bench.step(1);
    let voided = bench.void(step.operation, step.fence.above()).await;
    let mut handler = bench.begun().await;
    let same = Step { fence: voided.fence, ..step };
    handler.checkpoint(same, "created", None).await.unwrap();
    handler.commit().await.unwrap();
    let higher = Step { fence: voided.fence.above(), ..step };
    handler.begin().await.unwrap();
    handler.complete(higher.after("created"), PAID).await.unwrap();
    handler.commit().await.unwrap();
    let row = bench.read(step.operation).await.unwrap();
    assert_eq!((row.fence, status(&row)), (higher.fence, Some(201)));
}

/// A step that was not given, or that another delivery has left, is refused.
pub async fn steps_follow_one_another_and_only_in_order(bench: Bench) {
    let step = bench.step(1);
    let mut handler = bench.begun().await;
    assert_refused(&handler.complete(step.after("created"), PAID).await, is_moved);
    let mut handler = bench.begun().await;
    handler.checkpoint(step, "created", Some("1")).await.unwrap();
    handler.checkpoint(step.after("created"), "charged", Some("2")).await.unwrap();
    handler.commit().await.unwrap();
    for wrong in [step, step.after("created"), step.after("")] {
        let mut handler = bench.begun().await;
        assert_refused(&handler.complete(wrong, PAID).await, is_moved);
        let mut handler = bench.begun().await;
        assert_refused(&handler.checkpoint(wrong, "charged", None).await, is_moved);
        let mut handler = bench.begun().await;
        assert_refused(&handler.enter(wrong, "charged", None).await, is_moved);
    }
    handler.begin().await.unwrap();
    handler.complete(step.after("charged"), PAID).await.unwrap();
    handler.commit().await.unwrap();
    let row = bench.read(step.operation).await.unwrap();
    let point = row.point.as_ref().unwrap();
    assert_eq!((point.name.as_str(), point.data.as_deref()), ("charged", Some("2")));
    assert_eq!(status(&row), Some(201));
}

/// It is the operation's step until a checkpoint or the answer ends it.
pub async fn an_outside_call_is_seen_from_its_beginning_to_its_end(bench: Bench) {
    let (step, before) = (bench.step(1), bench.operation(0).1.as_number());
    let mut handler = bench.begun().await;
    handler.enter(step, "charge", Some(23 * HOUR)).await.unwrap();
    handler.commit().await.unwrap();
    let entered = bench.read(step.operation).await.unwrap().entered.unwrap();
    // A database may round to milliseconds.
    assert!(entered.at.as_micros() + 1_000 >= before, "{entered:?}");
    let dedup = entered.dedup_until.unwrap().since(entered.at);
    assert_eq!((entered.point.as_str(), dedup), ("charge", 23 * HOUR));
    let mut second = bench.begun().await;
    assert_refused(&second.enter(step, "charge", Some(HOUR)).await, is_moved);
    handler.begin().await.unwrap();
    handler.checkpoint(step.after("charge"), "charged", Some("{}")).await.unwrap();
    handler.commit().await.unwrap();
    let row = bench.read(step.operation).await.unwrap();
    assert_eq!((row.entered, row.point.unwrap().name.as_str()), (None, "charged"));
    handler.begin().await.unwrap();
    handler.enter(step.after("charged"), "mail", None).await.unwrap();
    handler.commit().await.unwrap();
    let row = bench.read(step.operation).await.unwrap();
    assert_eq!((row.entered.unwrap().dedup_until, row.point.unwrap().data.as_deref()), (None, Some("{}")));
    handler.begin().await.unwrap();
    handler.complete(step.after("mail"), PAID).await.unwrap();
    handler.commit().await.unwrap();
    let row = bench.read(step.operation).await.unwrap();
    assert_eq!((&row.entered, status(&row)), (&None, Some(201)));
    assert_eq!(row.point.unwrap().name, "charged");
}

/// Rows are deleted after twice this time. An owner from before must not make one again.
pub async fn a_row_is_made_only_by_a_young_fence_and_kept_by_any(bench: Bench) {
    let margin = Duration::from_secs(60);
    let (old, young) = (bench.fence_aged(24 * HOUR + margin), bench.fence_aged(24 * HOUR - margin));
    let with = |n, fence| Step { fence, ..bench.step(n) };
    let mut handler = bench.begun().await;
    let refused = handler.complete(with(1, old), PAID).await;
    assert_refused(&refused, is_fenced);
    let said = format!("{refused:?}");
    assert!(said.contains("clock"), "{said}");
    assert_eq!(bench.read(bench.operation(1).0).await, None);
    let mut handler = bench.begun().await;
    handler.complete(with(2, young), PAID).await.unwrap();
    handler.commit().await.unwrap();
    // A void makes a row at any age, and an execution that takes longer than a day goes on in its row.
    assert_eq!(bench.void(bench.operation(3).0, old).await.fence, old);
    handler.begin().await.unwrap();
    handler.checkpoint(with(3, old), "created", None).await.unwrap();
    handler.complete(with(3, old).after("created"), PAID).await.unwrap();
    handler.commit().await.unwrap();
    assert_eq!(status(&bench.read(bench.operation(3).0).await.unwrap()), Some(201));
}

/// The failure takes the whole transaction along, and the row that it met is as it was.
pub async fn a_handler_that_fails_once_cannot_commit_its_other_writes(bench: Bench) {
    let (one, other) = (bench.step(1), bench.step(2));
    bench.void(other.operation, other.fence.above()).await;
    let mut handler = bench.begun().await;
    handler.complete(one, PAID).await.unwrap();
    assert_refused(&handler.complete(other, PAID).await, is_fenced);
    // A database may take the word and answer with a rollback, or refuse it.
    let committed: Result<(), HandlerError> = handler.commit().await;
    drop(committed);
    assert_eq!(bench.read(one.operation).await, None);
    assert_eq!(status(&bench.read(other.operation).await.unwrap()), None);
}
