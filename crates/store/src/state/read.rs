//! Reads a state at one moment.

use super::{State, StateError};
use crate::db::{FromRow, Row, Sql, SqlError};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use topology::{Allocation, Bytes, Cluster, GpuId, GpuMask, HostId};

/// A job and its GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobHeld {
    /// Its id.
    pub id: String,
    /// Its GPUs.
    pub gpus: Allocation,
    /// Time of the allocation, seconds since 1970.
    pub since_unix_s: f64,
    /// Bus bandwidth that the job uses, GB/s, if known.
    pub demand_gb_per_s: Option<f64>,
    /// Bus bandwidth that was predicted at its placement, GB/s.
    pub predicted_gb_per_s: Option<f64>,
    /// Message size of that prediction.
    pub size: Option<Bytes>,
    /// The author of the allocation; empty in states of schema version 2.
    #[serde(default)]
    pub made_by: String,
    /// Length of the lease, seconds; none: the job holds its GPUs until it is released.
    #[serde(default)]
    pub lease_s: Option<f64>,
    /// End of the lease, seconds since 1970.
    #[serde(default)]
    pub lease_until_unix_s: Option<f64>,
}

/// A GPU that the operator drained.
#[derive(Clone, Debug, PartialEq)]
pub struct Drained {
    /// The GPU.
    pub gpu: GpuId,
    /// Time of the drain, seconds since 1970.
    pub since_unix_s: f64,
    /// The reason; may be empty.
    pub reason: String,
}

/// A component that may be slow according to readings (see `diagnose`): decisions prefer other components.
#[derive(Clone, Debug, PartialEq)]
pub struct Suspect {
    /// Number of the defect; suspects of one defect exclude each other.
    pub defect: u32,
    /// The host.
    pub host: HostId,
    /// The component as named by `diagnose`: `nic 3`, `gpu 5`, `host`.
    pub component: String,
    /// Estimated share of its full rate, 0 to 1.
    pub factor: f64,
    /// Probability of the defect in this component, 0 to 1.
    pub probability: f64,
}

/// The whole state at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Jobs, oldest first.
    pub jobs: Vec<JobHeld>,
    /// Drained GPUs, by host and index, without those of the cluster file.
    pub drained: Vec<Drained>,
    /// Suspected components, by defect, most probable first.
    pub suspects: Vec<Suspect>,
    /// GPUs that no job holds and that neither the state nor the cluster file drains.
    pub free: Allocation,
    /// Rises with every change of the state.
    pub version: u64,
    /// Rises with every change of the suspects.
    pub suspects_version: u64,
    /// Number of the newest entry of the log.
    pub event: i64,
}

impl Snapshot {
    /// The job with this id.
    pub fn job(&self, id: &str) -> Option<&JobHeld> {
        self.jobs.iter().find(|j| j.id == id)
    }
    /// The GPUs of all jobs.
    pub fn held(&self) -> Allocation {
        Allocation::new(self.jobs.iter().flat_map(|j| j.gpus.parts().iter().copied()))
    }
    /// Every drained GPU.
    pub fn drained_gpus(&self) -> Allocation {
        Allocation::from_gpus(self.drained.iter().map(|d| d.gpu))
    }
}

impl State {
    /// The whole state, read in one transaction. O(GPUs held).
    pub fn snapshot(&self) -> Result<Snapshot, StateError> {
        self.db.read(
            |e| StateError::of("read", &self.path, &e),
            |tx| {
                super::check_still_of(tx, &self.fingerprint, &self.path)?;
                snapshot(tx, &self.cluster, &self.path)
            },
        )
    }

    /// The present version of the state: a snapshot with this version is up to date. Reads one row.
    pub fn version(&self) -> Result<u64, StateError> {
        self.read_one(versions).map(|v| v.0)
    }

