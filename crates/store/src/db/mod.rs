//! One interface to the two databases: a state or a store is written once, in SQL that SQLite and PostgreSQL both
//! read, and runs on a [`Db`].
//!
//! A write holds the write lock from its first moment: `BEGIN IMMEDIATE` in SQLite, a transaction's advisory lock in
//! PostgreSQL. Statements number their values `?1`, `?2`; PostgreSQL gets `$1`, `$2`.

#![cfg_attr(not(feature = "postgres"), allow(dead_code))] // some errors have one cause only

mod backup;
#[cfg(feature = "postgres")]
mod call;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(not(feature = "postgres"))]
#[path = "without_postgres.rs"]
pub(crate) mod postgres;

#[cfg(feature = "postgres")]
mod tls;

use crate::watch::watched;
pub use backup::backup;
use rusqlite::types::{ToSqlOutput, ValueRef};
use std::borrow::Cow;
use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Longest wait of a process for another process's write in SQLite.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// The tables of one part of the database, in a schema of their own.
///
/// A migration only adds: tables, columns with defaults, indices. Servers of the earlier version that are running go on
/// meanwhile; they cannot be started again.
pub(crate) struct Tables {
    /// The schema.
    pub schema: &'static str,
    /// Number of the part for its lock.
    pub part: i32,
    /// The migrations, in order; the version is their number.
    pub sql: &'static [&'static [&'static str]],
}

impl Tables {
    /// The version that this build writes.
    pub fn version(&self) -> i64 {
        self.sql.len() as i64
    }
}

/// True if the text names a database of PostgreSQL and not a file.
pub fn is_url(place: &Path) -> bool {
    let scheme = place.to_str().and_then(|t| t.split_once("://")).map(|s| s.0);
    scheme.is_some_and(|s| ["postgres", "postgresql"].iter().any(|known| s.eq_ignore_ascii_case(known)))
}

/// A place as messages show it: the URL without its password and options.
pub fn shown(place: &Path) -> std::path::PathBuf {
    match place.to_str() {
        Some(url) if is_url(place) => postgres::shown(url).into(),
        // A scheme with a slip of the pen may have a password as well; no file is called so.
        Some(text) if text.contains("://") && text.contains('@') => {
            text.split("://").next().map_or_else(|| place.into(), |scheme| format!("{scheme}://...").into())
        }
        _ => place.into(),
    }
}

/// The longest wait for the write lock of a place, seconds.
pub(crate) fn lock_wait_s(place: &Path) -> u64 {
    if is_url(place) { postgres::LOCK_TIMEOUT_S } else { BUSY_TIMEOUT.as_secs() }
}

/// Statements that an open file keeps ready. An allocation and its release need about 25; with fewer places each would be parsed every time.
const STATEMENTS_MAX: usize = 64;

/// Writes of this process that took a lock, and microseconds for which they waited.
static LOCKS: AtomicU64 = AtomicU64::new(0);
static LOCK_WAIT_US: AtomicU64 = AtomicU64::new(0);

/// Number of writes of this process that took the lock of a database, and the time for which they waited for it.
pub fn lock_waits() -> (u64, Duration) {
    (LOCKS.load(Ordering::Relaxed), Duration::from_micros(LOCK_WAIT_US.load(Ordering::Relaxed)))
}

/// Takes a lock, and counts that. The time until a database answers at all is no wait for a lock.
fn counted<T>(take: impl FnOnce() -> Result<T, SqlError>) -> Result<T, SqlError> {
    let begin = Instant::now();
    let taken = take();
    if !matches!(taken, Err(SqlError::Lost(_) | SqlError::Unknown(_) | SqlError::Other(_))) {
        LOCKS.fetch_add(1, Ordering::Relaxed);
        LOCK_WAIT_US.fetch_add(begin.elapsed().as_micros() as u64, Ordering::Relaxed);
    }
    taken
}

/// The reason why a statement failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SqlError {
    /// SQLite's error.
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    /// Another process held the lock for too long.
    #[error("the lock was held for too long")]
    Busy,
    /// PostgreSQL cannot be reached; nothing was changed.
    #[error("{0}")]
    Lost(String),
    /// The connection broke while a commit was under way: it happened or not.
    #[error("{0}")]
    Unknown(String),
    /// PostgreSQL refused, or a row is not as expected.
    #[error("{0}")]
    Other(String),
}

/// A value of a statement.
#[derive(Clone, Debug)]
pub(crate) enum Val<'a> {
    Null,
    Int(i64),
    Real(f64),
    Text(Cow<'a, str>),
}

