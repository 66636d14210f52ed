//! A connection to PostgreSQL that comes back after it broke.
//!
//! Every writing transaction takes the advisory lock of its part of the database first, so that writes of all servers
//! follow one another and every read of the transaction sees the writes before it (READ COMMITTED). The lock and all
//! settings end with the transaction, and statements have no names: a pooler in transaction mode may stand between.
//! A server that dies or hangs inside of a transaction loses the lock after [`IDLE_TIMEOUT_S`] at the latest.

use super::call::{CallError, Caller};
use super::tls::{Tls, driver_options};
use super::{SqlError, Tables, Val, counted};
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio_postgres::config::Host;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Client, Config, Error};

pub(crate) use tokio_postgres::Row;

/// Longest wait for the lock of another server's write.
pub(crate) const LOCK_TIMEOUT_S: u64 = 5;
/// Longest pause inside of a transaction, after which PostgreSQL ends it and frees its lock.
const IDLE_TIMEOUT_S: u64 = 10;
/// Longest wait for a connection to one host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for a connection to the hosts of a URL, with names, TLS and the sign-in.
const CONNECT_MAX: Duration = Duration::from_secs(8);
/// After a failed connection, time in which calls fail at once: requests that wait for each other do not wait for a new connection each.
const CONNECT_PAUSE: Duration = Duration::from_millis(500);
/// Longest wait for the begin of a transaction, with its lock, and for its end.
const TURN_MAX: Duration = Duration::from_secs(10);
/// Longest wait for the answer of a statement, rows included.
const STATEMENT_MAX: Duration = Duration::from_secs(30);
/// Longest work of PostgreSQL on a statement, seconds: it gives up before its client does, so no statement goes on after its client has left. A COMMIT that waits for a
/// standby must not end this way, because PostgreSQL would acknowledge what the standby lacks: [`TURN_MAX`] is shorter.
const STATEMENT_TIMEOUT_S: u64 = 25;
/// Longest wait for a statement that changes tables.
const MIGRATION_MAX: Duration = Duration::from_secs(600);
/// A connection whose peer confirms nothing for this long is broken.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// First number of linkwise's advisory locks (`lkws`); the second is the part of the database.
const LOCK_CLASS: i32 = 0x6c6b_7773;
/// Folders in which PostgreSQL has its local socket: Debian's and Red Hat's, and upstream's.
const SOCKET_FOLDERS: [&str; 2] = ["/var/run/postgresql", "/tmp"];

/// A connection, and all that is needed to make it again.
pub(crate) struct Link {
    config: Config,
    tls: Tls,
    tables: &'static Tables,
    /// None: broken.
    client: RefCell<Option<Caller>>,
    /// When the last connection failed, and why.
    unreachable: RefCell<Option<(Instant, String)>>,
    /// A statement of the transaction failed. PostgreSQL would answer its COMMIT with a silent rollback.
    failed: Cell<bool>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("schema", &self.tables.schema).finish_non_exhaustive()
    }
}

/// A transaction. Dropped without a commit it is rolled back.
#[must_use]
pub(crate) struct Tx<'l>(Option<&'l Link>);

impl Tx<'_> {
    /// Commits.
    pub fn commit(mut self) -> Result<(), SqlError> {
        let Some(link) = self.0.filter(|l| !l.failed.get()) else {
            return Err(SqlError::Other("a statement of the transaction failed".into()));
        };
        self.0 = None;
        let done = link.batch("COMMIT", TURN_MAX);
        if done.is_err() {
            link.roll_back();
        }
        done.map_err(|e| match e {
            SqlError::Lost(why) => {
                link.unreachable.replace(None); // a new connection may know the outcome
                SqlError::Unknown(why)
            }
            e => e,
        })
    }
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        if let Some(link) = self.0 {
            link.roll_back();
        }
    }
}

