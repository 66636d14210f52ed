//! The rule by which BandPilot's public code shares bandwidth among jobs, and the missing rows that follow from its files of requests.
//!
//! A running job that shares a host with a choice is merged with it: each side's hosts with the GPUs of both, **by
//! counts** (for n GPUs of a host BandPilot's code uses GPUs 0 to n - 1). Every job gets a share of the smaller
//! bandwidth in proportion to the demands. Every truth in the published files follows from this rule; a test checks it.

use super::reader::{Load, Scenario};
use crate::ground_truth::PublicCode;
use topology::{Allocation, GpuMask, HostId};
use truths::Truth;

/// Truths that were derived from shares are integers up to rounding in the file (demands have four decimals).
const INTEGER_TOLERANCE: f64 = 2e-3;

/// GPUs per host, descending.
fn sorted(a: &Allocation) -> Vec<usize> {
    let mut counts = a.counts();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    counts
}

impl PublicCode {
    /// `a` with the GPUs of `b` on its hosts added, by counts; `None` if a host has fewer GPUs than that.
    fn merged(&self, a: &Allocation, b: &Allocation) -> Option<Allocation> {
        let parts = a.parts().iter().map(|&(h, m)| {
            let n = m.count() + b.mask(h).count();
            (n <= self.cluster().type_of(h).gpu_count()).then_some((h, GpuMask::first(n)))
        });
        parts.collect::<Option<Vec<_>>>().map(Allocation::new)
    }

    /// The merged sets of a choice and the jobs that share hosts with it, and the total demand of these jobs.
    fn meetings(&self, s: &Scenario, a: &Allocation) -> (Vec<Allocation>, f64) {
        let mut sets = Vec::new();
        let mut demand = 0.0;
        if s.load == Load::Idle || a.host_count() < 2 {
            return (sets, demand);
        }
        for b in &s.background {
            if b.gpus.host_count() < 2 || !a.parts().iter().any(|p| !b.gpus.mask(p.0).is_empty()) {
                continue;
            }
            sets.extend([self.merged(a, &b.gpus), self.merged(&b.gpus, a)].into_iter().flatten());
            demand += b.demand_gb_per_s;
        }
        (sets, demand)
    }

    /// Bandwidth of a choice among the running jobs, GB/s; `None` if a missing row could matter.
    pub fn shared(&self, s: &Scenario, a: &Allocation) -> Option<f64> {
        let alone = self.alone(a)?;
        let (sets, others) = self.meetings(s, a);
        let demand = alone + others;
        let mut capacity = f64::INFINITY;
        for set in &sets {
            capacity = capacity.min(self.alone(set)?);
        }
        Some(if demand > capacity { alone * capacity / demand } else { alone })
    }

    /// Adds the missing rows that follow from a file of requests: bandwidths of choices alone, and of merged sets by the choices' shares.
    /// Returns the number of rows added.
    pub fn recover(&mut self, scenarios: &[Scenario]) -> usize {
        if !self.intra().is_empty() {
            return 0; // there a truth rarely determines a row
        }
        let before = self.recovered();
        for s in scenarios {
            for b in &s.background {
                self.recover_row(&b.gpus, b.standalone_gb_per_s);
            }
            for p in &s.peers {
                if let Some(v) = p.standalone_gb_per_s {
                    self.recover_row(&p.gpus, v);
                }
            }
        }
        loop {
            let known = self.recovered();
            for s in scenarios {
                let best = s.optimum_counts.iter().map(|c| {
                    let first = c.iter().enumerate().map(|(h, n)| (HostId(h as u32), GpuMask::first(usize::from(*n))));
                    (Allocation::new(first), s.optimum_gb_per_s)
                });
                let seen: Vec<_> = s.peers.iter().map(|p| (p.gpus.clone(), p.truth_gb_per_s)).chain(best).collect();
                for (a, truth) in seen {
                    let (sets, others) = self.meetings(s, &a);
                    if sets.is_empty() {
                        self.recover_row(&a, truth);
                        continue;
                    }
                    let Some(alone) = self.alone(&a).filter(|v| *v > 0.0) else { continue };
                    if truth >= alone - INTEGER_TOLERANCE {
                        continue; // no bandwidth was shared: the capacity is only known to suffice
                    }
                    let capacity = truth * (alone + others) / alone;
                    let whole = capacity.round();
                    if (capacity - whole).abs() > INTEGER_TOLERANCE * whole.max(1.0) {
                        continue;
                    }
                    // The capacity is the smallest of all sets. If the known ones are larger, it is that of the only
                    // unknown set.
                    let unknown: Vec<_> = sets.iter().filter(|m| self.alone(m).is_none()).collect();
                    let met = sets.iter().any(|m| self.alone(m) == Some(whole));
                    let all_alike = unknown.windows(2).all(|w| sorted(w[0]) == sorted(w[1]));
                    if !met
                        && all_alike
                        && let Some(m) = unknown.first()
                    {
                        self.recover_row(m, whole);
                    }
                }
            }
            if self.recovered() == known {
                return known - before;
            }
        }
    }

    /// Bandwidth of a choice among the running jobs: by the rule, or from an equivalent choice in the file.
    pub fn judge(&self, s: &Scenario, a: &Allocation) -> Option<f64> {
        let by_counts = self.intra().is_empty();
        let alike = |b: &Allocation| match by_counts {
            true => self.cluster().host_ids().all(|h| a.mask(h).count() == b.mask(h).count()),
            false => a == b,
        };
        self.shared(s, a).or_else(|| s.peers.iter().find(|p| alike(&p.gpus)).map(|p| p.truth_gb_per_s)).or_else(|| {
            let best = s.optimum_counts.as_ref().filter(|_| by_counts)?;
            let same = self.cluster().host_ids().all(|h| a.mask(h).count() == usize::from(best[h.index()]));
            same.then_some(s.optimum_gb_per_s)
        })
    }
}
