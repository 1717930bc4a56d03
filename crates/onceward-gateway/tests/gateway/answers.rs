//! Which answers of the API are stored and passed on, and what happens to those that are incomplete.

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

use crate::harness::{Gateway, Port, Request, read_head};
use crate::ledger::Ledger;

const UNKNOWN: &str = "idempotency_outcome_unknown";

#[tokio::test]
async fn an_api_that_accepts_and_never_answers_leaves_the_outcome_unknown() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&["--timeout", "200ms"]);
    let first = gateway.send(Request::charge("k").behave("hang=hung")).await;
    assert_eq!(first.status_and_code(), (504, UNKNOWN.to_owned()));
    ledger.held("hung").await;
    assert_eq!(gateway.charge("k").await.status_and_code(), (409, UNKNOWN.to_owned()));
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn an_answer_that_comes_after_the_timeout_still_counts() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&["--timeout", "200ms"]);
    let first = gateway.send(Request::charge("k").behave("hold=work").header("x-answer", "late")).await;
    assert_eq!(first.status_and_code(), (504, UNKNOWN.to_owned()));
    assert_eq!(gateway.charge("k").await.status_and_code(), (409, UNKNOWN.to_owned()));
    ledger.held("work").await;
    ledger.release("work").await;
    gateway.until_state(&ledger.entries()[0].operation, "completed").await;
    let retried = gateway.charge("k").await;
    assert_eq!((retried.status, retried.text().as_str(), retried.is_replayed()), (201, "late", true));
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn a_reset_after_one_byte_of_the_request_leaves_the_outcome_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gateway = Gateway::start(folder.path(), listener.local_addr().unwrap(), &[]);
    let upstream = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.read_u8().await.unwrap();
        socket.set_zero_linger().unwrap();
    };
    let (first, ()) = tokio::join!(gateway.charge("k"), upstream);
    assert_eq!(first.status_and_code(), (502, UNKNOWN.to_owned()));
    // No further connection is accepted: a second try of the gateway would get no answer here.
    assert_eq!(gateway.charge("k").await.status_and_code(), (409, UNKNOWN.to_owned()));
}

#[tokio::test]
async fn a_reset_after_the_whole_request_leaves_the_outcome_unknown() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    let first = gateway.send(Request::charge("k").behave("reset")).await;
    assert_eq!(first.status_and_code(), (502, UNKNOWN.to_owned()));
    assert_eq!(gateway.charge("k").await.status_and_code(), (409, UNKNOWN.to_owned()));
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn a_gateway_in_front_of_a_gateway_does_not_release_what_the_inner_one_does_not_know() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let ledger = Ledger::start(folders[0].path());
    let inner = Gateway::start(folders[0].path(), ledger.address, &[]);
    let outer = Gateway::start(folders[1].path(), inner.address, &[]);
    let lost = || Request::charge("k").behave("reset");
    let first = outer.send(lost()).await;
    assert_eq!(
        (first.status_and_code(), first.header("onceward-outcome")),
        ((502, UNKNOWN.to_owned()), "unknown")
    );
    for gateway in [&outer, &inner] {
        let retried = gateway.send(lost()).await;
        assert_eq!(
            (retried.status_and_code(), retried.header("onceward-outcome")),
            ((409, UNKNOWN.to_owned()), "unknown")
        );
        let listed = gateway.ask_admin(Request::new("GET", "/v1/operations?state=unknown")).await.json();
        assert_eq!(listed["operations"].as_array().unwrap().len(), 1, "{listed}");
    }
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn an_encoded_answer_is_replayed_only_to_clients_that_accept_its_encoding() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    let accepting = |codings| Request::charge("k").header("accept-encoding", codings);
    let encoded = "header=content-encoding: br";
    let first = gateway.send(accepting("br").behave(encoded).header("x-answer", "not text")).await;
    assert_eq!(
        (first.status, first.header("content-encoding"), first.text().as_str()),
        (201, "br", "not text")
    );
    let refused = gateway.send(accepting("gzip").behave(encoded)).await;
    assert_eq!(refused.status_and_code(), (406, "idempotency_encoding_not_accepted".to_owned()));
    let retried = gateway.send(accepting("gzip, br;q=0.1").behave(encoded)).await;
    assert_eq!(
        (retried.status, retried.is_replayed(), retried.header("content-encoding")),
        (201, true, "br")
    );
    assert_eq!((&retried.body, retried.header("vary")), (&first.body, "accept-encoding"));
    assert_eq!(ledger.count(), 1);

    // An API that honours `identity` does not encode, so every client can read the stored answer.
    let asked = gateway.send(Request::charge("other").behave("echo").header("accept-encoding", "br")).await;
    assert!(asked.text().to_ascii_lowercase().contains("\r\naccept-encoding: identity\r\n"), "{asked:?}");
    assert_eq!(asked.text().to_ascii_lowercase().matches("accept-encoding").count(), 1, "{asked:?}");
}

