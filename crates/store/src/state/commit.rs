//! Committing a decision that was made on a snapshot.
//!
//! A decision is valid if the state did not change since its snapshot, or if the change does not concern the hosts of
//! the choice. On these hosts the same jobs must hold the same GPUs, the same GPUs must be drained (so the chosen GPUs
//! are free and the predicted contention holds), and the same components must be suspected with nearly the same
//! probabilities. A job that starts or ends on other hosts does not void the decision: the choice was the best one at
//! the moment of the snapshot, and its prediction still holds.

use super::change::{NewJob, alike, exists, job_held, on_host, take};
use super::read::{Snapshot, Suspect, suspects, versions};
use super::{Basis, State, StateError};
use crate::db::{Sql, SqlError, vals};
use crate::once::{self, Once};
use crate::readings::By;
use std::collections::HashMap;
use std::path::Path;
use topology::HostId;

/// A decision to commit.
#[derive(Clone, Copy, Debug)]
pub struct Commit<'a> {
    /// The job with its chosen GPUs.
    pub job: &'a NewJob,
    /// The snapshot on which the choice is based.
    pub snapshot: &'a Snapshot,
    /// [`crate::once::digest`] of the request; it identifies a repetition.
    pub request: &'a str,
    /// The answer; a repetition gets it again.
    pub answer: &'a str,
    /// The client's idempotency key.
    pub once: Option<&'a Once>,
    /// The author and the present time.
    pub by: By<'a>,
}

/// The result of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Committed {
    /// The job has the GPUs.
    Granted,
    /// The same request was answered before. The value is that answer.
    Repeated(String),
    /// The basis of the decision has changed; nothing was written. The caller must decide again on a new snapshot.
    Changed,
}

impl State {
    /// The answer to the request that placed a job; none for a job of named GPUs or an unknown job. Reads one row.
    pub fn kept_answer(&self, job: &str) -> Result<Option<String>, StateError> {
        let error = |e: &SqlError| StateError::of("read", &self.path, e);
        self.db.read(
            |e| error(&e),
            |tx| {
                tx.first("SELECT answer FROM job WHERE id = ?1 AND answer <> ''", vals![job])
                    .map_err(|e: SqlError| error(&e))
            },
        )
    }

    /// The earlier answer to the same request, found by its key or by its job, which still holds its GPUs. The answer about a job is for who
    /// sees the job.
    ///
    /// # Errors
    /// The key was used for another request; the job holds GPUs of another request, or its author is of another tenant.
    pub fn answered(
        &self,
        job: &str,
        request: &str,
        once: Option<&Once>,
        by: &By<'_>,
    ) -> Result<Option<String>, StateError> {
        self.db.read(
            |e| StateError::of("read", &self.path, &e),
            |tx| {
                if let Some(answer) = answered(tx, &self.path, job, request, once, by)? {
                    return Ok(Some(answer));
                }
                match job_held(tx, &self.cluster, &self.path, job)? {
                    Some(held) => Err(exists(&self.cluster, &held)),
                    None => Ok(None),
                }
            },
        )
    }

    /// Allocates the chosen GPUs to the job if the decision is valid (see the module). O(GPUs of the chosen hosts) under the lock.
    ///
    /// # Errors
    /// Those of [`State::answered`]; the limits of [`State::allocate`].
    pub fn commit(&mut self, c: &Commit<'_>) -> Result<Committed, StateError> {
        let neighbours = neighbours(c); // before the lock is taken
        // The digest of the request identifies a commit that was done although its end was not heard of.
        self.write_again(Basis::OfDecisions, true, |tx, cluster, path| {
            if let Some(answer) = answered(tx, path, &c.job.id, c.request, c.once, &c.by)? {
                return Ok(Committed::Repeated(answer));
            }
            if let Some(held) = job_held(tx, cluster, path, &c.job.id)? {
                return Err(exists(cluster, &held));
            }
            let (version, suspects_version) = versions(tx).map_err(|e| StateError::of("read", path, &e))?;
            if version != c.snapshot.version {
                if suspects_version != c.snapshot.suspects_version {
                    let now = suspects(tx, &cluster.host_index(), path)?;
                    let chosen = |s: &&Suspect| !c.job.gpus.mask(s.host).is_empty();
                    if !alike(c.snapshot.suspects.iter().filter(chosen), now.iter().filter(chosen)) {
                        return Ok(Committed::Changed);
                    }
                }
                let drained = c.snapshot.drained_gpus();
                for (host, jobs) in &neighbours {
                    let now = on_host(tx, cluster, path, *host)?;
                    if now.jobs != *jobs || now.drained != drained.mask(*host) {
                        return Ok(Committed::Changed);
                    }
                }
            }
            let kept = if c.answer.len() <= once::ANSWER_BYTES_MAX { c.answer } else { "" };
            take(tx, cluster, path, c.job, Some((c.request, kept)), &c.by)?;
            if let Some(o) = c.once {
                let keep = once::keep(tx, o, &(), Some(c.answer), c.by.at_unix_s);
                keep.map_err(|e| StateError::of_key(path, e))?;
            }
            Ok(Committed::Granted)
        })
    }
}

/// For each host of the choice: the held GPUs and their jobs in the snapshot, ascending.
fn neighbours(c: &Commit<'_>) -> Vec<(HostId, Vec<(u8, String)>)> {
    let mut by_host: HashMap<HostId, Vec<(u8, String)>> =
        c.job.gpus.parts().iter().map(|p| (p.0, Vec::new())).collect();
    for j in &c.snapshot.jobs {
        for (host, mask) in j.gpus.parts() {
            if let Some(there) = by_host.get_mut(host) {
                there.extend(mask.iter().map(|g| (g as u8, j.id.clone())));
            }
        }
    }
    by_host.values_mut().for_each(|v| v.sort());
    by_host.into_iter().collect()
}

fn answered(
    sql: &Sql<'_>,
    path: &Path,
    job: &str,
    request: &str,
    once: Option<&Once>,
    by: &By<'_>,
) -> Result<Option<String>, StateError> {
    if let Some(o) = once
        && let Some(kept) = once::look_up(sql, o).map_err(|e| StateError::of_key(path, e))?
        && let Some(answer) = kept.answer
    {
        return Ok(Some(answer));
    }
    let kept = "SELECT answer, made_by FROM job WHERE id = ?1 AND request = ?2 AND answer <> ''";
    let kept: Option<(String, String)> =
        sql.first(kept, vals![job, request]).map_err(|e: SqlError| StateError::of("read", path, &e))?;
    Ok(kept.filter(|(_, made_by)| by.sees(made_by)).map(|(answer, _)| answer))
}
