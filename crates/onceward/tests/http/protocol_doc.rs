//! The tables of `docs/protocol.md` and the source have the same rows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::StatusCode;
use onceward::fingerprint::Difference;
use onceward::http::{AnswerFault, Class, Flavor, KeyFault, Policy, Problem, ScopeMissing};
use onceward::{key::KeyError, record::Letter};

const DOCUMENT: &str = include_str!("../../../../docs/protocol.md");

/// Every problem. A new one does not compile until it has a row in [`case`].
fn problems() -> Vec<Problem> {
    let retry_after = Duration::from_secs(2);
    vec![
        Problem::MethodMiscased,
        Problem::KeyMissing,
        Problem::KeyInvalid(KeyFault::Malformed(KeyError::Empty)),
        Problem::KeyInvalid(KeyFault::HopByHop),
        Problem::ScopeMissing(ScopeMissing::NotBasic),
        Problem::ScopeMissing(ScopeMissing::Changing),
        Problem::Mismatch(Difference::Target),
        Problem::Mismatch(Difference::Content),
        Problem::Mismatch(Difference::Any),
        Problem::InProgress { retry_after },
        Problem::Accepted { retry_after, location: "/there".to_owned() },
        Problem::StillWorking,
        Problem::OutcomeUnknown { retry_after, letter: Letter::Live },
        Problem::OutcomeUnknown { retry_after, letter: Letter::Dead },
        Problem::Incomparable,
        Problem::StoreUnavailable,
        Problem::UpstreamUnreachable,
        Problem::NotCommitted { upstream_status: None },
        Problem::NoWholeAnswer(AnswerFault::TimedOut),
        Problem::NoWholeAnswer(AnswerFault::Broken),
        Problem::AnswerNotStored,
        Problem::UpstreamUnsure { upstream_status: StatusCode::SERVICE_UNAVAILABLE },
        Problem::UpstreamUnsure { upstream_status: StatusCode::OK },
        Problem::ResponseTooLarge { upstream_status: StatusCode::CREATED },
        Problem::EncodingNotAccepted { coding: "br".to_owned() },
        Problem::RequestTooLarge { limit: 1 },
        Problem::RequestBroken,
        Problem::RequestSlow { patience: retry_after },
        Problem::BodyBudgetExhausted,
        Problem::KeyNotFound,
    ]
}

/// The problem's row in the document.
fn case(problem: &Problem) -> &'static str {
    match problem {
        Problem::MethodMiscased => "method in another case than the known one",
        Problem::KeyMissing => "key missing where required",
        Problem::KeyInvalid(_) => "key malformed, or named by `Connection`",
        Problem::ScopeMissing(_) => {
            "keyed request lacks a part of the scope, or has one that changes with every try"
        }
        Problem::Mismatch(_) => "another request under the same key",
        Problem::InProgress { .. } => "still running",
        Problem::Accepted { .. } => "still running, route answers `accepted`",
        Problem::StillWorking => "client kept for `respond_within`, work goes on",
        Problem::OutcomeUnknown { letter: Letter::Live, .. } => "outcome unknown, being found out",
        Problem::OutcomeUnknown { letter: Letter::Dead, .. } => "outcome unknown, dead-lettered",
        Problem::Incomparable => "begun under other fingerprint settings, cannot be resumed",
        Problem::StoreUnavailable => "store unavailable, or record unreadable",
        Problem::UpstreamUnreachable => "service never reached, proven not executed",
        Problem::NotCommitted { .. } => "service failed, its receipt row proves that nothing was committed",
        Problem::NoWholeAnswer(AnswerFault::TimedOut) => "service reached, no answer in time",
        Problem::NoWholeAnswer(AnswerFault::Broken) => "service reached, answer broke off",
        Problem::AnswerNotStored => "service answered, answer could not be stored",
        Problem::UpstreamUnsure { upstream_status } if upstream_status.is_server_error() => {
            "service's own 5xx of class unknown"
        }
        Problem::UpstreamUnsure { .. } => "service's other answer of class unknown",
        Problem::ResponseTooLarge { .. } => "answer too large to keep",
        Problem::EncodingNotAccepted { .. } => "answer kept in a coding that the client does not accept",
        Problem::RequestTooLarge { .. } => "request body over the limit",
        Problem::RequestBroken => "request body broke off",
        Problem::RequestSlow { .. } => "request body took too long",
        Problem::BodyBudgetExhausted => "too many request bodies held at once",
        Problem::KeyNotFound => "status asked of a key that is not known",
    }
}

