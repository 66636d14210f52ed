//! [`Store`]: measurements in one SQLite file or in a database of PostgreSQL.

use crate::db::{self, Db, Sql, SqlError, Val, vals};
use crate::error::{StoreError, no_file};
use crate::identity::{HostChanges, Kinship, compare, fingerprint, identity, type_text};
use crate::measurement::{Measurement, Quality, Record};
use crate::query::{Place, Query};
use crate::rename::{Renames, rename_readings};
use crate::rows::{COLUMNS, allocation_text, clause, record_of};
use crate::schema;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, HostId};

/// Longest run id, bytes. An allocation of a thousand GPUs in text is about ten thousand.
pub const RUN_ID_BYTES_MAX: usize = 64 << 10;

/// The numbers of new and known records of an insert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inserted {
    /// Records that were stored.
    pub added: usize,
    /// Records whose run id was known; the stored ones stay unchanged.
    pub already: usize,
}

/// For each host with earlier hardware: the last reading on it, and whether it was the present hardware; ascending.
pub(crate) type FormerTypes = HashMap<HostId, Vec<(i64, bool)>>;

/// The measurements of one cluster.
#[derive(Debug)]
pub struct Store {
    /// The file, or the URL without its password.
    pub(crate) path: PathBuf,
    pub(crate) db: Db,
    pub(crate) cluster: Cluster,
    /// Hosts with earlier hardware: the last reading on it, and whether it was the present hardware.
    pub(crate) former: FormerTypes,
    changed: HostChanges,
    /// The file records another set of hosts; the first write records this one.
    unrecorded: bool,
}

impl Store {
    /// Opens a store that exists and belongs to `cluster`. Migrates an older schema. Hosts that were added, removed or changed since are
    /// recorded by the first write, not before: a program that only reads may have a cluster of its own.
    pub fn open(path: &Path, cluster: &Cluster) -> Result<Self, StoreError> {
        Self::at(path, cluster, false, &Renames::default(), || Ok(()))
    }

    /// Opens a store as [`Store::open`], and gives renamed hosts their new names: their readings stay theirs. A repetition changes
    /// nothing. `then` runs in the same transaction, before its commit: if it fails, the store is as before.
    ///
    /// # Errors
    /// Also [`StoreError::Rename`]: the store knows neither name of a host, or its hardware differs.
    pub fn open_renamed(
        path: &Path,
        cluster: &Cluster,
        renames: &Renames,
        then: impl FnOnce() -> Result<(), StoreError>,
    ) -> Result<Self, StoreError> {
        Self::at(path, cluster, false, renames, then)
    }

    /// Opens a store, or creates an empty one for `cluster` if there is no file.
    pub fn create(path: &Path, cluster: &Cluster) -> Result<Self, StoreError> {
        Self::at(path, cluster, true, &Renames::default(), || Ok(()))
    }

    fn at(
        path: &Path,
        cluster: &Cluster,
        create: bool,
        renames: &Renames,
        then: impl FnOnce() -> Result<(), StoreError>,
    ) -> Result<Self, StoreError> {
        let place = path;
        let path = &db::shown(place);
        let db = if db::is_url(place) { open_postgres(place, path, create)? } else { open_file(path, create)? };
        let (former, changed) = Default::default();
        let mut store = Store { path: path.clone(), db, cluster: cluster.clone(), former, changed, unrecorded: false };
        let stored = store.meta("cluster_identity")?;
        if stored.is_none() || !renames.is_empty() {
            store.changed = store.write(|tx, cluster, path| {
                let changes = record_cluster(tx, cluster, path, renames)?;
                then()?;
                Ok(changes)
            })?;
        } else {
            if let Some(changes) = changes(stored.as_deref(), cluster, path, || store.meta("cluster_name"))? {
                store.changed = changes;
                store.unrecorded = true;
            }
            then()?;
        }
        store.former = store.former_types()?;
        Ok(store)
    }

    fn former_types(&self) -> Result<FormerTypes, StoreError> {
        let index = self.cluster.host_index();
        let sql = "SELECT host, until_reading, type FROM former_type ORDER BY until_reading";
        let rows: Vec<(String, i64, String)> = self.read_one(|tx| tx.all(sql, &[]))?;
        let mut former = FormerTypes::default();
        for (host, until, kind) in rows {
            if let Some(&h) = index.get(host.as_str()) {
                former.entry(h).or_default().push((until, kind == type_text(&self.cluster, h)));
            }
        }
        if self.unrecorded && !self.changed.retyped.is_empty() {
            let last: i64 = self.read_one(|tx| tx.one("SELECT coalesce(max(id), 0) FROM measurement", &[]))?;
            for h in self.changed.retyped.iter().filter_map(|h| index.get(h.as_str())) {
                former.entry(*h).or_default().push((last, false));
            }
        }
        Ok(former)
    }

