//! Leases: a job with a lease loses its GPUs unless it is renewed in time. Somebody must call [`State::expire`], such as
//! a server; nothing expires while no process does.

use super::change::{give_back, job_held, owned, unknown};
use super::event::log;
use super::read::JobHeld;
use super::{State, StateError};
use crate::db::vals;
use crate::readings::By;

/// Shortest lease, seconds.
pub const LEASE_S_MIN: f64 = 1.0;
/// Longest lease, seconds: 30 days.
pub const LEASE_S_MAX: f64 = 30.0 * 86_400.0;
/// Largest difference of the clocks of servers that share a state, seconds.
pub const CLOCKS_DIFFER_S: f64 = 300.0;
/// Maximum number of jobs that one call of [`State::expire`] releases: it holds the write lock meanwhile.
const EXPIRED_MAX: i64 = 1000;

pub(super) fn check_lease(lease_s: Option<f64>) -> Result<(), StateError> {
    match lease_s {
        Some(s) if !(LEASE_S_MIN..=LEASE_S_MAX).contains(&s) => {
            Err(StateError::Invalid(format!("the lease is {s} seconds; {LEASE_S_MIN} to {LEASE_S_MAX} was expected")))
        }
        _ => Ok(()),
    }
}

impl State {
    /// Starts the lease of a job again, with this length. A job without a lease gets one.
    pub fn renew(&mut self, id: &str, lease_s: f64, by: &By<'_>) -> Result<JobHeld, StateError> {
        check_lease(Some(lease_s))?;
        self.write(|tx, cluster, path| {
            let mut job = job_held(tx, cluster, path, id)?.ok_or_else(|| unknown(tx, path, id))?;
            owned(&job, by)?;
            (job.lease_s, job.lease_until_unix_s) = (Some(lease_s), Some(by.at_unix_s + lease_s));
            let sql = "UPDATE job SET lease_s = ?2, lease_until_unix_s = ?3 WHERE id = ?1";
            tx.execute(sql, vals![id, job.lease_s, job.lease_until_unix_s])
                .map_err(|e| StateError::of("write to", path, &e))?;
            log(tx, cluster, path, by, "renew", id, &job.gpus)?;
            Ok(job)
        })
    }

    /// The end of the lease that ends first, seconds since 1970. Reads one row.
    pub fn first_lease_end(&self) -> Result<Option<f64>, StateError> {
        let sql = "SELECT min(lease_until_unix_s) FROM job WHERE lease_until_unix_s IS NOT NULL";
        self.read_one(|tx| tx.one(sql, &[]))
    }

    /// Releases the jobs whose lease has ended, at most a thousand, and returns them.
    pub fn expire(&mut self, by: &By<'_>) -> Result<Vec<JobHeld>, StateError> {
        self.write(|tx, cluster, path| {
            let sql = "SELECT id FROM job WHERE lease_until_unix_s < ?1 ORDER BY lease_until_unix_s, id LIMIT ?2";
            let ids: Vec<String> =
                tx.all(sql, vals![by.at_unix_s, EXPIRED_MAX]).map_err(|e| StateError::of("read", path, &e))?;
            let mut ended = Vec::with_capacity(ids.len());
            for id in &ids {
                let job = job_held(tx, cluster, path, id)?.ok_or_else(|| unknown(tx, path, id))?;
                give_back(tx, cluster, path, &job, "expire", by)?;
                ended.push(job);
            }
            Ok(ended)
        })
    }

    /// Starts every lease again that would end earlier that way, because clients could not renew while no server ran, and every lease that
    /// lasts longer than its length by more than [`CLOCKS_DIFFER_S`], because the clock went back. Returns the number of leases.
    pub fn restart_leases(&mut self, at_unix_s: f64) -> Result<usize, StateError> {
        self.write(|tx, _, path| {
            tx.execute(
                "UPDATE job SET lease_until_unix_s = ?1 + lease_s \
                 WHERE lease_until_unix_s < ?1 + lease_s OR lease_until_unix_s > ?1 + lease_s + ?2",
                vals![at_unix_s, CLOCKS_DIFFER_S],
            )
            .map_err(|e| StateError::of("write to", path, &e))
        })
    }
}
