//! Slurm's books in the state, for the other doors of the same state: its nodes that are down or drained, and its jobs.
//!
//! Slurm stays the truth. Drains that start with [`DRAIN`] and jobs named [`JOB`] plus a number are Slurm's, and only these are
//! changed here.

use crate::books::{Job, Node, held};
use engine::{AllocateRequest, DrainRequest, Engine, EngineError, ReleaseRequest, UndrainRequest};
use std::collections::{BTreeMap, HashSet};
use topology::{Allocation, names};

/// Beginning of the reasons of Slurm's drains.
pub const DRAIN: &str = "Slurm: ";
/// Beginning of the ids of Slurm's jobs.
pub const JOB: &str = "slurm-";

/// Number of a job of Slurm's by its id in the state.
pub fn number(id: &str) -> Option<u32> {
    id.strip_prefix(JOB)?.parse().ok()
}

/// True if Slurm starts no job on a node in this state.
pub fn is_out(state: &str) -> bool {
    ["DOWN", "DRAIN", "FAIL", "MAINT", "NOT_RESPONDING"].iter().any(|w| state.contains(w)) || state.ends_with('*')
}

/// Changes of one round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Hosts drained and undrained, jobs added and removed.
    pub counts: [usize; 4],
    /// What could not be done, in words.
    pub refused: Vec<String>,
}

/// Brings the state up to Slurm's books. A job whose GPUs another job of the state holds is refused, and told. O(GPUs + jobs).
///
/// # Errors
/// The state cannot be read.
pub fn update(engine: &Engine, nodes: &[Node], jobs: &[Job], now_unix_s: f64) -> Result<Changes, EngineError> {
    let cluster = engine.cluster();
    let status = engine.status()?;
    let mut changes = Changes::default();
    let done = |at: usize, what: Result<(), EngineError>, changes: &mut Changes| match what {
        Ok(()) => changes.counts[at] += 1,
        Err(e) => changes.refused.push(e.to_string()),
    };
    let drained_names = |ours: bool| -> HashSet<String> {
        let of = status.drained.iter().filter(|d| !ours || d.reason.starts_with(DRAIN));
        of.flat_map(|d| d.gpus.names()).collect()
    };
    let (drained, ours) = (drained_names(false), drained_names(true));
    let gpus_of = |node: &Node, keep: &dyn Fn(&String) -> bool| -> Vec<String> {
        let Some(id) = names::slurm::host(cluster, &node.name) else { return Vec::new() };
        let all = cluster.gpu_names(&Allocation::new([(id, cluster.type_of(id).all_gpus())]));
        all.into_iter().filter(keep).collect()
    };
    for node in nodes.iter().filter(|n| !is_out(&n.state)) {
        let gpus = gpus_of(node, &|g| ours.contains(g));
        if !gpus.is_empty() {
            done(1, engine.undrain(&UndrainRequest { gpus, key: None }, now_unix_s).map(drop), &mut changes);
        }
    }
    let running: BTreeMap<u32, Allocation> = jobs
        .iter()
        .filter(|j| j.state.starts_with("RUNNING"))
        .filter_map(|j| Some((j.id, held(cluster, j)?)))
        .collect();
    let known: BTreeMap<u32, Allocation> =
        status.jobs.iter().filter_map(|j| Some((number(&j.id)?, j.gpus.allocation(cluster)))).collect();
    // A requeued job may run again on other GPUs.
    for id in known.iter().filter(|(id, gpus)| running.get(id) != Some(gpus)).map(|k| *k.0) {
        done(3, release(engine, id, now_unix_s), &mut changes);
    }
    for (id, gpus) in running.iter().filter(|(id, gpus)| known.get(id) != Some(gpus)) {
        let request =
            AllocateRequest { job: format!("{JOB}{id}"), gpus: cluster.gpu_names(gpus), ..AllocateRequest::default() };
        done(2, engine.allocate(&request, now_unix_s).map(drop), &mut changes);
    }
    // Last: a job that runs on a draining node is recorded before the drain refuses it.
    for node in nodes.iter().filter(|n| is_out(&n.state)) {
        let gpus = gpus_of(node, &|g| !drained.contains(g));
        if !gpus.is_empty() {
            let request = DrainRequest { gpus, reason: format!("{DRAIN}{}", node.state), key: None };
            done(0, engine.drain(&request, now_unix_s).map(drop), &mut changes);
        }
    }
    Ok(changes)
}

/// Releases a job of Slurm's.
pub fn release(engine: &Engine, id: u32, now_unix_s: f64) -> Result<(), EngineError> {
    engine.release(&ReleaseRequest { jobs: vec![format!("{JOB}{id}")], key: None }, now_unix_s).map(drop)
}
