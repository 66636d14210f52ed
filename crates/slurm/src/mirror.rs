//! Slurm's books in the state, for the other doors of the same state: its nodes that are down or drained, and its jobs.
//!
//! Slurm stays the truth. Drains that start with [`DRAIN`] and jobs named [`JOB`] plus a number are Slurm's, and only these are
//! changed here.

use crate::books::{Job, Node, held};
use crate::decider::{Decider, Unable, status};
use engine::{AllocateRequest, DrainRequest, ReleaseRequest, Request, UndrainRequest};
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

/// True if Slurm starts no job on a node in this state: `IDLE+CLOUD+POWERED_DOWN` is a node that Slurm wakes for a job, `IDLE*` one that does
/// not answer.
pub fn is_out(state: &str) -> bool {
    let out = |w: &str| {
        let base = w.trim_end_matches(|c: char| !c.is_ascii_alphabetic());
        matches!(base, "DOWN" | "FAIL" | "FAILING" | "INVALID_REG" | "NOT_RESPONDING" | "POWERING_DOWN" | "UNKNOWN")
            || base.starts_with("DRAIN")
            || base.starts_with("MAINT")
            || w.contains('*')
    };
    state.split('+').any(out)
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
pub fn update(decider: &dyn Decider, nodes: &[Node], jobs: &[Job], now_unix_s: f64) -> Result<Changes, Unable> {
    let cluster = decider.cluster();
    let status = status(decider, now_unix_s)?;
    let mut changes = Changes::default();
    let ask = |request: Request| decider.decide(&request, now_unix_s).map(drop);
    let done = |at: usize, what: Result<(), Unable>, changes: &mut Changes| match what {
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
            done(1, ask(Request::Undrain(UndrainRequest { gpus, key: None })), &mut changes);
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
        done(3, release(decider, id, now_unix_s), &mut changes);
    }
    for (id, gpus) in running.iter().filter(|(id, gpus)| known.get(id) != Some(gpus)) {
        let request =
            AllocateRequest { job: format!("{JOB}{id}"), gpus: cluster.gpu_names(gpus), ..AllocateRequest::default() };
        done(2, ask(Request::Allocate(request)), &mut changes);
    }
    // Last: a job that runs on a draining node is recorded before the drain refuses it.
    for node in nodes.iter().filter(|n| is_out(&n.state)) {
        let gpus = gpus_of(node, &|g| !drained.contains(g));
        if !gpus.is_empty() {
            let request = DrainRequest { gpus, reason: format!("{DRAIN}{}", node.state), key: None };
            done(0, ask(Request::Drain(request)), &mut changes);
        }
    }
    Ok(changes)
}

/// Releases a job of Slurm's.
pub fn release(decider: &dyn Decider, id: u32, now_unix_s: f64) -> Result<(), Unable> {
    let request = ReleaseRequest { jobs: vec![format!("{JOB}{id}")], key: None };
    decider.decide(&Request::Release(request), now_unix_s).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_slurm_wakes_are_not_out() {
        for here in
            ["IDLE", "MIXED", "ALLOCATED+CLOUD", "IDLE+CLOUD+POWERED_DOWN", "ALLOCATED+POWERING_UP", "IDLE+PLANNED"]
        {
            assert!(!is_out(here), "{here}");
        }
        for out in [
            "DOWN",
            "DOWN*",
            "IDLE*",
            "IDLE*+CLOUD",
            "IDLE+DRAIN",
            "MIXED+DRAINING",
            "IDLE+MAINTENANCE",
            "DOWN+POWERED_DOWN",
        ] {
            assert!(is_out(out), "{out}");
        }
        for out in ["IDLE+FAIL", "IDLE+NOT_RESPONDING", "IDLE+POWERING_DOWN", "IDLE+INVALID_REG"] {
            assert!(is_out(out), "{out}");
        }
    }
}
