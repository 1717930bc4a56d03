//! The log lines for operators: one for each incident, as `docs/operations.md` lists them.

use std::time::Duration;

use onceward::event::Resolution;
use onceward::{Claimed, Engine, MemoryStore, Outcome, Ran, Reply, engine::Resolve};
use onceward_testkit::{Fault, FaultyStore, Method};
use serde_json::json;
use tracing::Instrument as _;

use super::log::Log;
use super::{Ledger, SECOND, claim, claim_of, clock, engine, engine_on, id, pay, retry};

const UNKNOWN: &str = "the outcome of an operation is unknown: it may have been executed, and retries are refused until it is resolved";
const GIVEN_UP: &str = "an unknown outcome was given up: retries are refused until an operator resolves it";
const KNOWN: &str = "an unknown outcome is known now: retries are no longer refused";
const FAILS: &str = "the store fails: requests with a key are refused until it answers";
const ANSWERS: &str = "the store answers again";

async fn faulty(script: impl IntoIterator<Item = (Method, u64, Fault)>) -> Engine {
    let script: Vec<_> = script.into_iter().collect();
    engine_on(FaultyStore::scripted(MemoryStore::with_clock(clock()), script)).await
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_store_is_two_lines_however_many_requests_meet_it() {
    let engine = faulty((2..=21).map(|call| (Method::Swap, call, Fault::Unavailable))).await;
    let log = Log::listen();
    for _ in 0..20 {
        onceward::plumbing::time::sleep(SECOND).await;
        assert!(retry(&engine).await.is_err());
    }
    assert_eq!(log.messages(), [FAILS]);
    onceward::plumbing::time::sleep(SECOND * 10).await;
    pay(&engine, &Ledger::default()).await.unwrap();
    assert_eq!(log.messages(), [FAILS, ANSWERS]);
    let lines = log.lines();
    assert_eq!((&lines[1]["failed_calls"], &lines[1]["seconds"]), (&json!(20), &json!(19)));
    assert!(lines[0]["cause"].as_str().unwrap().contains("unavailable"), "{}", lines[0]);
}

#[tokio::test(start_paused = true)]
async fn an_outage_that_lasts_is_logged_again_after_a_minute() {
    let engine = faulty((2..=4).map(|call| (Method::Swap, call, Fault::Unavailable))).await;
    let log = Log::listen();
    for _ in 0..3 {
        assert!(retry(&engine).await.is_err());
        onceward::plumbing::time::sleep(SECOND * 40).await;
    }
    assert_eq!(log.messages(), [FAILS, FAILS]);
    assert_eq!(log.lines()[1]["failed_calls"], 3);
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_cannot_be_stored_is_logged_until_it_is() {
    // The first swap of an engine is its identity, the second the claim.
    let engine = faulty((3..40).map(|call| (Method::Swap, call, Fault::Unavailable))).await;
    let log = Log::listen();
    assert!(matches!(pay(&engine, &Ledger::default()).await, Ok(Ran::Unknown(_))));
    onceward::plumbing::time::sleep(Duration::from_secs(120)).await;
    let messages = log.messages();
    let about: Vec<&str> = messages.iter().map(String::as_str).filter(|line| *line != FAILS).collect();
    assert_eq!(
        about,
        [
            "the outcome of an operation could not be stored in time: its caller is told that it is unknown, and storing it goes on",
            ANSWERS,
            "the outcome of an operation is stored now: retries are answered again",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_whose_first_write_lost_its_answer_is_logged_all_the_same() {
    let engine = faulty([(Method::Swap, 3, Fault::AnswerLost)]).await;
    let log = Log::listen();
    assert!(matches!(engine.run(claim(), async |_| Outcome::lost("hung up")).await, Ok(Ran::Unknown(_))));
    assert_eq!(log.messages(), [FAILS, UNKNOWN]);
}

#[tokio::test(start_paused = true)]
async fn a_lapse_and_the_late_answer_are_a_line_each_with_the_operations_name() {
    let (engine, _, _) = engine().await;
    let Ok(Claimed::Reserved(reservation)) = engine.claim(claim()).await else { panic!() };
    let operation = reservation.operation_id().to_string();
    let (held, log) = (reservation.hand_over(), Log::listen());
    onceward::plumbing::time::sleep(Duration::from_secs(90)).await;
    assert_eq!(log.messages(), [UNKNOWN]);
    let lapsed = &log.lines()[0];
    assert_eq!((&lapsed["operation"], &lapsed["cause"]), (&json!(operation), &json!("the lease lapsed")));
    assert_eq!((&lapsed["kind"], &lapsed["attempt"]), (&json!("lost"), &json!(1)));
    let next = lapsed["next"].as_str().unwrap();
    assert!(next.contains(&format!("/v1/operations/{operation}/resolve")), "{next}");
    assert!(next.starts_with("nothing finds it out by itself") && next.ends_with("a dead letter in 15 min"));
    let outcome = Outcome::completed(Reply::new("done"));
    engine.settle(id(), held.fence(), outcome).await.unwrap();
    assert_eq!(log.messages(), [UNKNOWN, KNOWN]);
    assert_eq!(log.lines()[1]["by"], "the execution itself");
    assert_eq!(log.lines()[1]["next"], "nothing: every retry gets the answer");
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_says_why_it_is_unknown_why_it_was_given_up_and_who_must_act() {
    let (engine, _, _) = engine().await;
    let log = Log::listen();
    engine.run(claim(), async |_| Outcome::lost("the connection broke")).await.unwrap();
    onceward::plumbing::time::sleep(SECOND * 20 * 60).await;
    assert_eq!(log.messages(), [UNKNOWN, GIVEN_UP]);
    let line = &log.lines()[1];
    assert_eq!((&line["level"], &line["kind"]), (&json!("ERROR"), &json!("lost")));
    assert_eq!(line["cause"], "the connection broke");
    assert_eq!(line["finding"], "nothing is configured that could find out what happened");
    let resolve = format!("/v1/operations/{}/resolve", line["operation"].as_str().unwrap());
    assert!(line["next"].as_str().unwrap().contains(&resolve), "{line}");
}

#[tokio::test(start_paused = true)]
async fn a_contradiction_is_one_line_at_the_level_of_errors() {
    let (engine, _, _) = engine().await;
    let Ok(Claimed::Reserved(reservation)) = engine.claim(claim()).await else { panic!() };
    let held = reservation.hand_over();
    engine.settle(id(), held.fence(), Outcome::lost("no answer")).await.unwrap();
    engine
        .resolve(
            id(),
            Resolve {
                verdict: Resolution::Retryable,
                by: "an operator",
                reason: "it was not there",
                seen: None,
            },
        )
        .await
        .unwrap();
    let log = Log::listen();
    engine.settle(id(), held.fence(), Outcome::completed(Reply::new("done"))).await.unwrap();
    let lines = log.lines();
    let [line] = &lines[..] else { panic!("{lines:#?}") };
    assert_eq!(line["level"], "ERROR");
    assert_eq!(
        line["message"],
        "a result contradicts what was decided before: the operation may have been executed twice"
    );
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_work_is_logged_as_the_unknown_outcome_that_it_is() {
    let (engine, _, _) = engine().await;
    let log = Log::listen();
    engine.run(claim(), async |_| panic!("the work is broken")).await.unwrap();
    assert_eq!(log.messages(), [UNKNOWN]);
    assert_eq!(log.lines()[0]["cause"], "the work panicked");
}

#[tokio::test(start_paused = true)]
async fn detached_work_is_logged_in_the_span_of_its_request() {
    let (engine, _, _) = engine().await;
    let log = Log::listen();
    let span = tracing::info_span!("request", trace_id = "4bf92f3577b34da6a3ce929d0e0e4736");
    let request = engine.run(claim_of("k", "body"), async |_| {
        onceward::plumbing::time::sleep(SECOND * 5).await;
        Outcome::lost("the connection broke")
    });
    tokio::select! {
        biased;
        _ = request.instrument(span) => panic!("the client goes away first"),
        () = onceward::plumbing::time::sleep(SECOND) => {}
    }
    onceward::plumbing::time::sleep(SECOND * 10).await;
    assert_eq!(log.messages(), [UNKNOWN]);
    assert_eq!(log.lines()[0]["span"]["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
}
