//! Chooses GPUs for a job on a snapshot of the state, without committing.

use crate::answer::PlaceAnswer;
use crate::avoid::Suspicion;
use crate::error::EngineError;
use crate::hold::Engine;
use crate::request::{PlaceQuery, PlaceRequest};
use place::{Answer, Job, Request, Search};
use predict::Model;
use store::By;
use store::measurement::SIZE_BYTES_MAX;
use store::state::Snapshot;
use topology::{Allocation, Bytes, GpuMask};

/// A decision: the answer, and its data for the state.
pub(crate) struct Decided {
    pub answer: PlaceAnswer,
    pub gpus: Allocation,
    pub predicted_gb_per_s: Option<f64>,
    pub size: Bytes,
}

impl Engine {
    /// Chooses GPUs for a job. With `commit` the job holds them when the function returns. `by` is the author and the
    /// present time.
    ///
    /// # Errors
    /// No model; a request that is malformed or cannot be met; with `commit`, the errors of [`store::state::State::commit`], and
    /// [`EngineError::Conflict`] if other clients were faster [`crate::ATTEMPTS_MAX`] times.
    pub fn place<'a>(&self, query: &PlaceQuery, by: impl Into<By<'a>>) -> Result<PlaceAnswer, EngineError> {
        check_size(query.request.size)?;
        if let Some(job) = &query.commit {
            return self.place_and_commit(query, job, &by.into());
        }
        let (model, search) = (self.model()?, self.search(&query.search, query.seed)?);
        let snapshot = if self.has_state() { Some(self.snapshot()?) } else { None };
        Ok(self.decide(&model, &*search, query, snapshot.as_deref())?.answer)
    }

    /// The same for a request in the clients' form.
    pub fn place_request<'a>(&self, request: &PlaceRequest, by: impl Into<By<'a>>) -> Result<PlaceAnswer, EngineError> {
        self.place(&request.read(&self.cluster, &self.searches, self.default_size())?, by)
    }

    /// The message size of requests without one: the largest of the model.
    pub fn default_size(&self) -> Bytes {
        self.model_if_any().and_then(|m| m.sizes().last().copied()).unwrap_or(Bytes::mib(16))
    }

    /// Decides on a snapshot, outside of any lock.
    pub(crate) fn decide(
        &self,
        model: &Model,
        search: &dyn Search,
        query: &PlaceQuery,
        snapshot: Option<&Snapshot>,
    ) -> Result<Decided, EngineError> {
        let request = match snapshot {
            Some(now) => apply_snapshot(&query.request, now),
            None => query.request.clone(),
        };
        let choose = |r: &Request| -> Result<Answer, EngineError> {
            let found = place::answer_with(search, &self.cluster, model, r)?;
            if query.measured.is_empty() {
                return Ok(found);
            }
            found
                .decided(&self.cluster, model, r, &query.measured)
                .map_err(|a| EngineError::NotACandidate { gpus: self.cluster.gpu_list(&a) })
        };
        let suspicion = Suspicion::new(&self.cluster, snapshot.map_or(&[][..], |s| &s.suspects));
        let wary = suspicion.choose(model, &request, &choose)?;
        let mut answer = PlaceAnswer::new(&self.cluster, model, &request, &wary.answer);
        (answer.avoided, answer.suspects_touched) = (wary.avoided, wary.touched);
        answer.network_changes = self.network_changes();
        Ok(Decided {
            answer,
            predicted_gb_per_s: Some(wary.answer.effect.shared_gb_per_s).filter(|_| request.gpus > 1),
            gpus: wary.answer.choice.allocation,
            size: request.size,
        })
    }
}

/// Refuses a message size that a store does not accept: a job is observed at the size that it was placed for.
pub(crate) fn check_size(size: Bytes) -> Result<(), EngineError> {
    if (1..=SIZE_BYTES_MAX).contains(&size.0) {
        return Ok(());
    }
    Err(EngineError::bad(format!("the message size is {} bytes; 1 to {SIZE_BYTES_MAX} was expected", size.0)))
}

/// The request with the present state: only GPUs that are free now, and the running jobs as neighbours.
fn apply_snapshot(request: &Request, now: &Snapshot) -> Request {
    let free = |&(h, m): &(_, GpuMask)| (h, GpuMask(m.0 & now.free.mask(h).0));
    let running = now.jobs.iter().filter(|j| request.jobs.iter().all(|k| k.id != j.id)).map(|j| Job {
        id: j.id.clone(),
        gpus: j.gpus.clone(),
        demand_gb_per_s: j.demand_gb_per_s,
        duty: 1.0,
    });
    Request {
        free: Allocation::new(request.free.parts().iter().map(free)),
        jobs: request.jobs.iter().cloned().chain(running).collect(),
        ..request.clone()
    }
}
