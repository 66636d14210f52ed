//! Contention as BandPilot models it (arXiv 2506.15595 v4): jobs that share a host are merged virtually.
//!
//! Two jobs contend only if both span hosts and share one. For a candidate C and a running job J, the GPUs of J on C's
//! hosts join C, and the GPUs of C on J's hosts join J. The two jobs share the smaller bandwidth of the two merged
//! sets. With several running jobs the smallest bandwidth counts. If the sum of the demands exceeds it, each job gets a
//! share in proportion to its demand. A job without demand (BandPilot's "idle" load) does not contend. A merged set
//! that a host cannot hold (by a caller's [`MergeRule`]) is ignored.
//!
//! A candidate on hundreds of hosts meets most running jobs, and each merged set costs a prediction of all its hosts.
//! Beyond [`MERGED_PARTS_MAX`] the candidate is merged only with the jobs that share the most hosts with it: the set
//! with any other job differs from the candidate on fewer of its hosts. The merged sets on the hosts of the running
//! jobs are always predicted.

use crate::means::Means;
use crate::objective::{Effect, Running};
use predict::{Candidates, HostShare, HostShareTable};
use rustc_hash::FxHashMap;
use topology::{Allocation, GpuMask, HostId};

/// Maximum number of parts of the sets in which a candidate's GPUs are merged with those of running jobs: 16 hosts with
/// 128 jobs are below, 512 hosts are merged with four jobs.
const MERGED_PARTS_MAX: usize = 2048;

