//! What an operator reads in the log of the real binary.

use serde_json::{Value, json};

use crate::harness::{Gateway, Port, Request};
use crate::ledger::Ledger;

const PAGE: &str = include_str!("../../../../docs/operations.md");
const JSON: [&str; 2] = ["--logs-format", "json"];
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// Every line of a log, each of which must be an object.
fn lines(log: &str) -> Vec<Value> {
    log.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// Warnings and errors, without the advice about the configuration of the test.
fn alarms(log: &str) -> Vec<Value> {
    let alarming = |line: &Value| line["level"] == "WARN" || line["level"] == "ERROR";
    let advice = |line: &Value| line["target"] == "onceward_gateway::serve";
    lines(log).into_iter().filter(|line| alarming(line) && !advice(line)).collect()
}

/// The lines of the access log.
fn accesses(log: &str) -> Vec<Value> {
    lines(log).into_iter().filter(|line| line["target"] == "access").collect()
}

/// A field that is a text.
fn text<'a>(line: &'a Value, field: &str) -> &'a str {
    line[field].as_str().unwrap_or_else(|| panic!("{field} in {line}"))
}

/// Whether a line is in the table of docs/operations.md.
fn is_documented(line: &Value) -> bool {
    let level = text(line, "level").to_lowercase();
    PAGE.contains(&format!("| {level} | {} |", text(line, "message")))
}

#[tokio::test]
async fn an_answer_that_ended_with_its_connection_is_logged_once_for_each_route_with_the_setting_that_helps()
{
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let file = "[[routes]]\nmatch = \"POST /exports\"\n\n\
                [[routes]]\nmatch = \"POST /chosen\"\nclose_delimited = \"accept\"\n";
    std::fs::write(folder.path().join("onceward.toml"), file).unwrap();
    let arguments = [&JSON[..], &["--config", "onceward.toml"]].concat();
    let gateway = Gateway::start(folder.path(), ledger.address, &arguments);
    for (key, target) in
        [("a", "/charges"), ("b", "/charges"), ("c", "/exports"), ("d", "/exports"), ("e", "/chosen")]
    {
        let request = Request { target, ..Request::charge(key) };
        let answer = gateway.send(request.behave("closing").header("x-answer", "{\"id\":1}")).await;
        assert_eq!(answer.status, 201, "{answer:?}");
    }
    let log = gateway.stop();
    let alarms = alarms(&log);
    let routes: Vec<&str> = alarms.iter().map(|line| text(line, "route")).collect();
    assert_eq!(routes, ["default", "POST /exports"], "{alarms:#?}");
    for line in &alarms {
        assert!(is_documented(line), "{line}");
        assert!(text(line, "next").contains("close_delimited"), "{line}");
    }
}

#[tokio::test]
async fn an_unknown_outcome_is_one_line_with_its_operation_its_cause_and_the_next_command() {
    let (_folder, ledger, gateway) = Gateway::with_ledger(&JSON);
    assert_eq!(gateway.send(Request::charge("secret-key").behave("reset")).await.status, 502);
    let operation = ledger.entries()[0].operation.clone();
    let shown = gateway.ask_admin(Request::new("GET", &format!("/v1/operations/{operation}"))).await.json();
    let log = gateway.stop();
    let alarms = alarms(&log);
    let [line] = &alarms[..] else { panic!("{alarms:#?}") };
    assert!(is_documented(line), "{line}");
    let fields =
        ["operation", "route", "method", "path", "kind"].map(|field| (field, text(line, field).to_owned()));
    assert_eq!(
        fields,
        [
            ("operation", operation.clone()),
            ("route", "default".to_owned()),
            ("method", "POST".to_owned()),
            ("path", "/charges".to_owned()),
            ("kind", "lost".to_owned()),
        ]
    );
    assert_eq!(line["attempt"], 1);
    assert!(
        text(line, "cause").starts_with("the request was sent, and no whole answer came from the upstream: "),
        "{line}"
    );
    assert!(text(line, "next").contains(&format!("POST /v1/operations/{operation}/resolve")), "{line}");
    assert!(text(line, "next").contains("nothing finds it out by itself"), "{line}");
    assert!(shown["next"].as_str().unwrap().contains(&format!("POST /v1/operations/{operation}/resolve")));
    // The record keeps the same cause.
    assert_eq!((&shown["state"], &shown["last_error"]), (&json!("unknown"), &line["cause"]));
    assert_eq!((&shown["method"], &shown["path"]), (&json!("POST"), &json!("/charges")));
    assert!(!log.contains("secret-key"), "{log}");
}