impl Link {
    /// Connects.
    pub fn open(url: &str, tables: &'static Tables) -> Result<Link, SqlError> {
        let (tls, config) = config(url).map_err(SqlError::Other)?;
        Link::of(config, tls, tables)
    }

    fn of(config: Config, tls: Tls, tables: &'static Tables) -> Result<Link, SqlError> {
        let (client, unreachable, failed) = Default::default();
        let link = Link { config, tls, tables, client, unreachable, failed };
        link.connect()?;
        Ok(link)
    }

    /// Another connection to the same database.
    pub fn again(&self) -> Result<Link, SqlError> {
        Link::of(self.config.clone(), self.tls.clone(), self.tables)
    }

    fn connect(&self) -> Result<(), SqlError> {
        if let Some((at, why)) = &*self.unreachable.borrow()
            && at.elapsed() < CONNECT_PAUSE
        {
            return Err(SqlError::Lost(why.clone()));
        }
        self.client.replace(None); // a broken one is closed before the next is made
        let tls = self.tls.connector().map_err(SqlError::Other)?;
        let made = Caller::connect(&self.config, tls, CONNECT_MAX).map_err(|e| call_error(&e));
        let lost = |e: &SqlError| if let SqlError::Lost(why) = e { Some((Instant::now(), why.clone())) } else { None };
        self.unreachable.replace(made.as_ref().err().and_then(lost));
        self.client.replace(Some(made?));
        Ok(())
    }

    /// True if the next transaction needs a new connection.
    pub fn is_broken(&self) -> bool {
        self.client.borrow().as_ref().is_none_or(Caller::is_lost)
    }

    fn with<T>(&self, limit: Duration, call: impl AsyncFnOnce(&Client) -> Result<T, Error>) -> Result<T, SqlError> {
        let mut client = self.client.borrow_mut();
        let Some(open) = client.as_mut() else { return Err(SqlError::Lost("the connection broke".into())) };
        open.call(limit, call).map_err(|e| {
            self.failed.set(true);
            let is_late = is_late(&e);
            let e = call_error(&e);
            if let SqlError::Lost(why) = &e {
                *client = None;
                if is_late {
                    // The caller has waited once: the repetition of its call fails at once.
                    self.unreachable.replace(Some((Instant::now(), why.clone())));
                }
            }
            e
        })
    }

    fn batch(&self, sql: &str, limit: Duration) -> Result<(), SqlError> {
        self.with(limit, async |c| c.batch_execute(sql).await)
    }

    fn roll_back(&self) {
        if self.batch("ROLLBACK", TURN_MAX).is_err() {
            self.client.replace(None); // PostgreSQL rolls back when the connection ends
        }
    }

