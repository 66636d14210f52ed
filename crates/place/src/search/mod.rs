//! Searches: the trait, the registry of names, and the searches that ship.
//!
//! | kind | files |
//! |---|---|
//! | exact, and for clusters of any size | [`crate::exact`], [`oracle`], [`crate::threshold`] |
//! | rules by topology alone | [`topo`], [`slurm`] |
//! | shared parts of searches | [`hosts`], [`links`], [`admit`], [`one`] |
//!
//! A search sees the request through an [`Objective`] and judges every step in one batch. A rule by topology returns
//! one allocation.

pub mod hosts;
pub mod links;
mod oracle;
mod registry;
pub mod slurm;
pub mod topo;

use crate::exact::{Scored, SearchResult};
use crate::objective::Objective;
use crate::request::{Refusal, Request};
use predict::HostShare;
use topology::{Allocation, Cluster};

pub use oracle::OracleSearch;
pub use registry::{BuildSearch, Registry, SearchEntry, SearchNameTaken};

/// A search for GPUs.
///
/// A search maximises [`Objective::scores`] over the allocations that satisfy the request. Deterministic: a seed is
/// part of the search.
pub trait Search: Send + Sync {
    /// The name on the command line.
    fn name(&self) -> &'static str;
    /// True if an answer by this search leaves the simple rule only for a gain larger than the slack
    /// ([`crate::policy`]). False for searches that reproduce another scheduler's choice.
    fn keeps_to_rule(&self) -> bool {
        false
    }
    /// The best `keep` allocations that the search finds, best first.
    fn search(&self, objective: &Objective, keep: usize) -> Result<SearchResult, Refusal>;
}

/// Exact enumeration.
pub struct Exact;

impl Search for Exact {
    fn name(&self) -> &'static str {
        "exact"
    }
    fn keeps_to_rule(&self) -> bool {
        true
    }
    fn search(&self, objective: &Objective, keep: usize) -> Result<SearchResult, Refusal> {
        crate::exact::search(objective, keep)
    }
}

/// A choice by topology alone, which never asks the model.
#[derive(Clone, Copy)]
pub struct Rule {
    /// The name on the command line.
    pub name: &'static str,
    /// Chooses `k` of these free GPUs; None if too few are free.
    pub choose: fn(&Cluster, &Allocation, usize) -> Option<Allocation>,
}

impl Search for Rule {
    fn name(&self) -> &'static str {
        self.name
    }
    fn search(&self, objective: &Objective, _keep: usize) -> Result<SearchResult, Refusal> {
        let free = admit(objective, self.name)?;
        let k = objective.request.gpus;
        let chosen = (self.choose)(objective.cluster, &free, k);
        Ok(one(objective, chosen.ok_or_else(|| not_enough(objective.request, &free))?, objective.evaluations()))
    }
}

/// The shipped rules by topology.
const SHIPPED_RULES: [Rule; 3] = [
    Rule { name: "topo", choose: topo::choose },
    Rule { name: "slurm-bestfit", choose: slurm::best_fit },
    Rule { name: "slurm-topo", choose: slurm::tree },
];

/// The GPUs from which a search that ignores pods and limits may choose; refuses requests that have pods or limits.
pub fn admit(objective: &Objective, search: &'static str) -> Result<Allocation, Refusal> {
    let r = objective.request;
    if r.asks_shape() {
        let what = match (&r.constraints.hosts_max, r.constraints.gpus_per_host_min) {
            _ if !r.pods.is_empty() => "pods",
            (_, 2..) => "a least number of GPUs per host",
            _ => "a most number of hosts",
        };
        return Err(Refusal::Unsupported { search, what });
    }
    r.usable(objective.cluster)
}

/// The refusal for fewer free GPUs than requested.
pub fn not_enough(request: &Request, free: &Allocation) -> Refusal {
    Refusal::NotEnough { wanted: request.gpus, free: free.gpu_count() }
}

/// An allocation with the model's prediction and its score.
pub fn scored(objective: &Objective, allocation: Allocation) -> Scored {
    let parts: Vec<HostShare> = allocation.parts().iter().map(|&(h, m)| objective.part(h, m)).collect();
    Scored {
        same_split_other_hosts: false,
        prediction: objective.model.predict(objective.request.size, &parts),
        score_gb_per_s: objective.effect(&parts).score(objective.request.loss_weight),
        allocation,
    }
}

/// The result of a search that found `allocation`. `before`: evaluations of the objective before the search.
pub fn one(objective: &Objective, allocation: Allocation, before: u64) -> SearchResult {
    let evaluations = objective.evaluations() - before;
    SearchResult { best: vec![scored(objective, allocation)], evaluations }
}
