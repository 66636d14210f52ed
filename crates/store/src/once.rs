//! Idempotency keys: a repeated write is done once, and every repetition gets the same answer.
//!
//! A client that got no answer cannot know whether its write was executed. It repeats the write under the same key: the
//! row of the key records the result of the first write. The write and its row share a transaction, so neither exists
//! without the other. The same key with another request is an error, never a silent second write.
//!
//! Limits: the newest [`KEYS_MAX`] keys of at most [`KEY_AGE_S_MAX`] are kept, with answers of at most
//! [`ANSWER_BYTES_MAX`]: at most 10 GB in theory, about 20 MB at 2 kB per answer. A later repetition counts as a new
//! request.

use crate::db::{Sql, SqlError, vals};
use crate::digest::fnv64;
use serde::{Deserialize, Serialize};

/// Longest key, bytes.
pub const KEY_BYTES_MAX: usize = 240;
/// Maximum number of keys that a file keeps.
pub const KEYS_MAX: usize = 10_000;
/// Longest age of a key, seconds: a week.
pub const KEY_AGE_S_MAX: f64 = 7.0 * 86_400.0;
/// In PostgreSQL so many keys may be there beyond [`KEYS_MAX`].
const BEYOND_EVERY: i64 = 64;
/// Longest stored answer of a key, bytes.
pub const ANSWER_BYTES_MAX: usize = 1 << 20;

/// A write that its client may repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Once {
    /// The client's key: 1 to [`KEY_BYTES_MAX`] printable ASCII characters.
    pub key: String,
    /// [`digest`] of the request. It distinguishes a repetition from another request under the same key.
    pub request: String,
}

impl Once {
    /// A key for a request, given in any canonical text.
    ///
    /// # Errors
    /// The key is empty, too long or not printable ASCII.
    pub fn new(key: &str, request: &str) -> Result<Once, String> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX || !key.bytes().all(|b| b.is_ascii_graphic()) {
            let shown: String = key.chars().take(40).flat_map(char::escape_debug).collect();
            return Err(format!(
                "the idempotency key `{shown}` is not 1 to {KEY_BYTES_MAX} printable ASCII characters without spaces"
            ));
        }
        Ok(Once { key: key.into(), request: digest(request) })
    }
}

/// A digest of a request: 64 bits of its text, and its length. It detects accidental reuse of a key, not attacks.
pub fn digest(request: &str) -> String {
    format!("{:016x}-{}", fnv64([request]), request.len())
}

/// The result of a write, from now or from the first use of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done<T> {
    /// The result.
    pub value: T,
    /// True if the write was done before, under the same key.
    pub repeated: bool,
}

/// The table of keys, the same in stores and states. PostgreSQL numbers the rows, as SQLite does by itself.
pub(crate) const TABLE: &str = "
CREATE TABLE request_key (
    key TEXT PRIMARY KEY,
    request TEXT NOT NULL,
    outcome TEXT NOT NULL,
    answer TEXT,
    at_unix_s REAL NOT NULL
) STRICT;
CREATE INDEX request_key_by_age ON request_key (at_unix_s);
";

/// The same for PostgreSQL.
pub(crate) const POSTGRES_TABLE: &str = "
CREATE TABLE request_key (
    key TEXT COLLATE \"C\" PRIMARY KEY,
    number BIGINT GENERATED ALWAYS AS IDENTITY,
    request TEXT NOT NULL,
    outcome TEXT NOT NULL,
    answer TEXT,
    at_unix_s DOUBLE PRECISION NOT NULL
);
CREATE INDEX request_key_by_age ON request_key (at_unix_s, number);
";

/// The reason why a key could not be looked up or stored.
pub(crate) enum KeyError {
    /// The key was used for another request.
    Reused(String),
    /// The row cannot be read.
    Damaged(String),
    /// The database failed.
    Sql(SqlError),
}

impl From<SqlError> for KeyError {
    fn from(e: SqlError) -> Self {
        KeyError::Sql(e)
    }
}

/// A row of the table.
pub(crate) struct Kept {
    /// The result of the write, in the store's or the state's format.
    pub outcome: String,
    /// The answer, after the client's whole request was answered.
    pub answer: Option<String>,
    /// True if a model has learned the readings of the write. Only for rows without an answer.
    pub taught: bool,
}

/// Stands in the answer's column between the learning of a model and the answer.
const TAUGHT: &str = "taught";

/// The row of a key; none if the key is new.
pub(crate) fn look_up(sql: &Sql<'_>, once: &Once) -> Result<Option<Kept>, KeyError> {
    let row: Option<(String, String, Option<String>)> =
        sql.first("SELECT request, outcome, answer FROM request_key WHERE key = ?1", vals![&once.key])?;
    match row {
        None => Ok(None),
        Some((request, ..)) if request != once.request => Err(KeyError::Reused(once.key.clone())),
        Some((_, outcome, answer)) => {
            let taught = answer.as_deref() == Some(TAUGHT);
            Ok(Some(Kept { outcome, answer: answer.filter(|_| !taught), taught }))
        }
    }
}

/// The result in a row as a value.
pub(crate) fn outcome<T: for<'de> Deserialize<'de>>(kept: &Kept) -> Result<T, KeyError> {
    serde_json::from_str(&kept.outcome).map_err(|e| KeyError::Damaged(format!("a request key's outcome: {e}")))
}

