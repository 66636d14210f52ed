//! Contention as BandPilot models it (arXiv 2506.15595 v4): jobs that share a host are merged virtually.
//!
//! Two jobs contend only if both span hosts and share one. For a candidate C and a running job J, the GPUs of J on C's
//! hosts join C, and the GPUs of C on J's hosts join J. The two jobs share the smaller bandwidth of the two merged
//! sets. With several running jobs the smallest bandwidth counts. If the sum of the demands exceeds it, each job gets a
//! share in proportion to its demand. A job without demand (BandPilot's "idle" load) does not contend. A merged set
//! that a host cannot hold (by a caller's [`MergeRule`]) is ignored.

use crate::objective::{Effect, Running};
use predict::{BandwidthModel, Candidates, HostShare, HostShareTable};
use rustc_hash::FxHashMap;
use topology::{Allocation, Bytes, GpuMask, HostId};

/// A rule that merges the GPUs of two jobs on one host; see [`crate::Contention::MergeBy`].
#[derive(Debug)]
pub struct MergeRule {
    /// The name in flags and request lines.
    pub name: &'static str,
    /// A host's share of the merged set, from the part of one job and the GPUs of the other on that host; None if the
    /// host cannot hold it.
    pub join: fn(&HostShareTable, &HostShare, GpuMask) -> Option<HostShare>,
}

/// The shipped rule: the union of the exact GPUs.
fn union(table: &HostShareTable, part: &HostShare, others: GpuMask) -> Option<HostShare> {
    Some(if others.is_empty() { *part } else { table.part(part.host, part.mask.union(others)) })
}

/// Writes `a` and the GPUs of `b` on hosts of `a` into `out`; false if a host cannot hold its merged share.
fn joined(merge: &Merge, table: &HostShareTable, a: &[HostShare], b: &[HostShare], out: &mut Vec<HostShare>) -> bool {
    out.clear();
    let join = merge.rule.map_or(union as fn(&HostShareTable, &HostShare, GpuMask) -> Option<HostShare>, |r| r.join);
    let sorted = b.is_sorted_by_key(|q| q.host);
    for p in a {
        let at = if sorted {
            b.binary_search_by_key(&p.host, |q| q.host).ok()
        } else {
            b.iter().position(|q| q.host == p.host)
        };
        let others = at.map_or(GpuMask::EMPTY, |i| b[i].mask);
        match join(table, p, others) {
            Some(part) => out.push(part),
            None => return false,
        }
    }
    true
}

fn parts(table: &HostShareTable, a: &Allocation) -> Vec<HostShare> {
    a.parts().iter().map(|&(h, m)| table.part(h, m)).collect()
}

/// Contention of a candidate with the running jobs on its hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Meeting {
    /// Smallest bandwidth of the merged sets, GB/s; infinite without contention.
    pub capacity_gb_per_s: f64,
    /// Sum of the demands of the contending jobs, GB/s.
    pub others_gb_per_s: f64,
}

impl Meeting {
    /// The share of its demand that each job gets, 0 to 1.
    pub fn share(&self, alone_gb_per_s: f64) -> f64 {
        let demand = alone_gb_per_s + self.others_gb_per_s;
        if demand > self.capacity_gb_per_s { self.capacity_gb_per_s / demand } else { 1.0 }
    }
    /// The score of a search: the new job's share minus the loss of the other jobs. For weights up to 1 it rises with
    /// both bandwidths.
    pub fn score(&self, alone_gb_per_s: f64, loss_weight: f64) -> f64 {
        let share = self.share(alone_gb_per_s);
        alone_gb_per_s * share - loss_weight * self.others_gb_per_s * (1.0 - share)
    }
}

/// The running jobs as inputs of the merge.
#[derive(Clone, Debug)]
pub(crate) struct Merge {
    jobs: Vec<Vec<HostShare>>,
    demands: Vec<f64>,
    /// The jobs with demand on each host, in ascending order.
    on_hosts: FxHashMap<HostId, Vec<u32>>,
    /// A rule of the caller; None: the union of the exact GPUs.
    pub rule: Option<&'static MergeRule>,
}

