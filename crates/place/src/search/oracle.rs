//! The allocation with the highest score, for any model.

use super::Search;
use super::hosts::choose;
use crate::exact::{COMBINATIONS_MAX, SearchResult, best_of, combinations, enumerate};
use crate::objective::Objective;
use crate::options::HostOptions;
use crate::request::{Contention, Refusal};
use crate::shape::Shape;
use predict::{Candidates, HostShare};
use topology::{Allocation, GpuMask, HostId};

/// Maximum number of k-subsets of the free GPUs that are all judged (18 free GPUs never have more).
pub const SUBSETS_MAX: u128 = 50_000;

/// The oracle of both papers (denominator of GBE): the allocation with the highest score of all.
///
/// BandPilot searches by brute force. LiteGD (section 5.3) takes the best intra-host group per host and count, combines
/// them over all splits and prunes; that is exact only if the GPUs of a host differ in intra bandwidth alone. This
/// oracle:
///
/// - If the free GPUs have at most [`SUBSETS_MAX`] k-subsets, judges every k-subset: exact for any model.
/// - Otherwise, without other jobs, uses [`crate::exact`]: exact for models that see a host's GPUs through their
///   number, NIC rate and intra bandwidth, and never fall when the intra bandwidth rises.
/// - Otherwise, with other jobs, judges every split with every GPU set of a host that no other set dominates. A
///   dominating set has the same number of GPUs, the same NIC rate alone and merged with each job on the host (where
///   NICs are shared by physics, also as many GPUs on NICs of each rate that the same jobs use), and at least the same
///   intra bandwidth alone and merged. Exact under the same condition.
///
/// One batch of at most [`COMBINATIONS_MAX`] candidates; larger requests are refused.
pub struct OracleSearch;

impl Search for OracleSearch {
    fn name(&self) -> &'static str {
        "oracle"
    }
    fn keeps_to_rule(&self) -> bool {
        true
    }
    fn search(&self, objective: &Objective, keep: usize) -> Result<SearchResult, Refusal> {
        let before = objective.evaluations();
        let free = objective.request.usable(objective.cluster)?;
        let k = objective.request.gpus;
        let mut candidates = Candidates::new();
        if choose(free.gpu_count(), k) <= SUBSETS_MAX {
            every_subset(objective, &free, k, &mut candidates);
            if candidates.is_empty() {
                // Exact search determines which pods or limits cannot be kept.
                return crate::exact::search(objective, keep);
            }
        } else if !objective.contended() {
            return crate::exact::search(objective, keep);
        } else {
            let options: Vec<HostOptions> =
                free.parts().iter().map(|&(h, m)| undominated(objective, h, m, k)).collect();
            let shape = Shape::new(objective.request, &options)?;
            let n = shape.combinations().unwrap_or_else(|| combinations(&options, k));
            if n > u128::from(COMBINATIONS_MAX) {
                return Err(Refusal::TooLarge { combinations: n, limit: COMBINATIONS_MAX });
            }
            if !enumerate(&options, &shape, &mut candidates) {
                return Err(Refusal::TooLarge { combinations: n, limit: candidates.len() as u64 });
            }
        }
        let mut scores = Vec::new();
        objective.scores(&candidates, &mut scores);
        let evaluations = objective.evaluations() - before;
        Ok(SearchResult { best: best_of(objective, &candidates, &scores, keep.max(1)), evaluations })
    }
}

/// Every k-subset of the free GPUs that satisfies the request's pods and limits.
fn every_subset(objective: &Objective, free: &Allocation, k: usize, out: &mut Candidates) {
    fn go(
        objective: &Objective,
        hosts: &[(HostId, GpuMask)],
        k: usize,
        chosen: &mut Vec<HostShare>,
        out: &mut Candidates,
    ) {
        if k == 0 {
            let counts = || chosen.iter().map(|p| usize::from(p.count)).collect::<Vec<_>>();
            if !objective.request.asks_shape() || objective.request.accepts_counts(&counts()) {
                out.push(chosen);
            }
            return;
        }
        let Some((&(host, free), others)) = hosts.split_first() else { return };
        let rest: usize = others.iter().map(|h| h.1.count()).sum();
        if rest >= k {
            go(objective, others, k, chosen, out);
        }
        for m in free.subsets().filter(|m| m.count() <= k && m.count() + rest >= k) {
            chosen.push(objective.part(host, m));
            go(objective, others, k - m.count(), chosen, out);
            chosen.pop();
        }
    }
    go(objective, free.parts(), k, &mut Vec::new(), out);
}

/// The properties in which interchangeable GPU sets of a host agree.
#[derive(PartialEq)]
struct Seen {
    /// NIC rates, alone and merged with every job on the host.
    nic_rates: Vec<u64>,
    /// Where NICs are shared by physics: the rate of every NIC, the jobs that use it, and the number of chosen GPUs
    /// next to it. Sorted, because NICs that agree in all three are interchangeable.
    nics: Vec<(u64, u32, usize)>,
}

/// The GPU sets of a host that no other dominates, by count.
fn undominated(objective: &Objective, host: HostId, free: GpuMask, gpus_max: usize) -> HostOptions {
    let (cluster, ty) = (objective.cluster, objective.cluster.type_of(host));
    let jobs: Vec<GpuMask> =
        objective.request.jobs.iter().map(|j| j.gpus.mask(host)).filter(|m| !m.is_empty()).collect();
    let users = |nic: usize| {
        let uses = |m: &GpuMask| ty.nics_touched(*m) >> nic & 1;
        jobs.iter().enumerate().fold(0u32, |bits, (j, m)| bits | uses(m) << j)
    };
    let physical = objective.request.contention == Contention::Physical;
    let nics: Vec<(u64, u32)> = (0..if physical { ty.nics.len() } else { 0 })
        .map(|n| (cluster.nic_rate(host, n).gb_per_s().to_bits(), users(n)))
        .collect();
    let nearest: Vec<u32> = (0..ty.gpu_count()).map(|g| ty.nearest_nics(g)).collect();
    let look = |m: GpuMask| {
        let with: Vec<HostShare> = std::iter::once(GpuMask::EMPTY)
            .chain(jobs.iter().copied())
            .map(|j| objective.part(host, m.union(j)))
            .collect();
        let gpus_on = |n: usize| m.iter().filter(|g| nearest[*g] >> n & 1 == 1).count();
        let mut seen = Seen {
            nic_rates: with.iter().map(|p| p.nic_gb_per_s.to_bits()).collect(),
            nics: nics.iter().enumerate().map(|(n, (rate, users))| (*rate, *users, gpus_on(n))).collect(),
        };
        seen.nics.sort_unstable();
        let intra: Vec<f64> = with.iter().map(|p| p.intra_gb_per_s).collect();
        (with[0], seen, intra)
    };
    let mut by_count: Vec<Vec<(HostShare, Seen, Vec<f64>)>> = Vec::new();
    by_count.resize_with(free.count().min(gpus_max), Vec::new);
    let no_worse = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| a >= b);
    for m in free.subsets() {
        let Some(kept) = by_count.get_mut(m.count() - 1) else { continue };
        let new = look(m);
        if kept.iter().any(|old| old.1 == new.1 && no_worse(&old.2, &new.2)) {
            continue;
        }
        kept.retain(|old| !(old.1 == new.1 && no_worse(&new.2, &old.2)));
        kept.push(new);
    }
    HostOptions { by_count: by_count.into_iter().map(|c| c.into_iter().map(|o| o.0).collect()).collect() }
}