    /// Reads by one statement.
    pub(super) fn read_one<T>(&self, work: impl Fn(&Sql<'_>) -> Result<T, SqlError>) -> Result<T, StateError> {
        self.db.read_one(|e| StateError::of("read", &self.path, &e), work)
    }
}

/// What tells whether a snapshot is up to date, and whether it is complete.
pub(super) struct Head {
    pub fingerprint: String,
    pub version: u64,
    pub suspects_version: u64,
    /// Number of the newest entry of the log.
    pub event: i64,
    /// Number of jobs.
    pub jobs: usize,
    /// Number of held GPUs.
    pub held: usize,
    /// Number of drained GPUs.
    pub drained: usize,
}

/// Reads the head by one statement. The counts read an index each.
pub(super) fn head(sql: &Sql<'_>) -> Result<Head, SqlError> {
    let (fingerprint, version, suspects_version, event, jobs, held, drained) = sql.one(
        "SELECT (SELECT value FROM meta WHERE key = 'cluster_fingerprint'), everything, suspects, \
         (SELECT coalesce(max(id), 0) FROM event), (SELECT count(*) FROM job), (SELECT count(*) FROM held), \
         (SELECT count(*) FROM drained) FROM version",
        &[],
    )?;
    Ok(Head { fingerprint, version, suspects_version, event, jobs, held, drained })
}

/// The version of the whole state, and that of the suspects.
pub(super) fn versions(sql: &Sql<'_>) -> Result<(u64, u64), SqlError> {
    sql.one("SELECT everything, suspects FROM version", &[])
}

/// The columns of a [`JobHeld`].
pub(super) const JOB_COLUMNS: &str =
    "id, since_unix_s, demand_gb_per_s, predicted_gb_per_s, size_bytes, made_by, lease_s, lease_until_unix_s";

/// A job without its GPUs, from [`JOB_COLUMNS`].
impl FromRow for JobHeld {
    fn of(row: &Row<'_>) -> Result<Self, SqlError> {
        Ok(JobHeld {
            id: row.get(0)?,
            gpus: Allocation::default(),
            since_unix_s: row.get(1)?,
            demand_gb_per_s: row.get(2)?,
            predicted_gb_per_s: row.get(3)?,
            size: row.get::<Option<i64>>(4)?.map(|s| Bytes(s.max(0) as u64)),
            made_by: row.get(5)?,
            lease_s: row.get(6)?,
            lease_until_unix_s: row.get(7)?,
        })
    }
}

/// The GPU that a row names.
pub(super) fn gpu_of(
    cluster: &Cluster,
    index: &HashMap<&str, HostId>,
    path: &Path,
    host: &str,
    gpu: i64,
) -> Result<GpuId, StateError> {
    let known = index.get(host).copied().filter(|h| (0..cluster.type_of(*h).gpu_count() as i64).contains(&gpu));
    let unknown = || StateError::damaged(path, format!("cluster `{}` has no GPU {host}:{gpu}", cluster.name));
    Ok(GpuId { host: known.ok_or_else(unknown)?, gpu: gpu as u8 })
}

/// Reads a snapshot in a transaction.
pub(super) fn snapshot(sql: &Sql<'_>, cluster: &Cluster, path: &Path) -> Result<Snapshot, StateError> {
    let fail = |e: SqlError| StateError::of("read", path, &e);
    let damaged = |why: String| StateError::damaged(path, why);
    let index = cluster.host_index();
    let gpu_of = |host: &str, gpu: i64| gpu_of(cluster, &index, path, host, gpu);

    let mut masks: HashMap<String, BTreeMap<HostId, GpuMask>> = HashMap::new();
    sql.each("SELECT host, gpu, job FROM held", &[], fail, |row| {
        let (host, gpu, job): (String, i64, String) = FromRow::of(row).map_err(fail)?;
        let g = gpu_of(&host, gpu)?;
        let mask = masks.entry(job).or_default().entry(g.host).or_default();
        *mask = mask.union(GpuMask(1 << g.gpu));
        Ok(())
    })?;
    let jobs = format!("SELECT {JOB_COLUMNS} FROM job ORDER BY since_unix_s, id");
    let mut jobs: Vec<JobHeld> = sql.all(&jobs, &[]).map_err(fail)?;
    for job in &mut jobs {
        let held = masks.remove(&job.id).ok_or_else(|| damaged(format!("job `{}` holds no GPU", job.id)))?;
        job.gpus = Allocation::new(held);
    }
    if let Some(id) = masks.keys().next() {
        return Err(damaged(format!("GPUs are held by job `{id}`, which is not listed")));
    }

    let drained = drained(sql, cluster, &index, path)?;
    let suspects = suspects(sql, &index, path)?;
    Ok(finished(cluster, jobs, drained, suspects, &head(sql).map_err(fail)?))
}

/// A snapshot from its parts.
pub(super) fn finished(
    cluster: &Cluster,
    jobs: Vec<JobHeld>,
    drained: Vec<Drained>,
    suspects: Vec<Suspect>,
    head: &Head,
) -> Snapshot {
    let &Head { version, suspects_version, event, .. } = head;
    let free = Allocation::default();
    let mut snapshot = Snapshot { jobs, drained, suspects, free, version, suspects_version, event };
    let (held, out) = (snapshot.held(), snapshot.drained_gpus());
    let usable = cluster.usable();
    snapshot.free = Allocation::new(usable.parts().iter().map(|&(h, m)| (h, m.minus(held.mask(h)).minus(out.mask(h)))));
    snapshot
}

/// The drained GPUs, by host and index.
pub(super) fn drained(
    sql: &Sql<'_>,
    cluster: &Cluster,
    index: &HashMap<&str, HostId>,
    path: &Path,
) -> Result<Vec<Drained>, StateError> {
    let fail = |e: SqlError| StateError::of("read", path, &e);
    let mut drained = Vec::new();
    sql.each("SELECT host, gpu, since_unix_s, reason FROM drained", &[], fail, |row| {
        let (host, gpu, since_unix_s, reason): (String, i64, f64, String) = FromRow::of(row).map_err(fail)?;
        drained.push(Drained { gpu: gpu_of(cluster, index, path, &host, gpu)?, since_unix_s, reason });
        Ok(())
    })?;
    drained.sort_by_key(|d| d.gpu);
    Ok(drained)
}

/// The suspects, by defect, most probable first.
pub(super) fn suspects(sql: &Sql<'_>, index: &HashMap<&str, HostId>, path: &Path) -> Result<Vec<Suspect>, StateError> {
    let fail = |e: SqlError| StateError::of("read", path, &e);
    let text = "SELECT defect, host, component, factor, probability FROM suspect \
               ORDER BY defect, probability DESC, host, component";
    let mut suspects = Vec::new();
    sql.each(text, &[], fail, |row| {
        let (defect, name, component, factor, probability): (u32, String, String, f64, f64) =
            FromRow::of(row).map_err(fail)?;
        let known = index.get(name.as_str()).copied();
        let unknown = || StateError::damaged(path, format!("it suspects host `{name}`, which is unknown"));
        suspects.push(Suspect { defect, host: known.ok_or_else(unknown)?, component, factor, probability });
        Ok(())
    })?;
    Ok(suspects)
}
