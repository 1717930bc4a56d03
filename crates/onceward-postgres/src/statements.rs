//! The statements for swaps, loads, forgets and scans: each works on arrays, and each is its own transaction.
//!
//! A statement sees the table as it was when it began, so a swap that loses may not see the winner's row: it may have been
//! committed later, and be missing or appear in its earlier version. The version shows both cases, and `batch.rs` reads the
//! row again.

use tokio_postgres::types::Type;

use crate::url::Flavor;

/// A statement and the types of its parameters, which are given so that the server need not be asked.
pub(crate) struct Sql {
    pub text: String,
    pub types: Vec<Type>,
    /// The index of the prepared statement in a connection.
    pub slot: usize,
}

/// The number of statements.
pub(crate) const SLOTS: usize = 16;

pub(crate) struct Statements {
    /// Inserts records that are absent.
    pub claim: Sql,
    /// Updates records that still have the expected version.
    pub update: Sql,
    /// For databases in which one statement may not write two tables: inserts into `due` before the swap.
    pub note: Option<Sql>,
    pub load: Sql,
    /// A transaction that writes only to the write-ahead log, so that its commit waits until the standbys have all of it.
    pub confirm: Option<Sql>,
    pub forget: Sql,
    pub lists: Lists,
}

/// The statements for scans; see `listing.rs` and `leases.rs`.
pub(crate) struct Lists {
    pub due: Sql,
    pub young_by_lease: Sql,
    pub young: Sql,
    pub all: Sql,
    pub records: Sql,
    pub watermark: Sql,
    pub promote: Sql,
    pub move_watermark: Sql,
    pub remove_due: Sql,
    pub correct_due: Sql,
}

/// The columns that a swap writes, and the types of their arrays.
const COLUMNS: [(&str, Type); 16] = [
    ("state", Type::TEXT_ARRAY),
    ("scope", Type::TEXT_ARRAY),
    ("key", Type::TEXT_ARRAY),
    ("route", Type::TEXT_ARRAY),
    ("recovery_point", Type::TEXT_ARRAY),
    ("status", Type::INT4_ARRAY),
    ("attempt", Type::INT4_ARRAY),
    ("fence", Type::INT8_ARRAY),
    ("created_at", Type::TIMESTAMPTZ_ARRAY),
    ("lease_until", Type::TIMESTAMPTZ_ARRAY),
    ("unknown_since", Type::TIMESTAMPTZ_ARRAY),
    ("reconcile_at", Type::TIMESTAMPTZ_ARRAY),
    ("settled_at", Type::TIMESTAMPTZ_ARRAY),
    ("expires_at", Type::TIMESTAMPTZ_ARRAY),
    ("last_error", Type::TEXT_ARRAY),
    ("record", Type::BYTEA_ARRAY),
];

/// The time: the nineteenth parameter, which tests set, or the server's clock.
const NOW: &str = "coalesce($19, now())";

/// A claim without an entry in `due` is found by its age while it is young (`leases.rs`), so a claim that arrives later than
/// this gets an entry.
const RECENT: &str = "interval '5 seconds'";

/// Claims younger than this are found by their age. A statement that began with a recent claim has ended by then
/// ([`Options::statement_timeout`](crate::Options::statement_timeout)), so no claim is missed.
const YOUNG: &str = "interval '20 seconds'";

/// Microseconds and ten random bits: a version is never given to an id again after it was forgotten, without a counter that
/// would have to outlive the record.
const FIRST_VERSION: &str =
    "((extract(epoch FROM clock_timestamp()) * 1000000)::bigint << 10) | (random() * 1023)::bigint";

impl Statements {
    pub(crate) fn new(schema: &str, flavor: Flavor) -> Self {
        let names: Vec<_> = COLUMNS.iter().map(|(name, _)| *name).collect();
        let text = Texts { schema, columns: names.join(", ") };
        let mut types = vec![Type::UUID_ARRAY, Type::INT8_ARRAY];
        types.extend(COLUMNS.iter().map(|(_, of)| of.clone()));
        types.push(Type::TIMESTAMPTZ);
        let sql = |slot, text, types: &[Type]| Sql { text, types: types.to_vec(), slot };
        let ids = [Type::UUID_ARRAY, Type::TIMESTAMPTZ];
        let pairs = [Type::UUID_ARRAY, Type::INT8_ARRAY];
        // In Citus one statement may not write two distributed tables.
        let (claim, update, note, forget) = match flavor {
            Flavor::Postgres | Flavor::Cockroach | Flavor::Yugabyte => {
                (text.claim_together(), text.update_together(), None, text.forget_together())
            }
            Flavor::Citus => {
                (text.claim_apart(), text.update_apart(), Some(text.note_apart()), text.forget_apart())
            }
        };
        Self {
            claim: sql(0, claim, &types),
            update: sql(1, update, &types),
            note: note.map(|note| sql(2, note, &types)),
            load: sql(3, text.load(), &ids),
            confirm: match flavor {
                Flavor::Postgres => {
                    let text = "SELECT pg_catalog.pg_logical_emit_message(true, 'onceward', '')";
                    Some(sql(15, text.to_owned(), &[]))
                }
                // They acknowledge only replicated writes, or have no such function.
                Flavor::Citus | Flavor::Cockroach | Flavor::Yugabyte => None,
            },
            forget: sql(4, forget, &pairs),
            lists: Lists::new(schema),
        }
    }
}

