//! What changes a state: allocate, release, drain, suspect.

use super::read::{JobHeld, Snapshot, Suspect, snapshot};
use super::{DecideError, JOBS_MAX, REASON_BYTES_MAX, State, StateError, check_job_id};
use rusqlite::{Transaction, params};
use std::path::Path;
use topology::{Allocation, Bytes, Cluster};

/// How many jobs an error names.
const NAMED_MAX: usize = 5;
/// Most suspects that a state keeps, the first ones.
const SUSPECTS_MAX: usize = 4096;

/// A job that wants to hold GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct NewJob {
    /// Its id ([`check_job_id`]).
    pub id: String,
    /// Its GPUs, at least one.
    pub gpus: Allocation,
    /// The bus bandwidth that it uses, if known.
    pub demand_gb_per_s: Option<f64>,
    /// What was predicted for it.
    pub predicted_gb_per_s: Option<f64>,
    /// The message size that it was placed for.
    pub size: Option<Bytes>,
}

/// What an allocation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocated {
    /// The GPUs are the job's now.
    Now,
    /// They were before: a repeated command changes nothing.
    Already,
}

impl State {
    /// Gives GPUs to a job, all or none.
    ///
    /// # Errors
    /// A GPU that another job holds or that is drained; a job that holds other GPUs already.
    pub fn allocate(&mut self, job: &NewJob, at_unix_s: f64) -> Result<Allocated, StateError> {
        self.write(|tx, cluster, path| {
            let now = snapshot(tx, cluster, path)?;
            take(tx, cluster, path, &now, job, at_unix_s)
        })
    }

    /// Chooses and takes in one transaction: `choose` sees what is free while nobody else can take it, and what it returns is the
    /// job's when this returns. `choose` runs with the write lock held: it should take milliseconds.
    pub fn decide<T, E>(
        &mut self,
        at_unix_s: f64,
        choose: impl FnOnce(&Snapshot) -> Result<(NewJob, T), E>,
    ) -> Result<T, DecideError<E>> {
        self.write(|tx, cluster, path| {
            let now = snapshot(tx, cluster, path)?;
            let (job, value) = choose(&now).map_err(DecideError::Refused)?;
            if let Some(held) = now.job(&job.id) {
                return Err(exists(cluster, held).into());
            }
            take(tx, cluster, path, &now, &job, at_unix_s)?;
            Ok(value)
        })
    }

    /// Takes the GPUs of jobs back, of all or of none. Returns what each held.
    pub fn release(&mut self, ids: &[String]) -> Result<Vec<JobHeld>, StateError> {
        self.write(|tx, cluster, path| {
            let now = snapshot(tx, cluster, path)?;
            let mut released = Vec::new();
            for id in ids {
                let job = now.job(id).ok_or_else(|| StateError::UnknownJob {
                    id: id.chars().take(80).collect(),
                    known: now.jobs.iter().rev().take(NAMED_MAX).map(|j| j.id.clone()).collect(),
                })?;
                tx.execute("DELETE FROM job WHERE id = ?1", [id]).map_err(|e| StateError::of("write to", path, &e))?;
                released.push(job.clone());
            }
            Ok(released)
        })
    }

    /// Marks GPUs as not to be given out. Jobs that hold some of them keep them. Repeating it renews the reason. Returns the jobs that
    /// hold some of them.
    pub fn drain(&mut self, gpus: &Allocation, reason: &str, at_unix_s: f64) -> Result<Vec<JobHeld>, StateError> {
        if reason.len() > REASON_BYTES_MAX || reason.chars().any(char::is_control) {
            return Err(StateError::Invalid(format!(
                "a reason is one line of at most {REASON_BYTES_MAX} bytes; it has {} bytes",
                reason.len()
            )));
        }
        self.write(|tx, cluster, path| {
            let fail = |e: rusqlite::Error| StateError::of("write to", path, &e);
            let sql = "INSERT INTO drained (host, gpu, since_unix_s, reason) VALUES (?1, ?2, ?3, ?4) \
                       ON CONFLICT (host, gpu) DO UPDATE SET reason = ?4";
            for g in gpus.gpus() {
                let host = &cluster.host(g.host).name;
                tx.execute(sql, params![host, g.gpu, at_unix_s, reason]).map_err(fail)?;
            }
            let now = snapshot(tx, cluster, path)?;
            let meet = |j: &JobHeld| gpus.parts().iter().any(|&(h, m)| m.0 & j.gpus.mask(h).0 != 0);
            Ok(now.jobs.into_iter().filter(meet).collect())
        })
    }

