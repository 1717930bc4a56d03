//! Voids, and owners that commit before, after and at the same time.

use std::task::Poll;

use onceward::Fence;
use onceward::receipts::TableError;

use crate::receipts::suite::{Bench, assert_refused, is_completed, is_fenced, status};
use crate::receipts::{Answer, HandlerError};

const PAID: Answer<'static> = Answer::json(201, b"{\"paid\":true}");

/// After a void of a missing row its owner's transaction fails.
pub async fn a_void_makes_a_row_and_its_owner_can_no_longer_commit(bench: Bench) {
    let step = bench.step(1);
    assert_eq!(bench.read(step.operation).await, None);
    let row = bench.void(step.operation, step.fence.above()).await;
    assert_eq!(row.fence, step.fence.above());
    assert!(row.point.is_none() && row.entered.is_none() && row.reply.is_none(), "{row:?}");
    assert_eq!(bench.read(step.operation).await, Some(row));
    let mut handler = bench.begun().await;
    assert_refused(&handler.complete(step, PAID).await, is_fenced);
    let mut handler = bench.begun().await;
    assert_refused(&handler.checkpoint(step, "created", None).await, is_fenced);
    let mut handler = bench.begun().await;
    assert_refused(&handler.enter(step, "charge", None).await, is_fenced);
}

/// A void that comes late changes nothing.
pub async fn a_void_raises_the_fence_and_never_lowers_it(bench: Bench) {
    let (operation, fence) = bench.operation(1);
    let higher = fence.above().above();
    assert_eq!(bench.void(operation, fence).await.fence, fence);
    assert_eq!(bench.void(operation, higher).await.fence, higher);
    assert_eq!(bench.void(operation, fence).await.fence, higher);
    assert_eq!(bench.read(operation).await.map(|row| row.fence), Some(higher));
}

/// What was committed before a void stays, and the void returns it.
pub async fn a_void_leaves_the_answer_and_the_phases_as_they_are(bench: Bench) {
    let step = bench.step(1);
    let mut handler = bench.begun().await;
    handler.checkpoint(step, "created", Some("{\"id\":7}")).await.unwrap();
    handler.enter(step.after("created"), "charge", None).await.unwrap();
    handler.commit().await.unwrap();
    let row = bench.void(step.operation, step.fence.above()).await;
    let point = row.point.as_ref().unwrap();
    assert_eq!((point.name.as_str(), point.data.as_deref()), ("created", Some("{\"id\":7}")));
    assert_eq!(row.entered.as_ref().unwrap().point, "charge");
    let step = bench.step(2);
    handler.begin().await.unwrap();
    handler.complete(step, PAID).await.unwrap();
    handler.commit().await.unwrap();
    for fence in [step.fence.above(), step.fence] {
        let row = bench.void(step.operation, fence).await;
        assert_eq!((row.fence, status(&row)), (step.fence.above(), Some(201)));
    }
    // A later owner finds it completed, the first one finds itself fenced.
    let later = crate::receipts::Step { fence: step.fence.above().above(), ..step };
    handler.begin().await.unwrap();
    assert_refused(&handler.complete(later, PAID).await, is_completed);
    let mut handler = bench.begun().await;
    assert_refused(&handler.complete(step, PAID).await, is_fenced);
}

/// A person has decided that the call was not made, so that the next execution goes on from the phase before it.
pub async fn a_release_is_a_void_that_removes_the_outside_call_that_was_begun(bench: Bench) {
    let step = bench.step(1);
    let mut handler = bench.begun().await;
    handler.checkpoint(step, "created", None).await.unwrap();
    handler.enter(step.after("created"), "charge", None).await.unwrap();
    handler.commit().await.unwrap();
    let row = bench.table.release(step.operation, step.fence.above()).await.unwrap();
    assert_eq!((row.fence, row.entered), (step.fence.above(), None));
    assert_eq!(row.point.unwrap().name, "created");
    handler.begin().await.unwrap();
    assert_refused(&handler.complete(step.after("charge"), PAID).await, is_fenced);
    let later = crate::receipts::Step { fence: step.fence.above().above(), ..step };
    let mut handler = bench.begun().await;
    handler.enter(later.after("created"), "charge", None).await.unwrap();
    handler.commit().await.unwrap();
    // The call of a later execution is not this one's.
    let row = bench.table.release(step.operation, step.fence.above()).await.unwrap();
    assert_eq!((row.fence, row.entered.is_some()), (later.fence, true));
    let unseen = bench.step(2);
    let row = bench.table.release(unseen.operation, unseen.fence.above()).await.unwrap();
    assert_eq!(row.fence, unseen.fence.above());
}

