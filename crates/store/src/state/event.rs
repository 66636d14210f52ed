//! The log of changes: who did what to which GPUs, when and why. A row is written in the transaction of its change, so
//! that there is no change without a row and no row without a change.

use super::{State, StateError};
use crate::db::{Sql, vals};
use crate::readings::By;
use serde::{Deserialize, Serialize};
use std::path::Path;
use topology::{Allocation, Cluster};

/// Maximum number of events that a state keeps; older ones are deleted.
pub const EVENTS_MAX: i64 = 1_000_000;
/// Longest list of GPUs and longest reason of an event, bytes; longer ones end with `...`.
const TEXT_BYTES_MAX: usize = 4096;
/// The same for the GPUs of an allocation, which readings after its end are compared with: every second GPU of 1,280 hosts.
const ALLOCATION_BYTES_MAX: usize = 64 << 10;

/// Clients that write at the same time read the clock before they wait for the lock, so a later row may have an earlier time. It gets
/// that of the row before, unless this is so far ahead, seconds, that a clock was wrong.
const CLOCK_STEP_S: f64 = 300.0;

/// One change of the state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Event {
    /// Its number. Numbers rise, and none is used twice.
    pub id: i64,
    /// Time of the change, seconds since 1970. It does not fall from one number to the next, unless a clock was set back by more than
    /// 300 s.
    pub at_unix_s: f64,
    /// Author of the change: the name of a token, or `command`.
    pub who: String,
    /// `allocate`, `release`, `renew`, `expire`, `drain`, `undrain`, `observe`, `fit`, `fit_refused`, `promote`, `correct`, `withdraw`,
    /// `diagnose`, `token`, `revoke`, `task` or `cancel`.
    pub what: String,
    /// The job, the reading, the token or the task; empty for drains.
    pub subject: String,
    /// The GPUs as a list: `n[0-1]:[0-7]`.
    pub gpus: String,
    /// The reason, if one was given.
    pub why: String,
}

/// Who had the GPUs of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Holder {
    /// The author of the allocation.
    pub who: String,
    /// The GPUs as a list.
    pub gpus: String,
    /// End of the job, seconds since 1970; none: it goes on.
    pub ended_at_unix_s: Option<f64>,
}

fn short(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.into();
    }
    let end = (0..=most).rev().find(|n| text.is_char_boundary(*n)).unwrap_or(0);
    format!("{}...", &text[..end])
}

/// Writes one event in the transaction of its change. O(GPUs).
pub(super) fn log(
    tx: &Sql<'_>,
    cluster: &Cluster,
    path: &Path,
    by: &By<'_>,
    what: &str,
    subject: &str,
    gpus: &Allocation,
) -> Result<(), StateError> {
    let most = if what == "allocate" { ALLOCATION_BYTES_MAX } else { TEXT_BYTES_MAX };
    let gpus = if gpus.is_empty() { String::new() } else { short(&cluster.gpu_list(gpus), most) };
    let insert = "INSERT INTO event (at_unix_s, who, what, subject, gpus, why) \
                  SELECT CASE WHEN newest > ?1 AND newest <= ?7 THEN newest ELSE ?1 END, ?2, ?3, ?4, ?5, ?6 \
                  FROM (SELECT coalesce((SELECT at_unix_s FROM event ORDER BY id DESC LIMIT 1), ?1) AS newest) AS n \
                  WHERE true RETURNING id";
    let at = by.at_unix_s;
    tx.one(insert, vals![at, by.who, what, subject, gpus, short(by.why, TEXT_BYTES_MAX), at + CLOCK_STEP_S])
        .and_then(|id: i64| tx.execute("DELETE FROM event WHERE id <= ?1", vals![id - EVENTS_MAX]))
        .map_err(|e| StateError::of("write to", path, &e))?;
    Ok(())
}

impl State {
    /// Logs a change that another file holds, such as a reading in a store. The version of the state stays: nothing on which a decision
    /// is based changes.
    pub fn log(&mut self, by: &By<'_>, what: &str, subject: &str, gpus: &Allocation) -> Result<(), StateError> {
        let State { path, db, cluster, .. } = self;
        db.write(|e| StateError::of("write to", path, &e), |tx| log(tx, cluster, path, by, what, subject, gpus))
    }

    /// The events after number `after`, oldest first, at most `limit`.
    pub fn events(&self, after: i64, limit: usize) -> Result<Vec<Event>, StateError> {
        let sql = "SELECT id, at_unix_s, who, what, subject, gpus, why FROM event WHERE id > ?1 ORDER BY id LIMIT ?2";
        let rows: Vec<(i64, f64, String, String, String, String, String)> =
            self.read_one(|tx| tx.all(sql, vals![after, limit.min(i64::MAX as usize) as i64]))?;
        let event =
            |(id, at_unix_s, who, what, subject, gpus, why)| Event { id, at_unix_s, who, what, subject, gpus, why };
        Ok(rows.into_iter().map(event).collect())
    }

    /// The number of the newest event; 0 if there is none.
    pub fn last_event(&self) -> Result<i64, StateError> {
        self.read_one(|tx| tx.one("SELECT coalesce(max(id), 0) FROM event", &[]))
    }

    /// Who had the GPUs of a job last, and until when. Reads two rows.
    pub fn last_holder(&self, job: &str) -> Result<Option<Holder>, StateError> {
        let sql = "SELECT what, who, gpus, at_unix_s FROM event \
                   WHERE subject = ?1 AND what IN ('allocate', 'release', 'expire') ORDER BY id DESC LIMIT 2";
        let rows: Vec<(String, String, String, f64)> = self.read_one(|tx| tx.all(sql, vals![job]))?;
        let ended_at_unix_s = rows.first().filter(|r| r.0 != "allocate").map(|r| r.3);
        let holder = |(_, who, gpus, _): (String, String, String, f64)| Holder { who, gpus, ended_at_unix_s };
        Ok(rows.into_iter().find(|r| r.0 == "allocate").map(holder))
    }

    /// The GPUs that a job had when `who` allocated it last, and until when: others may have had its name before and since. Reads the entries of
    /// jobs with this name.
    pub fn last_held_by(&self, job: &str, who: &str) -> Result<Option<Holder>, StateError> {
        const OF_JOB: &str = "subject = ?1 AND what IN ('allocate', 'release', 'expire')";
        let begin = format!(
            "SELECT id, gpus FROM event WHERE {OF_JOB} AND what = 'allocate' AND who = ?2 ORDER BY id DESC LIMIT 1"
        );
        let Some((id, gpus)) = self.read_one(|tx| tx.first::<(i64, String)>(&begin, vals![job, who]))? else {
            return Ok(None);
        };
        let end = format!(
            "SELECT at_unix_s FROM event WHERE {OF_JOB} AND what <> 'allocate' AND id > ?2 ORDER BY id LIMIT 1"
        );
        let ended_at_unix_s = self.read_one(|tx| tx.first(&end, vals![job, id]))?;
        Ok(Some(Holder { who: who.into(), gpus, ended_at_unix_s }))
    }
}
