//! What a state says at one moment.

use super::{State, StateError};
use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use topology::{Allocation, Bytes, Cluster, GpuId, GpuMask, HostId};

/// A job and what it holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobHeld {
    /// Its id.
    pub id: String,
    /// Its GPUs.
    pub gpus: Allocation,
    /// Since when, seconds since 1970.
    pub since_unix_s: f64,
    /// The bus bandwidth that it uses, if somebody said.
    pub demand_gb_per_s: Option<f64>,
    /// The bus bandwidth that was predicted when it was placed.
    pub predicted_gb_per_s: Option<f64>,
    /// The message size that it was placed for.
    pub size: Option<Bytes>,
}

/// A GPU that gets no work, by the operator's word.
#[derive(Clone, Debug, PartialEq)]
pub struct Drained {
    /// The GPU.
    pub gpu: GpuId,
    /// Since when, seconds since 1970.
    pub since_unix_s: f64,
    /// Why; may be empty.
    pub reason: String,
}

/// A component that readings speak against (see `predict::doctor`): decisions prefer others while it is suspected.
#[derive(Clone, Debug, PartialEq)]
pub struct Suspect {
    /// Suspects of one defect exclude each other: its number.
    pub defect: u32,
    /// The host.
    pub host: HostId,
    /// What on it, in the words of the one who suspects: `nic 3`, `gpu 5`, `host`.
    pub component: String,
    /// Share of its rate that it seems to have left.
    pub factor: f64,
    /// How probable that is, 0 to 1.
    pub probability: f64,
}

/// Everything, at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Jobs, the oldest first.
    pub jobs: Vec<JobHeld>,
    /// Drained GPUs, by host and index; those of the cluster file are not among them.
    pub drained: Vec<Drained>,
    /// Suspected components, defect by defect, the most probable first.
    pub suspects: Vec<Suspect>,
    /// Held by no job and not drained, neither here nor in the cluster file.
    pub free: Allocation,
    /// Rises with every change of the state.
    pub version: u64,
    /// Rises with every change of the suspects.
    pub suspects_version: u64,
}

impl Snapshot {
    /// The job of an id.
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
    /// Everything, read in one transaction. O(GPUs held).
    pub fn snapshot(&self) -> Result<Snapshot, StateError> {
        let tx = self.conn.unchecked_transaction().map_err(|e| StateError::of("read", &self.path, &e))?;
        super::check_still_of(&tx, &self.fingerprint, &self.path)?;
        snapshot(&tx, &self.cluster, &self.path)
    }

    /// The version of the state as it is now: a snapshot of the same version still tells the truth. One row.
    pub fn version(&self) -> Result<u64, StateError> {
        versions(&self.conn).map(|v| v.0).map_err(|e| StateError::of("read", &self.path, &e))
    }
}

/// The version of everything, and that of the suspects.
pub(super) fn versions(conn: &Connection) -> Result<(u64, u64), rusqlite::Error> {
    let row = |r: &rusqlite::Row<'_>| Ok((r.get::<_, i64>(0)? as u64, r.get::<_, i64>(1)? as u64));
    conn.prepare_cached("SELECT everything, suspects FROM version")?.query_row([], row)
}

