//! Locality first, then the bandwidth that running jobs leave.

use super::topo_v4::grow_by_links;
use crate::hosts::host_sets;
use place::search::hosts::{FreeHost, fill, freest_first};
use place::search::links::{PairSums, weight};
use place::search::{admit, one};
use place::{Objective, Refusal, Search, SearchResult};
use predict::{Candidates, HostShare};
use std::collections::HashSet;
use topology::{Allocation, Cluster, HostId};

/// Number of host sets that are re-ranked (the authors' `shortlist_limit`).
const SHORTLIST: usize = 12;
/// Maximum number of host sets that compete for the short list. The authors' code takes all, which is feasible up to
/// about 30 hosts. Sets of the least busy hosts come first, then sets of the hosts with the most free GPUs.
const HOST_SETS_MAX: usize = 20_000;
/// Number of hosts that are tried beyond the minimum (the authors' setting).
const EXTRA_HOSTS: usize = 1;

/// CasCore-like: a baseline of arXiv 2506.15595 v4.
///
/// The paper compares with "CasCore"; we know no paper of that name. The authors' public code
/// (`algorithms/network_baselines.py`) describes it as locality-aware candidates, re-ranked by shared-resource
/// compatibility, formerly `NetworkLocality`. This search follows that code in three steps:
///
/// 1. Forms sets of the fewest hosts that could hold the job and of one host more. The order is: fewest hosts shared
///    with running jobs, then most free GPUs, then best links.
/// 2. Fills the first twelve sets greedily by link labels.
/// 3. Selects the set that shares the fewest hosts with jobs, then the one with the highest bandwidth, then the best
///    links.
///
/// Our choices: bandwidth is the objective's score (stand-alone, or among the jobs), where the authors use the
/// bandwidth that their contention model admits. Their next tie-breaker (margin to capacity) is left out. Evaluations:
/// 12 at most, in one batch.
pub struct CasCore;

impl Search for CasCore {
    fn name(&self) -> &'static str {
        "cascore"
    }
    fn search(&self, objective: &Objective, _keep: usize) -> Result<SearchResult, Refusal> {
        let before = objective.evaluations();
        let free = admit(objective, "cascore")?;
        let k = objective.request.gpus;
        let busy: HashSet<HostId> = objective.request.jobs.iter().flat_map(|j| j.gpus.parts()).map(|p| p.0).collect();
        let shared = |hosts: &[FreeHost]| hosts.iter().filter(|h| busy.contains(&h.0)).count();
        let mut links = PairSums::new(objective.cluster, weight);

        let mut sets = compact_sets(objective, &free, k, &busy);
        sets.sort_by_cached_key(|set| {
            let available: usize = set.iter().map(|h| h.1.count()).sum();
            let linked: f64 = set.iter().map(|h| links.score(h.0, h.1)).sum();
            (shared(set), std::cmp::Reverse(available), std::cmp::Reverse(linked.to_bits()), set.clone())
        });
        sets.truncate(SHORTLIST);

        let mut candidates = Candidates::new();
        let mut filled: Vec<(usize, f64)> = Vec::new();
        for set in &sets {
            let a = fill_greedily(objective.cluster, set, k);
            let parts: Vec<HostShare> = a.parts().iter().map(|&(h, m)| objective.part(h, m)).collect();
            filled.push((shared(set), a.parts().iter().map(|&(h, m)| links.score(h, m)).sum()));
            candidates.push(&parts);
        }
        let mut scores = Vec::new();
        objective.scores(&candidates, &mut scores);
        let best = (0..filled.len()).min_by(|&a, &b| {
            let by_shared = filled[a].0.cmp(&filled[b].0);
            by_shared.then(scores[b].total_cmp(&scores[a])).then(filled[b].1.total_cmp(&filled[a].1))
        });
        Ok(one(objective, candidates.allocation(best.expect("the freest hosts hold k GPUs together")), before))
    }
}

/// Sets of hosts that can hold `k` GPUs: of the minimum size for entirely free hosts and of [`EXTRA_HOSTS`] more. If no
/// such set can hold them, sets of the smallest size that can.
fn compact_sets(objective: &Objective, free: &Allocation, k: usize, busy: &HashSet<HostId>) -> Vec<Vec<FreeHost>> {
    let mut hosts = free.parts().to_vec();
    hosts.sort_by_key(|(h, m)| (busy.contains(h), std::cmp::Reverse(m.count()), *h));
    let capacity = objective.cluster.types.iter().map(|t| t.gpu_count()).max().unwrap_or(1);
    let least = k.div_ceil(capacity.max(1)).max(1);
    let mut out: Vec<Vec<FreeHost>> = Vec::new();
    for size in least..=hosts.len() {
        if size > least + EXTRA_HOSTS && !out.is_empty() {
            break;
        }
        host_sets(&hosts, size, k, &mut |chosen| {
            let mut set: Vec<FreeHost> = chosen.iter().map(|i| hosts[*i]).collect();
            set.sort_unstable();
            out.push(set);
            out.len() < HOST_SETS_MAX
        });
    }
    if out.is_empty() {
        // The limit ended the search before a set that holds the job. The hosts with the most free GPUs hold it.
        out.push(fill(freest_first(free), k, |_, m, _| m).map_or_else(Vec::new, |a| a.parts().to_vec()));
    }
    out
}

/// Greedy growth by link labels inside a host set. Starts with the GPU that has the largest sum of weights to all
/// others of the set.
fn fill_greedily(cluster: &Cluster, set: &[FreeHost], k: usize) -> Allocation {
    let mut seed: Option<(f64, usize, usize)> = None;
    for (i, &(h, free)) in set.iter().enumerate() {
        let paths = &cluster.type_of(h).gpu_paths;
        for g in free.iter() {
            let sum: f64 = free.iter().map(|t| weight(paths[g][t])).sum();
            if seed.is_none_or(|b| sum > b.0) {
                seed = Some((sum, i, g));
            }
        }
    }
    grow_by_links(cluster, set, k, seed.map(|s| (s.1, s.2)))
}
