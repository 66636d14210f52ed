//! The log of changes: who did what to which GPUs, when and why. A row is written in the transaction of its change, so
//! that there is no change without a row and no row without a change.

use super::{State, StateError};
use crate::readings::By;
use rusqlite::{Connection, TransactionBehavior, params};
use serde::{Deserialize, Serialize};
use std::path::Path;
use topology::{Allocation, Cluster};

/// Maximum number of events that a state keeps; older ones are deleted. About 200 MB.
pub const EVENTS_MAX: i64 = 1_000_000;
/// Longest list of GPUs and longest reason of an event, bytes; longer ones end with `...`.
const TEXT_BYTES_MAX: usize = 4096;

/// One change of the state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Event {
    /// Its number. Numbers rise, and none is used twice.
    pub id: i64,
    /// Time of the change, seconds since 1970.
    pub at_unix_s: f64,
    /// Author of the change: the name of a token, or `command`.
    pub who: String,
    /// `allocate`, `release`, `renew`, `expire`, `drain`, `undrain`, `observe`, `fit`, `fit_refused`, `promote`, `correct`, `withdraw`,
    /// `diagnose`, `token` or `revoke`.
    pub what: String,
    /// The job, the reading or the token; empty for drains.
    pub subject: String,
    /// The GPUs as a list: `n[0-1]:[0-7]`.
    pub gpus: String,
    /// The reason, if one was given.
    pub why: String,
}

fn short(text: &str) -> String {
    if text.len() <= TEXT_BYTES_MAX {
        return text.into();
    }
    let end = (0..=TEXT_BYTES_MAX).rev().find(|n| text.is_char_boundary(*n)).unwrap_or(0);
    format!("{}...", &text[..end])
}

/// Writes one event in the transaction of its change. O(GPUs).
pub(super) fn log(
    tx: &Connection,
    cluster: &Cluster,
    path: &Path,
    by: &By<'_>,
    what: &str,
    subject: &str,
    gpus: &Allocation,
) -> Result<(), StateError> {
    let gpus = if gpus.is_empty() { String::new() } else { short(&cluster.gpu_list(gpus)) };
    let insert = "INSERT INTO event (at_unix_s, who, what, subject, gpus, why) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let forget = "DELETE FROM event WHERE id <= ?1";
    tx.prepare_cached(insert)
        .and_then(|mut s| s.execute(params![by.at_unix_s, by.who, what, subject, gpus, short(by.why)]))
        .and_then(|_| tx.prepare_cached(forget)?.execute([tx.last_insert_rowid() - EVENTS_MAX]))
        .map_err(|e| StateError::of("write to", path, &e))?;
    Ok(())
}

impl State {
    /// Logs a change that another file holds, such as a reading in a store. The version of the state stays: nothing on which a decision
    /// is based changes.
    pub fn log(&mut self, by: &By<'_>, what: &str, subject: &str, gpus: &Allocation) -> Result<(), StateError> {
        let State { path, conn, cluster, .. } = self;
        let fail = |e: rusqlite::Error| StateError::of("write to", path, &e);
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(fail)?;
        log(&tx, cluster, path, by, what, subject, gpus)?;
        tx.commit().map_err(fail)
    }

    /// The events after number `after`, oldest first, at most `limit`.
    pub fn events(&self, after: i64, limit: usize) -> Result<Vec<Event>, StateError> {
        let sql = "SELECT id, at_unix_s, who, what, subject, gpus, why FROM event WHERE id > ?1 ORDER BY id LIMIT ?2";
        let row = |r: &rusqlite::Row<'_>| {
            let (id, at_unix_s, who, what, subject, gpus, why) = r.try_into()?;
            Ok(Event { id, at_unix_s, who, what, subject, gpus, why })
        };
        self.conn
            .prepare_cached(sql)
            .and_then(|mut s| s.query_map(params![after, limit as i64], row)?.collect())
            .map_err(|e| StateError::of("read", &self.path, &e))
    }

    /// The number of the newest event; 0 if there is none.
    pub fn last_event(&self) -> Result<i64, StateError> {
        self.conn
            .prepare_cached("SELECT coalesce(max(id), 0) FROM event")
            .and_then(|mut s| s.query_row([], |r| r.get(0)))
            .map_err(|e| StateError::of("read", &self.path, &e))
    }
}
