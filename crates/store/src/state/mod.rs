//! [`State`]: the jobs and the GPUs that they hold, in one SQLite file or in a database of PostgreSQL.
//!
//! Every change is one transaction that takes the write lock before it reads ([`crate::db`]), so two simultaneous allocations never
//! overlap; `UNIQUE (host, gpu)` refuses an overlap as well. WAL with `synchronous=FULL`: acknowledged changes survive a kill and a power
//! cut. The file must be on a local disk, like every SQLite file in WAL mode. Times are arguments.
//!
//! A place `postgres://USER@HOST:PORT/DATABASE` stands for a file everywhere. A database holds the state of one cluster, and several
//! servers may use it at once. A connection that broke is made again. If it broke during a commit, a write under an idempotency key
//! and the commit of a decision are sent once more, which is safe; every other write ends with [`StateError::OutcomeUnknown`].
//!
//! A decision is made on a [`Snapshot`], outside of any lock, and committed together with that snapshot ([`State::commit`]). The commit
//! reads and writes O(GPUs of the job) rows under the lock, independent of the cluster's size and of the duration of the search. It costs
//! one fsync, so one file takes a few hundred jobs per second. A process waits for the lock for at most 10 s, 5 s in PostgreSQL.

mod change;
mod commit;
mod error;
mod event;
mod follow;
mod lease;
mod model;
mod read;
mod schema;
mod task;
mod token;
mod turn;

pub use change::{Allocated, Drain, NewJob, Release};
pub use commit::{Commit, Committed};
pub use error::StateError;
pub use event::{EVENTS_MAX, Event, Holder};
pub use lease::{CLOCKS_DIFFER_S, LEASE_S_MAX, LEASE_S_MIN};
pub use model::{
    KeptModel, KeptModels, LESSONS_MAX, Lesson, ModelText, ModelsChange, PART_BYTES_MAX, VERSIONS_MAX, parts_of,
    text_digest,
};
pub use read::{Drained, JobHeld, Snapshot, Suspect};
pub(crate) use schema::APPLICATION_ID;
pub use task::{KeptTask, NewTask, TaskState};
pub use token::{NewToken, TOKENS_MAX, Token};
pub use turn::{Turn, Turns};

use crate::db::{self, Db, Sql, SqlError, vals};
use crate::identity::{HostChanges, Kinship, compare, fingerprint, identity};
use crate::rename::Renames;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};
use std::path::{Path, PathBuf};
use topology::Cluster;

/// Maximum number of jobs that hold GPUs at the same time.
pub const JOBS_MAX: usize = 100_000;
/// Longest job id, bytes.
pub const JOB_ID_BYTES_MAX: usize = 128;
/// Longest reason of a drain, bytes.
pub const REASON_BYTES_MAX: usize = 1024;

/// Checks a job id: 1 to [`JOB_ID_BYTES_MAX`] letters, digits and `._-/@+:=`; the first is a letter or a digit.
///
/// Such ids need no quoting in a shell, a CSV file or a log line.
pub fn check_job_id(id: &str) -> Result<(), String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-/@+:=".contains(c);
    let shown: String = id.chars().take(40).flat_map(char::escape_debug).collect();
    if id.len() > JOB_ID_BYTES_MAX {
        return Err(format!("the job id `{shown}...` has {} bytes; at most {JOB_ID_BYTES_MAX}", id.len()));
    }
    if !id.starts_with(|c: char| c.is_ascii_alphanumeric()) || !id.chars().all(fits) {
        return Err(format!(
            "`{shown}` cannot be a job id: use letters, digits and ._-/@+:=, with a letter or digit first"
        ));
    }
    Ok(())
}

/// The operator's state of one cluster.
#[derive(Debug)]
pub struct State {
    /// The file, or the URL without its password.
    path: PathBuf,
    db: Db,
    cluster: Cluster,
    /// [`fingerprint`] of the cluster.
    fingerprint: String,
}

