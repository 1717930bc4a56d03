//! Every row of the table of cases, in both flavours.

use std::time::Duration;

use onceward::engine::Resolve;
use onceward::event::Resolution;
use onceward::http::{Flavor, InProgress, KeyRule, Policy};
use onceward::store::{Filter, Scan, Which};

use super::{SECOND, World, doing, post, with, without, world};

fn both() -> [Policy; 2] {
    [Flavor::Ietf, Flavor::Stripe].map(|flavor| Policy::new().flavor(flavor))
}

#[tokio::test(start_paused = true)]
async fn a_retry_gets_the_first_answer_and_nothing_runs_again() {
    for policy in both() {
        let world = world(policy.clone()).await;
        let first = world.send(post("k", "{}")).await;
        assert_eq!((first.status, &first.body[..]), (201, &b"execution 1 of {}"[..]));
        assert!(!first.is_replay());
        assert_eq!(first.header("idempotency-expires"), Some("2027-01-16T08:00:00Z"));
        for _ in 0..3 {
            let retry = world.send(post("k", "{}")).await;
            assert_eq!((retry.status, &retry.body), (first.status, &first.body));
            assert!(retry.is_replay());
            assert_eq!(retry.header("idempotency-expires"), first.header("idempotency-expires"));
            let stripe = retry.header("idempotent-replayed");
            assert_eq!(stripe, (policy.flavor == Flavor::Stripe).then_some("true"));
        }
        assert_eq!(world.ledger(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_key_is_refused_only_where_it_is_required() {
    for policy in both() {
        let required = world(policy.clone().key(KeyRule::Required)).await;
        let got = required.send(without(post("k", "{}"), "idempotency-key")).await;
        assert_eq!(got.problem(), (400, "idempotency_key_missing".to_owned()));
        assert_eq!(got.json()["next_action"], "fix_request");
        assert_eq!(required.ledger(), 0);

        let optional = world(policy).await;
        for number in 1..=2 {
            let got = optional.send(without(post("k", "{}"), "idempotency-key")).await;
            assert_eq!((got.status, got.header("idempotency-expires")), (201, None));
            assert_eq!(optional.ledger(), number);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_without_its_scope_is_refused_and_nothing_is_looked_up() {
    for policy in both() {
        let world = world(policy).await;
        let got = world.send(without(post("k", "{}"), "x-tenant")).await;
        assert_eq!(got.problem(), (401, "idempotency_scope_missing".to_owned()));
        assert_eq!(world.ledger(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn another_request_under_the_same_key_is_refused_and_the_first_answer_stays() {
    for (policy, status) in both().into_iter().zip([422, 400]) {
        let world = world(policy).await;
        let first = world.send(post("k", "{\"amount\":1}")).await;
        let other = world.send(post("k", "{\"amount\":2}")).await;
        let code = "idempotency_key_reused_with_different_payload".to_owned();
        assert_eq!(other.problem(), (status, code));
        assert_eq!(other.json()["next_action"], "new_key");
        assert_eq!(other.header("onceward-outcome"), Some("retryable"));
        assert_eq!(world.send(post("k", "{\"amount\":1}")).await.body, first.body);
        assert_eq!(world.ledger(), 1);
    }
}

/// Begins a request that hangs until the upstream is let go.
async fn hanging(world: &World) -> tokio::task::JoinHandle<super::Got> {
    let sender = world.clone();
    let running = tokio::spawn(async move { sender.send(doing("hang", "k", "{}")).await });
    world.upstream.began.notified().await;
    running
}

#[tokio::test(start_paused = true)]
async fn a_retry_of_a_running_request_gets_409_and_a_mismatch_beats_it() {
    for (policy, mismatch) in both().into_iter().zip([422, 400]) {
        let world = world(policy).await;
        let running = hanging(&world).await;
        let retry = world.send(post("k", "{}")).await;
        assert_eq!(retry.problem(), (409, "idempotency_key_in_progress".to_owned()));
        assert_eq!(retry.json()["next_action"], "wait");
        assert!(retry.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
        assert_eq!(world.send(post("k", "{\"other\":1}")).await.status, mismatch);
        world.upstream.go.notify_one();
        assert_eq!(running.await.unwrap().status, 201);
        assert!(world.send(post("k", "{}")).await.is_replay());
        assert_eq!(world.ledger(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_of_a_running_request_gets_202_where_the_route_says_so() {
    let world = world(Policy::new().in_progress(InProgress::Accepted)).await;
    let running = hanging(&world).await;
    let retry = world.send(post("k", "{}")).await;
    assert_eq!(retry.problem(), (202, "idempotency_key_in_progress".to_owned()));
    assert_eq!(retry.header("location"), Some("/.well-known/idempotency/status/k"));
    assert!(retry.header("retry-after").is_some());
    world.upstream.go.notify_one();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_retry_waits_where_the_route_says_so_or_where_it_asks_to() {
    let waits = Policy::new().in_progress(InProgress::Wait);
    let plain = || post("k", "{}");
    let asking = || with(with(post("k", "{}"), "prefer", "respond-async"), "prefer", "foo; x=1, wait=5");
    for (policy, request) in [(waits, plain()), (Policy::new(), asking())] {
        let world = world(policy).await;
        let running = hanging(&world).await;
        let waiter = world.clone();
        let waiting = tokio::spawn(async move { waiter.send(request).await });
        onceward::plumbing::time::sleep(SECOND * 2).await;
        assert!(!waiting.is_finished());
        world.upstream.go.notify_one();
        assert!(waiting.await.unwrap().is_replay());
        running.await.unwrap();
        assert_eq!(world.ledger(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn no_client_waits_longer_than_the_route_allows() {
    let world = world(Policy::new().wait(SECOND * 3)).await;
    let running = hanging(&world).await;
    let before = onceward::plumbing::time::instant();
    let retry = world.send(with(post("k", "{}"), "prefer", "wait=1000")).await;
    assert_eq!(retry.status, 409);
    assert_eq!(onceward::plumbing::time::instant() - before, SECOND * 3);
    world.upstream.go.notify_one();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_is_kept_no_longer_than_the_route_allows_and_the_work_goes_on() {
    for policy in both() {
        let world = world(policy.respond_within(SECOND * 2)).await;
        let got = world.send(doing("slow:5", "k", "{}")).await;
        assert_eq!(got.problem(), (504, "idempotency_key_in_progress".to_owned()));
        assert_eq!((got.header("retry-after"), &got.json()["next_action"]), (Some("1"), &"wait".into()));
        onceward::plumbing::time::sleep(SECOND * 5).await;
        assert!(world.send(post("k", "{}")).await.is_replay());
        assert_eq!(world.ledger(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_is_refused_until_it_is_resolved() {
    for policy in both() {
        let world = world(policy).await;
        assert_eq!(world.send(doing("off", "k", "{}")).await.status, 502);
        let retry = world.send(post("k", "{}")).await;
        assert_eq!(retry.problem(), (409, "idempotency_outcome_unknown".to_owned()));
        assert_eq!(retry.json()["next_action"], "wait");
        assert!(retry.header("retry-after").is_some());

        let id = only_id(&world).await;
        world.give_up(id).await;
        let dead = world.send(post("k", "{}")).await;
        assert_eq!(dead.problem().0, 409);
        assert_eq!(dead.json()["next_action"], "contact");
        assert_eq!((dead.header("retry-after"), dead.header("x-should-retry")), (None, Some("false")));

        world
            .engine
            .resolve(
                id,
                Resolve { verdict: Resolution::Retryable, by: "ops", reason: "it never arrived", seen: None },
            )
            .await
            .unwrap();
        let again = world.send(post("k", "{}")).await;
        assert_eq!((again.status, again.is_replay(), world.ledger()), (201, false, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn the_pause_that_an_unknown_outcome_asks_for_grows_with_its_age() {
    let world = world(Policy::new()).await;
    world.send(doing("off", "k", "{}")).await;
    let mut age = 0;
    for (then, pause) in [(0, "1"), (3, "2"), (10, "5"), (60, "30"), (120, "60"), (700, "60")] {
        onceward::plumbing::time::sleep(SECOND * (then - age)).await;
        age = then;
        for request in [post("k", "{}"), status("k")] {
            assert_eq!(world.send(request).await.header("retry-after"), Some(pause), "after {then} s");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_problem_says_whether_to_try_again_and_says_it_as_stripe_does_where_the_route_is_stripes() {
    for policy in both() {
        let stripe = policy.flavor == Flavor::Stripe;
        let world = world(policy.max_response_body(64 * 1024)).await;
        let refused = world.send(doing("refused", "a", "{}")).await;
        let unknown = world.send(doing("off", "b", "{}")).await;
        world.send(post("c", "{}")).await;
        let mismatch = world.send(post("c", "[]")).await;
        let large = world.send(doing("bytes:100000", "d", "{}")).await;
        let replayed = world.send(post("d", "{}")).await;
        assert!(replayed.is_replay());
        for (got, again) in
            [(refused, "true"), (unknown, "true"), (mismatch, "false"), (large, "false"), (replayed, "false")]
        {
            assert_eq!(got.header("x-should-retry"), Some(again), "{got:?}");
            assert_eq!(got.header("stripe-should-retry"), stripe.then_some(again), "{got:?}");
        }
        let executed = world.send(post("e", "{}")).await;
        assert_eq!((executed.status, executed.header("x-should-retry")), (201, None));
    }
}

/// Asks for the state of a key.
fn status(key: &str) -> http::Request<http_body_util::Full<bytes::Bytes>> {
    let path = format!("/.well-known/idempotency/status/{key}");
    http::Request::get(path).header("x-tenant", "acme").body(http_body_util::Full::default()).unwrap()
}

async fn only_id(world: &World) -> onceward::RecordId {
    let scan = Scan { which: Which::Filter(Filter::default()), after: None, limit: 10 };
    world.engine.list(scan).await.unwrap().entries[0].id
}

#[tokio::test(start_paused = true)]
async fn a_service_that_was_not_reached_leaves_the_key_free() {
    for policy in both() {
        let world = world(policy).await;
        let got = world.send(doing("refused", "k", "{}")).await;
        assert_eq!(got.problem(), (502, "idempotency_upstream_unreachable".to_owned()));
        assert_eq!(got.json()["next_action"], "retry_same_key");
        assert_eq!(got.header("retry-after"), Some("1"));
        assert_eq!(world.send(post("k", "{}")).await.status, 201);
        assert_eq!(world.ledger(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn no_whole_answer_is_an_unknown_outcome() {
    for policy in both() {
        for (what, status) in
            [("late", 504), ("off", 502), ("broken", 502), ("short", 502), ("panic", 502), ("slow:100", 504)]
        {
            let world = world(policy.clone()).await;
            let got = world.send(doing(what, "k", "{}")).await;
            assert_eq!(got.problem(), (status, "idempotency_outcome_unknown".to_owned()), "{what}");
            assert_eq!(got.header("retry-after"), None);
            let retry = world.send(post("k", "{}")).await;
            assert_eq!(retry.problem(), (409, "idempotency_outcome_unknown".to_owned()), "{what}");
            assert_eq!(world.ledger(), 1, "{what}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_services_own_gateway_errors_keep_their_status_and_leave_the_outcome_unknown() {
    for policy in both() {
        for status in [502, 503, 504] {
            let world = world(policy.clone()).await;
            let got = world.send(doing(&format!("status:{status}"), "k", "{}")).await;
            assert_eq!(got.problem(), (status, "idempotency_outcome_unknown".to_owned()));
            assert_eq!(got.json()["upstream_status"], status);
            assert_eq!(world.send(post("k", "{}")).await.status, 409);
            assert_eq!(world.ledger(), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_answer_is_too_large_is_executed_once_and_every_retry_gets_the_same_problem() {
    for policy in both() {
        let limit = 64 * 1024;
        let world = world(policy.max_response_body(limit)).await;
        for (key, what) in [("a", format!("bytes:{}", limit + 1)), ("b", "endless".to_owned())] {
            let first = world.send(doing(&what, key, "{}")).await;
            assert_eq!(first.problem(), (502, "idempotency_response_too_large".to_owned()), "{what}");
            assert_eq!(first.json()["upstream_status"], 201);
            assert_eq!(first.json()["next_action"], "contact");
            assert_eq!(first.header("onceward-outcome"), Some("completed"));
            let retry = world.send(post(key, "{}")).await;
            assert!(retry.is_replay());
            assert_eq!((retry.problem(), &retry.body), (first.problem(), &first.body));
            assert_eq!(retry.header("onceward-outcome"), Some("completed"));
        }
        assert_eq!(world.ledger(), 2);
        let fits = world.send(doing(&format!("bytes:{limit}"), "c", "{}")).await;
        assert_eq!((fits.status, fits.body.len()), (201, limit));
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_over_the_limit_is_refused_and_nothing_is_reserved() {
    for policy in both() {
        let world = world(policy.max_request_body(10)).await;
        let got = world.send(post("k", "12345678901")).await;
        assert_eq!(got.problem(), (413, "idempotency_request_too_large".to_owned()));
        assert_eq!(got.header("connection"), Some("close"));
        let smaller = world.send(post("k", "1234567890")).await;
        assert_eq!((smaller.status, world.ledger()), (201, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn the_window_ends_when_it_was_promised_to_and_the_key_names_a_new_operation() {
    let policy = Policy::new().retention(SECOND * 60).grace(Duration::ZERO);
    let world = world(policy).await;
    world.send(post("k", "{}")).await;
    onceward::plumbing::time::sleep(SECOND * 59).await;
    assert!(world.send(post("k", "{}")).await.is_replay());
    onceward::plumbing::time::sleep(SECOND * 2).await;
    let got = world.send(post("k", "{}")).await;
    assert_eq!((got.is_replay(), world.ledger()), (false, 2));
}