/// What the transaction of `conn` sees.
pub(super) fn snapshot(conn: &Connection, cluster: &Cluster, path: &Path) -> Result<Snapshot, StateError> {
    let fail = |e: rusqlite::Error| StateError::of("read", path, &e);
    let damaged = |why: String| StateError::damaged(path, why);
    let index = cluster.host_index();
    let gpu_of = |host: &str, gpu: i64| -> Result<GpuId, StateError> {
        let known = index.get(host).copied().filter(|h| (0..cluster.type_of(*h).gpu_count() as i64).contains(&gpu));
        let host = known.ok_or_else(|| damaged(format!("cluster `{}` has no GPU {host}:{gpu}", cluster.name)))?;
        Ok(GpuId { host, gpu: gpu as u8 })
    };

    let mut masks: HashMap<String, BTreeMap<HostId, GpuMask>> = HashMap::new();
    let mut statement = conn.prepare_cached("SELECT host, gpu, job FROM held").map_err(fail)?;
    let mut rows = statement.query([]).map_err(fail)?;
    while let Some(row) = rows.next().map_err(fail)? {
        let (host, gpu, job): (String, i64, String) = row.try_into().map_err(fail)?;
        let g = gpu_of(&host, gpu)?;
        let mask = masks.entry(job).or_default().entry(g.host).or_default();
        *mask = mask.union(GpuMask(1 << g.gpu));
    }
    let sql =
        "SELECT id, since_unix_s, demand_gb_per_s, predicted_gb_per_s, size_bytes FROM job ORDER BY since_unix_s, id";
    let mut statement = conn.prepare_cached(sql).map_err(fail)?;
    let mut rows = statement.query([]).map_err(fail)?;
    let mut jobs = Vec::new();
    while let Some(row) = rows.next().map_err(fail)? {
        let (id, since_unix_s, demand_gb_per_s, predicted_gb_per_s, size): (String, f64, _, _, Option<i64>) =
            row.try_into().map_err(fail)?;
        let gpus = Allocation::new(masks.remove(&id).ok_or_else(|| damaged(format!("job `{id}` holds no GPU")))?);
        let size = size.map(|s| Bytes(s.max(0) as u64));
        jobs.push(JobHeld { id, gpus, since_unix_s, demand_gb_per_s, predicted_gb_per_s, size });
    }
    if let Some(id) = masks.keys().next() {
        return Err(damaged(format!("GPUs are held by job `{id}`, which is not listed")));
    }

    let mut statement = conn.prepare_cached("SELECT host, gpu, since_unix_s, reason FROM drained").map_err(fail)?;
    let mut rows = statement.query([]).map_err(fail)?;
    let mut drained = Vec::new();
    while let Some(row) = rows.next().map_err(fail)? {
        let (host, gpu, since_unix_s, reason): (String, i64, f64, String) = row.try_into().map_err(fail)?;
        drained.push(Drained { gpu: gpu_of(&host, gpu)?, since_unix_s, reason });
    }
    drained.sort_by_key(|d| d.gpu);

    let suspects = suspects(conn, &index, path)?;
    let (version, suspects_version) = versions(conn).map_err(fail)?;
    let mut snapshot = Snapshot { jobs, drained, suspects, free: Allocation::default(), version, suspects_version };
    let (held, out) = (snapshot.held(), snapshot.drained_gpus());
    let usable = cluster.usable();
    snapshot.free = Allocation::new(usable.parts().iter().map(|&(h, m)| (h, m.minus(held.mask(h)).minus(out.mask(h)))));
    Ok(snapshot)
}

/// The suspects, defect by defect, the most probable first.
pub(super) fn suspects(
    conn: &Connection,
    index: &HashMap<&str, HostId>,
    path: &Path,
) -> Result<Vec<Suspect>, StateError> {
    let fail = |e: rusqlite::Error| StateError::of("read", path, &e);
    let sql = "SELECT defect, host, component, factor, probability FROM suspect \
               ORDER BY defect, probability DESC, host, component";
    let mut statement = conn.prepare_cached(sql).map_err(fail)?;
    let mut rows = statement.query([]).map_err(fail)?;
    let mut suspects = Vec::new();
    while let Some(row) = rows.next().map_err(fail)? {
        let (defect, name, component, factor, probability): (u32, String, String, f64, f64) =
            row.try_into().map_err(fail)?;
        let known = index.get(name.as_str()).copied();
        let unknown = || StateError::damaged(path, format!("it suspects host `{name}`, which is unknown"));
        suspects.push(Suspect { defect, host: known.ok_or_else(unknown)?, component, factor, probability });
    }
    Ok(suspects)
}