impl State {
    /// Creates a state for a cluster: no GPU is held, and only the GPUs that the cluster file drains are drained. All or nothing: a
    /// process that is killed meanwhile leaves an empty file, which the next `init` completes.
    ///
    /// # Errors
    /// [`StateError::Exists`] if the place has a state, of this or of another cluster.
    pub fn init(place: &Path, cluster: &Cluster, at_unix_s: f64) -> Result<State, StateError> {
        let path = &db::shown(place);
        let fail = |e: SqlError| StateError::of("make", path, &e);
        let id = identity(cluster);
        let meta = vec![
            ("cluster_name", cluster.name.clone()),
            ("cluster_fingerprint", fingerprint(&id)),
            ("cluster_identity", id),
            ("cluster_file", topology::file::write(cluster)),
            ("made_at_unix_s", at_unix_s.to_string()),
        ];
        let db = if db::is_url(place) {
            let link = connect_postgres(place)?;
            if link.migrate(&meta).map_err(fail)? {
                return State::open(place);
            }
            Db::Postgres(Box::new(link))
        } else {
            let mut conn = connect(path, true)?;
            if version(&conn, path)?.is_none() {
                match migrate(&mut conn, meta) {
                    Ok(()) => return State::open(path),
                    Err(_) if version(&conn, path)?.is_some() => {} // another process was first
                    Err(e) => return Err(migration("make", path, e)),
                }
            }
            Db::sqlite(conn)
        };
        let meta = |key: &str| -> Result<String, StateError> {
            db.read_one(fail, |tx| tx.one("SELECT value FROM meta WHERE key = ?1", vals![key]))
        };
        let same = compare(&meta("cluster_identity")?, &identity(cluster)) == Kinship::Same;
        Err(StateError::Exists { path: path.into(), cluster: meta("cluster_name")?, same })
    }

    /// Opens an existing state, which contains the cluster. A missing one is [`StateError::Missing`].
    pub fn open(place: &Path) -> Result<State, StateError> {
        let path = &db::shown(place);
        let db = if db::is_url(place) { open_postgres(place, path)? } else { open_file(path)? };
        let fail = |e: SqlError| StateError::of("read", path, &e);
        let meta = |key: &str| -> Result<String, StateError> {
            db.read_one(fail, |tx| tx.first("SELECT value FROM meta WHERE key = ?1", vals![key]))?
                .ok_or_else(|| StateError::damaged(path, format!("it has no {key}")))
        };
        let text = meta("cluster_file")?;
        let cluster = topology::file::read(&text, "the cluster of the state")
            .map_err(|e| StateError::damaged(path, format!("its cluster cannot be read: {e}")))?;
        let fingerprint = fingerprint(&identity(&cluster));
        if fingerprint != meta("cluster_fingerprint")? {
            return Err(StateError::damaged(path, "its cluster differs from the one in its fingerprint".into()));
        }
        Ok(State { path: path.into(), db, cluster, fingerprint })
    }

    /// A second connection to the same state: its reads wait for no write of this one.
    pub fn again(&self) -> Result<State, StateError> {
        let db = match &self.db {
            Db::Sqlite(_) => open_file(&self.path)?,
            Db::Postgres(link) => {
                let link = link.again().map_err(|e| StateError::of("open", &self.path, &e))?;
                Db::Postgres(Box::new(link))
            }
        };
        let (path, cluster, fingerprint) = (self.path.clone(), self.cluster.clone(), self.fingerprint.clone());
        Ok(State { path, db, cluster, fingerprint })
    }

    /// The file, or the URL without its password.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The queue for clients whose commits failed because of concurrent changes.
    pub fn turns(&self) -> Box<dyn Turns> {
        if matches!(self.db, Db::Postgres(_)) {
            return Box::new(turn::TurnQueue::default());
        }
        let mut file = self.path.clone().into_os_string();
        file.push("-turn");
        Box::new(turn::TurnFile(file.into()))
    }

    /// The cluster, from the file.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Checks that `cluster` has the same hosts of the same types as the state, in any order. Health of NICs and drained GPUs may differ.
    pub fn check_cluster(&self, cluster: &Cluster) -> Result<(), StateError> {
        let (path, stored) = (self.path.clone(), self.cluster.name.clone());
        match compare(&identity(&self.cluster), &identity(cluster)) {
            Kinship::Same => Ok(()),
            Kinship::Changed(changes) => {
                Err(StateError::HostsChanged { path, cluster: stored, changes: changes.text() })
            }
            Kinship::Other(difference) => {
                Err(StateError::OtherCluster { path, stored, given: cluster.name.clone(), difference })
            }
        }
    }

