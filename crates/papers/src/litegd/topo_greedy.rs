//! LiteGD's greedy topology baseline.

use place::search::links::weight;
use topology::{Allocation, Cluster, GpuId};

/// Topology-aware dispatching with greedy search: LiteGD, section 5.2.
///
/// Every link type has a score. The set begins with the best-connected pair of free GPUs. Each step adds the GPU with
/// the largest sum of scores to the chosen GPUs, until the set has k GPUs. GPUs on different hosts score 0. The paper
/// publishes no scores; these come from the same authors' BandPilot code. Ties go to the first, in order of host and
/// index. No evaluations; O(free GPUs x k).
pub fn choose(cluster: &Cluster, free: &Allocation, k: usize) -> Option<Allocation> {
    if k == 0 || free.gpu_count() < k {
        return None;
    }
    let gpus: Vec<GpuId> = free.gpus().collect();
    let between = |a: GpuId, b: GpuId| {
        let paths = &cluster.type_of(a.host).gpu_paths;
        if a.host == b.host { weight(paths[usize::from(a.gpu)][usize::from(b.gpu)]) } else { 0.0 }
    };
    // Only pairs inside a host have a score. Without such a pair, the set begins with the first GPU.
    let mut start = (0.0, 0);
    for i in 0..gpus.len() {
        for j in (i + 1..gpus.len()).take_while(|j| gpus[*j].host == gpus[i].host) {
            let w = between(gpus[i], gpus[j]);
            if w > start.0 {
                start = (w, i);
            }
        }
    }
    let mut gains = vec![0.0; gpus.len()];
    let mut taken = vec![false; gpus.len()];
    let mut next = start.1;
    let mut chosen = Vec::with_capacity(k);
    loop {
        taken[next] = true;
        chosen.push(gpus[next]);
        if chosen.len() == k {
            return Some(Allocation::from_gpus(chosen));
        }
        let here =
            gpus.partition_point(|g| g.host < gpus[next].host)..gpus.partition_point(|g| g.host <= gpus[next].host);
        for i in here {
            gains[i] += between(gpus[i], gpus[next]);
        }
        next = (0..gpus.len())
            .filter(|i| !taken[*i])
            .fold(None, |b: Option<usize>, i| if b.is_none_or(|b| gains[i] > gains[b]) { Some(i) } else { b })?;
    }
}
