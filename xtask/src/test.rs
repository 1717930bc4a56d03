//! The one command that passes the tests on a fresh machine.

use std::path::Path;
use std::process::Command;

use onceward_testkit::servers::Postgres;

use crate::shell::{cargo, has, run as run_command};
use crate::{Done, former, peers, promtool};

/// A program that the tests need, and the Debian packages that bring it.
pub struct Need {
    program: &'static str,
    packages: &'static [&'static str],
    why: &'static str,
}

const CC: Need = Need {
    program: "cc",
    packages: &["gcc", "libc6-dev"],
    why: "SQLite is compiled from its source, and a test makes a disk fail with a small C library",
};

/// Reads a gateway's metrics too.
pub const CURL: Need = Need {
    program: "curl",
    packages: &["curl"],
    why: "a test pastes the lines that the demo and the README print",
};

const SQLITE: Need = Need {
    program: "sqlite3",
    packages: &["sqlite3"],
    why: "a test makes a backup with the lines that docs/sqlite.md shows",
};

const REDIS: Need = Need {
    program: "redis-server",
    packages: &["redis-server"],
    why: "the Redis store is tested with a server of its own",
};

const PGBOUNCER: Need =
    Need { program: "pgbouncer", packages: &["pgbouncer"], why: "the PostgreSQL store is tested through it" };

/// Its programs are on no path, so it is looked for where Debian puts them.
const POSTGRES: Need = Need {
    program: "postgres",
    packages: &["postgresql"],
    why: "the PostgreSQL store is tested with a server of its own",
};

/// With the module that makes environments, which Debian packs separately.
pub const PYTHON: Need = Need {
    program: "python3",
    packages: &["python3", "python3-venv"],
    why: "the gateway is tested before uvicorn and gunicorn",
};

pub const NODE: Need =
    Need { program: "node", packages: &["nodejs"], why: "the gateway is tested before Express" };

/// With the compiler: the API on Jetty is run from its source.
pub const JAVA: Need = Need {
    program: "javac",
    packages: &["default-jdk-headless"],
    why: "the gateway is tested before Jetty, which runs on Java",
};

/// Its files are on no path, so they are looked for where Debian puts them.
pub const JETTY: Need =
    Need { program: "jetty9", packages: &["libjetty9-java"], why: "the gateway is tested before Jetty" };

pub const NPM: Need = Need { program: "npm", packages: &["npm"], why: "it installs Express" };

/// Makes the load of the gateway's measurement.
pub const WRK: Need = Need { program: "wrk", packages: &["wrk"], why: "it makes the load" };

/// Installs what is missing, then runs every test.
pub fn run() -> Done {
    install_missing(&[CC, CURL, SQLITE])?;
    install_servers()?;
    if std::env::var_os("ONCEWARD_VECTORS").is_none() {
        println!(
            "ONCEWARD_VECTORS is not set: the tests against public vectors will say what they did not check."
        );
    }
    let former = former::build()?;
    let peers = peers::install()?;
    let promtool = promtool::install()?;
    // One server for all: every test that needs one takes a database of its own on it.
    let server = Postgres::start();
    let address = format!("postgres://postgres@127.0.0.1:{}", server.port());
    let mut tests = cargo(&["test", "--workspace", "--locked", "--no-fail-fast"]);
    tests.env("ONCEWARD_TEST_POSTGRES", address).env("ONCEWARD_TEST_PEERS", peers);
    tests.env("ONCEWARD_TEST_PROMTOOL", promtool);
    if let Some(former) = former {
        tests.env("ONCEWARD_TEST_FORMER", former);
    }
    run_command(&mut tests)
}

/// Installs the database servers that are not there.
pub fn install_servers() -> Done {
    install_missing(&[REDIS])?;
    if !Path::new("/usr/sbin/pgbouncer").exists() {
        install_missing(&[PGBOUNCER])?;
    }
    if !has_postgres() {
        install_missing(&[POSTGRES])?;
    }
    Ok(())
}

fn has_postgres() -> bool {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    versions.into_iter().any(|version| version.path().join("bin/postgres").exists())
}

/// Installs what is not there.
pub fn install_missing(needs: &[Need]) -> Done {
    needs.iter().filter(|need| !has(need.program)).try_for_each(install_program)
}

/// Installs one program.
pub fn install_program(need: &Need) -> Done {
    println!("{} is missing ({}): installing {}", need.program, need.why, need.packages.join(", "));
    let mut words = vec!["apt-get", "install", "--yes", "--no-install-recommends"];
    words.extend(need.packages);
    refresh_packages().and_then(|()| as_root(&words)).map_err(|error| {
        format!(
            "{error}; install {} with your own package manager and run this again",
            need.packages.join(" and ")
        )
        .into()
    })
}

/// Reads the lists of Debian's packages anew.
pub fn refresh_packages() -> Done {
    as_root(&["apt-get", "update"])
}

fn as_root(words: &[&str]) -> Done {
    // Only where one is not root already, and there is `sudo`.
    let mut command = if has("sudo") { Command::new("sudo") } else { Command::new("env") };
    command.args(words);
    run_command(&mut command)
}
