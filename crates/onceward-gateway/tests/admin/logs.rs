//! The log's two forms.

use std::io::Write;
use std::sync::{Mutex, PoisonError};

use onceward_gateway::settings::{LogFormat, Telemetry};
use onceward_gateway::telemetry::logs;

use super::*;

#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn logged(telemetry: &Telemetry) -> String {
    let captured = Captured::default();
    let writer = captured.clone();
    let subscriber = logs::subscriber(telemetry, move || writer.clone()).unwrap();
    tracing::subscriber::with_default(subscriber, || {
        let span = tracing::info_span!("request", trace_id = "4bf92f3577b34da6a3ce929d0e0e4736");
        span.in_scope(|| tracing::info!(status = 201, "answered"));
        tracing::debug!("a detail");
    });
    String::from_utf8(captured.0.lock().unwrap().clone()).unwrap()
}

#[test]
fn a_line_has_the_trace_id_of_its_request_in_both_forms() {
    let text = logged(&Telemetry::default());
    assert!(
        text.contains("answered") && text.contains("trace_id=\"4bf92f3577b34da6a3ce929d0e0e4736\""),
        "{text}"
    );
    assert!(!text.contains("a detail"), "{text}");
    let lines = logged(&Telemetry { logs: LogFormat::Json, ..Telemetry::default() });
    let line: Value = serde_json::from_str(&lines).unwrap();
    assert_eq!((&line["message"], &line["status"]), (&"answered".into(), &201.into()));
    assert_eq!(line["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
}

#[test]
fn a_level_that_cannot_be_read_is_refused_with_an_example() {
    assert!(logged(&Telemetry { level: "debug".to_owned(), ..Telemetry::default() }).contains("a detail"));
    let nonsense = Telemetry { level: "onceward=loud".to_owned(), ..Telemetry::default() };
    let error = logs::subscriber(&nonsense, std::io::sink).err().unwrap();
    assert!(error.to_string().contains("warn,onceward=debug"), "{error}");
}

const PANICKING: &str = "ONCEWARD_TEST_PANICKING";

/// The hook is the process's, so this test is a process of its own: it starts itself again.
#[test]
fn a_panic_is_a_line_of_the_log_and_nothing_else_is_printed() {
    if std::env::var_os(PANICKING).is_some() {
        logs::start(&Telemetry { logs: LogFormat::Json, ..Telemetry::default() }).unwrap();
        let worker = std::thread::Builder::new().name("worker".to_owned());
        assert!(worker.spawn(|| panic!("it is\nbroken")).unwrap().join().is_err());
        return;
    }
    let itself = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "logs::a_panic_is_a_line_of_the_log_and_nothing_else_is_printed", "--nocapture"])
        .env(PANICKING, "1")
        .env_remove("RUST_BACKTRACE")
        .output()
        .unwrap();
    let said = String::from_utf8(itself.stderr).unwrap();
    let line: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
    assert_eq!((&line["level"], &line["cause"]), (&"ERROR".into(), &"it is\nbroken".into()));
    assert_eq!((&line["message"], &line["thread"]), (&"a thread panicked".into(), &"worker".into()));
    assert!(line["place"].as_str().unwrap().contains("logs.rs"), "{line}");
}
