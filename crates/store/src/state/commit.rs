//! Committing a decision that was made on a snapshot.
//!
//! A decision stands if the state did not change since its snapshot, or if what it rests on did not: on every host of the choice the same
//! jobs hold the same GPUs and the same GPUs are drained (so the chosen ones are free, and what neighbours cost is what was predicted),
//! and the same components of these hosts are suspected, about as strongly. A job that came or went on other hosts does not void it: it was the best choice at the moment of its
//! snapshot, and is as good as predicted.

use super::change::{NewJob, alike, exists, job_held, on_host, take};
use super::read::{Snapshot, Suspect, suspects, versions};
use super::{State, StateError};
use crate::once::{self, Once};
use rusqlite::{Connection, OptionalExtension};
use std::collections::HashMap;
use std::path::Path;
use topology::HostId;

/// A decision to commit.
#[derive(Clone, Copy, Debug)]
pub struct Commit<'a> {
    /// The job with the GPUs that were chosen for it.
    pub job: &'a NewJob,
    /// What the choice rests on.
    pub snapshot: &'a Snapshot,
    /// [`crate::once::digest`] of the request, to answer its repetition.
    pub request: &'a str,
    /// The answer, to be given again.
    pub answer: &'a str,
    /// The client's idempotency key.
    pub once: Option<&'a Once>,
    /// Now, seconds since 1970.
    pub at_unix_s: f64,
}

/// What came of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Committed {
    /// The GPUs are the job's.
    Granted,
    /// The same request was answered before: the answer of then.
    Repeated(String),
    /// What the decision rests on has changed; nothing was written. Decide again on a new snapshot.
    Changed,
}

impl State {
    /// The answer that the same request got before, by its key or by the job that it placed and that still holds its GPUs.
    ///
    /// # Errors
    /// The key was used for another request; the job holds GPUs that another request gave it.
    pub fn answered(&self, job: &str, request: &str, once: Option<&Once>) -> Result<Option<String>, StateError> {
        let tx = self.conn.unchecked_transaction().map_err(|e| StateError::of("read", &self.path, &e))?;
        if let Some(answer) = answered(&tx, &self.path, job, request, once)? {
            return Ok(Some(answer));
        }
        match job_held(&tx, &self.cluster, &self.path, job)? {
            Some(held) => Err(exists(&self.cluster, &held)),
            None => Ok(None),
        }
    }

    /// Gives the chosen GPUs to the job if the decision stands (see the module). O(GPUs of the chosen hosts) under the lock.
    ///
    /// # Errors
    /// As [`State::answered`]; the limits of [`State::allocate`].
    pub fn commit(&mut self, c: &Commit<'_>) -> Result<Committed, StateError> {
        let neighbours = neighbours(c); // before the lock is taken
        self.write(|tx, cluster, path| {
            if let Some(answer) = answered(tx, path, &c.job.id, c.request, c.once)? {
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
            take(tx, cluster, path, c.job, Some((c.request, kept)), c.at_unix_s)?;
            if let Some(o) = c.once {
                let keep = once::keep(tx, o, &(), Some(c.answer), c.at_unix_s);
                keep.map_err(|e| StateError::of_key(path, e))?;
            }
            Ok(Committed::Granted)
        })
    }
}

/// By host of the choice: which GPU which job held in the snapshot, ascending.
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
    conn: &Connection,
    path: &Path,
    job: &str,
    request: &str,
    once: Option<&Once>,
) -> Result<Option<String>, StateError> {
    if let Some(o) = once
        && let Some(kept) = once::look_up(conn, o).map_err(|e| StateError::of_key(path, e))?
        && let Some(answer) = kept.answer
    {
        return Ok(Some(answer));
    }
    let fail = |e: rusqlite::Error| StateError::of("read", path, &e);
    let sql = "SELECT answer FROM job WHERE id = ?1 AND request = ?2 AND answer <> ''";
    conn.prepare_cached(sql).and_then(|mut s| s.query_row([job, request], |r| r.get(0)).optional()).map_err(fail)
}
