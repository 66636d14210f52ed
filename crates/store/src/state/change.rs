//! Changes of a state: allocate, release, drain, suspect.

use super::event::log;
use super::lease::check_lease;
use super::read::{JOB_COLUMNS, JobHeld, Suspect, gpu_of, snapshot, suspects};
use super::{Basis, JOBS_MAX, REASON_BYTES_MAX, State, StateError, check_job_id};
use crate::db::{FromRow, Sql, SqlError, Val, vals};
use crate::once::{self, Done, Once};
use crate::readings::By;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use topology::{Allocation, Bytes, Cluster, GpuId, GpuMask, HostId};

/// Maximum number of jobs that an error names.
const NAMED_MAX: usize = 5;
/// Maximum number of suspects of a state; later ones of the list are dropped.
const SUSPECTS_MAX: usize = 4096;
/// A probability that changes by less than this counts as unchanged for decisions.
const PROBABILITY_STEP: f64 = 0.01;
/// A component's factor (share of its rate) that changes by less than this counts as unchanged for decisions.
const FACTOR_STEP: f64 = 0.02;

/// A job to which GPUs are allocated.
#[derive(Clone, Debug, PartialEq)]
pub struct NewJob {
    /// Its id ([`check_job_id`]).
    pub id: String,
    /// Its GPUs, at least one.
    pub gpus: Allocation,
    /// Bus bandwidth that the job uses, GB/s, if known.
    pub demand_gb_per_s: Option<f64>,
    /// Predicted bus bandwidth, GB/s.
    pub predicted_gb_per_s: Option<f64>,
    /// Message size of the prediction.
    pub size: Option<Bytes>,
    /// Length of the lease, seconds: without a renewal within this time the job loses its GPUs. None: no lease.
    pub lease_s: Option<f64>,
}

/// The result of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Allocated {
    /// The job got the GPUs now.
    Now,
    /// The job held the GPUs before; a repeated command changes nothing.
    Already,
}

/// The result of a release.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Release {
    /// The jobs and their GPUs, in the order of the request.
    pub jobs: Vec<JobHeld>,
}

/// The result of a drain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drain {
    /// Ids of the jobs that hold some of the GPUs and keep them, oldest first.
    pub jobs_going_on: Vec<String>,
}

