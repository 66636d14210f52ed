//! The topology-compactness heuristic, as the paper prints it and as its authors' newer code has it.

use super::hosts::{FreeHost, fill, freest_first, host_sets, singles};
use super::links::{PairSums, weight};
use topology::{Allocation, Cluster, GpuMask};

/// Topo: arXiv 2506.15595, algorithm 5, "which mirrors the strategy employed by schedulers like Slurm".
///
/// Score(S') is the sum of link weights 𝒯 over all pairs of S'. If single hosts can hold the job, the best-scored of *all* their k-subsets
/// (exhaustive); else the freest hosts until they can hold it, S_pool. Where the paper leaves "any subset of S_pool", hosts are filled in
/// that order and the last gives its best-scored GPUs; equal scores go to the host with the fewest free GPUs, as a best fit does. The
/// weights are those of the authors' public code (NVLink 3 to 6 by count, PXB 2, PIX 1.5, SYS 1).
///
/// No evaluations. O(2^GPUs x GPUs) per host type and O(2^GPUs) per different free set of a host.
pub fn choose(cluster: &Cluster, free: &Allocation, k: usize) -> Option<Allocation> {
    if k == 0 || free.gpu_count() < k {
        return None;
    }
    let mut links = PairSums::new(cluster, weight);
    let mut best: Option<(f64, usize, Allocation)> = None;
    for (h, m) in singles(free, k) {
        let s = links.best(h, m, k);
        let (score, spare) = (links.score(h, s), m.count() - k);
        if best.as_ref().is_none_or(|b| score > b.0 || (score == b.0 && spare < b.1)) {
            best = Some((score, spare, Allocation::new([(h, s)])));
        }
    }
    match best {
        Some((_, _, a)) => Some(a),
        None => fill(freest_first(free), k, |h, m, take| links.best(h, m, take)),
    }
}

/// Host sets compared by [`choose_v4`]; with 16 hosts or fewer all.
const HOST_SETS_MAX: usize = 20_000;

/// Topo of arXiv 2506.15595 v4, "Slurm-style": in its public code (`algorithms/slurm.py`) the best-connected of all sets of the fewest hosts
/// that can hold the job, each filled greedily from its first free GPU by the sum of link weights.
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

/// `k` GPUs of a host set, from `seed` (host and GPU; none: the first free one) on, each time the one with the largest sum of link weights to those
/// taken, the first of equals. GPUs of different hosts have no link.
pub(super) fn grow_by_links(cluster: &Cluster, set: &[FreeHost], k: usize, seed: Option<(usize, usize)>) -> Allocation {
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