/// Number of parts from which a batch of merged sets is predicted, so that its memory stays small.
const BATCH_PARTS: usize = 8192;

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
    if merge.rule.is_none() && a.is_sorted_by_key(|p| p.host) {
        out.extend_from_slice(a);
        for q in b {
            if let Ok(i) = a.binary_search_by_key(&q.host, |p| p.host) {
                out[i] = table.part(q.host, a[i].mask.union(q.mask));
            }
        }
        return true;
    }
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
        self.met_on(c).into_iter().map(|m| m.0).collect()
    }

    /// The jobs that contend with a candidate, in ascending order, each with the number of shared hosts.
    fn met_on(&self, c: &[HostShare]) -> Vec<(usize, usize)> {
        if c.len() < 2 {
            return Vec::new();
        }
        let mut met: Vec<(usize, usize)> =
            c.iter().filter_map(|p| self.on_hosts.get(&p.host)).flatten().map(|j| (*j as usize, 1)).collect();
        met.sort_unstable();
        met.dedup_by(|b, a| {
            a.0 == b.0 && {
                a.1 += b.1;
                true
            }
        });
        met
    }

    /// The number of shared hosts from which a job is merged into the candidate, and the number of jobs with exactly
    /// that number that are merged, first jobs first.
    fn merged_into(&self, c: &[HostShare], met: &[(usize, usize)]) -> (usize, usize) {
        let most = (MERGED_PARTS_MAX / c.len()).max(1);
        if met.len() <= most {
            return (0, 0);
        }
        let mut shared: Vec<usize> = met.iter().map(|m| m.1).collect();
        shared.sort_unstable_by(|a, b| b.cmp(a));
        let least = shared[most - 1];
        (least, shared[..most].iter().filter(|n| **n == least).count())
    }

    /// The GPUs of each contending job on a host, in order of the jobs.
    pub fn on_host(&self, host: HostId) -> Vec<GpuMask> {
        let jobs = self.jobs.iter().zip(&self.demands).filter(|j| *j.1 > 0.0);
        jobs.filter_map(|(j, _)| j.iter().find(|q| q.host == host).map(|q| q.mask)).collect()
    }

    /// Contention of every candidate, in batches of predictions. `unlimited` ignores intra bandwidth: an upper bound for all GPU sets of
    /// the same hosts and counts.
    pub fn meetings(
        &self,
        table: &HostShareTable,
        means: &dyn Means,
        candidates: &Candidates,
        unlimited: bool,
    ) -> Vec<Meeting> {
        let (mut merged, mut parts) = (Candidates::new(), 0);
        let (mut values, mut more) = (Vec::new(), Vec::new());
        let mut ends = Vec::with_capacity(candidates.len());
        let mut set = Vec::new();
        for c in candidates.iter() {
            let mut others_gb_per_s = 0.0;
            let met = self.met_on(c);
            let (least, mut at_least) = self.merged_into(c, &met);
            for (j, shared) in met {
                others_gb_per_s += self.demands[j];
                let into_candidate = shared > least || (shared == least && at_least > 0);
                at_least -= usize::from(into_candidate && shared == least);
                let of_job = &self.jobs[j][..];
                let sets = [(c, of_job), (of_job, c)];
                for (a, b) in sets.into_iter().skip(usize::from(!into_candidate)) {
                    if joined(self, table, a, b, &mut set) {
                        if unlimited {
                            set.iter_mut().for_each(|p| p.intra_gb_per_s = f64::INFINITY);
                        }
                        merged.push(&set);
                        parts += set.len();
                    }
                }
            }
            ends.push((values.len() + merged.len(), others_gb_per_s));
            if parts > BATCH_PARTS {
                means.all(&merged, &mut more);
                values.append(&mut more);
                merged.clear();
                parts = 0;
            }
        }
        means.all(&merged, &mut more);
        values.append(&mut more);
        let mut from = 0;
        ends.into_iter()
            .map(|(to, others_gb_per_s)| {
                let capacity_gb_per_s = values[from..to].iter().copied().fold(f64::INFINITY, f64::min);
                from = to;
                Meeting { capacity_gb_per_s, others_gb_per_s }
            })
            .collect()
    }

    /// The effect of every candidate on itself and on the running jobs.
    pub fn effects(
        &self,
        table: &HostShareTable,
        means: &dyn Means,
        candidates: &Candidates,
        alone_gb_per_s: &[f64],
    ) -> Vec<Effect> {
        let meetings = self.meetings(table, means, candidates, false);
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

#[cfg(test)]
mod tests {
    use super::*;
    use predict::{BandwidthModel, FitOptions, Kind, fit};
    use std::cell::RefCell;
    use store::{Measurement, Source};
    use topology::{Bandwidth, Bytes, Collective, catalog};

    /// Remembers the sets that were predicted.
    #[derive(Default)]
    struct Seen(RefCell<Vec<Vec<HostShare>>>);

    impl Means for Seen {
        fn one(&self, _: &[HostShare]) -> f64 {
            100.0
        }
        fn all(&self, candidates: &Candidates, out: &mut Vec<f64>) {
            self.0.borrow_mut().extend(candidates.iter().map(<[HostShare]>::to_vec));
            out.clear();
            out.resize(candidates.len(), 100.0);
        }
    }

    #[test]
    fn a_candidate_on_many_hosts_is_merged_with_the_jobs_that_share_the_most_hosts() {
        const HOSTS: u32 = 320;
        const JOBS: u32 = 60;
        let (cluster, size) = (catalog::cluster("320xhgx-h100").unwrap(), Bytes::gib(1));
        let halves = |hosts: std::ops::Range<u32>, mask| Allocation::new(hosts.map(|h| (HostId(h), GpuMask(mask))));
        let read = Bandwidth::from_gb_per_s(300.0);
        let row = Measurement::new(halves(0..2, 0xf), Collective::AllReduce, size, read, Source::Simulated);
        let model = fit(&cluster, &[row], &FitOptions::of(Kind::Bound)).unwrap().0;
        let table = model.share_table(size);
        // The last job is on 8 hosts, every other one on 4.
        let hosts = |j: u32| 4 * j..4 * j + if j + 1 == JOBS { 8 } else { 4 };
        let job = |j: u32| Running { job: j as usize, gpus: halves(hosts(j), 0xf0), demand_gb_per_s: 10.0 };
        let merge = Merge::new(table, &(0..JOBS).map(job).collect::<Vec<_>>(), None);
        let seen = Seen::default();
        let candidates = Candidates::of(table, &[halves(0..HOSTS, 0xf)]);
        let meeting = merge.meetings(table, &seen, &candidates, false)[0];
        assert_eq!(meeting.others_gb_per_s, 10.0 * f64::from(JOBS), "every job on the hosts contends");
        let sets = seen.0.into_inner();
        let (into_candidate, of_jobs): (Vec<_>, Vec<_>) = sets.iter().partition(|s| s.len() == HOSTS as usize);
        assert_eq!(of_jobs.len(), JOBS as usize);
        assert_eq!(into_candidate.len(), MERGED_PARTS_MAX / HOSTS as usize);
        let merged = |h: u32| into_candidate.iter().filter(|s| s[h as usize].count == 8).count();
        assert_eq!(merged(4 * JOBS), 1, "the job on the most hosts is merged");
        assert_eq!((merged(0), merged(4 * JOBS - 8)), (1, 0), "of equal jobs the first ones are");
    }
}
