//! The command line. `main` hands everything over to [`run`].
//!
//! Exit codes: 0 all is well, 1 it failed, 2 the command line or the configuration is wrong, 141 nothing reads what it prints.

mod args;
mod healthcheck;

use std::error::Error;
use std::ffi::OsString;
use std::future::Future;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::ArgMatches;
use clap::error::ErrorKind;

use crate::check;
use crate::config::{ConfigErrors, Sources};
use crate::settings::LogFormat;
use crate::stores::maintenance::{self, Done};
use crate::telemetry::logs;

pub use self::args::command;

const FAILED: u8 = 1;
const WRONG_USE: u8 = 2;
/// What a shell reports of a program that SIGPIPE (13) ended. Most programs end so when their reader, such as `head`, has gone
/// away, and pipelines expect it.
const READER_GONE: u8 = 128 + 13;

/// What a command ended with, beside success.
enum Failure {
    /// Said on standard error; the code is 2.
    Configuration(ConfigErrors),
    /// Said on standard error; the code is 1.
    Failed(Box<dyn Error + Send + Sync>),
    /// Everything was said already; the code is 1.
    Told,
    /// Nothing reads what the command prints, so nothing is said; the code is 141.
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

/// Does what the command line says.
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> ExitCode {
    let matches = match command().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => return explain(&error),
    };
    match dispatch(&matches, variables) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Configuration(errors)) => {
            complain(&format!("{errors}\n"));
            ExitCode::from(WRONG_USE)
        }
        Err(Failure::Failed(error)) => {
            complain(&format!("onceward: {error}\n"));
            ExitCode::from(FAILED)
        }
        Err(Failure::Told) => ExitCode::from(FAILED),
        Err(Failure::ReaderGone) => ExitCode::from(READER_GONE),
    }
}

/// Says on standard error what is wrong. Where that is closed the exit code has to do: `eprintln!` would panic.
fn complain(text: &str) {
    drop(io::stderr().write_all(text.as_bytes()));
}

/// What clap has to say: a help text that was asked for, or what is wrong.
fn explain(error: &clap::Error) -> ExitCode {
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
                // A program reads every line.
                LogFormat::Json if logs::failed(&*error) => Failure::Told,
                LogFormat::Json | LogFormat::Text => Failure::Failed(error),
            })
        }
        Some(("demo", _)) => Ok(block_on(crate::demo::run())??),
        Some(("check", matches)) => {
            let sources = args::sources(matches, variables)?;
            let report = block_on(check::run(&sources))?;
            print(&if matches.get_flag(args::JSON) { report.to_json() } else { report.to_string() })?;
            if report.failed() { Err(Failure::Told) } else { Ok(()) }
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
        Some(("healthcheck", matches)) => {
            let sources = args::sources(matches, variables)?;
            let url = matches.get_one::<String>(args::URL).map(String::as_str);
            let target = healthcheck::target(url, &sources)?;
            print(&format!("{}\n", block_on(healthcheck::ask(&target))??))
        }
        Some(_) | None => Err(Failure::Failed("this command is not in this version".into())),
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