/// The void waits for a limited time, and tells that it was held. After the commit it returns the answer.
pub async fn a_transaction_that_stays_open_holds_the_void_and_its_commit_wins(bench: Bench) {
    let step = bench.step(1);
    let mut handler = bench.begun().await;
    handler.complete(step, PAID).await.unwrap();
    let held = bench.table.void(step.operation, step.fence.above()).await;
    assert!(matches!(held, Err(TableError::Held { .. })), "{held:?}");
    // A read waits for nobody, and shows what is committed.
    assert_eq!(bench.read(step.operation).await, None);
    handler.commit().await.unwrap();
    let row = bench.void(step.operation, step.fence.above()).await;
    assert_eq!(status(&row), Some(201));
}

/// The handler's next transaction under the old fence fails.
pub async fn a_transaction_that_rolls_back_leaves_the_void_to_win(bench: Bench) {
    let step = bench.step(1);
    let mut handler = bench.begun().await;
    handler.complete(step, PAID).await.unwrap();
    handler.rollback().await.unwrap();
    let row = bench.void(step.operation, step.fence.above()).await;
    assert_eq!((row.fence, status(&row)), (step.fence.above(), None));
    handler.begin().await.unwrap();
    assert_refused(&handler.complete(step, PAID).await, is_fenced);
    handler.rollback().await.unwrap();
    assert_eq!(status(&bench.read(step.operation).await.unwrap()), None);
}

/// The void and the commit overlap: whichever the database takes first, the answer is not lost.
pub async fn a_void_that_waits_sees_what_was_committed_meanwhile(bench: Bench) {
    let step = bench.step(1);
    let mut handler = bench.begun().await;
    handler.complete(step, PAID).await.unwrap();
    let void = bench.table.void(step.operation, step.fence.above());
    let (row, committed) = tokio::join!(void, handler.commit());
    committed.unwrap();
    assert_eq!(status(&row.unwrap()), Some(201));
}

/// A caller that gives up leaves neither a lock nor a transaction behind.
pub async fn a_void_that_is_dropped_while_it_waits_does_no_harm(bench: Bench) {
    let step = bench.step(1);
    let mut handler = bench.begun().await;
    handler.complete(step, PAID).await.unwrap();
    for _ in 0..8 {
        let mut void = bench.table.void(step.operation, step.fence.above());
        std::future::poll_fn(|context| {
            // Pending or answered: the point is that it is dropped here.
            drop(void.as_mut().poll(context));
            Poll::Ready(())
        })
        .await;
        drop(void);
    }
    handler.commit().await.unwrap();
    let other = bench.step(2);
    handler.begin().await.unwrap();
    handler.complete(other, PAID).await.unwrap();
    handler.commit().await.unwrap();
    assert_eq!(status(&bench.void(step.operation, step.fence.above()).await), Some(201));
    assert_eq!(status(&bench.void(other.operation, other.fence.above()).await), Some(201));
}

/// Either the answer is committed and the void returns it, or the void returns none and the commit fails.
pub async fn a_void_and_an_owner_that_race_have_one_winner(bench: Bench) {
    let mut handler = bench.handler().await;
    for n in 0..20 {
        let step = bench.step(n);
        let committed = async {
            handler.begin().await?;
            handler.complete(step, PAID).await?;
            handler.commit().await
        };
        let (row, committed) = tokio::join!(bench.table.void(step.operation, step.fence.above()), committed);
        let row = row.unwrap();
        match committed {
            Ok(()) => assert_eq!(status(&row), Some(201), "the {n}th: the void missed a commit"),
            Err(HandlerError::Fenced(_) | HandlerError::Serialization(_)) => {
                assert_eq!(status(&row), None, "the {n}th");
                handler.rollback().await.unwrap();
            }
            Err(other) => panic!("the {n}th failed in another way: {other:?}"),
        }
        assert_eq!(bench.read(step.operation).await, Some(row), "the {n}th");
    }
}

/// The column has 64 bits with a sign.
pub async fn a_fence_that_fits_no_column_is_refused_and_the_largest_one_is_not(bench: Bench) {
    let (operation, _) = bench.operation(1);
    let largest = Fence::from_number(i64::MAX.unsigned_abs());
    let refused = bench.table.void(operation, largest.above()).await;
    assert!(matches!(refused, Err(TableError::Unavailable { .. })), "{refused:?}");
    assert_eq!(bench.read(operation).await, None);
    assert_eq!(bench.void(operation, largest).await.fence, largest);
    let zero = Fence::from_number(0);
    assert_eq!(bench.void(operation, zero).await.fence, largest);
}