struct Texts<'a> {
    schema: &'a str,
    columns: String,
}

impl Texts<'_> {
    fn input(&self) -> String {
        let parameters: Vec<_> = (1..=18).map(|n| format!("${n}")).collect();
        format!("unnest({}) AS input (id, expected, {})", parameters.join(", "), self.columns)
    }

    fn insert(&self, from: &str) -> String {
        let Self { schema, columns } = self;
        format!(
            "INSERT INTO {schema}.operations AS o (id, version, {columns})
             SELECT id, {FIRST_VERSION}, {columns} FROM {from} ORDER BY id
             ON CONFLICT (id) DO NOTHING"
        )
    }

    fn replace(&self, from: &str) -> String {
        let set: Vec<_> = COLUMNS.iter().map(|(name, _)| format!("{name} = input.{name}")).collect();
        format!(
            "UPDATE {}.operations AS o SET version = o.version + 1, {} FROM {from}
             WHERE o.id = input.id AND o.version = input.expected",
            self.schema,
            set.join(", ")
        )
    }

    /// Inserts records into `due` that are not found by their age.
    fn insert_due(&self, from: &str) -> String {
        let schema = self.schema;
        format!(
            "INSERT INTO {schema}.due AS d (id, kind, at)
             SELECT id, CASE state WHEN 'unknown' THEN 'reconcile' ELSE 'lease' END,
                    coalesce(lease_until, reconcile_at, 'infinity')
             FROM {from}
             WHERE state = 'unknown' OR state = 'in_progress' AND (expected IS NOT NULL
                OR created_at < {NOW} - {RECENT} OR created_at < (SELECT upto FROM {schema}.watermark))
             ORDER BY id
             ON CONFLICT (id, kind) DO UPDATE SET at = "
        )
    }

    /// One statement that returns the versions that were written, and the records of conflicts.
    fn together(&self, write: &str) -> String {
        let schema = self.schema;
        format!(
            "WITH input AS MATERIALIZED (SELECT * FROM {} ORDER BY id),
             won AS ({write} RETURNING o.id, o.version),
             noted AS ({}excluded.at)
             SELECT id, true AS applied, version, NULL::bytea AS record, {NOW} AS now FROM won
             UNION ALL
             SELECT input.id, false, stored.version, stored.record, {NOW}
             FROM input CROSS JOIN LATERAL (
                 SELECT version, record FROM {schema}.operations WHERE id = input.id OFFSET 0) AS stored
             WHERE NOT EXISTS (SELECT FROM won WHERE won.id = input.id)",
            self.input(),
            self.insert_due("input JOIN won USING (id)"),
        )
    }

    fn claim_together(&self) -> String {
        self.together(&self.insert("input"))
    }

    fn update_together(&self) -> String {
        self.together(&self.replace("input"))
    }

    /// Returns only what was written; conflicts are read by another statement.
    fn claim_apart(&self) -> String {
        format!(
            "{} RETURNING o.id, true AS applied, o.version, NULL::bytea AS record, {NOW} AS now",
            self.insert(&self.input())
        )
    }

    fn update_apart(&self) -> String {
        format!(
            "{} RETURNING o.id, true AS applied, o.version, NULL::bytea AS record, {NOW} AS now",
            self.replace(&self.input())
        )
    }

    /// Runs before the swap, which may then lose. So it may only make an entry earlier, never later: a list that finds an
    /// entry too early corrects it.
    fn note_apart(&self) -> String {
        format!("{}least(d.at, excluded.at)", self.insert_due(&self.input()))
    }

    /// Returns at least one row, for the time.
    fn load(&self) -> String {
        format!(
            "SELECT o.id, o.version, o.record, clock.now FROM (SELECT coalesce($2, now()) AS now) AS clock
             LEFT JOIN {}.operations AS o ON o.id = ANY ($1)",
            self.schema
        )
    }

    fn forget_apart(&self) -> String {
        format!(
            "DELETE FROM {}.operations AS o USING unnest($1, $2) AS input (id, expected)
             WHERE o.id = input.id AND o.version = input.expected RETURNING o.id",
            self.schema
        )
    }

    fn forget_together(&self) -> String {
        format!(
            "WITH gone AS ({}),
             cleared AS (DELETE FROM {}.due AS d USING gone WHERE d.id = gone.id)
             SELECT id FROM gone",
            self.forget_apart(),
            self.schema
        )
    }
}

