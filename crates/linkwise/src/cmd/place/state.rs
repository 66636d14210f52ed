//! `--state FILE`: what is free, and who runs beside the job, comes from the operator's state; `--commit JOB` takes the choice in the
//! transaction that it was made in.

use super::wary::{self, Avoided};
use crate::store_errors::OrFailure;
use console::Failure;
use console::now_unix_s;
use place::{Answer, Job, Request};
use predict::Model;
use std::path::PathBuf;
use store::State;
use store::state::{DecideError, NewJob, Snapshot};
use topology::{Allocation, Cluster};

/// Flags of the state.
#[derive(clap::Args)]
pub struct StateArgs {
    /// State file of `linkwise cluster`: what is free and which jobs run beside this one comes from there, and the cluster too
    #[arg(long, conflicts_with = "jobs")]
    pub state: Option<PathBuf>,
    /// Take the chosen GPUs for this job, in one step with choosing them
    #[arg(long, value_name = "JOB", requires = "state", conflicts_with = "requests")]
    pub commit: Option<String>,
}

impl StateArgs {
    /// The state, if one is named.
    pub fn open(&self) -> Result<Option<State>, Failure> {
        if let Some(id) = &self.commit {
            store::state::check_job_id(id).map_err(|e| Failure::input(format!("--commit: {e}")))?;
        }
        self.state.as_deref().map(State::open).transpose().or_failure()
    }
}

/// The cluster to work on: the one that is named, which must be that of the state, or the state's.
pub fn cluster(named: Option<&str>, state: Option<&State>) -> Result<Cluster, Failure> {
    match (named, state) {
        (Some(name), state) => {
            let cluster = console::load_cluster(name)?;
            if let Some(s) = state {
                s.check_cluster(&cluster).or_failure()?;
            }
            Ok(cluster)
        }
        (None, Some(s)) => Ok(s.cluster().clone()),
        (None, None) => Err(Failure::input("--cluster is missing (or --state, whose cluster is taken)")),
    }
}

/// The request as things stand: of its free GPUs those that are, and the running jobs as neighbours.
pub fn as_things_stand(request: &Request, now: &Snapshot) -> Request {
    let both = |a: &Allocation| {
        let free = |&(h, m): &(_, topology::GpuMask)| (h, topology::GpuMask(m.0 & now.free.mask(h).0));
        Allocation::new(a.parts().iter().map(free))
    };
    let running = now.jobs.iter().filter(|j| request.jobs.iter().all(|k| k.id != j.id)).map(|j| Job {
        id: j.id.clone(),
        gpus: j.gpus.clone(),
        demand_gb_per_s: j.demand_gb_per_s,
    });
    let jobs = request.jobs.iter().cloned().chain(running).collect();
    Request { free: both(&request.free), jobs, ..request.clone() }
}

/// The request as it was decided, the answer, and what the choice was kept away from.
type Decided = (Request, Answer, Option<Avoided>);

/// Chooses with what the state says, and takes the choice if `commit` names a job. `choose` is the search.
pub fn answer(
    state: &mut State,
    cluster: &Cluster,
    model: &Model,
    request: &Request,
    commit: Option<&str>,
    choose: &mut dyn FnMut(&Request) -> Result<Answer, Failure>,
) -> Result<Decided, Failure> {
    let mut decide = |now: &Snapshot| -> Result<Decided, Failure> {
        let request = as_things_stand(request, now);
        let (answer, avoided) = wary::choose(cluster, model, &now.suspects, &request, choose)?;
        Ok((request, answer, avoided))
    };
    let Some(id) = commit else { return decide(&state.snapshot().or_failure()?) };
    let decided = state.decide(now_unix_s(), |now| {
        let decided = decide(now)?;
        let (request, answer, _) = &decided;
        let job = NewJob {
            id: id.to_owned(),
            gpus: answer.choice.allocation.clone(),
            demand_gb_per_s: None,
            predicted_gb_per_s: Some(answer.effect.shared_gb_per_s).filter(|_| request.gpus > 1),
            size: Some(request.size),
        };
        Ok((job, decided))
    });
    decided.map_err(|e| match e {
        DecideError::Refused(failure) => failure,
        DecideError::State(e) => Err::<(), _>(e).or_failure().unwrap_err(),
    })
}
