//! Routes whose work commits a receipt row: what each end of an execution means, by what the row is found to hold.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use http::Request;
use http_body_util::Full;
use onceward::Identity;
use onceward::http::{IdempotencyLayer, LayerError, Policy, Routes, ScopeRules};
use onceward::receipts::ReceiptFinder;
use onceward::reconcile::{Finding, ReconcileFuture, Reconciler, Reconciling, UnknownOperation, Void};
use onceward::record::Receipts;
use onceward::{Fence, Reply};

use super::{Got, World, builder, doing, memory, post, world_with};

/// Answers each find with the next of these, and afterwards that it could not ask.
#[derive(Clone, Default)]
struct Script {
    findings: Arc<Mutex<VecDeque<Find>>>,
    asked: Arc<Mutex<Vec<Fence>>>,
}

/// What a find brings.
#[derive(Clone)]
enum Find {
    /// The row has this answer.
    Row(Reply),
    /// The fence was raised, and the row has nothing.
    Nothing,
    Inconclusive,
    Ambiguous,
    Done,
    Down,
}

impl Reconciler for Script {
    fn find<'a>(&'a self, unknown: &'a UnknownOperation) -> ReconcileFuture<'a, Result<Finding, String>> {
        self.asked.lock().unwrap().push(unknown.fence);
        let next = self.findings.lock().unwrap().pop_front();
        Box::pin(async move {
            match next {
                Some(Find::Row(reply)) => Ok(Finding::Completed(Arc::new(reply))),
                Some(Find::Nothing) => {
                    Ok(Finding::Voided(Void { fence: unknown.fence.above(), point: None }))
                }
                Some(Find::Inconclusive) => Ok(Finding::Inconclusive("no row was seen yet".to_owned())),
                Some(Find::Ambiguous) => Ok(Finding::Ambiguous("a call was entered".to_owned())),
                Some(Find::Done) => Ok(Finding::DoneNotKept("its headers cannot be read".to_owned())),
                Some(Find::Down) | None => Err("the database is down".to_owned()),
            }
        })
    }
}

