//! The exact optimum among running jobs that share by merging.
//!
//! With running jobs the best GPUs of a host are not only those with the highest bandwidth, because the merged set also
//! contains the running job's GPUs. A mask is left out if another mask with the same count is at least as good in every
//! quantity that the truth depends on, alone and merged with each job. The other masks are enumerated as for every
//! truth.

use place::{Contention, Objective, Request};
use predict::{BandwidthModel, HostShare};
use topology::{Allocation, GpuMask, HostId};
use truths::{About, Irregularity, Optimum, Parts, Truth};

/// Maximum number of nodes of an enumeration, each with up to three bandwidths of the truth: about a second.
const NODES_MAX: u64 = 300_000;

/// The truth for one request: the bandwidth of the new job among the running jobs.
pub struct ContendedTruth<'a> {
    /// The truth without jobs.
    pub truth: &'a dyn Truth,
    /// A model that predicts the truth.
    pub oracle: &'a dyn BandwidthModel,
    /// The request with its running jobs.
    pub request: &'a Request,
}

impl ContendedTruth<'_> {
    /// The best bandwidth of the request; `None` if enumeration would take too long or jobs do not share by merging.
    pub fn optimum_gb_per_s(&self, irregularity: Irregularity) -> Option<f64> {
        if matches!(self.request.contention, Contention::Physical) {
            return None; // flows over links: no rule determines which masks are equal
        }
        self.optimum(&self.request.free, self.request.gpus, irregularity).best
    }

    /// The GPUs and the demand of each job that can contend.
    fn jobs(&self) -> impl Iterator<Item = (&Allocation, f64)> {
        let jobs = self.request.jobs.iter().filter(|j| j.gpus.host_count() > 1);
        jobs.map(|j| (&j.gpus, j.demand_gb_per_s.unwrap_or(f64::INFINITY))).filter(|j| j.1 > 0.0)
    }

    /// The GPUs of a host in the merged set; `None` if no host can hold them.
    fn merged(&self, host: HostId, mask: GpuMask, others: GpuMask) -> Option<GpuMask> {
        match self.request.contention {
            Contention::MergeBy(rule) => {
                let table = self.oracle.share_table(self.request.size);
                (rule.join)(table, &table.part(host, mask), others).map(|p| p.mask)
            }
            _ => Some(mask.union(others)),
        }
    }

    /// The quantities that the shared bandwidth depends on besides the count; see [`Truth::merits`].
    fn merits_among_jobs(&self, host: HostId, mask: GpuMask) -> Option<Vec<f64>> {
        let mut all = self.truth.merits(host, mask)?;
        for (gpus, _) in self.jobs() {
            let others = gpus.mask(host);
            if others.is_empty() {
                continue;
            }
            match self.merged(host, mask, others) {
                Some(m) => {
                    all.extend([1.0, -1.0]);
                    all.extend(self.truth.merits(host, m)?);
                }
                // Not comparable with masks that can be merged.
                None => all.extend([0.0, 0.0]),
            }
        }
        Some(all)
    }
}

impl Truth for ContendedTruth<'_> {
    fn about(&self) -> &About {
        self.truth.about()
    }
    fn of_parts(&self, parts: Parts, irregularity: Irregularity) -> Option<f64> {
        self.truth.of_parts(parts, irregularity)?;
        let table = self.oracle.share_table(self.request.size);
        let parts: Vec<HostShare> = parts.iter().map(|&(h, m)| table.part(h, m)).collect();
        Some(Objective::new(self.truth.cluster(), self.oracle, self.request).effect(&parts).shared_gb_per_s)
    }
    fn noise(&self, hosts: usize) -> f64 {
        self.truth.noise(hosts)
    }
    fn masks_that_matter(
        &self,
        host: HostId,
        free: GpuMask,
        count: usize,
        alone: bool,
        irregularity: Irregularity,
    ) -> Vec<GpuMask> {
        if alone {
            return self.truth.masks_that_matter(host, free, count, true, irregularity); // no job contends with one host
        }
        let masks: Vec<GpuMask> = free.subsets().filter(|m| m.count() == count).collect();
        let merits: Option<Vec<Vec<f64>>> = masks.iter().map(|m| self.merits_among_jobs(host, *m)).collect();
        match merits {
            Some(merits) => truths::undominated(masks, merits),
            None => masks,
        }
    }
    /// The smaller of the bound without jobs and the job's share of the bound of the merged set.
    fn at_most(&self, chosen: Parts, gpus: usize, irregularity: Irregularity) -> f64 {
        let alone = self.truth.at_most(chosen, gpus, irregularity);
        let (mut capacity, mut others) = (f64::INFINITY, 0.0);
        for (job, demand) in self.jobs() {
            if !chosen.iter().any(|c| !job.mask(c.0).is_empty()) {
                continue;
            }
            others += demand;
            let merged: Option<Vec<(HostId, GpuMask)>> =
                chosen.iter().map(|&(h, m)| Some((h, self.merged(h, m, job.mask(h))?))).collect();
            if let Some(merged) = merged {
                // The merged set has a number of GPUs between these two.
                let ends = [gpus, gpus + job.gpu_count()].map(|n| self.truth.at_most(&merged, n, irregularity));
                capacity = capacity.min(ends[0].max(ends[1]));
            }
        }
        if alone.is_finite() && alone + others > capacity { alone * capacity / (alone + others) } else { alone }
    }
    fn nodes_max(&self) -> u64 {
        NODES_MAX
    }
    fn optimum(&self, free: &Allocation, k: usize, irregularity: Irregularity) -> Optimum {
        truths::enumerate(self, free, k, irregularity)
    }
}