#[tokio::test]
async fn a_gateway_in_front_of_a_gateway_does_not_keep_a_406_as_the_answer() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let ledger = Ledger::start(folders[0].path());
    let inner = Gateway::start(folders[0].path(), ledger.address, &[]);
    let outer = Gateway::start(folders[1].path(), inner.address, &[]);
    let encoded =
        || Request::charge("k").header("accept-encoding", "br").behave("header=content-encoding: br");
    // Not through the outer gateway, which asks for answers without an encoding.
    assert_eq!(inner.send(encoded()).await.status, 201);
    let first = outer.send(encoded()).await;
    assert_eq!(
        (first.status_and_code(), first.header("onceward-outcome")),
        ((502, UNKNOWN.to_owned()), "unknown")
    );
    assert_eq!(first.json()["upstream_status"], 406);
    let retried = outer.send(encoded()).await;
    assert_eq!((retried.status_and_code(), retried.is_replayed()), ((409, UNKNOWN.to_owned()), false));
    assert_eq!(inner.send(encoded()).await.header("content-encoding"), "br", "the answer is still there");
    assert_eq!(ledger.count(), 1);
}

#[tokio::test]
async fn an_api_that_dies_at_work_leaves_the_outcome_unknown_and_is_not_asked_again_when_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let port = Port::reserve();
    let start = || Ledger::start_on(folder.path(), &port.address.to_string());
    let mut ledger = start();
    let gateway = Gateway::start(folder.path(), port.address, &[]);
    let mut client = gateway.send_held(&ledger, "work", Request::charge("k")).await;
    ledger.kill();
    assert_eq!(client.read().await.unwrap().status_and_code(), (502, UNKNOWN.to_owned()));
    let ledger = start();
    assert_eq!(gateway.charge("k").await.status_and_code(), (409, UNKNOWN.to_owned()));
    assert_eq!(gateway.charge("other").await.status, 201);
    assert_eq!(ledger.count(), 2);
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_neither_passed_on_nor_stored() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    for (number, how) in ["truncate", "truncate-chunked"].into_iter().enumerate() {
        let first = gateway.send(Request::charge(how).behave(how)).await;
        assert_eq!(first.status_and_code(), (502, UNKNOWN.to_owned()), "{how}");
        assert!(!first.text().contains("{\"cut\"") && !first.text().contains("hello"), "{how}: {first:?}");
        let retried = gateway.charge(how).await;
        assert_eq!(retried.status_and_code(), (409, UNKNOWN.to_owned()), "{how}");
        let target = format!("/v1/operations/{}?bodies=true", ledger.entries()[number].operation);
        let record = gateway.ask_admin(Request::new("GET", &target)).await.json();
        assert_eq!(record["state"], "unknown", "{how}");
        assert!(record.get("reply").is_none() && record.get("evidence").is_none(), "{how}: {record}");
    }
    assert_eq!(ledger.count(), 2);
}

#[tokio::test]
async fn an_answer_that_ends_with_its_connection_counts_as_whole_only_where_its_content_proves_it() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    let whole = "{\"id\":\"ch_1\",\"items\":[1,2]}";
    for (key, how) in [("length", "closing"), ("coding", "closing=identity")] {
        let first = gateway.send(Request::charge(key).behave(how).header("x-answer", whole)).await;
        assert_eq!((first.status, first.text().as_str()), (201, whole), "{key}");
        let retried = gateway.charge(key).await;
        assert!(retried.is_replayed() && retried.text() == whole, "{key}: {retried:?}");
    }
    let cut: Vec<&str> = vec![&whole[..10], &whole[..whole.len() - 1], "charged", "12", "\"ch_1\""];
    for (number, body) in cut.into_iter().enumerate() {
        for how in ["closing", "closing=gzip", "closing=identity"] {
            let key = format!("{how}-{number}");
            let first = gateway.send(Request::charge(&key).behave(how).header("x-answer", body)).await;
            assert_eq!(first.status_and_code(), (502, UNKNOWN.to_owned()), "{key}: {body}");
            let retried = gateway.charge(&key).await;
            assert_eq!(retried.status_and_code(), (409, UNKNOWN.to_owned()), "{key}: {body}");
        }
    }
    assert_eq!(ledger.count(), 17);
}