impl State {
    /// Allocates all of the GPUs to a job, or none of them.
    ///
    /// # Errors
    /// A GPU that another job holds or that is drained; a job that holds other GPUs already.
    pub fn allocate<'a>(&mut self, job: &NewJob, by: impl Into<By<'a>>) -> Result<Allocated, StateError> {
        self.allocate_once(job, None, by).map(|d| d.value)
    }

    /// The same, executed once under an idempotency key.
    pub fn allocate_once<'a>(
        &mut self,
        job: &NewJob,
        once: Option<&Once>,
        by: impl Into<By<'a>>,
    ) -> Result<Done<Allocated>, StateError> {
        let by = &by.into();
        self.once(once, by, |tx, cluster, path| {
            if let Some(held) = job_held(tx, cluster, path, &job.id)? {
                let same = held.gpus == job.gpus && by.sees(&held.made_by);
                return if same { Ok(Allocated::Already) } else { Err(exists(cluster, &held)) };
            }
            take(tx, cluster, path, job, None, by)?;
            Ok(Allocated::Now)
        })
    }

    /// Releases the GPUs of all these jobs, or of none. Returns the GPUs of each job.
    pub fn release(&mut self, ids: &[String]) -> Result<Vec<JobHeld>, StateError> {
        self.release_once(ids, None, 0.0).map(|d| d.value.jobs)
    }

    /// The same, executed once under an idempotency key.
    pub fn release_once<'a>(
        &mut self,
        ids: &[String],
        once: Option<&Once>,
        by: impl Into<By<'a>>,
    ) -> Result<Done<Release>, StateError> {
        let by = &by.into();
        self.once(once, by, |tx, cluster, path| {
            let held = |id: &String| job_held(tx, cluster, path, id)?.ok_or_else(|| unknown(tx, path, id));
            let jobs = ids.iter().map(held).collect::<Result<Vec<_>, _>>()?; // read before any change: on an error all jobs keep their GPUs
            jobs.iter().try_for_each(|j| owned(j, by))?;
            for j in &jobs {
                give_back(tx, cluster, path, j, "release", by)?;
            }
            Ok(Release { jobs })
        })
    }

    /// Drains GPUs: no job gets them from now on. Jobs that hold some of them keep them. A repetition replaces the reason. Returns the jobs
    /// that hold some of them.
    pub fn drain<'a>(&mut self, gpus: &Allocation, reason: &str, by: impl Into<By<'a>>) -> Result<Drain, StateError> {
        self.drain_once(gpus, reason, None, by).map(|d| d.value)
    }

    /// The same, executed once under an idempotency key.
    pub fn drain_once<'a>(
        &mut self,
        gpus: &Allocation,
        reason: &str,
        once: Option<&Once>,
        by: impl Into<By<'a>>,
    ) -> Result<Done<Drain>, StateError> {
        let by = &by.into();
        if reason.len() > REASON_BYTES_MAX || reason.chars().any(char::is_control) {
            return Err(StateError::Invalid(format!(
                "a reason is one line of at most {REASON_BYTES_MAX} bytes without control characters; it has {} bytes",
                reason.len()
            )));
        }
        self.once(once, by, |tx, cluster, path| {
            let fail = |e: SqlError| StateError::of("write to", path, &e);
            let insert = "INSERT INTO drained (host, gpu, since_unix_s, reason) VALUES (?1, ?2, ?3, ?4) \
                          ON CONFLICT (host, gpu) DO UPDATE SET reason = ?4";
            let running = "SELECT j.since_unix_s, j.id FROM held AS h JOIN job AS j ON j.id = h.job \
                           WHERE h.host = ?1 AND h.gpu = ?2";
            let mut going_on: Vec<(f64, String)> = Vec::new();
            for g in gpus.gpus() {
                let host = &cluster.host(g.host).name;
                tx.execute(insert, vals![host, g.gpu, by.at_unix_s, reason]).map_err(fail)?;
                going_on.extend(tx.first(running, vals![host, g.gpu]).map_err(fail)?);
            }
            going_on.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
            going_on.dedup();
            let why = if reason.trim().is_empty() { by.why } else { reason };
            log(tx, cluster, path, &By { why, ..*by }, "drain", "", gpus)?;
            Ok(Drain { jobs_going_on: going_on.into_iter().map(|j| j.1).collect() })
        })
    }

    /// Ends the drain of GPUs. Returns the number of GPUs that were drained here (GPUs that the cluster file drains stay drained).
    pub fn undrain(&mut self, gpus: &Allocation) -> Result<usize, StateError> {
        self.undrain_once(gpus, None, 0.0).map(|d| d.value)
    }

    /// The same, executed once under an idempotency key.
    pub fn undrain_once<'a>(
        &mut self,
        gpus: &Allocation,
        once: Option<&Once>,
        by: impl Into<By<'a>>,
    ) -> Result<Done<usize>, StateError> {
        let by = &by.into();
        self.once(once, by, |tx, cluster, path| {
            let fail = |e: SqlError| StateError::of("write to", path, &e);
            let sql = "DELETE FROM drained WHERE host = ?1 AND gpu = ?2";
            let mut n = 0;
            for g in gpus.gpus() {
                n += tx.execute(sql, vals![&cluster.host(g.host).name, g.gpu]).map_err(fail)?;
            }
            if n > 0 {
                log(tx, cluster, path, by, "undrain", "", gpus)?;
            }
            Ok(n)
        })
    }

    /// Replaces the list of suspected components (at most a few thousand are kept). A list that differs by less than 0.01 in every
    /// probability and 0.02 in every factor is not written, so that decisions based on the stored list stay valid. Differences refer to the
    /// stored list: small steps add up until they exceed the limits. Returns true if the list changed.
    pub fn set_suspects(&mut self, new: &[Suspect]) -> Result<bool, StateError> {
        let known = |s: &&Suspect| s.host.index() < self.cluster.hosts.len();
        let mut new: Vec<Suspect> = new.iter().filter(known).take(SUSPECTS_MAX).cloned().collect();
        let name = |h: HostId| self.cluster.host(h).name.clone();
        new.sort_by(|a, b| {
            (a.defect.cmp(&b.defect))
                .then(b.probability.total_cmp(&a.probability))
                .then_with(|| name(a.host).cmp(&name(b.host)))
                .then_with(|| a.component.cmp(&b.component))
        });
        let fail = |e| StateError::of("read", &self.path, &e);
        let stored = self.db.read(fail, |tx| suspects(tx, &self.cluster.host_index(), &self.path))?;
        if stored.len() == new.len() && same_defects(&stored, &new) && alike(stored.iter(), new.iter()) {
            return Ok(false);
        }
        self.write(|tx, cluster, path| {
            let fail = |e: SqlError| StateError::of("write to", path, &e);
            tx.execute("DELETE FROM suspect", &[]).map_err(fail)?;
            let row = |s: &Suspect| -> [Val<'_>; 5] {
                let host = cluster.host(s.host).name.clone();
                [s.defect.into(), host.into(), s.component.clone().into(), s.factor.into(), s.probability.into()]
            };
            let rows: Vec<Val<'_>> = new.iter().flat_map(row).collect();
            tx.insert_rows("suspect (defect, host, component, factor, probability)", 5, &rows).map_err(fail)?;
            tx.execute("UPDATE version SET suspects = suspects + 1", &[]).map_err(fail)?;
            Ok(true)
        })
    }

    /// Runs one write; with a key only once, also if the connection breaks at its end.
    fn once<T: Serialize + for<'de> Deserialize<'de>>(
        &mut self,
        once: Option<&Once>,
        by: &By<'_>,
        work: impl Fn(&Sql<'_>, &Cluster, &Path) -> Result<T, StateError>,
    ) -> Result<Done<T>, StateError> {
        self.once_of(Basis::OfDecisions, once, by, work)
    }

    /// The same for a change of any basis. A write whose commit got no answer, and which its own repetition here finds done, is no
    /// repetition for the caller: no other process acts on it. Two writes under one key have different results where somebody acts on them.
    pub(super) fn once_of<T: Serialize + for<'de> Deserialize<'de>>(
        &mut self,
        basis: Basis,
        once: Option<&Once>,
        by: &By<'_>,
        work: impl Fn(&Sql<'_>, &Cluster, &Path) -> Result<T, StateError>,
    ) -> Result<Done<T>, StateError> {
        let tried = RefCell::new(None);
        self.write_again(basis, once.is_some(), |tx, cluster, path| {
            let fail = |e| StateError::of_key(path, e);
            if let Some(o) = once
                && let Some(kept) = once::look_up(tx, o).map_err(fail)?
            {
                let repeated = *tried.borrow() != Some(kept.outcome.clone());
                return Ok(Done { value: once::outcome(&kept).map_err(fail)?, repeated });
            }
            let value = work(tx, cluster, path)?;
            if let Some(o) = once {
                tried.replace(Some(once::keep(tx, o, &value, None, by.at_unix_s).map_err(fail)?));
            }
            Ok(Done { value, repeated: false })
        })
    }
}

/// True if two lists name the same components under the same defects.
fn same_defects(a: &[Suspect], b: &[Suspect]) -> bool {
    let names = |v: &[Suspect]| -> HashSet<(u32, HostId, String)> {
        v.iter().map(|s| (s.defect, s.host, s.component.clone())).collect()
    };
    names(a) == names(b)
}

/// True if two lists suspect the same components with nearly the same probabilities and factors. The numbers of the defects do not matter.
pub(super) fn alike<'a>(a: impl Iterator<Item = &'a Suspect>, b: impl Iterator<Item = &'a Suspect>) -> bool {
    fn sorted<'a>(v: impl Iterator<Item = &'a Suspect>) -> Vec<&'a Suspect> {
        let mut v: Vec<&Suspect> = v.collect();
        v.sort_by(|x, y| (x.host, &x.component, x.defect).cmp(&(y.host, &y.component, y.defect)));
        v
    }
    let near = |x: &Suspect, y: &Suspect| {
        (x.probability - y.probability).abs() < PROBABILITY_STEP && (x.factor - y.factor).abs() < FACTOR_STEP
    };
    let (a, b) = (sorted(a), sorted(b));
    a.len() == b.len() && a.iter().zip(&b).all(|(x, y)| x.host == y.host && x.component == y.component && near(x, y))
}

