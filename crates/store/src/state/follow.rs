//! A snapshot from an earlier one: the log says which jobs came and went, so only they are read.
//!
//! A full snapshot reads a row per held GPU. After a commit of 16 GPUs in a cluster of 10,240 that is thousands of rows for one job. Every
//! change of jobs and drains writes its entry of the log in its own transaction, under the lock of all writes, so the entries after the
//! earlier snapshot name what changed. Leases change without an entry when a server starts, so they are read again; suspects have a version
//! of their own. The numbers of jobs, held GPUs and drained GPUs must agree in the end; a state that something else has changed is read whole.

use super::change::{job_row, with_gpus};
use super::read::{Head, JobHeld, Snapshot, drained, finished, head, snapshot, suspects};
use super::{State, StateError};
use crate::db::{Sql, SqlError, vals};
use std::collections::{BTreeSet, HashMap};

/// Most entries of the log that are followed; after more, the whole state is read.
const ENTRIES_MAX: i64 = 512;

/// What entries of the log say.
#[derive(Default)]
struct Changes {
    jobs: BTreeSet<String>,
    drains: bool,
}

/// The changes since an entry; none if an entry has a kind that this version does not know.
fn changes(tx: &Sql<'_>, after: i64) -> Result<Option<Changes>, SqlError> {
    let entries: Vec<(String, String)> = tx.all("SELECT what, subject FROM event WHERE id > ?1", vals![after])?;
    let mut all = Changes::default();
    for (what, subject) in entries {
        match what.as_str() {
            "allocate" | "release" | "expire" | "renew" => _ = all.jobs.insert(subject),
            "drain" | "undrain" => all.drains = true,
            "observe" | "fit" | "fit_refused" | "promote" | "correct" | "withdraw" | "diagnose" | "token"
            | "revoke" | "task" | "cancel" => {}
            _ => return Ok(None),
        }
    }
    Ok(Some(all))
}

impl State {
    /// The whole state, read like [`State::snapshot`], from an earlier snapshot of the same state. O(GPUs of the jobs that came since) rows,
    /// and a short row per lease.
    pub fn snapshot_after(&self, before: &Snapshot) -> Result<Snapshot, StateError> {
        let fail = |e: SqlError| StateError::of("read", &self.path, &e);
        self.db.read(fail, |tx| {
            let head = head(tx).map_err(fail)?;
            if head.fingerprint != self.fingerprint {
                return Err(StateError::ClusterChanged(self.path.clone()));
            }
            if head.version == before.version {
                return Ok(before.clone());
            }
            match self.follow(tx, before, &head)? {
                Some(now) => Ok(now),
                None => snapshot(tx, &self.cluster, &self.path),
            }
        })
    }

    /// The snapshot at `head`; none if it must be read whole.
    fn follow(&self, tx: &Sql<'_>, before: &Snapshot, head: &Head) -> Result<Option<Snapshot>, StateError> {
        let (cluster, path) = (&self.cluster, self.path.as_path());
        let fail = |e: SqlError| StateError::of("read", path, &e);
        if head.version < before.version || !(0..=ENTRIES_MAX).contains(&(head.event - before.event)) {
            return Ok(None); // an older copy of the state took its place, or much happened
        }
        let Some(changes) = changes(tx, before.event).map_err(fail)? else { return Ok(None) };
        let index = cluster.host_index();
        let mut jobs: Vec<JobHeld> = before.jobs.iter().filter(|j| !changes.jobs.contains(&j.id)).cloned().collect();
        for id in &changes.jobs {
            if let Some(job) = job_row(tx, path, id)? {
                jobs.push(with_gpus(tx, cluster, &index, path, job)?);
            }
        }
        jobs.sort_by(|a, b| a.since_unix_s.total_cmp(&b.since_unix_s).then_with(|| a.id.cmp(&b.id)));
        let leases = "SELECT id, lease_s, lease_until_unix_s FROM job WHERE lease_until_unix_s IS NOT NULL";
        let leases: Vec<(String, f64, f64)> = tx.all(leases, &[]).map_err(fail)?;
        let leases: HashMap<String, (f64, f64)> = leases.into_iter().map(|(id, s, until)| (id, (s, until))).collect();
        for job in &mut jobs {
            (job.lease_s, job.lease_until_unix_s) = leases.get(&job.id).copied().unzip();
        }
        let drained = if changes.drains { drained(tx, cluster, &index, path)? } else { before.drained.clone() };
        let suspects = match head.suspects_version == before.suspects_version {
            true => before.suspects.clone(),
            false => suspects(tx, &index, path)?,
        };
        let held: usize = jobs.iter().map(|j| j.gpus.gpu_count()).sum();
        if (jobs.len(), held, drained.len()) != (head.jobs, head.held, head.drained) {
            return Ok(None);
        }
        Ok(Some(finished(cluster, jobs, drained, suspects, head)))
    }
}
