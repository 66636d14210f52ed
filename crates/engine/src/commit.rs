//! Places a job and allocates its GPUs: decides on a snapshot, commits if the decision is still valid, else decides again.

use crate::answer::{CommittedJob, PlaceAnswer};
use crate::error::EngineError;
use crate::hold::Engine;
use crate::request::{PlaceQuery, PlaceRequest};
use store::once::{ANSWER_BYTES_MAX, digest};
use store::state::{Commit, Committed, NewJob, check_job_id};
use store::{By, Once};

/// Number of decisions without a turn. Later decisions take a turn ([`store::state::Turns`]) and compete only with
/// requests that have none.
pub const ATTEMPTS_FREE: u32 = 3;
/// Largest number of decisions before [`EngineError::Conflict`].
pub const ATTEMPTS_MAX: u32 = 64;

impl Engine {
    /// The answer that placed a job, as the state keeps it; none for a job of named GPUs. Reads one row.
    ///
    /// # Errors
    /// No state; the kept answer is of another version.
    pub fn placed(&self, job: &str) -> Result<Option<PlaceAnswer>, EngineError> {
        let kept = self.reads()?.kept_answer(job)?;
        kept.map(|a| serde_json::from_str(&a).map_err(|e| EngineError::KeptAnswer(e.to_string()))).transpose()
    }

    pub(crate) fn place_and_commit(
        &self,
        query: &PlaceQuery,
        job: &str,
        by: &By<'_>,
    ) -> Result<PlaceAnswer, EngineError> {
        check_job_id(job).map_err(EngineError::bad)?;
        let canonical = PlaceRequest { key: None, ..PlaceRequest::of(&self.cluster, query) };
        let text = serde_json::to_string(&canonical).map_err(EngineError::bad)?;
        let once = query.key.as_deref().map(|k| Once::new(k, &text)).transpose().map_err(EngineError::bad)?;
        let request = digest(&text);
        if let Some(answer) = self.reads()?.answered(job, &request, once.as_ref(), by)? {
            return repeated(&answer);
        }
        let (model, search) = (self.model()?, self.search(&query.search, query.seed)?);
        let mut turn = None;
        for attempt in 1..=ATTEMPTS_MAX {
            if attempt > ATTEMPTS_FREE && turn.is_none() {
                turn = self.turns.as_ref().map(|t| t.take());
            }
            let snapshot = self.snapshot()?;
            // The same request may have been sent twice at the same time, and the other copy was committed first.
            if snapshot.job(job).is_some()
                && let Some(answer) = self.reads()?.answered(job, &request, once.as_ref(), by)?
            {
                return repeated(&answer);
            }
            let decided = self.decide(&model, &*search, query, Some(&snapshot))?;
            let mut answer = decided.answer;
            answer.committed = Some(CommittedJob { job: job.into(), repeated: false, attempts: attempt });
            let new = NewJob {
                id: job.into(),
                gpus: decided.gpus,
                demand_gb_per_s: None,
                predicted_gb_per_s: decided.predicted_gb_per_s,
                size: Some(decided.size),
                lease_s: query.lease_s,
            };
            let commit = Commit {
                job: &new,
                snapshot: &snapshot,
                request: &request,
                answer: &kept(&answer)?,
                once: once.as_ref(),
                by: *by,
            };
            match self.state()?.commit(&commit)? {
                Committed::Granted => return Ok(answer),
                Committed::Repeated(answer) => return repeated(&answer),
                Committed::Changed => {}
            }
        }
        Err(EngineError::Conflict { attempts: ATTEMPTS_MAX })
    }
}

/// The answer in the form that is stored for repetitions. The answer for a job of thousands of GPUs is stored without the rejected
/// candidates and, if it is still too long, without the losses of the neighbours.
fn kept(answer: &PlaceAnswer) -> Result<String, EngineError> {
    let text = |a: &PlaceAnswer| serde_json::to_string(a).map_err(|e| EngineError::KeptAnswer(e.to_string()));
    let whole = text(answer)?;
    if whole.len() <= ANSWER_BYTES_MAX {
        return Ok(whole);
    }
    let mut short =
        PlaceAnswer { runner_ups: Vec::new(), worth_measuring: Vec::new(), packed: None, rule: None, ..answer.clone() };
    let less = text(&short)?;
    match &mut short.contention {
        Some(c) if less.len() > ANSWER_BYTES_MAX => c.jobs.clear(),
        _ => return Ok(less),
    }
    text(&short)
}

fn repeated(answer: &str) -> Result<PlaceAnswer, EngineError> {
    let mut a: PlaceAnswer = serde_json::from_str(answer).map_err(|e| EngineError::KeptAnswer(e.to_string()))?;
    if let Some(c) = &mut a.committed {
        c.repeated = true;
    }
    Ok(a)
}