pub(super) fn exists(cluster: &Cluster, held: &JobHeld) -> StateError {
    StateError::JobExists { id: held.id.clone(), held: cluster.gpu_list(&held.gpus) }
}

pub(super) fn unknown(tx: &Sql<'_>, path: &Path, id: &str) -> StateError {
    let newest = "SELECT id FROM job ORDER BY since_unix_s DESC, id DESC LIMIT ?1";
    match tx.all(newest, vals![NAMED_MAX as i64]) {
        Ok(known) => StateError::UnknownJob { id: id.chars().take(80).collect(), known },
        Err(e) => StateError::of("read", path, &e),
    }
}

/// A job and its GPUs. O(its GPUs), and O(hosts) for a job that holds some.
pub(super) fn job_held(tx: &Sql<'_>, cluster: &Cluster, path: &Path, id: &str) -> Result<Option<JobHeld>, StateError> {
    let Some(job) = job_row(tx, path, id)? else { return Ok(None) };
    with_gpus(tx, cluster, &cluster.host_index(), path, job).map(Some)
}

/// A job without its GPUs.
pub(super) fn job_row(tx: &Sql<'_>, path: &Path, id: &str) -> Result<Option<JobHeld>, StateError> {
    let sql = format!("SELECT {JOB_COLUMNS} FROM job WHERE id = ?1");
    let mut found: Option<JobHeld> = None;
    let fail = |e: SqlError| StateError::of("read", path, &e);
    tx.each(&sql, vals![id], fail, |row| {
        found = Some(FromRow::of(row).map_err(fail)?);
        Ok(())
    })?;
    Ok(found)
}

