//! [`Store`]: measurements in one SQLite file.

use crate::error::{StoreError, no_file};
use crate::identity::{HostChanges, Kinship, compare, fingerprint, identity, type_text};
use crate::measurement::{Measurement, Quality, Record};
use crate::query::{Place, Query};
use crate::rename::{Renames, rename_readings};
use crate::rows::{COLUMNS, allocation_text, clause, record_of};
use crate::schema;
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Transaction, TransactionBehavior, params};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, HostId};

/// Longest wait of a writer for another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
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
    pub(crate) path: PathBuf,
    pub(crate) conn: Connection,
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
        if let Some(why) = no_file(path) {
            return Err(StoreError::NotAStore { path: path.into(), why: why.into() });
        }
        if !create && !path.exists() {
            return Err(StoreError::Missing(path.into()));
        }
        let fail = |doing| move |e: rusqlite::Error| StoreError::of(doing, path, &e);
        let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        flags.set(OpenFlags::SQLITE_OPEN_CREATE, create);
        let mut conn = Connection::open_with_flags(path, flags).map_err(fail("open"))?;
        conn.busy_timeout(BUSY_TIMEOUT).map_err(fail("open"))?;
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
                rusqlite_migration::Error::RusqliteError { err, .. } => StoreError::of("migrate", path, &err),
                e => StoreError::Io { doing: "migrate", path: path.into(), why: e.to_string() },
            });
        } // otherwise another process was first
        let (former, changed) = Default::default();
        let mut store = Store { path: path.into(), conn, cluster: cluster.clone(), former, changed, unrecorded: false };
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
        let fail = |e: rusqlite::Error| self.error("read", &e);
        let index = self.cluster.host_index();
        let mut read = self
            .conn
            .prepare("SELECT host, until_reading, type FROM former_type ORDER BY until_reading")
            .map_err(fail)?;
        let mut rows = read.query([]).map_err(fail)?;
        let mut former = FormerTypes::default();
        while let Some(row) = rows.next().map_err(fail)? {
            let (host, until, kind): (String, i64, String) = row.try_into().map_err(fail)?;
            if let Some(&h) = index.get(host.as_str()) {
                former.entry(h).or_default().push((until, kind == type_text(&self.cluster, h)));
            }
        }
        if self.unrecorded && !self.changed.retyped.is_empty() {
            let last =
                self.conn.query_row("SELECT coalesce(max(id), 0) FROM measurement", [], |r| r.get(0)).map_err(fail)?;
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
        self.conn
            .query_row("SELECT value FROM meta WHERE key = ?1", [key], |r| r.get(0))
            .optional()
            .map_err(|e| self.error("read", &e))
    }

    fn error(&self, doing: &'static str, e: &rusqlite::Error) -> StoreError {
        StoreError::of(doing, &self.path, e)
    }

    /// The file.
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
        work: impl FnOnce(&Transaction<'_>, &Cluster, &Path) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let Store { path, conn, cluster, unrecorded, .. } = self;
        let fail = |e: rusqlite::Error| StoreError::of("write to", path, &e);
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(fail)?;
        if *unrecorded {
            record_cluster(&tx, cluster, path, &Renames::default())?;
        }
        let value = work(&tx, cluster, path)?; // an error drops the transaction, which rolls it back
        tx.commit().map_err(fail)?;
        *unrecorded = false;
        Ok(value)
    }

    /// Changes the quality of stored runs in one transaction; skips unknown run ids. Returns the number of changed runs.
    pub fn set_quality<'a>(
        &mut self,
        changes: impl IntoIterator<Item = (&'a str, Quality)>,
    ) -> Result<usize, StoreError> {
        self.write(|tx, _, path| {
            let fail = |e: rusqlite::Error| StoreError::of("write to", path, &e);
            let sql = "UPDATE measurement SET quality = ?2 WHERE run_id = ?1 AND quality <> ?2";
            let mut update = tx.prepare_cached(sql).map_err(fail)?;
            let mut changed = 0;
            for (run_id, quality) in changes {
                changed += update.execute(params![run_id, quality.name()]).map_err(fail)?;
            }
            if changed > 0 {
                tx.execute("UPDATE revision SET changes = changes + 1", []).map_err(fail)?;
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
        let (clause, values) = self.clause(query)?;
        let sql = format!("SELECT {COLUMNS}, id FROM measurement WHERE {clause}");
        let mut statement = self.conn.prepare_cached(&sql).map_err(|e| self.error("read", &e))?;
        let index = self.cluster.host_index();
        let mut rows = statement.query(rusqlite::params_from_iter(values)).map_err(|e| self.error("read", &e))?;
        let mut out = Vec::new();
        while let Some(row) = rows.next().map_err(|e| self.error("read", &e))? {
            let id = row.get("id").map_err(|e| self.error("read", &e))?;
            let record =
                record_of(row, id, self, &index).map_err(|why| StoreError::Damaged { path: self.path.clone(), why })?;
            out.extend(record);
        }
        if query.newest.is_some() {
            out.reverse(); // SQLite returned the newest first
        }
        Ok(out)
    }

    /// The SQL condition of a query. For the newest readings of each host, their numbers are looked up first: O(hosts x newest), in the
    /// index alone.
    pub(crate) fn clause(&self, query: &Query) -> Result<(String, Vec<Value>), StoreError> {
        let Some(newest) = query.newest_of_each_host else { return Ok(clause(&self.cluster, query, None)) };
        let fail = |e: rusqlite::Error| self.error("read", &e);
        let sql = "SELECT reading FROM reading_of_host WHERE host = ?1 AND several = ?2 ORDER BY reading DESC LIMIT ?3";
        let mut read = self.conn.prepare_cached(sql).map_err(fail)?;
        let mut ids: Vec<i64> = Vec::new();
        for h in &self.cluster.hosts {
            for (several, most) in [(false, newest.one_host), (true, newest.several_hosts)] {
                let most = i64::try_from(most).unwrap_or(i64::MAX);
                let found = read.query_map(params![h.name, several, most], |r| r.get(0)).map_err(fail)?;
                for id in found {
                    ids.push(id.map_err(fail)?);
                }
            }
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(clause(&self.cluster, query, Some(&ids)))
    }

    /// The number of measurements that match the query, those of removed hosts included.
    pub fn count(&self, query: &Query) -> Result<usize, StoreError> {
        let (clause, values) = self.clause(query)?;
        let sql = format!("SELECT count(*) FROM (SELECT 1 FROM measurement WHERE {clause})");
        self.conn
            .query_row(&sql, rusqlite::params_from_iter(values), |r| r.get::<_, i64>(0))
            .map(|n| n as usize)
            .map_err(|e| self.error("read", &e))
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
        let why: String =
            self.conn.query_row("PRAGMA integrity_check(1)", [], |r| r.get(0)).map_err(|e| self.error("check", &e))?;
        if why == "ok" { Ok(()) } else { Err(StoreError::Damaged { path: self.path.clone(), why }) }
    }
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
fn record_cluster(
    tx: &Transaction<'_>,
    cluster: &Cluster,
    path: &Path,
    renames: &Renames,
) -> Result<HostChanges, StoreError> {
    let fail = |e: rusqlite::Error| StoreError::of("write to", path, &e);
    let given = identity(cluster);
    let json = serde_json::to_string(cluster).map_err(|e| StoreError::Invalid(e.to_string()))?;
    let meta = |key: &str| {
        let sql = "SELECT value FROM meta WHERE key = ?1";
        tx.query_row(sql, [key], |r| r.get::<_, String>(0)).optional().map_err(fail)
    };
    let mut stored = meta("cluster_identity")?;
    if let Some(json) = meta("cluster_json")?.filter(|_| !renames.is_empty()) {
        let before: Cluster = serde_json::from_str(&json)
            .map_err(|e| StoreError::Damaged { path: path.into(), why: format!("its cluster cannot be read: {e}") })?;
        let left = renames.left(&before, cluster).map_err(StoreError::Rename)?;
        rename_readings(tx, path, renames, &before, cluster)?;
        stored = Some(identity(&left.apply(&before)));
        if !left.is_empty() {
            tx.execute("UPDATE revision SET changes = changes + 1", []).map_err(fail)?;
        }
    }
    let found = changes(stored.as_deref(), cluster, path, || meta("cluster_name"))?;
    if found.is_none() && stored.is_some() && renames.is_empty() {
        return Ok(HostChanges::default());
    }
    let changes = found.unwrap_or_default();
    let before: HashMap<&str, &str> =
        stored.iter().flat_map(|s| s.lines().skip(1)).filter_map(|l| l.split_once(" is ")).collect();
    let sql = "INSERT OR IGNORE INTO former_type (host, until_reading, type)
               SELECT ?1, coalesce(max(id), 0), ?2 FROM measurement";
    for host in changes.retyped.iter().chain(&changes.removed) {
        tx.execute(sql, params![host, before.get(host.as_str())]).map_err(fail)?;
    }
    for (key, value) in [
        ("cluster_name", &cluster.name),
        ("cluster_identity", &given),
        ("cluster_fingerprint", &fingerprint(&given)),
        ("cluster_json", &json),
    ] {
        tx.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?1, ?2)", params![key, value]).map_err(fail)?;
    }
    if !changes.is_empty() {
        tx.execute("UPDATE revision SET changes = changes + 1", []).map_err(fail)?;
    }
    Ok(changes)
}

/// Every GPU of a cluster, drained ones included: measurements may be older than a drain.
fn all_gpus(cluster: &Cluster) -> Allocation {
    Allocation::new(cluster.host_ids().map(|h| (h, cluster.type_of(h).all_gpus())))
}

/// Inserts records and returns the number of each; none for a run that was stored before.
pub(crate) fn insert(
    tx: &Transaction<'_>,
    cluster: &Cluster,
    path: &Path,
    records: &[Record],
) -> Result<Vec<Option<i64>>, StoreError> {
    let fail = |e: rusqlite::Error| StoreError::of("write to", path, &e);
    let sql = format!(
        "INSERT INTO measurement ({COLUMNS}, host) VALUES \
         (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17) ON CONFLICT (run_id) DO NOTHING"
    );
    let mut insert = tx.prepare_cached(&sql).map_err(fail)?;
    let touch = "INSERT INTO reading_of_host (host, several, reading) VALUES (?1, ?2, ?3)";
    let mut touch = tx.prepare_cached(touch).map_err(fail)?;
    let mut ids = Vec::with_capacity(records.len());
    for Record { run_id, measurement: m } in records {
        let host = match m.allocation.parts() {
            [(h, _)] => Some(cluster.host(*h).name.as_str()),
            _ => None,
        };
        let n = insert.execute(params![
            run_id,
            allocation_text(cluster, &m.allocation),
            m.collective.name(),
            m.size.0 as i64,
            m.busbw.gb_per_s(),
            m.time.map(|t| t.0),
            m.algorithm,
            m.protocol,
            m.channels,
            m.nccl_version,
            m.contention,
            m.job,
            m.taken_at_unix_s,
            m.source.name(),
            m.provenance,
            m.quality.name(),
            host,
        ]);
        if n.map_err(fail)? == 0 {
            ids.push(None);
            continue;
        }
        let id = tx.last_insert_rowid();
        for (h, _) in m.allocation.parts() {
            touch.execute(params![cluster.host(*h).name, host.is_none(), id]).map_err(fail)?;
        }
        ids.push(Some(id));
    }
    Ok(ids)
}
