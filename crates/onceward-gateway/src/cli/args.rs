//! Commands and flags. The flags of the configuration are generated from its table of keys.

use std::ffi::OsString;

use clap::builder::NonEmptyStringValueParser;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command};
use onceward::engine::IdentityChange;
use onceward::receipts::TableName;

use crate::config::{ConfigErrors, Form, Key, Origin, Problem, Sources, keys, later};

pub(super) const JSON: &str = "json";
pub(super) const SCHEMA: &str = "schema";
pub(super) const URL: &str = "url";
pub(super) const PRINT_SQL: &str = "print-sql";
pub(super) const AUTO: &str = "auto";
pub(super) const DIALECT: &str = "dialect";
pub(super) const TABLE: &str = "table";
pub(super) const RESUME_VOIDS: &str = "resume-voids";
const CONFIG: &str = "config";
const ACCEPT: &str = "accept-identity-change";

/// The whole command line.
pub fn command() -> Command {
    Command::new("onceward")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Makes retried HTTP writes happen once.")
        .long_about(
            "Makes retried HTTP writes happen once.\n\n\
             Put it in front of an HTTP API. A client sends Idempotency-Key with a POST; the work behind that key is \
             executed at most once, and every retry gets the first answer.",
        )
        .after_help(
            "Start:  onceward serve --upstream http://127.0.0.1:3000 --scope authorization\n\
             Exit codes: 0 all is well, 1 it failed, 2 the command line or the configuration is wrong.",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommand(serve())
        .subcommand(
            Command::new("demo")
                .about("Show what it does, with an API of its own")
                .arg(switch(AUTO, "Paste the lines by itself, which takes ten seconds, and stop")),
        )
        .subcommand(configured(
            Command::new("check")
                .about("Check configuration, store, clock and upstream, and print what to fix")
                .arg(switch(JSON, "Print the findings as JSON")),
        ))
        .subcommand(configured(
            Command::new("config")
                .about("Print the effective configuration, and where each value came from")
                .arg(switch(JSON, "Print values and origins as JSON"))
                .arg(switch(SCHEMA, "Print the JSON Schema of the file").conflicts_with(JSON)),
        ))
        .subcommand(with_keys(
            Command::new("migrate")
                .about("Make or update the tables of a PostgreSQL store")
                .arg(switch(PRINT_SQL, "Print the statements for an administrator to run, and change nothing"))
                .arg(switch(JSON, "Print what was done as JSON").conflicts_with(PRINT_SQL)),
            &["store"],
        ))
        .subcommand(
            Command::new("store").about("Maintain the store").subcommand_required(true).subcommand(with_keys(
                Command::new("accept-loss")
                    .about("Let a Redis store answer again that has lost its keys: retries of lost keys execute again")
                    .arg(switch(JSON, "Print what was done as JSON")),
                &["store"],
            )),
        )
        .subcommand(configured(
            Command::new("receipts")
                .about("Print the receipt table for the handlers' database, or let its voids release again")
                .arg(switch(PRINT_SQL, "Print the statements for the migrations of that database, and change nothing"))
                .arg(
                    Arg::new(DIALECT)
                        .long(DIALECT)
                        .value_parser(["postgres", "sqlite"])
                        .default_value("postgres")
                        .help("The kind of that database"),
                )
                .arg(
                    Arg::new(TABLE)
                        .long(TABLE)
                        .value_name("NAME")
                        .value_parser(str::parse::<TableName>)
                        .default_value("onceward_receipts")
                        .help("The name of the table"),
                )
                .arg(
                    Arg::new(RESUME_VOIDS)
                        .long(RESUME_VOIDS)
                        .value_name("ROUTE")
                        .conflicts_with(PRINT_SQL)
                        .help("Let the voids of this route release again, after its handler was corrected"),
                )
                .arg(switch(JSON, "Print what was done as JSON").conflicts_with(PRINT_SQL))
                .group(ArgGroup::new("receipts-action").args([PRINT_SQL, RESUME_VOIDS]).required(true)),
        ))
        .subcommand(with_keys(
            Command::new("healthcheck").about("Ask a running gateway whether it is ready").arg(
                Arg::new(URL)
                    .long(URL)
                    .value_name("URL")
                    .help("Ask here instead of at the admin listener of the configuration"),
            ),
            &["admin.listen"],
        ))
}

fn serve() -> Command {
    let accept = "Start although the store was used with another namespace, scope or secret: every stored key is forgotten";
    configured(
        Command::new("serve").about("Run the gateway").arg(switch(ACCEPT, accept)).after_help(
            "Every flag is also a variable (--admin-listen: ONCEWARD_ADMIN_LISTEN) and a key of the file ([admin] \
             listen).\nFlags win over variables, variables over the file, the file over defaults. `onceward config` \
             shows what counts.",
        ),
    )
}

fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).help(help).action(ArgAction::SetTrue)
}