#[tokio::test]
async fn a_route_decides_whether_an_answer_that_ends_with_its_connection_counts() {
    for (setting, body, whole) in
        [("accept", "charged", true), ("unknown", "{\"charged\":true}", false), ("proven", "charged", false)]
    {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::start(folder.path());
        let gateway = Gateway::start(folder.path(), ledger.address, &["--close-delimited", setting]);
        let first = gateway.send(Request::charge("k").behave("closing").header("x-answer", body)).await;
        let retried = gateway.charge("k").await;
        if whole {
            assert_eq!((first.status, first.text().as_str()), (201, body), "{setting}");
            assert!(retried.is_replayed() && retried.text() == body, "{setting}: {retried:?}");
        } else {
            assert_eq!(first.status_and_code(), (502, UNKNOWN.to_owned()), "{setting}");
            assert_eq!(retried.status_and_code(), (409, UNKNOWN.to_owned()), "{setting}");
        }
        assert_eq!(ledger.count(), 1);
    }
}

#[tokio::test]
async fn redirects_are_returned_and_never_followed() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    for status in [301, 302, 303, 307, 308] {
        let (key, how) = (format!("k{status}"), format!("redirect={status}"));
        let first = gateway.send(Request::charge(&key).behave(&how)).await;
        assert_eq!((first.status, first.header("location")), (status, "/elsewhere"));
        let retried = gateway.charge(&key).await;
        assert_eq!((retried.status, retried.header("location")), (status, "/elsewhere"));
        assert!(retried.is_replayed());
    }
    assert!(ledger.entries().iter().all(|entry| entry.path == "/charges"));
    assert_eq!(ledger.count(), 5);
}

#[tokio::test]
async fn every_final_status_has_its_class() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    for status in 200..=599 {
        let (key, how) = (format!("k{status}"), format!("status={status}"));
        let before = ledger.count();
        let first = gateway.send(Request::charge(&key).behave(&how)).await;
        let retried = gateway.send(Request::charge(&key).behave(&how)).await;
        let executed = ledger.count() - before;
        assert_eq!(first.status, status);
        assert!(!first.is_replayed());
        match status {
            401 | 425 | 429 => {
                assert_eq!((retried.status, retried.is_replayed(), executed), (status, false, 2));
            }
            502..=504 => {
                assert_eq!(first.code(), UNKNOWN);
                assert_eq!(first.json()["upstream_status"], status);
                assert_eq!((retried.status_and_code(), executed), ((409, UNKNOWN.to_owned()), 1));
            }
            _ => {
                assert_eq!((retried.status, retried.is_replayed(), executed), (status, true, 1));
                assert_eq!(retried.body, first.body);
            }
        }
    }
}

#[tokio::test]
async fn an_interim_status_is_no_answer() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&["--timeout", "500ms"]);
    for how in ["status=100", "status=101", "status=102", "status=103", "status=199"] {
        let first = gateway.send(Request::charge(how).behave(how)).await;
        assert!(matches!(first.status, 502 | 504) && first.code() == UNKNOWN, "{how}: {first:?}");
        assert_eq!(gateway.charge(how).await.status_and_code(), (409, UNKNOWN.to_owned()), "{how}");
    }
    // The ledger has every request once a later one is answered.
    assert_eq!(gateway.send(Request::charge("last")).await.status, 201);
    assert_eq!(ledger.count(), 6);
}

#[tokio::test]
async fn an_answer_that_is_too_large_to_keep_was_executed_once_and_says_so_every_time() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&["--max-response-body", "1KiB"]);
    let fits = gateway.send(Request::charge("fits").behave("big=1024")).await;
    assert_eq!((fits.status, fits.body.len()), (201, 1024));
    for (how, status) in [("big=1025", 201), ("big=3000000", 201), ("endless", 200)] {
        let first = gateway.send(Request::charge(how).behave(how)).await;
        let retried = gateway.charge(how).await;
        for answer in [&first, &retried] {
            assert_eq!(answer.status_and_code(), (502, "idempotency_response_too_large".to_owned()), "{how}");
            assert_eq!(answer.json()["upstream_status"], status, "{how}");
            assert_eq!(answer.json()["next_action"], "contact", "{how}");
        }
        assert!(retried.is_replayed());
    }
    assert_eq!(ledger.count(), 4);
}