    /// Gives drained GPUs back. Returns how many of them were drained here (what the cluster file drains stays drained).
    pub fn undrain(&mut self, gpus: &Allocation) -> Result<usize, StateError> {
        self.write(|tx, cluster, path| {
            let mut n = 0;
            for g in gpus.gpus() {
                n += tx
                    .execute(
                        "DELETE FROM drained WHERE host = ?1 AND gpu = ?2",
                        params![cluster.host(g.host).name, g.gpu],
                    )
                    .map_err(|e| StateError::of("write to", path, &e))?;
            }
            Ok(n)
        })
    }

    /// Replaces the list of suspected components (at most a few thousand are kept).
    pub fn set_suspects(&mut self, suspects: &[Suspect]) -> Result<(), StateError> {
        self.write(|tx, cluster, path| {
            let fail = |e: rusqlite::Error| StateError::of("write to", path, &e);
            tx.execute("DELETE FROM suspect", []).map_err(fail)?;
            let sql = "INSERT INTO suspect (defect, host, component, factor, probability) VALUES (?1, ?2, ?3, ?4, ?5)";
            for s in suspects.iter().take(SUSPECTS_MAX) {
                let host = &cluster.host(s.host).name;
                tx.execute(sql, params![s.defect, host, s.component, s.factor, s.probability]).map_err(fail)?;
            }
            Ok(())
        })
    }
}

fn exists(cluster: &Cluster, held: &JobHeld) -> StateError {
    StateError::JobExists { id: held.id.clone(), held: cluster.gpu_list(&held.gpus) }
}

/// Checks and writes one job.
fn take(
    tx: &Transaction<'_>,
    cluster: &Cluster,
    path: &Path,
    now: &Snapshot,
    job: &NewJob,
    at_unix_s: f64,
) -> Result<Allocated, StateError> {
    check_job_id(&job.id).map_err(StateError::Invalid)?;
    if job.gpus.is_empty() {
        return Err(StateError::Invalid(format!("job `{}` asks for no GPU", job.id)));
    }
    for (what, v) in [("demand", job.demand_gb_per_s), ("prediction", job.predicted_gb_per_s)] {
        if v.is_some_and(|v| !(0.0..=crate::measurement::BUSBW_GB_PER_S_MAX).contains(&v)) {
            return Err(StateError::Invalid(format!("the {what} of job `{}` is no bandwidth in GB/s", job.id)));
        }
    }
    if let Some(held) = now.job(&job.id) {
        return if held.gpus == job.gpus { Ok(Allocated::Already) } else { Err(exists(cluster, held)) };
    }
    if now.jobs.len() >= JOBS_MAX {
        return Err(StateError::TooManyJobs { max: JOBS_MAX });
    }
    if let Some(g) = job.gpus.gpus().find(|g| !now.free.mask(g.host).contains(g.gpu.into())) {
        let gpu = cluster.gpu_name(g);
        if let Some(by) = now.jobs.iter().find(|j| j.gpus.mask(g.host).contains(g.gpu.into())) {
            return Err(StateError::Held { gpu, job: by.id.clone(), free: now.free.gpu_count() });
        }
        let reason = match now.drained.iter().find(|d| d.gpu == g) {
            Some(d) => d.reason.clone(),
            None => "in the cluster file".into(),
        };
        return Err(StateError::Drained { gpu, reason });
    }
    let fail = |e: rusqlite::Error| StateError::of("write to", path, &e);
    tx.execute(
        "INSERT INTO job (id, since_unix_s, demand_gb_per_s, predicted_gb_per_s, size_bytes) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![
            job.id,
            at_unix_s,
            job.demand_gb_per_s,
            job.predicted_gb_per_s,
            job.size.map(|s| s.0.min(i64::MAX as u64) as i64)
        ],
    )
    .map_err(fail)?;
    let mut insert = tx.prepare_cached("INSERT INTO held (host, gpu, job) VALUES (?1, ?2, ?3)").map_err(fail)?;
    for g in job.gpus.gpus() {
        insert.execute(params![cluster.host(g.host).name, g.gpu, job.id]).map_err(fail)?;
    }
    Ok(Allocated::Now)
}