    /// Replaces the cluster by one with added, removed or changed hosts. No job may hold GPUs of removed or changed hosts. Drains and suspects
    /// of the other hosts stay. A process that has the state open gets an error that says to open it again.
    ///
    /// # Errors
    /// [`StateError::OtherCluster`] if fewer than half of the hosts are the same; [`StateError::HostsHeld`].
    pub fn update_cluster(&mut self, cluster: &Cluster) -> Result<HostChanges, StateError> {
        self.update_cluster_renamed(cluster, &Renames::default())
    }

    /// The same, with hosts that have new names: jobs, drains and suspects go on under these. A repetition changes nothing.
    ///
    /// # Errors
    /// Also [`StateError::Invalid`]: the state knows neither name of a host, or its hardware differs.
    pub fn update_cluster_renamed(&mut self, cluster: &Cluster, renames: &Renames) -> Result<HostChanges, StateError> {
        let left = renames.left(&self.cluster, cluster).map_err(StateError::Invalid)?;
        let before = left.apply(&self.cluster);
        let changes = match compare(&identity(&before), &identity(cluster)) {
            Kinship::Same => HostChanges::default(),
            Kinship::Changed(changes) => changes,
            Kinship::Other(difference) => {
                let (path, stored, given) = (self.path.clone(), self.cluster.name.clone(), cluster.name.clone());
                return Err(StateError::OtherCluster { path, stored, given, difference });
            }
        };
        let id = identity(cluster);
        let new = fingerprint(&id);
        self.write(|tx, _, path| {
            let fail = |e: SqlError| StateError::of("write to", path, &e);
            for (old, new) in left.names() {
                for table in ["held", "drained", "suspect"] {
                    tx.execute(&format!("UPDATE {table} SET host = ?2 WHERE host = ?1"), vals![old, new])
                        .map_err(fail)?;
                }
                // The kept answer names the host as it was, which no launcher reaches any more.
                let sql =
                    "UPDATE job SET answer = '' WHERE answer <> '' AND id IN (SELECT job FROM held WHERE host = ?1)";
                tx.execute(sql, vals![new]).map_err(fail)?;
            }
            let mut held: Vec<(String, String)> = Vec::new();
            for host in changes.removed.iter().chain(&changes.retyped) {
                let jobs = "SELECT DISTINCT job FROM held WHERE host = ?1 ORDER BY job";
                let jobs: Vec<String> = tx.all(jobs, vals![host]).map_err(fail)?;
                held.extend(jobs.into_iter().map(|job| (host.clone(), job)));
                tx.execute("DELETE FROM drained WHERE host = ?1", vals![host]).map_err(fail)?;
                tx.execute("DELETE FROM suspect WHERE host = ?1", vals![host]).map_err(fail)?;
            }
            if let Some((host, job)) = held.first() {
                let (host, job) = (host.clone(), job.clone());
                return Err(StateError::HostsHeld { host, job, more: held.len() - 1 });
            }
            let file = topology::file::write(cluster);
            for (key, value) in [("cluster_fingerprint", &new), ("cluster_identity", &id), ("cluster_file", &file)] {
                tx.execute("UPDATE meta SET value = ?2 WHERE key = ?1", vals![key, value]).map_err(fail)?;
            }
            Ok(())
        })?;
        (self.cluster, self.fingerprint) = (cluster.clone(), fingerprint(&identity(cluster)));
        Ok(changes)
    }

    /// SQLite's check of the whole file, and linkwise's check of its content. O(file).
    pub fn check(&self) -> Result<(), StateError> {
        match self.db.check().map_err(|e| StateError::of("check", &self.path, &e))? {
            Some(why) => Err(StateError::damaged(&self.path, why)),
            None => self.snapshot().map(|_| ()),
        }
    }

