//! The tables, as a list of migrations. A new version is a new entry at the end; existing entries are never edited.

use crate::db::Tables;
use rusqlite::{Transaction, params};
use rusqlite_migration::{HookResult, M, Migrations};

/// `lkws` in the database header: identifies a store among SQLite files.
pub const APPLICATION_ID: i64 = 0x6c6b_7773;

/// The schema version that this build writes.
pub const VERSION: i64 = 3;

const V1: &str = "
PRAGMA application_id = 1818982259;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE measurement (
    id INTEGER PRIMARY KEY,
    run_id TEXT UNIQUE,
    allocation TEXT NOT NULL,
    host TEXT,
    collective TEXT NOT NULL,
    size_bytes INTEGER NOT NULL,
    busbw_gb_per_s REAL NOT NULL,
    time_s REAL,
    algorithm TEXT,
    protocol TEXT,
    channels INTEGER,
    nccl_version TEXT,
    contention TEXT,
    job TEXT,
    taken_at_unix_s REAL,
    source TEXT NOT NULL,
    provenance TEXT NOT NULL,
    quality TEXT NOT NULL
) STRICT;
CREATE INDEX measurement_by_question ON measurement (collective, size_bytes, host);
";

/// The hosts of each reading, the changes of readings, and the counter of changes.
const V2: &str = "
ALTER TABLE measurement ADD COLUMN withdrawn INTEGER NOT NULL DEFAULT 0;
CREATE INDEX measurement_by_job ON measurement (job) WHERE job IS NOT NULL;
CREATE TABLE reading_host (
    host TEXT NOT NULL,
    reading INTEGER NOT NULL REFERENCES measurement (id) ON DELETE CASCADE,
    PRIMARY KEY (host, reading)
) STRICT, WITHOUT ROWID;
CREATE TABLE reading_change (
    id INTEGER PRIMARY KEY,
    reading INTEGER NOT NULL REFERENCES measurement (id),
    what TEXT NOT NULL,
    old_busbw_gb_per_s REAL,
    new_busbw_gb_per_s REAL,
    who TEXT NOT NULL,
    why TEXT NOT NULL,
    at_unix_s REAL NOT NULL
) STRICT;
CREATE INDEX reading_change_by_reading ON reading_change (reading);
CREATE TABLE revision (one INTEGER PRIMARY KEY CHECK (one = 1), changes INTEGER NOT NULL) STRICT;
INSERT INTO revision VALUES (1, 0);
";

/// An index for the newest readings of a host, separately for one host and several hosts. `former_type`: the earlier hardware of a host,
/// and the last reading taken on it.
const V3: &str = "
CREATE TABLE reading_of_host (
    host TEXT NOT NULL,
    several INTEGER NOT NULL,
    reading INTEGER NOT NULL REFERENCES measurement (id) ON DELETE CASCADE,
    PRIMARY KEY (host, several, reading)
) STRICT, WITHOUT ROWID;
INSERT INTO reading_of_host
    SELECT r.host, m.host IS NULL, r.reading FROM reading_host r JOIN measurement m ON m.id = r.reading;
DROP TABLE reading_host;
CREATE TABLE former_type (
    host TEXT NOT NULL,
    until_reading INTEGER NOT NULL,
    type TEXT NOT NULL,
    PRIMARY KEY (host, until_reading)
) STRICT, WITHOUT ROWID;
";

/// The tables in PostgreSQL. An index by hash takes run ids of any length.
pub static POSTGRES: Tables =
    Tables { schema: "linkwise_readings", part: 2, sql: &[&[POSTGRES_V1, crate::once::POSTGRES_TABLE]] };

const POSTGRES_V1: &str = "
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE measurement (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id TEXT,
    allocation TEXT NOT NULL,
    host TEXT,
    collective TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    busbw_gb_per_s DOUBLE PRECISION NOT NULL,
    time_s DOUBLE PRECISION,
    algorithm TEXT,
    protocol TEXT,
    channels BIGINT,
    nccl_version TEXT,
    contention TEXT,
    job TEXT,
    taken_at_unix_s DOUBLE PRECISION,
    source TEXT NOT NULL,
    provenance TEXT NOT NULL,
    quality TEXT NOT NULL,
    withdrawn BIGINT NOT NULL DEFAULT 0,
    EXCLUDE USING hash (run_id WITH =)
);
CREATE INDEX measurement_by_question ON measurement (collective, size_bytes, host);
CREATE INDEX measurement_by_job ON measurement USING hash (job);
CREATE TABLE reading_change (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    reading BIGINT NOT NULL REFERENCES measurement (id),
    what TEXT NOT NULL,
    old_busbw_gb_per_s DOUBLE PRECISION,
    new_busbw_gb_per_s DOUBLE PRECISION,
    who TEXT NOT NULL,
    why TEXT NOT NULL,
    at_unix_s DOUBLE PRECISION NOT NULL
);
CREATE INDEX reading_change_by_reading ON reading_change (reading);
CREATE TABLE revision (one BIGINT PRIMARY KEY CHECK (one = 1), changes BIGINT NOT NULL);
INSERT INTO revision VALUES (1, 0);
CREATE TABLE reading_of_host (
    host TEXT NOT NULL,
    several BIGINT NOT NULL,
    reading BIGINT NOT NULL REFERENCES measurement (id) ON DELETE CASCADE,
    PRIMARY KEY (host, several, reading)
);
CREATE TABLE former_type (
    host TEXT NOT NULL,
    until_reading BIGINT NOT NULL,
    type TEXT NOT NULL,
    PRIMARY KEY (host, until_reading)
);
";

/// All migrations, in order.
pub fn migrations() -> Migrations<'static> {
    Migrations::new(vec![M::up(V1), M::up_with_hook(V2, fill), M::up(V3)])
}

/// The rest of version 2: the table of keys, and the hosts of the stored readings.
fn fill(tx: &Transaction<'_>) -> HookResult {
    tx.execute_batch(crate::once::TABLE)?;
    let mut read = tx.prepare("SELECT id, allocation FROM measurement")?;
    let mut rows = read.query([])?;
    let mut insert = tx.prepare("INSERT OR IGNORE INTO reading_host (host, reading) VALUES (?1, ?2)")?;
    while let Some(row) = rows.next()? {
        let (id, text): (i64, String) = row.try_into()?;
        let mut last = "";
        for gpu in text.split(' ') {
            let host = gpu.rsplit_once(':').map_or(gpu, |(host, _)| host);
            if host != last {
                insert.execute(params![host, id])?;
                last = host;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_is_valid_and_its_numbers_agree() {
        migrations().validate().unwrap();
        assert!(V1.contains(&format!("application_id = {APPLICATION_ID};")));
        let mut c = rusqlite::Connection::open_in_memory().unwrap();
        migrations().to_latest(&mut c).unwrap();
        let v: i64 = c.query_row("PRAGMA user_version", [], |r| r.get(0)).unwrap();
        assert_eq!(v, VERSION);
    }
}