impl Merge {
    /// Prepares the running jobs that span hosts.
    pub fn new(table: &HostShareTable, running: &[Running], rule: Option<&'static MergeRule>) -> Self {
        let mut on_hosts: FxHashMap<HostId, Vec<u32>> = FxHashMap::default();
        for (j, r) in running.iter().enumerate().filter(|r| r.1.demand_gb_per_s > 0.0) {
            r.gpus.parts().iter().for_each(|p| on_hosts.entry(p.0).or_default().push(j as u32));
        }
        Merge {
            on_hosts,
            jobs: running.iter().map(|r| parts(table, &r.gpus)).collect(),
            demands: running.iter().map(|r| r.demand_gb_per_s).collect(),
            rule,
        }
    }

    /// The jobs that contend with a candidate, in ascending order. O(hosts + jobs met).
    pub fn met(&self, c: &[HostShare]) -> Vec<usize> {
        if c.len() < 2 {
            return Vec::new();
        }
        let mut met: Vec<usize> =
            c.iter().filter_map(|p| self.on_hosts.get(&p.host)).flatten().map(|j| *j as usize).collect();
        met.sort_unstable();
        met.dedup();
        met
    }

    /// The GPUs of each contending job on a host, in order of the jobs.
    pub fn on_host(&self, host: HostId) -> Vec<GpuMask> {
        let jobs = self.jobs.iter().zip(&self.demands).filter(|j| *j.1 > 0.0);
        jobs.filter_map(|(j, _)| j.iter().find(|q| q.host == host).map(|q| q.mask)).collect()
    }

    /// Contention of every candidate, in one batch of predictions. `unlimited` ignores intra bandwidth: an upper bound for all GPU sets of
    /// the same hosts and counts.
    pub fn meetings(
        &self,
        model: &dyn BandwidthModel,
        size: Bytes,
        candidates: &Candidates,
        unlimited: bool,
    ) -> Vec<Meeting> {
        let table = model.share_table(size);
        let mut merged = Candidates::new();
        let mut ends = Vec::with_capacity(candidates.len());
        let mut set = Vec::new();
        for c in candidates.iter() {
            let mut others_gb_per_s = 0.0;
            for j in self.met(c) {
                others_gb_per_s += self.demands[j];
                for (a, b) in [(c, &self.jobs[j][..]), (&self.jobs[j][..], c)] {
                    if joined(self, table, a, b, &mut set) {
                        if unlimited {
                            set.iter_mut().for_each(|p| p.intra_gb_per_s = f64::INFINITY);
                        }
                        merged.push(&set);
                    }
                }
            }
            ends.push((merged.len(), others_gb_per_s));
        }
        let mut means = Vec::new();
        model.means(size, &merged, &mut means);
        let mut from = 0;
        ends.into_iter()
            .map(|(to, others_gb_per_s)| {
                let capacity_gb_per_s = means[from..to].iter().copied().fold(f64::INFINITY, f64::min);
                from = to;
                Meeting { capacity_gb_per_s, others_gb_per_s }
            })
            .collect()
    }

    /// The effect of every candidate on itself and on the running jobs.
    pub fn effects(
        &self,
        model: &dyn BandwidthModel,
        size: Bytes,
        candidates: &Candidates,
        alone_gb_per_s: &[f64],
    ) -> Vec<Effect> {
        let meetings = self.meetings(model, size, candidates, false);
        let each = candidates.iter().zip(alone_gb_per_s).zip(meetings);
        each.map(|((c, alone), meeting)| {
            let share = meeting.share(*alone);
            let mut jobs: Vec<(f64, f64)> = self.demands.iter().map(|d| (*d, *d)).collect();
            self.met(c).into_iter().for_each(|j| jobs[j].1 *= share);
            Effect { alone_gb_per_s: *alone, shared_gb_per_s: alone * share, jobs_gb_per_s: jobs }
        })
        .collect()
    }
}