    /// Runs `work` in a transaction that holds the write lock from its first moment, and commits if it succeeds. A
    /// transaction that changed a row raises the version.
    fn write<T>(
        &mut self,
        work: impl FnOnce(&Sql<'_>, &Cluster, &Path) -> Result<T, StateError>,
    ) -> Result<T, StateError> {
        self.write_of(Basis::OfDecisions, work)
    }

    /// The same for a change of any basis.
    fn write_of<T>(
        &mut self,
        basis: Basis,
        work: impl FnOnce(&Sql<'_>, &Cluster, &Path) -> Result<T, StateError>,
    ) -> Result<T, StateError> {
        let State { path, db, cluster, fingerprint } = self;
        let fail = |e: SqlError| StateError::of("write to", path, &e);
        db.write(fail, |tx| {
            check_still_of(tx, fingerprint, path)?;
            let value = work(tx, cluster, path)?; // an error rolls the transaction back
            if basis == Basis::OfDecisions && tx.changed() > 0 {
                tx.execute("UPDATE version SET everything = everything + 1", &[]).map_err(fail)?;
            }
            Ok(value)
        })
    }

    /// The same, once more if the connection broke and a repetition finds what the first one did.
    fn write_again<T>(
        &mut self,
        basis: Basis,
        is_repeatable: bool,
        work: impl Fn(&Sql<'_>, &Cluster, &Path) -> Result<T, StateError>,
    ) -> Result<T, StateError> {
        match self.write_of(basis, &work) {
            Err(StateError::Unreachable { .. }) => self.write_of(basis, &work),
            Err(StateError::OutcomeUnknown { path, why }) if is_repeatable => match self.write_of(basis, &work) {
                // Nothing was changed by the repetition, but still the first write may have been done.
                Err(StateError::Unreachable { .. }) => Err(StateError::OutcomeUnknown { path, why }),
                done => done,
            },
            done => done,
        }
    }
}

/// Whether decisions are based on what a write changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Basis {
    /// They are: the write raises the version, and answers to questions about the state are made anew.
    OfDecisions,
    /// They are not: the version stays.
    OfNone,
}

/// Checks that the state still has the cluster with which it was opened. Reads one row.
fn check_still_of(tx: &Sql<'_>, fingerprint: &str, path: &Path) -> Result<(), StateError> {
    let now: String = tx
        .one("SELECT value FROM meta WHERE key = 'cluster_fingerprint'", &[])
        .map_err(|e| StateError::of("read", path, &e))?;
    if now == fingerprint { Ok(()) } else { Err(StateError::ClusterChanged(path.into())) }
}

fn connect_postgres(place: &Path) -> Result<db::postgres::Link, StateError> {
    db::postgres::Link::open(place.to_str().unwrap_or_default(), &schema::POSTGRES)
        .map_err(|e| StateError::of("open", &db::shown(place), &e))
}

/// Opens the state in PostgreSQL, and adds what this version adds to its tables.
fn open_postgres(place: &Path, path: &Path) -> Result<Db, StateError> {
    let link = connect_postgres(place)?;
    let known = schema::POSTGRES.version();
    match link.version().map_err(|e| StateError::of("open", path, &e))? {
        None => return Err(StateError::Missing(path.into())),
        Some(found) if found > known => return Err(StateError::Newer { path: path.into(), found, known }),
        Some(found) if found < known => {
            link.migrate(&[]).map_err(|e| StateError::of("migrate", path, &e))?;
        }
        Some(_) => {}
    }
    Ok(Db::Postgres(Box::new(link)))
}

/// Opens a state file, and migrates an older schema.
fn open_file(path: &Path) -> Result<Db, StateError> {
    if !path.exists() {
        return Err(StateError::Missing(path.into()));
    }
    let mut conn = connect(path, false)?;
    match version(&conn, path)? {
        None => return Err(StateError::NotAState { path: path.into(), why: "it is empty".into() }),
        Some(found) if found > schema::VERSION => {
            return Err(StateError::Newer { path: path.into(), found, known: schema::VERSION });
        }
        Some(found) if found < schema::VERSION => match migrate(&mut conn, Vec::new()) {
            Ok(()) => {}
            Err(_) if version(&conn, path)? == Some(schema::VERSION) => {} // another process was first
            Err(e) => return Err(migration("migrate", path, e)),
        },
        Some(_) => {}
    }
    Ok(Db::sqlite(conn))
}

/// Migrates the schema in one transaction that holds the write lock from its first moment. Later reads take no lock.
fn migrate(conn: &mut Connection, meta: Vec<(&'static str, String)>) -> Result<(), rusqlite_migration::Error> {
    conn.set_transaction_behavior(TransactionBehavior::Immediate);
    let done = schema::migrations(meta).to_latest(conn);
    conn.set_transaction_behavior(TransactionBehavior::Deferred);
    done
}

fn migration(doing: &'static str, path: &Path, e: rusqlite_migration::Error) -> StateError {
    match e {
        rusqlite_migration::Error::RusqliteError { err, .. } => StateError::of(doing, path, &err.into()),
        e => StateError::Io { doing, path: path.into(), why: e.to_string() },
    }
}

/// A connection with linkwise's settings to an SQLite file or an empty file.
fn connect(path: &Path, create: bool) -> Result<Connection, StateError> {
    if let Some(why) = crate::error::no_file(path) {
        return Err(StateError::NotAState { path: path.into(), why: why.into() });
    }
    let fail = |e: rusqlite::Error| StateError::of("open", path, &e.into());
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    flags.set(OpenFlags::SQLITE_OPEN_CREATE, create);
    let conn = Connection::open_with_flags(path, flags).map_err(fail)?;
    conn.busy_timeout(db::BUSY_TIMEOUT).map_err(fail)?;
    // Check before any change: the file may belong to another program.
    if version(&conn, path)?.is_none() && !create {
        return Err(StateError::NotAState { path: path.into(), why: "it is empty".into() });
    }
    conn.pragma_update(None, "journal_mode", "WAL").map_err(fail)?;
    conn.pragma_update(None, "synchronous", "FULL").map_err(fail)?;
    conn.pragma_update(None, "foreign_keys", true).map_err(fail)?;
    Ok(conn)
}

/// The schema version of a state; none for an empty file, an error for a file of another program.
fn version(conn: &Connection, path: &Path) -> Result<Option<i64>, StateError> {
    let number =
        |sql| conn.query_row(sql, [], |r| r.get::<_, i64>(0)).map_err(|e| StateError::of("open", path, &e.into()));
    if number("SELECT count(*) FROM sqlite_schema")? == 0 {
        return Ok(None);
    }
    match number("PRAGMA application_id")? {
        schema::APPLICATION_ID => Ok(Some(number("PRAGMA user_version")?)),
        crate::schema::APPLICATION_ID => {
            let why = "it is a store of measurements; a state needs a separate file".into();
            Err(StateError::NotAState { path: path.into(), why })
        }
        _ => {
            let why = "it is a SQLite database of another program".into();
            Err(StateError::NotAState { path: path.into(), why })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use topology::{Allocation, GpuMask, HostId};

    fn file(state: &State) -> &Connection {
        let Db::Sqlite(file) = &state.db else { panic!("the state is a file") };
        file.conn().unwrap()
    }

    #[test]
    fn a_full_disk_and_a_locked_file_are_one_clear_error_each_and_change_nothing() {
        let folder = std::env::temp_dir().join(format!("linkwise-state-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("s.state");
        let cluster = topology::catalog::cluster("h100").unwrap();
        let mut state = State::init(&path, &cluster, 0.0).unwrap();
        let all = cluster.usable();
        let before = state.snapshot().unwrap();

        // SQLite's limit on pages behaves like a full disk.
        let pages: i64 = file(&state).query_row("PRAGMA page_count", [], |r| r.get(0)).unwrap();
        let _: i64 = file(&state).query_row(&format!("PRAGMA max_page_count = {pages}"), [], |r| r.get(0)).unwrap();
        let e = state.drain(&all, &"x".repeat(1000), 0.0).unwrap_err();
        assert!(e.to_string().contains("full; make room on the disk; nothing was changed"), "{e}");
        assert_eq!(state.snapshot().unwrap(), before);
        state.check().unwrap();
        let _: i64 = file(&state).query_row("PRAGMA max_page_count = 100000", [], |r| r.get(0)).unwrap();

        let other = Connection::open(&path).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        file(&state).busy_timeout(Duration::from_millis(50)).unwrap();
        let one = Allocation::new([(HostId(0), GpuMask(1))]);
        let e = state.drain(&one, "", 0.0).unwrap_err();
        assert!(matches!(e, StateError::Busy(_)) && e.is_refusal(), "{e}");
        other.execute_batch("ROLLBACK").unwrap();
        state.drain(&one, "", 0.0).unwrap();

        file(&state).pragma_update(None, "query_only", true).unwrap(); // behaves like a read-only file
        let e = state.undrain(&one).unwrap_err();
        assert!(e.to_string().contains("cannot write to the state"), "{e}");
        assert_eq!(state.snapshot().unwrap().drained.len(), 1);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
