//! One job of the state, and its lease.

use crate::error::EngineError;
use crate::hold::Engine;
use crate::jobs::JobAnswer;
use serde::{Deserialize, Serialize};
use store::By;
use store::state::{JobHeld, StateError};

/// Maximum number of jobs that an error names.
const NAMED_MAX: usize = 5;

/// Asks for one job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// The job.
    pub job: String,
}

/// Starts the lease of a job again. A repetition does no harm, so there is no idempotency key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewRequest {
    /// The job.
    #[serde(default)]
    pub job: String,
    /// Length of the lease from now, seconds; none: the length of the present lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_s: Option<f64>,
}

impl Engine {
    /// A job that holds GPUs.
    pub fn job(&self, r: &JobRequest) -> Result<JobAnswer, EngineError> {
        Ok(self.job_answer(&self.held(&r.job)?))
    }

    /// Starts the lease of a job again.
    ///
    /// # Errors
    /// An unknown job; a job without a lease, if the request has no length; the job of another author, if `by` may change only
    /// its own.
    pub fn renew<'a>(&self, r: &RenewRequest, by: impl Into<By<'a>>) -> Result<JobAnswer, EngineError> {
        let length = match r.lease_s {
            Some(s) => s,
            None => self.held(&r.job)?.lease_s.ok_or_else(|| {
                EngineError::bad(format!("job `{}` has no lease: give `lease_s` to start one", r.job))
            })?,
        };
        let job = self.state()?.renew(&r.job, length, &by.into())?;
        Ok(self.job_answer(&job))
    }

    /// Releases the jobs whose lease has ended, at most a thousand; returns their ids. Reads one row if there is none.
    pub fn expire<'a>(&self, by: impl Into<By<'a>>) -> Result<Vec<String>, EngineError> {
        let by = by.into();
        let mut state = self.state()?;
        match state.first_lease_end()? {
            Some(end) if end < by.at_unix_s => Ok(state.expire(&by)?.into_iter().map(|j| j.id).collect()),
            _ => Ok(Vec::new()),
        }
    }

    /// Starts all leases again, because clients could not renew them meanwhile. Returns their number.
    pub fn restart_leases(&self, now_unix_s: f64) -> Result<usize, EngineError> {
        Ok(self.state()?.restart_leases(now_unix_s)?)
    }

    fn held(&self, job: &str) -> Result<JobHeld, EngineError> {
        let now = self.snapshot()?;
        now.job(job).cloned().ok_or_else(|| {
            let known = now.jobs.iter().rev().take(NAMED_MAX).map(|j| j.id.clone()).collect();
            StateError::UnknownJob { id: job.chars().take(80).collect(), known }.into()
        })
    }
}