    /// The hosts that differ from those that the file recorded. Readings on removed hosts or on earlier hardware stay stored; no query
    /// returns them.
    pub fn changed_hosts(&self) -> &HostChanges {
        &self.changed
    }

    fn meta(&self, key: &str) -> Result<Option<String>, StoreError> {
        self.read_one(|tx| tx.first("SELECT value FROM meta WHERE key = ?1", vals![key]))
    }

    /// Reads by one statement.
    pub(crate) fn read_one<T>(&self, work: impl Fn(&Sql<'_>) -> Result<T, SqlError>) -> Result<T, StoreError> {
        self.db.read_one(|e| StoreError::of("read", &self.path, &e), work)
    }

    /// The file, or the URL without its password.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// The cluster of the caller that opened the store.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }
    /// The stored fingerprint of the cluster's identity.
    pub fn cluster_fingerprint(&self) -> Result<String, StoreError> {
        Ok(self.meta("cluster_fingerprint")?.unwrap_or_default())
    }

    /// Stores one record. When the function returns, the record survives a kill.
    pub fn insert(&mut self, record: &Record) -> Result<Inserted, StoreError> {
        self.insert_batch(std::slice::from_ref(record))
    }

    /// Stores all records in one transaction, or none of them.
    pub fn insert_batch(&mut self, records: &[Record]) -> Result<Inserted, StoreError> {
        self.check_records(records)?;
        let ids = self.write(|tx, cluster, path| insert(tx, cluster, path, records))?;
        let added = ids.iter().flatten().count();
        Ok(Inserted { added, already: records.len() - added })
    }

    /// Checks the records against the store's rules.
    pub(crate) fn check_records(&self, records: &[Record]) -> Result<(), StoreError> {
        let gpus: usize = self.cluster.gpu_count();
        let all = all_gpus(&self.cluster);
        for r in records {
            r.measurement.check().map_err(StoreError::Invalid)?;
            if r.run_id.as_ref().is_some_and(|id| id.is_empty() || id.len() > RUN_ID_BYTES_MAX) {
                return Err(StoreError::Invalid(format!("run_id: it does not have 1 to {RUN_ID_BYTES_MAX} bytes")));
            }
            if r.measurement.allocation.gpu_count() > gpus || !all.contains_all(&r.measurement.allocation) {
                let why = format!("allocation: cluster `{}` does not have all of its GPUs", self.cluster.name);
                return Err(StoreError::Invalid(why));
            }
        }
        Ok(())
    }

    /// Runs `work` in a transaction that holds the write lock from its first moment, and commits if it succeeds.
    pub(crate) fn write<T>(
        &mut self,
        work: impl FnOnce(&Sql<'_>, &Cluster, &Path) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let Store { path, db, cluster, unrecorded, .. } = self;
        let value = db.write(
            |e| StoreError::of("write to", path, &e),
            |tx| {
                if *unrecorded {
                    record_cluster(tx, cluster, path, &Renames::default())?;
                }
                work(tx, cluster, path) // an error rolls the transaction back
            },
        )?;
        *unrecorded = false;
        Ok(value)
    }

    /// The same, once more if the connection broke and a repetition finds what the first one did.
    pub(crate) fn write_again<T>(
        &mut self,
        is_repeatable: bool,
        work: impl Fn(&Sql<'_>, &Cluster, &Path) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match self.write(&work) {
            Err(StoreError::Unreachable { .. }) => self.write(&work),
            Err(StoreError::OutcomeUnknown { path, why }) if is_repeatable => match self.write(&work) {
                Err(StoreError::Unreachable { .. }) => Err(StoreError::OutcomeUnknown { path, why }),
                done => done,
            },
            done => done,
        }
    }

    /// Changes the quality of stored runs in one transaction; skips unknown run ids. Returns the number of changed runs.
    pub fn set_quality<'a>(
        &mut self,
        changes: impl IntoIterator<Item = (&'a str, Quality)>,
    ) -> Result<usize, StoreError> {
        self.write(|tx, _, path| {
            let fail = |e: SqlError| StoreError::of("write to", path, &e);
            let sql = "UPDATE measurement SET quality = ?2 WHERE run_id = ?1 AND quality <> ?2";
            let mut changed = 0;
            for (run_id, quality) in changes {
                changed += tx.execute(sql, vals![run_id, quality.name()]).map_err(fail)?;
            }
            if changed > 0 {
                tx.execute("UPDATE revision SET changes = changes + 1", &[]).map_err(fail)?;
            }
            Ok(changed)
        })
    }

    /// The measurements of a query, in the order in which they were stored.
    pub fn measurements(&self, query: &Query) -> Result<Vec<Measurement>, StoreError> {
        Ok(self.records(query)?.into_iter().map(|r| r.measurement).collect())
    }

    /// [`Store::measurements`] with run ids. About 400 bytes of memory and 6 us per record (`cargo run -p store --example
    /// hundred_thousand`).
    pub fn records(&self, query: &Query) -> Result<Vec<Record>, StoreError> {
        Ok(self.rows(query)?.into_iter().map(|(_, record, _)| record).collect())
    }

    /// The number of each reading of a query, the reading, and whether it was withdrawn.
    pub(crate) fn rows(&self, query: &Query) -> Result<Vec<(i64, Record, bool)>, StoreError> {
        let fail = |e: SqlError| StoreError::of("read", &self.path, &e);
        let index = self.cluster.host_index();
        self.db.read(fail, |tx| {
            let (clause, values) = self.clause(tx, query).map_err(fail)?;
            let sql = format!("SELECT {COLUMNS}, id, withdrawn FROM measurement WHERE {clause}");
            let mut out = Vec::new();
            tx.each(&sql, &values, fail, |row| {
                let damaged = |why| StoreError::Damaged { path: self.path.clone(), why };
                let id = row.get(16).map_err(fail)?;
                if let Some(record) = record_of(row, id, self, &index).map_err(damaged)? {
                    out.push((id, record, row.get(17).map_err(fail)?));
                }
                Ok(())
            })?;
            if query.newest.is_some() {
                out.reverse(); // the newest came first
            }
            Ok(out)
        })
    }

    /// The SQL condition of a query. For the newest readings of each host, their numbers are looked up first: O(hosts x newest), in the
    /// index alone.
    fn clause<'q>(&self, tx: &Sql<'_>, query: &'q Query) -> Result<(String, Vec<Val<'q>>), SqlError> {
        let Some(newest) = query.newest_of_each_host else { return Ok(clause(tx, &self.cluster, query, None)) };
        let sql = "SELECT reading FROM reading_of_host WHERE host = ?1 AND several = ?2 ORDER BY reading DESC LIMIT ?3";
        let mut ids: Vec<i64> = Vec::new();
        for h in &self.cluster.hosts {
            for (several, most) in [(false, newest.one_host), (true, newest.several_hosts)] {
                let most = i64::try_from(most).unwrap_or(i64::MAX);
                ids.extend(tx.all::<i64>(sql, vals![&h.name, several, most])?);
            }
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(clause(tx, &self.cluster, query, Some(&ids)))
    }

    /// The number of measurements that match the query, those of removed hosts included.
    pub fn count(&self, query: &Query) -> Result<usize, StoreError> {
        self.read_one(|tx| {
            let (clause, values) = self.clause(tx, query)?;
            tx.one(&format!("SELECT count(*) FROM (SELECT 1 FROM measurement WHERE {clause}) AS found"), &values)
        })
    }

    /// All run ids with this prefix, those of withdrawn readings included: no run id can be stored again.
    pub fn run_ids(&self, prefix: &str) -> Result<HashSet<String>, StoreError> {
        let query = Query { run_prefix: Some(prefix.into()), with_withdrawn: true, ..Query::all() };
        Ok(self.records(&query)?.into_iter().filter_map(|r| r.run_id).collect())
    }

    /// The intra table of one host: every subset measured, with the median of its usable readings.
    pub fn intra_table(
        &self,
        host: HostId,
        collective: Collective,
        size: Bytes,
    ) -> Result<BTreeMap<GpuMask, Bandwidth>, StoreError> {
        let query = Query::usable().collective(collective).size(size).place(Place::Host(host));
        let mut readings: BTreeMap<GpuMask, Vec<f64>> = BTreeMap::new();
        for m in self.measurements(&query)? {
            readings.entry(m.allocation.mask(host)).or_default().push(m.busbw.gb_per_s());
        }
        Ok(readings.into_iter().map(|(mask, v)| (mask, Bandwidth::from_gb_per_s(stats::median(&v)))).collect())
    }

    /// SQLite's own check of the whole file. O(file).
    pub fn check(&self) -> Result<(), StoreError> {
        match self.db.check().map_err(|e| StoreError::of("check", &self.path, &e))? {
            Some(why) => Err(StoreError::Damaged { path: self.path.clone(), why }),
            None => Ok(()),
        }
    }
}

/// Opens a file, and migrates an older schema.
fn open_file(path: &Path, create: bool) -> Result<Db, StoreError> {
    if let Some(why) = no_file(path) {
        return Err(StoreError::NotAStore { path: path.into(), why: why.into() });
    }
    if !create && !path.exists() {
        return Err(StoreError::Missing(path.into()));
    }
    let fail = |doing| move |e: rusqlite::Error| StoreError::of(doing, path, &e.into());
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    flags.set(OpenFlags::SQLITE_OPEN_CREATE, create);
    let mut conn = Connection::open_with_flags(path, flags).map_err(fail("open"))?;
    conn.busy_timeout(db::BUSY_TIMEOUT).map_err(fail("open"))?;
    let number = |c: &Connection, sql| c.query_row(sql, [], |r| r.get::<_, i64>(0)).map_err(fail("open"));
    let tables = number(&conn, "SELECT count(*) FROM sqlite_schema")?;
    let version = number(&conn, "PRAGMA user_version")?;
    let program = number(&conn, "PRAGMA application_id")?;
    if tables > 0 && program != schema::APPLICATION_ID {
        let why = match program {
            crate::state::APPLICATION_ID => "it is a state; measurements need a separate file",
            _ => "it is a SQLite database of another program",
        };
        return Err(StoreError::NotAStore { path: path.into(), why: why.into() });
    }
    if tables == 0 && !create {
        return Err(StoreError::NotAStore { path: path.into(), why: "it is empty".into() });
    }
    if version > schema::VERSION {
        return Err(StoreError::Newer { path: path.into(), found: version, known: schema::VERSION });
    }
    conn.pragma_update(None, "journal_mode", "WAL").map_err(fail("open"))?;
    // FULL: acknowledged data survive a power cut, too; a benchmark takes seconds, an fsync milliseconds.
    conn.pragma_update(None, "synchronous", "FULL").map_err(fail("open"))?;
    conn.set_transaction_behavior(TransactionBehavior::Immediate);
    let migrated = if version < schema::VERSION { schema::migrations().to_latest(&mut conn) } else { Ok(()) };
    conn.set_transaction_behavior(TransactionBehavior::Deferred); // reads take no lock
    if let Err(e) = migrated
        && number(&conn, "PRAGMA user_version")? != schema::VERSION
    {
        return Err(match e {
            rusqlite_migration::Error::RusqliteError { err, .. } => StoreError::of("migrate", path, &err.into()),
            e => StoreError::Io { doing: "migrate", path: path.into(), why: e.to_string() },
        });
    } // otherwise another process was first
    Ok(Db::sqlite(conn))
}

/// Opens the readings in PostgreSQL, and adds what this version adds to their tables.
fn open_postgres(place: &Path, path: &Path, create: bool) -> Result<Db, StoreError> {
    let fail = |doing| move |e: SqlError| StoreError::of(doing, path, &e);
    let known = schema::POSTGRES.version();
    let link = db::postgres::Link::open(place.to_str().unwrap_or_default(), &schema::POSTGRES).map_err(fail("open"))?;
    match link.version().map_err(fail("open"))? {
        None if !create => return Err(StoreError::Missing(path.into())),
        Some(found) if found > known => return Err(StoreError::Newer { path: path.into(), found, known }),
        Some(found) if found == known => {}
        _ => {
            link.migrate(&[]).map_err(fail("migrate"))?;
        }
    }
    Ok(Db::Postgres(Box::new(link)))
}

/// The differences between the recorded hosts and those of the cluster; `None` if there are none.
fn changes(
    stored: Option<&str>,
    cluster: &Cluster,
    path: &Path,
    name: impl FnOnce() -> Result<Option<String>, StoreError>,
) -> Result<Option<HostChanges>, StoreError> {
    match stored.map(|s| compare(s, &identity(cluster))) {
        None | Some(Kinship::Same) => Ok(None),
        Some(Kinship::Changed(changes)) => Ok(Some(changes)),
        Some(Kinship::Other(difference)) => Err(StoreError::OtherCluster {
            path: path.into(),
            stored: name()?.unwrap_or_default(),
            given: cluster.name.clone(),
            difference,
        }),
    }
}

/// Records the cluster, and what the hosts that differ from it were. Another process may have been first, with this cluster or with another.
fn record_cluster(tx: &Sql<'_>, cluster: &Cluster, path: &Path, renames: &Renames) -> Result<HostChanges, StoreError> {
    let fail = |e: SqlError| StoreError::of("write to", path, &e);
    let given = identity(cluster);
    let json = serde_json::to_string(cluster).map_err(|e| StoreError::Invalid(e.to_string()))?;
    let meta = |key: &str| -> Result<Option<String>, StoreError> {
        tx.first("SELECT value FROM meta WHERE key = ?1", vals![key]).map_err(fail)
    };
    let mut stored = meta("cluster_identity")?;
    if let Some(json) = meta("cluster_json")?.filter(|_| !renames.is_empty()) {
        let before: Cluster = serde_json::from_str(&json)
            .map_err(|e| StoreError::Damaged { path: path.into(), why: format!("its cluster cannot be read: {e}") })?;
        let left = renames.left(&before, cluster).map_err(StoreError::Rename)?;
        rename_readings(tx, path, renames, &before, cluster)?;
        stored = Some(identity(&left.apply(&before)));
        if !left.is_empty() {
            tx.execute("UPDATE revision SET changes = changes + 1", &[]).map_err(fail)?;
        }
    }
    let found = changes(stored.as_deref(), cluster, path, || meta("cluster_name"))?;
    if found.is_none() && stored.is_some() && renames.is_empty() {
        return Ok(HostChanges::default());
    }
    let changes = found.unwrap_or_default();
    let before: HashMap<&str, &str> =
        stored.iter().flat_map(|s| s.lines().skip(1)).filter_map(|l| l.split_once(" is ")).collect();
    let sql = "INSERT INTO former_type (host, until_reading, type)
               SELECT ?1, coalesce(max(id), 0), ?2 FROM measurement WHERE true ON CONFLICT DO NOTHING";
    for host in changes.retyped.iter().chain(&changes.removed) {
        tx.execute(sql, vals![host, before.get(host.as_str()).copied()]).map_err(fail)?;
    }
    for (key, value) in [
        ("cluster_name", &cluster.name),
        ("cluster_identity", &given),
        ("cluster_fingerprint", &fingerprint(&given)),
        ("cluster_json", &json),
    ] {
        let sql = "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2";
        tx.execute(sql, vals![key, value]).map_err(fail)?;
    }
    if !changes.is_empty() {
        tx.execute("UPDATE revision SET changes = changes + 1", &[]).map_err(fail)?;
    }
    Ok(changes)
}

/// Every GPU of a cluster, drained ones included: measurements may be older than a drain.
fn all_gpus(cluster: &Cluster) -> Allocation {
    Allocation::new(cluster.host_ids().map(|h| (h, cluster.type_of(h).all_gpus())))
}

/// Inserts records and returns the number of each; none for a run that was stored before.
pub(crate) fn insert(
    tx: &Sql<'_>,
    cluster: &Cluster,
    path: &Path,
    records: &[Record],
) -> Result<Vec<Option<i64>>, StoreError> {
    let fail = |e: SqlError| StoreError::of("write to", path, &e);
    let insert = format!(
        "INSERT INTO measurement ({COLUMNS}, host) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, \
         ?15, ?16, ?17) ON CONFLICT DO NOTHING RETURNING id"
    );
    let mut ids = Vec::with_capacity(records.len());
    let mut touched: Vec<Val<'_>> = Vec::new();
    for Record { run_id, measurement: m } in records {
        let host = match m.allocation.parts() {
            [(h, _)] => Some(cluster.host(*h).name.as_str()),
            _ => None,
        };
        let row = vals![
            run_id.as_deref(),
            allocation_text(cluster, &m.allocation),
            m.collective.name(),
            m.size.0 as i64,
            m.busbw.gb_per_s(),
            m.time.map(|t| t.0),
            m.algorithm.as_deref(),
            m.protocol.as_deref(),
            m.channels,
            m.nccl_version.as_deref(),
            m.contention.as_deref(),
            m.job.as_deref(),
            m.taken_at_unix_s,
            m.source.name(),
            &m.provenance,
            m.quality.name(),
            host,
        ];
        let id: Option<i64> = tx.first(&insert, row).map_err(fail)?;
        ids.push(id);
        let Some(id) = id else { continue };
        for (h, _) in m.allocation.parts() {
            touched.extend([Val::from(&cluster.host(*h).name), host.is_none().into(), id.into()]);
        }
    }
    tx.insert_rows("reading_of_host (host, several, reading)", 3, &touched).map_err(fail)?;
    Ok(ids)
}