/// Stores the result of a write in its transaction, and deletes keys beyond the limits of age and number. Returns the result as it is stored.
pub(crate) fn keep<T: Serialize>(
    tx: &Sql<'_>,
    once: &Once,
    outcome: &T,
    answer: Option<&str>,
    at_unix_s: f64,
) -> Result<String, KeyError> {
    let outcome = serde_json::to_string(outcome).map_err(|e| KeyError::Damaged(e.to_string()))?;
    let answer = answer.filter(|a| a.len() <= ANSWER_BYTES_MAX);
    let number: i64 = tx.one(
        tx.dialect(
            "INSERT INTO request_key (key, request, outcome, answer, at_unix_s) VALUES (?1, ?2, ?3, ?4, ?5) RETURNING rowid",
            "INSERT INTO request_key (key, request, outcome, answer, at_unix_s) VALUES (?1, ?2, ?3, ?4, ?5) RETURNING number",
        ),
        vals![&once.key, &once.request, &outcome, answer, at_unix_s],
    )?;
    tx.execute("DELETE FROM request_key WHERE at_unix_s < ?1", vals![at_unix_s - KEY_AGE_S_MAX])?;
    // By number and not by time: after the clock went back, the newest key has an early time. PostgreSQL reads the whole table for it.
    let (beyond, every) = (number - KEYS_MAX as i64, tx.every(BEYOND_EVERY));
    if beyond > 0 && number % every == 0 {
        tx.execute(
            tx.dialect("DELETE FROM request_key WHERE rowid <= ?1", "DELETE FROM request_key WHERE number <= ?1"),
            vals![beyond],
        )?;
    }
    Ok(outcome)
}

/// Completes a row with the answer. An answer that is too long is not stored; the result is kept.
pub(crate) fn finish(sql: &Sql<'_>, once: &Once, answer: &str) -> Result<(), KeyError> {
    if answer.len() <= ANSWER_BYTES_MAX {
        sql.execute("UPDATE request_key SET answer = ?2 WHERE key = ?1", vals![&once.key, answer])?;
    }
    Ok(())
}

/// Marks a row without an answer, or removes the mark. A marked row means that a model learns the readings now, so a
/// repetition must not teach them.
pub(crate) fn mark_taught(sql: &Sql<'_>, once: &Once, taught: bool) -> Result<(), KeyError> {
    let text = "UPDATE request_key SET answer = ?2 WHERE key = ?1 AND (answer IS NULL OR answer = ?3)";
    sql.execute(text, vals![&once.key, taught.then_some(TAUGHT), TAUGHT])?;
    Ok(())
}

/// Marks every row without an answer, because a model was fitted to all readings.
pub(crate) fn mark_all_taught(sql: &Sql<'_>) -> Result<(), KeyError> {
    sql.execute("UPDATE request_key SET answer = ?1 WHERE answer IS NULL", vals![TAUGHT])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::Connection;

    fn table() -> Connection {
        let c = Connection::open_in_memory().unwrap();
        c.execute_batch(TABLE).unwrap();
        c
    }

    fn once(key: &str, request: &str) -> Once {
        Once::new(key, request).unwrap()
    }

    #[test]
    fn a_key_returns_the_first_result_and_refuses_another_request() {
        let connection = table();
        let c = Sql::sqlite(&connection);
        let a = once("k", "one");
        assert!(look_up(&c, &a).ok().unwrap().is_none());
        assert!(keep(&c, &a, &vec![1, 2], None, 0.0).is_ok());
        let kept = look_up(&c, &a).ok().unwrap().unwrap();
        assert!(kept.answer.is_none() && outcome::<Vec<i64>>(&kept).ok().unwrap() == [1, 2]);
        let taught = || look_up(&c, &a).ok().unwrap().map(|k| (k.answer, k.taught)).unwrap();
        for mark in [true, false, true] {
            assert!(mark_taught(&c, &a, mark).is_ok());
            assert_eq!(taught(), (None, mark));
        }
        assert!(finish(&c, &a, "told").is_ok());
        assert!(mark_taught(&c, &a, false).is_ok());
        assert_eq!(taught(), (Some("told".into()), false), "an answer is never taken back");
        assert_eq!(look_up(&c, &a).ok().unwrap().unwrap().answer.as_deref(), Some("told"));
        assert!(matches!(look_up(&c, &once("k", "two")), Err(KeyError::Reused(k)) if k == "k"));
    }

    #[test]
    fn old_keys_and_those_beyond_the_limit_are_deleted_oldest_first() {
        let connection = table();
        let c = Sql::sqlite(&connection);
        let n = KEYS_MAX + 5;
        connection.execute_batch("BEGIN").unwrap();
        for i in 0..n {
            assert!(keep(&c, &once(&format!("k{i}"), "r"), &(), None, i as f64).is_ok());
        }
        let count =
            || connection.query_row("SELECT count(*) FROM request_key", [], |r| r.get::<_, i64>(0)).unwrap() as usize;
        assert_eq!(count(), KEYS_MAX);
        assert!(look_up(&c, &once("k4", "r")).ok().unwrap().is_none());
        assert!(look_up(&c, &once("k5", "r")).ok().unwrap().is_some());
        assert!(keep(&c, &once("late", "r"), &(), None, n as f64 + KEY_AGE_S_MAX).is_ok());
        assert_eq!(count(), 1);
    }

    #[test]
    fn keys_have_limits() {
        for key in ["", "a b", "a\n", "ä", &"x".repeat(KEY_BYTES_MAX + 1)] {
            assert!(Once::new(key, "").is_err(), "{key:?}");
        }
        assert!(Once::new(&"x".repeat(KEY_BYTES_MAX), "").is_ok());
    }
}
