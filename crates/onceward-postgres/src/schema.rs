//! The tables, version by version, for each flavour.

use std::fmt::Write as _;

use crate::url::{Flavor, schema_name};

/// The version of the schema that this program needs.
pub(crate) const KNOWN: i32 = 1;

/// The migrations, oldest first. A released version never changes: a change is a new version.
pub(crate) fn migrations(flavor: Flavor, partitions: u32, schema: &str) -> Vec<(i32, String)> {
    vec![(1, first(flavor, partitions, schema))]
}

/// The objects that must exist before a version can be recorded. Each statement may be repeated.
pub(crate) fn groundwork(schema: &str) -> [String; 2] {
    [
        format!("CREATE SCHEMA IF NOT EXISTS {schema}"),
        format!(
            "CREATE TABLE IF NOT EXISTS {schema}.migrations (
    version integer PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
)"
        ),
    ]
}

/// The SQL that [`migrate`](crate::migrate) would run on an empty database, to run by hand.
///
/// Returns an error text for an invalid schema name.
pub fn print_sql(flavor: Flavor, partitions: u32, schema: &str) -> Result<String, String> {
    let schema = schema_name(schema).map_err(|problem| format!("the URL {problem}"))?;
    let mut sql = String::from("-- Onceward's tables. Run this as the role that is to own them.\n");
    for statement in groundwork(&schema) {
        // Writing to a string cannot fail.
        let _ = writeln!(sql, "{statement};");
    }
    for (version, text) in migrations(flavor, partitions, &schema) {
        let _ = writeln!(
            sql,
            "\n-- Version {version}.\nBEGIN;\nINSERT INTO {schema}.migrations (version) VALUES ({version});\n{text}\nCOMMIT;"
        );
    }
    Ok(sql)
}

const COLUMNS: &str = "    id uuid PRIMARY KEY,
    version bigint NOT NULL,
    state text NOT NULL,
    scope text NOT NULL,
    key text NOT NULL,
    route text NOT NULL,
    recovery_point text,
    status integer,
    attempt integer NOT NULL,
    fence bigint NOT NULL,
    created_at timestamptz NOT NULL,
    lease_until timestamptz,
    unknown_since timestamptz,
    reconcile_at timestamptz,
    settled_at timestamptz,
    expires_at timestamptz,
    last_error text,
    record bytea NOT NULL";

/// A completion replaces the claim's row by a longer one. With this much of every page left free the new row fits on the
/// same page, no index is touched, and later queries remove the old row. With answers of 500 bytes a fillfactor of 40 left
/// room for seven in ten, and 25 for all of them, in less space altogether.
const FILLFACTOR: &str = "fillfactor = 25";

/// At a thousand new keys a second the defaults would let millions of dead rows accumulate before a vacuum.
const VACUUM: &str = "autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02, \
     autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1";

fn first(flavor: Flavor, partitions: u32, schema: &str) -> String {
    // The other databases lay out their storage themselves.
    let tuned = match flavor {
        Flavor::Postgres | Flavor::Citus => format!(" WITH ({FILLFACTOR}, {VACUUM})"),
        Flavor::Cockroach | Flavor::Yugabyte => String::new(),
    };
    let mut sql = String::new();
    // A database that distributes rows by range needs hashed keys; ids are hashes already.
    if partitions > 0 && flavor == Flavor::Postgres {
        let _ = writeln!(sql, "CREATE TABLE {schema}.operations (\n{COLUMNS}\n) PARTITION BY HASH (id);");
        for part in 0..partitions {
            let _ = writeln!(
                sql,
                "CREATE TABLE {schema}.operations_{part} PARTITION OF {schema}.operations
    FOR VALUES WITH (MODULUS {partitions}, REMAINDER {part}){tuned};"
            );
        }
    } else {
        let _ = writeln!(sql, "CREATE TABLE {schema}.operations (\n{COLUMNS}\n){tuned};");
    }
    let hashed = match flavor {
        // Ascending times would make one range hot.
        Flavor::Cockroach => " USING HASH",
        Flavor::Postgres | Flavor::Citus | Flavor::Yugabyte => "",
    };
    let ascending = match flavor {
        Flavor::Yugabyte => " ASC",
        Flavor::Postgres | Flavor::Citus | Flavor::Cockroach => "",
    };
    let _ = write!(
        sql,
        "-- The only index beside the key. Nothing that a completion changes may be in one: it would end HOT updates.
CREATE INDEX operations_created_at ON {schema}.operations (created_at{ascending}){hashed};
CREATE TABLE {schema}.due (
    id uuid NOT NULL,
    kind text NOT NULL,
    at timestamptz NOT NULL,
    PRIMARY KEY (id, kind)
);
CREATE INDEX due_at ON {schema}.due (kind, at, id);
CREATE TABLE {schema}.watermark (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    upto timestamptz NOT NULL
);
INSERT INTO {schema}.watermark (upto) VALUES ('epoch');"
    );
    match flavor {
        Flavor::Citus => {
            let _ = write!(
                sql,
                "
SELECT create_distributed_table('{schema}.operations', 'id');
SELECT create_distributed_table('{schema}.due', 'id', colocate_with => '{schema}.operations');
SELECT create_reference_table('{schema}.watermark');"
            );
        }
        Flavor::Postgres | Flavor::Cockroach | Flavor::Yugabyte => {
            let _ = write!(
                sql,
                "
COMMENT ON TABLE {schema}.operations IS 'One row for each idempotency key. Written by Onceward alone: resolve operations through it.';
COMMENT ON COLUMN {schema}.operations.record IS 'Everything, with a checksum; the other columns repeat it, to read and to search by.';
COMMENT ON TABLE {schema}.due IS 'What the sweeper and reconciliation look at: leases that were renewed or are old, and unknown outcomes.';
COMMENT ON TABLE {schema}.watermark IS 'Claims since this time are found by their age, older ones in the table due.';"
            );
        }
    }
    sql
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_index_mentions_what_a_completion_changes() {
        for flavor in [Flavor::Postgres, Flavor::Citus, Flavor::Cockroach, Flavor::Yugabyte] {
            let sql = print_sql(flavor, 4, "onceward").unwrap();
            for line in sql.lines().filter(|line| line.contains("INDEX") && line.contains(".operations")) {
                for column in ["state", "lease", "version", "expires_at", "settled_at"] {
                    assert!(!line.contains(column), "{line}");
                }
            }
        }
    }

    #[test]
    fn a_name_that_would_need_quotes_never_reaches_a_statement() {
        assert!(print_sql(Flavor::Postgres, 0, "a; DROP TABLE x").is_err());
    }
}