/// The job with its GPUs. `index` has the hosts by name.
pub(super) fn with_gpus(
    tx: &Sql<'_>,
    cluster: &Cluster,
    index: &HashMap<&str, HostId>,
    path: &Path,
    mut job: JobHeld,
) -> Result<JobHeld, StateError> {
    let held = "SELECT host, gpu FROM held WHERE job = ?1";
    let held: Vec<(String, i64)> = tx.all(held, vals![&job.id]).map_err(|e| StateError::of("read", path, &e))?;
    let gpus = held.iter().map(|(host, gpu)| gpu_of(cluster, index, path, host, *gpu));
    job.gpus = Allocation::from_gpus(gpus.collect::<Result<Vec<_>, _>>()?);
    Ok(job)
}

/// Checks and writes one job that holds no GPUs yet. `answered` are the digest of the request that placed it, and the answer.
/// O(GPUs of the job) rows.
pub(super) fn take(
    tx: &Sql<'_>,
    cluster: &Cluster,
    path: &Path,
    job: &NewJob,
    answered: Option<(&str, &str)>,
    by: &By<'_>,
) -> Result<(), StateError> {
    check_job_id(&job.id).map_err(StateError::Invalid)?;
    check_lease(job.lease_s)?;
    if job.gpus.is_empty() {
        return Err(StateError::Invalid(format!("job `{}` asks for no GPU", job.id)));
    }
    for (what, v) in [("demand", job.demand_gb_per_s), ("prediction", job.predicted_gb_per_s)] {
        if v.is_some_and(|v| !(0.0..=crate::measurement::BUSBW_GB_PER_S_MAX).contains(&v)) {
            return Err(StateError::Invalid(format!("the {what} of job `{}` is not a bandwidth in GB/s", job.id)));
        }
    }
    let fail = |e: SqlError| StateError::of("write to", path, &e);
    let jobs: usize = tx.one("SELECT count(*) FROM job", &[]).map_err(fail)?;
    if jobs >= JOBS_MAX {
        return Err(StateError::TooManyJobs { max: JOBS_MAX });
    }
    for &(host, mask) in job.gpus.parts() {
        let there = on_host(tx, cluster, path, host)?;
        let file = cluster.type_of(host).all_gpus().minus(cluster.host(host).drained);
        if mask.0 & there.held.0 != 0 || !file.minus(there.drained).contains_all(mask) {
            return Err(not_free(tx, cluster, path, job));
        }
    }
    tx.execute(
        "INSERT INTO job (id, since_unix_s, demand_gb_per_s, predicted_gb_per_s, size_bytes, request, answer, \
         made_by, lease_s, lease_until_unix_s) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        vals![
            &job.id,
            by.at_unix_s,
            job.demand_gb_per_s,
            job.predicted_gb_per_s,
            job.size.map(|s| s.0.min(i64::MAX as u64) as i64),
            answered.map(|a| a.0),
            answered.map(|a| a.1),
            by.who,
            job.lease_s,
            job.lease_s.map(|s| by.at_unix_s + s),
        ],
    )
    .map_err(fail)?;
    let row = |g: GpuId| -> [Val<'_>; 3] { [(&cluster.host(g.host).name).into(), g.gpu.into(), (&job.id).into()] };
    let rows: Vec<Val<'_>> = job.gpus.gpus().flat_map(row).collect();
    tx.insert_rows("held (host, gpu, job)", 3, &rows).map_err(fail)?;
    log(tx, cluster, path, by, "allocate", &job.id, &job.gpus)
}

