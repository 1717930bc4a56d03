//! The command line: parses arguments, calls one function and prints its result.
//!
//! Exit codes: 0 success, 1 failure, 2 a wrong command line or configuration, 141 nothing reads the output.

mod args;
mod healthcheck;

use std::error::Error;
use std::ffi::OsString;
use std::future::Future;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::ArgMatches;
use clap::error::ErrorKind;
use onceward::receipts::TableName;

use crate::check;
use crate::config::{ConfigErrors, Sources};
use crate::demo::Paste;
use crate::settings::LogFormat;
use crate::stores::maintenance::{self, Done};
use crate::telemetry::logs;

pub use self::args::command;

const FAILED: u8 = 1;
const WRONG_USE: u8 = 2;
/// The status that a shell reports for a program that SIGPIPE (13) ended. Most programs end so when their reader, such as
/// `head`, has ended, and pipelines expect it.
const READER_GONE: u8 = 128 + 13;

/// Why a command failed.
enum Failure {
    /// Printed to standard error; the code is 2.
    Configuration(ConfigErrors),
    /// Printed to standard error; the code is 1.
    Failed(Box<dyn Error + Send + Sync>),
    /// The error was printed already; the code is 1.
    Printed,
    /// Nothing reads the output, so there is no message; the code is 141.
    ReaderGone,
}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Self {
        Self::Configuration(errors)
    }
}

impl From<Box<dyn Error + Send + Sync>> for Failure {
    fn from(error: Box<dyn Error + Send + Sync>) -> Self {
        match error.downcast_ref::<io::Error>() {
            Some(error) if error.kind() == io::ErrorKind::BrokenPipe => Self::ReaderGone,
            Some(_) | None => Self::Failed(error),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Box::<dyn Error + Send + Sync>::from(error).into()
    }
}

/// Runs the command of the command line.
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> ExitCode {
    let matches = match command().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => return print_usage(&error),
    };
    match dispatch(&matches, variables) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Configuration(errors)) => {
            print_error(&format!("{errors}\n"));
            ExitCode::from(WRONG_USE)
        }
        Err(Failure::Failed(error)) => {
            print_error(&format!("onceward: {error}\n"));
            ExitCode::from(FAILED)
        }
        Err(Failure::Printed) => ExitCode::from(FAILED),
        Err(Failure::ReaderGone) => ExitCode::from(READER_GONE),
    }
}

/// Prints to standard error. Where that is closed, only the exit code is left: `eprintln!` would panic.
fn print_error(text: &str) {
    drop(io::stderr().write_all(text.as_bytes()));
}

/// Prints clap's message: a help text that was asked for, or an error.
fn print_usage(error: &clap::Error) -> ExitCode {
    let printed = error.print();
    let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    match (asked, printed) {
        (true, Ok(())) => ExitCode::SUCCESS,
        (true, Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::from(READER_GONE),
        (true, Err(_)) => ExitCode::from(FAILED),
        (false, _) => ExitCode::from(WRONG_USE),
    }
}

fn dispatch(
    matches: &ArgMatches,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<(), Failure> {
    match matches.subcommand() {
        Some(("serve", matches)) => {
            let loaded = args::sources(matches, variables)?.load()?;
            let format = loaded.settings.telemetry.logs;
            block_on(crate::serve::run(loaded))?.map_err(|error| match format {
                // A program that reads the log gets JSON lines only.
                LogFormat::Json if logs::failed(&*error) => Failure::Printed,
                LogFormat::Json | LogFormat::Text => Failure::Failed(error),
            })
        }
        Some(("demo", matches)) => {
            let paste = if matches.get_flag(args::AUTO) { Paste::Auto } else { Paste::ByHand };
            Ok(block_on(crate::demo::run(paste))??)
        }
        Some(("check", matches)) => {
            let sources = args::sources(matches, variables)?;
            let report = block_on(check::run(&sources))?;
            print(&if matches.get_flag(args::JSON) { report.to_json() } else { report.to_string() })?;
            if report.failed() { Err(Failure::Printed) } else { Ok(()) }
        }
        Some(("config", matches)) => print(&shown(matches, &args::sources(matches, variables)?)?),
        Some(("migrate", matches)) => {
            let store = args::sources(matches, variables)?.store()?;
            if matches.get_flag(args::PRINT_SQL) {
                return print(&maintenance::print_sql(&store)?);
            }
            print_done(&block_on(maintenance::migrate(&store))??, matches)
        }
        Some(("store", matches)) => match matches.subcommand() {
            Some(("accept-loss", matches)) => {
                let store = args::sources(matches, variables)?.store()?;
                print_done(&block_on(maintenance::accept_loss(&store))??, matches)
            }
            Some(_) | None => Err(Failure::Failed("this command is not in this version".into())),
        },
        Some(("receipts", matches)) => receipts(matches, variables),
        Some(("healthcheck", matches)) => {
            let sources = args::sources(matches, variables)?;
            let url = matches.get_one::<String>(args::URL).map(String::as_str);
            let target = healthcheck::target(url, &sources)?;
            print(&format!("{}\n", block_on(healthcheck::ask(&target))??))
        }
        Some(_) | None => Err(Failure::Failed("this command is not in this version".into())),
    }
}

fn receipts(
    matches: &ArgMatches,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<(), Failure> {
    let text = |id| matches.get_one::<String>(id).map(String::as_str);
    match text(args::RESUME_VOIDS) {
        Some(route) => {
            let settings = args::sources(matches, variables)?.load()?.settings;
            print_done(&block_on(maintenance::resume_voids(&settings, route))??, matches)
        }
        None => {
            let table = matches.get_one::<TableName>(args::TABLE).cloned().unwrap_or_default();
            print(&maintenance::receipts_sql(text(args::DIALECT).unwrap_or_default(), &table))
        }
    }
}

fn shown(matches: &ArgMatches, sources: &Sources) -> Result<String, Failure> {
    let pretty = |value: &serde_json::Value| format!("{value:#}\n");
    if matches.get_flag(args::SCHEMA) {
        return Ok(pretty(&crate::config::schema()));
    }
    let shown = sources.show()?;
    Ok(if matches.get_flag(args::JSON) { pretty(&shown.to_json()) } else { shown.to_string() })
}

fn print_done(done: &Done, matches: &ArgMatches) -> Result<(), Failure> {
    print(&if matches.get_flag(args::JSON) { done.to_json() } else { done.to_text() })
}

fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

fn block_on<F: Future>(work: F) -> io::Result<F::Output> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(work))
}
