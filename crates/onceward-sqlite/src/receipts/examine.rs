//! Explains what the database of a receipt table lacks.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use onceward::Timestamp;
use onceward::receipts::TableName;
use onceward::store::{Finding, Health};
use rusqlite::{Connection, OptionalExtension as _};

use super::database::open;
use super::ddl::{NOW, VIEWS};
use super::error::Failure;

/// Handlers make rows under fences of the last 24 hours by their machine's clock, so a minute is harmless. More of it shows that
/// one of the two clocks is not synchronized, and could be wrong by a day tomorrow.
const CLOCK_OFFSET_MAX: Duration = Duration::from_secs(60);
/// Long enough for a writer, short enough for a person who waits.
const LOCK_WAIT: Duration = Duration::from_secs(2);

const COLUMNS: [(&str, &str); 11] = [
    ("operation", "TEXT"),
    ("fence", "INTEGER"),
    ("point", "TEXT"),
    ("data", "TEXT"),
    ("entered", "TEXT"),
    ("entered_at", "INTEGER"),
    ("dedup_until", "INTEGER"),
    ("status", "INTEGER"),
    ("headers", "TEXT"),
    ("body", "BLOB"),
    ("at", "INTEGER"),
];

/// Reads the database of a receipt table, and explains what it finds. `now` is the present time by the clock of Onceward's
/// store, whose times fences are. Blocks, and changes nothing.
pub fn examine(path: &Path, table: &TableName, now: Timestamp) -> Vec<Finding> {
    let found = open(path, LOCK_WAIT).and_then(|connection| findings(&connection, path, table, now));
    found.unwrap_or_else(|failure| {
        let text = failure.explain(path, LOCK_WAIT).to_string();
        vec![Finding { health: Health::Problem, subject: "receipt database", text }]
    })
}

fn findings(
    connection: &Connection,
    path: &Path,
    table: &TableName,
    now: Timestamp,
) -> Result<Vec<Finding>, Failure> {
    Ok(vec![
        finding("receipt database", path.display(), Health::Good, "it can be written"),
        clock(connection, now)?,
        columns(connection, table)?,
        views(connection)?,
        journal_mode(connection)?,
    ])
}

fn clock(connection: &Connection, now: Timestamp) -> Result<Finding, Failure> {
    let micros: i64 = connection.query_row(&format!("SELECT {NOW}"), [], |row| row.get(0))?;
    let here = Timestamp::from_micros(u64::try_from(micros).unwrap_or(0));
    let offset = here.since(now).max(now.since(here));
    let found = format!("{offset:.1?} apart");
    Ok(if offset > CLOCK_OFFSET_MAX {
        let meaning = "a handler makes a row only within 24 hours of its fence, which is a time by the clock of Onceward's store, \
             and rows are deleted after two days: synchronize both machines by NTP before that matters";
        finding("receipt clock", found, Health::Warning, meaning)
    } else {
        finding(
            "receipt clock",
            found,
            Health::Good,
            "this machine and Onceward's store agree about the time",
        )
    })
}

fn columns(connection: &Connection, table: &TableName) -> Result<Finding, Failure> {
    let subject = "receipt table";
    let mut statement = connection.prepare("SELECT name, type, pk FROM pragma_table_info(?1)")?;
    let found = statement
        .query_map([table.table()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<Result<Vec<(String, String, i64)>, _>>()?;
    if found.is_empty() {
        let meaning = "it does not exist in this database: run what `onceward receipts --print-sql --dialect sqlite` prints";
        return Ok(finding(subject, table, Health::Problem, meaning));
    }
    let mut wrong: Vec<_> = COLUMNS
        .iter()
        .filter_map(|(column, expected)| match found.iter().find(|(name, ..)| name == column) {
            None => Some(format!("{column} is missing")),
            Some((_, kind, _)) if !kind.eq_ignore_ascii_case(expected) => {
                Some(format!("{column} is {kind} instead of {expected}"))
            }
            Some(_) => None,
        })
        .collect();
    let key: Vec<_> = found.iter().filter(|(.., key)| *key > 0).map(|(name, ..)| name.as_str()).collect();
    if key != ["operation"] {
        wrong.push("operation is no primary key".to_owned());
    }
    Ok(if wrong.is_empty() {
        finding(subject, table, Health::Good, "its columns are as this version needs them")
    } else {
        let meaning =
            "it is not the table of `onceward receipts --print-sql --dialect sqlite`: voids would fail";
        finding(subject, wrong.join(", "), Health::Problem, meaning)
    })
}

fn views(connection: &Connection) -> Result<Finding, Failure> {
    let subject = "receipt views";
    let mut statement = connection.prepare(
        "SELECT 1 FROM sqlite_schema AS v JOIN sqlite_schema AS t ON t.tbl_name = v.name AND t.type = 'trigger' \
         WHERE v.type = 'view' AND v.name = ?1 AND t.name = ?2",
    )?;
    let mut missing = Vec::new();
    for (view, trigger) in VIEWS {
        if statement.query_row([view, trigger], |_| Ok(())).optional()?.is_none() {
            missing.push(view);
        }
    }
    Ok(if missing.is_empty() {
        finding(subject, "all there", Health::Good, "handlers can insert into them")
    } else {
        let meaning = "handlers cannot commit their receipts: run what `onceward receipts --print-sql --dialect sqlite` prints";
        finding(subject, format!("{} missing", missing.join(", ")), Health::Problem, meaning)
    })
}

fn journal_mode(connection: &Connection) -> Result<Finding, Failure> {
    let subject = "receipt journal_mode";
    let found: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    Ok(if found == "wal" {
        finding(subject, found, Health::Good, "voids wait for writers only")
    } else {
        let meaning =
            "a void waits for readers too. PRAGMA journal_mode = wal, once, would change that for good";
        finding(subject, found, Health::Good, meaning)
    })
}

fn finding(subject: &'static str, found: impl Display, health: Health, meaning: &str) -> Finding {
    Finding { health, subject, text: format!("{found}: {meaning}") }
}