pub fn codes() -> BTreeSet<&'static str> {
    problems().iter().map(|problem| problem.details(Flavor::Ietf).code).collect()
}

/// The rows of the table whose head begins like this.
fn table(head: &str) -> Vec<Vec<&'static str>> {
    let rows = DOCUMENT.lines().skip_while(|line| !line.starts_with(head)).skip(2);
    let rows: Vec<_> = rows
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(!rows.is_empty(), "the document has no table {head}");
    rows
}

#[test]
fn the_document_has_a_row_for_every_problem_and_no_other() {
    let mut rows: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for row in table("| case |") {
        assert!(rows.insert(row[0], row[1..].to_vec()).is_none(), "{row:?} is there twice");
    }
    let mut seen = BTreeSet::new();
    for problem in problems() {
        let row = rows.get(case(&problem)).unwrap_or_else(|| panic!("{problem:?} has no row"));
        let details = [problem.details(Flavor::Ietf), problem.details(Flavor::Stripe)];
        for (cell, details) in row.iter().zip(&details) {
            let status = if *cell == "that status" {
                assert!(matches!(problem, Problem::UpstreamUnsure { .. }));
                503
            } else {
                cell.parse().unwrap()
            };
            assert_eq!(details.status.as_u16(), status, "{problem:?}");
        }
        let retry_after = if details[0].retry_after.is_some() { "yes" } else { "no" };
        let (code, next) = (format!("`{}`", details[0].code), format!("`{}`", details[0].next_action.name()));
        assert_eq!(row[2..], [retry_after, &code, &next], "{problem:?}");
        seen.insert(case(&problem));
    }
    let extra: Vec<_> = rows.keys().filter(|case| !seen.contains(*case)).collect();
    assert!(extra.is_empty(), "only in the document: {extra:?}");
}

#[test]
fn the_document_gives_every_status_the_class_that_the_source_gives_it() {
    let mut classes: BTreeMap<u16, &str> = BTreeMap::new();
    let mut other = None;
    for row in table("| status of a whole answer |") {
        match row[0] {
            "every other" => other = Some(row[1]),
            list => {
                for statuses in list.split(", ") {
                    let (first, last) = statuses.split_once('–').unwrap_or((statuses, statuses));
                    for status in first.parse().unwrap()..=last.parse().unwrap() {
                        assert!(classes.insert(status, row[1]).is_none(), "{status} is there twice");
                    }
                }
            }
        }
    }
    for status in 100..=599 {
        let class = match Class::of_status(&Policy::new(), StatusCode::from_u16(status).unwrap()) {
            Class::Completed => "completed",
            Class::Retryable => "retryable",
            Class::Unknown => "unknown",
        };
        assert_eq!(classes.get(&status).copied().or(other), Some(class), "{status}");
    }
}

#[test]
fn the_document_names_every_header() {
    for name in [
        onceward::http::header::IDEMPOTENCY_KEY,
        onceward::http::header::IDEMPOTENCY_REPLAYED,
        onceward::http::header::IDEMPOTENT_REPLAYED,
        onceward::http::header::IDEMPOTENCY_EXPIRES,
        onceward::http::header::OUTCOME,
        onceward::http::header::STORE,
        onceward::http::header::SHOULD_RETRY,
        onceward::http::header::STRIPE_SHOULD_RETRY,
        onceward::http::header::OPERATION,
        onceward::http::header::FENCE,
        onceward::http::header::ATTEMPT,
        onceward::http::header::RECOVERY_POINT,
    ] {
        assert!(DOCUMENT.to_ascii_lowercase().contains(name.as_str()), "{name}");
    }
}
