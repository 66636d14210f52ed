//! Parts of lists: `limit` and `after`.

use crate::problem::Problem;
use engine::{HostsAnswer, JobAnswer};
use schemars::JsonSchema;
use serde::Deserialize;

/// Maximum length of a page.
const LIMIT_MAX: usize = 10_000;

/// A part of the jobs.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AllocationsQuery {
    /// Only jobs whose id comes after this one; the jobs are then in the order of their ids.
    pub after: Option<String>,
    /// Maximum number of jobs, 1 to 10,000, in the order of their ids; none: all jobs, oldest first.
    pub limit: Option<usize>,
}

/// A part of the hosts.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostsQuery {
    /// Only hosts after this one.
    pub after: Option<String>,
    /// Maximum number of hosts, 1 to 10,000; none: all.
    pub limit: Option<usize>,
}

/// A part of the tasks.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TasksQuery {
    /// Only tasks after this number.
    pub after: Option<u64>,
    /// Maximum number of tasks, 1 to 10,000; none: all.
    pub limit: Option<usize>,
}

/// The length of a page.
pub fn length(limit: Option<usize>) -> Result<usize, Problem> {
    match limit {
        None => Ok(usize::MAX),
        Some(n) if (1..=LIMIT_MAX).contains(&n) => Ok(n),
        Some(n) => Err(Problem::bad("bad_request", format!("`limit` is {n}; 1 to {LIMIT_MAX} was expected"))),
    }
}

/// A page of jobs, and `after` of the next page.
pub fn jobs(mut jobs: Vec<JobAnswer>, q: &AllocationsQuery) -> Result<(Vec<JobAnswer>, Option<String>), Problem> {
    let most = length(q.limit)?;
    if q.limit.is_some() || q.after.is_some() {
        jobs.sort_by(|a, b| a.id.cmp(&b.id));
    }
    if let Some(after) = &q.after {
        jobs.retain(|j| j.id > *after);
    }
    let more = jobs.len() > most;
    jobs.truncate(most);
    let next = jobs.last().filter(|_| more).map(|j| j.id.clone());
    Ok((jobs, next))
}

/// A page of hosts.
pub fn hosts(mut a: HostsAnswer, q: &HostsQuery) -> Result<HostsAnswer, Problem> {
    let most = length(q.limit)?;
    if let Some(after) = &q.after {
        let Some(n) = a.hosts.iter().position(|h| h.name == *after) else {
            return Err(Problem::bad(
                "unknown_host",
                format!("`after`: there is no host `{}`", crate::read::excerpt(after)),
            ));
        };
        a.hosts.drain(..=n);
    }
    a.hosts.truncate(most);
    Ok(a)
}