impl rusqlite::ToSql for Val<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Val::Null => ValueRef::Null,
            Val::Int(v) => ValueRef::Integer(*v),
            Val::Real(v) => ValueRef::Real(*v),
            Val::Text(t) => ValueRef::Text(t.as_bytes()),
        }))
    }
}

macro_rules! val_from {
    ($($from:ty => |$v:ident| $to:expr),* $(,)?) => {
        $(impl<'a> From<$from> for Val<'a> {
            fn from($v: $from) -> Self {
                $to
            }
        })*
    };
}
val_from! {
    i64 => |v| Val::Int(v),
    u8 => |v| Val::Int(v.into()),
    u32 => |v| Val::Int(v.into()),
    bool => |v| Val::Int(v.into()),
    f64 => |v| Val::Real(v),
    String => |v| Val::Text(Cow::Owned(v)),
    &'a str => |v| Val::Text(Cow::Borrowed(v)),
    &'a String => |v| Val::Text(Cow::Borrowed(v)),
}

impl<'a, T: Into<Val<'a>>> From<Option<T>> for Val<'a> {
    fn from(v: Option<T>) -> Self {
        v.map_or(Val::Null, Into::into)
    }
}

/// The values of a statement.
macro_rules! vals {
    ($($v:expr),* $(,)?) => { &[$($crate::db::Val::from($v)),*] };
}
pub(crate) use vals;

/// A row of a result.
pub(crate) enum Row<'a> {
    Sqlite(&'a rusqlite::Row<'a>),
    Postgres(&'a postgres::Row),
}

impl Row<'_> {
    /// A column.
    pub fn get<T: Column>(&self, i: usize) -> Result<T, SqlError> {
        T::of(self, i)?.ok_or_else(|| SqlError::Other(format!("column {} of a row is empty", i + 1)))
    }
}

/// A type of a column; none for NULL.
pub(crate) trait Column: Sized {
    fn of(row: &Row<'_>, i: usize) -> Result<Option<Self>, SqlError>;
}

impl Column for i64 {
    fn of(row: &Row<'_>, i: usize) -> Result<Option<Self>, SqlError> {
        match row {
            Row::Sqlite(r) => Ok(r.get(i)?),
            Row::Postgres(r) => postgres::int(r, i),
        }
    }
}

impl Column for f64 {
    fn of(row: &Row<'_>, i: usize) -> Result<Option<Self>, SqlError> {
        match row {
            Row::Sqlite(r) => Ok(r.get(i)?),
            Row::Postgres(r) => postgres::real(r, i),
        }
    }
}

impl Column for String {
    fn of(row: &Row<'_>, i: usize) -> Result<Option<Self>, SqlError> {
        match row {
            Row::Sqlite(r) => Ok(r.get(i)?),
            Row::Postgres(r) => postgres::text(r, i),
        }
    }
}

impl Column for bool {
    fn of(row: &Row<'_>, i: usize) -> Result<Option<Self>, SqlError> {
        Ok(row.get::<Option<i64>>(i)?.map(|v| v != 0))
    }
}

impl<T: Column> Column for Option<T> {
    fn of(row: &Row<'_>, i: usize) -> Result<Option<Self>, SqlError> {
        T::of(row, i).map(Some)
    }
}

macro_rules! small_column {
    ($($t:ty),*) => {
        $(impl Column for $t {
            fn of(row: &Row<'_>, i: usize) -> Result<Option<Self>, SqlError> {
                let small = |v: i64| <$t>::try_from(v).map_err(|_| SqlError::Other(format!("{v} is out of range")));
                row.get::<Option<i64>>(i)?.map(small).transpose()
            }
        })*
    };
}
small_column!(u8, u32, u64, usize);

/// A row as a value: a column, or a tuple of the first columns.
pub(crate) trait FromRow: Sized {
    fn of(row: &Row<'_>) -> Result<Self, SqlError>;
}

impl<T: Column> FromRow for T {
    fn of(row: &Row<'_>) -> Result<Self, SqlError> {
        row.get(0)
    }
}

macro_rules! tuple_from_row {
    ($($t:ident $i:tt),*) => {
        impl<$($t: Column),*> FromRow for ($($t,)*) {
            fn of(row: &Row<'_>) -> Result<Self, SqlError> {
                Ok(($(row.get::<$t>($i)?,)*))
            }
        }
    };
}
tuple_from_row!(A 0, B 1);
tuple_from_row!(A 0, B 1, C 2);
tuple_from_row!(A 0, B 1, C 2, D 3);
tuple_from_row!(A 0, B 1, C 2, D 3, E 4);
tuple_from_row!(A 0, B 1, C 2, D 3, E 4, F 5);
tuple_from_row!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);

/// A connection within a transaction, or for one statement.
pub(crate) struct Sql<'c> {
    conn: Conn<'c>,
    /// Rows that statements changed.
    changed: Cell<usize>,
}