#[tokio::test]
async fn a_stream_of_events_under_a_key_is_executed_once_and_kept_only_if_it_ends_within_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    // Both events together have 27 bytes.
    for (limit, kept) in [("26", false), ("27", true)] {
        let mut gateway = Gateway::start(folder.path(), ledger.address, &["--max-response-body", limit]);
        ledger.release("more").await;
        let first = gateway.send(Request::charge(limit).behave("sse=more")).await;
        let retried = gateway.charge(limit).await;
        assert_eq!((first.status, &first.body), (retried.status, &retried.body));
        assert!(retried.is_replayed());
        if kept {
            assert_eq!((first.status, first.text().as_str()), (200, "data: first\n\ndata: second\n\n"));
        } else {
            assert_eq!(first.status_and_code(), (502, "idempotency_response_too_large".to_owned()));
        }
        gateway.kill();
    }
    assert_eq!(ledger.count(), 2);
}

#[tokio::test]
async fn a_route_without_protection_streams_and_is_executed_as_often_as_it_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let file = "[[routes]]\nmatch = \"POST /stream\"\nprotect = false\n";
    std::fs::write(folder.path().join("onceward.toml"), file).unwrap();
    let gateway = Gateway::start(folder.path(), ledger.address, &["--config", "onceward.toml"]);
    for _ in 0..2 {
        let mut client = gateway.connect().await;
        let request = Request::new("POST", "/stream").header("idempotency-key", "k").behave("sse=next");
        client.write(&request.body("{}").bytes()).await;
        let head = read_head(&mut client.0).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert_eq!(client.chunk().await.unwrap().unwrap(), b"data: first\n\n");
        ledger.release("next").await;
        assert_eq!(client.chunk().await.unwrap().unwrap(), b"data: second\n\n");
        assert_eq!(client.chunk().await, Some(None));
    }
    assert_eq!(ledger.count(), 2);
    assert!(ledger.entries().iter().all(|entry| entry.operation == "-"));
}

#[tokio::test]
async fn the_outcome_header_of_the_api_counts_in_any_case_and_an_unknown_word_is_logged_with_route_and_operation()
 {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&[]);
    for (key, word) in [("a", "Unknown"), ("b", "UNKNOWN")] {
        let first = gateway.send(Request::charge(key).behave(&format!("outcome={word}"))).await;
        assert_eq!(first.status_and_code(), (502, UNKNOWN.to_owned()), "{word}");
        assert_eq!(gateway.charge(key).await.status_and_code(), (409, UNKNOWN.to_owned()), "{word}");
    }
    let first = gateway.send(Request::charge("c").behave("outcome=Retryable")).await;
    assert_eq!((first.status, gateway.charge("c").await.is_replayed()), (201, false));
    // An unknown word counts as none.
    assert_eq!(gateway.send(Request::charge("d").behave("outcome=perhaps")).await.status, 201);
    assert!(gateway.charge("d").await.is_replayed());
    let operation = ledger.entries().last().unwrap().operation.clone();
    let log = gateway.stop();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("Onceward-Outcome")).collect();
    let [line] = lines[..] else { panic!("not logged once: {log}") };
    assert!(line.contains("default") && line.contains(&operation), "{line}");
    assert!(!line.contains("perhaps"), "{line}");
}

#[tokio::test]
async fn an_operators_verdict_and_its_reason_are_in_the_log() {
    let (folder, ledger, gateway) = Gateway::with_ledger(&[]);
    assert_eq!(
        gateway.send(Request::charge("k").behave("reset")).await.status_and_code(),
        (502, UNKNOWN.to_owned())
    );
    let target = format!("/v1/operations/{}/resolve", ledger.entries()[0].operation);
    let reason = format!("the provider shows charge 4711 {}", "x".repeat(2_000));
    let verdict = serde_json::json!({ "verdict": "completed", "reply": { "status": 201 }, "reason": reason });
    assert_eq!(gateway.change(folder.path(), &target, &verdict).await.status, 200);
    let log = gateway.stop();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("shows charge 4711")).collect();
    let [line] = lines[..] else { panic!("not logged once: {log}") };
    assert!(line.contains("completed") && line.len() < 1_500, "{line}");
}
