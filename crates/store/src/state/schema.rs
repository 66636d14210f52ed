//! The tables of a state file, as a list of migrations. A new version is a new entry at the end; existing entries are
//! never edited.

use crate::db::Tables;
use rusqlite_migration::{HookError, M, Migrations};

/// `lkst` in the database header.
pub const APPLICATION_ID: i64 = 0x6c6b_7374;

/// The schema version that this build writes.
pub const VERSION: i64 = 5;

/// Rows of `held` must not overlap; the other columns are for status reports and decisions.
pub const V1: &str = "
PRAGMA application_id = 1818981236;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE job (
    id TEXT PRIMARY KEY,
    since_unix_s REAL NOT NULL,
    demand_gb_per_s REAL,
    predicted_gb_per_s REAL,
    size_bytes INTEGER
) STRICT;
CREATE TABLE held (
    host TEXT NOT NULL,
    gpu INTEGER NOT NULL,
    job TEXT NOT NULL REFERENCES job (id) ON DELETE CASCADE,
    UNIQUE (host, gpu)
) STRICT;
CREATE INDEX held_by_job ON held (job);
CREATE TABLE drained (
    host TEXT NOT NULL,
    gpu INTEGER NOT NULL,
    since_unix_s REAL NOT NULL,
    reason TEXT NOT NULL,
    UNIQUE (host, gpu)
) STRICT;
CREATE TABLE suspect (
    defect INTEGER NOT NULL,
    host TEXT NOT NULL,
    component TEXT NOT NULL,
    factor REAL NOT NULL,
    probability REAL NOT NULL,
    UNIQUE (defect, host, component)
) STRICT;
";

/// Versions of the data on which decisions are based, and the answers to committed jobs.
const V2: &str = "
CREATE TABLE version (one INTEGER PRIMARY KEY CHECK (one = 1), everything INTEGER NOT NULL, suspects INTEGER NOT NULL) STRICT;
INSERT INTO version VALUES (1, 1, 1);
ALTER TABLE job ADD COLUMN request TEXT;
ALTER TABLE job ADD COLUMN answer TEXT;
";

/// Leases and authors of jobs, the log of changes, and the tokens of a server.
const V3: &str = "
ALTER TABLE job ADD COLUMN lease_s REAL;
ALTER TABLE job ADD COLUMN lease_until_unix_s REAL;
ALTER TABLE job ADD COLUMN made_by TEXT NOT NULL DEFAULT '';
CREATE INDEX job_by_lease ON job (lease_until_unix_s) WHERE lease_until_unix_s IS NOT NULL;
CREATE TABLE event (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at_unix_s REAL NOT NULL,
    who TEXT NOT NULL,
    what TEXT NOT NULL,
    subject TEXT NOT NULL,
    gpus TEXT NOT NULL,
    why TEXT NOT NULL
) STRICT;
CREATE TABLE token (
    name TEXT PRIMARY KEY,
    hash TEXT NOT NULL UNIQUE,
    scope TEXT NOT NULL,
    made_at_unix_s REAL NOT NULL,
    until_unix_s REAL,
    revoked_at_unix_s REAL
) STRICT;
";

/// The model: its versions, their texts in parts, and the readings that it has learned.
const V4: &str = "
CREATE TABLE model_head (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    revision INTEGER NOT NULL,
    present INTEGER NOT NULL,
    newest INTEGER NOT NULL,
    newest_text INTEGER NOT NULL,
    lesson INTEGER NOT NULL,
    seen_until INTEGER NOT NULL,
    tried_until INTEGER NOT NULL,
    imported TEXT NOT NULL
) STRICT;
INSERT INTO model_head VALUES (1, 0, 0, 0, 0, 0, 0, 0, '');
CREATE TABLE model (
    version INTEGER PRIMARY KEY,
    text INTEGER NOT NULL,
    parts INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    digest TEXT NOT NULL,
    lesson INTEGER NOT NULL,
    about TEXT NOT NULL
) STRICT;
CREATE TABLE model_part (
    text INTEGER NOT NULL,
    part INTEGER NOT NULL,
    content TEXT NOT NULL,
    UNIQUE (text, part)
) STRICT;
CREATE TABLE model_lesson (
    id INTEGER PRIMARY KEY,
    gpus TEXT NOT NULL,
    size_bytes INTEGER NOT NULL,
    busbw_gb_per_s REAL NOT NULL
) STRICT;
";

/// Slow work of servers, and who had a job's GPUs last.
const V5: &str = "
CREATE TABLE task (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    what TEXT NOT NULL,
    who TEXT NOT NULL,
    state TEXT NOT NULL,
    step INTEGER NOT NULL,
    cancel INTEGER NOT NULL,
    beat INTEGER NOT NULL,
    lost INTEGER NOT NULL,
    outcome TEXT
) STRICT;
CREATE INDEX event_of_job ON event (subject, id) WHERE what IN ('allocate', 'release', 'expire');
";

/// The tables in PostgreSQL, which orders texts by their bytes as SQLite does.
pub static POSTGRES: Tables = Tables {
    schema: "linkwise_state",
    part: 1,
    sql: &[&[POSTGRES_V1, crate::once::POSTGRES_TABLE], &[POSTGRES_V2], &[POSTGRES_V3]],
};

