//! What a tenant sees: its own jobs.
//!
//! The name of a client of a tenant is `TENANT/NAME`. Such a client sees the jobs that clients of its tenant made, and the
//! free and drained GPUs; jobs of others exist for it neither in lists nor by name. A client with the scope `operate` sees
//! everything.

use crate::app::App;
use crate::auth::Client;
use crate::problem::Problem;
use axum::http::StatusCode;
use engine::{Answer, EngineError, Request};
use std::collections::{HashMap, HashSet};
pub use store::tenant_of;

/// The word for a job of another tenant.
const OTHER: &str = "another tenant";

/// Which jobs a client sees.
pub struct View {
    tenant: String,
    /// Its jobs, and since when they hold GPUs.
    own: HashMap<String, f64>,
    foreign: HashSet<String>,
}

impl View {
    /// The view of a client; none: it sees everything. O(jobs).
    pub async fn of(app: &App, client: &Client) -> Result<Option<View>, Problem> {
        let Some(tenant) = client.tenant().map(str::to_owned) else { return Ok(None) };
        let now = app.work(|engine| engine.snapshot()).await?;
        let (own, foreign): (Vec<_>, Vec<_>) =
            now.jobs.iter().partition(|j| tenant_of(&j.made_by) == Some(tenant.as_str()));
        Ok(Some(View {
            tenant,
            own: own.into_iter().map(|j| (j.id.clone(), j.since_unix_s)).collect(),
            foreign: foreign.into_iter().map(|j| j.id.clone()).collect(),
        }))
    }

    /// True if the client sees this job.
    fn sees(&self, job: &str) -> bool {
        self.own.contains_key(job)
    }

    /// Refuses a request about a job of another tenant. What no job has as its name is the engine's to refuse.
    pub fn check(&self, request: &Request) -> Result<(), Problem> {
        let named = match request {
            Request::Job(r) => &r.job,
            Request::Renew(r) => &r.job,
            Request::Release(r) => return r.jobs.iter().try_for_each(|j| self.check_job(j)),
            Request::Readings(r) => match &r.job {
                Some(job) if self.sees(job) => return Ok(()),
                Some(job) => return Err(unknown(job)), // readings do not say whose job it was
                None => {
                    let detail = "a client of a tenant lists the readings of one of its jobs";
                    let remedy = "add `?job=` with a job that holds GPUs";
                    return Err(Problem::new(StatusCode::FORBIDDEN, "tenant", detail, remedy));
                }
            },
            _ => return Ok(()),
        };
        self.check_job(named)
    }

    fn check_job(&self, job: &str) -> Result<(), Problem> {
        if self.foreign.contains(job) { Err(unknown(job)) } else { Ok(()) }
    }

    /// Removes what the client does not see from an answer.
    pub fn hide(&self, answer: &mut Answer) {
        let name = |job: &mut String| {
            if !self.sees(job) {
                *job = OTHER.into();
            }
        };
        match answer {
            Answer::Status(a) => a.jobs.retain(|j| self.sees(&j.id)),
            Answer::Hosts(a) => {
                a.hosts.iter_mut().flat_map(|h| &mut h.gpus).filter_map(|g| g.job.as_mut()).for_each(name)
            }
            Answer::Place(a) => {
                let contended = a.contention.iter_mut().flat_map(|c| &mut c.jobs);
                contended.for_each(|e| name(&mut e.id));
            }
            Answer::Observe(a) => {
                for c in a.readings.iter_mut().filter_map(|r| r.contention.as_mut()) {
                    *c = "other jobs share its NICs".into();
                }
            }
            // An earlier job of another tenant may have had the name.
            Answer::Readings(a) => a.readings.retain(|r| {
                let since = r.job.as_ref().and_then(|j| self.own.get(j));
                since.zip(r.taken_at_unix_s).is_some_and(|(since, at)| at >= *since)
            }),
            Answer::Events(a) => a.events.retain(|e| self.sees_event(e)),
            Answer::Drain(a) => a.jobs_going_on.retain(|j| self.sees(j)),
            _ => {}
        }
    }

    /// True if the client sees an event: those of its tenant, and those that name no job and no token.
    pub fn sees_event(&self, e: &store::state::Event) -> bool {
        let about_all = ["drain", "undrain", "diagnose", "fit", "fit_refused", "promote"].contains(&e.what.as_str());
        about_all || tenant_of(&e.who) == Some(self.tenant.as_str()) || (e.what == "expire" && self.sees(&e.subject))
    }
}

/// An error of the engine for a client with a view: its sentence may name jobs of others.
pub fn refused(e: EngineError) -> Problem {
    let p = Problem::from(e);
    match p.code.as_str() {
        "unknown_job" | "not_yours" => unknown(""),
        "gpu_held" | "job_exists" | "no_room" => Problem::new(p.status_code(), &p.code, IN_USE, &p.remedy),
        _ => p,
    }
}

const IN_USE: &str = "the GPUs or the name are in use";

fn unknown(job: &str) -> Problem {
    let detail = if job.is_empty() {
        "no such job holds GPUs".into()
    } else {
        format!("no job `{}` holds GPUs", crate::read::excerpt(job))
    };
    Problem::new(StatusCode::NOT_FOUND, "unknown_job", detail, "name a job of yours that holds GPUs")
}
