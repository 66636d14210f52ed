//! The topology-compactness heuristic of BandPilot's newer code, and the greedy filling that it shares with CasCore.

use crate::hosts::host_sets;
use place::search::hosts::{FreeHost, fill, freest_first};
use place::search::links::{PairSums, weight};
use place::search::topo::choose;
use topology::{Allocation, Cluster, GpuMask};

/// Maximum number of host sets that [`choose_v4`] compares; covers all sets of 16 hosts or fewer.
const HOST_SETS_MAX: usize = 20_000;

/// Topo of arXiv 2506.15595 v4, "Slurm-style". Its public code (`algorithms/slurm.py`) compares all sets of the fewest
/// hosts that can hold the job and takes the best connected. Each set is filled greedily from its first free GPU by the
/// sum of link weights.
///
/// No evaluations; O(host sets x k x free GPUs of a set).
pub fn choose_v4(cluster: &Cluster, free: &Allocation, k: usize) -> Option<Allocation> {
    if k == 0 || free.gpu_count() < k {
        return None;
    }
    let hosts = free.parts();
    let fewest = fill(freest_first(free), k, |_, m, _| m)?.host_count();
    let mut links = PairSums::new(cluster, weight);
    let mut best: Option<(f64, Allocation)> = None;
    let mut sets = 0;
    host_sets(hosts, fewest, k, &mut |chosen| {
        let set: Vec<FreeHost> = chosen.iter().map(|i| hosts[*i]).collect();
        let a = grow_by_links(cluster, &set, k, None);
        let score: f64 = a.parts().iter().map(|&(h, m)| links.score(h, m)).sum();
        if best.as_ref().is_none_or(|b| score > b.0) {
            best = Some((score, a));
        }
        sets += 1;
        sets < HOST_SETS_MAX
    });
    match best {
        Some((_, a)) => Some(a),
        None => choose(cluster, free, k),
    }
}

/// `k` GPUs of a host set. Starts with `seed` (host and GPU; None: the first free one). Each step adds the GPU with the
/// largest sum of link weights to the chosen GPUs; ties go to the first. GPUs of different hosts have no link.
pub(crate) fn grow_by_links(cluster: &Cluster, set: &[FreeHost], k: usize, seed: Option<(usize, usize)>) -> Allocation {
    let mut taken: Vec<FreeHost> = set.iter().map(|h| (h.0, GpuMask::EMPTY)).collect();
    let mut next = seed;
    for _ in 0..k {
        let (i, g) = match next.take() {
            Some(seed) => seed,
            None => {
                let mut best: Option<(f64, usize, usize)> = None;
                for (i, &(h, free)) in set.iter().enumerate() {
                    let paths = &cluster.type_of(h).gpu_paths;
                    for g in free.minus(taken[i].1).iter() {
                        let sum: f64 = taken[i].1.iter().map(|t| weight(paths[g][t])).sum();
                        if best.is_none_or(|b| sum > b.0) {
                            best = Some((sum, i, g));
                        }
                    }
                }
                let Some((_, i, g)) = best else { break };
                (i, g)
            }
        };
        taken[i].1 = taken[i].1.union(GpuMask(1 << g));
    }
    Allocation::new(taken)
}
