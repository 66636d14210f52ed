//! Brings the server's state up to the claims, and reports the bandwidths that jobs measured.

use super::{Controller, MIRROR, NAMES};
use crate::ask::AskError;
use crate::names::JOB_PREFIX;
use crate::plan::{Plan, is_over};
use crate::readings;
use k8s_openapi::api::core::v1::Pod;
use std::time::{Duration, Instant};

/// Time that the end of a job's pods may be on its way when its claims are free already.
const ENDING: Duration = Duration::from_secs(5);

impl Controller {
    /// Brings the server's state up to the claims: jobs without claims are released, claims without a job are recorded.
    pub(super) async fn mirror(&mut self, plan: &Plan) -> Result<(), AskError> {
        if self.named.is_none_or(|at| at.elapsed() > NAMES) {
            self.server.read_names().await?;
            self.named = Some(Instant::now());
        }
        if self.mirrored.is_none_or(|at| at.elapsed() > MIRROR) {
            self.known = self.server.jobs(JOB_PREFIX).await?.into_iter().collect();
            self.mirrored = Some(Instant::now());
        }
        let ends = |j: &&String| !plan.jobs.contains_key(*j) && !self.is_in_doubt(j);
        let over: Vec<String> = self.known.iter().filter(ends).cloned().collect();
        for job in over {
            if !self.report(&job).await {
                continue;
            }
            match self.server.release(&job).await {
                // It is listed again with the server's jobs.
                Err(e @ AskError::Refused { .. }) => self.log_once(format!("{job} stays in the server's state: {e}")),
                other => other?,
            }
            self.known.remove(&job);
        }
        for (job, claims) in &plan.jobs {
            if self.known.contains(job) {
                continue;
            }
            let claims = claims.iter().filter_map(|c| self.world.claims.get(c));
            let names: Vec<String> = claims.flat_map(|c| self.names_of(plan, c)).collect();
            match self.server.record(job, &names).await {
                Err(e @ AskError::Refused { .. }) => (self.log)(&format!("{job} is not in the server's state: {e}")),
                other => other?,
            }
            self.known.insert(job.clone()); // a refusal is told once
        }
        Ok(())
    }

    /// Gives the server what a job measured, before its GPUs are given back; false if its pods' end is not known yet. A job without readings, and readings
    /// that the server refuses, cost nothing else.
    async fn report(&mut self, job: &str) -> bool {
        let pods: Vec<&Pod> =
            self.world.pods.all().filter(|p| crate::claim::own_job(&p.metadata) == Some(job)).collect();
        if pods.iter().any(|p| !is_over(p)) {
            let since = self.ending.entry(job.to_owned()).or_insert_with(Instant::now);
            if since.elapsed() < ENDING {
                return false;
            }
        }
        self.ending.remove(job);
        if !pods.iter().any(|p| readings::messages(p).next().is_some()) {
            return true;
        }
        let gpus = match self.server.gpus_of(job).await {
            Ok(gpus) => gpus.unwrap_or(0),
            Err(e) => {
                (self.log)(&format!("{job}: what it measured is lost: {e}"));
                return true;
            }
        };
        let (found, wrong) = readings::of(pods, gpus);
        for why in wrong {
            self.log_once(why);
        }
        if !found.is_empty() {
            match self.server.report(job, &found).await {
                Ok(()) => (self.log)(&format!("{job}: {} readings", found.len())),
                Err(e) => (self.log)(&format!("{job}: what it measured is lost: {e}")),
            }
        }
        true
    }
}
