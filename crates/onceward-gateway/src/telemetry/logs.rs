//! The gateway's log, on standard error: for people, or one JSON object a line for programs, panics included.
//!
//! A request that is traced is logged inside a span that has its trace id, so that every line within it has it too.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::PanicHookInfo;

use tracing::Subscriber;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};
use tracing_subscriber::{EnvFilter, Layer as _, Registry, fmt};

use super::json_lines::JsonLines;
use crate::settings::{LogFormat, Telemetry};

/// The default level. At `debug` the exporter of traces would log each of its own calls.
const USUAL: &str = "info";

/// A log that could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogsError {
    /// The filter cannot be read.
    #[error(
        "the log level {level:?} cannot be read ({why}): write a level such as \"info\", or directives such as \"warn,onceward=debug\""
    )]
    Level {
        /// The level that was configured.
        level: String,
        /// Why.
        why: ParseError,
    },
    /// There is one already.
    #[error("logging was set up twice: {0}")]
    Twice(#[from] TryInitError),
}

/// Sets up the process's log.
pub fn start(telemetry: &Telemetry) -> Result<(), LogsError> {
    subscriber(telemetry, std::io::stderr)?.try_init()?;
    std::panic::set_hook(Box::new(log_panic));
    Ok(())
}

/// Logs why the process ends. False if the log's level leaves out errors.
pub fn failed(error: &(dyn std::error::Error + Send + Sync)) -> bool {
    let taken = tracing::enabled!(tracing::Level::ERROR);
    tracing::error!(cause = %error, "the gateway failed, and ends");
    taken
}

/// Logs a panic in the log's format. The default message on standard error would not be a JSON line.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let backtrace = Backtrace::capture();
    let captured = backtrace.status() == BacktraceStatus::Captured;
    tracing::error!(
        cause = panic.payload_as_str().unwrap_or("a value that is no text"),
        place = panic.location().map(tracing::field::display),
        thread = std::thread::current().name(),
        backtrace = captured.then_some(tracing::field::display(&backtrace)),
        next = "please report it: it is a bug",
        "a thread panicked"
    );
}

/// The subscriber that writes the log to `writer`.
pub fn subscriber<W>(telemetry: &Telemetry, writer: W) -> Result<impl Subscriber + Send + Sync, LogsError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let level = if telemetry.level.trim().is_empty() { USUAL } else { telemetry.level.trim() };
    let refused = |why| LogsError::Level { level: level.to_owned(), why };
    // The access log has a key of its own and does not depend on the level.
    let access = if telemetry.access { "access=info" } else { "access=off" };
    let filter = EnvFilter::try_new(level).map_err(refused)?.add_directive(access.parse().map_err(refused)?);
    // A line that cannot be written is lost. The library would report that with `eprintln!`, which panics in the middle of a
    // request if standard error is what failed.
    let lines = match telemetry.logs {
        LogFormat::Text => {
            fmt::layer().with_ansi(false).log_internal_errors(false).with_writer(writer).boxed()
        }
        LogFormat::Json => fmt::layer()
            .log_internal_errors(false)
            .json()
            .event_format(JsonLines::new())
            .with_writer(writer)
            .boxed(),
    };
    Ok(Registry::default().with(lines.with_filter(filter)))
}
