//! The tables of a state file. A later version adds a step from version 1 and never edits this text.

/// `lkst` in the database header.
pub const APPLICATION_ID: i64 = 0x6c6b_7374;

/// The schema version that this build writes.
pub const VERSION: i64 = 1;

/// `held` is what must never overlap; the rest is what people and decisions want to know about it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_is_valid_and_its_numbers_agree() {
        assert!(V1.contains(&format!("application_id = {APPLICATION_ID};")));
        rusqlite::Connection::open_in_memory().unwrap().execute_batch(V1).unwrap();
    }
}