enum Conn<'c> {
    Sqlite(&'c rusqlite::Connection),
    Postgres(&'c postgres::Link),
    /// The same for queries that are transactions of their own.
    PostgresAlone(&'c postgres::Link),
}

impl<'c> Sql<'c> {
    fn new(conn: Conn<'c>) -> Self {
        Sql { conn, changed: Cell::new(0) }
    }

    /// A connection to a file.
    #[cfg(test)]
    pub fn sqlite(conn: &'c rusqlite::Connection) -> Self {
        Sql::new(Conn::Sqlite(conn))
    }

    /// Rows that statements changed so far.
    pub fn changed(&self) -> usize {
        self.changed.get()
    }

    /// The text for SQLite or for PostgreSQL, where the two have no common form.
    pub fn dialect(&self, sqlite: &'static str, postgres: &'static str) -> &'static str {
        match self.conn {
            Conn::Sqlite(_) => sqlite,
            Conn::Postgres(_) | Conn::PostgresAlone(_) => postgres,
        }
    }

    /// How often something is done that costs much in PostgreSQL: once in `n` times there, always in a file.
    pub fn every(&self, n: i64) -> i64 {
        if matches!(self.conn, Conn::Sqlite(_)) { 1 } else { n }
    }

    /// Runs a statement and returns the number of changed rows.
    pub fn execute(&self, sql: &str, values: &[Val<'_>]) -> Result<usize, SqlError> {
        let n = match self.conn {
            Conn::Sqlite(c) => c.prepare_cached(sql)?.execute(rusqlite::params_from_iter(values))?,
            Conn::Postgres(c) => c.execute(sql, values)?,
            Conn::PostgresAlone(_) => return Err(SqlError::Other("a query alone changes nothing".into())),
        };
        self.changed.set(self.changed.get() + n);
        Ok(n)
    }

    /// Runs `INSERT INTO table VALUES` for many rows of `width` values: one by one in a file, a thousand values at a time over a
    /// connection, where every statement costs a round trip.
    pub fn insert_rows(&self, into: &str, width: usize, values: &[Val<'_>]) -> Result<(), SqlError> {
        let rows = if matches!(self.conn, Conn::Sqlite(_)) { 1 } else { 1000 / width };
        for chunk in values.chunks(rows * width) {
            let row = |r: usize| {
                let numbers: Vec<String> = (1..=width).map(|i| format!("?{}", r * width + i)).collect();
                format!("({})", numbers.join(", "))
            };
            let rows: Vec<String> = (0..chunk.len() / width).map(row).collect();
            self.execute(&format!("INSERT INTO {into} VALUES {}", rows.join(", ")), chunk)?;
        }
        Ok(())
    }

    /// Calls `f` for every row of a query, as it comes.
    pub fn each<E>(
        &self,
        sql: &str,
        values: &[Val<'_>],
        fail: impl Fn(SqlError) -> E,
        mut f: impl FnMut(&Row<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        match self.conn {
            Conn::Sqlite(c) => {
                let failed = |e: rusqlite::Error| fail(e.into());
                let mut statement = c.prepare_cached(sql).map_err(failed)?;
                let mut rows = statement.query(rusqlite::params_from_iter(values)).map_err(failed)?;
                while let Some(row) = rows.next().map_err(failed)? {
                    f(&Row::Sqlite(row))?;
                }
                Ok(())
            }
            Conn::Postgres(c) => c.query(sql, values).map_err(fail)?.iter().try_for_each(|row| f(&Row::Postgres(row))),
            Conn::PostgresAlone(c) => {
                c.query_alone(sql, values).map_err(fail)?.iter().try_for_each(|row| f(&Row::Postgres(row)))
            }
        }
    }

    /// All rows of a query.
    pub fn all<T: FromRow>(&self, sql: &str, values: &[Val<'_>]) -> Result<Vec<T>, SqlError> {
        let mut out = Vec::new();
        self.each(
            sql,
            values,
            |e| e,
            |row| {
                out.push(T::of(row)?);
                Ok(())
            },
        )?;
        Ok(out)
    }

    /// The first row of a query.
    pub fn first<T: FromRow>(&self, sql: &str, values: &[Val<'_>]) -> Result<Option<T>, SqlError> {
        Ok(self.all(sql, values)?.into_iter().next())
    }

    /// The first row of a query that has one.
    pub fn one<T: FromRow>(&self, sql: &str, values: &[Val<'_>]) -> Result<T, SqlError> {
        self.first(sql, values)?.ok_or_else(|| SqlError::Other("a row is missing".into()))
    }
}

/// A database that is open.
#[derive(Debug)]
pub(crate) enum Db {
    /// A file.
    Sqlite(File),
    /// A connection to PostgreSQL.
    Postgres(Box<postgres::Link>),
}

/// An open file. The connection goes on after the file was moved or replaced, but other programs then use another one.
#[derive(Debug)]
pub(crate) struct File {
    conn: rusqlite::Connection,
    /// Device and number of the file at its path when it was opened; none for a database without a file.
    opened: Option<(u64, u64)>,
}

impl File {
    /// The connection, if the file is still the one at its path. Two system calls.
    pub fn conn(&self) -> Result<&rusqlite::Connection, SqlError> {
        if self.opened.is_some() && self.opened != number(&self.conn) {
            let why =
                "the file was moved, deleted or replaced after it was opened; restart the program that has it open";
            return Err(SqlError::Lost(why.into()));
        }
        Ok(&self.conn)
    }
}

/// Device and number of the file at a connection's path.
fn number(conn: &rusqlite::Connection) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let file = std::fs::metadata(conn.path().filter(|p| !p.is_empty())?).ok()?;
    Some((file.dev(), file.ino()))
}

impl Db {
    fn system(&self) -> &'static str {
        match self {
            Db::Sqlite(_) => "sqlite",
            Db::Postgres(_) => "postgresql",
        }
    }

    /// A file that is open.
    pub fn sqlite(conn: rusqlite::Connection) -> Db {
        conn.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        let opened = number(&conn);
        Db::Sqlite(File { conn, opened })
    }

    /// Runs `work` in a transaction that holds the write lock from its first moment, and commits if it succeeds.
    pub fn write<T, E>(
        &self,
        fail: impl Fn(SqlError) -> E,
        work: impl FnOnce(&Sql<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        watched(self.system(), true, || match self {
            Db::Sqlite(file) => {
                let c = file.conn().map_err(&fail)?;
                let failed = |e: rusqlite::Error| fail(e.into());
                let behavior = rusqlite::TransactionBehavior::Immediate;
                let take = || Ok(rusqlite::Transaction::new_unchecked(c, behavior)?);
                let tx = counted(take).map_err(&fail)?;
                let value = work(&Sql::new(Conn::Sqlite(&tx)))?; // an error drops the transaction, which rolls it back
                tx.commit().map_err(failed)?;
                Ok(value)
            }
            Db::Postgres(link) => {
                let tx = link.begin_write().map_err(&fail)?;
                let value = work(&Sql::new(Conn::Postgres(link)))?;
                tx.commit().map_err(fail)?;
                Ok(value)
            }
        })
    }

    /// Runs `work` in a transaction that sees one moment. Over a broken connection it runs once more.
    pub fn read<T, E>(&self, fail: impl Fn(SqlError) -> E, work: impl Fn(&Sql<'_>) -> Result<T, E>) -> Result<T, E> {
        watched(self.system(), false, || match self {
            Db::Sqlite(file) => {
                let c = file.conn().map_err(&fail)?;
                let tx = c.unchecked_transaction().map_err(|e| fail(e.into()))?;
                work(&Sql::new(Conn::Sqlite(&tx)))
            }
            Db::Postgres(link) => {
                let once = || {
                    let _tx = link.begin_read().map_err(&fail)?;
                    work(&Sql::new(Conn::Postgres(link)))
                };
                match once() {
                    Err(_) if link.is_broken() => once(),
                    done => done,
                }
            }
        })
    }

    /// The same for one statement.
    pub fn read_one<T, E>(
        &self,
        fail: impl Fn(SqlError) -> E,
        work: impl Fn(&Sql<'_>) -> Result<T, SqlError>,
    ) -> Result<T, E> {
        match self {
            Db::Sqlite(file) => watched(self.system(), false, || {
                file.conn().and_then(|c| work(&Sql::new(Conn::Sqlite(c)))).map_err(fail)
            }),
            Db::Postgres(link) => watched(self.system(), false, || {
                let once = || work(&Sql::new(Conn::PostgresAlone(link)));
                let done = match once() {
                    Err(_) if link.is_broken() => once(),
                    done => done,
                };
                done.map_err(fail)
            }),
        }
    }

    /// The database's own check of all its pages, where it has one: none if it found nothing.
    pub fn check(&self) -> Result<Option<String>, SqlError> {
        let Db::Sqlite(file) = self else { return Ok(None) };
        let why: String = file.conn()?.query_row("PRAGMA integrity_check(1)", [], |r| r.get(0))?;
        Ok((why != "ok").then_some(why))
    }
}