#[tokio::test]
async fn an_unreachable_upstream_is_one_line_and_the_record_keeps_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Port::reserve();
    let gateway = Gateway::start(folder.path(), upstream.address, &JSON);
    assert_eq!(gateway.charge("k").await.status, 502);
    let listed = gateway.ask_admin(Request::new("GET", "/v1/operations")).await.json();
    let operation = &listed["operations"][0];
    let alarms = alarms(&gateway.stop());
    let [line] = &alarms[..] else { panic!("{alarms:#?}") };
    assert!(is_documented(line), "{line}");
    assert_eq!(line["operation"], operation["operation"]);
    let cause = text(line, "cause");
    assert!(cause.contains(&upstream.address.to_string()) && cause.contains("refused"), "{line}");
    assert_eq!(operation["last_error"], cause);
}

#[tokio::test]
async fn an_operators_verdict_is_one_line_with_its_author_and_reason() {
    let (folder, ledger, gateway) = Gateway::with_ledger(&JSON);
    gateway.send(Request::charge("k").behave("reset")).await;
    let operation = ledger.entries()[0].operation.clone();
    let verdict = json!({ "verdict": "retryable", "reason": "the provider shows\nno charge" });
    assert_eq!(gateway.resolve(folder.path(), &operation, &verdict).await.status, 200);
    let about = |line: &Value| line["operation"] == operation.as_str() && line["level"] == "INFO";
    let verdicts: Vec<Value> = lines(&gateway.stop()).into_iter().filter(about).collect();
    let [line] = &verdicts[..] else { panic!("{verdicts:#?}") };
    assert!(is_documented(line), "{line}");
    assert_eq!(
        (text(line, "state"), text(line, "reason")),
        ("failed_retryable", "the provider shows\nno charge")
    );
    assert!(!text(line, "by").is_empty(), "{line}");
}

#[tokio::test]
async fn a_reason_with_a_line_break_cannot_forge_a_line_of_the_log() {
    let (folder, ledger, gateway) = Gateway::with_ledger(&[]);
    gateway.send(Request::charge("k").behave("reset")).await;
    let operation = ledger.entries()[0].operation.clone();
    let verdict = json!({ "verdict": "retryable", "reason": "none\nforged line" });
    assert_eq!(gateway.resolve(folder.path(), &operation, &verdict).await.status, 200);
    let log = gateway.stop();
    assert!(log.contains("forged line"), "{log}");
    assert!(!log.lines().any(|line| line.starts_with("forged line")), "{log}");
}

#[tokio::test]
async fn lines_about_work_that_outlives_its_client_have_the_trace_of_the_client() {
    let (_folder, mut ledger, gateway) =
        Gateway::with_ledger(&[&JSON[..], &["--logs-level", "warn"]].concat());
    let parent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let client =
        gateway.send_held(&ledger, "work", Request::charge("k").header("traceparent", &parent)).await;
    drop(client);
    ledger.kill();
    let line: Value =
        serde_json::from_str(&gateway.logged("the outcome of an operation is unknown")).unwrap();
    assert_eq!(text(&line, "trace_id"), TRACE);
}

#[tokio::test]
async fn with_a_collector_every_line_about_a_request_has_its_own_trace_and_span() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    // Nothing listens there: the spans are lost, and the log is not.
    let collector = Port::reserve();
    let otlp = format!("http://{}", collector.address);
    let gateway =
        Gateway::start(folder.path(), ledger.address, &[&JSON[..], &["--traces-otlp", &otlp]].concat());
    gateway.send(Request::charge("k").behave("reset")).await;
    let line: Value =
        serde_json::from_str(&gateway.logged("the outcome of an operation is unknown")).unwrap();
    assert_eq!((text(&line, "trace_id").len(), text(&line, "span_id").len()), (32, 16), "{line}");
    gateway.send(Request::new("POST", "/charges").body("{}").behave("reset")).await;
    let line: Value = serde_json::from_str(&gateway.logged("an unprotected request")).unwrap();
    assert_eq!((text(&line, "method"), text(&line, "path")), ("POST", "/charges"));
    assert_eq!(text(&line, "trace_id").len(), 32, "{line}");
}