/// Refuses the change of a job by an author who may change only its own jobs.
pub(super) fn owned(job: &JobHeld, by: &By<'_>) -> Result<(), StateError> {
    if by.own_only && job.made_by != by.who {
        return Err(StateError::NotYours { id: job.id.clone(), made_by: job.made_by.clone() });
    }
    Ok(())
}

/// Takes the GPUs of a job back. `what` is the word of the log.
pub(super) fn give_back(
    tx: &Sql<'_>,
    cluster: &Cluster,
    path: &Path,
    job: &JobHeld,
    what: &str,
    by: &By<'_>,
) -> Result<(), StateError> {
    tx.execute("DELETE FROM job WHERE id = ?1", vals![&job.id]).map_err(|e| StateError::of("write to", path, &e))?;
    log(tx, cluster, path, by, what, &job.id, &job.gpus)
}

/// The held and drained GPUs of one host.
pub(super) struct OnHost {
    pub held: GpuMask,
    pub drained: GpuMask,
    /// Held GPUs with their jobs.
    pub jobs: Vec<(u8, String)>,
}

/// Reads the state of one host. O(its GPUs).
pub(super) fn on_host(tx: &Sql<'_>, cluster: &Cluster, path: &Path, host: HostId) -> Result<OnHost, StateError> {
    let fail = |e: SqlError| StateError::of("read", path, &e);
    let name = &cluster.host(host).name;
    let jobs: Vec<(u8, String)> =
        tx.all("SELECT gpu, job FROM held WHERE host = ?1 ORDER BY gpu", vals![name]).map_err(fail)?;
    let drained: Vec<u8> = tx.all("SELECT gpu FROM drained WHERE host = ?1", vals![name]).map_err(fail)?;
    let mask = |gpus: &mut dyn Iterator<Item = u8>| GpuMask::from_indices(gpus.filter(|g| *g < 32).map(usize::from));
    Ok(OnHost { held: mask(&mut jobs.iter().map(|j| j.0)), drained: mask(&mut drained.into_iter()), jobs })
}

/// The full reason why a job cannot get its GPUs. It reads the state and is therefore called only for an error.
fn not_free(tx: &Sql<'_>, cluster: &Cluster, path: &Path, job: &NewJob) -> StateError {
    let now = match snapshot(tx, cluster, path) {
        Ok(now) => now,
        Err(e) => return e,
    };
    let Some(g) = job.gpus.gpus().find(|g| !now.free.mask(g.host).contains(g.gpu.into())) else {
        return StateError::damaged(path, format!("the GPUs of job `{}` are held and free", job.id));
    };
    let gpu = cluster.gpu_name(g);
    if let Some(by) = now.jobs.iter().find(|j| j.gpus.mask(g.host).contains(g.gpu.into())) {
        return StateError::Held { gpu, job: by.id.clone(), free: now.free.gpu_count() };
    }
    let reason = match now.drained.iter().find(|d| d.gpu == g) {
        Some(d) => d.reason.clone(),
        None => "in the cluster file".into(),
    };
    StateError::Drained { gpu, reason }
}
