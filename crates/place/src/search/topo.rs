//! The topology-compactness heuristic: the packing of a topology-aware scheduler.

use super::hosts::{fill, freest_first, singles};
use super::links::{PairSums, weight};
use topology::{Allocation, Cluster};

/// Topo: arXiv 2506.15595, algorithm 5, "which mirrors the strategy employed by schedulers like Slurm".
///
/// Score(S') is the sum of link weights 𝒯 over all pairs of S'. If single hosts can hold the job, the result is the
/// best-scored of *all* their k-subsets (exhaustive). Otherwise S_pool is made of the hosts with the most free GPUs
/// until they can hold the job. The paper then allows "any subset of S_pool"; this code fills hosts in that order, and
/// the last host gives its best-scored GPUs. Ties go to the host with the fewest free GPUs, as in a best fit. The
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
