//! The tables, as a list of migrations: a new version is a new entry at the end, never an edit.

use rusqlite_migration::{M, Migrations};

/// `lkws` in the database header: tells a store from any other SQLite file.
pub const APPLICATION_ID: i64 = 0x6c6b_7773;

/// How many schema versions this build knows.
pub const VERSION: i64 = 1;

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

/// All of them.
pub fn migrations() -> Migrations<'static> {
    Migrations::new(vec![M::up(V1)])
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