#[tokio::test]
async fn the_access_log_has_a_line_for_each_answered_request_whatever_the_level() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let arguments = [&JSON[..], &["--logs-access", "true", "--logs-level", "warn"]].concat();
    let gateway = Gateway::start(folder.path(), ledger.address, &arguments);
    let parent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let first = gateway.send(Request::charge("secret-key").header("traceparent", &parent)).await;
    gateway.charge("secret-key").await;
    gateway.send(Request::charge("secret-key").body("{\"amount\":1}")).await;
    gateway.send(Request::new("GET", "/orders?secret-query=1")).await;
    gateway.status_of("secret-key").await;
    gateway.raw("GET / HTTP/1.1\r\n\r\n").await;
    let operation = ledger.entries()[0].operation.clone();
    let log = gateway.stop();
    assert!(!log.contains("secret"), "{log}");
    let answered = accesses(&log);
    let summary = |line: &Value| {
        let field = |name: &str| line[name].as_str().unwrap_or("-").to_owned();
        let status = line["status"].as_u64().unwrap();
        (field("method"), field("path"), status, field("handled"), field("code"))
    };
    let expected = [
        ("POST", "/charges", 201, "executed", "-"),
        ("POST", "/charges", 201, "replayed", "-"),
        ("POST", "/charges", 422, "refused", "idempotency_key_reused_with_different_payload"),
        ("GET", "/orders", 201, "passed", "-"),
        ("GET", "/.well-known/idempotency/status/", 200, "published", "-"),
        ("-", "-", 400, "malformed", "-"),
    ]
    .map(|(method, path, status, handled, code)| {
        (method.to_owned(), path.to_owned(), status, handled.to_owned(), code.to_owned())
    });
    assert_eq!(answered.iter().map(summary).collect::<Vec<_>>(), expected, "{answered:#?}");
    assert_eq!(
        (text(&answered[0], "trace_id"), text(&answered[0], "operation")),
        (TRACE, operation.as_str())
    );
    assert_eq!((&answered[0]["bytes"], &answered[0]["route"]), (&json!(first.body.len()), &json!("default")));
    assert!(answered[0]["milliseconds"].as_f64().unwrap() > 0.0);
    for line in &answered {
        assert!(text(line, "peer").starts_with("127.0.0.1:"), "{line}");
    }
}

#[tokio::test]
async fn the_access_log_is_text_where_the_log_is_and_is_off_unless_it_is_asked_for() {
    let (folder, ledger, gateway) = Gateway::with_ledger(&["--logs-access", "true"]);
    gateway.charge("k").await;
    let line = gateway.logged("access: answered");
    assert!(line.contains("method=\"POST\" path=\"/charges\" status=201"), "{line}");
    drop(gateway);
    let gateway = Gateway::start(folder.path(), ledger.address, &["--logs-level", "debug"]);
    gateway.charge("k").await;
    assert!(!gateway.stop().contains("access: "));
}

#[tokio::test]
async fn the_error_that_ends_the_gateway_is_an_object_where_the_log_is_json() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger::start(folder.path());
    let first = Gateway::start(folder.path(), ledger.address, &[]);
    let elsewhere = tempfile::tempdir().unwrap();
    let taken = first.address.to_string();
    let start = |arguments: &[&str]| {
        let mut command = Gateway::command_without_upstream(elsewhere.path());
        let upstream = format!("http://{}", ledger.address);
        command.args(["--scope", "fixed:test", "--upstream", &upstream, "--listen", &taken]);
        Gateway::refused(command.args(arguments))
    };
    let (code, printed) = start(&JSON);
    let printed = lines(&printed);
    let last = printed.last().unwrap();
    assert_eq!((code, text(last, "level")), (Some(1), "ERROR"), "{last}");
    assert!(text(last, "cause").contains("cannot be listened on") && is_documented(last), "{last}");
    let (code, printed) = start(&[]);
    let last = printed.lines().last().unwrap();
    assert_eq!(code, Some(1));
    assert!(last.starts_with("onceward: listen = "), "{printed}");
}