    /// Begins a transaction; a connection that turns out to be broken is made again once.
    fn begin(&self, begin: impl Fn() -> Result<(), SqlError>) -> Result<Tx<'_>, SqlError> {
        let was_broken = self.is_broken();
        if was_broken {
            self.connect()?;
        }
        self.failed.set(false);
        let begun = match begin() {
            Err(SqlError::Lost(_)) if !was_broken => {
                self.connect()?;
                self.failed.set(false);
                begin()
            }
            begun => begun,
        };
        if begun.is_err() {
            self.roll_back();
        }
        begun.map(|()| Tx(Some(self)))
    }

    /// Begins a transaction with the lock of all writes.
    pub fn begin_write(&self) -> Result<Tx<'_>, SqlError> {
        let Tables { schema, part, .. } = self.tables;
        // A site that turned synchronous_commit off, or asks for more than `on`, must not lose what linkwise acknowledged.
        let sql = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; \
             SET LOCAL lock_timeout TO '{LOCK_TIMEOUT_S}s'; \
             SELECT pg_advisory_xact_lock({LOCK_CLASS}, {part}); \
             SET LOCAL search_path TO {schema}; \
             SET LOCAL idle_in_transaction_session_timeout TO '{IDLE_TIMEOUT_S}s'; \
             SET LOCAL statement_timeout TO '{STATEMENT_TIMEOUT_S}s'; \
             SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' \
             ELSE current_setting('synchronous_commit') END, true)"
        );
        // A new connection, where one is needed, is made before the time begins.
        self.begin(|| counted(|| self.batch(&sql, TURN_MAX)))
    }

    /// Begins a transaction that reads one moment.
    pub fn begin_read(&self) -> Result<Tx<'_>, SqlError> {
        let sql = self.reading();
        self.begin(|| self.batch(&sql, TURN_MAX))
    }

    fn reading(&self) -> String {
        format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL search_path TO {}; \
             SET LOCAL idle_in_transaction_session_timeout TO '{IDLE_TIMEOUT_S}s'; \
             SET LOCAL statement_timeout TO '{STATEMENT_TIMEOUT_S}s'",
            self.tables.schema
        )
    }

    /// Runs a statement in the transaction.
    pub fn execute(&self, sql: &str, values: &[Val<'_>]) -> Result<usize, SqlError> {
        let sql = sql.replace('?', "$");
        self.with(STATEMENT_MAX, async |c| c.execute_typed(&sql, &typed(values)).await.map(|n| n as usize))
    }

    /// The rows of a query in the transaction.
    pub fn query(&self, sql: &str, values: &[Val<'_>]) -> Result<Vec<Row>, SqlError> {
        let sql = sql.replace('?', "$");
        self.with(STATEMENT_MAX, async |c| c.query_typed(&sql, &typed(values)).await)
    }

    /// The rows of a query that is a transaction of its own: one round trip instead of three.
    pub fn query_alone(&self, sql: &str, values: &[Val<'_>]) -> Result<Vec<Row>, SqlError> {
        let sql = sql.replace('?', "$");
        if self.is_broken() {
            self.connect()?;
        }
        let begin = self.reading();
        self.with(STATEMENT_MAX, async |c| {
            let values = typed(values);
            // The three are sent in this order before the first answer is awaited.
            let (begun, rows, ended) =
                tokio::join!(c.batch_execute(&begin), c.query_typed(&sql, &values), c.batch_execute("ROLLBACK"));
            begun.and(ended).and(rows)
        })
    }

    /// The version of the tables; none if there are none.
    pub fn version(&self) -> Result<Option<i64>, SqlError> {
        let _tx = self.begin_read()?;
        self.version_in_transaction()
    }

    fn version_in_transaction(&self) -> Result<Option<i64>, SqlError> {
        let table = format!("{}.schema_version", self.tables.schema);
        let found = self.query("SELECT to_regclass(?1) IS NOT NULL", &[Val::from(&table)])?;
        if int(&found[0], 0)? == Some(0) {
            return Ok(None);
        }
        let rows = self.query("SELECT max(version) FROM schema_version", &[])?;
        int(&rows[0], 0)
    }

    /// Makes the tables, or adds what is new in this version. `meta` goes into new tables in the same transaction.
    /// Returns false if the tables were there already.
    pub fn migrate(&self, meta: &[(&str, String)]) -> Result<bool, SqlError> {
        let tx = self.begin_write()?;
        self.batch(&format!("SET LOCAL statement_timeout TO '{}s'", MIGRATION_MAX.as_secs()), TURN_MAX)?;
        let found = self.version_in_transaction()?;
        if found.is_none() {
            let schema = self.tables.schema;
            let sql = format!(
                "CREATE SCHEMA IF NOT EXISTS {schema}; CREATE TABLE schema_version (version BIGINT PRIMARY KEY)"
            );
            self.batch(&sql, MIGRATION_MAX)?;
        }
        for (number, sql) in (1..).zip(self.tables.sql).skip(found.unwrap_or(0) as usize) {
            sql.iter().try_for_each(|s| self.batch(s, MIGRATION_MAX))?;
            self.execute("INSERT INTO schema_version VALUES (?1)", &[Val::Int(number)])?;
        }
        if found.is_none() {
            for (key, value) in meta {
                self.execute("INSERT INTO meta (key, value) VALUES (?1, ?2)", &[Val::from(*key), Val::from(value)])?;
            }
        }
        tx.commit()?;
        Ok(found.is_none())
    }
}

/// The values with their types: a statement without a name is sent with them in one message.
fn typed<'v>(values: &'v [Val<'_>]) -> Vec<(&'v (dyn ToSql + Sync), Type)> {
    fn of<'v>(v: &'v Val<'_>) -> (&'v (dyn ToSql + Sync), Type) {
        match v {
            Val::Null => (&None::<&str>, Type::UNKNOWN), // the server takes the type of the column
            Val::Int(v) => (v, Type::INT8),
            Val::Real(v) => (v, Type::FLOAT8),
            Val::Text(t) => (t, Type::TEXT),
        }
    }
    values.iter().map(of).collect()
}

fn column<'r, T: FromSql<'r>>(row: &'r Row, i: usize) -> Result<Option<T>, SqlError> {
    row.try_get(i).map_err(|e| SqlError::Other(e.to_string()))
}

/// A whole number, or a truth.
pub(crate) fn int(row: &Row, i: usize) -> Result<Option<i64>, SqlError> {
    match row.columns().get(i).map(|c| c.type_()) {
        Some(&Type::BOOL) => Ok(column::<bool>(row, i)?.map(i64::from)),
        Some(&Type::INT4) => Ok(column::<i32>(row, i)?.map(i64::from)),
        _ => column(row, i),
    }
}

pub(crate) fn real(row: &Row, i: usize) -> Result<Option<f64>, SqlError> {
    column(row, i)
}

pub(crate) fn text(row: &Row, i: usize) -> Result<Option<String>, SqlError> {
    column(row, i)
}

/// The URL without its password and its options.
pub(crate) fn shown(url: &str) -> String {
    let Some(c) = driver_options(url) else { return "postgres://...".into() };
    let user = c.get_user().map_or(String::new(), |u| format!("{u}@"));
    let name = c.get_dbname().unwrap_or_default();
    let port = |i: usize| c.get_ports().get(i).or(c.get_ports().first()).map_or(String::new(), |p| format!(":{p}"));
    match c.get_hosts() {
        [Host::Unix(folder), ..] => {
            let port = c.get_ports().first().map_or(String::new(), |p| format!("&port={p}"));
            format!("postgres://{user}/{name}?host={}{port}", folder.display())
        }
        hosts => {
            let host = |(i, h): (usize, &Host)| match h {
                Host::Tcp(name) => format!("{name}{}", port(i)),
                Host::Unix(folder) => folder.display().to_string(),
            };
            let hosts: Vec<String> = hosts.iter().enumerate().map(host).collect();
            format!("postgres://{user}{}/{name}", hosts.join(","))
        }
    }
}

/// The settings of a connection. A password that the URL lacks is taken from `PGPASSWORD`.
fn config(url: &str) -> Result<(Tls, Config), String> {
    let (tls, mut c) = Tls::of(url)?;
    if c.get_dbname().is_none() {
        return Err("the URL names no database; write postgres://USER@HOST:PORT/DATABASE".into());
    }
    if c.get_hosts().is_empty() {
        let here = SOCKET_FOLDERS.iter().find(|f| Path::new(f).join(".s.PGSQL.5432").exists());
        c.host_path(here.unwrap_or(&SOCKET_FOLDERS[0]));
    }
    if c.get_password().is_none()
        && let Ok(password) = std::env::var("PGPASSWORD")
    {
        c.password(password);
    }
    if c.get_application_name().is_none() {
        c.application_name("linkwise");
    }
    c.connect_timeout(CONNECT_TIMEOUT).tcp_user_timeout(SILENCE_MAX);
    c.keepalives_idle(SILENCE_MAX).keepalives_interval(SILENCE_MAX / 4).keepalives_retries(3);
    Ok((tls, c))
}

pub(super) fn with_cause(e: &Error) -> String {
    std::error::Error::source(e).map_or_else(|| e.to_string(), |cause| format!("{e}: {cause}"))
}

/// Remedies of failed handshakes, by a part of their message.
const REMEDIES: [(&str, &str); 4] = [
    ("UnknownIssuer", "the server's certificate does not come from an authority in sslrootcert"),
    ("not valid for name", "sslmode=verify-full needs a certificate with the host of the URL"),
    ("Expired", "the server needs a new certificate"),
    (
        "server does not support TLS",
        "switch ssl on at the server, or use sslmode=disable where the network can be trusted",
    ),
];

/// True if PostgreSQL did not answer in time, or gave a statement up.
fn is_late(e: &CallError) -> bool {
    match e {
        CallError::Silent(_) => true,
        CallError::Said(e) => e.code() == Some(&SqlState::QUERY_CANCELED),
        CallError::System(_) => false,
    }
}

/// Maps an error of a call. A missed deadline counts as a broken connection.
fn call_error(e: &CallError) -> SqlError {
    match e {
        CallError::Said(e) => sql_error(e),
        CallError::Silent(limit) => SqlError::Lost(format!("PostgreSQL gave no answer for {} s", limit.as_secs())),
        CallError::System(e) => SqlError::Other(e.to_string()),
    }
}

/// Maps an error: a broken connection, a lock that was held for too long, or the server's own sentence with a remedy.
fn sql_error(e: &Error) -> SqlError {
    let Some(db) = e.as_db_error() else {
        let why = with_cause(e);
        let why = match REMEDIES.iter().find(|(of, _)| why.contains(of)) {
            Some((_, remedy)) => format!("{why}; {remedy}"),
            None => why,
        };
        // Without an answer of the server the connection is gone or was never made, except for values that do not fit.
        let of_values =
            ["error serializing", "error deserializing", "invalid column"].iter().any(|t| why.starts_with(t));
        return if of_values { SqlError::Other(why) } else { SqlError::Lost(why) };
    };
    let code = db.code();
    if *code == SqlState::LOCK_NOT_AVAILABLE {
        return SqlError::Busy;
    }
    // 08: connection, 57P: shutdown, start and recovery; the others are the end of a statement or a pause that took too long.
    if code.code().starts_with("08")
        || code.code().starts_with("57P")
        || *code == SqlState::TOO_MANY_CONNECTIONS
        || *code == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT
        || *code == SqlState::QUERY_CANCELED
    {
        return SqlError::Lost(db.message().into());
    }
    let remedy = match code.code() {
        "3D000" => "; `createdb` makes a database",
        "42501" => "; the user needs the right to create schemas in the database",
        "28P01" | "28000" => "; put the password into the URL or into PGPASSWORD",
        "25006" => "; name the primary server, or add ?target_session_attrs=read-write",
        "53100" => "; make room on the server's disk",
        _ => "",
    };
    let detail = db.detail().map_or(String::new(), |d| format!(" ({d})"));
    SqlError::Other(format!("{}{detail}{remedy}", db.message()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_a_database_or_with_an_unknown_option_is_refused() {
        for (bad, expected) in
            [("postgres://u@localhost", "names no database"), ("postgres://u@localhost/d?colour=red", "colour")]
        {
            let why = config(bad).unwrap_err();
            assert!(why.contains(expected), "{bad}: {why}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        for (url, expected) in [
            ("postgres://u:secret@h:5433/d", "postgres://u@h:5433/d"),
            ("postgres://u:secret@/d?host=/run/x&port=77", "postgres://u@/d?host=/run/x&port=77"),
            ("postgres://a,b/d?password=secret", "postgres://a:5432,b:5432/d"),
            ("postgres://u:secret@h/d?sslmode=verify-full&sslrootcert=/ca", "postgres://u@h:5432/d"),
            ("postgres://secret:no url", "postgres://..."),
        ] {
            assert_eq!(shown(url), expected);
        }
    }
}