/// As the fourth version of the file.
const POSTGRES_V2: &str = "
CREATE TABLE model_head (
    one BIGINT PRIMARY KEY CHECK (one = 1),
    revision BIGINT NOT NULL,
    present BIGINT NOT NULL,
    newest BIGINT NOT NULL,
    newest_text BIGINT NOT NULL,
    lesson BIGINT NOT NULL,
    seen_until BIGINT NOT NULL,
    tried_until BIGINT NOT NULL,
    imported TEXT NOT NULL
);
INSERT INTO model_head VALUES (1, 0, 0, 0, 0, 0, 0, 0, '');
CREATE TABLE model (
    version BIGINT PRIMARY KEY,
    text BIGINT NOT NULL,
    parts BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    digest TEXT NOT NULL,
    lesson BIGINT NOT NULL,
    about TEXT NOT NULL
);
CREATE TABLE model_part (
    text BIGINT NOT NULL,
    part BIGINT NOT NULL,
    content TEXT NOT NULL,
    PRIMARY KEY (text, part)
);
CREATE TABLE model_lesson (
    id BIGINT PRIMARY KEY,
    gpus TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    busbw_gb_per_s DOUBLE PRECISION NOT NULL
);
";

/// As the fifth version of the file.
const POSTGRES_V3: &str = "
CREATE TABLE task (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    what TEXT NOT NULL,
    who TEXT NOT NULL,
    state TEXT NOT NULL,
    step BIGINT NOT NULL,
    cancel BIGINT NOT NULL,
    beat BIGINT NOT NULL,
    lost BIGINT NOT NULL,
    outcome TEXT
);
CREATE INDEX event_of_job ON event (subject, id) WHERE what IN ('allocate', 'release', 'expire');
";

const POSTGRES_V1: &str = "
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE job (
    id TEXT COLLATE \"C\" PRIMARY KEY,
    since_unix_s DOUBLE PRECISION NOT NULL,
    demand_gb_per_s DOUBLE PRECISION,
    predicted_gb_per_s DOUBLE PRECISION,
    size_bytes BIGINT,
    request TEXT,
    answer TEXT,
    lease_s DOUBLE PRECISION,
    lease_until_unix_s DOUBLE PRECISION,
    made_by TEXT NOT NULL DEFAULT ''
);
CREATE INDEX job_by_lease ON job (lease_until_unix_s) WHERE lease_until_unix_s IS NOT NULL;
CREATE TABLE held (
    host TEXT COLLATE \"C\" NOT NULL,
    gpu BIGINT NOT NULL,
    job TEXT COLLATE \"C\" NOT NULL REFERENCES job (id) ON DELETE CASCADE,
    PRIMARY KEY (host, gpu)
);
CREATE INDEX held_by_job ON held (job);
CREATE TABLE drained (
    host TEXT COLLATE \"C\" NOT NULL,
    gpu BIGINT NOT NULL,
    since_unix_s DOUBLE PRECISION NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (host, gpu)
);
CREATE TABLE suspect (
    defect BIGINT NOT NULL,
    host TEXT COLLATE \"C\" NOT NULL,
    component TEXT COLLATE \"C\" NOT NULL,
    factor DOUBLE PRECISION NOT NULL,
    probability DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (defect, host, component)
);
CREATE TABLE version (one BIGINT PRIMARY KEY CHECK (one = 1), everything BIGINT NOT NULL, suspects BIGINT NOT NULL);
INSERT INTO version VALUES (1, 1, 1);
CREATE TABLE event (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_unix_s DOUBLE PRECISION NOT NULL,
    who TEXT NOT NULL,
    what TEXT NOT NULL,
    subject TEXT NOT NULL,
    gpus TEXT NOT NULL,
    why TEXT NOT NULL
);
CREATE TABLE token (
    name TEXT COLLATE \"C\" PRIMARY KEY,
    hash TEXT NOT NULL UNIQUE,
    scope TEXT NOT NULL,
    made_at_unix_s DOUBLE PRECISION NOT NULL,
    until_unix_s DOUBLE PRECISION,
    revoked_at_unix_s DOUBLE PRECISION
);
";

/// All migrations. The same transaction writes `meta` into a new file, so that no state lacks it.
pub fn migrations(meta: Vec<(&'static str, String)>) -> Migrations<'static> {
    let first = M::up_with_hook(V1, move |tx: &rusqlite::Transaction<'_>| {
        for (key, value) in &meta {
            tx.execute("INSERT INTO meta (key, value) VALUES (?1, ?2)", [*key, value]).map_err(HookError::from)?;
        }
        Ok(())
    });
    Migrations::new(vec![
        first,
        M::up_with_hook(V2, |tx: &rusqlite::Transaction<'_>| Ok(tx.execute_batch(crate::once::TABLE)?)),
        M::up(V3),
        M::up(V4),
        M::up(V5),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_is_valid_and_its_numbers_agree() {
        assert!(V1.contains(&format!("application_id = {APPLICATION_ID};")));
        let mut c = rusqlite::Connection::open_in_memory().unwrap();
        migrations(vec![("a", "b".into())]).to_latest(&mut c).unwrap();
        let v: i64 = c.query_row("PRAGMA user_version", [], |r| r.get(0)).unwrap();
        assert_eq!(v, VERSION);
    }
}