impl Lists {
    fn new(schema: &str) -> Self {
        let sql = |slot, text: String, types: &[Type]| Sql { text, types: types.to_vec(), slot };
        let (at, id, text, many, count) =
            (Type::TIMESTAMPTZ, Type::UUID, Type::TEXT, Type::UUID_ARRAY, Type::INT8);
        let head = "o.id, o.state, o.created_at, o.lease_until, o.reconcile_at, o.expires_at, octet_length(o.record)";
        Self {
            // Kind, until, after (at, id), limit.
            due: sql(
                5,
                format!(
                    "SELECT d.id AS due_id, d.at, {head} FROM {schema}.due AS d
                     LEFT JOIN {schema}.operations AS o ON o.id = d.id
                     WHERE d.kind = $1 AND d.at <= $2 AND d.at >= $3 AND (d.at, d.id) > ($3, $4)
                     ORDER BY d.at, d.id LIMIT $5"
                ),
                &[text.clone(), at.clone(), at.clone(), id.clone(), count.clone()],
            ),
            // From the watermark on, until, after (lease, id), limit.
            young_by_lease: sql(
                6,
                format!(
                    "SELECT {head} FROM {schema}.operations AS o
                     WHERE o.created_at >= $1 AND o.state = 'in_progress' AND o.lease_until <= $2
                       AND (o.lease_until, o.id) > ($3, $4)
                       AND NOT EXISTS (SELECT FROM {schema}.due AS d
                           WHERE d.id = o.id AND d.kind = 'lease' AND d.at <= o.lease_until)
                     ORDER BY o.lease_until, o.id LIMIT $5"
                ),
                &[at.clone(), at.clone(), at.clone(), id.clone(), count.clone()],
            ),
            // From the watermark on, after (created, id), limit.
            young: sql(
                7,
                format!(
                    "SELECT {head} FROM {schema}.operations AS o
                     WHERE o.created_at >= greatest($1, $2) AND (o.created_at, o.id) > ($2, $3)
                       AND NOT EXISTS (SELECT FROM {schema}.due AS d WHERE d.id = o.id AND d.kind = 'lease')
                     ORDER BY o.created_at, o.id LIMIT $4"
                ),
                &[at.clone(), at.clone(), id.clone(), count.clone()],
            ),
            // After (created, id), before, limit.
            all: sql(
                8,
                format!(
                    "SELECT {head}, o.scope, o.route FROM {schema}.operations AS o
                     WHERE o.created_at >= $1 AND (o.created_at, o.id) > ($1, $2) AND o.created_at < $3
                     ORDER BY o.created_at, o.id LIMIT $4"
                ),
                &[at.clone(), id, at.clone(), count.clone()],
            ),
            records: sql(
                9,
                format!(
                    "SELECT o.id, o.version, o.record, o.state FROM {schema}.operations AS o WHERE o.id = ANY ($1)"
                ),
                std::slice::from_ref(&many),
            ),
            // The time, the watermark, the time to which it may move, and how far one step gets.
            watermark: sql(
                10,
                format!(
                    "SELECT clock.now, w.upto, clock.now - {YOUNG} AS target,
                        (SELECT o.created_at FROM {schema}.operations AS o
                         WHERE o.created_at >= w.upto AND o.created_at < clock.now - {YOUNG}
                         ORDER BY o.created_at OFFSET $2 LIMIT 1) AS step
                     FROM {schema}.watermark AS w, (SELECT coalesce($1, now()) AS now) AS clock"
                ),
                &[at.clone(), count],
            ),
            promote: sql(
                11,
                format!(
                    "INSERT INTO {schema}.due AS d (id, kind, at)
                     SELECT o.id, 'lease', o.lease_until FROM {schema}.operations AS o
                     WHERE o.created_at >= $1 AND o.created_at < $2 AND o.state = 'in_progress'
                     ORDER BY o.id
                     ON CONFLICT (id, kind) DO UPDATE SET at = excluded.at"
                ),
                &[at.clone(), at.clone()],
            ),
            move_watermark: sql(
                12,
                format!("UPDATE {schema}.watermark SET upto = $2 WHERE upto = $1"),
                &[at.clone(), at],
            ),
            // Ids, their entries in `due`, kind and state: deletes entries whose record has another state, unless the entry
            // was replaced.
            remove_due: sql(
                13,
                format!(
                    "DELETE FROM {schema}.due AS d USING unnest($1, $2) AS input (id, at)
                     WHERE d.id = input.id AND d.at = input.at AND d.kind = $3 AND NOT EXISTS (
                         SELECT FROM {schema}.operations AS o WHERE o.id = d.id AND o.state = $4)"
                ),
                &[many.clone(), Type::TIMESTAMPTZ_ARRAY, text.clone(), text],
            ),
            // Ids and their entries in `due`: replaces them by the rows' current times, unless the entry was replaced
            // meanwhile.
            correct_due: sql(
                14,
                format!(
                    "INSERT INTO {schema}.due AS d (id, kind, at)
                     SELECT o.id, CASE o.state WHEN 'unknown' THEN 'reconcile' ELSE 'lease' END,
                            coalesce(o.lease_until, o.reconcile_at, 'infinity')
                     FROM {schema}.operations AS o
                     WHERE o.id = ANY ($1) AND o.state IN ('in_progress', 'unknown')
                     ORDER BY o.id
                     ON CONFLICT (id, kind) DO UPDATE SET at = excluded.at
                     WHERE (d.id, d.at) IN (SELECT * FROM unnest($1, $2))"
                ),
                &[many, Type::TIMESTAMPTZ_ARRAY],
            ),
        }
    }
}