impl Script {
    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

fn paid() -> Reply {
    let reply = Reply::new("{\"paid\":1}").with_status(201);
    Reply {
        headers: vec![("x-receipt".to_owned(), "7".into()), ("set-cookie".to_owned(), "a=b".into())],
        ..reply
    }
}

async fn world_finding(findings: impl IntoIterator<Item = Find>) -> (World, Script) {
    let script = Script::default();
    script.findings.lock().unwrap().extend(findings);
    let engine = builder(memory()).reconciler(Arc::new(script.clone()));
    (world_with(engine, Policy::new().receipts(Receipts::Kept)).await, script)
}

async fn first_and_retry(what: &str, find: Find) -> (World, Script, Got, Got) {
    let (world, script) = world_finding([find]).await;
    let first = world.send(doing(what, "k", "{}")).await;
    let retry = world.send(post("k", "{}")).await;
    (world, script, first, retry)
}

/// Ends of an execution after which only the row tells what was committed.
const DOUBTFUL: [&str; 4] = ["off", "panic", "status:500", "status:503"];

#[tokio::test(start_paused = true)]
async fn a_row_with_an_answer_is_the_answer_of_the_first_caller_and_of_every_retry() {
    for what in
        ["off", "broken", "short", "status:500", "status:503", "status:429", "status:400", "status:303"]
    {
        let (world, script, first, retry) = first_and_retry(what, Find::Row(paid())).await;
        assert_eq!((first.status, &first.body[..]), (201, &b"{\"paid\":1}"[..]), "{what}");
        assert_eq!(first.header("x-receipt"), Some("7"), "{what}");
        // A row is no way round the rules for what is replayed.
        assert_eq!(first.header("set-cookie"), None, "{what}");
        assert!(!first.is_replay() && retry.is_replay(), "{what}");
        assert_eq!((retry.status, retry.body.clone()), (first.status, first.body.clone()), "{what}");
        assert_eq!((world.ledger(), script.asked()), (1, 1), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_committed_nothing_is_released_and_the_retry_executes() {
    for what in DOUBTFUL.into_iter().filter(|what| *what != "panic") {
        let (world, _, first, retry) = first_and_retry(what, Find::Nothing).await;
        assert_eq!(first.header("onceward-outcome"), Some("retryable"), "{what}");
        if what == "status:500" {
            assert_eq!(first.status, 500, "the service's own answer is passed on");
        } else {
            assert_eq!(first.problem(), (502, "idempotency_not_executed".to_owned()), "{what}");
            assert_eq!(first.json()["next_action"], "retry_same_key");
        }
        assert_eq!((retry.status, retry.is_replay(), world.ledger()), (201, false, 2), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_whole_4xx_is_the_answer_once_its_owner_can_commit_nothing_more() {
    for find in [Find::Nothing, Find::Inconclusive] {
        let (world, script, first, retry) = first_and_retry("status:402", find).await;
        assert_eq!((first.status, retry.status, retry.is_replay()), (402, 402, true));
        assert_eq!((world.ledger(), script.asked()), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_2xx_and_a_request_that_was_never_sent_need_no_row() {
    let (world, script) = world_finding([]).await;
    assert_eq!(world.send(post("k", "{}")).await.status, 201);
    assert_eq!(world.send(doing("refused", "l", "{}")).await.problem().1, "idempotency_upstream_unreachable");
    assert_eq!(world.send(post("l", "{}")).await.status, 201);
    assert_eq!((world.ledger(), script.asked()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_released_while_the_row_cannot_tell() {
    for find in [Find::Inconclusive, Find::Ambiguous, Find::Down, Find::Done] {
        for what in DOUBTFUL {
            let (world, _, first, retry) = first_and_retry(what, find.clone()).await;
            assert_eq!(first.problem().1, "idempotency_outcome_unknown", "{what}");
            assert_eq!(retry.problem(), (409, "idempotency_outcome_unknown".to_owned()), "{what}");
            assert_eq!(world.ledger(), 1, "{what}");
        }
    }
    for find in [Find::Ambiguous, Find::Down] {
        let (world, _, first, _) = first_and_retry("status:429", find).await;
        assert_eq!((first.problem().1.as_str(), world.ledger()), ("idempotency_outcome_unknown", 1));
    }
}

#[tokio::test(start_paused = true)]
async fn the_services_own_proof_counts_where_no_row_was_seen_yet() {
    let (world, _, first, retry) = first_and_retry("status:429", Find::Inconclusive).await;
    assert_eq!((first.status, retry.status, world.ledger()), (429, 201, 2));
}

#[tokio::test(start_paused = true)]
async fn work_that_may_go_on_is_left_alone_until_its_time_is_over() {
    let (world, script) = world_finding([Find::Nothing]).await;
    let first = world.send(doing("late", "k", "{}")).await;
    assert_eq!(first.problem(), (504, "idempotency_outcome_unknown".to_owned()));
    assert_eq!(world.send(post("k", "{}")).await.status, 409);
    assert_eq!(script.asked(), 0);
}

fn request(key: &str) -> Request<Full<bytes::Bytes>> {
    post(key, "{}")
}

#[tokio::test(start_paused = true)]
async fn a_shadow_has_no_receipts() {
    let script = Script::default();
    let policy = Policy::new().receipts(Receipts::Kept).mode(onceward::http::Mode::Observe);
    let world = world_with(builder(memory()).reconciler(Arc::new(script.clone())), policy).await;
    assert_eq!(world.send(request("k")).await.status, 201);
    assert_eq!(script.asked(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_route_with_receipts_that_nothing_reads_is_refused() {
    let routes =
        || Routes::new(Policy::new()).unwrap().route("POST /orders", Policy::new().receipts(Receipts::Kept));
    let scope = || ScopeRules::parse_verified(["header:x-tenant"]).unwrap();
    let identity = || onceward::Identity::in_namespace("tests").scoped_by(scope()).unwrap();
    let without = builder(memory()).open(identity()).await.unwrap();
    let refused = IdempotencyLayer::new(without, scope(), routes().unwrap()).unwrap_err();
    assert_eq!(refused, LayerError::Receipts { route: "POST /orders".to_owned() });
    // One that knows other routes only would give these up as well.
    let other = ReceiptFinder::new(Identity::in_namespace("tests"), &Reconciling::default());
    let other = builder(memory()).reconciler(Arc::new(other)).open(identity()).await.unwrap();
    assert!(IdempotencyLayer::new(other, scope(), routes().unwrap()).is_err());
}

#[tokio::test]
async fn what_a_service_says_is_done_is_not_released_although_its_row_is_missing() {
    // Not whole, or too large to be kept.
    for what in ["broken", "short", "closing:hello", "endless"] {
        let (world, _, _, retry) = first_and_retry(what, Find::Nothing).await;
        assert_eq!(world.ledger(), 1, "{what}: {retry:?}");
    }
    for what in ["word:completed:500", "word:completed:303", "word:completed:402"] {
        let (world, script, first, retry) = first_and_retry(what, Find::Nothing).await;
        assert_eq!((world.ledger(), first.status, retry.is_replay()), (1, retry.status, true), "{what}");
        assert_eq!(script.asked(), 0, "{what}: its own word needs no row");
    }
}

#[tokio::test]
async fn what_is_not_whole_is_completed_by_its_row() {
    for what in ["broken", "short", "closing:hello", "endless"] {
        let (world, _, first, retry) = first_and_retry(what, Find::Row(paid())).await;
        assert_eq!((world.ledger(), first.status, retry.status), (1, 201, 201), "{what}");
    }
}

#[tokio::test]
async fn a_redirection_without_a_row_is_released_like_any_other_end() {
    let (world, _, first, retry) = first_and_retry("status:303", Find::Nothing).await;
    assert_eq!((first.status, world.ledger(), retry.is_replay()), (303, 2, false));
}