/// Adds a flag for the file and for the keys that the command reads.
fn with_keys(command: Command, paths: &[&str]) -> Command {
    let read = keys().iter().filter(|key| paths.contains(&key.path.as_str()));
    command.arg(file()).args(read.map(flag))
}

fn file() -> Arg {
    Arg::new(CONFIG)
        .long(CONFIG)
        .short('c')
        .value_name("FILE")
        .value_parser(NonEmptyStringValueParser::new())
        .help("Read this file, such as onceward.toml [variable: ONCEWARD_CONFIG]")
}

/// Adds a flag for the file and for every key.
fn configured(command: Command) -> Command {
    let command = command.arg(file()).args(keys().iter().map(flag));
    // Accepted and then refused, so that the error differs from that of a typing error.
    later().iter().filter(|(path, _)| !path.contains('.')).fold(command, |command, (path, _)| {
        let name = if *path == "auth_url" { "auth-url" } else { *path };
        command.arg(Arg::new(*path).long(name).hide(true).action(ArgAction::Append))
    })
}

fn flag(key: &'static Key) -> Arg {
    let default = match (&key.default, key.form) {
        (Some(default), Form::Toml) => format!(" [default: {default}]"),
        // As a flag writes them: texts without quotes, lists without brackets.
        (Some(default), Form::Text | Form::Number | Form::Switch | Form::Texts | Form::Numbers) => {
            format!(" [default: {}]", default.replace(['"', '[', ']'], ""))
        }
        (None, _) => String::new(),
    };
    let flag = Arg::new(key.path.as_str())
        .long(key.flag.as_str())
        .value_name(key.placeholder.as_str())
        .help(format!("{}{default}", key.meaning.trim_end_matches('.')))
        .help_heading(heading(&key.path))
        .action(ArgAction::Append);
    match key.form {
        Form::Switch => flag.num_args(0..=1).default_missing_value("true"),
        Form::Text | Form::Number | Form::Texts | Form::Numbers | Form::Toml => flag,
    }
}

fn heading(path: &str) -> &'static str {
    match path.split_once('.').map(|(table, _)| table) {
        None if path == "routes" => "How requests are treated",
        None => "The gateway",
        Some("admin") => "The admin listener",
        Some("defaults") => "How requests are treated",
        Some("tls" | "upstream_tls") => "TLS",
        Some("limits") => "Limits",
        Some(_) => "Logs and traces",
    }
}

/// The sources of the configuration that the command line names.
pub(super) fn sources(
    matches: &ArgMatches,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Sources, ConfigErrors> {
    // A command has only the flags that it reads: for any other, clap has an error here.
    let given = |id: &str| {
        let values = matches.try_get_many::<String>(id).ok().flatten();
        values.map(|values| values.cloned().collect::<Vec<_>>())
    };
    for (path, instead) in later().iter().filter(|(path, _)| !path.contains('.')) {
        if given(path).is_some() {
            let text = format!("`{path}` is not in this version yet: remove the flag; {instead}");
            return Err(Problem { origin: Origin::Flag(path.replace('_', "-")), text }.into());
        }
    }
    let mut sources = Sources::new(variables);
    if let Some(path) = matches.get_one::<String>(CONFIG) {
        sources = sources.with_file(path);
    }
    for key in keys() {
        if let Some(values) = given(&key.path) {
            sources = sources.with_flag(&key.path, values);
        }
    }
    if matches!(matches.try_get_one::<bool>(ACCEPT), Ok(Some(true))) {
        sources = sources.with_identity_change(IdentityChange::Accept);
    }
    Ok(sources)
}
